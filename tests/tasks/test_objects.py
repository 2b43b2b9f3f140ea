"""The world of k objects: its masks against interventions, its steps against plain Python, its data and environment."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import gymnasium
import pytest
import torch
from approved import refused
from gymnasium.utils.env_checker import check_env
from torch import Tensor

from mocoda import Transitions, make_task
from mocoda.agents.evaluation import is_simulated
from mocoda.engine.randomness import Stream
from mocoda.tasks.navigation import Navigation
from mocoda.tasks.objects import EPISODE, HOME, REACH, Objects, ObjectsEnv
from mocoda.tasks.task import make_environment

COUNTS = [1, 2, 4, 7]


@cache
def recorded(objects: int, rows: int = 3010, seed: int = 0) -> Transitions:
    return Objects(objects).collect(rows, seed=seed)


def crowded(task: Navigation | Objects, n: int, label: str) -> Tensor:
    """Rows anywhere in the box, of which half have all places in a corner, where everything is near."""
    low, high = task.box
    rows = low + (high - low) * Stream(0, "crowded", label).uniform(n, len(low))
    if isinstance(task, Objects):
        rows[: n // 2, [i for i, name in enumerate(task.columns) if name.endswith((".x", ".y"))]] *= 0.2
    rows[:, -2:] *= 0.8  # half slow, half quick
    return rows


def children(task: Navigation | Objects, state: Tensor) -> dict[str, Tensor]:
    return {name: state[:, list(task.graph.factors[name])] for name in task.graph.children}


# --- names and options


def test_the_task_is_made_by_name_and_number() -> None:
    task = make_task("objects")
    assert is_simulated(task) and isinstance(task, Objects)
    assert (task.objects, task.name, task.horizon) == (4, "objects:4", 200)
    for same in (make_task("objects", objects=6), make_task("objects:6"), make_task(make_task("objects:6").name)):
        assert isinstance(same, Objects) and same.objects == 6


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("objects", {"objects": 2.0}),
        ("objects", {"bodies": 3}),
        ("navigation:3", {}),
        ("objects:", {}),
        ("objcts:2", {}),
        ("cube-double:6", {}),
    ],
)
def test_what_cannot_be_made_is_refused(name: str, options: dict[str, Any]) -> None:
    with refused():
        make_task(name, **options)


# --- the mask, by intervention


@pytest.mark.parametrize("task", [Navigation(), *map(Objects, COUNTS)], ids=lambda task: task.name)
def test_a_parent_without_an_edge_never_changes_the_child(task: Navigation | Objects) -> None:
    """To the bit, whatever the parent becomes, as long as the child's own edges stay."""
    rows, other = crowded(task, 2000, "before"), crowded(task, 2000, "after")
    mask, following = task.graph.mask(rows), children(task, task.step(rows))
    held = 0
    for number, (parent, columns) in enumerate(task.graph.factors.items()):
        changed = rows.clone()
        changed[:, list(columns)] = other[:, list(columns)]
        after = task.graph.mask(changed)
        for child, name in enumerate(task.graph.children):
            unheard = ~mask[:, number, child] & (mask[:, :, child] == after[:, :, child]).all(1)
            assert following[name][unheard].equal(children(task, task.step(changed))[name][unheard]), (parent, name)
            held += int(unheard.sum())
    assert held > 400 * (len(task.graph.children) - 1)


@pytest.mark.parametrize("count", COUNTS)
def test_a_parent_with_an_edge_changes_the_child(count: int) -> None:
    """Nearly always, by a small move of the parent; not where the child's speed is at its limit, or where it is stuck
    in a corner of the box."""
    task = Objects(count)
    rows = crowded(task, 4000, "edges")
    nudge = 0.01 * Stream(0, "nudge").uniform(*rows.shape, low=0.5, high=1.0)
    mask, following = task.graph.mask(rows), children(task, task.step(rows))
    for number, (parent, columns) in enumerate(task.graph.factors.items()):
        changed = rows.clone()
        changed[:, list(columns)] += nudge[:, list(columns)]
        after = children(task, task.step(changed))
        for child, name in enumerate(task.graph.children):
            edge = mask[:, number, child]
            moved = (after[name] != following[name]).any(1)[edge]
            assert not len(moved) or float(moved.float().mean()) > 0.9, (parent, name)
            assert bool(edge.any()) == (name != "agent" or parent in ("agent", "move"))


@pytest.mark.parametrize("count", COUNTS)
def test_edges_are_where_things_are_near(count: int) -> None:
    task = Objects(count)
    rows = crowded(task, 300, "near")
    for row, mask in zip(rows.double().tolist(), task.graph.mask(rows).tolist(), strict=True):
        spots = [row[4 * i : 4 * i + 2] for i in range(count)]
        agent, slow = row[4 * count : 4 * count + 2], math.hypot(*row[-2:]) < 1
        for j, spot in enumerate(spots):
            assert [mask[i][j] for i in range(count)] == [
                i == j or math.dist(s, spot) < REACH for i, s in enumerate(spots)
            ]
            assert mask[count][j] == mask[count + 1][j] == (slow and math.dist(agent, spot) < REACH)
        assert [line[count] for line in mask] == [False] * count + [True, True]


