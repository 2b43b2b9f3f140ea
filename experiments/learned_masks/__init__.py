"""What a learned mask is for: models, generated rows and agents with the given, a learned, a dense and a distance mask.

2D Navigation: Table 1's local model and a Table 2 agent. HookSweep2: the model's error, the rows that the simulator
confirms, and success, as in Table 3. Everything but the graph is as in those tables. "composed" is the learned mask
again, with rows in which boxes that were swept one at a time are swept at once, as the given parent sets draw them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import rich.table
import torch
from matplotlib.figure import Figure
from torch import Tensor

from experiments.columns import column_recipe
from experiments.experiment import Experiment, Measured, Stopwatch, cell, text_table
from experiments.stages import begun, fit_agents, fit_models, last_evaluations, next_state_errors, record
from experiments.table1 import Table1, draw_test_rows
from experiments.table2 import Table2
from experiments.table3 import EXPERT, Table3
from experiments.truth import as_transitions, confirmations, model_errors, played_by_expert
from mocoda.augmentation.generation import augment
from mocoda.data.transitions import Transitions
from mocoda.dynamics import Dynamics, DynamicsConfig
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.figures import BLUE, INK, bare, save, title_left
from mocoda.engine.files import write_json
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream
from mocoda.graph.learned import CAUTION, check_caution, load_learned
from mocoda.graph.learning import learn_graph
from mocoda.graph.local_graph import LocalGraph
from mocoda.graph.usual import GraphConfig
from mocoda.parents import Mocoda, Parents, fit_parents
from mocoda.tasks.hooksweep import HookSweep2
from mocoda.tasks.navigation import Navigation

MASKS = ("given", "learned", "composed", "dense", "distance")
WORLDS = ("navigation", "hooksweep2")
REACH = 0.1  # metres in xy between a gripper and a box, or two boxes, within which the distance rule has an edge
TESTED = ("emp", "rand", "mocoda", "mocoda-u")  # distributions of Table 1 that take no model of their own
T = TypeVar("T", Navigation, HookSweep2)
Cells = list[dict[str, Any]]


@dataclass(frozen=True)
class LearnedMasks(Experiment[Measured]):
    """Models and agents with the given, a learned, a dense and a distance mask."""

    name = "learned-masks"
    metric = (
        "by measure. error: as in Table 1. steps: as in Table 2. box error: mm where a box moves, one or two swept. "
        "confirmed: percent of generated rows, all and those in which a box moves. success: percent, as in Table 3"
    )
    outputs = ("learned-masks.json", "learned-masks.png")
    presets: ClassVar[dict[str, LearnedMasks]] = {}

    sizes: str  # the preset of the tables whose sizes are taken
    graphs: GraphConfig
    worlds: tuple[str, ...] = WORLDS
    masks: tuple[str, ...] = MASKS
    caution: float = CAUTION  # of the learned graph
    column: str = "mocoda-local"  # of HookSweep2's data: parents matched for every local graph
    # The tables' unless given: epochs of the models and, on HookSweep2, recorded rows, those of a data set, updates,
    # and generated rows that the simulator is asked about
    epochs: int | None = None
    rows: int | None = None
    total: int | None = None
    updates: int | None = None
    confirmed_rows: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for what, chosen, known in (("world", self.worlds, WORLDS), ("mask", self.masks, MASKS)):
            if not chosen or len(set(chosen)) != len(chosen):
                raise InputError(f"{what}s must be different ones, and at least one, got {list(chosen)}.")
            for name in chosen:
                if name not in known:
                    raise unknown_name(what, name, known)
        check_caution(self.caution)

    def run(self, *, device: str, folder: Path, progress: Progress = silent, workers: int | None = None) -> Measured:
        """Learns a graph a world, then fits a model and trains an agent with every mask."""
        clock, resumed = Stopwatch(), begun(folder)
        cells: Cells = []
        learned: dict[str, str] = {}
        for world in self.worlds:
            made = self._navigation if world == "navigation" else self._hooksweep
            file = folder / world / "cells.json"
            if not file.exists():
                found, text = made(device, folder / world, clock, progress, workers)
                write_json(file, {"cells": found, "learned": text})
            kept = read_json(file)
            cells += kept["cells"]
            learned[world] = kept["learned"]
        heading = self.heading(device, clock, resumed=resumed)
        return Measured({**heading, "learned": learned, "cells": cells})

    def write(self, measured: Measured, folder: Path) -> rich.table.Table:
        cells = measured.results["cells"]
        write_json(folder / self.outputs[0], measured.results)
        draw_masks(cells, folder / self.outputs[1])
        lines = []
        for world, measure in dict.fromkeys((one["world"], one["column"]) for one in cells):
            own = {one["row"]: one for one in cells if (one["world"], one["column"]) == (world, measure)}
            texts = [f"{own[mask]['mean']:.2f} ± {own[mask]['std']:.2f}" if mask in own else "–" for mask in self.masks]
            lines.append([world, measure, *texts])
        return text_table("What a mask changes", ("world", "measure", *self.masks), lines, left=2)

    def _navigation(
        self, device: str, folder: Path, clock: Stopwatch, progress: Progress, workers: int | None
    ) -> tuple[Cells, str]:
        table1, table2 = Table1.presets[self.sizes], Table2.presets[self.sizes]
        table2 = replace(table2, dynamics=self._shorter(table2.dynamics))
        seeds, task = range(self.seeds), Navigation()
        recorded = [task.collect(table1.rows, seed=seed).to(device) for seed in seeds]
        graphs, text = self._graphs(task.graph, recorded[0], folder, progress)
        clock.lap("navigation graph")
        for mask in ("distance", "composed"):  # its factors have no places, and meet wherever they are
            graphs.pop(mask, None)
        tests = {}
        for column in TESTED:
            recipe = column_recipe(column, components=table1.components)
            parents = [fit_parents(recorded[seed], task.graph, recipe, seed=seed, task=task) for seed in seeds]
            tests[column] = [
                draw_test_rows(task, column, parents[seed], table1.test_rows, seed, device) for seed in seeds
            ]
        cells, datasets = [], {}
        for mask, graph in graphs.items():
            models = fit_models(
                recorded, graph, "local", table2.dynamics, folder=folder, progress=progress, name=f"local-{mask}"
            )
            for column, rows in tests.items():
                drawn = [Stream(seed, "table1-draw", column, device=device) for seed in seeds]
                errors = [next_state_errors(models[seed], task, rows[seed], drawn[seed]) for seed in seeds]
                norms = [100 * float(error.mean()) for error in errors]
                cells.append({"world": "navigation", **cell(mask, f"error x 100, {column}", norms)})
            own = with_graph(task, graph)
            datasets[mask] = [table2.dataset(own, "mocoda", recorded[seed], models[seed], seed) for seed in seeds]
        clock.lap("navigation models")
        agent = table2.agents[0]
        policies = fit_agents(
            datasets,
            agent,
            folder=folder,
            name=f"agents-{agent.name}",
            seeds=seeds,
            updates=table2.updates,
            task=task,
            evaluate_every=table2.evaluate_every,
            episodes=table2.episodes,
            progress=progress,
        )
        clock.lap("navigation agents")
        for mask in graphs:
            steps = last_evaluations(policies, "steps", mask, table2.last)
            cells.append({"world": "navigation", **cell(mask, f"steps, {agent.name}", steps)})
        return cells, text

    def _hooksweep(
        self, device: str, folder: Path, clock: Stopwatch, progress: Progress, workers: int | None
    ) -> tuple[Cells, str]:
        table = Table3.presets[self.sizes]
        table = replace(
            table,
            seeds=self.seeds,
            dynamics=self._shorter(table.dynamics),
            rows=self.rows or table.rows,
            total=self.total or table.total,
            confirmed_rows=self.confirmed_rows or table.confirmed_rows,
        )
        agent = next(agent for agent in table.agents if agent.name == "td3-bc")
        task, seeds = HookSweep2(), range(self.seeds)
        recorded = record(task, table.rows, table.variety, folder, workers, progress).to(device)
        clock.lap("recording")
        graphs, text = self._graphs(task.graph, recorded, folder, progress)
        clock.lap("hooksweep2 graph")
        recipe = column_recipe(
            self.column,
            components=table.components,
            acceptance=table.acceptance,
            density_floor=table.density_floor,
        )
        assert isinstance(recipe, Mocoda)
        recipes = {mask: replace(recipe, composition=mask == "composed") for mask in graphs}
        models, parents = {}, {}
        for mask, graph in graphs.items():
            models[mask] = fit_models(
                [recorded] * self.seeds,
                graph,
                "local",
                table.dynamics,
                folder=folder,
                progress=progress,
                name=f"local-{mask.replace('composed', 'learned')}",  # of one graph there is one model
            )
            own = with_graph(task, graph)
            parents[mask] = [fit_parents(recorded, graph, recipes[mask], seed=seed, task=own) for seed in seeds]
            clock.lap(f"hooksweep2 {mask}")
        truth = folder / "truth.json"
        if not truth.exists():
            write_json(truth, {"cells": self._truth(table, recorded, models, parents, workers)})
        cells: Cells = read_json(truth)["cells"]
        clock.lap("hooksweep2 truth")
        more = table.total - len(recorded)
        datasets = {
            mask: [
                augment(recorded, parents[mask][seed], models[mask][seed], rows=more, task=task, seed=seed,
                        provenance=False)
                for seed in seeds
            ]
            for mask in graphs
        }  # fmt: skip
        clock.lap("hooksweep2 data")
        updates = self.updates or table.updates[agent.name]
        policies = fit_agents(
            datasets,
            agent,
            folder=folder,
            name=f"agents-{agent.name}",
            seeds=seeds,
            updates=updates,
            task=task,
            evaluate_every=updates // table.evaluations,
            episodes=table.episodes,
            half=table.half,
            workers=workers,
            progress=progress,
        )
        clock.lap("hooksweep2 agents")
        for mask in graphs:
            success = [100 * share for share in last_evaluations(policies, "success", mask, table.last)]
            cells.append({"world": "hooksweep2", **cell(mask, f"success, %, {agent.name}", success)})
        return cells, text

    def _truth(
        self,
        table: Table3,
        recorded: Transitions,
        models: dict[str, list[Dynamics]],
        parents: dict[str, list[Parents]],
        workers: int | None,
    ) -> Cells:
        """HookSweep2's model errors, and what the simulator confirms, by mask."""
        kinds = {"one": ("one", "varied"), "two": ("two", "plain")}
        tests = {
            name: as_transitions(played_by_expert(*kind, table.expert_episodes, seed=EXPERT, workers=workers))
            for name, kind in kinds.items()
        }
        cells: Cells = []

        def add(mask: str, measure: str, values: list[float]) -> None:
            cells.append({"world": "hooksweep2", **cell(mask, measure, values)})

        found = model_errors(models, {name: rows.to(recorded.device) for name, rows in tests.items()})
        for name in tests:
            for mask in models:
                own = [
                    one["values"]
                    for one in found
                    if (one["data"], one["architecture"]) == (name, mask) and one["factor"].startswith("box")
                ]
                add(mask, f"box error, mm, {name} swept", [sum(values) / len(own) for values in zip(*own, strict=True)])
        drawn = {mask: (parents[mask][0], models[mask][0]) for mask in models}
        for one in confirmations(drawn, recorded, table.confirmed_rows, workers):
            if one["data"] in models:
                for key, measure in (("confirmed", "confirmed, %"), ("confirmed_moving", "confirmed where moving, %")):
                    if one[key] is not None:
                        add(one["data"], measure, [one[key]])
        return cells

    def _shorter(self, dynamics: DynamicsConfig) -> DynamicsConfig:
        if self.epochs is None:
            return dynamics
        return replace(dynamics, epochs=self.epochs, window=min(dynamics.window, self.epochs))

    def _graphs(
        self, given: LocalGraph, recorded: Transitions, folder: Path, progress: Progress
    ) -> tuple[dict[str, LocalGraph], str]:
        """The graph of every mask, and the learned one in words; it is learned from the first seed's rows, and kept."""
        file = folder / "learned.graph"
        if not file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            learn_graph(
                recorded,
                given.state,
                given.action,
                seed=0,
                caution=self.caution,
                unseen="apart",
                config=self.graphs,
                progress=progress,
            ).save(file)
        learned = load_learned(file)
        everything = LocalGraph(given.state, given.action, dict.fromkeys(given.children, given.parents))
        near = LocalGraph(
            given.state,
            given.action,
            {child: [child, *given.action] if number == 0 else [child] for number, child in enumerate(given.children)},
            local=near_mask,
        )
        made = {"given": given, "learned": learned, "composed": learned, "dense": everything, "distance": near}
        return {mask: replace(made[mask], relative=given.relative) for mask in self.masks}, str(learned)


