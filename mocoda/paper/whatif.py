"""a preset -> what-if questions whose true answers are known: which children to keep, and which questions to refuse.

Two worlds, both recorded in two habits only: 2D Navigation, which is deterministic, and two bodies that feel each other
when near, with noise that nobody records. The true answer has the changed parents and the same noise.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import rich.table
import torch
from torch import Tensor

from mocoda.analysis.counterfactual import WhatIf, reached_children, what_if
from mocoda.data.transitions import Transitions
from mocoda.dynamics.fit import fit_dynamics_runs
from mocoda.dynamics.model import Dynamics, DynamicsConfig, Ensemble, Prediction
from mocoda.engine.errors import InputError
from mocoda.engine.files import write_json
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream
from mocoda.engine.statistics import mean_and_std
from mocoda.graph.local_graph import LocalGraph
from mocoda.paper.experiment import heading
from mocoda.paper.whatif_figure import draw_what_if
from mocoda.parents.recipes import fit_parents
from mocoda.tasks.navigation import Navigation

OUTPUTS = ("whatif.json", "whatif.png")
METRIC = (
    "error: percent of the child's mean step, mean over questions. inside: percent of the children whose true value is "
    "in the 95% interval. support: percent of the data as rare as the question, or rarer"
)
NEAR = 0.3  # distance within which the bodies feel each other
NOISE = 0.05  # standard deviation of what is added to their velocities
SUPPORTS = (0.0, 0.001, 0.01, 0.1, 0.3, 1.0)  # shares of the data, the bounds of the bins
REFUSED = 0.01  # what `what_if` refuses unless told otherwise


class World(NamedTuple):
    """A world of which the truth is known."""

    name: str
    graph: LocalGraph
    asked: tuple[str, ...]  # the factors that questions change, together; the first of them also alone
    record: Callable[[int, Stream], Tensor]  # rows (N, S + A)
    step: Callable[[Tensor, Tensor], Tensor]  # rows, noise (N, S) -> next states (N, S)

    def collect(self, rows: int, stream: Stream) -> tuple[Transitions, Tensor]:
        """Recorded transitions and the noise in them."""
        walked, width = self.record(rows, stream.child("rows")), self.graph.state_width
        noise = stream.child("noise").normal(rows, width)
        return Transitions(walked[:, :width], walked[:, width:], self.step(walked, noise)), noise


class Knowing(NamedTuple):
    """A model that knows the dynamics, and of the noise that it is zero on average."""

    world: World

    @property
    def graph(self) -> LocalGraph:
        return self.world.graph

    def predict(self, rows: Tensor) -> Prediction:
        mean = self.sample(rows, seed=0)[None]
        return Prediction(mean, torch.zeros_like(mean))

    def sample(self, rows: Tensor, *, seed: int | Stream) -> Tensor:
        return self.world.step(rows, torch.zeros_like(rows[:, : self.world.graph.state_width]))


def navigation() -> World:
    """The L of 2D Navigation; what if y and dy had been another row's."""
    task = Navigation()
    return World(
        "navigation",
        task.graph,
        ("y", "dy"),
        lambda rows, stream: task.collect(rows, seed=stream).rows,
        lambda rows, noise: task.step(rows),
    )


def bodies() -> World:
    """Two bodies on a line, position and velocity each, the first one pushed; one of them is always near its place."""

    def near(rows: Tensor) -> Tensor:
        return (rows[:, 0] - rows[:, 2]).abs() < NEAR

    def mask(rows: Tensor) -> Tensor:
        sparsest = torch.tensor([[True, False], [False, True], [True, False]], device=rows.device)
        meeting = torch.tensor([[False, True], [True, False], [False, False]], device=rows.device)
        return sparsest | (near(rows)[:, None, None] & meeting)

    def record(rows: int, stream: Stream) -> Tensor:
        anywhere, velocity = stream.uniform(rows, low=-1.0), stream.uniform(rows, 2, low=-1.0)
        place, push = stream.uniform(rows, low=0.3, high=0.7), stream.uniform(rows, low=-1.0)
        first = torch.arange(rows) < rows // 2
        a, b = torch.where(first, anywhere, place), torch.where(first, -place, anywhere)
        return torch.stack([a, velocity[:, 0], b, velocity[:, 1], push], 1)

    def step(rows: Tensor, noise: Tensor) -> Tensor:
        position, velocity, push = rows[:, [0, 2]], rows[:, [1, 3]], rows[:, 4:]
        apart = rows[:, 0] - rows[:, 2]
        force = torch.where(near(rows), 12 * (NEAR - apart.abs()) * apart, 0.0)
        gained = torch.stack([force, -force], 1) + 0.3 * torch.cat([(2 * push).tanh(), torch.zeros_like(push)], 1)
        velocity = velocity - 0.2 * velocity * velocity.abs() + gained + NOISE * noise[:, [1, 3]]
        return torch.stack([position + 0.2 * velocity, velocity], 2).flatten(1)

    factors = {"a": slice(0, 2), "b": slice(2, 4)}
    graph = LocalGraph(state=factors, action={"push": 0}, edges={"a": ["a", "push"], "b": ["b"]}, local=mask)
    return World("bodies", graph, ("a", "push"), record, step)


