"""mocoda.mixture against scikit-learn, scipy, closed forms and a slow twin; degenerate points; whole messages."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import chisquare, kstest, multivariate_normal, norm
from sklearn.mixture import GaussianMixture as SklearnMixture

import mocoda.mixture
from mocoda.files import InputError
from mocoda.mixture import RIDGE, GaussianMixture, _Features
from mocoda.randomness import Stream
from mocoda.tasks.navigation import Navigation

Floats = NDArray[np.float64]
NEVER = -math.inf  # a tolerance that no gain falls below: exactly `max_iterations` of EM


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


def slow_em(
    points: Floats, weights: Floats, means: Floats, covariances: Floats, ridge: Floats, diagonal: bool
) -> tuple[Floats, Floats, Floats, float]:
    """One iteration of EM by loops: new weights, means, covariances, and the log likelihood under the old ones."""
    rows, dims = points.shape
    components = len(weights)
    responsibility = np.zeros((rows, components))
    likelihood = 0.0
    for n in range(rows):
        joint = np.zeros(components)
        for k in range(components):
            offset = points[n] - means[k]
            exponent = -0.5 * offset @ np.linalg.inv(covariances[k]) @ offset
            joint[k] = weights[k] * math.exp(exponent) / math.sqrt(np.linalg.det(2 * math.pi * covariances[k]))
        likelihood += math.log(joint.sum())
        responsibility[n] = joint / joint.sum()
    new_weights, new_means = np.zeros(components), np.zeros((components, dims))
    new_covariances = np.zeros((components, dims, dims))
    for k in range(components):
        count = sum(responsibility[n, k] for n in range(rows))
        new_weights[k] = count / rows
        for n in range(rows):
            new_means[k] += responsibility[n, k] * points[n] / count
        for n in range(rows):
            offset = points[n] - new_means[k]
            new_covariances[k] += responsibility[n, k] * np.outer(offset, offset) / count
        if diagonal:
            new_covariances[k] = np.diag(np.diag(new_covariances[k]))
        new_covariances[k] += np.diag(ridge)
    return new_weights, new_means, new_covariances, likelihood


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


def message(call: Any, *args: Any, **options: Any) -> str:
    with pytest.raises(InputError) as error:
        call(*args, **options)
    return str(error.value)


# Against scikit-learn and scipy


@pytest.mark.parametrize("covariance", ["full", "diag"])
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
def test_fit_explains_fresh_points_as_well_as_scikit_learn(
    make: Any, rows: int, components: int, covariance: str
) -> None:
    points, fresh = make(rows, 0), make(4_000, 1)
    theirs = SklearnMixture(components, covariance_type=covariance, random_state=0, max_iter=500)
    expected = float(theirs.fit(points).score(fresh))
    found = GaussianMixture.fit(points, components, covariance).log_prob(fresh).mean().item()
    # Of several optima, EM finds one: ours may be the better, but not more than 1% the worse.
    assert found > expected - 0.01 * abs(expected)
    if components in (1, 32):
        assert found == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("make", [blobs, correlated, moons, navigation])
@pytest.mark.parametrize("covariance", ["full", "diag"])
def test_em_of_scikit_learn_finds_nothing_left_to_gain(make: Any, covariance: str) -> None:
    points = make(2_000, 0)
    ours = GaussianMixture.fit(points, 4, covariance, tolerance=1e-7, max_iterations=2_000)
    precisions = ours.covariances.inverse()
    if covariance == "diag":
        precisions = precisions.diagonal(dim1=1, dim2=2)
    theirs = SklearnMixture(
        4,
        covariance_type=covariance,
        weights_init=ours.weights.numpy(),
        means_init=ours.means.numpy(),
        precisions_init=precisions.numpy(),
        tol=1e-7,
        max_iter=500,
        reg_covar=0.0,
    )
    gained = float(theirs.fit(points).score(points)) - ours.log_prob(points).mean().item()
    assert abs(gained) < 1e-4


@pytest.mark.parametrize("covariance", ["full", "diag"])
def test_one_gaussian_is_the_fit_of_scikit_learn_to_rounding(covariance: str) -> None:
    points = correlated(500, 3)
    spread = points.var(0)
    theirs = SklearnMixture(1, covariance_type=covariance, reg_covar=0.0).fit(points)
    ours = GaussianMixture.fit(points, 1, covariance)
    expected = theirs.covariances_[0] if covariance == "full" else np.diag(theirs.covariances_[0])
    np.testing.assert_allclose(ours.means.numpy(), theirs.means_, rtol=1e-10)
    np.testing.assert_allclose(ours.covariances[0].numpy(), expected + RIDGE * np.diag(spread), rtol=1e-9, atol=1e-12)


def test_well_separated_clusters_are_found_with_their_parameters() -> None:
    rng = np.random.default_rng(0)
    root = np.array([[1.0, 0.0], [0.8, 0.6]])
    low, high = rng.normal(size=(6_000, 2)) @ root.T, rng.normal(size=(2_000, 2)) * 0.5 + 20.0
    mixture = GaussianMixture.fit(np.concatenate([low, high]), 2)
    order = mixture.weights.argsort(descending=True)
    np.testing.assert_allclose(mixture.weights[order].numpy(), [0.75, 0.25], atol=1e-6)
    np.testing.assert_allclose(mixture.means[order].numpy(), [low.mean(0), high.mean(0)], atol=1e-3)
    expected = [np.cov(low.T, bias=True), np.cov(high.T, bias=True)]
    np.testing.assert_allclose(mixture.covariances[order].numpy(), expected, atol=1e-3)


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


def test_log_prob_stays_finite_where_every_density_underflows() -> None:
    mixture = random_mixture(3, 2, seed=0)
    far = mixture.log_prob([[1e6, -1e6], [1e9, 0.0]])
    assert torch.isfinite(far).all() and (far < -1e6).all()


def test_density_integrates_to_one() -> None:
    mixture = random_mixture(4, 1, seed=2)
    grid = np.linspace(-30, 30, 60_001)
    total = mixture.log_prob(grid[:, None]).exp().sum().item() * (grid[1] - grid[0])
    assert total == pytest.approx(1.0, abs=1e-6)


# EM against its slow twin


@pytest.mark.parametrize("covariance", ["full", "diag"])
def test_one_iteration_of_em_is_what_loops_compute(covariance: str) -> None:
    diagonal = covariance == "diag"
    points = np.random.default_rng(5).normal(size=(60, 3))
    start = random_mixture(4, 3, seed=6)
    old = start.covariances
    if diagonal:
        old = torch.diag_embed(old.diagonal(dim1=1, dim2=2))
    features = _Features(3, covariance, torch.device("cpu"))
    moments, likelihood = features.expect(torch.from_numpy(points).T.contiguous(), start.weights, start.means, old)
    weights, means, covariances = features.parameters(moments)
    expected = slow_em(
        points, start.weights.numpy(), start.means.numpy(), old.numpy(), np.full(3, RIDGE), diagonal=diagonal
    )
    np.testing.assert_allclose(weights.numpy(), expected[0], rtol=1e-9)
    np.testing.assert_allclose(means.numpy(), expected[1], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(covariances.numpy(), expected[2], rtol=1e-9, atol=1e-12)
    assert likelihood == pytest.approx(expected[3], rel=1e-12)


@pytest.mark.parametrize("covariance", ["full", "diag"])
def test_moments_are_sums_over_responsibility_times_features(covariance: str) -> None:
    rng = np.random.default_rng(0)
    points, responsibility = rng.normal(size=(3, 20)), rng.random((2, 20))
    pairs = [(i, j) for i in range(3) for j in range(i, 3)] if covariance == "full" else [(i, i) for i in range(3)]
    expected = np.zeros((2, 4 + len(pairs)))
    for k in range(2):
        for n in range(20):
            x = points[:, n]
            expected[k] += responsibility[k, n] * np.array([1.0, *x, *(x[i] * x[j] for i, j in pairs)])
    found = _Features(3, covariance, torch.device("cpu")).moments(
        torch.from_numpy(points), torch.from_numpy(responsibility)
    )
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("covariance", ["full", "diag"])
def test_every_further_iteration_of_fit_is_one_of_the_slow_twin_in_the_users_units(covariance: str) -> None:
    points = correlated(80, 4)
    before, after = (
        GaussianMixture.fit(points, 3, covariance, tolerance=NEVER, max_iterations=count) for count in (4, 5)
    )
    weights, means, covariances, _ = slow_em(
        points,
        before.weights.numpy(),
        before.means.numpy(),
        before.covariances.numpy(),
        RIDGE * points.var(0),
        diagonal=covariance == "diag",
    )
    np.testing.assert_allclose(after.weights.numpy(), weights, rtol=1e-7)
    np.testing.assert_allclose(after.means.numpy(), means, rtol=1e-7)
    np.testing.assert_allclose(after.covariances.numpy(), covariances, rtol=1e-6, atol=1e-9)


def test_em_stops_at_the_tolerance() -> None:
    points = moons(1_000, 0)
    exact = GaussianMixture.fit(points, 8, tolerance=0.0, max_iterations=2_000).log_prob(points).mean()
    default = GaussianMixture.fit(points, 8).log_prob(points).mean()
    impatient = GaussianMixture.fit(points, 8, tolerance=math.inf)
    twice = GaussianMixture.fit(points, 8, tolerance=NEVER, max_iterations=2)
    assert exact > default > impatient.log_prob(points).mean()
    assert impatient.means.equal(twice.means)  # the second iteration is the first whose gain is known


def test_a_diagonal_fit_has_no_covariances() -> None:
    covariances = GaussianMixture.fit(correlated(300, 0), 3, "diag").covariances
    assert (covariances - torch.diag_embed(covariances.diagonal(dim1=1, dim2=2)) == 0).all()


# Blocks


@pytest.mark.parametrize("covariance", ["full", "diag"])
@pytest.mark.parametrize("block", [1, 7, 300])
def test_fit_and_log_prob_do_not_depend_on_the_block_size(
    monkeypatch: pytest.MonkeyPatch, block: int, covariance: str
) -> None:
    points = moons(301, 0)
    whole = GaussianMixture.fit(points, 3, covariance, max_iterations=10)
    density = whole.log_prob(points)
    monkeypatch.setattr(mocoda.mixture, "_block_columns", lambda features, device: block)
    cut = GaussianMixture.fit(points, 3, covariance, max_iterations=10)
    for a, b in [(whole.weights, cut.weights), (whole.means, cut.means), (whole.covariances, cut.covariances)]:
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(whole.log_prob(points).numpy(), density.numpy(), rtol=1e-10, atol=1e-10)


def test_complete_follows_the_conditional_in_every_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mocoda.mixture, "_block_columns", lambda features, device: 37)
    mixture = random_mixture(3, 2, seed=1)
    given = np.full((3_000, 2), 0.4)
    drawn = mixture.complete(given, known=[0], seed=0)[:, 1].numpy()
    weights, means, covariances = conditional(mixture, [1], [0], np.array([0.4]))
    assert kstest(drawn, _mixture_cdf(weights, means[:, 0], np.sqrt(covariances[:, 0, 0]))).pvalue > 0.001
    assert len(np.unique(drawn)) == 3_000  # no block repeats another's numbers


def _mixture_cdf(weights: Floats, means: Floats, widths: Floats) -> Any:
    return lambda at: (weights * norm.cdf((np.asarray(at)[..., None] - means) / widths)).sum(-1)


# Samples


def test_samples_are_float32_rows_that_follow_the_density() -> None:
    mixture = random_mixture(4, 2, seed=7)
    sample = mixture.sample(6_000, seed=0)
    assert sample.dtype == torch.float32 and sample.shape == (6_000, 2)
    for column in range(2):
        widths = mixture.covariances[:, column, column].sqrt().numpy()
        cdf = _mixture_cdf(mixture.weights.numpy(), mixture.means[:, column].numpy(), widths)
        assert kstest(sample[:, column].numpy(), cdf).pvalue > 0.001


def test_samples_of_one_gaussian_have_its_covariance() -> None:
    mixture = random_mixture(1, 3, seed=8)
    sample = mixture.sample(100_000, seed=0).double()
    np.testing.assert_allclose(sample.mean(0).numpy(), mixture.means[0].numpy(), atol=0.03)
    np.testing.assert_allclose(sample.T.cov().numpy(), mixture.covariances[0].numpy(), atol=0.08)


def test_an_imbalanced_fit_samples_its_clusters_in_proportion() -> None:
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal(size=(900, 2)), 100 + rng.normal(size=(100, 2))])
    mixture = GaussianMixture.fit(points, 2)
    near = int((mixture.sample(10_000, seed=0)[:, 0] < 50).sum())
    assert chisquare([near, 10_000 - near], [9_000, 1_000]).pvalue > 0.001


@pytest.mark.parametrize("n", [0, 1, 5])
def test_samples_have_as_many_rows_as_asked(n: int) -> None:
    mixture = random_mixture(2, 3, seed=0)
    assert mixture.sample(n, seed=0).shape == (n, 3)
    assert mixture.complete(torch.zeros(n, 3), known=[1], seed=0).shape == (n, 3)
    assert mixture.log_prob(torch.zeros(n, 3)).shape == (n,)


# Marginals


def test_marginal_holds_the_columns_in_the_order_asked() -> None:
    mixture = random_mixture(3, 4, seed=3)
    marginal = mixture.marginal([3, 0])
    assert marginal.weights.equal(mixture.weights)
    assert marginal.means.equal(mixture.means[:, [3, 0]])
    for row, i in enumerate([3, 0]):
        for column, j in enumerate([3, 0]):
            assert marginal.covariances[:, row, column].equal(mixture.covariances[:, i, j])


def test_marginal_is_the_density_with_the_other_column_integrated_out() -> None:
    mixture = random_mixture(3, 2, seed=4)
    grid = np.linspace(-40, 40, 8_001)
    for value in (-1.5, 0.0, 2.0):
        line = np.stack([grid, np.full_like(grid, value)], 1)
        integral = mixture.log_prob(line).exp().sum().item() * (grid[1] - grid[0])
        assert mixture.marginal([1]).log_prob([[value]]).exp().item() == pytest.approx(integral, rel=1e-8)


def test_marginal_of_one_gaussian_is_the_fit_of_those_columns() -> None:
    points = correlated(400, 5)
    marginal, alone = GaussianMixture.fit(points, 1).marginal([2, 0]), GaussianMixture.fit(points[:, [2, 0]], 1)
    np.testing.assert_allclose(marginal.means.numpy(), alone.means.numpy(), rtol=1e-10)
    np.testing.assert_allclose(marginal.covariances.numpy(), alone.covariances.numpy(), rtol=1e-9)


# Conditionals


def test_complete_draws_from_the_closed_form_conditional_of_one_gaussian() -> None:
    mixture = random_mixture(1, 4, seed=10)
    value = np.array([0.7, -1.2])
    points = np.zeros((50_000, 4))
    points[:, [3, 1]] = value
    drawn = mixture.complete(points, known=[3, 1], seed=0)[:, [0, 2]]
    _, means, covariances = conditional(mixture, [0, 2], [3, 1], value)
    np.testing.assert_allclose(drawn.mean(0).numpy(), means[0], atol=0.03)
    np.testing.assert_allclose(drawn.T.cov().numpy(), covariances[0], atol=0.04)
    for column in range(2):
        cdf = norm(means[0, column], math.sqrt(covariances[0, column, column])).cdf
        assert kstest(drawn[:5_000, column].numpy(), cdf).pvalue > 0.001


@pytest.mark.parametrize("value", [-2.0, 0.0, 0.5, 1.5])
def test_complete_weighs_components_by_their_density_at_the_known_value(value: float) -> None:
    # The components lie far apart in the unknown column, so which one was drawn can be read off.
    covariances = torch.tensor([[[1.0, 0.3], [0.3, 0.5]], [[0.25, -0.1], [-0.1, 0.5]]], dtype=torch.float64)
    mixture = GaussianMixture(
        torch.tensor([0.3, 0.7], dtype=torch.float64),
        torch.tensor([[0.0, -50.0], [1.0, 50.0]], dtype=torch.float64),
        covariances,
    )
    drawn = mixture.complete(np.full((4_000, 2), value), known=[0], seed=3)[:, 1].numpy()
    weights, means, spread = conditional(mixture, [1], [0], np.array([value]))
    by_hand = np.array([0.3 * norm.pdf(value), 0.7 * norm.pdf(value, 1.0, 0.5)])
    np.testing.assert_allclose(weights, by_hand / by_hand.sum(), rtol=1e-12)
    low = int((drawn < 0).sum())
    share = 4 * math.sqrt(weights[0] * weights[1] / 4_000) + 1e-9
    assert low / 4_000 == pytest.approx(weights[0], abs=share)
    assert kstest(drawn, _mixture_cdf(weights, means[:, 0], np.sqrt(spread[:, 0, 0]))).pvalue > 0.001


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


def test_each_row_is_completed_given_its_own_value() -> None:
    mixture = random_mixture(1, 2, seed=12)
    slope = (mixture.covariances[0, 1, 0] / mixture.covariances[0, 0, 0]).item()
    points = torch.zeros(20_000, 2, dtype=torch.float64)
    points[:, 0] = torch.linspace(-3, 3, 20_000, dtype=torch.float64)
    drawn = mixture.complete(points, known=[0], seed=0)
    fitted = np.polyfit(drawn[:, 0].numpy(), drawn[:, 1].numpy(), 1)
    assert fitted[0] == pytest.approx(slope, abs=0.03)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("as_torch", [False, True])
@pytest.mark.parametrize("known", [[0], [2, 1], (0, 1, 2)])
def test_known_columns_stay_to_the_bit(dtype: Any, as_torch: bool, known: list[int]) -> None:
    mixture = random_mixture(3, 4, seed=0)
    points = np.random.default_rng(1).normal(size=(50, 4)).astype(dtype)
    original = points.copy()
    completed = mixture.complete(torch.from_numpy(points) if as_torch else points, known=known, seed=0)
    assert completed.numpy().dtype == dtype
    assert completed[:, list(known)].numpy().tobytes() == points[:, list(known)].tobytes()
    assert points.tobytes() == original.tobytes()
    unknown = [column for column in range(4) if column not in known]
    assert (completed[:, unknown].numpy() != points[:, unknown]).all()


def test_what_the_unknown_columns_hold_does_not_matter() -> None:
    mixture = random_mixture(3, 3, seed=0)
    one, other = torch.zeros(20, 3), torch.zeros(20, 3)
    other[:, [0, 2]] = math.nan
    for known in ([1], []):
        a, b = (mixture.complete(points, known=known, seed=4) for points in (one, other))
        assert a.equal(b)


def test_the_order_in_which_known_columns_are_named_does_not_matter() -> None:
    mixture = random_mixture(3, 3, seed=0)
    points = np.random.default_rng(0).normal(size=(30, 3))
    a, b = mixture.complete(points, known=[0, 2], seed=1), mixture.complete(points, known=[2, 0], seed=1)
    np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_to_complete_knowing_nothing_is_a_plain_sample(dtype: torch.dtype) -> None:
    mixture = random_mixture(3, 2, seed=5)
    drawn = mixture.complete(torch.full((5_000, 2), 9.0, dtype=dtype), known=(), seed=0)
    assert drawn.dtype == dtype
    for column in range(2):
        widths = mixture.covariances[:, column, column].sqrt().numpy()
        cdf = _mixture_cdf(mixture.weights.numpy(), mixture.means[:, column].numpy(), widths)
        assert kstest(drawn[:, column].numpy(), cdf).pvalue > 0.001


def test_to_complete_knowing_everything_returns_a_copy_of_the_points() -> None:
    mixture = random_mixture(3, 2, seed=5)
    points = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    completed = mixture.complete(points, known=[1, 0], seed=0)
    assert completed.equal(points) and completed.data_ptr() != points.data_ptr()


def test_known_values_far_from_the_data_are_completed_to_finite_rows() -> None:
    mixture = GaussianMixture.fit(moons(500, 0), 8)
    completed = mixture.complete(np.array([[1e4, 0.0], [-1e4, 0.0]]), known=[0], seed=0)
    assert torch.isfinite(completed).all()


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


def test_a_stream_can_be_the_seed_and_is_not_used_up() -> None:
    mixture, stream = random_mixture(2, 2, seed=0), Stream(0, "stage")
    assert mixture.sample(5, seed=stream).equal(mixture.sample(5, seed=stream))
    points = moons(100, 0)
    a, b = (GaussianMixture.fit(points, 3, seed=stream) for _ in range(2))
    assert a.means.equal(b.means)


def test_torch_numpy_and_lists_of_the_same_points_are_the_same_points() -> None:
    points = np.random.default_rng(0).integers(-50, 50, size=(60, 2))
    fits = [
        GaussianMixture.fit(given, 3)
        for given in (points.astype(np.float64), torch.from_numpy(points).float(), points, points.tolist())
    ]
    for fit in fits[1:]:
        assert fit.means.equal(fits[0].means) and fit.covariances.equal(fits[0].covariances)
    assert fits[0].log_prob(points).equal(fits[0].log_prob(points.astype(np.float64)))


def _read_only(points: Floats) -> Floats:
    points = points.copy()
    points.flags.writeable = False
    return points


@pytest.mark.parametrize(
    "same",
    [lambda points: points[::-1].copy()[::-1], lambda points: points.astype(">f8"), _read_only],
    ids=["reversed", "big-endian", "read-only"],
)
def test_arrays_that_torch_does_not_take_are_taken(same: Callable[[Floats], Floats]) -> None:
    points = moons(100, 0)
    expected, found = GaussianMixture.fit(points, 3), GaussianMixture.fit(same(points), 3)
    assert found.means.equal(expected.means)
    assert found.log_prob(same(points)).equal(expected.log_prob(points))
    completed = [expected.complete(given, known=[0], seed=0) for given in (points, same(points))]
    assert completed[0].equal(completed[1])


# Degenerate points


def _degenerate(kind: str) -> Floats:
    rng = np.random.default_rng(0)
    normal = rng.normal(size=(200, 3))
    if kind == "constant column":
        normal[:, 1] = 3.7
    elif kind == "constant zero column":
        normal[:, 1] = 0.0
    elif kind == "duplicate column":
        normal[:, 2] = normal[:, 0]
    elif kind == "column that is the sum of others":
        normal[:, 2] = normal[:, 0] + normal[:, 1]
    elif kind == "fewer rows than components":
        normal = normal[:7]
    elif kind == "one row":
        normal = normal[:1]
    elif kind == "identical rows":
        normal[:] = [1.5, -2.0, 1e5]
    elif kind == "few different rows":
        normal = normal[rng.integers(3, size=200)]
    elif kind == "huge offset":
        normal += 1e6
    elif kind == "huge offset, small noise":
        normal = 1e6 + 1e-2 * normal
    elif kind == "one distant row":
        normal[0] = 1e5
    elif kind == "columns of very different units":
        normal = normal * np.array([1e-8, 1.0, 1e8])
    return normal


@pytest.mark.parametrize("covariance", ["full", "diag"])
@pytest.mark.parametrize(
    "kind",
    [
        "constant column",
        "constant zero column",
        "duplicate column",
        "column that is the sum of others",
        "fewer rows than components",
        "one row",
        "identical rows",
        "few different rows",
        "huge offset",
        "huge offset, small noise",
        "one distant row",
        "columns of very different units",
    ],
)
def test_degenerate_points_give_finite_densities_and_samples_near_them(kind: str, covariance: str) -> None:
    points = _degenerate(kind)
    mixture = GaussianMixture.fit(points, 32, covariance)
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
@pytest.mark.parametrize("covariance", ["full", "diag"])
def test_a_constant_column_comes_back_constant(value: float, covariance: str) -> None:
    points = np.random.default_rng(0).normal(size=(300, 3))
    points[:, 1] = value
    mixture = GaussianMixture.fit(points, 8, covariance)
    given = np.full((100, 3), 0.1)
    for drawn in (mixture.sample(1_000, seed=0), mixture.complete(given, known=[0, 2], seed=0)):
        assert (drawn[:, 1] - value).abs().max().item() <= 2e-7 * max(abs(value), 1.0)


def test_a_duplicate_column_comes_back_the_same_as_the_other() -> None:
    points = np.random.default_rng(0).normal(size=(500, 2))[:, [0, 1, 0]]
    mixture = GaussianMixture.fit(points, 8)
    sample = mixture.sample(1_000, seed=0)
    assert (sample[:, 0] - sample[:, 2]).abs().max() < 0.02
    given = np.zeros((1_000, 3))
    given[:, 0] = np.linspace(-2, 2, 1_000)
    assert (mixture.complete(given, known=[0], seed=0)[:, 2] - torch.from_numpy(given[:, 0])).abs().max() < 0.02


def test_of_fewer_rows_than_components_each_gets_its_own() -> None:
    points = np.random.default_rng(0).normal(size=(6, 2)) * 10
    mixture = GaussianMixture.fit(points, 32)
    assert mixture.means.shape == (6, 2)
    order = [int(np.abs(mixture.means.numpy() - row).sum(1).argmin()) for row in points]
    assert sorted(order) == list(range(6))
    np.testing.assert_allclose(mixture.means.numpy()[order], points, atol=1e-9)
    np.testing.assert_allclose(mixture.weights.numpy(), 1 / 6, atol=1e-9)


def test_more_components_than_different_rows_leave_no_density_between_them() -> None:
    points = np.repeat([[0.0] * 8, [1.0] * 8], 100, 0)
    mixture = GaussianMixture.fit(points, 32)
    between, at_a_row = mixture.log_prob([[0.5] * 8, [1.0] * 8]).tolist()
    assert at_a_row > 0
    assert between < -1_000  # 500 of the needles' widths away from both


# Messages


def test_repr_counts_components_and_columns() -> None:
    assert repr(random_mixture(3, 2, seed=0)) == "GaussianMixture(components=3, columns=2)"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_points_that_are_not_numbers_are_refused(bad: float) -> None:
    points = np.zeros((4, 2))
    points[2, 1] = bad
    assert message(GaussianMixture.fit, points) == "points has NaN or inf; drop or repair those rows."


@pytest.mark.parametrize("shape", [(3,), (0, 2), (2, 0), (2, 2, 2)])
def test_points_of_a_wrong_shape_are_refused(shape: tuple[int, ...]) -> None:
    expected = f"points must have shape (N, D) with N and D at least 1, got {shape}."
    assert message(GaussianMixture.fit, np.zeros(shape)) == expected


def test_an_unknown_kind_of_covariance_is_refused() -> None:
    expected = "covariance must be 'full' or 'diag', got 'tied'."
    assert message(GaussianMixture.fit, np.zeros((2, 2)), covariance="tied") == expected


@pytest.mark.parametrize("components", [0, -3])
def test_no_components_are_refused(components: int) -> None:
    expected = f"components must be at least 1, got {components}."
    assert message(GaussianMixture.fit, np.zeros((2, 2)), components) == expected


def test_points_of_another_width_are_refused() -> None:
    mixture = random_mixture(2, 3, seed=0)
    assert message(mixture.log_prob, np.zeros((5, 2))) == "points must have shape (N, 3), got (5, 2)."
    assert message(mixture.log_prob, np.zeros(3)) == "points must have shape (N, 3), got (3,)."
    expected = "points must have shape (N, 3), got (5, 4)."
    assert message(mixture.complete, torch.zeros(5, 4), known=[0], seed=0) == expected


@pytest.mark.parametrize("columns", [[3], [-1], [0, 0], [1, 7]])
def test_columns_that_do_not_exist_or_repeat_are_refused(columns: list[int]) -> None:
    mixture = random_mixture(2, 3, seed=0)
    known = message(mixture.complete, np.zeros((5, 3)), known=columns, seed=0)
    assert known == f"known must be different columns from 0 to 2, got {columns}."
    marginal = message(mixture.marginal, columns)
    assert marginal == f"columns must be different columns from 0 to 2, got {columns}."
