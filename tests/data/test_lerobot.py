"""LeRobot's folders: those that its own code wrote are read, and what is written is as its readers expect it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars
import pyarrow.parquet
import pytest
import torch
from approved import refused
from transition_tables import assert_identical, numbers, refusal

import mocoda
from mocoda import Transitions

RECORDED = Path(__file__).parent / "lerobot"  # by LeRobot itself, see record.py there
KEPT = [0, 1, 2, 3, 6, 7, 8]  # of ten frames, in episodes of 5, 1 and 4, those that another one follows
IMAGE = "observation.images.top image (4, 4, 3)"


@pytest.fixture(params=["v2.0", "v2.1", "v3.0"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A data set of each version; v2.0 differs from v2.1 in where the statistics are."""
    version = request.param
    shutil.copytree(RECORDED / version.replace("v2.0", "v2.1"), tmp_path / version)
    if version == "v2.0":
        (tmp_path / "v2.0/meta/episodes_stats.jsonl").unlink()
        (tmp_path / "v2.0/meta/stats.json").write_text("{}")
        change(tmp_path / version, codebase_version="v2.0")
    return Path(tmp_path / version)


def change(folder: Path, **changed: Any) -> None:
    info = json.loads((folder / "meta/info.json").read_text())
    (folder / "meta/info.json").write_text(json.dumps(info | changed))


def features(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "meta/info.json").read_text())["features"])


