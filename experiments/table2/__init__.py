"""Table 2: agents trained on the recorded L and on what was made of it.

Rows and columns are called as on the command line. What the paper reports stands beside what we measure; `dyna` is not
in its table. The last row is the least number of steps that any policy needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from experiments.columns import column_recipe, published, recipe_colour, recipe_title
from experiments.experiment import (
    Experiment,
    Run,
    by_place,
    cell,
    cells_table,
    check_names,
    check_training,
    markdown_table,
    plus_minus,
    read_json,
)
from experiments.figures import plot_curve
from experiments.stages import (
    agent_cell,
    agents_config,
    fit_agents,
    fit_models,
    last_evaluations,
    learning_curves,
    paper_agent,
)
from experiments.table1 import Table1
from mocoda.agents import Agent
from mocoda.agents.evaluation import play_simulated
from mocoda.agents.policy import Policies
from mocoda.augmentation.generation import augment
from mocoda.data.transitions import Transitions
from mocoda.dynamics import Dynamics, DynamicsConfig
from mocoda.engine.figure_style import BLUE, GREEN, GREY, INK, bare, legend_below, save
from mocoda.engine.files import write_json
from mocoda.engine.statistics import interquartile_mean
from mocoda.parents import fit_parents
from mocoda.tasks.navigation import START_HIGH, Navigation

COLUMNS = ("emp", "dyna", "rand", "mocoda", "mocoda-u", "coda")
# Table 2 of the paper, (mean, standard deviation) over five seeds.
PAPER: dict[str, tuple[tuple[float, float] | None, ...]] = {  # in the order of the columns
    "td3-bc": ((40.0, 16.1), None, (26.1, 0.8), (21.0, 0.7), (20.7, 0.8), (21.4, 0.6)),
    "bcq": ((58.5, 10.1), None, (31.7, 2.4), (22.8, 0.4), (24.8, 4.2), (25.0, 0.4)),
    "cql": ((45.8, 4.0), None, (27.6, 1.3), (22.8, 0.2), (22.7, 0.3), (23.6, 0.5)),
    "sac": ((53.1, 9.8), None, (27.6, 1.1), (38.8, 18.3), (41.3, 17.7), (35.1, 18.1)),
}
TITLES = {name: name.upper() for name in PAPER}
VARIANTS = {
    "table2.json": "the table",
    "standardised.json": "standardised states",
    "tuned.json": "one setting changed per agent",
    "stratified.json": "mixtures per local graph",
    "published-coda.json": "CoDA as in the paper's code",
}


@dataclass(frozen=True)
class Table2(Experiment):
    """How fast agents reach the goal, by the data they were trained on (Table 2)."""

    name = "table2"
    metric = (
        "steps to the goal (70 where it is not reached): mean over the episodes of the last evaluations while training"
    )
    outputs = ("table2.json", "table2-curves.json", "table2-curves.png", "table2-policies.png")

    dynamics: DynamicsConfig
    agents: tuple[Agent, ...] = field(default_factory=lambda: tuple(paper_agent(name) for name in PAPER))
    columns: tuple[str, ...] = COLUMNS
    rows: int = 40_000  # recorded
    total: int = 200_000  # in every data set, the recorded ones among them
    updates: int = 25_000
    evaluate_every: int = 100
    episodes: int = 10
    last: int = 50  # evaluations that count
    components: int = 32
    published_code: bool = False  # parents as the paper's code draws them
    stratified: bool = False  # mixtures per local graph (Appendix B.2)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_training(self.total, self.rows, self.last, self.updates // self.evaluate_every)
        check_names("column", self.columns, COLUMNS)

    def config(self) -> dict[str, Any]:
        return super().config() | {"agents": agents_config(self.agents)}

    def measure(self, run: Run) -> dict[str, Any]:
        """Collects, augments and trains every agent on every data set, all seeds at once."""
        task, seeds = Navigation(), range(self.seeds)
        recorded = [task.collect(self.rows, seed=seed).to(run.device) for seed in seeds]
        models = fit_models(run, recorded, task.graph, "local", self.dynamics)
        datasets: dict[str, list[Transitions]] = {}
        for number, column in enumerate(self.columns):
            datasets[column] = [self.dataset(task, column, recorded[seed], models[seed], seed) for seed in seeds]
            run.progress("data sets", number + 1, len(self.columns))
        run.lap("data")
        policies = {}
        for agent in self.agents:
            policies[agent.name] = fit_agents(
                run,
                datasets,
                agent,
                name=f"agents-{agent.name}",
                updates=self.updates,
                task=task,
                evaluate_every=self.evaluate_every,
                episodes=self.episodes,
            )
            run.lap(agent.name)
        optimum = least_steps()
        by_agent = learning_curves(policies, "steps", self.columns, digits=2)
        _, curves, curves_figure, policies_figure = (run.folder / name for name in self.outputs)
        write_json(curves, {"measure": "steps, mean over episodes, one list a seed", "agents": by_agent})
        draw_curves(by_agent, optimum, curves_figure)
        draw_paths({name: walk(each, task, self.columns) for name, each in policies.items()}, policies_figure)
        cells = [made for name in policies for made in self.cells(name, policies[name])]
        return {"cells": [*cells, *(cell("optimum", column, [optimum]) for column in self.columns)]}

    def cells(self, row: str, policies: Policies) -> list[dict[str, Any]]:
        """The cells of one agent."""
        steps, success = (
            {column: last_evaluations(policies, measure, column, self.last) for column in self.columns}
            for measure in ("steps", "success")
        )
        return [
            agent_cell(row, column, steps, PAPER[row][COLUMNS.index(column)], lower_is_better=True)
            | {"iqm": interquartile_mean(steps[column]), "success": success[column]}
            for column in self.columns
        ]

    def dataset(self, task: Navigation, column: str, recorded: Transitions, model: Dynamics, seed: int) -> Transitions:
        """`total` rows with the recorded ones among them."""
        if column == "emp":  # repeated until there are as many
            return recorded[torch.arange(self.total, device=recorded.device) % len(recorded)]
        recipe = column_recipe(column, components=self.components, stratified=self.stratified)
        if self.published_code:
            recipe = published(recipe)
        parents = fit_parents(recorded, task.graph, recipe, seed=seed, task=task, model=model)
        more = self.total - len(recorded)
        return augment(recorded, parents, model, rows=more, task=task, seed=seed, provenance=False)

    @staticmethod
    def table(results: Mapping[str, Any]) -> str:
        return cells_table(results, 1, TITLES)

    @staticmethod
    def answer(results: Mapping[str, Any]) -> str:
        steps = {place: one["mean"] for place, one in by_place(results).items()}
        return (
            f"Yes: TD3-BC needs {steps['td3-bc', 'emp']:.1f} steps when trained on the recorded rows and "
            f"{steps['td3-bc', 'mocoda']:.1f} with MoCoDA's; no policy can need fewer than "
            f"{steps['optimum', 'emp']:.1f}."
        )

    @classmethod
    def blocks(cls, folder: Path) -> dict[str, str]:
        rows = []
        for file, title in VARIANTS.items():
            cells = by_place(read_json(folder / file))
            for column in ("coda",) if "coda" in file else ("mocoda", "mocoda-u"):
                rows.append(
                    [
                        title,
                        column,
                        *(plus_minus(cells[agent, column], 1) if (agent, column) in cells else "" for agent in PAPER),
                    ]
                )
        return super().blocks(folder) | {"variants": markdown_table(["variant", "data", *TITLES.values()], rows)}


def _small(name: str, **settings: Any) -> Agent:
    # Small networks find the way sooner, and keep to it, if they see standardised states.
    return paper_agent(name, hidden=(128, 128), batch=256, polyak=0.01, standardise=True, **settings)


Table2.presets = {
    # The paper's agents and sizes; the data comes from the dynamics that are closest on MoCoDA's distributions.
    "paper": Table2("paper", seeds=5, dynamics=replace(Table1.presets["paper"].dynamics, standardise=True)),
    "quick": Table2(
        "quick",
        seeds=2,
        dynamics=Table1.presets["quick"].dynamics,
        agents=(
            _small("td3-bc"),
            _small("bcq", samplers=3, sampler_hidden=(64, 64), sampler_updates=300, sampler_batch=512),
        ),
        columns=("emp", "mocoda"),
        updates=9_000,
        last=10,
    ),
}


def walk(policies: Policies, task: Navigation, columns: tuple[str, ...], episodes: int = 24) -> dict[str, Tensor]:
    """Where the first seed's agents walk, from the same starts: data -> (T + 1, episodes, 2)."""
    return {
        column: play_simulated([policies[column, 0]], task, episodes=episodes, seed=0, keep_path=True).path[:, 0]
        for column in columns
    }


