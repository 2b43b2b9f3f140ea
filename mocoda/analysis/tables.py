"""Tables of text, which commands print and the page shows, and the grid that counts what is new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import rich.console
import rich.table
import torch
from rich.markup import escape
from torch import Tensor

from mocoda.engine.randomness import Stream

CELLS = 10  # per column
MAX_QUANTILE_ROWS = 1_000_000  # torch takes no quantiles of many more


def quantiles(values: Tensor, *shares: float) -> Tensor:
    """Quantiles of each column of values (N, ...): (shares, ...)."""
    some = values[:: -(-len(values) // MAX_QUANTILE_ROWS)]
    return torch.quantile(some, some.new_tensor(shares), dim=0)


class Table(NamedTuple):
    """A caption, heads of columns, and rows of text."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


def rich_tables(tables: Sequence[Table]) -> rich.console.Group:
    """Tables as the console prints them: the first column on the left, numbers on the right."""
    drawn = []
    for one in tables:
        table = rich.table.Table(title=escape(one.caption), title_justify="left")
        for place, head in enumerate(one.heads):
            table.add_column(escape(head), justify="right" if place else "left")
        for row in one.rows:
            table.add_row(*map(escape, row))
        drawn.append(table)
    return rich.console.Group(*drawn)


def percent(share: float) -> str:
    return f"{100 * share:.3g}%"


@dataclass(frozen=True, eq=False)
class Grid:
    """A grid over rows: ten cells per column between the quantiles 0.5% and 99.5%; the outermost hold what is beyond.

    low, width  (D,)
    code        (D,), random numbers that make one number of a row's cells
    """

    low: Tensor
    width: Tensor
    code: Tensor

    @staticmethod
    def of(rows: Tensor) -> Grid:
        low, high = quantiles(rows, 0.005, 0.995)
        code = Stream(0, "cells").integers(2**62, rows.shape[1]).to(rows.device)
        return Grid(low, torch.where(high > low, high - low, 1.0), code)

    def cells(self, rows: Tensor, columns: Sequence[int] | None = None) -> Tensor:
        """A number for the cell of each row (N, D), by these of its columns: (N,)."""
        chosen = list(range(rows.shape[1])) if columns is None else list(columns)
        place = ((rows - self.low) / self.width * CELLS).clamp_(0, CELLS - 1).long()
        return (place[:, chosen] * self.code[chosen]).sum(1)
