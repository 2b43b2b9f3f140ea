"""The command that writes a page about data and trainings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from mocoda.cli.options import (
    NO_GRAPH,
    READABLE,
    Command,
    File,
    Flat,
    GraphOptions,
    Maybe,
    MaybeData,
    Overwrite,
    Seed,
    say,
)
from mocoda.engine.errors import InputError
from mocoda.engine.files import check_target

if TYPE_CHECKING:
    from mocoda.data import Excerpt, Transitions
    from mocoda.graph.graph_file import FileTask
    from mocoda.tasks import Task

MaybeFolder = Annotated[Maybe[Path], arg(metavar="FOLDER")]
PASSED_ON = ("audit", "check", "training", "rows", "show", "seed")  # fields that are keywords of `mocoda.report`


@dataclass(frozen=True)
class Report(Command):
    """Write a page about data, recorded and generated, row by row: one HTML file that opens in any browser."""

    data: Annotated[
        Positional[str | None],
        arg(
            metavar="DATA",
            help=f"Data, as `mocoda augment` writes it: {READABLE}. May be left out with --training.",
            help_behavior_hint="",
        ),
    ] = None
    world: Flat[GraphOptions] = NO_GRAPH
    recorded: MaybeData = None
    """The recorded data from which the rows were made, if the file does not contain it."""
    audit: MaybeFolder = None
    """Show the results that `mocoda audit` wrote to this folder."""
    check: MaybeFolder = None
    """Show the results that `mocoda check` wrote to this folder."""
    training: Annotated[tuple[Path, ...], arg(metavar="FOLDER [FOLDER ...]", help_behavior_hint="")] = ()
    """Show the learning curves in these folders of `mocoda train`, side by side."""
    rows: int = 2_000
    """Maximum number of rows on the page: the least supported, those on which the models disagree most, and others."""
    show: Annotated[tuple[int, ...], arg(metavar="ROW [ROW ...]", help_behavior_hint="")] = ()
    """Rows to show in any case."""
    seed: Seed = 0
    out: File = Path("report.html")
    """HTML file to write."""
    overwrite: Overwrite = False

    def run(self) -> None:
        from mocoda.analysis import report
        from mocoda.data import Transitions, read, read_excerpt

        if self.data is None and not self.training:
            raise InputError("there is nothing to report on: name a file of data, or --training with a folder.")
        check_page(self.out, (self.data, self.recorded, self.world.graph), self.overwrite)
        self.world.check()
        options: dict[str, Any] = {name: getattr(self, name) for name in PASSED_ON}
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
    from mocoda.analysis.page.html_page import check_report

    check_report()
    files = [str(given).rpartition(":")[2] for given in inputs if given is not None]
    check_target(out, inputs=files, overwrite=overwrite)


def write_page(out: Path, data: Transitions | Excerpt, name: str, world: Task | FileTask, **options: Any) -> None:
    """The page about data that was read from the file called `name`."""
    from mocoda.analysis import report

    report(out, data, world.graph, task=world, name=Path(name.rpartition(":")[2]).name, **options)
