"""train_agents on data with goals, evaluated in an environment while the training goes on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from agents_world import HILL, all_same, each_rewarded_agent, same, small
from approved import refused
from cloning_agent import Cloning
from point_task import CorridorTask, G, PointTask, S

from mocoda import Policies, Transitions, train_agents
from mocoda.agents import evaluation
from mocoda.agents import train as learning
from mocoda.agents.evaluation import Job, Played, gather, jobs, means, play
from mocoda.engine.checkpoint import Checkpoint, load_trained
from mocoda.engine.randomness import Stream
from mocoda.engine.workers import Workers

POINT = PointTask()
ONE, OTHER = POINT.collect(101, seed=0), POINT.collect(67, seed=1)


def train(name: str = "bcq", **more: Any) -> Policies:
    """Evaluations after 2, 4, 6 and 8 of 9 updates."""
    settings: dict[str, Any] = {"seeds": [0, 1], "updates": 9, "task": POINT, "evaluate_every": 2, "episodes": 3}
    return train_agents({"one": ONE, "other": OTHER}, small(name), **({"workers": 0} | settings | more))


# What agents see


def without_goals(data: Transitions) -> Transitions:
    """The same rows with the goal as a part of the state."""
    assert data.goal is not None
    state, following = (torch.cat([part, data.goal], 1) for part in (data.state, data.next_state))
    return Transitions(state, data.action, following, data.reward, data.terminal)


@each_rewarded_agent
def test_agents_see_state_and_goal_side_by_side(name: str) -> None:
    agent = small(name)
    halved = Transitions(ONE.state, ONE.action / 2, ONE.next_state, ONE.reward, ONE.terminal, ONE.goal)
    goals = train_agents({"one": halved}, agent, seeds=[3], updates=5)["one", 3]
    assert goals.state_width == S + G
    assert same(goals, train_agents({"one": without_goals(halved)}, agent, seeds=[3], updates=5)["one", 3])


# Evaluations


def test_curves_are_the_means_of_episodes_in_the_environment() -> None:
    policies = train(updates=8)
    assert policies.curves["updates"].tolist() == [2, 4, 6, 8]
    for place, ((_, seed), policy) in enumerate(policies.items()):
        todo = jobs(policy, POINT.environment, 3, Stream(seed, "agent", "bcq", "evaluation", 3))
        expected = means(gather(map(play, todo), 1))[:, 0]
        found = torch.stack([policies.curves[measure][place, -1] for measure in ("steps", "success", "return")])
        assert found.equal(expected.float())


def test_processes_change_neither_policies_nor_curves() -> None:
    assert all_same(train(workers=2), train())


@pytest.fixture
def at_every_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "Checkpoint", functools.partial(Checkpoint, interval=0.0))


class Late(Workers[Job, Played]):
    """Answers only when asked, and notes what was asked when."""

    noted: list[str]

    def submit(self, job: Job) -> Future[Played]:
        future, number = super().submit(job), sum(line.startswith("submit") for line in self.noted)
        self.noted.append(f"submit {number}")
        answer = future.result()
        future.result = lambda timeout=None: self.noted.append(f"result {number}") or answer  # type: ignore[method-assign, func-returns-value]
        return future


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    Late.noted = []
    monkeypatch.setattr(evaluation, "Workers", Late)
    return Late.noted


def one_run(noted: list[str], **more: Any) -> list[str]:
    """What was asked of the processes, and when updates had been made."""
    tell: Callable[[str, int, int], None] = lambda stage, done, total: noted.append(f"update {done}")  # noqa: E731
    agent = Cloning(hidden=(4,), batch=2)
    settings: dict[str, Any] = {"updates": 4, "evaluate_every": 1, "episodes": 2, "workers": 0}
    train_agents({"one": ONE}, agent, seeds=[0], task=POINT, progress=tell, **settings, **more)
    return noted


def test_the_training_waits_only_where_two_evaluations_are_under_way_and_at_the_end(noted: list[str]) -> None:
    assert one_run(noted) == [
        *("submit 0", "update 1"),
        *("submit 1", "update 2"),
        *("result 0", "submit 2", "update 3"),
        *("result 1", "submit 3", "update 4"),
        *("result 2", "result 3"),
    ]


@pytest.mark.usefixtures("at_every_chunk")
def test_a_checkpoint_waits_for_all_evaluations(noted: list[str], tmp_path: Path) -> None:
    asked = one_run(noted, checkpoint=tmp_path / "checkpoint")
    assert asked == [line for i in range(4) for line in (f"submit {i}", f"update {i + 1}", f"result {i}")]
    assert load_trained(tmp_path / "checkpoint", "checkpoint")[0]["curves"].shape == (4, 3, 1)


# Bad input

BARE = Transitions(ONE.state, ONE.action, ONE.next_state)
HILLS = HILL.collect(20, seed=0)


@pytest.mark.parametrize(
    ("datasets", "task"),
    [
        ({"one": ONE, "odd": BARE}, None),
        ({"odd": replace(HILLS, goal=torch.zeros(20, 4))}, HILL),
        ({"odd": replace(ONE, state=ONE.state[:, :2], next_state=ONE.next_state[:, :2], columns=())}, POINT),
        ({"one": ONE}, CorridorTask()),  # its environment shows something else
    ],
)
def test_goals_that_do_not_fit_are_refused(datasets: dict[str, Transitions], task: Any) -> None:
    with refused():
        train_agents(datasets, small("sac"), seeds=[0], updates=2, task=task, evaluate_every=1, workers=0)
