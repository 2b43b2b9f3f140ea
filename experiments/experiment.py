"""What an experiment is: settings that can be measured, and how its results become figures and tables.

Every folder of `experiments/` answers one question. Its module defines one subclass of `Experiment`; its JSON files are
the results, and the tables of its README are made of them (`experiments.readme`).
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import torch

from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.files import versions, write_json
from mocoda.engine.progress import Progress, silent
from mocoda.engine.runs import STATES, RunFolder
from mocoda.engine.statistics import mean_and_std

HERE = Path(__file__).parent
# What experiments keep in their folders to continue from; `*` stands for any characters.
STAGES = (
    *("*.safetensors", "*/*.safetensors", "*/agents.json", "recorded*.hdf5", "recording*/part-*.npz"),
    *("*/cells.json", "*/truth.json", "*/learned.graph", "cells/*.json", "*/cells/*.json", "*/recorded*.hdf5"),
)
Cells = list[dict[str, Any]]


def experiment_names() -> list[str]:
    """The experiments, which are the folders with a README: the paper's tables, then the others by name."""
    names = (path.parent.name.replace("_", "-") for path in HERE.glob("*/README.md"))
    return sorted(names, key=lambda name: (not name.startswith("table"), name))


@dataclass
class Run:
    """Where and how an experiment is measured.

    folder   keeps finished models, agents and checkpoints; a second run in it continues from them
    workers  processes that simulate, or do other jobs side by side; None: one per core
    only     agents and columns of a table to measure now; the results have what was measured so far
    """

    folder: Path
    device: str = "cpu"
    workers: int | None = None
    progress: Progress = silent
    only: tuple[str, ...] = ()
    laps: dict[str, float] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    def chosen(self, names: Iterable[str]) -> list[str]:
        """Those of the names that are asked for, or all if none is."""
        known = list(names)
        return [name for name in known if name in self.only] or known

    def lap(self, stage: str) -> None:
        """Notes the seconds since the last lap under the stage that ends now."""
        self.laps[stage] = round(time.monotonic() - self.started - sum(self.laps.values()), 1)


@dataclass(frozen=True)
class Experiment(ABC):
    """Settings of an experiment, how to measure with them, and how to show what was measured.

    A subclass adds its settings as fields. The first line of its docstring is its help text. It also has

    name     what it is called on the command line; its folder has the same name
    metric   what the numbers in its results are
    outputs  the files that it writes, the results first
    presets  settings by name: "quick" for minutes on two cores, "paper" for the paper's sizes
    """

    name: ClassVar[str]
    metric: ClassVar[str]
    outputs: ClassVar[tuple[str, ...]]
    presets: ClassVar[Mapping[str, Any]]

    preset: str
    seeds: int

    def __post_init__(self) -> None:
        self.check_positive("seeds")

    @abstractmethod
    def measure(self, run: Run) -> dict[str, Any]:
        """The results as JSON values. Figures that need more than these are drawn here."""

    def draw(self, results: Mapping[str, Any], folder: Path) -> None:  # noqa: B027  (not all have such figures)
        """Draws the figures that need nothing but the results."""

    @staticmethod
    @abstractmethod
    def table(results: Mapping[str, Any]) -> str:
        """The results as a Markdown table."""

    @staticmethod
    @abstractmethod
    def answer(results: Mapping[str, Any]) -> str:
        """The answer to the question in one sentence, from results of the paper's preset."""

    @classmethod
    def results(cls, folder: Path) -> dict[str, Any]:
        """The results in a folder."""
        return read_json(folder / cls.outputs[0])

    @classmethod
    def blocks(cls, folder: Path) -> dict[str, str]:
        """What the README in the folder shows of the JSON files beside it: Markdown by the block's name."""
        results = cls.results(folder)
        return {"answer": cls.answer(results), "table": cls.table(results), "measured": measured(results)}

    def config(self) -> dict[str, Any]:
        """The settings as JSON values."""
        return asdict(self)

    def check_positive(self, *names: str) -> None:
        """Refuses settings below 1."""
        for name in names:
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}.")


def find_kind(name: str) -> type[Experiment]:
    """The class of the experiment called `name`."""
    if name not in experiment_names():
        raise unknown_name("experiment", name, experiment_names())
    module = import_module(f"experiments.{name.replace('-', '_')}")
    kinds = (kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Experiment))
    return next(kind for kind in kinds if getattr(kind, "name", None) == name)


def find_experiment(name: str, preset: str = "quick") -> Experiment:
    """The preset of an experiment."""
    kind = find_kind(name)
    if preset not in kind.presets:
        raise unknown_name("preset", preset, kind.presets)
    chosen: Experiment = kind.presets[preset]
    return chosen


