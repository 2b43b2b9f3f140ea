"""Table 2: agents trained on the recorded L and on what was made of it.

Columns are called as in `experiments.columns`. What the paper reports stands beside what we measure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from experiments.columns import Column, column_data, column_style, column_title
from experiments.diffusion import DiffusionConfig, fit_diffusion
from experiments.experiment import Experiment, Run, by_place, cell, check_names, check_training, read_json, unique
from experiments.stages import (
    JUDGED_ROWS,
    VISITS,
    Merit,
    agents_config,
    fit_models,
    last_evaluations,
    learning_curve,
    noted_merits,
    paper_agent,
    paper_dynamics,
    train_columns,
)
from experiments.table1 import Table1
from experiments.tables import BOUNDS, agent_title, compared, data_table, reference
from mocoda.agents import Agent
from mocoda.agents.evaluation import play_simulated
from mocoda.agents.policy import Policies
from mocoda.data.transitions import Transitions
from mocoda.dynamics import Dynamics, DynamicsConfig
from mocoda.engine.figure_style import BLUE, GREEN, GREY, INK, bare, legend_below, save
from mocoda.engine.randomness import Stream, as_stream
from mocoda.tasks.navigation import GOAL_HIGH, GOAL_LOW, START_HIGH, Navigation

# Table 2 of the paper, (mean, standard deviation) over five seeds.
PAPER: dict[str, dict[str, tuple[float, float]]] = {
    "td3-bc": {
        "emp": (40.0, 16.1),
        "coda": (21.4, 0.6),
        "rand": (26.1, 0.8),
        "mocoda": (21.0, 0.7),
        "mocoda-u": (20.7, 0.8),
    },
    "bcq": {
        "emp": (58.5, 10.1),
        "coda": (25.0, 0.4),
        "rand": (31.7, 2.4),
        "mocoda": (22.8, 0.4),
        "mocoda-u": (24.8, 4.2),
    },
    "cql": {
        "emp": (45.8, 4.0),
        "coda": (23.6, 0.5),
        "rand": (27.6, 1.3),
        "mocoda": (22.8, 0.2),
        "mocoda-u": (22.7, 0.3),
    },
    "sac": {
        "emp": (53.1, 9.8),
        "coda": (35.1, 18.1),
        "rand": (27.6, 1.1),
        "mocoda": (38.8, 18.3),
        "mocoda-u": (41.3, 17.7),
    },
}
COLUMNS = (
    *("emp", "coda", "coda-code", "dyna", "rand", "mocoda", "mocoda-u", "default", "mocoda-global", "mocoda-full"),
    *("diffusion", "noise", "mopo", "target"),
)
WALKS = 8  # episodes of the first seed's first agent that the figure shows


@dataclass(frozen=True)
class Table2(Experiment):
    """How fast agents reach the goal, by the data they were trained on (Table 2)."""

    name = "table2"
    metric = (
        "steps to the goal (70 where it is not reached): mean over the episodes of the last evaluations while training"
    )
    outputs = ("table2.json", "table2-curves.png", "table2-policies.png")

    dynamics: DynamicsConfig
    agents: Mapping[str, Agent] = field(default_factory=lambda: {name: paper_agent(name) for name in PAPER})
    diffusion: DiffusionConfig = field(default_factory=DiffusionConfig)
    columns: tuple[str, ...] = COLUMNS
    first: int = 0  # seed
    rows: int = 40_000  # recorded
    total: int = 200_000  # in every data set, the recorded ones among them
    updates: int = 25_000
    evaluate_every: int = 100
    episodes: int = 10
    last: int = 50  # evaluations that count
    components: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        check_training(self.total, self.rows, self.last, self.updates // self.evaluate_every)
        check_names("column", self.columns, COLUMNS)

    def config(self) -> dict[str, Any]:
        return super().config() | {"agents": agents_config(self.agents)}

    def measure(self, run: Run) -> dict[str, Any]:
        """Trains every agent on every data set, all seeds at once."""
        options = {
            "updates": self.updates,
            "task": Navigation(),
            "evaluate_every": self.evaluate_every,
            "episodes": self.episodes,
        }
        seeds, data = range(self.first, self.first + self.seeds), self.datasets(run)
        cells = train_columns(run, self.columns, self.agents, seeds, data, lambda name: options, self.cell)
        optimum = [cell("optimum", column, [least_steps()]) for column in self.columns]
        return {
            "seconds": round(sum(one["seconds"] for one in cells), 1),
            "cells": [*cells, *optimum],
            "merit": noted_merits(run, self.columns),
        }

    def datasets(self, run: Run) -> Callable[[str], list[Transitions]]:
        """What makes the data sets of a column, one per seed, and notes the merit of the first one's rows."""
        task, seeds = Navigation(), range(self.first, self.first + self.seeds)
        recorded = [task.collect(self.rows, seed=seed).to(run.device) for seed in seeds]

        @cache
        def models(architecture: str) -> list[Dynamics]:
            return fit_models(run, recorded, task.graph, architecture, self.dynamics, seeds=seeds)

        merit = Merit(recorded[0], task, walked_to_the_goal(task, JUDGED_ROWS, VISITS), workers=0)

        def made(column: str) -> list[Transitions]:
            if column == "diffusion":
                fitted: Any = fit_diffusion(recorded, seeds, self.diffusion, run.progress)
            elif column == "target":
                walks = [walked_to_the_goal(task, self.rows, seed).to(run.device) for seed in seeds]
                return [
                    column_data("emp", own, task, None, rows=self.total - len(own), seed=seed)
                    for own, seed in zip(walks, seeds, strict=True)
                ]
            else:
                fitted = [None] * self.seeds
            drawn = zip(recorded, models(Column.of(column).architecture), seeds, fitted, strict=True)
            return [self.dataset(task, column, own, model, seed, parents) for own, model, seed, parents in drawn]

        def data(column: str) -> list[Transitions]:
            tables = made(column)
            merit.note(run, column, tables[0][self.rows :])
            return tables

        return data

    def dataset(
        self, task: Navigation, column: str, recorded: Transitions, model: Dynamics, seed: int, parents: Any = None
    ) -> Transitions:
        """`total` rows with the recorded ones among them."""
        more = self.total - len(recorded)
        given: dict[str, Any] = {"rows": more, "seed": seed, "parents": parents, "components": self.components}
        return column_data(column, recorded, task, model, **given)

    def cell(self, name: str, column: str, policies: Policies) -> dict[str, Any]:
        """What the table says of one agent on one column."""
        paper = PAPER.get(name, {}).get(column)
        made = cell(name, column, last_evaluations(policies, "steps", column, self.last), paper)
        made["success"] = last_evaluations(policies, "success", column, self.last)
        made["curve"] = learning_curve(policies, "steps")
        if name == next(iter(self.agents)):
            walked = play_simulated(
                [next(iter(policies.values()))], Navigation(), episodes=WALKS, seed=0, keep_path=True
            )
            made["walks"] = [
                [round(number, 2) for number in walk[:steps].flatten().tolist()]
                for walk, steps in zip(walked.path[:, 0].transpose(0, 1), (walked.steps[0] + 1).long(), strict=True)
            ]
        return made

    def draw(self, results: Mapping[str, Any], folder: Path) -> None:
        """Draws learning curves, a panel per agent, and walks of the first agent, a panel per data set."""
        cells = [one for one in results["cells"] if one["row"] != "optimum"]
        draw_curves(cells, least_steps(), folder / self.outputs[1])
        if walked := [one for one in cells if "walks" in one]:
            draw_walks(walked, folder / self.outputs[2])

    @staticmethod
    def table(results: Mapping[str, Any]) -> str:
        return data_table(results, 1)

    @staticmethod
    def answer(results: Mapping[str, Any]) -> str:
        steps, ours = {place: one["mean"] for place, one in by_place(results).items()}, reference(results)
        ties = [
            f"{agent_title(name)} {steps[name, ours]:.1f} and {steps[name, 'rand']:.1f}"
            for name in unique(results["cells"], "row")
            if name not in ("td3-bc", *BOUNDS) and {(name, ours), (name, "rand")} <= set(steps)
        ]
        return (
            f"Yes: TD3-BC needs {steps['td3-bc', 'emp']:.1f} steps when trained on the recorded rows, "
            f"{steps['td3-bc', ours]:.1f} with MoCoDA's and {steps['td3-bc', 'rand']:.1f} with random rows; no policy "
            f"can need fewer than {steps['optimum', 'emp']:.1f}."
        ) + (f" With MoCoDA's rows and random ones: {', '.join(ties)}." if ties else "")

    @classmethod
    def blocks(cls, folder: Path) -> dict[str, str]:
        return super().blocks(folder) | {
            "compared": compared(cls.results(folder), 1, lower_is_better=True),
            "earlier": cls.table(read_json(folder / "earlier.json")),
        }


