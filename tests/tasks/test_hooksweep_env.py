"""HookSweep2's environment: what it shows, pays and tells, that a seed decides all, and its expert."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest
from approved import refused
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray
from scipy.stats import kstest

import mocoda
from mocoda.tasks import hooksweep_env
from mocoda.tasks.hooksweep_env import (
    CENTRE,
    GOAL,
    HOME,
    HORIZON,
    TOLERANCE,
    TOUCHES,
    Floats,
    HookSweep2Env,
    Simulator,
    draw_boxes,
    draw_goal,
    fetch_with_hook,
)
from mocoda.tasks.hooksweep_expert import Expert, play

ID = mocoda.make_task("hooksweep2").environment
draws = pytest.mark.skipif(os.environ.get("MUJOCO_GL") != "egl", reason="there is no EGL to draw with")


@cache
def simulator() -> Simulator:
    """One for all tests that leave no trace in it."""
    return Simulator()


# --- Gymnasium's contract


DRAWN = pytest.param({"render_mode": "rgb_array"}, marks=draws)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("options", [{"mode": "two"}, {"mode": "one", "flat": True}, DRAWN], ids=str)
def test_gymnasium_s_checker_has_nothing_to_say(options: dict[str, Any]) -> None:
    check_env(gymnasium.make(ID, **options).unwrapped, skip_render_check="render_mode" not in options)


def test_an_episode_has_75_steps_and_never_terminates() -> None:
    environment = gymnasium.make(ID)
    environment.reset(seed=0)
    ends = [environment.step(np.zeros(4, np.float32))[2:4] for _ in range(HORIZON)]
    assert ends == [(False, False)] * 74 + [(False, True)]


def trace(environment: HookSweep2Env, seed: int) -> list[Any]:
    seen, info = environment.reset(seed=seed)
    actions = np.random.default_rng(0).uniform(-1, 1, (30, 4)).astype(np.float32)
    return [seen, info, *map(environment.step, actions)]


def test_a_seed_decides_the_whole_episode_whatever_was_played_before() -> None:
    used, fresh = HookSweep2Env(flat=True), HookSweep2Env(flat=True)
    other = trace(used, seed=8)
    again = trace(used, seed=7)
    assert repr(again) == repr(trace(fresh, seed=7)) != repr(other)


# --- starts and goals


def test_the_arm_starts_at_home_and_at_rest_and_boxes_stand_apart() -> None:
    random = np.random.default_rng(0)
    starts = np.array([draw_boxes(random) for _ in range(2_000)])
    assert np.abs(starts - CENTRE).max() <= 0.08
    assert np.linalg.norm(starts[:, 0] - starts[:, 1], axis=1).min() > 0.1
    assert bool((starts[:, 0, 1] <= starts[:, 1, 1]).all())  # box 1 on the low-y side
    simulator().reset(starts[0])
    state = simulator().state()
    assert state[:3] == pytest.approx(HOME, abs=0.02)
    assert state[3:6].tolist() == [0, 0, 0]
    assert state[6:].reshape(2, 5).tolist() == [[*place, 0.425, 0, 0] for place in starts[0].tolist()]


@pytest.mark.parametrize("mode", ["two", "one"])
def test_goals_are_a_shift_of_both_boxes_or_of_one(mode: str) -> None:
    random = np.random.default_rng(0)
    shift = np.array([draw_goal(random, mode) for _ in range(4_000)]).reshape(-1, 2, 3) - GOAL
    moved = np.abs(shift).max(2) > 1e-12
    assert not shift[..., 2].any()
    if mode == "two":
        assert moved.all() and np.abs(shift[:, 0] - shift[:, 1]).max() < 1e-12
    else:
        assert moved.sum(1).tolist() == [1] * 4_000
        assert moved[:, 0].mean() == pytest.approx(0.5, abs=0.03)
    x, y = shift[moved][:, 0], shift[moved][:, 1]
    assert (x > 0).mean() == pytest.approx(0.5, abs=0.03)
    jitter = np.abs(x) - 0.31
    for part in (jitter, y):
        assert kstest(part, "uniform", (-0.1, 0.2)).pvalue > 1e-3


# --- rewards


def slow_reward(boxes: Floats, goal: Floats, height: float) -> float:
    """The formula of the paper's code, box by box."""
    distances = [float(np.linalg.norm(boxes[i : i + 3] - goal[i : i + 3])) for i in (0, 3)]
    success = float(max(distances) <= 0.14)
    bonus = float(np.clip(0.5 - 5 * abs(height - 0.42), 0, 0.5))
    cost = 0.1 * sum(np.clip(distance / 0.14, 0, 1) for distance in distances)
    return float(np.clip(success - 1 - cost + bonus * (1 - success), -1, 0))


def cases(count: int = 3_000) -> tuple[Floats, Floats, Floats]:
    """Boxes, goals and heights around everything that matters: near and far, and the hook low and high."""
    random = np.random.default_rng(0)
    goal = np.array([draw_goal(random, "two") for _ in range(count)])
    boxes = goal + random.normal(size=(count, 6)) * random.choice([0.02, 0.07, 0.3], (count, 1))
    return boxes, goal, random.uniform(0.3, 0.6, count)


