"""OGBench's cubes as tasks: graph, goals and labels as the benchmark has them; recordings that a replay confirms."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import gymnasium
import numpy as np
import pytest
import torch
from approved import refused
from gymnasium.utils.env_checker import check_env
from torch import Tensor

import mocoda
from mocoda import Transitions
from mocoda.agents.evaluation import is_simulated
from mocoda.agents.policy import shipped_policy
from mocoda.engine.randomness import Stream
from mocoda.tasks.cubes import STRIP, Cubes, local_mask, places
from mocoda.tasks.cubes_env import CENTRE, SCALE, CubesEnv, put

needs_ogbench = pytest.mark.skipif(find_spec("ogbench") is None, reason="ogbench is not installed")
TASK, WHOLE = Cubes(2), Cubes(2, whole_states=True)
LENGTH = 60


@cache
def recorded(variety: str = "play", rows: int = 150, workers: int = 0) -> Transitions:
    return TASK.collect(rows, seed=0, variety=variety, length=LENGTH, workers=workers)


def same(one: Transitions, other: Transitions) -> bool:
    return all(array.equal(other.arrays()[name]) for name, array in one.arrays().items())


def rows_with(hand: list[float], *places_of: list[float]) -> Tensor:
    """A row with the hand and the cubes at these places, the rest of it zeros."""
    row = torch.zeros(1, 19 + 9 * len(places_of) + 5)
    row[0, 12:15] = torch.tensor(hand)
    for number, place in enumerate(places_of):
        row[0, 19 + 9 * number :][:3] = torch.tensor(place)
    return row


# --- names


@pytest.mark.parametrize(
    ("name", "count", "official", "environment"),
    [
        ("cube-single", 1, None, "mocoda/CubeSingle-v0"),
        ("cube-triple:4", 3, 4, "mocoda/CubeTriple4-v0"),
        ("cube-quadruple-states", 4, None, "mocoda/CubeQuadrupleStates-v0"),
        ("cube-double-states:2", 2, 2, "mocoda/CubeDoubleStates2-v0"),
    ],
)
def test_tasks_are_made_by_name(name: str, count: int, official: int | None, environment: str) -> None:
    task = mocoda.make_task(name)
    assert task == Cubes(count, official, whole_states="states" in name)
    assert (task.name, task.environment) == (name, environment)
    assert gymnasium.spec(environment).max_episode_steps == {1: 200, 2: 500, 3: 1000, 4: 1000}[count]
    assert not is_simulated(task)  # a state leaves some of the simulator open


@pytest.mark.parametrize(
    "make",
    [
        lambda: TASK.collect(0, seed=0),
        lambda: TASK.collect(9, seed=0, length=0),
        lambda: TASK.collect(9, seed=0, variety="many"),
        lambda: Cubes(1).collect(9, seed=0, variety="one-cube"),
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[], object]) -> None:
    with refused():
        make()


# --- the graph


def test_hand_and_cubes_depend_on_each_other_only_where_they_are_near() -> None:
    rows = torch.cat(
        [
            rows_with([0, 0, 2], [1, 0, 0.2], [-1, 0, 0.2]),
            rows_with([1, 0, 1.0], [1, 0, 0.2], [-1, 0, 0.2]),  # the hand is 8 cm above the first
            rows_with([1, 0, 3.0], [1, 0, 0.2], [0.4, 0, 0.2]),  # the cubes' centres are 6 cm apart
        ]
    )
    # robot, cube 1, cube 2, action -> robot, cube 1, cube 2
    apart = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]
    assert local_mask(rows).int().tolist() == [
        apart,
        [[1, 1, 0], [1, 1, 0], [0, 0, 1], [1, 1, 0]],
        [[1, 0, 0], [0, 1, 1], [0, 1, 1], [1, 0, 0]],
    ]
    assert TASK.graph.sparsest.int().tolist() == apart
    assert TASK.graph.parent_sets == (("robot", "action"), ("cube1",), ("cube2",))
    assert TASK.graph.mask(rows).equal(local_mask(rows))


# --- goals and rewards


def test_an_episode_ends_with_reward_0_where_all_cubes_are_within_4_cm() -> None:
    goal = rows_with([0, 0, 2], [1, 0, 0.2], [-1, 0, 0.2])[:, :-5]
    near, far = goal.clone(), goal.clone()
    near[:, [19, 28]] += 0.39
    far[:, 28] += 0.41
    states = torch.cat([goal, near, far])
    for task in (TASK, WHOLE):
        wanted = task.achieved(goal).expand(3, -1)
        reward, terminal = task.label(goal.expand(3, -1), torch.zeros(3, 5), states, wanted)
        assert reward.tolist() == [0, 0, -1] and terminal.tolist() == [True, True, False]
    assert TASK.achieved(states).equal(places(states).flatten(1)) and WHOLE.achieved(states).equal(states)


@needs_ogbench
def test_goals_are_those_of_the_official_tasks_in_any_order() -> None:
    goals = TASK.goals(400, seed=0)
    environment = CubesEnv(2)
    resets = [environment.reset(seed=seed, options={"task_id": 1 + seed % 5})[0] for seed in range(15)]
    shown = torch.tensor(np.array([seen["desired_goal"] for seen in resets]))

    def kinds(goals: Tensor) -> set[tuple[float, ...]]:
        return {tuple((10 * goal).round().tolist()) for goal in goals}

    assert kinds(shown) <= kinds(goals) and len(kinds(goals)) == 10
    assert TASK.goals(37, seed=0).equal(goals[:37]) and not TASK.goals(37, seed=1).equal(goals[:37])
    whole, (low, high) = WHOLE.goals(400, seed=0), TASK.box
    assert float(((whole >= low[:37]) & (whole <= high[:37])).float().mean()) > 0.99
    assert kinds(Cubes(2, 5).goals(50, seed=0)) == {(0, 0, 2, 0, 0, 6), (0, 0, 6, 0, 0, 2)}


def test_goals_that_are_places_count_what_success_counts() -> None:
    states = Stream(0, "test-places").normal(50, 37) / 6
    goal = states.flip(0)
    action = torch.zeros(50, 5)
    own = TASK.label(states, action, states, TASK.achieved(goal))
    assert all(map(torch.equal, own, WHOLE.label(states, action, states, goal)))
    assert TASK.reached is not None and WHOLE.reached is None
    there = TASK.reached(TASK.achieved(states), TASK.achieved(goal))
    assert there.equal(own[1]) and 0 < int(there.sum()) < 50
    for task in (TASK, WHOLE):
        kinds = [(one.official, one.whole_states) for one in task.officials.values()]
        assert kinds == [(number, task.whole_states) for number in (1, 2, 3, 4, 5)]


@needs_ogbench
def test_an_environment_of_places_shows_those_of_the_same_goals() -> None:
    assert TASK.goals(9, seed=0).equal(places(WHOLE.goals(9, seed=0)).flatten(1))
    whole, part = (CubesEnv(2, official=3, whole_states=states) for states in (True, False))
    check_env(part, skip_render_check=True)
    (seen, _), (shown, _) = whole.reset(seed=5), part.reset(seed=5)
    assert shown["observation"].tolist() == seen["observation"].tolist()
    for name in ("desired_goal", "achieved_goal"):
        assert shown[name].tolist() == places(torch.tensor(seen[name])[None]).flatten().tolist()
    # What the benchmark calls its oracle representation of a goal.
    assert shown["achieved_goal"] == pytest.approx(part.world.compute_oracle_observation(), abs=1e-6)


# --- the environment


@needs_ogbench
def test_it_is_an_environment_and_a_seed_decides_the_episode() -> None:
    environment = gymnasium.make("mocoda/CubeDouble-v0")
    check_env(environment.unwrapped, skip_render_check=True)
    first, info = environment.reset(seed=3)
    assert info["task"] in (1, 2, 3, 4, 5)
    environment.step(np.ones(5, np.float32))
    environment.reset(seed=4)
    again, _ = gymnasium.make("mocoda/CubeDouble-v0").reset(seed=3)
    for name, array in first.items():
        assert array.tolist() == again[name].tolist() == environment.reset(seed=3)[0][name].tolist()
    with refused():
        environment.reset(options={"task_id": 0})


@needs_ogbench
def test_success_reward_and_end_are_those_of_the_labels() -> None:
    environment = CubesEnv(2, official=2)
    seen, _ = environment.reset(seed=0)
    goal = torch.tensor(seen["desired_goal"])[None]
    action = torch.zeros(1, 5)
    for moved in (1, 2):  # one cube to its goal, and then both
        state = torch.tensor(seen["observation"])[None]
        for cube in range(moved):
            state[:, 19 + 9 * cube :][:, :3] = goal[:, 3 * cube :][:, :3]
        put(environment.world, state[0].numpy())
        after, reward, terminated, truncated, info = environment.step(action[0].numpy())
        expected, terminal = TASK.label(state, action, torch.tensor(after["observation"])[None], goal)
        assert (reward, terminated, truncated) == (float(expected), bool(terminal), False)
        assert info == {"is_success": moved == 2, "task": 2} and terminated == (moved == 2)


@needs_ogbench
@pytest.mark.skipif(os.environ.get("MUJOCO_GL") != "egl", reason="there is no EGL to draw with")
def test_it_draws_pictures() -> None:
    environment = CubesEnv(2, official=1, render_mode="rgb_array")
    environment.reset(seed=0)
    picture = environment.render()
    assert picture.shape == (480, 640, 3) and picture.dtype == np.uint8
    environment.step(np.ones(5, np.float32))
    assert (environment.render() != picture).any(2).sum() > 100
    environment.close()


@needs_ogbench
def test_the_policy_that_comes_along_solves_the_first_official_task() -> None:
    policy, task = shipped_policy("cube-double:1"), Cubes(2, official=1)
    found = mocoda.evaluate({("turns", 0): policy}, task, episodes=4, workers=0)
    assert found["success"]["turns", 0] > 0  # of 20 episodes it solved 45%, and of 50 others 50%


# --- the true next state


@needs_ogbench
def test_recorded_rows_are_true() -> None:
    data = recorded()[::3]
    found = mocoda.audit(data, TASK.step, TASK.graph, tolerance=TASK.tolerance, columns=TASK.compared)
    assert found.confirmed >= 0.96 and list(found.tolerance) == ["robot", "cube1", "cube2"]
    hand = (TASK.step(data.rows) - data.next_state)[:, 12:15].norm(dim=1)
    assert float(hand.median()) < 1e-3  # 0.1 mm


# --- recordings


@needs_ogbench
@pytest.mark.parametrize("variety", ["play", "one-cube", "noisy"])
def test_a_recording_has_episodes_of_one_length_and_says_what_it_is(variety: str) -> None:
    data = recorded(variety)
    assert data.columns == TASK.columns and data.episode is not None and data.step is not None
    assert list(zip(data.episode.tolist(), data.step.tolist(), strict=True)) == [divmod(i, LENGTH) for i in range(150)]
    inner = data.step[1:] > 0
    assert data.state[1:][inner].equal(data.next_state[:-1][inner])
    kept = {"task": "cube-double", "rows": 150, "seed": 0, "variety": variety, "length": LENGTH}
    assert data.source == {**kept, "episodes": 3, "dropped": 0}
    assert float(data.action.abs().max()) <= 1
    low, high = TASK.box
    assert float(((data.rows >= low) & (data.rows <= high)).float().mean()) > 0.99
    assert data.goal is not None and data.reward is not None
    assert TASK.label(data.state, data.action, data.next_state, data.goal)[0].equal(data.reward)


@needs_ogbench
def test_one_cube_is_handled_and_the_other_rests_in_the_strip() -> None:
    data = recorded("one-cube")
    assert data.episode is not None
    for episode in range(3):
        cubes_of = places(data.state[data.episode == episode]).double().numpy()
        moved = np.abs(cubes_of - cubes_of[0]).max((0, 2))
        parked = cubes_of[0, moved.argmin(), :2] / SCALE + CENTRE[:2]
        assert moved.min() < 0.01 and ((parked >= STRIP[0]) & (parked <= STRIP[1])).all()


@needs_ogbench
def test_the_rows_are_the_same_in_another_process_and_numpy_s_generator_is_left_alone() -> None:
    before, whole = repr(np.random.get_state()), recorded()  # noqa: NPY002
    assert same(recorded(workers=1), whole)
    assert repr(np.random.get_state()) == before  # noqa: NPY002
