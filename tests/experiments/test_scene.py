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


@pytest.mark.parametrize("official", [1, 2, 3, 4, 5])
def test_goals_on_the_way_change_one_thing_each_until_the_official_goal_is_reached(official: int) -> None:
    task = Scene(official=official)
    seen = task.environment().reset(seed=0)[0]
    achieved, goal = (torch.tensor(seen[name], dtype=torch.float32) for name in ("achieved_goal", "desired_goal"))
    things = {"cube": [0, 1, 2], "drawer's lock": [3], "window's lock": [4], "drawer": [5], "window": [6]}
    for _ in range(9):
        shown = task.next_goal(achieved, goal)
        changed = {name for name, columns in things.items() if not shown[columns].equal(achieved[columns])}
        assert len(changed) == 1 or changed == {"cube", "drawer"}  # the cube lies in the drawer
        assert not ({"drawer"} & changed and achieved[3] < 0.5) and not ({"window"} & changed and achieved[4] < 0.5)
        achieved = shown
        if bool(task.reached(achieved[None], goal[None])):
            break
    assert bool(task.reached(achieved[None], goal[None]))
