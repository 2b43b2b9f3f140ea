"""Somebody else's world: agents on OGBench's cube tasks, trained on data in which one cube is handled at a time.

In every recorded episode one cube is handled and the others rest in a strip beside the places of the official tasks, so
that no recorded state has two of them in play. What is made of these episodes differs by arm; agent and updates are the
same in all. Of new episodes, rows with all cubes in play are kept: the region that the task names. The arms `play` are
the benchmark's own way to record. Every agent plays each official task in two ways: shown its goal, and shown goals on
the way to it in which one cube at a time has to move. `--only ARM ...` measures some arms now; the others follow later.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import permutations
from math import ceil
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from matplotlib.figure import Figure

from experiments.cubes.order_of_play import RELATIONS, changing_places, moving, order_of_play
from experiments.experiment import (
    Cells,
    Experiment,
    Run,
    check_names,
    markdown_table,
    read_json,
    spread,
)
from experiments.figures import draw_bars
from experiments.stages import audit_part, fit_models, load_agents, record, share_text, slug
from mocoda.agents import Agent
from mocoda.agents.agent import make_agent
from mocoda.agents.evaluation import evaluate
from mocoda.agents.policy import Policies, agent_settings
from mocoda.agents.train import remove_checkpoint, train_agents
from mocoda.augmentation import add_objects, augment_episodes, label
from mocoda.data.transitions import Transitions, concatenate
from mocoda.dynamics import DynamicsConfig
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.figure_style import BLUE, GREEN, GREY, INK, ORANGE, RED, legend_below, save, title_left
from mocoda.engine.files import write_json
from mocoda.engine.randomness import Stream
from mocoda.engine.statistics import summarise
from mocoda.parents import make_recipe
from mocoda.tasks import make_task
from mocoda.tasks.cubes import Cubes
from mocoda.tasks.cubes_env import CUBE, OFFICIAL, ROBOT
from mocoda.tasks.cubes_env import KINDS as CUBES
from mocoda.tasks.one_at_a_time import OneAtATime

ARMS = {
    "recorded": ("one cube at a time, as recorded", INK),
    "permuted": ("with the cubes' roles permuted", BLUE),
    "coda": ("with CoDA's exchanges", ORANGE),
    "mocoda": ("with MoCoDA's episodes", RED),
    "turns": ("with CoDA's episodes, in turns", GREEN),
    "play": ("all cubes recorded, more rows", GREY),
    "play-few": ("all cubes recorded, as many rows", "#c8cdd6"),
    "added": ("one cube fewer recorded, in turns", "#7d5ba6"),
    "swapped": ("with CoDA's, in turns that swap cubes", "#a6761d"),
}
TURNS = ("turns", "swapped")
FIRST_EPISODES, MOST_EPISODES = 50, 5_000  # of an arm at a time: the first tell how many more it needs
KINDS = tuple(f"cube-{number}{goals}" for number in CUBES.values() for goals in ("", "-states"))
# How agents are shown the goals of a task: all at once, or one thing at a time.
HOW: dict[str, Callable[[Any], Any]] = {"at once": lambda task: task, "one at a time": OneAtATime}


@dataclass(frozen=True)
class CubesTable(Experiment):
    """How often agents solve OGBench's cube tasks, by what their data shows of several cubes."""

    name = "cubes"
    metric = "episodes of the official tasks 1 to 5 that succeed, in percent, one value a seed"
    outputs: ClassVar[tuple[str, ...]] = ("cubes.json", "cubes.png")

    agent: Agent
    updates: int
    rows: int  # recorded with one cube at a time
    total: int  # of new episodes and the recorded rows before them
    played: int  # recorded with all cubes for `play`; the first `rows` of them are `play-few`
    episodes: int  # of each official task and agent
    kind: str = "cube-double"
    arms: tuple[str, ...] = ("recorded", "turns", "play")
    how: tuple[str, ...] = tuple(HOW)
    first: int = 0  # seed of the agents
    fewer: int = 1  # cubes that are missing in the recordings for the arm `added`
    dynamics: DynamicsConfig = field(default_factory=DynamicsConfig)  # of `mocoda`
    resting: float = 1e-5  # of a column's largest number: how far a cube that lies may move in a step
    half: bool = False  # train agents with hidden layers in bfloat16

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("updates", "rows", "episodes")
        check_names("arm", self.arms, ARMS)
        check_names("way to show goals", self.how, HOW)
        if self.kind not in KINDS:
            raise unknown_name("kind", self.kind, KINDS)
        if self.kind.endswith("-states") and self.how != ("at once",):
            raise InputError("goals that are whole states can only be shown at once: pass --how 'at once'.")
        if self.kind.startswith("cube-single") and self.arms != ("play",):
            raise InputError("cube-single has no second cube: its only arm is play; pass --arms play.")
        if "added" in self.arms and not 0 < self.fewer < 1 + list(CUBES.values()).index(self.kind.split("-")[1]):
            raise InputError(f"fewer must leave {self.kind} at least one cube, got {self.fewer}.")
        for name in ("total", "played"):
            if getattr(self, name) < self.rows:
                raise InputError(f"{name} must be at least rows, {self.rows}, got {getattr(self, name)}.")

    def config(self) -> dict[str, Any]:
        return super().config() | {"agent": agent_settings(self.agent)}

    def measure(self, run: Run) -> dict[str, Any]:
        """Makes the data of each arm that `--only` asks for, trains its agents at once, and has them play."""
        task, seeds = make_task(self.kind), range(self.first, self.first + self.seeds)
        assert isinstance(task, Cubes)
        options = {"updates": self.updates, "half": self.half}
        dataset = partial(self.dataset, run, task)
        return measure_agents(run, task, self.arms, self.agent, seeds, self.episodes, dataset, options, self.how)

    def dataset(self, run: Run, task: Cubes, arm: str) -> Transitions:
        """The table of an arm, the same for all seeds of the agents."""
        if arm.startswith("play"):
            played = record(run, task, self.played, "play", name="recorded-play")
            return played if arm == "play" else played[: self.rows]
        if arm == "added":
            return self._grown("turns", run, task, self.added(run, task))
        recorded = record(run, task, self.rows, "one-cube")
        if arm == "recorded":
            return recorded
        return permuted(recorded, task) if arm == "permuted" else self._grown(arm, run, task, recorded)

    def added(self, run: Run, task: Cubes) -> Transitions:
        """Recordings of a world with fewer cubes, to which others like these are added."""
        smaller = Cubes(task.cubes - self.fewer)
        fewer = record(run, smaller, self.rows, "play" if smaller.cubes == 1 else "one-cube", name="recorded-fewer")
        cubes = [child for child in task.graph.children if child != "robot"]
        data = add_objects(fewer, smaller.graph, task.graph, cubes, resting=self.resting, seed=0)
        return label(data, task, seed=0)

    def _grown(self, arm: str, run: Run, task: Cubes, recorded: Transitions) -> Transitions:
        """The recorded rows and, after them, those of new episodes in which all cubes are in play, `total` in all."""
        stream = Stream(0, "cubes", arm, device=recorded.device)
        how: dict[str, Any] = {"recipe": make_recipe("coda"), "turns": arm in TURNS}
        if arm == "mocoda":
            (model,) = fit_models(run, [recorded], task.graph, "local", self.dynamics)
            how = {"recipe": make_recipe("mocoda", density="matched", stratified=True), "model": model}

        def episodes(number: int, count: int) -> Transitions | None:
            new = augment_episodes(
                recorded,
                task.graph,
                episodes=count,
                resting=self.resting,
                task=task,
                keep_recorded=False,
                seed=stream.child(number),
                **how,
            )
            in_play = task.region(new.rows)
            if not bool(in_play.any()):
                return None
            new = replace(new, provenance={})[in_play]
            return changing_places(new) if arm == "swapped" else new

        return grown(episodes, replace(recorded, provenance={}), self.total)

    def draw(self, results: Mapping[str, Any], folder: Path) -> None:
        figure = Figure(figsize=(8.5, 2.6 * len(self.how) + 0.9), layout="constrained")
        styles = {arm: {"label": label, "color": colour} for arm, (label, colour) in ARMS.items()}
        titles = {str(official): f"task {official}" for official in OFFICIAL}
        for axes, how in zip(figure.subplots(len(self.how), squeeze=False)[:, 0], self.how, strict=True):
            cells = [cell for cell in results["cells"] if cell["how"] == how]
            draw_bars(axes, cells, "column", "row", styles, titles, dots=True)
            axes.set(ylim=(0, 100), ylabel="success (%)")
            title_left(axes, f"{results['config']['kind']}, goals shown {how}")
        legend_below(figure)
        save(figure, folder / self.outputs[1])

    @staticmethod
    def table(results: Mapping[str, Any]) -> str:
        """Success by arm, how goals are shown, and official task; the mean of the tasks with its 95% interval."""
        cells, rows = by_way(results), []
        for arm, how in dict.fromkeys((arm, how) for arm, how, _ in cells):
            own = [f"{cells[arm, how, str(task)]['mean']:.0f}" for task in OFFICIAL]
            over = interval_text(cells[arm, how, "all"]["values"])
            rows.append([f"`{arm}`: {ARMS[arm][0]}", f"{results['data'][arm]['rows']:,}", how, *own, over])
        return markdown_table(
            ["data", "rows", "goals shown", *(f"task {official}" for official in OFFICIAL), "all (95% interval)"], rows
        )

    @staticmethod
    def answer(results: Mapping[str, Any]) -> str:
        found = {(arm, how): cell["mean"] for (arm, how, column), cell in by_way(results).items() if column == "all"}
        one, once = (
            {arm: f"{found[arm, way]:.0f}" for arm in ("recorded", "turns", "play-few")}
            for way in ("one at a time", "at once")
        )
        return (
            f"Yes. Trained on recordings that never show two cubes in play, agents solve {one['recorded']}% of the "
            f"episodes; with episodes that mocoda makes of them, {one['turns']}%; with as many recorded rows that do "
            f"show both, {one['play-few']}%. Agents are shown goals one cube at a time; shown at once, it is "
            f"{once['recorded']}, {once['turns']} and {once['play-few']}%."
        )

    @classmethod
    def blocks(cls, folder: Path) -> dict[str, str]:
        data = [read_json(folder / f"data-{name}.json") for name in ("double", "triple", "quadruple", "quadruple-2")]
        made = {"rows": _joined(*map(CubesData.table, data)), "order": CubesData.order(data[0])}
        return super().blocks(folder) | made


