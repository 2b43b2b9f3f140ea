"""mocoda.parents.mixture: seeds, kinds of arrays, degenerate points and whole messages."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from mixture_data import Floats, moons, random_mixture

from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Stream
from mocoda.parents.mixture import GaussianMixture


def message(call: Any, *args: Any, **options: Any) -> str:
    with pytest.raises(InputError) as error:
        call(*args, **options)
    return str(error.value)


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


# Even weights


def test_a_mixture_of_equal_weights_has_the_same_components_of_one_weight_and_leaves_the_first_as_it_is() -> None:
    mixture = random_mixture(4, 2, seed=0)
    weights = mixture.weights.clone()
    even = mixture.with_equal_weights()
    assert even.weights.tolist() == [0.25] * 4 and even.weights.dtype == torch.float64
    assert even.means.equal(mixture.means) and even.covariances.equal(mixture.covariances)
    assert mixture.weights.equal(weights) and not mixture.weights.equal(even.weights)
    assert even.with_equal_weights().weights.equal(even.weights)


def test_the_density_of_a_mixture_of_equal_weights_is_the_mean_of_its_components() -> None:
    mixture, points = random_mixture(3, 2, seed=1), moons(50, 0)
    alone = [
        GaussianMixture(torch.ones(1, dtype=torch.float64), mixture.means[k : k + 1], mixture.covariances[k : k + 1])
        for k in range(3)
    ]
    expected = torch.stack([component.log_prob(points).exp() for component in alone]).mean(0)
    torch.testing.assert_close(mixture.with_equal_weights().log_prob(points).exp(), expected)


def test_a_mixture_of_equal_weights_draws_its_components_as_often() -> None:
    means = torch.tensor([[-9.0], [0.0], [9.0]], dtype=torch.float64)
    weights = torch.tensor([0.9, 0.09, 0.01], dtype=torch.float64)
    mixture = GaussianMixture(weights, means, torch.full((3, 1, 1), 0.1, dtype=torch.float64))
    shares = [
        (drawn.sample(6_000, seed=0) / 9).round().flatten().long().add(1).bincount(minlength=3) / 6_000
        for drawn in (mixture, mixture.with_equal_weights())
    ]
    assert shares[0].tolist() == pytest.approx([0.9, 0.09, 0.01], abs=0.02)
    assert shares[1].tolist() == pytest.approx([1 / 3] * 3, abs=0.02)


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
