"""2D Navigation: the dynamics, the graph's ground truth, the recorded data and the Gymnasium environment."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.randomness import Stream
from mocoda.tasks.navigation import GRAPH, Navigation, Navigation2D, coupled

TASK = Navigation()


def random_rows(n: int, label: str) -> Tensor:
    """Rows a little beyond the box on all sides."""
    stream = Stream(0, "test-navigation", label)
    return torch.cat([stream.uniform(n, 2, low=-0.1, high=1.1), stream.uniform(n, 2, low=-1.0, high=1.0)], 1)


@cache
def recorded(rows: int = 4001, seed: int = 0) -> Transitions:
    return TASK.collect(rows, seed=seed)


# --- dynamics


def slow_step(x: float, y: float, dx: float, dy: float) -> tuple[float, float]:
    if x > 0.5 and y > 0.5:
        return x + 0.05 * dx - 0.02 * dy, y + 0.05 * dy - 0.02 * dx
    return x + 0.05 * dx, y + 0.05 * dy


def test_the_dynamics_are_those_of_the_scalar_formula() -> None:
    rows = random_rows(2000, "formula")
    expected = torch.tensor([slow_step(*row) for row in rows.tolist()], dtype=torch.float64)
    assert int(coupled(rows).sum()) > 300
    torch.testing.assert_close(TASK.step(rows).double(), expected, rtol=0, atol=2e-7)


def test_the_quadrant_begins_beyond_one_half_in_both_coordinates() -> None:
    above = float(np.nextafter(np.float32(0.5), np.float32(1)))
    rows = torch.tensor([[0.5, 0.9], [0.9, 0.5], [0.5, 0.5], [above, above], [0.9, 0.1], [0.1, 0.9]])
    rows = torch.cat([rows, torch.ones(6, 2)], 1)
    assert coupled(rows).tolist() == [False, False, False, True, False, False]
    assert (TASK.step(rows) - rows[:, :2]).allclose(torch.tensor([0.05, 0.05, 0.05, 0.03, 0.05, 0.05])[:, None])


def test_the_goal_is_open_and_gives_reward_zero() -> None:
    points = [[0.85, 0.85], [0.8, 0.85], [0.85, 0.9], [0.81, 0.89], [0.79, 0.85], [0.85, 0.91], [0.1, 0.1]]
    state = torch.full((7, 2), 0.85)  # where it came from does not count
    reward, terminal = TASK.label(state, torch.zeros(7, 2), torch.tensor(points))
    assert terminal.tolist() == [True, False, False, True, False, False, False]
    assert reward.tolist() == [0, -1, -1, 0, -1, -1, -1]
    assert (reward.dtype, terminal.dtype) == (torch.float32, torch.bool)


def test_starts_are_uniform_in_their_corner_and_repeatable() -> None:
    starts = TASK.start(5000, seed=1)
    assert starts.shape == (5000, 2)
    assert bool(((starts >= 0) & (starts <= 0.15)).all())
    assert starts.mean(0).tolist() == pytest.approx([0.075, 0.075], abs=0.003)
    assert starts.equal(TASK.start(5000, seed=1))
    assert not starts.equal(TASK.start(5000, seed=2))


# --- the fewest steps


def steps_of(policy: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """How many steps it needs from each start, (N,); inf where the horizon is not enough."""
    state, steps = start, torch.full((len(start),), torch.inf, dtype=torch.float64)
    for step in range(1, TASK.horizon + 1):
        action = policy(state)
        assert bool((action.abs() <= 1).all())
        state = TASK.step(torch.cat([state, action], 1))
        reached = TASK.label(state, action, state)[1]
        steps = torch.where(reached & steps.isinf(), float(step), steps)
    return steps


def towards_goal(state: Tensor) -> Tensor:
    """The actions that move nearest to the middle of the goal."""
    way = (0.85 - state).double()
    both = torch.linalg.solve(torch.tensor([[0.05, -0.02], [-0.02, 0.05]]).double(), way.T).T
    return torch.where((state > 0.5).all(1, keepdim=True), both, way / 0.05).clamp(-1, 1).to(state.dtype)


def test_walking_to_the_goal_takes_no_fewer_steps_and_seldom_more_than_one() -> None:
    ticks = (torch.arange(40, dtype=torch.float64) + 0.37) / 270
    start = torch.cartesian_prod(ticks, ticks)
    assert TASK.least_steps(torch.tensor([[0.0, 0.0], [0.15, 0.15]])).tolist() == [20.0, 17.0]
    more = steps_of(towards_goal, start) - TASK.least_steps(start)
    assert set(more.tolist()) <= {0.0, 1.0, 2.0} and float((more <= 1).double().mean()) > 0.98


# --- the graph's ground truth


def test_all_edges_are_present_in_the_quadrant_and_only_own_ones_elsewhere() -> None:
    rows = random_rows(500, "mask")
    own = [[True, False], [False, True], [True, False], [False, True]]
    expected = [[[True] * 2] * 4 if x > 0.5 and y > 0.5 else own for x, y, _, _ in rows.tolist()]
    assert GRAPH.mask(rows).tolist() == expected
    assert GRAPH.sparsest.tolist() == own


# --- recorded data


def up_and_right(data: Transitions) -> tuple[Transitions, Transitions]:
    return data[: len(data) // 2], data[len(data) // 2 :]


def test_half_of_the_rows_walk_up_and_half_walk_right() -> None:
    up, right = up_and_right(recorded())
    assert (len(up), len(right)) == (2000, 2001)
    for walk, axis in ((up, 1), (right, 0)):
        along, across = walk.action[:, axis], walk.action[:, 1 - axis]
        assert bool(((along >= 0.35) & (along <= 0.95)).all())
        assert bool(((across >= -0.05) & (across <= 0.05)).all())
        # U(0.4, 0.9) + U(-0.05, 0.05) and U(-0.05, 0.05)
        assert float(along.mean()) == pytest.approx(0.65, abs=0.02)
        assert float(along.var()) == pytest.approx((0.5**2 + 0.1**2) / 12, rel=0.1)
        assert float(across.mean()) == pytest.approx(0, abs=0.004)
        assert float(across.var()) == pytest.approx(0.1**2 / 12, rel=0.1)


def test_no_row_lies_in_the_empty_centre_or_top_left() -> None:
    """The bottom walks stay low. The side walks stay right, but for a hair: in the quadrant each step up pulls x down
    by up to 0.0215, which stops as soon as x <= 0.5; after that x only jitters by at most 0.0025 a step."""
    data = recorded(20_000)
    up, right = up_and_right(data)
    assert float(up.state[:, 0].min()) > 0.47
    assert float(right.state[:, 1].max()) < 0.45
    empty = (data.state[:, 0] < 0.47) & (data.state[:, 1] > 0.45)
    assert not bool(empty.any())
    assert int(((data.state[:, 0] < 0.5) & (data.state[:, 1] > 0.5)).sum()) < 0.01 * len(data)


# --- the environment


@pytest.mark.parametrize("seed", range(4))
def test_batched_steps_agree_exactly_with_the_environment(seed: int) -> None:
    env, drawn = Navigation2D(), np.random.default_rng(seed)
    observation, _ = env.reset(seed=seed)
    steps, terminated, truncated = [], False, False
    while not (terminated or truncated):
        state = torch.from_numpy(observation)[None]
        wandering = torch.from_numpy(drawn.uniform(-1, 1, (1, 2)).astype(np.float32))
        action = towards_goal(state) if seed % 2 else wandering
        following = TASK.step(torch.cat([state, action], 1))
        reward, ended = TASK.label(state, action, following)
        observation, got, terminated, truncated, _ = env.step(action[0].numpy())
        assert torch.from_numpy(observation).equal(following[0])
        assert (got, terminated) == (float(reward), bool(ended))
        steps.append(got)
    if seed % 2:
        assert terminated and steps == [-1.0] * (len(steps) - 1) + [0.0] and 15 <= len(steps) <= 40
    else:
        assert truncated and len(steps) == TASK.horizon
