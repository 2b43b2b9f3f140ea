"""The style that all figures share: colours, titles, legends, and how a figure becomes a file."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure, SubFigure
from torch import Tensor

from mocoda.engine.files import whole_file

INK, BLUE, RED, GREY, ORANGE, GREEN = "#1f2430", "#2563a8", "#c0392b", "#9aa3b2", "#e0a243", "#2e8b57"
COLOURS = {"full": GREY, "global": ORANGE, "local": BLUE}


def plot_curve(axes: Axes, updates: Sequence[int], seeds: Sequence[Sequence[float]], **style: Any) -> None:
    """Draws running means over a few evaluations: the mean over seeds as a line, and the range of the seeds."""
    values = _smoothed(torch.tensor(seeds))
    axes.plot(updates, values.mean(0), **style)
    axes.fill_between(updates, values.amin(0), values.amax(0), color=style["color"], alpha=0.12, lw=0)


def _smoothed(curves: Tensor, width: int = 5) -> Tensor:
    """Running means over `width` evaluations of curves (seeds, K); the first ones repeat the first evaluation."""
    padded = torch.nn.functional.pad(curves[None], (width - 1, 0), mode="replicate")[0]
    return padded.unfold(1, width, 1).mean(-1)


def bare(axes: Axes) -> None:
    """Removes the frame at the top and at the right."""
    axes.spines[["top", "right"]].set_visible(False)


def title_left(axes: Axes, text: str, fontsize: float = 11) -> None:
    """Writes a title over the left end of a panel."""
    axes.set_title(text, loc="left", fontsize=fontsize, color=INK)


def legend_below(figure: Figure | SubFigure, ncols: int | None = None, **style: Any) -> None:
    """Puts a legend under the panels: every label once, bars first, in as many lines as it takes."""
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
