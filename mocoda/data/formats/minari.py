"""Minari data sets: no environment is made, nothing is downloaded, and every next state is the true one.

Reading needs h5py alone (pyarrow for data sets in Arrow or Parquet format), because Minari's own reader follows links
out of files and trusts the sizes that they claim; writing needs `pip install "mocoda[minari]"`. Data sets lie where
Minari keeps them: in the folder MINARI_DATASETS_PATH, or else in ~/.minari/datasets.

Columns are named by their place in the space: `box1.0` is the first column of `box1` in a Dict, `part0` the first part
of a Tuple, and a plain Box has `state0`, `state1`. A Discrete becomes one-hot columns, a `desired_goal` the rows' goal.
An `achieved_goal` is left out if other columns have the same numbers; `source["achieved_goal"]` names its columns.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from mocoda.data.formats.arrays import arrays_of, checked_texts, side_by_side, texts_of
from mocoda.data.formats.as_episodes import as_episodes, grouped_by_episode, noted_audit
from mocoda.data.formats.format import Contents, Format
from mocoda.data.formats.guarded import Unpacked, array_at, check_readable, group_at, open_hdf5, refusing
from mocoda.data.names import EPISODES, PROVENANCE, column_names
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.files import check_writable, hdf5_disk, whole_folder

if TYPE_CHECKING:
    from gymnasium.spaces import Space

    from mocoda.data.transitions import Transitions

NAME = re.compile(r"[-\w]+(/[-\w]+)*")  # without dots, so an id cannot climb out of the folder
WIDEST = 1 << 31  # columns that no space has

Keys = tuple[str | int, ...]  # the way down to an array: Dict keys and Tuple indices
Fetch = Callable[[str, Keys], NDArray[Any]]  # "observations", keys on the way down -> an episode's array


def read(name: str) -> Contents:
    """Reads the data set `name`, such as "D4RL/door/human-v2", which must be on this computer.

    Terminations are terminal, truncations are not. There are no rewards if `write` was given none.
    """
    folder = _folder(name)
    with refusing(f"minari:{name}", "a Minari data set"):
        about = json.loads((folder / "metadata.json").read_text("utf-8"))
        for what in ("observation_space", "action_space"):
            if not isinstance(about.get(what), str):
                raise InputError(
                    f"the Minari data set {name!r} does not say its {what.replace('_', ' ')}, as those of Minari "
                    f"before 0.5 do not. Download it again: minari download {name} --force."
                )
        observed = _leaves("observation", json.loads(about["observation_space"]), about)
        acted = _leaves("action", json.loads(about["action_space"]), about)
        goal = [leaf for leaf in observed if leaf.path[:1] == ("desired_goal",)]
        achieved = [leaf for leaf in observed if goal and leaf.path[:1] == ("achieved_goal",)]
        state = [leaf for leaf in observed if leaf not in goal and leaf not in achieved]
        mine = about.get("mocoda", {})
        checked_texts(name, mine)
        notes, noted = mine.get("provenance", []), mine.get("episodes") is True
        parts: list[dict[str, NDArray[Any]]] = []
        columns = {"observations": observed, "actions": acted}
        for number, fetch in enumerate(_episodes(name, folder, about, columns, bool(notes or noted))):
            with refusing(f"minari:{name}, episode {number}", "a Minari data set"):
                parts.append(_rows(fetch, state + achieved, acted, goal, notes, None if noted else number))
        arrays = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
        labels, achieved_goal = _columns(state, achieved, acted, arrays)
    if mine.get("reward") is False:
        del arrays["reward"]
    if mine and not noted:  # the table's episodes were unknown
        del arrays["episode"], arrays["step"]
    source = {"minari": name, **_environment(about), **achieved_goal}
    leaves = [leaf for leaf in (*state, *achieved[: len(labels)], *acted) for _ in range(leaf.width)]
    categories = {label: leaf.categories for label, leaf in zip(labels, leaves, strict=False) if leaf.categories}
    return Contents(arrays, mine.get("columns", labels), mine.get("source", source), categories=categories)


def write(data: Transitions, name: str) -> None:
    """Writes a Minari data set called `name`, such as "me/pushing-v0": whole or not at all, and never over another.

    Episodes are the table's, or else rows that follow one another. Every other row is an episode of one step, so that
    it keeps its own next state. An episode that does not end in a terminal row ends truncated. Goals become the
    `desired_goal` of Dict observations. Provenance is stored in infos["mocoda"], and the table's episode and step in
    infos["mocoda_episodes"]; entry t + 1 there belongs to step t. Missing rewards are written as zeros, and the
    metadata says so. 100,000 episodes of one step take a core about a minute and 0.4 GB, and as long again to read.
    """
    check_new(name)
    from minari import __version__
    from minari.dataset.minari_storage import MinariStorage
    from minari.namespace import create_namespace, list_local_namespaces

    held = {"reward": data.reward is not None, "provenance": [*data.provenance], "episodes": data.episode is not None}
    text = f"{len(data):,} transitions, written by mocoda; those that no other one follows are episodes of one step."
    with whole_folder(_root() / name) as whole:
        storage = MinariStorage.new(whole / "data", *_spaces(data))
        storage.update_metadata(
            {
                "dataset_id": name,
                "minari_version": __version__,
                "algorithm_name": "mocoda",
                "description": text if held["reward"] else f"{text} They have no rewards: zeros stand in for them.",
                "total_episodes": _write_episodes(data, storage.data_path / "main_data.hdf5"),
                "total_steps": len(data),
                "dataset_size": float(storage.get_size()),
                "mocoda": texts_of(data) | held,
                **noted_audit(data.source),
            }
        )
    namespace = name.rpartition("/")[0]
    if namespace and namespace not in list_local_namespaces():
        create_namespace(namespace)


def check_new(name: str) -> None:
    """Refuses names that Minari does not allow, or that exist already."""
    try:
        from minari.dataset.minari_dataset import parse_dataset_id
    except ImportError as error:
        raise InputError(f'writing a Minari data set needs Minari; pip install "mocoda[minari]" ({error}).') from error
    try:
        namespace, bare, version = parse_dataset_id(name)
    except (ValueError, TypeError) as error:  # the latter where there is no version
        raise InputError(
            f"{name!r} cannot name a Minari data set; expected 'name-v0' or 'namespace/name-v0', of letters, digits, "
            "- and _."
        ) from error
    if os.path.exists(_root() / name):  # noqa: PTH110, unlike Path.exists it never raises
        other = f"{namespace}/" if namespace else ""
        raise InputError(
            f"there is a Minari data set {name!r} already. Write to another version, such as "
            f"'{other}{bare}-v{version + 1}', or remove it first: minari delete {name}."
        )
    check_writable(_root() / name)


MINARI = Format("minari", "Minari data set", "minari:NAMESPACE/NAME-v0", read, write, place="name", check=check_new)


# Where data sets are, and their metadata


def _root() -> Path:
    given = os.environ.get("MINARI_DATASETS_PATH")
    return Path(given).absolute() if given is not None else Path.home() / ".minari" / "datasets"


def _folder(name: str) -> Path:
    root = _root()
    folder = root / name / "data"
    if NAME.fullmatch(name) and os.path.isfile(folder / "metadata.json"):  # noqa: PTH113
        return folder
    found = (file.parent.parent.relative_to(root).as_posix() for file in root.glob("**/data/metadata.json"))
    known = sorted(filter(NAME.fullmatch, found))
    none = f"there is no Minari data set {name!r}, nor any other in {str(root)!r}."
    raise InputError(
        f"{unknown_name('Minari data set', name, known) if known else none} Published ones come with `minari download "
        "ID`; MINARI_DATASETS_PATH says where they lie."
    )


def _environment(about: dict[str, Any]) -> dict[str, str]:
    """The id of the environment, for the source; the environment is never made."""
    try:
        return {"environment": str(json.loads(about["env_spec"])["id"])}
    except (KeyError, TypeError, ValueError, RecursionError):
        return {}


# Spaces, and the columns that they become


class _Leaf(NamedTuple):
    """A Box, a MultiBinary or a Discrete in a space."""

    path: Keys
    width: int
    categories: int = 0  # of a Discrete
    start: int = 0  # the first category


def _leaves(what: str, space: Any, about: dict[str, Any], path: Keys = ()) -> list[_Leaf]:
    """The Boxes and categories of a space, from left to right."""
    kind, inner, sizes = space.get("type"), space.get("subspaces"), space.get("shape")
    if kind in ("Dict", "Tuple"):
        parts = inner.items() if kind == "Dict" else enumerate(inner)
        return [leaf for key, part in parts for leaf in _leaves(what, part, about, (*path, key))]
    where = f"the {what} {_joined(path)!r}" if path else f"the {what}"
    if kind == "Discrete":
        if type(space["n"]) is not int or not 0 < space["n"] < WIDEST:
            raise ValueError(f"{where} has an impossible number of categories")
        return [_Leaf(path, 1, space["n"], space["start"])]
    if kind == "MultiBinary":
        sizes = space["n"] if isinstance(space["n"], list) else [space["n"]]
    elif kind != "Box":
        raise InputError(
            f"{where} of the Minari data set is {kind!s:.100}; mocoda reads Box, Discrete, MultiBinary, Dict and Tuple "
            "spaces. Make a mocoda.Transitions of its episodes, with a column for every category."
        )
    if not all(type(size) is int and size >= 0 for size in sizes) or math.prod(sizes) > WIDEST:
        raise ValueError(f"{where} has an impossible shape")
    image = len(sizes) in (2, 3) and space.get("dtype") == "uint8" and min(sizes[:2]) >= 32
    if image and about.get("jpeg_encoding", True):
        raise InputError(
            f"{where} of the Minari data set is an image of shape {tuple(sizes)}; mocoda models vectors. Encode the "
            "images, and make a mocoda.Transitions of the codes."
        )
    return [_Leaf(path, math.prod(sizes))]


def _joined(path: Keys) -> str:
    return ".".join(f"part{key}" if isinstance(key, int) else key for key in path)


def _names(leaves: Sequence[_Leaf], plain: str) -> list[str]:
    named = [(_joined(leaf.path), leaf.width) for leaf in leaves]
    parts = [column_names({at: width}) if at else column_names({plain: width}, "", always=True) for at, width in named]
    return [name for part in parts for name in part]


def _columns(
    state: Sequence[_Leaf], achieved: Sequence[_Leaf], acted: Sequence[_Leaf], arrays: dict[str, NDArray[Any]]
) -> tuple[list[str], dict[str, list[str]]]:
    """The columns' names, and those of the achieved goal, which leaves `arrays` if other columns equal it."""
    names, goals, actions = _names(state, "state"), _names(achieved, "state"), _names(acted, "action")
    kept = names + goals
    own, both = len(names), len(kept)
    copied = [_equal_column(arrays, own, column) for column in range(own, both)]
    if names and goals and None not in copied:
        for key in ("state", "next_state"):
            arrays[key] = arrays[key][:, :own]
        goals, kept = [names[place] for place in copied if place is not None], names
    columns = [*kept, *(f"action.{column}" if column in kept else column for column in actions)]
    return columns, {"achieved_goal": goals} if achieved else {}


