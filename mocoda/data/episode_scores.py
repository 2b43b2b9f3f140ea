"""Which recorded episodes are bad: each one is compared with the other episodes of the same data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import rich.console
import rich.table
from numpy.typing import NDArray
from rich.markup import escape

from mocoda.data.formats.arrays import counted
from mocoda.data.kinds import kind_of
from mocoda.data.names import printable

Floats = NDArray[np.float64]
FLAGGED = 0.5  # scores below are flagged
LISTED = 10  # flagged episodes that are printed
MIN_EPISODES = 8  # that can be compared with one another
TIMES = 4  # flagged: so many times as far from the median as most are, on a logarithmic scale, and by a factor of FAR
FEW = 10  # with so few episodes it is twice as far, for most of them say less about the others
FAR = {"moving": 10, "continuous": 3, "length": 3, "reach": 1.2, "at limit": 2.5}
MOST, MOST_OF_COLUMN = 0.8, 0.9  # of the episodes; a single column may rest in many of them
RESTS = 1e-6  # times the longest step of a column: what moves no farther rests
ROUNDING = 1e-3  # times a column's large steps: so far may a next state be from the following state
EVERY = slice(None)


@dataclass(frozen=True, eq=False)
class EpisodeScores:
    """How sound each of E episodes is in several aspects: from 0, the worst, to 1. Below 0.5, it is flagged.

    moving       the state moves as much as in other episodes, rather than rest
    continuous   no column jumps
    length       the number of rows is usual
    in_range     actions reach as far as in other episodes, and are as seldom at their limits
    next_states  every next state is the state of the following row
    finite       no number is NaN or infinite

    Of fewer than eight episodes, only the last two are known.

    episode  (E,) the number of each episode in the data; where it has none, runs of rows are counted from 0
    rows     (E,) its number of rows
    details  (E,) scores of each aspect
    reasons  why each episode is flagged, in words; "" where it is not
    """

    episode: NDArray[np.int64]
    rows: NDArray[np.int64]
    details: Mapping[str, Floats]
    reasons: tuple[str, ...]

    @property
    def scores(self) -> dict[str, float]:
        """Each aspect's mean over all episodes."""
        return {aspect: float(values.mean()) for aspect, values in self.details.items()}

    @property
    def lowest(self) -> Floats:
        """(E,) each episode's lowest score."""
        return np.asarray(np.min([*self.details.values()], axis=0))

    @property
    def ranked(self) -> NDArray[np.intp]:
        """(E,) the places of all episodes, the worst first."""
        return np.argsort(self.lowest, kind="stable")

    @property
    def flagged(self) -> NDArray[np.int64]:
        """The numbers of all flagged episodes, the worst first."""
        return self.episode[self.ranked[: int((self.lowest < FLAGGED).sum())]]

    def __rich__(self) -> rich.console.Group:
        few = f"Fewer than {MIN_EPISODES} episodes are not compared. " if len(self.episode) < MIN_EPISODES else ""
        listed = ", ".join(f"{aspect} {score:.3f}" for aspect, score in self.scores.items())
        title = f"{len(self.flagged):,} of {len(self.episode):,} episodes are flagged"
        table = rich.table.Table("episode", "rows", "score", "why", title=title, title_justify="left")
        for place in self.ranked[: min(LISTED, len(self.flagged))]:
            cells = (self.episode[place], self.rows[place], f"{self.lowest[place]:.2f}", escape(self.reasons[place]))
            table.add_row(*map(str, cells))
        return rich.console.Group(f"{few}Mean scores of the episodes: {listed}", table if len(self.flagged) else title)

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON values."""
        details = {"episode": self.episode, "rows": self.rows, **self.details}
        listed = {name: values.tolist() for name, values in details.items()} | {"reasons": [*self.reasons]}
        return {"scores": self.scores, "flagged": self.flagged.tolist(), "details": listed}


def numbered(arrays: Mapping[str, NDArray[Any]]) -> bool:
    """Whether the data numbers its episodes."""
    return "episode" in arrays and bool((arrays["episode"] >= 0).any())


def episodes_of(arrays: Mapping[str, NDArray[Any]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Episode and step (N,) of rows: as the data numbers them, or else runs of rows that continue one another.

    A run ends at a terminal row, and where the next state is not the following row's state.
    """
    if numbered(arrays):
        return arrays["episode"], arrays["step"]
    ends = (arrays["next_state"][:-1] != arrays["state"][1:]).any(1) | arrays["terminal"][:-1]
    return counted(np.append(ends, True))


