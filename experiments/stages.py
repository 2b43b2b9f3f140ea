"""Stages that experiments share: recordings, models and agents are kept in the run's folder, and measured alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from experiments.experiment import Cells, Run, read_json
from mocoda.agents import Agent
from mocoda.agents.agent import make_agent
from mocoda.agents.policy import Policies, agent_settings
from mocoda.agents.train import remove_checkpoint, train_agents
from mocoda.analysis.replay import replay
from mocoda.analysis.row_audit import Limits, audit, judge
from mocoda.analysis.scores import Nearness
from mocoda.data.transitions import Transitions
from mocoda.dynamics import Dynamics, DynamicsConfig, fit_dynamics_runs
from mocoda.engine.files import write_json
from mocoda.engine.progress import Progress
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph

RECORDING = 0  # the seed of recorded data, the same for all seeds of a table
JUDGED_ROWS = 2_000  # of a data set, drawn at random, whose merit is noted
VISITS = 99  # the seed of what the target task visits, which no table trains on
MERITS = ("confirmed", "new", "true_and_new", "coverage")


class Recordable(Protocol):
    """A task whose simulator takes long enough to record that episodes are kept one by one."""

    def collect(
        self,
        rows: int,
        *,
        seed: int | Stream,
        variety: str,
        workers: int | None,
        folder: Path | None,
        progress: Progress,
    ) -> Transitions: ...


class World(Protocol):
    """A world whose true dynamics are known."""

    @property
    def graph(self) -> LocalGraph: ...

    def collect(self, rows: int, *, seed: int | Stream) -> Transitions: ...

    def step(self, rows: Tensor) -> Tensor: ...


def paper_agent(name: str, **settings: Any) -> Agent:
    """Makes an agent with the paper's settings: rewards as they are, and targets clipped to the paper's range.

    Every task of the paper gives -1 per step and 0 at the goal.
    """
    paper: dict[str, Any] = {"value_range": (-50.0, 0.0), "scale_rewards": False}
    if name == "cql":
        paper |= {"value_range": (-40.0, 0.0), "penalty": "l1", "weight": 0.1}
    return make_agent(name, **(paper | settings))


def paper_dynamics(**settings: Any) -> DynamicsConfig:
    """Makes settings of a dynamics model that draws next states as the paper's code does."""
    return DynamicsConfig(next_state="noisy", **settings)


def record(
    run: Run, task: Recordable, rows: int, variety: str, name: str = "recorded", seed: int = RECORDING
) -> Transitions:
    """Records the data, or loads it if the folder has it."""
    file = run.folder / f"{name}.hdf5"
    if not file.exists():
        parts = run.folder / ("recording" if name == "recorded" else f"recording-{name}")
        task.collect(rows, seed=seed, variety=variety, workers=run.workers, folder=parts, progress=run.progress).save(
            file
        )
        for part in parts.glob("part-*.npz"):
            part.unlink()
        if not any(parts.iterdir()):
            parts.rmdir()
    return Transitions.load(file).to(run.device)


def fit_models(
    run: Run,
    datasets: Sequence[Transitions],
    graph: LocalGraph,
    architecture: str,
    config: DynamicsConfig,
    *,
    name: str | None = None,
    seeds: Sequence[int] | None = None,
    labels: Sequence[str] | None = None,
) -> list[Dynamics]:
    """A model for every data set, all trained as one program; loaded if the folder has them.

    name    of the stage; the architecture unless given
    seeds   one per data set, counted from 0 unless given
    labels  names of the models in the stage; their seeds unless given
    """
    name = name or architecture
    seeds = range(len(datasets)) if seeds is None else seeds
    files = [run.folder / f"dynamics-{name}-{label}.safetensors" for label in labels or seeds]
    if all(file.exists() for file in files):
        return [Dynamics.load(file, graph).to(datasets[0].device) for file in files]
    checkpoint = run.folder / f"checkpoint-{name}.safetensors"
    models = fit_dynamics_runs(
        datasets, graph, architecture, seeds=seeds, config=config, progress=run.progress, checkpoint=checkpoint
    )
    for model, file in zip(models, files, strict=True):
        model.save(file)
    checkpoint.unlink(missing_ok=True)
    return models


