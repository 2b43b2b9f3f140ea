"""Stratified mixtures, one set for each local graph: their law, their shares, and what is left out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from approved import refused
from parents_world import DATA, TASK
from scipy.stats import ks_2samp
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents import Mocoda, fit_parents, make_recipe
from mocoda.parents.flattening import FlattenedParents
from mocoda.parents.groups import graph_at
from mocoda.parents.mocoda import MIN_STRATUM_ROWS, StratifiedParents
from mocoda.tasks.navigation import GRAPH, coupled

SHARE = 0.3  # of the rows are on the right


def right(rows: Tensor) -> Tensor:
    return rows[:, 0] > 0


# Left of zero x and y depend on themselves, right of it y depends on x too.
GRAPH_XY = LocalGraph(
    state={"x": 0, "y": 1},
    action={"u": 0},
    edges={"x": ["x"], "y": ["y"]},
    local=lambda rows: torch.stack(
        [
            torch.stack([torch.ones(len(rows)), right(rows).float()], 1),
            torch.stack([torch.zeros(len(rows)), torch.ones(len(rows))], 1),
            torch.zeros(len(rows), 2),
        ],
        1,
    ).bool(),
)


def recorded(rows: int, seed: int) -> Transitions:
    """y follows x on both sides, upwards on the left and downwards on the right; u is x again, and of no one's set."""
    rng = np.random.default_rng(seed)
    side = np.where(rng.random(rows) < SHARE, 1.0, -1.0)
    x = side * (3 + rng.normal(size=rows).clip(-2.5, 2.5))
    y = -x + 0.5 * rng.normal(size=rows)
    table = np.stack([x, y, x + 0.1 * rng.normal(size=rows)], 1)
    return Transitions(table[:, :2], table[:, 2:], table[:, :2])


def stratified(data: Transitions, graph: LocalGraph = GRAPH_XY, **options: Any) -> StratifiedParents:
    parents = fit_parents(data, graph, Mocoda(**{"components": 4, "density": "mixture", "project": False, **options}))
    assert isinstance(parents, StratifiedParents)
    return parents


DATA_XY = recorded(8_000, 0)


@pytest.fixture(scope="module")
def parents() -> StratifiedParents:
    return stratified(DATA_XY)


@pytest.fixture(scope="module")
def rows(parents: StratifiedParents) -> Tensor:
    return parents.sample(20_000, seed=1)


# The law


def test_every_neighbourhood_has_the_parent_sets_of_its_own_graph(parents: StratifiedParents) -> None:
    left, right_one = parents.neighbourhoods  # commonest first
    assert left.rows + right_one.rows == len(DATA_XY) and right_one.rows == int(right(DATA_XY.rows).sum())
    assert left.mask.tolist() == [[True, False], [False, True], [False, False]]
    assert right_one.mask.tolist() == [[True, True], [False, True], [False, False]]
    assert [columns for columns, _ in left.mixtures.sets] == [(0,), (1,), (2,)]
    assert [columns for columns, _ in right_one.mixtures.sets] == [(0, 1), (2,)]


def test_within_every_neighbourhood_the_parent_sets_keep_their_distribution(rows: Tensor) -> None:
    for side in (True, False):
        mine, theirs = (r[right(r) == side] for r in (rows, DATA_XY.rows))
        for column in range(3):
            assert ks_2samp(mine[:, column].numpy(), theirs[:, column].numpy()).statistic < 0.03
        found, expected = (float(np.corrcoef(r[:, :2].T)[0, 1]) for r in (mine, theirs))
        assert expected < -0.8
        if side:  # one set there
            assert found == pytest.approx(expected, abs=0.03)
        else:  # two sets there
            assert abs(found) < 4 / math.sqrt(len(mine))
        assert abs(float(np.corrcoef(mine[:, [0, 2]].T)[0, 1])) < 4 / math.sqrt(len(mine))


