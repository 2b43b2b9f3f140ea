"""The figure of audits: how true the rows of each recipe are, where, and what tells beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.columns import LOCAL, MATCHED, Column, column_label, recipe_colour
from mocoda.engine.figures import BLUE, GREEN, GREY, INK, ORANGE, RED, bare, save, title_left

MARKS = (
    ("support", "support", "s", GREEN),
    ("disagreement", "disagreement", "o", RED),
    ("odds", "two-sample odds", "^", BLUE),
)
FACTORS = ("o", "s", "^", "D", "v", "P", "X", "*")


def draw_audits(results: Mapping[str, Any], path: Path) -> None:
    """Draws shares by recipe and factor, by support and disagreement, and what predicts the verdict."""
    audits = results["audits"]
    tall = 0.45 * len(audits) + 1.6
    figure = Figure(figsize=(15, tall + 4), layout="constrained")
    figure.suptitle(_headline(results), x=0.01, ha="left", fontsize=13, color=INK)
    parts: Any = figure.subfigures(2, 1, height_ratios=[tall, 4])
    above, below = parts
    left, middle, right = above.subplots(1, 3, sharey=True)
    _draw_shares(left, results)
    _draw_factors(middle, results)
    _draw_predictors(right, audits)
    names = ["recorded", *map(column_label, audits)]
    left.set_yticks(range(len(names)), names)
    left.set_ylim(len(names) - 0.4, -0.6)
    one, other, last = below.subplots(1, 3)
    _draw_neighbourhoods(last, audits)
    _draw_deciles(one, audits, "support")
    _draw_deciles(other, audits, "disagreement")
    one.legend(frameon=False, fontsize=8, ncols=2)
    for axes in (left, middle, right, one, other, last):
        bare(axes)
    save(figure, path)


def _headline(results: Mapping[str, Any]) -> str:
    limits = results["tolerance"]
    worst, best = min(limits.values()), max(limits.values())
    within = f"{worst:.3g}" if worst == best else f"{worst:.3g} to {best:.3g}, by factor,"
    return (
        f"How many rows of each recipe the simulator confirms: {results['task']}, "
        f"{results['config']['rows']:,} recorded rows; true is within {within} of what it says"
    )


def _colour(column: str) -> str:
    return GREY if column == "recorded" else recipe_colour(Column.of(column).recipe)


def _draw_shares(axes: Axes, results: Mapping[str, Any]) -> None:
    cells = {"recorded": results["recorded"]}
    cells |= {name: {"share": one["confirmed"], "interval": one["interval"]} for name, one in results["audits"].items()}
    axes.axvline(100 * results["recorded"]["share"], color=GREY, lw=1, ls="--")
    for place, (name, cell) in enumerate(cells.items()):
        share, ends = 100 * cell["share"], [100 * end for end in cell["interval"]]
        hatch = "///" if name.endswith(MATCHED) else "..." if name.endswith(LOCAL) else ""
        axes.barh(place, share, 0.7, color=_colour(name), hatch=hatch, edgecolor="white", lw=0)
        axes.plot(ends, [place, place], color=INK, lw=1.4)
        axes.annotate(
            f"{share:.1f}%",
            (max(ends), place),
            (5, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=INK,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
        )
    axes.set_xlim(0, 112)
    axes.set_xlabel("rows confirmed (%)")
    title_left(axes, "All factors true")


def _draw_factors(axes: Axes, results: Mapping[str, Any]) -> None:
    factors = list(results["tolerance"])
    for number, factor in enumerate(factors):
        first = next(iter(results["audits"].values()))["by"]["factor"][factor]["recorded"]
        shares = [first["share"], *(one["by"]["factor"][factor]["share"] for one in results["audits"].values())]
        shift = 0.5 * ((number + 0.5) / len(factors) - 0.5)
        places = [place + shift for place in range(len(shares))]
        axes.scatter(
            [100 * share for share in shares],
            places,
            marker=FACTORS[number % len(FACTORS)],
            s=30,
            color=[BLUE, ORANGE, GREEN, RED, INK, GREY][number % 6],
            label=factor,
            zorder=3,
        )
    for place in range(len(results["audits"]) + 1):
        axes.axhline(place, color=GREY, lw=0.4, alpha=0.5)
    axes.set_xlabel("rows in which the factor is true (%)")
    axes.set_xlim(None, 102)
    axes.legend(frameon=False, fontsize=8, loc="best")
    title_left(axes, "Which factor is true")


def _draw_predictors(axes: Axes, audits: Mapping[str, Any]) -> None:
    axes.axvline(0.5, color=GREY, lw=1, ls="--")
    for number, (key, label, marker, colour) in enumerate(MARKS):
        for place, one in enumerate(audits.values(), 1):
            cell = one["predictors"].get(key)
            if cell is None or cell["auroc"] is None or (key == "disagreement" and len(one["by"][key]) == 1):
                continue
            at = place + 0.22 * (number - 1)
            axes.plot(cell["interval"], [at, at], color=colour, lw=1.5)
            axes.plot(cell["auroc"], at, marker, ms=6, color=colour)
        axes.plot([], [], marker, color=colour, label=label)
    axes.set_xlim(0, 1.02)
    axes.set_xlabel("AUROC: 1 finds all true rows, 0.5 is a coin")
    axes.legend(frameon=False, fontsize=8, loc="lower left")
    title_left(axes, "What finds true rows without a simulator")


def _draw_deciles(axes: Axes, audits: Mapping[str, Any], name: str) -> None:
    for column, one in audits.items():
        cells = [cell for cell in one["by"].get(name, {}).values() if cell["rows"]]
        if len(cells) < 2:
            continue
        style = "--" if column.endswith(MATCHED) else ":" if column.endswith(LOCAL) else "-"
        ends = list(accumulate(cell["rows"] for cell in cells))  # a group is more than a tenth where values are equal
        places = [10 * (end - cell["rows"] / 2) / ends[-1] for end, cell in zip(ends, cells, strict=True)]
        shares = [100 * cell["share"] for cell in cells]
        label = column_label(column)
        axes.plot(places, shares, style, color=_colour(column), marker="o", ms=3.5, label=label)
    axes.set_ylim(0, 102)
    axes.set_xlim(0, 10)
    axes.set_ylabel("rows confirmed (%)")
    axes.set_xlabel(f"tenths of a recipe's rows, from least to most {name}")
    title_left(axes, f"Is {'more' if name == 'support' else 'less'} {name} a sign of truth?")


def _draw_neighbourhoods(axes: Axes, audits: Mapping[str, Any]) -> None:
    """The share of true rows where the sparsest graph holds, and where more affects more."""
    for place, (column, one) in enumerate(audits.items()):
        cells = one["by"]["local_graph"]
        groups = [[cells["sparsest"]] if "sparsest" in cells else []]
        groups.append([cell for name, cell in cells.items() if name != "sparsest"])
        for shift, group, face in zip((-0.2, 0.2), groups, (_colour(column), "white"), strict=True):
            rows = sum(cell["rows"] for cell in group)
            if rows:
                share = sum(cell["share"] * cell["rows"] for cell in group if cell["rows"]) / rows
                axes.barh(place + shift, 100 * share, 0.36, facecolor=face, edgecolor=_colour(column))
    axes.set_yticks(range(len(audits)), list(map(column_label, audits)), fontsize=8)
    axes.set_ylim(len(audits) - 0.4, -0.6)
    axes.set_xlim(0, 102)
    axes.set_xlabel("rows confirmed (%)")
    title_left(axes, "Filled: the sparsest graph. Hollow: more edges")