def large_step(moved: NDArray[Any]) -> float:
    """A large one of the steps (N,) of a column: 99% of them are no larger, unless these are 0."""
    moved = moved[np.isfinite(moved)]
    return float(np.quantile(moved, 0.99)) or float(moved.max()) if len(moved) else 0.0


class _Flaw(NamedTuple):
    """What may be wrong with E episodes in one aspect, or with K columns in each.

    words   about an episode; {value} is its value, {usual} the median of others, {times} their ratio, {row} names a row
    excess  (E, K), more than 1 where an episode is flagged
    value   (E, K)
    names   of the K columns
    where   (column, rows) -> numbers, the largest of them in the row to name
    """

    aspect: str
    words: str
    excess: Floats
    value: Floats
    names: Sequence[str] = ("",)
    where: Callable[[int, slice], NDArray[Any]] = lambda column, rows: np.zeros(1)

    def reason(self, place: int, rows: slice, called: NDArray[np.intp]) -> str:
        """The words for an episode with these rows among the M, and what they are called."""
        column = int(self.excess[place].argmax())
        value, others = self.value[place, column], self.value[:, column]
        usual = float(np.median(others[others > 0])) if (others > 0).any() else 1.0
        row = called[rows.start + int(self.where(column, rows).argmax())]
        return self.words.format(name=self.names[column], row=row, value=value, usual=usual, times=value / usual)


def score_episodes(
    arrays: Mapping[str, NDArray[Any]], names: Sequence[str], rows: NDArray[np.intp] | None = None
) -> EpisodeScores | None:
    """Scores the episodes of a table's arrays; None where most rows stand alone.

    names  of the state's and the action's columns
    rows   (N,) what the reasons call the rows; their places unless given
    """
    episode, step = episodes_of(arrays)
    order = np.lexsort((step, episode))
    order = order[episode[order] >= 0]
    episode, step = episode[order], step[order]
    start = np.flatnonzero(np.diff(episode, prepend=-1))
    if len(order) < 2 * max(1, len(start)):
        return None
    count = np.diff(start, append=len(order))
    found = _Episodes({name: array[order] for name, array in arrays.items()}, start, count)
    goes_on = np.diff(step, append=-1) == 1
    goes_on[start[1:] - 1] = False
    bad = np.any([~np.isfinite(one.reshape(len(one), -1)).all(1) for one in found.arrays.values()], axis=0)
    finite = found.total(bad)[:, None]
    flaws = _motion(found, [*map(printable, names)], goes_on)
    if len(start) < MIN_EPISODES:
        flaws = [flaw for flaw in flaws if flaw.aspect == "next_states"]
    else:
        flaws += _in_range(found, [*map(printable, names)])
    words = "NaN or infinite numbers in {value:.0f} of its rows, first row {row:,}"
    flaws.append(_Flaw("finite", words, _never(finite, count), finite, where=lambda _, own: bad[own]))
    details: dict[str, Floats] = {}
    reasons: list[list[str]] = [[] for _ in start]
    called = order if rows is None else rows[order]
    for flaw in flaws:
        scores = 1 / (1 + np.square(flaw.excess.max(1)))
        details[flaw.aspect] = np.minimum(scores, details.get(flaw.aspect, 1.0))
        for place in np.flatnonzero(scores < FLAGGED).tolist():
            own = slice(start[place], start[place] + count[place])
            reasons[place].append(flaw.reason(place, own, called))
    return EpisodeScores(episode[start], count, details, tuple(map("; ".join, reasons)))


class _Episodes(NamedTuple):
    """Arrays whose M rows are sorted by episode and step; where each of E episodes starts, and its number of rows."""

    arrays: dict[str, NDArray[Any]]
    start: NDArray[np.intp]
    length: NDArray[np.int64]

    def total(self, values: NDArray[Any]) -> Floats:
        """(E,) the sum of values (M,) over each episode."""
        return np.asarray(np.add.reduceat(values, self.start, dtype=np.float64))


def _excess(measure: Floats, factor: float, most: float = MOST) -> Floats:
    """How far above the median the logarithm of each measure is; more than 1 is flagged.

    factor  the factor by which flagged measures exceed the median at least
    """
    above = np.log(measure)
    above = np.maximum(above - np.median(above), 0)
    usual = float(np.quantile(above, most, method="lower"))
    return np.asarray(above / max(np.log(factor), TIMES * (1 + FEW / len(above)) * usual))


