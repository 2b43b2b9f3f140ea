"""Samples of the "mocoda" recipe, and the statistical tests that compare them with recorded rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier

from experiments.columns import PUBLISHED
from mocoda.data.transitions import Transitions
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents import Mocoda, fit_parents

Floats = NDArray[np.float64]


def energy_test(one: Floats, other: Floats, seed: int = 0) -> float:
    """The p-value of "both samples (N, D) come from one distribution": energy distance under 300 permutations."""
    pooled = np.concatenate([one, other])
    distance = cdist(pooled / pooled.std(0), pooled / pooled.std(0))
    sign = np.concatenate([np.full(len(one), 1 / len(one)), np.full(len(other), -1 / len(other))])
    rng = np.random.default_rng(seed)
    signs = np.stack([sign, *(rng.permutation(sign) for _ in range(300))])
    statistic = -((signs @ distance) * signs).sum(1)
    return float((statistic >= statistic[0] - 1e-12).mean())


def told_apart(one: Floats, other: Floats) -> float:
    """How often a nearest-neighbour classifier tells two samples of equal size apart; 0.5 is never."""
    pooled = np.concatenate([one, other])
    label = np.repeat([0, 1], [len(one), len(other)])
    order = np.random.default_rng(0).permutation(len(pooled))
    classifier = KNeighborsClassifier(25)
    return float(cross_val_score(classifier, (pooled / pooled.std(0))[order], label[order], cv=5).mean())


def correlations(rows: Floats) -> Floats:
    return np.asarray(np.corrcoef(rows.T))


def transitions(rows: Floats, state_width: int) -> Transitions:
    """A table of these rows; where they lead does not matter to their distribution."""
    return Transitions(rows[:, :state_width], rows[:, state_width:], rows[:, :state_width])


def sampled(
    rows: Floats,
    graph: LocalGraph,
    n: int,
    *,
    components: int,
    seed: int = 0,
) -> Floats:
    recipe = Mocoda(components=components, **PUBLISHED)
    parents = fit_parents(transitions(rows, graph.state_width), graph, recipe, seed=seed)
    return parents.sample(n, seed=seed).double().numpy()
