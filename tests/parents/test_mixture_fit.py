"""GaussianMixture.fit and log_prob against scikit-learn, scipy and a slow twin."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from mixture_data import blobs, correlated, moons, navigation, random_mixture
from scipy.stats import multivariate_normal
from sklearn.mixture import GaussianMixture as SklearnMixture

from mocoda.parents.mixture import RIDGE, GaussianMixture

NEVER = -math.inf  # a tolerance that no gain falls below: exactly `max_iterations` of EM


# Against scikit-learn and scipy


@pytest.mark.parametrize(
    ("make", "rows", "components"),
    [
        (blobs, 1_000, 1),
        (blobs, 3_000, 5),
        (correlated, 3_000, 4),
        (moons, 4_000, 12),
        (navigation, 4_000, 8),
        (navigation, 20_000, 32),
    ],
)
def test_fit_explains_fresh_points_as_well_as_scikit_learn(make: Any, rows: int, components: int) -> None:
    points, fresh = make(rows, 0), make(4_000, 1)
    theirs = SklearnMixture(components, covariance_type="full", random_state=0, max_iter=500)
    expected = float(theirs.fit(points).score(fresh))
    found = GaussianMixture.fit(points, components).log_prob(fresh).mean().item()
    # Of several optima, EM finds one: ours may be the better, but not more than 1% the worse.
    assert found > expected - 0.01 * abs(expected)
    if components in (1, 32):
        assert found == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("make", [blobs, correlated, moons, navigation])
def test_em_of_scikit_learn_finds_nothing_left_to_gain(make: Any) -> None:
    points = make(2_000, 0)
    ours = GaussianMixture.fit(points, 4, tolerance=1e-7, max_iterations=2_000)
    precisions = ours.covariances.inverse()
    theirs = SklearnMixture(
        4,
        covariance_type="full",
        weights_init=ours.weights.numpy(),
        means_init=ours.means.numpy(),
        precisions_init=precisions.numpy(),
        tol=1e-7,
        max_iter=500,
        reg_covar=0.0,
    )
    gained = float(theirs.fit(points).score(points)) - ours.log_prob(points).mean().item()
    assert abs(gained) < 1e-4


def test_one_gaussian_is_the_fit_of_scikit_learn_to_rounding() -> None:
    points = correlated(500, 3)
    spread = points.var(0)
    theirs = SklearnMixture(1, covariance_type="full", reg_covar=0.0).fit(points)
    ours = GaussianMixture.fit(points, 1)
    expected = theirs.covariances_[0]
    np.testing.assert_allclose(ours.means.numpy(), theirs.means_, rtol=1e-10)
    np.testing.assert_allclose(ours.covariances[0].numpy(), expected + RIDGE * np.diag(spread), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("components", "dims"), [(1, 1), (3, 1), (1, 4), (5, 3)])
def test_log_prob_is_the_mixture_of_scipy_normals(components: int, dims: int) -> None:
    mixture = random_mixture(components, dims, seed=components)
    points = 2 * np.random.default_rng(9).normal(size=(200, dims))
    expected = np.zeros(200)
    for w, m, s in zip(mixture.weights, mixture.means, mixture.covariances, strict=True):
        expected += w.item() * multivariate_normal.pdf(points, m.numpy(), s.numpy())
    found = mixture.log_prob(points)
    assert found.dtype == torch.float64 and found.shape == (200,)
    np.testing.assert_allclose(found.exp().numpy(), expected, rtol=1e-10)


# EM against its slow twin


def test_em_stops_at_the_tolerance() -> None:
    points = moons(1_000, 0)
    exact = GaussianMixture.fit(points, 8, tolerance=0.0, max_iterations=2_000).log_prob(points).mean()
    default = GaussianMixture.fit(points, 8).log_prob(points).mean()
    impatient = GaussianMixture.fit(points, 8, tolerance=math.inf)
    twice = GaussianMixture.fit(points, 8, tolerance=NEVER, max_iterations=2)
    assert exact > default > impatient.log_prob(points).mean()
    assert impatient.means.equal(twice.means)  # the second iteration is the first whose gain is known
