"""The figure of an audit: the share of rows that are true, of which kinds, and how well it can be predicted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mocoda.analysis.row_audit import summary
from mocoda.engine.figure_style import BLUE, GREY, INK, RED, bare, legend_below, save, title_left
from mocoda.parents import RECIPES

MAX_GRAPHS = 8  # local graphs that are drawn
MAX_LETTERS, MAX_LINES = 26, 4  # of a name


def draw_audit(found: Mapping[str, Any], path: Path) -> None:
    """Draws `Audit.to_json()`: shares by recipe, factor, local graph, support, disagreement and step, and AUROCs."""
    by = found["by"]
    graphs = dict(list(by["local_graph"].items())[:MAX_GRAPHS])
    panels: list[tuple[Any, ...]] = [
        (draw_bars, by["recipe"], "Rows that are true, by recipe"),
        (draw_bars, by["factor"], "Factors that are true"),
        (draw_bars, graphs, "Rows that are true, by local graph"),
    ]
    for name, title in (
        ("support", "Is more support a sign of truth?"),
        ("disagreement", "Is less disagreement a sign of truth?"),
        ("step", "Are rows as true late in an episode?"),
    ):
        panels += [(draw_deciles, by[name], title, name)] if name in by else []
    panels += [(draw_bars, by["episode"], "Episodes that are true to the last step")] if "episode" in by else []
    panels += [(draw_predictors, found["predictors"])] if found["predictors"] else []
    lines = -(-len(panels) // 3)
    figure = Figure(figsize=(15, 3.6 * lines), layout="constrained")
    figure.suptitle(summary(found), x=0.01, ha="left", fontsize=13, color=INK, wrap=True)
    for place, (draw, *told) in enumerate(panels, 1):
        axes = figure.add_subplot(lines, 3, place)
        draw(axes, *told)
        bare(axes)
    if any(axes.get_legend_handles_labels()[1] for axes in figure.axes):
        legend_below(figure)
    save(figure, path)


def draw_bars(axes: Axes, cells: Mapping[str, Any], title: str) -> None:
    """Draws bars of generated rows, with a mark where recorded ones are."""
    for place, (name, cell) in enumerate(cells.items()):
        _draw_bar(axes, place, cell, GREY if name == "recorded" else RECIPES[name].colour if name in RECIPES else BLUE)
        if recorded := cell.get("recorded"):
            ends = [place - 0.4, place + 0.4]
            axes.plot([100 * recorded["share"]] * 2, ends, color=INK, lw=2, label="recorded rows")
    axes.set_yticks(range(len(cells)), [_short(name) for name in cells])
    axes.set_ylim(len(cells) - 0.4, -0.6)
    axes.set_xlim(0, 102)
    axes.set_xlabel("confirmed (%)")
    title_left(axes, title)


def _draw_bar(axes: Axes, place: int, cell: Mapping[str, Any], colour: str) -> None:
    if not cell["rows"]:
        return
    share, ends = 100 * cell["share"], [100 * end for end in cell["interval"]]
    axes.barh(place, share, 0.7, color=colour)
    axes.plot(ends, [place, place], color=INK, lw=1.2)
    inside = share > 25
    axes.annotate(
        f"{share:.1f}%",
        (min(ends) if inside else max(ends), place),
        (-5 if inside else 5, 0),
        textcoords="offset points",
        ha="right" if inside else "left",
        va="center",
        fontsize=9,
        color="white" if inside else INK,
    )


def _short(name: str) -> str:
    """One edge per line, shortened; the first few of many edges."""
    lines = [line if len(line) <= MAX_LETTERS else f"{line[: MAX_LETTERS - 1]}…" for line in name.split(", ")]
    few = [*lines[: MAX_LINES - 1], f"and {len(lines) - MAX_LINES + 1} more"]
    return "\n".join(lines if len(lines) <= MAX_LINES else few)


def draw_deciles(axes: Axes, cells: Mapping[str, Any], title: str, name: str) -> None:
    """Draws the share of true rows over the deciles of a score."""
    shown = [(label, cell) for label, cell in cells.items() if cell["rows"]]
    places = range(len(shown))
    low, high = ([100 * cell["interval"][end] for _, cell in shown] for end in (0, 1))
    axes.fill_between(places, low, high, color=BLUE, alpha=0.2, lw=0)
    shares = [100 * cell["share"] for _, cell in shown]
    axes.plot(places, shares, color=BLUE, marker="o", ms=4, label="generated rows, with 95% CI")
    recorded = [(place, 100 * cell["recorded"]["share"]) for place, (_, cell) in enumerate(shown) if cell["recorded"]]
    if recorded:
        axes.plot(*zip(*recorded, strict=True), color=INK, lw=2, label="recorded rows")
    starts = [f"{float(label.partition(' to ')[0]):.2g}" for label, _ in shown]
    axes.set_xticks(places, starts, fontsize=8, rotation=30)
    axes.set_ylim(0, 102)
    axes.set_ylabel("confirmed (%)")
    axes.set_xlabel(f"{name}: where each tenth of the rows begins")
    title_left(axes, title)


def draw_predictors(axes: Axes, cells: Mapping[str, Any]) -> None:
    """Draws AUROCs with their intervals."""
    known = {name: cell for name, cell in cells.items() if cell["auroc"] is not None}
    axes.axvline(0.5, color=GREY, lw=1, ls="--")
    for place, cell in enumerate(known.values()):
        axes.plot(cell["interval"], [place, place], color=RED, lw=2)
        axes.plot(cell["auroc"], place, "o", ms=7, color=RED)
        text = f"{cell['auroc']:.2f}"
        axes.annotate(text, (cell["auroc"], place), (0, 9), textcoords="offset points", ha="center", color=INK)
    axes.set_yticks(range(len(known)), ["two-sample\nodds" if name == "odds" else name for name in known])
    axes.set_ylim(max(1, len(known)) - 0.4, -0.6)
    axes.set_xlim(0, 1)
    axes.set_xlabel("AUROC: 1 finds all true rows, 0.5 is a coin")
    title_left(axes, "What finds true rows without a simulator" if known else "All rows have the same verdict")
