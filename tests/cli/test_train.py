"""Agents by the command line: trained, evaluated, not trained twice, and killed halfway."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import mocoda.cli
import mocoda.cli.verbs
from mocoda import Policies, evaluate, make_agent, make_task, train_agents
from mocoda.engine.checkpoint import load_trained

ENVIRONMENT = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
RUNS = [(data, seed) for data in ("one", "two") for seed in (0, 1)]
POLICIES = [f"policy-{data}-{seed}.safetensors" for data, seed in RUNS]
METRICS = ["metrics.csv", "metrics.jsonl"]
WRITTEN = sorted(["agents.json", "config.json", "files.jsonl", "progress.jsonl", *METRICS, *POLICIES])


def cli(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mocoda.cli", *map(str, words)]
    return subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=250)


def succeed(*words: str | Path, cwd: Path) -> str:
    done = cli(*words, cwd=cwd)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "error" not in done.stderr
    return done.stdout


def training(updates: int = 200) -> list[str]:
    sizes = ["--seeds", "2", "--updates", str(updates), "--hidden", "12", "8", "--batch", "16"]
    return ["train", "one.hdf5", "two.hdf5", "--agent", "sac", *sizes, "--out", "agents"]


def below(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def logged(folder: Path) -> list[int]:
    return [json.loads(line)["done"] for line in (folder / "progress.jsonl").read_text().splitlines()]


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in ("agents.json", *METRICS, *POLICIES)}


def collect(folder: Path) -> None:
    for seed, name in enumerate(("one", "two")):
        make_task("navigation").collect(300, seed=seed).save(folder / f"{name}.hdf5")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of data, and what `mocoda train` made of them."""
    folder = tmp_path_factory.mktemp("train")
    collect(folder)
    said = succeed(*training(), cwd=folder)
    assert said == "4 agents in agents; `mocoda evaluate agents` tells how they do\n"
    assert below(folder / "agents") == WRITTEN
    return folder


@pytest.fixture(scope="module")
def table(folder: Path) -> str:
    return succeed("evaluate", "agents", "--episodes", "4", "--seed", "3", cwd=folder)


# Training


def test_train_writes_the_agents_of_all_files_and_seeds(folder: Path) -> None:
    task = make_task("navigation")
    data = {name: task.collect(300, seed=seed) for seed, name in enumerate(("one", "two"))}
    agent = make_agent("sac", hidden=(12, 8), batch=16)
    expected = train_agents(data, agent, seeds=range(2), updates=200, task=task)
    found = Policies.load(folder / "agents")
    assert list(found) == list(expected) == RUNS
    for key, policy in expected.items():
        assert found[key].agent == agent
        assert all(weight.equal(found[key].weights[name]) for name, weight in policy.weights.items())
    assert found.curves["updates"].tolist() == [100, 200]
    for measure, curve in expected.curves.items():
        torch.testing.assert_close(found.curves[measure], curve)


def test_train_says_how_it_was_done_and_how_far_it_came(folder: Path) -> None:
    config = read(folder / "agents" / "config.json")
    assert config["command"] == "train" and config["versions"]["torch"] == torch.__version__
    settings = config["settings"]
    assert list(settings.pop("data")) == ["one", "two"]
    assert settings == {
        "task": "navigation",
        "agent": "sac",
        "seeds": 2,
        "updates": 200,
        "hidden": [12, 8],
        "batch": 16,
        "evaluate_every": 100,
        "standardise": False,
        "device": "cpu",
    }
    assert logged(folder / "agents")[-1] == 200
    assert [run["file"] for run in read(folder / "agents" / "agents.json")["runs"]] == POLICIES


# Evaluating


