"""Rewards of other signs and sizes: the same walks of 2D Navigation, rewarded in other ways.

The first three forms of reward rank all policies alike. In the last two no row is terminal, so that the goal is worth
staying at. Rows as "td3-bc, as they are" learn from the numbers that the data has (`scale_rewards=False`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from experiments.columns import column_recipe
from experiments.experiment import Experiment, Run, by_place, cell, cells_table, check_names, check_training
from experiments.figures import PALETTE, draw_bars
from experiments.stages import fit_agents, last_evaluations
from experiments.worlds import TrueModel
from mocoda.agents import Agent, make_agent
from mocoda.agents.policy import agent_settings
from mocoda.augmentation.generation import augment
from mocoda.data.transitions import Transitions
from mocoda.engine.figure_style import legend_below, save, title_left
from mocoda.parents import fit_parents
from mocoda.tasks.navigation import Navigation

FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "-1/0": lambda reward: reward,
    "0/1": lambda reward: reward + 1,
    "-10/0": lambda reward: 10 * reward,
    "-1/0, nothing ends": lambda reward: reward,
    "+1/+2, nothing ends": lambda reward: reward + 2,
}
AS_THEY_ARE = "as they are"


@dataclass(frozen=True)
class Rewards(Experiment):
    """How often agents reach the goal, by the form of the reward they were trained on."""

    name = "rewards"
    metric = "episodes that reach the goal, in percent: mean over the last evaluations while training"
    outputs = ("rewards.json", "rewards.png")

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
        check_names("form", self.forms, FORMS)
        check_training(self.total, self.rows, self.last, self.updates // self.evaluate_every)

    def config(self) -> dict[str, Any]:
        return super().config() | {"agents": {_row(agent): agent_settings(agent) for agent in self.agents}}

    def measure(self, run: Run) -> dict[str, Any]:
        task = Navigation()
        tables = [self._walks(task, seed, run.device) for seed in range(self.seeds)]
        datasets = {form: [_rewarded(table, form) for table in tables] for form in self.forms}
        run.lap("data")
        cells = []
        for agent in self.agents:
            policies = fit_agents(
                run,
                datasets,
                agent,
                name=f"agents-{_row(agent).replace(', ', '-').replace(' ', '-')}",
                updates=self.updates,
                task=task,
                evaluate_every=self.evaluate_every,
                episodes=self.episodes,
            )
            for form in self.forms:
                success = last_evaluations(policies, "success", form, self.last, scale=100)
                steps = last_evaluations(policies, "steps", form, self.last)
                cells.append(cell(_row(agent), form, success) | {"steps": steps})
            run.lap(_row(agent))
        return {"cells": cells}

    def _walks(self, task: Navigation, seed: int, device: str) -> Transitions:
        recorded = task.collect(self.rows, seed=seed).to(device)
        parents = fit_parents(recorded, task.graph, column_recipe("mocoda"), seed=seed)
        more = self.total - self.rows
        return augment(recorded, parents, TrueModel(task), rows=more, task=task, seed=seed, provenance=False)

    def draw(self, results: Mapping[str, Any], folder: Path) -> None:
        figure = Figure(figsize=(9.5, 3.6), layout="constrained")
        axes = figure.subplots()
        styles = {form: {"color": colour} for form, colour in zip(FORMS, PALETTE, strict=False)}
        draw_bars(axes, results["cells"], "row", "column", styles)
        axes.set(ylabel="episodes that reach the goal (%)", ylim=(0, 105))
        title_left(axes, "One task, rewarded in five ways")
        legend_below(figure)
        save(figure, folder / self.outputs[1])

    @staticmethod
    def table(results: Mapping[str, Any]) -> str:
        return cells_table(results, 1)

    @staticmethod
    def answer(results: Mapping[str, Any]) -> str:
        success = {place: one["mean"] for place, one in by_place(results).items()}
        least = min(success[agent, form] for agent in ("td3-bc", "bcq", "cql") for form in ("-1/0", "0/1", "-10/0"))
        return (
            f"Not their sign and size: TD3-BC, BCQ and CQL reach the goal in {least:.0f}% of the episodes. "
            f"TD3-BC on rewards as they are does in {success[f'td3-bc, {AS_THEY_ARE}', '-10/0']:.0f}% where these are "
            f"ten times as large, and BCQ in {success['bcq', '+1/+2, nothing ends']:.0f}% where nothing ever ends."
        )


def _rewarded(data: Transitions, form: str) -> Transitions:
    assert data.reward is not None
    terminal = torch.zeros_like(data.terminal) if form.endswith("nothing ends") else data.terminal
    return replace(data, reward=FORMS[form](data.reward), terminal=terminal)


def _row(agent: Agent) -> str:
    return agent.name if agent.scale_rewards else f"{agent.name}, {AS_THEY_ARE}"


def _agents(*names: str, **settings: Any) -> tuple[Agent, ...]:
    """Each as it is by default, and TD3-BC also on rewards as they are."""
    return (make_agent("td3-bc", scale_rewards=False, **settings), *(make_agent(name, **settings) for name in names))


Rewards.presets = {
    "paper": Rewards("paper", seeds=5, agents=_agents("td3-bc", "bcq", "cql")),
    "quick": Rewards(
        "quick", seeds=1, agents=_agents("td3-bc", hidden=(128, 128), batch=256, polyak=0.01), updates=5_000, last=3
    ),
}