@dataclass(frozen=True)
class CubesData(CubesTable):
    """How true the rows of the arms are, and what their episodes show of the official tasks; agents are not trained."""

    metric = "share of rows that OGBench's simulator confirms, with its 95% interval; shares of episodes and goals"
    outputs = ("data.json",)

    arms: tuple[str, ...] = ("recorded", "turns", "added", "swapped", "play-few")
    audited: int = 1_000  # rows of each kind, and as many in which a cube moves by more than an audit tolerates

    def measure(self, run: Run) -> dict[str, Any]:
        """Of an arm with new rows, these alone; the rows with added cubes, from which `added` takes turns, apart."""
        task, found = make_task(self.kind), {}
        assert isinstance(task, Cubes)
        limits = {"tolerance": task.tolerance, "columns": task.compared}
        for arm in self.arms:
            tables = {"alone": self.added(run, task)} if arm == "added" else {}
            before = len(tables["alone"]) if tables else self.rows if arm in TURNS else 0
            tables[arm] = self.dataset(run, task, arm)[before:]
            for name, data in tables.items():
                parts = {"all": torch.ones(len(data), dtype=torch.bool), "moving": moving(data, task.tolerance)}
                audits = {part: audit_part(run, task, data, rows, self.audited, limits) for part, rows in parts.items()}
                found[name] = {"rows": len(data), "audits": audits, "play": order_of_play(data, self.agent.discount)}
            run.lap(arm)
        return {"data": found}

    def draw(self, results: Mapping[str, Any], folder: Path) -> None:
        """There is no figure."""

    @staticmethod
    def table(results: Mapping[str, Any]) -> str:
        config, rows = results["config"], []
        for name, found in results["data"].items():
            label = "`added`, before turns" if name == "alone" else f"`{name}`"
            added = str(config["fewer"]) if name in ("alone", "added") else "0"
            shares = [share_text(found["audits"][part]) for part in ("all", "moving")]
            rows.append([config["kind"], label, added, *shares])
        return markdown_table(["world", "rows of", "cubes added", "true, %", "where a cube moves by 5 mm, %"], rows)

    @staticmethod
    def order(results: Mapping[str, Any]) -> str:
        """What episodes and hindsight goals show of the official tasks."""
        data = {name: results["data"][name]["play"] for name in ("recorded", "turns", "swapped", "play-few")}
        rows = [["episodes", *(f"{one['episodes']:,}" for one in data.values())]]
        rows.append(["a cube is put down, times in each", *(f"{one['put_down']:.1f}" for one in data.values())])
        rows.append(["one is put down and taken up again, %", *(f"{100 * one['again']:.3g}" for one in data.values())])
        for kind, title in RELATIONS.items():
            shares = [(one["shown"][kind], *(goals[kind] for goals in one["goals"].values())) for one in data.values()]
            rows.append([title, *(" / ".join(f"{100 * share:.3g}" for share in own) for own in shares)])
        return markdown_table(["cube-double", *(f"`{name}`" for name in data)], rows)


