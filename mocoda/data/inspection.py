"""A first look at recorded data: what it contains, and what may be wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Unpack

import numpy as np
import rich.console
import rich.table
from numpy.typing import NDArray
from rich.markup import escape

from mocoda.data.episode_scores import EpisodeScores, episodes_of, score_episodes
from mocoda.data.episode_scores import numbered as has_numbers
from mocoda.data.formats import HowToRead, read_raw
from mocoda.data.formats.arrays import RawData
from mocoda.data.kinds import kinds_of
from mocoda.data.names import EPISODES, PROVENANCE, printable
from mocoda.data.tracking import MAX_LOST, alike_objects, find_exchanges

Floats = NDArray[np.float32]
LONGEST = 50_000  # characters of a printed line
REMARKS = {
    "constant": "never changes: a model learns nothing from it.",
    "clock": "counts up by the same amount in every row: make it a factor that nothing else depends on.",
    "angle": "wraps around, and no model can learn such jumps: read it as an angle (--angles), as its sine and cosine.",
}
COUNTED = {  # in the source of data without next states
    "episodes_sorted_by_step": "episodes whose rows were not in the order of step: {:,}. They were sorted by step.",
    "gaps_in_step": "gaps in step: {:,}. The rows before them have no next state and were left out.",
    "dropped_terminals": "{:,} terminal rows have no next state and were left out, and their rewards with them.",
}
FOLLOWED = 20_000  # rows in which objects are followed
JUMP_SPREADS = 0.5  # a jump is longer than this many standard deviations of a column
JUMP_STEPS = 5  # and longer than this many of its usual steps


@dataclass(frozen=True)
class Column:
    """Statistics of a column, without NaN and infinite values; None if there are no others.

    part    state, action, goal or reward
    kind    what it holds, as `mocoda.data.kinds` says: "constant", "clock", "one-hot", "binary", "integer", "angle",
            "number"
    bad     number of NaN or infinite values; for a column of the state, in the next state too
    breaks  rows whose next value is not the following row's value, although most other columns continue there
    """

    part: str
    name: str
    minimum: float | None
    mean: float | None
    maximum: float | None
    std: float | None
    kind: str
    bad: int
    breaks: int = 0


@dataclass(frozen=True)
class Inspection:
    """What `inspect` finds. Generated rows are left out of everything but `rows` and `columns`.

    kind          what the data was read as
    rows          number of rows; a row is a step
    generated     how many of them `augment` made, according to the file
    episodes      number of episodes: as the data numbers them, or else runs of rows that continue one another up to a
                  terminal row
    numbered      whether the data numbers its episodes; rows of no episode are then not counted among them
    steps         the smallest, the median and the largest number of rows of an episode
    columns       of state, action, goal and reward
    continuing    the share of rows, except the last one, whose next state is the following row's state
    jumps         number of rows in which most of the state moves much farther than in other rows
    first_jump    the first of them, and the column that jumps farthest: (row, column)
    bad_rows      number of rows with NaN or infinite numbers
    first_bad     the first of them
    duplicates    number of rows that equal an earlier one in all their numbers
    terminals     number of rows that end a task
    goals         number of different goals; None where rows have none
    source        how the rows were made, and what was left out when they were read
    warnings      what should be looked at, in words
    episode_scores  how sound each episode is; None where most rows stand alone
    """

    kind: str
    rows: int
    generated: int
    episodes: int
    numbered: bool
    steps: tuple[int, float, int]
    columns: tuple[Column, ...]
    continuing: float
    jumps: int
    first_jump: tuple[int, str] | None
    bad_rows: int
    first_bad: int | None
    duplicates: int
    terminals: int
    goals: int | None
    source: Mapping[str, Any]
    warnings: tuple[str, ...]
    episode_scores: EpisodeScores | None

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON values."""
        scores = self.episode_scores and self.episode_scores.to_json()
        return asdict(replace(self, episode_scores=None)) | {"episode_scores": scores}

    def __rich__(self) -> rich.console.Group:
        table = rich.table.Table(title=f"{self.kind}: {self.rows:,} rows")
        for heading in ("part", "column", "min", "mean", "max", "std", ""):
            table.add_column(heading, justify="right" if heading in ("min", "mean", "max", "std") else "left")
        for column in self.columns:
            figures = (column.minimum, column.mean, column.maximum, column.std)
            remarks = [column.kind] if column.kind != "number" else []
            remarks += [f"{column.bad:,} NaN or inf"] if column.bad else []
            cells = ["-" if figure is None else f"{figure:.4g}" for figure in figures]
            table.add_row(column.part, escape(printable(column.name)), *cells, ", ".join(remarks))
        said = (escape(printable(line, LONGEST)) for line in self._lines())
        return rich.console.Group(table, *said, *filter(None, [self.episode_scores]))

    def __str__(self) -> str:
        console = rich.console.Console(width=120, force_terminal=False, color_system=None)
        with console.capture() as text:
            console.print(self)
        return text.get().rstrip()

    def _lines(self) -> list[str]:
        few, median, most = self.steps
        goals = "no goals" if self.goals is None else f"{self.goals:,} different goals"
        runs = f"{self.episodes:,} episodes of {few:,} to {most:,} rows (median {median:g})"
        how = "as the data numbers them" if self.numbered else "runs of rows, each next state the following row's state"
        lines = [
            f"{runs}: {how}",
            f"{self.continuing:.1%} of rows go on in the following one; {self.duplicates:,} duplicates, "
            f"{self.terminals:,} terminal, {goals}",
        ]
        if self.generated:
            lines.append(f"{self.generated:,} rows are generated; only the table above includes them")
        if self.episode_scores is None:
            lines.append("most rows stand alone, so there are no episodes to compare")
        if left := self.source.get("ignored"):
            lines.append(f"left out, and in no new row: {', '.join(map(printable, left))}")
        return [*lines, *(f"look: {warning}" for warning in self.warnings)]


