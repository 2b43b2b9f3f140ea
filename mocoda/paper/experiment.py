"""a preset -> a table of the paper, measured: the whole method as one program, and what it draws and writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from rich.table import Table

from mocoda.engine.errors import unknown_name
from mocoda.engine.files import versions
from mocoda.engine.optimise import device_name

Settings = TypeVar("Settings")


def preset(presets: Mapping[str, Settings], name: str) -> Settings:
    """The settings of that name."""
    if name not in presets:
        raise unknown_name("preset", name, presets)
    return presets[name]


def described(settings: Any) -> dict[str, Any]:
    """An experiment's settings as JSON values."""
    values: dict[str, Any] = settings.config() if hasattr(settings, "config") else asdict(settings)
    return values


def heading(table: str, settings: Any, metric: str, device: str, seconds: float, **more: Any) -> dict[str, Any]:
    """What every file of results says first: what was measured, how, on what and for how long.

    With resumed=True the seconds are those of the last part.
    """
    return {
        "table": table,
        "preset": settings.preset,
        "metric": metric,
        "device": device_name(device),
        "seconds": round(seconds, 1),
        **more,
        "versions": versions(),
        "config": described(settings),
    }


def as_table(
    results: Mapping[str, Any], title: str, digits: int = 3, best_of: str = "column", more_is_better: bool = False
) -> Table:
    """Ours with its spread over seeds, the paper's cell behind it; the best of a column, or of a row, is bold."""
    cells = results["cells"]
    columns = list(dict.fromkeys(cell["column"] for cell in cells))
    choose = max if more_is_better else min
    best = {c[best_of]: choose(cell["mean"] for cell in cells if cell[best_of] == c[best_of]) for c in cells}
    table = Table(title=title, caption="mean ± standard deviation over seeds (in brackets: the paper)")
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    for row in dict.fromkeys(cell["row"] for cell in cells):
        texts = []
        for cell in (cell for cell in cells if cell["row"] == row):
            ours = f"{cell['mean']:.{digits}f} ± {cell['std']:.{digits}f}"
            if cell["mean"] == best[cell[best_of]]:
                ours = f"[bold]{ours}[/bold]"
            paper = "" if cell["paper_mean"] is None else f" [dim]({cell['paper_mean']:.{min(digits, 2)}f})[/dim]"
            texts.append(ours + paper)
        table.add_row(row, *texts)
    return table
