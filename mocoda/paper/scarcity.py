"""a preset -> the figure that the paper lacks: success and model error against the number of recorded rows.

The same agent on MoCoDA-P data of the factored and of the unfactored model, fitted to the first rows of one recording.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import rich.table

from mocoda.agents import Agent
from mocoda.agents.policy import Policies, agent_settings
from mocoda.agents.train import train_agents
from mocoda.augmentation.generation import augment
from mocoda.data.transitions import Transitions
from mocoda.dynamics.fit import fit_dynamics_runs
from mocoda.dynamics.model import Dynamics, DynamicsConfig
from mocoda.engine.errors import InputError
from mocoda.engine.files import write_json
from mocoda.engine.progress import Progress, silent
from mocoda.paper.experiment import heading
from mocoda.paper.table3 import EXPERT, begun, recording
from mocoda.paper.table3 import PRESETS as TABLES
from mocoda.paper.table3_figure import draw_scarcity
from mocoda.paper.truth import as_transitions, model_errors, played_by_expert
from mocoda.parents.recipes import fit_parents
from mocoda.tasks.hooksweep import HookSweep2

ARCHITECTURES = ("local", "full")
OUTPUTS = ("scarcity.json", "scarcity.png")
METRIC = "success in percent, mean over the last evaluations; errors in mm, mean over both boxes where they move"


@dataclass(frozen=True)
class Scarcity:
    """Settings of the figure."""

    preset: str
    seeds: int
    sizes: tuple[int, ...]
    dynamics: DynamicsConfig
    agent: Agent
    total: int
    updates: int
    evaluate_every: int
    episodes: int
    last: int
    components: int = 128
    acceptance: float = 0.3
    density_floor: float = 0.05
    variety: str = "varied"
    expert_episodes: int = 100

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise InputError(f"seeds must be at least 1, got {self.seeds}.")
        if not self.sizes or len(set(self.sizes)) != len(self.sizes) or min(self.sizes) < 1:
            raise InputError(f"sizes must be different numbers of rows, and at least one, got {list(self.sizes)}.")
        if self.total < max(self.sizes):
            raise InputError(f"total must be at least the most rows, got {self.total} and {max(self.sizes)}.")
        evaluations = self.updates // self.evaluate_every
        if not 1 <= self.last <= evaluations:
            raise InputError(f"last must be a number of evaluations, from 1 to {evaluations}, got {self.last}.")

    def config(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self) | {"agent": agent_settings(self.agent)}


PRESETS = {
    "paper": Scarcity(
        "paper",
        seeds=1,
        sizes=(10_000, 30_000, 100_000, 300_000, 1_000_000),
        dynamics=replace(TABLES["paper"].dynamics, epochs=300),
        agent=TABLES["paper"].agents[0],
        total=1_500_000,
        updates=40_000,
        evaluate_every=500,
        episodes=5,
        last=40,
    ),
    "quick": Scarcity(
        "quick",
        seeds=1,
        sizes=(5_000, 20_000),
        dynamics=TABLES["quick"].dynamics,
        agent=TABLES["quick"].agents[0],
        total=60_000,
        updates=500,
        evaluate_every=250,
        episodes=2,
        last=1,
        components=16,
        expert_episodes=20,
    ),
}


def scarcity(
    settings: Scarcity, *, device: str, folder: Path, workers: int | None = None, progress: Progress = silent
) -> dict[str, Any]:
    """Fits both architectures to every number of rows, trains the agent on what they make, and measures.

    folder  where the recording and finished agents are kept, and found again by a second call
    """
    started = time.monotonic()
    resumed = begun(folder)
    task, seeds = HookSweep2(), list(range(settings.seeds))
    recorded = recording(task, max(settings.sizes), settings.variety, folder, workers, progress).to(device)
    parts = {(size, seed): recorded[:size] for size in settings.sizes for seed in seeds}
    models = {name: _models(task, parts, name, settings, folder, progress) for name in ARCHITECTURES}
    policies = _agents(task, parts, models, settings, folder, workers, progress)
    tests = {
        mode: as_transitions(
            played_by_expert(mode, variety, settings.expert_episodes, seed=EXPERT, workers=workers)
        ).to(device)
        for mode, variety in (("one", settings.variety), ("two", "plain"))
    }
    points = [
        _point(size, architecture, models[architecture], policies, tests, settings)
        for size in settings.sizes
        for architecture in ARCHITECTURES
    ]
    return {
        **heading("scarcity", settings, METRIC, device, time.monotonic() - started, resumed=resumed),
        "points": points,
    }


def write(results: dict[str, Any], folder: Path) -> rich.table.Table:
    """Writes the points and the figure; the table to show."""
    write_json(folder / OUTPUTS[0], results)
    draw_scarcity(results["points"], folder / OUTPUTS[1])
    table = rich.table.Table(title="MoCoDA-P by the number of recorded rows")
    for column in ("recorded rows", "model", "success %", "error, place one (mm)", "error, place two (mm)"):
        table.add_column(column, justify="right")
    for point in results["points"]:
        numbers = [sum(point[name]) / len(point[name]) for name in ("success", "error_one", "error_two")]
        table.add_row(f"{point['rows']:,}", point["architecture"], *(f"{number:.1f}" for number in numbers))
    return table


Parts = dict[tuple[int, int], Transitions]  # by number of rows and seed
Models = dict[tuple[int, int], Dynamics]


def _models(
    task: HookSweep2, parts: Parts, architecture: str, settings: Scarcity, folder: Path, progress: Progress
) -> Models:
    """A model per number of rows and seed, all trained as one program."""
    files = {key: folder / f"dynamics-{architecture}-{key[0]}-{key[1]}.safetensors" for key in parts}
    if all(file.exists() for file in files.values()):
        device = next(iter(parts.values())).device
        return {key: Dynamics.load(file, task.graph).to(device) for key, file in files.items()}
    checkpoint = folder / f"checkpoint-{architecture}.safetensors"
    fitted = fit_dynamics_runs(
        list(parts.values()),
        task.graph,
        architecture,
        seeds=[seed for _, seed in parts],
        config=settings.dynamics,
        checkpoint=checkpoint,
        progress=progress,
    )
    for model, file in zip(fitted, files.values(), strict=True):
        model.save(file)
    checkpoint.unlink(missing_ok=True)
    return dict(zip(parts, fitted, strict=True))


def _agents(
    task: HookSweep2,
    parts: Parts,
    models: dict[str, Models],
    settings: Scarcity,
    folder: Path,
    workers: int | None,
    progress: Progress,
) -> Policies:
    saved = folder / "agents"
    if (saved / "agents.json").exists():
        return Policies.load(saved)
    datasets: dict[str, list[Transitions]] = {}
    for (size, seed), recorded in parts.items():
        parents = fit_parents(
            recorded,
            task.graph,
            "mocoda-p",
            seed=seed,
            task=task,
            components=settings.components,
            acceptance=settings.acceptance,
            density_floor=settings.density_floor,
        )
        for architecture in ARCHITECTURES:
            made = augment(
                recorded,
                parents,
                models[architecture][size, seed],
                rows=settings.total - size,
                task=task,
                seed=seed,
                provenance=False,
            )
            datasets.setdefault(_name(size, architecture), []).append(made)
        progress("data sets", len(datasets) // len(ARCHITECTURES), len(settings.sizes))
    checkpoint = folder / "checkpoint-agents.safetensors"
    policies = train_agents(
        datasets,
        settings.agent,
        seeds=range(settings.seeds),
        updates=settings.updates,
        task=task,
        evaluate_every=settings.evaluate_every,
        episodes=settings.episodes,
        checkpoint=checkpoint,
        workers=workers,
        progress=progress,
    )
    policies.save(saved)
    checkpoint.unlink(missing_ok=True)
    return policies


def _point(
    size: int,
    architecture: str,
    models: Models,
    policies: Policies,
    tests: dict[str, Transitions],
    settings: Scarcity,
) -> dict[str, Any]:
    mine = [i for i, (name, _) in enumerate(policies) if name == _name(size, architecture)]
    success = 100 * policies.curves["success"][mine, -settings.last :].double().mean(1)
    seeds = [models[size, seed] for seed in range(settings.seeds)]
    errors = model_errors({architecture: seeds}, tests)
    both = {
        mode: [cell["values"] for cell in errors if cell["data"] == mode and cell["factor"] != "gripper"]
        for mode in tests
    }
    return {
        "rows": size,
        "architecture": architecture,
        "success": success.tolist(),
        **{f"error_{mode}": [sum(pair) / len(pair) for pair in zip(*both[mode], strict=True)] for mode in tests},
    }


def _name(size: int, architecture: str) -> str:
    return f"{architecture}-{size}"
