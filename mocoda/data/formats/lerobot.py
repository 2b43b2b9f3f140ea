"""LeRobot's folders: versions 2.0 to 3.0 are read, 2.1 and 3.0 are written, without LeRobot and without its videos.

The state is made of all low-dimensional features `observation.*`, or of those that `observations` names. A feature's
own names become the columns' names (`action.NAME` where the state has the same). Features of more dimensions, images,
videos and texts are left alone. `next.done` marks ends of episodes; `task_index` becomes provenance.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mocoda.data.formats.arrays import arrays_of, check_chosen, checked_texts, noted, side_by_side, texts_of
from mocoda.data.formats.as_episodes import as_episodes, grouped_by_episode, noted_audit
from mocoda.data.formats.format import Contents, Format, Stored
from mocoda.data.formats.guarded import Unpacked, refusing
from mocoda.data.formats.named_columns import column_values, open_parquet, parquet_table, pyarrow_for
from mocoda.data.names import EPISODES, PROVENANCE, column_names
from mocoda.engine.errors import InputError
from mocoda.engine.files import whole_folder, write_json

if TYPE_CHECKING:
    from mocoda.data.transitions import Transitions

KIND = "LeRobot data set"
INFO, NOTES, TASKS = "meta/info.json", "meta/mocoda.json", "meta/tasks.parquet"
STATE, OBSERVATION, GOAL, NEXT = "observation.state", "observation.", "observation.goal", "next."
FILE = "chunk-000/file-000.parquet"
TASK = PROVENANCE + "task_index"
OUR_NAMES = {  # theirs -> ours; where two are there, the last counts
    "action": "action",
    "next.reward": "reward",
    "next.done": "done",
    "next.terminated": "terminal",
    "next.truncated": "timeout",
    GOAL: "goal",
    "episode_index": "episode",
    "mocoda.episode": "episode",
    "mocoda.step": "step",
    "task_index": TASK,
}
NUMBERS = ("bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
COUNTERS = ("timestamp", "frame_index", "episode_index", "index", "task_index")
STATS = ("min", "max", "mean", "std", "count")  # of v2.1; v3.0 has quantiles, too
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
Frames = Mapping[str, Any]  # columns by name
BATCH = 8192  # frames that are read at once
MOST_TASKS = 10_000  # larger task numbers are something else
CHUNK = 1000  # episodes of a folder in v2.1
MOST_EPISODES = 1_000_000  # in v2.1, whose names of files have six digits
INDEX = "__index_level_0__"  # pandas' name for the index of a data frame in a Parquet file
PANDAS = {  # what pandas writes beside such a data frame: LeRobot looks the texts of tasks up in its index
    "index_columns": [INDEX],
    "columns": [
        {"name": name, "field_name": field, "pandas_type": kind, "numpy_type": kind, "metadata": None}
        for name, field, kind in (("task_index", "task_index", "int64"), (None, INDEX, "object"))
    ],
    "column_indexes": [],
}


def read_lerobot(place: str, observations: Sequence[str] = ()) -> Contents:
    """Reads every frame. Its next state is `next.observation.state`, which mocoda writes, or else the next frame's."""
    folder = Path(place)
    with refusing(place, f"a {KIND}"):
        info = json.loads((folder / INFO).read_text("utf-8"))
        features = _features(place, info)
        flat = {
            name: math.prod(about["shape"])
            for name, about in features.items()
            if about.get("dtype") in NUMBERS and len(about["shape"]) <= 1
        }
        known = {name: width for name, width in flat.items() if name.startswith(OBSERVATION) and name != GOAL}
        chosen = [name if name in flat else OBSERVATION + name for name in observations]
        check_chosen(KIND, "low-dimensional feature", chosen, known)
        chosen = chosen or [*known]
        notes = json.loads((folder / NOTES).read_text("utf-8")) if (folder / NOTES).is_file() else {}
        checked_texts(place, notes)
        ours = {name: f"{PROVENANCE}{name[11:]}" for name in flat if name.startswith("provenance.")}
        ours |= {theirs: name for theirs, name in OUR_NAMES.items() if theirs in flat}
        wanted = [*chosen, *(NEXT + name for name in chosen if NEXT + name in flat), *ours, "frame_index"]
        found = _columns(folder, {name: flat[name] for name in wanted})
        frame = found["frame_index"]
        arrays = {"step": frame} | {name: found[theirs] for theirs, name in ours.items()}
        if chosen:
            arrays["state"] = side_by_side([found[name] for name in chosen], len(frame))
        following = [found[NEXT + name] for name in chosen if NEXT + name in found]
        if len(following) == len(chosen) > 0:
            arrays["next_state"] = side_by_side(following, len(frame))
        else:
            arrays["step"] = frame  # it says which frame follows which
        if "held" in notes:
            arrays = {name: array for name, array in arrays.items() if name in notes["held"]}
        about = {"lerobot": str(info["codebase_version"]), "fps": info.get("fps"), "tasks": _tasks(folder)}
        if said := _note(info, arrays, len(frame)):
            about["note"] = said
        described = {name: f"{about.get('dtype')} {tuple(about['shape'])}" for name, about in features.items()}
        others = {name: Stored(partial(_load, place, flat, name), text) for name, text in described.items()}
        return Contents(
            others | arrays,
            notes.get("columns") or (_names(chosen, features) if "action" in features else ()),
            notes.get("source"),
            ignored=[f"{name} {text}" for name, text in described.items() if name not in (*wanted, *COUNTERS)],
            about=about,
            missing="there is no low-dimensional feature '{name}' or 'observation.{name}'.",
        )


