"""A world whose every step is known, and tables of it of which a known share is wrong; steps that processes import."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mocoda import LocalGraph, Transitions
from mocoda.engine.randomness import Stream


def near(rows: Tensor) -> Tensor:
    """y depends on x too where x is positive."""
    mask = torch.tensor([[1, 0], [0, 1], [1, 0], [0, 1]], dtype=torch.bool).repeat(len(rows), 1, 1)
    mask[:, 0, 1] = rows[:, 0] > 0
    return mask


GRAPH = LocalGraph(
    state={"x": 0, "y": [1, 2]}, action={"dx": 0, "dy": 1}, edges={"x": ["x", "dx"], "y": ["y", "dy"]}, local=near
)
COLUMNS = ("x", "y.a", "y.b", "dx", "dy")


def step(rows: Tensor) -> Tensor:
    """The next states (N, 3) of rows (N, 5)."""
    x, a, b, dx, dy = rows.unbind(1)
    return torch.stack([x + dx, a + dy, b - dy], 1)


def numpy_step(rows: Tensor) -> np.ndarray:
    """The same by numpy, in double precision."""
    given = np.asarray(rows, np.float64)
    return np.stack([given[:, 0] + given[:, 3], given[:, 1] + given[:, 4], given[:, 2] - given[:, 4]], 1)


def table(
    rows: int, wrong: Sequence[int] = (), by: Sequence[float] = (0.0, 0.0, 0.0), recipe: int | Tensor | None = None
) -> Transitions:
    """Random rows with true next states, but for some that are off by so much."""
    given = Stream(0, "audit world").normal(rows, 5)
    next_state = step(given)
    next_state[list(wrong)] += torch.tensor(by)
    notes = {} if recipe is None else {"recipe": torch.zeros(rows, dtype=torch.int64) + recipe}
    return Transitions(given[:, :3], given[:, 3:], next_state, columns=COLUMNS, provenance=notes)
