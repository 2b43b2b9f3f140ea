"""what people have -> Inspection: what is in recorded data, and what is wrong with it, before anything is fitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import rich.console
import rich.table
from numpy.typing import NDArray
from rich.markup import escape

from mocoda.data.formats import RawData, read_raw
from mocoda.data.names import PROVENANCE

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Column:
    """A column in figures; those of NaN and infinite numbers are left out of all but `bad`, and None if none remain.

    part    state, action, goal or reward
    bad     values that are NaN or infinite; of a state's column, in the next state too
    breaks  rows in which its next value is not the following row's value, though most other columns go on there
    """

    part: str
    name: str
    minimum: float | None
    mean: float | None
    maximum: float | None
    std: float | None
    constant: bool
    bad: int
    breaks: int = 0


@dataclass(frozen=True)
class Inspection:
    """What `inspect` found.

    kind          what the data was read as
    rows          that were read; a row is a step
    episodes      runs of rows, each row's next state being the following row's state, up to a terminal one
    steps         the fewest, the median and the most rows of an episode
    columns       of state, action, goal and reward
    continuing    the share of rows, the last one aside, whose next state is the following row's state
    jumps         rows that move much farther than the others: perhaps from one episode to another
    first_jump    the first of them
    bad_rows      rows with NaN or infinite numbers
    first_bad     the first of them
    duplicates    rows that are there before, in all their numbers
    terminals     rows after which there is nothing to come
    goals         different goals; None where rows have none
    source        what the file says of itself, or what was left out when it was read
    warnings      what should be looked at, in words
    """

    kind: str
    rows: int
    episodes: int
    steps: tuple[int, float, int]
    columns: tuple[Column, ...]
    continuing: float
    jumps: int
    first_jump: int | None
    bad_rows: int
    first_bad: int | None
    duplicates: int
    terminals: int
    goals: int | None
    source: Mapping[str, Any]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {**asdict(self), "source": dict(self.source)}

    def __rich__(self) -> rich.console.Group:
        table = rich.table.Table(title=f"{self.kind}: {self.rows:,} rows")
        for heading in ("part", "column", "min", "mean", "max", "std", ""):
            table.add_column(heading, justify="right" if heading in ("min", "mean", "max", "std") else "left")
        for column in self.columns:
            figures = (column.minimum, column.mean, column.maximum, column.std)
            remarks = ["constant"] * column.constant + [f"{column.bad:,} NaN or inf"] * (column.bad > 0)
            remarks += [f"breaks off in {column.breaks:,} rows"] * (column.breaks > 0)
            cells = ["-" if figure is None else f"{figure:.4g}" for figure in figures]
            table.add_row(column.part, escape(column.name), *cells, ", ".join(remarks))
        return rich.console.Group(table, *(escape(line) for line in self._lines()))

    def __str__(self) -> str:
        console = rich.console.Console(width=120, force_terminal=False, color_system=None)
        with console.capture() as text:
            console.print(self)
        return text.get().rstrip()

    def _lines(self) -> list[str]:
        few, median, most = self.steps
        goals = "no goals" if self.goals is None else f"{self.goals:,} different goals"
        runs = f"{self.episodes:,} episodes of {few:,} to {most:,} rows (median {median:g})"
        return [
            f"{runs}: runs of rows in which each next state is the following row's state",
            f"{self.continuing:.1%} of rows go on in the following one; {self.duplicates:,} duplicates, "
            f"{self.terminals:,} terminal, {goals}",
            *(f"look: {warning}" for warning in self.warnings),
        ]


def inspect(source: Any, *, episode_steps: int | None = None) -> Inspection:
    """Reads data as `mocoda.read` does, but reports NaN and infinite numbers instead of refusing them."""
    found = read_raw(source, episode_steps=episode_steps)
    arrays, rows = found.arrays, len(found.arrays["state"])
    state, following, terminal = arrays["state"], arrays["next_state"], arrays["terminal"]
    columns = _columns(found)
    varying = [place for place, column in enumerate(columns[: state.shape[1]]) if not column.constant]
    whole, breaks = _continuity(state, following, varying)
    columns = [
        column if place >= len(breaks) else Column(**{**asdict(column), "breaks": int(breaks[place])})
        for place, column in enumerate(columns)
    ]
    ends = np.flatnonzero(np.append(~whole | terminal[:-1], True))
    steps = np.diff(ends, prepend=-1)
    bad = np.flatnonzero(found.bad_rows())
    jumps = _jumps(state, following)
    judged = Inspection(
        kind=found.kind,
        rows=rows,
        episodes=len(ends),
        steps=(int(steps.min()), float(np.median(steps)), int(steps.max())),
        columns=tuple(columns),
        continuing=float(whole.mean()) if rows > 1 else 0.0,
        jumps=len(jumps),
        first_jump=int(jumps[0]) if len(jumps) else None,
        bad_rows=len(bad),
        first_bad=int(bad[0]) if len(bad) else None,
        duplicates=_duplicates([array for name, array in arrays.items() if not name.startswith(PROVENANCE)]),
        terminals=int(terminal.sum()),
        goals=None if "goal" not in arrays else len(arrays["goal"]) - _duplicates([arrays["goal"]]),
        source=found.source,
        warnings=(),
    )
    return Inspection(**{**judged.__dict__, "warnings": tuple(_warnings(judged))})


def _columns(found: RawData) -> list[Column]:
    arrays = found.arrays
    states, actions = arrays["state"].shape[1], arrays["action"].shape[1]
    names = found.columns or (*(f"state{i}" for i in range(states)), *(f"action{i}" for i in range(actions)))
    described = []
    for place, values in enumerate((*arrays["state"].T, *arrays["action"].T)):
        part = "state" if place < states else "action"
        also = arrays["next_state"][:, place] if place < states else values[:0]
        described.append(_described(part, names[place] if place < len(names) else f"{place}", values, also))
    goals = arrays["goal"].T if "goal" in arrays else ()
    described += [_described("goal", f"goal{place}", values, values[:0]) for place, values in enumerate(goals)]
    if "reward" in arrays:
        described.append(_described("reward", "reward", arrays["reward"], arrays["reward"][:0]))
    return described


def _described(part: str, name: str, values: Floats, also: Floats) -> Column:
    bad = int((~np.isfinite(values)).sum() + (~np.isfinite(also)).sum())
    good = values[np.isfinite(values)] if bad else values
    if len(good) == 0:
        return Column(part, name, None, None, None, None, False, bad)
    low, high = float(good.min()), float(good.max())
    constant = low == high and not (len(also) and (also[np.isfinite(also)] != low).any())
    return Column(part, name, low, float(good.mean(dtype=np.float64)), high, _std(good), constant, bad)


def _std(values: Floats) -> float:
    return float(values.std(dtype=np.float64))


def _continuity(state: Floats, following: Floats, varying: list[int]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """(N - 1,) where a row's next state is the following state, and (S,) how often each column alone prevents it."""
    differs = np.empty((state.shape[1], len(state) - 1), bool)
    for place in range(state.shape[1]):
        np.not_equal(following[:-1, place], state[1:, place], out=differs[place])
    whole = ~differs.any(0)
    nearly = ~whole & (2 * differs[varying].sum(0) <= len(varying))
    return np.asarray(whole), np.asarray(differs[:, nearly].sum(1))


