"""Which measure of generated rows predicts how well agents do that are trained on them?

Rows of every column of Tables 2 and 3 are made from small recordings, and rows of every dose from the dose study's
recordings, and their merit is measured. How well agents do is in the tables and in the dose study.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import rankdata

from experiments.columns import column_title
from experiments.diffusion import DiffusionConfig
from experiments.dose import TITLES as DOSE_TITLES
from experiments.dose import Dose, recordings
from experiments.experiment import HERE, Cells, Experiment, Run, by_place, markdown_table, read_json
from experiments.stages import JUDGED_ROWS, MERITS, VISITS, Merit, fit_models, noted_merits
from experiments.sweeping_truth import as_transitions, played_by_expert
from experiments.table2 import Table2, walked_to_the_goal
from experiments.table3 import VISITING, Table3
from experiments.tables import BOUNDS, agent_title
from mocoda.data.transitions import Transitions
from mocoda.dynamics import Dynamics
from mocoda.engine.files import write_json
from mocoda.engine.randomness import Stream
from mocoda.tasks import make_task
from mocoda.tasks.hooksweep import HookSweep2

TABLES = {"table2": "2D Navigation", "table3": "HookSweep2"}
CEILING = "target"  # a column that is no way to make rows
RESAMPLES = 10_000
DOSE_ROWS = 50_000  # of a dose, at most, that are judged
MIN_POINTS = 5  # data sets that an agent was trained on, below which ranks say nothing


@dataclass(frozen=True)
class FigureOfMerit(Experiment):
    """How well the shares of rows that are confirmed, new and both, and coverage, predict agents."""

    name = "merit"
    metric = "shares of generated rows; Spearman's rank correlation with success, over columns"
    outputs = ("merit.json",)

    table2: Table2
    table3: Table3
    dose: Dose

    def measure(self, run: Run) -> dict[str, Any]:
        """Makes the rows of every column and dose and measures their merit, each table in a folder of its name."""
        found = {}
        for name in TABLES:
            own = replace(run, folder=run.folder / name)
            own.folder.mkdir(exist_ok=True)
            table: Table2 | Table3 = getattr(self, name)
            data = datasets_of(own, table)
            for number, column in enumerate(table.columns):
                if not noted_merits(own, [column]):
                    data(column)
                run.progress(f"{name}, columns", number + 1, len(table.columns))
            found[name] = noted_merits(own, table.columns)
            run.lap(name)
        doses = [one for name in self.dose.tasks for one in self.merits_of_doses(run, name)]
        run.lap("doses")
        return {"merit": found, "doses": doses}

    def merits_of_doses(self, run: Run, name: str) -> Cells:
        """The merit of the rows of each dose, by number of recorded rows and density, for the study's first seed."""
        task: Any = make_task(name)
        own = replace(run, folder=run.folder / "dose")
        (own.folder / "cells").mkdir(parents=True, exist_ok=True)
        parts = recordings(own, task, replace(self.dose.trial(name), seeds=1))
        made: dict[str, Any] = {"name": name, "labels": [str(size) for size, _ in parts]}
        models = fit_models(own, list(parts.values()), task.graph, "local", self.dose.trial(name).dynamics, **made)
        if name == "navigation":
            visits = walked_to_the_goal(task, JUDGED_ROWS, VISITS)
        else:
            visits = as_transitions(played_by_expert("two", "varied", VISITING, seed=VISITS, workers=run.workers))
        found = []
        for ((size, seed), recorded), model in zip(parts.items(), models, strict=True):
            merit = Merit(recorded, task, visits, run.workers if name != "navigation" else 0)
            for density in self.dose.densities:
                file = own.folder / "cells" / f"{name}-{size}-{density}.json"
                if not file.exists():
                    counts = {dose: min(round(dose * size), DOSE_ROWS) for dose in self.dose.doses[1:]}
                    rows = self.dose.generated(task, recorded, model, density, seed, max(counts.values()))[size:]
                    merits = {count: merit.of(rows[:count]) for count in dict.fromkeys(counts.values())}
                    place = {"task": name, "rows": size, "density": density}
                    cells = [place | {"dose": dose} | merits[count] for dose, count in counts.items()]
                    write_json(file, {"cells": cells})
                found += read_json(file)["cells"]
        return found

    @staticmethod
    def table(results: Mapping[str, Any]) -> str:
        lines = [
            [TABLES[name], column_title(one["data"]), *(f"{100 * one[merit]:.0f}" for merit in MERITS)]
            for name, merits in results["merit"].items()
            for one in merits
        ]
        heads = ["task", "rows", *(f"{merit.replace('_', ' ')}, %" for merit in MERITS)]
        return markdown_table(heads, lines)

    @staticmethod
    def answer(results: Mapping[str, Any]) -> str:
        points = points_of(results)["both, TD3-BC"]
        told = [f"{merit.replace('_', ' ')} {span(rank_correlation(points, merit))}" for merit in MERITS]
        return f"Rank correlation with the success of TD3-BC, over the columns of both tables: {', '.join(told)}."

    @classmethod
    def blocks(cls, folder: Path) -> dict[str, str]:
        results = cls.results(folder)
        lines = [
            [name, str(len(points)), *(span(rank_correlation(points, merit)) for merit in MERITS)]
            for name, points in points_of(results).items()
        ]
        heads = ["agents", "points", *(merit.replace("_", " ") for merit in MERITS)]
        return super().blocks(folder) | {"correlation": markdown_table(heads, lines)}


