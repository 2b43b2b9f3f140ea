"""results about entanglement -> the figure: graphs that fill up, models that generalise, values that do not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mocoda.engine.figures import BLUE, GREY, INK, RED, bare, save

ORANGE, GREEN = "#e0a243", "#2e8b57"
SHADES = ("#bcd3ea", "#7fabd6", "#2563a8", "#123a66")  # few objects to many
MODELS = {
    "factored model": ("one step, locally factored model", BLUE, "-"),
    "unfactored model": ("one step, unfactored model", GREY, "-"),
}
RARE = 5.0  # percent of the recorded rows
VALUES = {
    "recorded": ("from recorded data", RED, "-"),
    "recorded, true returns": ("from recorded data, true returns told", ORANGE, "-"),
    "mocoda": ("from MoCoDA's data too", BLUE, "-"),
    "mocoda, true dynamics": ("from MoCoDA's data, true dynamics", GREEN, "--"),
}


def draw_entanglement(results: Mapping[str, Any], path: Path) -> None:
    """What an object depends on by steps back; the model's error and the values' by how many objects are at home."""
    figure = Figure(figsize=(14.5, 4.6), layout="constrained")
    spread, model, value = figure.subplots(1, 3, width_ratios=(1.15, 1, 1))
    _draw_spread(spread, results)
    _draw_errors(model, results, MODELS)
    model.set_ylabel("error of the next state (% of a step)")
    model.set_title("Models of a step generalise to states never seen …", loc="left", fontsize=11, color=INK)
    _draw_errors(value, results, VALUES)
    value.set_ylabel("error of the value (% of its range)")
    value.set_title("… values do not, unless shown such states", loc="left", fontsize=11, color=INK)
    save(figure, path)


def _draw_spread(axes: Axes, results: Mapping[str, Any]) -> None:
    for number, cell in enumerate(results["spread"]):
        colour = SHADES[min(number, len(SHADES) - 1)]
        given, acting = cell["filled"]["given actions"], cell["filled"]["acting"]
        axes.plot(given, color=colour, lw=2.4, label=f"{cell['objects']} objects")
        axes.plot(acting, color=colour, lw=1.4, ls="--")
    axes.plot([], [], color=GREY, lw=1.4, ls="--", label="actions chosen by seeing all")
    steps = len(results["spread"][0]["filled"]["given actions"]) - 1
    edges = ", ".join(f"{cell['edges']:.0f}" for cell in results["spread"])
    axes.text(steps, 3, f"edges of a single step: {edges} %", ha="right", fontsize=9, color=INK)
    axes.set(xlim=(0, steps), ylim=(0, 100), xlabel="steps back", ylabel="factors that an object depends on (%)")
    axes.set_title("Sparse for a step, entangled over the horizon", loc="left", fontsize=11, color=INK)
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    bare(axes)


def _draw_errors(axes: Axes, results: Mapping[str, Any], lines: Mapping[str, tuple[str, str, str]]) -> None:
    """Lines through means over seeds, a dot a seed; circles are recorded states; shaded, what was hardly ever so."""
    highest = 0.0
    for name, (label, colour, style) in lines.items():
        own = [cell for cell in results["cells"] if cell["what"] == name and cell["home"] is not None]
        made, seen = ([cell for cell in own if cell["states"] == kind] for kind in ("recombined", "recorded"))
        places = [cell["home"] for cell in made]
        axes.plot(places, [cell["mean"] for cell in made], color=colour, lw=2.2, ls=style, label=label)
        for cell in made:
            axes.plot([cell["home"]] * len(cell["values"]), cell["values"], ".", color=colour, ms=6)
        common = [cell for cell in seen if results["recorded"][str(cell["home"])] > RARE]
        axes.plot([cell["home"] for cell in common], [cell["mean"] for cell in common], "o", mfc="none", color=colour)
        highest = max(highest, *(value for cell in own for value in cell["values"]))
    homes = [int(home) for home in results["recorded"]]
    first = next((home for home in homes if results["recorded"][str(home)] < RARE), homes[-1] + 1)
    axes.axvspan(first - 0.5, homes[-1] + 0.5, color=GREY, alpha=0.15, lw=0)
    middle = (first + homes[-1]) / 2
    axes.text(middle, 0.03, "hardly ever recorded", transform=axes.get_xaxis_transform(), ha="center", color=INK)
    axes.plot([], [], "o", mfc="none", color=INK, label="in recorded states")
    axes.set(
        xlim=(-0.5, homes[-1] + 0.5), ylim=(0, 1.45 * highest), xlabel="objects at home (share of the recorded rows)"
    )
    axes.set_xticks(homes, [f"{home}\n({results['recorded'][str(home)]:.0f}%)" for home in homes])
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    bare(axes)
