"""The law of the "mocoda" recipe (Section 4.1): every parent set keeps its distribution, and nothing else is kept.

Two-sample and independence tests compare samples with fresh recorded rows. The data are mixtures of Gaussians, so that
the fitted mixtures can be exact and what remains is the law itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mocoda_samples import (
    Floats,
    correlations,
    energy_test,
    sampled,
    told_apart,
    transitions,
)
from scipy.stats import ks_2samp

from experiments.columns import PUBLISHED
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents import Mocoda, fit_parents
from mocoda.parents.mocoda import MixtureParents

LAW = settings(deadline=None, max_examples=25, derandomize=True)
seeds = st.integers(0, 10_000)


# Data


DISJOINT = LocalGraph(state={"x": 0, "y": 1}, action={"dx": 0, "dy": 1}, edges={"x": ["x", "dx"], "y": ["y", "dy"]})


def two_ways(rows: int, seed: int) -> Floats:
    """Columns x, y, dx, dy: two kinds of behaviour, and correlations within each, so that all depends on all."""
    rng = np.random.default_rng(seed)
    root = np.array([[1.0, 0, 0, 0], [0.8, 0.6, 0, 0], [-0.6, 0.2, 0.7, 0], [0.3, -0.7, 0.4, 0.5]])
    centre = np.where(rng.random((rows, 1)) < 0.35, [[4.0, 3.0, -2.0, 1.0]], [[-1.0, -1.0, 1.0, -3.0]])
    return np.asarray(centre + rng.normal(size=(rows, 4)) @ root.T)


# Disjoint parent sets


@pytest.mark.parametrize("columns", [[0, 2], [1, 3]])
def test_every_parent_set_keeps_its_distribution(columns: list[int]) -> None:
    fresh = two_ways(1_500, 1)
    sample = sampled(two_ways(12_000, 0), DISJOINT, 1_500, components=2)
    for column in columns:
        assert ks_2samp(sample[:, column], fresh[:, column]).pvalue > 0.001
    assert energy_test(sample[:600, columns], fresh[:600, columns]) > 0.005
    assert abs(told_apart(sample[:, columns], fresh[:, columns]) - 0.5) < 0.05


# Overlapping parent sets


def pairs_graph(pairs: Sequence[tuple[str, str]], names: str) -> LocalGraph:
    """State factors of one column each, named by a letter, in these parent sets, listed in this order."""
    return LocalGraph(
        state={name: i for i, name in enumerate(names)},
        action={"u": 0},
        edges={name: [name] for name in names},
        given_parent_sets=[list(pair) for pair in pairs],
    )


def chain(rows: int) -> Floats:
    """Columns a, b, c, d, u: neighbours are correlated by 0.75, and the others by 0.5."""
    rng = np.random.default_rng(0)
    covariance = np.full((5, 5), 0.5) + 0.5 * np.eye(5)
    for i in range(3):
        covariance[i, i + 1] = covariance[i + 1, i] = 0.75
    return rng.multivariate_normal(np.zeros(5), covariance, size=rows)


@pytest.mark.parametrize(
    "pairs",
    [
        [("a", "b"), ("b", "c"), ("c", "d")],
        [("c", "d"), ("b", "c"), ("a", "b")],
        [("b", "c"), ("c", "d"), ("a", "b")],
        [("a", "b"), ("c", "d"), ("b", "c")],
    ],
)
def test_a_chain_of_sets_keeps_every_link_in_whatever_order_they_are_listed(pairs: list[tuple[str, str]]) -> None:
    data = chain(8_000)
    found = correlations(sampled(data, pairs_graph(pairs, "abcd"), 20_000, components=1))
    expected = correlations(data)
    links = [expected[i, i + 1] for i in range(3)]
    for i in range(3):
        assert found[i, i + 1] == pytest.approx(links[i], abs=0.02)
    assert found[0, 2] == pytest.approx(links[0] * links[1], abs=0.03)
    assert found[0, 3] == pytest.approx(links[0] * links[1] * links[2], abs=0.03)


# Columns and seeds


def test_log_prob_has_a_column_for_each_set() -> None:
    data = two_ways(500, 0)
    parents = fit_parents(transitions(data, 2), DISJOINT, Mocoda(components=3, **PUBLISHED))
    assert isinstance(parents, MixtureParents)
    rows = torch.from_numpy(data[:40])
    found = parents.log_prob(rows)
    assert found.shape == (40, 2)
    for number, (columns, mixture) in enumerate(parents.sets):
        assert found[:, number].equal(mixture.log_prob(rows[:, columns]))
    assert [columns for columns, _ in parents.sets] == [(0, 2), (1, 3)]


# Laws over random graphs


def gaussian(seed: int, rows: int, dims: int) -> Floats:
    """Correlated normal columns of widths around 1."""
    rng = np.random.default_rng(seed)
    return np.asarray(rng.normal(size=(rows, dims)) @ (rng.normal(size=(dims, dims)) + np.eye(dims)))


def graph_of(groups: Sequence[Sequence[int]], dims: int) -> LocalGraph:
    names = [f"f{column}" for column in range(dims)]
    return LocalGraph(
        state={name: column for column, name in enumerate(names[:-1])},
        action={names[-1]: 0},
        edges={name: [name] for name in names[:-1]},
        given_parent_sets=[[names[column] for column in group] for group in groups],
    )


@LAW
@given(st.integers(3, 5).flatmap(lambda dims: st.permutations(range(dims))), st.integers(1, 2), seeds)
def test_sets_that_share_a_core_are_joined_through_it(order: list[int], core: int, seed: int) -> None:
    dims, hub, rays = len(order), order[:core], order[core:]
    data = gaussian(seed, 1_500, dims)
    sample = sampled(data, graph_of([[*hub, ray] for ray in rays], dims), 8_000, components=1, seed=seed)
    # The maximum-entropy Gaussian: rays covary only as far as the core makes them.
    covariance = np.cov(data.T)
    expected = covariance.copy()
    inverse = np.linalg.inv(covariance[np.ix_(hub, hub)])
    for one in rays:
        for other in rays:
            if one != other:
                expected[one, other] = covariance[one, hub] @ inverse @ covariance[hub, other]
    widths = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    np.testing.assert_allclose(np.cov(sample.T) / widths, expected / widths, atol=0.08)
