"""One thing at a time is changed in the paper's method, and agents and values say whether it matters.

Every variant is the column `mocoda` of Table 2 (mixtures, noisy next states) but for one setting. Agents walk in 2D
Navigation; of objects an expert's value is learned, because agents that carry objects take longer to train.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from experiments.columns import PUBLISHED, column_data
from experiments.entanglement import lesson_of, recombined, standardised
from experiments.entanglement.values import ValueConfig, fit_values, true_values
from experiments.experiment import (
    Cells,
    Experiment,
    Run,
    average,
    by_place,
    cell,
    check_names,
    check_training,
    markdown_table,
    plus_minus,
    read_json,
    unique,
)
from experiments.reweighting import ReweightedMocoda
from experiments.stages import agents_config, fit_models, last_evaluations, paper_dynamics
from experiments.table2 import Table2, walked_to_the_goal
from mocoda.agents import Agent
from mocoda.agents.train import remove_checkpoint, train_agents
from mocoda.data.transitions import Transitions, concatenate
from mocoda.dynamics import DYNAMICS, Dynamics, DynamicsConfig
from mocoda.dynamics.fit import Mechanisms
from mocoda.engine.files import write_json
from mocoda.engine.networks import mlp
from mocoda.engine.randomness import Stream, as_stream
from mocoda.engine.statistics import bootstrap_interval
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents import GaussianMixture, Mocoda, fit_parents
from mocoda.parents.mocoda import MixtureParents
from mocoda.tasks import make_task
from mocoda.tasks.navigation import Navigation

REFERENCE = "mocoda"
HELD_OUT = 0.125  # share of the rows whose likelihood stops EM
VISITED = 2_000  # states of the target task, near which rows are relevant


@dataclass(frozen=True)
class ValidatedMocoda(Mocoda):
    """MoCoDA's mixtures, with EM stopped by the likelihood of rows held out (Algorithm 1)."""

    def fit(self, data: Transitions, graph: LocalGraph, *, seed: int | Stream, **given: Any) -> MixtureParents:
        stream, sets = as_stream(seed, "validated", device=data.device), []
        for names in graph.parent_sets:
            columns, own = graph.columns(names), stream.child(*names)
            points = data.rows[:, columns]
            sets.append((columns, GaussianMixture.fit(points, self.components, seed=own, validation=HELD_OUT)))
        return MixtureParents(graph.width, tuple(sets))


@dataclass(frozen=True)
class SharedComposer(DynamicsConfig):
    """The local family with one Masked Composer for all children, as the paper suggests (Appendix B.3)."""

    name = "shared-composer"

    def networks(self, graph: LocalGraph, device: torch.device) -> Mechanisms:
        return SharedMechanisms(graph, self, device)


@dataclass(frozen=True)
class SharedMechanisms(Mechanisms):
    """The networks of `SharedComposer`: embeddings are the same for all children."""

    def initial_weights(self, stream: Stream) -> dict[str, Tensor]:
        weights = super().initial_weights(stream)
        return {name: own[:, :1] if name.startswith("embed.") else own for name, own in weights.items()}


# Models: their family, and what differs from the experiment's settings.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "local": ("local", {}),
    "next-state": ("local", {"predict_change": False}),
    "raw-change": ("local", {"standardise": False}),
    "raw-next-state": ("local", {"predict_change": False, "standardise": False}),
    "shared": ("shared-composer", {}),
    "full": ("full", {}),
    "full-10": ("full", {"weight_decay": 5e-4}),
    "full-100": ("full", {"weight_decay": 5e-3}),
}
Datasets = dict[str, list[Transitions]]  # by variant, one per seed


class Variant(NamedTuple):
    """How a data set is made."""

    title: str
    model: str = "local"
    column: str = REFERENCE
    drawn: dict[str, Any] | None = None  # settings of the model when it draws next states
    recipe: type[Mocoda] | None = None
    recorded: bool = True  # recorded rows are part of the data set
    irrelevant: int = 0  # rows far from what the target task visits, for each generated row
    prioritised: bool = False  # of twice as many generated rows, those nearest to what the target task visits