def made(rows: int = 12) -> Transitions:
    """Two recorded episodes, then generated rows, of which each is alone."""
    walk = numbers(rows + 2, 2)
    return Transitions(
        walk[:rows],
        numbers(rows, 1),
        np.concatenate([walk[1:5], numbers(1, 2), walk[6:8], 1 + numbers(rows - 7, 2)]),
        np.arange(rows) / 10,
        np.arange(rows) == 4,
        columns=["hand.x", "hand.y", "push"],
        source={"recorded": {"fps": 20, "tasks": {"0": "push"}}},
        provenance={"recipe": np.arange(rows) // 8, "support": numbers(rows), "donor_hand": np.arange(rows)},
        episode=np.repeat([3, 5, -1], [5, 3, rows - 8]),
    )


def test_what_lerobot_recorded_is_read(folder: Path) -> None:
    data = mocoda.read(f"lerobot:{folder}")
    assert_identical(mocoda.read(folder), data)
    frames = torch.tensor(KEPT).float()
    assert data.columns == ("arm.x", "arm.y", "grip", "x", "y", "action.arm.x", "action.arm.y")
    assert data.state.equal(torch.stack([frames, frames + 0.25, -frames, 10 * frames, frames * 0 + 0.1], 1))
    assert data.next_state[:, 0].tolist() == [frame + 1 for frame in KEPT]
    assert data.action[:, 0].tolist() == pytest.approx([frame / 100 for frame in KEPT])
    assert data.reward is not None and data.reward.tolist() == pytest.approx([frame / 10 for frame in KEPT])
    assert data.episode is not None and data.episode.tolist() == [0, 0, 0, 0, 2, 2, 2]
    assert data.step is not None and data.step.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert data.provenance["task_index"].tolist() == [0] * 7
    assert not data.terminal.any()
    assert data.source["tasks"] == {"0": "push the box", "1": "pull the box"}
    assert (data.source["lerobot"], data.source["fps"], data.source["ignored"]) == (folder.name, 10, [IMAGE])


def test_images_and_what_was_left_out_are_said(folder: Path) -> None:
    found = mocoda.inspect(folder)
    assert f"left out, and in no new row: {IMAGE}" in str(found)
    assert found.warnings[-1].startswith(
        "the last frames of episodes have no next state and are left out, and with them rewards up to 0.9; done marks "
        "the ends of episodes; it does not tell"
    )
    assert mocoda.read(folder, names={"terminal": "next.done"}).source["dropped_terminals"] == 3
    change(folder, total_frames=12)
    assert "meta/info.json counts 12 frames, and data/ holds 10" in mocoda.inspect(folder).warnings[-1]


def test_observations_and_the_action_are_chosen_by_name(folder: Path) -> None:
    one = mocoda.read(folder, observations=["observation.environment_state"])
    assert one.columns == ("x", "y", "arm.x", "arm.y") and one.state[:, 0].tolist() == [10.0 * frame for frame in KEPT]
    two = mocoda.read(folder, observations=["environment_state", "state"])
    assert two.columns[:3] == ("x", "y", "arm.x") and two.state[:, :2].equal(one.state)
    message = refusal(lambda: mocoda.read(folder, observations=["images.top"]))
    assert message.startswith("LeRobot data set: there is no low-dimensional feature 'observation.images.top'.")
    paths = [*(folder / "data").rglob("*.parquet")]
    for path in paths:
        table = pyarrow.parquet.read_table(path)
        names = [name.replace("action", "action.joints") for name in table.column_names]
        pyarrow.parquet.write_table(table.rename_columns(names), path)
    change(folder, features={name.replace("action", "action.joints"): one for name, one in features(folder).items()})
    message = refusal(lambda: mocoda.read(folder))
    assert message.startswith("LeRobot data set: there is no low-dimensional feature 'action' or 'observation.action'.")
    assert "'action.joints' float32 (2,)" in message and "'observation.images.top' image (4, 4, 3)" in message
    assert mocoda.read(folder, names={"action": "action.joints"}).action.equal(one.action)
    with refused():
        mocoda.read(folder, names={"action": "observation.images.top"})


HARM: dict[str, Callable[[Path], object]] = {
    "old": lambda f: change(f, codebase_version="v1.6"),
    "none": lambda f: change(f, features={}),
    "json": lambda f: (f / "meta/info.json").write_text("["),
    "width": lambda f: change(f, features=features(f) | {"action": {"dtype": "float32", "shape": [3]}}),
    "huge": lambda f: change(f, features=features(f) | {"action": {"dtype": "float32", "shape": [10**9]}}),
}


@pytest.mark.parametrize("harm", HARM)
def test_a_folder_that_cannot_be_read_is_refused(harm: str, tmp_path: Path) -> None:
    shutil.copytree(RECORDED / "v3.0", tmp_path / "x")
    HARM[harm](tmp_path / "x")
    with refused():
        mocoda.read(tmp_path / "x")


# --- writing


SPELLED = {"v2.1": "lerobot-v2.1", "v3.0": "lerobot"}


@pytest.fixture(params=SPELLED)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_written_folder_has_every_field_that_lerobot_s_own_has(version: str, tmp_path: Path) -> None:
    data, theirs = made(), RECORDED / version
    mocoda.write(data[:3] if version == "v2.1" else data, f"{SPELLED[version]}:{tmp_path / 'x'}")
    ours = tmp_path / "x"
    files = {str(path.relative_to(theirs)) for path in theirs.rglob("*") if path.is_file()}
    files -= {f"data/chunk-000/episode_00000{episode}.parquet" for episode in (1, 2)}  # three rows are one episode
    assert {str(path.relative_to(ours)) for path in ours.rglob("*") if path.is_file()} == files | {"meta/mocoda.json"}
    one, other = (json.loads((folder / "meta/info.json").read_text()) for folder in (ours, theirs))
    counts = (1, 3, 20) if version == "v2.1" else (6, 12, 20)
    assert {*one} == {*other} and (one["total_episodes"], one["total_frames"], one["fps"]) == counts
    own = ("total_episodes", "total_frames", "total_tasks", "fps", "splits", "features")
    assert {name: one[name] for name in one if name not in own} == {
        name: other[name] for name in other if name not in own
    }
    for name in ("timestamp", "frame_index", "episode_index", "index", "task_index", "next.reward", "next.done"):
        assert one["features"][name] == other["features"][name], name
    assert one["features"]["observation.state"] == {"dtype": "float32", "shape": [2], "names": ["hand.x", "hand.y"]}
    for path in files:
        if path.endswith(".parquet"):
            mine, yours = (pyarrow.parquet.read_schema(folder / path) for folder in (ours, theirs))
            for name in yours.names:
                if "environment" not in name and "images" not in name and name not in ("observation.state", "action"):
                    assert mine.field(name).type == yours.field(name).type, name
    if version == "v3.0":
        stats, known = (json.loads((folder / "meta/stats.json").read_text()) for folder in (ours, theirs))
    else:
        for name in ("episodes", "tasks", "episodes_stats"):
            mine, yours = (lines(folder / f"meta/{name}.jsonl")[0] for folder in (ours, theirs))
            assert {key: type(value) for key, value in mine.items()} == {k: type(v) for k, v in yours.items()}
        stats, known = mine["stats"], yours["stats"]
    assert {*stats} == {*one["features"]} and {*stats["action"]} == {*known["action"]}
    assert stats["next.done"]["min"] == known["next.done"]["min"] == [False]


def test_what_v21_has_no_name_for_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mocoda.data.formats.lerobot.MOST_EPISODES", 5)
    with refused():
        mocoda.write(made(), f"lerobot-v2.1:{tmp_path / 'x'}")
    assert [*tmp_path.iterdir()] == []


def test_what_is_written_is_right_by_other_readers(version: str, tmp_path: Path) -> None:
    data, folder, lengths = made(), tmp_path / "x", [5, 3, 1, 1, 1, 1]
    mocoda.write(data, f"{SPELLED[version]}:{folder}")
    assert_identical(mocoda.read(folder), data)
    assert_identical(mocoda.read(f"{SPELLED[version]}:{folder}"), data)
    files = sorted((folder / "data/chunk-000").iterdir())
    parts = [polars.read_parquet(file) for file in files]
    assert [len(part) for part in parts] == ([12] if version == "v3.0" else lengths)
    frames = polars.concat(parts)
    assert np.array_equal(frames["observation.state"].to_numpy(), data.state)
    assert np.array_equal(frames["next.observation.state"].to_numpy(), data.next_state)
    assert np.array_equal(frames["action"].to_numpy(), data.action[:, 0])  # one column: plain numbers
    assert frames["index"].to_list() == [*range(12)]
    assert frames["episode_index"].to_list() == [0] * 5 + [1] * 3 + [2, 3, 4, 5]
    assert frames["frame_index"].to_list() == [0, 1, 2, 3, 4, 0, 1, 2, 0, 0, 0, 0]
    assert frames["timestamp"].to_list()[:5] == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])
    assert frames["next.done"].to_list() == [row in (4, 7, 8, 9, 10, 11) for row in range(12)]
    for name, note in data.provenance.items():
        assert np.array_equal(frames[f"provenance.{name}"].to_numpy(), note)
    figures: dict[str, Any] = {"min": np.min, "max": np.max, "mean": np.mean, "std": np.std}
    figures["count"] = lambda rows, axis: [rows.shape[axis]]
    if version == "v3.0":
        episodes = pd.read_parquet(folder / "meta/episodes/chunk-000/file-000.parquet").to_dict("records")
        figures |= {name: partial(np.quantile, q=share) for name, share in {"q50": 0.5, "q90": 0.9}.items()}
        stats = [{name: one[f"stats/observation.state/{name}"] for name in figures} for one in episodes]
        assert [one["dataset_from_index"] for one in episodes] == [0, 5, 8, 9, 10, 11]
        tasks = pd.read_parquet(folder / "meta/tasks.parquet")  # LeRobot looks tasks up in its index
        assert tasks.iloc[0].name == "push" and tasks.loc["push"].task_index == 0
    else:
        episodes = lines(folder / "meta/episodes.jsonl")
        stats = [one["stats"]["observation.state"] for one in lines(folder / "meta/episodes_stats.jsonl")]
        assert lines(folder / "meta/tasks.jsonl") == [{"task_index": 0, "task": "push"}]
    assert [(one["episode_index"], one["length"]) for one in episodes] == [*enumerate(lengths)]
    assert [[*one["tasks"]] for one in episodes] == [["push"]] * 6
    for own, rows in zip(stats, np.split(data.state.double().numpy(), np.cumsum(lengths)[:-1]), strict=True):
        for name, figure in figures.items():
            assert own[name] == pytest.approx(figure(rows, axis=0), abs=1e-6)


