"""results about parent distributions -> figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from torch import Tensor

from mocoda.engine.figures import BLUE, GREY, INK, RED, bare, save

GREEN, LIGHT_GREEN, ORANGE = "#2e8b57", "#8fc9a8", "#e0a243"
STRATA_COLOURS = {
    "recorded": GREY,
    "mocoda": BLUE,
    "mocoda, stratified": GREEN,
    "mocoda, stratified evenly": LIGHT_GREEN,
    "mocoda-u": RED,
    "mocoda-u, stratified": ORANGE,
}


def draw_neighbourhoods(
    cells: Sequence[Mapping[str, Any]], quadrant: Mapping[str, tuple[Tensor, Tensor]], path: Path
) -> None:
    """Actions in the top right quadrant of 2D Navigation, coloured by the model's error; below, all worlds as bars.

    quadrant  name -> actions (N, 2), errors (N,)
    """
    figure = Figure(figsize=(10, 7.2), layout="constrained")
    halves = figure.subfigures(2, 1, height_ratios=(1.1, 1))
    assert isinstance(halves, np.ndarray)
    above, below = halves
    shown = {
        "recorded": "recorded: only ever upwards",
        "mocoda": "MoCoDA, one set of mixtures",
        "mocoda, stratified": "MoCoDA, mixtures per neighbourhood",
    }
    panels = above.subplots(1, len(shown), sharex=True, sharey=True)
    for axes, (name, title) in zip(panels, shown.items(), strict=True):
        action, error = (part[:1_500].numpy() for part in quadrant[name])
        dots = axes.scatter(
            *action.T, c=error.clip(0.005, 3), s=5, norm=LogNorm(0.005, 3), cmap="coolwarm", linewidths=0
        )
        axes.set(xlim=(-0.15, 1.05), ylim=(-0.15, 1.05), xlabel="dx", aspect="equal")
        axes.set_title(title, fontsize=10, color=INK)
        bare(axes)
    panels[0].set_ylabel("dy")
    above.colorbar(dots, ax=panels, label="model's error × 100", shrink=0.8)
    above.suptitle("2D Navigation: the actions in the top right quadrant", x=0.01, ha="left", fontsize=11, color=INK)
    one, other = below.subplots(1, 2)
    _draw_groups(one, cells, "unsupported_mean", "unsupported_std")
    one.set_ylabel("rows with an unsupported parent set (%)")
    _draw_groups(other, cells, "mean", "std")
    other.set(yscale="log", ylabel="model's error × 100 (log scale)")
    handles, labels = one.get_legend_handles_labels()
    below.legend(handles, labels, loc="outside lower center", frameon=False, ncols=3, fontsize=9)
    save(figure, path)


def _draw_groups(axes: Axes, cells: Sequence[Mapping[str, Any]], mean: str, std: str) -> None:
    """A group of bars a world, a bar a column."""
    worlds, columns = (list(dict.fromkeys(cell[key] for cell in cells)) for key in ("world", "column"))
    width = 0.84 / len(columns)
    for number, column in enumerate(columns):
        own = [cell for cell in cells if cell["column"] == column]
        places = [i + width * (number - (len(columns) - 1) / 2) for i in range(len(worlds))]
        axes.bar(
            places,
            [cell[mean] for cell in own],
            0.92 * width,
            yerr=[cell[std] for cell in own],
            label=column,
            color=STRATA_COLOURS[column],
            ecolor=INK,
        )
    axes.set_xticks(range(len(worlds)), worlds)
    bare(axes)


def draw_reweighting(results: Mapping[str, Any], path: Path) -> None:
    """What a row costs, and which combinations there are among the rows, by the number of factors."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    cost, covered = figure.subplots(1, 2)
    config = results["config"]
    titles = {
        "exact rejection": (f"rejection, as flat as can be (right: of {config['budget']:,} proposals)", RED),
        "rejection": ("rejection by kernel density (recipe mocoda-u)", ORANGE),
        "mocoda": ("MoCoDA, not flattened", GREY),
        "reweighting": ("reweighted components", BLUE),
    }
    for column, (label, colour) in titles.items():
        own = [point for point in results["points"] if point["column"] == column]
        factors = [point["factors"] for point in own]
        style: dict[str, Any] = {"color": colour, "marker": "o", "ms": 4, "lw": 1.8, "label": label}
        if column != "mocoda":  # which costs what reweighting does
            cost.plot(factors, [point["proposals"] for point in own], **style)
        covered.plot(factors, [point["covered"] for point in own], clip_on=False, **style)
    cost.set(yscale="log", ylabel="proposals for one row (log scale)", xlabel="independent factors")
    covered.set(ylim=(0, 100), ylabel="combinations of intervals that occur (%)", xlabel="independent factors")
    if results["hopeless"] is not None:
        cost.axvline(results["hopeless"], color=INK, lw=1, ls=":")
        cost.annotate(
            f"{results['hopeless']} factors: over a\nmillion proposals a row",
            (results["hopeless"], 1e6),
            xytext=(-8, 14),
            textcoords="offset points",
            ha="right",
            fontsize=9,
            color=INK,
        )
    cost.set_title(f"Evening out intervals that hold {100 * config['rare']:.0f}%", loc="left", fontsize=10, color=INK)
    covered.set_title(f"What {config['test_rows']:,} rows then cover", loc="left", fontsize=10, color=INK)
    for axes in (cost, covered):
        axes.set_xticks(config["factors"])
        bare(axes)
    handles, labels = covered.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", frameon=False, ncols=2, fontsize=9)
    save(figure, path)