def _features(place: str, info: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The features that the data set describes; refuses versions that this reader does not know."""
    version, features = str(info.get("codebase_version")), info.get("features")
    if not version.startswith(("v2.", "v3.")):
        raise InputError(
            f"{place!r} is a {KIND} of version {version}; mocoda reads v2.0 to v3.0. Convert it with LeRobot first."
        )
    if not isinstance(features, dict):
        raise InputError(f"{place!r} is damaged: {INFO} lists no features.")
    for name, about in features.items():
        shape = about.get("shape") if isinstance(about, dict) else None
        if not isinstance(shape, list) or not all(isinstance(size, int) and size > 0 for size in shape):
            raise InputError(f"{place!r} is damaged: {INFO} must give each of the features a shape; {name!r} has none.")
    if missing := {"episode_index", "frame_index"} - {*features}:
        raise InputError(f"{place!r} is damaged: {INFO} lists no feature {' and no '.join(sorted(missing))}.")
    return dict(features)


def _columns(folder: Path, widths: Mapping[str, int]) -> dict[str, NDArray[Any]]:
    """The columns of all files, in their order: (N,) or (N, width)."""
    files = sorted(folder.glob("data/*/*.parquet"))
    if not files:
        raise InputError(f"{str(folder)!r} holds no frames, files such as data/chunk-000/file-000.parquet.")
    unpacked = Unpacked(str(folder), *(path for path in files if path.is_file()))
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in widths}
    for path in files:
        with refusing(str(path), "Parquet"), open_parquet(path) as file:
            unpacked.add(8 * file.metadata.num_rows * sum(widths.values()))
            for batch in file.iter_batches(BATCH, columns=[*widths]):  # lists may be longer than the features say
                for name, width in widths.items():
                    parts[name].append(_values(batch.column(name), width))
    if not next(iter(parts.values())):
        raise InputError(f"{str(folder)!r} holds no frames: its files are empty.")
    return {name: np.concatenate(found) for name, found in parts.items()}


def _values(column: Any, width: int) -> NDArray[Any]:
    """A column of numbers (N,), or of lists, (N, width)."""
    if "list" not in str(column.type):
        values = np.asarray(column.to_numpy(zero_copy_only=False))
        if width != 1 or values.dtype.kind not in "biuf":
            raise ValueError(f"a column holds {column.type}, expected {width} numbers a row")
        return values
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    if not (lengths == width).all():
        raise ValueError(f"a column holds lists of {lengths[lengths != width][0]} numbers, expected {width}")
    return np.asarray(column.flatten().to_numpy(zero_copy_only=False)).reshape(len(column), width)


def _load(place: str, flat: Mapping[str, int], name: str) -> NDArray[Any]:
    if name not in flat:
        raise InputError(f"{KIND}: {name!r} is not low-dimensional: images, videos and texts cannot be augmented.")
    with refusing(place, f"a {KIND}"):
        return _columns(Path(place), {name: flat[name]})[name]


def _names(chosen: Sequence[str], features: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The columns' names: the features' own names where they differ, else with the feature's name before them."""
    state = [name for feature in chosen for name in _own(feature, features[feature], len(chosen) == 1)]
    if len({*state}) < len(state):
        own = ((feature.removeprefix(OBSERVATION), _own(feature, features[feature], False)) for feature in chosen)
        state = [f"{feature}.{name}" for feature, names in own for name in names]
    action = _own("action", features["action"], True)
    return [*state, *([f"action.{name}" for name in action] if {*state} & {*action} else action)]


def _own(feature: str, about: Mapping[str, Any], alone: bool) -> list[str]:
    """A feature's names of its columns: a list, a mapping of lists, or a mapping of names to places."""
    given, width = about.get("names"), math.prod(about["shape"])
    if isinstance(given, dict):
        lists = [name for names in given.values() if isinstance(names, list) for name in names]
        given = lists or [name for name, _ in sorted(given.items(), key=lambda pair: str(pair[1]))]
    if isinstance(given, list) and len({*map(str, given)}) == len(given) == width:
        return [str(name) for name in given]
    return column_names({feature.removeprefix(OBSERVATION): width}, between="" if alone else ".", always=True)


def _tasks(folder: Path) -> dict[str, str]:
    """The texts of tasks by their numbers; none where the folder has none."""
    path = folder / TASKS
    if path.is_file():
        with open_parquet(path) as file:
            names = [name for name in ("task_index", "task", INDEX) if name in file.schema_arrow.names]
            table = parquet_table(file, names, Unpacked(str(path), path))
            number, *texts = (column_values(table.column(name)) for name in names)
            return {str(key): str(text) for key, text in zip(number, texts[0] if texts else number, strict=True)}
    if (folder / "meta/tasks.jsonl").is_file():
        lines = (folder / "meta/tasks.jsonl").read_text("utf-8").splitlines()
        rows = [json.loads(line) for line in lines if line.strip()]
        return {str(row["task_index"]): str(row.get("task")) for row in rows}
    return {}


def _note(info: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], frames: int) -> str:
    """What users should know of the data set, in words."""
    notes = []
    if info.get("total_frames") != frames:
        notes.append(f"{INFO} counts {info.get('total_frames')} frames, and data/ holds {frames}")
    if "next_state" not in arrays and "reward" in arrays:
        last = np.append(np.diff(arrays["episode"]) != 0, True)
        if arrays["reward"][last].any():
            notes.append(
                "the last frames of episodes have no next state and are left out, and with them rewards up to "
                f"{arrays['reward'][last].max():g}"
            )
    return "; ".join(notes)