@dataclass(frozen=True)
class WhatIfs:
    """Settings of the demonstration."""

    preset: str
    seeds: int
    dynamics: DynamicsConfig
    rows: int  # recorded
    questions: int  # of each kind, about transitions recorded afresh
    components: int = 32

    def __post_init__(self) -> None:
        for name in ("seeds", "questions"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}.")


PRESETS = {
    "paper": WhatIfs("paper", seeds=5, dynamics=DynamicsConfig(epochs=100), rows=40_000, questions=20_000),
    "quick": WhatIfs(
        "quick",
        seeds=2,
        dynamics=DynamicsConfig(hidden=(64, 64), features=64, epochs=16, batch=256, learning_rate=3e-3),
        rows=20_000,
        questions=5_000,
    ),
}


def whatif(
    settings: WhatIfs, *, device: str, folder: Path | None = None, progress: Progress = silent
) -> dict[str, Any]:
    """Records both worlds, fits models for all seeds, asks, and compares with the truth.

    folder  where finished models and checkpoints are kept, and found again by a second call
    """
    started = time.monotonic()
    resumed = folder is not None and any(folder.glob("*.safetensors"))
    cells: list[dict[str, Any]] = []
    supports: list[dict[str, Any]] = []
    for world in (navigation(), bodies()):
        recorded = [
            world.collect(settings.rows, Stream(seed, "whatif", world.name))[0].to(device)
            for seed in range(settings.seeds)
        ]
        models = {name: _models(world, recorded, name, settings, folder, progress) for name in ("full", "local")}
        found = [
            _asked(world, data, {name: models[name][seed] for name in models}, settings, seed)
            for seed, data in enumerate(recorded)
        ]
        cells += _over_seeds([answers for answers, _ in found])
        supports += _over_seeds([answers for _, answers in found])
    return {
        **heading("whatif", settings, METRIC, device, time.monotonic() - started, resumed=resumed),
        "cells": cells,
        "supports": supports,
    }


def write(results: dict[str, Any], folder: Path) -> rich.table.Table:
    """Writes the answers and the figure; the table to show."""
    write_json(folder / OUTPUTS[0], results)
    draw_what_if(results, 100 * REFUSED, folder / OUTPUTS[1])
    table = rich.table.Table(title="What if: error in percent of a step (percent of true values in the interval)")
    for column in ("world", "children", "how many %", "unfactored", "true dynamics", "factored"):
        table.add_column(column, justify="left" if column in ("world", "children") else "right")
    groups = dict.fromkeys((cell["world"], cell["children"], cell["share"]) for cell in results["cells"])
    for world, children, share in groups:
        own = [cell for cell in results["cells"] if (cell["world"], cell["children"]) == (world, children)]
        inside = [f" ({cell['inside']:.0f})" if cell["model"] != "knowing" else "" for cell in own]
        texts = [f"{cell['mean']:.2f} ± {cell['std']:.2f}{text}" for cell, text in zip(own, inside, strict=True)]
        table.add_row(world, children, f"{share:.0f}", *texts)
    return table


def _models(
    world: World,
    recorded: list[Transitions],
    architecture: str,
    settings: WhatIfs,
    folder: Path | None,
    progress: Progress,
) -> list[Dynamics]:
    """The architecture's model for every seed, from the folder if they are there."""
    seeds = list(range(settings.seeds))
    name = f"{world.name}-{architecture}"
    files = [folder / f"dynamics-{name}-{seed}.safetensors" for seed in seeds] if folder else []
    if files and all(file.exists() for file in files):
        return [Dynamics.load(file, world.graph).to(recorded[0].device) for file in files]
    checkpoint = folder / f"checkpoint-{name}.safetensors" if folder else None
    models = fit_dynamics_runs(
        recorded,
        world.graph,
        architecture,
        seeds=seeds,
        config=settings.dynamics,
        checkpoint=checkpoint,
        progress=lambda stage, done, of: progress(f"{world.name}, {stage}", done, of),
    )
    if files:
        for model, file in zip(models, files, strict=True):
            model.save(file)
    if checkpoint:
        checkpoint.unlink(missing_ok=True)
    return models


Answers = list[dict[str, Any]]


