"""`mocoda augment` on people's own data: graph files, rewards, goals, filters, and files that go on after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mocoda.augmentation.rewards
import mocoda.cli.data
import mocoda.dynamics.fit
from mocoda import DynamicsConfig, InputError, Transitions, fit_dynamics
from mocoda.augmentation.rewards import RewardConfig, fit_reward
from mocoda.parents import BUILT_IN
from mocoda.tasks.navigation import Navigation

TINY = DynamicsConfig(members=2, hidden=(8,), features=4, epochs=1, batch=64)
TASK = Navigation()
PLAIN = """
state = {"x": 0, "y": 1}
action = {"dx": 0, "dy": 1}
edges = {"x": ["x", "dx"], "y": ["y", "dy"]}
"""
REWARDED = (
    PLAIN
    + """
def local(f):
    both = (f["x"][:, 0] > 0.5) & (f["y"][:, 0] > 0.5)
    return {("y", "x"): both, ("x", "y"): both, ("dy", "x"): both, ("dx", "y"): both}

def reward(state, action, next_state):
    return next_state.sum(1)
"""
)


@pytest.fixture(autouse=True)
def quick_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mocoda.dynamics, "fit_dynamics", partial(fit_dynamics, config=TINY))
    monkeypatch.setattr(
        "mocoda.augmentation.request.fit_reward", partial(fit_reward, config=RewardConfig((8,), 20, 32))
    )


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with somebody's data and two graph files."""
    monkeypatch.chdir(tmp_path)
    data = TASK.collect(300, seed=0)
    arrays = {"observations": data.state, "actions": data.action, "next_observations": data.next_state}
    arrays |= {"rewards": -data.next_state.norm(dim=1), "terminals": data.next_state[:, 1] > 0.8}
    values: dict[str, Any] = {name: array.numpy() for name, array in arrays.items()}
    np.savez("mine.npz", **values)
    Path("plain.py").write_text(PLAIN)
    Path("rewarded.py").write_text(REWARDED)
    return tmp_path


def made(**options: Any) -> Transitions:
    options = {"data": "mine.npz", "graph": Path("rewarded.py"), "rows": 120, **options}
    mocoda.cli.data.augment(**options, out_file=Path("out.hdf5"))
    return Transitions.load("out.hdf5")


def refused(**options: Any) -> str:
    with pytest.raises(InputError) as error:
        made(**options)
    return str(error.value)


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize("recipe", [recipe for recipe in BUILT_IN if recipe not in ("mocoda-u", "mocoda-p")])
def test_data_and_a_graph_file_are_all_that_is_needed(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    table = made(recipe=recipe)
    assert len(table) == 420 and table.rows[:300].equal(TASK.collect(300, seed=0).rows)
    assert table.reward is not None and table.reward.equal(table.next_state.sum(1))
    assert table.provenance["recipe"][300:].unique().tolist() == [1 + BUILT_IN.index(recipe)]
    assert table.source["task"] == "rewarded"
    assert capsys.readouterr().out == f"out.hdf5: 420 transitions, 120 of them new by recipe {recipe}\n"


@pytest.mark.usefixtures("mine")
def test_without_a_reward_function_the_data_s_own_is_learned_and_that_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = made(graph=Path("plain.py"), recipe="coda")
    told = table.source["reward"]
    assert told["learned"] is True and told["held_out_rows"] == 38 and isinstance(told["held_out_r2"], float)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("Rewards are learned from the data's own: on 38 rows held out, ")
    assert "of the reward's variance is explained (R²)" in first
    assert second == "out.hdf5: 420 transitions, 120 of them new by recipe coda"


@pytest.mark.usefixtures("mine")
def test_rewards_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    none = made(recipe="coda", reward="none")
    assert none.reward is None
    assert capsys.readouterr().out.endswith("No row has a reward: none was asked for.\n")
    learned = made(recipe="coda", reward="learned")
    assert learned.source["reward"]["learned"] is True
    by_file = made(recipe="coda", reward="file")
    assert by_file.reward is not None and by_file.reward.equal(by_file.next_state.sum(1))


@pytest.mark.usefixtures("mine")
def test_filters_and_strata_are_options(capsys: pytest.CaptureFixture[str]) -> None:
    table = made(min_support=0.3, max_disagreement=5.0, stratified=True, keep_recorded=False)
    assert table.provenance["support"].min() >= 0.3
    assert "neighbourhoods" in table.source
    share = 100 * table.source["filter"]["accepted_share"]
    assert capsys.readouterr().out.endswith(f"The filters let {share:.3g}% of the rows drawn pass.\n")
    assert not made(recipe="coda", provenance=False).provenance


@pytest.mark.usefixtures("mine")
def test_another_text_of_the_graph_file_is_another_run() -> None:
    first = made(recipe="mocoda")
    weights = Path("out.hdf5.run/dynamics.safetensors").read_bytes()
    Path("rewarded.py").write_text(PLAIN)
    second = made(recipe="mocoda", reward="none")
    assert Path("out.hdf5.run/dynamics.safetensors").read_bytes() != weights
    assert not first.next_state.equal(second.next_state)


@pytest.mark.usefixtures("mine")
def test_other_processes_read_the_graph_file_themselves_and_make_the_same_rows() -> None:
    alone = made(stratified=True), Path("out.hdf5").read_bytes()
    assert len(alone[0]) == 420
    made(stratified=True, workers=1)
    assert Path("out.hdf5").read_bytes() == alone[1]


GOALS = """
state = {"p": [0, 1], "t": 2}
action = {"u": [0, 1]}
edges = {"p": ["p", "u"], "t": ["t"]}

def achieved(state):
    return state[:, :2]

def reward(state, action, next_state, goal):
    return (next_state[:, :2] - goal).norm(dim=1)
"""


def test_goals_come_from_the_data_or_from_hindsight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    state, action = torch.linspace(-1, 1, 600).reshape(200, 3), torch.linspace(-0.5, 0.5, 400).reshape(200, 2)
    following = torch.cat([state[:, :2] + action, state[:, 2:]], 1)
    goal = state[:, :2].flip(0)
    reward = -(following[:, :2] - goal).norm(dim=1)
    Transitions(state, action, following, reward, goal=goal).save("goals.hdf5")
    Path("goals.py").write_text(GOALS)
    known = set(map(tuple, goal.tolist()))
    for source in ("learned", "file"):
        options = {"graph": Path("goals.py"), "recipe": "emp", "rows": 400, "hindsight": 0.25, "reward": source}
        table = made(data="goals.hdf5", **options)
        assert table.goal is not None and table.reward is not None
        own = (table.goal == table.next_state[:, :2]).all(1)
        assert 0.15 < float(own.float().mean()) < 0.35
        assert set(map(tuple, table.goal[~own].tolist())) <= known
        assert table.reward.equal((table.next_state[:, :2] - table.goal).norm(dim=1)) == (source == "file")


@pytest.mark.usefixtures("mine")
def test_what_cannot_be_is_refused_before_anything_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mocoda.dynamics, "fit_dynamics", lambda *given, **named: pytest.fail("trained"))
    assert refused(task="navigation") == "--graph and --task both say who listens to whom; give one of them."
    assert refused(graph=None) == (
        "nothing says who listens to whom in 'mine.npz': pass --graph with a file that does, or --task for data of a "
        "built-in one (navigation, hooksweep2, objects)."
    )
    assert refused(reward="learnt") == (
        "there is no reward 'learnt'; there are: learned, file, none. Did you mean 'learned'?"
    )
    assert refused(graph=Path("plain.py"), reward="file") == (
        "'plain.py' defines no reward(state, action, next_state); write one, or choose another."
    )
    assert refused(graph=Path("plain.py"), hindsight=0.5) == (
        "--hindsight needs goals, and a task or a graph file that says which goal a state reaches: achieved(state), "
        "beside reward(state, action, next_state, goal)."
    )
    assert refused(recipe="coda", stratified=True) == (
        "--stratified is about mixtures, and recipe 'coda' has none; leave it away."
    )
    assert refused(recipe="mocoda-p") == (
        "recipe 'mocoda-p' needs to know what matters: define features(rows), and region(rows), in 'rewarded.py', or "
        "use 'mocoda' or 'mocoda-u'."
    )
    assert refused(recipe="coda", max_disagreement=0.1).startswith("recipe 'coda' recombines recorded transitions")
    assert refused(min_support=0.1, provenance=False).startswith("min_support filters by provenance")
    assert not Path("out.hdf5").exists()