# Writing


def write_lerobot(data: Transitions, place: str, version: str = "v3.0") -> None:
    """A new folder of version v3.0 or v2.1, whole or not at all.

    Episodes are the table's, or else rows that follow one another; every other row is an episode of one frame. Each
    frame has its own next state, `next.observation.state`. `next.done` marks the last frame of an episode and
    `next.terminated` a terminal one. Provenance becomes columns `provenance.NAME`. There are `fps` frames a second, as
    in the data that was read, or else one.
    """
    data = grouped_by_episode(data)
    bounds = as_episodes(data).bounds
    if version == "v2.1" and len(bounds) > MOST_EPISODES:
        raise InputError(
            f"LeRobot v2.1 has a file for every episode, and the names of fewer than {MOST_EPISODES:,}; this table has "
            f"{len(bounds) - 1:,} episodes, counting rows that no other one follows. Write v3.0: lerobot:{place}."
        )
    fps = noted(data.source, "fps") or 1
    tasks, frames = _frames(data, bounds, fps)
    states, actions = [*data.columns[: data.state.shape[1]]], [*data.columns[data.state.shape[1] :]]
    names = {STATE: states, NEXT + STATE: states, "action": actions}
    names |= {} if data.goal is None else {GOAL: [f"goal{place}" for place in range(data.goal.shape[1])]}
    features = {
        name: {"dtype": str(array.dtype), "shape": [*array.shape[1:]] or [1], "names": names.get(name)}
        for name, array in frames.items()
    }
    info = {
        "codebase_version": version,
        "robot_type": None,
        "total_episodes": len(bounds) - 1,
        "total_frames": len(data),
        "total_tasks": len(tasks),
        "chunks_size": CHUNK,
        "fps": fps,
        "splits": {"train": f"0:{len(bounds) - 1}"},
        "video_path": None,
        "features": features,
    } | noted_audit(data.source)
    with whole_folder(place) as folder:
        (folder / "meta").mkdir()
        info |= (_put_v21 if version == "v2.1" else _put_v30)(folder, frames, _episodes(bounds, tasks, frames), tasks)
        write_json(folder / NOTES, texts_of(data) | {"held": [*arrays_of(data)]})
        write_json(folder / INFO, info)