def _small(name: str, **settings: Any) -> Agent:
    # Small networks find the way sooner, and keep to it, if they see standardised states.
    return paper_agent(name, hidden=(128, 128), batch=256, polyak=0.01, standardise=True, **settings)


Table2.presets = {
    # The paper's agents and sizes, once more TD3-BC with less imitation; the dynamics are those of `mocoda augment`.
    "paper": Table2(
        "paper",
        seeds=10,
        first=10,
        dynamics=paper_dynamics(epochs=100, window=10, tf32=True),
        agents={name: paper_agent(name) for name in PAPER}
        | {"td3-bc, imitation 0.25": paper_agent("td3-bc", imitation=0.25)},
    ),
    "quick": Table2(
        "quick",
        seeds=2,
        dynamics=Table1.presets["quick"].dynamics,
        agents={
            "td3-bc": _small("td3-bc"),
            "bcq": _small("bcq", samplers=3, sampler_hidden=(64, 64), sampler_updates=300, sampler_batch=512),
        },
        columns=("emp", "mocoda"),
        updates=9_000,
        last=10,
    ),
}


def walked_to_the_goal(task: Navigation, rows: int, seed: int | Stream) -> Transitions:
    """Noisy walks of the target task: from its starts straight to the middle of its goal."""
    stream = as_stream(seed, "target-walks", device="cpu")
    walks = rows // 15 + 1  # each takes more steps
    state, walked, going = task.start(walks, seed=stream.child("start")), [], [torch.ones(walks, dtype=torch.bool)]
    for _ in range(task.horizon):
        ahead = ((GOAL_LOW + GOAL_HIGH) / 2 - state) / 0.05
        action = (ahead / ahead.abs().amax(1, keepdim=True).clamp(min=1) + 0.3 * stream.normal(walks, 2)).clamp(-1, 1)
        walked.append(torch.cat([state, action], 1))
        after = task.step(walked[-1])
        going.append(going[-1] & ~task.label(state, action, after)[1])
        state = after
    pairs = torch.stack(walked, 1)[torch.stack(going[:-1], 1)][:rows]
    following = task.step(pairs)
    reward, terminal = task.label(pairs[:, :2], pairs[:, 2:], following)
    return Transitions(pairs[:, :2], pairs[:, 2:], following, reward, terminal, columns=task.graph.parents)


