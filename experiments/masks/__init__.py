"""The exam of local masks: how well methods find the edges of each row, in worlds whose true edges are known."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from experiments.experiment import Experiment, Run, check_names, markdown_table, read_json, spread, unique
from experiments.masks.measures import by_edge, local_edges, measures
from experiments.masks.mechanisms import USUAL, Training
from experiments.masks.methods import METHODS, OURS, LearnedScores, Method, NotApplicableError
from experiments.masks.truth import is_exact, reproduced, true_edges, true_share
from experiments.random_dag import WORLDS, make_world
from experiments.stages import record
from mocoda.data.transitions import Transitions
from mocoda.engine.engines import Processes
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.files import whole_file, write_json
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream
from mocoda.graph.learning import GateLearner
from mocoda.graph.local_graph import LocalGraph
from mocoda.tasks import Task
from mocoda.tasks.cubes import Cubes
from mocoda.tasks.hooksweep import HookSweep2

CELLS = "cells"  # the folder of answers
ALONE = ("learned",)  # methods that take much longer than others
DETAIL = {
    "auroc": "AUROC",
    "auroc_known": "where known",
    "auroc_actions": "of actions",
    "f1": "F1",
    "f1_own": "F1 at its own threshold",
    "rebalanced": "wrong, rebalanced",
    "calibration": "ECE",
}
Cell = dict[str, Any]  # JSON values


class Sheet(NamedTuple):
    """The questions of a world: rows to choose thresholds by, rows to be judged by, and their true edges (N, P, C)."""

    task: Task
    data: Callable[[int, int], Transitions]  # what was recorded, by number of rows and seed
    valid: Transitions
    test: Transitions
    valid_truth: Tensor
    test_truth: Tensor
    known: Tensor  # (N, P, C), where the truth of the rows to be judged by is certain


class Sitting(NamedTuple):
    """Methods that are asked about the same recorded rows."""

    world: str
    rows: int
    seed: int
    methods: tuple[str, ...]


@dataclass(frozen=True)
class Masks(Experiment):
    """How well local masks are found from data, by ways to find them, worlds and recorded rows."""

    name = "masks"
    metric = "over edges that hold in some rows but not in all: AUROC and more, see the README"
    outputs = ("masks.json",)

    worlds: tuple[str, ...]
    rows: tuple[int, ...]  # recorded
    methods: tuple[str, ...] = tuple(METHODS)
    judged: int = 4_000  # rows to choose thresholds by, and as many to be judged by
    replayed: int = 2_000  # of them, where the truth takes a simulator
    training: Training = USUAL
    learner: GateLearner = OURS  # of the method `learned`

    def __post_init__(self) -> None:
        self.check_positive("seeds", "judged", "replayed")
        for name in self.worlds:
            if name.partition(":")[0] not in WORLDS:
                raise unknown_name("world", name, WORLDS)
        check_names("method", self.methods, METHODS)
        for what, chosen in (("worlds", self.worlds), ("rows", self.rows)):
            if not chosen or len(set(chosen)) != len(chosen):
                raise InputError(f"{what} must be different ones, and at least one, got {list(chosen)}.")
        if min(self.rows) < 1:
            raise InputError(f"rows must be at least 1, the number of recorded transitions, got {list(self.rows)}.")

    def measure(self, run: Run) -> dict[str, Any]:
        """Fits every method on every number of rows and seed, in `workers` processes, each with one thread.

        The answers of each are kept in the folder; a second call asks only what is missing.
        """
        asked = [self.file(run.folder, *place, name) for place in self._places() for name in self.methods]
        run.progress("masks", sum(file.exists() for file in asked), len(asked))
        for _ in Processes(run.workers).run(Examiner(self, run.device, run.folder), self._prepared(run)):
            run.progress("masks", sum(file.exists() for file in asked), len(asked))
        return {"cells": self._cells(run.folder)}

    def file(self, folder: Path, world: str, rows: int, seed: int, name: str) -> Path:
        """Where the answers of a method are kept."""
        return folder / CELLS / f"{world.replace(':', '-')}-{rows}-{name}-{seed}.json"

    def examine(self, sheet: Sheet, data: Transitions, name: str, seed: int) -> Cell:
        """All measures of one method, trained on recorded rows with one seed; or why it has nothing to say."""
        try:
            if name == "given" and is_exact(sheet.task):
                raise NotApplicableError("it is the truth itself.")
            return {"skipped": None, **self._measured(sheet, self._method(name), data, seed)}
        except NotApplicableError as error:
            return {"skipped": str(error)}

    def _places(self) -> Iterator[tuple[str, int, int]]:
        for world, rows in itertools.product(self.worlds, self.rows):
            yield from ((world, rows, seed) for seed in range(self.seeds))

    def _sittings(self, folder: Path) -> Iterator[Sitting]:
        """What is still to be asked. The methods of a sitting share recorded rows; the one that takes long is alone."""
        for place in self._places():
            for names in ([n for n in self.methods if n in ALONE], [n for n in self.methods if n not in ALONE]):
                sitting = Sitting(*place, tuple(names))
                if next(self._missing(folder, sitting), None) is not None:
                    yield sitting

    def _prepared(self, run: Run) -> Iterator[Sitting]:
        """The sittings, the longest first. What takes a simulator is made here when the first of its world comes."""
        ready: set[str] = set()
        for sitting in sorted(self._sittings(run.folder), key=_length, reverse=True):
            if sitting.world not in ready:
                self.sheet(sitting.world, "cpu", run.folder, run.workers, run.progress)
                ready.add(sitting.world)
            yield sitting

    def _missing(self, folder: Path, sitting: Sitting) -> Iterator[Path]:
        world, rows, seed, names = sitting
        files = (self.file(folder, world, rows, seed, name) for name in names)
        return (file for file in files if not file.exists())

    def _cells(self, folder: Path) -> list[Cell]:
        """A cell a world, number of rows and method: every measure with a value a seed."""
        cells: list[Cell] = []
        for world, rows, name in itertools.product(self.worlds, self.rows, self.methods):
            method, exact = self._method(name), is_exact(make_world(world))
            made: Cell = {"world": world, "rows": rows, "method": name, "truth": "exact" if exact else "replay"}
            made |= {"looks_ahead": method.looks_ahead, "threshold": method.threshold, "skipped": None}
            files = [self.file(folder, world, rows, seed, name) for seed in range(self.seeds)]
            found = [read_json(file) for file in files]
            reasons = [one.pop("skipped") for one in found]
            for measure in found[0] if not any(reasons) else ():
                values = [one[measure] for one in found]
                made[measure] = None if None in values else spread([float(value) for value in values])
            cells.append(made | {"skipped": next(filter(None, reasons), None)})
        return cells

    @staticmethod
    def table(results: Mapping[str, Any]) -> str:
        """AUROC, and in brackets the F1, by method and world, at most rows."""
        most, worlds = max(results["config"]["rows"]), results["config"]["worlds"]
        cells = {(c["method"], c["world"]): c for c in results["cells"] if c["rows"] == most}
        rows = []
        for method in unique(results["cells"], "method"):
            ahead = " *" if any(c["looks_ahead"] for (name, _), c in cells.items() if name == method) else ""
            rows.append([f"`{method}`{ahead}", *(_text(cells[method, world]) for world in worlds)])
        return markdown_table(["method", *(f"`{world}`" for world in worlds)], rows)

    @staticmethod
    def answer(results: Mapping[str, Any]) -> str:
        most = max(results["config"]["rows"])
        own = {
            c["world"]: c["auroc"]["mean"] for c in results["cells"] if (c["method"], c["rows"]) == ("learned", most)
        }
        exact = [own[world] for world in ("navigation", "objects:4", "dag:5")]
        return (
            f"From {most:,} rows our learner finds local edges with an AUROC of at least {min(exact):.3f} where the "
            f"truth is exact, of {own['hooksweep2']:.3f} on HookSweep2 and of {own['cube-double']:.3f} with two cubes."
        )

    @classmethod
    def blocks(cls, folder: Path) -> dict[str, str]:
        results = cls.results(folder)
        more = [cell for name in ("rows.json", "coupled.json") for cell in read_json(folder / name)["cells"]]
        cells = {(c["method"], c["world"], c["rows"]): c for c in (*more, *results["cells"])}
        sizes = sorted({rows for _, _, rows in cells})
        rows = []
        for method, world in dict.fromkeys(
            key[:2] for key in sorted(cells, key=lambda key: (key[0] != "learned", key))
        ):
            own = [cells.get((method, world, size)) for size in sizes]
            if sum(one is not None for one in own) > 1 or method == "learned":
                rows.append([f"`{method}`", f"`{world}`", *("" if one is None else _text(one) for one in own)])
        by_rows = markdown_table(["method", "world", *(f"{size:,} rows" for size in sizes)], rows)
        detail = []
        for one in results["cells"]:
            if one["method"] == "learned":
                texts = ["–" if one.get(key) is None else f"{one[key]['mean']:.3f}" for key in DETAIL]
                detail.append([f"`{one['world']}`", *texts, f"{one['seconds']['mean']:.0f}"])
        details = markdown_table(["world", *DETAIL.values(), "seconds"], detail)
        made = []
        for (method, world, size), one in sorted(cells.items()):
            if method == "learned" and "true" in one:
                shares = [
                    "none" if one[key] is None else f"{100 * one[key]['mean']:.1f}" for key in ("true", "true_given")
                ]
                made.append([f"`{world}`", f"{size:,}", _text(one), *shares, f"{one['seconds']['mean']:.0f}"])
        true = markdown_table(["world", "rows", "AUROC (F1)", "true, %", "with the true edges, %", "seconds"], made)
        return super().blocks(folder) | {"rows": by_rows, "learned": details, "true": true}

    def _method(self, name: str) -> Method:
        kind: Any = METHODS[name]
        settings = {field.name for field in fields(kind)} & {"training", "learner"}
        method: Method = METHODS.make(name, **{setting: getattr(self, setting) for setting in settings})
        return method

    def _measured(self, sheet: Sheet, method: Method, data: Transitions, seed: int) -> dict[str, float | None]:
        graph = sheet.task.graph
        _wait(data.device)
        begun = time.monotonic()
        scores = method.fit(data, dense(graph), seed=seed)
        valid, test = scores(sheet.valid), scores(sheet.test)
        _wait(data.device)
        seconds = time.monotonic() - begun
        found = measures(
            (valid, sheet.valid_truth),
            (test, sheet.test_truth),
            actions=len(graph.action),
            threshold=method.threshold,
            fixed=method.fixed,
            probability=method.probability,
        )
        if not is_exact(sheet.task):
            local = local_edges(sheet.test_truth).nonzero().tolist()
            names = {(p, c): f"{graph.parents[p]} -> {graph.children[c]}" for p, c in local}
            found |= by_edge(test, sheet.test_truth, sheet.known, names)
        elif isinstance(scores, LearnedScores):
            graphs = {"true": scores.graph, "true_given": graph}
            found |= {name: true_share(sheet.task, data, own, self.judged, seed=seed) for name, own in graphs.items()}
        return found | {"seconds": seconds}

    def sheet(
        self, world: str, device: str, folder: Path, workers: int | None = 0, progress: Progress = silent
    ) -> Sheet:
        """Records a world's rows and finds their true edges; what takes a simulator is kept in the folder."""
        task, file = make_world(world), world.replace(":", "-")
        if isinstance(task, HookSweep2 | Cubes):  # robots are recorded once for all seeds
            size, variety = min(self.judged, self.replayed), "play" if isinstance(task, Cubes) else "varied"
            run = Run(folder, workers=workers, progress=progress)
            whole = record(run, task, max(self.rows) + 2 * size, variety, name=f"recorded-{file}")
            valid, test = whole[-2 * size : -size], whole[-size:]
            recorded: Callable[[int, int], Transitions] = lambda rows, seed: whole[:rows].to(device)  # noqa: E731
        else:
            size = self.judged if is_exact(task) else min(self.judged, self.replayed)
            valid, test = (task.collect(size, seed=Stream(0, "masks", part)) for part in ("valid", "test"))
            recorded = lambda rows, seed: task.collect(rows, seed=seed).to(device)  # noqa: E731

        def find(part: str, rows: Transitions) -> Tensor:
            checkpoint = None if is_exact(task) else folder / f"checkpoint-{file}-{part}.safetensors"
            edges = true_edges(task, rows, workers=workers, checkpoint=checkpoint, progress=progress)
            if checkpoint is not None:
                checkpoint.unlink(missing_ok=True)
            return edges

        truths = [
            _kept(folder / f"truth-{file}-{part}.safetensors", partial(find, part, rows)).to(device)
            for part, rows in (("valid", valid), ("test", test))
        ]
        known = torch.ones_like(truths[1])
        if not is_exact(task):
            step: Any = getattr(task, "step", None)
            found = _kept(
                folder / f"reproduced-{file}.safetensors", partial(reproduced, test, task.graph, step, workers=workers)
            )
            known = truths[1] | found.to(device)[:, None]
        return Sheet(task, recorded, valid.to(device), test.to(device), truths[0], truths[1], known)


