"""HDF5 files with arrays at the root: mocoda's own, and plain ones as D4RL has them.

A plain file holds observations, actions, rewards, terminals and timeouts, with or without next observations, under
these names or ours (state, action, next_state, ...).
"""

from __future__ import annotations

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
from mocoda.data.formats.guarded import array_at, fixed_length, open_hdf5, text_at, variable_texts
from mocoda.data.names import ALIASES, OUR_NAME, TEXTS
from mocoda.engine.errors import InputError
from mocoda.engine.files import hdf5_disk, whole_file

if TYPE_CHECKING:
    from mocoda.data.transitions import Transitions

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
        return "format" in file.attrs and _exists(file, "state")


def read_ours(place: str) -> Contents:
    """Reads what `Transitions.load` does, but from a file that may be damaged or of another origin."""
    from mocoda.data.transitions import FORMAT, stored_arrays

    with refusing(place, "HDF5"), open_hdf5(Path(place)) as file:
        if not fixed_length(file):
            variable_texts(place)
        if text_at(file, "format") != FORMAT:
            return read_plain(place)
        _provenance(file)  # before anything follows a link
        arrays = arrays_at(file, stored_arrays(file))
        texts = checked_texts(place, {name: json.loads(text_at(file, name) or "") for name in TEXTS})
        return Contents(arrays, texts["columns"], texts["source"])


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
        arrays |= arrays_at(file, _provenance(file))
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


def _exists(file: h5py.File, name: str) -> bool:
    """Whether there is a member of that name, with one slash at most. Follows no links out of the file."""
    first, _, second = name.partition("/")
    if not file.id.links.exists(first.encode()):
        return False
    if not second or not isinstance(file.get(first, getlink=True), h5py.HardLink):
        return True
    group = file[first]
    return isinstance(group, h5py.Group) and group.get(second, getlink=True) is not None


def _provenance(file: h5py.File) -> list[str]:
    """The names of provenance arrays, in a group of the file itself."""
    if not _exists(file, "provenance"):
        return []
    if not isinstance(file.get("provenance", getlink=True), h5py.HardLink):
        raise InputError(f"{file.filename!r} is damaged or was tampered with: /provenance is a link to elsewhere.")
    return [f"provenance/{name}" for name in file["provenance"]]


def arrays_at(file: h5py.File, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Reads those of the named arrays that are there; one that is there but cannot be opened is refused as damaged."""
    found = {}
    for name in names:
        if _exists(file, name):
            try:
                found[name] = array_at(file, name)
            except KeyError as error:
                raise InputError(f"{file.filename!r}: {name} is not an array, or damaged ({error.args[0]}).") from error
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
