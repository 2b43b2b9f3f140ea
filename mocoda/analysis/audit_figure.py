"""The figure of an audit: how many rows are true, which ones, and what tells them apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mocoda.engine.figures import BLUE, GREY, INK, RED, bare, legend_below, save, title_left
from mocoda.parents import RECIPES

SHOWN = 8  # local graphs
PREDICTOR_TITLES = {"odds": "two-sample\nodds"}
LONGEST, LINES = 26, 4  # letters and lines of a name


def draw_audit(found: Mapping[str, Any], path: Path) -> None:
    """Draws `Audit.to_json()`: shares by recipe, factor, local graph, support, disagreement and step, and AUROCs."""
    by = found["by"]
    lines = 1 + bool(found["predictors"]) + ("step" in by)  # without provenance, nothing predicts
    figure = Figure(figsize=(15, 3.6 * lines), layout="constrained")
    figure.suptitle(_headline(found), x=0.01, ha="left", fontsize=13, color=INK)
    axes = list(figure.subplots(lines, 3).flat)
    _draw_recipes(axes[0], by["recipe"], "How many rows are true, by recipe")
    draw_shares(axes[1], by["factor"], "Which factors are true")
    draw_shares(axes[2], dict(list(by["local_graph"].items())[:SHOWN]), "Under which local graph")
    if found["predictors"]:
        for one, name in zip(axes[3:5], ("support", "disagreement"), strict=True):
            if name in by:
                draw_deciles(one, by[name], name)
            else:
                one.set_axis_off()
        draw_predictors(axes[5], found["predictors"])
    if "step" in by:
        *_, steps, episodes, rest = axes
        draw_deciles(steps, by["step"], "step", "Are rows as true late in an episode?")
        rest.set_axis_off()
        if "episode" in by:
            _draw_recipes(episodes, by["episode"], "How many episodes are true to the last step")
        else:
            episodes.set_axis_off()
    if lines > 1:
        legend_below(figure)
    save(figure, path)


def _headline(found: Mapping[str, Any]) -> str:
    low, high = found["interval"]
    recorded = found["by"]["recipe"].get("recorded")
    kind = "rows" if list(found["by"]["recipe"]) in (["all rows"], ["recorded"]) else "generated rows"
    beside = f"; of the recorded ones, {100 * recorded['share']:.1f}%" if recorded and kind != "rows" else ""
    share = f"{100 * found['confirmed']:.1f}% ({100 * low:.1f} to {100 * high:.1f})"
    return f"{share} of {found['rows']:,} {kind} are true{beside}\n{_within(found['tolerance'])}"


def _within(tolerance: Mapping[str, float]) -> str:
    if len(set(tolerance.values())) == 1:
        return f"true: every factor's next value is within {next(iter(tolerance.values())):.3g} of the simulator's"
    limits = ", ".join(f"{factor} {limit:.3g}" for factor, limit in list(tolerance.items())[:6])
    return f"true: next values within {limits}{' …' if len(tolerance) > 6 else ''} of the simulator's"


def _draw_recipes(axes: Axes, cells: Mapping[str, Any], title: str) -> None:
    order = [*(name for name in cells if name == "recorded"), *(name for name in cells if name != "recorded")]
    for place, name in enumerate(order):
        colour = GREY if name == "recorded" else RECIPES[name].colour if name in RECIPES else BLUE
        _bar(axes, place, cells[name], colour)
    _name_bars(axes, order)
    title_left(axes, title)


def draw_shares(axes: Axes, cells: Mapping[str, Any], title: str) -> None:
    """Bars of generated rows, with a mark where recorded ones are."""
    for place, cell in enumerate(cells.values()):
        _bar(axes, place, cell, BLUE)
        recorded = cell.get("recorded")
        if recorded:
            label = "recorded rows" if place == 0 else None
            axes.plot([100 * recorded["share"]] * 2, [place - 0.4, place + 0.4], color=INK, lw=2, label=label)
    _name_bars(axes, list(cells))
    title_left(axes, title)


def _bar(axes: Axes, place: int, cell: Mapping[str, Any], colour: str) -> None:
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


def _name_bars(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), [_short(name) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, 102)
    axes.set_xlabel("confirmed (%)")
    bare(axes)


def _short(name: str) -> str:
    """An edge a line; of long names the beginning, and of many edges the first."""
    lines = [line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…" for line in name.split(", ")]
    return "\n".join(lines if len(lines) <= LINES else [*lines[: LINES - 1], f"and {len(lines) - LINES + 1} more"])


def draw_deciles(axes: Axes, cells: Mapping[str, Any], name: str, title: str | None = None) -> None:
    """The share of true rows from the tenth of the rows with the least of something to that with the most."""
    shown = [(label, cell) for label, cell in cells.items() if cell["rows"]]
    places = range(len(shown))
    shares = [100 * cell["share"] for _, cell in shown]
    low, high = ([100 * cell["interval"][end] for _, cell in shown] for end in (0, 1))
    axes.fill_between(places, low, high, color=BLUE, alpha=0.2, lw=0)
    axes.plot(places, shares, color=BLUE, marker="o", ms=4, label="generated rows, with 95% CI")
    beside = [(place, 100 * cell["recorded"]["share"]) for place, (_, cell) in enumerate(shown) if cell["recorded"]]
    if beside:
        axes.plot(*zip(*beside, strict=True), color=INK, lw=2, label="recorded rows")
    starts = [f"{float(label.partition(' to ')[0]):.2g}" for label, _ in shown]
    axes.set_xticks(places, starts, fontsize=8, rotation=30)
    axes.set_ylim(0, 102)
    axes.set_ylabel("confirmed (%)")
    axes.set_xlabel(f"{name}, from (a tenth of the rows each)")
    title_left(axes, title or f"Is {'more' if name == 'support' else 'less'} {name} a sign of truth?")
    bare(axes)


def draw_predictors(axes: Axes, cells: Mapping[str, Any]) -> None:
    """AUROCs with their intervals."""
    known = {name: cell for name, cell in cells.items() if cell["auroc"] is not None}
    axes.axvline(0.5, color=GREY, lw=1, ls="--")
    for place, cell in enumerate(known.values()):
        axes.plot(cell["interval"], [place, place], color=RED, lw=2)
        axes.plot(cell["auroc"], place, "o", ms=7, color=RED)
        axes.annotate(
            f"{cell['auroc']:.2f}", (cell["auroc"], place), (0, 9), textcoords="offset points", ha="center", color=INK
        )
    axes.set_yticks(range(len(known)), [PREDICTOR_TITLES.get(name, name) for name in known])
    axes.set_ylim(max(1, len(known)) - 0.4, -0.6)
    axes.set_xlim(0, 1)
    axes.set_xlabel("AUROC: 1 finds all true rows, 0.5 is a coin")
    title_left(axes, "What finds true rows without a simulator" if known else "All rows have the same verdict")
    bare(axes)
