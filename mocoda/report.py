"""results -> tables and figures: with the other `report_*` files, the only import of matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from rich.table import Table
from torch import Tensor

from mocoda.files import whole_file
from mocoda.graph import LocalGraph

INK, BLUE, RED, GREY = "#1f2430", "#2563a8", "#c0392b", "#9aa3b2"
COLOURS = {"full": "#9aa3b2", "global": "#e0a243", "local": "#2563a8"}
RECIPE_COLOURS = {
    **{"emp": "#9aa3b2", "dyna": "#8a5a44", "rand": "#e0a243", "coda": "#7b5ea7"},
    **{"mocoda": "#2563a8", "mocoda-u": "#c0392b", "mocoda-p": "#2e8b57"},
}
PANEL_TITLES = {
    **{"emp": "Emp", "dyna": "Dyna", "rand": "Rand", "coda": "CoDA"},
    **{"mocoda": "MoCoDA", "mocoda-u": "MoCoDA-U", "mocoda-p": "MoCoDA-P"},
}
AGENT_TITLES = {"td3-bc": "TD3-BC", "bcq": "BCQ", "cql": "CQL", "sac": "SAC"}


def as_table(
    results: Mapping[str, Any], title: str, digits: int = 3, best_of: str = "column", more_is_better: bool = False
) -> Table:
    """Ours with its spread over seeds, the paper's cell behind it; the best of a column, or of a row, is bold."""
    cells = results["cells"]
    columns = list(dict.fromkeys(cell["column"] for cell in cells))
    choose = max if more_is_better else min
    best = {c[best_of]: choose(cell["mean"] for cell in cells if cell[best_of] == c[best_of]) for c in cells}
    table = Table(title=title, caption="mean ± standard deviation over seeds (in brackets: the paper)")
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    for row in dict.fromkeys(cell["row"] for cell in cells):
        texts = []
        for cell in (cell for cell in cells if cell["row"] == row):
            ours = f"{cell['mean']:.{digits}f} ± {cell['std']:.{digits}f}"
            if cell["mean"] == best[cell[best_of]]:
                ours = f"[bold]{ours}[/bold]"
            paper = "" if cell["paper_mean"] is None else f" [dim]({cell['paper_mean']:.{min(digits, 2)}f})[/dim]"
            texts.append(ours + paper)
        table.add_row(row, *texts)
    return table


def draw_errors(results: Mapping[str, Any], path: Path) -> None:
    """Table 1 as bars, one per architecture and column; a red mark is the paper's cell."""
    cells = results["cells"]
    columns = list(dict.fromkeys(cell["column"] for cell in cells))
    rows = list(dict.fromkeys(cell["row"] for cell in cells))
    figure = Figure(figsize=(8.5, 3.6), layout="constrained")
    axes = figure.subplots()
    for number, row in enumerate(rows):
        own = [cell for cell in cells if cell["row"] == row]
        places = [i + 0.27 * (number - 1) for i in range(len(columns))]
        axes.bar(
            places,
            [c["mean"] for c in own],
            0.25,
            yerr=[c["std"] for c in own],
            label=row,
            color=COLOURS[row],
            ecolor=INK,
        )
        axes.scatter(places, [c["paper_mean"] for c in own], marker="_", s=170, linewidths=2, color=RED, zorder=3,
                     label="the paper" if number == len(rows) - 1 else None)  # fmt: skip
    axes.set_yscale("log")
    axes.set_xticks(range(len(columns)), columns)
    axes.set_ylabel("next-state error × 100 (log scale)")
    axes.set_title("How far off the model is, by where it is asked", loc="left", fontsize=11, color=INK)
    figure.legend(loc="outside lower center", frameon=False, ncols=4, fontsize=9)
    _bare(axes)
    _save(figure, path)


