"""Draws a graph, and prints it as a table: which factors depend on which, always or in which share of the rows."""

from __future__ import annotations

import html
import io
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from mocoda.engine.figure_style import BLUE, GREY, INK, RED, save
from mocoda.graph.local_graph import LocalGraph

STATE, ACTION, LINES = "#e8eef7", "#f3efe2", "#d9dee7"
DASHES = (0, (4, 2))
FACTOR_INCHES = 0.58  # from factor to factor
MAX_LETTERS, MAX_UPRIGHT_LETTERS = 14, 7  # of a name as shown, and as it fits above a column of the matrix


class Edge(NamedTuple):
    parent: str
    child: str
    share: float | None  # of the rows; None: all


def draw_graph(graph: LocalGraph, path: Path, rows: Tensor, title: str) -> None:
    """Draws the edges at rows (N, S + A): arrows from parents to children on the left, a matrix on the right."""
    save(figure_of(graph, graph.shares(rows), title), path)


def graph_html(graph: LocalGraph) -> str:
    """The graph in a notebook: the edges of every row, and those of other rows if it is known how many have them."""
    shares, image = getattr(graph, "row_shares", graph.sparsest.float()), io.BytesIO()
    more = "" if graph.local is None or hasattr(graph, "row_shares") else "; other edges depend on the row"
    figure_of(graph, shares, f"Which factors depend on which{more}").savefig(image, format="png", dpi=80)
    return f'<img alt="{html.escape(repr(graph))}" src="data:image/png;base64,{b64encode(image.getvalue()).decode()}">'


def figure_of(graph: LocalGraph, shares: Tensor, title: str) -> Figure:
    """The figure that `draw_graph` draws, given each edge's share of the rows (parents, children)."""
    edges = _edges(graph, shares)
    longest = max(len(_short(name)) for name in graph.parents)
    widths = 4.4 + 0.2 * longest, 0.6 + 0.1 * longest + 0.72 * len(graph.children)
    tall = FACTOR_INCHES * len(graph.parents) + 1.8 + (0.06 * longest if longest > MAX_UPRIGHT_LETTERS else 0)
    figure = Figure(figsize=(sum(widths), tall), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=widths)
    figure.suptitle(title, x=0.012, ha="left", fontsize=12, color=INK)
    _draw_arrows(left, graph, edges, widths[0])
    _draw_matrix(right, graph, edges)
    lines = [Line2D([], [], color=BLUE, lw=1.8, label="in every row")]
    if any(edge.share is not None for edge in edges):
        lines.append(Line2D([], [], color=RED, lw=1.8, ls=DASHES, label="in some rows"))
    figure.legend(handles=lines, loc="outside lower left", frameon=False, ncols=2, fontsize=9, labelcolor=INK)
    return figure


def _draw_arrows(axes: Axes, graph: LocalGraph, edges: Sequence[Edge], width: float) -> None:
    """Draws boxes and arrows; x is in inches, y in factors from the top."""
    half = 0.2 + 0.055 * max(len(_short(name)) for name in graph.parents)  # of a box
    first, last = half + 0.1, width - half - 0.1
    for edge in edges:
        leaving = [other.child for other in edges if other.parent == edge.parent]
        coming = [other.parent for other in edges if other.child == edge.child]
        start = first + half, -graph.parents.index(edge.parent) + _port(leaving.index(edge.child), len(leaving))
        end = last - half, -graph.children.index(edge.child) + _port(coming.index(edge.parent), len(coming))
        look: dict[str, Any] = {"color": BLUE, "lw": 1.4, "zorder": 3}
        if edge.share is not None:
            look = {"color": RED, "lw": 1.0, "zorder": 2, "ls": DASHES, "alpha": 0.7}
        axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=10, shrinkA=0, shrinkB=0, **look))
    for x, names, mark in ((first, graph.parents, ""), (last, graph.children, "′")):
        for y, name in enumerate(names):
            face = "white" if mark else STATE if name in graph.state else ACTION
            shape = FancyBboxPatch((x - half, -y - 0.3), 2 * half, 0.6, "round,pad=0,rounding_size=0.1", zorder=4)
            shape.set(facecolor=face, edgecolor=GREY, mutation_aspect=1 / FACTOR_INCHES)
            axes.add_patch(shape)
            axes.text(x, -y, _short(name) + mark, ha="center", va="center", color=INK, fontsize=10, zorder=5)
    axes.text(first, 0.62, "state and action", ha="center", fontsize=9, color=INK)
    axes.text(last, 0.62, "next state", ha="center", fontsize=9, color=INK)
    axes.set(xlim=(0, width), ylim=(-len(graph.parents) + 0.4, 1))
    axes.axis("off")