def by_way(results: Mapping[str, Any]) -> dict[tuple[str, str, str], dict[str, Any]]:
    """The cells by arm, how goals are shown, and official task."""
    return {(one["row"], one["how"], one["column"]): one for one in results["cells"]}


def interval_text(values: Sequence[float]) -> str:
    """Mean of the values of the seeds, with its bootstrapped 95% interval."""
    found = summarise(values)
    return f"{found.mean:.1f} ({found.low:.1f} to {found.high:.1f})"


def measure_agents(
    run: Run,
    task: Any,
    arms: Sequence[str],
    agent: Agent,
    seeds: Sequence[int],
    episodes: int,
    dataset: Callable[[str], Transitions],
    options: Mapping[str, Any],
    ways: Sequence[str] = tuple(HOW),
) -> dict[str, Any]:
    """Trains agents on the data sets of the arms, and counts how often they solve the official tasks.

    The seeds of an arm are one program, so that its cells do not depend on what else is measured.

    episodes  of each official task and agent
    options   of train_agents
    ways      in which goals are shown
    """
    cells: Cells = []
    data: dict[str, Any] = {}
    for arm in arms:
        policies, file = load_agents(run, f"agents-{arm}"), run.folder / "cells" / f"{arm}-data.json"
        if policies is None and arm in run.chosen(arms):
            made = dataset(arm)
            run.lap(f"data of {arm}")
            checkpoint, every = run.folder / f"checkpoint-{arm}.safetensors", options["updates"] + 1  # never evaluated
            with warnings.catch_warnings():  # that no row reaches a goal is what some arms are about
                warnings.filterwarnings("ignore", "none of .* goals")
                trained = train_agents(
                    {arm: made},
                    agent,
                    seeds=seeds,
                    task=task,
                    evaluate_every=every,
                    checkpoint=checkpoint,
                    progress=run.progress,
                    **options,
                )
            run.lap(f"agents of {arm}")
            file.parent.mkdir(exist_ok=True)
            write_json(file, _summary(made, task) | {"seconds": run.laps[f"agents of {arm}"]})
            policies = Policies({key: policy.without_training() for key, policy in trained.items()}, trained.curves)
            policies.save(run.folder / f"agents-{arm}")
            remove_checkpoint(checkpoint)
        if policies is None:
            continue
        data[arm] = read_json(file)
        for how in ways:
            cells += _play_officials(run, task, arm, how, policies.to("cpu"), episodes)
        run.lap(f"official tasks of {arm}")
    return {"data": data, "cells": cells}


