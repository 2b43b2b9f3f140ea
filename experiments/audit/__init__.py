"""How true the rows of each recipe are, by the simulator: a figure that the paper lacks.

Every recipe draws as many rows from one recording, the same model predicts what follows, and the simulator is asked.
What support and disagreement know of that beforehand is measured too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from experiments.columns import DEFAULT, LOCAL, MATCHED, Column, column_label, column_recipe, recipe_colour
from experiments.experiment import Experiment, Run, check_names, markdown_table, read_json
from experiments.figures import PALETTE
from experiments.stages import fit_models, paper_dynamics, record
from experiments.table3 import Table3
from mocoda.analysis.replay import replay
from mocoda.analysis.row_audit import Limits, judge
from mocoda.augmentation.generation import Following, RecordedNext, nothing_known, what_follows
from mocoda.augmentation.support import RECORDED, Provenance, fit_support, recipe_number, step_scale
from mocoda.data.transitions import Transitions, concatenate
from mocoda.dynamics import DynamicsConfig
from mocoda.engine.errors import InputError
from mocoda.engine.figure_style import GREEN, GREY, INK, RED, bare, save, title_left
from mocoda.engine.randomness import Stream
from mocoda.parents import BUILT_IN, fit_parents
from mocoda.parents.recipe import Draw, draw_from
from mocoda.tasks import make_task

TASKS = {
    "navigation": "2D Navigation",
    "objects": "four objects",
    "hooksweep2": "HookSweep2",
    "cube-double": "OGBench's two cubes",
}
MOCODA = tuple(name + end for name in BUILT_IN if name.startswith("mocoda") for end in (MATCHED, LOCAL))
COLUMNS = (*BUILT_IN, *MOCODA, DEFAULT)
REPLAYED = "replayed.safetensors"
MARKS = {"support": ("s", GREEN), "disagreement": ("o", RED)}
FACTORS = ("o", "s", "^", "D", "v", "P", "X", "*")
EPISODES = {"coda": "cubes-episodes-coda.json", "mocoda": "cubes-episodes-mocoda.json"}


@dataclass(frozen=True)
class Trial:
    """How one task is audited."""

    columns: tuple[str, ...]
    dynamics: DynamicsConfig
    rows: int  # recorded
    audited: int  # rows of every column
    variety: str | None = None  # of the recording, where it is of a robot
    components: int = 32
    acceptance: float = 0.1  # of mocoda-u and mocoda-p, as the next
    density_floor: float = 0.01

    def __post_init__(self) -> None:
        check_names("column", self.columns, COLUMNS)
        if min(self.rows, self.audited) < 1:
            raise InputError(f"rows and audited must be at least 1, got {self.rows} and {self.audited}.")


@dataclass(frozen=True)
class Audit(Experiment):
    """How true the rows of each recipe are, by the simulators of four tasks."""

    name = "audit"
    metric = "share of rows that the simulator confirms, with its 95% confidence interval; AUROC of what predicts it"
    outputs = ("audit.json", "audit.png")

    navigation: Trial
    objects: Trial
    hooksweep2: Trial
    cube_double: Trial
    tasks: tuple[str, ...] = tuple(TASKS)

    def __post_init__(self) -> None:
        check_names("task", self.tasks, TASKS)
        if self.seeds != 1:
            raise InputError(f"an audit has one seed, for its intervals are over rows, got {self.seeds} seeds.")

    def measure(self, run: Run) -> dict[str, Any]:
        """Audits one task after the other, each in a folder of its name."""
        found = {}
        for name in self.tasks:
            folder = run.folder / name
            folder.mkdir(exist_ok=True)
            found[name] = self.audit(replace(run, folder=folder), name, getattr(self, name.replace("-", "_")))
            run.lap(name)
        return {"tasks": found}

    def audit(self, run: Run, name: str, trial: Trial) -> dict[str, Any]:
        """Records, fits one model, draws rows of every column, and replays them all."""
        task: Any = make_task(name)
        if trial.variety is not None:
            recorded, workers = record(run, task, trial.rows, trial.variety), run.workers
        else:
            recorded, workers = task.collect(trial.rows, seed=0).to(run.device), 0
        (model,) = fit_models(run, [recorded], task.graph, "local", trial.dynamics)
        notes, scale = Provenance(task.graph, fit_support(recorded, task.graph, seed=0)), step_scale(recorded)
        chosen = Stream(0, "audited", device="cpu").permutation(len(recorded))[: trial.audited].sort().values
        sample = recorded[chosen.to(run.device)]
        own = Draw(sample.rows, chosen.to(run.device)[:, None].expand(sample.rows.shape))
        tables = [_table(recorded, sample.rows, sample.next_state, notes.of(own, RECORDED))]
        for number, column in enumerate(trial.columns):
            recipe = column_recipe(
                column, components=trial.components, acceptance=trial.acceptance, density_floor=trial.density_floor
            )
            parents = fit_parents(recorded, task.graph, recipe, seed=0, task=task, model=model)
            drawn, number_of = draw_from(parents, trial.audited, seed=0), recipe_number(Column.of(column).recipe)
            if drawn.next_state is None:
                known, asked = nothing_known(drawn.rows, task.graph.state_width), model
                if column == DEFAULT:  # as it is shipped; the others have the paper's next states
                    known = RecordedNext.of(recorded, task.graph).follow(drawn)
                    asked = replace(model, config=replace(model.config, next_state="auto"))
                follows = what_follows(asked, drawn.rows, known, 0, scale)
            else:
                follows = Following(drawn.next_state, torch.zeros_like(drawn.next_state, dtype=torch.bool))
            note = notes.of(drawn, number_of, follows.predicted, follows.apart)
            tables.append(_table(recorded, drawn.rows, follows.next_state, note))
            run.progress(f"{name}, rows", number + 1, len(trial.columns))
        whole = concatenate(tables)
        truth = replay(
            whole.rows,
            task.step,
            whole.state.shape[1],
            workers=workers,
            checkpoint=run.folder / REPLAYED,
            progress=run.progress,
        ).split([len(table) for table in tables])
        compared = getattr(task, "compared", None)
        tolerance = getattr(task, "tolerance", None) or Limits.of(recorded, task.graph, None, compared).tolerance
        audits = {
            column: judge(
                concatenate([tables[0], table]),
                torch.cat([truth[0], true]),
                task.graph,
                tolerance=tolerance,
                columns=compared,
            ).to_json()
            for column, table, true in zip(trial.columns, tables[1:], truth[1:], strict=True)
        }
        first = next(iter(audits.values()))
        found = {"tolerance": first["tolerance"], "compared": first["columns"]}
        return found | {"recorded": first["by"]["recipe"]["recorded"], "audits": audits}

    def draw(self, results: Mapping[str, Any], folder: Path) -> None:
        """Draws, for every task, the true rows by recipe and by factor, and what predicts that a row is true."""
        tasks = results["tasks"]
        heights = [0.32 * len(one["audits"]) + 1.5 for one in tasks.values()]
        figure = Figure(figsize=(14, sum(heights)), layout="constrained")
        grid = figure.subplots(len(tasks), 3, sharey="row", squeeze=False, height_ratios=heights)
        for (left, middle, right), (name, found) in zip(grid, tasks.items(), strict=True):
            _draw_shares(left, found)
            title_left(left, f"{TASKS[name]}: rows whose factors are all true (%)")
            _draw_factors(middle, found)
            _draw_predictors(right, found["audits"])
            names = ["recorded", *map(column_label, found["audits"])]
            left.set_yticks(range(len(names)), names)
            left.set_ylim(len(names) - 0.4, -0.6)
            for axes in (left, middle, right):
                bare(axes)
        title_left(grid[0][1], "Rows in which each factor is true (%)")
        title_left(grid[0][2], "AUROC of what predicts true rows")
        save(figure, folder / self.outputs[1])

    @staticmethod
    def table(results: Mapping[str, Any]) -> str:
        tasks = results["tasks"]
        columns = dict.fromkeys(column for one in tasks.values() for column in one["audits"])
        rows = [["recorded", *(f"{100 * one['recorded']['share']:.1f}" for one in tasks.values())]]
        for column in sorted(columns, key=COLUMNS.index):
            audits = [one["audits"].get(column) for one in tasks.values()]
            shares = ["" if one is None else f"{100 * one['confirmed']:.1f}" for one in audits]
            rows.append([column_label(column), *shares])
        return markdown_table(["confirmed, %", *(TASKS[name] for name in tasks)], rows)

    @staticmethod
    def answer(results: Mapping[str, Any]) -> str:
        tasks = results["tasks"]
        cubes = tasks["cube-double"]
        shares = {name: 100 * one["confirmed"] for name, one in cubes["audits"].items()}
        return (
            f"With OGBench's two cubes {shares['mocoda-local']:.1f}% of the default recipe's rows are true with the "
            f"paper's next states, of recorded rows {100 * cubes['recorded']['share']:.1f}%, and of the paper's "
            f"mixtures {shares['mocoda']:.1f}%."
        )

    @classmethod
    def blocks(cls, folder: Path) -> dict[str, str]:
        rows, unseen = [], []
        for name, found in cls.results(folder)["tasks"].items():
            for column, one in found["audits"].items():
                new = [graph for graph in one["by"]["local_graph"].values() if graph["recorded"] is None]
                if of_new := sum(graph["rows"] for graph in new):
                    shares = (of_new / one["rows"], sum(graph["rows"] * graph["share"] for graph in new) / of_new)
                    unseen.append([TASKS[name], column_label(column), *(f"{100 * share:.1f}" for share in shares)])
                areas = (one["predictors"].get(key) for key in MARKS)
                texts = ["" if area is None or area["auroc"] is None else f"{area['auroc']:.2f}" for area in areas]
                graphs = one["by"]["local_graph"]
                sparsest = f"{100 * graphs['sparsest']['share']:.1f}" if "sparsest" in graphs else ""
                rows.append([TASKS[name], column_label(column), *texts, sparsest])
        columns = ("task", "rows", *(f"AUROC of {key}" for key in MARKS), "confirmed under the sparsest graph, %")
        episodes = []
        for recipe, file in EPISODES.items():
            found = read_json(folder / file)
            share, ends = 100 * found["confirmed"], [100 * end for end in found["interval"]]
            episodes.append([recipe, f"{share:.1f} ({ends[0]:.1f} to {ends[1]:.1f})"])
        return super().blocks(folder) | {
            "predictors": markdown_table(columns, rows),
            "unseen": markdown_table(["task", "rows", "in new local graphs, %", "of these confirmed, %"], unseen),
            "episodes": markdown_table(["recipe", "rows confirmed, %"], episodes),
            "default": cls.table(read_json(folder / "default.json")),
        }


def _table(like: Transitions, rows: Tensor, next_state: Tensor, notes: Mapping[str, Tensor]) -> Transitions:
    state, action = rows.split([like.state.shape[1], like.action.shape[1]], 1)
    return Transitions(state, action, next_state, columns=like.columns, provenance=notes)


# What `mocoda augment --quick` trains.
SMALL = paper_dynamics(members=3, hidden=(64, 64), features=64, epochs=10, batch=256, learning_rate=3e-3)
ALL = ("coda", "dyna", "rand", *("mocoda" + end for end in ("", MATCHED, LOCAL)))
ALL += (*("mocoda-u" + end for end in ("", MATCHED, LOCAL)), DEFAULT)
FEW = ("coda", "rand", "mocoda", "mocoda-matched")
SWEPT = ("dyna", "rand", "mocoda", "mocoda-matched", "mocoda-p", "mocoda-p-matched", DEFAULT)
CUBES = ("coda", "mocoda", "mocoda-matched", "mocoda-local", DEFAULT)
CUBES_DYNAMICS = paper_dynamics(
    hidden=(256, 256), epochs=150, epoch_rows=20_000, learning_rate=5e-4, validation=0.1, window=10
)
_table3 = Table3.presets
Audit.presets = {
    "paper": Audit(
        "paper",
        seeds=1,
        navigation=Trial(ALL, SMALL, rows=40_000, audited=5_000),
        objects=Trial(ALL, SMALL, rows=40_000, audited=5_000),
        hooksweep2=Trial(
            SWEPT,
            _table3["paper"].dynamics,
            rows=1_000_000,
            audited=5_000,
            variety="varied",
            components=128,
            acceptance=0.3,
            density_floor=0.05,
        ),
        cube_double=Trial(CUBES, CUBES_DYNAMICS, rows=48_000, audited=2_000, variety="play"),
    ),
    "quick": Audit(
        "quick",
        seeds=1,
        navigation=Trial(FEW, SMALL, rows=4_000, audited=1_000),
        objects=Trial(FEW, SMALL, rows=4_000, audited=1_000),
        hooksweep2=Trial(
            ("mocoda", "mocoda-matched"), _table3["quick"].dynamics, rows=20_000, audited=500, variety="varied"
        ),
        cube_double=Trial(("coda", "mocoda-local"), SMALL, rows=4_000, audited=200, variety="play"),
    ),
}


# The figure


def _colour(column: str) -> str:
    return GREY if column == "recorded" else recipe_colour(Column.of(column).recipe)


def _draw_shares(axes: Axes, found: Mapping[str, Any]) -> None:
    cells = {"recorded": found["recorded"]}
    cells |= {name: {"share": one["confirmed"], "interval": one["interval"]} for name, one in found["audits"].items()}
    axes.axvline(100 * found["recorded"]["share"], color=GREY, lw=1, ls="--")
    for place, (name, cell) in enumerate(cells.items()):
        share, ends = 100 * cell["share"], [100 * end for end in cell["interval"]]
        hatch = "///" if name.endswith(MATCHED) else "..." if name.endswith(LOCAL) else ""
        axes.barh(place, share, 0.7, color=_colour(name), hatch=hatch, edgecolor="white", lw=0)
        axes.plot(ends, [place, place], color=INK, lw=1.4)
    axes.set_xlim(0, 102)


def _draw_factors(axes: Axes, found: Mapping[str, Any]) -> None:
    factors = list(found["tolerance"])
    for number, factor in enumerate(factors):
        first = next(iter(found["audits"].values()))["by"]["factor"][factor]["recorded"]
        shares = [first["share"], *(one["by"]["factor"][factor]["share"] for one in found["audits"].values())]
        places = [place + 0.5 * ((number + 0.5) / len(factors) - 0.5) for place in range(len(shares))]
        marker, colour = FACTORS[number % len(FACTORS)], PALETTE[number % len(PALETTE)]
        axes.plot([100 * share for share in shares], places, marker, ms=5, color=colour, label=factor)
    axes.set_xlim(None, 102)
    axes.legend(frameon=False, fontsize=8, loc="best")


def _draw_predictors(axes: Axes, audits: Mapping[str, Any]) -> None:
    axes.axvline(0.5, color=GREY, lw=1, ls="--")
    for number, (key, (marker, colour)) in enumerate(MARKS.items()):
        for place, one in enumerate(audits.values(), 1):
            cell = one["predictors"].get(key)
            if cell is None or cell["auroc"] is None or cell["interval"] == [0.5, 0.5]:  # all rows have the same
                continue
            at = place + 0.22 * (number - 1)
            axes.plot(cell["interval"], [at, at], color=colour, lw=1.5)
            axes.plot(cell["auroc"], at, marker, ms=6, color=colour)
        axes.plot([], [], marker, color=colour, label=key)
    axes.set_xlim(0, 1.02)
    axes.legend(frameon=False, fontsize=8, loc="lower left")
