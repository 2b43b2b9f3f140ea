"""HookSweep2's scripted expert: how often it does what it should, what it may look at, and how its ways vary."""

from __future__ import annotations

from dataclasses import fields
from functools import cache

import numpy as np
import pytest

from mocoda.tasks.hooksweep_env import CENTRE, HORIZON, TOLERANCE, Floats, Simulator, boxes_of
from mocoda.tasks.hooksweep_expert import STYLES, Episode, Expert, Style, play

EPISODES = 40
RESTING = Style(noise=0.0)


@cache
def simulator() -> Simulator:
    return Simulator()


def played(seed: int, mode: str = "one", variety: str = "plain", noise: float | None = 0.2) -> Episode:
    return play(simulator(), np.random.default_rng(seed), mode, variety, noise)


def ends(mode: str, variety: str) -> Floats:
    """Distances (EPISODES, 2) from the goals in the end, of the box that was to be swept first."""
    return np.array([played(seed, mode, variety).distances() for seed in range(EPISODES)])


@pytest.mark.parametrize(("variety", "least"), [("plain", 0.85), ("varied", 0.7)])
def test_one_box_is_swept_and_the_other_left_within_its_tolerance(variety: str, least: float) -> None:
    swept, left = (ends("one", variety) <= TOLERANCE).T
    assert (swept & left).mean() >= least
    assert left.mean() >= least


def test_both_boxes_are_swept() -> None:
    assert (ends("two", "plain") <= TOLERANCE).all(1).mean() >= 0.85


def test_it_looks_at_observations_and_the_goal_only() -> None:
    """Shown the recorded observations again, a new expert without a simulator asks for the same."""
    episode = played(2, noise=0.0)
    expert = Expert(episode.goal)
    asked = [expert.act(state) for state in episode.states[:-1]]
    assert np.array(asked).tolist() == episode.actions.tolist()


def test_the_varied_way_varies_in_all_respects() -> None:
    random = np.random.default_rng(0)
    styles = [STYLES["varied"](random) for _ in range(500)]
    for setting in fields(Style):
        assert len({repr(getattr(style, setting.name)) for style in styles}) > 1, setting.name
    assert min(style.speed for style in styles) > 0.3 and max(style.speed for style in styles) <= 1
    passed = [place for style in styles for place in (*style.detour, *style.after)]
    assert min(height for _, _, height in passed) >= 0.5  # the hook passes over the boxes


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize("box", [0, 1])
def test_it_sweeps_either_box_to_either_side(box: int, side: int) -> None:
    goal = np.array([[1.85, 0.7, 0.42], [1.85, 0.8, 0.42]])
    goal[box, 0] += side * 0.31
    simulator().reset(CENTRE + np.array([[0.0, -0.08], [0.0, 0.07]]))
    expert = Expert(goal.ravel(), RESTING)
    for _ in range(HORIZON):
        simulator().step(expert.act(simulator().state()))
    away = np.linalg.norm((boxes_of(simulator().state()) - goal.ravel()).reshape(2, 3), axis=1)
    assert away.max() <= TOLERANCE
