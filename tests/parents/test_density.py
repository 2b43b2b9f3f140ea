"""The kernel density estimate against scikit-learn and a double loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from approved import refused
from numpy.typing import NDArray
from sklearn.neighbors import KernelDensity

from mocoda.parents.flattening import kernel_density

Floats = NDArray[np.float64]


def scikit_learn(points: Floats, at: Floats, bandwidth: float) -> Floats:
    return np.asarray(np.exp(KernelDensity(bandwidth=bandwidth).fit(points).score_samples(at)), np.float64)


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


@pytest.mark.parametrize("span", [1.0, 10.0, 100.0, 1_000.0])
def test_precision_does_not_depend_on_how_many_bandwidths_the_points_span(span: float) -> None:
    rng = np.random.default_rng(0)
    points = rng.uniform(0, span, size=(1_000, 2))
    np.testing.assert_allclose(found(points, points, 0.05), scikit_learn(points, points, 0.05), rtol=1e-2)


@pytest.mark.parametrize("distance", [20.0, 1e3, 1e6])
def test_far_from_every_point_there_is_nothing(distance: float) -> None:
    points = np.random.default_rng(0).uniform(size=(50, 2))
    density = found(points, np.array([[distance, 0.0], [-distance, distance]]), 0.05)
    assert (density == 0).all()


@pytest.mark.parametrize(
    ("points", "at"), [((3, 2), (4, 3)), ((3,), (4, 1)), ((3, 1), (4,)), ((0, 2), (4, 2)), ((3, 2, 1), (4, 2))]
)
def test_shapes_that_do_not_match_are_refused(points: Any, at: Any) -> None:
    with refused():
        kernel_density(torch.zeros(points), torch.zeros(at), 0.1)
    with refused():
        kernel_density(torch.zeros(3, 2), torch.zeros(3, 2), -0.5)
