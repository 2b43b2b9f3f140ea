"""Appendix B.3: what a shared, deeper Masked Composer does to error, parameters and time.

The paper's locally factored model has a composer and a network per child, and the paper expects one for all children to
be better. Both stand beside each other, and the unfactored model beside them, on the columns of Table 1 and on k
objects of one kind: there, a shared one can also be given that the objects are alike.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from experiments import table1
from experiments.columns import column_recipe
from experiments.composer.shared import SharedDynamics
from experiments.experiment import Experiment, Run, markdown_table, plus_minus, spread, unique
from experiments.figures import draw_bars
from experiments.stages import next_state_errors
from mocoda.data.transitions import Transitions
from mocoda.dynamics import Dynamics, DynamicsConfig, DynamicsFamily, fit_dynamics_runs, make_dynamics
from mocoda.engine.errors import InputError
from mocoda.engine.figure_style import BLUE, GREY, ORANGE, RED, legend_below, save, title_left
from mocoda.engine.progress import Progress
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents import fit_parents
from mocoda.tasks.navigation import Navigation
from mocoda.tasks.objects import Objects

COMPOSERS = {
    "unfactored": {"label": "unfactored", "color": GREY},
    "separate": {"label": "the paper's: a composer and a network per child", "color": BLUE},
    "shared": {"label": "shared: one network for all children", "color": ORANGE},
    "shared, alike": {"label": "shared, objects known to be alike", "color": RED},
}


@dataclass(frozen=True)
class Composer(Experiment):
    """One network for all children, against one per child (Appendix B.3)."""

    name = "composer"
    metric = (
        "values: next-state error of one draw a row, mean Euclidean norm x 1e2, as in Table 1; parameters: of one "
        "member; epoch_seconds: of the fastest epoch, all seeds and members together"
    )
    outputs = ("composer.json", "composer.png")

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

    def measure(self, run: Run) -> dict[str, Any]:
        """Collects, trains every composer at every depth in every world, and scores them all."""
        cells, models = [], []
        tasks: dict[str, Navigation | Objects] = {f"{k} objects": Objects(k) for k in self.objects}
        for name, task in ({"navigation": Navigation()} | tasks).items():
            rows, seeds, config = self.rows, self.seeds, self.dynamics
            if isinstance(task, Objects):
                rows, seeds, config = self.object_rows, self.object_seeds, self.object_dynamics
            datasets = [task.collect(rows, seed=seed).to(run.device) for seed in range(seeds)]
            trained = [
                _train(task.graph, datasets, kind, depth, config, run.progress)
                for kind in COMPOSERS
                for depth in self.depths
                if kind != "shared, alike" or isinstance(task, Objects)
            ]
            if isinstance(task, Objects):
                test = self.object_test_rows(task, run.device)
            else:
                test = self._table1_rows(task, datasets, trained[0].models)
            for one in trained:
                labels = {"world": name, "composer": one.composer, "depth": one.depth}
                models.append({**labels, "parameters": one.parameters, "epoch_seconds": one.epoch_seconds})
                cells += [
                    {**labels, "column": column, **spread(_errors(task, one, test[column], column))} for column in test
                ]
        return {"models": models, "cells": cells}

    def draw(self, results: Mapping[str, Any], folder: Path) -> None:
        """Draws errors of the models with a middle number of layers, by world and by rows."""
        depth = _middle(results)
        cells = [cell | {"group": _group(cell)} for cell in results["cells"] if cell["depth"] == depth]
        figure = Figure(figsize=(13, 4), layout="constrained")
        for axes, where in zip(figure.subplots(1, 2), (True, False), strict=True):
            own = [cell for cell in cells if (cell["world"] == "navigation") == where]
            draw_bars(axes, own, "group", "composer", COMPOSERS)
            axes.set(yscale="log", ylabel="model's error × 100 (log scale)")
            title_left(axes, ("2D Navigation" if where else "k objects of one kind") + f", {depth} hidden layers")
        legend_below(figure)
        save(figure, folder / self.outputs[1])

    @staticmethod
    def table(results: Mapping[str, Any]) -> str:
        depth, kinds = _middle(results), unique(results["cells"], "composer")
        cells = [cell for cell in results["cells"] if cell["depth"] == depth]
        rows = []
        for world, column in dict.fromkeys((cell["world"], cell["column"]) for cell in cells):
            own = {c["composer"]: c for c in cells if (c["world"], c["column"]) == (world, column)}
            rows.append([f"{world}, {column}", *(plus_minus(own[kind], 3) if kind in own else "" for kind in kinds)])
        return markdown_table([f"{depth} hidden layers", *kinds], rows)

    @staticmethod
    def answer(results: Mapping[str, Any]) -> str:
        depth = _middle(results)
        error = {
            cell["composer"]: cell["mean"]
            for cell in results["cells"]
            if (cell["world"], cell["column"], cell["depth"]) == ("8 objects", "recombined", depth)
        }
        return (
            "Not by itself, but where objects are of one kind and the model knows it: with 8 objects the error × 100 "
            f"on recombined rows is {error['shared, alike']:.2f}, against {error['separate']:.2f} with a network per "
            f"child and {error['shared']:.2f} with a shared one that is not told."
        )

    @classmethod
    def blocks(cls, folder: Path) -> dict[str, str]:
        results = cls.results(folder)
        kinds, depths = unique(results["cells"], "composer"), unique(results["cells"], "depth")
        last = results["models"][-1]["world"]
        models = {(m["composer"], m["depth"]): m for m in results["models"] if m["world"] == last}
        error = {
            (c["composer"], c["depth"]): c
            for c in results["cells"]
            if (c["world"], c["column"]) == (last, "recombined")
        }
        rows = []
        for depth in depths:
            at = [(kind, depth) for kind in kinds]
            rows.append([f"{depth}: error × 100, recombined", *(plus_minus(error[key], 3) for key in at)])
            rows.append([f"{depth}: parameters", *(f"{models[key]['parameters']:,}" for key in at)])
            rows.append([f"{depth}: ms per epoch", *(f"{1e3 * models[key]['epoch_seconds']:.0f}" for key in at)])
        return super().blocks(folder) | {"depths": markdown_table([f"hidden layers, {last}", *kinds], rows)}

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
Composer.presets = {
    # Table 1's setting, in fewer epochs: ten times its learning rate, lowered along a cosine.
    "paper": Composer(
        "paper",
        seeds=5,
        dynamics=replace(
            table1.Table1.presets["paper"].dynamics, epochs=80, learning_rate=1e-3, decay=True, window=5, hidden=(256,)
        ),
        object_seeds=3,
        object_dynamics=DynamicsConfig(hidden=(256,), epochs=40, batch=256),
    ),
    "quick": Composer(
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
}


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
    config = replace(config, hidden=config.hidden[:1] * depth)
    alike = tuple(name for name in graph.children if name != "agent") if kind == "shared, alike" else ()
    family: DynamicsFamily = config
    if kind == "unfactored":
        family = make_dynamics("full", **vars(config))
    elif kind.startswith("shared"):
        family = SharedDynamics(**vars(config), alike=(alike,) if alike else ())
    ends: list[float] = []

    def report(stage: str, done: int, total: int) -> None:
        ends.append(time.perf_counter())
        progress(f"{kind}, {depth}", done, total)

    seeds = range(len(datasets))
    models = fit_dynamics_runs(datasets, graph, family, seeds=seeds, progress=report)
    epochs = (after - before for before, after in itertools.pairwise(ends))  # others may have disturbed some
    return Trained(kind, depth, models, min(epochs))


def _errors(task: Navigation | Objects, one: Trained, rows: list[Tensor], column: str) -> list[float]:
    values = []
    for seed, (model, parents) in enumerate(zip(one.models, rows, strict=True)):
        stream = Stream(seed, "composer-draw", column, device=parents.device)
        values.append(100 * float(next_state_errors(model, task, parents, stream).mean()))
    return values


def _middle(results: Mapping[str, Any]) -> int:
    depths: list[int] = sorted(unique(results["cells"], "depth"))
    return depths[len(depths) // 2]


def _group(cell: Mapping[str, Any]) -> str:
    column = str(cell["column"])
    return column if cell["world"] == "navigation" else f"{cell['world']},\n{column}"
