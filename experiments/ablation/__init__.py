"""Ablations: variants of an agent on a table's data, with seeds that no table uses.

The settings of the tables were chosen by these. A study names an agent of Table 2 or 3, the data sets it is trained on,
and what each variant changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import rich.table
from matplotlib.figure import Figure
from tyro.conf import Positional

from experiments.experiment import Experiment, Measured, Stopwatch, check_training, spread, text_table
from experiments.stages import begun, fit_agents, fit_models, last_evaluations
from experiments.table2 import Table2
from experiments.table3 import Table3
from mocoda.agents import Agent
from mocoda.agents.policy import agent_settings
from mocoda.augmentation.rewards import label
from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.figures import BLUE, GREEN, INK, ORANGE, RED, bare, legend_below, save, title_left
from mocoda.engine.files import write_json
from mocoda.engine.progress import Progress, silent
from mocoda.tasks import Task
from mocoda.tasks.hooksweep import HookSweep2
from mocoda.tasks.navigation import Navigation

FIRST = 100  # the first seed
SHADES = (BLUE, ORANGE, GREEN, RED)  # of data sets


class Study(NamedTuple):
    """What a study compares.

    table     "table2" or "table3": where data, agent and evaluation come from
    agent     its name
    data      of Table 2: by name, what is changed of the table; of Table 3: the columns
    variants  by name, what is changed of the agent; "half" trains it with hidden layers in bfloat16
    """

    table: str
    agent: str
    data: Mapping[str, Mapping[str, Any]]
    variants: Mapping[str, Mapping[str, Any]]


MIXTURES: Mapping[str, Mapping[str, Any]] = {
    "mixture": {},
    "published": {"published_code": True},
    "true next states": {"published_code": True, "true_next_states": True},
}
SWEEPS: Mapping[str, Mapping[str, Any]] = {"mocoda": {}, "mocoda-matched": {}, "mocoda-p-matched": {}}
STUDIES = {
    "table2-td3-bc": Study(
        "table2",
        "td3-bc",
        MIXTURES,
        {"as in the table": {}, "standardised": {"standardise": True}, "batch 2,000": {"batch": 2_000}},
    ),
    "table2-bcq": Study(
        "table2",
        "bcq",
        MIXTURES,
        {
            "as in the table": {},
            "two critics": {"critics": 2},
            "samplers trained 5 times as long": {"sampler_updates": 5_000},
            "5 proposals": {"proposals": 5},
            "100 proposals": {"proposals": 100},
            "100 proposals, two critics": {"proposals": 100, "critics": 2},
        },
    ),
    "table2-cql": Study(
        "table2",
        "cql",
        MIXTURES,
        {"as in the table": {}, "standardised": {"standardise": True}, "entropy 0.05": {"entropy": 0.05}},
    ),
    "table3-td3-bc": Study(
        "table3",
        "td3-bc",
        SWEEPS,
        {
            "batch 500": {"batch": 500},
            "batch 2,000": {"batch": 2_000},
            "batch 2,000, bfloat16": {"batch": 2_000, "half": True},
            "batch 2,000, bfloat16, targets follow by 0.02": {"batch": 2_000, "half": True, "polyak": 0.02},
        },
    ),
    "table3-bcq": Study(
        "table3",
        "bcq",
        {"mocoda-p": {}, "mocoda-p-matched": {}},
        {
            "one critic": {"critics": 1, "half": True},
            "two critics": {"critics": 2, "half": True},
            "two critics, temperature 0.5": {"critics": 2, "temperature": 0.5, "half": True},
            "two critics, 5 proposals": {"critics": 2, "proposals": 5, "half": True},
        },
    ),
}


@dataclass(frozen=True)
class Ablation(Experiment[Measured]):
    """Compare variants of an agent on the data of Table 2 or 3, with seeds that no table uses."""

    name = "ablation"
    metric = "as in the table: mean over the last evaluations while training, one value a seed"
    outputs = ("ablation.json", "ablation.png")
    presets: ClassVar[dict[str, Ablation]] = {}

    updates: int
    evaluate_every: int
    last: int
    study: Positional[str] = "table2-td3-bc"
    only: tuple[str, ...] = ()  # variants to train; all of the study, if none is named

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.study not in STUDIES:
            raise unknown_name("study", self.study, STUDIES)
        for name in self.only:
            if name not in STUDIES[self.study].variants:
                raise unknown_name("variant", name, STUDIES[self.study].variants)
        check_training(1, 1, self.last, self.updates // self.evaluate_every)

    def config(self) -> dict[str, Any]:
        agents = {name: agent_settings(agent) | options for name, (agent, options) in self.variants().items()}
        return super().config() | {"agents": agents}

    def variants(self) -> dict[str, tuple[Agent, dict[str, Any]]]:
        """By name: the agent, and options of its training."""
        study = STUDIES[self.study]
        table: Table2 | Table3 = (Table2 if study.table == "table2" else Table3).presets[self.preset]
        base = {agent.name: agent for agent in table.agents}.get(study.agent)
        if base is None:
            raise InputError(f"{study.table} has no {study.agent} in its preset {self.preset!r}; pass --preset paper.")
        made = {}
        for name, changes in study.variants.items():
            options = {key: changes[key] for key in ("half",) if key in changes}
            made[name] = replace(base, **{key: v for key, v in changes.items() if key not in options}), options
        return {name: made[name] for name in self.only or made}

    def run(self, *, device: str, folder: Path, progress: Progress = silent, workers: int | None = None) -> Measured:
        """Makes the data once, and trains every variant on it."""
        clock, resumed = Stopwatch(), begun(folder)
        study, variants = STUDIES[self.study], self.variants()
        seeds = range(FIRST, FIRST + self.seeds)
        task, datasets = self._data(study, seeds, device, folder, clock, progress, workers)
        measure, scale = ("steps", 1) if study.table == "table2" else ("success", 100)
        cells = []
        for name, (agent, options) in variants.items():
            policies = fit_agents(
                datasets,
                agent,
                folder=folder,
                name=f"agents-{name.replace(',', '').replace(' ', '-')}",
                seeds=seeds,
                updates=self.updates,
                task=task,
                evaluate_every=self.evaluate_every,
                episodes=10 if study.table == "table2" else 5,
                workers=workers,
                progress=progress,
                **options,
            )
            clock.lap(name)
            for data in datasets:
                values = [scale * value for value in last_evaluations(policies, measure, data, self.last)]
                cells.append({"row": name, "column": data, **spread(values)})
        heading = self.heading(device, clock, resumed=resumed)
        return Measured({**heading, "measure": measure, "seeds": list(seeds), "cells": cells})

    def write(self, measured: Measured, folder: Path) -> rich.table.Table:
        write_json(folder / self.outputs[0], measured.results)
        draw_ablation(measured.results, folder / self.outputs[1])
        cells = measured.results["cells"]
        columns = list(dict.fromkeys(cell["column"] for cell in cells))
        rows = [
            [row, *(f"{c['mean']:.1f} ± {c['std']:.1f}" for c in cells if c["row"] == row)]
            for row in dict.fromkeys(cell["row"] for cell in cells)
        ]
        return text_table(f"{self.study}: {measured.results['measure']}", ["", *columns], rows)

    def _data(
        self,
        study: Study,
        seeds: Sequence[int],
        device: str,
        folder: Path,
        clock: Stopwatch,
        progress: Progress,
        workers: int | None,
    ) -> tuple[Task, dict[str, list[Transitions]]]:
        """The task, and a table a seed of every data set."""
        if study.table == "table3":
            sweeping = HookSweep2()
            table3 = replace(Table3.presets[self.preset], seeds=1, columns=tuple(study.data))
            made = table3.prepare(sweeping, device, folder, clock, progress, workers).datasets
            return sweeping, {column: tables * len(seeds) for column, tables in made.items()}
        task, table2 = Navigation(), Table2.presets[self.preset]
        recorded = [task.collect(table2.rows, seed=seed).to(device) for seed in seeds]
        models = fit_models(
            recorded, task.graph, "local", table2.dynamics, folder=folder, progress=progress, seeds=seeds
        )
        clock.lap("dynamics")
        datasets = {}
        for name, changes in study.data.items():
            truth = changes.get("true_next_states", False)
            changed = replace(table2, **{key: v for key, v in changes.items() if key != "true_next_states"})
            tables = [
                changed.dataset(task, "mocoda", data, model, seed)
                for data, model, seed in zip(recorded, models, seeds, strict=True)
            ]
            datasets[name] = [with_true_next_states(task, table) for table in tables] if truth else tables
        clock.lap("data")
        return task, datasets


def with_true_next_states(task: Navigation, data: Transitions) -> Transitions:
    """The same states and actions, followed by what really happens."""
    return label(Transitions(data.state, data.action, task.step(data.rows), columns=data.columns), task)


Ablation.presets.update(
    paper=Ablation("paper", seeds=3, updates=25_000, evaluate_every=100, last=50),
    quick=Ablation("quick", seeds=1, updates=400, evaluate_every=200, last=1),
)


# The figure


def draw_ablation(results: Mapping[str, Any], path: Path) -> None:
    """Draws a group of dots a variant: a colour a data set, a dot a seed, and a line at their mean."""
    cells = results["cells"]
    rows, columns = (list(dict.fromkeys(cell[key] for cell in cells)) for key in ("row", "column"))
    figure = Figure(figsize=(8, 1.2 + 0.55 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for cell in cells:
        number = columns.index(cell["column"])
        place = rows.index(cell["row"]) + 0.22 * (number - (len(columns) - 1) / 2)
        colour = SHADES[number % len(SHADES)]
        axes.plot(cell["values"], [place] * len(cell["values"]), "o", ms=4, mew=0, color=colour, alpha=0.6)
        axes.plot(cell["mean"], place, "|", ms=14, mew=2.5, color=colour, label=cell["column"])
    axes.set_yticks(range(len(rows)), rows, color=INK)
    axes.invert_yaxis()
    axes.set_xlabel("success (%)" if results["measure"] == "success" else "steps to the goal")
    title_left(axes, f"{results['config']['study']}: a dot is a seed, a bar their mean")
    bare(axes)
    legend_below(figure)
    save(figure, path)
