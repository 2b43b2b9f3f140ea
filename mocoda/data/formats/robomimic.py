"""robomimic's HDF5, which LIBERO, MimicGen and Isaac Lab write too: a group of arrays for every demonstration.

`data/demo_0` holds `obs/KEY` and perhaps `next_obs/KEY`, `actions`, `rewards`, `dones` and `states`. Which of the keys
make up the state is for the user to say. Columns are called KEY.0, KEY.1 and so on, or KEY if it has only one.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from numpy.typing import NDArray

from mocoda.data.formats.arrays import arrays_of, checked_texts, noted, refusing, texts_of
from mocoda.data.formats.chains import chains, in_episodes
from mocoda.data.formats.format import Contents, Format
from mocoda.data.formats.guarded import array_at, group_at, open_hdf5
from mocoda.data.formats.hdf5 import TIME_LIMIT, arrays_at, is_hdf5, shapes
from mocoda.data.names import EPISODES, PROVENANCE, TEXTS
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.files import whole_file
from mocoda.engine.hdf5 import hdf5_disk, put_array

if TYPE_CHECKING:
    from mocoda.data.transitions import Transitions

KIND = "robomimic HDF5"
STATES = "states"  # of the simulator, beside the observations
NO_ENVIRONMENT = {"env_name": "unknown", "type": 2, "env_kwargs": {}}  # 2: a Gymnasium environment
NOTES = ("observations", "held", *TEXTS)


def is_robomimic(path: Path) -> bool:
    if not is_hdf5(path):
        return False
    with refusing(str(path), "HDF5"), open_hdf5(path) as file:
        return any(True for _ in _demos(file))


def read_robomimic(place: str, observations: Sequence[str] = (), filter_key: str | None = None) -> Contents:
    """All demonstrations, or those that a filter key such as "train" lists.

    A row with `dones` is terminal, which is what robomimic documents; demonstrations are episodes in any case.
    """
    texts = _texts(place)
    with refusing(place, "HDF5"), open_hdf5(Path(place)) as file:
        demos = dict(_demos(file))
        if not demos:
            raise InputError(f"{place!r} holds no demonstrations, groups such as data/demo_0 with an array 'actions'.")
        notes = arrays_at(file, [f"metadata/{name}" for name in NOTES])
        mine = {name.split("/")[1]: json.loads(note.astype(np.uint8).tobytes()) for name, note in notes.items()}
        checked_texts(place, mine)
        held = shapes(next(iter(demos.values())), inside=True)
        keys = _chosen(observations or mine.get("observations", ()), held)
        demos = _filtered(demos, filter_key, texts["mask"])
        parts = [_rows(demo, name, [*keys], "goal" in mine.get("held", ())) for name, demo in demos.items()]
        common = set.intersection(*(set(part) for part in parts))
        arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0] if name in common}
        if "held" in mine:  # what stands in for what the table did not have
            arrays = {name: array for name, array in arrays.items() if "/" in name or name in mine["held"]}
        elif "episode" not in arrays:
            numbers = [_number(name, 0) for name in demos]
            numbers = numbers if len({*numbers}) == len(numbers) else list(range(len(numbers)))
            arrays["episode"] = np.repeat(numbers, [len(part["action"]) for part in parts])
        columns = mine.get("columns") if [*keys] == mine.get("observations") else None
        columns = columns or [*_columns(keys), *(f"action{i}" for i in range(math.prod(held["actions"])))]
        about = {"observations": [*keys]} | ({"env_args": texts["env_args"]} if texts["env_args"] else {})
        left = [f"{name} {shape}" for name, shape in held.items() if not _used(name, keys)]
        return Contents(arrays, columns, mine.get("source"), left, about=about)


def write_robomimic(data: Transitions, place: str) -> None:
    """A demonstration for each episode, with next_obs; rows of no episode are demonstrations of one step.

    Observations are named by what columns have in common before a dot, so that `cube.x` and `cube.y` become
    `obs/cube`. The filter keys `recorded` and `generated` tell demonstrations apart; provenance is kept beside each.
    """
    data = in_episodes(data)
    episodes, arrays = chains(data), arrays_of(data)
    keys = _keys(data.columns[: data.state.shape[1]], taken={"goal"} if data.goal is not None else set())
    reward = arrays.get("reward", np.zeros(len(data), np.float32))
    made = np.zeros(len(data), bool) if "recipe" not in data.provenance else arrays[PROVENANCE + "recipe"] != 0
    demos: dict[str, list[str]] = {"recorded": [], "generated": []}
    with whole_file(place) as part, hdf5_disk(part) as disk, h5py.File(disk, "w") as file:
        group = file.create_group("data")
        group.attrs["total"] = len(data)
        group.attrs["env_args"] = json.dumps(noted(data.source, "env_args") or NO_ENVIRONMENT)
        for number, (rows, _) in enumerate(episodes):
            demo = group.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = rows.stop - rows.start
            for place_, array in (("obs", arrays["state"]), ("next_obs", arrays["next_state"])):
                inside = demo.create_group(place_)
                for key, columns in keys.items():
                    put_array(inside, key, array[rows, columns])
                if data.goal is not None:
                    put_array(inside, "goal", arrays["goal"][rows])
            put_array(demo, "actions", arrays["action"][rows])
            put_array(demo, "rewards", reward[rows])
            put_array(demo, "dones", arrays["terminal"][rows].astype(np.int64))
            if data.provenance:
                demo.create_group("provenance")
            for name, array in arrays.items():
                if name in EPISODES or name.startswith(PROVENANCE):
                    put_array(demo, name, array[rows])
            demos["generated" if made[rows].any() else "recorded"].append(f"demo_{number}")
        for name, listed in demos.items():
            if listed and made.any():
                file[f"mask/{name}"] = np.array(listed, "S")
        texts = texts_of(data) | {"observations": json.dumps([*keys]), "held": json.dumps([*arrays])}
        for name, text in texts.items():  # as bytes: HDF5 hangs on some damaged texts
            file[f"metadata/{name}"] = np.frombuffer(text.encode(), np.uint8)


ROBOMIMIC = Format(
    "robomimic",
    KIND,
    "robomimic:FILE.hdf5",
    read_robomimic,
    write_robomimic,
    recognises=is_robomimic,
    options=("observations", "filter_key"),
)


def _demos(file: h5py.File) -> Iterator[tuple[str, h5py.Group]]:
    """The demonstrations, in the order of their numbers."""
    try:
        data = group_at(file, "data")
    except KeyError:
        return
    names = [name for name in data if isinstance(name, str)]
    for name in sorted(names, key=lambda name: (_number(name, 0), name)):
        try:
            demo = group_at(data, name)
        except KeyError:
            continue
        if demo.id.links.exists(b"actions"):
            yield name, demo


def _number(name: str, otherwise: int) -> int:
    digits = re.fullmatch(r"\D*(\d{1,15})", name)
    return int(digits[1]) if digits else otherwise


def _chosen(wanted: Sequence[str], held: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The keys that make up the state, with their widths; the only one if there is no choice."""
    keys = {name.removeprefix("obs/"): shape for name, shape in held.items() if name.startswith("obs/")}
    keys |= {STATES: held[STATES]} if STATES in held else {}
    flat = {key: math.prod(shape) for key, shape in keys.items() if len(shape) < 2}
    images = {key: shape for key, shape in keys.items() if key not in flat}
    listed = (
        "There are, with so many columns: "
        + (", ".join(f"{key!r} ({width})" for key, width in flat.items()) or "none")
        + "."
    )
    if images:
        listed += f" Images cannot be augmented: {', '.join(f'{key!r} {shape}' for key, shape in images.items())}."
    if not wanted:
        only = [key for key in flat if key != STATES] or list(flat)
        if len(only) != 1:
            raise InputError(
                f"{KIND}: say which observations make up the state, such as "
                f"observations={only[:2] or ['KEY']} (--observations {' '.join(only[:2]) or 'KEY'}). {listed}"
            )
        return {only[0]: flat[only[0]]}
    for key in wanted:
        if key not in flat or [*wanted].count(key) > 1:
            problem = f"the observation {key!r} is named twice" if key in flat else f"there is no observation {key!r}"
            raise InputError(f"{KIND}: {problem if key not in images else f'{key!r} holds images'}. {listed}")
    return {key: flat[key] for key in wanted}


