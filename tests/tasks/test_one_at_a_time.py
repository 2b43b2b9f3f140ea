"""Goals pursued one thing at a time: what agents are shown, what stays the task's, and orders in which cubes move."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
import torch
from approved import refused
from command_line import done, rejects
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from two_points import Line, TwoPoints, towards

import mocoda
from mocoda import OneAtATime, Transitions
from mocoda.engine.randomness import Stream
from mocoda.tasks.cubes import FIELD, Cubes, at_places, next_places
from mocoda.tasks.cubes_env import CENTRE, SCALE, make_world
from mocoda.tasks.task import make_environment

needs_ogbench = pytest.mark.skipif(find_spec("ogbench") is None, reason="ogbench is not installed")


class Step(NamedTuple):
    """What was shown before a step, and what came of it."""

    seen: dict[str, Any]
    action: Any
    told: tuple[Any, ...]  # reward, terminated, truncated, info


def play(task: Any, act: Callable[[dict[str, Any]], Any], *, seed: int = 0, most: int = 10**6) -> Iterator[Step]:
    """The steps of an episode."""
    env: gymnasium.Env[Any, Any] = make_environment(task.environment)
    seen, _ = env.reset(seed=seed)
    for _ in range(most):
        action = act(seen)
        after, *told = env.step(action)
        yield Step(seen, action, tuple(told))
        seen = after
        if told[1] or told[2]:
            return


def chase(seen: dict[str, Any]) -> Any:
    return towards().act(np.concatenate([seen["observation"], seen["desired_goal"]]))


def at_random(width: int) -> Callable[[dict[str, Any]], Any]:
    drawn = iter(0.1 * Stream(0, "test-one-at-a-time").uniform(60, width, low=-1.0).numpy())
    return lambda seen: next(drawn)


# --- what is shown


@pytest.mark.parametrize("seed", range(5))
def test_an_agent_moves_one_thing_at_a_time_and_solves_the_task(seed: int) -> None:
    moved = {
        name: np.array([np.abs(step.action) > 0 for step in steps])
        for name, steps in (
            ("all", play(Line(), chase, seed=seed)),
            ("one", play(OneAtATime(Line(), settled=3), chase, seed=seed)),
        )
    }
    assert moved["all"].all(1).any() and not moved["one"].all(1).any()
    second, first = moved["one"][:, 1].nonzero()[0], moved["one"][:, 0].nonzero()[0]
    assert second.max() < first.min() and len(moved["one"]) < 60  # as the task says, and before time is up


@needs_ogbench
def test_shown_goals_of_cubes_differ_in_one_cube_from_what_was_achieved() -> None:
    steps = list(play(OneAtATime(Cubes(3, official=2), limit=7), at_random(5), most=30))
    for number, step in enumerate(steps):
        chosen = steps[number // 7 * 7].seen["achieved_goal"]
        differ = np.abs(step.seen["desired_goal"] - chosen).reshape(3, 3).max(1) > 1e-6
        assert differ.sum() == 1


def test_a_goal_is_shown_until_it_was_reached_for_some_steps() -> None:
    env = make_environment(OneAtATime(Line(), settled=3).environment)
    first, second = env.reset(seed=0)[0]["desired_goal"]
    shown = []
    for at in (second, second, 0.0, second, second, second):  # it leaves once
        env.unwrapped.points = np.array([first, at], np.float32)  # type: ignore[attr-defined]
        shown.append(env.step(np.zeros(2, np.float32))[0]["desired_goal"][0])
    assert shown[:5] == [first] * 5 and shown[5] > 0 > first  # the first point's goal, after three steps in a row


def test_an_episode_begins_with_a_goal_of_its_own() -> None:
    env = make_environment(OneAtATime(Line()).environment)
    for seed in range(3):
        seen, _ = env.reset(seed=seed)
        assert seen["desired_goal"].tolist() == [seen["achieved_goal"][0], env.unwrapped.goal[1]]  # type: ignore[attr-defined]


def test_a_goal_is_chosen_anew_when_time_is_up() -> None:
    drift = np.array([0.01, 0.0], np.float32)
    shown = [step.seen["desired_goal"][0] for step in play(OneAtATime(Line(), limit=4), lambda seen: drift, most=12)]
    start = float(TwoPoints().reset(seed=0)[0]["achieved_goal"][0])
    assert shown == pytest.approx([start + 0.01 * (i // 4 * 4) for i in range(12)], abs=1e-5)


# --- what stays as it is


@pytest.mark.parametrize(
    ("task", "width", "most"), [(Line(), 2, 60), pytest.param(Cubes(2, official=4), 5, 30, marks=needs_ogbench)]
)
def test_states_rewards_and_ends_are_those_of_the_task(task: Any, width: int, most: int) -> None:
    plain, wrapped = (list(play(one, at_random(width), most=most)) for one in (task, OneAtATime(task, limit=5)))
    assert len(plain) == len(wrapped) == most
    for one, other in zip(plain, wrapped, strict=True):
        assert one.told == other.told
        for name in ("observation", "achieved_goal"):
            assert one.seen[name].tolist() == other.seen[name].tolist()
    first, shown = (steps[0].seen["desired_goal"].tolist() for steps in (plain, wrapped))
    assert first != shown


def test_a_function_that_changes_what_it_is_given_changes_no_observation() -> None:
    one, other = (list(play(OneAtATime(task), chase)) for task in (Line(), InPlace()))
    for name in ("observation", "achieved_goal", "desired_goal"):
        assert [step.seen[name].tolist() for step in one] == [step.seen[name].tolist() for step in other]


@needs_ogbench
def test_it_is_an_environment() -> None:
    for task in (Cubes(2), Cubes(3, official=5)):
        check_env(make_environment(OneAtATime(task).environment).unwrapped, skip_render_check=True)
        env = make_environment(OneAtATime(task).environment)
        assert env.observation_space.contains(env.reset(seed=0)[0])


def test_all_else_is_the_task_s() -> None:
    task = OneAtATime(Cubes(2, official=3), settled=2)
    assert task.name == "cube-double:3, one at a time" and task.graph is Cubes(2).graph and task.cubes == 2


# --- in other processes, with a graph file, and from the command line


TOML = """
environment = "two_points:TwoPoints-v0"
achieved = ["a", "b"]
tolerance = 0.05
[state]
b = ["b"]
a = ["a"]
[action]
push_a = ["push_a"]
push_b = ["push_b"]
[edges]
a = ["a", "push_a"]
b = ["b", "push_b"]
"""
PYTHON = """
environment, achieved, tolerance = "two_points:TwoPoints-v0", ["a", "b"], 0.05
action = {"push_a": ["push_a"], "push_b": ["push_b"]}
edges = {"a": ["a", "push_a"], "b": ["b", "push_b"]}