def _jumps(state: Floats, following: Floats) -> NDArray[np.intp]:
    """Rows that move more than half a deviation of the data in the mean over columns, and 5 times what others do."""
    moved, counted = np.zeros(len(state)), 0
    for place in range(state.shape[1]):
        with np.errstate(all="ignore"):
            scale = float(np.nanstd(np.where(np.isfinite(state[:, place]), state[:, place], np.nan), dtype=np.float64))
            if scale > 0:
                moved += np.square((following[:, place].astype(np.float64) - state[:, place]) / scale)
                counted += 1
    distance = np.sqrt(moved / max(counted, 1))
    distance[~np.isfinite(distance)] = 0
    return np.flatnonzero(distance > max(0.5, 5 * float(np.quantile(distance, 0.9))))


def _duplicates(arrays: list[NDArray[Any]]) -> int:
    """How many rows are there before. Rows are sorted by a hash of their bits, and neighbours of one hash compared."""
    words = [column for array in arrays for column in _words(array)]
    hashed = np.zeros(len(arrays[0]), np.uint64)
    for word in words:
        hashed ^= word
        hashed *= np.uint64(0x9E3779B97F4A7C15)
        hashed ^= hashed >> np.uint64(29)
    order = np.argsort(hashed, kind="stable")
    alike = np.flatnonzero(hashed[order][1:] == hashed[order][:-1])
    one, other = order[alike], order[alike + 1]
    same = np.ones(len(alike), bool)
    for word in words:
        same &= word[one] == word[other]
    return int(same.sum())


def _words(array: NDArray[Any]) -> list[NDArray[np.uint32]]:
    """An array's columns as whole numbers that are equal where the values are."""
    table = array.reshape(len(array), -1)
    return [(column.astype(np.float32) + np.float32(0)).view(np.uint32) for column in table.T]  # -0 + 0 is 0


def _warnings(found: Inspection) -> list[str]:
    said = []
    if found.bad_rows:
        said.append(
            f"{found.bad_rows:,} rows have NaN or infinite numbers, first row {found.first_bad}. mocoda.read refuses "
            "them; skip_bad_rows=True leaves them out (mocoda export DATA --to FILE.hdf5 --skip-bad-rows)."
        )
    if broken := [column.name for column in found.columns if column.breaks]:
        said.append(
            f"the next value of {', '.join(broken)} is not always the following row's value where all else goes on: "
            "are next states recorded at another moment than states?"
        )
    if found.jumps:
        said.append(
            f"{found.jumps:,} rows move much farther than the others, first row {found.first_jump}: do they lead from "
            "one episode to another? Mark the ends of episodes, or give episode_steps."
        )
    if constant := [column.name for column in found.columns if column.constant and column.part in ("state", "action")]:
        said.append(f"{', '.join(constant)} never change: they tell a model nothing.")
    if found.duplicates:
        said.append(f"{found.duplicates:,} rows of {found.rows:,} are exact duplicates of earlier ones.")
    if found.rows > 1 and found.continuing == 0:
        said.append("no row goes on in the following one: rows are shuffled, or each is a step of its own.")
    if not any(column.part == "reward" for column in found.columns):
        said.append("there are no rewards: a task, a reward function or another file has to give them.")
    if dropped := found.source.get("dropped_terminals"):
        said.append(f"{dropped:,} terminal rows have no next state and were left out, and their rewards with them.")
    if note := found.source.get("note"):
        said.append(f"{note}.")
    if {"done", "dones"} & {*found.source.get("ignored", ())}:
        said.append("done does not say whether a task or a time limit ended an episode: name it terminals or timeouts.")
    return said
