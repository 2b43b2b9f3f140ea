"""Draws new rows that are made of pieces of recorded ones, as recipe "mocoda" does by default.

`MatchedParents`: a piece is a parent set, and those that share columns are matched. `GroupedParents`: a piece is what
the row's local graph connects, and a row is kept if its local graph is the one that was asked for. `ComposedParents`
then joins contacts that were recorded one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents.groups import BLOCK, MIN_GROUP_ROWS, Groups, factors_of, neighbourhood, parent_sets_at
from mocoda.parents.matching import Match, drawing_order
from mocoda.parents.recipe import Draw, ParentsWithDonors, Part

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


class Step(NamedTuple):
    """One of the parent sets from which a row is made in turn.

    number  of the set
    known   its columns that the sets before have drawn, ascending
    rest    the others, which this one draws; not empty
    """

    number: int
    known: tuple[int, ...]
    rest: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class MatchedParents(ParentsWithDonors):
    """Draws each parent set from a recorded row that matches the columns drawn before (Algorithm 1, without mixtures).

    The first set is that of a recorded row. Every next one takes its remaining columns from the recorded row that is
    nearest in the columns it shares, among a random part of the rows, and never from a row that is in it already. The
    sets take turns at being the first. Sets that share nothing are recorded rows in independent random orders.

    recorded  (N, S + A)
    orders    in which the sets are drawn, by turns
    matches   how the rest of a set is found, where some of it is known
    firsts    set -> the recorded rows (M,) that it is copied from where it is drawn first, if not from all
    """

    name = "mocoda"

    recorded: Tensor
    orders: tuple[tuple[Step, ...], ...]
    matches: Mapping[Step, Match]
    firsts: Mapping[int, Tensor] = field(default_factory=dict)

    @staticmethod
    def fit(data: Transitions, graph: LocalGraph, seed: int | Stream) -> MatchedParents:
        """Learns which of the shared columns matter for each match."""
        rows = data.rows
        stream = as_stream(seed, "matched", device=rows.device)
        sets = [graph.columns(names) for names in graph.parent_sets]
        if len(rows) <= len(sets):
            raise InputError(
                f"density='matched' takes each of {len(sets)} parent sets from another recorded row, and there are "
                f"{len(rows)} rows; record more."
            )
        orders = _orders(sets, stream.child("orders"))
        matches: dict[Step, Match] = {}
        for step in (step for order in orders for step in order):
            if step.known and step not in matches:
                label = stream.child("match", step.number, *step.known)
                matches[step] = Match.fit(rows, step.known, step.rest, graph.relative, label)
        fitted = MatchedParents(rows, orders, matches)
        fitted._check_reach(data, graph, stream.child("pilot"))
        return fitted

    def draw(self, n: int, *, seed: int | Stream) -> Draw:
        stream = as_stream(seed, "matched", device=self.recorded.device)
        return self._draw(n, self._turns(stream), stream)

    def conditioned(self, parts: Sequence[Part]) -> MatchedParents:
        """Draws the rarest sets first, from recorded rows that meet the conditions on their columns."""
        firsts: dict[int, Tensor] = {}
        for step in (step for order in self.orders for step in order if not step.known):
            own = [holds for columns, holds in parts if {*columns} <= {*step.rest}]
            if own and len(having := torch.stack(own).all(0).nonzero()[:, 0]):
                firsts[step.number] = having
        share = {number: len(rows) / len(self.recorded) for number, rows in firsts.items()}
        rarest = min(self.orders, key=lambda order: prod(share.get(s.number, 1.0) for s in order if not s.known))
        return replace(self, orders=(rarest,), firsts=firsts) if firsts else self

    def _turns(self, stream: Stream) -> tuple[tuple[Step, ...], ...]:
        """The orders, beginning with a random one."""
        begin = int(stream.integers(len(self.orders), 1))
        return self.orders[begin:] + self.orders[:begin]

    def _draw(self, n: int, turns: tuple[tuple[Step, ...], ...], stream: Stream) -> Draw:
        """n rows, of which every `len(turns)`-th is drawn in the same order."""
        rows = self.recorded.new_zeros(n, self.recorded.shape[1])
        donors = torch.zeros(rows.shape, dtype=torch.long, device=rows.device)
        firsts = {step.number for order in turns for step in order if not step.known}
        every = torch.arange(len(self.recorded), device=rows.device)
        pools = {number: self.firsts.get(number, every) for number in firsts}
        whole = {i: pool[without_repeats(len(pool), n, stream.child("first", i))] for i, pool in pools.items()}
        for turn, order in enumerate(turns):
            part, donor = rows[turn :: len(turns)], donors[turn :: len(turns)]
            sources = torch.zeros(len(part), 0, dtype=torch.long, device=rows.device)
            for step in order:
                if step.known:
                    own = stream.child("turn", turn, step.number)
                    source, _ = self.matches[step].complete(part, sources, self.recorded, own)
                else:
                    source = whole[step.number][turn :: len(turns)]
                    part[:, step.rest] = self.recorded[source][:, step.rest]
                donor[:, step.rest] = source[:, None]
                sources = torch.cat([sources, source[:, None]], 1)
        return Draw(rows, donors)

    def _check_reach(self, data: Transitions, graph: LocalGraph, stream: Stream) -> None:
        """Raises if matches are not near recorded rows, as may happen in a cycle of sets, or with few rows."""
        if not self.matches:
            return
        turns = self._turns(stream)
        drawn = self._draw(min(len(self.recorded), PILOT_ROWS) * len(turns), turns, stream)
        turn_of = {step: turn for turn, order in enumerate(turns) for step in order if step.known}
        one, other = stream.integers(len(self.recorded), 2, PILOT_ROWS)
        for step, turn in turn_of.items():
            match, own_turn = self.matches[step], slice(turn, None, len(turns))
            values, source = drawn.rows[own_turn, step.known], drawn.donors[own_turn, step.rest[0]]
            own, _ = match.another(one, stream.child("own", step.number))
            recorded = self.recorded[:, step.known]
            # Distances in the metric, and in standard deviations of the shared columns: the metric ignores directions
            # in which recorded rows do not differ.
            pairs = ((recorded[one], recorded[other]), (values, recorded[source]), (recorded[one], recorded[own]))
            random, far, _ = (float((match.metric(a) - match.metric(b)).norm(dim=1).median()) for a, b in pairs)
            _, gap, usual = (float(((a - b) / match.metric.scale).square().mean(1).sqrt().median()) for a, b in pairs)
            if random > NEGLIGIBLE and (far > MAX_RELATIVE_DISTANCE * random or gap > max(NEGLIGIBLE, MAX_GAP * usual)):
                names = ", ".join(data.columns[column] for column in step.known)
                raise InputError(
                    f"the parent set ({', '.join(graph.parent_sets[step.number])}) finds no match in {names}: the "
                    f"nearest recorded row is typically {gap:.2g} standard deviations away, where {usual:.2g} is usual "
                    f"for recorded rows; the rest it predicts is {far / random:.0%} as far off as a random row's. "
                    "Record more rows, change the graph's parent sets, or use density='mixture'."
                )


def _orders(sets: Sequence[tuple[int, ...]], stream: Stream) -> tuple[tuple[Step, ...], ...]:
    """Orders along the tree of sets, each of which begins with another set, without those that match alike."""
    firsts = range(len(sets)) if len(sets) <= MAX_ORDERS else stream.permutation(len(sets))[:MAX_ORDERS].tolist()
    orders = [_steps(sets, drawing_order(sets, first)) for first in firsts]
    return tuple({frozenset(order): order for order in reversed(orders)}.values())[::-1]


def _steps(sets: Sequence[tuple[int, ...]], order: Sequence[int]) -> tuple[Step, ...]:
    seen: set[int] = set()
    steps = []
    for number in order:
        rest = tuple(column for column in sets[number] if column not in seen)
        steps.append(Step(number, tuple(sorted(seen.intersection(sets[number]))), rest))
        seen.update(rest)
    return tuple(step for step in steps if step.rest)


def without_repeats(rows: int, n: int, stream: Stream) -> Tensor:
    """n row indices (n,), drawn without replacement until all are used, and then again."""
    return torch.cat([stream.permutation(rows) for _ in range(max(1, -(-n // rows)))])[:n]


@dataclass(frozen=True, eq=False)
class GroupedParents(ParentsWithDonors):
    """Draws each group of a row from another recorded row in which the same factors are connected in the same way.

    Every new row has the local graph of a recorded one, so that local graphs are as frequent as recorded. Each of its
    groups is drawn from all recorded rows that have this group, whatever else they connect; a row that would have
    another local graph is drawn again. After TRIES of these, its groups are exchanged one by one, and those that cannot
    be stay as recorded, so that no local graph is lost. Parent sets within a group that share factors even where
    nothing touches are matched (see MatchedParents); those that touch are copied jointly.

    recorded  (N, S + A)
    owner     (S + A,), the factor of each column
    matched   index of a group whose parts are matched -> the recorded rows (M,) that have it, and their parents
    weights   (N,), how often the local graph of each recorded row is drawn; None: equally often
    """

    name = "mocoda"

    graph: LocalGraph
    recorded: Tensor
    groups: Groups
    owner: Tensor
    matched: Mapping[int, tuple[Tensor, MatchedParents]]
    weights: Tensor | None = None

    @staticmethod
    def fit(data: Transitions, graph: LocalGraph, seed: int | Stream) -> GroupedParents:
        """Collects the rows of each group, and learns the matches within groups."""
        stream = as_stream(seed, "linked", device=data.device)
        groups = Groups.of(graph, data.rows)
        matched = {}
        for pool in (groups.count >= MIN_GROUP_ROWS).nonzero()[:, 0].tolist():
            members, mask = groups.members(pool)
            names = set(factors_of(graph, members))
            sets = [one for one in parent_sets_at(graph, mask) if names.issuperset(one)]
            if len(sets) < 2:
                continue
            rows, label = groups.rows_with(pool), stream.child("group", int(groups.names[pool]))
            local = replace(graph, local=None, given_parent_sets=sets, absent={})
            try:
                matched[pool] = rows, MatchedParents.fit(data[rows], local, label)
            except InputError:  # parts that do not match are copied jointly
                if 2 * len(rows) > len(data):
                    raise
        _ = groups.start, groups.order  # found here once, rather than in every process that draws
        return GroupedParents(graph, data.rows, groups, graph.owner.to(data.device), matched)

    @property
    def source(self) -> dict[str, Any]:
        """Notes for the source of augmented tables: in how many recorded rows the commonest local graphs hold."""
        rows = self.groups.kind.bincount().sort(descending=True).values[:MAX_COUNTED].tolist()
        return {"neighbourhoods": {"drawn": "empirical", "rows": rows, "skipped": []}}

    def draw(self, n: int, *, seed: int | Stream) -> Draw:
        stream = as_stream(seed, "linked", device=self.recorded.device)
        chosen = stream.child("base")  # rows whose local graphs are those of new rows
        weights, count = self.weights, len(self.recorded)
        base = without_repeats(count, n, chosen) if weights is None else chosen.categories(weights, n)
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

    def conditioned(self, parts: Sequence[Part]) -> GroupedParents:
        """Draws each group from recorded rows that meet the conditions on its columns, and local graphs accordingly."""
        groups = self.groups
        allowed = torch.ones(len(self.recorded), groups.first.shape[1], dtype=torch.bool, device=self.recorded.device)
        for columns, holds in parts:
            group = groups.first[:, self.owner[columns]]  # (K, columns)
            refused = ((group == group[:, :1]).all(1)[groups.kind] & ~holds).nonzero()[:, 0]
            allowed[refused, group[groups.kind[refused], 0]] = False
        for pool in self.matched:  # these join recorded parts themselves
            allowed |= (groups.pool == pool)[groups.kind]
        fewer = replace(groups, allowed=allowed)
        share = torch.where(groups.is_first, (fewer.count / groups.count)[groups.pool], 1.0).prod(1)  # (K,)
        matched = {
            pool: (rows, parents.conditioned([(columns, holds[rows]) for columns, holds in parts]))
            for pool, (rows, parents) in self.matched.items()
        }
        weights = share[groups.kind]
        return replace(self, groups=fewer, matched=matched, weights=weights) if bool(weights.any()) else self

    def _propose(self, kind: Tensor, stream: Stream) -> Draw:
        """Rows that have the groups of these local graphs (n,), each group from another recorded row."""
        pool = self.groups.pool[kind]
        count = self.groups.count[pool]
        place = (stream.uniform(*count.shape, dtype=torch.float64) * count).long().minimum(count - 1)
        donor = self.groups.order[self.groups.start[pool] + place]  # (n, parents), those of first factors are used
        group = self.groups.first[kind][:, self.owner]  # (n, S + A)
        donors = donor.gather(1, group)
        rows = self.recorded[donors, torch.arange(len(self.owner), device=kind.device)]
        for number, (having, parents) in self.matched.items():
            here, factor = (pool == number).nonzero(as_tuple=True)
            if len(here):
                own, label = group[here] == factor[:, None], stream.child("group", int(self.groups.names[number]))
                drawn = parents.draw(len(here), seed=label)
                rows[here] = torch.where(own, drawn.rows, rows[here])
                donors[here] = torch.where(own, having[drawn.donors], donors[here])
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
class ComposedParents(ParentsWithDonors):
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
    part: Tensor
    alone: Tensor
    joints: Mapping[tuple[int, int], Joint]

    @staticmethod
    def fit(grouped: GroupedParents, seed: int | Stream) -> ComposedParents:
        """Learns, for each contact that is often recorded alone, which columns of the other part matter."""
        graph, recorded = grouped.graph, grouped.recorded
        stream = as_stream(seed, "composed", device=recorded.device)
        part = graph.parts.to(recorded.device).unique(return_inverse=True)[1]
        columns = [graph.columns(factors_of(graph, part == number)) for number in part.unique()]
        alone = torch.cat([_only_contact(contacts_of(graph, part, rows)) for rows in recorded.split(BLOCK)])
        joints = {}
        for own, others in enumerate(alone.T):
            for other in others.unique().tolist():
                rows = (others == other).nonzero()[:, 0]
                if other == NO_PART or len(rows) < MIN_GROUP_ROWS:
                    continue
                label = stream.child("joint", own, other)
                match = Match.fit(recorded[rows], columns[other], columns[own], graph.relative, label)
                some = label.child("pilot").permutation(len(rows))[:PILOT_ROWS]
                _, distance = match.another(some, label.child("pilot").child("near"))
                joints[own, other] = Joint(rows, match, float(distance.quantile(NEAR_QUANTILE)))
        return ComposedParents(grouped, part, alone, joints)

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
        source, distance = joint.match.complete(new.rows, nothing, self.grouped.recorded[joint.rows], stream)
        new.donors[:, list(joint.match.rest)] = joint.rows[source][:, None]
        contacts[:, own, other] = contacts[:, other, own] = True
        fits = (distance <= joint.near) & (contacts_of(graph, self.part, new.rows) == contacts).all(2).all(1)
        drawn.put(here[fits], new.at(fits))


def _only_contact(contacts: Tensor) -> Tensor:
    """The part that each part touches, of contacts (N, P, P): (N, P); NO_PART where these are none or several."""
    return torch.where(contacts.sum(2) == 1, contacts.float().argmax(2), NO_PART)


def contacts_of(graph: LocalGraph, part: Tensor, rows: Tensor) -> Tensor:
    """Which parts, of the factors' (parents,), an edge connects at each row (N, S + A): bool (N, P, P)."""
    member = torch.nn.functional.one_hot(part).float()
    edges = (member.T @ graph.mask(rows).float() @ member[: len(graph.children)]) > 0
    return (edges | edges.transpose(1, 2)) & ~torch.eye(edges.shape[1], dtype=torch.bool, device=rows.device)
