"""How true the rows of each recipe are, by the simulator: a figure that the paper lacks.

Every recipe draws as many rows from one recording, the same model says what follows, and the simulator is asked. What
support, disagreement and two-sample odds know of that beforehand is measured too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import rich.table
import torch
from torch import Tensor

from experiments.audit.figure import draw_audits
from experiments.columns import LOCAL, MATCHED, Column, column_recipe
from experiments.experiment import Experiment, Measured, Stopwatch, check_columns, text_table
from experiments.stages import begun, fit_models, record
from experiments.table3 import Table3
from mocoda.analysis.replay import replay
from mocoda.analysis.row_audit import judge, usual_tolerance
from mocoda.augmentation.provenance import RECORDED, Provenance, recipe_number
from mocoda.augmentation.support import fit_support, step_scale
from mocoda.data.transitions import Transitions, concatenate
from mocoda.dynamics import DynamicsConfig
from mocoda.engine.errors import InputError
from mocoda.engine.files import write_json
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream
from mocoda.parents import BUILT_IN, Recipe, fit_parents
from mocoda.parents.recipe import Draw, draw_from
from mocoda.tasks import make_task

COLUMNS = (*BUILT_IN, *(name + end for name in BUILT_IN if name.startswith("mocoda") for end in (MATCHED, LOCAL)))
REPLAYED = "replayed.safetensors"


@dataclass(frozen=True)
class TaskAudit(Experiment[Measured]):
    """How true the rows of each recipe are, by the simulator of one task."""

    metric = "share of rows that the simulator confirms, with its 95% confidence interval; AUROC of what predicts it"
    task: ClassVar[str]
    variety: ClassVar[str | None] = None  # of the recording, where it is of a robot

    columns: tuple[str, ...]
    dynamics: DynamicsConfig
    rows: int  # recorded
    audited: int  # rows of every column
    components: int = 32
    acceptance: float = 0.1  # of mocoda-u and mocoda-p, as the next
    density_floor: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seeds != 1:
            raise InputError(f"an audit has one seed, for its intervals are over rows, got {self.seeds} seeds.")
        self.check_positive("rows", "audited")
        check_columns(self.columns, COLUMNS)

    def run(self, *, device: str, folder: Path, progress: Progress = silent, workers: int | None = None) -> Measured:
        """Records, fits one model, draws rows of every column, and replays them all."""
        clock, resumed = Stopwatch(), begun(folder)
        task: Any = make_task(self.task)
        if self.variety is not None:
            recorded = record(task, self.rows, self.variety, folder, workers, progress).to(device)
        else:
            recorded, workers = task.collect(self.rows, seed=0).to(device), 0
        clock.lap("recording")
        (model,) = fit_models([recorded], task.graph, "local", self.dynamics, folder=folder, progress=progress)
        clock.lap("dynamics")
        notes = Provenance(task.graph, fit_support(recorded, task.graph, seed=0), model, step_scale(recorded))
        chosen = Stream(0, "audited", device="cpu").permutation(len(recorded))[: self.audited].sort().values
        sample = recorded[chosen.to(device)]
        own = Draw(sample.rows, chosen.to(device)[:, None].expand(sample.rows.shape))
        tables = [_table(recorded, sample.rows, sample.next_state, notes.of(own, RECORDED, predicted=False))]
        for number, column in enumerate(self.columns):
            parents = fit_parents(recorded, task.graph, self._recipe(column), seed=0, task=task, model=model)
            drawn, recipe = draw_from(parents, self.audited, seed=0), recipe_number(Column.of(column).recipe)
            predicted = drawn.next_state is None
            next_state = model.sample(drawn.rows, seed=0) if drawn.next_state is None else drawn.next_state
            tables.append(_table(recorded, drawn.rows, next_state, notes.of(drawn, recipe, predicted)))
            progress("draw", number + 1, len(self.columns))
        clock.lap("rows")
        whole = concatenate(tables)
        truth = replay(
            whole.rows,
            task.step,
            whole.state.shape[1],
            workers=workers,
            checkpoint=folder / REPLAYED,
            progress=progress,
        ).split([len(table) for table in tables])
        clock.lap("simulator")
        compared = getattr(task, "compared", None)
        tolerance = getattr(task, "tolerance", None) or usual_tolerance(recorded, task.graph, compared)
        audits = {
            column: judge(
                concatenate([tables[0], table]),
                torch.cat([truth[0], true]),
                task.graph,
                tolerance=tolerance,
                columns=compared,
            ).to_json()
            for column, table, true in zip(self.columns, tables[1:], truth[1:], strict=True)
        }
        clock.lap("audit")
        first = next(iter(audits.values()))
        found = {"tolerance": first["tolerance"], "compared": first["columns"]}
        found |= {"recorded": first["by"]["recipe"]["recorded"], "audits": audits}
        return Measured({**self.heading(device, clock, resumed=resumed), "task": self.task, **found})

    def _recipe(self, column: str) -> Recipe:
        settings: dict[str, Any] = {"components": self.components, "acceptance": self.acceptance}
        settings |= {"density_floor": self.density_floor}
        return column_recipe(column, **settings)

    def write(self, measured: Measured, folder: Path) -> rich.table.Table:
        results = measured.results
        write_json(folder / self.outputs[0], results)
        draw_audits(results, folder / self.outputs[1])
        predictors = list(dict.fromkeys(name for one in results["audits"].values() for name in one["predictors"]))
        rows = [["recorded", _percent(results["recorded"]), *["-"] * len(predictors)]]
        for column, one in results["audits"].items():
            cell = {"share": one["confirmed"], "interval": one["interval"]}
            rows.append([column, _percent(cell), *(_area(one["predictors"].get(name)) for name in predictors)])
        heads = ("rows", "confirmed (95% CI)", *(f"AUROC, {name}" for name in predictors))
        return text_table(f"How many rows are true: {self.task}", heads, rows)


def _table(like: Transitions, rows: Tensor, next_state: Tensor, notes: Mapping[str, Tensor]) -> Transitions:
    state, action = rows.split([like.state.shape[1], like.action.shape[1]], 1)
    return Transitions(state, action, next_state, columns=like.columns, provenance=notes)


def _percent(cell: Mapping[str, Any]) -> str:
    low, high = cell["interval"]
    return f"{100 * cell['share']:.1f}% ({100 * low:.1f} to {100 * high:.1f})"


def _area(cell: Mapping[str, Any] | None) -> str:
    return "-" if cell is None or cell["auroc"] is None else f"{cell['auroc']:.3f}"


# What `mocoda augment --quick` trains.
SMALL = DynamicsConfig(members=3, hidden=(64, 64), features=64, epochs=10, batch=256, learning_rate=3e-3)
MOCODA, EVEN = (tuple(name + end for end in ("", MATCHED, LOCAL)) for name in ("mocoda", "mocoda-u"))
ALL = ("coda", "dyna", "rand", *MOCODA, *EVEN)
FEW = ("coda", "rand", "mocoda", "mocoda-matched")


class NavigationAudit(TaskAudit):
    """How true the rows of each recipe are in 2D Navigation."""

    name = "audit-navigation"
    task = "navigation"
    outputs = ("audit-navigation.json", "audit-navigation.png")
    presets: ClassVar[dict[str, TaskAudit]] = {}


class ObjectsAudit(TaskAudit):
    """How true the rows of each recipe are with objects that an agent carries."""

    name = "audit-objects"
    task = "objects"
    outputs = ("audit-objects.json", "audit-objects.png")
    presets: ClassVar[dict[str, TaskAudit]] = {}


class HookSweepAudit(TaskAudit):
    """How true the rows of each recipe are in HookSweep2, by its simulator."""

    name = "audit-hooksweep2"
    task = "hooksweep2"
    variety = "varied"
    outputs = ("audit-hooksweep2.json", "audit-hooksweep2.png")
    presets: ClassVar[dict[str, TaskAudit]] = {}


class CubesAudit(TaskAudit):
    """How true the rows of each recipe are with OGBench's two cubes, by its simulator."""

    name = "audit-cubes"
    task = "cube-double"
    variety = "play"
    outputs = ("audit-cubes.json", "audit-cubes.png")
    presets: ClassVar[dict[str, TaskAudit]] = {}