VARIANTS = {
    REFERENCE: Variant("MoCoDA with mixtures"),
    "recorded": Variant("recorded rows alone", column="emp"),
    "default": Variant("the default", column="default"),
    "validation": Variant("EM stopped by validation likelihood", recipe=ValidatedMocoda),
    "undivided": Variant("noise of next states not divided by 3", drawn={"sharpen": 1.0}),
    "mean": Variant("next states without noise: the mean", drawn={"next_state": "mean"}),
    "generated": Variant("generated rows alone", recorded=False),
    "mocoda-u": Variant("MoCoDA-U by rejection", column="mocoda-u"),
    "reweighted": Variant("MoCoDA-U by reweighting", recipe=ReweightedMocoda),
    "mocoda-p": Variant("MoCoDA-P by an expert's trajectories", prioritised=True),
    "mocoda-p-u": Variant("MoCoDA-P by them, over MoCoDA-U", column="mocoda-u", prioritised=True),
    "next-state": Variant("networks predict the next state", "next-state"),
    "raw-change": Variant("change of state, not standardised", "raw-change"),
    "raw-next-state": Variant("next state, not standardised (the paper's code)", "raw-next-state"),
    "shared": Variant("one Masked Composer for all children", "shared"),
    "full": Variant("unfactored model", "full"),
    "full-10": Variant("unfactored model, 10 times the weight decay", "full-10"),
    "full-100": Variant("unfactored model, 100 times the weight decay", "full-100"),
    "irrelevant-1": Variant("with an irrelevant row for each generated one", irrelevant=1),
    "irrelevant-4": Variant("with four irrelevant rows for each generated one", irrelevant=4),
}


class World(NamedTuple):
    """Where variants are measured, and by what."""

    title: str
    task: str
    portion: float  # of the recorded rows
    measure: str


STEPS, ERROR = "steps to the goal", "error of a value, % of its range"
WORLDS = {
    "navigation": World("2D Navigation", "navigation", 1.0, STEPS),
    "few-rows": World("a tenth of its recorded rows", "navigation", 0.1, STEPS),
    "objects": World("three objects", "objects:3", 1.0, ERROR),
}


