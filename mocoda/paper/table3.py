"""a preset -> Table 3, measured: agents that sweep two boxes, trained on data in which one is swept at a time.

Rows and columns are called as on the command line; "-full" columns come from the unfactored model. What the paper
reports stands beside what we measure, and under it the success of the scripted expert, which no agent learns from.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import rich.table
import torch
from torch import Tensor

from mocoda.agents import Agent
from mocoda.agents.agent import make_agent
from mocoda.agents.episodes import Played, played_in_environment
from mocoda.agents.policy import Policies, agent_settings
from mocoda.agents.train import train_agents
from mocoda.augmentation.generation import augment
from mocoda.data.transitions import Transitions
from mocoda.dynamics.model import Dynamics, DynamicsConfig
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.files import whole_file, write_json
from mocoda.engine.progress import Progress, silent
from mocoda.engine.runs import STATES
from mocoda.engine.statistics import probability_of_improvement, summarise
from mocoda.paper import table1
from mocoda.paper.experiment import as_table, heading
from mocoda.paper.table3_figure import draw_by_distance, draw_placements, draw_success, draw_success_curves, draw_tables
from mocoda.paper.truth import as_transitions, confirmations, mask_mistakes, model_errors, played_by_expert, successes
from mocoda.parents.recipes import Parents, fit_parents
from mocoda.tasks.hooksweep import HookSweep2
from mocoda.tasks.hooksweep_env import CENTRE
from mocoda.tasks.hooksweep_expert import Episode

COLUMNS = ("emp", "mocoda", "mocoda-p", "mocoda-full", "mocoda-p-full")
# Table 3 of the paper, (mean, standard deviation) over three seeds, in the order of the columns.
PAPER: dict[str, tuple[tuple[float, float], ...]] = {
    "td3-bc": ((0.7, 0.9), (38.7, 7.5), (84.0, 2.8), (29.3, 3.8), (26.0, 1.6)),
    "bcq": ((2.0, 1.6), (20.7, 4.1), (64.7, 4.1), (14.0, 3.3), (15.3, 4.1)),
}
METRIC = "episodes in which both boxes end where they should, in percent: mean over the last evaluations while training"
OUTPUTS = (
    *("table3.json", "table3-curves.json", "table3-evidence.npz", "table3.png", "table3-curves.png"),
    *("figure4.png", "table3-distance.png", "table3-placements.png"),
)
SHOWN = 20_000  # rows of a data set whose boxes the figure shows
PLACES, WANTED = [6, 7, 11, 12], [16, 17, 19, 20]  # of an observation: where the boxes are, in xy, and should be
EXPERT = 9  # the seed of the expert that is judged
RECORDING = 0  # the seed of the recorded data, the same for all seeds of the table


@dataclass(frozen=True)
class Table3:
    """Settings of Table 3: which agents sweep two boxes, by the data they were trained on."""

    preset: str
    seeds: int
    dynamics: DynamicsConfig
    agents: tuple[Agent, ...]
    updates: Mapping[str, int]  # by agent
    once: tuple[Agent, ...] = ()  # trained with the first seed only
    columns: tuple[str, ...] = COLUMNS
    variety: str = "varied"
    rows: int = 1_000_000  # recorded
    total: int = 5_000_000  # in every data set, the recorded ones among them
    evaluations: int = 100  # while an agent trains
    last: int = 50  # of them count
    episodes: int = 5  # of each
    final_episodes: int = 50  # of the trained agents, for success by goal distance
    expert_episodes: int = 200
    confirmed_rows: int = 2_000
    components: int = 128
    covariance: str = "full"
    acceptance: float = 0.3
    density_floor: float = 0.05  # Appendix C.2

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise InputError(f"seeds must be at least 1, got {self.seeds}.")
        if self.total < self.rows:
            raise InputError(f"total must be at least rows, which are among it, got {self.total} and {self.rows}.")
        if not 1 <= self.last <= self.evaluations:
            raise InputError(f"last must be a number of evaluations, from 1 to {self.evaluations}, got {self.last}.")
        for agent in (*self.agents, *self.once):
            if self.updates.get(agent.name, 0) < self.evaluations:
                raise InputError(
                    f"updates must give {agent.name} at least one for each of the {self.evaluations} evaluations, got "
                    f"{self.updates.get(agent.name)}."
                )
        for column in self.columns:
            if column not in COLUMNS:
                raise unknown_name("column", column, COLUMNS)
        if not self.columns or len(set(self.columns)) != len(self.columns):
            raise InputError(f"columns must name each data set once, and at least one, got {list(self.columns)}.")

    def config(self) -> dict[str, Any]:
        """As JSON values."""
        described = {name: {a.name: agent_settings(a) for a in getattr(self, name)} for name in ("agents", "once")}
        return asdict(self) | described


def _sweeper(name: str, **settings: Any) -> Agent:
    return make_agent(name, hidden=(512, 512, 512), decay=True, standardise=True, **settings)


def _small(name: str, **settings: Any) -> Agent:
    return make_agent(name, hidden=(128, 128), batch=256, polyak=0.04, decay=True, standardise=True, **settings)


PRESETS = {
    "paper": Table3(
        "paper",
        seeds=3,
        dynamics=DynamicsConfig(
            hidden=(512, 512),
            epochs=800,
            epoch_rows=40_000,
            learning_rate=5e-4,
            validation=5_000,
            window=50,
            tf32=True,
        ),
        agents=(_sweeper("td3-bc", imitation=4.0), _sweeper("bcq", sampler_updates=5_000)),
        once=(_sweeper("sac"), _sweeper("cql")),
        updates={"td3-bc": 200_000, "bcq": 40_000, "sac": 20_000, "cql": 20_000},
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


@dataclass(frozen=True, eq=False)
class Measured3:
    """Table 3, the trained agents, and what its figures show."""

    results: dict[str, Any]
    policies: dict[str, Policies]  # by agent
    played: dict[str, Played]  # by agent: episodes of the trained policies, in their order
    boxes: dict[str, Tensor]  # by column: where both boxes are in some of its rows, (N, 4)


def table3(
    settings: Table3,
    *,
    device: str,
    folder: Path,
    workers: int | None = None,
    progress: Progress = silent,
) -> Measured3:
    """Records, fits, augments and trains every agent on every data set, all seeds at once.

    folder   where whatever is finished is kept, and found again by a second call
    workers  processes that simulate; None: one per core
    """
    seconds = _Stopwatch()
    resumed = begun(folder)
    task, seeds = HookSweep2(), list(range(settings.seeds))
    recorded = recording(task, settings.rows, settings.variety, folder, workers, progress).to(device)
    seconds.lap("recording")
    models = {
        architecture: table1.fitted(task, [recorded] * len(seeds), architecture, settings.dynamics, folder, progress)
        for architecture in dict.fromkeys(map(_architecture, settings.columns))
    }
    seconds.lap("dynamics")
    parents = fitted_parents(task, recorded, settings, seeds)
    seconds.lap("parents")
    datasets = _datasets(task, recorded, parents, models, settings, seeds, progress)
    boxes = {column: task.features(tables[0].state[-SHOWN:]) for column, tables in datasets.items()}
    seconds.lap("data")
    policies: dict[str, Policies] = {}
    played: dict[str, Played] = {}
    for agent in (*settings.agents, *settings.once):
        policies[agent.name] = _agents(agent, datasets, settings, task, folder, workers, progress)
        seconds.lap(agent.name)
        played[agent.name] = played_in_environment(
            list(policies[agent.name].to("cpu").values()),
            task,
            episodes=settings.final_episodes,
            seed=0,
            workers=workers,
        )
        seconds.lap(f"{agent.name} episodes")
    cells = [
        _cell(policies[agent.name], played[agent.name], agent.name, column, settings)
        for agent in (*settings.agents, *settings.once)
        for column in settings.columns
    ]
    experts = _experts(settings, workers)
    ends = {name: successes(episodes) for name, episodes in experts.items()}
    cells += _ceiling(ends["two plain"]["both"], settings)
    seconds.lap("expert")
    truth = _truth(task, recorded, parents, models, experts, settings, workers)
    seconds.lap("truth")
    results = {
        **heading(
            "table3",
            settings,
            METRIC,
            device,
            sum(seconds.laps.values()),
            seconds_by_stage=seconds.laps,
            resumed=resumed,
        ),
        "recorded": dict(recorded.source),
        "cells": cells,
        "expert": ends,
        "truth": truth,
    }
    return Measured3(results, policies, played, boxes)


def write(measured: Measured3, folder: Path) -> rich.table.Table:
    """Writes the cells, the curves, what the figures show, and the figures; the table to show."""
    cells, curves, evidence = (folder / name for name in OUTPUTS[:3])
    write_json(cells, measured.results)
    columns = measured.results["config"]["columns"]
    by_agent = {
        name: {
            "updates": policies.curves["updates"].tolist(),
            "success": {
                column: [
                    [round(100 * value, 1) for value in policies.curves["success"][i].tolist()]
                    for i, (data, _) in enumerate(policies)
                    if data == column
                ]
                for column in columns
            },
        }
        for name, policies in measured.policies.items()
    }
    write_json(curves, {"measure": "success in percent, mean over episodes, one list a seed", "agents": by_agent})
    arrays: dict[str, Any] = {f"boxes/{column}": boxes.cpu().numpy() for column, boxes in measured.boxes.items()}
    for name, policies in measured.policies.items():
        made = measured.played[name]
        for column in columns:
            mine = [i for i, (data, _) in enumerate(policies) if data == column]
            arrays[f"success/{name}/{column}"] = made.success[mine].ravel()
            arrays[f"last/{name}/{column}"] = made.last[mine].reshape(-1, made.last.shape[-1])
    with whole_file(evidence) as part, part.open("wb") as handle:
        np.savez_compressed(handle, **arrays)
    draw(folder)
    title = "Table 3: episodes in which both boxes end in place, in percent"
    return as_table(measured.results, title, digits=1, best_of="row", more_is_better=True)


def draw(folder: Path) -> None:
    """The figures, from the files that `write` left."""
    results, curves = (json.loads((folder / name).read_text("utf-8")) for name in OUTPUTS[:2])
    ceiling = next(cell["mean"] for cell in results["cells"] if cell["row"] == "expert")
    columns = results["config"]["columns"]
    with np.load(folder / OUTPUTS[2]) as arrays:
        evidence = {name: arrays[name] for name in arrays.files}
    agents = list(results["config"]["agents"])
    draw_success(results, folder / OUTPUTS[3])
    draw_success_curves(curves["agents"], ceiling, folder / OUTPUTS[4])
    shown = [column for column in columns if not column.endswith("-full")]
    goals = HookSweep2().goals(2_000, seed=0)
    draw_tables({c: torch.from_numpy(evidence[f"boxes/{c}"]) for c in shown}, goals, folder / OUTPUTS[5])
    by_distance = {
        agent: {
            column: (
                np.abs(evidence[f"last/{agent}/{column}"][:, 16] - CENTRE[0]).tolist(),
                evidence[f"success/{agent}/{column}"].tolist(),
            )
            for column in columns
        }
        for agent in agents
    }
    draw_by_distance(by_distance, folder / OUTPUTS[6])
    first = {c: torch.from_numpy(evidence[f"last/{agents[0]}/{c}"]) for c in columns}
    draw_placements({c: (last[:, PLACES] - last[:, WANTED]) for c, last in first.items()}, folder / OUTPUTS[7])


def begun(folder: Path) -> bool:
    """Whether an earlier run of the same settings has left anything here to go on from."""
    return any(path.suffix in STATES for path in folder.rglob("*"))


def recording(
    task: HookSweep2, rows: int, variety: str, folder: Path, workers: int | None, progress: Progress
) -> Transitions:
    """The recorded data, from the folder if it is there."""
    file = folder / "recorded.hdf5"
    if not file.exists():
        parts = folder / "recording"
        task.collect(rows, seed=RECORDING, variety=variety, workers=workers, folder=parts, progress=progress).save(file)
        for part in parts.glob("part-*.npz"):
            part.unlink()
        if not any(parts.iterdir()):
            parts.rmdir()
    return Transitions.load(file)


def fitted_parents(
    task: HookSweep2, recorded: Transitions, settings: Table3, seeds: list[int]
) -> dict[str, list[Parents]]:
    """The parent distributions of the columns, one a seed."""
    recipes = dict.fromkeys(column.removesuffix("-full") for column in settings.columns)
    return {
        recipe: [
            fit_parents(
                recorded,
                task.graph,
                recipe,
                seed=seed,
                task=task,
                components=settings.components,
                covariance=settings.covariance,
                acceptance=settings.acceptance,
                density_floor=settings.density_floor,
            )
            for seed in seeds
        ]
        for recipe in recipes
    }


def _datasets(
    task: HookSweep2,
    recorded: Transitions,
    parents: dict[str, list[Parents]],
    models: dict[str, list[Dynamics]],
    settings: Table3,
    seeds: list[int],
    progress: Progress,
) -> dict[str, list[Transitions]]:
    """`total` rows a column and seed: the recorded ones, and with "emp" the same again, each with a goal of its own."""
    made: dict[str, list[Transitions]] = {}
    for number, column in enumerate(settings.columns):
        recipe = column.removesuffix("-full")
        made[column] = [
            augment(
                recorded,
                parents[recipe][i],
                models[_architecture(column)][i],
                rows=settings.total - len(recorded),
                task=task,
                seed=seed,
                provenance=False,
            )
            for i, seed in enumerate(seeds)
        ]
        progress("data sets", number + 1, len(settings.columns))
    return made


def _architecture(column: str) -> str:
    return "full" if column.endswith("-full") else "local"


def _agents(
    agent: Agent,
    datasets: dict[str, list[Transitions]],
    settings: Table3,
    task: HookSweep2,
    folder: Path,
    workers: int | None,
    progress: Progress,
) -> Policies:
    """The agent on every data set and seed, from the folder if they are there."""
    seeds = range(1 if agent in settings.once else settings.seeds)
    saved = folder / f"agents-{agent.name}"
    if (saved / "agents.json").exists():
        return Policies.load(saved)
    checkpoint = folder / f"checkpoint-{agent.name}.safetensors"
    policies = train_agents(
        {column: tables[: len(seeds)] for column, tables in datasets.items()},
        agent,
        seeds=seeds,
        updates=settings.updates[agent.name],
        task=task,
        evaluate_every=settings.updates[agent.name] // settings.evaluations,
        episodes=settings.episodes,
        checkpoint=checkpoint,
        workers=workers,
        progress=progress,
    )
    policies.save(saved)
    checkpoint.unlink(missing_ok=True)
    return policies


def _cell(policies: Policies, played: Played, row: str, column: str, settings: Table3) -> dict[str, Any]:
    """Success while the agent trained, and what became of the episodes that it played afterwards."""

    def last(data: str) -> list[float]:
        mine = [i for i, (name, _) in enumerate(policies) if name == data]
        values: list[float] = (100 * policies.curves["success"][mine, -settings.last :].double().mean(1)).tolist()
        return values

    values = last(column)
    summary = summarise(values)
    mine = [i for i, (name, _) in enumerate(policies) if name == column]
    boxes = (played.last[mine][..., PLACES] - played.last[mine][..., WANTED]).reshape(len(mine), -1, 2, 2)
    paper_mean, paper_std = PAPER[row][COLUMNS.index(column)] if row in PAPER else (None, None)
    return {
        "row": row,
        "column": column,
        "values": values,
        "mean": summary.mean,
        "std": summary.std,
        "paper_mean": paper_mean,
        "paper_std": paper_std,
        "interval": [summary.low, summary.high],
        "final_success": (100 * played.success[mine].mean(1)).tolist(),
        "final_distance": np.linalg.norm(boxes, axis=-1).mean((1, 2)).tolist(),  # of a box from its goal, in metres
        "better_than_emp": probability_of_improvement(values, last("emp"), lower_is_better=False)
        if "emp" in settings.columns
        else None,
    }


def _ceiling(success: float, settings: Table3) -> list[dict[str, Any]]:
    """The expert's, the same for every column."""
    same = {"values": [success], "mean": success, "std": 0.0, "paper_mean": None, "paper_std": None}
    return [{"row": "expert", "column": column, **same} for column in settings.columns]