def inspect(source: Any, **how: Unpack[HowToRead]) -> Inspection:
    """Reads data as `mocoda.read` does, but reports NaN and infinite numbers instead of refusing them.

    how  what is what in the data, as for `mocoda.read`
    """
    raw = read_raw(source, **how)
    arrays, rows = raw.arrays, len(raw.arrays["state"])
    columns = _columns(raw)
    recorded = np.flatnonzero(raw.recorded)
    generated = rows - len(recorded)
    if len(recorded) == 0:  # then it is generated rows that are looked at
        recorded = np.arange(rows)
    own = arrays if len(recorded) == rows else {name: array[recorded] for name, array in arrays.items()}
    state, next_state, terminal = own["state"], own["next_state"], own["terminal"]
    varying = [place for place, column in enumerate(columns[: state.shape[1]]) if column.kind != "constant"]
    continues, breaks = _continuity(state, next_state, varying)
    columns = [replace(one, breaks=int(breaks[i])) if i < len(breaks) else one for i, one in enumerate(columns)]
    numbers, _ = episodes_of(own)
    steps = np.unique(numbers[numbers >= 0], return_counts=True)[1]
    bad = np.flatnonzero(raw.bad_rows())
    jumps, farthest = _jumps(state, next_state)
    found = Inspection(
        kind=raw.kind,
        rows=rows,
        generated=generated,
        episodes=len(steps),
        numbered=has_numbers(own),
        steps=(int(steps.min()), float(np.median(steps)), int(steps.max())),
        columns=tuple(columns),
        continuing=float(continues.mean()) if len(continues) else 0.0,
        jumps=len(jumps),
        first_jump=(int(recorded[jumps[0]]), columns[farthest].name) if len(jumps) else None,
        bad_rows=len(bad),
        first_bad=int(bad[0]) if len(bad) else None,
        duplicates=_duplicates([array for name, array in own.items() if not name.startswith((PROVENANCE, *EPISODES))]),
        terminals=int(terminal.sum()),
        goals=None if "goal" not in own else len(recorded) - _duplicates([own["goal"]]),
        source=dict(raw.source),
        warnings=(),
        episode_scores=score_episodes(own, raw.names, recorded),
    )
    objects = _objects(state[:FOLLOWED], next_state[:FOLLOWED], raw)
    return replace(found, warnings=(*raw.doubts(), *_warnings(found), *objects))


def _columns(raw: RawData) -> list[Column]:
    arrays, sound, found = raw.arrays, ~raw.bad_rows(), []
    kinds = iter(kinds_of(arrays if sound.all() else {name: array[sound] for name, array in arrays.items()}))
    names = iter(raw.names)
    for part in ("state", "action", "goal", "reward"):
        for place, values in enumerate(arrays[part].reshape(len(sound), -1).T if part in arrays else ()):
            following = arrays["next_state"][:, place] if part == "state" else values[:0]
            name = next(names, part if part == "reward" else f"{part}{place}")
            bad = int((~np.isfinite(values)).sum() + (~np.isfinite(following)).sum())
            good = values[np.isfinite(values)].astype(np.float64)
            figures = (float(figure(good)) if len(good) else None for figure in (np.min, np.mean, np.max, np.std))
            low, mean, high, std = figures
            found.append(Column(part, name, low, mean, high, std, next(kinds, "number"), bad))
    return found