def _filtered(demos: dict[str, h5py.Group], filter_key: str | None, mask: Mapping[str, list[str]]) -> dict[str, Any]:
    if filter_key is None:
        return demos
    if filter_key not in mask:
        raise unknown_name("filter key", filter_key, mask) if mask else InputError(f"{KIND}: there are no filter keys.")
    found = {name: demo for name, demo in demos.items() if name in mask[filter_key]}
    if not found:
        raise InputError(f"{KIND}: the filter key {filter_key!r} lists no demonstration that is there.")
    return found


def _rows(demo: h5py.Group, name: str, keys: Sequence[str], goal: bool) -> dict[str, NDArray[Any]]:
    """The rows of a demonstration, by what they are in a table."""
    try:
        action = array_at(demo, "actions")
        found = {"state": _side_by_side(demo, "obs", keys, len(action)), "action": action}
        if demo.id.links.exists(b"next_obs") and STATES not in keys:
            found["next_state"] = _side_by_side(demo, "next_obs", keys, len(action))
        if goal:
            found["goal"] = array_at(demo, "obs/goal")
    except KeyError as error:
        raise InputError(f"{demo.file.filename!r} is damaged: in {name} there is no {error.args[0]}.") from error
    own = {"rewards": "reward", "dones": "terminal", "episode": "episode", "step": "step"}
    notes = group_at(demo, "provenance") if demo.id.links.exists(b"provenance") else ()
    for theirs, ours in (own | {PROVENANCE + note: PROVENANCE + note for note in notes}).items():
        if demo.id.links.exists(theirs.partition("/")[0].encode()):
            found[ours] = array_at(demo, theirs)
    for ours, array in found.items():
        if array.shape[:1] != action.shape[:1]:
            raise InputError(
                f"{demo.file.filename!r} is damaged: in {name}, {ours} has the shape {array.shape} and actions "
                f"{action.shape}."
            )
    return found