@dataclass(frozen=True)
class Ablations(Experiment):
    """What single choices of the method are worth to agents and values."""

    name = "ablations"
    metric = (
        f"2D Navigation: {STEPS} (70 where it is not reached), mean over the last evaluations while training. Objects: "
        f"{ERROR}, where all objects but one are at home, which hardly any recorded row shows"
    )
    outputs = ("ablations.json",)

    dynamics: DynamicsConfig
    agent: Agent
    values: ValueConfig
    worlds: tuple[str, ...] = tuple(WORLDS)
    variants: tuple[str, ...] = tuple(VARIANTS)
    first: int = 10  # seed
    rows: int = 10_000  # recorded
    total: int = 40_000  # in a data set, the recorded ones among them
    updates: int = 2_500
    evaluate_every: int = 100
    episodes: int = 10
    last: int = 8  # evaluations that count
    test_rows: int = 2_000  # states in which values are compared with the truth
    components: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        check_training(self.total, self.rows, self.last, self.updates // self.evaluate_every)
        check_names("world", self.worlds, WORLDS)
        check_names("variant", self.variants, VARIANTS)

    def config(self) -> dict[str, Any]:
        return super().config() | {"agent": agents_config([self.agent])[self.agent.name]}

    def measure(self, run: Run) -> dict[str, Any]:
        """Measures all variants and seeds as one program in each world that `run.only` asks for."""
        DYNAMICS.add(SharedComposer)
        files = {world: run.folder / "cells" / f"{world}.json" for world in self.worlds}
        for world in run.chosen(self.worlds):
            if not files[world].exists():
                begun, cells = time.monotonic(), self.cells(run, world)
                files[world].parent.mkdir(exist_ok=True)
                write_json(files[world], {"cells": cells, "seconds": round(time.monotonic() - begun, 1)})
        found = [read_json(file) for file in files.values() if file.exists()]
        return {
            "seconds": sum(one["seconds"] for one in found),
            "cells": [own for one in found for own in one["cells"]],
        }

    def cells(self, run: Run, world: str) -> Cells:
        """What all variants reach in a world."""
        task: Any = make_task(WORLDS[world].task)
        seeds, rows = range(self.first, self.first + self.seeds), round(WORLDS[world].portion * self.rows)
        recorded = [task.collect(rows, seed=seed).to(run.device) for seed in seeds]
        models: dict[str, list[Dynamics]] = {}
        for kind in dict.fromkeys(VARIANTS[name].model for name in self.variants):
            family, changes = MODELS[kind]
            given: dict[str, Any] = {"name": f"{world}-{kind}", "seeds": seeds}
            models[kind] = fit_models(run, recorded, task.graph, family, replace(self.dynamics, **changes), **given)
        datasets: Datasets = {
            name: [
                self.dataset(task, VARIANTS[name], *own)
                for own in zip(recorded, models[VARIANTS[name].model], seeds, strict=True)
            ]
            for name in self.variants
        }
        measure = self.steps if WORLDS[world].measure == STEPS else self.errors
        return [cell(world, name, values) for name, values in measure(run, task, world, recorded, datasets).items()]

    def steps(
        self, run: Run, task: Any, world: str, recorded: Sequence[Transitions], datasets: Datasets
    ) -> dict[str, list[float]]:
        """Steps to the goal of every variant's agents, one per seed."""
        seeds, checkpoint = range(self.first, self.first + self.seeds), run.folder / f"checkpoint-{world}.safetensors"
        every: dict[str, Any] = {"evaluate_every": self.evaluate_every, "episodes": self.episodes}
        every |= {"checkpoint": checkpoint, "workers": run.workers, "progress": run.progress}
        policies = train_agents(datasets, self.agent, seeds=seeds, updates=self.updates, task=task, **every)
        remove_checkpoint(checkpoint)
        return {name: last_evaluations(policies, "steps", name, self.last) for name in datasets}

    def errors(
        self, run: Run, task: Any, world: str, recorded: Sequence[Transitions], datasets: Datasets
    ) -> dict[str, list[float]]:
        """Errors of the expert's value, learned from every variant's rows, one per seed."""
        lessons = {
            (self.first + i, name): lesson_of(task, tables[i], own, self.values.discount)
            for i, own in enumerate(recorded)
            for name, tables in datasets.items()
        }
        weights = fit_values(lessons, self.values, device=run.device, progress=run.progress)
        errors: dict[str, list[float]] = {name: [] for name in datasets}
        for i, own in enumerate(recorded):
            stream = Stream(self.first + i, "ablations-test", world, device=own.device)
            fresh = task.collect(len(own), seed=stream).to(run.device).state
            state = recombined(task, fresh, task.objects - 1, self.test_rows, stream.child("states"))
            rows = standardised(torch.cat([state, task.expert(state)], 1), own)
            learners = {name: weight[i * len(datasets) :][: len(datasets)] for name, weight in weights.items()}
            learned = mlp(learners, "value", rows.expand(len(datasets), -1, -1))[..., 0]
            apart = 100 * (learned - true_values(task, state, self.values.discount)).abs().mean(1)
            for name, error in zip(datasets, apart.tolist(), strict=True):
                errors[name].append(error)
        return errors

    def dataset(self, task: Any, variant: Variant, recorded: Transitions, model: Dynamics, seed: int) -> Transitions:
        """The rows of a variant for one seed."""
        model, more = replace(model, config=replace(model.config, **(variant.drawn or {}))), self.total - len(recorded)
        recipe = (variant.recipe or Mocoda)(components=self.components, **PUBLISHED)
        given: dict[str, Any] = {"seed": seed, "components": self.components}
        if variant.prioritised:
            drawn = column_data(variant.column, recorded, task, model, rows=2 * more, **given)
            made, drawn = drawn[: len(recorded)], drawn[len(recorded) :]
            return concatenate([made, drawn[by_relevance(task, drawn, seed)[:more].sort().values]])
        if variant.recipe or variant.irrelevant:
            given["parents"] = fit_parents(recorded, task.graph, recipe, seed=seed, task=task, model=model)
        made = column_data(variant.column, recorded, task, model, rows=more, **given)
        if variant.irrelevant:
            drawn = column_data(REFERENCE, recorded, task, model, rows=2 * variant.irrelevant * more, **given)
            drawn = drawn[len(recorded) :]
            farther = by_relevance(task, drawn, seed)[len(drawn) // 2 :]
            made = concatenate([made, drawn[farther.sort().values]])
        return made if variant.recorded else made[len(recorded) :]

    @staticmethod
    def table(results: Mapping[str, Any]) -> str:
        cells, worlds = by_place(results), unique(results["cells"], "row")
        lines = []
        for name in unique(results["cells"], "column"):
            texts = [VARIANTS[name].title]
            for world in worlds:
                numbers = (f"{value:+.1f}".replace("-", "−") for value in difference(results, world, name))
                apart = "" if name == REFERENCE else "{} ({} to {})".format(*numbers)
                texts += [plus_minus(cells[world, name], 1), apart]
            lines.append(texts)
        titles = [part for world in worlds for part in (f"{WORLDS[world].title}: {WORLDS[world].measure}", "more")]
        return markdown_table(["", *titles], lines)

    @staticmethod
    def answer(results: Mapping[str, Any]) -> str:
        names = [name for name in unique(results["cells"], "column") if name not in (REFERENCE, "recorded")]
        texts = []
        for world in unique(results["cells"], "row"):
            found = {name: difference(results, world, name) for name in names}
            worse, better = sum(low > 0 for _, low, _ in found.values()), sum(high < 0 for _, _, high in found.values())
            worst = VARIANTS[max(found.items(), key=lambda item: item[1])[0]].title
            texts.append(f"{WORLDS[world].title}: {worse} worse (most: {worst}), {better} better")
        return f"Of {len(names)} changes to MoCoDA with mixtures: {'; '.join(texts)}."


_PAPER = Ablations(
    "paper",
    seeds=5,
    dynamics=paper_dynamics(
        members=3, hidden=(64, 64), features=64, epochs=24, epoch_rows=8_750, batch=256, learning_rate=3e-3
    ),
    agent=replace(Table2.presets["quick"].agents["td3-bc"], batch=128, polyak=0.04),
    values=ValueConfig(updates=5_000),
)
FEW = (REFERENCE, "recorded", "default", "undivided", "full")
Ablations.presets = {"paper": _PAPER, "quick": replace(_PAPER, preset="quick", seeds=1, variants=FEW, total=20_000)}


def difference(results: Mapping[str, Any], world: str, name: str) -> tuple[float, float, float]:
    """What a variant has more than the reference, paired by seed: mean and 95% interval, bootstrapped over seeds."""
    cells = by_place(results)
    pairs = zip(cells[world, name]["values"], cells[world, REFERENCE]["values"], strict=True)
    apart: Sequence[float] = [theirs - ours for theirs, ours in pairs]
    return average(apart), *bootstrap_interval(apart)


def by_relevance(task: Any, drawn: Transitions, seed: int) -> Tensor:
    """The rows (N,) by how near their states are, in standard deviations, to those that the target task visits."""
    scale = drawn.state.std(0)
    target = visited(task, seed).to(scale.device) / scale
    nearest = torch.cat([torch.cdist(block / scale, target).amin(1) for block in drawn.state.split(8_192)])
    return nearest.argsort()


def visited(task: Any, seed: int) -> Tensor:
    """States (N, S) that an expert visits in the target task."""
    if isinstance(task, Navigation):
        return walked_to_the_goal(task, VISITED, seed).state
    state, seen = task.start(-(-VISITED // task.horizon), seed=seed), []
    for _ in range(task.horizon):
        seen.append(state)
        state = task.step(torch.cat([state, task.expert(state)], 1))
    return torch.cat(seen)
