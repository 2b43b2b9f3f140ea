"""The command that writes a page about data and trainings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from resource import RLIMIT_AS, getrlimit
from typing import Annotated, Any

from tyro.conf import Positional, arg

from mocoda.analysis import report
from mocoda.analysis.page.html_page import check_report
from mocoda.cli import options as opt
from mocoda.cli.options import say
from mocoda.data import Excerpt, read, read_excerpt
from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.graph.graph_file import FileTask
from mocoda.tasks import Task

ADDRESSES = 6 * 2**30  # what vl-convert, which draws charts, ends the process without
MaybeFolder = Annotated[opt.Maybe[Path], arg(metavar="FOLDER")]


@dataclass(frozen=True)
class Report(opt.Command):
    """Write a page about data, recorded and generated, row by row: one HTML file that opens in any browser."""

    data: Annotated[Positional[str | None], arg(metavar="DATA", help_behavior_hint="")] = None
    """Data as `mocoda augment` writes it, or any other that `mocoda inspect` reads. With --training, it may be left
    out."""
    world: opt.Flat[opt.GraphOptions] = opt.NO_GRAPH
    recorded: opt.MaybeData = None
    """The recorded data from which the rows were made, if the file does not contain it."""
    audit: MaybeFolder = None
    """Show the results that `mocoda audit` wrote to this folder."""
    check: MaybeFolder = None
    """Show the results that `mocoda check` wrote to this folder."""
    training: Annotated[tuple[Path, ...], arg(metavar="FOLDER [FOLDER ...]", help_behavior_hint="")] = ()
    """Show the learning curves in these folders of `mocoda train`, side by side."""
    rows: int = 2_000
    """Maximum number of rows on the page: those with the lowest scores, recorded ones, and others."""
    show: opt.Numbers = ()
    """Rows to show in any case."""
    seed: opt.Seed = 0
    out: opt.File = Path("report.html")
    """HTML file to write."""
    overwrite: opt.Overwrite = False

    def run(self) -> None:
        if self.data is None and not self.training:
            raise InputError("there is nothing to report on: name a file of data, or --training with a folder.")
        check_page(self.out, (self.data, self.recorded, self.world.graph), self.overwrite)
        passed_on = ("audit", "check", "training", "rows", "show", "seed")
        options: dict[str, Any] = {name: getattr(self, name) for name in passed_on}
        if self.data is None:
            report(self.out, name="Training", **options)
        else:
            data = read_excerpt(self.data, show=self.show, seed=self.seed)
            world = self.world.load(data if isinstance(data, Transitions) else data.table, self.data)
            recorded = None if self.recorded is None else read(self.recorded)
            write_page(self.out, data, self.data, world, recorded=recorded, **options)
        say(f"{self.out}: {self.out.stat().st_size / 1e6:.1f} MB; open it in a browser")


def check_page(out: Path, inputs: Iterable[str | Path | None], overwrite: bool) -> None:
    """Refuses, before any work, a page that cannot be written."""
    check_report()
    if 0 <= getrlimit(RLIMIT_AS)[0] < ADDRESSES:
        raise MemoryError
    opt.check_file(out, inputs, overwrite)


def write_page(out: Path, data: Transitions | Excerpt, name: str, world: Task | FileTask, **options: Any) -> None:
    """The page about data that was read from the file called `name`."""
    report(out, data, world.graph, task=world, name=Path(name.rpartition(":")[2]).name, **options)
