"""What the columns of a table hold: numbers, switches, categories, counts, angles that wrap around, clocks.

The kinds are read off the recorded values. `inspect` reports them, and generated rows keep to them: a category stays a
category.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mocoda.data.transitions import Transitions

KINDS = ("constant", "clock", "one-hot", "binary", "integer", "angle", "number")
MIN_ROWS = 10  # with fewer rows, any column may look like a switch
PERIODS = (2 * math.pi, 360.0)  # of angles
EXTREME = 10_000  # times the distance from the median of 99.9% of a column; farther out is an outlier
SAMPLED = 10_000  # rows from which that distance is found


def column_kinds(data: Transitions) -> tuple[str, ...]:
    """What each of the S + A columns holds, in the order of `data.columns`; one of `KINDS`.

    constant  one value in all rows
    clock     counts up by the same amount in every row
    one-hot   0 or 1, with neighbouring columns of which exactly one is 1; `one_hot_groups` says which
    binary    two values
    integer   whole numbers
    angle     jumps by 2 pi, or by 360, between the ends of its range
    number    anything else, or a table of fewer than 10 rows
    """
    return kinds_of({name: array.cpu().numpy() for name, array in data.arrays().items()})


def one_hot_groups(data: Transitions) -> tuple[tuple[int, ...], ...]:
    """The columns (counted from 0, the state's first) of each group that is one-hot: exactly one of them is 1."""
    return _groups({name: array.cpu().numpy() for name, array in data.arrays().items()})


def kinds_of(arrays: Mapping[str, NDArray[Any]]) -> tuple[str, ...]:
    """`column_kinds` of arrays by their names in a table."""
    state, action, next_state = (arrays[name] for name in ("state", "action", "next_state"))
    pairs = [*zip(state.T, next_state.T, strict=True), *((column, column[:0]) for column in action.T)]
    kinds = [kind_of(values, following) if len(values) >= MIN_ROWS else "number" for values, following in pairs]
    for group in _groups(arrays):
        for place in group:
            kinds[place] = "one-hot"
    return tuple(kinds)


def kind_of(values: NDArray[Any], following: NDArray[Any]) -> str:
    """The kind of a column (N,), one of `KINDS`; `following` are its next values, () for a column of the action."""
    low, high = values.min(), values.max()
    both = (values, following)
    if all(((array == low) | (array == high)).all() for array in both):
        return "constant" if low == high else "binary"
    if len(following):
        step = following.astype(np.float64) - values
        if step.min() > 0 and np.ptp(step) <= 1e-3 * step.mean():
            return "clock"
        if _wraps(values, step):
            return "angle"
    return "integer" if all((array == np.round(array)).all() for array in both) else "number"


def _wraps(values: NDArray[Any], step: NDArray[np.float64]) -> bool:
    """Whether these are angles that jump from one end of their range to the other, 2 pi or 360 away."""
    low, high = float(values.min()), float(values.max())
    for period in PERIODS:
        slack, share = 1e-3 * period, np.abs(step) / period
        inside = (low >= -slack and high <= period + slack) or max(-low, high) <= period / 2 + slack
        between = ((share > 0.25) & (share < 0.75)).any()
        if inside and high - low > 0.9 * period and (share > 0.75).any() and not between:
            return True
    return False


def _groups(arrays: Mapping[str, NDArray[Any]]) -> tuple[tuple[int, ...], ...]:
    found, offset = [], 0
    for name in ("state", "action"):
        columns = arrays[name].T if len(arrays[name]) >= MIN_ROWS else arrays[name].T[:0]
        switch = [bool(((column == 0) | (column == 1)).all()) for column in columns]
        first = 0
        while first < len(columns):
            last, total = first, columns[first]
            while switch[first] and last + 1 < len(columns) and switch[last + 1] and not (total == 1).all():
                last, total = last + 1, total + columns[last + 1]
                if (total > 1).any():
                    break
            if last > first and columns[first].any() and (total == 1).all():
                found.append(tuple(range(offset + first, offset + last + 1)))
                first = last
            first += 1
        offset += arrays[name].shape[1]
    return tuple(found)


def outliers(values: NDArray[Any]) -> NDArray[np.intp]:
    """The rows of numbers that lie far outside of all the others: EXTREME times as far from the median as 99.9% do."""
    sample = values[:: max(1, len(values) // SAMPLED)].astype(np.float64)
    sample = sample[np.isfinite(sample)]
    if len(sample) < MIN_ROWS:
        return np.arange(0)
    middle = np.median(sample)
    usual = np.quantile(np.abs(sample - middle), 0.999, method="lower")
    if usual == 0 or max(values.max() - middle, middle - values.min()) <= EXTREME * usual:
        return np.arange(0)
    return np.flatnonzero(np.isfinite(values) & (np.abs(values - middle) > EXTREME * usual))
