"""Table 1: how well models that were trained on the L predict on five distributions.

Rows and columns are called as on the command line. What the paper reports stands beside what we measure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import rich.table
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from experiments.columns import column_recipe, recipe_title
from experiments.experiment import Experiment, Measured, Stopwatch, cell, compare_with_paper
from experiments.stages import begun, fit_models, next_state_errors
from mocoda.data.transitions import Transitions
from mocoda.dynamics import ARCHITECTURES, Dynamics, DynamicsConfig
from mocoda.engine.figures import BLUE, COLOURS, INK, RED, bare, legend_below, save, title_left
from mocoda.engine.files import write_json
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream
from mocoda.parents import Parents, fit_parents
from mocoda.tasks.navigation import Navigation

COLUMNS = ("emp", "dyna", "rand", "mocoda", "mocoda-u")
# Table 1 of the paper, (mean, standard deviation) over five seeds, in the order of the columns.
PAPER = {
    "full": ((0.14, 0.04), (2.41, 0.29), (4.4, 0.31), (0.95, 0.06), (1.29, 0.15)),
    "global": ((0.36, 0.01), (2.09, 0.28), (3.17, 0.3), (0.41, 0.02), (0.51, 0.02)),
    "local": ((0.23, 0.1), (1.47, 0.27), (2.03, 0.19), (0.33, 0.11), (0.46, 0.11)),
}
# Figure 3's red areas: where the two kinds of recorded walks start, and the middle of the square.
SHADED = (((0.0, 0.0), 0.15, 0.4), ((0.6, 0.0), 0.4, 0.15), ((0.4, 0.4), 0.2, 0.2))


@dataclass(frozen=True, eq=False)
class Measured1(Measured):
    """Table 1 and what it was measured with, one of each a seed."""

    task: Navigation
    datasets: list[Transitions]
    models: dict[str, list[Dynamics]]
    parents: dict[str, list[Parents]]
    rows: dict[str, list[Tensor]]  # the columns' test rows


@dataclass(frozen=True)
class Table1(Experiment[Measured1]):
    """How far off the dynamics are on five distributions (Table 1 and Figure 3)."""

    name = "table1"
    metric = (
        "next-state error of one draw a row (a random member, its standard deviation divided by 3). values: mean "
        "Euclidean norm x 1e2, the measure behind the paper's cells. squared: mean squared norm x 1e2"
    )
    outputs = ("table1.json", "table1.png", "figure3.png")
    presets: ClassVar[dict[str, Table1]] = {}

    dynamics: DynamicsConfig
    rows: int = 40_000  # recorded
    test_rows: int = 20_000  # in every column
    components: int = 32

    def run(self, *, device: str, folder: Path, progress: Progress = silent, workers: int | None = None) -> Measured1:
        """Collects, fits all architectures for all seeds, draws all columns and scores every cell."""
        clock, resumed = Stopwatch(), begun(folder)
        task, seeds = Navigation(), range(self.seeds)
        datasets = [task.collect(self.rows, seed=seed).to(device) for seed in seeds]
        models = {
            architecture: fit_models(
                datasets, task.graph, architecture, self.dynamics, folder=folder, progress=progress
            )
            for architecture in ARCHITECTURES
        }
        parents: dict[str, list[Parents]] = {}
        rows: dict[str, list[Tensor]] = {}
        for done, column in enumerate(COLUMNS):
            recipe = column_recipe(column, components=self.components)
            parents[column] = [
                fit_parents(datasets[seed], task.graph, recipe, seed=seed, task=task, model=models["full"][seed])
                for seed in seeds
            ]
            rows[column] = [
                draw_test_rows(task, column, parents[column][seed], self.test_rows, seed, device) for seed in seeds
            ]
            progress("test rows", done + 1, len(COLUMNS))
        cells = [
            _cell(task, architecture, column, models[architecture], rows[column])
            for architecture in ARCHITECTURES
            for column in COLUMNS
        ]
        results = {**self.heading(device, clock, resumed=resumed), "cells": cells}
        return Measured1(results, task, datasets, models, parents, rows)

    def write(self, measured: Measured1, folder: Path) -> rich.table.Table:
        results, errors, transitions = (folder / name for name in self.outputs)
        write_json(results, measured.results)
        draw_errors(measured.results, errors)
        draw_transitions(_panels(measured), transitions, SHADED)
        title = "Table 1: next-state error × 100 (mean norm), by architecture and distribution"
        return compare_with_paper(measured.results, title)


Table1.presets.update(
    # The paper's setting but for one thing: the networks predict the change of state (docs/method.md: what that did).
    paper=Table1("paper", seeds=5, dynamics=replace(DynamicsConfig.paper(), predict_change=True)),
    quick=Table1(
        "quick",
        seeds=2,
        dynamics=DynamicsConfig(
            hidden=(64, 64), features=64, epochs=24, batch=256, learning_rate=3e-3, weight_decay=1e-3
        ),
        test_rows=5_000,
    ),
)


def draw_test_rows(task: Navigation, column: str, parents: Parents, rows: int, seed: int, device: str) -> Tensor:
    """Rows of a column that nothing was trained or validated on."""
    stream = Stream(seed, "table1-test", column, device=device)
    if column == "emp":  # recorded alike
        return task.collect(rows, seed=stream).rows.to(device)
    return parents.sample(rows, seed=stream)


def _cell(task: Navigation, row: str, column: str, models: list[Dynamics], rows: list[Tensor]) -> dict[str, Any]:
    errors = [
        next_state_errors(model, task, parents, Stream(seed, "table1-draw", column, device=parents.device))
        for seed, (model, parents) in enumerate(zip(models, rows, strict=True))
    ]
    norms = [100 * float(error.mean()) for error in errors]
    squares = [100 * float(error.square().mean()) for error in errors]
    return cell(row, column, norms, PAPER[row][COLUMNS.index(column)]) | {"squared": squares}


def _panels(measured: Measured1) -> dict[str, tuple[Tensor, Tensor]]:
    """About 1,500 transitions of each distribution: recorded ones of emp, the locally factored model's of the rest."""
    panels = {}
    for name in ("emp", "dyna", "mocoda", "mocoda-u", "rand"):
        rows = measured.rows[name][0]
        rows = rows[:: max(1, len(rows) // 1_500)]
        next_state = measured.task.step(rows) if name == "emp" else measured.models["local"][0].sample(rows, seed=0)
        panels[name] = (rows[:, :2], next_state)
    return panels


# Figures


def draw_errors(results: Mapping[str, Any], path: Path) -> None:
    """Draws Table 1 as bars, one per architecture and column; a red mark is the paper's cell."""
    cells = results["cells"]
    columns, rows = (list(dict.fromkeys(cell[key] for cell in cells)) for key in ("column", "row"))
    figure = Figure(figsize=(8.5, 3.6), layout="constrained")
    axes = figure.subplots()
    for number, row in enumerate(rows):
        own = [cell for cell in cells if cell["row"] == row]
        places = [i + 0.27 * (number - 1) for i in range(len(columns))]
        means, stds, paper = ([cell[key] for cell in own] for key in ("mean", "std", "paper_mean"))
        axes.bar(places, means, 0.25, yerr=stds, label=row, color=COLOURS[row], ecolor=INK)
        axes.scatter(places, paper, marker="_", s=170, linewidths=2, color=RED, zorder=3, label="the paper")
    axes.set(yscale="log", ylabel="next-state error × 100 (log scale)")
    axes.set_xticks(range(len(columns)), columns)
    title_left(axes, "How far off the model is, by where it is asked")
    legend_below(figure, markerscale=1)
    bare(axes)
    save(figure, path)


def draw_transitions(
    panels: Mapping[str, tuple[Tensor, Tensor]],
    path: Path,
    shaded: Sequence[tuple[tuple[float, float], float, float]] = (),
) -> None:
    """Draws Figure 3: per distribution, arrows from states (N, 2) to next states (N, 2).

    shaded  rectangles behind them: corner, width and height
    """
    figure = Figure(figsize=(3 * len(panels), 3.3), layout="constrained")
    grid = figure.subplots(1, len(panels), squeeze=False).flat
    for axes, (name, (state, next_state)) in zip(grid, panels.items(), strict=True):
        for corner, width, height in shaded:
            axes.add_patch(Rectangle(corner, width, height, color=RED, alpha=0.15, lw=0))
        start, move = state.cpu().numpy(), (next_state - state).cpu().numpy()
        axes.quiver(*start.T, *move.T, angles="xy", scale_units="xy", scale=1, width=0.003, color=BLUE, alpha=0.6)
        axes.set(xlim=(-0.1, 1.1), ylim=(-0.1, 1.1), xticks=[0, 1], yticks=[0, 1], aspect="equal")
        axes.set_title(recipe_title(name), fontsize=12, color=INK)
        bare(axes)
    save(figure, path)
