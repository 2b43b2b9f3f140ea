"""The figures of Table 1: errors of the dynamics, and Figure 3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from mocoda.engine.figures import (
    BLUE,
    COLOURS,
    INK,
    PANEL_TITLES,
    RED,
    bare,
    save,
)


def draw_errors(results: Mapping[str, Any], path: Path) -> None:
    """Table 1 as bars, one per architecture and column; a red mark is the paper's cell."""
    cells = results["cells"]
    columns = list(dict.fromkeys(cell["column"] for cell in cells))
    rows = list(dict.fromkeys(cell["row"] for cell in cells))
    figure = Figure(figsize=(8.5, 3.6), layout="constrained")
    axes = figure.subplots()
    for number, row in enumerate(rows):
        own = [cell for cell in cells if cell["row"] == row]
        places = [i + 0.27 * (number - 1) for i in range(len(columns))]
        axes.bar(
            places,
            [c["mean"] for c in own],
            0.25,
            yerr=[c["std"] for c in own],
            label=row,
            color=COLOURS[row],
            ecolor=INK,
        )
        axes.scatter(places, [c["paper_mean"] for c in own], marker="_", s=170, linewidths=2, color=RED, zorder=3,
                     label="the paper" if number == len(rows) - 1 else None)  # fmt: skip
    axes.set_yscale("log")
    axes.set_xticks(range(len(columns)), columns)
    axes.set_ylabel("next-state error × 100 (log scale)")
    axes.set_title("How far off the model is, by where it is asked", loc="left", fontsize=11, color=INK)
    figure.legend(loc="outside lower center", frameon=False, ncols=4, fontsize=9)
    bare(axes)
    save(figure, path)


def draw_transitions(
    panels: Mapping[str, tuple[Tensor, Tensor]],
    path: Path,
    shaded: Sequence[tuple[tuple[float, float], float, float]] = (),
) -> None:
    """Figure 3: per distribution, arrows from states (N, 2) to next states (N, 2).

    shaded  rectangles behind them: corner, width and height
    """
    figure = Figure(figsize=(3 * len(panels), 3.3), layout="constrained")
    for axes, (name, (state, following)) in zip(
        figure.subplots(1, len(panels), squeeze=False).flat, panels.items(), strict=True
    ):
        for corner, width, height in shaded:
            axes.add_patch(Rectangle(corner, width, height, color=RED, alpha=0.15, lw=0))
        start, move = state.cpu().numpy(), (following - state).cpu().numpy()
        axes.quiver(*start.T, *move.T, angles="xy", scale_units="xy", scale=1, width=0.003, color=BLUE, alpha=0.6)
        axes.set(xlim=(-0.1, 1.1), ylim=(-0.1, 1.1), xticks=[0, 1], yticks=[0, 1], aspect="equal")
        axes.set_title(PANEL_TITLES.get(name, name), fontsize=12, color=INK)
        bare(axes)
    save(figure, path)