def _play_officials(run: Run, task: Any, arm: str, how: str, policies: Policies, episodes: int) -> Cells:
    """Every seed's success in each official task, kept one by one, and their mean over the tasks."""
    values, counts = [], []
    for number, official in task.officials.items():
        file = run.folder / "cells" / f"{slug(f'{arm} {how}')}-{number}.json"
        if not file.exists():
            run.progress(f"{arm}, {how}, official tasks", number - 1, len(task.officials))
            played = evaluate(policies, HOW[how](official), episodes=episodes, seed=0, workers=run.workers)
            success = [100 * share for share in played.over_seeds("success", arm)]
            write_json(file, {"success": success, "episodes": episodes})
        found = read_json(file)
        values.append(found["success"])
        counts.append(found["episodes"])
    columns = [*map(str, task.officials), "all"]
    each = zip(columns, [*values, np.mean(values, 0).tolist()], [*counts, sum(counts)], strict=True)
    place = {"row": arm, "how": how}
    return [place | {"column": column, "episodes": count, **spread(own)} for column, own, count in each]


def grown(make: Callable[[int, int], Transitions | None], recorded: Transitions, rows: int) -> Transitions:
    """The recorded rows and those of the tables `make(number, episodes)`, made one after another until they suffice."""
    tables, more = [recorded], rows - len(recorded)
    have = tried = number = 0
    while have < more:
        share = max(have, 1) / tried if tried else more / FIRST_EPISODES  # rows of an episode
        episodes = min(max(FIRST_EPISODES, ceil(1.02 * (more - have) / share)), MOST_EPISODES)
        made = make(number, episodes)
        number, tried = number + 1, tried + episodes
        if made is not None:
            tables.append(made)
            have += len(made)
        if not have and tried >= MOST_EPISODES:
            raise InputError(
                f"none of {tried:,} new episodes contains a state of the kind that is kept; record more rows."
            )
    return concatenate(tables)[:rows]


