"""The figures of Table 3: how often both boxes end where they should, and where they are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle
from matplotlib.ticker import EngFormatter
from torch import Tensor

from experiments.columns import FULL, Column, recipe_colour, recipe_title
from mocoda.engine.figures import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    RED,
    bare,
    legend_below,
    plot_curve,
    save,
    title_left,
)
from mocoda.tasks.hooksweep import HookSweep2
from mocoda.tasks.hooksweep_env import CENTRE, JITTER, SHIFT, TOLERANCE

WOOD = "#f5f1e7"
PLACES, WANTED = [6, 7, 11, 12], [16, 17, 19, 20]  # of an observation: where the boxes are, in xy, and should be
TABLE = np.array([0.77, 0.6])  # half of its length and width
TOGETHER = 0.15  # metres between boxes that count as swept together
BINS = 5  # of goal shifts
FAR = 0.5  # metres off the goal: what is farther is drawn there


def draw_figures(folder: Path, names: Sequence[str]) -> None:
    """Draws all figures from the files of results: cells, curves and evidence, then the figures' own names."""
    cells, curves_file, evidence_file, success, curves_figure, tables, distance, placements = (
        folder / name for name in names
    )
    results, curves = (json.loads(file.read_text("utf-8")) for file in (cells, curves_file))
    expert = next(cell["mean"] for cell in results["cells"] if cell["row"] == "expert")
    agents, columns = list(results["config"]["agents"]), results["config"]["columns"]
    with np.load(evidence_file) as arrays:
        evidence = {name: arrays[name] for name in arrays.files}
    draw_success(results, success)
    draw_success_curves(curves["agents"], expert, curves_figure)
    shown = {c: torch.from_numpy(evidence[f"boxes/{c}"]) for c in columns if not c.endswith(FULL)}
    draw_tables(shown, HookSweep2().goals(2_000, seed=0), tables)
    by_distance = {
        agent: {
            column: (
                np.abs(evidence[f"last/{agent}/{column}"][:, 16] - CENTRE[0]).tolist(),
                evidence[f"success/{agent}/{column}"].tolist(),
            )
            for column in columns
        }
        for agent in agents
    }
    draw_by_distance(by_distance, distance)
    ends = {column: torch.from_numpy(evidence[f"last/{agents[0]}/{column}"]) for column in columns}
    draw_placements({column: last[:, PLACES] - last[:, WANTED] for column, last in ends.items()}, placements)


def column_title(column: str) -> str:
    recipe, density, architecture, _ = Column.of(column)
    notes = [*(["matched"] if density == "matched" else []), *(["unfactored model"] if architecture == "full" else [])]
    return recipe_title(recipe) + (f" ({', '.join(notes)})" if notes else "")


def draw_success(results: Mapping[str, Any], path: Path) -> None:
    """Draws Table 3 as bars, a group an agent: mean, standard deviation and seeds; a red mark is the paper's cell."""
    cells = [cell for cell in results["cells"] if cell["row"] != "expert"]
    agents, columns = (list(dict.fromkeys(cell[key] for cell in cells)) for key in ("row", "column"))
    figure = Figure(figsize=(max(5.0, 2.8 * len(agents)), 4), layout="constrained")
    axes = figure.subplots()
    width = 0.84 / max(len(columns), 4)
    for cell in cells:
        place = agents.index(cell["row"]) + width * (columns.index(cell["column"]) - (len(columns) - 1) / 2)
        _draw_cell(axes, place, 0.9 * width, cell)
    for expert in [cell["mean"] for cell in results["cells"] if cell["row"] == "expert"][:1]:
        _draw_expert(axes, expert)
    axes.set_xticks(range(len(agents)), [agent.upper() for agent in agents], fontsize=12)
    axes.tick_params(axis="x", length=0)
    axes.set(xlim=(-0.5, len(agents) - 0.5), ylim=(0, 100), ylabel="success (%)")
    title_left(axes, "How often both boxes are swept to their goals")
    bare(axes)
    legend_below(figure)
    save(figure, path)


