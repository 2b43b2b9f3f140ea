"""mocoda.parents.density against scikit-learn and a double loop."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.neighbors import KernelDensity

from mocoda.engine.errors import InputError
from mocoda.parents.flattening import kernel_density

Floats = NDArray[np.float64]


def scikit_learn(points: Floats, at: Floats, bandwidth: float) -> Floats:
    return np.asarray(np.exp(KernelDensity(bandwidth=bandwidth).fit(points).score_samples(at)), np.float64)


def by_loops(points: Floats, at: Floats, bandwidth: float) -> Floats:
    dims = points.shape[1]
    density = np.zeros(len(at))
    for i, x in enumerate(at):
        for y in points:
            distance = sum((a - b) ** 2 for a, b in zip(x, y, strict=True))
            density[i] += math.exp(-distance / (2 * bandwidth**2)) / (bandwidth * math.sqrt(2 * math.pi)) ** dims
    return density / len(points)


def found(points: Floats, at: Floats, bandwidth: float) -> Floats:
    return kernel_density(torch.from_numpy(points), torch.from_numpy(at), bandwidth).numpy().astype(np.float64)


@pytest.mark.parametrize("dims", [1, 2, 3, 5])
@pytest.mark.parametrize("bandwidth", [0.05, 0.3, 2.0])
def test_density_is_that_of_scikit_learn(dims: int, bandwidth: float) -> None:
    rng = np.random.default_rng(dims)
    points, at = rng.uniform(size=(700, dims)), rng.uniform(-0.1, 1.1, size=(300, dims))
    expected = scikit_learn(points, at, bandwidth)
    some = expected > 1e-6 * expected.max()  # further out, scikit-learn's trees are the less precise of the two
    assert some.sum() > 100
    np.testing.assert_allclose(found(points, at, bandwidth)[some], expected[some], rtol=1e-3)


def test_density_is_that_of_a_double_loop() -> None:
    rng = np.random.default_rng(0)
    points, at = rng.normal(size=(40, 2)), rng.normal(size=(30, 2))
    np.testing.assert_allclose(found(points, at, 0.5), by_loops(points, at, 0.5), rtol=1e-4, atol=1e-12)


def test_density_is_precise_until_float32_ends() -> None:
    # At 12 bandwidths a kernel is 5e-32; 13 are where float32 fades out.
    at = np.linspace(0, 12, 25)[:, None]
    points = np.zeros((4, 1))
    np.testing.assert_allclose(found(points, at, 1.0), by_loops(points, at, 1.0), rtol=1e-4, atol=0)


def test_at_its_defaults_in_the_paper_it_is_precise() -> None:
    # Appendix C.1: 10,000 points in the unit square, bandwidth 0.05.
    rng = np.random.default_rng(0)
    points, at = rng.uniform(size=(10_000, 2)) ** 2, rng.uniform(size=(500, 2)) ** 2
    np.testing.assert_allclose(found(points, at, 0.05), scikit_learn(points, at, 0.05), rtol=1e-4)


@pytest.mark.parametrize("span", [1.0, 10.0, 100.0, 1_000.0])
def test_precision_does_not_depend_on_how_many_bandwidths_the_points_span(span: float) -> None:
    rng = np.random.default_rng(0)
    points = rng.uniform(0, span, size=(1_000, 2))
    np.testing.assert_allclose(found(points, points, 0.05), scikit_learn(points, points, 0.05), rtol=1e-2)


def test_one_point_has_a_gaussian_around_it() -> None:
    at = np.array([[0.0], [0.5], [-1.0], [2.0]])
    expected = np.exp(-0.5 * (at[:, 0] / 0.7) ** 2) / (0.7 * math.sqrt(2 * math.pi))
    np.testing.assert_allclose(found(np.zeros((1, 1)), at, 0.7), expected, rtol=1e-5)


def test_density_integrates_to_one() -> None:
    points = np.random.default_rng(0).normal(size=(200, 1))
    grid = np.linspace(-10, 10, 4_001)[:, None]
    assert found(points, grid, 0.3).sum() * 0.005 == pytest.approx(1.0, abs=1e-4)


def test_points_counted_twice_weigh_twice() -> None:
    rng = np.random.default_rng(0)
    points, at = rng.normal(size=(20, 2)), rng.normal(size=(10, 2))
    twice = np.concatenate([points, points])
    np.testing.assert_allclose(found(twice, at, 0.4), found(points, at, 0.4), rtol=1e-5)
    near, far = np.zeros((1, 1)), np.full((1, 1), 100.0)
    weighted = np.concatenate([near, near, near, far])
    ratio = found(weighted, near, 1.0) / found(weighted, far, 1.0)
    assert ratio[0] == pytest.approx(3.0, rel=1e-5)


@pytest.mark.parametrize("distance", [20.0, 1e3, 1e6])
def test_far_from_every_point_there_is_nothing(distance: float) -> None:
    points = np.random.default_rng(0).uniform(size=(50, 2))
    density = found(points, np.array([[distance, 0.0], [-distance, distance]]), 0.05)
    assert (density == 0).all()


@pytest.mark.parametrize("offset", [1e2, 1e4])
def test_where_the_origin_lies_does_not_matter(offset: float) -> None:
    rng = np.random.default_rng(0)
    points, at = rng.uniform(size=(300, 2)), rng.uniform(size=(100, 2))
    np.testing.assert_allclose(found(points + offset, at + offset, 0.05), found(points, at, 0.05), rtol=1e-4)


def test_many_rows_are_evaluated_as_few_are() -> None:
    # 2,000 points make blocks of 262 rows.
    rng = np.random.default_rng(0)
    points, at = rng.normal(size=(2_000, 2)), rng.normal(size=(1_000, 2))
    whole = found(points, at, 0.2)
    parts = np.concatenate([found(points, part, 0.2) for part in np.array_split(at, 40)])
    np.testing.assert_allclose(whole, parts, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_density_is_float32_whatever_comes_in(dtype: torch.dtype) -> None:
    points = torch.from_numpy(np.random.default_rng(0).normal(size=(10, 2))).to(dtype)
    density = kernel_density(points, points[:4], 0.5)
    assert density.dtype == torch.float32 and density.shape == (4,)
    assert (density > 0).all()


def test_nowhere_to_evaluate_gives_no_densities() -> None:
    assert kernel_density(torch.zeros(3, 2), torch.zeros(0, 2), 0.1).shape == (0,)


@pytest.mark.parametrize("bandwidth", [0.0, -0.5, math.nan])
def test_a_bandwidth_that_is_not_positive_is_refused(bandwidth: float) -> None:
    with pytest.raises(InputError) as error:
        kernel_density(torch.zeros(3, 2), torch.zeros(3, 2), bandwidth)
    assert str(error.value) == f"bandwidth must be positive, got {bandwidth}."


@pytest.mark.parametrize(
    ("points", "at"), [((3, 2), (4, 3)), ((3,), (4, 1)), ((3, 1), (4,)), ((0, 2), (4, 2)), ((3, 2, 1), (4, 2))]
)
def test_shapes_that_do_not_match_are_refused(points: Any, at: Any) -> None:
    with pytest.raises(InputError) as error:
        kernel_density(torch.zeros(points), torch.zeros(at), 0.1)
    assert str(error.value) == f"points (M, D) and at (N, D) must share their columns, got {points} and {at}."