def _column_excess(reach: Floats, factor: float) -> Floats:
    """(E,) the excess of how far a column reaches in each episode, compared with those in which it does not rest."""
    excess, moves = np.zeros(len(reach)), reach > RESTS * reach.max()
    if moves.sum() >= MIN_EPISODES:
        excess[moves] = _excess(reach[moves], factor, MOST_OF_COLUMN)
    return excess


def _never(count: Floats, rows: NDArray[np.int64]) -> Floats:
    """The excess (E, K) of what must not happen in a single row."""
    return np.where(count > 0, 1.01 + 9 * count / rows[:, None], 0)


def _motion(found: _Episodes, names: Sequence[str], goes_on: NDArray[np.bool_]) -> list[_Flaw]:
    """moving, continuous, length and next_states."""
    count, (state, next_state) = found.length, (found.arrays[name] for name in ("state", "next_state"))
    reach, jump, wrong = np.zeros((3, len(count), state.shape[1]))
    way, large = np.zeros((len(count), 1)), np.zeros(state.shape[1])

    def moves(column: int, rows: slice = EVERY) -> Floats:
        """How a column moves in these of the M rows."""
        with np.errstate(invalid="ignore"):
            moved = next_state[rows, column].astype(np.float64) - state[rows, column]
        return np.where(np.isfinite(moved), moved, 0)

    def differs(column: int, rows: slice = EVERY) -> NDArray[np.bool_]:
        """In which of these rows a column's next value is not the following row's value."""
        with np.errstate(invalid="ignore"):
            gap = np.abs(next_state[rows, column][:-1].astype(np.float64) - state[rows, column][1:])
        return np.append(gap > ROUNDING * large[column], False) & goes_on[rows]

    for column in range(state.shape[1]):
        moved = moves(column)
        large[column] = large_step(np.abs(moved))
        wrong[:, column] = found.total(differs(column))
        good = np.isfinite(state[:, column]) & np.isfinite(next_state[:, column])
        if large[column] == 0 or kind_of(state[good, column], next_state[good, column]) == "angle":
            continue
        way[:, 0] += found.total(np.abs(moved)) / large[column]
        reach[:, column] = np.maximum.reduceat(np.abs(moved), found.start)
        jump[:, column] = _column_excess(reach[:, column], FAR["continuous"])
    wrong[:, np.median(wrong, 0) > 0] = 0  # in most episodes: it was recorded at another moment
    length = count[:, None].astype(np.float64)
    pace = way / length
    unusual = np.hstack([_excess(length, FAR["length"]), _excess(1 / length, FAR["length"])])
    jumps = "{name} jumps in row {row:,}, {times:.1f} times as far as usual"
    breaks = "the next {name} is not the following row's in {value:.0f} of its rows, first row {row:,}"
    return [
        _Flaw("moving", "hardly moves: {times:.1%} of the usual pace", _excess(1 / (pace + 1e-9), FAR["moving"]), pace),
        _Flaw("continuous", jumps, jump, reach, names, lambda *where: np.abs(moves(*where))),
        _Flaw("length", "length {value:.0f}, usually {usual:g} rows", unusual, np.hstack([length, length]), ("", "")),
        _Flaw("next_states", breaks, _never(wrong, count), wrong, names, differs),
    ]


def _in_range(found: _Episodes, names: Sequence[str]) -> list[_Flaw]:
    """Actions that reach farther than in other episodes, or are at a limit in more of the rows."""
    actions, count = found.arrays["action"], found.length
    reach, held, far, full = np.zeros((4, len(count), actions.shape[1]))
    for column, values in enumerate(actions.T.astype(np.float64)):
        good = np.isfinite(values)
        kind = kind_of(values[good], values[:0]) if good.any() else "constant"
        if kind == "constant":
            continue
        middle, low, high = np.quantile(values[good], [0.5, 0.001, 0.999])
        reach[:, column] = np.maximum.reduceat(np.where(good, np.abs(values - middle), 0), found.start)
        far[:, column] = _column_excess(reach[:, column], FAR["reach"])
        if kind == "number":
            limit = found.total(((values <= low) & (low < middle)) | ((values >= high) & (high > middle)))
            held[:, column] = limit / count
            full[:, column] = _excess(limit / (count + 10) + 0.2, FAR["at limit"])  # a few rows may be there by chance
    own = names[-actions.shape[1] :]
    return [
        _Flaw("in_range", "{name} reaches {times:.1f} times as far as usual", far, reach, own),
        _Flaw("in_range", "{name} is at a limit in {value:.0%} of the rows", full, held, own),
    ]