@pytest.mark.parametrize("recipe", ["mocoda", "mocoda-u", "mocoda-p"])
def test_every_sample_lies_in_a_recorded_neighbourhood(recipe: str) -> None:
    flat = {} if recipe == "mocoda" else {"acceptance": 0.5}
    settled = make_recipe(recipe, components=8, density="mixture", **flat)
    parents = fit_parents(DATA, GRAPH, settled, task=TASK, seed=1)
    drawn = parents.sample(500, seed=2)
    assert drawn.shape == (500, 4) and torch.isfinite(drawn).all()
    assert drawn.equal(parents.sample(500, seed=2)) and not drawn.equal(parents.sample(500, seed=3))
    # In the quadrant nobody was seen to move right, wherever else that was seen.
    assert (drawn[coupled(drawn), 2].abs() < 0.15).all()
    assert isinstance(parents, StratifiedParents if recipe == "mocoda" else FlattenedParents)
    assert parents.sample(0, seed=0).shape == (0, 4)


def test_what_falls_outside_its_neighbourhood_is_rejected(parents: StratifiedParents) -> None:
    for one in parents.neighbourhoods:
        only = StratifiedParents(parents.graph, (one,), ())
        assert (GRAPH_XY.mask(only.sample(3_000, seed=0)) == one.mask).all()
    # Proposals cross the border, or there would be nothing to reject.
    near = Transitions(DATA_XY.state / 6, DATA_XY.action, DATA_XY.next_state)
    shifted = Transitions(near.state + torch.tensor([0.4, 0.0]), near.action, near.next_state)
    found = stratified(shifted, components=1)
    for one in found.neighbourhoods:
        assert not found.region(one.mask)(one.mixtures.sample(3_000, seed=0)).all()
    drawn = found.sample(3_000, seed=0)
    assert float(right(drawn).float().mean()) == pytest.approx(float(right(shifted.rows).float().mean()), abs=0.04)


# Small neighbourhoods


def some_on_the_right(count: int) -> Transitions:
    on_the_right = right(DATA_XY.rows)
    return DATA_XY[torch.cat([(~on_the_right).nonzero()[:2_000, 0], on_the_right.nonzero()[:count, 0]])]


def test_a_neighbourhood_of_too_few_rows_is_reported_and_skipped() -> None:
    parents = stratified(some_on_the_right(MIN_STRATUM_ROWS - 1))
    assert parents.skipped == (MIN_STRATUM_ROWS - 1,)
    assert [one.rows for one in parents.neighbourhoods] == [2_000]  # not merged with it
    assert not right(parents.sample(2_000, seed=0)).any()
    expected = {"drawn": "empirical", "rows": [2_000], "skipped": [MIN_STRATUM_ROWS - 1]}
    assert parents.source == {"neighbourhoods": expected}


def test_what_cannot_be_stratified_is_refused() -> None:
    with refused():  # too few rows
        fit_parents(DATA_XY[:40], GRAPH_XY, Mocoda(density="mixture"))

    def exactly_zero(found: Tensor) -> Tensor:
        return GRAPH_XY.sparsest | (found[:, 2] == 0)[:, None, None]

    thin = LocalGraph(GRAPH_XY.state, GRAPH_XY.action, GRAPH_XY.edges, exactly_zero)
    action = DATA_XY.action.clone()
    action[:100] = 0
    parents = stratified(Transitions(DATA_XY.state, action, DATA_XY.next_state), thin, components=1)
    with refused():  # a neighbourhood that its mixtures miss
        parents.sample(1_000, seed=0)


# Graphs of neighbourhoods


def test_given_parent_sets_stay_and_children_with_more_edges_add_their_own() -> None:
    graph = LocalGraph(
        state={"g": 0, "a": 1, "b": 2},
        action={"u": 0},
        edges={"g": ["g", "a", "b"], "a": ["g", "a"], "b": ["g", "b"]},
        given_parent_sets=[["g", "a"], ["g", "b"]],
    )
    assert graph_at(graph, graph.sparsest).parent_sets == (("g", "a"), ("g", "b"), ("u",))
    more = graph.sparsest.clone()
    more[2, 1] = True  # a depends on b
    assert graph_at(graph, more).parent_sets == (("g", "a", "b"), ("u",))
