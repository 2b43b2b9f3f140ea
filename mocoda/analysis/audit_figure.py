"""The figure of an audit: the share of rows that are true, of which kinds, and how well it can be predicted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mocoda.analysis.row_audit import PREDICTORS, summary
from mocoda.engine.figure_style import BLUE, GREY, INK, bare, legend_below, save, title_left
from mocoda.parents import RECIPES

MAX_GRAPHS = 8  # local graphs that are drawn
MAX_LETTERS, MAX_LINES = 26, 4  # of a name
PANELS = {
    "recipe": "Rows that are true, by recipe",
    "factor": "Factors that are true",
    "local_graph": "Rows that are true, by local graph",
    "support": "By support: is more a sign of truth?",
    "disagreement": "By disagreement: is less a sign of truth?",
    "step": "By step of the episode",
    "episode": "Episodes that are true to the last step",
}


def draw_audit(found: Mapping[str, Any], path: Path) -> None:
    """Draws `Audit.to_json()`: shares by recipe, factor, local graph, support, disagreement and step, and AUROCs."""
    panels = {
        title: dict(list(found["by"][name].items())[: MAX_GRAPHS if name == "local_graph" else None])
        for name, title in PANELS.items()
        if name in found["by"]
    }
    areas = {PREDICTORS.get(name, name): cell for name, cell in found["predictors"].items()}
    areas = {name: {**cell, "share": cell["auroc"]} for name, cell in areas.items() if cell["auroc"] is not None}
    panels |= {"What finds true rows without a simulator": areas} if areas else {}
    lines = -(-len(panels) // 3)
    figure = Figure(figsize=(15, 3.6 * lines), layout="constrained")
    figure.suptitle(summary(found), x=0.01, ha="left", fontsize=13, color=INK, wrap=True)
    for place, (title, cells) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(lines, 3, place)
        _draw_bars(axes, cells)
        axes.set_xlabel("AUROC (%): 50 is a coin" if cells is areas else "confirmed (%)")
        title_left(axes, title)
        bare(axes)
    if any(axes.get_legend_handles_labels()[1] for axes in figure.axes):
        legend_below(figure)
    save(figure, path)


def _draw_bars(axes: Axes, cells: Mapping[str, Any]) -> None:
    """Draws bars with their intervals, and marks where recorded rows are."""
    for place, (name, cell) in enumerate(cells.items()):
        if recorded := cell.get("recorded"):
            ends = [place - 0.4, place + 0.4]
            axes.plot([100 * recorded["share"]] * 2, ends, color=INK, lw=2, label="recorded rows")
        if not cell["rows"]:
            continue
        share, interval = 100 * cell["share"], [100 * end for end in cell["interval"]]
        colour = GREY if name == "recorded" else RECIPES[name].colour if name in RECIPES else BLUE
        axes.barh(place, share, 0.7, color=colour)
        axes.plot(interval, [place, place], color=INK, lw=1.2)
        inside = share > 25
        axes.annotate(
            f"{share:.1f}%",
            (min(interval) if inside else max(interval), place),
            (-5 if inside else 5, 0),
            textcoords="offset points",
            ha="right" if inside else "left",
            va="center",
            fontsize=9,
            color="white" if inside else INK,
        )
    axes.set_yticks(range(len(cells)), [_short(name) for name in cells], fontsize=9)
    axes.set_ylim(len(cells) - 0.4, -0.6)
    axes.set_xlim(0, 102)


def _short(name: str) -> str:
    """One edge per line, shortened; the first few of many edges."""
    lines = [line if len(line) <= MAX_LETTERS else f"{line[: MAX_LETTERS - 1]}…" for line in name.split(", ")]
    few = [*lines[: MAX_LINES - 1], f"and {len(lines) - MAX_LINES + 1} more"]
    return "\n".join(lines if len(lines) <= MAX_LINES else few)
