"""train_agents on data with goals, evaluated in an environment while the training goes on."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from agents_world import HILL, all_same, each_rewarded_agent, same, small
from approved import refused
from point_task import CorridorTask, G, PointTask, S

from mocoda import Policies, Transitions, train_agents
from mocoda.agents import train as learning
from mocoda.agents.evaluation import gather, jobs, means, play
from mocoda.engine.checkpoint import Checkpoint
from mocoda.engine.randomness import Stream

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


def standardised_by_hand(data: Transitions) -> Transitions:
    assert data.goal is not None
    seen = torch.cat([data.state, data.goal], 1).double()
    shift, scale = seen.mean(0).float(), seen.std(0, correction=0).float()
    parts = [(part - shift[:S]) / scale[:S] for part in (data.state, data.next_state)]
    return Transitions(parts[0], data.action, parts[1], data.reward, data.terminal, (data.goal - shift[S:]) / scale[S:])


@each_rewarded_agent
def test_a_policy_acts_on_raw_states_as_the_network_does_on_standardised_ones(name: str) -> None:
    far = [0.01 * part + 1.85 for part in (ONE.state, ONE.next_state)]  # as positions in metres are
    raw = Transitions(far[0], ONE.action, far[1], ONE.reward, ONE.terminal, ONE.goal)
    acted = []
    for data, standardise in ((raw, True), (standardised_by_hand(raw), False)):
        policy = train_agents({"d": data}, small(name, standardise=standardise), seeds=[0], updates=20)["d", 0]
        acted.append(torch.as_tensor(policy.act(without_goals(data).state)))
    # Proposals near a tie may be chosen differently after rounding.
    close = (acted[0] - acted[1]).abs().amax(1) < 1e-3
    assert float(close.float().mean()) > (0.9 if name == "bcq" else 0.999)


# Evaluations


def test_curves_are_the_means_of_episodes_in_the_environment() -> None:
    policies = train(updates=8)
    assert policies.curves["updates"].tolist() == [2, 4, 6, 8]
    for place, ((_, seed), policy) in enumerate(policies.items()):
        todo = jobs(policy, POINT.environment, 3, Stream(seed, "agent", "bcq", "evaluation", 3))
        expected = means(gather(map(play, todo), 1))[:, 0]
        found = torch.stack([policies.curves[measure][place, -1] for measure in ("steps", "success", "return")])
        assert found.equal(expected.float())


def test_neither_processes_nor_an_interruption_change_policies_and_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(stage: str, done: int, total: int) -> None:
        if done > 9:
            raise InterruptedError

    monkeypatch.setattr(learning, "Checkpoint", functools.partial(Checkpoint, interval=0.0))
    whole = train()
    with pytest.raises(InterruptedError):
        train(checkpoint=tmp_path / "checkpoint", progress=stop)
    assert all_same(train(workers=2, checkpoint=tmp_path / "checkpoint"), whole)


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