@cache
def least_steps() -> float:
    """The least steps that any policy needs, mean over a fine grid of starts."""
    ticks = START_HIGH * (torch.arange(1_000, dtype=torch.float64) + 0.5) / 1_000
    return float(Navigation().least_steps(torch.cartesian_prod(ticks, ticks)).mean())


# Figures


def draw_curves(agents: Mapping[str, Any], optimum: float, path: Path) -> None:
    """Draws learning curves, one panel per agent: the mean over seeds, and the range of the seeds."""
    figure = Figure(figsize=(3.4 * len(agents), 3.5), layout="constrained")
    panels = figure.subplots(1, len(agents), squeeze=False, sharey=True).flat
    for axes, (name, curves) in zip(panels, agents.items(), strict=True):
        for column, seeds in curves["steps"].items():
            plot_curve(axes, curves["updates"], seeds, color=recipe_colour(column), lw=1.6, label=column)
        axes.axhline(optimum, color=INK, lw=1, ls=":", label="optimum")
        axes.set_title(name.upper(), fontsize=12, color=INK)
        axes.set(xlabel="updates", ylim=(15, 72))
        bare(axes)
    figure.axes[0].set_ylabel("steps to the goal")
    legend_below(figure)
    save(figure, path)


def draw_paths(paths: Mapping[str, Mapping[str, Tensor]], path: Path) -> None:
    """Draws where agents walk: a row per agent, a column per data set, lines through (T + 1, episodes, 2)."""
    columns = list(next(iter(paths.values())))
    size = (2.1 * len(columns) + 0.4, 2.1 * len(paths) + 0.5)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(paths), len(columns), squeeze=False)
    for row, (agent, by_data) in enumerate(paths.items()):
        grid[row][0].set_ylabel(agent.upper(), fontsize=12, color=INK)
        for place, (name, walked) in enumerate(by_data.items()):
            draw_walks(grid[row][place], walked)
            if row == 0:
                grid[row][place].set_title(recipe_title(name), fontsize=12, color=INK)
    save(figure, path)


def draw_walks(axes: Axes, walked: Tensor) -> None:
    """Draws walks over the start, the goal and the quadrant where the sub-actions interfere."""
    axes.add_patch(Rectangle((0.5, 0.5), 0.6, 0.6, color=GREY, alpha=0.12, lw=0))
    axes.add_patch(Rectangle((0.0, 0.0), 0.15, 0.15, color=BLUE, alpha=0.2, lw=0))
    axes.add_patch(Rectangle((0.8, 0.8), 0.1, 0.1, color=GREEN, alpha=0.45, lw=0))
    for episode in walked.cpu().transpose(0, 1).numpy():
        axes.plot(*episode.T, color=BLUE, lw=0.8, alpha=0.6)
        axes.plot(*episode[-1], ".", color=INK, ms=3)
    axes.set(xlim=(-0.1, 1.1), ylim=(-0.1, 1.1), xticks=[], yticks=[], aspect="equal")