def draw_transitions(
    panels: Mapping[str, tuple[Tensor, Tensor]],
    path: Path,
    shaded: Sequence[tuple[tuple[float, float], float, float]] = (),
) -> None:
    """Figure 3: per distribution, arrows from states (N, 2) to next states (N, 2).

    shaded  rectangles behind them: corner, width and height
    """
    figure = Figure(figsize=(3 * len(panels), 3.3), layout="constrained")
    for axes, (name, (state, following)) in zip(
        figure.subplots(1, len(panels), squeeze=False).flat, panels.items(), strict=True
    ):
        for corner, width, height in shaded:
            axes.add_patch(Rectangle(corner, width, height, color=RED, alpha=0.15, lw=0))
        start, move = state.cpu().numpy(), (following - state).cpu().numpy()
        axes.quiver(*start.T, *move.T, angles="xy", scale_units="xy", scale=1, width=0.003, color=BLUE, alpha=0.6)
        axes.set(xlim=(-0.1, 1.1), ylim=(-0.1, 1.1), xticks=[0, 1], yticks=[0, 1], aspect="equal")
        axes.set_title(PANEL_TITLES.get(name, name), fontsize=12, color=INK)
        _bare(axes)
    _save(figure, path)


def draw_curves(agents: Mapping[str, Any], optimum: float, path: Path) -> None:
    """Learning curves, one panel an agent: the mean over seeds, and the range of the seeds."""
    figure = Figure(figsize=(3.4 * len(agents), 3.5), layout="constrained")
    panels = figure.subplots(1, len(agents), squeeze=False, sharey=True).flat
    for axes, (name, curves) in zip(panels, agents.items(), strict=True):
        for column, seeds in curves["steps"].items():
            plot_curve(axes, curves["updates"], seeds, color=RECIPE_COLOURS[column], lw=1.6, label=column)
        axes.axhline(optimum, color=INK, lw=1, ls=":", label="optimum")
        axes.set_title(AGENT_TITLES.get(name, name), fontsize=12, color=INK)
        axes.set(xlabel="updates", ylim=(15, 72))
        _bare(axes)
    figure.axes[0].set_ylabel("steps to the goal")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", frameon=False, ncols=len(labels), fontsize=9)
    _save(figure, path)


def plot_curve(axes: Axes, updates: Sequence[int], seeds: Sequence[Sequence[float]], **style: Any) -> None:
    """Running means over a few evaluations: the mean over seeds as a line, and the range of the seeds."""
    values = _smoothed(torch.tensor(seeds))
    axes.plot(updates, values.mean(0), **style)
    axes.fill_between(updates, values.amin(0), values.amax(0), color=style["color"], alpha=0.12, lw=0)


def draw_paths(paths: Mapping[str, Mapping[str, Tensor]], path: Path) -> None:
    """Where agents walk: a row an agent, a column a data set, lines through (T + 1, episodes, 2)."""
    columns = list(next(iter(paths.values())))
    size = (2.1 * len(columns) + 0.4, 2.1 * len(paths) + 0.5)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(paths), len(columns), squeeze=False)
    for row, (agent, by_data) in enumerate(paths.items()):
        for place, (name, walked) in enumerate(by_data.items()):
            axes = grid[row][place]
            _draw_walks(axes, walked)
            if row == 0:
                axes.set_title(PANEL_TITLES.get(name, name), fontsize=12, color=INK)
            if place == 0:
                axes.set_ylabel(AGENT_TITLES.get(agent, agent), fontsize=12, color=INK)
    _save(figure, path)


