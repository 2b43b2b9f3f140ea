"""LeRobot's folders, versions 2.0 to 3.0: Parquet and JSON, read without LeRobot and without its videos.

The state is made of all low-dimensional features `observation.*`, or of those that `observations` names. A feature's
own names become the columns' (`action.NAME` where the state has the same); features of more dimensions, images, videos
and texts are left alone. `next.done` marks ends of episodes; `task_index` becomes provenance.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mocoda.data.formats.arrays import checked_texts, refusing
from mocoda.data.formats.format import Contents, Format
from mocoda.data.formats.frames import checked_file, pyarrow_for
from mocoda.data.formats.lerobot_write import GOAL, INFO, NEXT, NOTES, OUR_NAMES, write_lerobot
from mocoda.data.names import PROVENANCE
from mocoda.engine.errors import InputError

KIND = "LeRobot data set"
OBSERVATION = "observation."
NUMBERS = ("bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
COUNTERS = ("timestamp", "frame_index", "episode_index", "index", "task_index")


def is_lerobot(path: Path) -> bool:
    return (path / INFO).is_file()


def read_lerobot(place: str, observations: Sequence[str] = ()) -> Contents:
    """Every frame; next states are those of `next.observation.state`, as mocoda writes it, or else the next frames'."""
    folder = Path(place)
    with refusing(place, KIND):
        info = _json(folder / INFO)
        features = _features(place, info)
        flat = {name: math.prod(about["shape"]) for name, about in features.items() if _is_flat(about)}
        chosen = _chosen(observations, flat)
        notes = _json(folder / NOTES) if (folder / NOTES).is_file() else {}
        checked_texts(place, notes)
        ours = {name: f"{PROVENANCE}{name[11:]}" for name in flat if name.startswith("provenance.")}
        ours |= {theirs: name for theirs, name in OUR_NAMES.items() if theirs in flat}
        wanted = [*chosen, *(NEXT + name for name in chosen if NEXT + name in flat), *ours, "frame_index"]
        found = _columns(folder, {name: flat[name] for name in wanted})
        arrays = _arrays(found, ours, chosen)
        if "held" in notes:
            arrays = {name: array for name, array in arrays.items() if name in notes["held"]}
        about = {"lerobot": str(info["codebase_version"]), "fps": info.get("fps"), "tasks": _tasks(folder)}
        if said := _said(info, arrays, len(found["frame_index"])):
            about["note"] = said
        described = {name: f"{about.get('dtype')} {tuple(about['shape'])}" for name, about in features.items()}
        return Contents(
            arrays,
            notes.get("columns") or (_names(chosen, features) if "action" in features else ()),
            notes.get("source"),
            ignored=[f"{name} {text}" for name, text in described.items() if name not in (*wanted, *COUNTERS)],
            others=described,
            fetch=partial(_fetch, place, flat),
            about=about,
            missing="there is no low-dimensional feature '{name}' or 'observation.{name}'.",
        )


LEROBOT = Format(
    "lerobot",
    KIND,
    "lerobot:FOLDER",
    read_lerobot,
    write_lerobot,
    recognises=is_lerobot,
    place="folder",
    options=("observations",),
)


def _arrays(
    found: Mapping[str, NDArray[Any]], ours: Mapping[str, str], chosen: Sequence[str]
) -> dict[str, NDArray[Any]]:
    """The columns by our names, with the state, and the next state where it was written."""
    arrays = {name: found[theirs] for theirs, name in ours.items()}
    if chosen:
        arrays["state"] = _joined([found[name] for name in chosen])
    following = [found[NEXT + name] for name in chosen if NEXT + name in found]
    frame = found["frame_index"]
    if len(following) == len(chosen) > 0:
        return arrays | {"next_state": _joined(following), "step": arrays.get("step", frame)}
    return arrays | {"step": frame}


def _json(path: Path) -> dict[str, Any]:
    given = json.loads(path.read_text("utf-8"))
    if not isinstance(given, dict):
        raise InputError(f"{str(path)!r} is damaged: it must be a JSON object.")
    return given