def permuted(data: Transitions, task: Cubes) -> Transitions:
    """The data once for every order of its cubes, without labels."""
    columns = [slice(ROBOT + CUBE * number, ROBOT + CUBE * (number + 1)) for number in range(task.cubes)]
    whole, tables = torch.arange(data.state.shape[1], device=data.device), []
    own: dict[str, Any] = {"columns": data.columns, "episode": data.episode, "step": data.step}
    for order in permutations(columns):
        chosen = torch.cat([whole[:ROBOT], *(whole[cube] for cube in order)])
        tables.append(Transitions(data.state[:, chosen], data.action, data.next_state[:, chosen], **own))
    return concatenate(tables)


def _summary(data: Transitions, task: Any) -> dict[str, float]:
    """How many rows and episodes there are, and the share of the rows in the task's region."""
    assert data.episode is not None
    in_play = float(task.region(data.rows).double().mean())
    return {"rows": len(data), "episodes": len(data.episode.unique()), "in_play": in_play}


def _joined(first: str, *others: str) -> str:
    """Tables with the same columns as one."""
    return "\n".join([first, *(table.split("\n", 2)[2] for table in others)])


CubesTable.presets = {
    "paper": CubesTable(
        "paper",
        seeds=5,
        first=10,
        agent=make_agent("gciql", decay=True),
        updates=100_000,
        rows=300_000,
        total=10_000_000,
        played=1_000_000,
        episodes=50,
        arms=("recorded", "coda", "mocoda", "turns", "added", "play-few", "play"),
        half=True,
    ),
    "data": CubesData(
        "data",
        seeds=1,
        agent=make_agent("gciql"),
        updates=1,
        rows=30_000,
        total=150_000,
        played=30_000,
        episodes=1,
    ),
    "quick": CubesTable(
        "quick",
        seeds=1,
        agent=make_agent("gciql", hidden=(128, 128), batch=256),
        updates=800,
        rows=6_000,
        total=10_000,
        played=6_000,
        episodes=1,
    ),
}
