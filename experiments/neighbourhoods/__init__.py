"""Mixtures per neighbourhood (Appendix B.2): what they do to the support of new rows and to the model's error.

The paper fits one set of mixtures for the sparsest graph. A row that they make is *unsupported* if one of the parent
sets of its own local graph is rarer than 99% of the recorded rows there, or if too few were recorded there to say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from matplotlib.figure import Figure
from torch import Tensor

from experiments.columns import PUBLISHED
from experiments.experiment import Experiment, Run, markdown_table, spread
from experiments.figures import draw_bars
from experiments.stages import World, next_state_errors
from experiments.table1 import Table1
from experiments.worlds import Bodies
from mocoda.data.transitions import Transitions
from mocoda.dynamics import Dynamics, DynamicsConfig, fit_dynamics_runs
from mocoda.engine.figure_style import BLUE, GREEN, GREY, ORANGE, RED, legend_below, save
from mocoda.engine.randomness import Stream
from mocoda.engine.statistics import mean_and_std
from mocoda.parents import Parents, fit_parents, make_recipe
from mocoda.parents.mocoda import MixtureParents, StratifiedParents
from mocoda.tasks.navigation import Navigation

COLUMNS: dict[str, dict[str, Any]] = {
    "mocoda": {},
    "mocoda, stratified": {"stratified": True},
    "mocoda, stratified evenly": {"stratified": True},
    "mocoda-u": {"name": "mocoda-u"},
    "mocoda-u, stratified": {"name": "mocoda-u", "stratified": True},
}
COLOURS = dict(zip(("recorded", *COLUMNS), (GREY, BLUE, GREEN, "#8fc9a8", RED, ORANGE), strict=True))
QUANTILE = 0.01


@dataclass(frozen=True, eq=False)
class EvenParents(StratifiedParents):
    """Draws all neighbourhoods equally often."""

    drawn: ClassVar[str] = "even"

    @property
    def shares(self) -> Tensor:
        count = len(self.neighbourhoods)
        return torch.full((count,), 1, dtype=torch.float64) / count


@dataclass(frozen=True)
class Neighbourhoods(Experiment):
    """Mixtures per local graph against one set of mixtures (Appendix B.2)."""

    name = "neighbourhoods"
    metric = (
        "unsupported: share of rows in percent. values: next-state error of one draw a row, mean Euclidean norm x 1e2, "
        "as in Table 1; supported, not_supported: over those rows alone"
    )
    outputs = ("neighbourhoods.json", "neighbourhoods.png")

    dynamics: DynamicsConfig
    bodies: tuple[int, ...]  # a world each, besides 2D Navigation
    rows: int = 40_000  # recorded
    test_rows: int = 20_000  # in every column
    judge_rows: int = 100_000  # that say what is supported
    components: int = 32

    def measure(self, run: Run) -> dict[str, Any]:
        """Collects, fits a model and all parent distributions in every world, and scores what they draw."""
        seeds = range(self.seeds)
        worlds: dict[str, World] = {"navigation": Navigation(), **{f"{k} bodies": Bodies(k) for k in self.bodies}}
        cells = []
        for name, world in worlds.items():
            datasets = [world.collect(self.rows, seed=seed).to(run.device) for seed in seeds]
            models = fit_dynamics_runs(
                datasets, world.graph, "local", seeds=seeds, config=self.dynamics, progress=run.progress
            )
            judges = [Judge.of(world, self, seed, run.device) for seed in seeds]
            for column in ("recorded", *COLUMNS):
                drawn = [self._draw(world, column, datasets[seed], seed) for seed in seeds]
                scores = [
                    _score(world, model, judge, rows)
                    for model, judge, (rows, _) in zip(models, judges, drawn, strict=True)
                ]
                cells.append({"world": name, "column": column, **_cell(scores), **_strata(drawn[0][1])})
        return {"cells": cells}

    def _draw(self, world: World, column: str, data: Transitions, seed: int) -> tuple[Tensor, Parents | None]:
        """A column's rows, and the distribution they are from."""
        stream = Stream(seed, "neighbourhoods-rows", column, device=data.device)
        if column == "recorded":  # afresh
            return world.collect(self.test_rows, seed=stream).rows.to(data.device), None
        recipe = make_recipe(**{"name": "mocoda", "components": self.components, **PUBLISHED, **COLUMNS[column]})
        parents = fit_parents(data, world.graph, recipe, seed=seed)
        if column == "mocoda, stratified evenly":
            assert isinstance(parents, StratifiedParents)
            parents = EvenParents(**vars(parents))
        return parents.sample(self.test_rows, seed=stream), parents

    def draw(self, results: Mapping[str, Any], folder: Path) -> None:
        figure = Figure(figsize=(10, 3.6), layout="constrained")
        cells = results["cells"]
        shares = [one | {"mean": one["unsupported_mean"], "std": one["unsupported_std"]} for one in cells]
        styles = {name: {"color": colour} for name, colour in COLOURS.items()}
        left, right = figure.subplots(1, 2)
        draw_bars(left, shares, "world", "column", styles)
        draw_bars(right, cells, "world", "column", styles)
        left.set_ylabel("rows with an unsupported parent set (%)")
        right.set(yscale="log", ylabel="model's error × 100 (log scale)")
        legend_below(figure, ncols=3)
        save(figure, folder / self.outputs[1])

    @staticmethod
    def table(results: Mapping[str, Any]) -> str:
        rows = []
        for one in results["cells"]:
            errors = ["–" if one[k] is None else f"{one[k]:.3f}" for k in ("mean", "supported", "not_supported")]
            strata = "" if one["fitted"] is None else f"{len(one['fitted'])}, {len(one['skipped'])} skipped"
            rows.append([one["world"], one["column"], f"{one['unsupported_mean']:.1f}", *errors, strata])
        columns = ("world", "rows", "unsupported, %", "error × 100", "where supported", "where not", "neighbourhoods")
        return markdown_table(columns, rows)

    @staticmethod
    def answer(results: Mapping[str, Any]) -> str:
        found = {one["column"]: one for one in results["cells"] if one["world"] == "navigation"}
        plain, stratified = found["mocoda"], found["mocoda, stratified"]
        return (
            f"They keep rows supported: of MoCoDA's rows in 2D Navigation {plain['unsupported_mean']:.1f}% are not, "
            f"and {stratified['unsupported_mean']:.1f}% with mixtures per neighbourhood. The model's error × 100 falls "
            f"from {plain['mean']:.3f} to {stratified['mean']:.3f}."
        )


