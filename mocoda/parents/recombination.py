"""New rows made of pieces of recorded ones: how they are drawn by recipe "mocoda", and from which rows.

`MatchedParents` draws parent sets and matches those that share columns. `GroupedParents` draws the groups of each local
graph. `ComposedParents` also combines contacts that were recorded one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents.groups import BLOCK, MIN_GROUP_ROWS, Groups, neighbourhood, parent_sets_at
from mocoda.parents.matching import Match, drawing_order
from mocoda.parents.recipe import Draw, RecombinedParents

# Matching.
MAX_ORDERS = 16  # in which the sets are drawn
PILOT_ROWS = 1_000  # rows drawn in each order to test whether matches are near
MAX_RELATIVE_DISTANCE = 0.7  # a match must be nearer than this share of the distance of two random rows
MAX_GAP = 10.0  # and not this many times as far as recorded rows' own matches are
NEGLIGIBLE = 0.3  # standard deviations; nearer rows always match
# Groups.
TRIES = 4  # times that a whole row is drawn before its groups are exchanged one by one
MAX_COUNTED = 100  # local graphs, the commonest, whose rows a table's source counts
# Composition.
NEAR_QUANTILE = 0.9  # of recorded rows' own matches; a part is put only where a match is as near as that
NO_PART = -1

Step = tuple[int, frozenset[int]]  # a set's number, and those of its columns that are known when it is drawn


@dataclass(frozen=True, eq=False)
class MatchedParents(RecombinedParents):
    """Draws each parent set from a recorded row that matches the columns drawn before (Algorithm 1, without mixtures).

    The first set is that of a recorded row. Every next one takes its remaining columns from the recorded row that is
    nearest in the columns it shares, among a random part of the rows, and never from a row that is in it already. The
    sets take turns at being the first. Sets that share nothing are recorded rows in independent random orders.

    recorded   (N, S + A)
    sets       columns of each parent set
    orders     in which the sets are drawn, by turns
    matches    (set, columns known before) -> how the rest of the set is found
    """

    name = "mocoda"
    by_local_graph = False

    recorded: Tensor
    sets: tuple[tuple[int, ...], ...]
    orders: tuple[tuple[int, ...], ...]
    matches: Mapping[Step, Match]

    @staticmethod
    def fit(data: Transitions, graph: LocalGraph, seed: int | Stream) -> MatchedParents:
        """Learns which of the shared columns matter for each match."""
        rows = data.rows
        stream = as_stream(seed, "matched", device=rows.device)
        sets = tuple(graph.columns(names) for names in graph.parent_sets)
        if len(rows) <= len(sets):
            raise InputError(
                f"density='matched' takes each of {len(sets)} parent sets from another recorded row, and there are "
                f"{len(rows)} rows; record more."
            )
        orders = _orders(sets, stream.child("orders"))
        matches: dict[Step, Match] = {}
        for order in orders:
            for number, known in _steps(sets, order):
                rest = [column for column in sets[number] if column not in known]
                if known and rest and (number, known) not in matches:
                    label = stream.child("match", number, *sorted(known))
                    matches[number, known] = Match.fit(rows, sorted(known), rest, graph.relative, label)
        fitted = MatchedParents(rows, sets, orders, matches)
        fitted._check_reach(data, graph, stream.child("pilot"))
        return fitted

    def draw(self, n: int, *, seed: int | Stream) -> Draw:
        return self._draw(n, as_stream(seed, "matched", device=self.recorded.device))

    def among(self, rows: Tensor) -> MatchedParents:
        return replace(self, recorded=rows, matches={key: match.among(rows) for key, match in self.matches.items()})

    def _draw(self, n: int, stream: Stream, found: dict[Step, tuple[Tensor, Tensor]] | None = None) -> Draw:
        """n rows; `found` is filled with each match's rows as they were known, and the recorded rows found for them."""
        rows = self.recorded.new_zeros(n, self.recorded.shape[1])
        donors = torch.zeros(rows.shape, dtype=torch.long, device=rows.device)
        firsts = {number for order in self.orders for number, known in _steps(self.sets, order) if not known}
        whole = {number: without_repeats(len(self.recorded), n, stream.child("first", number)) for number in firsts}
        turns = len(self.orders)
        begin = int(stream.integers(turns, 1))
        for turn, order in enumerate(self.orders[begin:] + self.orders[:begin]):
            part, donor = rows[turn::turns], donors[turn::turns]
            sources = torch.zeros(len(part), 0, dtype=torch.long, device=rows.device)
            for number, known in _steps(self.sets, order):
                rest = [column for column in self.sets[number] if column not in known]
                if (number, known) in self.matches:
                    match, own = self.matches[number, known], stream.child("turn", turn, number)
                    source, _ = match.complete(part, sources, self.recorded, own)
                    if found is not None:
                        found[number, known] = part[:, list(match.known)], source
                elif not known:
                    source = whole[number][turn::turns]
                    part[:, rest] = self.recorded[source][:, rest]
                else:  # all of it is known
                    continue
                donor[:, rest] = source[:, None]
                sources = torch.cat([sources, source[:, None]], 1)
        return Draw(rows, donors)

    def _check_reach(self, data: Transitions, graph: LocalGraph, stream: Stream) -> None:
        """Raises if matches are not near recorded rows, as may happen in a cycle of sets, or with few rows."""
        if not self.matches:
            return
        found: dict[Step, tuple[Tensor, Tensor]] = {}
        self._draw(min(len(self.recorded), PILOT_ROWS) * len(self.orders), stream, found)
        one, other = stream.integers(len(self.recorded), 2, PILOT_ROWS)
        for (number, known), (values, source) in found.items():
            match = self.matches[number, known]
            own, _ = match.search.find(match.search.points[one, :-1], one[:, None], stream.child("own", number))
            recorded = self.recorded[:, list(match.known)]
            # Distances in the metric, and in standard deviations of the shared columns: the metric ignores directions
            # in which recorded rows do not differ.
            pairs = ((recorded[one], recorded[other]), (values, recorded[source]), (recorded[one], recorded[own]))
            random, far, _ = (float((match.metric(a) - match.metric(b)).norm(dim=1).median()) for a, b in pairs)
            _, gap, usual = (float(((a - b) / match.metric.scale).square().mean(1).sqrt().median()) for a, b in pairs)
            if random > NEGLIGIBLE and (far > MAX_RELATIVE_DISTANCE * random or gap > max(NEGLIGIBLE, MAX_GAP * usual)):
                names = ", ".join(data.columns[column] for column in match.known)
                raise InputError(
                    f"the parent set ({', '.join(graph.parent_sets[number])}) finds no match in {names}: the nearest "
                    f"recorded row is typically {gap:.2g} standard deviations away, where {usual:.2g} is usual for "
                    f"recorded rows; the rest it predicts is {far / random:.0%} as far off as a random row's. "
                    "Record more rows, change the graph's parent sets, or use density='mixture'."
                )