def fit_agents(
    run: Run, datasets: Mapping[str, Sequence[Transitions]], agent: Agent, *, name: str = "agents", **options: Any
) -> Policies:
    """The agent trained on every data set and seed, all as one program; loaded if the folder has them.

    name     of the stage, and of the folder that keeps its policies
    options  of train_agents; seeds are counted from 0 unless given
    """
    kept, tables = load_agents(run, name), next(iter(datasets.values()))
    if kept is not None:
        return kept.to(tables[0].device)
    checkpoint = run.folder / f"checkpoint-{name}.safetensors"
    options = {"seeds": range(len(tables)), "workers": run.workers, "progress": run.progress, **options}
    policies = train_agents(datasets, agent, checkpoint=checkpoint, **options)
    policies.save(run.folder / name)
    remove_checkpoint(checkpoint)
    return policies


def load_agents(run: Run, name: str = "agents") -> Policies | None:
    """The agents that an earlier run finished and kept, if there are any."""
    kept = run.folder / name
    return Policies.load(kept) if (kept / "agents.json").exists() else None


def agents_config(agents: Sequence[Agent] | Mapping[str, Agent]) -> dict[str, Any]:
    """The settings of agents by their names, as JSON values."""
    named = agents if isinstance(agents, Mapping) else {agent.name: agent for agent in agents}
    return {name: agent_settings(agent) for name, agent in named.items()}


def train_columns(
    run: Run,
    columns: Sequence[str],
    agents: Mapping[str, Agent],
    seeds: Sequence[int],
    data: Callable[[str], Sequence[Transitions]],
    options: Callable[[str], dict[str, Any]],
    cell: Callable[[str, str, Policies], dict[str, Any]],
) -> Cells:
    """The cells of a table of agents: those that `run.only` asks for are measured, unless the folder has them.

    The seeds of one agent on one column are one program, so that a cell does not depend on what else is measured.

    data     makes the data sets of a column, one per seed
    options  of train_agents, by the agent's name
    cell     what a table says of trained agents, given their name and their column
    """
    places = [(name, column) for name in agents for column in columns]
    files = {(name, column): run.folder / "cells" / f"{slug(name)}-{column}.json" for name, column in places}
    for column in run.chosen(columns):
        missing = [name for name in run.chosen(agents) if not files[name, column].exists()]
        begun = time.monotonic()
        tables = data(column) if missing else []
        for name in missing:
            checkpoint = run.folder / f"checkpoint-{slug(name)}-{column}.safetensors"
            given: dict[str, Any] = {"workers": run.workers, "progress": run.progress, **options(name)}
            policies = train_agents({column: tables}, agents[name], seeds=seeds, checkpoint=checkpoint, **given)
            made = cell(name, column, policies) | {"seconds": round(time.monotonic() - begun, 1)}
            files[name, column].parent.mkdir(exist_ok=True)
            write_json(files[name, column], made)
            remove_checkpoint(checkpoint)
            begun = time.monotonic()
    return [read_json(files[place]) for place in places if files[place].exists()]