def datasets_of(run: Run, table: Table2 | Table3) -> Callable[[str], list[Transitions]]:
    """What makes the data sets of a column and notes their merit."""
    if isinstance(table, Table2):
        return table.datasets(run)
    recorded, seeds = table.recorded(run), range(table.first, table.first + table.seeds)

    @cache
    def models(architecture: str) -> list[Dynamics]:
        return fit_models(run, recorded, HookSweep2().graph, architecture, table.dynamics, seeds=seeds)

    return table.datasets(run, recorded, models)


class Point(NamedTuple):
    """The merits of a column's rows, and how well agents do that are trained on them: from 0, worst of their table."""

    merits: Mapping[str, float]
    success: float


def points_of(results: Mapping[str, Any]) -> dict[str, list[Point]]:
    """The columns of each table and agent that were measured, and those of TD3-BC in both tables."""
    found: dict[str, list[Point]] = {}
    for name, merits in results["merit"].items():
        cells = by_place(read_json(HERE / name / f"{name}.json"))
        known = {one["data"]: one for one in merits if one["data"] != CEILING}
        for agent in dict.fromkeys(row for row, _ in cells if row not in BOUNDS):
            columns = [column for column in known if (agent, column) in cells]
            success = [cells[agent, column]["mean"] * (-1 if name == "table2" else 1) for column in columns]
            ranks = [rankdata(values) / len(columns) for values in (success, *measures(known, columns))]
            points = [Point(dict(zip(MERITS, one, strict=True)), rank) for rank, *one in zip(*ranks, strict=True)]
            if len(points) >= MIN_POINTS:
                found[f"{TABLES[name]}, {agent_title(agent)}"] = points
    found["both, TD3-BC"] = [point for name, own in found.items() if name.endswith("TD3-BC") for point in own]
    return found | points_of_doses(results["doses"])


def points_of_doses(doses: Cells) -> dict[str, list[Point]]:
    """The doses of generated rows, by task and agent."""
    key = ("task", "rows", "density", "dose")
    known = {tuple(one[name] for name in key): one for one in doses}
    found: dict[str, list[Point]] = {}
    for cell in read_json(HERE / "dose" / "dose.json")["cells"]:
        if merits := known.get(tuple(cell[name] for name in key)):
            success = cell["mean"] * (-1 if cell["task"] == "navigation" else 1)
            name = f"{DOSE_TITLES[cell['task']]}, {agent_title(cell['agent'])}, by dose"
            found.setdefault(name, []).append(Point({merit: merits[merit] for merit in MERITS}, success))
    return found


def measures(known: Mapping[str, Mapping[str, float]], columns: Sequence[str]) -> list[list[float]]:
    """The merits of columns, one list for each kind."""
    return [[known[column][merit] for column in columns] for merit in MERITS]


def rank_correlation(points: Sequence[Point], merit: str) -> tuple[float, float, float]:
    """Spearman's rank correlation of a merit with success, with its 95% interval: bootstrapped over the points."""
    pairs = np.array([[point.merits[merit], point.success] for point in points])
    chosen = Stream(0, "merit", len(points)).integers(len(points), RESAMPLES, len(points)).numpy()
    resampled = np.concatenate([pairs[None], pairs[chosen]])  # (1 + resamples, points, 2)
    centred = rankdata(resampled, axis=1) - (len(points) + 1) / 2
    spread = np.sqrt((centred**2).sum(1).prod(1))
    with np.errstate(invalid="ignore"):  # resamples of a single value have no correlation
        found = centred.prod(2).sum(1) / spread
    return float(found[0]), *np.nanquantile(found[1:], (0.025, 0.975)).tolist()


def span(correlation: tuple[float, float, float]) -> str:
    return "{:.2f} ({:.2f} to {:.2f})".format(*correlation).replace("-", "−")


_small = DiffusionConfig(hidden=(256, 256, 256), updates=3_000, batch=512)
_two, _three = Table2.presets["quick"], Table3.presets["quick"]
_dynamics = replace(_three.dynamics, epochs=12)
_dose = Dose.presets["paper"]
_columns = {"table2": Table2.presets["paper"].columns, "table3": Table3.presets["paper"].columns}
FigureOfMerit.presets = {
    "paper": FigureOfMerit(
        "paper",
        seeds=1,
        table2=replace(_two, seeds=1, columns=_columns["table2"], rows=10_000, total=13_000, diffusion=_small),
        table3=replace(
            _three,
            seeds=1,
            columns=_columns["table3"],
            rows=20_000,
            total=23_000,
            dynamics=_dynamics,
            diffusion=_small,
        ),
        dose=replace(
            _dose,
            seeds=1,
            navigation=replace(_dose.navigation, dynamics=replace(_two.dynamics, epoch_rows=8_750)),
            hooksweep2=replace(_dose.hooksweep2, dynamics=_dynamics),
        ),
    ),
    "quick": FigureOfMerit(
        "quick",
        seeds=1,
        table2=replace(_two, seeds=1, columns=("emp", "rand", "mocoda"), rows=4_000, total=8_000),
        table3=replace(_three, seeds=1, columns=("emp", "rand", "mocoda"), rows=4_000, total=8_000, dynamics=_dynamics),
        dose=Dose.presets["quick"],
    ),
}
