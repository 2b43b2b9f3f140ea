"""npz files, numpy's own format, and OGBench's files in it. Nothing is unpickled."""

from __future__ import annotations

import json
import math
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mocoda.data.formats.arrays import arrays_of, checked_texts, refusing, texts_of
from mocoda.data.formats.format import Contents, Format, Stored, begins_with
from mocoda.data.formats.guarded import Unpacked
from mocoda.data.names import ALIASES, OUR_NAME, PROVENANCE, TEXTS
from mocoda.engine.errors import InputError
from mocoda.engine.files import whole_file

if TYPE_CHECKING:
    from mocoda.data.transitions import Transitions

EPISODE_NAMES = (*ALIASES["episode"], *ALIASES["step"])  # arrays that may hold texts


def is_npz(path: Path) -> bool:
    return begins_with(path, b"PK")


def is_ogbench(path: Path) -> bool:
    """OGBench's files hold neither rewards nor next observations, and terminals that mark the last rows of episodes."""
    if not is_npz(path):
        return False
    with refusing(str(path), "npz"), zipfile.ZipFile(path) as file:
        names = {name.removesuffix(".npy") for name in file.namelist()}
    known = {name for name in names if name in OUR_NAME or name.startswith("provenance.")}
    return known == {"observations", "actions", "terminals"}


def read_npz(place: str) -> Contents:
    """The arrays of a file; those with unknown names are read only if a user names them."""
    arrays: dict[str, Any] = {}
    texts = {}
    with refusing(place, "npz"), zipfile.ZipFile(place) as file:
        unpacked = Unpacked(place, Path(place))
        for member in file.infolist():
            name = member.filename.removesuffix(".npy")
            if name in TEXTS:
                texts[name] = json.loads(str(_array(file, member, "U", unpacked)))
            elif name in OUR_NAME or name.startswith("provenance."):
                arrays[name] = _array(file, member, "biufU" if name in EPISODE_NAMES else "biuf", unpacked)
            else:
                arrays[name] = Stored(partial(_load, place, name), _shape(file, member))
    found = checked_texts(place, texts)
    others = [name for name, array in arrays.items() if isinstance(array, Stored)]
    return Contents(arrays, found.get("columns", ()), found.get("source"), ignored=others)


def _load(place: str, name: str) -> NDArray[Any]:
    with refusing(place, "npz"), zipfile.ZipFile(place) as file:
        held = {member.filename.removesuffix(".npy"): member for member in file.infolist()}
        return _array(file, held[name], "biufU", Unpacked(place, Path(place)))


def read_ogbench(place: str) -> Contents:
    return replace(read_npz(place), ends_only=True)


def write_npz(data: Transitions, place: str) -> None:
    """Plain arrays under our names, which numpy.load reads without pickles."""
    arrays = {name.replace(PROVENANCE, "provenance."): array for name, array in arrays_of(data).items()}
    texts = {name: np.array(json.dumps(value)) for name, value in texts_of(data).items()}
    with whole_file(place) as part, part.open("wb") as file:
        np.savez(file, **arrays, **texts)  # type: ignore[arg-type]


OGBENCH = Format("ogbench", "OGBench npz", "ogbench:FILE.npz", read_ogbench, recognises=is_ogbench)
NPZ = Format("npz", "npz", "FILE.npz", read_npz, write_npz, suffixes=(".npz",), recognises=is_npz)


def _array(file: zipfile.ZipFile, member: zipfile.ZipInfo, kinds: str, unpacked: Unpacked) -> NDArray[Any]:
    """An array in a zip, read only if it holds plain numbers."""
    name = f"{str(file.filename)!r}: {member.filename[:200]}"
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InputError(f"{name} is compressed in a way that numpy does not write.")
    with file.open(member) as handle:
        shape, dtype = _header(handle)
    if dtype.kind not in kinds:
        if dtype.hasobject:
            raise InputError(f"{name} holds pickled objects, which could run code when opened. Save plain numbers.")
        raise InputError(f"{name} holds {dtype}, not plain numbers.")
    unpacked.add(math.prod(shape) * dtype.itemsize)
    with file.open(member) as handle:
        return np.asarray(np.lib.format.read_array(handle, allow_pickle=False))


def _shape(file: zipfile.ZipFile, member: zipfile.ZipInfo) -> str:
    try:
        with file.open(member) as handle:
            return str(_header(handle)[0])
    except Exception:  # of an array that nobody needs
        return "(not an array)"


def _header(handle: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(handle)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"npy version {version} is for arrays of records")
    shape, _, dtype = readers[version](handle)
    return shape, dtype
