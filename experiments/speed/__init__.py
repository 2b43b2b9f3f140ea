"""How fast the pieces are on a device, each beside its reference, in one run."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from experiments.columns import column_recipe
from experiments.experiment import (
    Cells,
    Experiment,
    Run,
    by_place,
    cell,
    check_names,
    markdown_table,
    measured,
    read_json,
)
from experiments.speed.plain_loops import train_gciql, train_td3_bc
from experiments.stages import paper_agent, paper_dynamics
from mocoda.agents import Agent
from mocoda.agents.agent import AGENTS, make_agent
from mocoda.agents.train import CHUNK, train_agents
from mocoda.augmentation.generation import augment
from mocoda.data.transitions import Transitions
from mocoda.dynamics import fit_dynamics
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents import GaussianMixture, Parents, fit_parents, make_recipe
from mocoda.tasks import make_task
from mocoda.tasks.hooksweep import HookSweep2

EM_POINTS, EM_COLUMNS, EM_COMPONENTS, EM_ITERATIONS = 200_000, 15, 32, 20
SHARED_COLUMNS, OTHER_COLUMNS = 10, 5  # of two parent sets that are matched
RUNS = (1, 5, 25, 100)  # agents that train at once
MATCHED = {"matched-4": 10**4, "matched-6": 10**6}  # row -> recorded rows
LOOPS: dict[str, Callable[..., None]] = {"td3-bc": train_td3_bc, "gciql": train_gciql}
TRAINED = {f"{agent} {sizes}": (agent, sizes) for agent in LOOPS for sizes in ("2 × 128", "3 × 256")}
TRAINED_UPDATES = 100
MEANING = {
    "em": f"EM, {EM_COMPONENTS} full components, {EM_POINTS:,} × {EM_COLUMNS}, {EM_ITERATIONS} rounds: times faster",
    "generate": "MoCoDA rows per second, parents to labelled transition",
    **{
        row: f"matched parents drawn per second from {n:,} recorded rows, 10 shared columns"
        for row, n in MATCHED.items()
    },
    **{
        row: f"{agent.upper()}, {sizes}, batch 256, 3 agents: times faster, for each, than a plain PyTorch loop"
        for row, (agent, sizes) in TRAINED.items()
    },
    "record": "HookSweep2 rows recorded per second by 2 processes",
}
ON_CPU, ON_GPU = ("record", *TRAINED), ("agents",)
Measurement = tuple[list[float], list[float], list[float] | None]  # ratios, ours and the reference, a value per repeat


@dataclass(frozen=True)
class Speed(Experiment):
    """Time the parts, and EM beside scikit-learn's."""

    name = "speed"
    metric = (
        "ratio as the row says; mocoda and the reference in seconds (generate, matched, record: rows per s; an agent "
        "and its number of runs: milliseconds per agent and update)"
    )
    outputs = ("speed.json",)

    repeats: int = 3
    parts: tuple[str, ...] = (*(name for name in MEANING), "agents")
    # Of the part "agents": which, how many at once, and their batch and hidden layers, unless as in the paper.
    agents: tuple[str, ...] = tuple(AGENTS)
    runs: tuple[int, ...] = RUNS
    batch: int | None = None
    hidden: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        self.check_positive("seeds", "repeats")
        check_names("part", self.parts, (*MEANING, "agents"))
        check_names("agent", self.agents, AGENTS)

    def measure(self, run: Run) -> dict[str, Any]:
        """Times what the device can do: recording on the CPU, many agents at once on a GPU."""
        on_gpu = run.device.startswith("cuda")
        left_out = ON_CPU if on_gpu else ON_GPU
        cells: Cells = []
        parts = [part for part in self.parts if part not in left_out]
        for done, part in enumerate(parts):
            run.progress(f"timing {part}", done, len(parts))
            if part == "agents":
                cells += self._agents(run.device)
                continue
            found = self._measurement(part, run.device)
            for column, values in zip(("ratio", "mocoda", "reference"), found, strict=True):
                if values is not None:
                    cells.append(cell(part, column, values))
        return {"reference_threads": torch.get_num_threads(), "cells": cells}

    def _measurement(self, part: str, device: str) -> Measurement:
        if part == "em":
            ours, theirs = _em(device)
            mine = [_seconds(ours, device) for _ in range(self.repeats)]
            reference = _seconds(theirs, "cpu")
            return [reference / seconds for seconds in mine], mine, [reference]
        if part == "generate":
            rates = _generation(device, self.repeats)
            return rates, rates, None
        if part in MATCHED:
            matched, many = matched_parents(MATCHED[part], device), 20_000 if device == "cpu" else 1_000_000
            matched.sample(many // 10, seed=0)  # warm-up
            rates = [many / _seconds(partial(matched.sample, many, seed=i), device) for i in range(self.repeats)]
            return rates, rates, None
        if part in TRAINED:
            return _training(*TRAINED[part], self.repeats)
        rate = 15_000 / _seconds(lambda: HookSweep2().collect(15_000, seed=0, workers=2), "cpu")  # starts included
        return [rate], [rate], None

    def _agents(self, device: str) -> Cells:
        """Every agent at every number of runs: milliseconds per agent and update."""
        data = make_task("navigation").collect(40_000, seed=0).to(device)
        sizes = {name: size for name in ("batch", "hidden") if (size := getattr(self, name)) is not None}
        cells: Cells = []
        for name in self.agents:
            few = {"sampler_updates": 2} if name == "bcq" else {}  # its first stage is not what is timed
            agent = paper_agent(name, **few, **sizes)
            for half in (False, True):
                for runs in self.runs[-1:] if half else self.runs:
                    times = [1e3 * seconds / runs for seconds in _update_seconds(agent, data, runs, 600, half)]
                    cells.append(cell(f"{name}{' in bfloat16' if half else ''} × {runs}", "agent", times))
        return cells

    @staticmethod
    def table(results: Mapping[str, Any]) -> str:
        means = {place: one["mean"] for place, one in by_place(results).items()}
        rows = []
        for row, meaning in MEANING.items():
            if (row, "ratio") in means:
                ratio = means[row, "ratio"]
                rows.append([meaning, f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:,.2f}"])
        return markdown_table(["what", "measured"], rows)

    @staticmethod
    def answer(results: Mapping[str, Any]) -> str:
        means = {place: one["mean"] for place, one in by_place(results).items()}
        return (
            f"On two CPU cores {means['generate', 'ratio']:,.0f} rows are generated per second, and mixtures are "
            f"fitted {means['em', 'ratio']:.1f} times as fast as by scikit-learn."
        )

    @classmethod
    def blocks(cls, folder: Path) -> dict[str, str]:
        cpu, gpu = (read_json(folder / f"{name}.json") for name in ("cpu", "h200"))
        blocks = {name: f"{measured(found)}\n\n{cls.table(found)}" for name, found in (("cpu", cpu), ("h200", gpu))}
        times = {place[0]: f"{one['mean']:.3f}" for place, one in by_place(gpu).items() if place[1] == "agent"}
        names = list(dict.fromkeys(row.partition(" ")[0] for row in times))
        rows = [
            [name.upper(), *(times[f"{name} × {count}"] for count in RUNS), times[f"{name} in bfloat16 × {RUNS[-1]}"]]
            for name in names
        ]
        agents = markdown_table(["agents at once", *map(str, RUNS), f"{RUNS[-1]}, bfloat16"], rows)
        return blocks | {"answer": cls.answer(cpu), "agents": agents}


Speed.presets = {
    "paper": Speed("paper", seeds=1),
    "quick": Speed("quick", seeds=1, repeats=1, parts=("em", "generate", "matched-4")),
}


def _generation(device: str, repeats: int) -> list[float]:
    """Rows per second, with the default networks; how long they trained does not change their speed."""
    task = make_task("navigation")
    data = task.collect(40_000, seed=0).to(device)
    model = fit_dynamics(data, task.graph, seed=0, config=paper_dynamics(epochs=1, window=1))
    parents = fit_parents(data, task.graph, column_recipe("mocoda"), seed=0)
    generate = partial(augment, data, parents, model, task=task, keep_recorded=False, provenance=False, reuse=False)
    many = 500_000 if device == "cpu" else 20_000_000
    generate(rows=many // 10)  # warm-up
    return [many / _seconds(lambda: generate(rows=many), device) for _ in range(repeats)]


def _training(name: str, sizes: str, repeats: int) -> Measurement:
    """Seconds per agent and update, ours with 3 agents at once, in turn with a plain loop of one."""
    layers, width = map(int, sizes.split(" × "))
    agent = make_agent(name, hidden=(width,) * layers, batch=256)
    data = make_task("navigation").collect(20_000, seed=0)
    ours = partial(train_agents, {"data": data}, agent, seeds=range(3), updates=TRAINED_UPDATES)
    loop = partial(LOOPS[name], data, agent, TRAINED_UPDATES, Stream(0, "bench-loop"))
    times = [(_seconds(ours, "cpu"), _seconds(loop, "cpu")) for _ in range(repeats + 1)][1:]  # the first is a warm-up
    mine, reference = [one / 3 / TRAINED_UPDATES for one, _ in times], [one / TRAINED_UPDATES for _, one in times]
    return [theirs / own for own, theirs in zip(mine, reference, strict=True)], mine, reference


def matched_parents(recorded: int, device: str) -> Parents:
    """Parents matched on SHARED_COLUMNS columns, from `recorded` rows; all columns are Gaussian, the worst case."""
    stream = Stream(0, "bench-matched", device=device)
    shared, noise = stream.normal(recorded, SHARED_COLUMNS), stream.normal(recorded, 2 * OTHER_COLUMNS)
    rest = shared.repeat(1, 2)[:, : 2 * OTHER_COLUMNS].sin() + 0.3 * noise
    state = torch.cat([shared, rest], 1)
    graph = LocalGraph(
        state={
            "hand": slice(0, SHARED_COLUMNS),
            "a": slice(SHARED_COLUMNS, SHARED_COLUMNS + OTHER_COLUMNS),
            "b": slice(SHARED_COLUMNS + OTHER_COLUMNS, len(state[0])),
        },
        action={"push": 0},
        edges={"hand": ["hand"], "a": ["hand", "a"], "b": ["hand", "b"]},
    )
    return fit_parents(Transitions(state, noise[:, :1], state), graph, make_recipe("mocoda", density="matched"))


def _update_seconds(agent: Agent, data: Transitions, runs: int, updates: int, half: bool = False) -> list[float]:
    """Seconds an update of all runs, chunk by chunk; the first half of the chunks warms up."""
    train = partial(train_agents, {"data": data}, agent, seeds=range(runs), updates=updates, half=half)
    spans = [span / CHUNK for span in _spans(train)]
    return spans[len(spans) // 2 :]


def _spans(work: Callable[..., object]) -> list[float]:
    """Seconds between the work's reports of progress; losses were looked at then, so what was to do is done."""
    marks = [time.perf_counter()]
    work(progress=lambda stage, done, total: marks.append(time.perf_counter()))
    return [after - before for before, after in itertools.pairwise(marks)]


def _seconds(work: Callable[[], object], device: str) -> float:
    start = time.perf_counter()
    work()
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _em(device: str) -> tuple[Callable[[], object], Callable[[], object]]:
    """Ours and scikit-learn's, each from its own start, for the same number of rounds."""
    stream = Stream(0, "bench-em")
    centres = 3 * stream.normal(EM_COMPONENTS, EM_COLUMNS)
    mixing = stream.normal(EM_COMPONENTS, EM_COLUMNS, EM_COLUMNS) / 3
    component = stream.integers(EM_COMPONENTS, EM_POINTS)
    noise = stream.normal(EM_POINTS, EM_COLUMNS, 1)
    points = torch.cat(
        [(mixing[c] @ n)[..., 0] for c, n in zip(component.split(20_000), noise.split(20_000), strict=True)]
    )
    points = (points + centres[component]).to(device)

    def ours() -> GaussianMixture:
        return GaussianMixture.fit(points, EM_COMPONENTS, tolerance=-float("inf"), max_iterations=EM_ITERATIONS)

    def theirs() -> object:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.mixture import GaussianMixture as Reference

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # it is to stop early
            return Reference(EM_COMPONENTS, tol=0.0, max_iter=EM_ITERATIONS, random_state=0).fit(points.cpu().numpy())

    ours()  # warm-up
    return ours, theirs
