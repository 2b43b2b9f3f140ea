"""Files with an array per name: mocoda's own HDF5, plain HDF5 as D4RL has it, npz, and OGBench's npz.

A plain file holds observations, actions, rewards, terminals and timeouts, with or without next observations, under
these names or ours (state, action, next_state, ...). Nothing is unpickled.
"""

from __future__ import annotations

import json
import math
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import h5py
import numpy as np
from numpy.typing import NDArray

from mocoda.data.formats.arrays import arrays_of, checked_texts, texts_of
from mocoda.data.formats.as_episodes import as_episodes, grouped_by_episode
from mocoda.data.formats.format import Contents, Format, Stored, begins_with
from mocoda.data.formats.guarded import (
    Unpacked,
    arrays_at,
    metadata_of,
    names_in,
    put_metadata,
    reading_hdf5,
    refusing,
    shapes,
)
from mocoda.data.names import ALIASES, ARRAYS, OUR_NAME, PROVENANCE, TEXTS
from mocoda.engine.errors import InputError
from mocoda.engine.files import hdf5_disk, whole_file

if TYPE_CHECKING:
    from mocoda.data.transitions import Transitions

FORMAT = "mocoda-transitions"
FORMAT_VERSION = 3
D4RL_NAMES = {
    "state": "observations",
    "action": "actions",
    "next_state": "next_observations",
    "reward": "rewards",
    "terminal": "terminals",
    "goal": "infos/goal",
}
EPISODE_NAMES = (*ALIASES["episode"], *ALIASES["step"])  # arrays of an npz that may hold texts


def is_hdf5(path: Path) -> bool:
    return begins_with(path, b"\x89HDF\r\n\x1a\n")


def is_ours(path: Path) -> bool:
    """Whether a file says that mocoda wrote it."""
    if not is_hdf5(path):
        return False
    with reading_hdf5(path) as file:
        return file.id.links.exists(b"state") and "format" in names_in(file, "metadata")


def stored_arrays(file: h5py.File) -> list[str]:
    """Checks that a file is one of ours, of this version and complete; returns the names of its arrays."""
    name, held = file.filename, {*file}  # names only: `in file` would follow links
    found = metadata_of(file, ("format", *TEXTS))
    if found.get("format", [None])[0] != FORMAT:
        raise InputError(
            f"{name!r} is HDF5 but not a {FORMAT} file. mocoda.read reads it if its arrays have names such as "
            "observations and actions."
        )
    missing = [f"metadata/{key}" for key in TEXTS if key not in found]
    missing += [key for key in ("state", "action", "next_state", "terminal") if key not in held]
    if missing:
        raise InputError(f"{name!r} lacks {', '.join(missing)}; it was not written by mocoda, or damaged since.")
    version = found["format"][1]
    if version != FORMAT_VERSION:
        raise InputError(
            f"{name!r} has format version {version}; this mocoda reads version {FORMAT_VERSION}. Read it with the "
            "mocoda that wrote it (metadata/versions says which)."
        )
    return [*(key for key in ARRAYS if key in held), *(PROVENANCE + key for key in names_in(file, "provenance"))]


def read_ours(place: str) -> Contents:
    """Reads what `Transitions.load` does, but from a file that may be damaged or of another origin."""
    with reading_hdf5(place) as file:
        arrays, found = arrays_at(file, stored_arrays(file)), checked_texts(place, metadata_of(file, TEXTS))
        return Contents(arrays, found["columns"], found["source"])


def read_plain(place: str) -> Contents:
    """The arrays of a file; those with unknown names are read only if a user names them."""
    with reading_hdf5(place) as file:
        arrays: dict[str, Any] = arrays_at(file, [name for name in OUR_NAME if "/" not in name and name != "step"])
        if any(name in arrays for name in ALIASES["episode"]):  # otherwise, step counts something else
            arrays |= arrays_at(file, ["step"])
        if not any(name in arrays for name in ALIASES["goal"]):
            rows = {len(array) for array in arrays.values() if array.ndim}
            goals = arrays_at(file, ["infos/goal"])
            arrays |= {name: goal for name, goal in goals.items() if {*goal.shape[:1]} == rows}
        arrays |= arrays_at(file, [PROVENANCE + name for name in names_in(file, "provenance")])
        found = checked_texts(place, metadata_of(file, TEXTS))
        names = [name if isinstance(name, str) else name.decode(errors="replace") for name in file]
        ignored = [name for name in names if name not in {*arrays, "infos", "metadata", "provenance"}]
        others = {name: Stored(partial(_load, place, name), str(shape)) for name, shape in shapes(file).items()}
    return Contents(others | arrays, found.get("columns", ()), found.get("source"), ignored)


def _load(place: str, name: str) -> NDArray[Any]:
    with reading_hdf5(place) as file:
        return arrays_at(file, [name])[name]


def write_d4rl(data: Transitions, place: str) -> None:
    """Writes D4RL's arrays and next observations. Rows of an episode come together, sorted by step.

    Timeouts mark the rows that are neither terminal nor continued by the following row.
    """
    data = grouped_by_episode(data)
    last = np.zeros(len(data), bool)
    last[as_episodes(data).bounds[1:] - 1] = True
    with whole_file(place) as part, hdf5_disk(part) as disk, h5py.File(disk, "w") as file:
        arrays = arrays_of(data)
        for name, array in arrays.items():
            file[D4RL_NAMES.get(name, name)] = array
        file["timeouts"] = last & ~arrays["terminal"]
        put_metadata(file, texts_of(data))


MOCODA = Format(
    "mocoda",
    "mocoda HDF5",
    "FILE.hdf5",
    read_ours,
    lambda data, place: data.save(place),
    suffixes=(".hdf5", ".h5"),
    recognises=is_ours,
    streamed=True,
)
D4RL = Format("d4rl", "D4RL-style HDF5", "d4rl:FILE.hdf5", read_plain, write_d4rl, recognises=is_hdf5)


# npz


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
                arrays[name] = Stored(partial(_load_npz, place, name), _shape(file, member))
    found = checked_texts(place, texts)
    others = [name for name, array in arrays.items() if isinstance(array, Stored)]
    return Contents(arrays, found.get("columns", ()), found.get("source"), ignored=others)


def _load_npz(place: str, name: str) -> NDArray[Any]:
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
