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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from agents_world import HILL, SMALL, all_same, each_rewarded_agent, recorded, small
from cloning_agent import Cloning
from torch import Tensor

from mocoda import InputError, Policies, Transitions, make_agent, make_task, train_agents
from mocoda.agents import Batch, Network, Stage
from mocoda.agents import train as learning
from mocoda.agents.agent import Loss, Noise
from mocoda.engine.checkpoint import Checkpoint, load_trained
from mocoda.engine.networks import Weights, mlp

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
ONE_STAGE = [3, 4, 6, 8, 9, 10]
ENDS = dict.fromkeys(["td3-bc", "cql", "sac"], ONE_STAGE) | {"bcq": [3, 4, 5, 8, 9, 11, 13, 14, 15]}
POINTS = [(name, end) for name, ends in ENDS.items() for end in ends[:-1]]


@pytest.mark.usefixtures("at_every_chunk", "short_chunks")
@pytest.mark.parametrize(("name", "end"), POINTS)
def test_an_interrupted_training_goes_on_to_the_same_bytes(name: str, end: int, tmp_path: Path) -> None:
    path, told = tmp_path / "checkpoint", []
    with pytest.raises(TrainingInterruptedError):
        train(name, checkpoint=path, progress=interrupt_after(end))
    assert load_trained(path, "checkpoint")[1]["settings"]["done"] == end
    resumed = train(name, checkpoint=path, progress=lambda stage, done, total: told.append(done))
    assert told == ENDS[name][ENDS[name].index(end) + 1 :]
    assert all_same(resumed, train(name))
    assert resumed.curves["updates"].tolist() == [4, 8]


@dataclass(frozen=True)
class OddlyNamed(Cloning):
    """Its network is called as the optimisers' state is."""

    name: ClassVar[str] = "odd"
    group: ClassVar[str] = "fast-optimiser"
    acting: ClassVar[tuple[str, ...]] = (group,)

    def networks(self, state: int, action: int) -> dict[str, Network]:
        return {self.group: super().networks(state, action)["actor"]}

    def stages(self) -> tuple[Stage, ...]:
        return (Stage({self.group: 1}, self.batch),)

    def losses(self) -> dict[str, Loss]:
        return {self.group: self.actor_loss}

    def act(self, weights: Weights, state: Tensor, noise: Noise) -> Tensor:
        return mlp(weights, self.group, state).tanh()


@pytest.mark.usefixtures("at_every_chunk")
@pytest.mark.parametrize("group", ["fast-optimiser", "optimiser"])
def test_the_state_of_optimisers_is_told_from_weights_by_its_whole_name(
    group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OddlyNamed, "group", group)
    fit = functools.partial(
        train_agents, {"one": recorded(50)}, OddlyNamed(**SMALL), seeds=[0], updates=6, evaluate_every=3
    )
    with pytest.raises(TrainingInterruptedError):
        fit(checkpoint=tmp_path / "stopped", progress=interrupt_after(3))
    fit(checkpoint=tmp_path / "through")
    assert all_same(fit(checkpoint=tmp_path / "stopped"), fit())
    assert (tmp_path / "stopped").read_bytes() == (tmp_path / "through").read_bytes()


@pytest.mark.usefixtures("at_every_chunk")
@each_rewarded_agent
def test_a_finished_training_called_again_trains_no_more(name: str, tmp_path: Path) -> None:
    path, told = tmp_path / "checkpoint", []
    finished = train(name, checkpoint=path)
    again = train(name, checkpoint=path, progress=lambda stage, done, total: told.append(done))
    assert all_same(again, finished) and told == []


@pytest.mark.usefixtures("at_every_chunk")
def test_a_checkpoint_lies_in_a_folder_that_is_made_and_alone(tmp_path: Path) -> None:
    train("sac", checkpoint=str(tmp_path / "new" / "checkpoint"))
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["checkpoint"]


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
            assert running.poll() is None and time.monotonic() - waited < 120
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


# Checkpoints of another training

OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "seeds": ({"seeds": [0, 2]}, "runs"),
    "order of seeds": ({"seeds": [1, 0]}, "runs"),
    "updates": ({"updates": 11}, "updates"),
    "evaluations": ({"evaluate_every": 5}, "evaluations"),
    "episodes": ({"episodes": 4}, "evaluations"),
    "half": ({"half": True}, "half"),
}