Neighbourhoods.presets = {
    "paper": Neighbourhoods("paper", seeds=5, dynamics=DynamicsConfig(epochs=100, window=10), bodies=(2, 4, 6)),
    "quick": Neighbourhoods(
        "quick",
        seeds=2,
        dynamics=replace(Table1.presets["quick"].dynamics, epochs=16),
        bodies=(3,),
        rows=20_000,
        test_rows=5_000,
        judge_rows=40_000,
        components=16,
    ),
}


@dataclass(frozen=True, eq=False)
class Judge:
    """Says which rows are unsupported, by mixtures of a recording of its own."""

    mixtures: StratifiedParents
    least: list[Tensor]  # log density (sets,) below which a set is unsupported, by neighbourhood

    @staticmethod
    def of(world: World, settings: Neighbourhoods, seed: int, device: str) -> Judge:
        stream = Stream(seed, "neighbourhoods-judge", device=device)
        fresh = world.collect(settings.judge_rows, seed=stream).to(device)
        others = world.collect(settings.judge_rows, seed=stream.child("others")).rows.to(device)
        mixtures = StratifiedParents.fit(fresh, world.graph, MixtureParents.fit, settings.components, stream)
        least = []
        for one in mixtures.neighbourhoods:
            density = one.mixtures.log_prob(others[mixtures.region(one.mask)(others)])
            least.append(density.quantile(QUANTILE, dim=0) if len(density) else density.new_tensor([math.inf]))
        return Judge(mixtures, least)

    def unsupported(self, rows: Tensor) -> Tensor:
        """Which rows are, bool (N,)."""
        unsupported = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        for one, least in zip(self.mixtures.neighbourhoods, self.least, strict=True):
            here = self.mixtures.region(one.mask)(rows)
            unsupported[here] = (one.mixtures.log_prob(rows[here]) < least).any(1)
        return unsupported


@dataclass(frozen=True, eq=False)
class Score:
    """Of every row: the model's error × 100, and whether it is unsupported."""

    error: Tensor  # (N,) float64
    unsupported: Tensor  # bool (N,)


def _score(world: World, model: Dynamics, judge: Judge, rows: Tensor) -> Score:
    errors = next_state_errors(model, world, rows, Stream(0, "neighbourhoods-model", device=rows.device))
    return Score(100 * errors, judge.unsupported(rows))


def _cell(scores: list[Score]) -> dict[str, Any]:
    shares = [100 * float(score.unsupported.double().mean()) for score in scores]
    share, deviation = mean_and_std(shares)
    parts = {
        name: torch.cat([score.error[score.unsupported == bad] for score in scores])
        for name, bad in (("supported", False), ("not_supported", True))
    }
    return {
        **spread([float(score.error.mean()) for score in scores]),
        "unsupported": shares,
        "unsupported_mean": share,
        "unsupported_std": deviation,
        **{name: float(part.mean()) if len(part) else None for name, part in parts.items()},
    }


def _strata(parents: Parents | None) -> dict[str, Any]:
    """The recorded rows of each neighbourhood that was fitted, and skipped, on the first seed."""
    strata = getattr(parents, "source", {}).get("neighbourhoods", {})
    return {"fitted": strata.get("rows"), "skipped": strata.get("skipped")}
