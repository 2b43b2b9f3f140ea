"""Parent sets drawn from recorded rows, and matched on the columns that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents.manifold import Manifold
from mocoda.parents.metric import Metric, moments
from mocoda.parents.nearest import Nearest
from mocoda.parents.tree import drawing_order

ORDERS = 16  # in which the sets are drawn, at most
PILOT = 1_000  # rows drawn of each order to see whether matches are near
FAR = 0.7  # of the distance of two random rows: a match that is further is none
UNUSUAL = 10.0  # times as far as recorded rows' own matches: nor is one that is further
MATTERS = 0.3  # standard deviations; what is less apart is a match
DISCRETE = 0.1  # distinct values for each row: a column with fewer is not smoothed

Step = tuple[int, frozenset[int]]  # a set's number, and those of its columns that are known when it is drawn


@dataclass(frozen=True, eq=False)
class Match:
    """How the rest of a parent set is found, given the columns that are known.

    known   columns of a row that the set shares with what is drawn already
    rest    its other columns
    moves   (column of the rest, known column) that what is taken over moves along with
    """

    known: tuple[int, ...]
    rest: tuple[int, ...]
    moves: tuple[tuple[int, int], ...]
    metric: Metric
    search: Nearest

    @staticmethod
    def fit(rows: Tensor, known: Sequence[int], rest: Sequence[int], moves: Mapping[int, int], stream: Stream) -> Match:
        along = tuple((column, moves[column]) for column in rest if moves.get(column) in known)
        taken = rows[:, list(rest)].double()
        for column, origin in along:
            taken[:, list(rest).index(column)] -= rows[:, origin]
        metric = Metric.fit(rows[:, list(known)], taken, stream)
        return Match(tuple(known), tuple(rest), along, metric, Nearest.among(metric(rows[:, list(known)])))

    def complete(self, rows: Tensor, sources: Tensor, recorded: Tensor, stream: Stream) -> tuple[Tensor, Tensor]:
        """Fills in the rest of rows (n, S + A), none from one of its `sources` (n, K).

        Says from which recorded row (n,), and how far this one is.
        """
        source, distance = self.search.find(self.metric(rows[:, list(self.known)]), sources, stream)
        rows[:, list(self.rest)] = recorded[source][:, list(self.rest)]
        for column, origin in self.moves:
            rows[:, column] += rows[:, origin] - recorded[source, origin]
        return source, distance


@dataclass(frozen=True, eq=False)
class MatchedParents:
    """Algorithm 1 without a mixture: each parent set from a recorded row, matched on the columns already drawn.

    The first set is that of a recorded row; every next one takes its remaining columns from the recorded row that is
    nearest in the columns it shares, among a random part of the rows and never from a row that is in it already. The
    sets take turns at being the first. Sets that share nothing are recorded rows in independent random orders.

    recorded   (N, S + A)
    sets       columns of each parent set
    orders     in which the sets are drawn, by turns
    matches    (set, columns known before) -> how its rest is found
    noise      (S + A,), standard deviation of what is added to each column
    manifold   the ranges and unit vectors that noise respects
    """

    name = "mocoda"

    recorded: Tensor
    sets: tuple[tuple[int, ...], ...]
    orders: tuple[tuple[int, ...], ...]
    matches: Mapping[Step, Match]
    noise: Tensor | None = None
    manifold: Manifold | None = None

    @staticmethod
    def fit(
        data: Transitions, graph: LocalGraph, seed: int | Stream, shuffle: bool = False, smoothing: float = 0.0
    ) -> MatchedParents:
        rows = data.rows
        stream = as_stream(seed, "matched", device=rows.device)
        sets = tuple(graph.columns(names) for names in graph.parent_sets)
        if len(rows) <= len(sets):
            raise InputError(
                f"density='matched' takes each of {len(sets)} parent sets from another recorded row, and there are "
                f"{len(rows)} rows; record more."
            )
        orders = _orders(sets, shuffle, stream.child("orders"))
        matches: dict[Step, Match] = {}
        for order in orders:
            for number, known in _steps(sets, order):
                rest = [column for column in sets[number] if column not in known]
                if known and rest and (number, known) not in matches:
                    label = stream.child("match", number, *sorted(known))
                    matches[number, known] = Match.fit(rows, sorted(known), rest, graph.relative, label)
        noise, manifold = (smoothing * spread(rows), Manifold.of(rows, graph)) if smoothing else (None, None)
        fitted = MatchedParents(rows, sets, orders, matches, noise, manifold)
        fitted._check_reach(data, graph, stream.child("pilot"))
        return fitted

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        stream = as_stream(seed, "matched", device=self.recorded.device)
        rows = self._draw(n, stream)
        if self.noise is None or self.manifold is None:
            return rows
        low, high = self.manifold.low.minimum(rows), self.manifold.high.maximum(rows)
        moved = (rows + self.noise * stream.child("noise").normal(*rows.shape)).clamp(low, high)
        return self.manifold.of_unit_length(moved)

    def among(self, rows: Tensor) -> MatchedParents:
        """The same matching among other recorded rows (N, S + A)."""
        matches = {
            key: replace(match, search=Nearest.among(match.metric(rows[:, list(match.known)])))
            for key, match in self.matches.items()
        }
        return replace(self, recorded=rows, matches=matches)

    def _draw(self, n: int, stream: Stream, found: dict[Step, tuple[Tensor, Tensor]] | None = None) -> Tensor:
        """n rows; `found` is filled with each match's rows as they were known, and the recorded rows found for them."""
        rows = self.recorded.new_zeros(n, self.recorded.shape[1])
        recorded = len(self.recorded)
        whole = {number: passes(recorded, n, stream.child("first", number)) for number in self._firsts}
        turns = len(self.orders)
        first = int(stream.integers(turns, 1))
        for turn, order in enumerate(self.orders[first:] + self.orders[:first]):
            part = rows[turn::turns]
            sources = torch.zeros(len(part), 0, dtype=torch.long, device=rows.device)
            for number, known in _steps(self.sets, order):
                columns = self.sets[number]
                if (number, known) in self.matches:
                    match, own = self.matches[number, known], stream.child("turn", turn, number)
                    source, _ = match.complete(part, sources, self.recorded, own)
                    if found is not None:
                        found[number, known] = part[:, list(match.known)], source
                elif not known:
                    source = whole[number][turn::turns]
                    part[:, list(columns)] = self.recorded[source][:, list(columns)]
                else:  # all of it is known
                    continue
                sources = torch.cat([sources, source[:, None]], 1)
        return rows

    @property
    def _firsts(self) -> set[int]:
        """The sets that are drawn without columns known, in some order."""
        return {number for order in self.orders for number, known in _steps(self.sets, order) if not known}

    def _check_reach(self, data: Transitions, graph: LocalGraph, stream: Stream) -> None:
        """Raises if what a set is matched on is nowhere near recorded rows: in a cycle, or with few rows, it may be."""
        if not self.matches:
            return
        found: dict[Step, tuple[Tensor, Tensor]] = {}
        self._draw(min(len(self.recorded), PILOT) * len(self.orders), stream, found)
        one, other = stream.integers(len(self.recorded), 2, PILOT)
        for (number, known), (values, source) in found.items():
            match = self.matches[number, known]
            own, _ = match.search.find(match.search.points[one, :-1], one[:, None], stream.child("own", number))
            recorded = self.recorded[:, list(match.known)]
            # In the metric, that is by what is predicted of the rest; and in standard deviations of the shared columns,
            # for the metric knows nothing of directions in which recorded rows do not differ.
            pairs = ((recorded[one], recorded[other]), (values, recorded[source]), (recorded[one], recorded[own]))
            random, far, _ = (float((match.metric(a) - match.metric(b)).norm(dim=1).median()) for a, b in pairs)
            _, gap, usual = (float(((a - b) / match.metric.scale).square().mean(1).sqrt().median()) for a, b in pairs)
            if random > MATTERS and (far > FAR * random or gap > max(MATTERS, UNUSUAL * usual)):
                names = ", ".join(data.columns[column] for column in match.known)
                raise InputError(
                    f"the parent set ({', '.join(graph.parent_sets[number])}) finds no match in {names}: the nearest "
                    f"recorded row is typically {gap:.2g} standard deviations away, where {usual:.2g} is usual for "
                    f"recorded rows; the rest it predicts is {far / random:.0%} as far off as a random row's. "
                    "Record more rows, change the graph's parent sets, or use density='mixture'."
                )