@pytest.mark.usefixtures("at_every_chunk")
@pytest.mark.parametrize("change", OTHERS)
def test_a_checkpoint_of_another_training_is_refused_and_stays(change: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    with pytest.raises(TrainingInterruptedError):
        train("sac", checkpoint=path, progress=interrupt_after(4))
    before = path.read_bytes()
    settings, key = OTHERS[change]
    with pytest.raises(InputError) as caught:
        train("sac", checkpoint=path, **settings)
    assert str(caught.value) == (
        f"cannot read checkpoint {str(path)!r}: it belongs to another training, which differs in {key}. "
        "Delete it to start again, or give another path."
    )
    assert path.read_bytes() == before


ONE = recorded(40)


def changed_data(column: str) -> Transitions:
    data = recorded(40)
    parts = {name: getattr(data, name).clone() for name in ("state", "action", "next_state", "reward", "terminal")}
    parts[column][7] = ~parts[column][7] if column == "terminal" else 0.75 * parts[column][7]
    return Transitions(**parts)


@pytest.mark.usefixtures("at_every_chunk")
@pytest.mark.parametrize("column", ["state", "action", "next_state", "reward", "terminal"])
def test_a_checkpoint_of_other_data_is_refused_and_stays(column: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    fit = functools.partial(train_agents, agent=small("sac"), seeds=[0], updates=2, checkpoint=path)
    fit({"one": ONE})
    before = path.read_bytes()
    with pytest.raises(InputError) as caught:
        fit({"one": changed_data(column)})
    assert str(caught.value) == (
        f"cannot read checkpoint {str(path)!r}: it belongs to another training, which differs in data. "
        "Delete it to start again, or give another path."
    )
    assert path.read_bytes() == before


@pytest.mark.usefixtures("at_every_chunk")
def test_a_checkpoint_where_the_rows_are_dealt_otherwise_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    fit = functools.partial(train_agents, agent=small("sac"), seeds=[0], updates=2, checkpoint=path)
    fit({"one": ONE[:15], "two": ONE[15:]})
    with pytest.raises(InputError, match=r"which differs in data\. "):
        fit({"one": ONE[:16], "two": ONE[16:]})
    with pytest.raises(InputError, match=r"which differs in runs\. "):
        fit({"one": ONE[:15], "three": ONE[15:]})


@pytest.mark.usefixtures("at_every_chunk")
@pytest.mark.parametrize(
    ("name", "settings"),
    [("sac", {"learning_rate": 0.5}), ("sac", {"hidden": (12, 20)}), ("sac", {"entropy": 0.3}), ("cql", {})],
)
def test_a_checkpoint_of_another_agent_is_refused_and_stays(
    name: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint"
    train_agents({"one": ONE}, small("sac"), seeds=[0], updates=2, checkpoint=path)
    before = path.read_bytes()
    with pytest.raises(InputError) as caught:
        train_agents({"one": ONE}, small(name, **settings), seeds=[0], updates=2, checkpoint=path)
    assert str(caught.value) == (
        f"cannot read checkpoint {str(path)!r}: it belongs to another training, which differs in agent. "
        "Delete it to start again, or give another path."
    )
    assert path.read_bytes() == before


# Divergence


@dataclass(frozen=True)
class Breaks(Cloning):
    """Clones; from the update `at` on, the loss of one run is no number, or its gradient is none."""

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
            return torch.where(hit, self.broken(weights), made)

        return {"actor": loss}

    def broken(self, weights: Weights) -> Tensor:
        return weights["actor.0.bias"].sum((1, 2)) * 0 + self.loss_is


class BreaksUnseen(Breaks):
    """Its loss is finite to the end, its gradient is not: that of a root at 0. Other runs' roots are of 1."""

    def broken(self, weights: Weights) -> Tensor:
        bias = weights["actor.0.bias"]
        return (bias.sum((1, 2)) * 0 + (torch.arange(len(bias)) != self.run)).sqrt()


@pytest.mark.usefixtures("at_every_chunk")
@pytest.mark.parametrize("loss_is", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("run", "where"), [(0, "'a', seed 5"), (1, "'a', seed 6"), (3, "'b', seed 6")])
def test_a_loss_that_is_no_number_stops_the_training_and_says_where(
    run: int, where: str, loss_is: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint"
    fit = functools.partial(
        train_agents, {"a": recorded(50), "b": recorded(30, seed=1)}, seeds=[5, 6], updates=12, evaluate_every=3
    )
    monkeypatch.setattr(Breaks, "run", run)
    monkeypatch.setattr(Breaks, "loss_is", loss_is)
    monkeypatch.setattr(Breaks, "at", 8)
    with pytest.raises(InputError) as caught:
        fit(agent=Breaks(**SMALL), checkpoint=path)
    assert str(caught.value) == (
        f"the loss of breaks on data set {where}, became NaN or inf at update 8. "
        "Lower the learning rate, or look for extreme values in the data."
    )
    tensors, header = load_trained(path, "checkpoint")
    assert header["settings"]["done"] == 6 and all(bool(tensor.isfinite().all()) for tensor in tensors.values())
    monkeypatch.setattr(Breaks, "at", math.inf)
    assert all_same(fit(agent=Breaks(**SMALL), checkpoint=path), fit(agent=Breaks(**SMALL)))


@pytest.mark.parametrize(("run", "where"), [(0, "'a', seed 5"), (3, "'b', seed 6")])
def test_a_training_that_breaks_in_its_very_last_update_does_not_return_broken_weights(
    run: int, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Breaks, "run", run)
    monkeypatch.setattr(Breaks, "at", 4)
    with pytest.raises(InputError) as caught:
        train_agents({"a": recorded(50), "b": recorded(30, seed=1)}, BreaksUnseen(**SMALL), seeds=[5, 6], updates=4)
    assert str(caught.value) == (
        f"the loss of breaks on data set {where}, became NaN or inf at update 4. "
        "Lower the learning rate, or look for extreme values in the data."
    )


@pytest.mark.usefixtures("at_every_chunk")
def test_weights_that_break_unseen_are_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "checkpoint"
    monkeypatch.setattr(Breaks, "at", 6)
    with pytest.raises(InputError):
        train_agents(
            {"a": recorded(50)}, BreaksUnseen(**SMALL), seeds=[5], updates=9, evaluate_every=3, checkpoint=path
        )
    tensors, header = load_trained(path, "checkpoint")
    assert header["settings"]["done"] == 3 and all(bool(tensor.isfinite().all()) for tensor in tensors.values())


@each_rewarded_agent
def test_extreme_data_stops_every_agent(name: str) -> None:
    data = recorded(50)
    extreme = Transitions(1e30 * data.state, data.action, data.next_state, data.reward, data.terminal)
    with pytest.raises(InputError) as caught:
        train_agents({"plain": data, "extreme": extreme}, small(name), seeds=[3], updates=4)
    assert str(caught.value) == (
        f"the loss of {name} on data set 'extreme', seed 3, became NaN or inf at update 1. "
        "Lower the learning rate, or look for extreme values in the data."
    )


@pytest.mark.parametrize("updates", [1, 2])
def test_a_huge_learning_rate_is_found_out_at_once(updates: int) -> None:
    agent = Cloning(hidden=(20, 12), batch=19, learning_rate=3e38)
    with pytest.raises(InputError) as caught:
        train_agents({"one": recorded(50)}, agent, seeds=[0], updates=updates, evaluate_every=1)
    assert str(caught.value) == (
        "the loss of cloning on data set 'one', seed 0, became NaN or inf at update 1. "
        "Lower the learning rate, or look for extreme values in the data."
    )


# Bad input

Datasets = dict[str, Transitions | Sequence[Transitions]]


def refused(datasets: Datasets, **more: Any) -> str:
    settings: dict[str, Any] = {"agent": "td3-bc", "seeds": [0, 1], "updates": 1}
    with pytest.raises(InputError) as caught:
        train_agents(datasets, **(settings | more))
    return str(caught.value)


def without_reward() -> Transitions:
    data = recorded(20)
    return Transitions(data.state, data.action, data.next_state)


def narrow(states: int = 2, actions: int = 2) -> Transitions:
    data = recorded(20)
    return Transitions(data.state[:, :states], data.action[:, :actions], data.next_state[:, :states], data.reward)


def test_no_data_or_no_seeds_are_refused() -> None:
    assert refused({}) == "expected at least one data set and one seed, got 0 and 2."
    assert refused({"one": ONE}, seeds=[]) == "expected at least one data set and one seed, got 1 and 0."


def test_seeds_that_repeat_are_refused() -> None:
    assert refused({"one": ONE}, seeds=[3, 1, 3]) == "seeds must differ, got [3, 1, 3]."


@pytest.mark.parametrize("tables", [0, 1, 3])
def test_one_table_per_seed_is_expected(tables: int) -> None:
    assert refused({"one": ONE, "many": [ONE] * tables}) == (
        f"data set 'many' must be one table, or one per seed: 2, got {tables}."
    )


@pytest.mark.parametrize("name", ["updates", "evaluate_every", "episodes"])
@pytest.mark.parametrize("number", [0, -3])
def test_no_updates_are_refused(name: str, number: int) -> None:
    assert refused({"one": ONE}, **{name: number}) == f"{name} must be at least 1, got {number}."


def test_data_sets_of_different_widths_are_refused() -> None:
    assert refused({"wide": ONE, "narrow": narrow()}) == (
        "data sets that train together need the same columns: 'wide' has 3 of state and 2 of action, 'narrow' has 2 "
        "and 2. Train them separately."
    )
    assert refused({"own": [ONE, narrow(states=3, actions=1)]}) == (
        "data sets that train together need the same columns: 'own' has 3 of state and 2 of action, 'own' has 3 "
        "and 1. Train them separately."
    )


def test_data_without_rewards_is_refused() -> None:
    assert refused({"one": ONE, "bare": without_reward()}) == (
        "data set 'bare' has no rewards. Add them with `mocoda label`, or in Python with mocoda.augment(..., "
        "task=task) or Transitions(..., reward=...)."
    )


def test_data_of_another_task_is_refused() -> None:
    assert refused({"one": ONE}, task=make_task("navigation")) == (
        "task 'navigation' has 2 columns of state and 2 of action, but data set 'one' has 3 and 2."
    )
    assert refused({"one": narrow(states=3, actions=1)}, task=HILL) == (
        "task 'hill' has 3 columns of state and 2 of action, but data set 'one' has 3 and 1."
    )


def test_a_seed_that_is_no_whole_number_is_refused() -> None:
    with pytest.raises(TypeError):
        train_agents({"one": ONE}, Cloning(**SMALL), seeds=[0.5], updates=1)  # type: ignore[list-item]