def _continuity(state: Floats, next_state: Floats, varying: list[int]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """(N - 1,) whether a row's next state is the following state, and (S,) how often single columns prevent it."""
    differs = (next_state[:-1] != state[1:]).T
    whole = ~differs.any(0)
    nearly = ~whole & (2 * differs[varying].sum(0) <= len(varying))
    return np.asarray(whole), np.asarray(differs[:, nearly].sum(1))


def _jumps(state: Floats, next_state: Floats) -> tuple[NDArray[np.intp], int]:
    """Rows in which most of the slow columns jump, and the column that jumps farthest in the first such row.

    Contacts, bounces and angles that wrap around change a few columns abruptly; a reset within an episode changes most.
    """
    places, steps, unusual = [], [], []
    for place in range(state.shape[1]):
        with np.errstate(all="ignore"):
            step = np.abs(next_state[:, place].astype(np.float64) - state[:, place])
        good = np.isfinite(step)
        scale = float(np.std(state[good, place], dtype=np.float64)) if good.any() else 0.0
        usual = float(np.quantile(step[good], 0.9)) if good.any() else 0.0
        if JUMP_STEPS * usual < scale:  # else steps are as long as jumps
            places.append(place)
            steps.append(np.where(good, step, 0) / scale)
            unusual.append(good & (step > JUMP_STEPS * usual))
    if not places:
        return np.arange(0), 0
    far = np.sqrt(np.mean(np.square(steps), axis=0)) > JUMP_SPREADS
    jumps = np.flatnonzero(far & (2 * np.sum(unusual, axis=0) > len(places)))
    return jumps, places[int(np.argmax([step[jumps[0]] for step in steps]))] if len(jumps) else 0


def _objects(state: Floats, next_state: Floats, raw: RawData) -> Iterator[str]:
    """Sentences on groups of objects that exchange places, or that seem to be absent in some rows."""
    good = (np.isfinite(state) & np.isfinite(next_state)).all(1)
    for alike in alike_objects(raw.names[: state.shape[1]]):
        share = (state[good][:, alike.columns] == 0).all(2).mean(0)
        gone = [name for name, part in zip(alike.names, share, strict=True) if 0 < part < 1]
        if gone and "absent" not in raw.source and alike.columns.shape[1] > 1:
            yield (
                f"all columns of {', '.join(map(printable, gone))} are 0 in some rows. If that means absent, say so: "
                f"absent={gone} (--absent {' '.join(map(printable, gone))})."
            )
        found = find_exchanges(state[good], next_state[good], alike)
        if found.rows.any():
            lost, listed = found.lost.mean(), ", ".join(map(printable, alike.names))
            yield (
                f"{listed} exchange places in {found.rows.sum():,} of {len(found.rows):,} rows, as where objects are "
                "listed by distance: the next state of one is in another's columns. "
            ) + (
                "`mocoda track DATA` undoes it."
                if lost <= MAX_LOST
                else f"In {lost:.0%} of the rows one jumps to where none was expected, so they cannot be followed: "
                "record all objects, or an identity for each."
            )


def _duplicates(arrays: list[NDArray[Any]]) -> int:
    """How many rows equal an earlier one."""
    tables = [array.reshape(len(array), -1).astype(np.float32) + np.float32(0) for array in arrays]  # -0 + 0 is 0
    rows = np.concatenate(tables, 1)
    return len(rows) - len(np.unique(rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1])))))


def _warnings(found: Inspection) -> list[str]:
    warnings = []
    generated_only = found.generated == found.rows  # such rows are not expected to continue one another
    if found.bad_rows:
        warnings.append(
            f"{found.bad_rows:,} rows have NaN or infinite numbers, first row {found.first_bad}. mocoda.read refuses "
            "them; skip_bad_rows=True leaves them out (mocoda export DATA --to FILE.hdf5 --skip-bad-rows)."
        )
    going_on = found.continuing * (found.rows - found.generated - 1)
    broken = [column.name for column in found.columns if column.breaks > going_on]  # in most rows, so not by chance
    if broken and not generated_only:
        warnings.append(
            f"the next value of {', '.join(map(printable, broken))} is mostly not the following row's value, though "
            "the other columns go on: are next states recorded at another moment than states?"
        )
    if found.first_jump and not generated_only:
        row, column = found.first_jump
        warnings.append(
            f"{found.jumps:,} rows move much farther than the others, first row {row}, mostly in {printable(column)}: "
            "do they lead from one episode to another? Mark the ends of episodes, or give episode_steps."
        )
    for kind, meaning in REMARKS.items():
        if names := [printable(column.name) for column in found.columns if column.kind == kind]:
            warnings.append(f"{', '.join(names)} {meaning}")
    if found.duplicates and not generated_only:
        warnings.append(f"{found.duplicates:,} rows of {found.rows:,} are exact duplicates of earlier ones.")
    if found.rows > 1 and found.continuing == 0 and not generated_only:
        warnings.append("no row goes on in the following one: rows are shuffled, or each is a step of its own.")
    if not any(column.part == "reward" for column in found.columns):
        warnings.append("there are no rewards: a task, a reward function or another file has to give them.")
    warnings += [text.format(count) for name, text in COUNTED.items() if (count := found.source.get(name))]
    if note := found.source.get("note"):
        warnings.append(f"{printable(note, 1000)}.")
    return warnings
