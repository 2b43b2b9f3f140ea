"""Mixtures with known parameters and points to fit, for the tests of mocoda.parents.mixture."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from mocoda.parents.mixture import GaussianMixture
from mocoda.tasks.navigation import Navigation

Floats = NDArray[np.float64]


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
