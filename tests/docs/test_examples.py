"""Every program in examples/ runs, at its smallest size, and so does every command of the walks through worlds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mocoda

HERE = Path(__file__).parents[2] / "examples"
WALKS = {"traffic": "highway", "two_cubes": "franka"}  # folders, and the modules with their worlds
EXAMPLES = sorted(set(HERE.glob("*.py")) - {HERE / "walk.py"})
each_walk = pytest.mark.parametrize("walk", WALKS)


def run(folder: Path, *words: str, seconds: int = 240) -> str:
    """Runs a program of examples/ in a folder, and returns what it prints."""
    environment = {**os.environ, "MINARI_DATASETS_PATH": str(folder / "minari"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(example: Path, tmp_path: Path) -> None:
    assert run(tmp_path, str(example), "--tiny").strip()


@each_walk
def test_a_world_replays_what_was_recorded_in_it(walk: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, str(HERE / walk / "record.py"), "--rows", "300", "--out", "data.hdf5")
    data = mocoda.read(tmp_path / "data.hdf5")
    monkeypatch.syspath_prepend(HERE / walk)
    task = mocoda.load_task(HERE / walk / "graph.py", data)
    assert len(data) == 300 and task.label is not None and task.step is not None
    found = mocoda.audit(data, task.step, task.graph)
    assert found.confirmed == 1


@each_walk
def test_the_rewards_of_a_graph_file_are_those_of_its_world(
    walk: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(HERE / walk)
    world: Any = __import__(WALKS[walk])
    task_class = world.Traffic if walk == "traffic" else world.TwoCubes
    environment = task_class()
    columns = [*world.COLUMNS, *world.ACTIONS]
    rows, rewards, ends = [], [], []
    for seed in range(3):
        state, _ = environment.reset(seed=seed)
        environment.action_space.seed(seed)
        for _ in range(60):
            action = environment.action_space.sample()
            after, reward, ended, *_ = environment.step(action)
            rows.append((state, action, after))
            rewards.append(reward)
            ends.append(ended)
            if ended:
                break
            state = after
    state, action, after = zip(*rows, strict=True)
    data = mocoda.read({"state": state, "action": action, "next_state": after}, columns=columns)
    label = mocoda.load_task(HERE / walk / "graph.py", data).label
    assert label is not None
    reward, terminal = label(data.state, data.action, data.next_state)
    assert reward.tolist() == pytest.approx(rewards, abs=1e-5) and terminal.tolist() == ends
    assert walk == "two_cubes" or any(ends)  # somebody crashed


@pytest.mark.long
@each_walk
def test_all_commands_of_a_walk_run(walk: str, tmp_path: Path) -> None:
    printed = run(tmp_path, str(HERE / "walk.py"), walk, "--tiny", "--folder", "walk", seconds=900)
    assert "mocoda evaluate" in printed


def test_the_first_page_of_the_documents_names_every_example() -> None:
    page = (HERE.parent / "docs/index.md").read_text("utf-8")
    names = [example.name for example in EXAMPLES] + [f"{walk}/README.md" for walk in WALKS]
    assert [name for name in names if f"](../examples/{name})" not in page] == []
