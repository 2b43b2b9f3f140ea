"""Stages that experiments share: models and agents are kept in the experiment's folder, and measured alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from experiments.experiment import cell
from mocoda.agents import Agent
from mocoda.agents.policy import Policies, agent_settings
from mocoda.agents.train import remove_checkpoint, train_agents
from mocoda.data.transitions import Transitions
from mocoda.dynamics import Dynamics, DynamicsConfig, fit_dynamics_runs
from mocoda.engine.engines import chosen_engine
from mocoda.engine.files import announce
from mocoda.engine.progress import Progress
from mocoda.engine.randomness import Stream
from mocoda.engine.runs import STATES
from mocoda.engine.statistics import bootstrap_interval, probability_of_improvement
from mocoda.graph.local_graph import LocalGraph

RECORDING = 0  # the seed of recorded data, the same for all seeds of a table


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


def begun(folder: Path) -> bool:
    """Whether an earlier run of the same settings has left anything in the folder to continue from."""
    return any(path.suffix in STATES for path in folder.rglob("*"))


def record(
    task: Recordable,
    rows: int,
    variety: str,
    folder: Path,
    workers: int | None,
    progress: Progress,
    name: str = "recorded",
) -> Transitions:
    """Records the data, or loads it if the folder has it."""
    file = folder / f"{name}.hdf5"
    if not file.exists():
        parts = folder / ("recording" if name == "recorded" else f"recording-{name}")
        task.collect(rows, seed=RECORDING, variety=variety, workers=workers, folder=parts, progress=progress).save(file)
        for part in parts.glob("part-*.npz"):
            part.unlink()
        if not any(parts.iterdir()):
            parts.rmdir()
    return Transitions.load(file)


def fit_models(
    datasets: Sequence[Transitions],
    graph: LocalGraph,
    architecture: str,
    config: DynamicsConfig,
    *,
    folder: Path,
    progress: Progress,
    name: str | None = None,
    seeds: Sequence[int] | None = None,
    labels: Sequence[str] | None = None,
) -> list[Dynamics]:
    """A model for every data set, all trained as one program, or inside `spread_over` each as a job; loaded if the
    folder has them.

    name    of the stage; the architecture unless given
    seeds   one a data set, counted from 0 unless given
    labels  what tells the models of a stage apart; their seeds unless given
    """
    name = name or architecture
    seeds = range(len(datasets)) if seeds is None else seeds
    files = [folder / f"dynamics-{name}-{label}.safetensors" for label in labels or seeds]
    device = datasets[0].device
    if all(file.exists() for file in files):
        return [Dynamics.load(file, graph).to(device) for file in files]
    if (engine := chosen_engine()) is not None:
        work = _Fitting([data.to("cpu") for data in datasets], graph, architecture, config, seeds, files, device)
        for file in files:
            announce(file)
        done = sum(file.exists() for file in files)
        for _ in engine.run(work, [number for number, file in enumerate(files) if not file.exists()]):
            done += 1
            progress(f"dynamics {name}", done, len(files))
        return [Dynamics.load(file, graph).to(device) for file in files]
    checkpoint = folder / f"checkpoint-{name}.safetensors"
    models = fit_dynamics_runs(
        datasets, graph, architecture, seeds=seeds, config=config, progress=progress, checkpoint=checkpoint
    )
    for model, file in zip(models, files, strict=True):
        model.save(file)
    checkpoint.unlink(missing_ok=True)
    return models


@dataclass(frozen=True, eq=False)
class _Fitting:
    """What another process does: fit the model of a number, unless its file is there."""

    data: Sequence[Transitions]
    graph: LocalGraph
    architecture: str
    config: DynamicsConfig
    seeds: Sequence[int]
    files: Sequence[Path]
    device: torch.device

    def __call__(self, number: int) -> None:
        file, data = self.files[number], self.data[number].to(self.device)
        if not file.exists():
            checkpoint = file.with_name(f"checkpoint-{file.name}")
            own: dict[str, Any] = {"seeds": [self.seeds[number]], "config": self.config, "checkpoint": checkpoint}
            fit_dynamics_runs([data], self.graph, self.architecture, **own)[0].save(file)
            checkpoint.unlink(missing_ok=True)


def fit_agents(
    datasets: Mapping[str, list[Transitions]], agent: Agent, *, folder: Path, name: str, **options: Any
) -> Policies:
    """The agent trained on every data set and seed, all as one program, or inside `spread_over` each as a job; loaded
    if the folder has them.

    name     of the stage, and of the folder that keeps its policies
    options  of train_agents
    """
    kept = load_agents(folder / name)
    if kept is not None:
        return kept.to(next(iter(datasets.values()))[0].device)
    engine = chosen_engine()
    checkpoint = folder / f"checkpoint-{name}{'' if engine else '.safetensors'}"
    policies = train_agents(datasets, agent, checkpoint=checkpoint, engine=engine, **options)
    policies.save(folder / name)
    remove_checkpoint(checkpoint)
    return policies


def load_agents(kept: Path) -> Policies | None:
    """The agents that an earlier run finished and kept in this folder, if there are any."""
    return Policies.load(kept) if (kept / "agents.json").exists() else None


def agents_config(agents: Sequence[Agent]) -> dict[str, Any]:
    """The settings of agents by their names, as JSON values."""
    return {agent.name: agent_settings(agent) for agent in agents}


def runs_of(policies: Policies, column: str) -> list[int]:
    """Which of the policies were trained on that data set, one a seed."""
    return [number for number, (data, _) in enumerate(policies) if data == column]


def last_evaluations(policies: Policies, measure: str, column: str, last: int) -> list[float]:
    """The mean of every seed's last evaluations while it trained."""
    values: list[float] = policies.curves[measure][runs_of(policies, column), -last:].double().mean(1).tolist()
    return values


def agent_cell(
    row: str,
    column: str,
    values: Mapping[str, list[float]],
    paper: tuple[float, float] | None,
    *,
    lower_is_better: bool,
) -> dict[str, Any]:
    """A cell of a table of agents, with the 95% CI of its mean and how often a seed is better than one of "emp".

    values  by column, one a seed
    """
    own, recorded = values[column], values.get("emp")
    better = None if recorded is None else probability_of_improvement(own, recorded, lower_is_better=lower_is_better)
    interval = list(bootstrap_interval(own))
    return cell(row, column, own, paper) | {"interval": interval, "better_than_emp": better}


def learning_curves(
    agents: Mapping[str, Policies], measure: str, columns: Sequence[str], digits: int, scale: float = 1
) -> dict[str, Any]:
    """What was measured while agents trained: agent -> data set -> a curve a seed, as JSON values."""
    return {
        name: {
            "updates": policies.curves["updates"].tolist(),
            measure: {
                column: [
                    [round(scale * value, digits) for value in policies.curves[measure][run].tolist()]
                    for run in runs_of(policies, column)
                ]
                for column in columns
            },
        }
        for name, policies in agents.items()
    }


def next_state_errors(model: Dynamics, world: World, rows: Tensor, seed: Stream) -> Tensor:
    """Euclidean distances (N,) between one draw of the model a row and the true next state."""
    drawn = model.sample(rows, seed=seed)
    errors: Tensor = (drawn - world.step(rows)).double().norm(dim=1)
    return errors
