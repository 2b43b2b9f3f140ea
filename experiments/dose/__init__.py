"""The dose: how many generated rows per recorded row help.

Doses are nested: all are the first rows of one table, the recorded ones first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from scipy.stats import t

from experiments.columns import PUBLISHED
from experiments.experiment import Cells, Experiment, Run, check_names, markdown_table, spread, unique
from experiments.figures import draw_line
from experiments.stages import (
    agents_config,
    fit_agents,
    fit_models,
    last_evaluations,
    load_agents,
    paper_agent,
    paper_dynamics,
    record,
)
from mocoda.agents import Agent
from mocoda.agents.policy import Policies
from mocoda.augmentation.generation import GoalLabels, augment
from mocoda.data.transitions import Transitions, concatenate
from mocoda.dynamics import Dynamics, DynamicsConfig
from mocoda.engine.errors import InputError
from mocoda.engine.figure_style import BLUE, INK, ORANGE, bare, legend_below, save, title_left
from mocoda.engine.randomness import Stream
from mocoda.engine.statistics import mean_and_std
from mocoda.parents import fit_parents
from mocoda.parents.mocoda import Mocoda, fewer_components
from mocoda.tasks import Task, make_task
from mocoda.tasks.hooksweep import HookSweep2

TASKS, DENSITIES = ("navigation", "hooksweep2"), ("mixture", "matched")
TITLES = {"navigation": "2D Navigation", "hooksweep2": "HookSweep2"}
MEASURES = {"navigation": "steps (fewer is better)", "hooksweep2": "success in %"}
DENSITY_COLOURS = {"mixture": ORANGE, "matched": BLUE}
Parts = dict[tuple[int, int], Transitions]  # by number of recorded rows and seed


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
class Dose(Experiment):
    """What agents reach by the number of generated rows per recorded row."""

    name = "dose"
    metric = (
        "navigation: steps to the goal (70 where it is not reached); hooksweep2: success in percent. Mean over the "
        "last evaluations while training"
    )
    outputs = ("dose.json", "dose.png")

    navigation: Trial
    hooksweep2: Trial
    tasks: tuple[str, ...] = TASKS
    densities: tuple[str, ...] = DENSITIES
    doses: tuple[float, ...] = (0.0, 0.25, 1.0, 4.0, 16.0, 64.0)  # generated rows per recorded row

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names("density", self.densities, DENSITIES)
        check_names("task", self.tasks, TASKS)
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

    def measure(self, run: Run) -> dict[str, Any]:
        """Records, fits, and trains the agents on every dose, all data sets and seeds of an agent at once."""
        cells: Cells = []
        for name in self.tasks:
            task, trial = make_task(name), self.trial(name)
            parts = recordings(run, task, trial)
            run.lap(f"{name} recording")
            models = fit_models(
                run,
                list(parts.values()),
                task.graph,
                "local",
                trial.dynamics,
                name=name,
                seeds=[seed for _, seed in parts],
                labels=[f"{size}-{seed}" for size, seed in parts],
            )
            run.lap(f"{name} dynamics")
            datasets: dict[str, list[Transitions]] = {}
            for agent in trial.agents:
                stage = f"agents-{name}-{agent.name}"
                policies = load_agents(run, stage)
                if policies is None:
                    datasets = datasets or self.datasets(run, task, parts, dict(zip(parts, models, strict=True)))
                    policies = fit_agents(
                        run,
                        datasets,
                        agent,
                        name=stage,
                        seeds=range(trial.seeds),
                        updates=trial.updates,
                        task=task,
                        evaluate_every=trial.updates // trial.evaluations,
                        episodes=trial.episodes,
                    )
                cells += self.cells(name, agent.name, policies)
                run.lap(f"{name} {agent.name}")
        return {"cells": cells}

    def datasets(
        self, run: Run, task: Task, parts: Parts, models: Mapping[tuple[int, int], Dynamics]
    ) -> dict[str, list[Transitions]]:
        """The recorded rows and those generated, by size, density and dose, one table per seed."""
        made: dict[str, list[Transitions]] = {}
        trial = self.trial(task.name)
        for size in trial.sizes:
            for density in self.densities:
                for seed in range(trial.seeds):
                    own_parts = parts[size, seed], models[size, seed]
                    table = self.generated(task, *own_parts, density, seed, round(self.doses[-1] * size))
                    for dose in self.doses:
                        own = made.setdefault(_data_name(size, density, dose), [])
                        if len(own) == seed:  # what was recorded is the same for all densities
                            own.append(_portion(table, task, size, dose, trial.goals, seed))
                run.progress("data sets", len(made) // (len(self.doses) - 1), len(trial.sizes) * len(self.densities))
        return made

    def generated(
        self, task: Task, recorded: Transitions, model: Dynamics, density: str, seed: int, rows: int
    ) -> Transitions:
        """The recorded rows followed by `rows` generated ones."""
        components = fewer_components(self.trial(task.name).components, len(recorded), task.graph)
        recipe = Mocoda(components=components, **(PUBLISHED | {"density": density}))
        parents = fit_parents(recorded, task.graph, recipe, seed=seed, task=task)
        return augment(recorded, parents, model, rows=rows, task=task, seed=seed, provenance=False, reuse=False)

    def cells(self, task: str, agent: str, policies: Policies) -> Cells:
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

    def draw(self, results: Mapping[str, Any], folder: Path) -> None:
        """Draws a row of panels per agent, a panel per number of recorded rows."""
        cells = results["cells"]
        agents = list(dict.fromkeys((cell["task"], cell["agent"]) for cell in cells))
        sizes = {key: unique((c for c in cells if (c["task"], c["agent"]) == key), "rows") for key in agents}
        wide = max(map(len, sizes.values()))
        figure = Figure(figsize=(3.2 * wide, 2.5 * len(agents) + 0.7), layout="constrained")
        grid = figure.subplots(len(agents), wide, squeeze=False)
        for panels, (task, agent) in zip(grid, agents, strict=True):
            panels[0].set_ylabel(f"{TITLES[task]}, {agent.upper()}\n{MEASURES[task]}", fontsize=9, color=INK)
            for axes, size in zip(panels, sizes[task, agent], strict=False):
                own = [c for c in cells if (c["task"], c["agent"], c["rows"]) == (task, agent, size)]
                doses = sorted(unique(own, "dose"))
                alone = next(cell for cell in own if cell["dose"] == 0)
                for density in (each for each in unique(own, "density") if each):
                    line = [alone, *(cell for cell in own if cell["density"] == density)]
                    colour = DENSITY_COLOURS[density]
                    draw_line(axes, range(len(doses)), [c["values"] for c in line], color=colour, label=density)
                axes.axhline(alone["mean"], color=INK, lw=1, ls="--", label="recorded rows alone")
                axes.set_xticks(range(len(doses)), [f"{dose:g}" for dose in doses])
                axes.set_xlabel("generated rows per recorded row", fontsize=9)
                title_left(axes, f"{size:,} recorded rows", fontsize=10)
                bare(axes)
            for axes in panels[len(sizes[task, agent]) :]:
                axes.set_axis_off()
        legend_below(figure)
        save(figure, folder / self.outputs[1])

    @staticmethod
    def table(results: Mapping[str, Any]) -> str:
        cells, doses = results["cells"], sorted(unique(results["cells"], "dose"))
        reached = {(c["task"], c["agent"], c["rows"], c["density"], c["dose"]): c["mean"] for c in cells}
        rows = []
        for task, agent, size, density in dict.fromkeys(key[:4] for key in reached if key[3]):
            means = [reached[task, agent, size, density if dose else None, dose] for dose in doses]
            name = f"{TITLES[task]}, {agent.upper()}, {MEASURES[task].partition(' ')[0]}"
            rows.append([name, density, f"{size:,}", *(f"{mean:.1f}" for mean in means)])
        return markdown_table(["agent", "density", "recorded rows", *(f"{dose:g}" for dose in doses)], rows)

    @staticmethod
    def answer(results: Mapping[str, Any]) -> str:
        found = changes(results["cells"])
        mean = {(c["agent"], c["rows"], c["density"], c["dose"]): c["mean"] for c in results["cells"]}
        return (
            "About four per recorded row, and more where little was recorded: with 1,000 recorded rows TD3-BC needs "
            f"{mean['td3-bc', 1_000, None, 0.0]:.0f} steps without generated rows, "
            f"{mean['td3-bc', 1_000, 'mixture', 4.0]:.0f} with four per recorded one. More rows made agents "
            f"significantly worse in {sum(found)} of {len(found)} steps from one dose to the next."
        )


def changes(cells: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Whether each step from one dose to the next hurts: the whole 95% CI of the change, paired by seed, is worse."""
    doses = sorted(unique(cells, "dose"))
    found = {(c["task"], c["agent"], c["rows"], c["density"], c["dose"]): torch.tensor(c["values"]) for c in cells}
    hurts = []
    for task, agent, size, density in dict.fromkeys(key[:4] for key in found if key[3]):
        sign = -1 if task == "navigation" else 1  # fewer steps are better
        for one, other in pairwise(found[task, agent, size, density if dose else None, dose] for dose in doses):
            mean, std = mean_and_std((sign * (other - one)).tolist())
            count = len(one)
            hurts.append(count > 1 and bool(mean + t.ppf(0.975, count - 1) * std / count**0.5 < 0))
    return hurts