LEROBOT = Format(
    "lerobot",
    KIND,
    "lerobot:FOLDER",
    read_lerobot,
    write_lerobot,
    recognises=lambda path: (path / INFO).is_file(),
    place="folder",
    options=("observations",),
)
_write_21 = partial(write_lerobot, version="v2.1")
LEROBOT_21 = replace(LEROBOT, name="lerobot-v2.1", example="lerobot-v2.1:FOLDER", write=_write_21)


def _frames(data: Transitions, bounds: NDArray[np.int64], fps: float) -> tuple[list[str], dict[str, NDArray[Any]]]:
    """The texts of the tasks, and every column by its name in the folder."""
    arrays, lengths = arrays_of(data), np.diff(bounds)
    episode = np.repeat(np.arange(len(lengths)), lengths)
    frame = np.arange(len(data)) - bounds[episode]
    last = np.append(episode[1:] != episode[:-1], True)
    frames = {STATE: arrays["state"], "action": arrays["action"], NEXT + STATE: arrays["next_state"]}
    frames |= {GOAL: arrays["goal"]} if "goal" in arrays else {}
    frames |= {"next.reward": arrays["reward"]} if "reward" in arrays else {}
    frames |= {"next.done": last | arrays["terminal"], "next.terminated": arrays["terminal"]}
    given = noted(data.source, "tasks") or {}
    known = {int(key): text for key, text in given.items() if key.isdecimal() and int(key) < MOST_TASKS}
    task = arrays.get(TASK)
    if task is None or task.min() < 0 or task.max() >= MOST_TASKS:
        texts = list(known.values()) if len(known) == 1 else ["unlabelled"]
        task = np.zeros(len(data), np.int64)
    else:
        texts = [known.get(number, f"task {number}") for number in range(max([int(task.max()), *known]) + 1)]
        texts = texts if len({*texts}) == len(texts) else [f"{number}: {text}" for number, text in enumerate(texts)]
    for name, array in arrays.items():
        if name in EPISODES:
            frames[f"mocoda.{name}"] = array
        elif name.startswith(PROVENANCE) and (name != TASK or task is not array):
            frames[f"provenance.{name.removeprefix(PROVENANCE)}"] = array
    frames |= {"timestamp": (frame / fps).astype(np.float32), "frame_index": frame, "episode_index": episode}
    return texts, frames | {"index": np.arange(len(data)), "task_index": task}


def _put_v30(folder: Path, frames: Frames, episodes: Frames, tasks: list[str]) -> dict[str, Any]:
    """Writes a file of all frames, one of episodes and one of tasks; returns what info.json says of them."""
    bounds, zero = np.array([0, len(frames["index"])]), np.zeros_like(episodes["length"])  # there is one file of each
    places = ("data/chunk_index", "data/file_index", "meta/episodes/chunk_index", "meta/episodes/file_index")
    last = np.cumsum(episodes["length"])
    extent = {"dataset_from_index": last - episodes["length"], "dataset_to_index": last}
    whole = {name: _stats(array, bounds) for name, array in frames.items()}
    _parquet(folder / "data" / FILE, _table(frames))
    _parquet(folder / "meta/episodes" / FILE, _table({**episodes, **extent, **dict.fromkeys(places, zero)}))
    listed = _table({"task_index": np.arange(len(tasks)), INDEX: tasks})
    _parquet(folder / TASKS, listed.replace_schema_metadata({"pandas": json.dumps(PANDAS)}))
    write_json(folder / "meta/stats.json", {n: {k: v[0].tolist() for k, v in s.items()} for n, s in whole.items()})
    path = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    return {"data_files_size_in_mb": 100, "video_files_size_in_mb": 200, "data_path": path}


