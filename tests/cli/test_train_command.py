"""Agents by the command line: trained, evaluated, not trained twice, and killed halfway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from approved import assert_approved
from command_line import below, done, kill, rejects, start

from mocoda import Policies, Transitions, evaluate, make_agent, make_task, train_agents, write
from mocoda.engine.checkpoint import load_trained

RUNS = [(data, seed) for data in ("one", "two") for seed in (0, 1)]
POLICIES = [f"policy-{data}-{seed}.safetensors" for data, seed in RUNS]
METRICS = ["metrics.csv", "metrics.jsonl"]
SAID = "4 agents in agents; `mocoda evaluate agents` measures how well they do\n"


def training(updates: int = 200) -> list[str]:
    sizes = ["--seeds", "2", "--updates", str(updates), "--hidden", "12", "8", "--batch", "16"]
    return ["train", "one.hdf5", "two.hdf5", "--agent", "sac", *sizes, "--out", "agents"]


def logged(folder: Path) -> list[int]:
    return [json.loads(line)["done"] for line in (folder / "progress.jsonl").read_text().splitlines()]


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in ("agents.json", *METRICS, *POLICIES)}


def collect(folder: Path) -> None:
    for seed, name in enumerate(("one", "two")):
        make_task("navigation").collect(300, seed=seed).save(folder / f"{name}.hdf5")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of data, and what `mocoda train` made of them."""
    folder = tmp_path_factory.mktemp("train")
    collect(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert done(*training()) == SAID
    return folder


@pytest.fixture
def here(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(trained)
    return trained / "agents"


def test_train_writes_the_agents_of_all_files_and_seeds(here: Path) -> None:
    task = make_task("navigation")
    data = {name: task.collect(300, seed=seed) for seed, name in enumerate(("one", "two"))}
    agent = make_agent("sac", hidden=(12, 8), batch=16)
    expected = train_agents(data, agent, seeds=range(2), updates=200, task=task)
    found = Policies.load(here)
    assert list(found) == list(expected) == RUNS
    for key, policy in expected.items():
        assert found[key].agent == agent
        assert all(weight.equal(found[key].weights[name]) for name, weight in policy.weights.items())
    for measure, curve in expected.curves.items():
        torch.testing.assert_close(found.curves[measure], curve)
    config = json.loads((here / "config.json").read_text())
    assert config["command"] == "train" and config["versions"]["torch"] == torch.__version__
    settings = config["settings"]
    assert list(settings["data"]) == ["one", "two"] and settings["hidden"] == [12, 8] and settings["entropy"]
    assert logged(here)[-1] == 200


def test_evaluate_prints_a_table_and_writes_every_agent_s_results(here: Path) -> None:
    before = set(below(here))
    table = done("evaluate", "agents", "--episodes", 4, "--seed", 3)
    expected = evaluate(Policies.load(here), make_task("navigation"), episodes=4, seed=3)
    written = json.loads((here / "evaluation.json").read_text())
    assert written == {**json.loads(json.dumps(expected.to_json())), "task": "navigation", "seed": 3}
    assert table.splitlines()[-1] == "Every agent's results: agents/evaluation.json"
    for name in ("one", "two"):
        (row,) = (line for line in table.splitlines() if f" {name} " in line and "±" in line)
        steps = expected.summary("steps", name)
        assert f" {steps.mean:.1f} ± {steps.std:.1f} " in row
    assert set(below(here)) == before | {"evaluation.json"}
    done("evaluate", "agents", "--episodes", 2, "--task", "navigation")  # its own file is replaced
    assert json.loads((here / "evaluation.json").read_text())["task"] == "navigation"


def test_agents_that_python_saved_are_evaluated_too_and_their_folder_is_left_alone(here: Path, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    Policies.load(here).save(saved)
    before = {path: path.read_bytes() for path in saved.iterdir()}
    rejects("evaluate", saved)
    arguments = ("evaluate", saved, "--task", "navigation", "--episodes", 2)
    assert "Every agent's results" not in done(*arguments)
    assert f"Every agent's results: {tmp_path / 'found.json'}" in done(*arguments, "--out", tmp_path / "found.json")
    assert json.loads((tmp_path / "found.json").read_text())["task"] == "navigation"
    rejects(*arguments, "--out", tmp_path / "found.json")
    rejects(*arguments, "--out", saved / "agents.json", "--overwrite")
    assert {path: path.read_bytes() for path in saved.iterdir()} == before


def test_the_same_command_again_trains_no_more_and_another_is_refused(here: Path) -> None:
    def state() -> dict[Path, tuple[int, bytes]]:
        return {
            path: (path.stat().st_mtime_ns, path.read_bytes()) for path in here.iterdir() if "config" not in path.name
        }

    before = state()
    assert done(*training()) == SAID
    rejects(*training(updates=0))
    rejects(*training(updates=100))
    rejects(*training(), "--polyak", "0.5")
    rejects("check", "one.hdf5", "--out", "agents")
    assert state() == before


def test_agents_of_own_data_are_trained_without_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    state = torch.linspace(-1, 1, 600).reshape(300, 2)
    data = Transitions(state, 1.5 * state, state, -state.sum(1))
    data.save("mine.hdf5")
    write(data, "d4rl:theirs.hdf5")
    write(data, "table.parquet")
    words = ["--seeds", "1", "--updates", "20", "--hidden", "8", "--batch", "16", "--out", "agents"]
    rejects("train", "mine.hdf5", *words)
    files = ["mine.hdf5", "d4rl:theirs.hdf5", "table.parquet"]
    printed = done("train", *files, "--actions", "-2", "2", "--imitation", "0.25", *words)
    assert printed.splitlines()[-1].startswith("3 agents in agents; without a task none was evaluated.")
    agent = make_agent("td3-bc", hidden=(8,), batch=16, imitation=0.25)
    expected = train_agents({"mine": data}, agent, seeds=[0], updates=20, actions=(-2, 2))["mine", 0]
    for name in ("mine", "theirs", "table"):
        found = Policies.load("agents")[name, 0].weights
        assert all(weight.equal(expected.weights[key]) for key, weight in found.items())
    rejects("evaluate", "agents")


def test_what_cannot_be_trained_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    collect(tmp_path)
    one = Transitions.load("one.hdf5")
    Transitions(one.state, one.action, one.next_state).save("bare.hdf5")
    Transitions(one.state, one.action, one.next_state, one.reward).save("own.hdf5")
    before = below(tmp_path)
    rejects("train")
    rejects("train", "one.hdf5", "x/one.hdf5")
    rejects("train", "bare.hdf5")
    rejects("train", "one.hdf5", "own.hdf5")
    for name in ("seeds", "updates", "evaluate_every"):
        words = [f"--{name.replace('_', '-')}", "0", "--out", "new/deep"]
        rejects("train", "one.hdf5", *words)
    rejects("train", "one.hdf5", "--task", "maze")
    rejects("evaluate", "none")
    assert below(tmp_path) == before


UPDATES = 500
SLOW = """
import functools
import mocoda.agents.train as learning
learning.Checkpoint = functools.partial(learning.Checkpoint, interval=0.0)
from mocoda.cli import main
main()
"""


def test_a_killed_training_leaves_no_agents_and_running_it_again_ends_in_the_same_bytes(tmp_path: Path) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    for folder in (killed, whole):
        folder.mkdir()
        collect(folder)
    process = start(*training(UPDATES), cwd=killed, script=SLOW)
    checkpoint = killed / "agents" / "checkpoint.safetensors"
    kill(process, checkpoint.exists)
    assert not list((killed / "agents").glob("policy*"))
    updates: Any = load_trained(checkpoint, "checkpoint")[1]["settings"]["done"]
    assert 0 < updates < UPDATES and updates % 100 == 0
    before = len(logged(killed / "agents"))
    for folder in (killed, whole):
        process = start(*training(UPDATES), cwd=folder, script=SLOW)
        printed, err = process.communicate(timeout=250)
        assert (process.returncode, printed) == (0, SAID), err
    assert logged(killed / "agents")[before] == updates + 100  # it went on rather than starting anew
    assert contents(killed / "agents") == contents(whole / "agents")
    assert not checkpoint.exists()


@pytest.mark.parametrize("agent", ["td3-bc", "gciql --achieved state0 state1 --tolerance 0.1", "dqc"])
def test_agents_of_a_stranger_s_goals_say_what_they_assume(
    agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goals, sparse rewards, no terminals, and no column names."""
    monkeypatch.chdir(tmp_path)
    random, rows = np.random.default_rng(0), 120
    state, action = random.uniform(-1, 1, (rows + 1, 4)), random.uniform(-2, 2, (rows, 2))
    goals = random.uniform(-1, 1, (3, 2)).repeat(40, 0)
    ends: dict[str, Any] = {"terminals": np.zeros(rows, bool), "timeouts": np.arange(rows) % 40 == 39}
    rewards = (np.linalg.norm(state[1:, :2] - goals, axis=1) < 0.3).astype("f4")
    parts: dict[str, Any] = {"observations": state[:-1], "next_observations": state[1:], "actions": action}
    np.savez("theirs.npz", **parts, **ends, rewards=rewards, goals=goals)
    words = ["train", "theirs.npz", "--actions", "-2", "2", "--seeds", "1", "--updates", "2", "--hidden", "8"]
    assert_approved(done(*words, "--batch", "16", "--agent", *agent.split()))
    rejects(*words, "--agent", "gciql", "--achieved", "x", "--out", "other")
    rejects(*words, "--agent", "gciql", "--tolerance", "0", "--out", "other")