def _equal_column(arrays: dict[str, NDArray[Any]], width: int, column: int) -> int | None:
    """The first of the `width` first columns with the same values in all rows as a later one; None if none has."""
    both = [arrays[key].T for key in ("state", "next_state")]
    return next((i for i in range(width) if all((array[i] == array[column]).all() for array in both)), None)


# Episodes


def _episodes(
    name: str, folder: Path, about: dict[str, Any], columns: dict[str, list[_Leaf]], infos: bool
) -> Iterator[Fetch]:
    """For each episode, a function that fetches its arrays.

    columns  the arrays that will be fetched of the observations and the actions
    infos    whether infos will be fetched
    """
    kind, count = about.get("data_format", "hdf5"), about.get("total_episodes")
    if type(count) is not int or not 1 <= count < WIDEST:
        raise ValueError(f"it says that it has {count!s:.100} episodes")
    if kind == "hdf5":
        with open_hdf5(folder / "main_data.hdf5") as file:
            for number in range(count):
                yield partial(_from_hdf5, group_at(file, f"episode_{number}"))
        return
    if kind not in ("arrow", "parquet"):
        raise ValueError(f"its data format is {kind!r:.100}, none of hdf5, arrow, parquet")
    try:
        from pyarrow import dataset as tables
    except ImportError as error:
        raise InputError(f'{name!r} is in {kind} format; pip install "mocoda[minari]" ({error}).') from error
    wanted = [*columns, "rewards", "terminations", "truncations", *(["infos"] if infos else [])]
    width = 8 * (3 + sum(leaf.width for leaves in columns.values() for leaf in leaves))  # bytes of a row
    unpacked = Unpacked(f"minari:{name}", *(path for path in folder.glob("*/*") if path.suffix == f".{kind}"))
    for number in range(count):
        for path in (folder / str(number)).glob("*"):
            check_readable(path)
        table = tables.dataset(folder / str(number), format=kind, exclude_invalid_files=True)
        for column in columns:
            _check_sizes(table.schema.field(column).type)
        unpacked.add(width * table.count_rows())
        yield partial(_from_arrow, table.to_table(columns=wanted))


