"""Someone else's world: agents on OGBench's cube tasks, trained on data in which one cube is handled at a time.

In every recorded episode one cube is handled and the others rest in a strip beside the places of the official tasks, so
that no recorded state has two of them in play. What is made of these episodes differs by arm; agent, updates and number
of rows are the same in all but the first. Of what recipes make, rows with all cubes in play are kept: the region that
the task names. The last arm is the benchmark's own way to record, as a ceiling.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from math import ceil
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import rich.table
import torch
from matplotlib.figure import Figure
from torch import Tensor

from experiments.experiment import Experiment, Measured, Stopwatch, check_columns, spread, text_table
from experiments.stages import begun, fit_agents, fit_models, learning_curves, load_agents, record
from mocoda.agents import Agent
from mocoda.agents.agent import make_agent
from mocoda.agents.evaluation import evaluate_each
from mocoda.agents.policy import Policies, agent_settings
from mocoda.augmentation import add_objects, augment_episodes, label
from mocoda.data.transitions import Transitions, concatenate, count_steps
from mocoda.dynamics import Dynamics, DynamicsConfig
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.figures import BLUE, GREEN, GREY, INK, ORANGE, RED, bare, legend_below, save, title_left
from mocoda.engine.files import write_json
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream
from mocoda.parents import make_recipe
from mocoda.tasks import make_task
from mocoda.tasks.cubes import Cubes
from mocoda.tasks.cubes_env import CUBE, OFFICIAL, ROBOT

ARMS = {
    "recorded": "one cube at a time",
    "permuted": "and cubes permuted",
    "coda": "and CoDA's episodes",
    "turns": "and CoDA's, in turns",
    "mocoda": "and MoCoDA's episodes",
    "unfactored": "and those of an unfactored model",
    "play": "all cubes, recorded",
    "added": "one cube fewer recorded, in turns",
}
LEAF = "#a3d1b5"  # of the weaker of two green arms
VIOLET = "#7d5ba6"
COLOURS = dict(zip(ARMS, (INK, ORANGE, LEAF, GREEN, BLUE, RED, GREY, VIOLET), strict=True))
ARCHITECTURES = {"unfactored": "full", "mocoda": "local"}  # of the arms whose episodes a model makes
FIRST_EPISODES, MOST_EPISODES = 50, 5_000  # of an arm at a time: the first tell how many more it needs
SUMMARY = "cubes-data.json"  # what the data sets have; kept for a run that is resumed
FEWER = {"cube-double": ("cube-single", "play"), "cube-triple": ("cube-double", "one-cube")}  # what "added" is made of
KINDS = tuple(f"cube-{number}{goals}" for number in ("single", "double", "triple") for goals in ("", "-places"))


@dataclass(frozen=True, eq=False)
class MeasuredCubes(Measured):
    """The table, and the trained agents."""

    policies: Policies


@dataclass(frozen=True)
class CubesTable(Experiment[MeasuredCubes]):
    """How often agents solve OGBench's cube tasks, by what their data shows of several cubes."""

    name = "cubes"
    metric = "episodes of the official tasks 1 to 5 that succeed, in percent, one value a seed"
    outputs = ("cubes.json", "cubes-curves.json", "cubes.png", "cubes-data.json")
    presets: ClassVar[dict[str, CubesTable]] = {}

    dynamics: DynamicsConfig
    agent: Agent
    updates: int
    rows: int  # recorded with one cube at a time
    total: int  # in all data sets but that one, the recorded rows among them
    episodes: int  # of each official task and agent
    kind: str = "cube-double"
    arms: tuple[str, ...] = tuple(arm for arm in ARMS if arm != "added")
    recipe: str = "mocoda-p"  # of the starts from which models go on
    length: int | None = None  # the most steps of a new episode
    resting: float = 1e-5  # of a column's largest number: how far a cube that lies may move in a step
    evaluations: int = 5  # while agents train
    evaluation_episodes: int = 5
    half: bool = False  # train agents with hidden layers in bfloat16

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("updates", "rows", "episodes", "evaluations", "evaluation_episodes")
        check_columns(self.arms, tuple(ARMS))
        if self.kind not in KINDS:
            raise unknown_name("kind", self.kind, KINDS)
        if self.kind.startswith("cube-single") and self.arms != ("play",):
            raise InputError("cube-single has no second cube: its only arm is play; pass --arms play.")
        if self.kind.startswith("cube-triple") and "coda" in self.arms:
            others = " ".join(arm for arm in ARMS if arm != "coda")
            raise InputError(
                f"of three cubes an exchange never has all in play: leave out coda, as in --arms {others}."
            )
        if self.total < self.rows:
            raise InputError(f"total must be at least the number of recorded rows, got {self.total} and {self.rows}.")

    def config(self) -> dict[str, Any]:
        return super().config() | {"agent": agent_settings(self.agent)}

    def run(
        self, *, device: str, folder: Path, progress: Progress = silent, workers: int | None = None
    ) -> MeasuredCubes:
        """Records, makes the data sets, trains all agents at once, and evaluates them on the official tasks."""
        clock, resumed = Stopwatch(), begun(folder)
        task = make_task(self.kind)
        assert isinstance(task, Cubes)
        policies = load_agents(folder / "agents")
        if policies is None:
            datasets = self._datasets(task, device, folder, clock, progress, workers)
            write_json(folder / SUMMARY, {arm: _summary(data, task) for arm, data in datasets.items()})
            policies = fit_agents(
                {arm: [data] * self.seeds for arm, data in datasets.items()},
                self.agent,
                folder=folder,
                name="agents",
                seeds=range(self.seeds),
                updates=self.updates,
                task=task,
                evaluate_every=max(1, self.updates // self.evaluations),
                episodes=self.evaluation_episodes,
                half=self.half,
                workers=workers,
                progress=progress,
            )
            clock.lap("agents")
        played = evaluate_each(policies.to("cpu"), task.officials, episodes=self.episodes, seed=0, workers=workers)
        cells = [
            {"row": arm, "column": str(official), **spread([100 * share for share in own.over_seeds("success", arm)])}
            for official, own in played.items()
            for arm in self.arms
        ]
        clock.lap("official tasks")
        cells += [self._mean(arm, cells) for arm in self.arms]
        summary = json.loads((folder / SUMMARY).read_text("utf-8"))
        return MeasuredCubes(
            {**self.heading(device, clock, resumed=resumed), "data": summary, "cells": cells}, policies
        )

    def write(self, measured: MeasuredCubes, folder: Path) -> rich.table.Table:
        results, curves, figure = (folder / name for name in self.outputs[:3])
        write_json(results, measured.results)
        by_agent = learning_curves({self.agent.name: measured.policies}, "success", self.arms, digits=1, scale=100)
        write_json(curves, {"measure": "success in percent, mean over episodes, one list a seed", "agents": by_agent})
        draw_cubes(measured.results, figure)
        cells = {(cell["row"], cell["column"]): cell for cell in measured.results["cells"]}
        columns = [*map(str, OFFICIAL), "all"]
        rows = [
            [ARMS[arm], *(f"{cells[arm, column]['mean']:.0f} ± {cells[arm, column]['std']:.0f}" for column in columns)]
            for arm in self.arms
        ]
        return text_table(
            f"{self.kind}: episodes that succeed, in percent, by official task", ["", *columns], rows, left=1
        )

    def _mean(self, arm: str, cells: list[dict[str, Any]]) -> dict[str, Any]:
        """Every seed's mean over the official tasks."""
        values = np.mean([cell["values"] for cell in cells if cell["row"] == arm], 0)
        return {"row": arm, "column": "all", **spread(values.tolist())}

    def _datasets(
        self, task: Cubes, device: str, folder: Path, clock: Stopwatch, progress: Progress, workers: int | None
    ) -> dict[str, Transitions]:
        """A table an arm, the same for all seeds of the agents; each of at least two steps an episode."""
        made: dict[str, Transitions] = {}
        if "play" in self.arms:
            made["play"] = record(task, self.total, "play", folder, workers, progress, name="play").to(device)
        if "added" in self.arms:
            made["added"] = self._added(task, device, folder, workers, progress)
        if {*self.arms} - {"play", "added"}:
            recorded = record(task, self.rows, "one-cube", folder, workers, progress).to(device)
            clock.lap("recording")
            models = self._models(task, recorded, folder, progress)
            clock.lap("dynamics")
            for arm in sorted({*self.arms} - {"play", "added"}, key=list(ARMS).index):
                made[arm] = self.dataset(arm, task, recorded, models, made)
                progress("data sets", len(made), len(self.arms))
        clock.lap("data")
        return {arm: made[arm] for arm in self.arms}

    def _added(self, task: Cubes, device: str, folder: Path, workers: int | None, progress: Progress) -> Transitions:
        """Recordings with a cube fewer, to which one like it is added, and what turns make of them."""
        name, variety = FEWER[self.kind.removesuffix("-places")]
        smaller = make_task(name)
        assert isinstance(smaller, Cubes)
        fewer = record(smaller, self.rows, variety, folder, workers, progress, name="fewer").to(device)
        cubes = [child for child in task.graph.children if child != "robot"]
        data = add_objects(fewer, smaller.graph, task.graph, cubes, resting=self.resting, seed=0)
        return self.dataset("added", task, label(data, task, seed=0), {})

    def dataset(
        self,
        arm: str,
        task: Cubes,
        recorded: Transitions,
        models: Mapping[str, Dynamics],
        made: Mapping[str, Transitions] | None = None,
    ) -> Transitions:
        """The recorded rows and, after them, what the arm makes of them, `total` in all.

        made  other arms' data, by arm: an unfactored model goes on from the starts of "mocoda"
        """
        if arm == "recorded":
            return recorded
        if arm == "unfactored":
            factored = (made or {}).get("mocoda") or self.dataset("mocoda", task, recorded, models)
            return concatenate([factored[: len(recorded)], rolled_by(models[arm], factored[len(recorded) :], task)])
        more, stream = self.total - len(recorded), Stream(0, "cubes", arm, device=recorded.device)
        if arm == "permuted":
            orders = [order for order in permutations(range(task.cubes)) if list(order) != sorted(order)]

            def copies(number: int, _: int) -> Transitions:
                return permuted(recorded, orders[number % len(orders)])

            return concatenate([recorded, _grown(copies, more)])
        recipe = make_recipe("coda" if arm in ("coda", "turns", "added") else self.recipe)

        def episodes(number: int, count: int) -> Transitions | None:
            new = augment_episodes(
                recorded,
                task.graph,
                recipe=recipe,
                model=models.get(arm),
                episodes=count,
                length=self.length,
                resting=self.resting,
                turns=arm in ("turns", "added"),
                task=task,
                keep_recorded=False,
                seed=stream.child(number),
            )
            in_play = task.region(new.rows)
            return new[in_play] if bool(in_play.any()) else None

        new = replace(_grown(episodes, more), provenance={})
        return concatenate([replace(recorded, provenance={}), new])

    def _models(self, task: Cubes, recorded: Transitions, folder: Path, progress: Progress) -> dict[str, Dynamics]:
        """By arm, the model that makes its episodes."""
        return {
            arm: fit_models([recorded], task.graph, architecture, self.dynamics, folder=folder, progress=progress)[0]
            for arm, architecture in ARCHITECTURES.items()
            if arm in self.arms
        }


def permuted(data: Transitions, order: Sequence[int]) -> Transitions:
    """The same episodes with the cubes in other roles: cube i is what cube order[i] was."""

    def turned(state: Tensor) -> Tensor:
        cubes = state[:, ROBOT:].unflatten(1, (-1, CUBE))[:, list(order)]
        return torch.cat([state[:, :ROBOT], cubes.flatten(1)], 1)

    goal = data.goal
    if goal is not None:  # a state, or the cubes' places alone
        whole = goal.shape[1] == data.state.shape[1]
        goal = turned(goal) if whole else goal.unflatten(1, (len(order), -1))[:, list(order)].flatten(1)
    return replace(data, state=turned(data.state), next_state=turned(data.next_state), goal=goal)


def rolled_by(model: Dynamics, data: Transitions, task: Cubes) -> Transitions:
    """Episodes that begin as those of the data do and take the same actions, with the model's next states.

    They are as long, wherever the model takes them within the range of the data. Rows of an episode must be neighbours.
    """
    assert data.episode is not None and data.goal is not None
    state, next_state, step = data.state.clone(), data.next_state.clone(), count_steps(data.episode)
    low, high = state.amin(0), state.amax(0)
    for number, rows in enumerate(step.argsort(stable=True).split(step.bincount().tolist())):
        if number:
            state[rows] = next_state[rows - 1]
        predicted = model.predict(torch.cat([state[rows], data.action[rows]], 1)).mean.mean(0)
        next_state[rows] = predicted.clamp(low, high)
    reward, terminal = task.label(state, data.action, next_state, data.goal)
    return replace(data, state=state, next_state=next_state, reward=reward, terminal=terminal)


def _grown(make: Callable[[int, int], Transitions | None], rows: int) -> Transitions:
    """So many rows of the tables `make(number, episodes)`, made one after the other until they suffice."""
    tables: list[Transitions] = []
    have = tried = number = 0
    while have < rows:
        share = max(have, 1) / tried if tried else rows / FIRST_EPISODES  # rows of an episode
        episodes = min(max(FIRST_EPISODES, ceil(1.02 * (rows - have) / share)), MOST_EPISODES)
        made = make(number, episodes)
        number, tried = number + 1, tried + episodes
        if made is not None:
            tables.append(made)
            have += len(made)
        if not have and tried >= MOST_EPISODES:
            raise InputError(f"in none of {tried:,} new episodes are all cubes in play; record more rows.")
    return concatenate(tables)[:rows]


def _summary(data: Transitions, task: Cubes) -> dict[str, float]:
    """How many rows and episodes there are, and the share of the rows in which all cubes are in play."""
    assert data.episode is not None
    in_play = float(task.region(data.rows).double().mean())
    return {"rows": len(data), "episodes": len(data.episode.unique()), "in_play": in_play}


CubesTable.presets.update(
    paper=CubesTable(
        "paper",
        seeds=3,
        dynamics=DynamicsConfig(
            hidden=(512, 512), epochs=200, epoch_rows=40_000, validation=5_000, window=20, tf32=True
        ),
        agent=make_agent("gciql"),
        updates=100_000,
        rows=300_000,
        total=600_000,
        episodes=20,
        half=True,
    ),
    quick=CubesTable(
        "quick",
        seeds=1,
        dynamics=DynamicsConfig(
            members=2, hidden=(128, 128), features=64, epochs=20, epoch_rows=10_000, batch=256, validation=500, window=5
        ),
        agent=make_agent("gciql", hidden=(128, 128), batch=256),
        updates=800,
        rows=6_000,
        total=10_000,
        arms=("recorded", "coda", "mocoda", "play"),
        episodes=1,
        evaluations=1,
        evaluation_episodes=1,
    ),
)


# The figure


def draw_cubes(results: Mapping[str, Any], path: Path) -> None:
    """Draws success by official task, a bar an arm and a dot a seed."""
    cells, arms = results["cells"], results["config"]["arms"]
    columns = list(dict.fromkeys(cell["column"] for cell in cells))
    figure = Figure(figsize=(8.5, 3.9), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(arms)
    for number, arm in enumerate(arms):
        own = [cell for cell in cells if cell["row"] == arm]
        places = [columns.index(cell["column"]) + width * (number - (len(arms) - 1) / 2) for cell in own]
        axes.bar(places, [cell["mean"] for cell in own], 0.9 * width, color=COLOURS[arm], label=ARMS[arm])
        for place, cell in zip(places, own, strict=True):
            axes.plot([place] * len(cell["values"]), cell["values"], "o", ms=3, color=INK, mew=0)
    names = ["all" if column == "all" else f"task {column}" for column in columns]
    axes.set_xticks(range(len(columns)), names)
    axes.set(ylim=(0, 100), ylabel="success (%)")
    title_left(axes, f"{results['config']['kind']}: agents by the data they were trained on")
    bare(axes)
    legend_below(figure)
    save(figure, path)
