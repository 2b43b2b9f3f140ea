"""Which factors belong together in a row: those that its local graph connects.

A *group* is a set of factors that the edges of one local graph connect, directly or through others: a hand and the cube
that it holds, with the action; or a cube that lies by itself.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph, connected_components
from mocoda.parents.matching import standardised

BLOCK = 65_536  # rows whose local graphs are computed at a time
MIN_GROUP_ROWS = 200  # rows from which on it can be learned whether a group's parts depend on each other
# Rows of a group, and groups (the commonest), that are tested for dependence.
TESTED_ROWS, TESTED_GROUPS = 4_000, 8
FEATURES = 64  # random waves over a part
RIDGE = 1e-3  # of the rows, added to the normal equations
# Two parts depend on each other if one explains more than this share of the variance of a column of the other. It is
# 0.99 and more for held cubes and carried objects, and at most 0.2 in 2D Navigation, whose axes interact anywhere.
EXPLAINED = 0.5
LARGEST_NUMBER = 2**63 - 1


def neighbourhood(graph: LocalGraph, rows: Tensor) -> Tensor:
    """A number for the local graph at each row (N, S + A): int64 (N,), the same in every table.

    Its binary digits are the edges (parents × children, the first one lowest) that differ from the sparsest graph,
    which is 0. With more than 63 possible edges it is a hash of those that differ.
    """
    if not len(rows):
        return torch.zeros(0, dtype=torch.long, device=rows.device)
    return torch.cat([number_of(graph, graph.mask(block)) for block in rows.split(BLOCK)])


def number_of(graph: LocalGraph, masks: Tensor) -> Tensor:
    """The numbers (N,) that `neighbourhood` gives to local graphs (N, parents, children)."""
    differs = (masks != graph.sparsest.to(masks.device)).flatten(1)
    weights = torch.tensor(_edge_weights(differs.shape[1]), device=masks.device)
    return (differs * weights).sum(1) & LARGEST_NUMBER


@lru_cache
def _edge_weights(edges: int) -> list[int]:
    if edges <= 63:
        return [1 << edge for edge in range(edges)]
    digests = (hashlib.sha256(str(edge).encode()).digest() for edge in range(edges))
    return [int.from_bytes(digest[:8], "big") & LARGEST_NUMBER for digest in digests]


@dataclass(frozen=True, eq=False)
class Groups:
    """The groups of factors in each row.

    kind     (N,), the index of each row's local graph among the K that occur
    numbers  (K,), their `neighbourhood` numbers, ascending
    masks    (K, parents, children), their edges
    first    (K, parents), the first factor of each factor's group
    pool     (K, parents), for first factors, the index of their group: equal where the same factors have the same
             edges. For other factors, an index that no group has
    names    (pools,), a number for each group that is the same for any rows of this graph, ascending
    allowed  (N, parents), for first factors, whether their group may be drawn from a row; None: from all
    """

    kind: Tensor
    numbers: Tensor
    masks: Tensor
    first: Tensor
    pool: Tensor
    names: Tensor
    allowed: Tensor | None = None

    @staticmethod
    def of(graph: LocalGraph, rows: Tensor) -> Groups:
        """Those of rows (N, S + A)."""
        numbers, kind = torch.unique(neighbourhood(graph, rows), return_inverse=True)
        example = torch.empty(len(numbers), dtype=torch.long, device=rows.device)
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
        # A group's name is a sum of random numbers, one for each of its factors and edges.
        stream, shape = Stream(0, "local graphs"), (len(graph.parents), len(graph.children))
        factor = stream.integers(2**62, shape[0]).to(rows.device)
        edge = stream.integers(2**62, *shape).to(rows.device)
        own = factor + (masks * edge).sum(2)  # (K, parents)
        whole = torch.zeros_like(own).scatter_add_(1, first, own)
        names, pool = torch.unique(whole, return_inverse=True)
        return Groups(kind, numbers, masks, first, pool, names)

    @cached_property
    def is_first(self) -> Tensor:
        """(K, parents), whether a factor is the first of its group."""
        return self.first == torch.arange(self.first.shape[1], device=self.first.device)

    @cached_property
    def count(self) -> Tensor:
        """(pools,), how many rows have each group."""
        row, factor = self._pieces
        return self.pool[self.kind[row], factor].bincount(minlength=len(self.names))

    @cached_property
    def start(self) -> Tensor:
        """(pools,), where the rows of each group begin in `order`."""
        return self.count.cumsum(0) - self.count

    @cached_property
    def order(self) -> Tensor:
        """The rows that have the first group, then those that have the second, and so on."""
        row, factor = self._pieces
        return row[self.pool[self.kind[row], factor].argsort(stable=True)]

    @property
    def _pieces(self) -> tuple[Tensor, ...]:
        """Each row with the first factors of its groups, as indices."""
        first = self.is_first[self.kind]
        return (first if self.allowed is None else first & self.allowed).nonzero(as_tuple=True)

    def rows_with(self, pool: int) -> Tensor:
        """The rows that have a group, ascending."""
        return self.order[int(self.start[pool]) :][: int(self.count[pool])]

    def members(self, pool: int) -> tuple[Tensor, Tensor]:
        """A group's factors, bool (parents,), and a local graph (parents, children) in which they are connected."""
        kind, factor = (self.pool == pool).nonzero()[0].tolist()
        return self.first[kind] == factor, self.masks[kind]


