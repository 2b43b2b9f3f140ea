"""Writing LeRobot's version 3.0: frames, episodes, tasks and statistics as its readers expect them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mocoda.data.formats.arrays import arrays_of, noted
from mocoda.data.formats.chains import chains, in_episodes
from mocoda.data.formats.frames import pyarrow_for
from mocoda.data.names import EPISODES, PROVENANCE
from mocoda.engine.files import whole_folder

if TYPE_CHECKING:
    from mocoda.data.transitions import Transitions

INFO, NOTES = "meta/info.json", "meta/mocoda.json"
STATE, GOAL, NEXT = "observation.state", "observation.goal", "next."
TASK = PROVENANCE + "task_index"
OUR_NAMES = {  # theirs -> ours; of what comes twice, the last
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
FILE_BYTES, CHUNK_FILES = 100 << 20, 1000  # as LeRobot's defaults
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
TASKS = 10_000  # more are not tasks


def write_lerobot(data: Transitions, place: str) -> None:
    """A new folder of version v3.0, whole or not at all.

    Episodes are the table's, or else rows that follow one another; every other row is an episode of one frame, so that
    each comes out with its own next state, `next.observation.state`. `next.done` marks the last frame of an episode and
    `next.terminated` a terminal one. Provenance (donors, support, disagreement) are columns `provenance.NAME`. Frames
    are `fps` a second apart as in the data that was read, or else one.
    """
    data = in_episodes(data)
    bounds = chains(data).bounds
    fps = noted(data.source, "fps") or 1
    tasks, frames = _frames(data, bounds, fps)
    features = {name: _feature(name, array, data) for name, array in frames.items()}
    with whole_folder(place) as folder:
        files = _write_frames(folder, frames, bounds)
        stats = {name: _stats(array, bounds) for name, array in frames.items()}
        _write_episodes(folder, bounds, files, frames["task_index"], tasks, stats)
        _write_tasks(folder / "meta/tasks.parquet", tasks)
        whole = {name: _stats(array, np.array([0, len(data)])) for name, array in frames.items()}
        _json(folder / "meta/stats.json", {n: {k: v[0].tolist() for k, v in s.items()} for n, s in whole.items()})
        notes = {"columns": data.columns, "source": dict(data.source), "held": [*arrays_of(data)]}
        _json(folder / NOTES, notes)
        _json(folder / INFO, _info(len(bounds) - 1, len(data), len(tasks), fps, features))


def _frames(data: Transitions, bounds: NDArray[np.int64], fps: float) -> tuple[list[str], dict[str, NDArray[Any]]]:
    """The texts of the tasks, and every column by its name there."""
    arrays, lengths = arrays_of(data), np.diff(bounds)
    episode = np.repeat(np.arange(len(lengths)), lengths)
    frame = np.arange(len(data)) - bounds[episode]
    last = np.append(episode[1:] != episode[:-1], True)
    frames = {STATE: arrays["state"], "action": arrays["action"], NEXT + STATE: arrays["next_state"]}
    frames |= {GOAL: arrays["goal"]} if "goal" in arrays else {}
    frames |= {"next.reward": arrays["reward"]} if "reward" in arrays else {}
    frames |= {"next.done": last | arrays["terminal"], "next.terminated": arrays["terminal"]}
    known = {int(number): text for number, text in (noted(data.source, "tasks") or {}).items()}
    task = arrays.get(TASK)
    if task is None or task.min() < 0 or task.max() >= TASKS:
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


def _feature(name: str, array: NDArray[Any], data: Transitions) -> dict[str, Any]:
    states = data.state.shape[1]
    own = {STATE: data.columns[:states], NEXT + STATE: data.columns[:states], "action": data.columns[states:]}
    names = list(own[name]) if name in own else [f"goal{i}" for i in range(array.shape[1])] if name == GOAL else None
    return {"dtype": str(array.dtype), "shape": [*array.shape[1:]] or [1], "names": names}


def _info(episodes: int, frames: int, tasks: int, fps: float, features: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "codebase_version": "v3.0",
        "robot_type": None,
        "total_episodes": episodes,
        "total_frames": frames,
        "total_tasks": tasks,
        "chunks_size": CHUNK_FILES,
        "data_files_size_in_mb": FILE_BYTES >> 20,
        "video_files_size_in_mb": 200,
        "fps": fps,
        "splits": {"train": f"0:{episodes}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": None,
        "features": features,
    }


def _write_frames(folder: Path, frames: Mapping[str, NDArray[Any]], bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Writes whole episodes to files of about FILE_BYTES; returns each episode's file."""
    width = sum(array.itemsize * array[0].size for array in frames.values())
    files = np.unique(bounds[:-1] // max(FILE_BYTES // width, 1), return_inverse=True)[1]
    for number in range(int(files[-1]) + 1):
        inside = np.flatnonzero(files == number)
        rows = slice(int(bounds[inside[0]]), int(bounds[inside[-1] + 1]))
        _parquet(_numbered(folder / "data", number), {name: array[rows] for name, array in frames.items()})
    return np.asarray(files)


def _write_episodes(
    folder: Path,
    bounds: NDArray[np.int64],
    files: NDArray[np.int64],
    task: NDArray[np.int64],
    tasks: list[str],
    stats: Mapping[str, Mapping[str, NDArray[Any]]],
) -> None:
    """Where each episode begins and ends, its tasks and its statistics."""
    pyarrow = pyarrow_for("write LeRobot's folders")
    episodes = len(bounds) - 1
    number = np.repeat(np.arange(episodes), np.diff(bounds))
    pairs = np.unique(np.stack([number, task], 1), axis=0)
    first = np.append(0, np.cumsum(np.bincount(pairs[:, 0], minlength=episodes))).astype(np.int32)
    texts = pyarrow.array([tasks[int(place)] for place in pairs[:, 1]], pyarrow.string())
    zero = np.zeros(episodes, np.int64)
    columns: dict[str, Any] = {
        "episode_index": np.arange(episodes),
        "tasks": pyarrow.ListArray.from_arrays(first, texts),
        "length": np.diff(bounds),
        "data/chunk_index": files // CHUNK_FILES,
        "data/file_index": files % CHUNK_FILES,
        "dataset_from_index": bounds[:-1],
        "dataset_to_index": bounds[1:],
    }
    for feature, found in stats.items():
        for name, values in found.items():
            ends = np.arange(episodes + 1, dtype=np.int32) * values.shape[1]
            columns[f"stats/{feature}/{name}"] = pyarrow.ListArray.from_arrays(ends, values.ravel())
    columns |= {"meta/episodes/chunk_index": zero, "meta/episodes/file_index": zero}
    _parquet(_numbered(folder / "meta/episodes", 0), columns)


def _write_tasks(path: Path, tasks: list[str]) -> None:
    """As pandas would: LeRobot looks tasks up in the index of a data frame."""
    pyarrow = pyarrow_for("write LeRobot's folders")
    index = "__index_level_0__"
    about = {"pandas_type": "int64", "numpy_type": "int64", "metadata": None}
    texts = {"pandas_type": "unicode", "numpy_type": "object", "metadata": None}
    pandas = {
        "index_columns": [index],
        "column_indexes": [{"name": None, "field_name": None, **texts, "metadata": {"encoding": "UTF-8"}}],
        "columns": [
            {"name": "task_index", "field_name": "task_index", **about},
            {"name": None, "field_name": index, **texts},
        ],
        "creator": {"library": "pyarrow", "version": pyarrow.__version__},
        "pandas_version": "2.0.0",
    }
    table = pyarrow.table({"task_index": np.arange(len(tasks)), index: pyarrow.array(tasks, pyarrow.string())})
    pyarrow.parquet.write_table(table.replace_schema_metadata({"pandas": json.dumps(pandas)}), path)


def _stats(array: NDArray[Any], bounds: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Figures of each episode's values, (E, width) each."""
    values = array.reshape(len(array), -1)
    double, begin, count = values.astype(np.float64), bounds[:-1], np.diff(bounds)[:, None]
    values = double if values.dtype.kind == "f" else values
    mean = np.add.reduceat(double, begin) / count
    apart = double - np.repeat(mean, count[:, 0], 0)
    found = {
        "min": np.minimum.reduceat(values, begin),
        "max": np.maximum.reduceat(values, begin),
        "mean": mean,
        "std": np.sqrt(np.add.reduceat(apart * apart, begin) / count),
        "count": count,
    }
    episode = np.repeat(np.arange(len(begin)), count[:, 0])
    ordered = np.stack([column[np.lexsort((column, episode))] for column in double.T], 1)
    for name, share in QUANTILES.items():
        place = begin[:, None] + share * (count - 1)
        low = np.floor(place).astype(np.int64)
        high = np.minimum(low + 1, begin[:, None] + count - 1)
        one, other = ordered[low[:, 0]], ordered[high[:, 0]]
        found[name] = one + (other - one) * (place - low)
    return found


def _parquet(path: Path, columns: Mapping[str, Any]) -> None:
    pyarrow = pyarrow_for("write LeRobot's folders")
    path.parent.mkdir(parents=True, exist_ok=True)
    made = {}
    for name, values in columns.items():
        if isinstance(values, np.ndarray) and values.ndim == 2:  # of one column, LeRobot expects plain numbers
            flat = np.ascontiguousarray(values).ravel()
            values = flat if values.shape[1] == 1 else pyarrow.FixedSizeListArray.from_arrays(flat, values.shape[1])
        made[name] = values
    pyarrow.parquet.write_table(pyarrow.table(made), path)


def _numbered(folder: Path, number: int) -> Path:
    return folder / f"chunk-{number // CHUNK_FILES:03d}" / f"file-{number % CHUNK_FILES:03d}.parquet"


def _json(path: Path, value: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=4, ensure_ascii=False) + "\n", "utf-8")