def next_goal(achieved, goal):
    import torch
    second = torch.stack([achieved[0], goal[1]])
    return goal if abs(achieved[1] - goal[1]) <= 0.05 else second
"""


@cache
def pushes() -> Transitions:
    """Random pushes, 10 to an episode."""
    state, action = Stream(0, "test-pushes").uniform(40, 4, low=-1.0).split(2, 1)
    names = ("a", "b", "push_a", "push_b")
    return Transitions(state, 0.1 * action, state + 0.1 * action, columns=names, episode=torch.arange(40) // 10)


def test_other_processes_play_the_same() -> None:
    agents = {("any", 0): towards()}
    found = [mocoda.evaluate(agents, OneAtATime(Line()), episodes=3, workers=workers) for workers in (0, 2)]
    assert found[0].values == found[1].values and found[0]["success"]["any", 0] == 1
    at_once = mocoda.evaluate(agents, Line(), episodes=3, workers=0)  # type: ignore[arg-type]
    assert at_once["steps"]["any", 0] < found[0]["steps"]["any", 0]


@pytest.mark.parametrize(("name", "text"), [("line.toml", TOML), ("line.py", PYTHON)])
def test_a_graph_file_says_or_implies_what_moves_first(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    task = OneAtATime(mocoda.make_task(graph=tmp_path / name, data=pushes()))
    moved = np.array([np.abs(step.action) > 1e-6 for step in play(task, chase)])
    # The state of the TOML file lists b before a; in the Python file a function says so.
    assert moved[:, 1].nonzero()[0].max() < moved[:, 0].nonzero()[0].min() and not moved.all(1).any()
    found = [mocoda.evaluate({("any", 0): towards()}, task, episodes=2, workers=workers) for workers in (0, 1)]
    assert found[0].values == found[1].values and found[0]["success"]["any", 0] == 1


def test_the_command_line_evaluates_and_films_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pushes().save("pushes.hdf5")
    Path("line.toml").write_text(TOML)
    sizes = ("--agent", "gciql", "--hidden", 8, "--batch", 16, "--seeds", 1, "--updates", 1, "--workers", 0)
    done("train", "pushes.hdf5", "--graph", "line.toml", *sizes, "--out", "agents")
    done("evaluate", "agents", "--episodes", 2, "--one-at-a-time")
    assert json.loads(Path("agents/evaluation.json").read_text())["task"] == "line, one at a time"
    done("watch", "agents", "--episodes", 1, "--one-at-a-time", "--out", "film.gif")
    assert Path("film.gif").stat().st_size > 50
    rejects("evaluate", "agents", "--task", "navigation", "--one-at-a-time")
    rejects("watch", "expert", "--task", "cube-double-states", "--one-at-a-time", "--out", "other.gif")


class InPlace(Line):
    """Changes what it is given."""

    def next_goal(self, achieved: Tensor, goal: Tensor) -> Tensor:
        achieved[:] = super().next_goal(achieved, goal).double()
        return achieved


class Pair(Line):
    """Returns no tensor."""

    def next_goal(self, achieved: Tensor, goal: Tensor) -> Any:
        return (achieved, goal)


class Bare(Line):
    """Its environment shows plain states."""

    environment = "point_task:Corridor-v0"


@pytest.mark.parametrize(
    "make",
    [
        lambda: OneAtATime(mocoda.make_task("navigation")),
        lambda: OneAtATime(Line(), settled=0),
        lambda: OneAtATime(Line(), limit=0),
        lambda: make_environment(OneAtATime(Pair()).environment).reset(seed=0),
        lambda: make_environment(OneAtATime(Bare()).environment).reset(seed=0),
    ],
    ids=range(5),
)
def test_what_cannot_be_pursued_one_at_a_time_is_refused(make: Callable[[], object]) -> None:
    with refused():
        make()


# --- the order of cubes

WIDE, HEIGHT, HALF = 0.35, 0.4, 0.2  # cubes that are nearer overlap; levels of a stack, and half a cube
Places = list[list[float]]


def scattered(cubes: int) -> st.SearchStrategy[Places]:
    """Places of cubes on the table, at least 7 cm apart."""
    low, high = ((FIELD - CENTRE[:2]) * SCALE).tolist()
    place = st.tuples(st.floats(low[0], high[0]), st.floats(low[1], high[1])).map(lambda xy: [*xy, HALF])
    return st.lists(place, min_size=cubes, max_size=cubes).filter(lambda all_: cubes == 1 or apart(all_) >= 0.7)


def apart(of: Places) -> float:
    return float(torch.pdist(torch.tensor(of)[:, :2]).min())


def moves(cubes: Tensor, goal: Tensor, most: int = 10) -> int:
    """Moves cubes at once to where they are to go, until all are there, and checks each move; returns their number."""
    for count in range(most + 1):
        if bool(at_places(cubes.flatten()[None], goal.flatten()[None])):
            return count
        wanted = next_places(cubes, goal)
        (mover,) = (wanted != cubes).any(1).nonzero()[:, 0].tolist()  # one cube, and no other
        others = cubes[torch.arange(len(cubes)) != mover]
        over = (others - cubes[mover])[:, :2].norm(dim=1) < 0.3
        assert not bool((over & (others[:, 2] > cubes[mover, 2] + HALF)).any()), "another one lies on it"
        gaps = others - wanted[mover]
        assert not bool((gaps.norm(dim=1) < WIDE).any()), "another one lies there"
        below = (gaps[:, :2].norm(dim=1) < HALF) & ((gaps[:, 2] + HEIGHT).abs() < 0.1)
        assert bool(wanted[mover, 2] < 0.3) or bool(below.any()), "there is nothing below it"
        cubes = wanted
    raise AssertionError(f"not solved in {most} moves")


@settings(deadline=None, max_examples=200)
@given(data=st.data(), cubes=st.integers(1, 4))
def test_cubes_anywhere_on_the_table_get_to_their_places(data: st.DataObject, cubes: int) -> None:
    start, goal = (torch.tensor(data.draw(scattered(cubes))) for _ in range(2))
    assert moves(start, goal) <= 2 * cubes


@needs_ogbench
@pytest.mark.parametrize("cubes", [1, 2, 3, 4])
def test_cubes_get_from_any_official_start_or_goal_to_all_goals_in_any_order(cubes: int) -> None:
    infos = make_world(cubes, "task").task_infos
    starts, goals = (
        torch.tensor((np.array([info[f"{kind}_xyzs"] for info in infos]) - CENTRE) * SCALE).float()
        for kind in ("init", "goal")
    )
    for start in torch.cat([starts, goals]):
        for goal in goals:
            for order in permutations(range(cubes)):
                moves(start, goal[list(order)])


@pytest.mark.parametrize(
    ("start", "goal", "most"),
    [
        # The second cube lies where the first belongs, 4 cm below its own place, which is near enough to count.
        ([[0, 1, 0.2], [0, 0, 0.2], [0, -1, 0.2]], [[0, 0, 0.2], [0, 0, 0.6], [0, 0, 1.0]], 4),
        # The first cube counts as in its place, and yet reaches into that of the last; another lies on it, or none.
        ([[0, 0.38, 0.2], [0, 2, 0.2]], [[0, 0, 0.2], [0, 0.7, 0.2]], 3),
        ([[0, 0.38, 0.2], [0, 0.3, 0.6], [0, 2, 0.2]], [[0, 0, 0.2], [0, 0, 0.6], [0, 0.7, 0.2]], 5),
        # Exchanges of places, the second in a row that leaves no place far from all others.
        ([[0, 1, 0.2], [0, -1, 0.2]], [[0, -1, 0.2], [0, 1, 0.2]], 3),
        ([[0, y, 0.2] for y in (-2.4, -0.8, 0.8, 2.4)], [[0, y, 0.2] for y in (-0.8, 0.8, 2.4, -2.4)], 5),
    ],
)
def test_cubes_in_each_other_s_way_are_put_aside(start: Places, goal: Places, most: int) -> None:
    assert moves(torch.tensor(start), torch.tensor(goal)) == most


def test_a_place_is_left_by_neighbours_before_a_cube_is_brought_there() -> None:
    goal = torch.tensor([[0, 0, 0.2], [0, 2, 0.2]])
    beside = torch.tensor([[0, -2, 0.2], [0, 0.5, 0.2]])
    assert next_places(beside, goal).equal(torch.stack([beside[0], goal[1]]))