def draw_walks(panels: Mapping[str, Tensor], path: Path, recorded: Tensor) -> None:
    """Walks (T + 1, episodes, 2), a panel each, over the recorded states (N, 2)."""
    figure = Figure(figsize=(4.6 * len(panels), 4.9), layout="constrained")
    for axes, (title, walked) in zip(figure.subplots(1, len(panels), squeeze=False).flat, panels.items(), strict=True):
        axes.plot(*recorded[:: max(1, len(recorded) // 4_000)].cpu().numpy().T, ",", color=GREY, alpha=0.6)
        _draw_walks(axes, walked)
        axes.set_title(title, fontsize=12, color=INK)
        for place, name in (((0.02, -0.07), "start"), ((0.8, 0.92), "goal")):
            axes.text(*place, name, fontsize=10, color=INK)
    _save(figure, path)


def draw_graph(graph: LocalGraph, path: Path, rows: Tensor | None = None) -> None:
    """The sparsest graph; with rows (N, S + A), the local graphs that hold among them, the six commonest at most."""
    pictures: list[tuple[str, Tensor]] = [("sparsest", graph.sparsest)]
    if rows is not None:
        found, counts = torch.unique(graph.mask(rows), dim=0, return_counts=True)
        order = counts.argsort(descending=True)[:6]
        pictures = [(f"in {100 * counts[i] / len(rows):.1f}% of rows", found[i]) for i in order.tolist()]
    figure = Figure(figsize=(2.6 * len(pictures), 0.9 + 0.55 * len(graph.parents)), layout="constrained")
    for axes, (title, mask) in zip(figure.subplots(1, len(pictures), squeeze=False).flat, pictures, strict=True):
        _draw_edges(axes, graph, mask.cpu())
        axes.set_title(title, fontsize=10, color=INK)
    _save(figure, path)


def _draw_edges(axes: Axes, graph: LocalGraph, mask: Tensor) -> None:
    left = {name: -float(i) for i, name in enumerate(graph.parents)}
    right = {name: left[name] for name in graph.children}
    for (p, parent), (c, child) in ((p, c) for p in enumerate(graph.parents) for c in enumerate(graph.children)):
        if mask[p, c]:
            colour = BLUE if graph.sparsest[p, c] else RED
            ends = ((0.0, left[parent]), (1.0, right[child]))
            axes.add_patch(
                FancyArrowPatch(*ends, arrowstyle="-|>", mutation_scale=11, shrinkA=15, shrinkB=15, color=colour)
            )
    style: dict[str, Any] = {"ha": "center", "va": "center", "color": INK, "fontsize": 10}
    for name, y in left.items():
        face = "#e8eef7" if name in graph.state else "#f3efe2"
        axes.text(0, y, name, bbox={"boxstyle": "round", "fc": face, "ec": GREY}, **style)
    for name, y in right.items():
        axes.text(1, y, f"{name}'", bbox={"boxstyle": "round", "fc": "white", "ec": GREY}, **style)
    axes.set(xlim=(-0.35, 1.35), ylim=(-len(left) + 0.4, 0.6))
    axes.axis("off")


def _draw_walks(axes: Axes, walked: Tensor) -> None:
    """Lines through (T + 1, episodes, 2), over the start, the goal and the quadrant where the sub-actions interfere."""
    axes.add_patch(Rectangle((0.5, 0.5), 0.6, 0.6, color=GREY, alpha=0.12, lw=0))
    axes.add_patch(Rectangle((0.0, 0.0), 0.15, 0.15, color=BLUE, alpha=0.2, lw=0))
    axes.add_patch(Rectangle((0.8, 0.8), 0.1, 0.1, color="#2e8b57", alpha=0.45, lw=0))
    for episode in walked.cpu().transpose(0, 1).numpy():
        axes.plot(*episode.T, color=BLUE, lw=0.8, alpha=0.6)
        axes.plot(*episode[-1], ".", color=INK, ms=3)
    axes.set(xlim=(-0.1, 1.1), ylim=(-0.1, 1.1), xticks=[], yticks=[], aspect="equal")


def _smoothed(curves: Tensor, width: int = 5) -> Tensor:
    """Running means over `width` evaluations of curves (seeds, K); the first few over those there are."""
    padded = torch.nn.functional.pad(curves[None], (width - 1, 0), mode="replicate")[0]
    return padded.unfold(1, width, 1).mean(-1)


def _bare(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)


def _save(figure: Figure, path: Path) -> None:
    with whole_file(path) as part:
        figure.savefig(part, format="png", dpi=150)
