"""The columns of each factor, given as slices, numbers, names of columns, or the first parts of such names."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError, unknown_name

SEPARATORS = (".", "_")  # between the name of a factor and the rest of a column's name: box1.x, box1_x


class ColumnNames(NamedTuple):
    """The names of a table's columns, which are all that a graph file needs to know of the data."""

    state: tuple[str, ...]
    action: tuple[str, ...]

    @staticmethod
    def of(data: Transitions) -> ColumnNames:
        states = data.state.shape[1]
        return ColumnNames(data.columns[:states], data.columns[states:])


class Factors:
    """Rows (N, S + A) by name, for the functions of a graph file.

    f["box1"]            a factor's columns (N, width)
    f["box1", "x", "y"]  some of them (N, 2), by the ends of their names, or by numbers counted from 0
    f["box1.x"]          one column (N,), by its name in the data
    f.rows               all columns
    """

    def __init__(self, rows: Tensor, factors: Mapping[str, Sequence[int]], names: ColumnNames) -> None:
        self.rows = rows
        self._factors = factors
        self._names = {name: number for number, name in enumerate((*names.state, *names.action))}

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: str | tuple[str | int, ...]) -> Tensor:
        if isinstance(key, str) and key not in self._factors and key in self._names:
            return self.rows[:, self._names[key]]
        factor, *ends = key if isinstance(key, tuple) else (key,)
        if factor not in self._factors:
            raise unknown_name("factor", factor, self._factors)
        own = self._factors[str(factor)]
        return self.rows[:, [self._column(str(factor), end) for end in ends] if ends else list(own)]

    def _column(self, factor: str, end: str | int) -> int:
        own = self._factors[factor]
        if isinstance(end, int) and 0 <= end < len(own):
            return own[end]
        whole = {name: column for name, column in self._names.items() if column in own}
        ends = {column_end(name, factor): column for name, column in whole.items()}
        if len(ends) < len(whole):  # ends that two columns share call neither
            ends = whole
        called = whole | ends
        if end not in called:
            raise unknown_name(f"column of {factor!r} called", end, ends)
        return called[str(end)]


def factors_by_name(names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Factors by the names of columns, up to the first dot; a column without a dot is a factor of one column."""
    return _grouped([name.partition(".")[0] for name in names])


def guessed_factors(kind: str, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The factors of a graph to learn, by the names of columns: box1.x and box1_x belong to box1."""
    if any("." in name for name in names):
        return factors_by_name(names)
    if kind == "action" and all(re.fullmatch(r"action\d+", name) for name in names):
        return {"action": tuple(range(len(names)))}
    return _grouped([name.rpartition("_")[0] or name for name in names])


def _grouped(factors: Sequence[str]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(i for i, factor in enumerate(factors) if factor == name) for name in factors}


def as_factors(kind: str, given: object, names: ColumnNames) -> dict[str, tuple[int, ...]]:
    """Factor -> its columns, counted from 0, of the state or the action (`kind`); every column in exactly one."""
    if not isinstance(given, Mapping) or not all(isinstance(factor, str) for factor in given):
        raise InputError(f"{kind} must map names of factors to their columns, got {_shown(given)}.")
    own: tuple[str, ...] = getattr(names, kind)
    found = {factor: _columns(kind, factor, wanted, names) for factor, wanted in given.items()}
    owner: dict[int, str] = {}
    for factor, columns in found.items():
        if not columns:
            raise InputError(
                f"the {kind} factor {factor!r} has no columns, got {_shown(given[factor])}; the data has {len(own)} "
                f"{kind} columns."
            )
        for column in columns:
            if column in owner:
                raise InputError(
                    f"the {kind} column {own[column]!r} is claimed by {owner[column]!r} and again by {factor!r}; a "
                    "column has one factor."
                )
            owner[column] = factor
    if left := [repr(name) for column, name in enumerate(own) if column not in owner]:
        raise InputError(f"the {kind} columns {', '.join(left)} belong to no factor; name one for them in {kind}.")
    return found


def _columns(kind: str, factor: str, wanted: Any, names: ColumnNames) -> tuple[int, ...]:
    own: tuple[str, ...] = getattr(names, kind)
    if isinstance(wanted, str):
        return _named(kind, factor, wanted, names)
    if isinstance(wanted, slice):
        try:
            wanted = range(*wanted.indices(max(len(own), wanted.start or 0, wanted.stop or 0)))
        except TypeError:
            raise InputError(f"the {kind} factor {factor!r} must be sliced by whole numbers, got {wanted}.") from None
    if isinstance(wanted, Sequence | np.ndarray) or (isinstance(wanted, Tensor) and wanted.ndim):
        return tuple(column for one in wanted for column in _columns(kind, factor, one, names))
    if isinstance(wanted, bool) or not hasattr(wanted, "__index__"):
        raise InputError(
            f"the {kind} factor {factor!r} must be a slice, a number, a column's name or a list of those, "
            f"got {_shown(wanted)}."
        )
    if not 0 <= (number := operator.index(wanted)) < len(own):
        raise InputError(
            f"the {kind} factor {factor!r} asks for column {number}; "
            f"the data has {len(own)} {kind} columns, counted from 0."
        )
    return (number,)


def _named(kind: str, factor: str, wanted: str, names: ColumnNames) -> tuple[int, ...]:
    """The column called `wanted`, else all whose names begin with it, else those of a slice such as "0:3"."""
    own: tuple[str, ...] = getattr(names, kind)
    if found := _called(wanted, own):
        return found
    if bounds := re.fullmatch(r"(\d*):(\d*)", wanted):
        return _columns(kind, factor, slice(*(int(bound) if bound else None for bound in bounds.groups())), names)
    other = "action" if kind == "state" else "state"
    if _called(wanted, getattr(names, other)):
        raise InputError(f"the {kind} factor {factor!r} asks for {wanted!r}, which is a column of the {other}.")
    raise unknown_name(f"{kind} column", wanted, dict.fromkeys([*factors_by_name(own), *own]))


def _called(wanted: str, own: Sequence[str]) -> tuple[int, ...]:
    if wanted in own:
        return (own.index(wanted),)
    begun = (tuple(i for i, name in enumerate(own) if name.startswith(wanted + mark)) for mark in SEPARATORS)
    return next(filter(None, begun), ())


def column_end(name: str, factor: str) -> str:
    """The last part of a column's name, without its factor: "x" for box1.x, or for box1_x of box1."""
    for separator in SEPARATORS:
        if name.startswith(factor + separator):
            return name.removeprefix(factor + separator)
    return name.rpartition(".")[2]


def _shown(value: object) -> str:
    """A value as shown in a message: itself if it is short, otherwise its type."""
    written = repr(value)
    return written if len(written) <= 40 else type(value).__name__
