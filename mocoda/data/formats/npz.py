"""npz files <-> arrays: numpy's own format, opened without trust and never unpickled."""

from __future__ import annotations

import json
import math
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from mocoda.data.formats.arrays import NAMES, OURS, TEXTS, as_arrays, checked_texts, refusing, texts_of
from mocoda.data.formats.guarded import COMPRESSION, SMALL
from mocoda.data.transitions import PROVENANCE, Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.files import whole_file


def read_npz(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any], list[str]]:
    """The arrays that can be of use, the texts, and the names of what else there is. Never unpickles."""
    arrays, texts, left = {}, {}, []
    with refusing(path, "npz"), zipfile.ZipFile(path) as file:
        for member in file.infolist():
            name = member.filename.removesuffix(".npy")
            if name in TEXTS:
                texts[name] = json.loads(str(_member(file, member, "U")))
            elif name in OURS or name.startswith("provenance."):
                arrays[name] = _member(file, member, "biufU" if name in NAMES["episode"] else "biuf")
            else:
                left.append(name)
    return arrays, checked_texts(path, texts), left


def write_npz(data: Transitions, path: str | Path) -> None:
    """Our names, as plain arrays: numpy.load takes them without pickles."""
    arrays = {name.replace(PROVENANCE, "provenance."): array for name, array in as_arrays(data).items()}
    with whole_file(path) as part, part.open("wb") as file:
        np.savez(file, **arrays, **{name: np.array(text) for name, text in texts_of(data).items()})  # type: ignore[arg-type]


def _member(file: zipfile.ZipFile, member: zipfile.ZipInfo, kinds: str) -> NDArray[Any]:
    """An array in a zip, read only if it is of plain numbers and there are bytes for all of them."""
    name = f"{file.filename!r}: {member.filename}"
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InputError(f"{name} is compressed in a way that numpy does not write.")
    with file.open(member) as handle:
        shape, dtype = _header(handle)
    if dtype.kind not in kinds:
        if dtype.hasobject:
            raise InputError(f"{name} holds pickled objects, which could run code when opened. Save plain numbers.")
        raise InputError(f"{name} holds {dtype} and no plain numbers.")
    size, stored = math.prod(shape) * dtype.itemsize, min(member.compress_size, Path(str(file.filename)).stat().st_size)
    if size > member.file_size or member.file_size > SMALL + COMPRESSION * stored:
        raise InputError(f"{name} claims {max(size, member.file_size):,} bytes and stores {stored:,}.")
    with file.open(member) as handle:
        array: NDArray[Any] = np.lib.format.read_array(handle, allow_pickle=False)
        if handle.read(1):
            raise InputError(f"{name} holds more than the {size:,} bytes that it claims.")
    return array


def _header(handle: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(handle)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"npy version {version} is for arrays of records")
    shape, _, dtype = readers[version](handle)
    return shape, dtype
