"""Recorded rows of 2D Navigation, and stand-ins for models, tasks and proposals, for the tests of mocoda.parents."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mocoda.engine.randomness import Stream
from mocoda.tasks.navigation import Navigation

TASK = Navigation()
DATA = TASK.collect(4_000, seed=0)


class TrueModel:
    """Knows the dynamics."""

    def sample(self, rows: Tensor, *, seed: int | Stream) -> Tensor:
        return TASK.step(rows)


class Counting:
    """State (steps taken, start): every step adds one to the first and keeps the second."""

    def sample(self, rows: Tensor, *, seed: int | Stream) -> Tensor:
        return torch.stack([rows[:, 0] + 1, rows[:, 1]], 1)


class Box:
    """A task that says no more than its box."""

    box = (torch.tensor([0.0, 0.0, -1.0, 2.0]), torch.tensor([1.0, 5.0, 1.0, 3.0]))

    def features(self, rows: Tensor) -> Tensor:
        return rows[:, :1]

    def region(self, rows: Tensor) -> Tensor:
        return rows[:, 0] > 0


class Slope:
    """Proposals of density 2x on [0, 1] in the first column and uniform in the second; remembers all it proposed."""

    def __init__(self) -> None:
        self.proposed: list[Tensor] = []

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        assert isinstance(seed, Stream)
        numbers = seed.child("slope").uniform(n, 2)
        rows = torch.stack([numbers[:, 0].sqrt(), numbers[:, 1]], 1)
        self.proposed.append(rows)
        return rows


def as_set(*columns: Tensor) -> set[tuple[float, ...]]:
    return set(map(tuple, torch.stack(columns, 1).tolist()))


def entropy(features: Tensor, cells: int = 10) -> float:
    """Of a histogram of features (N, F) over the unit square (or line), in nats."""
    counts, _ = np.histogramdd(features.numpy(), bins=cells, range=[(0.0, 1.0)] * features.shape[1])
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())