def test_data_that_says_its_task_needs_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    TASK.collect(200, seed=0).save("walks.hdf5")
    table = made(data="walks.hdf5", graph=None, recipe="coda")
    assert table.source["task"] == "navigation"
    again = made(data="out.hdf5", graph=None, recipe="emp", rows=30)
    assert again.provenance["recipe"].tolist() == [0] * 200 + [2] * 120 + [1] * 30


# A run whose pieces are small and slow enough to be killed among them, and noted at once.
SLOW = """
import sys, time
import mocoda.augmentation.generation, mocoda.augmentation.streaming
from mocoda.augmentation.generation import Augmentation
mocoda.augmentation.generation.CHUNK["cpu"] = 50
mocoda.augmentation.streaming.INTERVAL = 0.0
whole, pause = Augmentation.piece, float(sys.argv.pop(1))
def piece(self, number, drawn=0):
    time.sleep(pause)
    return whole(self, number, drawn)
Augmentation.piece = piece
from mocoda.cli import main
main()
"""


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_run_goes_on_to_the_same_bytes(how: signal.Signals) -> None:
    words = ["augment", "mine.npz", "--graph", "rewarded.py", "--recipe", "coda", "--rows", "2000", "--out"]
    run = [sys.executable, "-c", SLOW]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([*run, "0", *words, "whole.hdf5"], env=environment, check=True, timeout=100)
    process = subprocess.Popen([*run, "0.1", *words, "killed.hdf5"], env=environment)
    note = Path("killed.hdf5.run/unfinished.json")
    deadline = time.monotonic() + 60
    while not (note.exists() and json.loads(note.read_text() or '{"pieces": 0}')["pieces"] >= 5):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(how)
    assert process.wait(30) != 0
    assert not Path("killed.hdf5").exists()
    finished = json.loads(note.read_text())["pieces"]
    assert 5 <= finished < 41
    lines = Path("killed.hdf5.run/progress.jsonl")
    before = len(lines.read_text().splitlines())
    subprocess.run([*run, "0", *words, "killed.hdf5"], env=environment, check=True, timeout=100)
    first = json.loads(lines.read_text().splitlines()[before])
    assert (first["stage"], first["total"]) == ("augment", 2_000) and first["done"] >= (finished - 1) * 50
    assert Path("killed.hdf5").read_bytes() == Path("whole.hdf5").read_bytes()
    left = sorted(path.name for path in Path("killed.hdf5.run").iterdir())
    assert left == ["config.json", "files.jsonl", "progress.jsonl"]
