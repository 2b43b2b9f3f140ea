"""Table 1: how well models that were trained on the L predict on five distributions.

Rows and columns are called as on the command line. What the paper reports stands beside what we measure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from experiments.columns import column_recipe, recipe_title
from experiments.experiment import Experiment, Run, by_place, cell, cells_table, markdown_table, read_json
from experiments.figures import draw_bars
from experiments.stages import fit_models, next_state_errors, paper_dynamics
from mocoda.dynamics import ARCHITECTURES, Dynamics, DynamicsConfig
from mocoda.engine.figure_style import BLUE, COLOURS, INK, RED, bare, legend_below, save, title_left
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
TITLES = {"full": "unfactored", "global": "globally factored", "local": "locally factored"}
# Figure 3's red areas: where the two kinds of recorded walks start, and the middle of the square.
SHADED = (((0.0, 0.0), 0.15, 0.4), ((0.6, 0.0), 0.4, 0.15), ((0.4, 0.4), 0.2, 0.2))
VARIANTS = {
    "state.json": "the paper's setting: the networks predict the next state itself",
    "table1.json": "the preset: they predict the change of state",
    "standardised.json": "the preset, and standardised inputs and targets",
}


@dataclass(frozen=True)
class Table1(Experiment):
    """How far off the dynamics are on five distributions (Table 1 and Figure 3)."""

    name = "table1"
    metric = (
        "next-state error of one draw a row (a random member, its standard deviation divided by 3). values: mean "
        "Euclidean norm x 1e2, the measure behind the paper's cells. squared: mean squared norm x 1e2"
    )
    outputs = ("table1.json", "table1.png", "figure3.png")

    dynamics: DynamicsConfig
    first: int = 0  # seed
    rows: int = 40_000  # recorded
    test_rows: int = 20_000  # in every column
    components: int = 32

    def measure(self, run: Run) -> dict[str, Any]:
        """Collects, fits all architectures for all seeds, draws all columns and scores every cell."""
        task, seeds = Navigation(), range(self.first, self.first + self.seeds)
        datasets = [task.collect(self.rows, seed=seed).to(run.device) for seed in seeds]
        models = {
            name: fit_models(run, datasets, task.graph, name, self.dynamics, seeds=seeds) for name in ARCHITECTURES
        }
        rows: dict[str, list[Tensor]] = {}
        for done, column in enumerate(COLUMNS):
            recipe = column_recipe(column, components=self.components)
            rows[column] = []
            for seed, data, model in zip(seeds, datasets, models["full"], strict=True):
                parents = fit_parents(data, task.graph, recipe, seed=seed, task=task, model=model)
                rows[column].append(draw_test_rows(task, column, parents, self.test_rows, seed, run.device))
            run.progress("test rows", done + 1, len(COLUMNS))
        panels = {}
        for name in ("emp", "dyna", "mocoda", "mocoda-u", "rand"):
            shown = rows[name][0][:: max(1, self.test_rows // 1_500)]
            next_state = task.step(shown) if name == "emp" else models["local"][0].sample(shown, seed=0)
            panels[name] = (shown[:, :2], next_state)
        draw_transitions(panels, run.folder / self.outputs[2], SHADED)
        places = [(row, column) for row in models for column in COLUMNS]
        return {"cells": [_cell(task, row, column, models[row], rows[column], seeds) for row, column in places]}

    def draw(self, results: Mapping[str, Any], folder: Path) -> None:
        figure = Figure(figsize=(8.5, 3.6), layout="constrained")
        axes = figure.subplots()
        draw_bars(axes, results["cells"], "column", "row", {name: {"color": COLOURS[name]} for name in PAPER})
        axes.set(yscale="log", ylabel="next-state error × 100 (log scale)")
        title_left(axes, "How far off the model is, by the rows it is asked about")
        legend_below(figure, markerscale=1)
        save(figure, folder / self.outputs[1])

    @staticmethod
    def table(results: Mapping[str, Any]) -> str:
        return cells_table(results, 3, TITLES, bold_least=True)

    @staticmethod
    def answer(results: Mapping[str, Any]) -> str:
        error = {place: one["mean"] for place, one in by_place(results).items()}
        return (
            "The locally factored model is best on all five distributions: on MoCoDA's rows its error × 100 is "
            f"{error['local', 'mocoda']:.3f}, against {error['full', 'mocoda']:.3f} without factors."
        )

    @classmethod
    def blocks(cls, folder: Path) -> dict[str, str]:
        rows = []
        for architecture, title in TITLES.items():
            paper = [f"{mean:g}" for mean, _ in PAPER[architecture]]
            rows.append([f"**{title}**", "the paper's value", *paper])
            for file, setting in VARIANTS.items():
                found = by_place(read_json(folder / file))
                rows.append(["", setting, *(f"{found[architecture, column]['mean']:.3f}" for column in COLUMNS)])
        return super().blocks(folder) | {"settings": markdown_table(["", "setting", *COLUMNS], rows)}


Table1.presets = {
    # The paper's setting but for one thing: the networks predict the change of state.
    "paper": Table1("paper", seeds=10, first=10, dynamics=replace(DynamicsConfig.paper(), predict_change=True)),
    "quick": Table1(
        "quick",
        seeds=2,
        dynamics=paper_dynamics(
            hidden=(64, 64), features=64, epochs=24, batch=256, learning_rate=3e-3, weight_decay=1e-3
        ),
        test_rows=5_000,
    ),
}


def draw_test_rows(task: Navigation, column: str, parents: Parents, rows: int, seed: int, device: str) -> Tensor:
    """Rows of a column that nothing was trained or validated on."""
    stream = Stream(seed, "table1-test", column, device=device)
    if column == "emp":  # recorded alike
        return task.collect(rows, seed=stream).rows.to(device)
    return parents.sample(rows, seed=stream)


def _cell(
    task: Navigation, row: str, column: str, models: list[Dynamics], rows: list[Tensor], seeds: Sequence[int]
) -> dict[str, Any]:
    errors = [
        next_state_errors(model, task, parents, Stream(seed, "table1-draw", column, device=parents.device))
        for seed, model, parents in zip(seeds, models, rows, strict=True)
    ]
    norms = [100 * float(error.mean()) for error in errors]
    squares = [100 * float(error.square().mean()) for error in errors]
    return cell(row, column, norms, PAPER[row][COLUMNS.index(column)]) | {"squared": squares}


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
