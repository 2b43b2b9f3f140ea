"""results about Masked Composers -> the figure: errors by depth, parameters and time by the number of objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, NullFormatter

from mocoda.engine.figures import BLUE, GREY, INK, RED, bare, save

LINES = {
    "unfactored": ("unfactored", GREY),
    "separate": ("the paper's: a composer and a network per child", BLUE),
    "shared": ("shared: one network for all children", "#e0a243"),
    "shared, alike": ("shared, and told that objects are alike", RED),
}


def draw_composers(results: Mapping[str, Any], path: Path) -> None:
    """Left, errors: a group a distribution, and in it a line through the depths. Right, what k objects cost."""
    cells, models = results["cells"], results["models"]
    objects = [cell for cell in cells if cell["world"] != "navigation"]
    # Of all objects recorded, then of all recombined.
    order = list(dict.fromkeys(cell["column"] for cell in objects))
    objects.sort(key=lambda cell: order.index(cell["column"]))
    layers = _listed(results["config"]["depths"])
    figure = Figure(figsize=(13, 7.4), layout="constrained")
    panels = figure.subplots(2, 2, width_ratios=(2.4, 1))
    _draw_groups(panels[0, 0], [cell for cell in cells if cell["world"] == "navigation"], "{column}")
    _draw_groups(panels[1, 0], objects, "{world},\n{column}")
    panels[0, 0].set_title(f"2D Navigation (Table 1); along each line {layers} hidden layers", loc="left", **_title())
    panels[1, 0].set_title(f"k objects of one kind; along each line {layers} hidden layers", loc="left", **_title())
    _draw_costs(panels[0, 1], models, "parameters", 1, "Model size")
    _draw_costs(panels[1, 1], models, "epoch_seconds", 1e3, "Training time")
    panels[0, 1].set(ylabel="parameters of a member (log scale)")
    panels[1, 1].set(ylabel="milliseconds an epoch (log scale)")
    handles, labels = panels[1, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", frameon=False, ncols=4, fontsize=10)
    save(figure, path)


def _draw_groups(axes: Axes, cells: Sequence[Mapping[str, Any]], title: str) -> None:
    groups = list(dict.fromkeys(title.format(**cell) for cell in cells))
    depths = sorted({cell["depth"] for cell in cells})
    shown = [kind for kind in LINES if any(cell["composer"] == kind for cell in cells)]
    width = 0.86 / len(shown)
    for number, group in enumerate(groups):
        for place, kind in enumerate(shown):
            own = [cell for cell in cells if cell["composer"] == kind and title.format(**cell) == group]
            first = number + width * (place - len(shown) / 2)
            places = [first + width * (0.15 + 0.7 * (depths.index(c["depth"]) + 0.5) / len(depths)) for c in own]
            label, colour = LINES[kind]
            axes.errorbar(
                places,
                [cell["mean"] for cell in own],
                [cell["std"] for cell in own],
                color=colour,
                marker="o",
                ms=5,
                lw=1.8,
                elinewidth=1,
                label=label if number == 0 else None,
            )
        if number % 2:
            axes.axvspan(number - 0.5, number + 0.5, color=GREY, alpha=0.1, lw=0)
    axes.set(yscale="log", xlim=(-0.5, len(groups) - 0.5), ylabel="model's error × 100 (log scale)")
    axes.set_xticks(range(len(groups)), groups)
    axes.tick_params(axis="x", length=0)
    axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.yaxis.set_minor_formatter(FormatStrFormatter("%g") if _narrow(axes) else NullFormatter())
    bare(axes)


def _draw_costs(axes: Axes, models: Sequence[Mapping[str, Any]], key: str, unit: float, title: str) -> None:
    """By the number of objects, at the middle one of the depths."""
    depths = sorted({model["depth"] for model in models})
    middle = depths[len(depths) // 2]
    for kind, (_, colour) in LINES.items():
        own = [m for m in models if (m["composer"], m["depth"]) == (kind, middle) and m["world"] != "navigation"]
        counts = [int(model["world"].split()[0]) for model in own]
        axes.plot(counts, [unit * model[key] for model in own], "o-", color=colour, lw=1.8, ms=5)
    axes.set(yscale="log", xlabel="objects")
    axes.set_xticks(sorted({int(m["world"].split()[0]) for m in models if m["world"] != "navigation"}))
    axes.set_title(f"{title} for k objects, {middle} hidden layer{'s' * (middle > 1)}", loc="left", **_title())
    bare(axes)


def _narrow(axes: Axes) -> bool:
    """Whether the numbers of a logarithmic axis span less than a decade or so, and few ticks are labelled."""
    low, high = axes.get_ylim()
    return high < 15 * low


def _listed(numbers: Sequence[int]) -> str:
    *before, last = map(str, numbers)
    return f"{', '.join(before)} and {last}" if before else last


def _title() -> dict[str, Any]:
    return {"fontsize": 11, "color": INK}
