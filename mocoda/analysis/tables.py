"""Tables of text, which commands print and the page shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import rich.console
import rich.table
import torch
from rich.markup import escape
from torch import Tensor

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
