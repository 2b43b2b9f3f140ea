"""Results that people look at: as text where they are printed, and as tables in notebooks."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, NamedTuple

import rich.table
from rich.console import Console, Group
from rich.markup import escape

WIDTH, WIDE = 120, 1000  # letters of a line of text; in a notebook, which can scroll
STYLE = "margin:0;overflow-x:auto;line-height:normal;font-family:Menlo,'DejaVu Sans Mono',Consolas,monospace"


class Table(NamedTuple):
    """A caption, heads of columns, and rows of text."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


def rich_tables(tables: Sequence[Table]) -> Group:
    """Tables as the console prints them: the first column on the left, numbers on the right."""
    drawn = []
    for one in tables:
        table = rich.table.Table(title=escape(one.caption), title_justify="left")
        for place, head in enumerate(one.heads):
            table.add_column(escape(head), justify="right" if place else "left")
        for row in one.rows:
            table.add_row(*map(escape, row))
        drawn.append(table)
    return Group(*drawn)


def percent(share: float) -> str:
    return f"{100 * share:.3g}%"


class Printed:
    """Base class of results: a subclass defines `__rich__`, or `__str__` if it is only sentences, and has both."""

    def __rich__(self) -> Any:
        return escape(str(self))

    def __str__(self) -> str:
        console = Console(width=WIDTH, force_terminal=False, color_system=None)
        with console.capture() as text:
            console.print(self)
        return text.get().rstrip()

    def _repr_html_(self) -> str:
        return as_html(self)


def as_html(result: Any) -> str:
    """What a console would print, as HTML without scripts in which every text is escaped."""
    console = Console(record=True, file=io.StringIO(), width=WIDE, force_jupyter=False, highlight=False)
    console.print(result)
    return console.export_html(inline_styles=True, code_format=f'<pre style="{STYLE}">{{code}}</pre>')
