"""Goals from episodes: how they are drawn, and what a batch makes of them."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from agents_world import HILL
from approved import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from point_task import PointTask
from torch import Tensor

from mocoda import InputError, Transitions, make_agent, train_agents
from mocoda.agents import GoalShares
from mocoda.agents.agent import OWN
from mocoda.agents.goals import ACHIEVED, TOLERANCE, sorted_episodes
from mocoda.agents.train import RunTable, room, runs_of
from mocoda.engine.randomness import Stream

DRAWS = 200_000
POINTS = PointTask().collect(300, seed=0)
SMALL = {"hidden": (8, 8), "batch": 16}


# Draws


FAR = 10**6


@pytest.mark.parametrize(
    ("shares", "row", "last", "rows", "expected"),
    [
        (GoalShares(0.2, 0.0, 0.9), 0, 0, FAR, {OWN: 0.2}),
        (GoalShares(0.2, 0.5, 0.9), 0, 0, FAR, {OWN: 0.2, 0: 0.5}),
        (GoalShares(0.0, 1.0, 0.9), 7, FAR, FAR, {7 + k: 0.1 * 0.9**k for k in range(10)}),  # geometrically far
        (GoalShares(0.0, 1.0), 3, 7, FAR, dict.fromkeys(range(3, 8), 0.2)),  # without a discount
        (GoalShares(0.0, 0.0, 0.9), 3, 3, 5, dict.fromkeys(range(5), 0.2)),  # of any row
    ],
)
def test_goals_come_in_the_given_shares(
    shares: GoalShares, row: int, last: int, rows: int, expected: dict[int, float]
) -> None:
    full = torch.full((DRAWS,), 1)
    goals = shares.draw(Stream(0, "test-goals"), row * full, last * full, rows)
    found = {goal: float((goals == goal).float().mean()) for goal in expected}
    assert found == pytest.approx(expected, abs=0.005)


@settings(deadline=None, max_examples=50)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=9),
    discount=st.none() | st.floats(0, 0.999),
    seed=st.integers(0, 99),
)
def test_a_future_goal_is_never_beyond_the_episode_nor_before_the_row(
    lengths: list[int], discount: float | None, seed: int
) -> None:
    size = torch.tensor(lengths)
    last = (size.cumsum(0) - 1).repeat_interleave(size).expand(30, -1)
    row = torch.arange(len(last[0])).expand(30, -1)
    goals = GoalShares(0.0, 1.0, discount).draw(Stream(seed, "law"), row, last, len(last[0]))
    assert bool(((row <= goals) & (goals <= last)).all())


# Episodes


def walks(order: Tensor | None = None) -> Transitions:
    """Two episodes, of 4 and 3 steps, and a row of none; every number is known by its column and time."""
    episode, step = torch.tensor([0, 0, 0, 0, 2, 2, 2, -1]), torch.tensor([0, 1, 2, 3, 0, 1, 2, 0])
    state = 100.0 * episode[:, None] + step[:, None] + torch.tensor([0.0, 0.25])
    action = 0.1 * torch.arange(8.0)[:, None]
    order = torch.arange(8) if order is None else order
    return Transitions(state, action, state + 1, episode=episode, step=step)[order]


def test_episodes_are_sorted_and_know_their_end() -> None:
    shuffled = walks(torch.tensor([6, 0, 3, 7, 5, 1, 2, 4]))
    made, later, last, left = sorted_episodes(shuffled, "walks", lambda state: state)
    plain, *_ = sorted_episodes(walks(), "walks", lambda state: state)
    assert last.tolist() == [3, 3, 3, 3, 6, 6, 6, 7] and left.tolist() == [4, 3, 2, 1, 3, 2, 1, 1]
    assert made.state.equal(plain.state) and made.action.equal(plain.action) and made.goal is not None
    assert made.goal.equal(made.state) and later.equal(made.next_state)


def table_of(data: Transitions, task: PointTask | None = None, standardise: bool = False, steps: int = 1) -> RunTable:
    agent = make_agent("gciql", standardise=standardise, steps=steps, **SMALL)
    return RunTable.of(runs_of({"one": data, "again": data}, [0], agent), agent, task)


def test_a_batch_has_goals_beside_states_and_the_rewards_of_reaching_them() -> None:
    data = walks()
    index, value, actor = (torch.tensor([numbers] * 2) for numbers in ([1, 1, 4, 7], [OWN, 3, 5, 7], [2, 3, OWN, 0]))
    batch = table_of(data).batch(index, value, actor)
    following = data.next_state
    goal = torch.stack([data.state[1], following[3], following[5], following[7]])
    actor_goal = torch.stack([following[2], following[3], data.state[4], following[0]])
    assert batch.actor_state is not None
    for run in (0, 1):
        assert batch.state[run].equal(torch.cat([data.state[index[run]], goal], 1))
        assert batch.next_state[run].equal(torch.cat([data.next_state[index[run]], goal], 1))
        assert batch.actor_state[run, :, 2:].equal(actor_goal)
        assert batch.actor_state[run, :, :2].equal(data.state[index[run]])
        assert batch.reward[run].tolist() == [0, -1, -1, -1]
        assert batch.terminal[run].tolist() == [1, 0, 0, 0]


def test_chunks_are_of_successive_steps_and_know_when_they_reach_their_goals() -> None:
    data = walks()
    assert data.step is not None
    torn = replace(data, step=data.step.where(torch.arange(8) < 2, data.step + 1))  # one is missing before row 2
    assert table_of(torn, steps=2).starts[0].tolist() == [0, 2, 4, 5]
    index, goal = torch.tensor([[0, 0, 2, 4]] * 2), torch.tensor([[OWN, 0, 0, 5]] * 2)
    batch = table_of(torn, steps=2).batch(index, goal, goal)
    assert batch.actions is not None and batch.steps is not None
    torch.testing.assert_close(batch.actions[0, 2], data.action[2:4])
    assert batch.next_state[1, 2, :2].equal(data.next_state[3])
    assert batch.steps.tolist() == [[0, 1, 2, 2]] * 2 and batch.terminal.tolist() == [[1, 1, 0, 0]] * 2


@pytest.mark.parametrize("standardise", [False, True])
def test_a_goal_is_reached_in_every_row_that_is_in_the_very_same_state(standardise: bool) -> None:
    state = torch.tensor([[0.3], [0.7], [0.3], [0.1]])
    following = torch.tensor([[0.7], [0.3], [0.1], [0.2]])
    data = Transitions(state, torch.zeros(4, 1), following, episode=torch.zeros(4, dtype=torch.long))
    batch = table_of(data, standardise=standardise).batch(
        torch.tensor([[0, 0, 2, 3]] * 2), torch.tensor([[1, 0, 1, 1]] * 2), torch.tensor([[0, 0, 0, 0]] * 2)
    )
    assert batch.terminal.tolist() == [[1, 0, 1, 0]] * 2


class NearTask(PointTask):
    def reached(self, achieved: Tensor, goal: Tensor) -> Tensor:
        return (achieved - goal).square().sum(1) < 0.04


@pytest.mark.parametrize("standardise", [False, True])
def test_a_task_says_what_states_achieve_and_when_that_is_as_good_as_the_goal(standardise: bool) -> None:
    state = torch.tensor([[0.0, 0.0, 0.0], [0.1, 0.0, 0.1], [0.2, 0.0, 0.2], [0.3, 0.0, 0.3]])
    data = Transitions(state, torch.zeros(4, 2), state + 0.1, episode=torch.zeros(4, dtype=torch.long))
    index, goal = torch.tensor([[0, 0, 0, 0]] * 2), torch.tensor([[OWN, 0, 1, 3]] * 2)
    for task, reached in ((PointTask(), [1, 0, 0, 0]), (NearTask(), [1, 1, 0, 0])):
        table = table_of(data, task, standardise)
        batch = table.batch(index, goal, goal)
        assert table.seen_width == 5 and batch.state.shape == (2, 4, 5)
        assert batch.terminal.tolist() == [reached] * 2
        raw = batch.state[0] * table.scale[0] + table.shift[0]
        torch.testing.assert_close(raw[:, 3:], torch.tensor([[0.0, 0.0], [0.1, 0.1], [0.2, 0.1], [0.4, 0.1]]))


def test_without_a_task_a_distance_says_what_is_as_good_for_each_thing() -> None:
    data = replace(walks(), columns=("box.x", "box.y", "push"), source={ACHIEVED: ["box.x", "box.y"], TOLERANCE: 1.0})
    reached = table_of(data).reached
    assert reached is not None
    goal = torch.tensor([[0.6, 0.6], [0.9, 0.9], [1.0, 0.0]])
    assert reached(torch.zeros(3, 2), goal).tolist() == [True, False, True]
    apart = replace(data, columns=("x", "y", "push"), source={ACHIEVED: ["x", "y"], TOLERANCE: 1.0})
    assert table_of(apart).reached(torch.zeros(3, 2), goal).tolist() == [True, True, True]  # type: ignore[misc]


# Errors


def test_data_without_episodes_and_a_task_without_goals_are_refused() -> None:
    data = walks()
    agent = make_agent("gciql", **SMALL)
    for episode in (None, torch.full((8,), -1)):
        torn = Transitions(data.state, data.action, data.next_state, episode=episode)
        with refused():
            train_agents({"walks": torn}, agent, seeds=[0], updates=1)
    assert data.step is not None
    for step in (data.step, 2 * data.step):  # too short; every second step is missing
        with refused():
            train_agents({"walks": replace(data, step=step)}, make_agent("dqc", **SMALL), seeds=[0], updates=1)
    with pytest.raises(InputError, match=r"does not suffice: .* About [\d,]+ rows would fit"):
        room(10**13, 100, data.state)
    with refused():
        train_agents({"hill": HILL.collect(40, seed=0)}, agent, updates=1, task=HILL)


class NoAchieved(PointTask):
    achieved = None  # type: ignore[assignment]


class ListOfAchieved(PointTask):
    def achieved(self, state: Tensor) -> Any:
        return state[:, :2].tolist()


class ReachedAsNumbers(NearTask):
    goals = None  # type: ignore[assignment]

    def reached(self, achieved: Tensor, goal: Tensor) -> Any:
        return (achieved - goal).norm(dim=1)


class WideGoals(PointTask):
    def goals(self, n: int, *, seed: int | Stream, device: torch.device | str = "cpu") -> Tensor:
        return torch.zeros(n, 3)


class FarGoals(NearTask):
    def goals(self, n: int, *, seed: int | Stream, device: torch.device | str = "cpu") -> Tensor:
        return torch.full((n, 2), 50.0)


def test_goals_that_the_data_cannot_have_are_refused_and_those_that_it_never_reaches_are_told() -> None:
    data = replace(POINTS, episode=torch.arange(len(POINTS)) // 10, step=None)
    for task in (NoAchieved(), ListOfAchieved(), ReachedAsNumbers(), WideGoals()):
        with refused():
            table_of(data, task)
    nearest = float((data.state[:, :2] - 50).norm(dim=1).min())
    with pytest.warns(UserWarning, match=f"nearest is {nearest:.3g} away"):
        table_of(data, FarGoals())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table_of(data, NearTask())
