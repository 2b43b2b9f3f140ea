"""a preset -> Table 2, measured: agents trained on the recorded L and on what was made of it.

Rows and columns are called as on the command line. What the paper reports stands beside what we measure; `dyna` is not
in its table. The last row is the least number of steps that any policy needs.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import rich.table
import torch
from torch import Tensor

from mocoda.agents import Agent
from mocoda.agents.agent import AGENTS, make_agent
from mocoda.agents.evaluation import played
from mocoda.agents.policy import Policies, agent_settings
from mocoda.agents.train import train_agents
from mocoda.augmentation.generation import augment
from mocoda.data.transitions import Transitions
from mocoda.dynamics.model import Dynamics, DynamicsConfig
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.files import write_json
from mocoda.engine.progress import Progress, silent
from mocoda.engine.statistics import probability_of_improvement, summarise
from mocoda.paper import table1
from mocoda.paper.experiment import as_table, heading
from mocoda.paper.table2_figure import draw_curves, draw_paths
from mocoda.parents.recipes import fit_parents
from mocoda.tasks.navigation import START_HIGH, Navigation

COLUMNS = ("emp", "dyna", "rand", "mocoda", "mocoda-u", "coda")
# Table 2 of the paper, (mean, standard deviation) over five seeds.
PAPER: dict[str, tuple[tuple[float, float] | None, ...]] = {  # in the order of the columns
    "td3-bc": ((40.0, 16.1), None, (26.1, 0.8), (21.0, 0.7), (20.7, 0.8), (21.4, 0.6)),
    "bcq": ((58.5, 10.1), None, (31.7, 2.4), (22.8, 0.4), (24.8, 4.2), (25.0, 0.4)),
    "cql": ((45.8, 4.0), None, (27.6, 1.3), (22.8, 0.2), (22.7, 0.3), (23.6, 0.5)),
    "sac": ((53.1, 9.8), None, (27.6, 1.1), (38.8, 18.3), (41.3, 17.7), (35.1, 18.1)),
}
METRIC = "steps to the goal (70 where it is not reached): mean over the episodes of the last evaluations while training"
OUTPUTS = ("table2.json", "table2-curves.json", "table2-curves.png", "table2-policies.png")


@dataclass(frozen=True)
class Table2:
    """Settings of Table 2: which agents solve the target task, by the data they were trained on."""

    preset: str
    seeds: int
    dynamics: DynamicsConfig
    agents: tuple[Agent, ...] = field(default_factory=lambda: tuple(kind() for kind in AGENTS.values()))
    columns: tuple[str, ...] = COLUMNS
    rows: int = 40_000  # recorded
    total: int = 200_000  # in every data set, the recorded ones among them
    updates: int = 25_000
    evaluate_every: int = 100
    episodes: int = 10
    last: int = 50  # evaluations that count
    components: int = 32
    covariance: str = "full"
    published_code: bool = False  # parents as the paper's code draws them (see fit_parents)
    stratified: bool = False  # mixtures per local graph (Appendix B.2)

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise InputError(f"seeds must be at least 1, got {self.seeds}.")
        if self.total < self.rows:
            raise InputError(f"total must be at least rows, which are among it, got {self.total} and {self.rows}.")
        evaluations = self.updates // self.evaluate_every
        if not 1 <= self.last <= evaluations:
            raise InputError(f"last must be a number of evaluations, from 1 to {evaluations}, got {self.last}.")
        for column in self.columns:
            if column not in COLUMNS:
                raise unknown_name("column", column, COLUMNS)
        if not self.columns or len(set(self.columns)) != len(self.columns):
            raise InputError(f"columns must name each data set once, and at least one, got {list(self.columns)}.")

    def config(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self) | {"agents": {agent.name: agent_settings(agent) for agent in self.agents}}


def _small(name: str, **settings: Any) -> Agent:
    # Small networks find the way sooner, and keep to it, if they see standardised states.
    return make_agent(name, hidden=(128, 128), batch=256, polyak=0.01, standardise=True, **settings)


PRESETS = {
    # The paper's agents and sizes; the data comes from the dynamics that are closest on MoCoDA's distributions.
    "paper": Table2("paper", seeds=5, dynamics=replace(table1.PRESETS["paper"].dynamics, standardise=True)),
    "quick": Table2(
        "quick",
        seeds=2,
        dynamics=table1.PRESETS["quick"].dynamics,
        agents=(
            _small("td3-bc"),
            _small("bcq", samplers=3, sampler_hidden=(64, 64), sampler_updates=300, sampler_batch=512),
        ),
        columns=("emp", "mocoda"),
        updates=9_000,
        last=10,
    ),
}


@dataclass(frozen=True, eq=False)
class Measured2:
    """Table 2 and what it was measured with."""

    results: dict[str, Any]
    task: Navigation
    policies: dict[str, Policies]  # by agent


def table2(
    settings: Table2,
    *,
    device: str,
    folder: Path | None = None,
    models: list[Dynamics] | None = None,
    progress: Progress = silent,
) -> Measured2:
    """Collects, augments and trains every agent on every data set, all seeds at once.

    folder  where finished models and agents and checkpoints are kept, and found again by a second call
    models  a fitted dynamics model per seed, if there are some already
    """
    started = time.monotonic()
    resumed = folder is not None and any(folder.rglob("*.safetensors"))
    task = Navigation()
    seeds = list(range(settings.seeds))
    recorded = [task.collect(settings.rows, seed=seed).to(device) for seed in seeds]
    if models is None:
        models = table1.fitted(task, recorded, "local", settings.dynamics, folder, progress)
    datasets: dict[str, list[Transitions]] = {}
    for number, column in enumerate(settings.columns):
        datasets[column] = [_dataset(task, column, recorded[seed], models[seed], settings, seed) for seed in seeds]
        progress("data sets", number + 1, len(settings.columns))
    prepared = time.monotonic() - started
    policies, seconds = {}, {}
    for agent in settings.agents:
        begun = time.monotonic()
        policies[agent.name] = _agents(agent, datasets, settings, task, folder, progress)
        seconds[agent.name] = round(time.monotonic() - begun, 1)
    cells = [
        _cell(policies[agent.name], agent.name, column, settings)
        for agent in settings.agents
        for column in settings.columns
    ]
    cells += _optimum(task, settings)
    results = {
        **heading(
            "table2",
            settings,
            METRIC,
            device,
            time.monotonic() - started,
            seconds_by_stage={"data": round(prepared, 1), **seconds},
            resumed=resumed,
        ),
        "cells": cells,
    }
    return Measured2(results, task, policies)


def write(measured: Measured2, folder: Path) -> rich.table.Table:
    """Writes the cells, the curves and the figures; the table to show."""
    cells, curves, curves_figure, policies_figure = (folder / name for name in OUTPUTS)
    write_json(cells, measured.results)
    columns = list(measured.results["config"]["columns"])
    by_agent = {
        name: {
            "updates": policies.curves["updates"].tolist(),
            "steps": {
                column: [
                    _rounded(policies.curves["steps"][i]) for i, (data, _) in enumerate(policies) if data == column
                ]
                for column in columns
            },
        }
        for name, policies in measured.policies.items()
    }
    write_json(curves, {"measure": "steps, mean over episodes, one list a seed", "agents": by_agent})
    optimum = next(cell["mean"] for cell in measured.results["cells"] if cell["row"] == "optimum")
    draw_curves(by_agent, optimum, curves_figure)
    draw_paths(paths(measured, columns), policies_figure)
    return as_table(measured.results, "Table 2: steps to the goal, by agent and data", digits=1, best_of="row")


def paths(measured: Measured2, columns: list[str], episodes: int = 24) -> dict[str, dict[str, Tensor]]:
    """Where the first seed's agents walk, from the same starts: agent -> data -> (T + 1, episodes, 2)."""
    return {
        name: {
            column: played([policies[column, 0]], measured.task, episodes=episodes, seed=0, keep_path=True).path[:, 0]
            for column in columns
        }
        for name, policies in measured.policies.items()
    }