def _put_v21(folder: Path, frames: Frames, episodes: Frames, tasks: list[str]) -> dict[str, Any]:
    """Writes a file for each episode, and episodes and tasks as lines of JSON; returns what `_put_v30` does."""
    path = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
    table, begin = _table(frames), 0
    lines: dict[str, list[Any]] = {"episodes": [], "episodes_stats": []}
    lines["tasks"] = [{"task_index": number, "task": text} for number, text in enumerate(tasks)]
    for number, row in enumerate(_table(episodes).to_pylist()):
        name = path.format(episode_chunk=number // CHUNK, episode_index=number)
        _parquet(folder / name, table.slice(begin, row["length"]))
        begin += row["length"]
        stats = {name: {part: row[f"stats/{name}/{part}"] for part in STATS} for name in frames}
        lines["episodes"].append({part: row[part] for part in ("episode_index", "tasks", "length")})
        lines["episodes_stats"].append({"episode_index": number, "stats": stats})
    for name, rows in lines.items():
        (folder / f"meta/{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return {"total_videos": 0, "total_chunks": -(-len(lines["episodes"]) // CHUNK), "data_path": path}


def _episodes(bounds: NDArray[np.int64], tasks: list[str], frames: Frames) -> dict[str, Any]:
    """The number, the tasks, the length and the statistics of each episode, by columns."""
    pyarrow = pyarrow_for("write LeRobot's folders")
    episodes = len(bounds) - 1
    pairs = np.unique(np.stack([frames["episode_index"], frames["task_index"]], 1), axis=0)
    first = np.append(0, np.cumsum(np.bincount(pairs[:, 0], minlength=episodes))).astype(np.int32)
    own = pyarrow.ListArray.from_arrays(first, pyarrow.array([tasks[place] for place in pairs[:, 1]]))
    columns = {"episode_index": np.arange(episodes), "tasks": own, "length": np.diff(bounds)}
    for feature, array in frames.items():
        for name, values in _stats(array, bounds).items():
            ends = np.arange(episodes + 1, dtype=np.int32) * values.shape[1]
            columns[f"stats/{feature}/{name}"] = pyarrow.ListArray.from_arrays(ends, values.ravel())
    return columns


def _stats(array: NDArray[Any], bounds: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Statistics of each episode's values, (E, width) each; episodes of one length are described together."""
    values, lengths = array.reshape(len(array), -1), np.diff(bounds)
    values = values.astype(np.float64) if values.dtype.kind == "f" else values
    found: dict[str, NDArray[Any]] = {}
    for length in np.unique(lengths):
        chosen = np.flatnonzero(lengths == length)
        one = values[bounds[chosen, None] + np.arange(length)]  # (episodes, length, width)
        about = {"min": one.min(1), "max": one.max(1), "mean": one.mean(1), "std": one.std(1)}
        about["count"] = np.full((len(chosen), 1), length)
        quantiles = np.quantile(one.astype(np.float64), [*QUANTILES.values()], axis=1)
        for name, part in (about | dict(zip(QUANTILES, quantiles, strict=True))).items():
            found.setdefault(name, np.empty((len(lengths), part.shape[1]), part.dtype))[chosen] = part
    return found


def _table(columns: Mapping[str, Any]) -> Any:
    pyarrow = pyarrow_for("write LeRobot's folders")
    made = {}
    for name, values in columns.items():
        if isinstance(values, np.ndarray) and values.ndim == 2:  # of one column, LeRobot expects plain numbers
            flat = np.ascontiguousarray(values).ravel()
            values = flat if values.shape[1] == 1 else pyarrow.FixedSizeListArray.from_arrays(flat, values.shape[1])
        made[name] = values
    return pyarrow.table(made)


def _parquet(path: Path, table: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow_for("write LeRobot's folders").parquet.write_table(table, path)
