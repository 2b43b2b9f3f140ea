"""A two-sample classifier finds what differs, and nothing where nothing does: known answers for AUC and interval."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from approved import refused
from torch import Tensor

import mocoda
from experiments.columns import PUBLISHED
from mocoda import LocalGraph, make_recipe
from mocoda.engine.randomness import Stream
from mocoda.tasks.navigation import Navigation

SET = ("x", "u")
SETS = (SET, ("y", "v"))


def one_set(columns: int) -> LocalGraph:
    return LocalGraph(state={"x": slice(0, columns - 1)}, action={"u": 0}, edges={"x": ["x", "u"]})


def two_sets() -> LocalGraph:
    """Columns: x, y (state), u, v (action)."""
    return LocalGraph(state={"x": 0, "y": 1}, action={"u": 0, "v": 1}, edges={"x": ["x", "u"], "y": ["y", "v"]})


def normal(rows: int, columns: int, *labels: str | int) -> Tensor:
    return Stream(0, "test-two-sample", *labels).normal(rows, columns)


def episodes(count: int, length: int, *labels: str | int) -> Tensor:
    """Rows (count * length, 3): two columns that stay as they are for an episode, and noise."""
    stays = normal(count, 2, "stays", *labels).repeat_interleave(length, 0)
    return torch.cat([stays, normal(count * length, 1, "noise", *labels)], 1)


@pytest.mark.parametrize("shift", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("columns", [2, 10])
def test_shifted_gaussians_are_told_nearly_as_well_as_can_be(shift: float, columns: int) -> None:
    recorded, drawn = normal(4_000, columns, "recorded"), normal(4_000, columns, "drawn", columns)
    drawn[:, 0] += shift
    found = mocoda.two_sample(recorded, drawn, one_set(columns))[SET]
    best = 0.5 * (1 + math.erf(shift / 2))
    assert best - 0.04 < found.auc < best + 0.015
    assert found.interval[0] < found.auc < found.interval[1] < found.auc + 0.03


def test_log_odds_are_those_of_the_densities() -> None:
    recorded, drawn = normal(6_000, 2, "recorded"), normal(6_000, 2, "drawn")
    drawn[:, 0] += 1.0
    found = mocoda.two_sample(recorded, drawn, one_set(2))[SET]
    fresh = normal(2_000, 2, "fresh")
    odds = found.log_odds(fresh.numpy())
    assert odds.shape == (2_000,)
    assert float(torch.corrcoef(torch.stack([odds, fresh[:, 0] - 0.5]))[0, 1]) > 0.95
    assert abs(float(odds.mean()) + 0.5) < 0.15
    with refused():
        found.log_odds(fresh[:, :1])


def test_of_the_same_distribution_half_is_in_the_interval() -> None:
    found = [
        mocoda.two_sample(normal(600, 3, "a", i), normal(600, 3, "b", i), one_set(3), seed=i)[SET] for i in range(16)
    ]
    assert sum(one.interval[0] <= 0.5 <= one.interval[1] for one in found) >= 15
    assert abs(sum(one.auc for one in found) / 16 - 0.5) < 0.015


def test_copies_are_not_told_if_no_episode_is_in_two_folds() -> None:
    """Else who knows the episodes by heart tells copies from held-out rows, though the law is the same."""
    graph = LocalGraph(state={"x": [0, 1]}, action={"u": 0}, edges={"x": ["x", "u"]})
    fold, by_fold, mixed = torch.arange(2_400) // 120 % 5, [], []
    for seed in range(4):
        shown, held_out = episodes(60, 40, "shown", seed), episodes(60, 40, "held-out", seed)
        copied = Stream(seed, "test-two-sample", "copies").integers(2_400, 2_000)
        folds = fold, fold[copied]
        by_fold.append(mocoda.two_sample(held_out, shown[copied], graph, folds=folds)[SET])
        mixed.append(mocoda.two_sample(held_out, shown[copied], graph)[SET])
    assert sum(one.interval[0] <= 0.5 <= one.interval[1] for one in by_fold) >= 3
    assert sum(one.auc for one in mixed) / 4 > sum(one.auc for one in by_fold) / 4 + 0.05


def test_rows_drawn_many_times_are_not_known_by_heart() -> None:
    source, held_out = normal(300, 3, "source"), normal(3_000, 3, "held-out")
    drawn = source[Stream(0, "test-two-sample", "again").integers(300, 3_000)]
    assert mocoda.two_sample(held_out, drawn, one_set(3))[SET].auc < 0.56


def test_values_that_return_exactly_stand_out() -> None:
    """A box at rest: 70% of a column is 0, where a density has a narrow bump."""
    rest = Stream(0, "test-two-sample", "rest").uniform(4_000, 1) < 0.7
    recorded = torch.where(rest, 0.0, normal(4_000, 1, "moves"))
    drawn = torch.where(rest, 0.02 * normal(4_000, 1, "bump"), normal(4_000, 1, "drawn"))
    other, graph = normal(4_000, 2, "other"), one_set(2)
    found = mocoda.two_sample(torch.cat([recorded, other[:, :1]], 1), torch.cat([drawn, other[:, 1:]], 1), graph)[SET]
    assert found.auc > 0.8


def test_values_of_a_few_kinds_are_told_by_how_frequent_they_are() -> None:
    stream = Stream(0, "test-two-sample", "kinds")
    recorded, drawn = ((stream.uniform(2_000, 2) < share).float() for share in (0.5, 0.5))
    graph = one_set(2)
    same = mocoda.two_sample(recorded, drawn, graph)[SET]
    assert same.interval[0] <= 0.5 <= same.interval[1]
    other = (stream.uniform(2_000, 2) < 0.8).float()
    assert mocoda.two_sample(recorded, other, graph)[SET].auc > 0.68


def test_each_parent_set_is_judged_by_itself() -> None:
    recorded, drawn = normal(2_000, 4, "recorded"), normal(2_000, 4, "drawn")
    drawn[:, 2] = drawn[:, 0]  # u now goes along with x, as columns by themselves they are as before
    found = mocoda.two_sample(recorded, drawn, two_sets())
    assert tuple(found) == SETS
    assert found["x", "u"].auc > 0.8
    assert found["y", "v"].interval[0] <= 0.5 <= found["y", "v"].interval[1]


def test_units_do_not_matter_and_numpy_will_do() -> None:
    recorded, drawn = normal(1_000, 4, "recorded"), normal(1_000, 4, "drawn") + 0.5
    scale, offset = torch.tensor([1024.0, 2.0**-10, 1.0, 64.0]), torch.tensor([0.0, 0.0, 0.0, 128.0])
    plain = mocoda.two_sample(recorded, drawn, two_sets())
    other = mocoda.two_sample(np.asarray(recorded * scale + offset), np.asarray(drawn * scale + offset), two_sets())
    for names in SETS:
        assert other[names].auc == pytest.approx(plain[names].auc, abs=0.01)


def test_the_same_seed_gives_the_same_answer() -> None:
    recorded, drawn = normal(300, 4, "recorded"), normal(200, 4, "drawn") + 0.3
    one, other = (mocoda.two_sample(recorded, drawn, two_sets(), seed=3) for _ in range(2))
    assert [(x.auc, x.interval) for x in one.values()] == [(x.auc, x.interval) for x in other.values()]


def test_constant_columns_are_left_out() -> None:
    recorded, drawn = normal(500, 4, "recorded"), normal(500, 4, "drawn")
    recorded[:, [0, 2]], drawn[:, [0, 2]] = 7.0, 7.0 + 1e-4 * drawn[:, [0, 2]]
    drawn[:, 1] += 3.0
    found = mocoda.two_sample(recorded, drawn, two_sets())
    assert (found["x", "u"].auc, found["x", "u"].interval) == (0.5, (0.5, 0.5))
    assert found["y", "v"].auc > 0.95


def test_on_navigation_matched_sets_keep_the_law_and_one_gaussian_does_not() -> None:
    task = Navigation()
    shown, held_out = task.collect(4_000, seed=0), task.collect(3_000, seed=1).rows
    fold = torch.arange(len(shown)) * 20 // len(shown) % 5
    of_held_out = torch.arange(len(held_out)) * 20 // len(held_out) % 5
    matched = [
        mocoda.fit_parents(shown[fold == i], task.graph, make_recipe("mocoda", density="matched")).sample(600, seed=i)
        for i in range(5)
    ]
    folds = of_held_out, torch.arange(5).repeat_interleave(600)
    coarse = mocoda.fit_parents(shown, task.graph, make_recipe("mocoda", components=1, **PUBLISHED)).sample(
        3_000, seed=0
    )
    kept = mocoda.two_sample(held_out, torch.cat(matched), task.graph, folds=folds)
    broken = mocoda.two_sample(held_out, coarse, task.graph)
    assert all(one.interval[0] <= 0.5 <= one.interval[1] and one.auc < 0.56 for one in kept.values())
    assert all(one.interval[0] > 0.6 for one in broken.values())


BAD = normal(100, 4, "recorded").index_fill(1, torch.tensor([2]), math.nan)
BAD[:90] = 0


@pytest.mark.parametrize(
    ("recorded", "drawn"),
    [
        (normal(100, 3), normal(100, 4)),
        (normal(100, 4), normal(100, 4)[0]),
        (normal(100, 4), BAD),
        (normal(100, 4), normal(39, 4)),
    ],
    ids=["columns", "axes", "nan", "few"],
)
def test_rows_that_cannot_be_used_are_refused(recorded: Tensor, drawn: Tensor) -> None:
    with refused():
        mocoda.two_sample(recorded, drawn, two_sets())


def test_folds_that_cannot_be_used_are_refused() -> None:
    recorded, drawn = normal(60, 4, "recorded"), normal(50, 4, "drawn")
    short, few = (torch.arange(60) % 5, torch.arange(40) % 5), (torch.arange(60) % 3, torch.arange(50) % 2)
    for folds in (short, few):
        with refused():
            mocoda.two_sample(recorded, drawn, two_sets(), folds=folds)