def draw_success_curves(agents: Mapping[str, Any], ceiling: float, path: Path) -> None:
    """Draws learning curves in percent, one panel an agent: the mean over seeds, and the range of the seeds."""
    figure, panels = _agent_panels(agents, "updates")
    for axes, curves in zip(panels, agents.values(), strict=True):
        for column, seeds in curves["success"].items():
            plot_curve(axes, curves["updates"], seeds, lw=1.6, **_line(column))
        _draw_expert(axes, ceiling)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    legend_below(figure)
    save(figure, path)


def draw_by_distance(success: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]], path: Path) -> None:
    """Draws success by how far goals are shifted, agent -> column -> (shifts, 0 or 1 each), with 95% Wilson CIs."""
    figure, panels = _agent_panels(success, "how far the goals are shifted (m)")
    edges = torch.linspace(SHIFT - JITTER, SHIFT + JITTER, BINS + 1)
    centres = ((edges[1:] + edges[:-1]) / 2).numpy()
    for axes, columns in zip(panels, success.values(), strict=True):
        for column, outcomes in columns.items():
            shifts, won = (torch.tensor(values, dtype=torch.float32) for values in outcomes)
            bins = torch.bucketize(shifts, edges[1:-1])
            share, low, high = 100 * _wilson(bins.bincount(won, minlength=BINS), bins.bincount(minlength=BINS))
            axes.plot(centres, share, marker="o", ms=3.5, lw=1.6, clip_on=False, **_line(column))
            axes.fill_between(centres, low, high, color=_colour(column), alpha=0.15, lw=0)
        axes.set(xlim=(SHIFT - JITTER - 0.01, SHIFT + JITTER + 0.01), xticks=edges.numpy())
        axes.tick_params(axis="x", labelsize=9)
    legend_below(figure)
    save(figure, path)


def draw_tables(panels: Mapping[str, Tensor], goals: Tensor, path: Path) -> None:
    """Draws Figure 4, the table seen from above with the robot at its left: a dot is a pair of boxes that are together.

    panels  x, y, x, y (N, 4) of the two boxes
    goals   (M, 6), of the target task; the two areas in which they lie are green
    """
    figure = Figure(figsize=(3.6 * len(panels), 2.95), layout="compressed")
    for axes, (column, boxes) in zip(_row(figure, len(panels)), panels.items(), strict=True):
        axes.add_patch(Rectangle((*(CENTRE - TABLE),), *2 * TABLE, fc=WOOD, ec=GREY))
        _draw_goal_areas(axes, goals.cpu().unflatten(1, (2, 3))[..., :2].mean(1))
        one, other = boxes.cpu().split(2, 1)
        together = (one - other).norm(dim=1) < TOGETHER
        axes.plot(*((one + other) / 2)[together].T.numpy(), ".", ms=3, mew=0, color=BLUE, alpha=0.6)
        axes.set(xlim=(1.25, 2.45), ylim=(0.35, 1.15), aspect="equal", xticks=[], yticks=[])
        _titles(axes, column, f"boxes within 15 cm of each other: {_percent(together)} of states")
    figure.axes[0].set_ylabel("robot's side", fontsize=10, color=INK)
    save(figure, path)


def draw_placements(panels: Mapping[str, Tensor], path: Path) -> None:
    """Draws where boxes end, seen from their goals: x, y, x, y (N, 4) of the two boxes, less the goals'."""
    figure = Figure(figsize=(max(4.6, 2.7 * len(panels)), 3.7), layout="compressed")
    for axes, (column, offsets) in zip(_row(figure, len(panels), sharey=True), panels.items(), strict=True):
        boxes = offsets.cpu().unflatten(1, (2, 2))
        for number, colour in enumerate((BLUE, ORANGE)):
            places = boxes[:, number].clamp(-FAR, FAR).T.numpy()
            axes.plot(*places, ".", ms=5, mew=0, color=colour, alpha=0.5, label=f"box {number + 1}", clip_on=False)
        axes.add_patch(Circle((0, 0), TOLERANCE, fc=(*to_rgb(GREEN), 0.15), ec=GREEN, lw=1.2, label="tolerance"))
        ticks = [-FAR, 0, FAR]
        axes.set(xlim=(-FAR, FAR), ylim=(-FAR, FAR), aspect="equal", xticks=ticks, yticks=ticks)
        axes.set_xlabel("x from the goal (m)")
        _titles(axes, column, f"both inside: {_percent((boxes.norm(dim=2) <= TOLERANCE).all(1))}")
    figure.axes[0].set_ylabel("y from the goal (m)")
    legend_below(figure)
    save(figure, path)


