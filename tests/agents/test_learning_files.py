"""Checkpoints of a training that is interrupted or diverges, and what train_agents refuses."""

from __future__ import annotations

import functools
import itertools
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from agents_world import HILL, SMALL, all_same, recorded, small
from approved import refused
from cloning_agent import Cloning
from torch import Tensor

from mocoda import Policies, Transitions, make_agent, make_engine, make_task, train_agents
from mocoda.agents import Batch
from mocoda.agents import train as learning
from mocoda.agents.agent import Loss, Noise
from mocoda.agents.train import remove_checkpoint
from mocoda.engine.checkpoint import Checkpoint, load_trained
from mocoda.engine.networks import Weights

# Checkpoints


class TrainingInterruptedError(Exception):
    pass


def interrupt_after(updates: int) -> Callable[[str, int, int], None]:
    def progress(stage: str, done: int, total: int) -> None:
        if done > updates:  # a checkpoint is written after the callback
            raise TrainingInterruptedError

    return progress


@pytest.fixture
def at_every_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "Checkpoint", functools.partial(Checkpoint, interval=0.0))


def train(name: str, **more: Any) -> Policies:
    """Evaluations after 4 and 8 of 10 updates."""
    data = {"one": HILL.collect(101, seed=0), "other": HILL.collect(67, seed=1)}
    settings: dict[str, Any] = {"seeds": [0, 1], "updates": 10, "task": HILL, "evaluate_every": 4, "episodes": 3}
    return train_agents(data, small(name), **(settings | more))


@pytest.fixture
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "CHUNK", 3)


# Chunks end at every multiple of three and of four; BCQ's first stage takes five updates more.
ENDS = (3, 4, 6, 8, 9, 10)
ENDS_OF_BCQ = (3, 4, 5, 8, 9, 11, 13, 14, 15)


@pytest.mark.usefixtures("at_every_chunk", "short_chunks")
@pytest.mark.parametrize(
    ("name", "end"), [("td3-bc", 4), ("td3-bc", 9), ("cql", 6), ("sac", 3), ("bcq", 4), ("bcq", 5), ("bcq", 9)]
)
def test_an_interrupted_training_goes_on_to_the_same_bytes(name: str, end: int, tmp_path: Path) -> None:
    path, told = tmp_path / "checkpoint", []
    with pytest.raises(TrainingInterruptedError):
        train(name, checkpoint=path, progress=interrupt_after(end))
    assert load_trained(path, "checkpoint")[1]["settings"]["done"] == end
    resumed = train(name, checkpoint=path, progress=lambda stage, done, total: told.append(done))
    assert told == [each for each in (ENDS_OF_BCQ if name == "bcq" else ENDS) if each > end]
    assert all_same(resumed, train(name))
    assert resumed.curves["updates"].tolist() == [4, 8]
    told.clear()
    again = train(name, checkpoint=path, progress=lambda stage, done, total: told.append(done))
    assert all_same(again, resumed) and told == []  # it is finished


NAVIGATION: dict[str, Any] = {"updates": 600, "evaluate_every": 20, "episodes": 2}
KILLED = """
import functools, sys, time
from mocoda import make_agent, make_task, train_agents
from mocoda.agents import train as learning
learning.Checkpoint = functools.partial(learning.Checkpoint, interval=0.0)
task = make_task("navigation")
agent = make_agent("td3-bc", hidden=(16, 16), batch=32)
train_agents(
    {"one": task.collect(200, seed=0)}, agent, seeds=[0, 1], updates=600, task=task, evaluate_every=20, episodes=2,
    checkpoint=sys.argv[1], progress=lambda *_: time.sleep(0.03),
)
"""


def updates_done(path: Path) -> int:
    return int(load_trained(path, "checkpoint")[1]["settings"]["done"])


def test_a_killed_training_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    running = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], env=environment)
    try:
        waited = time.monotonic()
        while not (path.exists() and updates_done(path) >= 60):
            assert running.poll() is None and time.monotonic() - waited < 250
            time.sleep(0.01)
    finally:
        running.send_signal(signal.SIGKILL)
        assert running.wait() == -signal.SIGKILL
    done = updates_done(path)
    assert 60 <= done < 600

    task, told = make_task("navigation"), []
    agent = make_agent("td3-bc", hidden=(16, 16), batch=32)
    go_on = functools.partial(
        train_agents, {"one": task.collect(200, seed=0)}, agent, seeds=[0, 1], task=task, **NAVIGATION
    )
    resumed = go_on(checkpoint=path, progress=lambda stage, done, total: told.append(done))
    assert told == list(range(done + 20, 601, 20))
    assert all_same(resumed, go_on())


# Jobs of an engine


def test_agents_trained_as_jobs_are_the_same_and_finished_jobs_are_kept(tmp_path: Path) -> None:
    told: list[list[tuple[Any, ...]]] = [[], []]
    folder, engine = tmp_path / "jobs", make_engine("processes", workers=0)
    expected = train("bcq", report=lambda metrics: told[0].extend(metrics))
    found = train("bcq", checkpoint=folder, engine=engine, report=lambda metrics: told[1].extend(metrics))
    assert all_same(found, expected) and sorted(told[1]) == sorted(told[0])

    class Idle:
        def run(self, work: object, jobs: Sequence[object]) -> Iterator[object]:
            assert list(jobs) == []
            return iter([])

    idle: Any = Idle()
    assert all_same(train("bcq", checkpoint=folder, engine=idle), expected)
    remove_checkpoint(folder)
    assert list(tmp_path.iterdir()) == []
    with refused():
        train("bcq", engine=engine)


