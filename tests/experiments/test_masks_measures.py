"""Measures of the exam of masks: known answers, scikit-learn's, and laws."""

from __future__ import annotations

from typing import Any

import pytest
import sklearn.metrics
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from experiments.masks.measures import (
    balanced_error,
    best_threshold,
    by_edge,
    calibration_error,
    f1,
    local_edges,
    measures,
)
from mocoda.engine.randomness import Stream


def bools(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.bool)


# Scores that are nearly right, of 4 rows, 3 parents (the last is an action) and 2 children. Edges 1 -> 0 and 2 -> 0
# come and go; 0 -> 1 never holds, 2 -> 1 always does; a factor always depends on itself.
TRUTH = torch.zeros(4, 3, 2, dtype=torch.bool)
TRUTH[:, 0, 0] = TRUTH[:, 1, 1] = TRUTH[:, 2, 1] = True
TRUTH[:2, 1, 0] = TRUTH[:1, 2, 0] = True
SCORES = TRUTH.float()
SCORES[1, 1, 0] = 0.4  # an edge that is hardly seen
SCORES[3, 2, 0] = 0.6  # and none that is


def test_local_edges_come_and_go_and_are_of_no_factor_on_itself() -> None:
    assert local_edges(TRUTH).nonzero().tolist() == [[1, 0], [2, 0]]
    coming = TRUTH.clone()
    coming[0, 0, 0] = False
    assert local_edges(coming).nonzero().tolist() == [[1, 0], [2, 0]]


def test_all_measures_of_known_scores() -> None:
    found = measures((TRUTH.float(), TRUTH), (SCORES, TRUTH), actions=1, threshold=0.5, probability=True)
    assert found["edges"] == 2 and found["share"] == 3 / 8
    assert found["auroc"] == pytest.approx(14 / 15)  # of 3 × 5 pairs, 0.4 < 0.6 is wrong
    assert found["auroc_actions"] == 1.0
    # On validation rows the best cut is at 1: one edge is missed, and none is said that is not there.
    assert found["f1"] == pytest.approx(2 * 2 / (2 + 3))
    assert found["rebalanced"] == pytest.approx((1 / 3 + 0) / 2)
    assert found["f1_own"] == pytest.approx(2 * 2 / (3 + 3))  # at 0.5
    assert found["calibration"] == pytest.approx((0.6 + 0.6) / 8)


def test_perfect_scores_and_those_that_say_nothing() -> None:
    best = measures((TRUTH.float(), TRUTH), (TRUTH.float(), TRUTH), actions=1, threshold=0.5, probability=True)
    ones = ("auroc", "auroc_actions", "f1", "f1_own")
    assert all(best[name] == 1 for name in ones)
    assert all(best[name] == 0 for name in ("rebalanced", "calibration"))
    always: dict[str, Any] = {"actions": 1, "threshold": 0.5, "probability": True, "fixed": True}
    for value in (0.0, 1.0):
        same = torch.full_like(SCORES, value)
        found = measures((same, TRUTH), (same, TRUTH), **always)
        assert found["auroc"] == 0.5 and found["rebalanced"] == 0.5
        wrong = 5 / 8 if value else 3 / 8
        assert found["calibration"] == pytest.approx(wrong)
        assert found["f1"] == found["f1_own"] == pytest.approx(2 * 3 / (8 + 3) if value else 0)


def test_where_no_edge_comes_or_goes_there_is_nothing_to_measure() -> None:
    truth = torch.ones(3, 2, 2, dtype=torch.bool)
    assert measures((truth.float(), truth), (truth.float(), truth), actions=0) == {"edges": 0.0}
    assert f1(bools(0, 0), bools(0, 0)) is None
    assert balanced_error(bools(1, 0), bools(1, 1)) is None


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=40))
def test_f1_is_scikit_learns_and_thresholds_are_the_best(pairs: list[tuple[int, bool]]) -> None:
    scores, truth = torch.tensor([score for score, _ in pairs]).float(), bools(*(edge for _, edge in pairs))
    if not bool(truth.any()):
        return
    cut = best_threshold(scores, truth)
    best = max(sklearn.metrics.f1_score(truth.numpy(), (scores >= level).numpy()) for level in scores.unique())
    assert f1(scores >= cut, truth) == pytest.approx(best)
    if not bool(truth.all()):
        fair = best_threshold(scores, truth, balanced=True)
        least = min(balanced_error(scores >= level, truth) or 0.0 for level in scores.unique())
        assert balanced_error(scores >= fair, truth) == pytest.approx(least)


def test_a_true_probability_is_calibrated_and_a_doubled_one_is_not() -> None:
    stream = Stream(0, "calibration")
    probability = 0.5 * stream.uniform(40_000)
    truth = stream.uniform(40_000) < probability
    assert calibration_error(probability, truth) < 0.01
    assert calibration_error(2 * probability, truth) == pytest.approx(0.25, abs=0.02)


def test_rebalancing_counts_both_kinds_alike() -> None:
    truth, said = bools(*[1] + [0] * 99), bools(*[0] * 100)
    assert balanced_error(said, truth) == 0.5


def test_edges_have_an_auroc_each() -> None:
    names = {(1, 0): "1 -> 0", (2, 0): "2 -> 0", (0, 1): "0 -> 1"}
    known = torch.ones_like(TRUTH)
    found = by_edge(SCORES, TRUTH, known, names)
    assert [found[f"auroc {name}"] for name in names.values()] == [1.0, 1.0, None]
    scores = SCORES.clone()
    scores[2, 1, 0] = 0.9  # where it is not known whether there is an edge
    known[2, 1, 0] = False
    found = by_edge(scores, TRUTH, known, names)
    assert found["auroc 1 -> 0"] == 0.75 and found["auroc_known 1 -> 0"] == 1.0
    assert found["auroc_known"] == by_edge(SCORES, TRUTH, known, names)["auroc_known"]
