"""The figures of Table 3: how often both boxes end where they should, and where they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import EngFormatter
from torch import Tensor

from experiments.columns import FULL, column_style, column_title
from experiments.experiment import unique
from experiments.figures import draw_bars, plot_curve
from mocoda.engine.figure_style import BLUE, GREEN, GREY, INK, bare, legend_below, save, title_left
from mocoda.tasks.hooksweep_env import CENTRE

WOOD = "#f5f1e7"
TABLE = np.array([0.77, 0.6])  # half of its length and width
SHOWN = ("emp", "mocoda", "mocoda-p", "default", "diffusion")  # columns in Figure 4


def draw_success(cells: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draws Table 3 as bars, a group per agent; a red mark is the paper's cell, the dotted line the expert."""
    shown = [cell for cell in cells if cell["row"] != "expert"]
    agents = unique(shown, "row")
    figure = Figure(figsize=(max(6.5, 4.6 * len(agents)), 4.2), layout="constrained")
    axes = figure.subplots()
    styles: dict[str, dict[str, Any]] = {
        column: {
            "color": column_style(column)["color"],
            "label": column_title(column),
            "hatch": "////" if column.endswith(FULL) else None,
        }
        for column in unique(shown, "column")
    }
    draw_bars(axes, shown, "row", "column", styles, {name: name.upper() for name in agents}, dots=True)
    for cell in [cell for cell in cells if cell["row"] == "expert"][:1]:
        _draw_expert(axes, cell["mean"])
    axes.set(xlim=(-0.5, len(agents) - 0.5), ylim=(0, 100), ylabel="success (%)")
    title_left(axes, "How often both boxes are swept to their goals")
    legend_below(figure)
    save(figure, path)


def draw_curves(cells: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draws learning curves in percent, one panel per agent: the mean over seeds, and the range of the seeds."""
    agents = [row for row in unique(cells, "row") if row != "expert"]
    (ceiling,) = {cell["mean"] for cell in cells if cell["row"] == "expert"}
    figure = Figure(figsize=(max(8.5, 3.4 * len(agents)), 4.6), layout="constrained")
    panels = figure.subplots(1, max(1, len(agents)), squeeze=False, sharey=True).flat
    for axes, name in zip(panels, agents, strict=False):
        for cell in (cell for cell in cells if cell["row"] == name):
            column = cell["column"]
            style = {"color": column_style(column)["color"], "ls": "--" if column.endswith(FULL) else "-"}
            plot_curve(axes, cell["curve"], lw=1.6, label=column_title(column), **style)
        _draw_expert(axes, ceiling)
        axes.set_title(name.upper(), fontsize=12, color=INK)
        axes.set(xlabel="updates", ylim=(0, 100))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        bare(axes)
    figure.axes[0].set_ylabel("success (%)")
    legend_below(figure)
    save(figure, path)


def draw_tables(places: Mapping[str, Mapping[str, Any]], goals: Tensor, path: Path) -> None:
    """Draws Figure 4, the table seen from above with the robot at its left: a dot is a pair of boxes that are together.

    places  by column: the share of its states with boxes that are together, and the middles of some
    goals   (M, 6), of the target task; the two areas in which they lie are green
    """
    panels = {column: own for column, own in places.items() if column in SHOWN} or places
    figure = Figure(figsize=(3.6 * max(1, len(panels)), 2.95), layout="compressed")
    grid = figure.subplots(1, max(1, len(panels)), squeeze=False).flat
    for axes, (column, own) in zip(grid, panels.items(), strict=False):
        axes.add_patch(Rectangle((*(CENTRE - TABLE),), *2 * TABLE, fc=WOOD, ec=GREY))
        _draw_goal_areas(axes, goals.cpu().unflatten(1, (2, 3))[..., :2].mean(1))
        axes.plot(
            [x for x, _ in own["middles"]], [y for _, y in own["middles"]], ".", ms=4, mew=0, color=BLUE, alpha=0.6
        )
        axes.set(xlim=(1.25, 2.45), ylim=(0.35, 1.15), aspect="equal", xticks=[], yticks=[])
        axes.set_title(f"{column_title(column)}\n", fontsize=11, color=INK)
        share = f"boxes within 15 cm of each other: {100 * own['together']:.0f}% of states"
        axes.text(0.5, 1.04, share, transform=axes.transAxes, ha="center", fontsize=9, color=INK)
    figure.axes[0].set_ylabel("robot's side", fontsize=10, color=INK)
    save(figure, path)


def _draw_expert(axes: Axes, success: float) -> None:
    axes.axhline(success, color=INK, lw=1, ls=":", label="expert")


def _draw_goal_areas(axes: Axes, middles: Tensor) -> None:
    """The rectangles around the middles (M, 2) on either side."""
    left = middles[:, 0] < CENTRE[0]
    for area in (middles[left], middles[~left]):
        if len(area):
            low, high = area.amin(0), area.amax(0)
            axes.add_patch(Rectangle((*low.tolist(),), *(high - low).tolist(), color=GREEN, alpha=0.25, lw=0))
            axes.text(float(low[0] + high[0]) / 2, float(low[1]) - 0.11, "goals", ha="center", va="top", color=GREEN)