def _port(rank: int, count: int) -> float:
    """How far above the middle of a box its edge with this rank ends."""
    return ((count - 1) / 2 - rank) * min(0.16, 0.46 / count)


def _draw_matrix(axes: Axes, graph: LocalGraph, edges: Sequence[Edge]) -> None:
    """Parents from top to bottom, as on the left, and children across."""
    colours = np.ones((len(graph.parents), len(graph.children), 4))
    for parent, child, share in edges:
        p, c = graph.parents.index(parent), graph.children.index(child)
        colours[p, c] = to_rgba(BLUE, 0.85) if share is None else to_rgba(RED, 0.12 + 0.55 * share)
        words, ink = ("always", "white") if share is None else (_percent(share), INK)
        axes.text(c + 0.5, p + 0.5, words, ha="center", va="center", fontsize=8, color=ink)
    axes.pcolormesh(colours, edgecolors=LINES, linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xticks(np.arange(len(graph.children)) + 0.5, [f"{_short(name)}′" for name in graph.children])
    axes.set_yticks(np.arange(len(graph.parents)) + 0.5, list(map(_short, graph.parents)))
    axes.xaxis.tick_top()
    if max(len(_short(name)) for name in graph.children) > MAX_UPRIGHT_LETTERS:
        for label in axes.get_xticklabels():
            label.set(rotation=35, ha="left", rotation_mode="anchor")
    axes.tick_params(length=0, labelsize=9, labelcolor=INK)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("column depends on row", fontsize=9, color=INK)


def dependency_table(graph: LocalGraph, shares: Tensor) -> Table:
    """A table of the factors that each child always depends on, and of those in some rows, with their share."""
    table = Table("next state of", "depends on", "and in some rows on", title="Which factors depend on which")
    for name in graph.children:
        edges = [(parent, share) for parent, child, share in _edges(graph, shares) if child == name]
        always = ", ".join(parent for parent, share in edges if share is None)
        sometimes = ", ".join(f"{parent} ({_percent(share)})" for parent, share in edges if share is not None)
        table.add_row(*map(escape, (name, always, sometimes)))
    return table


def _edges(graph: LocalGraph, shares: Tensor) -> list[Edge]:
    """The edges that are present in any row, and those of the sparsest graph."""
    present = ((shares.cpu() > 0) | graph.sparsest).nonzero().tolist()
    found = [(graph.parents[p], graph.children[c], float(shares[p, c])) for p, c in present]
    return [Edge(parent, child, None if share == 1 else share) for parent, child, share in found]


def _short(name: str) -> str:
    return name if len(name) <= MAX_LETTERS else f"{name[:9]}…{name[-4:]}"


def _percent(share: float) -> str:
    """A share in percent, with at most three digits; only exact ones are shown as 0% or 100%."""
    if share in (0, 1):
        return f"{100 * share:.0f}%"
    if not 0.0005 <= share <= 0.9995:
        return "<0.1%" if share < 0.5 else ">99.9%"
    return f"{100 * share:.1f}%" if share < 0.0995 or share > 0.995 else f"{100 * share:.0f}%"
