from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from approved import refused
from point_task import PointTask

import mocoda
from mocoda import Transitions, augment, fit_parents
from mocoda.augmentation.generation import GoalLabels
from mocoda.augmentation.rewards import GoalsOf, LearnedReward, RewardConfig, fit_reward
from mocoda.tasks.navigation import Navigation

TASK, POINT = Navigation(), PointTask()
CONFIG = RewardConfig(hidden=(64, 64), updates=400, batch=256, learning_rate=3e-3)
BRIEF = replace(CONFIG, updates=20)
POINTS = POINT.collect(1_500, seed=0)


def walked(reward: Any, terminal: Any = None, rows: int = 3_000) -> Transitions:
    """Navigation's rows, rewarded by a function of them."""
    data = TASK.collect(rows, seed=0)
    ends = None if terminal is None else terminal(data)
    return Transitions(data.state, data.action, data.next_state, reward(data), ends, columns=data.columns)


def smooth(data: Transitions) -> torch.Tensor:
    return (data.next_state - 0.5).square().sum(1) * 30 + data.action[:, 0]


def label(learned: LearnedReward, data: Transitions) -> tuple[torch.Tensor, torch.Tensor]:
    return learned.label(data.state, data.action, data.next_state, data.goal)


def test_a_smooth_reward_is_learned_and_how_well_is_told_of_rows_not_seen() -> None:
    learned = fit_reward(walked(smooth), config=CONFIG)
    fresh = TASK.collect(2_000, seed=9)
    reward, terminal = label(learned, fresh)
    truth = smooth(fresh)
    r2 = 1 - float((reward - truth).square().sum() / (truth - truth.mean()).square().sum())
    assert learned.held_out["held_out_rows"] == 375
    assert r2 > 0.98
    assert learned.held_out["held_out_r2"] == pytest.approx(r2, abs=0.01)
    share = 100 * (learned.held_out["held_out_r2"] or 0)
    assert learned.in_words == f"on 375 rows held out, {share:.4g}% of the reward's variance is explained (R²)."
    assert not terminal.any()


def test_a_sparse_reward_stays_sparse_and_ends_are_learned_where_there_are_any() -> None:
    def reached(data: Transitions) -> torch.Tensor:
        return data.next_state[:, 1] > 0.6

    data = walked(lambda data: reached(data).float() * 5 - 1, reached)
    learned = fit_reward(data, config=CONFIG)
    fresh = TASK.collect(2_000, seed=9)
    reward, terminal = label(learned, fresh)
    assert set(reward.tolist()) == {-1.0, 4.0}
    assert float((reward == reached(fresh).float() * 5 - 1).float().mean()) > 0.97
    assert float((terminal == reached(fresh)).float().mean()) > 0.97
    for name in ("held_out_r2", "terminal_recall", "terminal_precision"):
        quality = learned.held_out[name]
        assert quality is not None and quality > 0.85
    assert learned.source == {"reward": {"learned": True, **learned.held_out}}
    assert "of the ends are found" in learned.in_words


def test_a_reward_that_never_changes_is_that_reward() -> None:
    learned = fit_reward(walked(lambda data: torch.full((len(data),), -2.5)), config=BRIEF)
    reward, terminal = label(learned, TASK.collect(100, seed=1))
    assert set(reward.tolist()) == {-2.5} and not terminal.any()
    assert learned.held_out["held_out_r2"] is None
    assert learned.in_words == "on 375 rows held out, the reward is the same in all of them."


def test_a_goal_is_part_of_what_a_reward_is_about() -> None:
    assert POINTS.goal is not None
    distance = (POINTS.next_state[:, :2] - POINTS.goal).norm(dim=1)
    data = Transitions(POINTS.state, POINTS.action, POINTS.next_state, -distance, goal=POINTS.goal)
    learned = fit_reward(data, config=CONFIG)
    fresh = POINT.collect(1_000, seed=5)
    arrived = replace_goal(fresh, fresh.next_state[:, :2])
    assert float(label(learned, arrived)[0].mean()) > float(label(learned, fresh)[0].mean()) + 0.5


def replace_goal(data: Transitions, goal: torch.Tensor) -> Transitions:
    return Transitions(data.state, data.action, data.next_state, goal=goal)


