"""Laws of Gaussian mixtures that hold for every mixture and every table of points."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from mixture_data import random_mixture
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from mocoda.parents.mixture import RIDGE, GaussianMixture

Floats = NDArray[np.float64]
NEVER = -math.inf  # a tolerance that no gain falls below: exactly `max_iterations` of EM
LAW = settings(deadline=None, max_examples=25, derandomize=True)

seeds = st.integers(0, 10_000)
tables = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 12), st.integers(1, 3)),
    elements=st.floats(-1e4, 1e4, allow_nan=False, width=32),
)


@st.composite
def mixtures(draw: st.DrawFn, least_dims: int = 1) -> GaussianMixture:
    return random_mixture(draw(st.integers(1, 4)), draw(st.integers(least_dims, 4)), draw(seeds))


@st.composite
def mixtures_and_known(draw: st.DrawFn) -> tuple[GaussianMixture, list[int]]:
    """A mixture, and some of its columns in any order, neither none nor all."""
    mixture = draw(mixtures(least_dims=2))
    order = draw(st.permutations(range(mixture.means.shape[1])))
    return mixture, order[: draw(st.integers(1, len(order) - 1))]


def clusters(seed: int, rows: int, dims: int) -> Floats:
    """Three overlapping clusters, turned and in units of their own."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(rows, dims)) + 3 * rng.normal(size=(3, dims))[rng.integers(3, size=rows)]
    turn = np.linalg.qr(rng.normal(size=(dims, dims))).Q
    return np.asarray(points @ turn * 10 ** rng.uniform(-1, 1, dims) + rng.normal(size=dims))


def log_conditional(mixture: GaussianMixture, known: list[int], unknown: list[int], point: Floats) -> float:
    """log p(unknown | known) at one point, by the textbook, one component at a time."""
    prior, density = [], []
    for w, m, s in zip(mixture.weights.numpy(), mixture.means.numpy(), mixture.covariances.numpy(), strict=True):
        s_kk, s_uk = s[np.ix_(known, known)], s[np.ix_(unknown, known)]
        gain = s_uk @ np.linalg.inv(s_kk)
        mean = m[unknown] + gain @ (point[known] - m[known])
        covariance = s[np.ix_(unknown, unknown)] - gain @ s_uk.T
        prior.append(math.log(w) + multivariate_normal.logpdf(point[known], m[known], s_kk))
        density.append(multivariate_normal.logpdf(point[unknown], mean, 0.5 * (covariance + covariance.T)))
    posterior = np.array(prior) - logsumexp(prior)
    return float(logsumexp(posterior + np.array(density)))


@LAW
@given(mixtures_and_known(), seeds)
def test_joint_density_is_marginal_times_conditional(case: tuple[GaussianMixture, list[int]], seed: int) -> None:
    mixture, known = case
    dims = mixture.means.shape[1]
    unknown = [column for column in range(dims) if column not in known]
    points = 2 * np.random.default_rng(seed).normal(size=(5, dims))
    marginal = mixture.marginal(known).log_prob(points[:, known]).numpy()
    conditional = [log_conditional(mixture, known, unknown, point) for point in points]
    np.testing.assert_allclose(mixture.log_prob(points).numpy(), marginal + conditional, rtol=1e-7, atol=1e-7)


@LAW
@given(mixtures_and_known(), st.sampled_from([np.float32, np.float64]), st.booleans(), seeds)
def test_complete_keeps_known_columns_to_the_bit(
    case: tuple[GaussianMixture, list[int]], dtype: Any, as_torch: bool, seed: int
) -> None:
    mixture, known = case
    points = (10 * np.random.default_rng(seed).normal(size=(9, mixture.means.shape[1]))).astype(dtype)
    original = points.tobytes()
    completed = mixture.complete(torch.from_numpy(points) if as_torch else points, known=known, seed=seed)
    assert completed[:, known].numpy().tobytes() == points[:, known].tobytes()
    assert completed.shape == points.shape and torch.isfinite(completed).all()
    assert points.tobytes() == original


@LAW
@given(seeds, st.integers(1, 4), st.integers(1, 3))
def test_em_never_lowers_the_likelihood(seed: int, components: int, dims: int) -> None:
    points = clusters(seed, 80, dims)
    likelihoods = [
        GaussianMixture.fit(points, components, seed=seed, tolerance=NEVER, max_iterations=iterations)
        .log_prob(points)
        .mean()
        .item()
        for iterations in range(12)
    ]
    gains = np.diff(likelihoods)
    assert (gains > -1e-6).all()  # EM proper never loses; the ridge may, by its own size


@LAW
@given(seeds, st.integers(1, 5), st.integers(1, 4), st.integers(0, 5))
def test_every_fit_has_the_mean_and_the_spread_of_the_points(
    seed: int, components: int, dims: int, iterations: int
) -> None:
    # Whatever the responsibilities, an M step makes the mixture's first two moments those of the points.
    points = clusters(seed, 60, dims)
    mixture = GaussianMixture.fit(points, components, seed=seed, tolerance=NEVER, max_iterations=iterations)
    mean = mixture.weights @ mixture.means
    offset = mixture.means - mean
    total = torch.einsum("k,kij->ij", mixture.weights, mixture.covariances) + offset.T @ (
        mixture.weights[:, None] * offset
    )
    expected = np.atleast_2d(np.cov(points.T, bias=True)) + RIDGE * np.diag(points.var(0))
    scale = np.sqrt(np.outer(points.var(0), points.var(0)))
    np.testing.assert_allclose(mean.numpy() / points.std(0), points.mean(0) / points.std(0), atol=1e-9)
    found, wanted = total.numpy() / scale, expected / scale
    np.testing.assert_allclose(found, wanted, atol=1e-9)


@LAW
@given(seeds, st.floats(-4, 4), st.floats(-1e3, 1e3))
def test_a_fit_does_not_depend_on_the_units(seed: int, power: float, shift: float) -> None:
    points = clusters(seed, 60, 2)
    factor = np.array([10.0**power, -(10.0 ** (-power))])
    here = GaussianMixture.fit(points, 3, seed=seed, tolerance=NEVER, max_iterations=5)
    there = GaussianMixture.fit(points * factor + shift, 3, seed=seed, tolerance=NEVER, max_iterations=5)
    jacobian = math.log(abs(factor.prod()))
    moved = there.log_prob(points * factor + shift).numpy() + jacobian
    np.testing.assert_allclose(moved, here.log_prob(points).numpy(), atol=1e-4)


@LAW
@given(tables, st.integers(1, 40), seeds)
def test_any_table_is_fitted_by_proper_gaussians(points: Floats, components: int, seed: int) -> None:
    mixture = GaussianMixture.fit(points, components, seed=seed)
    distinct = len(np.unique(points, axis=0))
    assert min(components, distinct, 1) <= len(mixture.weights) <= min(components, len(points))
    assert (mixture.weights > 0).all() and abs(mixture.weights.sum().item() - 1) < 1e-12
    assert mixture.covariances.equal(mixture.covariances.transpose(1, 2))
    assert torch.isfinite(torch.linalg.cholesky(mixture.covariances)).all()
    assert torch.isfinite(mixture.log_prob(points)).all()
    sample = mixture.sample(50, seed=seed)
    assert torch.isfinite(sample).all() and torch.isfinite(mixture.log_prob(sample)).all()
    width = np.ptp(points, axis=0)
    slack = 6 * width + 1e-5 * np.maximum(np.abs(points).max(0), 1.0)
    assert (sample.numpy() > points.min(0) - slack).all() and (sample.numpy() < points.max(0) + slack).all()