def _check_sizes(kind: Any) -> None:
    """Refuses lists of any length, whose size is known only once they are read."""
    if hasattr(kind, "list_size"):
        _check_sizes(kind.value_type)
    elif hasattr(kind, "value_type"):
        raise ValueError(f"it holds {kind}, expected lists of one length")
    for place in range(kind.num_fields if str(kind).startswith("struct<") else 0):
        _check_sizes(kind.field(place).type)


def _from_hdf5(group: h5py.Group, what: str, keys: Keys) -> NDArray[Any]:
    inner = (f"_index_{key}" if isinstance(key, int) else key for key in keys)
    return array_at(group, "/".join((what, *inner)))


def _from_arrow(table: Any, what: str, keys: Keys) -> NDArray[Any]:
    column = table.column(what).combine_chunks()
    for key in keys:
        column = column.field(str(key))
    rows = len(column)
    if hasattr(column.type, "list_size"):
        column = column.flatten()
    values: NDArray[Any] = column.to_numpy(zero_copy_only=False).reshape(rows, -1)
    if what in ("rewards", "terminations", "truncations"):
        values = values.ravel()
    return values if what in ("observations", "infos") else values[:-1]  # one more than steps, to fill the table


def _rows(
    fetch: Fetch,
    state: Sequence[_Leaf],
    acted: Sequence[_Leaf],
    goal: Sequence[_Leaf],
    notes: Sequence[str],
    episode: int | None,
) -> dict[str, NDArray[Any]]:
    """The rows of an episode of T steps, by our names.

    episode  its number; None where `write` noted that of each row
    """
    reward = fetch("rewards", ())
    steps = len(reward)
    observed = _boxes(fetch, "observations", state, steps + 1)
    arrays = {
        "state": observed[:-1],
        "action": _boxes(fetch, "actions", acted, steps),
        "next_state": observed[1:],
        "reward": reward,
        "terminal": fetch("terminations", ()).astype(bool),
    }
    if goal:
        arrays["goal"] = _boxes(fetch, "observations", goal, steps + 1)[:-1]
    for note in notes:
        arrays[PROVENANCE + note] = fetch("infos", ("mocoda", note))[1:]
    if episode is None:
        arrays |= {name: fetch("infos", ("mocoda_episodes", name))[1:] for name in EPISODES}
    else:
        arrays |= {"episode": np.full(steps, episode), "step": np.arange(steps)}
    return arrays


