"""Reading files from strangers: only plain numbers, only from the file itself, and in bounded memory."""

from __future__ import annotations

import json
import math
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from mocoda.engine.errors import InputError

COMPRESSION = 1_100  # the largest factor by which the filters of HDF5 and zip shrink an array
SMALL = 1 << 20  # bytes that an array may always claim
CHUNK = 1 << 26  # bytes that a chunk of HDF5 may have, however few rows there are
ALWAYS_READ = 1 << 30  # bytes that a file may always unpack to
MOST_UNPACKED = 50  # times its own size that a larger file may unpack to
TEXT = 60_000  # bytes of text that fit into an attribute, which takes 64 KiB with its name
TIME_LIMIT = 3  # seconds of computing that the texts of a file may take


def check_readable(path: Path) -> None:
    """Refuses what cannot be opened, in one sentence that says why."""
    try:
        found = path.stat()
    except (OSError, ValueError) as error:  # the latter for names with a null byte
        if os.path.islink(path):  # noqa: PTH114, unlike Path.is_symlink it never raises
            raise InputError(f"{str(path)!r} is a broken link: there is no {str(path.readlink())!r}.") from error
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            raise InputError(f"there is no file {str(path)!r}.") from error
        raise InputError(f"{str(path)!r} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        raise InputError(f"{str(path)!r} cannot be read: it is neither a file nor a folder.")
    if not os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
        raise InputError(f"{str(path)!r} cannot be read: no permission. Its owner can give it with chmod +r.")


class Unpacked:
    """Counts the bytes that the arrays of a file, or of several, unpack to, and refuses too many before they are read.

    place  how messages call the file
    """

    def __init__(self, place: str, *files: Path) -> None:
        self.place = place
        self.limit = max(ALWAYS_READ, MOST_UNPACKED * sum(file.stat().st_size for file in files))
        self.bytes = 0

    def add(self, size: int, stored: int, what: str = "") -> None:
        """Counts an array of `size` bytes, which takes `stored` bytes in the file."""
        if size > SMALL + COMPRESSION * stored:
            raise InputError(f"{self.place!r}{what} claims {size:,} bytes and stores {stored:,}.")
        self.bytes += size
        if self.bytes > self.limit:
            raise InputError(
                f"{self.place!r} unpacks to more than {self.limit:,} bytes, which is {MOST_UNPACKED} times its size or "
                "1 GiB. If you trust it, save it again without compression."
            )


def open_hdf5(path: Path) -> h5py.File:
    """Opens an HDF5 file, and counts what its arrays unpack to in its attribute `unpacked`."""
    check_readable(path)
    if path.is_dir():
        raise InputError(f"{str(path)!r} is a folder; expected an HDF5 file.")
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise InputError(
            f"{str(path)!r} cannot be read as HDF5: it is truncated or of another format ({error})."
        ) from error
    file.unpacked = Unpacked(str(path), path)
    return file


def array_at(group: h5py.Group, path: str, kinds: str = "biuf") -> NDArray[Any]:
    """The array at `path` under a group that `open_hdf5` or `group_at` returned; links are not followed.

    Raises KeyError where there is none, InputError where it cannot be trusted. h5py's low-level calls take half the
    time, which matters for data sets of many short episodes.
    """
    try:
        return _array(group, path.encode(), kinds)
    except _UntrustedError as reason:
        where = f"{group.name.rstrip('/')}/{path}"
        raise InputError(f"{group.file.filename!r} is damaged or was tampered with: {where} {reason}.") from reason
    except (OSError, RuntimeError) as error:  # raised for truncated and damaged files
        where = f"{group.name.rstrip('/')}/{path}"
        raise InputError(f"{group.file.filename!r} is damaged: {where} cannot be read ({error}).") from error


def group_at(file: h5py.Group, name: str) -> h5py.Group:
    """The group `name` in a file itself, not behind a link. Raises KeyError where there is none."""
    links, key = file.id.links, name.encode()
    if links.exists(key) and links.get_info(key).type == h5py.h5l.TYPE_HARD:
        place = h5py.h5o.open(file.id, key)
        if isinstance(place, h5py.h5g.GroupID):
            group = h5py.Group(place)
            group.unpacked = file.unpacked
            return group
    raise KeyError(name)


def names_in(group: h5py.Group, name: str) -> list[str]:
    """The names of the members of a group in a group, if it is there; refuses a link to another group."""
    if isinstance(group.get(name, getlink=True), h5py.SoftLink | h5py.ExternalLink):
        where = f"{group.name.rstrip('/')}/{name}"
        raise InputError(f"{group.file.filename!r} is damaged or was tampered with: {where} is a link to elsewhere.")
    try:
        return [member for member in group_at(group, name) if isinstance(member, str)]
    except KeyError:
        return []


class _UntrustedError(Exception):
    pass


def _array(group: h5py.Group, path: bytes, kinds: str) -> NDArray[Any]:
    place, steps = group.id, path.split(b"/")
    for number, step in enumerate(steps):
        if not isinstance(place, h5py.h5g.GroupID) or not place.links.exists(step):
            raise KeyError(path.decode())
        if place.links.get_info(step).type != h5py.h5l.TYPE_HARD:
            raise _UntrustedError("is a link to elsewhere")
        try:
            place = h5py.h5o.open(place, step)
        except KeyError as error:
            raise _UntrustedError(f"cannot be opened ({error.args[0]})") from error
        if number == len(steps) - 1 and not isinstance(place, h5py.h5d.DatasetID):
            raise KeyError(path.decode())
    made = place.get_create_plist()
    if made.get_layout() == h5py.h5d.VIRTUAL or made.get_external_count():
        raise _UntrustedError("keeps its numbers in another file")
    kind = place.dtype
    if kind.kind not in kinds:
        raise _UntrustedError(f"holds {kind}, not plain numbers")
    size = math.prod(place.shape) * kind.itemsize
    if made.get_layout() == h5py.h5d.CHUNKED:  # each chunk is unpacked whole, however few rows there are
        chunk = math.prod(made.get_chunk()) * kind.itemsize
        if chunk > max(CHUNK, 4 * size):
            raise _UntrustedError(f"has {size:,} bytes in chunks of {chunk:,}")
    group.unpacked.add(size, place.get_storage_size(), f": {group.name.rstrip('/')}/{path.decode()}")
    array = np.empty(place.shape, kind)
    if array.size:
        place.read(h5py.h5s.ALL, h5py.h5s.ALL, array)
    return array


# Texts in HDF5. The library loops for ever on some damaged texts of variable length.


def put_text(group: h5py.Group, name: str, text: str) -> None:
    """Writes a text as an attribute of fixed length, which is safe to read however damaged it is; unless it is long."""
    encoded = text.encode()
    group.attrs[name] = np.bytes_(encoded) if len(encoded) <= TEXT else text


def put_array(group: h5py.Group, name: str, array: NDArray[Any]) -> None:
    """Writes an array that cannot grow: small ones take a third of the time and a quarter of the space."""
    kind = h5py.h5t.py_create(array.dtype, logical=True)
    how = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    how.set_obj_track_times(False)  # so that equal tables become equal files
    made = h5py.h5d.create(group.id, name.encode(), kind, h5py.h5s.create_simple(array.shape), how)
    made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(array))


