"""a preset -> what a shared, deeper Masked Composer is good for (Appendix B.3): error, parameters, time.

The paper's locally factored model has a composer and a network per child, and the paper expects one for all children to
be better. Both stand beside each other, and the unfactored model beside them, on the columns of Table 1 and on k
objects, which are all of one kind: there, a shared one is also told so.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import rich.table
import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.dynamics.fit import fit_dynamics_runs
from mocoda.dynamics.model import Dynamics, DynamicsConfig
from mocoda.engine.errors import InputError
from mocoda.engine.files import write_json
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream
from mocoda.engine.statistics import mean_and_std
from mocoda.graph.local_graph import LocalGraph
from mocoda.paper import table1
from mocoda.paper.composer_figure import draw_composers
from mocoda.paper.experiment import heading
from mocoda.parents.recipes import fit_parents
from mocoda.tasks import SimulatedTask
from mocoda.tasks.navigation import Navigation
from mocoda.tasks.objects import Objects

COMPOSERS = ("unfactored", "separate", "shared", "shared, alike")
METRIC = (
    "values: next-state error of one draw a row, mean Euclidean norm x 1e2, as in Table 1; parameters: of one member; "
    "epoch_seconds: of the fastest epoch, all seeds and members together"
)
OUTPUTS = ("composer.json", "composer.png")


@dataclass(frozen=True)
class Composer:
    """Settings of the comparison."""

    preset: str
    seeds: int
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
        for name in ("seeds", "object_seeds"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if min(self.dynamics.epochs, self.object_dynamics.epochs) < 2:
            raise InputError("the dynamics must train for at least 2 epochs, or their time is not known.")


NARROW = DynamicsConfig(members=2, hidden=(64,), features=64, epochs=12, batch=256, learning_rate=3e-3)
PRESETS = {
    # Table 1's setting, in fewer epochs: ten times its learning rate, lowered along a cosine.
    "paper": Composer(
        "paper",
        seeds=5,
        dynamics=replace(
            table1.PRESETS["paper"].dynamics, epochs=80, learning_rate=1e-3, decay=True, window=5, hidden=(256,)
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


def composer(settings: Composer, *, device: str, progress: Progress = silent) -> dict[str, Any]:
    """Collects, trains every composer at every depth in every world, and scores them all."""
    started = time.monotonic()
    cells, models = [], []
    tasks: dict[str, Navigation | Objects] = {f"{k} objects": Objects(k) for k in settings.objects}
    for name, task in ({"navigation": Navigation()} | tasks).items():
        rows, seeds, config = settings.rows, settings.seeds, settings.dynamics
        if isinstance(task, Objects):
            rows, seeds, config = settings.object_rows, settings.object_seeds, settings.object_dynamics
        datasets = [task.collect(rows, seed=seed).to(device) for seed in range(seeds)]
        trained = [
            _trained(task.graph, datasets, kind, depth, config, progress)
            for kind in COMPOSERS
            for depth in settings.depths
            if kind != "shared, alike" or isinstance(task, Objects)
        ]
        if isinstance(task, Objects):
            test = _of_objects(task, settings, device)
        else:
            test = _of_table1(task, datasets, trained[0].models, settings)
        for one in trained:
            told = {"world": name, "composer": one.composer, "depth": one.depth}
            models.append({**told, "parameters": one.parameters, "epoch_seconds": one.epoch_seconds})
            cells += [{**told, "column": column, **_errors(task, one, test[column], column)} for column in test]
    return {
        **heading("composer", settings, METRIC, device, time.monotonic() - started),
        "models": models,
        "cells": cells,
    }


def write(results: Mapping[str, Any], folder: Path) -> rich.table.Table:
    """Writes the cells and the figure; the table to show."""
    write_json(folder / OUTPUTS[0], results)
    draw_composers(results, folder / OUTPUTS[1])
    table = rich.table.Table(title="The model's error × 100, by composer and hidden layers")
    for column in ("world", "composer", "layers", "parameters", "ms an epoch", "error by distribution"):
        table.add_column(column, justify="left" if column in ("world", "composer") else "right")
    for model in results["models"]:
        own = [
            cell for cell in results["cells"] if all(cell[key] == model[key] for key in ("world", "composer", "depth"))
        ]
        errors = ", ".join(f"{cell['column']} {cell['mean']:.3f}" for cell in own)
        numbers = (str(model["depth"]), f"{model['parameters']:,}", f"{1e3 * model['epoch_seconds']:.0f}")
        table.add_row(model["world"], model["composer"], *numbers, errors)
    return table


def _trained(
    graph: LocalGraph, datasets: list[Transitions], kind: str, depth: int, config: DynamicsConfig, progress: Progress
) -> Trained:
    config = replace(config, hidden=config.hidden[:1] * depth, shared=kind.startswith("shared"))
    if kind == "shared, alike":
        config = replace(config, alike=(tuple(name for name in graph.children if name != "agent"),))
    ends: list[float] = []

    def noted(stage: str, done: int, total: int) -> None:
        ends.append(time.perf_counter())
        progress(f"{kind}, {depth}", done, total)

    architecture = "full" if kind == "unfactored" else "local"
    seeds = range(len(datasets))
    models = fit_dynamics_runs(datasets, graph, architecture, seeds=seeds, config=config, progress=noted)
    epochs = (after - before for before, after in itertools.pairwise(ends))  # others may have disturbed some
    return Trained(kind, depth, models, min(epochs))


def _of_table1(
    task: Navigation, datasets: list[Transitions], unfactored: list[Dynamics], settings: Composer
) -> dict[str, list[Tensor]]:
    """The columns of Table 1, every seed's rows; Dyna's are of an unfactored model."""
    like = table1.Table1(settings.preset, settings.seeds, settings.dynamics, settings.rows, settings.test_rows)
    rows: dict[str, list[Tensor]] = {}
    for column in table1.COLUMNS:
        rows[column] = []
        for seed, (data, model) in enumerate(zip(datasets, unfactored, strict=True)):
            parents = fit_parents(
                data, task.graph, column, seed=seed, task=task, model=model, components=settings.components
            )
            rows[column].append(table1._test_rows(task, column, parents, like, seed, str(data.device)))
    return rows


def _of_objects(task: Objects, settings: Composer, device: str) -> dict[str, list[Tensor]]:
    """Rows recorded afresh, and recombined: every parent set of the sparsest graph is of another row."""
    rows: dict[str, list[Tensor]] = {"recorded": [], "recombined": []}
    for seed in range(settings.object_seeds):
        stream = Stream(seed, "composer-rows", device="cpu")
        recorded = task.collect(settings.test_rows, seed=stream.child("recorded")).rows
        recombined = recorded.clone()
        for names in task.graph.parent_sets:
            columns = torch.tensor(task.graph.columns(names))
            recombined[:, columns] = recorded[stream.child(*names).permutation(len(recorded))][:, columns]
        rows["recorded"].append(recorded.to(device))
        rows["recombined"].append(recombined.to(device))
    return rows


def _errors(task: SimulatedTask, one: Trained, rows: list[Tensor], column: str) -> dict[str, Any]:
    values = []
    for seed, (model, parents) in enumerate(zip(one.models, rows, strict=True)):
        drawn = model.sample(parents, seed=Stream(seed, "composer-draw", column, device=parents.device))
        values.append(100 * float((drawn - task.step(parents)).double().norm(dim=1).mean()))
    mean, std = mean_and_std(values)
    return {"values": values, "mean": mean, "std": std}
