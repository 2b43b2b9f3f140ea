"""Statistics over seeds. Seeds are the unit of replication, never episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mocoda.engine.randomness import Stream

RESAMPLES = 10_000


class Summary(NamedTuple):
    """Several seeds in five numbers; `iqm` is the interquartile mean, `low` and `high` are the 95% CI of the mean."""

    mean: float
    std: float
    iqm: float
    low: float
    high: float


def summarise(values: Sequence[float]) -> Summary:
    """Summarises one value a seed."""
    return Summary(*mean_and_std(values), interquartile_mean(values), *bootstrap_interval(values))


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; that of a single value is 0."""
    tensor = torch.tensor(values, dtype=torch.float64)
    return float(tensor.mean()), float(tensor.std()) if len(values) > 1 else 0.0


def interquartile_mean(values: Sequence[float]) -> float:
    """IQM: the mean without a quarter of the values, rounded down, at each end."""
    ordered = torch.tensor(values, dtype=torch.float64).sort().values
    cut = len(values) // 4
    return float(ordered[cut : len(values) - cut].mean())


def bootstrap_interval(
    values: Sequence[float],
    statistic: Callable[[Tensor], Tensor] = lambda resampled: resampled.mean(-1),
    share: float = 0.95,
) -> tuple[float, float]:
    """The percentile bootstrap CI of a statistic (..., n) -> (...); the same for the same values."""
    tensor = torch.tensor(values, dtype=torch.float64)
    chosen = Stream(0, "bootstrap", len(values)).integers(len(values), RESAMPLES, len(values))
    ends = torch.tensor([(1 - share) / 2, (1 + share) / 2], dtype=torch.float64)
    low, high = statistic(tensor[chosen]).quantile(ends).tolist()
    return low, high


def probability_of_improvement(ours: Sequence[float], theirs: Sequence[float], *, lower_is_better: bool) -> float:
    """How often a seed of ours does better than one of theirs, over all pairs; a tie counts half."""
    difference = torch.tensor(ours, dtype=torch.float64)[:, None] - torch.tensor(theirs, dtype=torch.float64)
    if lower_is_better:
        difference = -difference
    return float(((difference > 0).double() + 0.5 * (difference == 0).double()).mean())