def factors_of(graph: LocalGraph, members: Tensor) -> list[str]:
    """The names of factors that are given as bool (parents,)."""
    return [graph.parents[i] for i in members.nonzero()[:, 0].tolist()]


def parent_sets_at(graph: LocalGraph, mask: Tensor) -> list[tuple[str, ...]]:
    """The parent sets under a local graph (parents, children); those that touch and share factors are merged.

    A set touches if it has edges that the sparsest graph lacks. Sets that touch are matched as a whole or not at all.
    """
    sparsest = [set(names) for names in graph.parent_sets]
    sets = [set(names) for names in graph_at(graph, mask).parent_sets]
    apart = [own for own in sets if any(own <= other for other in sparsest)]
    touching: list[set[str]] = []
    for own in sets:
        if own not in apart:
            near = [other for other in touching if other & own]
            touching = [other for other in touching if not other & own] + [own.union(*near)]
    apart = [own for own in apart if not any(own <= other for other in touching)]
    return [tuple(name for name in graph.parents if name in own) for own in (*apart, *touching)]


def graph_at(graph: LocalGraph, mask: Tensor) -> LocalGraph:
    """The graph that has the edges of a mask (parents, children) everywhere.

    Parent sets that were given stay, and children with other edges than in the sparsest graph add their own.
    """
    edges = {
        child: [name for name, edge in zip(graph.parents, column, strict=True) if edge]
        for child, column in zip(graph.children, mask.T.tolist(), strict=True)
    }
    given = graph.given_parent_sets
    if given is not None:
        given = [*given, *(edges[child] for child in graph.children if set(edges[child]) != set(graph.edges[child]))]
    return replace(graph, edges=edges, local=None, given_parent_sets=given, absent={})


def belong_together(rows: Tensor, graph: LocalGraph, stream: Stream) -> bool:
    """Whether connected parts depend on each other in recorded rows (N, S + A), as a held cube's place on the hand's.

    A part is a set of factors that even the sparsest graph connects. Where a local graph connects several, each is
    predicted from the others by a regression on random features, and judged on held-out rows. If nothing is explained
    of any part, connected parts need not be kept as recorded together.
    """
    groups = Groups.of(graph, rows)
    part = graph.parts.to(rows.device)
    tested = 0
    commonest = groups.count.argsort(descending=True, stable=True)
    for number in commonest[groups.count[commonest] >= MIN_GROUP_ROWS].tolist():
        members, _ = groups.members(number)
        if len(part[members].unique()) < 2:
            continue
        having = groups.rows_with(number)
        own = rows[having[stream.child("rows", number).permutation(len(having))[:TESTED_ROWS]]]
        if _depend(own, graph, part, members, stream.child("group", number)):
            return True
        tested += 1
        if tested == TESTED_GROUPS:
            break
    return tested == 0  # too few rows to tell


def _depend(rows: Tensor, graph: LocalGraph, part: Tensor, members: Tensor, stream: Stream) -> bool:
    """Whether the other parts of a group, given as bool (parents,), explain any of its parts in rows (M, S + A)."""
    numbers = part[members].unique().tolist()
    columns = {number: graph.columns(factors_of(graph, members & (part == number))) for number in numbers}
    for number in numbers:
        others = [column for other in numbers if other != number for column in columns[other]]
        known = _waves(rows[:, others], stream.child("waves", number))
        if _explained(known, standardised(rows[:, columns[number]])) > EXPLAINED:
            return True
    return False


def _waves(values: Tensor, stream: Stream) -> Tensor:
    """A constant, the columns (M, C) and random waves over all of them: (M, 1 + C + FEATURES)."""
    standard = standardised(values)
    slopes = stream.child("slopes").normal(standard.shape[1], FEATURES).double() / standard.shape[1] ** 0.5
    shifts = 2 * torch.pi * stream.child("shifts").uniform(FEATURES).double()
    return torch.cat([torch.ones_like(standard[:, :1]), standard, (standard @ slopes + shifts).cos()], 1)


def _explained(known: Tensor, target: Tensor) -> float:
    """The largest share of a target column's variance (M, C) that known features (M, F) explain on held-out rows."""
    half = len(known) // 2
    gram = known[:half].T @ known[:half]
    gram.diagonal().add_(RIDGE * half)
    weights = torch.linalg.solve(gram, known[:half].T @ target[:half])
    left = (target[half:] - known[half:] @ weights).square().mean(0)
    variance = target[half:].var(0, correction=0)
    return float(torch.where(variance > 1e-12, 1 - left / variance, 0.0).max())