# Checkpoints of another training


def with_one_change(column: str) -> Transitions:
    parts = {name: getattr(ONE, name).clone() for name in ("state", "action", "next_state", "reward", "terminal")}
    parts[column][7] = ~parts[column][7] if column == "terminal" else 0.75 * parts[column][7]
    return Transitions(**parts)


ONE = recorded(40)
OTHERS: dict[str, dict[str, Any]] = {
    "seeds": {"seeds": [0, 2]},
    "updates": {"updates": 11},
    "evaluations": {"evaluate_every": 5},
    "half": {"half": True},
    "name": {"datasets": {"two": ONE}},
    "rows": {"datasets": {"one": ONE[:30]}},
    **{column: {"datasets": {"one": with_one_change(column)}} for column in ("state", "action", "reward", "terminal")},
    "learning rate": {"agent": small("sac", learning_rate=0.5)},
    "agent": {"agent": small("cql")},
}


@pytest.mark.usefixtures("at_every_chunk")
@pytest.mark.parametrize("change", OTHERS)
def test_a_checkpoint_of_another_training_is_refused_and_stays(change: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    settings: dict[str, Any] = {"datasets": {"one": ONE}, "agent": small("sac"), "seeds": [0, 1], "updates": 2}
    train_agents(**settings, checkpoint=path)
    before = path.read_bytes()
    with refused():
        train_agents(**(settings | OTHERS[change]), checkpoint=path)
    assert path.read_bytes() == before


# Divergence


@dataclass(frozen=True)
class Breaks(Cloning):
    """Clones; from the update `at` on, the loss of one run is no number."""

    name: ClassVar[str] = "breaks"
    at: ClassVar[float] = math.inf
    run: ClassVar[int] = 0
    loss_is: ClassVar[float] = math.nan

    def losses(self) -> dict[str, Loss]:
        calls = itertools.count(1)

        def loss(weights: Weights, batch: Batch, noise: Noise) -> Tensor:
            made = self.actor_loss(weights, batch, noise)
            if next(calls) < self.at:
                return made
            hit = torch.arange(len(made)) == self.run
            return torch.where(hit, weights["actor.0.bias"].sum((1, 2)) * 0 + self.loss_is, made)

        return {"actor": loss}


@pytest.mark.usefixtures("at_every_chunk")
@pytest.mark.parametrize(("run", "loss_is"), [(0, math.nan), (3, -math.inf)])
def test_a_loss_that_is_no_number_stops_the_training_and_says_where(
    run: int, loss_is: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint"
    fit = functools.partial(
        train_agents, {"a": recorded(50), "b": recorded(30, seed=1)}, seeds=[5, 6], updates=12, evaluate_every=3
    )
    monkeypatch.setattr(Breaks, "run", run)
    monkeypatch.setattr(Breaks, "loss_is", loss_is)
    monkeypatch.setattr(Breaks, "at", 8)
    with refused():
        fit(agent=Breaks(**SMALL), checkpoint=path)
    tensors, header = load_trained(path, "checkpoint")
    assert header["settings"]["done"] == 6 and all(bool(tensor.isfinite().all()) for tensor in tensors.values())
    monkeypatch.setattr(Breaks, "at", math.inf)
    assert all_same(fit(agent=Breaks(**SMALL), checkpoint=path), fit(agent=Breaks(**SMALL)))


# Bad input


def narrow(states: int = 2, actions: int = 2) -> Transitions:
    return Transitions(ONE.state[:, :states], ONE.action[:, :actions], ONE.next_state[:, :states], ONE.reward)


@pytest.mark.parametrize(
    "given",
    [
        {"datasets": {}},
        {"seeds": []},
        {"seeds": [3, 1, 3]},
        {"datasets": {"one": ONE, "many": [ONE]}},
        *({name: 0} for name in ("updates", "evaluate_every", "episodes")),
        {"datasets": {"wide": ONE, "narrow": narrow()}},
        {"datasets": {"own": [ONE, narrow(states=3, actions=1)]}},
        {"datasets": {"one": ONE, "bare": Transitions(ONE.state, ONE.action, ONE.next_state)}},
        {"task": make_task("navigation")},
        {"datasets": {"one": narrow(states=3, actions=1)}, "task": HILL},
        {"datasets": {"small": ONE, "large": HILL.collect(40, seed=0)}},
        {"datasets": {"one": HILL.collect(9, seed=0)}, "task": HILL, "actions": (-2, 3)},
        *({"actions": actions} for actions in (([0, 1], [1, 1]), (-1, math.inf), ([-1, -1, -1], 1), (-1, 0, 1))),
    ],
)
def test_bad_input_is_refused(given: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"datasets": {"one": ONE}, "agent": "td3-bc", "seeds": [0, 1], "updates": 1}
    with refused():
        train_agents(**(settings | given))
