"""What a learned mask is for: models, generated rows and agents with the given, a learned, a dense and a distance mask.

2D Navigation: Table 1's local model and a Table 2 agent. HookSweep2: the model's error, the rows that the simulator
confirms, and success, as in Table 3. Everything but the graph is as in those tables. "composed" is the learned mask
again, with rows in which boxes that were swept one at a time are swept at once, as the given parent sets draw them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from experiments.columns import column_recipe
from experiments.experiment import Cells, Experiment, Run, cell, check_names, markdown_table, plus_minus, read_json
from experiments.stages import fit_agents, fit_models, last_evaluations, next_state_errors, record
from experiments.sweeping_truth import as_transitions, confirmation, model_errors, played_by_expert
from experiments.table1 import Table1, draw_test_rows
from experiments.table2 import Table2
from experiments.table3 import EXPERT, Table3
from mocoda.augmentation.generation import augment
from mocoda.data.transitions import Transitions
from mocoda.dynamics import Dynamics, DynamicsConfig
from mocoda.engine.files import write_json
from mocoda.engine.progress import Progress
from mocoda.engine.randomness import Stream
from mocoda.graph.learned import check_caution, load_learned
from mocoda.graph.learning import GateLearner, learn_graph
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents import Mocoda, Parents, fit_parents
from mocoda.tasks.hooksweep import HookSweep2
from mocoda.tasks.navigation import Navigation

MASKS = ("given", "learned", "composed", "dense", "distance")
WORLDS = ("navigation", "hooksweep2")
REACH = 0.1  # metres in xy between a gripper and a box, or two boxes, within which the distance rule has an edge
TESTED = ("emp", "rand", "mocoda", "mocoda-u")  # distributions of Table 1 that take no model of their own
T = TypeVar("T", Navigation, HookSweep2)


@dataclass(frozen=True)
class LearnedMasks(Experiment):
    """Models and agents with the given, a learned, a dense and a distance mask."""

    name = "learned-masks"
    metric = (
        "by measure. error: as in Table 1. steps: as in Table 2. box error: mm where a box moves, one or two swept. "
        "confirmed: percent of generated rows, all and those in which a box moves. success: percent, as in Table 3"
    )
    outputs = ("learned-masks.json",)

    sizes: str  # the preset of the tables whose sizes are taken
    graphs: GateLearner
    worlds: tuple[str, ...] = WORLDS
    masks: tuple[str, ...] = MASKS
    caution: float = GateLearner.caution  # of the learned graph
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
        check_names("world", self.worlds, WORLDS)
        check_names("mask", self.masks, MASKS)
        check_caution(self.caution)

    def measure(self, run: Run) -> dict[str, Any]:
        """Learns a graph per world, then fits a model and trains an agent with every mask."""
        cells: Cells = []
        learned: dict[str, str] = {}
        for world in self.worlds:
            file = run.folder / world / "cells.json"
            if not file.exists():
                file.parent.mkdir(exist_ok=True)
                made = self._navigation if world == "navigation" else self._hooksweep
                found, text = made(replace(run, folder=file.parent))
                write_json(file, {"cells": found, "learned": text})
            kept = read_json(file)
            cells += kept["cells"]
            learned[world] = kept["learned"]
        return {"learned": learned, "cells": cells}

    def _navigation(self, run: Run) -> tuple[Cells, str]:
        table1, table2 = Table1.presets[self.sizes], Table2.presets[self.sizes]
        table2 = replace(table2, dynamics=self._shorter(table2.dynamics))
        seeds, task = range(self.seeds), Navigation()
        recorded = [task.collect(table1.rows, seed=seed).to(run.device) for seed in seeds]
        graphs, text = self._graphs(task.graph, recorded[0], run.folder, run.progress)
        run.lap("navigation graph")
        for mask in ("distance", "composed"):  # its factors have no places, and meet wherever they are
            graphs.pop(mask, None)
        tests = {}
        for column in TESTED:
            recipe = column_recipe(column, components=table1.components)
            parents = [fit_parents(recorded[seed], task.graph, recipe, seed=seed, task=task) for seed in seeds]
            tests[column] = [
                draw_test_rows(task, column, parents[seed], table1.test_rows, seed, run.device) for seed in seeds
            ]
        cells, datasets = [], {}
        for mask, graph in graphs.items():
            models = fit_models(run, recorded, graph, "local", table2.dynamics, name=f"local-{mask}")
            for column, rows in tests.items():
                drawn = [Stream(seed, "table1-draw", column, device=run.device) for seed in seeds]
                errors = [next_state_errors(models[seed], task, rows[seed], drawn[seed]) for seed in seeds]
                norms = [100 * float(error.mean()) for error in errors]
                cells.append({"world": "navigation", **cell(mask, f"error x 100, {column}", norms)})
            own = with_graph(task, graph)
            datasets[mask] = [table2.dataset(own, "mocoda", recorded[seed], models[seed], seed) for seed in seeds]
        run.lap("navigation models")
        agent = table2.agents["td3-bc"]
        policies = fit_agents(
            run,
            datasets,
            agent,
            name=f"agents-{agent.name}",
            updates=table2.updates,
            task=task,
            evaluate_every=table2.evaluate_every,
            episodes=table2.episodes,
        )
        run.lap("navigation agents")
        for mask in graphs:
            steps = last_evaluations(policies, "steps", mask, table2.last)
            cells.append({"world": "navigation", **cell(mask, f"steps, {agent.name}", steps)})
        return cells, text

    def _hooksweep(self, run: Run) -> tuple[Cells, str]:
        table = Table3.presets[self.sizes]
        table = replace(
            table,
            seeds=self.seeds,
            dynamics=self._shorter(table.dynamics),
            rows=self.rows or table.rows,
            total=self.total or table.total,
            confirmed_rows=self.confirmed_rows or table.confirmed_rows,
        )
        agent = table.agents["td3-bc"]
        task, seeds = HookSweep2(), range(self.seeds)
        recorded = record(run, task, table.rows, table.variety)
        run.lap("recording")
        graphs, text = self._graphs(task.graph, recorded, run.folder, run.progress)
        run.lap("hooksweep2 graph")
        recipe = column_recipe(
            self.column, components=table.components, acceptance=table.acceptance, density_floor=table.density_floor
        )
        assert isinstance(recipe, Mocoda)
        recipes = {mask: replace(recipe, composition=mask == "composed") for mask in graphs}
        models, parents = {}, {}
        for mask, graph in graphs.items():
            name = f"local-{mask.replace('composed', 'learned')}"  # of one graph there is one model
            models[mask] = fit_models(run, [recorded] * self.seeds, graph, "local", table.dynamics, name=name)
            own = with_graph(task, graph)
            parents[mask] = [fit_parents(recorded, graph, recipes[mask], seed=seed, task=own) for seed in seeds]
            run.lap(f"hooksweep2 {mask}")
        truth = run.folder / "truth.json"
        if not truth.exists():
            write_json(truth, {"cells": self._truth(table, recorded, models, parents, run.workers)})
        cells: Cells = read_json(truth)["cells"]
        run.lap("hooksweep2 truth")
        made: dict[str, Any] = {"rows": table.total - len(recorded), "task": task, "provenance": False, "reuse": False}
        datasets = {
            mask: [augment(recorded, parents[mask][seed], models[mask][seed], seed=seed, **made) for seed in seeds]
            for mask in graphs
        }
        run.lap("hooksweep2 data")
        updates = self.updates or table.updates[agent.name]
        policies = fit_agents(
            run,
            datasets,
            agent,
            name=f"agents-{agent.name}",
            updates=updates,
            task=task,
            evaluate_every=updates // table.evaluations,
            episodes=table.episodes,
            half=table.half,
        )
        run.lap("hooksweep2 agents")
        for mask in graphs:
            success = last_evaluations(policies, "success", mask, table.last, scale=100)
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
        for mask in models:
            options: dict[str, Any] = {"keep_recorded": False, "provenance": False, "reuse": False}
            drawn = augment(recorded, parents[mask][0], models[mask][0], rows=table.confirmed_rows, **options)
            one = confirmation(mask, drawn, workers)
            for key, measure in (("confirmed", "confirmed, %"), ("confirmed_moving", "confirmed where moving, %")):
                if one[key] is not None:
                    add(mask, measure, [one[key]])
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
                learner=self.graphs,
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

    @staticmethod
    def table(results: Mapping[str, Any]) -> str:
        found = {(one["world"], one["column"], one["row"]): one for one in results["cells"]}
        masks = [mask for mask in MASKS if any(row == mask for *_, row in found)]
        rows = []
        for world, measure in dict.fromkeys(key[:2] for key in found):
            own = (found.get((world, measure, mask)) for mask in masks)
            rows.append([f"{world}: {measure}", *("–" if one is None else plus_minus(one, 2) for one in own)])
        return markdown_table(["", *masks], rows)

    @staticmethod
    def answer(results: Mapping[str, Any]) -> str:
        found = {(one["column"], one["row"]): one["mean"] for one in results["cells"]}
        success = {mask: found["success, %, td3-bc", mask] for mask in ("given", "learned", "composed", "dense")}
        return (
            f"If contacts that were recorded one at a time are also composed, agents sweep both boxes as often with a "
            f"learned mask ({success['composed']:.0f}% of the episodes) as with the paper's ({success['given']:.0f}%); "
            f"with the learned mask alone in {success['learned']:.0f}%, and without a mask in {success['dense']:.0f}%."
        )

    @classmethod
    def blocks(cls, folder: Path) -> dict[str, str]:
        main = cls.results(folder)
        by_caution = {"0.2": read_json(folder / "caution-0.2.json"), "0.02": main}
        by_caution["0.005"] = read_json(folder / "caution-0.005.json")
        found = {
            (caution, one["column"], one["row"]): plus_minus(one, 1)
            for caution, results in by_caution.items()
            for one in results["cells"]
            if one["world"] == "hooksweep2"
        }
        rows = []
        for measure in dict.fromkeys(key[1] for key in found):
            for mask in ("learned", "composed") if measure.startswith("success") else ("learned",):
                label = measure + (", composed" if mask == "composed" else "")
                rows.append([label, *(found[caution, measure, mask] for caution in by_caution)])
        tables = {name: cls.table(read_json(folder / f"{name}.json")) for name in ("navigation", "confirmed")}
        return super().blocks(folder) | {"caution": markdown_table(["caution", *by_caution], rows)} | tables


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


LearnedMasks.presets = {
    # A third of the tables' training, and of their rows, so that all masks take ten minutes on an H200.
    "paper": LearnedMasks(
        "paper", seeds=3, sizes="paper", graphs=GateLearner(), epochs=300, rows=400_000, total=2_000_000, updates=50_000
    ),
    "quick": LearnedMasks("quick", seeds=1, sizes="quick", graphs=GateLearner.quick()),
}
