"""a preset -> what mixtures per neighbourhood are good for (Appendix B.2): support, and the model's true error.

The paper fits one set of mixtures for the sparsest graph. A row that they make is *unsupported* if it has a parent set
of its own local graph that is rarer than 99% of the recorded rows there, or if too few were recorded there to say.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import rich.table
import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.dynamics.fit import fit_dynamics_runs
from mocoda.dynamics.model import Dynamics, DynamicsConfig
from mocoda.engine.errors import InputError
from mocoda.engine.files import write_json
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream, as_stream
from mocoda.engine.statistics import mean_and_std
from mocoda.graph.local_graph import LocalGraph
from mocoda.paper import table1
from mocoda.paper.experiment import heading
from mocoda.paper.parents_figure import draw_neighbourhoods
from mocoda.parents.mocoda import Stratified
from mocoda.parents.recipes import Parents, fit_parents
from mocoda.tasks.navigation import Navigation, coupled

COLUMNS: dict[str, dict[str, Any]] = {
    "mocoda": {},
    "mocoda, stratified": {"stratified": True},
    "mocoda, stratified evenly": {"stratified": True, "neighbourhoods": "even"},
    "mocoda-u": {"recipe": "mocoda-u"},
    "mocoda-u, stratified": {"recipe": "mocoda-u", "stratified": True},
}
QUANTILE = 0.01
METRIC = (
    "unsupported: share of rows in percent. values: next-state error of one draw a row, mean Euclidean norm x 1e2, as "
    "in Table 1; supported, not_supported: over those rows alone"
)
OUTPUTS = ("neighbourhoods.json", "neighbourhoods.png")


@dataclass(frozen=True)
class Neighbourhoods:
    """Settings of the comparison."""

    preset: str
    seeds: int
    dynamics: DynamicsConfig
    bodies: tuple[int, ...]  # a world each, besides 2D Navigation
    rows: int = 40_000  # recorded
    test_rows: int = 20_000  # in every column
    judge_rows: int = 100_000  # that say what is supported
    components: int = 32

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise InputError(f"seeds must be at least 1, got {self.seeds}.")


PRESETS = {
    "paper": Neighbourhoods("paper", seeds=5, dynamics=DynamicsConfig(epochs=100, window=10), bodies=(2, 4, 6)),
    "quick": Neighbourhoods(
        "quick",
        seeds=2,
        dynamics=replace(table1.PRESETS["quick"].dynamics, epochs=16),
        bodies=(3,),
        rows=20_000,
        test_rows=5_000,
        judge_rows=40_000,
        components=16,
    ),
}


class World(Protocol):
    """What the comparison needs to know of a task."""

    @property
    def graph(self) -> LocalGraph: ...

    def collect(self, rows: int, *, seed: int | Stream) -> Transitions: ...

    def step(self, rows: Tensor) -> Tensor: ...


class Bodies:
    """k bodies in a square that circle by themselves. A push moves the first; where two are near, they share it.

    Recorded pushes are up to 1 in each direction, but no more than a quarter of that with another body near the first.
    """

    REACH = 0.15

    def __init__(self, bodies: int) -> None:
        names = [f"body{i}" for i in range(bodies)]
        self.bodies = bodies
        self.graph = LocalGraph(
            state={name: slice(2 * i, 2 * i + 2) for i, name in enumerate(names)},
            action={"push": slice(0, 2)},
            edges={name: [name] if i else [name, "push"] for i, name in enumerate(names)},
            local=self._mask,
        )

    def step(self, rows: Tensor) -> Tensor:
        place, push = self._place(rows), rows[:, None, -2:]
        apart = place[:, :, None] - place[:, None]  # (N, k, k, 2), from the second to the first
        close = (1 - apart.norm(dim=3, keepdim=True) / self.REACH).clamp(min=0) * self._others(rows)[..., None]
        centred = place - 0.5
        turned = torch.stack([-centred[..., 1], centred[..., 0]], 2)
        moved = place + 0.04 * turned - 0.02 * centred + 0.3 * (close * apart).sum(2)
        shared = 0.05 * push * close[:, 0, 1:]  # of the first body's push, with every other one
        moved[:, 0] += 0.05 * push[:, 0] - shared.sum(1)
        moved[:, 1:] += shared
        following: Tensor = moved.flatten(1)
        return following

    def collect(self, rows: int, *, seed: int | Stream, steps: int = 20) -> Transitions:
        """Walks of `steps` from everywhere."""
        stream = as_stream(seed, "bodies-collect", device="cpu")
        state, recorded = stream.uniform(-(-rows // steps), 2 * self.bodies), []
        for _ in range(steps):
            push = stream.uniform(len(state), 2, low=-1.0)
            touching = self._near(torch.cat([state, push], 1))[:, 0].sum(1) > 1
            recorded.append(torch.cat([state, torch.where(touching[:, None], 0.25, 1.0) * push], 1))
            state = self.step(recorded[-1])
        walked = torch.cat(recorded)[:rows]
        return Transitions(walked[:, :-2], walked[:, -2:], self.step(walked))

    def _place(self, rows: Tensor) -> Tensor:
        return rows[:, :-2].reshape(len(rows), self.bodies, 2)

    def _others(self, rows: Tensor) -> Tensor:
        return ~torch.eye(self.bodies, dtype=torch.bool, device=rows.device).expand(len(rows), -1, -1)

    def _near(self, rows: Tensor) -> Tensor:
        """Which bodies are near which, each near itself: bool (N, k, k)."""
        place = self._place(rows)
        near: Tensor = (place[:, :, None] - place[:, None]).norm(dim=3) < self.REACH
        return near | ~self._others(rows)

    def _mask(self, rows: Tensor) -> Tensor:
        near = self._near(rows)
        return torch.cat([near, near[:, :1]], 1)  # a push reaches the first body and those near it


@dataclass(frozen=True, eq=False)
class Measured:
    """The comparison, and rows of 2D Navigation to draw."""

    results: dict[str, Any]
    quadrant: dict[str, tuple[Tensor, Tensor]]  # name -> actions (N, 2) in the top right quadrant, errors (N,)


def neighbourhoods(settings: Neighbourhoods, *, device: str, progress: Progress = silent) -> Measured:
    """Collects, fits a model and all parent distributions in every world, and scores what they draw."""
    started = time.monotonic()
    worlds: dict[str, World] = {"navigation": Navigation(), **{f"{k} bodies": Bodies(k) for k in settings.bodies}}
    cells, quadrant = [], {}
    for name, world in worlds.items():
        datasets = [world.collect(settings.rows, seed=seed).to(device) for seed in range(settings.seeds)]
        seeds = range(settings.seeds)
        models = fit_dynamics_runs(
            datasets, world.graph, "local", seeds=seeds, config=settings.dynamics, progress=progress
        )
        judges = [Judge.of(world, settings, seed, device) for seed in seeds]
        for column in ("recorded", *COLUMNS):
            drawn = [_drawn(world, column, datasets[seed], settings, seed) for seed in seeds]
            scored = [
                _score(world, model, judge, rows) for model, judge, (rows, _) in zip(models, judges, drawn, strict=True)
            ]
            cells.append({"world": name, "column": column, **_cell(scored), **_found(drawn[0][1])})
            if name == "navigation":
                rows = drawn[0][0]
                here = coupled(rows)
                quadrant[column] = (rows[here, 2:].cpu(), scored[0].error[here].cpu())
    results = {
        **heading("neighbourhoods", settings, METRIC, device, time.monotonic() - started),
        "cells": cells,
    }
    return Measured(results, quadrant)


def write(measured: Measured, folder: Path) -> rich.table.Table:
    """Writes the cells and the figure; the table to show."""
    write_json(folder / OUTPUTS[0], measured.results)
    draw_neighbourhoods(measured.results["cells"], measured.quadrant, folder / OUTPUTS[1])
    table = rich.table.Table(title="Rows with an unsupported parent set, and the model's error × 100")
    for column in ("world", "rows", "unsupported %", "error", "where supported", "where not", "neighbourhoods"):
        table.add_column(column, justify="left" if column in ("world", "rows") else "right")
    for cell in measured.results["cells"]:
        numbers = [f"{cell['unsupported_mean']:.1f}"]
        numbers += ["-" if cell[key] is None else f"{cell[key]:.3f}" for key in ("mean", "supported", "not_supported")]
        found = "" if cell["fitted"] is None else f"{len(cell['fitted'])}, {len(cell['skipped'])} skipped"
        table.add_row(cell["world"], cell["column"], *numbers, found)
    return table


@dataclass(frozen=True, eq=False)
class Judge:
    """Says which rows are unsupported, by mixtures of a recording that no one else has seen."""

    mixtures: Stratified
    least: list[Tensor]  # log density (sets,) below which a set is unsupported, by neighbourhood

    @staticmethod
    def of(world: World, settings: Neighbourhoods, seed: int, device: str) -> Judge:
        stream = Stream(seed, "neighbourhoods-judge", device=device)
        fresh = world.collect(settings.judge_rows, seed=stream).to(device)
        others = world.collect(settings.judge_rows, seed=stream.child("others")).rows.to(device)
        mixtures = Stratified.fit(fresh, world.graph, settings.components, "full", False, "empirical", stream)
        least = []
        for one in mixtures.neighbourhoods:
            density = one.mixtures.log_prob(others[mixtures.region(one.mask)(others)])
            least.append(density.quantile(QUANTILE, dim=0) if len(density) else density.new_tensor([math.inf]))
        return Judge(mixtures, least)

    def unsupported(self, rows: Tensor) -> Tensor:
        """bool (N,)."""
        found = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        for one, least in zip(self.mixtures.neighbourhoods, self.least, strict=True):
            here = self.mixtures.region(one.mask)(rows)
            found[here] = (one.mixtures.log_prob(rows[here]) < least).any(1)
        return found


@dataclass(frozen=True, eq=False)
class Score:
    """Of every row: the model's error × 100, and whether it is unsupported."""

    error: Tensor  # (N,) float64
    unsupported: Tensor  # bool (N,)


