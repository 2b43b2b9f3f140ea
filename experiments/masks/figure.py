"""The figure of the exam: who finds the edges in which world, and with how many recorded rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mocoda.engine.figures import BLUE, GREY, INK, ORANGE, bare, save, title_left

OURS = "learned"
Cells = Sequence[Mapping[str, Any]]


def draw_masks(cells: Cells, path: Path) -> None:
    """Draws the AUROC of every method in every world, at most rows, and beside it by recorded rows or, for one number
    of rows, the F1."""
    measured = [cell for cell in cells if cell["skipped"] is None and cell["auroc"] is not None]
    worlds = list(dict.fromkeys(cell["world"] for cell in measured))
    most = max(cell["rows"] for cell in measured)
    score, f1 = (
        {(c["method"], c["world"], c["rows"]): c[measure]["mean"] for c in measured if c[measure] is not None}
        for measure in ("auroc", "f1")
    )
    means = {}
    for method in dict.fromkeys(cell["method"] for cell in measured):
        own = [value for (name, _, rows), value in score.items() if (name, rows) == (method, most)]
        means[method] = sum(own) / len(own) if own else 0.0
    methods = sorted(means, key=lambda method: -means[method])
    one_size = len({rows for _, _, rows in score}) == 1
    wide = 1.2 + 0.75 * len(worlds)
    figure = Figure(figsize=(3 + wide + (wide if one_size else 3.2), 1.6 + 0.3 * len(methods)), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(wide, wide if one_size else 3.4))
    _draw_worlds(left, methods, worlds, {(m, w): score.get((m, w, most)) for m in methods for w in worlds})
    title_left(left, f"AUROC, {most:,} recorded rows", fontsize=10)
    if one_size:
        _draw_worlds(right, methods, worlds, {(m, w): f1.get((m, w, most)) for m in methods for w in worlds}, least=0.0)
        title_left(right, "F1, cut at the best score on other rows", fontsize=10)
    else:
        _draw_sizes(right, methods, worlds, score)
        title_left(right, "Mean over the worlds that a method can answer", fontsize=10)
    save(figure, path)


def _draw_worlds(
    axes: Axes,
    methods: Sequence[str],
    worlds: Sequence[str],
    score: Mapping[tuple[str, str], float | None],
    least: float = 0.5,
) -> None:
    """A square a method and world, the darker the better from `least` on; ours is in bold, and those that cannot answer
    are blank."""
    table = [[score[method, world] for world in worlds] for method in methods]
    shown = [[least if value is None else value for value in row] for row in table]
    axes.imshow(shown, vmin=least, vmax=1.0, cmap="Blues", aspect="auto")
    for y, row in enumerate(table):
        for x, value in enumerate(row):
            text = "–" if value is None else f"{value:.2f}"
            colour = "white" if value is not None and value > 0.4 * least + 0.6 else INK
            axes.text(x, y, text, ha="center", va="center", fontsize=8, color=colour)
    axes.set_xticks(range(len(worlds)), worlds, rotation=30, ha="right", fontsize=8)
    axes.set_yticks(range(len(methods)), methods, fontsize=8)
    for label in axes.get_yticklabels():
        if label.get_text() == OURS:
            label.set_fontweight("bold")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _draw_sizes(
    axes: Axes, methods: Sequence[str], worlds: Sequence[str], score: Mapping[tuple[str, str, int], float]
) -> None:
    """A line a method, over the worlds in which all sizes were measured, and its name at the end."""
    sizes = sorted({rows for _, _, rows in score})
    ends: list[tuple[float, str, str]] = []
    for method in methods:
        line = []
        for rows in sizes:
            own = [score[method, world, rows] for world in worlds if (method, world, rows) in score]
            line.append(sum(own) / len(own) if own else float("nan"))
        colour = BLUE if method == OURS else ORANGE if method in ("distance", "moved") else GREY
        axes.plot(sizes, line, "o-", ms=3, lw=2.4 if method == OURS else 1.1, color=colour)
        if line[-1] == line[-1]:
            ends.append((line[-1], method, colour))
    axes.set_ylim(0.45, 1.02)
    heights: list[float] = []
    for value, method, colour in sorted(ends):  # names keep apart from each other
        heights.append(max(value, heights[-1] + 0.035) if heights else value)
        place = (1.02, (heights[-1] - 0.45) / 0.57)
        axes.annotate(
            method, place, xycoords="axes fraction", va="center", fontsize=7, color=colour, annotation_clip=False
        )
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{rows:,}" for rows in sizes], fontsize=8)
    axes.set_xticks([], minor=True)
    axes.set_xlabel("recorded rows", fontsize=9)
    axes.set_ylabel("AUROC", fontsize=9)
    axes.tick_params(labelsize=8)
    bare(axes)