def measure(experiment: Experiment, run: Run) -> dict[str, Any]:
    """Measures in a folder, without locking it or writing anything but figures and what a run continues from.

    The results say first what was measured, how, on which device and for how long. Where "resumed" is true, the seconds
    are those since the last start.
    """
    resumed = any(path.suffix in STATES for path in run.folder.rglob("*"))
    measured = experiment.measure(run)
    heading = {
        "table": experiment.name,
        "preset": experiment.preset,
        "metric": experiment.metric,
        "device": device_name(run.device),
        "seconds": round(time.monotonic() - run.started, 1),
        "seconds_by_stage": run.laps,
        "resumed": resumed,
        "versions": versions(),
        "config": experiment.config(),
    }
    return heading | measured


def run_experiment(
    experiment: Experiment,
    folder: Path,
    *,
    device: str = "cpu",
    workers: int | None = None,
    only: tuple[str, ...] = (),
    overwrite: bool = False,
) -> dict[str, Any]:
    """Measures in a run folder, which is continued after a kill, writes the outputs there and returns the results.

    only       agents and columns of a table to measure now
    overwrite  replace a run of other settings in the folder, which is refused otherwise
    """
    settings = {**experiment.config(), "device": device}
    with RunFolder(folder, f"experiment {experiment.name}", settings, (*experiment.outputs, *STAGES), overwrite) as run:
        results = measure(experiment, Run(folder, device, workers, run.progress, only))
        write_json(folder / experiment.outputs[0], results)
        experiment.draw(results, folder)
    return results


def read_json(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return found


# Settings that several experiments have


def check_names(kind: str, chosen: Sequence[str], known: Iterable[str]) -> None:
    """Refuses names that are unknown, repeated or none."""
    for name in chosen:
        if name not in (names := list(known)):
            raise unknown_name(kind, name, names)
    if not chosen or len(set(chosen)) != len(chosen):
        raise InputError(f"name each {kind} once, and at least one, got {list(chosen)}.")


def check_training(total: int, rows: int, last: int, evaluations: int) -> None:
    """Refuses data sets smaller than what was recorded, and means over more evaluations than there are."""
    if total < rows:
        raise InputError(f"total must be at least the number of recorded rows, got {total} and {rows}.")
    if not 1 <= last <= evaluations:
        raise InputError(f"last must be a number of evaluations, from 1 to {evaluations}, got {last}.")


# Cells and tables


def spread(values: Sequence[float]) -> dict[str, Any]:
    """One value per seed, their mean and their standard deviation."""
    mean, std = mean_and_std(values)
    return {"values": list(values), "mean": mean, "std": std}


def cell(row: str, column: str, values: Sequence[float], paper: tuple[float, float] | None = None) -> dict[str, Any]:
    """A cell of a table: one value per seed, and what the paper reports there."""
    paper_mean, paper_std = paper or (None, None)
    return {"row": row, "column": column, **spread(values), "paper_mean": paper_mean, "paper_std": paper_std}


def average(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def by_place(results: Mapping[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """The cells of a table by row and column."""
    return {(one["row"], one["column"]): one for one in results["cells"]}


def unique(cells: Iterable[Mapping[str, Any]], key: str) -> list[Any]:
    """The values that cells have under a key, in order and once each."""
    return list(dict.fromkeys(one[key] for one in cells))


def plus_minus(one: Mapping[str, Any], digits: int) -> str:
    """The mean of a cell, and its standard deviation if there are several seeds."""
    deviation = f" ± {one['std']:.{digits}f}" if len(one["values"]) > 1 else ""
    return f"{one['mean']:.{digits}f}{deviation}"


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cells_table(
    results: Mapping[str, Any], digits: int, titles: Mapping[str, str] | None = None, bold_least: bool = False
) -> str:
    """Means and standard deviations by row and column, with the paper's means in brackets.

    titles      of rows and columns, where they are not called by their names
    bold_least  the least mean of each column is bold
    """
    cells, titles = results["cells"], titles or {}
    columns = unique(cells, "column")
    least = {column: min(one["mean"] for one in cells if one["column"] == column) for column in columns}
    rows = []
    for row in unique(cells, "row"):
        texts = dict.fromkeys(columns, "")
        for one in (one for one in cells if one["row"] == row):
            text, paper = plus_minus(one, digits), one.get("paper_mean")
            if bold_least and one["mean"] == least[one["column"]]:
                text = f"**{text}**"
            texts[one["column"]] = text + ("" if paper is None else f" ({paper:.{min(digits, 2)}f})")
        rows.append([titles.get(row, row), *texts.values()])
    return markdown_table(["", *(titles.get(column, column) for column in columns)], rows)


def measured(results: Mapping[str, Any]) -> str:
    """How results were measured, in a sentence."""
    config = results["config"]
    seeds = f", {config['seeds']} seeds" if config.get("seeds", 1) > 1 else ""
    return f"Measured with preset `{results['preset']}`{seeds}, in {results['seconds']:,.0f} s on {results['device']}."


def device_name(device: str) -> str:
    """The device in words, for results."""
    return (
        torch.cuda.get_device_name(device) if device.startswith("cuda") else f"CPU, {torch.get_num_threads()} threads"
    )