def _drawn(
    world: World, column: str, data: Transitions, settings: Neighbourhoods, seed: int
) -> tuple[Tensor, Parents | None]:
    """A column's rows, and the distribution they are from."""
    stream = Stream(seed, "neighbourhoods-rows", column, device=data.device)
    if column == "recorded":  # afresh
        return world.collect(settings.test_rows, seed=stream).rows.to(data.device), None
    parents = fit_parents(data, world.graph, components=settings.components, seed=seed, **COLUMNS[column])
    return parents.sample(settings.test_rows, seed=stream), parents


def _score(world: World, model: Dynamics, judge: Judge, rows: Tensor) -> Score:
    following = model.sample(rows, seed=Stream(0, "neighbourhoods-model", device=rows.device))
    return Score(100 * (following - world.step(rows)).double().norm(dim=1), judge.unsupported(rows))


def _cell(scored: list[Score]) -> dict[str, Any]:
    values = [float(one.error.mean()) for one in scored]
    shares = [100 * float(one.unsupported.double().mean()) for one in scored]
    parts = {
        name: torch.cat([one.error[one.unsupported == bad] for one in scored])
        for name, bad in (("supported", False), ("not_supported", True))
    }
    (mean, std), (share, spread) = mean_and_std(values), mean_and_std(shares)
    return {
        "values": values,
        "mean": mean,
        "std": std,
        "unsupported": shares,
        "unsupported_mean": share,
        "unsupported_std": spread,
        **{name: float(part.mean()) if len(part) else None for name, part in parts.items()},
    }


def _found(parents: Parents | None) -> dict[str, Any]:
    """The recorded rows of each neighbourhood that was fitted, and skipped, on the first seed."""
    told = getattr(parents, "source", {}).get("neighbourhoods", {})
    return {"fitted": told.get("rows"), "skipped": told.get("skipped")}
