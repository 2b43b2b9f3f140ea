"""Table 3: agents that sweep two boxes, trained on data in which one is swept at a time.

Columns are called as in `experiments.columns`. What the paper reports stands beside what we measure, and with them the
success of the scripted expert, which no agent learns from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from experiments.columns import Column, column_data, column_title
from experiments.diffusion import DiffusionConfig, fit_diffusion
from experiments.experiment import (
    Experiment,
    Run,
    by_place,
    cell,
    check_names,
    check_training,
    markdown_table,
    plus_minus,
    read_json,
)
from experiments.stages import (
    VISITS,
    Merit,
    agents_config,
    fit_models,
    last_evaluations,
    learning_curve,
    noted_merits,
    paper_agent,
    paper_dynamics,
    record,
    train_columns,
)
from experiments.sweeping_truth import (
    CONTACT,
    as_transitions,
    confirmation,
    mask_mistakes,
    model_errors,
    played_by_expert,
    successes,
)
from experiments.table3.figure import draw_curves, draw_success, draw_tables
from experiments.tables import compared, data_table, reference
from mocoda.agents import Agent
from mocoda.agents.policy import Policies
from mocoda.data.transitions import Transitions
from mocoda.dynamics import Dynamics, DynamicsConfig
from mocoda.engine.errors import InputError
from mocoda.engine.files import write_json
from mocoda.engine.randomness import Stream
from mocoda.tasks.hooksweep import HookSweep2
from mocoda.tasks.hooksweep_env import HORIZON

# Table 3 of the paper, (mean, standard deviation) over three seeds.
PAPER: dict[str, dict[str, tuple[float, float]]] = {
    "td3-bc": {
        "emp": (0.7, 0.9),
        "mocoda": (38.7, 7.5),
        "mocoda-p": (84.0, 2.8),
        "mocoda-full": (29.3, 3.8),
        "mocoda-p-full": (26.0, 1.6),
    },
    "bcq": {
        "emp": (2.0, 1.6),
        "mocoda": (20.7, 4.1),
        "mocoda-p": (64.7, 4.1),
        "mocoda-full": (14.0, 3.3),
        "mocoda-p-full": (15.3, 4.1),
    },
}
COLUMNS = (
    *("emp", "coda", "dyna", "rand", "mocoda", "mocoda-p", "default", "mocoda-full", "mocoda-p-full"),
    *("diffusion", "noise", "mopo", "target"),
)
EXPERT, TARGET = 9, 8  # seeds of the expert that is judged, and of recordings of the target task
VISITING = 40  # episodes of the target task that say what it visits
TOGETHER, DOTS = 0.15, 150  # metres between boxes that count as swept together, and such pairs that the figure shows


@dataclass(frozen=True)
class Table3(Experiment):
    """How often agents sweep two boxes home, by the data they were trained on (Table 3 and Figure 4)."""

    name = "table3"
    metric = (
        "episodes in which both boxes end where they should, in percent: mean over the last evaluations while training"
    )
    outputs = ("table3.json", "table3.png", "table3-curves.png", "figure4.png")

    dynamics: DynamicsConfig
    agents: Mapping[str, Agent]
    updates: Mapping[str, int]  # by agent
    diffusion: DiffusionConfig = field(default_factory=DiffusionConfig)
    columns: tuple[str, ...] = COLUMNS
    variety: str = "varied"
    first: int = 0  # seed, and that of the first recording
    recordings: int = 1  # which the seeds use in turn
    rows: int = 1_000_000  # recorded
    total: int = 5_000_000  # in every data set, the recorded ones among them
    evaluations: int = 100  # while an agent trains
    last: int = 50  # of them count
    episodes: int = 5  # of each
    expert_episodes: int = 200
    confirmed_rows: int = 2_000
    components: int = 128
    acceptance: float = 0.3
    density_floor: float = 0.05  # Appendix C.2
    half: bool = False  # train agents with hidden layers in bfloat16

    def __post_init__(self) -> None:
        super().__post_init__()
        check_training(self.total, self.rows, self.last, self.evaluations)
        for name in self.agents:
            if self.updates.get(name, 0) < self.evaluations:
                raise InputError(
                    f"updates must give {name} at least one for each of the {self.evaluations} evaluations, got "
                    f"{self.updates.get(name)}."
                )
        check_names("column", self.columns, COLUMNS)

    def config(self) -> dict[str, Any]:
        return super().config() | {"agents": agents_config(self.agents)}

    def measure(self, run: Run) -> dict[str, Any]:
        """Records, fits the models that are needed, and trains every agent on every data set, all seeds at once."""
        task, seeds = HookSweep2(), range(self.first, self.first + self.seeds)
        recorded = self.recorded(run)
        (run.folder / "cells").mkdir(exist_ok=True)
        run.lap("recording")

        @cache
        def models(architecture: str) -> list[Dynamics]:
            return fit_models(run, recorded, task.graph, architecture, self.dynamics, seeds=seeds)

        def options(name: str) -> dict[str, Any]:
            updates = self.updates[name]
            every = {"evaluate_every": updates // self.evaluations, "episodes": self.episodes, "half": self.half}
            return {"task": task, "updates": updates, **every}

        data = self.datasets(run, recorded, models)
        cells = train_columns(run, self.columns, self.agents, seeds, data, options, self.cell)
        expert, models_truth = self._experts(run, task, models)
        cells += [cell("expert", column, [expert["two plain"]["both"]]) for column in self.columns]
        described = [read_json(file) for file in self._descriptions(run.folder).values() if file.exists()]
        return {
            "seconds": round(sum(one.get("seconds", 0) for one in cells), 1),
            "recorded": [dict(one.source) for one in recorded[: self.recordings]],
            "cells": cells,
            "expert": expert,
            "truth": models_truth | {"confirmed_by_the_simulator": [one["truth"] for one in described]},
            "places": {one["truth"]["data"]: one["places"] for one in described},
            "merit": noted_merits(run, self.columns),
        }

    def recorded(self, run: Run) -> list[Transitions]:
        """The recordings, which seeds use in turn: one per seed."""
        numbers = range(self.first, self.first + self.recordings)
        kept = [record(run, HookSweep2(), self.rows, self.variety, name=f"recorded-{n}", seed=n) for n in numbers]
        return [kept[number % self.recordings] for number in range(self.seeds)]

    def datasets(
        self, run: Run, recorded: list[Transitions], models: Callable[[str], list[Dynamics]]
    ) -> Callable[[str], list[Transitions]]:
        """What makes the data sets of a column, one per seed, and describes the first."""
        task, seeds = HookSweep2(), range(self.first, self.first + self.seeds)
        visits = played_by_expert("two", self.variety, VISITING, seed=VISITS, workers=run.workers, noise=None)
        merit = Merit(recorded[0], task, as_transitions(visits), run.workers)

        def data(column: str) -> list[Transitions]:
            own, fitted = recorded, [None] * self.seeds
            if column == "diffusion":
                fitted = fit_diffusion(recorded, seeds, self.diffusion, run.progress)  # type: ignore[assignment]
            if column == "target":
                own = [self.of_the_target_task(run.workers).to(run.device)] * self.seeds
            drawn = zip(own, models(Column.of(column).architecture), seeds, fitted, strict=True)
            made = [self.dataset(task, column, *each) for each in drawn]
            self._describe(run, task, column, made[0], len(own[0]))
            merit.note(run, column, made[0][len(own[0]) :])
            return made

        return data

    def dataset(
        self, task: HookSweep2, column: str, recorded: Transitions, model: Dynamics, seed: int, parents: Any = None
    ) -> Transitions:
        """`total` rows, the recorded ones first; "emp" repeats them, each with another goal."""
        return column_data(
            "emp" if column == "target" else column,
            recorded,
            task,
            model,
            rows=self.total - len(recorded),
            seed=seed,
            graph=CONTACT if column == "coda" else None,
            parents=parents,
            components=self.components,
            acceptance=self.acceptance,
            density_floor=self.density_floor,
        )

    def of_the_target_task(self, workers: int | None) -> Transitions:
        """The scripted expert's episodes of the target task, as many rows as are recorded of the other."""
        episodes = -(-self.rows // HORIZON)
        return as_transitions(
            played_by_expert("two", self.variety, episodes, seed=TARGET, workers=workers, noise=None)
        )[: self.rows]

    def cell(self, name: str, column: str, policies: Policies) -> dict[str, Any]:
        """What the table says of one agent on one column."""
        success = last_evaluations(policies, "success", column, self.last, scale=100)
        paper = PAPER.get(name, {}).get(column)
        return cell(name, column, success, paper) | {"curve": learning_curve(policies, "success", scale=100)}

    def draw(self, results: Mapping[str, Any], folder: Path) -> None:
        """Draws Table 3 as bars, learning curves, and Figure 4."""
        _, bars, curves, tables = (folder / name for name in self.outputs)
        draw_success(results["cells"], bars)
        draw_curves(results["cells"], curves)
        draw_tables(results["places"], HookSweep2().goals(2_000, seed=0), tables)

    @staticmethod
    def table(results: Mapping[str, Any]) -> str:
        return data_table(results, 1)

    @staticmethod
    def answer(results: Mapping[str, Any]) -> str:
        success, ours = {place: one["mean"] for place, one in by_place(results).items()}, reference(results)
        return (
            f"Yes: TD3-BC sweeps both boxes in {success['td3-bc', 'emp']:.0f}% of the episodes when trained on the "
            f"recorded rows, in {success['td3-bc', ours]:.0f}% with MoCoDA's rows, and in "
            f"{success['td3-bc', 'mocoda-full']:.0f}% with rows of an unfactored model; the scripted expert "
            f"succeeds in {success['expert', 'emp']:.0f}%."
        )

    @classmethod
    def blocks(cls, folder: Path) -> dict[str, str]:
        results, plain = (read_json(folder / name) for name in ("table3.json", "plain.json"))
        truth = results["truth"]
        confirmed = [
            ["Recorded" if one["data"] in ("emp", "recorded") else column_title(one["data"])]
            + ["" if one[key] is None else f"{one[key]:.0f}%" for key in ("confirmed", "confirmed_moving")]
            for one in truth["confirmed_by_the_simulator"]
        ]
        errors = {(one["data"], one["architecture"], one["factor"]): one for one in truth["model_errors_mm"]}
        rows = [
            [f"{data.replace('place', 'sweep')} box{'es' if data.endswith('two') else ''}", factor]
            + [f"{errors[data, architecture, factor]['mean']:.1f}" for architecture in ("local", "full")]
            for data in ("place one", "place two")
            for factor in ("gripper", "box1", "box2")
        ]
        edges = [
            [one["edge"], *(f"{one[key]:,}" for key in ("touched", "edges", "false_positives", "false_negatives"))]
            for one in truth["mask"]["place two"]["edges"]
        ]
        success = by_place(plain)
        plain_columns = ("emp", "mocoda", "mocoda-p")
        return super().blocks(folder) | {
            "compared": compared(results, 1, lower_is_better=False),
            "confirmed": markdown_table(["rows", "confirmed", "of those in which a box moves"], confirmed),
            "earlier": cls.table(read_json(folder / "earlier.json")),
            "errors": markdown_table(["episodes", "what moves", "factored model", "unfactored model"], rows),
            "mask": markdown_table(["edge", "rows that touch", "rows with the edge", "too many", "missed"], edges),
            "plain": markdown_table(
                ["", *map(column_title, plain_columns)],
                [["TD3-BC", *(plus_minus(success["td3-bc", column], 1) for column in plain_columns)]],
            ),
        }

    def _descriptions(self, folder: Path) -> dict[str, Path]:
        return {column: folder / "cells" / f"rows-{column}.json" for column in self.columns}

    def _describe(self, run: Run, task: HookSweep2, column: str, made: Transitions, recorded: int) -> None:
        """Notes how many of a data set's generated rows the simulator confirms, and where its boxes are together."""
        file = self._descriptions(run.folder)[column]
        if file.exists():
            return
        stream = Stream(0, "described", device=made.device)
        chosen = made[recorded + stream.permutation(len(made) - recorded)[: self.confirmed_rows]]
        one, other = task.features(chosen.state).split(2, 1)
        together = (one - other).norm(dim=1) < TOGETHER
        middles = ((one + other) / 2)[together][:DOTS]
        places = {
            "together": float(together.double().mean()),
            "middles": [[round(number, 3) for number in place] for place in middles.tolist()],
        }
        write_json(file, {"truth": confirmation(column, chosen, run.workers), "places": places})

    def _experts(self, run: Run, task: HookSweep2, models: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """How well the expert does, and how true models and masks are on its episodes, which nothing is trained on."""
        file = run.folder / "cells" / "truth.json"
        if not file.exists():
            kinds = {"one plain": ("one", "plain"), "one varied": ("one", "varied"), "two plain": ("two", "plain")}
            played = {
                name: played_by_expert(*kind, self.expert_episodes, seed=EXPERT, workers=run.workers)
                for name, kind in kinds.items()
            }
            held_out = {"place one": played["one varied"], "place two": played["two plain"]}
            tests = {name: as_transitions(episodes).to(run.device) for name, episodes in held_out.items()}
            architectures = dict.fromkeys(Column.of(column).architecture for column in self.columns)
            truth = {
                "model_errors_mm": model_errors({name: models(name) for name in architectures}, tests),
                "mask": {name: mask_mistakes(task.graph, episodes) for name, episodes in held_out.items()},
                "contact_mask": {name: mask_mistakes(CONTACT, episodes) for name, episodes in held_out.items()},
            }
            ends = {name: successes(episodes) for name, episodes in played.items()}
            write_json(file, {"expert": ends, "truth": truth})
            run.lap("truth")
        found = read_json(file)
        return found["expert"], found["truth"]


def _sweeper(name: str, **settings: Any) -> Agent:
    return paper_agent(name, hidden=(512, 512, 512), decay=True, standardise=True, **settings)


def _small(name: str, **settings: Any) -> Agent:
    return paper_agent(name, hidden=(128, 128), batch=256, polyak=0.04, decay=True, standardise=True, **settings)


Table3.presets = {
    "paper": Table3(
        "paper",
        seeds=5,
        first=10,
        recordings=2,
        rows=500_000,
        total=3_000_000,
        dynamics=paper_dynamics(
            hidden=(512, 512), epochs=400, epoch_rows=40_000, learning_rate=5e-4, validation=5_000, window=50, tf32=True
        ),
        agents={
            "td3-bc": _sweeper("td3-bc", batch=2_000, imitation=4.0),
            "bcq": _sweeper("bcq", sampler_updates=5_000),
            "cql": _sweeper("cql"),
            "sac": _sweeper("sac"),
        },
        updates={"td3-bc": 70_000, "bcq": 25_000, "cql": 20_000, "sac": 20_000},
    ),
    "quick": Table3(
        "quick",
        seeds=2,
        dynamics=paper_dynamics(
            members=2, hidden=(128, 128), features=64, epochs=40, epoch_rows=20_000, batch=256, validation=1_000
        ),
        agents={"td3-bc": _small("td3-bc", imitation=0.5)},
        columns=("emp", "mocoda-p", "mocoda-p-full"),
        rows=60_000,
        total=200_000,
        updates={"td3-bc": 8_000},
        evaluations=8,
        last=2,
        expert_episodes=40,
        confirmed_rows=200,
        components=32,
    ),
}
