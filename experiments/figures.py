"""Parts of figures that several experiments draw: bars in groups, lines with a dot per seed, and learning curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from experiments.experiment import average, unique
from mocoda.engine.figure_style import BLUE, GREEN, GREY, INK, ORANGE, RED, bare

PALETTE = (BLUE, ORANGE, GREEN, RED, GREY, INK)


def draw_bars(
    axes: Axes,
    cells: Sequence[Mapping[str, Any]],
    group: str,
    bar: str,
    styles: Mapping[str, Mapping[str, Any]],
    titles: Mapping[str, str] | None = None,
    dots: bool = False,
) -> None:
    """Draws means as bars in groups, with standard deviations or a dot per seed; a red mark is the paper's mean.

    group, bar  keys of the cells: what a group and what a bar in it is
    styles      of each bar: its colour, and its label unless that is the bar's name
    titles      of groups, where they are not called by their names
    """
    groups, names = unique(cells, group), unique(cells, bar)
    width = 0.84 / len(names)
    for one in cells:
        place = groups.index(one[group]) + width * (names.index(one[bar]) - (len(names) - 1) / 2)
        style: dict[str, Any] = {"label": one[bar], "edgecolor": "white", "linewidth": 0, **styles[one[bar]]}
        axes.bar(place, one["mean"], 0.9 * width, yerr=None if dots else one["std"] or None, ecolor=INK, **style)
        if one.get("paper_mean") is not None:
            ends = [place - width / 2, place + width / 2]
            axes.plot(ends, [one["paper_mean"]] * 2, color=RED, lw=2, label="the paper")
        if dots:
            seeds = len(one["values"])
            places = [place + 0.22 * width * (seed - (seeds - 1) / 2) for seed in range(seeds)]
            axes.plot(
                places, one["values"], "o", ms=3.5, mec="white", mew=0.5, color=INK, label="a seed", clip_on=False
            )
    axes.set_xticks(range(len(groups)), [(titles or {}).get(name, name) for name in groups])
    axes.tick_params(axis="x", length=0)
    bare(axes)


def draw_line(axes: Axes, places: Sequence[float], seeds: Sequence[Sequence[float]], **style: Any) -> None:
    """Draws a line through the means over seeds, and a dot per seed, at each place."""
    axes.plot(places, [average(values) for values in seeds], **({"lw": 1.8} | style))
    for place, values in zip(places, seeds, strict=True):
        axes.plot([place] * len(values), values, "o", ms=3.5, mew=0, color=style["color"], alpha=0.7)


def plot_curve(axes: Axes, curve: Mapping[str, Sequence[float]], **style: Any) -> None:
    """Draws a learning curve: the mean over seeds as a line, and the range of the seeds."""
    axes.plot(curve["updates"], curve["mean"], **style)
    axes.fill_between(curve["updates"], curve["low"], curve["high"], color=style["color"], alpha=0.12, lw=0)
