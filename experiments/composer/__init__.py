"""Appendix B.3: what a shared, deeper Masked Composer does to error, parameters and time.

The paper's locally factored model has a composer and a network per child, and the paper expects one for all children to
be better. Both stand beside each other, and the unfactored model beside them, on the columns of Table 1 and on k
objects of one kind: there, a shared one can also be given that the objects are alike.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import rich.table
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, NullFormatter
from torch import Tensor

from experiments import table1
from experiments.columns import column_recipe
from experiments.experiment import Experiment, Measured, Stopwatch, spread, text_table
from experiments.stages import next_state_errors
from mocoda.data.transitions import Transitions
from mocoda.dynamics import Dynamics, DynamicsConfig, fit_dynamics_runs
from mocoda.engine.errors import InputError
from mocoda.engine.figures import BLUE, GREY, ORANGE, RED, bare, legend_below, save, title_left
from mocoda.engine.files import write_json
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents import fit_parents
from mocoda.tasks.navigation import Navigation
from mocoda.tasks.objects import Objects

COMPOSERS = {
    "unfactored": ("unfactored", GREY),
    "separate": ("the paper's: a composer and a network per child", BLUE),
    "shared": ("shared: one network for all children", ORANGE),
    "shared, alike": ("shared, objects known to be alike", RED),
}


@dataclass(frozen=True)
class Composer(Experiment[Measured]):
    """One network for all children, against one per child (Appendix B.3)."""

    name = "composer"
    metric = (
        "values: next-state error of one draw a row, mean Euclidean norm x 1e2, as in Table 1; parameters: of one "
        "member; epoch_seconds: of the fastest epoch, all seeds and members together"
    )
    outputs = ("composer.json", "composer.png")
    presets: ClassVar[dict[str, Composer]] = {}

    dynamics: DynamicsConfig  # on 2D Navigation, but for the depth
    object_seeds: int
    object_dynamics: DynamicsConfig  # on k objects, likewise
    depths: tuple[int, ...] = (1, 2, 4)  # hidden layers, all as wide as the first
    objects: tuple[int, ...] = (2, 4, 8)  # a world each, besides 2D Navigation
    rows: int = 40_000  # recorded
    object_rows: int = 20_000
    test_rows: int = 20_000  # in every column
    components: int = 32

    def __post_init__(self) -> None:
        self.check_positive("seeds", "object_seeds")
        if min(self.dynamics.epochs, self.object_dynamics.epochs) < 2:
            raise InputError("the dynamics must train for at least 2 epochs, or their time is not known.")

    def run(self, *, device: str, folder: Path, progress: Progress = silent, workers: int | None = None) -> Measured:
        """Collects, trains every composer at every depth in every world, and scores them all."""
        clock = Stopwatch()
        cells, models = [], []
        tasks: dict[str, Navigation | Objects] = {f"{k} objects": Objects(k) for k in self.objects}
        for name, task in ({"navigation": Navigation()} | tasks).items():
            rows, seeds, config = self.rows, self.seeds, self.dynamics
            if isinstance(task, Objects):
                rows, seeds, config = self.object_rows, self.object_seeds, self.object_dynamics
            datasets = [task.collect(rows, seed=seed).to(device) for seed in range(seeds)]
            trained = [
                _train(task.graph, datasets, kind, depth, config, progress)
                for kind in COMPOSERS
                for depth in self.depths
                if kind != "shared, alike" or isinstance(task, Objects)
            ]
            if isinstance(task, Objects):
                test = self.object_test_rows(task, device)
            else:
                test = self._table1_rows(task, datasets, trained[0].models)
            for one in trained:
                labels = {"world": name, "composer": one.composer, "depth": one.depth}
                models.append({**labels, "parameters": one.parameters, "epoch_seconds": one.epoch_seconds})
                cells += [
                    {**labels, "column": column, **spread(_errors(task, one, test[column], column))} for column in test
                ]
        return Measured({**self.heading(device, clock), "models": models, "cells": cells})

    def write(self, measured: Measured, folder: Path) -> rich.table.Table:
        results = measured.results
        write_json(folder / self.outputs[0], results)
        draw_composers(results, folder / self.outputs[1])
        rows = []
        for model in results["models"]:
            keys = ("world", "composer", "depth")
            own = [cell for cell in results["cells"] if all(cell[key] == model[key] for key in keys)]
            numbers = (str(model["depth"]), f"{model['parameters']:,}", f"{1e3 * model['epoch_seconds']:.0f}")
            errors = ", ".join(f"{cell['column']} {cell['mean']:.3f}" for cell in own)
            rows.append([model["world"], model["composer"], *numbers, errors])
        columns = ("world", "composer", "layers", "parameters", "ms an epoch", "error by distribution")
        return text_table("The model's error × 100, by composer and hidden layers", columns, rows, left=2)

    def _table1_rows(
        self, task: Navigation, datasets: list[Transitions], unfactored: list[Dynamics]
    ) -> dict[str, list[Tensor]]:
        """The columns of Table 1, every seed's rows; Dyna's are of an unfactored model."""
        rows: dict[str, list[Tensor]] = {}
        for column in table1.COLUMNS:
            rows[column] = []
            for seed, (data, model) in enumerate(zip(datasets, unfactored, strict=True)):
                recipe = column_recipe(column, components=self.components)
                parents = fit_parents(data, task.graph, recipe, seed=seed, task=task, model=model)
                device = str(data.device)
                rows[column].append(table1.draw_test_rows(task, column, parents, self.test_rows, seed, device))
        return rows

    def object_test_rows(self, task: Objects, device: str) -> dict[str, list[Tensor]]:
        """Rows recorded afresh, and recombined: every parent set of the sparsest graph is of another row."""
        rows: dict[str, list[Tensor]] = {"recorded": [], "recombined": []}
        for seed in range(self.object_seeds):
            stream = Stream(seed, "composer-rows", device="cpu")
            recorded = task.collect(self.test_rows, seed=stream.child("recorded")).rows
            recombined = recorded.clone()
            for names in task.graph.parent_sets:
                columns = torch.tensor(task.graph.columns(names))
                recombined[:, columns] = recorded[stream.child(*names).permutation(len(recorded))][:, columns]
            rows["recorded"].append(recorded.to(device))
            rows["recombined"].append(recombined.to(device))
        return rows


NARROW = DynamicsConfig(members=2, hidden=(64,), features=64, epochs=12, batch=256, learning_rate=3e-3)
Composer.presets.update(
    # Table 1's setting, in fewer epochs: ten times its learning rate, lowered along a cosine.
    paper=Composer(
        "paper",
        seeds=5,
        dynamics=replace(
            table1.Table1.presets["paper"].dynamics, epochs=80, learning_rate=1e-3, decay=True, window=5, hidden=(256,)
        ),
        object_seeds=3,
        object_dynamics=DynamicsConfig(hidden=(256,), epochs=40, batch=256),
    ),
    quick=Composer(
        "quick",
        seeds=2,
        dynamics=NARROW,
        object_seeds=1,
        object_dynamics=replace(NARROW, epochs=16),
        rows=8_000,
        object_rows=3_000,
        test_rows=4_000,
        components=16,
    ),
)


@dataclass(frozen=True, eq=False)
class Trained:
    """A model of a world for every seed, and what it took."""

    composer: str
    depth: int
    models: list[Dynamics]
    epoch_seconds: float

    @property
    def parameters(self) -> int:
        return sum(weight[0].numel() for weight in self.models[0].weights.values())


def _train(
    graph: LocalGraph, datasets: list[Transitions], kind: str, depth: int, config: DynamicsConfig, progress: Progress
) -> Trained:
    config = replace(config, hidden=config.hidden[:1] * depth, shared=kind.startswith("shared"))
    if kind == "shared, alike":
        config = replace(config, alike=(tuple(name for name in graph.children if name != "agent"),))
    ends: list[float] = []

    def report(stage: str, done: int, total: int) -> None:
        ends.append(time.perf_counter())
        progress(f"{kind}, {depth}", done, total)

    architecture = "full" if kind == "unfactored" else "local"
    seeds = range(len(datasets))
    models = fit_dynamics_runs(datasets, graph, architecture, seeds=seeds, config=config, progress=report)
    epochs = (after - before for before, after in itertools.pairwise(ends))  # others may have disturbed some
    return Trained(kind, depth, models, min(epochs))


def _errors(task: Navigation | Objects, one: Trained, rows: list[Tensor], column: str) -> list[float]:
    values = []
    for seed, (model, parents) in enumerate(zip(one.models, rows, strict=True)):
        stream = Stream(seed, "composer-draw", column, device=parents.device)
        values.append(100 * float(next_state_errors(model, task, parents, stream).mean()))
    return values


# The figure


def draw_composers(results: Mapping[str, Any], path: Path) -> None:
    """Draws errors, a group a distribution and in it a line through the depths, beside what k objects cost."""
    cells, models = results["cells"], results["models"]
    objects = [cell for cell in cells if cell["world"] != "navigation"]
    # Of all objects recorded, then of all recombined.
    order = list(dict.fromkeys(cell["column"] for cell in objects))
    objects.sort(key=lambda cell: order.index(cell["column"]))
    layers = _listed(results["config"]["depths"])
    figure = Figure(figsize=(13, 7.4), layout="constrained")
    panels = figure.subplots(2, 2, width_ratios=(2.4, 1))
    _draw_groups(panels[0, 0], [cell for cell in cells if cell["world"] == "navigation"], "{column}")
    _draw_groups(panels[1, 0], objects, "{world},\n{column}")
    title_left(panels[0, 0], f"2D Navigation (Table 1); along each line {layers} hidden layers")
    title_left(panels[1, 0], f"k objects of one kind; along each line {layers} hidden layers")
    _draw_costs(panels[0, 1], models, "parameters", 1, "Model size")
    _draw_costs(panels[1, 1], models, "epoch_seconds", 1e3, "Training time")
    panels[0, 1].set(ylabel="parameters of a member (log scale)")
    panels[1, 1].set(ylabel="milliseconds an epoch (log scale)")
    legend_below(figure, ncols=4, fontsize=10, markerscale=1)
    save(figure, path)


def _draw_groups(axes: Axes, cells: Sequence[Mapping[str, Any]], title: str) -> None:
    groups = list(dict.fromkeys(title.format(**cell) for cell in cells))
    depths = sorted({cell["depth"] for cell in cells})
    shown = [kind for kind in COMPOSERS if any(cell["composer"] == kind for cell in cells)]
    width = 0.86 / len(shown)
    for number, group in enumerate(groups):
        for place, kind in enumerate(shown):
            own = [cell for cell in cells if cell["composer"] == kind and title.format(**cell) == group]
            first = number + width * (place - len(shown) / 2)
            places = [first + width * (0.15 + 0.7 * (depths.index(c["depth"]) + 0.5) / len(depths)) for c in own]
            label, colour = COMPOSERS[kind]
            means, stds = ([cell[key] for cell in own] for key in ("mean", "std"))
            axes.errorbar(places, means, stds, color=colour, marker="o", ms=5, lw=1.8, elinewidth=1, label=label)
        if number % 2:
            axes.axvspan(number - 0.5, number + 0.5, color=GREY, alpha=0.1, lw=0)
    axes.set(yscale="log", xlim=(-0.5, len(groups) - 0.5), ylabel="model's error × 100 (log scale)")
    axes.set_xticks(range(len(groups)), groups)
    axes.tick_params(axis="x", length=0)
    axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.yaxis.set_minor_formatter(FormatStrFormatter("%g") if _narrow(axes) else NullFormatter())
    bare(axes)


def _draw_costs(axes: Axes, models: Sequence[Mapping[str, Any]], key: str, unit: float, title: str) -> None:
    """By the number of objects, at the middle one of the depths."""
    depths = sorted({model["depth"] for model in models})
    middle = depths[len(depths) // 2]
    for kind, (_, colour) in COMPOSERS.items():
        own = [m for m in models if (m["composer"], m["depth"]) == (kind, middle) and m["world"] != "navigation"]
        counts = [int(model["world"].split()[0]) for model in own]
        axes.plot(counts, [unit * model[key] for model in own], "o-", color=colour, lw=1.8, ms=5)
    axes.set(yscale="log", xlabel="objects")
    axes.set_xticks(sorted({int(m["world"].split()[0]) for m in models if m["world"] != "navigation"}))
    title_left(axes, f"{title} for k objects, hidden layers: {middle}")
    bare(axes)


def _narrow(axes: Axes) -> bool:
    """Whether the numbers of a logarithmic axis span less than a decade or so, and few ticks are labelled."""
    low, high = axes.get_ylim()
    return high < 15 * low


def _listed(numbers: Sequence[int]) -> str:
    *before, last = map(str, numbers)
    return f"{', '.join(before)} and {last}" if before else last
