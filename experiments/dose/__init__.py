"""The dose: how many generated rows per recorded row help, and whether that can be told before anything is trained.

Doses are nested: all are the first rows of one table, the recorded ones first. Before training, a classifier tells
drawn parent sets from recorded ones, and the ensemble says how far it disagrees; afterwards generated rows are compared
with the task's true step. All of these grow as rows get worse: one that tells beforehand what augmenting gains has a
rank correlation of -1 with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import rich.table

from experiments.agents import paper_agent
from experiments.columns import PUBLISHED
from experiments.dose.figure import draw_dose
from experiments.dose.gain import correlations, lines_of
from experiments.dose.judge import AFTER, BEFORE, Case, judge, make_case
from experiments.experiment import Experiment, Measured, Stopwatch, check_columns, spread, text_table
from experiments.stages import agents_config, begun, fit_agents, fit_models, last_evaluations, load_agents, record
from mocoda.agents import Agent
from mocoda.agents.policy import Policies
from mocoda.augmentation.generation import augment
from mocoda.augmentation.rewards import GoalLabels
from mocoda.data.transitions import Transitions, concatenate
from mocoda.dynamics import Dynamics, DynamicsConfig
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.files import write_json
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream
from mocoda.engine.workers import Workers
from mocoda.parents import Parents, fit_parents
from mocoda.parents.mocoda import Mocoda, fewer_components
from mocoda.tasks import Task, make_task
from mocoda.tasks.hooksweep import HookSweep2

TASKS, DENSITIES = ("navigation", "hooksweep2"), ("mixture", "matched")
Parts = dict[tuple[int, int], Transitions]  # by number of recorded rows and seed
Models = dict[tuple[int, int], Dynamics]
Sources = dict[tuple[int, str, int], tuple[Mocoda, Parents]]  # by number of recorded rows, density and seed
Cases = dict[tuple[int, str, int], tuple[int, dict[str, float]]]  # number of the job, and what is known already


@dataclass(frozen=True)
class Trial:
    """How the dose is measured on one task."""

    sizes: tuple[int, ...]  # recorded rows
    seeds: int  # at most
    dynamics: DynamicsConfig
    agents: tuple[Agent, ...]
    updates: int
    evaluations: int  # while an agent trains
    last: int  # of them count
    episodes: int  # of each
    components: int  # at most; fewer where fewer rows can tell them apart
    judged: int = 2_000  # drawn rows of each density, size and seed that are judged
    goals: int = 8  # in a task with goals, small data sets are repeated up to so many times what was recorded

    def __post_init__(self) -> None:
        if not self.sizes or len(set(self.sizes)) != len(self.sizes) or min(self.sizes) < 1:
            raise InputError(f"sizes must be different numbers of rows, and at least one, got {list(self.sizes)}.")
        if not 1 <= self.last <= self.evaluations <= self.updates:
            raise InputError(
                "last must be at most the evaluations, and these at most the updates, got "
                f"{self.last}, {self.evaluations} and {self.updates}."
            )


@dataclass(frozen=True)
class Dose(Experiment[Measured]):
    """What agents reach by the number of generated rows per recorded row, and whether checks tell it beforehand."""

    name = "dose"
    metric = (
        "navigation: steps to the goal (70 where it is not reached); hooksweep2: success in percent. Mean over the "
        "last evaluations while training"
    )
    outputs = ("dose.json", "dose.png")
    presets: ClassVar[dict[str, Dose]] = {}

    navigation: Trial
    hooksweep2: Trial
    tasks: tuple[str, ...] = TASKS
    densities: tuple[str, ...] = DENSITIES
    doses: tuple[float, ...] = (0.0, 0.25, 1.0, 4.0, 16.0, 64.0)  # generated rows per recorded row

    def __post_init__(self) -> None:
        super().__post_init__()
        check_columns(self.densities, DENSITIES)
        for name in self.tasks:
            if name not in TASKS:
                raise unknown_name("task", name, TASKS)
        if len(self.doses) < 2 or self.doses[0] != 0 or any(one >= other for one, other in pairwise(self.doses)):
            raise InputError(f"doses must rise from 0, which is the recorded rows alone, got {list(self.doses)}.")

    def config(self) -> dict[str, Any]:
        trials = {name: self.trial(name) for name in TASKS}
        return super().config() | {
            name: asdict(trial) | {"agents": agents_config(trial.agents)} for name, trial in trials.items()
        }

    def trial(self, task: str) -> Trial:
        own: Trial = getattr(self, task)
        return replace(own, seeds=min(self.seeds, own.seeds))

    def run(self, *, device: str, folder: Path, progress: Progress = silent, workers: int | None = None) -> Measured:
        """Records, fits, judges, and trains the agents on every dose, all data sets and seeds of an agent at once."""
        clock, resumed = Stopwatch(), begun(folder)
        cells: list[dict[str, Any]] = []
        judged: list[dict[str, Any]] = []
        for name in self.tasks:
            task, trial = make_task(name), self.trial(name)
            parts = _parts(task, trial, device, folder, workers, progress)
            clock.lap(f"{name} recording")
            models = _models(task, trial, parts, folder, progress)
            clock.lap(f"{name} dynamics")
            sources = self._sources(task, trial, parts)
            clock.lap(f"{name} parents")
            with Workers(judge, workers) as judges:
                cases = self._cases(task, trial, parts, models, sources, judges)
                datasets: dict[str, list[Transitions]] = {}
                for agent in trial.agents:
                    stage = f"agents-{name}-{agent.name}"
                    policies = load_agents(folder / stage)
                    if policies is None and not datasets:
                        datasets = self.datasets(task, trial, parts, models, sources, progress)
                        clock.lap(f"{name} data")
                    policies = policies or fit_agents(
                        datasets,
                        agent,
                        folder=folder,
                        name=stage,
                        seeds=range(trial.seeds),
                        updates=trial.updates,
                        task=task,
                        evaluate_every=trial.updates // trial.evaluations,
                        episodes=trial.episodes,
                        workers=workers,
                        progress=progress,
                    )
                    cells += self.cells(name, agent.name, policies)
                    clock.lap(f"{name} {agent.name}")
                judged += self._judged(name, cases, judges, progress)
            clock.lap(f"{name} judged")
        lines = lines_of(cells, judged)
        results = {**self.heading(device, clock, resumed=resumed), "cells": cells, "judged": judged, "lines": lines}
        return Measured({**results, "correlations": correlations(lines)})

    def datasets(
        self, task: Task, trial: Trial, parts: Parts, models: Models, sources: Sources, progress: Progress = silent
    ) -> dict[str, list[Transitions]]:
        """The recorded rows and so many generated ones, by size, density and dose, one table a seed."""
        made: dict[str, list[Transitions]] = {}
        total = len(trial.sizes) * len(self.densities)
        for size in trial.sizes:
            for density in self.densities:
                for seed in range(trial.seeds):
                    (_, parents), model = sources[size, density, seed], models[size, seed]
                    most = round(self.doses[-1] * size)
                    table = augment(
                        parts[size, seed], parents, model, rows=most, task=task, seed=seed, provenance=False
                    )
                    for dose in self.doses:
                        own = made.setdefault(_data_name(size, density, dose), [])
                        if len(own) == seed:  # what was recorded is the same for all densities
                            own.append(_portion(table, task, size, dose, trial.goals, seed))
                progress("data sets", len(made) // (len(self.doses) - 1), total)
        return made

    def cells(self, task: str, agent: str, policies: Policies) -> list[dict[str, Any]]:
        """What one agent reaches on every data set; recorded rows alone have no density."""
        trial, made = self.trial(task), []
        for size in trial.sizes:
            for density in self.densities:
                for dose in self.doses if density == self.densities[0] else self.doses[1:]:
                    data = _data_name(size, density, dose)
                    steps, success = (
                        last_evaluations(policies, measure, data, trial.last) for measure in ("steps", "success")
                    )
                    values = steps if task == "navigation" else [100 * share for share in success]
                    labels = {"task": task, "agent": agent, "rows": size, "density": density if dose else None}
                    made.append(labels | {"dose": dose, **spread(values), "success": success})
        return made

    def write(self, measured: Measured, folder: Path) -> rich.table.Table:
        results, figure = (folder / name for name in self.outputs)
        write_json(results, measured.results)
        draw_dose(measured.results, figure)
        reached = {
            (c["task"], c["agent"], c["rows"], c["density"], c["dose"]): c["mean"] for c in measured.results["cells"]
        }
        rows = []
        for line in measured.results["lines"]:
            key = (line["task"], line["agent"], line["rows"])
            means = [reached[*key, line["density"] if dose else None, dose] for dose in self.doses]
            texts = [f"{mean:.1f}" for mean in means]
            texts += [f"{_mean(line['auc']):.2f}", f"{100 * _mean(line['refuted']):.0f}%"]
            rows.append([f"{line['task']}, {line['agent']}", line["density"], f"{line['rows']:,}", *texts])
        columns = ("agent", "density", "recorded", *(f"{dose:g}" for dose in self.doses), "AUC", "untrue")
        caption = "0 and up: generated rows per recorded row. AUC: of the parent set that is told apart best"
        return text_table("Steps (navigation) or success in percent, by dose", columns, rows, caption, left=2)

    def _sources(self, task: Task, trial: Trial, parts: Parts) -> Sources:
        made = {}
        for density in self.densities:
            for (size, seed), recorded in parts.items():
                components = fewer_components(trial.components, size, task.graph)
                recipe = Mocoda(components=components, **(PUBLISHED | {"density": density}))
                made[size, density, seed] = recipe, fit_parents(recorded, task.graph, recipe, seed=seed, task=task)
        return made

    def _cases(
        self,
        task: Task,
        trial: Trial,
        parts: Parts,
        models: Models,
        sources: Sources,
        judges: Workers[Case, dict[str, float]],
    ) -> Cases:
        """Rows of every size, density and seed, given to the judges."""
        cases = {}
        for (size, density, seed), source in sources.items():
            case, known = make_case(task.name, parts[size, seed], *source, models[size, seed], trial.judged, seed)
            cases[size, density, seed] = judges.submit(case), known
        return cases

    def _judged(
        self, task: str, cases: Cases, judges: Workers[Case, dict[str, float]], progress: Progress
    ) -> list[dict[str, Any]]:
        """What the judges say of every size and density, a value a seed."""
        found: dict[tuple[int, str], list[dict[str, float]]] = {}
        for done, ((size, density, _), (number, known)) in enumerate(cases.items(), 1):
            found.setdefault((size, density), []).append(known | judges.result(number))
            progress("judged", done, len(cases))
        return [
            {"task": task, "rows": size, "density": density}
            | {name: spread([seed[name] for seed in seeds]) for name in (*BEFORE, *AFTER)}
            for (size, density), seeds in found.items()
        ]


def _parts(task: Task, trial: Trial, device: str, folder: Path, workers: int | None, progress: Progress) -> Parts:
    """What was recorded, by size and seed: walks of each seed's own, or the first rows of one recording for all."""
    if isinstance(task, HookSweep2):
        recorded = record(task, max(trial.sizes), "varied", folder, workers, progress).to(device)
        firsts = {size: recorded[:size] for size in trial.sizes}
        return {(size, seed): first for size, first in firsts.items() for seed in range(trial.seeds)}
    return {
        (size, seed): task.collect(size, seed=seed).to(device) for size in trial.sizes for seed in range(trial.seeds)
    }