def _orders(sets: Sequence[tuple[int, ...]], shuffle: bool, stream: Stream) -> tuple[tuple[int, ...], ...]:
    """Orders along the tree of sets: each is the first of one of them; with `shuffle`, random ones."""
    numbers = range(len(sets))
    if shuffle:
        preferred = [stream.permutation(len(sets)).tolist() for _ in range(ORDERS)]
    else:
        firsts = numbers if len(sets) <= ORDERS else stream.permutation(len(sets))[:ORDERS].tolist()
        preferred = [[first, *(number for number in numbers if number != first)] for first in firsts]
    orders = [tuple(drawing_order(sets, one)) for one in preferred]
    return tuple({frozenset(_steps(sets, order)): order for order in reversed(orders)}.values())[::-1]


def _steps(sets: Sequence[tuple[int, ...]], order: Sequence[int]) -> list[Step]:
    """The sets in this order, each with those of its columns that are known by then."""
    seen: set[int] = set()
    steps = []
    for number in order:
        steps.append((number, frozenset(seen.intersection(sets[number]))))
        seen.update(sets[number])
    return steps


def passes(rows: int, n: int, stream: Stream) -> Tensor:
    """n of so many rows, none of them again before all have been drawn: (n,)."""
    return torch.cat([stream.permutation(rows) for _ in range(max(1, -(-n // rows)))])[:n]


def spread(rows: Tensor) -> Tensor:
    """The standard deviation of each column (S + A,); 0 for constant columns and those of few distinct values."""
    distinct = torch.tensor([len(column.unique()) for column in rows.T], device=rows.device)
    _, scale = moments(rows)
    return torch.where(distinct < max(2.0, DISCRETE * len(rows)), 0.0, scale).to(rows.dtype)