def test_the_same_seed_learns_the_same_and_a_file_keeps_it(tmp_path: Path) -> None:
    data = walked(smooth, lambda data: data.next_state[:, 1] > 0.6, rows=400)
    one, again, other = (fit_reward(data, seed=seed, config=BRIEF) for seed in (3, 3, 4))
    assert label(one, data)[0].equal(label(again, data)[0])
    assert not label(one, data)[0].equal(label(other, data)[0])
    one.save(tmp_path / "reward.safetensors")
    back = LearnedReward.load(tmp_path / "reward.safetensors")
    assert all(mine.equal(kept) for mine, kept in zip(label(one, data), label(back, data), strict=True))
    assert back.source == one.source and back.ends


def test_augment_takes_it_for_a_task_and_the_table_says_so() -> None:
    data = walked(smooth, rows=300)
    learned = fit_reward(data, config=BRIEF)
    made = augment(data, fit_parents(data, TASK.graph, "emp"), rows=50, task=learned)
    assert made.reward is not None and made.reward.equal(label(learned, made)[0])
    assert made.source["reward"] == {"learned": True, **learned.held_out}


def test_rewards_that_cannot_be_learned_are_refused() -> None:
    bare = Transitions(torch.zeros(3, 2), torch.zeros(3, 1), torch.zeros(3, 2))
    for data in (bare, walked(smooth)[:1]):
        with refused():
            fit_reward(data)
    with refused():
        label(fit_reward(walked(smooth, rows=50), config=BRIEF), POINTS)
    with refused():
        RewardConfig(updates=0)
    with refused():  # a training that diverges
        fit_reward(walked(smooth, rows=100), config=replace(BRIEF, learning_rate=1e30))
    with refused():  # rows of another world
        mocoda.label(POINTS, TASK)


# Goals without a task


def test_goals_of_the_data_are_drawn_as_often_as_they_were_recorded() -> None:
    few = replace_goal(POINTS[:4], torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]))
    drawn = GoalsOf(few, POINT).goals(4_000, seed=0, device="cpu")
    assert set(map(tuple, drawn.tolist())) == {(0.0, 0.0), (1.0, 1.0)}
    assert float(drawn[:, 0].mean()) == pytest.approx(0.25, abs=0.03)
    assert drawn.equal(GoalsOf(few, POINT).goals(4_000, seed=0, device="cpu"))


@pytest.mark.parametrize("hindsight", [0.0, 0.3, 1.0])
def test_goals_of_the_data_and_hindsight_mix_in_any_ratio(hindsight: float) -> None:
    task = GoalsOf(POINTS, POINT, POINT.achieved)
    assert isinstance(task, GoalLabels)
    parents = fit_parents(POINTS, POINT.graph, "emp")
    made = augment(POINTS, parents, rows=2_000, task=task, hindsight=hindsight, keep_recorded=False)
    assert made.goal is not None and made.reward is not None and POINTS.goal is not None
    own = (made.goal == POINT.achieved(made.next_state)).all(1)
    assert float(own.float().mean()) == pytest.approx(hindsight, abs=0.04)
    known = set(map(tuple, POINTS.goal.tolist()))
    assert set(map(tuple, made.goal[~own].tolist())) <= known
    assert made.reward.equal(POINT.label(made.state, made.action, made.next_state, made.goal)[0])
    assert (made.source["goals"], made.source["task"]) == ("recorded", "point")


def test_goals_that_are_not_there_and_hindsight_that_knows_nothing_are_refused() -> None:
    with refused():
        GoalsOf(TASK.collect(5, seed=0), TASK)
    with refused():
        augment(POINTS, fit_parents(POINTS, POINT.graph, "emp"), rows=20, task=GoalsOf(POINTS, POINT), hindsight=0.5)


def test_rows_are_labelled_as_the_task_labels_them_and_keep_the_rest() -> None:
    data = TASK.collect(200, seed=0)
    bare = replace(data, reward=None, terminal=torch.zeros(len(data), dtype=torch.bool))
    labelled = mocoda.label(bare, TASK)
    assert labelled.reward is not None and data.reward is not None
    assert labelled.reward.equal(data.reward) and labelled.terminal.equal(data.terminal)
    goals = data.state.flip(0)
    kept = mocoda.label(replace(bare, goal=goals), TASK)
    assert kept.goal is not None and kept.goal.equal(goals)
