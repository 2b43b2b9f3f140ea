"""What an experiment is: settings that can be run, whose measurements can be written, found by name."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from rich.table import Table

from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.files import versions
from mocoda.engine.optimise import device_name
from mocoda.engine.progress import Progress, silent
from mocoda.engine.registry import Registry
from mocoda.engine.runs import RunFolder
from mocoda.engine.statistics import mean_and_std


@dataclass(frozen=True, eq=False)
class Measured:
    """The results of an experiment, as JSON values; subclasses add what their figures show."""

    results: dict[str, Any]


M = TypeVar("M", bound=Measured)


class Stopwatch:
    """Seconds since the start of an experiment, and of each of its stages."""

    def __init__(self) -> None:
        self._started = self._last = time.monotonic()
        self.laps: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        """Notes the seconds since the last lap under the stage that ends now."""
        now = time.monotonic()
        self.laps[stage], self._last = round(now - self._last, 1), now

    @property
    def seconds(self) -> float:
        return round(time.monotonic() - self._started, 1)


@dataclass(frozen=True)
class Experiment(ABC, Generic[M]):
    """Settings of an experiment, how to run it, and how to write what it measured.

    A subclass adds its settings as fields. The first line of its docstring is its help text. It also has

    name     what it is called on the command line
    metric   what the numbers in its results are
    outputs  the files that `write` makes, the results first
    presets  settings by name: "quick" for minutes on two cores, "paper" for the paper's sizes
    """

    name: ClassVar[str]
    metric: ClassVar[str]
    outputs: ClassVar[tuple[str, ...]]
    presets: ClassVar[Mapping[str, Experiment[Any]]]

    preset: str
    seeds: int

    def __post_init__(self) -> None:
        self.check_positive("seeds")

    @abstractmethod
    def run(self, *, device: str, folder: Path, progress: Progress = silent, workers: int | None = None) -> M:
        """Measures.

        folder   where finished models, agents and checkpoints are kept; a second call continues from them
        workers  processes that simulate, for tasks that are simulated, or do what can be done apart; None: one per core
        """

    @abstractmethod
    def write(self, measured: M, folder: Path) -> Table:
        """Writes the outputs into the folder. Returns the table to print."""

    def config(self) -> dict[str, Any]:
        """The settings as JSON values."""
        return asdict(self)

    def heading(self, device: str, clock: Stopwatch, **more: Any) -> dict[str, Any]:
        """What every file of results says first: what was measured, how, on which device and for how long.

        With resumed=True the seconds are those since the last start.
        """
        return {
            "table": self.name,
            "preset": self.preset,
            "metric": self.metric,
            "device": device_name(device),
            "seconds": clock.seconds,
            **({"seconds_by_stage": clock.laps} if clock.laps else {}),
            **more,
            "versions": versions(),
            "config": self.config(),
        }

    def check_positive(self, *names: str) -> None:
        """Refuses settings below 1."""
        for name in names:
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}.")


EXPERIMENTS: Registry[type[Experiment[Any]]] = Registry("experiment")


def find_experiment(name: str, preset: str = "quick", **changes: Any) -> Experiment[Any]:
    """The preset of an experiment, with some of its settings changed.

    changes  fields of the experiment, or of its dynamics
    """
    kind = EXPERIMENTS[name]
    if preset not in kind.presets:
        raise unknown_name("preset", preset, kind.presets)
    experiment = kind.presets[preset]
    own = {field.name for field in fields(experiment)}
    dynamics: Any = getattr(experiment, "dynamics", None)
    inner = set() if dynamics is None else {field.name for field in fields(dynamics)} - own
    for setting in changes:
        if setting not in own | inner:
            raise InputError(f"the experiment {name!r} has no setting {setting!r}. Leave it out.")
    if trained := {setting: changes.pop(setting) for setting in inner & changes.keys()}:
        changes["dynamics"] = replace(changes.get("dynamics", dynamics), **trained)
    return replace(experiment, **changes)


def run_experiment(
    experiment: Experiment[M],
    folder: Path,
    *,
    device: str = "cpu",
    workers: int | None = None,
    overwrite: bool = False,
    **given: Any,
) -> tuple[M, Table]:
    """Runs an experiment in a folder of its own and writes what it measured. Returns that and the table to print.

    overwrite  replace a run of other settings in the folder, which is refused otherwise
    given      further arguments of this experiment's `run`
    """
    settings = {**experiment.config(), "device": device}
    with RunFolder(folder, f"paper {experiment.name}", settings, experiment.outputs, overwrite) as run:
        measured = experiment.run(device=device, folder=folder, progress=run.progress, workers=workers, **given)
        table = experiment.write(measured, folder)
    return measured, table


# Settings that several experiments have


def check_columns(columns: Sequence[str], known: Sequence[str]) -> None:
    """Refuses columns of a table that are unknown, repeated or none."""
    for column in columns:
        if column not in known:
            raise unknown_name("column", column, known)
    if not columns or len(set(columns)) != len(columns):
        raise InputError(f"columns must name each data set once, and at least one, got {list(columns)}.")


def check_training(total: int, rows: int, last: int, evaluations: int) -> None:
    """Refuses data sets smaller than what was recorded, and means over more evaluations than there are."""
    if total < rows:
        raise InputError(f"total must be at least the number of recorded rows, got {total} and {rows}.")
    if not 1 <= last <= evaluations:
        raise InputError(f"last must be a number of evaluations, from 1 to {evaluations}, got {last}.")


# Cells and tables


def spread(values: Sequence[float]) -> dict[str, Any]:
    """One value a seed, their mean and their standard deviation."""
    mean, std = mean_and_std(values)
    return {"values": list(values), "mean": mean, "std": std}


def cell(row: str, column: str, values: Sequence[float], paper: tuple[float, float] | None = None) -> dict[str, Any]:
    """A cell of a table: one value a seed, and what the paper reports there."""
    paper_mean, paper_std = paper or (None, None)
    return {"row": row, "column": column, **spread(values), "paper_mean": paper_mean, "paper_std": paper_std}


def compare_with_paper(
    results: Mapping[str, Any], title: str, digits: int = 3, best_of: str = "column", more_is_better: bool = False
) -> Table:
    """Our means and standard deviations with the paper's means in brackets; the best of a column, or row, is bold."""
    cells = results["cells"]
    columns = list(dict.fromkeys(one["column"] for one in cells))
    choose = max if more_is_better else min
    best = {key: choose(one["mean"] for one in cells if one[best_of] == key) for key in {one[best_of] for one in cells}}
    rows = []
    for row in dict.fromkeys(one["row"] for one in cells):
        texts = []
        for one in (one for one in cells if one["row"] == row):
            ours = f"{one['mean']:.{digits}f} ± {one['std']:.{digits}f}"
            if one["mean"] == best[one[best_of]]:
                ours = f"[bold]{ours}[/bold]"
            paper = "" if one["paper_mean"] is None else f" [dim]({one['paper_mean']:.{min(digits, 2)}f})[/dim]"
            texts.append(ours + paper)
        rows.append([row, *texts])
    return text_table(title, ["", *columns], rows, "mean ± standard deviation over seeds (in brackets: the paper)")


def text_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], caption: str | None = None, left: int = 1
) -> Table:
    """A table of texts, the first columns, `left` of them, aligned to the left and all others to the right."""
    table = Table(title=title, caption=caption)
    for number, column in enumerate(columns):
        # Names of columns are broken rather than cut off: there is no other place to learn them.
        table.add_column(column, justify="left" if number < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table
