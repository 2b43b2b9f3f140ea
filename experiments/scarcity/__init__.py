"""Table 3 by the number of recorded rows: success and model error, a figure that the paper lacks.

The same agent on MoCoDA-P data of the factored and of the unfactored model, fitted to the first rows of one recording.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, NullLocator

from experiments.columns import PUBLISHED
from experiments.experiment import Experiment, Run, average, check_training, markdown_table, plus_minus, spread
from experiments.figures import draw_line
from experiments.stages import fit_agents, fit_models, last_evaluations, load_agents, record
from experiments.sweeping_truth import as_transitions, model_errors, played_by_expert
from experiments.table3 import EXPERT, Table3
from mocoda.agents import Agent
from mocoda.agents.policy import Policies, agent_settings
from mocoda.augmentation.generation import augment
from mocoda.data.transitions import Transitions
from mocoda.dynamics import Dynamics, DynamicsConfig
from mocoda.engine.errors import InputError
from mocoda.engine.figure_style import COLOURS, INK, bare, legend_below, save
from mocoda.parents import MocodaP, fit_parents
from mocoda.tasks.hooksweep import HookSweep2

ARCHITECTURES = {"local": "factored model", "full": "unfactored model"}
Parts = dict[tuple[int, int], Transitions]  # by number of rows and seed
Models = dict[tuple[int, int], Dynamics]


@dataclass(frozen=True)
class Scarcity(Experiment):
    """Success and model error of Table 3 by the number of recorded rows."""

    name = "scarcity"
    metric = "success in percent, mean over the last evaluations; errors in mm, mean over both boxes where they move"
    outputs = ("scarcity.json", "scarcity.png")

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

    def measure(self, run: Run) -> dict[str, Any]:
        """Fits both architectures to every number of rows, trains the agent on what they make, and measures."""
        task = HookSweep2()
        recorded = record(run, task, max(self.sizes), self.variety)
        parts = {(size, seed): recorded[:size] for size in self.sizes for seed in range(self.seeds)}
        models: dict[str, Models] = {}
        for architecture in ARCHITECTURES:
            fitted = fit_models(
                run,
                list(parts.values()),
                task.graph,
                architecture,
                self.dynamics,
                seeds=[seed for _, seed in parts],
                labels=[f"{size}-{seed}" for size, seed in parts],
            )
            models[architecture] = dict(zip(parts, fitted, strict=True))
        policies = load_agents(run) or fit_agents(
            run,
            self._datasets(run, task, parts, models),
            self.agent,
            updates=self.updates,
            task=task,
            evaluate_every=self.evaluate_every,
            episodes=self.episodes,
            half=self.half,
        )
        tests = {
            mode: as_transitions(
                played_by_expert(mode, variety, self.expert_episodes, seed=EXPERT, workers=run.workers)
            ).to(run.device)
            for mode, variety in (("one", self.variety), ("two", "plain"))
        }
        points = [
            self.point(size, architecture, models[architecture], policies, tests)
            for size in self.sizes
            for architecture in ARCHITECTURES
        ]
        return {"points": points}

    def _datasets(
        self, run: Run, task: HookSweep2, parts: Parts, models: dict[str, Models]
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
            run.progress("data sets", len(datasets) // len(ARCHITECTURES), len(self.sizes))
        return datasets

    def point(
        self, size: int, architecture: str, models: Models, policies: Policies, tests: dict[str, Transitions]
    ) -> dict[str, Any]:
        """What is measured of one number of rows and one architecture, a value per seed."""
        own = [models[size, seed] for seed in range(self.seeds)]
        boxes = [cell for cell in model_errors({architecture: own}, tests) if cell["factor"] != "gripper"]
        errors = {}
        for mode in tests:
            pairs = zip(*(cell["values"] for cell in boxes if cell["data"] == mode), strict=True)
            errors[f"error_{mode}"] = [average(pair) for pair in pairs]
        success = last_evaluations(policies, "success", _data_name(size, architecture), self.last, scale=100)
        return {"rows": size, "architecture": architecture, "success": success, **errors}

    def draw(self, results: Mapping[str, Any], folder: Path) -> None:
        """Draws success and error of the model by the number of recorded rows and by architecture, a dot per seed."""
        points = results["points"]
        figure = Figure(figsize=(8.5, 3.9), layout="constrained")
        success, error = figure.subplots(1, 2)
        for architecture, label in ARCHITECTURES.items():
            own = sorted((p for p in points if p["architecture"] == architecture), key=lambda point: point["rows"])
            sizes, colour = [point["rows"] for point in own], COLOURS[architecture]
            draw_line(success, sizes, [point["success"] for point in own], color=colour, label=label)
            draw_line(error, sizes, [point["error_two"] for point in own], color=colour)
            draw_line(error, sizes, [point["error_one"] for point in own], color=colour, ls="--")
        for ls, label in (("-", "error on two swept boxes"), ("--", "error on one swept box, held out")):
            error.plot([], [], color=INK, ls=ls, lw=1.8, label=label)
        success.set(ylim=(0, 100), ylabel="success (%)")
        error.set(ylim=(0, None), ylabel="error of the model (mm)")
        for axes in (success, error):
            axes.set(xscale="log", xlabel="recorded rows")
            axes.set_xticks(sorted({point["rows"] for point in points}))
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
            axes.xaxis.set_minor_locator(NullLocator())
            bare(axes)
        legend_below(figure)
        save(figure, folder / self.outputs[1])

    @staticmethod
    def table(results: Mapping[str, Any]) -> str:
        rows = [
            [f"{point['rows']:,}", ARCHITECTURES[point["architecture"]]]
            + [plus_minus(spread(point[name]), 1) for name in ("success", "error_one", "error_two")]
            for point in results["points"]
        ]
        columns = ("recorded rows", "model", "success, %", "error, one box swept, mm", "error, two boxes swept, mm")
        return markdown_table(columns, rows)

    @staticmethod
    def answer(results: Mapping[str, Any]) -> str:
        points = results["points"]
        success = {(point["rows"], point["architecture"]): average(point["success"]) for point in points}
        least, most = min(success)[0], max(success)[0]
        return (
            f"{least:,} recorded rows and the graph are worth more than {most:,} rows without it: "
            f"{success[least, 'local']:.0f}% of the episodes succeed, against {success[most, 'full']:.0f}%."
        )


Scarcity.presets = {
    "paper": Scarcity(
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
    "quick": Scarcity(
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
}


def _data_name(size: int, architecture: str) -> str:
    return f"{architecture}-{size}"