@dataclass(frozen=True)
class Merit:
    """Measures the merit of generated rows: which share is confirmed, new and both, and what of a task they cover.

    recorded  what they were made from
    task      has `step`, which knows the true next states
    target    the task that agents are to learn, demonstrated
    workers   processes that simulate
    """

    recorded: Transitions
    task: Any
    target: Transitions
    workers: int | None

    def of(self, made: Transitions) -> dict[str, float]:
        """Of all these rows; `coverage` is by recorded rows and by those of them that are true and new."""
        stream, graph = Stream(0, "merit", device="cpu"), self.task.graph
        recorded, made = self.recorded.to("cpu"), made.to("cpu")
        options = [getattr(self.task, name, None) for name in ("tolerance", "compared")]
        truth = replay(made.rows, self.task.step, made.state.shape[1], workers=self.workers)
        near = Nearness.fit(recorded, graph, stream)
        limits = Limits.of(recorded, graph, *options)
        found = judge(made, truth, graph, tolerance=limits, near=near, target=self.target)
        assert found.new is not None and found.true_and_new is not None and found.coverage is not None
        shares = (found.confirmed, found.new, found.true_and_new["share"], found.coverage["all"])
        return dict(zip(MERITS, shares, strict=True))

    def note(self, run: Run, column: str, made: Transitions) -> None:
        """Keeps the merit of some of the rows of a column in the run's folder, unless it has it."""
        file = _merit_file(run, column)
        if not file.exists():
            chosen = Stream(0, "judged", device=made.device).permutation(len(made))[:JUDGED_ROWS]
            file.parent.mkdir(exist_ok=True)
            write_json(file, {"data": column} | self.of(made[chosen]))


def audit_part(
    run: Run, task: Any, data: Transitions, which: Tensor, most: int, limits: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The share of the chosen rows, bool (N,), that the simulator confirms; it replays at most `most`. None: no row."""
    rows = which.cpu().nonzero()[:, 0]
    if not len(rows):
        return None
    chosen = data[rows[Stream(0, "audited", device="cpu").permutation(len(rows))[:most]].to(data.device)]
    found = audit(replace(chosen, provenance={}), task.step, task.graph, workers=run.workers, **limits)
    factors = {name: one["share"] for name, one in found.by["factor"].items()}
    return {"rows": found.rows, "confirmed": found.confirmed, "interval": found.interval, "factors": factors}


def share_text(one: Mapping[str, Any] | None) -> str:
    """What `audit_part` found, for a table."""
    if one is None:
        return "–"
    low, high = (100 * end for end in one["interval"])
    return f"{100 * one['confirmed']:.1f} ({low:.1f} to {high:.1f}, {one['rows']:,} rows)"


def noted_merits(run: Run, columns: Sequence[str]) -> Cells:
    """The merits that the run's folder has."""
    return [read_json(file) for column in columns if (file := _merit_file(run, column)).exists()]


def _merit_file(run: Run, column: str) -> Path:
    return run.folder / "cells" / f"merit-{column}.json"


def slug(name: str) -> str:
    """The name as a part of a file's name."""
    return name.replace(",", "").replace(" ", "-").replace("/", "-")


def runs_of(policies: Policies, column: str) -> list[int]:
    """Which of the policies were trained on that data set, one per seed."""
    return [number for number, (data, _) in enumerate(policies) if data == column]


def last_evaluations(policies: Policies, measure: str, column: str, last: int, scale: float = 1) -> list[float]:
    """The mean of every seed's last evaluations while it trained."""
    values = policies.curves[measure][runs_of(policies, column), -last:].double().mean(1).tolist()
    return [scale * value for value in values]


def learning_curve(policies: Policies, measure: str, points: int = 25, scale: float = 1) -> dict[str, list[float]]:
    """Means of `points` stretches of what was measured while agents trained, over seeds, with the least and most."""
    values = scale * policies.curves[measure].double()
    stretches = [part.mean(1) for part in values.tensor_split(min(points, values.shape[1]), 1)]
    means = torch.stack(stretches).cpu()  # (points, runs)
    ends = policies.curves["updates"].tensor_split(len(stretches))
    return {
        "updates": [int(part[-1]) for part in ends],
        "mean": [round(value, 2) for value in means.mean(1).tolist()],
        "low": [round(value, 2) for value in means.amin(1).tolist()],
        "high": [round(value, 2) for value in means.amax(1).tolist()],
    }


def next_state_errors(model: Dynamics, world: World, rows: Tensor, seed: Stream) -> Tensor:
    """Euclidean distances (N,) between one draw of the model per row and the true next state."""
    drawn = model.sample(rows, seed=seed)
    errors: Tensor = (drawn - world.step(rows)).double().norm(dim=1)
    return errors
