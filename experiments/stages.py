"""Stages that experiments share: recordings, models and agents are kept in the run's folder, and measured alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from experiments.experiment import Run, cell
from mocoda.agents import Agent
from mocoda.agents.agent import make_agent
from mocoda.agents.policy import Policies, agent_settings
from mocoda.agents.train import remove_checkpoint, train_agents
from mocoda.data.transitions import Transitions
from mocoda.dynamics import Dynamics, DynamicsConfig, fit_dynamics_runs
from mocoda.engine.progress import Progress
from mocoda.engine.randomness import Stream
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


def paper_agent(name: str, **settings: Any) -> Agent:
    """Makes an agent with the paper's settings: rewards as they are, and targets clipped to the paper's range.

    Every task of the paper gives -1 per step and 0 at the goal.
    """
    paper: dict[str, Any] = {"value_range": (-50.0, 0.0), "scale_rewards": False}
    if name == "cql":
        paper |= {"value_range": (-40.0, 0.0), "penalty": "l1", "weight": 0.1}
    return make_agent(name, **(paper | settings))


def record(run: Run, task: Recordable, rows: int, variety: str, name: str = "recorded") -> Transitions:
    """Records the data, or loads it if the folder has it."""
    file = run.folder / f"{name}.hdf5"
    if not file.exists():
        parts = run.folder / ("recording" if name == "recorded" else f"recording-{name}")
        task.collect(
            rows, seed=RECORDING, variety=variety, workers=run.workers, folder=parts, progress=run.progress
        ).save(file)
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


def agents_config(agents: Sequence[Agent]) -> dict[str, Any]:
    """The settings of agents by their names, as JSON values."""
    return {agent.name: agent_settings(agent) for agent in agents}


def runs_of(policies: Policies, column: str) -> list[int]:
    """Which of the policies were trained on that data set, one per seed."""
    return [number for number, (data, _) in enumerate(policies) if data == column]


def last_evaluations(policies: Policies, measure: str, column: str, last: int, scale: float = 1) -> list[float]:
    """The mean of every seed's last evaluations while it trained."""
    values = policies.curves[measure][runs_of(policies, column), -last:].double().mean(1).tolist()
    return [scale * value for value in values]


def agent_cell(
    row: str,
    column: str,
    values: Mapping[str, list[float]],
    paper: tuple[float, float] | None,
    *,
    lower_is_better: bool,
) -> dict[str, Any]:
    """A cell of a table of agents, with the 95% CI of its mean and how often a seed is better than one of "emp".

    values  by column, one per seed
    """
    own, recorded = values[column], values.get("emp")
    better = None if recorded is None else probability_of_improvement(own, recorded, lower_is_better=lower_is_better)
    interval = list(bootstrap_interval(own))
    return cell(row, column, own, paper) | {"interval": interval, "better_than_emp": better}


def learning_curves(
    agents: Mapping[str, Policies], measure: str, columns: Sequence[str], digits: int, scale: float = 1
) -> dict[str, Any]:
    """What was measured while agents trained: agent -> data set -> a curve per seed, as JSON values."""
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
    """Euclidean distances (N,) between one draw of the model per row and the true next state."""
    drawn = model.sample(rows, seed=seed)
    errors: Tensor = (drawn - world.step(rows)).double().norm(dim=1)
    return errors