def _experts(settings: Table3, workers: int | None) -> dict[str, list[Episode]]:
    """Episodes of the expert by mode and variety; none of them is trained on."""
    kinds = {"one plain": ("one", "plain"), "one varied": ("one", "varied"), "two plain": ("two", "plain")}
    return {
        name: played_by_expert(*kind, settings.expert_episodes, seed=EXPERT, workers=workers)
        for name, kind in kinds.items()
    }


def _truth(
    task: HookSweep2,
    recorded: Transitions,
    parents: dict[str, list[Parents]],
    models: dict[str, list[Dynamics]],
    experts: dict[str, list[Episode]],
    settings: Table3,
    workers: int | None,
) -> dict[str, Any]:
    """How true the models and the mask are, on episodes that nothing was trained on."""
    held_out = {"place one": experts["one varied"], "place two": experts["two plain"]}
    drawn = {
        column: (parents[column.removesuffix("-full")][0], models[_architecture(column)][0])
        for column in settings.columns
        if column != "emp"
    }
    return {
        "model_errors_mm": model_errors(
            models, {n: as_transitions(e).to(recorded.device) for n, e in held_out.items()}
        ),
        "confirmed_by_the_simulator": confirmations(drawn, recorded, settings.confirmed_rows, workers),
        "mask": {name: mask_mistakes(task, episodes) for name, episodes in held_out.items()},
    }


@dataclass
class _Stopwatch:
    """Seconds by stage."""

    since: float = field(default_factory=time.monotonic)
    laps: dict[str, float] = field(default_factory=dict)

    def lap(self, stage: str) -> None:
        now = time.monotonic()
        self.laps[stage], self.since = round(now - self.since, 1), now
