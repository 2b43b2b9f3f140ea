"""density="matched": recorded parent sets, matched on the columns they share: its law, its metric, what it refuses."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from approved import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from parents_world import DATA
from scipy.stats import ks_2samp
from torch import Tensor

from mocoda import fit_parents
from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents import Mocoda
from mocoda.parents.matching import Metric, Nearest
from mocoda.parents.recombination import MatchedParents
from mocoda.tasks.navigation import GRAPH

OVERLAP = LocalGraph(
    state={"g": 0, "a": 1, "b": 2}, action={"u": 0}, edges={"g": ["g"], "a": ["g", "a"], "b": ["g", "b"]}
)
CYCLE = LocalGraph(
    state={"a": 0, "b": 1, "c": 2}, action={"u": 0}, edges={"a": ["a", "b"], "b": ["b", "c"], "c": ["c", "a"]}
)


def table(rows: Any, states: int = 3) -> Transitions:
    array = torch.as_tensor(np.asarray(rows), dtype=torch.float32)
    return Transitions(array[:, :states], array[:, states:], array[:, :states])


def matched(data: Transitions, graph: LocalGraph, **options: Any) -> MatchedParents:
    parents = fit_parents(data, graph, Mocoda(stratified=False, **options))
    assert isinstance(parents, MatchedParents)
    return parents


def counts(rows: Tensor) -> Counter[tuple[float, ...]]:
    return Counter(map(tuple, rows.tolist()))


def common_cause(rows: int, seed: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Columns g, a, b, u: a and b follow g in other ways, and share noise that a sample is to make independent."""
    rng = np.random.default_rng(seed)
    g, shared = rng.normal(size=rows), rng.normal(size=rows)
    a = g + shared + 0.3 * rng.normal(size=rows)
    b = g**2 + shared + 0.3 * rng.normal(size=rows)
    return np.stack([g, a, b, rng.normal(size=rows)], 1)


# Laws


@settings(deadline=None, max_examples=20, derandomize=True)
@given(st.integers(5, 60), st.integers(1, 3), st.integers(0, 1_000))
def test_disjoint_sets_are_resampled_exactly(rows: int, passes: int, seed: int) -> None:
    data = DATA[:rows]
    drawn = matched(data, GRAPH).sample(passes * rows, seed=seed)
    for names in GRAPH.parent_sets:
        columns = list(GRAPH.columns(names))
        recorded = counts(data.rows[:, columns])
        assert counts(drawn[:, columns]) == Counter({row: passes * count for row, count in recorded.items()})


def test_overlapping_sets_keep_their_law_and_what_they_do_not_share_becomes_independent() -> None:
    drawn = matched(table(common_cause(8_000, 0)), OVERLAP).sample(8_000, seed=0).double()
    fresh = torch.as_tensor(common_cause(8_000, 1))
    g, a, b, _ = drawn.T
    for column in range(4):
        assert ks_2samp(drawn[:, column], fresh[:, column]).pvalue > 1e-4
    for residual in (a - g, b - g.square()):  # noise of variance 1.09, whatever g
        assert float(residual.mean()) == pytest.approx(0, abs=0.05)
        assert float(residual.var()) == pytest.approx(1.09, rel=0.06)
        assert abs(float(torch.corrcoef(torch.stack([residual, g]))[0, 1])) < 0.04
    assert abs(float(torch.corrcoef(torch.stack([a - g, b - g.square()]))[0, 1])) < 0.05
    recorded = fresh[:, 1] - fresh[:, 0], fresh[:, 2] - fresh[:, 0].square()
    assert float(torch.corrcoef(torch.stack(recorded))[0, 1]) > 0.9