@cache
def least_steps() -> float:
    """The least steps that any policy needs, mean over a fine grid of starts."""
    ticks = START_HIGH * (torch.arange(1_000, dtype=torch.float64) + 0.5) / 1_000
    return float(Navigation().least_steps(torch.cartesian_prod(ticks, ticks)).mean())


# Figures


def draw_curves(cells: list[dict[str, Any]], optimum: float, path: Path) -> None:
    agents = list(dict.fromkeys(one["row"] for one in cells))
    figure = Figure(figsize=(3.4 * len(agents), 3.9), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(agents), squeeze=False, sharey=True).flat, agents, strict=True):
        for one in (one for one in cells if one["row"] == name):
            column = one["column"]
            axes.plot(
                one["curve"]["updates"],
                one["curve"]["mean"],
                lw=1.6,
                label=column_title(column),
                **column_style(column),
            )
        axes.axhline(optimum, color=INK, lw=1, ls=":", label="optimum")
        axes.set_title(agent_title(name), fontsize=12, color=INK)
        axes.set(xlabel="updates", ylim=(15, 72))
        bare(axes)
    figure.axes[0].set_ylabel("steps to the goal")
    legend_below(figure)
    save(figure, path)


def draw_walks(cells: list[dict[str, Any]], path: Path) -> None:
    """Draws walks of trained agents over the start, the goal and the quadrant where the sub-actions interfere."""
    wide = min(len(cells), 7)
    lines = -(-len(cells) // wide)
    figure = Figure(figsize=(2.1 * wide, 2.3 * lines + 0.2), layout="constrained")
    panels = figure.subplots(lines, wide, squeeze=False).flat
    for axes, one in zip(panels, cells, strict=False):
        _draw_walk(axes, [torch.tensor(walk).reshape(-1, 2) for walk in one["walks"]])
        axes.set_title(column_title(one["column"]), fontsize=9, color=INK)
    for axes in list(panels):
        axes.set_axis_off()
    save(figure, path)


def _draw_walk(axes: Axes, walks: list[Tensor]) -> None:
    axes.add_patch(Rectangle((0.5, 0.5), 0.6, 0.6, color=GREY, alpha=0.12, lw=0))
    axes.add_patch(Rectangle((0.0, 0.0), 0.15, 0.15, color=BLUE, alpha=0.2, lw=0))
    axes.add_patch(Rectangle((0.8, 0.8), 0.1, 0.1, color=GREEN, alpha=0.45, lw=0))
    for walk in walks:
        axes.plot(*walk.T, color=BLUE, lw=0.8, alpha=0.6)
        axes.plot(*walk[-1], ".", color=INK, ms=3)
    axes.set(xlim=(-0.1, 1.1), ylim=(-0.1, 1.1), xticks=[], yticks=[], aspect="equal")
