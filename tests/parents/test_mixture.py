"""Gaussian mixtures: seeds, kinds of arrays, degenerate points and bad input."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from approved import refused
from mixture_data import Floats, moons, random_mixture

from mocoda.parents.mixture import GaussianMixture

# Seeds


def test_the_same_seed_gives_the_same_bytes_and_another_does_not() -> None:
    points = moons(300, 0)
    one, again, other = (GaussianMixture.fit(points, 6, seed=seed) for seed in (1, 1, 2))
    for name in ("weights", "means", "covariances"):
        assert getattr(one, name).equal(getattr(again, name))
        assert not getattr(one, name).equal(getattr(other, name))
    draws: list[Callable[[int], torch.Tensor]] = [
        lambda seed: one.sample(20, seed=seed),
        lambda seed: one.complete(points[:20], known=[0], seed=seed),
        lambda seed: one.complete(points[:20], known=[], seed=seed),
    ]
    for draw in draws:
        assert draw(3).equal(draw(3))
        assert not draw(3).equal(draw(4))


# Degenerate points


NORMAL = np.random.default_rng(0).normal(size=(200, 3))
PICK = np.random.default_rng(1).integers(3, size=200)
DEGENERATE: dict[str, Floats] = {
    "constant column": NORMAL * [1, 0, 1] + [0, 3.7, 0],
    "constant zero column": NORMAL * [1, 0, 1],
    "duplicate column": NORMAL[:, [0, 1, 0]],
    "column that is the sum of others": NORMAL @ [[1, 0, 1], [0, 1, 1], [0, 0, 0]],
    "fewer rows than components": NORMAL[:7],
    "one row": NORMAL[:1],
    "identical rows": np.tile([1.5, -2.0, 1e5], (200, 1)),
    "few different rows": NORMAL[PICK],
    "huge offset": NORMAL + 1e6,
    "huge offset, small noise": 1e6 + 1e-2 * NORMAL,
    "one distant row": np.concatenate([np.full((1, 3), 1e5), NORMAL[1:]]),
    "columns of very different units": NORMAL * [1e-8, 1.0, 1e8],
}


@pytest.mark.parametrize("points", DEGENERATE.values(), ids=DEGENERATE)
def test_degenerate_points_give_finite_densities_and_samples_near_them(points: Floats) -> None:
    mixture = GaussianMixture.fit(points, 32)
    assert len(mixture.weights) <= len(points)
    assert mixture.weights.sum().item() == pytest.approx(1.0, abs=1e-12)
    sample = mixture.sample(500, seed=0)
    completed = mixture.complete(np.repeat(points[:1], 200, 0), known=[0], seed=1)
    assert torch.isfinite(mixture.log_prob(points)).all()
    assert torch.isfinite(mixture.log_prob(sample)).all()
    resolution = 1e-6 * np.maximum(np.abs(points).max(0), 1.0)  # that of float32, about
    slack = 6 * points.std(0) + resolution
    for drawn in (sample.double().numpy(), completed.numpy()):
        assert (drawn > points.min(0) - slack).all() and (drawn < points.max(0) + slack).all()


@pytest.mark.parametrize("value", [0.0, 3.7, -250.0, 1e6])
def test_a_constant_column_comes_back_constant(value: float) -> None:
    points = np.random.default_rng(0).normal(size=(300, 3))
    points[:, 1] = value
    mixture = GaussianMixture.fit(points, 8)
    given = np.full((100, 3), 0.1)
    for drawn in (mixture.sample(1_000, seed=0), mixture.complete(given, known=[0, 2], seed=0)):
        assert (drawn[:, 1] - value).abs().max().item() <= 2e-7 * max(abs(value), 1.0)


def test_of_fewer_rows_than_components_each_gets_its_own() -> None:
    points = np.random.default_rng(0).normal(size=(6, 2)) * 10
    mixture = GaussianMixture.fit(points, 32)
    assert mixture.means.shape == (6, 2)
    order = [int(np.abs(mixture.means.numpy() - row).sum(1).argmin()) for row in points]
    assert sorted(order) == list(range(6))
    np.testing.assert_allclose(mixture.means.numpy()[order], points, atol=1e-9)
    np.testing.assert_allclose(mixture.weights.numpy(), 1 / 6, atol=1e-9)


# Messages


@pytest.mark.parametrize(
    "points", [np.full((4, 2), math.nan), np.full((4, 2), math.inf), np.zeros(3), np.zeros((0, 2))]
)
def test_points_that_cannot_be_fitted_are_refused(points: Floats) -> None:
    with refused():
        GaussianMixture.fit(points)


def test_calls_that_do_not_fit_the_mixture_are_refused() -> None:
    mixture = random_mixture(2, 3, seed=0)
    with refused():
        GaussianMixture.fit(np.zeros((2, 2)), 0)
    for points in (np.zeros((5, 2)), np.zeros(3)):
        with refused():
            mixture.log_prob(points)
    for columns in ([3], [-1], [0, 0], [1, 7]):
        with refused():
            mixture.complete(np.zeros((5, 3)), known=columns, seed=0)
        with refused():
            mixture.marginal(columns)