def test_evaluate_prints_a_table_and_writes_every_agent_s_figures(folder: Path, table: str) -> None:
    written = read(folder / "agents" / "evaluation.json")
    task, policies = make_task("navigation"), Policies.load(folder / "agents")
    expected = evaluate(policies, task, episodes=4, seed=3)
    assert written == {**json.loads(json.dumps(expected.to_json())), "seed": 3}
    assert [(run["data"], run["seed"]) for run in written["runs"]] == RUNS
    lines = table.splitlines()
    assert "4 episodes a seed, 2 seeds" in lines[0]
    assert lines[-1] == "Every agent's figures: agents/evaluation.json"
    for name in ("one", "two"):
        (row,) = (line for line in lines if f" {name} " in line and "±" in line)
        steps, reward = (expected.summary(measure, name) for measure in ("steps", "return"))
        assert f" {steps.mean:.1f} ± {steps.std:.1f} " in row and f" {reward.mean:.1f} ± {reward.std:.1f} " in row


@pytest.mark.usefixtures("table")
def test_evaluating_leaves_the_agents_as_they_were(folder: Path) -> None:
    assert below(folder / "agents") == sorted([*WRITTEN, "evaluation.json"])
    assert logged(folder / "agents")[-1] == 200


# Again


@pytest.mark.usefixtures("table")
def test_the_same_command_again_trains_no_more(folder: Path) -> None:
    agents = folder / "agents"
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in agents.iterdir()}
    assert succeed(*training(), cwd=folder) == "4 agents in agents; `mocoda evaluate agents` tells how they do\n"
    after = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in agents.iterdir()}
    config = agents / "config.json"
    assert before.pop(config)[1] == after.pop(config)[1]
    assert after == before  # progress and evaluation among them


def test_other_settings_train_anew_and_clear_away_what_was_there(folder: Path, tmp_path: Path) -> None:
    collect(tmp_path)
    copied = tmp_path / "copied"
    copied.mkdir()
    for path in (folder / "agents").iterdir():
        (copied / path.name).write_bytes(path.read_bytes())
    (copied / "evaluation.json").write_text("{}")
    files = [str(tmp_path / "one.hdf5"), str(tmp_path / "two.hdf5")]
    mocoda.cli.verbs.train(files, agent="sac", seeds=2, updates=100, hidden=(12, 8), batch=16, out_dir=copied)
    assert below(copied) == WRITTEN and logged(copied) == [100]
    assert Policies.load(copied).curves["updates"].tolist() == [100]


# Killed

UPDATES = 500
SLOW = """
import functools
import mocoda.agents.train as learning
learning.Checkpoint = functools.partial(learning.Checkpoint, interval=0.0)
from mocoda.cli import main
main()
"""


def start_slow(cwd: Path) -> subprocess.Popen[str]:
    """A training that saves after every hundred updates."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", SLOW, *training(UPDATES)]
    return subprocess.Popen(command, cwd=cwd, env=ENVIRONMENT, stdout=pipe, stderr=pipe, text=True)


def test_a_killed_training_leaves_no_agents_and_running_it_again_ends_in_the_same_bytes(tmp_path: Path) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    for folder in (killed, whole):
        folder.mkdir()
        collect(folder)
    process = start_slow(killed)
    checkpoint = killed / "agents" / "checkpoint.safetensors"
    deadline = time.monotonic() + 60
    while not checkpoint.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    _, complaint = process.communicate()
    assert process.returncode == -9, complaint
    unfinished = ["checkpoint.safetensors", "config.json", "files.jsonl", *METRICS, "progress.jsonl"]
    assert [name for name in below(killed / "agents") if not name.endswith(".part")] == unfinished
    done = load_trained(checkpoint, "checkpoint")[1]["settings"]["done"]
    assert 0 < done < UPDATES and done % 100 == 0
    before = len(logged(killed / "agents"))
    for folder in (killed, whole):
        process = start_slow(folder)
        said, complaint = process.communicate(timeout=120)
        assert process.returncode == 0, complaint
        assert said == "4 agents in agents; `mocoda evaluate agents` tells how they do\n"
    assert logged(killed / "agents")[before] == done + 100  # it went on rather than starting anew
    assert logged(whole / "agents")[0] == 100
    assert logged(killed / "agents")[-1] == logged(whole / "agents")[-1] == UPDATES
    assert contents(killed / "agents") == contents(whole / "agents")
    assert below(whole / "agents") == WRITTEN
    assert below(killed / "agents") == WRITTEN