def _boxes(fetch: Fetch, what: str, leaves: Sequence[_Leaf], rows: int) -> NDArray[Any]:
    """The arrays of all leaves side by side, (rows, columns)."""
    parts = []
    for leaf in leaves:
        array = fetch(what, leaf.path)
        if len(array) != rows or math.prod(array.shape[1:]) != leaf.width:
            where = ".".join(map(str, (what, *leaf.path)))
            raise ValueError(f"{where} has the shape {array.shape}, expected {rows} rows of {leaf.width} numbers")
        parts.append(array - leaf.start if leaf.start else array)
    return side_by_side(parts, rows)


def _write_episodes(data: Transitions, path: Path) -> int:
    """Writes all episodes, and returns their number. Rows of an episode come together, sorted by step.

    The layout is Minari's, but arrays cannot grow: episodes of one step need a quarter of the space.
    """
    data = grouped_by_episode(data)
    arrays, episodes = arrays_of(data), as_episodes(data)
    truncated = np.zeros(len(data), bool)
    truncated[episodes.bounds[1:] - 1] = ~arrays["terminal"][episodes.bounds[1:] - 1]
    by_row = {"actions": arrays["action"], "rewards": arrays.get("reward", np.zeros(len(data), np.float32))}
    by_row |= {"terminations": arrays["terminal"], "truncations": truncated}
    by_observation = {"observations": episodes.observation}
    if episodes.goal is not None:
        by_observation = {"observations/observation": episodes.observation, "observations/desired_goal": episodes.goal}
    for name, array in arrays.items():  # entry t + 1 belongs to step t
        if name.startswith((PROVENANCE, *EPISODES)):
            inside = f"mocoda/{name.removeprefix(PROVENANCE)}" if name not in EPISODES else f"mocoda_episodes/{name}"
            by_observation[f"infos/{inside}"] = np.insert(array, episodes.bounds[:-1], 0)
    with hdf5_disk(path) as disk, h5py.File(disk, "w") as file:
        for number, (rows, observed) in enumerate(episodes):
            group = file.create_group(f"episode_{number}")
            group.attrs["id"], group.attrs["total_steps"] = number, rows.stop - rows.start
            group.create_group("infos")
            for parts, place in ((by_row, rows), (by_observation, observed)):
                for name, array in parts.items():
                    group[name] = array[place]
    return len(episodes)


def _spaces(data: Transitions) -> tuple[Space[Any], Space[Any]]:
    from gymnasium.spaces import Box, Dict

    action = data.action.cpu().numpy()
    low, high = np.minimum(action.min(0), -1.0), np.maximum(action.max(0), 1.0)
    if (low < -1).any() or (high > 1).any():
        low, high = action.min(0), action.max(0)
    state, acted = Box(-np.inf, np.inf, (data.state.shape[1],)), Box(low, high, dtype=np.float32)
    if data.goal is None:
        return state, acted
    return Dict(observation=state, desired_goal=Box(-np.inf, np.inf, (data.goal.shape[1],))), acted