NavigationAudit.presets.update(
    paper=NavigationAudit("paper", 1, ALL, SMALL, rows=40_000, audited=5_000),
    quick=NavigationAudit("quick", 1, FEW, SMALL, rows=4_000, audited=1_000),
)
ObjectsAudit.presets.update(
    paper=ObjectsAudit("paper", 1, ALL, SMALL, rows=40_000, audited=5_000),
    quick=ObjectsAudit("quick", 1, FEW, SMALL, rows=4_000, audited=1_000),
)
SWEPT = ("dyna", "rand", "mocoda", "mocoda-matched", "mocoda-p", "mocoda-p-matched")
HookSweepAudit.presets.update(
    paper=HookSweepAudit(
        "paper",
        1,
        SWEPT,
        Table3.presets["paper"].dynamics,
        rows=1_000_000,
        audited=5_000,
        components=128,
        acceptance=0.3,
        density_floor=0.05,
    ),
    quick=HookSweepAudit(
        "quick", 1, ("mocoda", "mocoda-matched"), Table3.presets["quick"].dynamics, rows=20_000, audited=500
    ),
)
CUBES = ("coda", "mocoda", "mocoda-matched", "mocoda-local")
CubesAudit.presets.update(
    paper=CubesAudit(
        "paper",
        1,
        CUBES,
        DynamicsConfig(hidden=(256, 256), epochs=150, epoch_rows=20_000, learning_rate=5e-4, validation=0.1, window=10),
        rows=48_000,
        audited=2_000,
    ),
    quick=CubesAudit("quick", 1, ("coda", "mocoda-local"), SMALL, rows=4_000, audited=200),
)
