"""Ablations: variants of an agent on a table's data, with seeds that no table uses.

A study names an agent of Table 2 or 3, the data sets it is trained on, and what each variant changes. Some settings of
the tables were chosen by these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from experiments.experiment import (
    Experiment,
    Run,
    by_place,
    cells_table,
    check_names,
    check_training,
    measured,
    read_json,
    spread,
    unique,
)
from experiments.figures import PALETTE
from experiments.stages import fit_agents, fit_models, last_evaluations
from experiments.table2 import Table2
from experiments.table3 import Table3
from mocoda.agents import Agent
from mocoda.agents.policy import agent_settings
from mocoda.augmentation.rewards import label
from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.figures import INK, bare, legend_below, save, title_left
from mocoda.tasks import Task
from mocoda.tasks.hooksweep import HookSweep2
from mocoda.tasks.navigation import Navigation

FIRST = 100  # the first seed


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
class Ablation(Experiment):
    """Compare variants of an agent on the data of Table 2 or 3, with seeds that no table uses."""

    name = "ablation"
    metric = "as in the table: mean over the last evaluations while training, one value a seed"
    outputs = ("ablation.json", "ablation.png")

    updates: int
    evaluate_every: int
    last: int
    study: str = "table2-td3-bc"
    only: tuple[str, ...] = ()  # variants to train; all of the study, if none is named

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names("study", [self.study], STUDIES)
        if self.only:
            check_names("variant", self.only, STUDIES[self.study].variants)
        check_training(1, 1, self.last, self.updates // self.evaluate_every)

    def config(self) -> dict[str, Any]:
        agents = {name: agent_settings(agent) | options for name, (agent, options) in self.variants().items()}
        return super().config() | {"agents": agents}

    def variants(self) -> dict[str, tuple[Agent, dict[str, Any]]]:
        """By name: the agent, and options of its training."""
        study = STUDIES[self.study]
        table: Any = (Table2 if study.table == "table2" else Table3).presets[self.preset]
        base = {agent.name: agent for agent in table.agents}.get(study.agent)
        if base is None:
            raise InputError(f"{study.table} has no {study.agent} in its preset {self.preset!r}; pass --preset paper.")
        made = {}
        for name, changes in study.variants.items():
            options = {key: changes[key] for key in ("half",) if key in changes}
            made[name] = replace(base, **{key: v for key, v in changes.items() if key not in options}), options
        return {name: made[name] for name in self.only or made}

    def measure(self, run: Run) -> dict[str, Any]:
        """Makes the data once, and trains every variant on it."""
        study, seeds = STUDIES[self.study], range(FIRST, FIRST + self.seeds)
        task, datasets = self._data(run, study, seeds)
        measure, scale = ("steps", 1) if study.table == "table2" else ("success", 100)
        cells = []
        for name, (agent, options) in self.variants().items():
            policies = fit_agents(
                run,
                datasets,
                agent,
                name=f"agents-{name.replace(',', '').replace(' ', '-')}",
                seeds=seeds,
                updates=self.updates,
                task=task,
                evaluate_every=self.evaluate_every,
                episodes=10 if study.table == "table2" else 5,
                **options,
            )
            run.lap(name)
            for data in datasets:
                values = last_evaluations(policies, measure, data, self.last, scale)
                cells.append({"row": name, "column": data, **spread(values)})
        return {"measure": measure, "seeds": list(seeds), "cells": cells}

    def _data(self, run: Run, study: Study, seeds: Sequence[int]) -> tuple[Task, dict[str, list[Transitions]]]:
        """The task, and a table per seed of every data set."""
        if study.table == "table3":
            table3 = replace(Table3.presets[self.preset], seeds=1, columns=tuple(study.data))
            task3 = HookSweep2()
            made = table3.prepare(run, task3).datasets
            return task3, {column: tables * len(seeds) for column, tables in made.items()}
        task, table2 = Navigation(), Table2.presets[self.preset]
        recorded = [task.collect(table2.rows, seed=seed).to(run.device) for seed in seeds]
        models = fit_models(run, recorded, task.graph, "local", table2.dynamics, seeds=seeds)
        run.lap("dynamics")
        datasets = {}
        for name, changes in study.data.items():
            truth = changes.get("true_next_states", False)
            changed = replace(table2, **{key: v for key, v in changes.items() if key != "true_next_states"})
            tables = [
                changed.dataset(task, "mocoda", data, model, seed)
                for data, model, seed in zip(recorded, models, seeds, strict=True)
            ]
            datasets[name] = [with_true_next_states(task, table) for table in tables] if truth else tables
        run.lap("data")
        return task, datasets

    def draw(self, results: Mapping[str, Any], folder: Path) -> None:
        """Draws a group of dots per variant: a colour per data set, a dot per seed, and a line at their mean."""
        cells = results["cells"]
        rows, columns = unique(cells, "row"), unique(cells, "column")
        figure = Figure(figsize=(8, 1.2 + 0.55 * len(rows)), layout="constrained")
        axes = figure.subplots()
        for cell in cells:
            number = columns.index(cell["column"])
            place = rows.index(cell["row"]) + 0.22 * (number - (len(columns) - 1) / 2)
            colour = PALETTE[number % len(PALETTE)]
            axes.plot(cell["values"], [place] * len(cell["values"]), "o", ms=4, mew=0, color=colour, alpha=0.6)
            axes.plot(cell["mean"], place, "|", ms=14, mew=2.5, color=colour, label=cell["column"])
        axes.set_yticks(range(len(rows)), rows, color=INK)
        axes.invert_yaxis()
        axes.set_xlabel("success (%)" if results["measure"] == "success" else "steps to the goal")
        title_left(axes, f"{results['config']['study']}: a dot is a seed, a bar their mean")
        bare(axes)
        legend_below(figure)
        save(figure, folder / self.outputs[1])

    @staticmethod
    def table(results: Mapping[str, Any]) -> str:
        return cells_table(results, 1)

    @staticmethod
    def answer(results: Mapping[str, Any]) -> str:
        steps = {place: one["mean"] for place, one in by_place(results).items()}
        return (
            "In part: on parents drawn as the paper's code draws them BCQ needs "
            f"{steps['as in the table', 'published']:.1f} steps instead of "
            f"{steps['as in the table', 'mixture']:.1f}; two critics or other numbers of proposals do not help."
        )

    @classmethod
    def blocks(cls, folder: Path) -> dict[str, str]:
        found = {study: read_json(folder / f"{study}.json") for study in STUDIES}
        blocks = {study: f"{measured(results)}\n\n{cls.table(results)}" for study, results in found.items()}
        return blocks | {"answer": cls.answer(found["table2-bcq"])}


Ablation.presets = {
    "paper": Ablation("paper", seeds=3, updates=25_000, evaluate_every=100, last=50),
    "quick": Ablation("quick", seeds=1, updates=400, evaluate_every=200, last=1),
}


def with_true_next_states(task: Navigation, data: Transitions) -> Transitions:
    """The same states and actions, followed by what really happens."""
    return label(Transitions(data.state, data.action, task.step(data.rows), columns=data.columns), task)