# --- the dynamics, written out


def slow_step(row: list[float], count: int) -> list[float]:
    """The table of the module, in plain numbers."""
    (ax, ay), move = row[4 * count : 4 * count + 2], row[-2:]
    out: list[float] = []
    for i in range(count):
        x, y, *velocity = row[4 * i : 4 * i + 4]
        place, speed = [x, y], []
        closeness = [max(0.0, 1 - math.dist(place, row[4 * j : 4 * j + 2]) / 0.1) for j in range(count)]
        taken = max(0.0, 1 - math.dist(place, [ax, ay]) / 0.1) * max(0.0, 1 - move[0] ** 2 - move[1] ** 2)
        for axis in (0, 1):
            v = 0.7 * velocity[axis] if x > 0.7 else 0.99 * velocity[axis] - (0.001 if axis == 0 else 0.0)
            v += 0.3 * (max(0.0, 0.1 - place[axis]) - max(0.0, place[axis] - 0.9))
            v += 0.1 * sum(closeness[j] * (place[axis] - row[4 * j + axis]) for j in range(count))
            v = (1 - taken) * v + taken * 0.05 * move[axis]
            speed.append(min(0.1, max(-0.1, v)))
        out += [min(1.0, max(0.0, p + v)) for p, v in zip(place, speed, strict=True)] + speed
    return out + [min(1.0, max(0.0, a + 0.05 * m)) for a, m in zip((ax, ay), move, strict=True)]


@pytest.mark.parametrize("count", COUNTS)
def test_steps_are_what_the_table_says(count: int) -> None:
    task = Objects(count)
    rows = torch.cat([crowded(task, 200, "slow"), recorded(count).rows[:200]]).double()
    expected = torch.tensor([slow_step(row, count) for row in rows.tolist()], dtype=torch.float64)
    torch.testing.assert_close(task.step(rows), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(task.step(rows.float()), expected.float(), rtol=0, atol=1e-6)


# --- recorded data


@pytest.mark.parametrize("count", COUNTS)
def test_recorded_rows_are_episodes_of_true_steps_in_the_box(count: int) -> None:
    task, data = Objects(count), recorded(count)
    assert (len(data), data.columns) == (3010, task.columns)
    assert data.source == {"task": f"objects:{count}", "rows": 3010, "seed": 0}
    assert data.next_state.equal(task.step(data.rows))
    within = torch.arange(3009) % EPISODE != EPISODE - 1
    assert data.state[1:][within].equal(data.next_state[:-1][within])
    low, high = task.box
    assert bool(((data.rows >= low) & (data.rows <= high)).all())
    assert bool(task.region(data.rows).all())
    assert task.features(data.rows).shape == (3010, 2)


# --- the target task


@pytest.mark.parametrize("count", [1, 4, 8])
def test_the_expert_brings_all_home_in_time(count: int) -> None:
    task = Objects(count)
    state, going = task.start(60, seed=0), torch.ones(60, dtype=torch.bool)
    assert float(state[:, 0 : 4 * count : 4].max()) <= HOME
    for _ in range(task.horizon):
        action = task.expert(state)
        assert float(action.abs().max()) <= 1
        following = task.step(torch.cat([state, action], 1))
        going &= ~task.label(state, action, following)[1]
        state = torch.where(going[:, None], following, state)
    assert float(going.float().mean()) < 0.05


# --- the environment


@pytest.mark.parametrize("options", [{"id": "mocoda/Navigation2D-v0"}, {"id": "mocoda/Objects-v0", "objects": 6}])
@pytest.mark.filterwarnings("error")
def test_environments_pass_gymnasiums_checker(options: dict[str, Any]) -> None:
    check_env(gymnasium.make(**options).unwrapped)
    assert make_environment(Objects(6).environment).observation_space.shape == (26,)


@pytest.mark.parametrize("count", [1, 3])
def test_batched_steps_agree_exactly_with_the_environment(count: int) -> None:
    env, task = ObjectsEnv(count), Objects(count)
    observation, _ = env.reset(seed=3)
    for _ in range(task.horizon):
        state = torch.from_numpy(observation)[None]
        action = task.expert(state)
        following = task.step(torch.cat([state, action], 1))
        reward, ended = task.label(state, action, following)
        observation, got, terminated, truncated, _ = env.step(action[0].numpy())
        assert torch.from_numpy(observation).equal(following[0])
        assert (got, terminated, truncated) == (float(reward), bool(ended), False)
        assert env.observation_space.contains(observation)
        if terminated:
            break
    assert terminated
