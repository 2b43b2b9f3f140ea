"""robomimic's HDF5, which LIBERO, MimicGen and Isaac Lab write too: a group of arrays for every demonstration.

`data/demo_0` holds `obs/KEY` and perhaps `next_obs/KEY`, `actions`, `rewards`, `dones` and `states`. Users choose which
keys make up the state. Columns are called KEY.0, KEY.1 and so on, or KEY if there is only one.
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

from mocoda.data.formats.array_files import is_hdf5
from mocoda.data.formats.arrays import arrays_of, check_chosen, checked_texts, noted, side_by_side, texts_of, widths_of
from mocoda.data.formats.as_episodes import as_episodes, grouped_by_episode, noted_audit
from mocoda.data.formats.format import Contents, Format
from mocoda.data.formats.guarded import (
    array_at,
    arrays_at,
    group_at,
    metadata_of,
    names_in,
    put_metadata,
    reading_hdf5,
    shapes,
)
from mocoda.data.names import EPISODES, PROVENANCE, TEXTS, column_names
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.files import hdf5_disk, whole_file

if TYPE_CHECKING:
    from mocoda.data.transitions import Transitions

KIND = "robomimic HDF5"
STATES = "states"  # of the simulator, beside the observations
NO_ENVIRONMENT = {"env_name": "unknown", "type": 2, "env_kwargs": {}}  # 2: a Gymnasium environment
TIME_LIMIT = 20  # seconds in which another process reads a text; on a busy machine, starting it takes a few
NOTES = ("observations", "held", *TEXTS)


def is_robomimic(path: Path) -> bool:
    if not is_hdf5(path):
        return False
    with reading_hdf5(path) as file:
        return any(True for _ in _demos(file))


def read_robomimic(place: str, observations: Sequence[str] = (), filter_key: str | None = None) -> Contents:
    """Reads all demonstrations, or those that a filter key such as "train" lists.

    A row with `dones` is terminal, as robomimic documents it; every demonstration is an episode.
    """
    with reading_hdf5(place) as file:
        demos = dict(_demos(file))
        if not demos:
            raise InputError(f"{place!r} holds no demonstrations, groups such as data/demo_0 with an array 'actions'.")
        mine = checked_texts(place, metadata_of(file, NOTES))
        held = shapes(next(iter(demos.values())), first=1)
        keys = _chosen(observations or mine.get("observations", ()), held)
        demos = _filtered(file, demos, filter_key)
        parts = [_rows(demo, name, [*keys], "goal" in mine.get("held", ())) for name, demo in demos.items()]
        common = set.intersection(*(set(part) for part in parts))
        arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0] if name in common}
        if "held" in mine:  # leave out what stands in for arrays that the table did not have
            arrays = {name: array for name, array in arrays.items() if "/" in name or name in mine["held"]}
        elif "episode" not in arrays:
            numbers = [_number(name) for name in demos]
            numbers = numbers if len({*numbers}) == len(numbers) else list(range(len(numbers)))
            arrays["episode"] = np.repeat(numbers, [len(part["action"]) for part in parts])
        columns = mine.get("columns") if [*keys] == mine.get("observations") else None
        columns = columns or [*column_names(keys), *(f"action{i}" for i in range(math.prod(held["actions"])))]
        environment = _environment(place)
        about = {"observations": [*keys]} | ({"env_args": environment} if environment else {})
        known = ("actions", "rewards", "dones", *EPISODES, *keys, *(f"obs/{key}" for key in keys))
        others = {name: shape for name, shape in held.items() if not name.startswith((PROVENANCE, "next_obs/"))}
        left = [f"{name} {shape}" for name, shape in others.items() if name not in known]
        return Contents(arrays, columns, mine.get("source"), left, about=about)


def write_robomimic(data: Transitions, place: str) -> None:
    """Writes a demonstration for each episode, with next_obs; rows of no episode are demonstrations of one step.

    Observations are named by what columns share before a dot: `cube.x` and `cube.y` become `obs/cube`. The filter keys
    `recorded` and `generated` tell demonstrations apart; each keeps its provenance.
    """
    data = grouped_by_episode(data)
    episodes, arrays = as_episodes(data), arrays_of(data)
    keys = _keys(data.columns[: data.state.shape[1]], taken={"goal"} if data.goal is not None else set())
    parts = {"actions": arrays["action"], "rewards": arrays.get("reward", np.zeros(len(data), np.float32))}
    parts["dones"] = arrays["terminal"].astype(np.int64)
    for place_, name in (("obs", "state"), ("next_obs", "next_state")):
        parts |= {f"{place_}/{key}": arrays[name][:, columns] for key, columns in keys.items()}
        parts |= {f"{place_}/goal": arrays["goal"]} if "goal" in arrays else {}
    parts |= {name: array for name, array in arrays.items() if name.startswith((PROVENANCE, *EPISODES))}
    made = np.zeros(len(data), bool) if "recipe" not in data.provenance else arrays[PROVENANCE + "recipe"] != 0
    demos: dict[str, list[str]] = {"recorded": [], "generated": []}
    with whole_file(place) as part, hdf5_disk(part) as disk, h5py.File(disk, "w") as file:
        group = file.create_group("data")
        group.attrs["total"] = len(data)
        about = {"env_args": noted(data.source, "env_args") or NO_ENVIRONMENT} | noted_audit(data.source)
        group.attrs.update({name: json.dumps(value) for name, value in about.items()})
        for number, (rows, _) in enumerate(episodes):
            demo = group.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = rows.stop - rows.start
            for name, array in parts.items():
                demo[name] = array[rows]
            demos["generated" if made[rows].any() else "recorded"].append(f"demo_{number}")
        for name, listed in demos.items():
            if listed and made.any():
                file[f"mask/{name}"] = np.array(listed, "S")
        put_metadata(file, texts_of(data) | {"observations": [*keys], "held": [*arrays]})


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
    for name in sorted(names, key=lambda name: (_number(name), name)):
        try:
            demo = group_at(data, name)
        except KeyError:
            continue
        if demo.id.links.exists(b"actions"):
            yield name, demo


def _number(name: str) -> int:
    digits = re.fullmatch(r"\D*(\d{1,15})", name)
    return int(digits[1]) if digits else 0


def _chosen(wanted: Sequence[str], held: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The keys that make up the state, with their widths; the only one if there is no choice."""
    keys = {name.removeprefix("obs/"): shape for name, shape in held.items() if name.startswith("obs/")}
    keys |= {STATES: held[STATES]} if STATES in held else {}
    flat = {key: math.prod(shape) for key, shape in keys.items() if len(shape) < 2}
    images = ", ".join(f"{key!r} {shape}" for key, shape in keys.items() if key not in flat)
    more = f" Images cannot be augmented: {images}." if images else ""
    if not wanted:
        wanted = [key for key in flat if key != STATES] or list(flat)
        if len(wanted) != 1:
            raise InputError(
                f"{KIND}: say which observations make up the state, such as observations={wanted[:2] or ['KEY']} "
                f"(--observations {' '.join(wanted[:2]) or 'KEY'}). {widths_of(flat)}{more}"
            )
    check_chosen(KIND, "low-dimensional observation", wanted, flat, more)
    return {key: flat[key] for key in wanted}