def recordings(run: Run, task: Task, trial: Trial) -> Parts:
    """What was recorded, by size and seed: walks of each seed, or the first rows of one recording for all seeds."""
    if isinstance(task, HookSweep2):
        recorded = record(run, task, max(trial.sizes), "varied")
        firsts = {size: recorded[:size] for size in trial.sizes}
        return {(size, seed): first for size, first in firsts.items() for seed in range(trial.seeds)}
    return {
        (size, seed): task.collect(size, seed=seed).to(run.device)
        for size in trial.sizes
        for seed in range(trial.seeds)
    }


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


def _walker(name: str, **settings: Any) -> Agent:
    # As the small agents of Table 2: narrower than the paper's, since 165 of each are trained.
    small: dict[str, Any] = {"hidden": (256, 256), "batch": 256, "polyak": 0.01, "standardise": True}
    return paper_agent(name, **(small | settings))


def _sweeper(**settings: Any) -> Agent:
    return paper_agent("td3-bc", decay=True, standardise=True, **settings)


Dose.presets = {
    "paper": Dose(
        "paper",
        seeds=5,
        navigation=Trial(
            sizes=(1_000, 4_000, 40_000),
            seeds=5,
            dynamics=paper_dynamics(hidden=(256, 256), epochs=100, epoch_rows=20_000, window=10, tf32=True),
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
            dynamics=paper_dynamics(
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
        ),
    ),
    "quick": Dose(
        "quick",
        seeds=1,
        tasks=("navigation",),
        doses=(0.0, 1.0, 4.0),
        navigation=Trial(
            sizes=(400,),
            seeds=1,
            dynamics=paper_dynamics(members=2, hidden=(64,), features=32, epochs=20, epoch_rows=2_000, batch=128),
            agents=(_walker("td3-bc", hidden=(64, 64), batch=128),),
            updates=1_000,
            evaluations=5,
            last=2,
            episodes=20,
            components=16,
        ),
        hooksweep2=Trial(
            sizes=(5_000,),
            seeds=1,
            dynamics=paper_dynamics(members=2, hidden=(128,), features=64, epochs=20, epoch_rows=5_000, batch=256),
            agents=(_sweeper(hidden=(128, 128), batch=256, polyak=0.04, imitation=0.5),),
            updates=2_000,
            evaluations=2,
            last=1,
            episodes=2,
            components=16,
        ),
    ),
}
