"""Somebody else's world: agents on OGBench's cube tasks, trained on data in which one cube is handled at a time.

In every recorded episode one cube is handled and the others rest in a strip beside the places of the official tasks, so
that no recorded state has two of them in play. What is made of these episodes differs by arm; agent, updates and number
of rows are the same in all but the first. Of new episodes, rows with all cubes in play are kept: the region that the
task names. The arm `play` is the benchmark's own way to record, as a ceiling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.experiment import (
    Cells,
    Experiment,
    Run,
    average,
    by_place,
    check_names,
    markdown_table,
    plus_minus,
    read_json,
    spread,
)
from experiments.figures import draw_bars
from experiments.stages import fit_agents, load_agents, record
from mocoda.agents import Agent
from mocoda.agents.agent import make_agent
from mocoda.agents.evaluation import evaluate
from mocoda.agents.policy import agent_settings
from mocoda.augmentation import add_objects, augment_episodes, label
from mocoda.data.transitions import Transitions, concatenate
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.figure_style import GREEN, GREY, INK, legend_below, save, title_left
from mocoda.engine.files import write_json
from mocoda.engine.randomness import Stream
from mocoda.parents import make_recipe
from mocoda.tasks import make_task
from mocoda.tasks.cubes import Cubes
from mocoda.tasks.cubes_env import OFFICIAL

ARMS = {
    "recorded": ("one cube at a time", INK),
    "turns": ("and CoDA's, in turns", GREEN),
    "play": ("all cubes, recorded", GREY),
    "added": ("one cube fewer recorded, in turns", "#7d5ba6"),
}
FIRST_EPISODES, MOST_EPISODES = 50, 5_000  # of an arm at a time: the first tell how many more it needs
SUMMARY = "cubes-data.json"  # what the data sets have; kept for a run that is resumed
FEWER = {"cube-double": ("cube-single", "play"), "cube-triple": ("cube-double", "one-cube")}  # what "added" is made of
KINDS = tuple(f"cube-{number}{goals}" for number in ("single", "double", "triple") for goals in ("", "-places"))


@dataclass(frozen=True)
class CubesTable(Experiment):
    """How often agents solve OGBench's cube tasks, by what their data shows of several cubes."""

    name = "cubes"
    metric = "episodes of the official tasks 1 to 5 that succeed, in percent, one value a seed"
    outputs = ("cubes.json", "cubes.png")

    agent: Agent
    updates: int
    rows: int  # recorded with one cube at a time
    total: int  # in all data sets but that one, the recorded rows among them
    episodes: int  # of each official task and agent
    kind: str = "cube-double"
    arms: tuple[str, ...] = ("recorded", "turns", "play")
    resting: float = 1e-5  # of a column's largest number: how far a cube that lies may move in a step
    evaluations: int = 5  # while agents train
    evaluation_episodes: int = 5
    half: bool = False  # train agents with hidden layers in bfloat16

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("updates", "rows", "episodes", "evaluations", "evaluation_episodes")
        check_names("arm", self.arms, ARMS)
        if self.kind not in KINDS:
            raise unknown_name("kind", self.kind, KINDS)
        if self.kind.startswith("cube-single") and self.arms != ("play",):
            raise InputError("cube-single has no second cube: its only arm is play; pass --arms play.")
        if self.total < self.rows:
            raise InputError(f"total must be at least the number of recorded rows, got {self.total} and {self.rows}.")

    def config(self) -> dict[str, Any]:
        return super().config() | {"agent": agent_settings(self.agent)}

    def measure(self, run: Run) -> dict[str, Any]:
        """Records, makes the data sets, trains all agents at once, and evaluates them on the official tasks."""
        task = make_task(self.kind)
        assert isinstance(task, Cubes)
        policies = load_agents(run)
        if policies is None:
            datasets = self._datasets(run, task)
            write_json(run.folder / SUMMARY, {arm: _summary(data, task) for arm, data in datasets.items()})
            policies = fit_agents(
                run,
                {arm: [data] * self.seeds for arm, data in datasets.items()},
                self.agent,
                updates=self.updates,
                task=task,
                evaluate_every=max(1, self.updates // self.evaluations),
                episodes=self.evaluation_episodes,
                half=self.half,
            )
            run.lap("agents")
        played = {
            number: evaluate(policies.to("cpu"), official, episodes=self.episodes, seed=0, workers=run.workers)
            for number, official in task.officials.items()
        }
        cells: Cells = [
            {"row": arm, "column": str(official), **spread([100 * share for share in own.over_seeds("success", arm)])}
            for official, own in played.items()
            for arm in self.arms
        ]
        run.lap("official tasks")
        for arm in self.arms:  # every seed's mean over the official tasks
            values = np.mean([cell["values"] for cell in cells if cell["row"] == arm], 0)
            cells.append({"row": arm, "column": "all", **spread(values.tolist())})
        return {"data": read_json(run.folder / SUMMARY), "cells": cells}

    def _datasets(self, run: Run, task: Cubes) -> dict[str, Transitions]:
        """A table per arm, the same for all seeds of the agents; each of at least two steps an episode."""
        made: dict[str, Transitions] = {}
        if "play" in self.arms:
            made["play"] = record(run, task, self.total, "play", name="play")
        if "added" in self.arms:
            made["added"] = self._added(run, task)
        if {"recorded", "turns"} & set(self.arms):
            made["recorded"] = record(run, task, self.rows, "one-cube")
            run.lap("recording")
        if "turns" in self.arms:
            made["turns"] = self.with_turns("turns", task, made["recorded"])
        run.lap("data")
        return {arm: made[arm] for arm in self.arms}

    def _added(self, run: Run, task: Cubes) -> Transitions:
        """Recordings with a cube fewer, to which one like it is added, and what turns make of them."""
        name, variety = FEWER[self.kind.removesuffix("-places")]
        smaller = make_task(name)
        assert isinstance(smaller, Cubes)
        fewer = record(run, smaller, self.rows, variety, name="fewer")
        cubes = [child for child in task.graph.children if child != "robot"]
        data = add_objects(fewer, smaller.graph, task.graph, cubes, resting=self.resting, seed=0)
        return self.with_turns("added", task, label(data, task, seed=0))

    def with_turns(self, arm: str, task: Cubes, recorded: Transitions) -> Transitions:
        """The recorded rows and, after them, those of episodes that handle one cube after another, `total` in all."""
        more, stream = self.total - len(recorded), Stream(0, "cubes", arm, device=recorded.device)

        def episodes(number: int, count: int) -> Transitions | None:
            new = augment_episodes(
                recorded,
                task.graph,
                recipe=make_recipe("coda"),
                episodes=count,
                resting=self.resting,
                turns=True,
                task=task,
                keep_recorded=False,
                seed=stream.child(number),
            )
            in_play = task.region(new.rows)
            return new[in_play] if bool(in_play.any()) else None

        new = replace(_grown(episodes, more), provenance={})
        return concatenate([replace(recorded, provenance={}), new])

    def draw(self, results: Mapping[str, Any], folder: Path) -> None:
        figure = Figure(figsize=(8.5, 3.9), layout="constrained")
        axes = figure.subplots()
        styles = {arm: {"label": label, "color": colour} for arm, (label, colour) in ARMS.items()}
        titles = {str(official): f"task {official}" for official in OFFICIAL}
        draw_bars(axes, results["cells"], "column", "row", styles, titles, dots=True)
        axes.set(ylim=(0, 100), ylabel="success (%)")
        title_left(axes, f"{results['config']['kind']}: agents by the data they were trained on")
        legend_below(figure)
        save(figure, folder / self.outputs[1])

    @staticmethod
    def table(results: Mapping[str, Any]) -> str:
        cells, columns = by_place(results), [*map(str, OFFICIAL), "all"]
        rows = []
        for arm in results["config"]["arms"]:
            count = f"{results['data'][arm]['rows']:,}"
            own = [f"{cells[arm, column]['mean']:.0f}" for column in columns[:-1]]
            rows.append([f"`{arm}`: {ARMS[arm][0]}", count, *own, plus_minus(cells[arm, "all"], 1)])
        return markdown_table(["data", "rows", *(f"task {official}" for official in OFFICIAL), "all"], rows)

    @staticmethod
    def answer(results: Mapping[str, Any]) -> str:
        found = {arm: cell["mean"] for (arm, column), cell in by_place(results).items() if column == "all"}
        both = {arm: average([by_place(results)[arm, str(task)]["mean"] for task in (2, 3, 4, 5)]) for arm in found}
        return (
            f"Partly: agents trained on recordings of one cube at a time solve {found['recorded']:.1f}% of the "
            f"episodes, with episodes that CoDA makes of them, one cube after another, {found['turns']:.1f}%, and with "
            f"recordings of both cubes {found['play']:.1f}%; in the four tasks that need both cubes "
            f"{both['recorded']:.1f}, {both['turns']:.1f} and {both['play']:.1f}%."
        )

    @classmethod
    def blocks(cls, folder: Path) -> dict[str, str]:
        parts = {name: read_json(folder / f"{name}.json") for name in ("more-rows", "added", "triple")}
        tables = {name: cls.table(results) for name, results in parts.items()}
        more = tables["more-rows"] + "\n" + tables["added"].split("\n", 2)[2]
        return super().blocks(folder) | {"more-rows": more, "triple": tables["triple"]}


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


CubesTable.presets = {
    "paper": CubesTable(
        "paper",
        seeds=3,
        agent=make_agent("gciql"),
        updates=400_000,
        rows=300_000,
        total=600_000,
        episodes=20,
        half=True,
    ),
    "quick": CubesTable(
        "quick",
        seeds=1,
        agent=make_agent("gciql", hidden=(128, 128), batch=256),
        updates=800,
        rows=6_000,
        total=10_000,
        episodes=1,
        evaluations=1,
        evaluation_episodes=1,
    ),
}
