"""OGBench's scene as a task that the package does not know: what its recordings lack, and how true its simulator is."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import pytest
import torch

from mocoda import Transitions, check_step

pytestmark = pytest.mark.skipif(find_spec("ogbench") is None, reason="ogbench is not installed")
if find_spec("ogbench") is not None:
    from experiments.scene.world import Scene, both_open, official_goal


@cache
def recorded(variety: str) -> Transitions:
    return Scene().collect(1_000, seed=0, variety=variety)


def test_only_recordings_of_everything_show_drawer_and_window_open() -> None:
    assert not bool(both_open(torch.cat([recorded("left-out").state, recorded("left-out").next_state])).any())
    assert bool(both_open(recorded("play").state).any())


def test_the_simulator_confirms_recorded_rows() -> None:
    task, data = Scene(), recorded("left-out")
    check = check_step(data, task.step, task.graph, tolerance=dict(task.tolerance), columns=task.compared)
    assert check.confirmed >= 0.95 and task.graph.sparsest.shape == (5, 4)


def test_an_official_episode_has_the_goal_of_its_task_and_two_worlds_have_locks_of_their_own() -> None:
    first, second = (Scene(official=task).environment() for task in (1, 2))
    shown, other = first.reset(seed=0)[0], second.reset(seed=0)[0]
    assert shown["desired_goal"].tolist() == official_goal(1) and not Scene().reached(
        *(torch.tensor(shown[name], dtype=torch.float32)[None] for name in ("achieved_goal", "desired_goal"))
    )
    assert other["achieved_goal"][3:5].tolist() == [0, 0]
    after, reward, terminated, _, info = first.step(first.action_space.sample())
    assert after["achieved_goal"][3:5].tolist() == [1, 1]  # unlocked, though the other world's are locked
    assert (reward, terminated, info["is_success"]) == (-1.0, False, False)
    assert after["observation"].shape == (40,)