def _features(place: str, info: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What the data set says of its columns, if this reader knows its version."""
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
    missing = [name for name in ("episode_index", "frame_index") if name not in features]
    if missing:
        raise InputError(f"{place!r} is damaged: {INFO} lists no feature {' and no '.join(missing)}.")
    return dict(features)


def _is_flat(about: Mapping[str, Any]) -> bool:
    return about.get("dtype") in NUMBERS and len(about["shape"]) <= 1


def _chosen(wanted: Sequence[str], flat: Mapping[str, int]) -> list[str]:
    """The features that make up the state."""
    known = [name for name in flat if name.startswith(OBSERVATION) and name != GOAL]
    found = [name if name in flat else OBSERVATION + name for name in wanted]
    for name in found:
        if name not in known or found.count(name) > 1:
            problem = f"{name!r} is named twice" if name in known else f"there is no low-dimensional feature {name!r}"
            listed = ", ".join(f"{other!r} ({flat[other]})" for other in known) or "none"
            raise InputError(f"{KIND}: {problem}. There are, with so many columns: {listed}.")
    return found or known


def _columns(folder: Path, widths: Mapping[str, int]) -> dict[str, NDArray[Any]]:
    """The columns of all files, in their order: (N,) or (N, width)."""
    pyarrow = pyarrow_for("read LeRobot's folders")
    files = sorted(folder.glob("data/*/*.parquet"))
    if not files:
        raise InputError(f"{str(folder)!r} holds no frames, files such as data/chunk-000/file-000.parquet.")
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in widths}
    for path in files:
        with refusing(str(path), "Parquet"), pyarrow.parquet.ParquetFile(path) as file:
            checked_file(str(path), file)
            table = file.read(columns=[*widths])
            for name, width in widths.items():
                parts[name].append(_values(table.column(name).combine_chunks(), width))
    return {name: np.concatenate(found) for name, found in parts.items()}


def _values(column: Any, width: int) -> NDArray[Any]:
    if not hasattr(column.type, "value_type"):
        values = column.to_numpy(zero_copy_only=False)
        if width != 1 or values.dtype.kind not in "biuf":
            raise ValueError(f"a column holds {column.type}, expected {width} numbers a row")
        return np.asarray(values)
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    if not (lengths == width).all():
        raise ValueError(f"a column holds lists of {lengths[lengths != width][0]} numbers, expected {width}")
    return np.asarray(column.flatten().to_numpy(zero_copy_only=False)).reshape(len(column), width)


def _fetch(place: str, flat: Mapping[str, int], name: str) -> NDArray[Any]:
    if name not in flat:
        raise InputError(f"{KIND}: {name!r} is not low-dimensional: images, videos and texts cannot be augmented.")
    with refusing(place, KIND):
        return _columns(Path(place), {name: flat[name]})[name]


def _joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    with np.errstate(over="ignore"):  # what is too large becomes inf, and is refused
        flat = [part.reshape(len(part), -1).astype(np.float32) for part in parts]
    return np.concatenate(flat, 1)


def _names(chosen: Sequence[str], features: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The columns' names, by the features' own names where these are enough to tell columns apart."""
    state = [name for feature in chosen for name in _own(feature, features[feature], len(chosen) == 1)]
    if len({*state}) < len(state):
        state = [f"{_short(feature)}.{name}" for feature in chosen for name in _own(feature, features[feature], False)]
    action = _own("action", features["action"], True)
    return [*state, *([f"action.{name}" for name in action] if {*state} & {*action} else action)]


def _own(feature: str, about: Mapping[str, Any], alone: bool) -> list[str]:
    """What a feature calls its columns: a list, or a mapping of such, or of names to places."""
    given, width = about.get("names"), math.prod(about["shape"])
    if isinstance(given, dict):
        lists = [name for names in given.values() if isinstance(names, list) for name in names]
        given = lists or [name for name, _ in sorted(given.items(), key=lambda pair: str(pair[1]))]
    if isinstance(given, list) and len({*map(str, given)}) == len(given) == width:
        return [str(name) for name in given]
    between = "" if alone else "."
    return [f"{_short(feature)}{between}{place}" for place in range(width)]


def _short(feature: str) -> str:
    return feature.removeprefix(OBSERVATION)


def _tasks(folder: Path) -> dict[str, str]:
    """The texts of tasks by their numbers; none where the folder has none."""
    rows: list[dict[str, Any]] = []
    if (folder / "meta/tasks.parquet").is_file():
        path = str(folder / "meta/tasks.parquet")
        with pyarrow_for("read LeRobot's folders").parquet.ParquetFile(path) as file:
            checked_file(path, file)
            rows = file.read().to_pylist()
    elif (folder / "meta/tasks.jsonl").is_file():
        text = (folder / "meta/tasks.jsonl").read_text("utf-8")
        rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    return {str(row["task_index"]): str(row.get("task", row.get("__index_level_0__"))) for row in rows}


def _said(info: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], frames: int) -> str:
    """What a user should know of the data set, in words."""
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