def _asked(
    world: World, data: Transitions, models: dict[str, Dynamics], settings: WhatIfs, seed: int
) -> tuple[Answers, Answers]:
    """The cells of a seed, and its errors by support."""
    stream = Stream(seed, "whatif", world.name, "questions", device=data.device)
    recorded, noise = world.collect(settings.questions, Stream(seed, "whatif", world.name, "test"))
    factual, noise = recorded.to(data.device), noise.to(data.device)
    fit = partial(fit_parents, data, world.graph, seed=seed, components=settings.components)
    ask = partial(what_if, factual, data=data, least_support=0, seed=seed)
    parents, everything = fit(), _dense(world.graph)
    # Who answers, and which children it is told to keep.
    asked: dict[str, tuple[Ensemble, LocalGraph]] = {
        "unfactored": (models["full"], everything),
        "knowing": (Knowing(world), everything),
        "factored": (models["local"], world.graph),
    }
    other = data.rows[stream.integers(len(data), len(factual))]
    recombined = {name: other[:, list(world.graph.factors[name])] for name in world.asked}
    met = ask(recombined, parents=fit(stratified=True), model=models["local"], graph=world.graph).support >= REFUSED
    cells: Answers = []
    for name, (model, graph) in asked.items():
        judged = _judged(world, ask(recombined, parents=parents, model=model, graph=graph), noise)
        for children, which in _groups(judged, met).items():
            cells.append({"world": world.name, "model": name, "children": children} | judged.mean(which))
    columns = list(world.graph.factors[world.asked[0]])
    low, high = data.rows[:, columns].amin(0), data.rows[:, columns].amax(0)
    anywhere = low + (high - low) * stream.uniform(len(factual), len(columns), low=-0.25, high=1.25)
    answer = ask({world.asked[0]: anywhere}, parents=parents, model=models["local"], graph=world.graph)
    judged = _judged(world, answer, noise)
    bins = torch.bucketize(answer.support, torch.tensor(SUPPORTS[1:-1], device=data.device), right=True)
    supports = [
        {"world": world.name, "from": 100 * least, "to": 100 * most}
        | judged.mean(judged.reached & (bins == number)[:, None])
        for number, (least, most) in enumerate(itertools.pairwise(SUPPORTS))
    ]
    return cells, supports


class Judged(NamedTuple):
    """Of each child (N, children): how far off its answer is, and what the change does to it."""

    error: Tensor  # percent of the child's mean step
    inside: Tensor  # percent of its columns whose truth is in the interval
    reached: Tensor  # bool
    coupled: Tensor  # bool: it listens to more than in the sparsest graph

    def mean(self, which: Tensor) -> dict[str, float]:
        """Percent of the children that are among `which`, and their means."""
        means = {"error": self.error[which], "inside": self.inside[which], "share": 100 * which}
        return {name: float(values.double().mean()) for name, values in means.items()}


def _groups(judged: Judged, met: Tensor) -> dict[str, Tensor]:
    """Kinds of children, bool (N, children) each; met: whether a row is no rarity among those with its local graph."""
    reached, coupled, known = judged.reached, judged.coupled, met[:, None]
    return {
        "not reached": ~reached,
        "alone": reached & ~coupled,
        "coupled, known": reached & coupled & known,
        "coupled, unknown": reached & coupled & ~known,
    }


def _judged(world: World, answer: WhatIf, noise: Tensor) -> Judged:
    factual, rows = answer.factual, answer.counterfactual.rows
    truth = world.step(rows, noise)
    off, moved = answer.counterfactual.next_state - truth, factual.next_state - factual.state
    within = (answer.low <= truth) & (truth <= answer.high)
    error, inside = [], []
    for child in world.graph.children:
        columns = list(world.graph.factors[child])
        error.append(100 * off[:, columns].norm(dim=1) / moved[:, columns].norm(dim=1).mean())
        inside.append(100 * within[:, columns].float().mean(1))
    coupled = (world.graph.mask(rows) != world.graph.sparsest.to(rows.device)).any(1)
    reached = reached_children(world.graph, factual.rows, rows)
    return Judged(torch.stack(error, 1), torch.stack(inside, 1), reached, coupled)


def _dense(graph: LocalGraph) -> LocalGraph:
    """Every child listens to everything: every change reaches all."""
    return replace(graph, edges={child: graph.parents for child in graph.children}, local=None)


def _over_seeds(found: list[Answers]) -> Answers:
    """Every cell of all seeds: errors by seed, their mean and deviation, the rest on average. Empty ones drop out."""
    cells: Answers = []
    for same in zip(*found, strict=True):
        asked = [cell for cell in same if cell["share"] > 0]
        if asked:
            values = [cell["error"] for cell in asked]
            mean, std = mean_and_std(values)
            averages = {name: mean_and_std([cell[name] for cell in asked])[0] for name in ("share", "inside")}
            cell = {name: value for name, value in asked[0].items() if name != "error"}
            cells.append(cell | averages | {"values": values, "mean": mean, "std": std})
    return cells
