"""Progress of long work: a function that is called with the stage, the steps done and all of its steps."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from mocoda.engine import cores

Progress = Callable[[str, int, int], None]


def silent(stage: str, done: int, total: int) -> None:
    """Reports nothing."""


class PlainProgress:
    """Prints progress as plain lines on stderr, with the time that is left in a stage.

    A line is printed when a stage starts and every 30 seconds. The first one waits for 5 seconds, so that short runs
    print none.
    """

    def __init__(self) -> None:
        self.begun = time.monotonic()
        self.due = self.begun + 5
        self.started: dict[str, tuple[float, int]] = {}  # stage: when, and the steps done then

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        new = stage not in self.started and now >= self.begun + 5
        begin, skipped = self.started.setdefault(stage, (now, done))
        if now < self.due and not new:
            return
        self.due = now + 30
        left = ""
        if done > skipped:
            left = f", about {in_words((now - begin) * (total - done) / (done - skipped))} left"
        if said := cores.note():
            sys.stderr.write(f"{said}\n")
        sys.stderr.write(f"{stage}: {done:,} of {total:,}{left}\n")
        sys.stderr.flush()

    def close(self) -> None:
        """Does nothing; bars have something to put away."""


class Bars:
    """Shows a bar for every stage, on a terminal."""

    def __init__(self) -> None:
        from rich import progress
        from rich.console import Console

        self.bars = progress.Progress(
            progress.TextColumn("{task.description:>24}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self.stages: dict[str, Any] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        if said := cores.note():
            self.bars.console.print(said)
        if stage not in self.stages:
            self.bars.start()
            self.stages[stage] = self.bars.add_task(stage, total=total, completed=done)  # they took no time now
        self.bars.update(self.stages[stage], completed=done, total=total)

    def close(self) -> None:
        """Leaves the bars as they are and gives the terminal back."""
        self.bars.stop()


def in_words(seconds: float) -> str:
    """A duration in seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / 3_600:.1f} h"
