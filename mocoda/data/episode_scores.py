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
MIN_EPISODES = 5  # that can be compared with one another
TIMES = 4  # flagged: so many times as far from the median as most episodes are, and by one of these factors at least
FAR = {"moving": 10, "continuous": 3, "length": 3, "smooth": 3, "in_range": 1.2, "distinct": 20}
MANY = 0.3  # and by so large a share of an episode's rows, where rows are counted
MOST, MOST_OF_COLUMN = 0.8, 0.9  # "most"; a single column may rest in many episodes
RESTS = 1e-6  # times a column's large steps: what moves no farther rests
ROUNDING = 1e-3  # times a column's large steps: so far may a next state be from the following state
PLACES = 8  # of an episode, in which it is compared with the others
WIDEST = 800  # numbers in all of them, at most, of up to EPISODES episodes; fewer of more
EPISODES = 20_000
DIRECTIONS = 6  # in which episodes differ most, and in which neighbours are searched
NEIGHBOURS = 3


@dataclass(frozen=True, eq=False)
class EpisodeScores:
    """How sound each of E episodes is, aspect by aspect, from 0, the worst, to 1. Below 0.5, it is flagged.

    moving       the state moves as much as in other episodes, rather than rest
    continuous   no column jumps
    length       the number of rows is usual
    smooth       the state's steps change as little from row to row as in other episodes
    distinct     it is not nearly the same as an earlier episode
    in_range     actions reach as far as in other episodes, and are as seldom at their limits
    next_states  every next state is the state of the following row
    finite       no number is NaN or infinite

    Only the last two are known of fewer than five episodes.

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
    def flagged(self) -> NDArray[np.int64]:
        """The numbers of all flagged episodes, the worst first."""
        return self.episode[self.ranked[: int((self.lowest < FLAGGED).sum())]]

    @property
    def ranked(self) -> NDArray[np.intp]:
        """(E,) places of all episodes, the worst first."""
        return np.argsort(self.lowest, kind="stable")

    def __rich__(self) -> rich.console.Group:
        few = f"Fewer than {MIN_EPISODES} episodes are not compared with one another. "
        listed = ", ".join(f"{aspect} {score:.3f}" for aspect, score in self.scores.items())
        lines = [f"{few if len(self.episode) < MIN_EPISODES else ''}Mean scores of the episodes: {listed}"]
        if not len(self.flagged):
            return rich.console.Group(*lines, f"None of {len(self.episode):,} episodes is flagged")
        title = f"{len(self.flagged):,} of {len(self.episode):,} episodes are flagged; the worst:"
        table = rich.table.Table("episode", "rows", "score", "why", title=title, title_justify="left")
        for place in self.ranked[: min(LISTED, len(self.flagged))]:
            numbers = f"{self.episode[place]}", f"{self.rows[place]:,}", f"{self.lowest[place]:.2f}"
            table.add_row(*numbers, escape(self.reasons[place]))
        return rich.console.Group(*lines, table)

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON values."""
        listed = {"episode": self.episode, "rows": self.rows, **self.details}
        return {
            "scores": self.scores,
            "flagged": self.flagged.tolist(),
            "details": {name: values.tolist() for name, values in listed.items()} | {"reasons": [*self.reasons]},
        }