@dataclass(frozen=True, eq=False)
class Examiner:
    """What a process does: ask the methods of a sitting, and keep the answers of each."""

    experiment: Masks
    device: str
    folder: Path

    def __call__(self, sitting: Sitting) -> None:
        world, rows, seed, names = sitting
        if world not in self._sheets:
            self._sheets.clear()
            self._sheets[world] = self.experiment.sheet(world, self.device, self.folder)
        sheet = self._sheets[world]
        data = sheet.data(rows, seed)
        for name in names:
            file = self.experiment.file(self.folder, world, rows, seed, name)
            if not file.exists():
                write_json(file, self.experiment.examine(sheet, data, name, seed))
        if self.device.startswith("cuda"):
            torch.cuda.empty_cache()  # other processes need it

    @cached_property
    def _sheets(self) -> dict[str, Sheet]:
        return {}


def _length(sitting: Sitting) -> tuple[bool, int, int]:
    """What takes longer is larger: the longest come first, so that no process is left with one at the end."""
    graph = make_world(sitting.world).graph
    return sitting.methods[0] in ALONE, len(graph.parents) * len(graph.children), sitting.rows


def _kept(file: Path, find: Callable[[], Tensor]) -> Tensor:
    """What the file has; found and written if there is none."""
    if not file.exists():
        found = find()
        with whole_file(file) as unfinished:
            save_file({"edges": found.contiguous()}, unfinished)
    return load_file(file)["edges"]


def dense(graph: LocalGraph) -> LocalGraph:
    """The same factors, with every edge: what methods are told."""
    return LocalGraph(graph.state, graph.action, {child: graph.parents for child in graph.children})


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _text(cell: Cell) -> str:
    """The AUROC of a cell and, in brackets, its F1."""
    if cell["skipped"] is not None or cell["auroc"] is None:
        return "–"
    f1 = "" if cell["f1"] is None else f" ({cell['f1']['mean']:.2f})"
    return f"{cell['auroc']['mean']:.3f}{f1}"


Masks.presets = {
    # What two cores do in an hour: one number of rows, and worlds of few factors.
    "paper": Masks(
        "paper",
        seeds=5,
        worlds=("navigation", "objects:4", "dag:5", "hooksweep2", "cube-double"),
        rows=(40_000,),
        training=Training(updates=3_000),
    ),
    "quick": Masks(
        "quick",
        seeds=1,
        worlds=("navigation", "objects:2"),
        rows=(1_000, 4_000),
        methods=("learned", "gradient", "drop-one", "distance", "moved"),
        judged=2_000,
        training=Training(hidden=(64, 64), updates=1_000),
    ),
}