def _draw_cell(axes: Axes, place: float, width: float, cell: Mapping[str, Any]) -> None:
    colour, unfactored = _colour(cell["column"]), cell["column"].endswith(FULL)
    axes.bar(
        place,
        cell["mean"],
        width,
        yerr=cell["std"] or None,
        color=colour,
        edgecolor="white",
        linewidth=0,
        hatch="////" if unfactored else None,
        ecolor=INK,
        label=column_title(cell["column"]),
    )
    if cell["paper_mean"] is not None:
        axes.plot([place - width / 2, place + width / 2], [cell["paper_mean"]] * 2, color=RED, lw=2, label="the paper")
    seeds = len(cell["values"])
    places = [place + 0.22 * width * (seed - (seeds - 1) / 2) for seed in range(seeds)]
    axes.plot(places, cell["values"], "o", ms=4, mec="white", mew=0.6, color=INK, label="a seed", clip_on=False)


def _draw_expert(axes: Axes, success: float) -> None:
    axes.axhline(success, color=INK, lw=1, ls=":", label="expert")


def _draw_goal_areas(axes: Axes, middles: Tensor) -> None:
    """The rectangles around the middles (M, 2) on either side."""
    left = middles[:, 0] < CENTRE[0]
    for area in (middles[left], middles[~left]):
        if len(area):
            low, high = area.amin(0), area.amax(0)
            axes.add_patch(Rectangle((*low.tolist(),), *(high - low).tolist(), color=GREEN, alpha=0.25, lw=0))
            axes.text(float(low[0] + high[0]) / 2, float(low[1]) - 0.11, "goals", ha="center", va="top", color=GREEN)


def _agent_panels(agents: Iterable[str], label: str) -> tuple[Figure, list[Axes]]:
    """A panel an agent, from 0 to 100%, with a label under each."""
    names = list(agents)
    figure = Figure(figsize=(max(6.8, 3.4 * len(names)), 3.9), layout="constrained")
    panels = _row(figure, len(names), sharey=True)
    for axes, name in zip(panels, names, strict=True):
        axes.set_title(name.upper(), fontsize=12, color=INK)
        axes.set(xlabel=label, ylim=(0, 100))
        bare(axes)
    panels[0].set_ylabel("success (%)")
    return figure, panels


def _row(figure: Figure, panels: int, **settings: Any) -> list[Axes]:
    return list(figure.subplots(1, panels, squeeze=False, **settings).flat)


def _titles(axes: Axes, column: str, below: str) -> None:
    axes.set_title(f"{column_title(column)}\n", fontsize=11, color=INK)
    axes.text(0.5, 1.04, below, transform=axes.transAxes, ha="center", fontsize=9, color=INK)


def _colour(column: str) -> tuple[float, float, float]:
    """The recipe's, darker where parents are matched, and lighter where the model is unfactored."""
    recipe, density, architecture, _ = Column.of(column)
    dark = 0.6 if density == "matched" else 1.0
    red, green, blue = (dark * part for part in to_rgb(recipe_colour(recipe)))
    white = 0.45 if architecture == "full" else 0.0
    return red + white * (1 - red), green + white * (1 - green), blue + white * (1 - blue)


def _line(column: str) -> dict[str, Any]:
    return {
        "color": _colour(column),
        "ls": "--" if column.endswith(FULL) else "-",
        "label": column_title(column),
    }


def _percent(hits: Tensor) -> str:
    return f"{100 * hits.float().mean():.0f}%"


def _wilson(won: Tensor, episodes: Tensor, z: float = 1.96) -> Tensor:
    """Shares (3, ...) and the ends of their 95% intervals; not a number where there are no episodes."""
    share = won / episodes
    scale = 1 + z**2 / episodes
    middle = (share + z**2 / (2 * episodes)) / scale
    half = z / scale * (share * (1 - share) / episodes + (z / (2 * episodes)) ** 2).sqrt()
    return torch.stack([share, middle - half, middle + half])
