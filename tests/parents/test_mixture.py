"""Gaussian mixtures against scikit-learn, scipy and closed forms, and laws that hold for every table of points."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from approved import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from scipy.stats import kstest, multivariate_normal, norm
from sklearn.mixture import GaussianMixture as SklearnMixture

import mocoda.parents.mixture
from mocoda.parents.mixture import RIDGE, GaussianMixture
from mocoda.tasks.navigation import Navigation

Floats = NDArray[np.float64]
NEVER = -math.inf  # a tolerance that no gain falls below: exactly `max_iterations` of EM
LAW = settings(deadline=None, max_examples=25, derandomize=True)

seeds = st.integers(0, 10_000)
tables = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 12), st.integers(1, 3)),
    elements=st.floats(-1e4, 1e4, allow_nan=False, width=32),
)


# Mixtures, and points to fit


def random_mixture(components: int, dims: int, seed: int) -> GaussianMixture:
    """A mixture that overlaps itself, with full covariances."""
    rng = np.random.default_rng(seed)
    weights = rng.uniform(0.2, 1.0, components)
    roots = rng.normal(size=(components, dims, dims))
    return GaussianMixture(
        torch.from_numpy(weights / weights.sum()),
        torch.from_numpy(rng.normal(size=(components, dims))),
        torch.from_numpy(roots @ roots.transpose(0, 2, 1) + 0.3 * np.eye(dims)),
    )


def blobs(rows: int, seed: int) -> Floats:
    """Five round clusters of different widths in the plane."""
    rng = np.random.default_rng(seed)
    centres = np.array([[0.0, 0.0], [8.0, 0.0], [0.0, 9.0], [7.0, 7.0], [-9.0, 3.0]])
    which = rng.integers(5, size=rows)
    widths = np.array([0.5, 1.0, 1.5, 2.0, 1.0])[which]
    return np.asarray(centres[which] + rng.normal(size=(rows, 2)) * widths[:, None])


def correlated(rows: int, seed: int) -> Floats:
    """Two elongated clusters in three columns of different units."""
    rng = np.random.default_rng(seed)
    root = np.array([[1.0, 0.0, 0.0], [0.9, 0.3, 0.0], [-0.5, 0.6, 0.2]])
    points = rng.normal(size=(rows, 3)) @ root.T + np.where(rng.random((rows, 1)) < 0.3, 3.0, 0.0)
    return np.asarray(points * np.array([1.0, 10.0, 0.2]) + np.array([5.0, -3.0, 100.0]))


def navigation(rows: int, seed: int) -> Floats:
    """The L of the recorded walks, with their actions."""
    return Navigation().collect(rows, seed=seed).rows.numpy().astype(np.float64)


def moons(rows: int, seed: int) -> Floats:
    """Two half circles, far from Gaussian."""
    rng = np.random.default_rng(seed)
    angle, upper = np.pi * rng.random(rows), rng.random(rows) < 0.5
    arc = np.stack([np.cos(angle), np.sin(angle)], 1)
    return np.where(upper[:, None], arc, np.array([1.0, 0.5]) - arc) + 0.08 * rng.normal(size=(rows, 2))


def clusters(seed: int, rows: int, dims: int) -> Floats:
    """Three overlapping clusters, turned and in units of their own."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(rows, dims)) + 3 * rng.normal(size=(3, dims))[rng.integers(3, size=rows)]
    turn = np.linalg.qr(rng.normal(size=(dims, dims))).Q
    return np.asarray(points @ turn * 10 ** rng.uniform(-1, 1, dims) + rng.normal(size=dims))


@st.composite
def mixtures_and_known(draw: st.DrawFn) -> tuple[GaussianMixture, list[int]]:
    """A mixture, and some of its columns in any order, neither none nor all."""
    mixture = random_mixture(draw(st.integers(1, 4)), draw(st.integers(2, 4)), draw(seeds))
    order = draw(st.permutations(range(mixture.means.shape[1])))
    return mixture, order[: draw(st.integers(1, len(order) - 1))]