def _dataset(
    task: Navigation, column: str, recorded: Transitions, model: Dynamics, settings: Table2, seed: int
) -> Transitions:
    """`total` rows with the recorded ones among them."""
    more = settings.total - len(recorded)
    if column == "emp":  # as often as it takes
        return recorded[torch.arange(settings.total, device=recorded.device) % len(recorded)]
    parents = fit_parents(
        recorded,
        task.graph,
        column,
        seed=seed,
        task=task,
        model=model,
        components=settings.components,
        covariance=settings.covariance,
        published_code=settings.published_code,
        stratified=settings.stratified,
    )
    return augment(recorded, parents, model, rows=more, task=task, seed=seed, provenance=False)


def _agents(
    agent: Agent,
    datasets: dict[str, list[Transitions]],
    settings: Table2,
    task: Navigation,
    folder: Path | None,
    progress: Progress,
) -> Policies:
    """The agent on every data set and seed, from the folder if they are there."""
    saved = folder / f"agents-{agent.name}" if folder else None
    if saved is not None and (saved / "agents.json").exists():
        return Policies.load(saved).to(datasets[settings.columns[0]][0].device)
    checkpoint = folder / f"checkpoint-{agent.name}.safetensors" if folder else None
    policies = train_agents(
        datasets,
        agent,
        seeds=range(settings.seeds),
        updates=settings.updates,
        task=task,
        evaluate_every=settings.evaluate_every,
        episodes=settings.episodes,
        checkpoint=checkpoint,
        progress=progress,
    )
    if saved is not None:
        policies.save(saved)
    if checkpoint:
        checkpoint.unlink(missing_ok=True)
    return policies


def _cell(policies: Policies, row: str, column: str, settings: Table2) -> dict[str, Any]:
    def last(measure: str, data: str) -> list[float]:
        mine = [i for i, (name, _) in enumerate(policies) if name == data]
        values: list[float] = policies.curves[measure][mine, -settings.last :].double().mean(1).tolist()
        return values

    values = last("steps", column)
    summary = summarise(values)
    paper_mean, paper_std = PAPER[row][COLUMNS.index(column)] or (None, None)
    better = (
        probability_of_improvement(values, last("steps", "emp"), lower_is_better=True)
        if "emp" in settings.columns
        else None
    )
    return {
        "row": row,
        "column": column,
        "values": values,
        "mean": summary.mean,
        "std": summary.std,
        "paper_mean": paper_mean,
        "paper_std": paper_std,
        "iqm": summary.iqm,
        "interval": [summary.low, summary.high],
        "better_than_emp": better,
        "success": last("success", column),
    }


def _optimum(task: Navigation, settings: Table2) -> list[dict[str, Any]]:
    """The same for every column: the mean over a fine grid of starts."""
    ticks = START_HIGH * (torch.arange(1_000, dtype=torch.float64) + 0.5) / 1_000
    mean = float(task.least_steps(torch.cartesian_prod(ticks, ticks)).mean())
    same = {"values": [mean], "mean": mean, "std": 0.0, "paper_mean": None, "paper_std": None}
    return [{"row": "optimum", "column": column, **same} for column in settings.columns]


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 2) for value in values.tolist()]