def _orders(sets: Sequence[tuple[int, ...]], stream: Stream) -> tuple[tuple[int, ...], ...]:
    """Orders along the tree of sets, each of which begins with another set."""
    numbers = range(len(sets))
    firsts = numbers if len(sets) <= MAX_ORDERS else stream.permutation(len(sets))[:MAX_ORDERS].tolist()
    orders = [
        tuple(drawing_order(sets, [first, *(number for number in numbers if number != first)])) for first in firsts
    ]
    return tuple({frozenset(_steps(sets, order)): order for order in reversed(orders)}.values())[::-1]


def _steps(sets: Sequence[tuple[int, ...]], order: Sequence[int]) -> list[Step]:
    """The sets in this order, each with those of its columns that are known by then."""
    seen: set[int] = set()
    steps = []
    for number in order:
        steps.append((number, frozenset(seen.intersection(sets[number]))))
        seen.update(sets[number])
    return steps


def without_repeats(rows: int, n: int, stream: Stream) -> Tensor:
    """n row indices (n,), drawn without replacement until all are used, and then again."""
    return torch.cat([stream.permutation(rows) for _ in range(max(1, -(-n // rows)))])[:n]


class Matched(NamedTuple):
    """The distribution of a group whose parts are matched, and the indices (M,) of its recorded rows among all."""

    rows: Tensor
    parents: MatchedParents


@dataclass(frozen=True, eq=False)
class GroupedParents(RecombinedParents):
    """Draws each group of a row from another recorded row in which the same factors are connected in the same way.

    Every new row has the local graph of a recorded one, so that local graphs are as frequent as recorded. Each of its
    groups is drawn from all recorded rows that have this group, whatever else they connect; a row that would have
    another local graph is drawn again. After TRIES of these, its groups are exchanged one by one, and those that cannot
    be stay as recorded, so that no local graph is lost. Parent sets within a group that share factors even where
    nothing touches are matched (see MatchedParents); those that touch are copied jointly.

    recorded      (N, S + A)
    start, count  (K, parents), where the rows of each first factor's group begin in `order`, and how many they are
    order         rows, group after group
    owner         (S + A,), the factor of each column
    matched       a group's name -> what its parts are drawn from, where they are matched
    """

    name = "mocoda"

    graph: LocalGraph
    recorded: Tensor
    groups: Groups
    start: Tensor
    count: Tensor
    order: Tensor
    owner: Tensor
    matched: Mapping[int, Matched]

    @staticmethod
    def fit(data: Transitions, graph: LocalGraph, seed: int | Stream) -> GroupedParents:
        """Collects the rows of each group, and learns the matches within groups."""
        stream = as_stream(seed, "linked", device=data.device)
        plain = GroupedParents._of(data.rows, graph)
        matched = {}
        for name, sets, rows in plain._overlapping():
            local = replace(graph, local=None, given_parent_sets=sets, absent={})
            try:
                matched[name] = Matched(rows, MatchedParents.fit(data[rows], local, stream.child("group", name)))
            except InputError:  # parts that do not match are copied jointly
                if 2 * len(rows) > len(data):
                    raise
        return replace(plain, matched=matched)

    @staticmethod
    def _of(rows: Tensor, graph: LocalGraph) -> GroupedParents:
        groups = Groups.of(graph, rows)
        is_first = groups.is_first[groups.kind]  # (N, parents)
        pool = groups.pool[groups.kind][is_first]
        order = is_first.nonzero()[:, 0][pool.argsort(stable=True)]
        count = pool.bincount(minlength=len(groups.names))
        start = count.cumsum(0) - count
        owner = graph.owner.to(rows.device)
        return GroupedParents(graph, rows, groups, start[groups.pool], count[groups.pool], order, owner, {})

    def among(self, rows: Tensor) -> GroupedParents:
        other = GroupedParents._of(rows, self.graph)
        matched = {
            name: Matched(own, self.matched[name].parents.among(rows[own]))
            for name, _, own in other._overlapping()
            if name in self.matched
        }
        return replace(other, matched=matched)

    @property
    def source(self) -> dict[str, Any]:
        """Notes for the source of augmented tables: in how many recorded rows the commonest local graphs hold."""
        rows = self.groups.kind.bincount().sort(descending=True).values[:MAX_COUNTED].tolist()
        return {"neighbourhoods": {"drawn": "empirical", "rows": rows, "skipped": []}}

    def draw(self, n: int, *, seed: int | Stream) -> Draw:
        stream = as_stream(seed, "linked", device=self.recorded.device)
        base = without_repeats(len(self.recorded), n, stream.child("base"))  # its local graphs are those of new rows
        kind = self.groups.kind[base]
        drawn = self._propose(kind, stream.child("whole", 0))
        wrong = self._differ(drawn.rows, kind).nonzero()[:, 0]
        for attempt in range(1, TRIES):
            if not len(wrong):
                break
            again = self._propose(kind[wrong], stream.child("whole", attempt))
            drawn.put(wrong, again)
            wrong = wrong[self._differ(again.rows, kind[wrong])]
        if len(wrong):
            drawn.put(wrong, self._exchanged(base[wrong], stream.child("one by one")))
        return drawn

    def _propose(self, kind: Tensor, stream: Stream) -> Draw:
        """Rows that have the groups of these local graphs (n,), each group from another recorded row."""
        count = self.count[kind]
        place = (stream.uniform(*count.shape, dtype=torch.float64) * count).long().minimum(count - 1)
        donor = self.order[self.start[kind] + place]  # (n, parents), of which those of first factors are used
        group = self.groups.first[kind][:, self.owner]  # (n, S + A)
        donors = donor.gather(1, group)
        rows = self.recorded[donors, torch.arange(len(self.owner), device=kind.device)]
        if self.matched:
            names = self.groups.names[self.groups.pool][kind].masked_fill(~self.groups.is_first[kind], 0)
            for name, (numbers, parents) in self.matched.items():
                here, factor = (names == name).nonzero(as_tuple=True)
                if len(here):
                    drawn, own = (
                        parents.draw(len(here), seed=stream.child("group", name)),
                        group[here] == factor[:, None],
                    )
                    rows[here] = torch.where(own, drawn.rows, rows[here])
                    donors[here] = torch.where(own, numbers[drawn.donors], donors[here])
        return Draw(rows, donors)

    def _exchanged(self, base: Tensor, stream: Stream) -> Draw:
        """Recorded rows (n,) in which as many groups are exchanged as leave the local graph."""
        kind, rows = self.groups.kind[base], self.recorded[base]
        drawn, others = Draw(rows, base[:, None].repeat(1, rows.shape[1])), self._propose(kind, stream)
        group = self.groups.first[kind][:, self.owner]
        for factor in stream.child("order").permutation(self.groups.first.shape[1]).tolist():
            here = self.groups.is_first[kind, factor].nonzero()[:, 0]
            own, theirs = group[here] == factor, others.at(here)
            new_rows = torch.where(own, theirs.rows, drawn.rows[here])
            new = Draw(new_rows, torch.where(own, theirs.donors, drawn.donors[here]))
            fits = ~self._differ(new.rows, kind[here])
            drawn.put(here[fits], new.at(fits))
        return drawn

    def _differ(self, rows: Tensor, kind: Tensor) -> Tensor:
        """Which rows (n, S + A) have another local graph than these (n,): bool (n,)."""
        return neighbourhood(self.graph, rows) != self.groups.numbers[kind]

    def _overlapping(self) -> list[tuple[int, list[tuple[str, ...]], Tensor]]:
        """The groups of several parent sets that share factors: name, sets, and the recorded rows that have them."""
        found = []
        many = (self.groups.first[:, :, None] == self.groups.first[:, None]).sum(2) > 1  # (K, parents)
        wanted = self.groups.is_first & many & (self.count >= MIN_GROUP_ROWS)
        seen: set[int] = set()
        for kind, factor in wanted.nonzero().tolist():
            pool = int(self.groups.pool[kind, factor])
            if pool in seen:
                continue
            seen.add(pool)
            members = {self.graph.parents[i] for i in (self.groups.first[kind] == factor).nonzero()[:, 0].tolist()}
            sets = [one for one in parent_sets_at(self.graph, self.groups.masks[kind]) if members.issuperset(one)]
            if len(sets) > 1:
                begin, size = int(self.start[kind, factor]), int(self.count[kind, factor])
                found.append((int(self.groups.names[pool]), sets, self.order[begin : begin + size]))
        return found


class Joint(NamedTuple):
    """Puts a part to another one as in the recorded row with this contact whose other part is nearest.

    rows   (M,), the recorded rows in which the part is connected to the other one alone
    match  finds one of them, given the other part
    near   the largest distance of a match
    """

    rows: Tensor
    match: Match
    near: float


@dataclass(frozen=True, eq=False)
class ComposedParents(RecombinedParents):
    """Grouped parents in which contacts that were recorded one at a time also occur together.

    In a row in which a hook is on one box, another box is put into the hook too, as it was in a row in which the hook
    was where it is now. So there are local graphs that were never recorded, made of contacts that all were.

    Rows are drawn by `grouped`. Then each part that is connected to nothing draws, from a random recorded row, what to
    be connected to. If that is one part, and something else is connected to that part already, it is put there as in
    the nearest recorded row that has this contact. The row stays as it was if no such row is near, or if the change
    would connect anything else: nothing touches that was not recorded touching.

    part    (parents,), the part of each factor: what even the sparsest graph connects is one
    alone   (N, P), the part that each part is connected to in a recorded row; NO_PART if to none or to several
    joints  (part, other part) -> how the one is put to the other
    """

    name = "mocoda"

    grouped: GroupedParents
    recorded: Tensor
    part: Tensor
    alone: Tensor
    joints: Mapping[tuple[int, int], Joint]

    @staticmethod
    def fit(grouped: GroupedParents, seed: int | Stream) -> ComposedParents:
        """Learns, for each contact that is often recorded alone, which columns of the other part matter."""
        stream = as_stream(seed, "composed", device=grouped.recorded.device)
        composed = ComposedParents._of(grouped)
        joints = {}
        for (own, other), rows in composed._single_contacts().items():
            label = stream.child("joint", own, other)
            known, rest = (composed._columns(one) for one in (other, own))
            match = Match.fit(grouped.recorded[rows], known, rest, grouped.graph.relative, label)
            some = label.child("pilot").permutation(len(rows))[:PILOT_ROWS]
            pilot = label.child("pilot").child("near")
            _, distance = match.search.find(match.search.points[some, :-1], some[:, None], pilot)
            joints[own, other] = Joint(rows, match, float(distance.quantile(NEAR_QUANTILE)))
        return replace(composed, joints=joints)

    @staticmethod
    def _of(grouped: GroupedParents) -> ComposedParents:
        graph, recorded = grouped.graph, grouped.recorded
        part = graph.parts.to(recorded.device).unique(return_inverse=True)[1]
        alone = []
        for rows in recorded.split(BLOCK):
            contacts = contacts_of(graph, part, rows)
            alone.append(torch.where(contacts.sum(2) == 1, contacts.float().argmax(2), NO_PART))
        return ComposedParents(grouped, recorded, part, torch.cat(alone), {})

    def among(self, rows: Tensor) -> ComposedParents:
        other = ComposedParents._of(self.grouped.among(rows))
        joints = {
            key: Joint(own, self.joints[key].match.among(rows[own]), self.joints[key].near)
            for key, own in other._single_contacts().items()
            if key in self.joints
        }
        return replace(other, joints=joints)

    @property
    def source(self) -> dict[str, Any]:
        """Notes for the source of augmented tables: those of the grouped parents, but drawn otherwise."""
        return {"neighbourhoods": self.grouped.source["neighbourhoods"] | {"drawn": "composed"}}

    def draw(self, n: int, *, seed: int | Stream) -> Draw:
        stream = as_stream(seed, "composed", device=self.alone.device)
        drawn = self.grouped.draw(n, seed=stream.child("linked"))
        parts = self.alone.shape[1]
        for own in range(parts):
            wanted = self.alone[stream.child("wanted", own).integers(len(self.alone), n), own]
            for other in range(parts):
                if (own, other) in self.joints:
                    self._join(drawn, own, other, wanted == other, stream.child("joint", own, other))
        return drawn

    def _join(self, drawn: Draw, own: int, other: int, wanted: Tensor, stream: Stream) -> None:
        """Puts a part to another one, in those of the n rows where this is wanted (n,) and possible."""
        graph, joint = self.grouped.graph, self.joints[own, other]
        here = wanted.nonzero()[:, 0]
        contacts = contacts_of(graph, self.part, drawn.rows[here])
        possible = ~contacts[:, own].any(1) & contacts[:, other].any(1)
        here, contacts = here[possible], contacts[possible]
        new, nothing = drawn.at(here), here.new_zeros(len(here), 0)
        source, distance = joint.match.complete(new.rows, nothing, self.recorded[joint.rows], stream)
        new.donors[:, list(joint.match.rest)] = joint.rows[source][:, None]
        contacts[:, own, other] = contacts[:, other, own] = True
        fits = (distance <= joint.near) & (contacts_of(graph, self.part, new.rows) == contacts).all(2).all(1)
        drawn.put(here[fits], new.at(fits))

    def _single_contacts(self) -> dict[tuple[int, int], Tensor]:
        """(part, other part) -> the recorded rows in which the first touches the second alone, where they are many."""
        found = {}
        for own, others in enumerate(self.alone.T):
            for other in others.unique().tolist():
                rows = (others == other).nonzero()[:, 0]
                if other != NO_PART and len(rows) >= MIN_GROUP_ROWS:
                    found[own, other] = rows
        return found

    def _columns(self, part: int) -> list[int]:
        graph = self.grouped.graph
        inside = zip(graph.parents, (self.part == part).tolist(), strict=True)
        return list(graph.columns([name for name, is_own in inside if is_own]))


def contacts_of(graph: LocalGraph, part: Tensor, rows: Tensor) -> Tensor:
    """Which parts, of the factors' (parents,), an edge connects at each row (N, S + A): bool (N, P, P)."""
    member = torch.nn.functional.one_hot(part).float()
    edges = (member.T @ graph.mask(rows).float() @ member[: len(graph.children)]) > 0
    return (edges | edges.transpose(1, 2)) & ~torch.eye(edges.shape[1], dtype=torch.bool, device=rows.device)