def test_a_discrete_world_keeps_the_shares_of_each_set_and_matches_exactly() -> None:
    """With few values there are many nearest rows: they are drawn alike, not always the first of them."""
    rng = np.random.default_rng(0)
    g = rng.integers(0, 3, 6_000)
    a, b = (g + rng.integers(0, 2, 6_000)) % 4, np.where(rng.random(6_000) < 0.8, g, 5)
    recorded = np.stack([g, a, b, np.zeros(6_000)], 1)
    drawn = matched(table(recorded), OVERLAP).sample(6_000, seed=0).numpy()
    for columns in ([0, 1], [0, 2]):
        values, expected = np.unique(recorded[:, columns], axis=0, return_counts=True)
        found = [(drawn[:, columns] == value).all(1).sum() for value in values]
        assert sum(found) == 6_000
        assert np.abs(np.array(found) - expected).max() < 5 * np.sqrt(6_000 / 4)


def test_what_is_taken_over_never_comes_from_the_row_it_is_matched_with() -> None:
    data = table(common_cause(300, 0))
    drawn = matched(data, OVERLAP).sample(3_000, seed=0)
    assert not counts(drawn[:, :3]).keys() & counts(data.rows[:, :3]).keys()


def test_sets_in_a_cycle_are_conditioned_on_all_that_is_known() -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(size=3_000)
    recorded = np.stack([a, a + 0.1 * rng.normal(size=3_000), a + 0.1 * rng.normal(size=3_000), a], 1)
    drawn = matched(table(recorded), CYCLE).sample(2_000, seed=0).double()
    for one, other in ((0, 1), (1, 2), (2, 0)):
        assert float((drawn[:, one] - drawn[:, other]).std()) < 0.25


# The search


