"""Reading arrays from HDF5 files that nobody vouches for.

Only numbers are read, only from this very file, and no more than what is stored can fill. h5py's low-level calls are
used because data sets of many short episodes are read array by array, and they are twice as fast.
"""

from __future__ import annotations

import math
import os
import stat
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from mocoda.engine.errors import InputError

COMPRESSION = 1_100  # times that HDF5's filters shrink an array, at the very most
TEXT = 60_000  # bytes of text that fit into an attribute itself, which takes 64 KiB with its name
SMALL = 1 << 20  # bytes that are never too many
LARGE = 1 << 26  # bytes that a chunk may have, however few rows there are


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


def open_hdf5(path: Path) -> h5py.File:
    check_readable(path)
    if path.is_dir():
        raise InputError(f"{str(path)!r} is a folder; expected an HDF5 file.")
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise InputError(
            f"{str(path)!r} cannot be read as HDF5: it is truncated or of another format ({error})."
        ) from error


def put_text(file: h5py.File, name: str, text: str) -> None:
    """Writes a text as an attribute of fixed length: HDF5 loops for ever on some damaged texts of variable length."""
    encoded = text.encode()
    file.attrs[name] = np.bytes_(encoded) if len(encoded) <= TEXT else text


def text_at(file: h5py.File, name: str) -> str | None:
    """A text that `put_text` wrote, or an earlier version of mocoda; None where there is none."""
    text = file.attrs.get(name)
    return text.decode() if isinstance(text, bytes) else None if text is None else str(text)


def fixed_length(file: h5py.File) -> bool:
    """Whether all attributes are single values of fixed length, which are safe to read however damaged they are."""
    kinds = [(attribute.shape, attribute.dtype.kind) for attribute in map(file.attrs.get_id, file.attrs)]
    return all(shape == () and kind in "biufS" for shape, kind in kinds)


def array_at(group: h5py.Group, path: str) -> NDArray[Any]:
    """The array at `path` under `group`. Raises KeyError where there is none, InputError where it cannot be trusted."""
    try:
        return _array(group, path.encode())
    except _UntrustedError as reason:
        where = f"{group.name.rstrip('/')}/{path}"
        raise InputError(f"{group.file.filename!r} is damaged or was tampered with: {where} {reason}.") from reason
    except (OSError, RuntimeError) as error:  # raised for truncated and damaged files
        where = f"{group.name.rstrip('/')}/{path}"
        raise InputError(f"{group.file.filename!r} is damaged: {where} cannot be read ({error}).") from error


def group_at(file: h5py.File, name: str) -> h5py.Group:
    """The group `name` of a file itself. Raises KeyError where there is none."""
    links, key = file.id.links, name.encode()
    if links.exists(key) and links.get_info(key).type == h5py.h5l.TYPE_HARD:
        place = h5py.h5o.open(file.id, key)
        if isinstance(place, h5py.h5g.GroupID):
            return h5py.Group(place)
    raise KeyError(name)


class _UntrustedError(Exception):
    pass


def _array(group: h5py.Group, path: bytes) -> NDArray[Any]:
    place, steps = group.id, path.split(b"/")
    for number, step in enumerate(steps):
        if not isinstance(place, h5py.h5g.GroupID) or not place.links.exists(step):
            raise KeyError(path.decode())
        if place.links.get_info(step).type != h5py.h5l.TYPE_HARD:
            raise _UntrustedError("is a link to elsewhere")
        place = h5py.h5o.open(place, step)
        if number == len(steps) - 1 and not isinstance(place, h5py.h5d.DatasetID):
            raise KeyError(path.decode())
    made = place.get_create_plist()
    if made.get_layout() == h5py.h5d.VIRTUAL or made.get_external_count():
        raise _UntrustedError("keeps its numbers in another file")
    kind = place.dtype
    if kind.kind not in "biuf":
        raise _UntrustedError(f"holds {kind}, not plain numbers")
    size = math.prod(place.shape) * kind.itemsize
    if size > SMALL + COMPRESSION * place.get_storage_size():
        raise _UntrustedError(f"claims {size:,} bytes and stores {place.get_storage_size():,}")
    if made.get_layout() == h5py.h5d.CHUNKED:  # of which each is unpacked whole, however few rows there are
        chunk = math.prod(made.get_chunk()) * kind.itemsize
        if chunk > max(LARGE, 4 * size):
            raise _UntrustedError(f"has {size:,} bytes in chunks of {chunk:,}")
    array = np.empty(place.shape, kind)
    if array.size:
        place.read(h5py.h5s.ALL, h5py.h5s.ALL, array)
    return array
