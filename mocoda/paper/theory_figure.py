"""results of Theorem 1 -> the figure: what counting costs, and what it knows of what was never seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator

from mocoda.engine.figures import BLUE, COLOURS, INK, RED, bare, save

NAMES = {"full": "full counting", "global": "globally factored", "local": "locally factored"}


def draw_theory(results: Mapping[str, Any], path: Path) -> None:
    """Samples needed by the size of the world, by the number of mechanisms, and errors at unseen state-actions."""
    figure = Figure(figsize=(14, 4.4), layout="constrained")
    totals, visits, unseen = figure.subplots(1, 3)
    _draw_totals(totals, results["totals"])
    _draw_visits(visits, results["visits"])
    _draw_unseen(unseen, results["unseen"])
    for axes in (totals, visits, unseen):
        bare(axes)
    save(figure, path)


def _draw_totals(axes: Axes, cells: Sequence[Mapping[str, Any]]) -> None:
    """Dashed, what Theorem 1 asks for."""
    for row, name in NAMES.items():
        own = [cell for cell in cells if cell["row"] == row]
        pairs = [cell["pairs"] for cell in own]
        _draw_needed(axes, pairs, own, COLOURS[row], name)
        axes.plot(pairs, [_mean(cell["bounds"]) for cell in own], color=COLOURS[row], lw=1.2, ls="--")
    axes.plot([], [], color=INK, lw=1.2, ls="--", label="Theorem 1 asks for")
    every = sorted({cell["pairs"] for cell in cells})
    axes.fill_between(every, every, 1, color=BLUE, alpha=0.07, lw=0)
    axes.text(every[-1], 4, "fewer samples than\nstate-actions: must generalise", ha="right", color=BLUE, fontsize=9)
    axes.set(xscale="log", yscale="log", xlabel="state-actions |S||A|", ylabel="samples needed")
    axes.set_ylim(bottom=3)
    axes.set_title("Local counting hardly feels the size of the world", loc="left", fontsize=11, color=INK)
    axes.legend(frameon=False, fontsize=9, loc="upper left")


def _draw_visits(axes: Axes, points: Sequence[Mapping[str, Any]]) -> None:
    factors = [point["factors"] for point in points]
    axes.plot(factors, [point["bound"] for point in points], color=INK, lw=1.2, ls="--", label="Theorem 1 asks for")
    _draw_needed(axes, factors, points, BLUE, NAMES["local"])
    per_factor = _mean([point["mean"] / point["factors"] for point in points])
    axes.plot(factors, [per_factor * k for k in factors], color=RED, lw=1, ls=":", label=f"{per_factor:.0f} k")
    axes.set(xscale="log", yscale="log", xlabel="mechanisms k", ylabel="samples per configuration of parents")
    axes.set_xticks(factors, [str(k) for k in factors])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_title("The theorem asks for k² log |S||A|, counting about k", loc="left", fontsize=11, color=INK)
    axes.legend(frameon=False, fontsize=9, loc="upper left")


def _draw_unseen(axes: Axes, cells: Sequence[Mapping[str, Any]]) -> None:
    """Means over worlds; a share where no parents were seen has no point."""
    for row, name in NAMES.items():
        own = [cell for cell in cells if cell["row"] == row and None not in cell["errors"]]
        errors = [_mean(cell["errors"]) for cell in own]
        axes.plot([cell["share"] for cell in own], errors, "o-", color=COLOURS[row], lw=2.2, ms=4, label=name)
    every = sorted({cell["share"] for cell in cells})
    axes.set(xscale="log", xlabel="share of state-actions ever seen", ylabel="mean l1 error at the others")
    axes.set_xticks(every, [f"1/{1 / share:.0f}" for share in every])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(bottom=0)
    axes.set_title("Never seen, but its parents were", loc="left", fontsize=11, color=INK)
    axes.legend(frameon=False, fontsize=9, loc="center right", bbox_to_anchor=(1, 0.72))


def _draw_needed(
    axes: Axes, places: Sequence[float], points: Sequence[Mapping[str, Any]], colour: str, label: str
) -> None:
    """A line through the means over worlds, a dot and an interval a world."""
    axes.plot(places, [point["mean"] for point in points], color=colour, lw=2.2, label=label)
    for place, point in zip(places, points, strict=True):
        worlds = [place * 1.04 ** (i - (len(point["values"]) - 1) / 2) for i in range(len(point["values"]))]
        axes.vlines(worlds, *zip(*point["intervals"], strict=True), color=colour, lw=1, alpha=0.7)
        axes.plot(worlds, point["values"], ".", color=colour, ms=6)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