def _side_by_side(demo: h5py.Group, place: str, keys: Sequence[str], rows: int) -> NDArray[np.float32]:
    parts = [array_at(demo, key if key == STATES else f"{place}/{key}") for key in keys]
    with np.errstate(over="ignore"):  # what is too large becomes inf, and is refused
        return np.concatenate([part.reshape(rows, -1).astype(np.float32) for part in parts], 1)


def _columns(keys: Mapping[str, int]) -> list[str]:
    return [key if width == 1 else f"{key}.{place}" for key, width in keys.items() for place in range(width)]


def _used(name: str, keys: Mapping[str, int]) -> bool:
    return (
        name.removeprefix("obs/") in keys
        or name in ("actions", "rewards", "dones", *EPISODES)
        or name.startswith((PROVENANCE, "next_obs/"))
    )


def _keys(names: Sequence[str], taken: set[str]) -> dict[str, slice]:
    """Observations by the columns' names; one of all where names tell no groups."""
    found: dict[str, slice] = {}
    for key, group in groupby(range(len(names)), key=lambda place: names[place].partition(".")[0]):
        places = list(group)
        if key in found or key in taken or not key or "/" in key:
            return {"state": slice(0, len(names))}
        found[key] = slice(places[0], places[-1] + 1)
    return {"state": slice(0, len(names))} if [*found] == [f"state{i}" for i in range(len(names))] else found


def _texts(place: str) -> dict[str, Any]:
    """env_args and filter keys, read by a process that may die of it: HDF5 loops for ever on some damaged texts."""
    script = (
        "import sys, json\n"
        f"try: import resource; resource.setrlimit(resource.RLIMIT_CPU, ({TIME_LIMIT}, {TIME_LIMIT}))\n"
        "except ImportError: pass\n"
        "import h5py\n"
        "def text(given): return given.decode(errors='replace') if isinstance(given, bytes) else str(given)\n"
        "with h5py.File(sys.argv[1], 'r') as file:\n"
        "    mask, held = {}, file.get('mask', getlink=True)\n"
        "    for name in file['mask'] if isinstance(held, h5py.HardLink) else ():\n"
        "        if isinstance(file['mask'].get(name, getlink=True), h5py.HardLink):\n"
        "            mask[str(name)] = [text(one) for one in file['mask'][name][:].ravel()]\n"
        "    given = file['data'].attrs.get('env_args')\n"
        "    print(json.dumps({'mask': mask, 'env_args': given if given is None else text(given)}))"
    )
    command = [sys.executable, "-P", "-c", script, str(Path(place).absolute())]
    try:
        done = subprocess.run(command, capture_output=True, timeout=60, check=True)
        texts: dict[str, Any] = json.loads(done.stdout)
    except (subprocess.SubprocessError, ValueError) as error:
        raise InputError(f"{place!r} cannot be read as HDF5: it is truncated, damaged or of another format.") from error
    try:
        texts["env_args"] = json.loads(texts["env_args"] or "null")
    except (ValueError, RecursionError):
        texts["env_args"] = None
    return texts