def test_rewards_are_those_of_the_formula_one_by_one_and_in_batches() -> None:
    boxes, goal, height = cases()
    expected = [slow_reward(*case) for case in zip(boxes, goal, height, strict=True)]
    assert min(expected) == -1 and -0.3 < max(expected) < 0
    assert sum(reward > -0.3 for reward in expected) > 500
    environment = HookSweep2Env()
    infos = [{"grip_height": one} for one in height]
    at_once = environment.compute_reward(boxes, goal, {"grip_height": height})
    assert at_once.shape == (3_000,) and at_once == pytest.approx(expected, abs=1e-12)
    assert environment.compute_reward(boxes, goal, infos).tolist() == at_once.tolist()
    single = [environment.compute_reward(*case) for case in zip(boxes[:50], goal[:50], infos[:50], strict=True)]
    assert {one.shape for one in single} == {()} and [float(one) for one in single] == at_once[:50].tolist()


# --- what touches what


def driven(boxes: list[list[float]], *moves: tuple[list[float], int]) -> NDArray[np.bool_]:
    """Which of TOUCHES there were, step by step, (N, 3), with boxes there and each action repeated."""
    simulator().reset(np.array(boxes))
    steps = [np.array([*direction, 0.0]) for direction, count in moves for _ in range(count)]
    return np.array([simulator().step(step) for step in steps])


DOWN, FORTH = [0.0, 0.0, -1.0], [1.0, 0.0, 0.0]
SHAFT, FAR = [1.7, 0.75], [2.5, 1.2]  # under the middle of the shaft, and nowhere near


@pytest.mark.parametrize(("boxes", "touch"), [([SHAFT, FAR], 0), ([FAR, SHAFT], 1)], ids=TOUCHES[:2])
def test_a_hook_that_comes_down_on_a_box_touches_that_box(boxes: list[list[float]], touch: int) -> None:
    touched = driven(boxes, (DOWN, 12))
    assert touched.any(0).tolist() == [number == touch for number in range(3)]
    first = int(touched[:, touch].argmax())
    assert first > 0 and touched[first:, touch].all()


def test_a_box_that_is_pushed_against_another_touches_it_and_the_hook_only_the_first() -> None:
    assert not driven([[1.8, 0.6], [1.9, 0.9]], ([0.0] * 3, 10)).any()  # the arm stays at home
    touched = driven([[2.06, 0.7], [2.17, 0.7]], (DOWN, 8), (FORTH, 15))
    assert not touched[:8].any()
    assert touched.any(0).tolist() == [True, False, True]
    assert touched[:, 0].argmax() < touched[:, 2].argmax()  # the hook has to come first


# --- the expert


@pytest.mark.parametrize(
    ("mode", "variety", "least"), [("one", "plain", 0.85), ("one", "varied", 0.7), ("two", "plain", 0.85)]
)
def test_boxes_are_swept_or_left_within_their_tolerance(mode: str, variety: str, least: float) -> None:
    episodes = [play(simulator(), np.random.default_rng(seed), mode, variety, 0.2) for seed in range(16)]
    away = np.array([episode.distances() for episode in episodes])  # (episodes, 2)
    assert (away <= TOLERANCE).all(1).mean() >= least


def test_the_expert_looks_at_observations_and_the_goal_only() -> None:
    """Shown the recorded observations again, a new expert without a simulator asks for the same."""
    episode = play(simulator(), np.random.default_rng(2), "one", "plain", 0.0)
    expert = Expert(episode.goal)
    asked = [expert.act(state) for state in episode.states[:-1]]
    assert np.array(asked).tolist() == episode.actions.tolist()


# --- pictures


@draws
def test_a_picture_shows_boxes_and_goals() -> None:
    environment = HookSweep2Env(render_mode="rgb_array")
    environment.reset(seed=4)
    picture = environment.render()
    assert picture.shape == (480, 640, 3) and picture.dtype == np.uint8
    assert environment.render().tolist() == picture.tolist()
    boxes, goal = environment.simulator.state()[6:].reshape(2, 5)[:, :2], environment.goal
    environment.simulator.reset(boxes + 0.05)
    assert (environment.render() != picture).any(2).sum() > 100
    environment.simulator.reset(boxes)
    environment.goal = goal - 9
    assert (environment.render() != picture).any(2).sum() > 1_000  # the discs are large
    environment.close()


# --- wrong input


@pytest.mark.parametrize(
    ("error", "version"),
    [
        (ModuleNotFoundError("No module"), ""),
        (AttributeError("no attribute 'eglQueryString'"), ""),  # where MUJOCO_GL=egl and there is no EGL
        (None, "3.3.7"),
    ],
)
def test_without_the_right_mujoco_it_is_said_what_to_do(
    error: Exception | None, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooksweep_env, "broken", error)
    monkeypatch.setattr(mujoco, "__version__", version)
    monkeypatch.setenv("MUJOCO_GL", "egl")
    with refused():
        fetch_with_hook.__wrapped__()  # not the one that this process already has


def test_where_nothing_can_be_drawn_it_is_said_how(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_display(*given: Any) -> None:
        raise RuntimeError("no display")

    monkeypatch.setattr(mujoco, "Renderer", no_display)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    environment = HookSweep2Env(render_mode="rgb_array")
    environment.reset(seed=0)
    with refused():
        environment.render()
    assert np.isfinite(environment.step(np.zeros(4, np.float32))[1])  # whoever does not look can go on
