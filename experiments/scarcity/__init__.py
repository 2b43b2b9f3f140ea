"""Table 3 by the number of recorded rows: success and model error, a figure that the paper lacks.

The same agent on MoCoDA-P data of the factored and of the unfactored model, fitted to the first rows of one recording.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import rich.table
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, NullLocator

from experiments.columns import PUBLISHED
from experiments.experiment import Experiment, Measured, Stopwatch, check_training, text_table
from experiments.stages import begun, fit_agents, fit_models, last_evaluations, load_agents, record
from experiments.table3 import EXPERT, Table3
from experiments.truth import as_transitions, model_errors, played_by_expert
from mocoda.agents import Agent
from mocoda.agents.policy import Policies, agent_settings
from mocoda.augmentation.generation import augment
from mocoda.data.transitions import Transitions
from mocoda.dynamics import Dynamics, DynamicsConfig
from mocoda.engine.errors import InputError
from mocoda.engine.figures import COLOURS, INK, bare, legend_below, save
from mocoda.engine.files import write_json
from mocoda.engine.progress import Progress, silent
from mocoda.parents import MocodaP, fit_parents
from mocoda.tasks.hooksweep import HookSweep2

ARCHITECTURES = {"local": "factored model", "full": "unfactored model"}
Parts = dict[tuple[int, int], Transitions]  # by number of rows and seed
Models = dict[tuple[int, int], Dynamics]


@dataclass(frozen=True)
class Scarcity(Experiment[Measured]):
    """Success and model error of Table 3 by the number of recorded rows."""

    name = "scarcity"
    metric = "success in percent, mean over the last evaluations; errors in mm, mean over both boxes where they move"
    outputs = ("scarcity.json", "scarcity.png")
    presets: ClassVar[dict[str, Scarcity]] = {}

    sizes: tuple[int, ...]
    dynamics: DynamicsConfig
    agent: Agent
    total: int
    updates: int
    evaluate_every: int
    episodes: int
    last: int
    density: str = "mixture"
    components: int = 128
    acceptance: float = 0.3
    density_floor: float = 0.05
    half: bool = False  # train agents with hidden layers in bfloat16
    variety: str = "varied"
    expert_episodes: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.sizes or len(set(self.sizes)) != len(self.sizes) or min(self.sizes) < 1:
            raise InputError(f"sizes must be different numbers of rows, and at least one, got {list(self.sizes)}.")
        check_training(self.total, max(self.sizes), self.last, self.updates // self.evaluate_every)

    def config(self) -> dict[str, Any]:
        return super().config() | {"agent": agent_settings(self.agent)}

    def run(self, *, device: str, folder: Path, progress: Progress = silent, workers: int | None = None) -> Measured:
        """Fits both architectures to every number of rows, trains the agent on what they make, and measures."""
        clock, resumed = Stopwatch(), begun(folder)
        task = HookSweep2()
        recorded = record(task, max(self.sizes), self.variety, folder, workers, progress).to(device)
        parts = {(size, seed): recorded[:size] for size in self.sizes for seed in range(self.seeds)}
        models: dict[str, Models] = {}
        for architecture in ARCHITECTURES:
            fitted = fit_models(
                list(parts.values()),
                task.graph,
                architecture,
                self.dynamics,
                folder=folder,
                progress=progress,
                seeds=[seed for _, seed in parts],
                labels=[f"{size}-{seed}" for size, seed in parts],
            )
            models[architecture] = dict(zip(parts, fitted, strict=True))
        policies = load_agents(folder / "agents") or fit_agents(
            self._datasets(task, parts, models, progress),
            self.agent,
            folder=folder,
            name="agents",
            seeds=range(self.seeds),
            updates=self.updates,
            task=task,
            evaluate_every=self.evaluate_every,
            episodes=self.episodes,
            half=self.half,
            workers=workers,
            progress=progress,
        )
        tests = {
            mode: as_transitions(
                played_by_expert(mode, variety, self.expert_episodes, seed=EXPERT, workers=workers)
            ).to(device)
            for mode, variety in (("one", self.variety), ("two", "plain"))
        }
        points = [
            self.point(size, architecture, models[architecture], policies, tests)
            for size in self.sizes
            for architecture in ARCHITECTURES
        ]
        return Measured({**self.heading(device, clock, resumed=resumed), "points": points})

    def write(self, measured: Measured, folder: Path) -> rich.table.Table:
        points = measured.results["points"]
        write_json(folder / self.outputs[0], measured.results)
        draw_scarcity(points, folder / self.outputs[1])
        rows = [
            [
                f"{point['rows']:,}",
                point["architecture"],
                *(f"{_mean(point[name]):.1f}" for name in ("success", "error_one", "error_two")),
            ]
            for point in points
        ]
        columns = ("recorded rows", "model", "success %", "error, place one (mm)", "error, place two (mm)")
        return text_table("MoCoDA-P by the number of recorded rows", columns, rows, left=0)

    def _datasets(
        self, task: HookSweep2, parts: Parts, models: dict[str, Models], progress: Progress
    ) -> dict[str, list[Transitions]]:
        datasets: dict[str, list[Transitions]] = {}
        for (size, seed), recorded in parts.items():
            recipe = MocodaP(
                components=self.components,
                acceptance=self.acceptance,
                density_floor=self.density_floor,
                **(PUBLISHED | {"density": self.density}),
            )
            parents = fit_parents(recorded, task.graph, recipe, seed=seed, task=task)
            for architecture in ARCHITECTURES:
                model, more = models[architecture][size, seed], self.total - size
                made = augment(recorded, parents, model, rows=more, task=task, seed=seed, provenance=False)
                datasets.setdefault(_data_name(size, architecture), []).append(made)
            progress("data sets", len(datasets) // len(ARCHITECTURES), len(self.sizes))
        return datasets

    def point(
        self, size: int, architecture: str, models: Models, policies: Policies, tests: dict[str, Transitions]
    ) -> dict[str, Any]:
        """What is measured of one number of rows and one architecture, a value a seed."""
        success = last_evaluations(policies, "success", _data_name(size, architecture), self.last)
        own = [models[size, seed] for seed in range(self.seeds)]
        boxes = [cell for cell in model_errors({architecture: own}, tests) if cell["factor"] != "gripper"]
        errors = {}
        for mode in tests:
            pairs = zip(*(cell["values"] for cell in boxes if cell["data"] == mode), strict=True)
            errors[f"error_{mode}"] = [_mean(pair) for pair in pairs]
        return {
            "rows": size,
            "architecture": architecture,
            "success": [100 * share for share in success],
            **errors,
        }


Scarcity.presets.update(
    paper=Scarcity(
        "paper",
        seeds=3,
        sizes=(10_000, 100_000, 1_000_000),
        dynamics=replace(Table3.presets["paper"].dynamics, epochs=200),
        agent=Table3.presets["paper"].agents[0],
        total=1_500_000,
        updates=25_000,
        evaluate_every=500,
        episodes=5,
        last=20,
        half=True,
    ),
    quick=Scarcity(
        "quick",
        seeds=1,
        sizes=(5_000, 20_000),
        dynamics=Table3.presets["quick"].dynamics,
        agent=Table3.presets["quick"].agents[0],
        total=60_000,
        updates=500,
        evaluate_every=250,
        episodes=2,
        last=1,
        components=16,
        expert_episodes=20,
    ),
)


def _data_name(size: int, architecture: str) -> str:
    return f"{architecture}-{size}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# The figure


def draw_scarcity(points: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draws success and error of the model by the number of recorded rows and by architecture, a dot a seed."""
    figure = Figure(figsize=(8.5, 3.9), layout="constrained")
    success, error = figure.subplots(1, 2)
    for architecture, label in ARCHITECTURES.items():
        own = [point for point in points if point["architecture"] == architecture]
        colour = COLOURS[architecture]
        _draw_by_rows(success, own, "success", color=colour, label=label)
        _draw_by_rows(error, own, "error_two", color=colour)
        _draw_by_rows(error, own, "error_one", color=colour, ls="--")
    for ls, label in (("-", "error on two swept boxes"), ("--", "error on one swept box, held out")):
        error.plot([], [], color=INK, ls=ls, lw=1.6, label=label)
    success.set(ylim=(0, 100), ylabel="success (%)")
    error.set(ylim=(0, None), ylabel="error of the model (mm)")
    for axes in (success, error):
        axes.set(xscale="log", xlabel="recorded rows")
        axes.set_xticks(sorted({point["rows"] for point in points}))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.xaxis.set_minor_locator(NullLocator())
        bare(axes)
    legend_below(figure)
    save(figure, path)


def _draw_by_rows(axes: Axes, points: Sequence[Mapping[str, Any]], measure: str, **style: Any) -> None:
    points = sorted(points, key=lambda point: point["rows"])
    axes.plot([point["rows"] for point in points], [_mean(point[measure]) for point in points], lw=1.6, **style)
    for point in points:
        axes.plot([point["rows"]] * len(point[measure]), point[measure], "o", ms=3.5, mew=0, color=style["color"])