def _filtered(file: h5py.File, demos: dict[str, h5py.Group], filter_key: str | None) -> dict[str, h5py.Group]:
    if filter_key is None:
        return demos
    known = names_in(file, "mask")
    if filter_key not in known:
        if not known:
            raise InputError(f"{KIND}: there are no filter keys.")
        raise unknown_name("filter key", filter_key, known)
    listed = {*array_at(group_at(file, "mask"), filter_key, kinds="S").ravel().tolist()}
    found = {name: demo for name, demo in demos.items() if name.encode() in listed}
    if not found:
        raise InputError(f"{KIND}: the filter key {filter_key!r} lists no demonstration that is there.")
    return found


def _environment(place: str) -> Any:
    """The JSON value `env_args`; None where it is missing or damaged.

    Another process reads it: the HDF5 library loops for ever, or dies, on some damaged texts of variable length.
    """
    script = (
        "import h5py, sys\n"
        "with h5py.File(sys.argv[1], 'r') as file: text = file['data'].attrs['env_args']\n"
        "sys.stdout.buffer.write(text if isinstance(text, bytes) else text.encode())"
    )
    command = [sys.executable, "-P", "-c", script, str(Path(place).absolute())]
    try:
        return json.loads(subprocess.run(command, capture_output=True, timeout=TIME_LIMIT, check=True).stdout)
    except (subprocess.SubprocessError, ValueError, RecursionError):
        return None


def _rows(demo: h5py.Group, name: str, keys: Sequence[str], goal: bool) -> dict[str, NDArray[Any]]:
    """The rows of a demonstration, by our names."""
    place = demo.file.filename
    try:
        action = array_at(demo, "actions")
        found = {"state": _observed(demo, "obs", keys, len(action)), "action": action}
        if demo.id.links.exists(b"next_obs") and STATES not in keys:
            found["next_state"] = _observed(demo, "next_obs", keys, len(action))
        if goal:
            found["goal"] = array_at(demo, "obs/goal")
    except KeyError as error:
        raise InputError(f"{place!r} is damaged: in {name} there is no {error.args[0]}.") from error
    own = {"rewards": "reward", "dones": "terminal"}
    notes = [PROVENANCE + note for note in names_in(demo, "provenance")]
    found |= {own.get(name, name): array for name, array in arrays_at(demo, [*own, *EPISODES, *notes]).items()}
    for ours, array in found.items():
        if array.shape[:1] != action.shape[:1]:
            raise InputError(
                f"{place!r} is damaged: in {name}, {ours} has the shape {array.shape} and actions {action.shape}."
            )
    return found


def _observed(demo: h5py.Group, place: str, keys: Sequence[str], rows: int) -> NDArray[Any]:
    return side_by_side([array_at(demo, key if key == STATES else f"{place}/{key}") for key in keys], rows)


def _keys(names: Sequence[str], taken: set[str]) -> dict[str, slice]:
    """Observations by the columns' names; one of all where names tell no groups."""
    found: dict[str, slice] = {}
    for key, group in groupby(range(len(names)), key=lambda place: names[place].partition(".")[0]):
        places = list(group)
        if key in found or key in taken or not key or "/" in key:
            return {"state": slice(0, len(names))}
        found[key] = slice(places[0], places[-1] + 1)
    return {"state": slice(0, len(names))} if [*found] == [f"state{i}" for i in range(len(names))] else found