def read_json(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return found


def with_graph(task: T, graph: LocalGraph) -> T:
    """The same task with another graph."""
    other = type(task)()
    other.graph = graph
    return other


def near_mask(rows: Tensor) -> Tensor:
    """HookSweep2's distance rule: bodies depend on those near them in xy, and on the action as on the gripper."""
    place = torch.stack([rows[:, :2], rows[:, 6:8], rows[:, 11:13]], 1)
    near = (place[:, :, None] - place[:, None]).norm(dim=3) < REACH
    return torch.cat([near, near[:, :1]], 1)


LearnedMasks.presets.update(
    # A third of the tables' training, and of their rows, so that all masks take ten minutes on an H200.
    paper=LearnedMasks(
        "paper",
        seeds=3,
        sizes="paper",
        graphs=GraphConfig(),
        epochs=300,
        rows=400_000,
        total=2_000_000,
        updates=50_000,
    ),
    # What one core does in 34 minutes: small models and agents, and fewer rows.
    cores=LearnedMasks(
        "cores",
        seeds=2,
        sizes="quick",
        graphs=GraphConfig(),
        epochs=80,
        rows=100_000,
        total=500_000,
        updates=25_000,
        confirmed_rows=2_000,
    ),
    quick=LearnedMasks("quick", seeds=1, sizes="quick", graphs=GraphConfig.quick()),
)


# The figure


def draw_masks(cells: Cells, path: Path) -> None:
    """Draws a panel a measure: a bar a mask, with a line of a standard deviation."""
    measures = list(dict.fromkeys((one["world"], one["column"]) for one in cells))
    across = min(4, len(measures))
    down = -(-len(measures) // across)
    figure = Figure(figsize=(3.2 * across, 2.4 * down), layout="constrained")
    grid = list(figure.subplots(down, across, squeeze=False).flat)
    for axes in grid[len(measures) :]:
        axes.set_visible(False)
    for axes, (world, measure) in zip(grid, measures, strict=False):
        own = [one for one in cells if (one["world"], one["column"]) == (world, measure)]
        names = [one["row"] for one in own]
        axes.barh(names, [one["mean"] for one in own], 0.6, xerr=[one["std"] for one in own], color=BLUE, ecolor=INK)
        axes.invert_yaxis()
        axes.set_xlim(0, None if any(one["mean"] for one in own) else 1)
        title_left(axes, f"{world}\n{measure}", fontsize=9)
        bare(axes)
    save(figure, path)
