"""answers to what-if questions -> a figure: what is kept is exact, and what is rare is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mocoda.engine.figures import COLOURS, INK, RED, bare, save

TITLES = {"navigation": "2D Navigation: no noise", "bodies": "Two bodies: noise that nobody recorded"}
MODELS = {
    "unfactored": ("unfactored model, all children asked anew", COLOURS["full"]),
    "knowing": ("true dynamics, all children asked anew", COLOURS["global"]),
    "factored": ("factored model, children out of reach kept", COLOURS["local"]),
}
CHILDREN = {
    "not reached": "out of the\nchange's reach",
    "alone": "reached,\non its own",
    "coupled, known": "reached,\ninteracting\nas recorded",
    "coupled, unknown": "reached,\ninteracting as\nnever recorded",
}
LINES = {"navigation": ("o", "2D Navigation", 9), "bodies": ("s", "two bodies", -28)}
HEADLINE = "What a change does not reach is kept, and exact; what it reaches is as good as the model there"


def draw_what_if(results: Mapping[str, Any], refused: float, path: Path) -> None:
    """A panel of bars a world, by who is asked and whether the change reaches the child; then errors by support.

    refused  the support, in percent of the data, under which questions are refused
    """
    figure = Figure(figsize=(14.5, 4.8), layout="constrained")
    figure.suptitle(HEADLINE, x=0.01, ha="left", fontsize=13, color=INK)
    panels = figure.subplots(1, 1 + len(TITLES), width_ratios=[*(1.3 for _ in TITLES), 1])
    for axes, (world, title) in zip(panels, TITLES.items(), strict=False):
        _draw_errors(axes, [cell for cell in results["cells"] if cell["world"] == world])
        axes.set_title(title, loc="left", fontsize=11, color=INK)
    panels[0].set_ylabel("error of the child (% of a step)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", frameon=False, ncols=len(labels), fontsize=9)
    _draw_supports(panels[-1], results["supports"], refused)
    save(figure, path)


def _draw_errors(axes: Axes, cells: Sequence[Mapping[str, Any]]) -> None:
    highest = max(cell["mean"] + cell["std"] for cell in cells)
    for number, (model, (label, colour)) in enumerate(MODELS.items()):
        own = [cell for cell in cells if cell["model"] == model]
        places = [list(CHILDREN).index(cell["children"]) + 0.28 * (number - 1) for cell in own]
        means = [cell["mean"] for cell in own]
        axes.bar(places, means, 0.26, yerr=[cell["std"] for cell in own], color=colour, ecolor=INK, label=label)
        for place, cell in zip(places, own, strict=True):
            exact = cell["mean"] == 0
            text = "0" if exact else f"{cell['mean']:.3g}"
            height = cell["mean"] + cell["std"] + 0.02 * highest
            axes.text(place, height, text, ha="center", fontsize=9, color=INK, weight="bold" if exact else "normal")
    axes.set_xticks(range(len(CHILDREN)), list(CHILDREN.values()))
    axes.tick_params(axis="x", length=0)
    axes.set_ylim(0, 1.1 * highest)
    bare(axes)


def _draw_supports(axes: Axes, cells: Sequence[Mapping[str, Any]], refused: float) -> None:
    bins = list(dict.fromkeys((cell["from"], cell["to"]) for cell in cells))
    for world, (marker, label, above) in LINES.items():
        own = [cell for cell in cells if cell["world"] == world]
        places = [bins.index((cell["from"], cell["to"])) for cell in own]
        means, stds = ([cell[name] for cell in own] for name in ("mean", "std"))
        axes.errorbar(places, means, stds, color=COLOURS["local"], marker=marker, lw=1.6, ecolor=INK)
        axes.annotate(label, (places[-1], means[-1]), (0, above), textcoords="offset points", ha="right", color=INK)
    border = sum(high <= refused for _, high in bins) - 0.5
    axes.axvspan(-0.5, border, color=RED, alpha=0.1, lw=0)
    axes.set(xlim=(-0.5, len(bins) - 0.5), ylim=(0, None))
    axes.text(border / 2 - 0.25, 0.62, "refused", transform=axes.get_xaxis_transform(), ha="center", color=RED)
    axes.set_xticks(range(len(bins)), [f"{low:g}–{high:g}" for low, high in bins])
    axes.set_xlabel("support (% of the data as rare, or rarer)")
    axes.set_ylabel("error, factored model (% of a step)")
    axes.set_title("What is rare is answered badly", loc="left", fontsize=11, color=INK)
    bare(axes)