def numbers_of(mixture: GaussianMixture) -> list[Floats]:
    return [part.numpy() for part in (mixture.weights, mixture.means, mixture.covariances)]


# Fitting, against scikit-learn


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


def test_em_stops_at_the_tolerance() -> None:
    points = moons(1_000, 0)
    exact = GaussianMixture.fit(points, 8, tolerance=0.0, max_iterations=2_000).log_prob(points).mean()
    default = GaussianMixture.fit(points, 8).log_prob(points).mean()
    impatient = GaussianMixture.fit(points, 8, tolerance=math.inf)
    twice = GaussianMixture.fit(points, 8, tolerance=NEVER, max_iterations=2)
    assert exact > default > impatient.log_prob(points).mean()
    assert impatient.means.equal(twice.means)  # the second iteration is the first whose gain is known


def test_em_stopped_by_points_held_out_does_not_learn_the_others_by_heart() -> None:
    points, fresh = (np.random.default_rng(0).normal(size=(rows, 3)) for rows in (300, 4_000))
    by_heart, stopped = (
        GaussianMixture.fit(points, 12, tolerance=0.0, max_iterations=500, validation=share).log_prob(fresh).mean()
        for share in (0.0, 0.25)
    )
    assert stopped > by_heart + 0.1
    enough, fresh = moons(20_000, 0), moons(4_000, 1)  # no mixture overfits these: either rule goes on as long
    one, other = (GaussianMixture.fit(enough, 8, validation=share).log_prob(fresh).mean() for share in (0.0, 0.1))
    assert other == pytest.approx(float(one), abs=0.02)
    for share in (-0.1, 1.0):
        with refused():
            GaussianMixture.fit(points, 2, validation=share)


