"""Rewards of other signs and sizes: the same walks of 2D Navigation, rewarded in other ways.

The first three forms of reward rank all policies alike. In the last two no row is terminal, so that the goal is worth
staying at. Rows as "td3-bc, as they are" learn from the numbers that the data has (`scale_rewards=False`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import rich.table
import torch
from matplotlib.figure import Figure
from torch import Tensor

from experiments.columns import column_recipe
from experiments.experiment import (
    Experiment,
    Measured,
    Stopwatch,
    cell,
    check_columns,
    check_training,
    compare_with_paper,
)
from experiments.stages import begun, fit_agents, last_evaluations
from mocoda.agents import Agent, make_agent
from mocoda.agents.policy import agent_settings
from mocoda.augmentation.generation import augment
from mocoda.data.transitions import Transitions
from mocoda.engine.figures import BLUE, GREEN, GREY, ORANGE, RED, bare, legend_below, save, title_left
from mocoda.engine.files import write_json
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream
from mocoda.parents import fit_parents
from mocoda.tasks.navigation import Navigation

FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "-1/0": lambda reward: reward,
    "0/1": lambda reward: reward + 1,
    "-10/0": lambda reward: 10 * reward,
    "-1/0, nothing ends": lambda reward: reward,
    "+1/+2, nothing ends": lambda reward: reward + 2,
}
FORM_COLOURS = dict(zip(FORMS, (GREY, BLUE, ORANGE, GREEN, RED), strict=True))
AS_THEY_ARE = "as they are"


class _TrueModel(NamedTuple):
    """A dynamics model that is never wrong, so that rewards are all that differs."""

    task: Navigation

    def sample(self, rows: Tensor, *, seed: int | Stream) -> Tensor:
        return self.task.step(rows)


@dataclass(frozen=True)
class Rewards(Experiment[Measured]):
    """How often agents reach the goal, by the form of the reward they were trained on."""

    name = "rewards"
    metric = "episodes that reach the goal, in percent: mean over the last evaluations while training"
    outputs = ("rewards.json", "rewards.png")
    presets: ClassVar[dict[str, Rewards]] = {}

    agents: tuple[Agent, ...]
    forms: tuple[str, ...] = tuple(FORMS)
    rows: int = 40_000  # recorded
    total: int = 200_000  # with those that MoCoDA adds
    updates: int = 25_000
    evaluate_every: int = 500
    episodes: int = 50
    last: int = 10  # evaluations that count

    def __post_init__(self) -> None:
        super().__post_init__()
        check_columns(self.forms, tuple(FORMS))
        check_training(self.total, self.rows, self.last, self.updates // self.evaluate_every)

    def config(self) -> dict[str, Any]:
        return super().config() | {"agents": {_row(agent): agent_settings(agent) for agent in self.agents}}

    def run(self, *, device: str, folder: Path, progress: Progress = silent, workers: int | None = None) -> Measured:
        clock, resumed = Stopwatch(), begun(folder)
        task, seeds = Navigation(), range(self.seeds)
        tables = [self._walks(task, seed, device) for seed in seeds]
        datasets = {form: [_rewarded(table, form) for table in tables] for form in self.forms}
        clock.lap("data")
        cells = []
        for agent in self.agents:
            policies = fit_agents(
                datasets,
                agent,
                folder=folder,
                name=f"agents-{_row(agent).replace(', ', '-').replace(' ', '-')}",
                seeds=seeds,
                updates=self.updates,
                task=task,
                evaluate_every=self.evaluate_every,
                episodes=self.episodes,
                progress=progress,
            )
            for form in self.forms:
                success, steps = (last_evaluations(policies, name, form, self.last) for name in ("success", "steps"))
                cells.append(cell(_row(agent), form, [100 * share for share in success]) | {"steps": steps})
            clock.lap(_row(agent))
        return Measured({**self.heading(device, clock, resumed=resumed), "cells": cells})

    def write(self, measured: Measured, folder: Path) -> rich.table.Table:
        write_json(folder / self.outputs[0], measured.results)
        draw_rewards(measured.results, folder / self.outputs[1])
        title = "Episodes that reach the goal (%), by the form of the reward"
        return compare_with_paper(measured.results, title, digits=1, best_of="row", more_is_better=True)

    def _walks(self, task: Navigation, seed: int, device: str) -> Transitions:
        recorded = task.collect(self.rows, seed=seed).to(device)
        parents = fit_parents(recorded, task.graph, column_recipe("mocoda"), seed=seed)
        more = self.total - self.rows
        return augment(recorded, parents, _TrueModel(task), rows=more, task=task, seed=seed, provenance=False)


def _rewarded(data: Transitions, form: str) -> Transitions:
    assert data.reward is not None
    terminal = torch.zeros_like(data.terminal) if form.endswith("nothing ends") else data.terminal
    return replace(data, reward=FORMS[form](data.reward), terminal=terminal)


def _row(agent: Agent) -> str:
    return agent.name if agent.scale_rewards else f"{agent.name}, {AS_THEY_ARE}"


def _agents(*names: str, **settings: Any) -> tuple[Agent, ...]:
    """Each as it is by default, and TD3-BC also on rewards as they are."""
    return (
        make_agent("td3-bc", scale_rewards=False, **settings),
        *(make_agent(name, **settings) for name in names),
    )


Rewards.presets.update(
    paper=Rewards("paper", seeds=5, agents=_agents("td3-bc", "bcq", "cql")),
    quick=Rewards(
        "quick",
        seeds=1,
        agents=_agents("td3-bc", hidden=(128, 128), batch=256, polyak=0.01),
        updates=5_000,
        last=3,
    ),
)


def draw_rewards(results: Mapping[str, Any], path: Path) -> None:
    """Draws the success of every agent, one bar a form of reward."""
    rows = list(dict.fromkeys(one["row"] for one in results["cells"]))
    forms = list(dict.fromkeys(one["column"] for one in results["cells"]))
    figure = Figure(figsize=(1.5 + 2.1 * len(rows), 3.6), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(forms)
    for place, form in enumerate(forms):
        own = [one for one in results["cells"] if one["column"] == form]
        at = [row + (place - (len(forms) - 1) / 2) * width for row in range(len(rows))]
        means, stds = ([one[name] for one in own] for name in ("mean", "std"))
        axes.bar(at, means, 0.9 * width, yerr=stds, label=form, color=FORM_COLOURS[form])
    axes.set_xticks(range(len(rows)), rows)
    axes.set(ylabel="episodes that reach the goal (%)", ylim=(0, 105))
    title_left(axes, "One task, rewarded in five ways")
    bare(axes)
    legend_below(figure)
    save(figure, path)
