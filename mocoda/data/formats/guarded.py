"""Reading files from strangers: only plain numbers, only from the file itself, and in bounded memory."""

from __future__ import annotations

import contextlib
import json
import math
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from mocoda.engine.errors import InputError

CHUNK = 1 << 26  # bytes that a chunk of HDF5 may have, however few rows there are
ALWAYS_READ = 1 << 28  # bytes that a file may always unpack to
MOST_UNPACKED = 50  # times its own size that a larger file may unpack to
LISTED = 1000  # members of a file, arrays or groups, that are listed


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


@contextlib.contextmanager
def refusing(path: str, kind: str) -> Iterator[None]:
    """Turns any error while an untrusted file is parsed into an InputError that names the file."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # parsers of damaged files raise anything from KeyError to RecursionError
        reason = f"{type(error).__name__}: {error}".removesuffix(".")
        raise InputError(
            f"{path!r} cannot be read as {kind}: it is truncated, damaged or of another format ({reason})."
        ) from error


@contextlib.contextmanager
def reading_hdf5(path: str | Path) -> Iterator[h5py.File]:
    """Opens an HDF5 file from a stranger: `refusing` and `open_hdf5`."""
    with refusing(str(path), "HDF5"), open_hdf5(Path(path)) as file:
        yield file


class Unpacked:
    """Counts the bytes that the arrays of a file, or of several, unpack to, and refuses too many before they are read.

    place  how messages call the file
    """

    def __init__(self, place: str, *files: Path) -> None:
        self.place = place
        self.limit = max(ALWAYS_READ, MOST_UNPACKED * sum(file.stat().st_size for file in files))
        self.bytes = 0

    def add(self, size: int) -> None:
        """Counts an array of `size` bytes."""
        self.bytes += size
        if self.bytes > self.limit:
            raise InputError(
                f"{self.place!r} unpacks to more than {self.limit:,} bytes, which is {MOST_UNPACKED} times its size or "
                "256 MiB. If you trust it, save it again without compression."
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
    place = _member(group, path, h5py.h5d.DatasetID)
    try:
        array = _read(place, kinds, group.unpacked)
    except (OSError, RuntimeError) as error:  # the latter for truncated and damaged files
        array = f"cannot be read ({error})"
    if isinstance(array, str):
        raise _untrusted(group, path, array)
    return array


def arrays_at(file: h5py.Group, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Reads those of the named arrays that are there."""
    found = {}
    for name in names:
        with contextlib.suppress(KeyError):
            found[name] = array_at(file, name)
    return found


def group_at(file: h5py.Group, name: str) -> h5py.Group:
    """The group `name` in a file itself; refuses links. Raises KeyError where there is none."""
    group = h5py.Group(_member(file, name, h5py.h5g.GroupID))
    group.unpacked = file.unpacked
    return group


def names_in(group: h5py.Group, name: str) -> list[str]:
    """The names of the members of a group in a group, if it is there; refuses a link to another group."""
    try:
        return [member for member in group_at(group, name) if isinstance(member, str)]
    except KeyError:
        return []


def _untrusted(group: h5py.Group, path: str, reason: str) -> InputError:
    where = f"{group.name.rstrip('/')}/{path}"
    return InputError(f"{group.file.filename!r} is damaged or was tampered with: {where} {reason}.")


def _member(group: h5py.Group, path: str, kind: type) -> Any:
    """What is at a path under a group, as h5py's low-level object of this kind."""
    place = group.id
    for step in path.encode().split(b"/"):
        if not isinstance(place, h5py.h5g.GroupID) or not place.links.exists(step):
            raise KeyError(path)
        if place.links.get_info(step).type != h5py.h5l.TYPE_HARD:
            raise _untrusted(group, path, "is a link to elsewhere")
        try:
            place = h5py.h5o.open(place, step)
        except KeyError as error:
            raise _untrusted(group, path, f"cannot be opened ({error.args[0]})") from error
    if not isinstance(place, kind):
        raise KeyError(path)
    return place


def _read(place: Any, kinds: str, unpacked: Unpacked) -> NDArray[Any] | str:
    """An array of plain numbers in the file itself, or why it cannot be trusted."""
    made, kind = place.get_create_plist(), place.dtype
    if made.get_layout() == h5py.h5d.VIRTUAL or made.get_external_count():
        return "keeps its numbers in another file"
    if kind.kind not in kinds:
        return f"holds {kind}, not plain numbers"
    size: int = math.prod(place.shape) * kind.itemsize
    if made.get_layout() == h5py.h5d.CHUNKED:  # each chunk is unpacked whole, however few rows there are
        chunk = math.prod(made.get_chunk()) * kind.itemsize
        if chunk > max(CHUNK, 4 * size):
            return f"has {size:,} bytes in chunks of {chunk:,}"
    unpacked.add(size)
    array = np.empty(place.shape, kind)
    if array.size:
        place.read(h5py.h5s.ALL, h5py.h5s.ALL, array)
    return array


def put_metadata(file: h5py.File, values: Mapping[str, Any]) -> None:
    """Writes JSON values as arrays of bytes: HDF5 loops for ever on some damaged texts of its own kind."""
    for name, value in values.items():
        if f"metadata/{name}" in file:
            del file[f"metadata/{name}"]
        file[f"metadata/{name}"] = np.frombuffer(json.dumps(value).encode(), np.uint8)


def metadata_of(file: h5py.File, names: Iterable[str]) -> dict[str, Any]:
    """The JSON values that `put_metadata` wrote under these names."""
    found = arrays_at(file, [f"metadata/{name}" for name in names])
    return {name.split("/")[1]: json.loads(text.astype(np.uint8).tobytes()) for name, text in found.items()}


def shapes(group: h5py.Group, first: int = 0) -> dict[str, tuple[int, ...]]:
    """The shapes, from their axis `first` on, of arrays in a group and in the groups below; links are not followed."""
    found: dict[str, tuple[int, ...]] = {}
    seen = count(1)

    def note(name: str | bytes, place: Any) -> bool | None:
        if isinstance(place, h5py.Dataset) and isinstance(name, str):
            found[name] = place.shape[first:]
        return next(seen) > LISTED or None  # anything but None ends the walk

    group.visititems(note)
    return found
