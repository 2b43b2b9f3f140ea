"""Shares of rows, and how well a score predicts which rows they are: both with 95% confidence intervals."""

from __future__ import annotations

from math import sqrt
from typing import Any

import torch
from torch import Tensor

NORMAL = 1.959963984540054  # standard deviations on both sides of the middle that hold 95%
Cell = dict[str, Any]  # JSON values


def share_of(verdict: Tensor) -> Cell:
    """The share of rows (N,) that are True, with Wilson's interval, as JSON values."""
    rows, confirmed = len(verdict), int(verdict.sum())
    if rows == 0:
        return {"share": None, "interval": None, "rows": 0}
    return {"share": confirmed / rows, "interval": wilson(confirmed, rows), "rows": rows}


def wilson(successes: int, n: int) -> tuple[float, float]:
    """Wilson's 95% interval of a share, which stays inside 0 and 1 and has a width also at them."""
    share, square = successes / n, NORMAL**2 / n
    middle, reach = share + square / 2, NORMAL * sqrt(share * (1 - share) / n + square / (4 * n))
    low, high = (middle - reach) / (1 + square), (middle + reach) / (1 + square)
    return max(0.0, low) if successes else 0.0, min(1.0, high) if successes < n else 1.0


def area_under_curve(scores: Tensor, truth: Tensor) -> Cell:
    """AUROC: how often a true row has the higher score than another one, ties counting half; with DeLong's interval.

    Without rows of both kinds there is none.
    """
    scores = scores.double()
    yes, no = scores[truth].sort().values, scores[~truth].sort().values
    if len(yes) == 0 or len(no) == 0:
        return {"auroc": None, "interval": None, "rows": len(scores)}
    beaten, beating = _share_below(yes, no), 1 - _share_below(no, yes)
    area = float(beaten.mean())
    spread = sqrt(sum(float(each.var(correction=0)) / max(1, len(each) - 1) for each in (beaten, beating)))
    low, high = max(0.0, area - NORMAL * spread), min(1.0, area + NORMAL * spread)
    return {"auroc": area, "interval": (low, high), "rows": len(scores)}


def _share_below(values: Tensor, ordered: Tensor) -> Tensor:
    """The share of `ordered` (M,) that each value (N,) exceeds, ties counting half: (N,)."""
    below, upto = (torch.searchsorted(ordered, values, right=right) for right in (False, True))
    return (below + upto) / (2.0 * len(ordered))
