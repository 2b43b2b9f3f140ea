"""Table 3: agents that sweep two boxes, trained on data in which one is swept at a time.

Columns are called as in `experiments.columns`. What the paper reports stands beside what we measure, and under it the
success of the scripted expert, which no agent learns from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.columns import FULL, MATCHED, Column, column_recipe
from experiments.experiment import (
    Experiment,
    Run,
    by_place,
    cell,
    cells_table,
    check_names,
    check_training,
    markdown_table,
    plus_minus,
    read_json,
)
from experiments.stages import (
    agent_cell,
    agents_config,
    fit_agents,
    fit_models,
    last_evaluations,
    learning_curves,
    paper_agent,
    record,
    runs_of,
)
from experiments.sweeping_truth import (
    as_transitions,
    confirmations,
    mask_mistakes,
    model_errors,
    played_by_expert,
    successes,
)
from experiments.table3.figure import column_title, draw_curves, draw_success, draw_tables
from mocoda.agents import Agent
from mocoda.agents.evaluation import Played, play_in_environment
from mocoda.agents.policy import Policies
from mocoda.augmentation.generation import augment
from mocoda.data.transitions import Transitions
from mocoda.dynamics import Dynamics, DynamicsConfig
from mocoda.engine.errors import InputError
from mocoda.engine.files import write_json
from mocoda.parents import Parents, fit_parents
from mocoda.tasks.hooksweep import HookSweep2
from mocoda.tasks.hooksweep_expert import Episode

IN_PAPER = ("emp", "mocoda", "mocoda-p", "mocoda-full", "mocoda-p-full")
# Table 3 of the paper, (mean, standard deviation) over three seeds, in the order of its columns.
PAPER: dict[str, tuple[tuple[float, float], ...]] = {
    "td3-bc": ((0.7, 0.9), (38.7, 7.5), (84.0, 2.8), (29.3, 3.8), (26.0, 1.6)),
    "bcq": ((2.0, 1.6), (20.7, 4.1), (64.7, 4.1), (14.0, 3.3), (15.3, 4.1)),
}
COLUMNS = (*IN_PAPER, "mocoda-matched", "mocoda-p-matched", "mocoda-matched-full", "mocoda-p-matched-full")
PLACES, WANTED = [6, 7, 11, 12], [16, 17, 19, 20]  # of an observation: where the boxes are, in xy, and should be
SHOWN = 20_000  # rows of a data set whose boxes the figure shows
EXPERT = 9  # the seed of the expert that is judged


class Prepared(NamedTuple):
    """All that agents of Table 3 are trained on; models, parents and data sets have one entry per seed."""

    recorded: Transitions
    models: dict[str, list[Dynamics]]  # by architecture
    parents: dict[str, list[Parents]]  # by column, less its "-full"
    datasets: dict[str, list[Transitions]]  # by column


@dataclass(frozen=True)
class Table3(Experiment):
    """How often agents sweep two boxes home, by the data they were trained on (Table 3 and Figure 4)."""

    name = "table3"
    metric = (
        "episodes in which both boxes end where they should, in percent: mean over the last evaluations while training"
    )
    outputs = ("table3.json", "table3-curves.json", "table3.png", "table3-curves.png", "figure4.png")

    dynamics: DynamicsConfig
    agents: tuple[Agent, ...]
    updates: Mapping[str, int]  # by agent
    columns: tuple[str, ...] = IN_PAPER
    variety: str = "varied"
    rows: int = 1_000_000  # recorded
    total: int = 5_000_000  # in every data set, the recorded ones among them
    evaluations: int = 100  # while an agent trains
    last: int = 50  # of them count
    episodes: int = 5  # of each
    final_episodes: int = 50  # of the trained agents
    expert_episodes: int = 200
    confirmed_rows: int = 2_000
    components: int = 128
    acceptance: float = 0.3
    density_floor: float = 0.05  # Appendix C.2
    half: bool = False  # train agents with hidden layers in bfloat16

    def __post_init__(self) -> None:
        super().__post_init__()
        check_training(self.total, self.rows, self.last, self.evaluations)
        for agent in self.agents:
            if self.updates.get(agent.name, 0) < self.evaluations:
                raise InputError(
                    f"updates must give {agent.name} at least one for each of the {self.evaluations} evaluations, got "
                    f"{self.updates.get(agent.name)}."
                )
        check_names("column", self.columns, COLUMNS)

    def config(self) -> dict[str, Any]:
        return super().config() | {"agents": agents_config(self.agents)}

    def measure(self, run: Run) -> dict[str, Any]:
        """Records, fits, augments and trains every agent on every data set, all seeds at once."""
        task = HookSweep2()
        recorded, models, parents, datasets = self.prepare(run, task)
        boxes = {column: task.features(tables[0].state[-SHOWN:]) for column, tables in datasets.items()}
        policies: dict[str, Policies] = {}
        cells: list[dict[str, Any]] = []
        for agent in self.agents:
            trained = policies[agent.name] = fit_agents(
                run,
                datasets,
                agent,
                name=f"agents-{agent.name}",
                updates=self.updates[agent.name],
                task=task,
                evaluate_every=self.updates[agent.name] // self.evaluations,
                episodes=self.episodes,
                half=self.half,
            )
            run.lap(agent.name)
            played = play_in_environment(
                list(trained.to("cpu").values()), task, episodes=self.final_episodes, seed=0, workers=run.workers
            )
            run.lap(f"{agent.name} episodes")
            cells += self.cells(agent.name, trained, played)
        experts = self._experts(run.workers)
        ends = {name: successes(episodes) for name, episodes in experts.items()}
        ceiling = ends["two plain"]["both"]
        cells += [cell("expert", column, [ceiling]) for column in self.columns]
        run.lap("expert")
        truth = self._truth(task, recorded, parents, models, experts, run.workers)
        run.lap("truth")
        _, curves, _, curves_figure, tables = (run.folder / name for name in self.outputs)
        by_agent = learning_curves(policies, "success", self.columns, digits=1, scale=100)
        write_json(curves, {"measure": "success in percent, mean over episodes, one list a seed", "agents": by_agent})
        draw_curves(by_agent, ceiling, curves_figure)
        shown = {column: places for column, places in boxes.items() if not column.endswith(FULL)}
        draw_tables(shown, task.goals(2_000, seed=0), tables)
        return {"recorded": dict(recorded.source), "cells": cells, "expert": ends, "truth": truth}

    def draw(self, results: Mapping[str, Any], folder: Path) -> None:
        draw_success(results["cells"], folder / self.outputs[2])

    def cells(self, row: str, policies: Policies, played: Played) -> list[dict[str, Any]]:
        """The cells of one agent: its success while it trained, and how the episodes that it played later ended."""
        success = {
            column: last_evaluations(policies, "success", column, self.last, scale=100) for column in self.columns
        }
        made = []
        for column in self.columns:
            paper = PAPER[row][IN_PAPER.index(column.replace(MATCHED, ""))] if row in PAPER else None
            mine = runs_of(policies, column)
            boxes = (played.last[mine][..., PLACES] - played.last[mine][..., WANTED]).reshape(len(mine), -1, 2, 2)
            ends = {
                "final_success": (100 * played.success[mine].mean(1)).tolist(),
                # How far a box is from its goal, in metres.
                "final_distance": np.linalg.norm(boxes, axis=-1).mean((1, 2)).tolist(),
            }
            made.append(agent_cell(row, column, success, paper, lower_is_better=False) | ends)
        return made

    @staticmethod
    def table(results: Mapping[str, Any]) -> str:
        titles = {column: column_title(column) for column in COLUMNS}
        return cells_table(results, 1, titles | {name: name.upper() for name in PAPER})

    @staticmethod
    def answer(results: Mapping[str, Any]) -> str:
        success = {place: one["mean"] for place, one in by_place(results).items()}
        return (
            f"Yes: TD3-BC sweeps both boxes in {success['td3-bc', 'emp']:.0f}% of the episodes when trained on the "
            f"recorded rows, in {success['td3-bc', 'mocoda-matched']:.0f}% with MoCoDA's rows, and in "
            f"{success['td3-bc', 'mocoda-full']:.0f}% with rows of an unfactored model."
        )

    @classmethod
    def blocks(cls, folder: Path) -> dict[str, str]:
        results, plain = (read_json(folder / name) for name in ("table3.json", "plain.json"))
        truth = results["truth"]
        confirmed = [
            ["recorded" if one["data"] == "recorded" else column_title(one["data"])]
            + [f"{one[key]:.0f}%" for key in ("confirmed", "confirmed_moving")]
            for one in truth["confirmed_by_the_simulator"]
        ]
        errors = {(one["data"], one["architecture"], one["factor"]): one for one in truth["model_errors_mm"]}
        rows = [
            [f"{data.replace('place', 'sweep')} box{'es' if data.endswith('two') else ''}", factor]
            + [f"{errors[data, architecture, factor]['mean']:.1f}" for architecture in ("local", "full")]
            for data in ("place one", "place two")
            for factor in ("gripper", "box1", "box2")
        ]
        edges = [
            [one["edge"], *(f"{one[key]:,}" for key in ("touched", "edges", "false_positives", "false_negatives"))]
            for one in truth["mask"]["place two"]["edges"]
        ]
        success = by_place(plain)
        plain_columns = ("emp", "mocoda", "mocoda-p")
        return super().blocks(folder) | {
            "confirmed": markdown_table(["rows", "confirmed", "of those in which a box moves"], confirmed),
            "errors": markdown_table(["episodes", "what moves", "factored model", "unfactored model"], rows),
            "mask": markdown_table(["edge", "rows that touch", "rows with the edge", "too many", "missed"], edges),
            "plain": markdown_table(
                ["", *map(column_title, plain_columns)],
                [["TD3-BC", *(plus_minus(success["td3-bc", column], 1) for column in plain_columns)]],
            ),
        }

    def prepare(self, run: Run, task: HookSweep2) -> Prepared:
        """Records, fits models and parents, and makes the data sets."""
        recorded = record(run, task, self.rows, self.variety)
        run.lap("recording")
        models = {
            architecture: fit_models(run, [recorded] * self.seeds, task.graph, architecture, self.dynamics)
            for architecture in dict.fromkeys(Column.of(column).architecture for column in self.columns)
        }
        run.lap("dynamics")
        parents = self.parent_distributions(task, recorded)
        run.lap("parents")
        datasets = self._datasets(run, task, recorded, parents, models)
        run.lap("data")
        return Prepared(recorded, models, parents, datasets)

    def parent_distributions(self, task: HookSweep2, recorded: Transitions) -> dict[str, list[Parents]]:
        """The parent distributions of the columns, one per seed."""
        recipes = {
            column: column_recipe(
                column, components=self.components, acceptance=self.acceptance, density_floor=self.density_floor
            )
            for column in dict.fromkeys(column.removesuffix(FULL) for column in self.columns)
        }
        return {
            name: [fit_parents(recorded, task.graph, recipe, seed=seed, task=task) for seed in range(self.seeds)]
            for name, recipe in recipes.items()
        }

    def _datasets(
        self,
        run: Run,
        task: HookSweep2,
        recorded: Transitions,
        parents: dict[str, list[Parents]],
        models: dict[str, list[Dynamics]],
    ) -> dict[str, list[Transitions]]:
        """`total` rows per column and seed: the recorded ones first; "emp" repeats them, each with another goal."""
        made: dict[str, list[Transitions]] = {}
        more = self.total - len(recorded)
        for number, column in enumerate(self.columns):
            sources = zip(parents[column.removesuffix(FULL)], models[Column.of(column).architecture], strict=True)
            made[column] = [
                augment(recorded, drawn, model, rows=more, task=task, seed=seed, provenance=False)
                for seed, (drawn, model) in enumerate(sources)
            ]
            run.progress("data sets", number + 1, len(self.columns))
        return made

    def _experts(self, workers: int | None) -> dict[str, list[Episode]]:
        """Episodes of the expert by mode and variety; none of them is trained on."""
        kinds = {"one plain": ("one", "plain"), "one varied": ("one", "varied"), "two plain": ("two", "plain")}
        return {
            name: played_by_expert(*kind, self.expert_episodes, seed=EXPERT, workers=workers)
            for name, kind in kinds.items()
        }

    def _truth(
        self,
        task: HookSweep2,
        recorded: Transitions,
        parents: dict[str, list[Parents]],
        models: dict[str, list[Dynamics]],
        experts: dict[str, list[Episode]],
        workers: int | None,
    ) -> dict[str, Any]:
        """How true the models and the mask are, on episodes that nothing was trained on."""
        held_out = {"place one": experts["one varied"], "place two": experts["two plain"]}
        tests = {name: as_transitions(episodes).to(recorded.device) for name, episodes in held_out.items()}
        drawn = {
            column: (parents[column.removesuffix(FULL)][0], models[Column.of(column).architecture][0])
            for column in self.columns
            if column != "emp"
        }
        return {
            "model_errors_mm": model_errors(models, tests),
            "confirmed_by_the_simulator": confirmations(drawn, recorded, self.confirmed_rows, workers),
            "mask": {name: mask_mistakes(task, episodes) for name, episodes in held_out.items()},
        }


def _sweeper(name: str, **settings: Any) -> Agent:
    return paper_agent(name, hidden=(512, 512, 512), decay=True, standardise=True, **settings)


def _small(name: str, **settings: Any) -> Agent:
    return paper_agent(name, hidden=(128, 128), batch=256, polyak=0.04, decay=True, standardise=True, **settings)


Table3.presets = {
    "paper": Table3(
        "paper",
        seeds=3,
        dynamics=DynamicsConfig(
            hidden=(512, 512), epochs=800, epoch_rows=40_000, learning_rate=5e-4, validation=5_000, window=50, tf32=True
        ),
        agents=(_sweeper("td3-bc", batch=2_000, imitation=4.0), _sweeper("bcq", sampler_updates=5_000)),
        columns=(*IN_PAPER[:3], "mocoda-matched", "mocoda-p-matched", *IN_PAPER[3:]),
        updates={"td3-bc": 140_000, "bcq": 40_000},
        half=True,
    ),
    "quick": Table3(
        "quick",
        seeds=2,
        dynamics=DynamicsConfig(
            members=2, hidden=(128, 128), features=64, epochs=40, epoch_rows=20_000, batch=256, validation=1_000
        ),
        agents=(_small("td3-bc", imitation=0.5),),
        columns=("emp", "mocoda-p", "mocoda-p-full"),
        rows=60_000,
        total=200_000,
        updates={"td3-bc": 8_000},
        evaluations=8,
        last=2,
        final_episodes=20,
        expert_episodes=40,
        confirmed_rows=200,
        components=32,
    ),
}