@settings(deadline=None, max_examples=30, derandomize=True)
@given(st.integers(2, 3_000), st.integers(1, 6), st.integers(0, 1_000))
def test_the_search_finds_what_a_slow_one_finds(rows: int, columns: int, seed: int) -> None:
    stream = Stream(seed, "test")
    points, queries = stream.normal(rows, columns), stream.normal(40, columns)
    never = stream.integers(rows, 40, 1)
    search = Nearest.among(points)
    found, distance = search.find(queries, never, Stream(seed, "search"))
    assert not (found == never[:, 0]).any()
    torch.testing.assert_close(distance, (points[found] - queries).norm(dim=1))
    everything = (points - queries[:, None]).square().sum(2).scatter(1, never, torch.inf)
    if rows < 200:  # few enough that all rows are looked at; ties within 1e-4 are drawn among
        assert (distance.square() <= everything.amin(1) + 3e-4).all()
    else:  # the best of a part is among the nearest of all
        assert float((everything < distance.square()[:, None]).float().mean()) < 3 / min(100, rows // 10)


def test_rows_that_are_equally_near_are_drawn_alike() -> None:
    found, _ = Nearest.among(torch.zeros(1_000, 2)).find(
        torch.zeros(20_000, 2), torch.zeros(20_000, 1, dtype=torch.long), Stream(0, "search")
    )
    often = found.bincount(minlength=1_000)
    assert int(often[0]) == 0 and int(often[1:].max()) < 120 and int((often[1:] == 0).sum()) < 200


# The metric


def weights(metric: Metric) -> Tensor:
    return (metric.map @ metric.map.T).diagonal().sqrt()


@pytest.mark.parametrize(
    "of",
    [lambda x, e: x + 0.1 * e, lambda x, e: torch.sin(2 * x) + 0.1 * e, lambda x, e: x * e],
    ids=["linear", "wave", "spread"],
)
def test_the_column_that_helps_to_predict_the_rest_counts_most(of: Any) -> None:
    stream = Stream(0, "test")
    shared, noise = stream.normal(6_000, 5), stream.normal(6_000)
    found = weights(Metric.fit(shared, of(shared[:, 2], noise)[:, None], Stream(0, "fit")))
    assert int(found.argmax()) == 2 and float(found[2]) > 2.5 * float(found[[0, 1, 3, 4]].max())


def test_units_do_not_matter() -> None:
    rows = torch.as_tensor(common_cause(2_000, 0), dtype=torch.float64)
    factor = torch.tensor([1_024.0, 0.125, 4.0, 1.0], dtype=torch.float64)
    plain, other = (matched(table(values), OVERLAP) for values in (rows, rows * factor))
    torch.testing.assert_close(other.sample(500, seed=0).double() / factor, plain.sample(500, seed=0).double())
    metrics = [Metric.fit(rows[:, :1], values, Stream(0, "fit")) for values in (rows[:, 1:], 7 * rows[:, 1:] - 3)]
    torch.testing.assert_close(weights(metrics[0]), weights(metrics[1]), rtol=1e-3, atol=1e-5)
    shifted = Metric.fit(3 * rows[:, :1] + 100, rows[:, 1:], Stream(0, "fit"))
    torch.testing.assert_close(weights(metrics[0]), weights(shifted), rtol=1e-3, atol=1e-5)


def test_repeated_and_constant_columns_do_no_harm() -> None:
    """As a quaternion's four numbers, of which three say all."""
    rng = np.random.default_rng(0)
    angle = rng.uniform(-3, 3, 4_000)
    shared = np.stack(
        [np.cos(angle / 2), np.sin(angle / 2), np.zeros(4_000), np.full(4_000, 7.0), np.cos(angle / 2)], 1
    )
    a, b = np.sin(angle) + 0.05 * rng.normal(size=4_000), np.cos(angle) + 0.05 * rng.normal(size=4_000)
    graph = LocalGraph(
        state={"g": slice(0, 5), "a": 5, "b": 6}, action={"u": 0}, edges={"g": ["g"], "a": ["g", "a"], "b": ["g", "b"]}
    )
    drawn = matched(table(np.column_stack([shared, a, b, a]), 7), graph).sample(2_000, seed=0).double()
    turned = 2 * torch.atan2(drawn[:, 1], drawn[:, 0])
    assert bool(drawn.isfinite().all())
    assert float((drawn[:, 5] - turned.sin()).std()) < 0.08 and float((drawn[:, 6] - turned.cos()).std()) < 0.08


# What moves along


def held(rows: int, seed: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A hand g, and two boxes that are each within a hundredth of it."""
    rng = np.random.default_rng(seed)
    g = rng.uniform(size=rows)
    return np.stack([g, *(g + 0.01 * rng.normal(size=(2, rows))), np.zeros(rows)], 1)


def test_what_is_relative_moves_along_with_what_it_is_measured_from() -> None:
    data = table(held(200, 0))
    still, along = (matched(data, replace(OVERLAP, relative=moves)) for moves in ({}, {1: 0, 2: 0}))
    gaps = [(p.sample(2_000, seed=0)[:, 1:3] - p.sample(2_000, seed=0)[:, :1]) for p in (still, along)]
    recorded = data.rows[:, 1:3] - data.rows[:, :1]
    assert float(gaps[1].std()) == pytest.approx(float(recorded.std()), rel=0.1)
    assert float(gaps[1].std()) < float(gaps[0].std())
    for column in range(2):  # each gap is a recorded one, to rounding
        assert float((gaps[1][:, column, None] - recorded[:, column]).abs().amin(1).max()) < 1e-6


# Recipes and their settings


def test_fewer_rows_than_parent_sets_are_refused() -> None:
    data = table(common_cause(3, 0))
    with refused():
        matched(data, OVERLAP)


def test_columns_that_are_nowhere_recorded_together_are_named() -> None:
    """a and c are drawn given b, which says nothing of them, yet are recorded only where c is a."""
    rng = np.random.default_rng(0)
    a, b = rng.uniform(-1, 1, 1_000), rng.normal(size=(1_000, 3))
    graph = LocalGraph(
        state={"a": 0, "b": slice(1, 4), "c": 4},
        action={"u": slice(0, 2)},
        edges={"a": ["a", "b"], "b": ["b", "c"], "c": ["a", "c", "u"]},
    )
    with pytest.raises(InputError, match=r"^the parent set \(a, c, u\) finds no match in state0, state4: "):
        matched(table(np.column_stack([a, b, a, a, a**2]), 5), graph)