@pytest.mark.parametrize("block", [1, 7, 300])
def test_fit_and_log_prob_do_not_depend_on_the_block_size(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    points = moons(301, 0)
    whole = GaussianMixture.fit(points, 3, max_iterations=10)
    density = whole.log_prob(points)
    monkeypatch.setattr(mocoda.parents.mixture, "_block_columns", lambda features, device: block)
    cut = GaussianMixture.fit(points, 3, max_iterations=10)
    for one, other in zip(numbers_of(whole), numbers_of(cut), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(whole.log_prob(points).numpy(), density.numpy(), rtol=1e-10, atol=1e-10)


# Laws of fits


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
    assert (np.diff(likelihoods) > -1e-6).all()  # EM proper never loses; the ridge may, by its own size


@LAW
@given(seeds, st.integers(1, 5), st.integers(1, 4), st.integers(0, 5))
def test_every_fit_has_the_mean_and_the_spread_of_the_points(
    seed: int, components: int, dims: int, iterations: int
) -> None:
    # Whatever the responsibilities, an M step makes the mixture's first two moments those of the points.
    points = clusters(seed, 60, dims)
    fitted = GaussianMixture.fit(points, components, seed=seed, tolerance=NEVER, max_iterations=iterations)
    weights, means, covariances = numbers_of(fitted)
    offset = means - weights @ means
    total = np.einsum("k,kij->ij", weights, covariances) + offset.T @ (weights[:, None] * offset)
    expected = np.atleast_2d(np.cov(points.T, bias=True)) + RIDGE * np.diag(points.var(0))
    scale = points.std(0)
    np.testing.assert_allclose(weights @ means / scale, points.mean(0) / scale, atol=1e-9)
    np.testing.assert_allclose(total / np.outer(scale, scale), expected / np.outer(scale, scale), atol=1e-9)


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
    slack = 6 * np.ptp(points, axis=0) + 1e-5 * np.maximum(np.abs(points).max(0), 1.0)
    assert (sample.numpy() > points.min(0) - slack).all() and (sample.numpy() < points.max(0) + slack).all()


# Densities and draws, against closed forms


@pytest.mark.parametrize(("components", "dims"), [(1, 1), (3, 1), (1, 4), (5, 3)])
def test_log_prob_is_the_mixture_of_scipy_normals(components: int, dims: int) -> None:
    mixture = random_mixture(components, dims, seed=components)
    points = 2 * np.random.default_rng(9).normal(size=(200, dims))
    for columns in (list(range(dims)), [dims - 1]):
        expected = np.zeros(200)
        for weight, mean, covariance in zip(*numbers_of(mixture), strict=True):
            own = covariance[np.ix_(columns, columns)]
            expected += weight * multivariate_normal.pdf(points[:, columns], mean[columns], own)
        found = mixture.marginal(columns).log_prob(points[:, columns])
        assert found.dtype == torch.float64 and found.shape == (200,)
        np.testing.assert_allclose(found.exp().numpy(), expected, rtol=1e-10)


def along(mixture: GaussianMixture, direction: Floats) -> Any:
    """The exact cdf along a direction (D,), in which a mixture of Gaussians is one again."""
    weights, means, covariances = numbers_of(mixture)
    centre, width = means @ direction, np.sqrt(np.einsum("i,kij,j->k", direction, covariances, direction))
    return lambda at: (weights * norm.cdf((np.asarray(at)[..., None] - centre) / width)).sum(-1)


@pytest.mark.parametrize("block", [37, 10**6])
def test_samples_and_marginal_samples_completed_follow_the_density(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(mocoda.parents.mixture, "_block_columns", lambda features, device: block)
    mixture = random_mixture(4, 3, seed=11)
    half = torch.zeros(6_000, 3)
    half[:, [2]] = mixture.marginal([2]).sample(6_000, seed=0)
    for drawn in (mixture.complete(half, known=[2], seed=1), mixture.sample(6_000, seed=2)):
        assert drawn.dtype == torch.float32 and drawn.shape == (6_000, 3)
        assert len(drawn[:, 0].unique()) > 5_900  # no block repeats another's numbers
        for direction in (*np.eye(3), *np.random.default_rng(0).normal(size=(5, 3))):
            assert kstest(drawn.double().numpy() @ direction, along(mixture, direction)).pvalue > 0.001


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


def test_what_the_unknown_columns_hold_does_not_matter() -> None:
    mixture = random_mixture(3, 3, seed=0)
    one, other = torch.zeros(20, 3), torch.zeros(20, 3)
    other[:, [0, 2]] = math.nan
    for known in ([1], []):
        a, b = (mixture.complete(points, known=known, seed=4) for points in (one, other))
        assert a.equal(b)


def test_the_same_seed_gives_the_same_bytes_and_another_does_not() -> None:
    points = moons(300, 0)
    one, again, other = (GaussianMixture.fit(points, 6, seed=seed) for seed in (1, 1, 2))
    for name in ("weights", "means", "covariances"):
        assert getattr(one, name).equal(getattr(again, name))
        assert not getattr(one, name).equal(getattr(other, name))
    draws: list[Callable[[int], torch.Tensor]] = [
        lambda seed: one.sample(20, seed=seed),
        lambda seed: one.complete(points[:20], known=[0], seed=seed),
    ]
    for draw in draws:
        assert draw(3).equal(draw(3))
        assert not draw(3).equal(draw(4))


# Degenerate points, and calls that do not fit


NORMAL = np.random.default_rng(0).normal(size=(200, 3))
PICK = np.random.default_rng(1).integers(3, size=200)
DEGENERATE: dict[str, Floats] = {
    "constant column": NORMAL * [1, 0, 1] + [0, 3.7, 0],
    "constant zero column": NORMAL * [1, 0, 1],
    "constant large column": NORMAL * [1, 0, 1] + [0, 1e6, 0],
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


def test_of_fewer_rows_than_components_each_gets_its_own() -> None:
    points = np.random.default_rng(0).normal(size=(6, 2)) * 10
    weights, means, _ = numbers_of(GaussianMixture.fit(points, 32))
    np.testing.assert_allclose(means[means[:, 0].argsort()], points[points[:, 0].argsort()], atol=1e-9)
    np.testing.assert_allclose(weights, 1 / 6, atol=1e-9)


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
    for columns in ([3], [-1], [0, 0]):
        with refused():
            mixture.complete(np.zeros((5, 3)), known=columns, seed=0)
        with refused():
            mixture.marginal(columns)
