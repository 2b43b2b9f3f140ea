"""HookSweep2 as a task: its graph, its labels, its goals, and recordings that do not depend on who makes them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from approved import refused
from torch import Tensor

from mocoda import Transitions
from mocoda.engine.randomness import Stream
from mocoda.tasks import hooksweep
from mocoda.tasks.hooksweep import COLUMNS, EPISODES, GRAPH, HookSweep2, local_mask, record
from mocoda.tasks.hooksweep_env import GOAL, HookSweep2Env, Simulator, draw_goal
from mocoda.tasks.hooksweep_expert import Episode, Expert

TASK = HookSweep2()
ROWS = 2_000
PART = EPISODES * 75  # rows of a part of which no episode is dropped


@cache
def recorded() -> Transitions:
    return TASK.collect(ROWS, seed=0, workers=0)


def same(one: Transitions, other: Transitions) -> bool:
    return all(array.equal(other.arrays()[name]) for name, array in one.arrays().items())


def rows_with_boxes(*boxes: tuple[float, float, float, float]) -> Tensor:
    """Rows (N, 20) whose boxes are at (x1, y1, x2, y2) and the rest of which is noise."""
    rows = Stream(0, "test-hooksweep").normal(len(boxes), 20)
    rows[:, [6, 7, 11, 12]] = torch.tensor(boxes)
    return rows


# --- the graph


def test_boxes_listen_to_each_other_only_where_they_are_near() -> None:
    mask = local_mask(
        rows_with_boxes((1.8, 0.7, 1.8, 0.8), (1.8, 0.7, 1.82, 0.729), (1.8, 0.7, 1.82, 0.731), (1.8, 0.7, 1.79, 0.665))
    )
    apart = [[1, 1, 1], [1, 1, 0], [1, 0, 1], [1, 1, 1]]  # gripper, box1, box2, action -> gripper, box1, box2
    assert mask[0].int().tolist() == mask[2].int().tolist() == apart
    assert mask[[1, 3]].all()  # 0.049 and 0.045 apart, in the L1 norm
    assert all(COLUMNS[column].startswith(name) for name, columns in GRAPH.factors.items() for column in columns)


# --- goals and rewards


def test_goals_are_those_of_the_environment() -> None:
    drawn = TASK.goals(4_000, seed=1)
    random = np.random.default_rng(1)
    expected = torch.tensor(np.array([draw_goal(random, "two") for _ in range(4_000)]), dtype=torch.float32)
    assert drawn.shape == (4_000, 6) and drawn.dtype == torch.float32
    for part in (drawn[:, 0].sort().values - expected[:, 0].sort().values, drawn.std(0) - expected.std(0)):
        assert float(part.abs().mean()) < 0.01


def played() -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor, float, bool]]:
    """Steps of an expert in the environment: state, action, next state, goal, the step's reward and success."""
    environment = HookSweep2Env()
    for seed in range(3):
        seen, _ = environment.reset(seed=seed)
        expert = Expert(seen["desired_goal"])
        for _ in range(75):
            action = expert.act(seen["observation"]).astype(np.float32)
            following, reward, *_, info = environment.step(action)
            parts = (seen["observation"], action, following["observation"], seen["desired_goal"])
            yield *(torch.tensor(part, dtype=torch.float32)[None] for part in parts), reward, info["is_success"]
            seen = following


def test_labels_are_the_rewards_of_the_environment_and_no_row_is_terminal() -> None:
    *parts, rewards, success = zip(*played(), strict=True)
    state, action, following, goal = (torch.cat(part) for part in parts)
    reward, terminal = TASK.label(state, action, following, goal)
    torch.testing.assert_close(reward.double(), torch.tensor(rewards, dtype=torch.float64), rtol=0, atol=2e-6)
    assert not bool(terminal.any()) and terminal.dtype == torch.bool
    assert (reward > -0.3).tolist() == list(success) and 20 < sum(success) < 200


# --- the true next state