def test_tasks_of_recorded_rows_are_kept(folder: Path, tmp_path: Path) -> None:
    data = mocoda.read(folder)
    data = replace(data, provenance={"task_index": torch.tensor([0, 0, 0, 0, 1, 1, 1])})
    mocoda.write(data, f"lerobot:{tmp_path / 'x'}")
    back = mocoda.read(tmp_path / "x")
    assert_identical(back, data)
    assert back.provenance["task_index"].equal(data.provenance["task_index"])
    episodes = polars.read_parquet(tmp_path / "x/meta/episodes/chunk-000/file-000.parquet")
    assert episodes["tasks"].to_list() == [["push the box"], ["pull the box"]]


LOADS = """
import json, sys, torch
try:
    import torchvision
except RuntimeError:  # made for a torch with CUDA: what is missing finds objects in images
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor boxes, Tensor scores, float overlap) -> Tensor")
from lerobot.datasets.lerobot_dataset import LeRobotDataset
data = LeRobotDataset("me/x", root=sys.argv[1], delta_timestamps={"action": [0, 0.05]})
rows = [data[row] for row in range(len(data))]
frames = [[row["observation.state"].tolist(), row["provenance.support"].item(), row["task"]] for row in rows]
print(json.dumps([frames, data.meta.stats["observation.state"]["std"].tolist()]))
"""


def test_lerobot_s_own_loader_reads_it(version: str, tmp_path: Path) -> None:
    variable = f"LEROBOT_{version[1]}_PYTHON"
    if variable not in os.environ:
        pytest.skip(f"set {variable} to a Python whose lerobot reads {version}, as `make test-loaders` does")
    data = replace(made(), source={**made().source, "audit": {"simulator": {"name": "boxes"}}})
    mocoda.write(data, f"{SPELLED[version]}:{tmp_path / 'x'}")
    command = [*os.environ[variable].split(), "-c", LOADS, str(tmp_path / "x")]
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | offline)
    assert done.returncode == 0, done.stderr
    frames, std = json.loads(done.stdout.splitlines()[-1])
    assert [frame[0] for frame in frames] == data.state.tolist()
    assert [frame[1] for frame in frames] == data.provenance["support"].tolist()
    assert {frame[2] for frame in frames} == {"push"}
    assert std == pytest.approx(data.state.std(0, correction=0).tolist(), rel=1e-5)
