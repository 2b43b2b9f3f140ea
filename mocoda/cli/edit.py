"""The commands that edit recorded data: merge, split, trim and drop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from tyro.conf import Positional, arg

from mocoda.cli import options as opt
from mocoda.cli.options import counted, say
from mocoda.data import editing, write
from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Edit(opt.Command):
    """Base class of commands that read data, edit it and write it."""

    reading: opt.Flat[opt.ReadOptions] = opt.AS_IT_SAYS
    overwrite: opt.Overwrite = False

    def write(self, made: Transitions, out: str) -> None:
        write(made, out)
        episodes = 0 if made.episode is None else len(made.episode[made.episode >= 0].unique())
        say(f"{out}: {counted(len(made), 'transition')}" + (f" in {counted(episodes, 'episode')}" if episodes else ""))
        opt.say_left_out(made)


@dataclass(frozen=True, kw_only=True)
class Merge(Edit):
    """Join recordings that have the same columns, in any order.

    Episodes get new numbers, and every row says in its provenance which of them it is from.
    """

    data: Annotated[Positional[tuple[str, ...]], arg(metavar="DATA DATA [...]", help=f"Recorded data: {opt.READABLE}.")]
    out: opt.Out

    def run(self) -> None:
        opt.check_out(self.out, self.data, self.overwrite)
        self.write(editing.merge(self.data, **self.reading.how), self.out)


@dataclass(frozen=True, kw_only=True)
class Split(Edit):
    """Split a recording by whole episodes, such as for training and testing."""

    data: opt.Data
    out: Annotated[tuple[str, str], arg(metavar="FILE FILE", help=f"Files to write: {opt.WRITABLE}.")]
    share: float = 0.9
    """Share of the episodes that the first file gets."""
    seed: opt.Seed = 0

    def run(self) -> None:
        targets = [opt.check_out(out, [self.data], self.overwrite).path.resolve() for out in self.out]
        if targets[0] == targets[1]:
            raise InputError(f"--out names two files, got {self.out[0]!r} twice.")
        parts = editing.split(self.data, self.share, seed=self.seed, **self.reading.how)
        for part, out in zip(parts, self.out, strict=True):
            self.write(part, out)


@dataclass(frozen=True, kw_only=True)
class Trim(Edit):
    """Cut the starts and ends off episodes."""

    data: opt.Data
    out: opt.Out
    still: opt.Flag = False
    """Leave out the first and last rows of each episode in which nothing moves."""
    steps: Annotated[str, arg(metavar="FROM:TO")] = ""
    """Keep these steps of each episode, counted from 0: 10:200 keeps 10 to 199, :-10 all but the last 10."""

    def run(self) -> None:
        if not self.still and not self.steps:
            raise InputError("nothing says what to trim: add --still, or --steps such as 10:200.")
        opt.check_out(self.out, [self.data], self.overwrite)
        self.write(editing.trim(self.data, still=self.still, steps=self.steps, **self.reading.how), self.out)


@dataclass(frozen=True, kw_only=True)
class Drop(Edit):
    """Leave out episodes or rows."""

    data: opt.Data
    out: opt.Out
    episodes: opt.Numbers = ()
    """Episodes to leave out, by their numbers in `mocoda inspect`."""
    rows: opt.Words = ()
    """Rows to leave out, counted from 0: numbers, or a file of one per line, as the page of `mocoda report` exports."""
    bad: opt.Flag = False
    """Leave out all episodes that `mocoda inspect` flags."""
    where: Annotated[tuple[str, ...], arg(metavar="CONDITION [...]", help_behavior_hint="")] = ()
    """Leave out the rows that meet every condition, such as 'box1.x > 1.9'."""

    def run(self) -> None:
        if not (self.episodes or self.rows or self.bad or self.where):
            raise InputError("nothing says what to drop: add --bad, --episodes, --rows or --where.")
        files = [row for row in self.rows if not row.isdecimal()]
        if files and len(self.rows) > 1:
            raise InputError(f"--rows takes numbers, or one file that lists them, got {' '.join(self.rows)!r}.")
        opt.check_out(self.out, [self.data, *files], self.overwrite)
        rows = files[0] if files else [*map(int, self.rows)]
        chosen: dict[str, Any] = {"episodes": self.episodes, "rows": rows, "bad": self.bad, "where": self.where}
        self.write(editing.drop(self.data, **chosen, **self.reading.how), self.out)