def test_the_true_next_states_are_near_the_recorded_ones() -> None:
    few = recorded()[::200]
    wrong = (TASK.step(few.rows) - few.next_state).abs()
    assert float(wrong[:, :3].median()) < 0.005 and float(wrong[:, [6, 7, 11, 12]].median()) < 1e-3


# --- recordings


def test_a_recording_says_what_it_is() -> None:
    data = recorded()
    assert len(data) == ROWS and data.columns == COLUMNS
    source = dict(data.source)
    episodes, successes, dropped = (source.pop(name) for name in ("episodes", "successes", "dropped"))
    assert source == {"task": "hooksweep2", "rows": ROWS, "seed": 0, "variety": "varied"}
    kept = episodes - dropped
    assert episodes % EPISODES == 0 and 75 * kept >= ROWS and 0.6 * episodes < successes <= kept

    begins = torch.arange(ROWS) % 75 == 0
    assert data.state[1:][~begins[1:]].equal(data.next_state[:-1][~begins[1:]])
    assert float((data.state[begins, :3] - data.state[0, :3]).abs().max()) < 1e-6  # at home


def test_episodes_that_move_the_other_box_away_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = [(True, True), (False, True), (True, False), (False, False)] * (EPISODES // 4)  # swept, and the other left
    numbers = iter(range(EPISODES))

    def played(simulator: Simulator, random: np.random.Generator, mode: str, variety: str) -> Episode:
        """An episode whose every number is its own, but for how it ends."""
        number = next(numbers)
        states, goal = np.full((76, 16), float(number)), GOAL + np.array([[0.31, 0, 0], [0, 0, 0]])
        states[-1, 6:] = np.append(
            goal + [[0 if well else 1, 0, 0] for well in ends[number]], np.zeros((2, 2)), axis=1
        ).ravel()
        return Episode(states, np.full((75, 4), float(number)), np.zeros((75, 3), bool), goal.ravel())

    monkeypatch.setattr(hooksweep, "play", played)
    part = record(("varied", 5))
    kept = [number for number, (_, left) in enumerate(ends) if left]
    assert part.counts.tolist() == [[EPISODES, EPISODES // 4, EPISODES // 2]]
    assert part.state[:, 0].tolist() == part.action[:, 0].tolist() == np.repeat(kept, 75).tolist()
    assert part.next_state[:, 0].tolist() == part.state[:, 0].tolist()
    assert [len(array) for array in part[:3]] == [75 * len(kept)] * 3


# --- parts in a folder


def test_finished_parts_are_kept_and_not_recorded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = TASK.collect(PART // 2, seed=0, folder=tmp_path)
    assert len(list(tmp_path.glob("part-*.npz"))) == len(list(tmp_path.iterdir())) == 1
    told: list[int] = []
    again = TASK.collect(ROWS, seed=0, folder=tmp_path, progress=lambda stage, done, total: told.append(done))
    assert same(again, recorded()) and told == sorted(told) and told[-1] == ROWS
    assert len(list(tmp_path.iterdir())) == 2
    monkeypatch.setattr(hooksweep, "record", lambda job: pytest.fail("recorded again"))
    assert same(TASK.collect(ROWS, seed=0, folder=tmp_path), recorded())
    assert same(TASK.collect(PART // 2, seed=0, folder=tmp_path), first)


def test_seed_and_variety_decide_the_rows_and_parts_of_others_are_not_used(tmp_path: Path) -> None:
    other = TASK.collect(10, seed=1, folder=tmp_path)
    plain = TASK.collect(10, seed=0, variety="plain", folder=tmp_path)
    assert plain.source["variety"] == "plain"
    for data in (other, plain):
        assert not data.state.equal(recorded().state[:10])
    assert same(TASK.collect(500, seed=0, folder=tmp_path), recorded()[:500])


# --- wrong input


def test_wrong_input_is_refused() -> None:
    with refused():
        TASK.collect(0, seed=0)
    with refused():
        TASK.collect(9, seed=0, variety="pain")
