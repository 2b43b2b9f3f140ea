"""HDF5 files with arrays at the root: mocoda's own, and plain ones as D4RL has them.

A plain file holds observations, actions, rewards, terminals and timeouts, with or without next observations, under
these names or ours (state, action, next_state, ...).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from numpy.typing import NDArray

from mocoda.data.formats.arrays import arrays_of, checked_texts, refusing, texts_of
from mocoda.data.formats.as_episodes import as_episodes, grouped_by_episode
from mocoda.data.formats.format import Contents, Format, Stored, begins_with
from mocoda.data.formats.guarded import array_at, fixed_length, names_in, open_hdf5, text_at, variable_texts
from mocoda.data.names import ALIASES, ARRAYS, OUR_NAME, PROVENANCE, TEXTS
from mocoda.engine.errors import InputError
from mocoda.engine.files import hdf5_disk, whole_file

if TYPE_CHECKING:
    from mocoda.data.transitions import Transitions

FORMAT = "mocoda-transitions"
FORMAT_VERSION = 2  # texts of fixed length; files of version 1 are read too
D4RL_NAMES = {
    "state": "observations",
    "action": "actions",
    "next_state": "next_observations",
    "reward": "rewards",
    "terminal": "terminals",
    "goal": "infos/goal",
}
LISTED = 1000  # arrays of a file that are listed


def is_hdf5(path: Path) -> bool:
    return begins_with(path, b"\x89HDF\r\n\x1a\n")


def is_ours(path: Path) -> bool:
    """Whether a file says that mocoda wrote it. Reads no attributes: HDF5 hangs on some damaged texts."""
    if not is_hdf5(path):
        return False
    with refusing(str(path), "HDF5"), open_hdf5(path) as file:
        return "format" in file.attrs and file.id.links.exists(b"state")


def read_ours(place: str) -> Contents:
    """Reads what `Transitions.load` does, but from a file that may be damaged or of another origin."""
    with refusing(place, "HDF5"), open_hdf5(Path(place)) as file:
        if not fixed_length(file):
            variable_texts(place)
        if text_at(file, "format") != FORMAT:
            return read_plain(place)
        arrays = arrays_at(file, stored_arrays(file))
        texts = checked_texts(place, {name: json.loads(text_at(file, name) or "") for name in TEXTS})
        return Contents(arrays, texts["columns"], texts["source"])


def stored_arrays(file: h5py.File) -> list[str]:
    """Checks that a file is one of ours, of this version and complete; returns the names of its arrays."""
    name, held = file.filename, {*file}  # names only: `in file` would follow links
    if text_at(file, "format") != FORMAT:
        raise InputError(
            f"{name!r} is HDF5 but not a {FORMAT} file: its attribute 'format' is missing or other. mocoda.read reads "
            "it if its arrays have names such as observations and actions."
        )
    missing = [key for key in ("format_version", "columns", "source") if key not in file.attrs]
    missing += [key for key in ("state", "action", "next_state", "terminal") if key not in held]
    if missing:
        raise InputError(f"{name!r} lacks {', '.join(missing)}; it was not written by mocoda, or damaged since.")
    version = int(file.attrs["format_version"])
    if not 1 <= version <= FORMAT_VERSION:
        raise InputError(
            f"{name!r} has format version {version}; this mocoda reads versions up to {FORMAT_VERSION}. Read it with "
            "the mocoda that wrote it (its attribute 'versions' says which)."
        )
    notes = [PROVENANCE + key for key in names_in(file, "provenance")]
    return [*(key for key in ARRAYS if key in held), *notes]


def read_plain(place: str) -> Contents:
    """The arrays of a file; those with unknown names are read only if a user names them."""
    with refusing(place, "HDF5"), open_hdf5(Path(place)) as file:
        arrays: dict[str, Any] = arrays_at(file, [name for name in OUR_NAME if "/" not in name and name != "step"])
        if any(name in arrays for name in ALIASES["episode"]):  # otherwise, step counts something else
            arrays |= arrays_at(file, ["step"])
        if not any(name in arrays for name in ALIASES["goal"]):
            rows = {len(array) for array in arrays.values() if array.ndim}
            goals = arrays_at(file, ["infos/goal"])
            arrays |= {name: goal for name, goal in goals.items() if {*goal.shape[:1]} == rows}
        arrays |= arrays_at(file, [PROVENANCE + name for name in names_in(file, "provenance")])
        found = metadata_of(file, TEXTS)
        names = [name if isinstance(name, str) else name.decode(errors="replace") for name in file]
        ignored = [name for name in names if name not in {*arrays, "infos", "metadata", "provenance"}]
        others = {name: Stored(partial(_load, place, name), str(shape)) for name, shape in shapes(file).items()}
    return Contents(others | arrays, found.get("columns", ()), found.get("source"), ignored)


def _load(place: str, name: str) -> NDArray[Any]:
    with refusing(place, "HDF5"), open_hdf5(Path(place)) as file:
        return arrays_at(file, [name])[name]


def write_ours(data: Transitions, place: str) -> None:
    data.save(place)


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
        write_metadata(file, texts_of(data))


def write_metadata(file: h5py.File, texts: Mapping[str, str]) -> None:
    """Writes texts as arrays of bytes, because HDF5 hangs on some damaged texts."""
    for name, text in texts.items():
        file[f"metadata/{name}"] = np.frombuffer(text.encode(), np.uint8)


def metadata_of(file: h5py.File, names: Iterable[str]) -> dict[str, Any]:
    """The JSON values that `write_metadata` wrote under these names."""
    found = arrays_at(file, [f"metadata/{name}" for name in names])
    texts = {name.split("/")[1]: json.loads(text.astype(np.uint8).tobytes()) for name, text in found.items()}
    return checked_texts(file.filename, texts)


MOCODA = Format(
    "mocoda",
    "mocoda HDF5",
    "FILE.hdf5",
    read_ours,
    write_ours,
    suffixes=(".hdf5", ".h5"),
    recognises=is_ours,
    streamed=True,
)
D4RL = Format("d4rl", "D4RL-style HDF5", "d4rl:FILE.hdf5", read_plain, write_d4rl, recognises=is_hdf5)


def arrays_at(file: h5py.File, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Reads those of the named arrays that are there."""
    found = {}
    for name in names:
        with contextlib.suppress(KeyError):
            found[name] = array_at(file, name)
    return found


def shapes(group: h5py.Group, inside: bool = False) -> dict[str, tuple[int, ...]]:
    """The shapes of the arrays in a group and in the groups below it; links are not followed.

    inside  leave out the first axis, which counts rows
    """
    found: dict[str, tuple[int, ...]] = {}
    groups, seen = [("", group)], {group}  # a group may hold itself
    for path, one in groups:
        if len(groups) + len(found) > LISTED:
            break
        for name in one:
            if not isinstance(name, str):
                continue
            place = one[name] if isinstance(one.get(name, getlink=True), h5py.HardLink) else None
            if isinstance(place, h5py.Group) and place not in seen:
                groups.append((f"{path}{name}/", place))
                seen.add(place)
            elif isinstance(place, h5py.Dataset):
                found[f"{path}{name}"] = place.shape[1:] if inside else place.shape
    return found
