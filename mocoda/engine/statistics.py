"""Statistics: over seeds, which are the unit of replication (never episodes), and of shares and rankings of rows."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mocoda.engine.randomness import Stream

RESAMPLES = 10_000
Z95 = 1.959963984540054  # standard deviations on both sides of the mean that hold 95% of a normal distribution
Cell = dict[str, Any]  # JSON values


class Summary(NamedTuple):
    """Five numbers that describe several seeds; `low` and `high` are the 95% CI of the mean."""

    mean: float
    std: float
    iqm: float
    low: float
    high: float


def summarise(values: Sequence[float]) -> Summary:
    """Summarises one value per seed."""
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


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95% percentile bootstrap CI of the mean; the same for the same values."""
    tensor = torch.tensor(values, dtype=torch.float64)
    chosen = Stream(0, "bootstrap", len(values)).integers(len(values), RESAMPLES, len(values))
    low, high = tensor[chosen].mean(-1).quantile(torch.tensor([1 - 0.95, 1 + 0.95], dtype=torch.float64) / 2).tolist()
    return low, high


def probability_of_improvement(ours: Sequence[float], theirs: Sequence[float], *, lower_is_better: bool) -> float:
    """How often a seed of ours does better than one of theirs, over all pairs; a tie counts half."""
    better = float(share_below(*(torch.tensor(each, dtype=torch.float64) for each in (ours, theirs))).mean())
    return 1 - better if lower_is_better else better


def share_of(verdict: Tensor) -> Cell:
    """The share of rows (N,) that are True, with Wilson's interval, as JSON values."""
    rows, true = len(verdict), int(verdict.sum())
    if rows == 0:
        return {"share": None, "interval": None, "rows": 0}
    return {"share": true / rows, "interval": wilson(true, rows), "rows": rows}


def wilson(successes: int, n: int) -> tuple[float, float]:
    """Wilson's 95% interval of a share: it stays within 0 and 1, and has a width even there."""
    share, square = successes / n, Z95**2 / n
    middle, reach = share + square / 2, Z95 * sqrt(share * (1 - share) / n + square / (4 * n))
    low, high = (middle - reach) / (1 + square), (middle + reach) / (1 + square)
    return max(0.0, low) if successes else 0.0, min(1.0, high) if successes < n else 1.0


def area_under_curve(scores: Tensor, truth: Tensor) -> Cell:
    """AUROC: how often a true row has a higher score than another row, ties counting half; with DeLong's interval.

    It is None unless there are rows of both kinds.
    """
    yes, no = scores[truth].double(), scores[~truth].double()
    if len(yes) == 0 or len(no) == 0:
        return {"auroc": None, "interval": None, "rows": len(scores)}
    beaten, beating = share_below(yes, no), 1 - share_below(no, yes)
    area = float(beaten.mean())
    error = sqrt(sum(float(each.var(correction=0)) / max(1, len(each) - 1) for each in (beaten, beating)))
    return {
        "auroc": area,
        "interval": (max(0.0, area - Z95 * error), min(1.0, area + Z95 * error)),
        "rows": len(scores),
    }


def share_below(values: Tensor, others: Tensor) -> Tensor:
    """The share of `others` (M,) that each value (N,) exceeds, ties counting half: (N,) float64."""
    ordered = others.sort().values
    below, upto = (torch.searchsorted(ordered, values, right=right) for right in (False, True))
    return (below + upto).double() / (2 * len(ordered))