def _models(task: Task, trial: Trial, parts: Parts, folder: Path, progress: Progress) -> Models:
    fitted = fit_models(
        list(parts.values()),
        task.graph,
        "local",
        trial.dynamics,
        folder=folder,
        progress=progress,
        name=task.name,
        seeds=[seed for _, seed in parts],
        labels=[f"{size}-{seed}" for size, seed in parts],
    )
    return dict(zip(parts, fitted, strict=True))


def _portion(table: Transitions, task: Task, size: int, dose: float, goals: int, seed: int) -> Transitions:
    """The first rows of a table, as many as the dose says.

    Where rows have goals, few of them are repeated with other goals, so that a dose differs from the next in what was
    generated and not in how many goals an agent sees.
    """
    part = table[: size + round(dose * size)]
    if not isinstance(task, GoalLabels):
        return part
    stream = Stream(seed, "dose-goals", size, f"{dose:g}", device=table.device)
    copies = [part]
    for number in range(1, -(-goals * size // len(part))):
        goal = task.goals(len(part), seed=stream.child(number), device=table.device)
        reward, terminal = task.label(part.state, part.action, part.next_state, goal)
        copies.append(replace(part, reward=reward, terminal=terminal, goal=goal))
    return concatenate(copies) if len(copies) > 1 else part


def _data_name(size: int, density: str, dose: float) -> str:
    return f"{size}-{density}-{dose:g}" if dose else f"{size}-recorded"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _walker(name: str, **settings: Any) -> Agent:
    # As the small agents of Table 2: narrower than the paper's, since 165 of each are trained.
    small: dict[str, Any] = {"hidden": (256, 256), "batch": 256, "polyak": 0.01, "standardise": True}
    return paper_agent(name, **(small | settings))


def _sweeper(**settings: Any) -> Agent:
    return paper_agent("td3-bc", decay=True, standardise=True, **settings)


Dose.presets.update(
    paper=Dose(
        "paper",
        seeds=5,
        navigation=Trial(
            sizes=(1_000, 4_000, 40_000),
            seeds=5,
            dynamics=DynamicsConfig(hidden=(256, 256), epochs=100, epoch_rows=20_000, window=10, tf32=True),
            agents=(_walker("td3-bc"), _walker("cql")),
            updates=9_000,
            evaluations=36,
            last=12,
            episodes=20,
            components=32,
        ),
        hooksweep2=Trial(
            sizes=(10_000, 100_000),
            seeds=3,
            dynamics=DynamicsConfig(
                hidden=(512, 512),
                epochs=150,
                epoch_rows=40_000,
                learning_rate=5e-4,
                validation=0.1,
                window=20,
                tf32=True,
            ),
            agents=(_sweeper(hidden=(256, 256, 256), imitation=4.0),),
            updates=40_000,
            evaluations=10,
            last=5,
            episodes=10,
            components=128,
            judged=1_000,
        ),
    ),
    quick=Dose(
        "quick",
        seeds=1,
        tasks=("navigation",),
        doses=(0.0, 1.0, 4.0),
        navigation=Trial(
            sizes=(400,),
            seeds=1,
            dynamics=DynamicsConfig(members=2, hidden=(64,), features=32, epochs=20, epoch_rows=2_000, batch=128),
            agents=(_walker("td3-bc", hidden=(64, 64), batch=128),),
            updates=1_000,
            evaluations=5,
            last=2,
            episodes=20,
            components=16,
            judged=400,
        ),
        hooksweep2=Trial(
            sizes=(5_000,),
            seeds=1,
            dynamics=DynamicsConfig(members=2, hidden=(128,), features=64, epochs=20, epoch_rows=5_000, batch=256),
            agents=(_sweeper(hidden=(128, 128), batch=256, polyak=0.04, imitation=0.5),),
            updates=2_000,
            evaluations=2,
            last=1,
            episodes=2,
            components=16,
            judged=200,
        ),
    ),
)