def episodes_of(arrays: Mapping[str, NDArray[Any]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Episode and step (N,) of rows: as the data numbers them, or else runs of rows that continue one another.

    A run ends at a terminal row, and where the next state is not the following row's state.
    """
    if (arrays.get("episode", np.empty(0)) >= 0).any():
        return arrays["episode"], arrays["step"]
    ends = (arrays["next_state"][:-1] != arrays["state"][1:]).any(1) | arrays["terminal"][:-1]
    return counted(np.append(ends, True))


def score_episodes(
    arrays: Mapping[str, NDArray[Any]], names: Sequence[str], rows: NDArray[np.intp] | None = None
) -> EpisodeScores | None:
    """Scores the episodes of a table's arrays; None where most rows stand alone.

    names  of the state's and the action's columns
    rows   (N,) what the reasons call the rows; their places unless given
    """
    found = _Episodes.of(arrays, names, np.arange(len(arrays["state"])) if rows is None else rows)
    if len(found.order) < 2 * len(found.count) or not len(found.order):
        return None
    aspects = _motion(found)
    if len(found.count) < MIN_EPISODES:
        aspects = {"next_states": aspects["next_states"]}
    else:
        aspects |= {"distinct": _distinct(found), "in_range": _in_range(found)}
    aspects["finite"] = _finite(found)
    reasons: dict[int, list[str]] = {}
    for scores, reason in aspects.values():
        for place in np.flatnonzero(scores < FLAGGED).tolist():
            reasons.setdefault(place, []).append(reason(place))
    details = {name: scores for name, (scores, _) in aspects.items()}
    said = tuple("; ".join(reasons.get(place, [])) for place in range(len(found.count)))
    return EpisodeScores(found.number, found.count, details, said)


class _Aspect(NamedTuple):
    """(E,) scores, and the words for an episode that is flagged."""

    scores: Floats
    reason: Callable[[int], str]


@dataclass(frozen=True, eq=False)
class _Episodes:
    """E episodes, whose M rows come together, sorted by step.

    names    of the state's and the action's columns, fit to print
    order    (M,) places of the rows in the arrays
    rows     (M,) what they are called
    number   (E,) what the episodes are called
    start    (E,) the first of the M rows of each
    count    (E,) its number of rows
    goes_on  (M,) whether the next step of the episode follows
    """

    arrays: Mapping[str, NDArray[Any]]
    names: list[str]
    order: NDArray[np.intp]
    rows: NDArray[np.intp]
    number: NDArray[np.int64]
    start: NDArray[np.intp]
    count: NDArray[np.int64]
    goes_on: NDArray[np.bool_]

    @staticmethod
    def of(arrays: Mapping[str, NDArray[Any]], names: Sequence[str], rows: NDArray[np.intp]) -> _Episodes:
        episode, step = episodes_of(arrays)
        order = np.lexsort((step, episode))
        order = order[episode[order] >= 0]
        episode, step = episode[order], step[order]
        start = np.flatnonzero(np.diff(episode, prepend=-1))
        goes_on = np.diff(step, append=-1) == 1
        goes_on[start[1:] - 1] = False
        count = np.diff(start, append=len(order))
        return _Episodes(arrays, [*map(printable, names)], order, rows[order], episode[start], start, count, goes_on)

    def column(self, name: str, place: int) -> Floats:
        """(M,) a column of an array."""
        return np.asarray(self.arrays[name][self.order, place].astype(np.float64))

    def steps(self, place: int) -> tuple[Floats, float, NDArray[np.bool_], bool]:
        """How a column of the state moves (M,), a large step of it, where (M,) its next value is not the following
        row's value, and whether it is an angle."""
        here, there = self.column("state", place), self.column("next_state", place)
        with np.errstate(invalid="ignore"):
            moved, gap = there - here, np.append(np.abs(there[:-1] - here[1:]), 0)
            angle = kind_of(here, there) == "angle"
        moved[~np.isfinite(moved)] = 0
        large = float(np.quantile(np.abs(moved), 0.99)) or float(np.abs(moved).max())
        return moved, large, (gap > ROUNDING * large) & self.goes_on, angle

    def total(self, values: NDArray[Any]) -> Floats:
        """(E,) the sum of values (M,) over each episode."""
        return np.asarray(np.add.reduceat(values, self.start, dtype=np.float64))

    def farthest(self, values: NDArray[Any]) -> Floats:
        """(E,) the largest of values (M,) in each episode."""
        return np.asarray(np.maximum.reduceat(values, self.start))

    def row(self, place: int, values: NDArray[Any]) -> str:
        """The row of an episode that has the largest of values (M,)."""
        begin = self.start[place]
        return f"row {self.rows[begin + int(np.argmax(values[begin : begin + self.count[place]]))]:,}"


def _excess(measure: Floats, least: float, most: float = MOST, among: Floats | None = None) -> Floats:
    """How far above the median each measure is, where 1 is flagged.

    least  the distance that is flagged at least
    among  the measures to compare with; the same unless given
    """
    among = measure if among is None else among
    above = np.maximum(among - np.median(among), 0)
    usual = float(np.quantile(above, most, method="lower"))
    return np.asarray(np.maximum(measure - np.median(among), 0) / max(least, TIMES * usual))


def _column_excess(reach: Floats, least: float) -> Floats:
    """(E,) the excess of a column that reaches so far in each episode; of those in which it does not rest."""
    excess, moves = np.zeros(len(reach)), reach > RESTS * reach.max()
    if moves.sum() >= MIN_EPISODES:
        excess[moves] = _excess(np.log(reach[moves]), least, MOST_OF_COLUMN)
    return excess


def _score(excess: Floats) -> Floats:
    """Scores from 1 to 0; an excess of 1 is 0.5."""
    return np.asarray(1 / (1 + np.square(excess)))


def _rarely(count: Floats, rows: NDArray[np.int64]) -> Floats:
    """Scores of what must not happen in a single row."""
    return np.where(count > 0, (1 - count / rows) / 2, 1.0)


def _motion(found: _Episodes) -> dict[str, _Aspect]:
    """moving, continuous, length, smooth and next_states."""
    count, width = found.count, found.arrays["state"].shape[1]
    reach, jump, wrong = np.zeros((3, len(count), width))
    way, turns = np.zeros((2, len(count)))
    for place in range(width):
        moved, large, differs, angle = found.steps(place)
        wrong[:, place] = found.total(differs)
        if large > 0:
            way += found.total(np.abs(moved)) / large
            turns += found.total(np.abs(np.diff(moved, append=0)) * found.goes_on) / large
        if large > 0 and not angle:
            reach[:, place] = found.farthest(np.abs(moved))
            jump[:, place] = _column_excess(reach[:, place], np.log(FAR["continuous"]))
    wrong[:, np.median(wrong, 0) > 0] = 0  # such next states were recorded at another moment
    pace, length = way / count / width, np.log(count)
    bend = np.divide(turns, way, out=np.zeros(len(count)), where=way > 0)

    def rests(place: int) -> str:
        share = pace[place] / max(np.median(pace), 1e-300)
        return f"hardly moves: {share:.2%} of the usual pace" if share > 0 else "nothing moves"

    def jumps(place: int) -> str:
        column = int(jump[place].argmax())
        times = reach[place, column] / np.median(reach[reach[:, column] > 0, column])
        row = found.row(place, np.abs(found.steps(column)[0]))
        return f"{found.names[column]} jumps in {row}, {times:.1f} times as far as usual"

    def breaks(place: int) -> str:
        column = int(wrong[place].argmax())
        row, more = found.row(place, found.steps(column)[2]), int(wrong[place, column]) - 1
        others = f" (and {more:,} more)" if more else ""
        return f"the next {found.names[column]} of {row}{others} is not the following row's"

    return {
        "moving": _Aspect(_score(_excess(-np.log(pace + 1e-9), np.log(FAR["moving"]))), rests),
        "continuous": _Aspect(_score(jump.max(1)), jumps),
        "length": _Aspect(
            np.minimum(*(_score(_excess(sign * length, np.log(FAR["length"]))) for sign in (-1, 1))),
            lambda place: f"{count[place]:,} row{'s' * int(count[place] != 1)}, usually {np.median(count):g}",
        ),
        "smooth": _Aspect(
            _score(_column_excess(bend, np.log(FAR["smooth"]))),
            lambda place: f"{bend[place] / np.median(bend[bend > 0]):.1f} times as jerky as usual",
        ),
        "next_states": _Aspect(_rarely(wrong.max(1), count), breaks),
    }


def _in_range(found: _Episodes) -> _Aspect:
    """Actions that reach farther than in other episodes, or are at a limit for longer."""
    count, (states, width) = found.count, (found.arrays[name].shape[1] for name in ("state", "action"))
    reach, held, out, full = np.zeros((4, len(count), width))
    for place in range(width):
        values = found.column("action", place)
        good = values[np.isfinite(values)]
        if len(good) == 0 or np.ptp(good) == 0:
            continue
        middle, low, high = np.quantile(good, [0.5, 0.001, 0.999])
        reach[:, place] = found.farthest(np.where(np.isfinite(values), np.abs(values - middle), 0))
        out[:, place] = _column_excess(reach[:, place], np.log(FAR["in_range"]))
        if kind_of(good, good[:0]) == "number":
            limit = ((values <= low) & (low < middle)) | ((values >= high) & (high > middle))
            held[:, place] = found.total(limit) / (count + 10)  # in few rows it may be chance
            full[:, place] = _excess(held[:, place], MANY)

    def says(place: int) -> str:
        column = int(np.maximum(out, full)[place].argmax())
        name, far = found.names[states + column], reach[:, column]
        if full[place, column] > out[place, column]:
            return f"{name} is at a limit in {held[place, column] * (1 + 10 / count[place]):.0%} of the rows"
        return f"{name} reaches {far[place] / np.median(far[far > 0]):.1f} times as far as usual"

    return _Aspect(_score(np.maximum(out, full).max(1)), says)


def _distinct(found: _Episodes) -> _Aspect:
    """Episodes that are nearly the same as an earlier one, in the states and actions at some of their steps."""
    from scipy.spatial import KDTree

    episodes = len(found.count)
    places = found.start[:, None] + np.rint(np.linspace(0, 1, PLACES) * (found.count[:, None] - 1)).astype(np.int64)
    numbers = PLACES * (found.arrays["state"].shape[1] + found.arrays["action"].shape[1])
    every = 1 + numbers * max(1, episodes // EPISODES) // WIDEST
    parts = []
    for name in ("state", "action"):
        part = np.nan_to_num(found.arrays[name][found.order[places]][..., ::every], posinf=0, neginf=0)
        spread = part.std((0, 1), dtype=np.float64)
        parts.append((part / np.where(spread > 0, spread, 1)).reshape(episodes, -1))
    features = np.concatenate(parts, 1)
    centred = features - features.mean(0)
    shadow = centred @ np.linalg.eigh(centred.T @ centred)[1][:, -DIRECTIONS:]
    near = KDTree(shadow).query(shadow, k=[*range(1, 2 + min(NEIGHBOURS, episodes - 1))])[1]  # (E, itself and others)
    apart = np.stack([np.sqrt(np.square(features - features[other]).mean(1)) for other in near.T], 1)
    own = np.arange(episodes)[:, None]
    nearest = np.where(near == own, np.inf, apart).min(1)
    before = np.where(near < own, apart, np.inf)
    closeness = [-np.log(np.minimum(distance, 1e9) + 1e-9) for distance in (before.min(1), nearest)]

    def says(place: int) -> str:
        return f"nearly the same as episode {found.number[near[place, before[place].argmin()]]}"

    return _Aspect(_score(_excess(closeness[0], np.log(FAR["distinct"]), among=closeness[1])), says)


def _finite(found: _Episodes) -> _Aspect:
    """Rows with NaN or infinite numbers."""
    bad = np.zeros(len(found.order), bool)
    for array in found.arrays.values():
        bad |= ~np.isfinite(array.reshape(len(array), -1)).all(1)[found.order]
    count = found.total(bad)
    return _Aspect(
        _rarely(count, found.count),
        lambda place: f"{int(count[place]):,} rows with NaN or infinite numbers, first {found.row(place, bad)}",
    )
