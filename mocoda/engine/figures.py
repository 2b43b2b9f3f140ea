"""results -> tables and figures: with the other `report_*` files, the only import of matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from mocoda.engine.files import whole_file

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


def plot_curve(axes: Axes, updates: Sequence[int], seeds: Sequence[Sequence[float]], **style: Any) -> None:
    """Running means over a few evaluations: the mean over seeds as a line, and the range of the seeds."""
    values = _smoothed(torch.tensor(seeds))
    axes.plot(updates, values.mean(0), **style)
    axes.fill_between(updates, values.amin(0), values.amax(0), color=style["color"], alpha=0.12, lw=0)


def _smoothed(curves: Tensor, width: int = 5) -> Tensor:
    """Running means over `width` evaluations of curves (seeds, K); the first few over those there are."""
    padded = torch.nn.functional.pad(curves[None], (width - 1, 0), mode="replicate")[0]
    return padded.unfold(1, width, 1).mean(-1)


def bare(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, path: Path) -> None:
    with whole_file(path) as part:
        figure.savefig(part, format="png", dpi=150)
