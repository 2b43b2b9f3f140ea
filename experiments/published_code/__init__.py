"""The paper's code draws its data in another way than the paper's text says: what that does to the agents of Table 2.

The code draws the components of a mixture equally often, the text by their weights. With true next
states instead of the model's, the difference is what the model's errors cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from experiments.experiment import Experiment, Run, by_place, cells_table, check_names, check_training, spread
from experiments.figures import PALETTE, draw_bars
from experiments.stages import fit_agents, fit_models, last_evaluations
from experiments.table2 import Table2
from mocoda.agents import Agent
from mocoda.agents.policy import agent_settings
from mocoda.augmentation.rewards import label
from mocoda.data.transitions import Transitions
from mocoda.engine.figure_style import legend_below, save, title_left
from mocoda.tasks.navigation import Navigation

FIRST = 100  # the first seed; no table uses it
DATA = {
    "mixture": "as the paper's text says",
    "published": "as the paper's code does",
    "true next states": "and true next states",
}
# By name: the agent of Table 2, and what is changed of it.
VARIANTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "td3-bc": ("td3-bc", {}),
    "cql": ("cql", {}),
    "bcq": ("bcq", {}),
    "bcq, two critics": ("bcq", {"critics": 2}),
    "bcq, 5 proposals": ("bcq", {"proposals": 5}),
}


@dataclass(frozen=True)
class PublishedCode(Experiment):
    """Agents of Table 2 on data drawn as the paper's code draws it, with seeds that no table uses."""

    name = "published-code"
    metric = "steps to the goal, as in Table 2: mean over the last evaluations while training, one value a seed"
    outputs = ("published-code.json", "published-code.png")

    updates: int
    evaluate_every: int
    last: int
    variants: tuple[str, ...] = tuple(VARIANTS)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names("variant", self.variants, VARIANTS)
        check_training(1, 1, self.last, self.updates // self.evaluate_every)

    def config(self) -> dict[str, Any]:
        return super().config() | {"agents": {name: agent_settings(self.agent(name)) for name in self.variants}}

    def agent(self, variant: str) -> Agent:
        name, changes = VARIANTS[variant]
        base: Agent = next(agent for agent in Table2.presets[self.preset].agents if agent.name == name)
        return replace(base, **changes)

    def measure(self, run: Run) -> dict[str, Any]:
        """Makes the data once, and trains every variant on it."""
        task, seeds, table = Navigation(), range(FIRST, FIRST + self.seeds), Table2.presets[self.preset]
        recorded = [task.collect(table.rows, seed=seed).to(run.device) for seed in seeds]
        models = fit_models(run, recorded, task.graph, "local", table.dynamics, seeds=seeds)
        datasets = {}
        for name in DATA:
            drawn = replace(table, published_code=name != "mixture")
            tables = [drawn.dataset(task, "mocoda", *own) for own in zip(recorded, models, seeds, strict=True)]
            true = name == "true next states"
            datasets[name] = [with_true_next_states(task, data) if true else data for data in tables]
        run.lap("data")
        cells = []
        for variant in self.variants:
            policies = fit_agents(
                run,
                datasets,
                self.agent(variant),
                name=f"agents-{variant.replace(',', '').replace(' ', '-')}",
                seeds=seeds,
                updates=self.updates,
                task=task,
                evaluate_every=self.evaluate_every,
                episodes=table.episodes,
            )
            run.lap(variant)
            for data in datasets:
                steps = last_evaluations(policies, "steps", data, self.last)
                cells.append({"row": variant, "column": data, **spread(steps)})
        return {"cells": cells}

    def draw(self, results: Mapping[str, Any], folder: Path) -> None:
        figure = Figure(figsize=(8, 3.6), layout="constrained")
        axes = figure.subplots()
        styles = {name: {"color": colour, "label": DATA[name]} for name, colour in zip(DATA, PALETTE, strict=False)}
        draw_bars(axes, results["cells"], "row", "column", styles, dots=True)
        axes.set(ylabel="steps to the goal", ylim=(15, None))
        title_left(axes, "Components of mixtures, drawn …")
        legend_below(figure)
        save(figure, folder / self.outputs[1])

    @staticmethod
    def table(results: Mapping[str, Any]) -> str:
        return cells_table(results, 1, DATA)

    @staticmethod
    def answer(results: Mapping[str, Any]) -> str:
        steps = {place: one["mean"] for place, one in by_place(results).items()}
        changes = (f"{name.upper()} {steps[name, 'mixture']:.1f} → {steps[name, 'published']:.1f}" for name in AGENTS)
        return f"Drawn as the paper's code does, the data makes all agents faster (steps): {', '.join(changes)}."


AGENTS = ("td3-bc", "cql", "bcq")
PublishedCode.presets = {
    "paper": PublishedCode("paper", seeds=3, updates=25_000, evaluate_every=100, last=50),
    "quick": PublishedCode("quick", seeds=1, updates=400, evaluate_every=200, last=1, variants=("td3-bc",)),
}


def with_true_next_states(task: Navigation, data: Transitions) -> Transitions:
    """The same states and actions, followed by what really happens."""
    return label(Transitions(data.state, data.action, task.step(data.rows), columns=data.columns), task)
