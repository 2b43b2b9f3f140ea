"""results -> tables and figures: the only import of matplotlib."""

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
PANEL_TITLES = {"emp": "Emp", "dyna": "Dyna", "mocoda": "MoCoDA", "mocoda-u": "MoCoDA-U", "rand": "Rand"}


def as_table(results: Mapping[str, Any], title: str) -> Table:
    """Ours with its spread over seeds, the paper's cell behind it; the least of a column is bold."""
    cells = results["cells"]
    columns = list(dict.fromkeys(cell["column"] for cell in cells))
    best = {c: min(cell["mean"] for cell in cells if cell["column"] == c) for c in columns}
    table = Table(title=title, caption="mean ± standard deviation over seeds (in brackets: the paper)")
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    for row in dict.fromkeys(cell["row"] for cell in cells):
        texts = []
        for cell in (cell for cell in cells if cell["row"] == row):
            ours = f"{cell['mean']:.3f} ± {cell['std']:.3f}"
            if cell["mean"] == best[cell["column"]]:
                ours = f"[bold]{ours}[/bold]"
            texts.append(f"{ours} [dim]({cell['paper_mean']:.2f})[/dim]")
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


def _bare(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)


def _save(figure: Figure, path: Path) -> None:
    with whole_file(path) as part:
        figure.savefig(part, format="png", dpi=150)
