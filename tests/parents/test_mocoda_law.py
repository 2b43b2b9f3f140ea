"""The law of the "mocoda" recipe (Section 4.1): every parent set keeps its distribution, and nothing else is kept.

The data are Gaussian, so that fitted mixtures are exact and what remains is the law itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from experiments.columns import PUBLISHED
from mocoda.data.transitions import Transitions
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents import Mocoda, fit_parents

Floats = NDArray[np.float64]
LAW = settings(deadline=None, max_examples=25, derandomize=True)
seeds = st.integers(0, 10_000)


def sampled(rows: Floats, graph: LocalGraph, n: int, seed: int = 0) -> Floats:
    """Rows drawn from one Gaussian per parent set. Where recorded rows lead does not matter to their distribution."""
    state, action = rows[:, : graph.state_width], rows[:, graph.state_width :]
    recipe = Mocoda(components=1, **PUBLISHED)
    parents = fit_parents(Transitions(state, action, state), graph, recipe, seed=seed)
    return parents.sample(n, seed=seed).double().numpy()


def graph_of(sets: Sequence[Sequence[int]], columns: int) -> LocalGraph:
    """Factors of one column each, the last of which is the action, in these parent sets, listed in this order."""
    *names, last = (f"f{column}" for column in range(columns))
    return LocalGraph(
        state={name: column for column, name in enumerate(names)},
        action={last: 0},
        edges={name: [name] for name in names},
        given_parent_sets=[[f"f{column}" for column in own] for own in sets],
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
        [(0, 1), (1, 2), (2, 3)],
        [(2, 3), (1, 2), (0, 1)],
        [(1, 2), (2, 3), (0, 1)],
        [(0, 1), (2, 3), (1, 2)],
    ],
)
def test_a_chain_of_sets_keeps_every_link_in_whatever_order_they_are_listed(pairs: list[tuple[int, int]]) -> None:
    data = chain(8_000)
    found, expected = (np.asarray(np.corrcoef(rows.T)) for rows in (sampled(data, graph_of(pairs, 5), 20_000), data))
    links = [expected[i, i + 1] for i in range(3)]
    for i in range(3):
        assert found[i, i + 1] == pytest.approx(links[i], abs=0.02)
    assert found[0, 2] == pytest.approx(links[0] * links[1], abs=0.03)
    assert found[0, 3] == pytest.approx(links[0] * links[1] * links[2], abs=0.03)


def gaussian(seed: int, rows: int, dims: int) -> Floats:
    """Correlated normal columns of widths around 1."""
    rng = np.random.default_rng(seed)
    return np.asarray(rng.normal(size=(rows, dims)) @ (rng.normal(size=(dims, dims)) + np.eye(dims)))


@LAW
@given(st.integers(3, 5).flatmap(lambda dims: st.permutations(range(dims))), st.integers(1, 2), seeds)
def test_sets_that_share_a_core_are_joined_through_it(order: list[int], core: int, seed: int) -> None:
    dims, hub, rays = len(order), order[:core], order[core:]
    data = gaussian(seed, 1_500, dims)
    sample = sampled(data, graph_of([[*hub, ray] for ray in rays], dims), 8_000, seed)
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
