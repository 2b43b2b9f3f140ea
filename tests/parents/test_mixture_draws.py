"""What a mixture draws, against closed forms: samples, marginals, conditionals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from mixture_data import Floats, moons, random_mixture
from scipy.stats import kstest, multivariate_normal, norm

import mocoda.parents.mixture
from mocoda.parents.mixture import GaussianMixture


def conditional(
    mixture: GaussianMixture, unknown: list[int], known: list[int], value: Floats
) -> tuple[Floats, Floats, Floats]:
    """The unknown columns at one known value, in closed form: weights (K,), means (K, U), covariances (K, U, U)."""
    weights, means, covariances = [], [], []
    for w, m, s in zip(mixture.weights.numpy(), mixture.means.numpy(), mixture.covariances.numpy(), strict=True):
        s_uk, s_kk = s[np.ix_(unknown, known)], s[np.ix_(known, known)]
        weights.append(w * multivariate_normal.pdf(value, m[known], s_kk))
        means.append(m[unknown] + s_uk @ np.linalg.inv(s_kk) @ (value - m[known]))
        covariances.append(s[np.ix_(unknown, unknown)] - s_uk @ np.linalg.inv(s_kk) @ s_uk.T)
    return np.array(weights) / np.sum(weights), np.array(means), np.array(covariances)


def _mixture_cdf(weights: Floats, means: Floats, widths: Floats) -> Any:
    return lambda at: (weights * norm.cdf((np.asarray(at)[..., None] - means) / widths)).sum(-1)


# Blocks


@pytest.mark.parametrize("block", [1, 7, 300])
def test_fit_and_log_prob_do_not_depend_on_the_block_size(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    points = moons(301, 0)
    whole = GaussianMixture.fit(points, 3, max_iterations=10)
    density = whole.log_prob(points)
    monkeypatch.setattr(mocoda.parents.mixture, "_block_columns", lambda features, device: block)
    cut = GaussianMixture.fit(points, 3, max_iterations=10)
    for a, b in [(whole.weights, cut.weights), (whole.means, cut.means), (whole.covariances, cut.covariances)]:
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(whole.log_prob(points).numpy(), density.numpy(), rtol=1e-10, atol=1e-10)


def test_complete_follows_the_conditional_in_every_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mocoda.parents.mixture, "_block_columns", lambda features, device: 37)
    mixture = random_mixture(3, 2, seed=1)
    given = np.full((3_000, 2), 0.4)
    drawn = mixture.complete(given, known=[0], seed=0)[:, 1].numpy()
    weights, means, covariances = conditional(mixture, [1], [0], np.array([0.4]))
    assert kstest(drawn, _mixture_cdf(weights, means[:, 0], np.sqrt(covariances[:, 0, 0]))).pvalue > 0.001
    assert len(np.unique(drawn)) == 3_000  # no block repeats another's numbers


# Samples


def test_samples_are_float32_rows_that_follow_the_density() -> None:
    mixture = random_mixture(4, 2, seed=7)
    sample = mixture.sample(6_000, seed=0)
    assert sample.dtype == torch.float32 and sample.shape == (6_000, 2)
    for column in range(2):
        widths = mixture.covariances[:, column, column].sqrt().numpy()
        cdf = _mixture_cdf(mixture.weights.numpy(), mixture.means[:, column].numpy(), widths)
        assert kstest(sample[:, column].numpy(), cdf).pvalue > 0.001


# Marginals


# Conditionals


def test_a_marginal_sample_completed_is_a_sample_of_the_joint() -> None:
    mixture = random_mixture(4, 3, seed=11)
    half = torch.zeros(6_000, 3)
    half[:, [2]] = mixture.marginal([2]).sample(6_000, seed=0)
    completed = mixture.complete(half, known=[2], seed=1)
    # Along any direction a mixture of Gaussians is one again, which gives an exact cdf for the joint.
    for seed in range(5):
        direction = torch.from_numpy(np.random.default_rng(seed).normal(size=3))
        centre = (mixture.means @ direction).numpy()
        width = torch.einsum("i,kij,j->k", direction, mixture.covariances, direction).sqrt().numpy()
        cdf = _mixture_cdf(mixture.weights.numpy(), centre, width)
        assert kstest((completed.double() @ direction).numpy(), cdf).pvalue > 0.001


def test_what_the_unknown_columns_hold_does_not_matter() -> None:
    mixture = random_mixture(3, 3, seed=0)
    one, other = torch.zeros(20, 3), torch.zeros(20, 3)
    other[:, [0, 2]] = math.nan
    for known in ([1], []):
        a, b = (mixture.complete(points, known=known, seed=4) for points in (one, other))
        assert a.equal(b)
