"""HDF5 files with arrays at the root: mocoda's own, and plain ones as D4RL has them.

A plain file holds observations, actions, rewards, terminals and timeouts, with or without next observations, under
these names or ours (state, action, next_state, ...).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from numpy.typing import NDArray

from mocoda.data.formats.arrays import arrays_of, checked_texts, refusing, texts_of
from mocoda.data.formats.as_episodes import as_episodes, grouped_by_episode
from mocoda.data.formats.format import Contents, Format, Stored, begins_with
from mocoda.data.formats.guarded import arrays_at, metadata_of, names_in, open_hdf5, put_metadata, shapes
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


def is_hdf5(path: Path) -> bool:
    return begins_with(path, b"\x89HDF\r\n\x1a\n")


def is_ours(path: Path) -> bool:
    """Whether a file says that mocoda wrote it."""
    if not is_hdf5(path):
        return False
    with refusing(str(path), "HDF5"), open_hdf5(path) as file:
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
    with refusing(place, "HDF5"), open_hdf5(Path(place)) as file:
        arrays, found = arrays_at(file, stored_arrays(file)), checked_texts(place, metadata_of(file, TEXTS))
        return Contents(arrays, found["columns"], found["source"])


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
        found = checked_texts(place, metadata_of(file, TEXTS))
        names = [name if isinstance(name, str) else name.decode(errors="replace") for name in file]
        ignored = [name for name in names if name not in {*arrays, "infos", "metadata", "provenance"}]
        others = {name: Stored(partial(_load, place, name), str(shape)) for name, shape in shapes(file).items()}
    return Contents(others | arrays, found.get("columns", ()), found.get("source"), ignored)


def _load(place: str, name: str) -> NDArray[Any]:
    with refusing(place, "HDF5"), open_hdf5(Path(place)) as file:
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
