"""The figures of Table 2: learning curves, and where agents walk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from mocoda.engine.figures import (
    AGENT_TITLES,
    BLUE,
    GREY,
    INK,
    PANEL_TITLES,
    RECIPE_COLOURS,
    bare,
    plot_curve,
    save,
)


def draw_curves(agents: Mapping[str, Any], optimum: float, path: Path) -> None:
    """Learning curves, one panel an agent: the mean over seeds, and the range of the seeds."""
    figure = Figure(figsize=(3.4 * len(agents), 3.5), layout="constrained")
    panels = figure.subplots(1, len(agents), squeeze=False, sharey=True).flat
    for axes, (name, curves) in zip(panels, agents.items(), strict=True):
        for column, seeds in curves["steps"].items():
            plot_curve(axes, curves["updates"], seeds, color=RECIPE_COLOURS[column], lw=1.6, label=column)
        axes.axhline(optimum, color=INK, lw=1, ls=":", label="optimum")
        axes.set_title(AGENT_TITLES.get(name, name), fontsize=12, color=INK)
        axes.set(xlabel="updates", ylim=(15, 72))
        bare(axes)
    figure.axes[0].set_ylabel("steps to the goal")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", frameon=False, ncols=len(labels), fontsize=9)
    save(figure, path)


def draw_paths(paths: Mapping[str, Mapping[str, Tensor]], path: Path) -> None:
    """Where agents walk: a row an agent, a column a data set, lines through (T + 1, episodes, 2)."""
    columns = list(next(iter(paths.values())))
    size = (2.1 * len(columns) + 0.4, 2.1 * len(paths) + 0.5)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(paths), len(columns), squeeze=False)
    for row, (agent, by_data) in enumerate(paths.items()):
        for place, (name, walked) in enumerate(by_data.items()):
            axes = grid[row][place]
            _draw_walks(axes, walked)
            if row == 0:
                axes.set_title(PANEL_TITLES.get(name, name), fontsize=12, color=INK)
            if place == 0:
                axes.set_ylabel(AGENT_TITLES.get(agent, agent), fontsize=12, color=INK)
    save(figure, path)


def draw_walks(panels: Mapping[str, Tensor], path: Path, recorded: Tensor) -> None:
    """Walks (T + 1, episodes, 2), a panel each, over the recorded states (N, 2)."""
    figure = Figure(figsize=(4.6 * len(panels), 4.9), layout="constrained")
    for axes, (title, walked) in zip(figure.subplots(1, len(panels), squeeze=False).flat, panels.items(), strict=True):
        axes.plot(*recorded[:: max(1, len(recorded) // 4_000)].cpu().numpy().T, ",", color=GREY, alpha=0.6)
        _draw_walks(axes, walked)
        axes.set_title(title, fontsize=12, color=INK)
        for place, name in (((0.02, -0.07), "start"), ((0.8, 0.92), "goal")):
            axes.text(*place, name, fontsize=10, color=INK)
    save(figure, path)


def _draw_walks(axes: Axes, walked: Tensor) -> None:
    """Lines through (T + 1, episodes, 2), over the start, the goal and the quadrant where the sub-actions interfere."""
    axes.add_patch(Rectangle((0.5, 0.5), 0.6, 0.6, color=GREY, alpha=0.12, lw=0))
    axes.add_patch(Rectangle((0.0, 0.0), 0.15, 0.15, color=BLUE, alpha=0.2, lw=0))
    axes.add_patch(Rectangle((0.8, 0.8), 0.1, 0.1, color="#2e8b57", alpha=0.45, lw=0))
    for episode in walked.cpu().transpose(0, 1).numpy():
        axes.plot(*episode.T, color=BLUE, lw=0.8, alpha=0.6)
        axes.plot(*episode[-1], ".", color=INK, ms=3)
    axes.set(xlim=(-0.1, 1.1), ylim=(-0.1, 1.1), xticks=[], yticks=[], aspect="equal")
