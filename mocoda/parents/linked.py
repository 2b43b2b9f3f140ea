"""Recorded rows that exchange what their local graphs do not link: the default of recipe "mocoda".

Where objects touch, the local graph links them, and they are kept as recorded together. What is not linked to them
comes from other rows. A *group* is what one local graph links, directly or through others: a hand and the cube that it
holds, with the action; or a cube that lies by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph, connected_components
from mocoda.parents.manifold import Manifold
from mocoda.parents.matched import MatchedParents, passes, spread
from mocoda.parents.stratified import graph_at

BLOCK = 65_536  # rows whose local graphs are found at a time
TRIES = 4  # times that a whole row is drawn before its groups are drawn one by one
LEAST_ROWS = 200  # of a group whose parts can be matched; one of fewer rows is kept as recorded
NAMED = 100  # local graphs whose rows a table's source counts, the commonest


@dataclass(frozen=True, eq=False)
class Groups:
    """Which factors are linked in each row, by its local graph.

    kind   (N,), the number of each row's local graph
    codes  (K,), what the local graphs are called, here and in other rows
    masks  (K, parents, children)
    first  (K, parents), the first factor of each factor's group
    pool   (K, parents), of first factors the number of their group, the same where the same factors have the same edges
    names  (pools,), what groups are called, here and in other rows
    """

    kind: Tensor
    codes: Tensor
    masks: Tensor
    first: Tensor
    pool: Tensor
    names: Tensor

    @staticmethod
    def of(graph: LocalGraph, rows: Tensor) -> Groups:
        codes, kind = torch.unique(codes_of(graph, rows), return_inverse=True)
        example = torch.empty(len(codes), dtype=torch.long, device=rows.device)
        example[kind] = torch.arange(len(rows), device=rows.device)
        masks = torch.cat([graph.mask(part) for part in rows[example].split(BLOCK)])
        given = [[name in group for group in graph.given_parent_sets or ()] for name in graph.parents]
        together = torch.tensor(given, dtype=torch.bool, device=rows.device)
        first = torch.cat(
            [
                connected_components(torch.cat([part, together.expand(len(part), -1, -1)], 2))[:, : len(graph.parents)]
                for part in masks.split(4_096)
            ]
        )
        number, weight = _weights(graph, rows.device)
        own = number + (masks * weight).sum(2)  # (K, parents): a factor, and what depends on it
        whole = torch.zeros_like(own).scatter_add_(1, first, own)
        names, pool = torch.unique(whole, return_inverse=True)
        return Groups(kind, codes, masks, first, pool, names)

    @property
    def is_first(self) -> Tensor:
        """(K, parents), whether a factor is the first of its group."""
        return self.first == torch.arange(self.first.shape[1], device=self.first.device)


def codes_of(graph: LocalGraph, rows: Tensor) -> Tensor:
    """A number for the local graph of each row (N, S + A): int64 (N,), the same wherever the graph is."""
    weight = _weights(graph, rows.device)[1]
    parts = [(graph.mask(part) * weight).sum((1, 2)) for part in rows.split(BLOCK)]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.long, device=rows.device)


def _weights(graph: LocalGraph, device: torch.device) -> tuple[Tensor, Tensor]:
    """Random numbers for factors (parents,) and edges (parents, children), whose sums tell sets of them apart."""
    stream = Stream(0, "local graphs")
    shape = len(graph.parents), len(graph.children)
    return stream.integers(2**62, shape[0]).to(device), stream.integers(2**62, *shape).to(device)


@dataclass(frozen=True, eq=False)
class LinkedParents:
    """Recorded rows whose groups come from other rows, in which the same factors are linked in the same way.

    Every new row has the local graph of a recorded one, so that local graphs are as frequent as recorded. Each of its
    groups is drawn from all recorded rows that have this group, whatever else they link; a row that would have another
    local graph is drawn again. After TRIES of these, its groups are exchanged one by one, and those that cannot be
    stay as recorded: no local graph is lost. Parent sets within a group that share factors even where nothing touches
    are matched (see MatchedParents); those that touch are as recorded together.

    recorded         (N, S + A)
    start, count     (K, parents), where the rows of each first factor's group begin in `order`, and how many they are
    order            rows, group after group
    owner            (S + A,), the factor of each column
    matched          a group's name -> what its parts are drawn from, where they are matched
    even             draw all local graphs equally often
    noise, manifold  what is added to each column, (S + A,), and how rows stay where they can be; None: nothing is
    """

    name = "mocoda"

    graph: LocalGraph
    recorded: Tensor
    groups: Groups
    start: Tensor
    count: Tensor
    order: Tensor
    owner: Tensor
    matched: Mapping[int, MatchedParents]
    even: bool = False
    noise: Tensor | None = None
    manifold: Manifold | None = None

    @staticmethod
    def fit(
        data: Transitions,
        graph: LocalGraph,
        seed: int | Stream,
        shuffle: bool = False,
        smoothing: float = 0.0,
        even: bool = False,
    ) -> LinkedParents:
        stream = as_stream(seed, "linked", device=data.device)
        plain = LinkedParents._of(data.rows, graph, even)
        matched = {}
        for name, sets, rows in plain._overlapping():
            local = replace(graph, local=None, given_parent_sets=sets)
            try:
                matched[name] = MatchedParents.fit(data[rows], local, stream.child("group", name), shuffle)
            except InputError:  # parts that do not match are kept as recorded together
                if 2 * len(rows) > len(data):
                    raise
        if not smoothing:
            return replace(plain, matched=matched)
        manifold = Manifold.of(data.rows, graph)
        return replace(plain, matched=matched, noise=smoothing * spread(data.rows), manifold=manifold)

    @staticmethod
    def _of(rows: Tensor, graph: LocalGraph, even: bool) -> LinkedParents:
        groups = Groups.of(graph, rows)
        is_first = groups.is_first[groups.kind]  # (N, parents)
        pool = groups.pool[groups.kind][is_first]
        order = is_first.nonzero()[:, 0][pool.argsort(stable=True)]
        count = pool.bincount(minlength=len(groups.names))
        start = count.cumsum(0) - count
        owner = {column: i for i, name in enumerate(graph.parents) for column in graph.factors[name]}
        of_column = torch.tensor([owner[column] for column in range(graph.width)], device=rows.device)
        return LinkedParents(graph, rows, groups, start[groups.pool], count[groups.pool], order, of_column, {}, even)

    def among(self, rows: Tensor) -> LinkedParents:
        """The same among other recorded rows (N, S + A): what is matched is matched by the same columns."""
        other = LinkedParents._of(rows, self.graph, self.even)
        fresh = {name: own for name, _, own in other._overlapping()}
        matched = {name: one.among(rows[fresh[name]]) for name, one in self.matched.items() if name in fresh}
        return replace(other, matched=matched, noise=self.noise, manifold=self.manifold)

    @property
    def source(self) -> dict[str, Any]:
        """What a table made of it should say: in how many recorded rows the commonest local graphs hold."""
        rows = self.groups.kind.bincount().sort(descending=True).values[:NAMED].tolist()
        return {"neighbourhoods": {"drawn": "even" if self.even else "empirical", "rows": rows, "skipped": []}}

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        stream = as_stream(seed, "linked", device=self.recorded.device)
        base = self._bases(n, stream.child("base"))
        kind = self.groups.kind[base]
        rows = self._propose(kind, stream.child("whole", 0))
        wrong = self._elsewhere(rows, kind).nonzero()[:, 0]
        for attempt in range(1, TRIES):
            if not len(wrong):
                break
            again = self._propose(kind[wrong], stream.child("whole", attempt))
            rows[wrong] = again
            wrong = wrong[self._elsewhere(again, kind[wrong])]
        if len(wrong):
            rows[wrong] = self._exchanged(base[wrong], stream.child("one by one"))
        return self._smoothed(rows, kind, stream.child("noise"))

    def _bases(self, n: int, stream: Stream) -> Tensor:
        """The recorded rows (n,) whose local graphs the new ones have."""
        if not self.even:
            return passes(len(self.recorded), n, stream)
        order, count = self.groups.kind.argsort(stable=True), self.groups.kind.bincount()
        chosen = stream.integers(len(count), n)
        place = (stream.uniform(n, dtype=torch.float64) * count[chosen]).long().minimum(count[chosen] - 1)
        return order[(count.cumsum(0) - count)[chosen] + place]

    def _propose(self, kind: Tensor, stream: Stream) -> Tensor:
        """Rows (n, S + A) of groups that are linked as in these local graphs, each group of a row of its own."""
        count = self.count[kind]
        place = (stream.uniform(*count.shape, dtype=torch.float64) * count).long().minimum(count - 1)
        donor = self.order[self.start[kind] + place]  # (n, parents), of which those of first factors are used
        group = self.groups.first[kind][:, self.owner]  # (n, S + A)
        rows = self.recorded[donor.gather(1, group), torch.arange(len(self.owner), device=kind.device)]
        if not self.matched:
            return rows
        names = self.groups.names[self.groups.pool][kind].masked_fill(~self.groups.is_first[kind], 0)
        for name, one in self.matched.items():
            here, factor = (names == name).nonzero(as_tuple=True)
            if len(here):
                drawn = one.sample(len(here), seed=stream.child("group", name))
                rows[here] = torch.where(group[here] == factor[:, None], drawn, rows[here])
        return rows

    def _exchanged(self, base: Tensor, stream: Stream) -> Tensor:
        """Recorded rows (n,) in which as many groups are exchanged as leave the local graph: (n, S + A)."""
        kind, rows = self.groups.kind[base], self.recorded[base]
        group, others = self.groups.first[kind][:, self.owner], self._propose(kind, stream)
        for factor in stream.child("order").permutation(self.groups.first.shape[1]).tolist():
            here = self.groups.is_first[kind, factor].nonzero()[:, 0]
            new = torch.where(group[here] == factor, others[here], rows[here])
            fits = ~self._elsewhere(new, kind[here])
            rows[here[fits]] = new[fits]
        return rows

    def _elsewhere(self, rows: Tensor, kind: Tensor) -> Tensor:
        """Which rows (n, S + A) have another local graph than these, bool (n,)."""
        return codes_of(self.graph, rows) != self.groups.codes[kind]

    def _smoothed(self, rows: Tensor, kind: Tensor, stream: Stream) -> Tensor:
        if self.noise is None or self.manifold is None:
            return rows
        moved = self.manifold.project(rows + self.noise * stream.normal(*rows.shape))
        return torch.where(self._elsewhere(moved, kind)[:, None], rows, moved)

    def _overlapping(self) -> list[tuple[int, list[tuple[str, ...]], Tensor]]:
        """The groups of several parent sets that share factors: name, sets, and the recorded rows that have them."""
        found = []
        many = (self.groups.first[:, :, None] == self.groups.first[:, None]).sum(2) > 1  # (K, parents)
        wanted = self.groups.is_first & many & (self.count >= LEAST_ROWS)
        seen: set[int] = set()
        for kind, factor in wanted.nonzero().tolist():
            pool = int(self.groups.pool[kind, factor])
            if pool in seen:
                continue
            seen.add(pool)
            members = {self.graph.parents[i] for i in (self.groups.first[kind] == factor).nonzero()[:, 0].tolist()}
            sets = [one for one in linked_sets(self.graph, self.groups.masks[kind]) if members.issuperset(one)]
            if len(sets) > 1:
                begin, size = int(self.start[kind, factor]), int(self.count[kind, factor])
                found.append((int(self.groups.names[pool]), sets, self.order[begin : begin + size]))
        return found


def linked_sets(graph: LocalGraph, mask: Tensor) -> list[tuple[str, ...]]:
    """The parent sets under a local graph (parents, children), where those that touch and share factors are one.

    A set touches if it has edges that the sparsest graph lacks. What touches is matched only as a whole.
    """
    usual = [set(names) for names in graph.parent_sets]
    sets = [set(names) for names in graph_at(graph, mask).parent_sets]
    apart = [own for own in sets if any(own <= other for other in usual)]
    touching: list[set[str]] = []
    for own in sets:
        if own not in apart:
            near = [other for other in touching if other & own]
            touching = [other for other in touching if not other & own] + [own.union(*near)]
    apart = [own for own in apart if not any(own <= other for other in touching)]
    return [tuple(name for name in graph.parents if name in own) for own in (*apart, *touching)]
