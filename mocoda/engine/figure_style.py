"""The style that all figures share: colours, titles, legends and the file format."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure, SubFigure

from mocoda.engine.files import whole_file

INK, BLUE, RED, GREY, ORANGE, GREEN = "#1f2430", "#2563a8", "#c0392b", "#9aa3b2", "#e0a243", "#2e8b57"
COLOURS = {"full": GREY, "global": ORANGE, "local": BLUE}


def bare(axes: Axes) -> None:
    """Removes the frame at the top and at the right."""
    axes.spines[["top", "right"]].set_visible(False)


def title_left(axes: Axes, text: str, fontsize: float = 11) -> None:
    """Writes a title over the left end of a panel."""
    axes.set_title(text, loc="left", fontsize=fontsize, color=INK)


def legend_below(figure: Figure | SubFigure, ncols: int | None = None, **style: Any) -> None:
    """Puts one legend below all panels: every label once, bars first, on as many lines as needed."""
    pairs = [pair for axes in figure.axes for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    pairs.sort(key=lambda pair: not isinstance(pair[0], BarContainer))
    shown: dict[str, Any] = {}
    for handle, label in pairs:
        shown.setdefault(label, handle)
    inches = figure.bbox.width / figure.dpi
    lines = ceil(sum(0.75 + 0.09 * len(label) for label in shown) / inches)
    usual: dict[str, Any] = {"loc": "outside lower center", "frameon": False, "fontsize": 9, "markerscale": 1.3}
    figure.legend(shown.values(), shown, ncols=ncols or ceil(len(shown) / lines), **(usual | style))


def save(figure: Figure, path: Path) -> None:
    """Writes a figure as PNG; the file appears when it is complete."""
    with whole_file(path) as part:
        figure.savefig(part, format="png", dpi=150)
