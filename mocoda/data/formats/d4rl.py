"""HDF5 <-> Transitions: D4RL's layout, with or without next observations, and ours when it comes from strangers."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from mocoda.data.formats.arrays import NAMES, OURS, TEXTS, as_arrays, checked_texts, refusing, texts_of
from mocoda.data.formats.chains import chains
from mocoda.data.formats.guarded import array_at, open_hdf5
from mocoda.data.transitions import FORMAT, FORMAT_VERSION, Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.files import whole_file
from mocoda.engine.hdf5 import hdf5_disk

THEIRS = {
    **{"state": "observations", "action": "actions", "next_state": "next_observations", "reward": "rewards"},
    **{"terminal": "terminals", "goal": "infos/goal"},
}
LARGE = 1 << 26  # bytes that a chunk may have, however few rows there are
PATIENCE = 3  # seconds of work that the header of a file may take


def is_ours(path: Path) -> bool:
    """Told by the names of arrays: attributes of strangers' files cannot be read without care."""
    with refusing(path, "HDF5"), open_hdf5(path) as file:
        return _is_there(file, "state") and not _is_there(file, "observations")


def read_d4rl(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any], list[str]]:
    """The arrays that can be of use, the texts, and the names of what else there is."""
    with refusing(path, "HDF5"), open_hdf5(path) as file:
        arrays = _arrays(file, [name for name in OURS if "/" not in name])
        if not any(name in arrays for name in NAMES["goal"]):
            rows = {len(array) for array in arrays.values() if array.ndim}
            arrays |= {name: goal for name, goal in _arrays(file, ["infos/goal"]).items() if {*goal.shape[:1]} == rows}
        arrays |= _provenance(file)
        metadata = _arrays(file, [f"metadata/{name}" for name in TEXTS])
        texts = {name.split("/")[1]: json.loads(text.astype(np.uint8).tobytes()) for name, text in metadata.items()}
        known = {*arrays, "infos", "metadata", "provenance"}
        names = [name if isinstance(name, str) else name.decode(errors="replace") for name in file]
        return arrays, checked_texts(path, texts), [name for name in names if name not in known]


def write_d4rl(data: Transitions, path: str | Path) -> None:
    """Next observations included; timeouts mark the rows that neither end nor go on in the row after them."""
    last = np.zeros(len(data), bool)
    last[chains(data).bounds[1:] - 1] = True
    with whole_file(path) as part, hdf5_disk(part) as disk, h5py.File(disk, "w") as file:
        arrays = as_arrays(data)
        for name, array in arrays.items():
            file[THEIRS.get(name, name)] = array
        file["timeouts"] = last & ~arrays["terminal"]
        for name, text in texts_of(data).items():  # as bytes: HDF5 hangs on some damaged texts
            file[f"metadata/{name}"] = np.frombuffer(text.encode(), np.uint8)


def read_ours(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any], list[str]]:
    """As Transitions.load, but of a file that nobody vouches for."""
    with _survivable(path), refusing(path, "HDF5"), open_hdf5(path) as file:
        found = (file.attrs.get("format"), file.attrs.get("format_version"))
        if found[0] != FORMAT or int(found[1]) != FORMAT_VERSION:
            raise InputError(
                f"{str(path)!r} has format {found[0]!r}, version {found[1]}; this mocoda reads {FORMAT!r}, version "
                f"{FORMAT_VERSION}."
            )
        arrays = _arrays(file, ["state", "action", "next_state", "reward", "terminal", "goal"]) | _provenance(file)
        if missing := [name for name in ("action", "next_state", "terminal") if name not in arrays]:
            raise InputError(
                f"{str(path)!r} lacks the arrays {missing}; it was not written by mocoda, or damaged since."
            )
        texts = checked_texts(path, {name: json.loads(file.attrs[name]) for name in TEXTS})
        return arrays, texts, []


@contextmanager
def _survivable(path: Path) -> Iterator[None]:
    """HDF5 loops for ever on some damaged texts, so a process that may die of them reads them first."""
    look = (
        "import sys\n"
        f"try: import resource; resource.setrlimit(resource.RLIMIT_CPU, ({PATIENCE}, {PATIENCE}))\n"
        "except ImportError: pass\n"
        "import h5py\n"
        "with h5py.File(sys.argv[1], 'r') as file: [file.attrs[name] for name in file.attrs]"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", look, str(path.absolute())], capture_output=True, timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        done = None
    if done is None or done.returncode:
        raise InputError(f"{str(path)!r} cannot be read as HDF5: it is truncated, damaged or of another format.")
    yield


def _is_there(file: h5py.File, name: str) -> bool:
    """Whether there is something of that name; a name has one slash at most. Follows no links out of the file."""
    first, _, second = name.partition("/")
    if not file.id.links.exists(first.encode()):
        return False
    if not second or not isinstance(file.get(first, getlink=True), h5py.HardLink):
        return True
    group = file[first]
    return isinstance(group, h5py.Group) and group.get(second, getlink=True) is not None


def _provenance(file: h5py.File) -> dict[str, NDArray[Any]]:
    if not _is_there(file, "provenance"):
        return {}
    if not isinstance(file.get("provenance", getlink=True), h5py.HardLink):
        raise InputError(f"{file.filename!r} is damaged or was tampered with: /provenance is a link to elsewhere.")
    return _arrays(file, [f"provenance/{name}" for name in file["provenance"]])


def _arrays(file: h5py.File, names: list[str]) -> dict[str, NDArray[Any]]:
    """The arrays of these names that are there. One that is there and cannot be opened is not missing but damaged."""
    found = {}
    for name in names:
        if _is_there(file, name):
            try:
                _check_chunks(file, name)
                found[name] = array_at(file, name)
            except KeyError as error:
                raise InputError(f"{file.filename!r}: {name} is no array, or damaged ({error.args[0]}).") from error
    return found


def _check_chunks(file: h5py.File, name: str) -> None:
    """An array of few rows may come in chunks of many, and a chunk is unpacked whole."""
    place = file
    for step in name.split("/"):
        if not isinstance(place.get(step, getlink=True), h5py.HardLink):
            return  # a link, which is refused when it is read
        place = place[step]
    if isinstance(place, h5py.Dataset) and place.chunks:
        size, chunk = place.nbytes, math.prod(place.chunks) * place.dtype.itemsize
        if chunk > max(LARGE, 4 * size):
            raise InputError(f"{file.filename!r}: {name} has {size:,} bytes in chunks of {chunk:,}.")
