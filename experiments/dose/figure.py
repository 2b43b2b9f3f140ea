"""The figure of the dose: what agents reach by dose, and beside it what was known before they were trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mocoda.engine.figures import BLUE, GREY, INK, ORANGE, RED, bare, legend_below, save, title_left

TITLES = {"navigation": "2D Navigation", "hooksweep2": "HookSweep2"}
MEASURES = {"navigation": "steps (fewer is better)", "hooksweep2": "success in %"}
DENSITY_COLOURS = {"mixture": ORANGE, "matched": BLUE}
FRACTIONS = {0.25: "¼", 0.5: "½"}
Cells = Sequence[Mapping[str, Any]]


def draw_dose(results: Mapping[str, Any], path: Path) -> None:
    """Draws a row of panels an agent and task: one panel a number of recorded rows, and what its AUC said before."""
    cells, lines = results["cells"], results["lines"]
    agents = list(dict.fromkeys((cell["task"], cell["agent"]) for cell in cells))
    sizes = {key: list(dict.fromkeys(c["rows"] for c in cells if (c["task"], c["agent"]) == key)) for key in agents}
    wide = max(map(len, sizes.values()))
    figure = Figure(figsize=(2.6 * wide + 3.0, 2.5 * len(agents) + 0.7), layout="constrained")
    grid = figure.subplots(len(agents), wide + 1, squeeze=False)
    for panels, (task, agent) in zip(grid, agents, strict=True):
        own, known = ([one for one in of if (one["task"], one["agent"]) == (task, agent)] for of in (cells, lines))
        values = [value for cell in own for value in cell["values"]]
        room = 0.06 * (max(values) - min(values)) or 1.0
        for axes, size in zip(panels, sizes[task, agent], strict=False):
            mine = [[one for one in of if one["rows"] == size] for of in (own, known)]
            _draw_doses(axes, mine[0], mine[1])
            axes.set_ylim(min(values) - room, max(values) + room)
            title_left(axes, f"{size:,} recorded rows", fontsize=10)
        for axes in panels[len(sizes[task, agent]) : -1]:
            axes.set_axis_off()
        panels[0].set_ylabel(f"{TITLES[task]}, {agent.upper()}\n{MEASURES[task]}", fontsize=9, color=INK)
        rho = [one["rho"] for one in results["correlations"] if _judged(one) == (task, agent, "auc", "gain")]
        _draw_known(panels[-1], known, rho[0])
    for column in grid.T[:-1]:
        lowest = [axes for axes in column if axes.axison][-1]
        lowest.set_xlabel("generated rows per recorded row", fontsize=9)
    grid[-1][-1].set_xlabel("AUC before training", fontsize=9)
    legend_below(figure)
    save(figure, path)


def _draw_doses(axes: Axes, cells: Cells, lines: Cells) -> None:
    """One number of recorded rows: a line a density, a dot a seed, and a red ring where the last step made it worse."""
    doses = sorted({cell["dose"] for cell in cells})
    (alone,) = (cell for cell in cells if cell["dose"] == 0)
    axes.axhline(alone["mean"], color=INK, lw=1, ls="--", label="recorded rows alone")
    axes.plot([0] * len(alone["values"]), alone["values"], "o", ms=3, mew=0, color=INK, alpha=0.6)
    densities = list(dict.fromkeys(line["density"] for line in lines))
    for number, density in enumerate(densities):
        colour, shift = DENSITY_COLOURS[density], 0.12 * (number - (len(densities) - 1) / 2)
        own = {cell["dose"]: cell for cell in cells if cell["density"] == density}
        means = [alone["mean"], *(own[dose]["mean"] for dose in doses[1:])]
        axes.plot(range(len(doses)), means, lw=1.8, color=colour, label=f"MoCoDA, {density}")
        for place, dose in enumerate(doses[1:], 1):
            values = own[dose]["values"]
            axes.plot([place + shift] * len(values), values, "o", ms=3, mew=0, color=colour, alpha=0.6)
        (line,) = (line for line in lines if line["density"] == density)
        for place, change in enumerate(line["changes"], 1):
            if change["hurts"]:
                (ring,) = axes.plot(place, means[place], "o", ms=9, mec=RED, mew=1.6, mfc="none")
                ring.set_label("worse than the dose before (95% CI)")
    axes.set_xticks(range(len(doses)), [FRACTIONS.get(dose, f"{dose:g}") for dose in doses])
    axes.set_xlim(-0.3, len(doses) - 0.7)
    bare(axes)


def _draw_known(axes: Axes, lines: Cells, rho: float | None) -> None:
    """What augmenting gained by what a classifier told apart before; more recorded rows are larger dots."""
    sizes = sorted({line["rows"] for line in lines})
    axes.axhline(0, color=GREY, lw=1)
    for line in lines:
        for auc, gain in zip(line["auc"], line["gain"]["values"], strict=True):
            colour, size = DENSITY_COLOURS[line["density"]], 3 + 2.5 * sizes.index(line["rows"])
            axes.plot(auc, gain, "o", ms=size, mew=0.4, mec="white", color=colour, alpha=0.8)
    dots = [Line2D([], [], ls="", marker="o", ms=3 + 2.5 * n, mew=0, color=GREY) for n in range(len(sizes))]
    axes.legend(dots, [f"{size:,} rows" for size in sizes], frameon=False, fontsize=7, handletextpad=0.1, borderpad=0)
    told = "" if rho is None else f" ρ = {rho:.2f}".replace("-", "\N{MINUS SIGN}")
    title_left(axes, f"Told beforehand?{told}", fontsize=10)
    axes.set_ylabel("gain by augmenting", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.locator_params(axis="x", nbins=4)
    bare(axes)


def _judged(one: Mapping[str, Any]) -> tuple[str, str, str, str]:
    return one["task"], one["agent"], one["judged"], one["of"]