def text_at(group: h5py.Group, name: str) -> str | None:
    """An attribute that `put_text` or version 1 of our files wrote; None where there is none."""
    text = group.attrs.get(name)
    return text.decode() if isinstance(text, bytes) else None if text is None else str(text)


def fixed_length(group: h5py.Group) -> bool:
    """Whether all attributes are single values of fixed length."""
    kinds = [(attribute.shape, attribute.dtype.kind) for attribute in map(group.attrs.get_id, group.attrs)]
    return all(shape == () and kind in "biufS" for shape, kind in kinds)


def variable_texts(place: str) -> dict[str, Any]:
    """The attributes of an HDF5 file and of its group `data`, read by another process, which may die of them.

    Returns the texts among them as {"/": {name: text}, "data": {name: text}}.
    """
    script = (
        "import sys, json\n"
        f"try: import resource; resource.setrlimit(resource.RLIMIT_CPU, ({TIME_LIMIT}, {TIME_LIMIT}))\n"
        "except ImportError: pass\n"
        "import h5py\n"
        "def text(given): return given.decode(errors='replace') if isinstance(given, bytes) else str(given)\n"
        "with h5py.File(sys.argv[1], 'r') as file:\n"
        "    found, link = {'/': file}, file.get('data', getlink=True)\n"
        "    if isinstance(link, h5py.HardLink): found['data'] = file['data']\n"
        "    texts = {name: {key: one.attrs[key] for key in one.attrs} for name, one in found.items()}\n"
        "    held = {name: {key: text(value) for key, value in one.items() if isinstance(value, (str, bytes))}\n"
        "            for name, one in texts.items()}\n"
        "    print(json.dumps(held))"
    )
    command = [sys.executable, "-P", "-c", script, str(Path(place).absolute())]
    try:
        done = subprocess.run(command, capture_output=True, timeout=60, check=True)
        found: dict[str, Any] = json.loads(done.stdout)
    except (subprocess.SubprocessError, ValueError) as error:
        raise InputError(f"{place!r} cannot be read as HDF5: it is truncated, damaged or of another format.") from error
    return found
