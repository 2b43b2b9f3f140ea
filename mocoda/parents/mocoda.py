"""Transitions, LocalGraph -> Mocoda, Stratified: mixtures of parent sets, one for all rows or one for each local graph.

A *neighbourhood* is where one local graph holds: all rows with the same mask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents.flattening import Region, inside
from mocoda.parents.mixture import GaussianMixture

DRAWN = ("empirical", "even")  # how neighbourhoods may be drawn
LEAST_ROWS = 50  # of a neighbourhood that can be fitted
ROWS_A_COLUMN = 10  # of every component, at least: small neighbourhoods have fewer components
MISSED = "Does its local graph hold on a thin set only? Leave out stratified=True."


@dataclass(frozen=True, eq=False)
class Mocoda:
    """The paper's Algorithm 1: one mixture per parent set, drawn in turn, each given the columns already drawn.

    Every parent set keeps its recorded distribution, and what no set has in common becomes independent. For that, the
    sets are drawn along a tree: the next one is always that which shares the most columns with a single set already
    drawn. Where the sets form a cycle (ab, bc, ca) no order is exact, and the last of them is conditioned on both.
    """

    name = "mocoda"

    width: int
    sets: tuple[tuple[tuple[int, ...], GaussianMixture], ...]  # columns of a row, and their mixture
    shuffle: bool = False

    @staticmethod
    def fit(
        data: Transitions,
        graph: LocalGraph,
        components: int,
        covariance: str,
        shuffle: bool,
        seed: int | Stream,
    ) -> Mocoda:
        rows = data.rows
        stream = as_stream(seed, "mocoda", device=rows.device)
        sets = []
        for names in graph.parent_sets:
            columns = graph.columns(names)
            mixture = GaussianMixture.fit(rows[:, columns], components, covariance, stream.child(*names))
            sets.append((columns, mixture))
        return Mocoda(graph.width, tuple(sets), shuffle)

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        stream = as_stream(seed, "mocoda", device=self.sets[0][1].means.device)
        if not self.shuffle:
            return self._in_order(self._order(list(range(len(self.sets)))), n, stream)
        orders = max(1, min(n, 16))
        sizes = [n // orders + (part < n % orders) for part in range(orders)]
        shuffled = [
            self._in_order(self._order(stream.permutation(len(self.sets)).tolist()), size, stream.child("part", part))
            for part, size in enumerate(sizes)
        ]
        return torch.cat(shuffled)[stream.permutation(n)]

    def _order(self, preferred: list[int]) -> list[int]:
        """All sets, the preferred ones as early as the tree allows."""
        columns = [set(columns) for columns, _ in self.sets]
        order, rest = preferred[:1], preferred[1:]
        while rest:
            following = max(rest, key=lambda new: max(len(columns[new] & columns[old]) for old in order))
            rest.remove(following)
            order.append(following)
        return order

    def _in_order(self, order: list[int], n: int, stream: Stream) -> Tensor:
        rows = torch.zeros(n, self.width, device=stream.device)
        drawn: set[int] = set()
        for number in order:
            columns, mixture = self.sets[number]
            known = [i for i, column in enumerate(columns) if column in drawn]
            rows[:, columns] = mixture.complete(rows[:, columns], known=known, seed=stream.child(number))
            drawn.update(columns)
        return rows

    def changed(self, change: Callable[[GaussianMixture], GaussianMixture]) -> Mocoda:
        """The same sets with other mixtures."""
        return replace(self, sets=tuple((columns, change(mixture)) for columns, mixture in self.sets))

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log density of each parent set at rows (N, S + A): (N, sets). The least says how well a row is supported."""
        return torch.stack([mixture.log_prob(rows[:, columns]) for columns, mixture in self.sets], 1)


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """One local graph, and the mixtures of its own parent sets over the rows recorded there."""

    mask: Tensor  # bool (parents, children)
    rows: int
    mixtures: Mocoda


@dataclass(frozen=True, eq=False)
class Stratified:
    """Appendix B.2: one set of mixtures per neighbourhood; what they draw outside of it is rejected.

    Within every neighbourhood, each parent set of its local graph keeps the distribution that it has there, as far as
    the borders allow. Neighbourhoods of fewer than LEAST_ROWS rows are not drawn, and not merged with others.
    """

    name = "mocoda"

    graph: LocalGraph
    neighbourhoods: tuple[Neighbourhood, ...]  # commonest first
    skipped: tuple[tuple[Tensor, int], ...]  # mask, and rows: too few
    drawn: str  # neighbourhoods as often as recorded, "empirical", or one as often as the other, "even"

    @staticmethod
    def fit(
        data: Transitions,
        graph: LocalGraph,
        components: int,
        covariance: str,
        shuffle: bool,
        drawn: str,
        seed: int | Stream,
    ) -> Stratified:
        if drawn not in DRAWN:
            raise unknown_name("way to draw neighbourhoods", drawn, DRAWN)
        stream = as_stream(seed, "stratified", device=data.device)
        masks, number, counts = torch.unique(graph.mask(data.rows), dim=0, return_inverse=True, return_counts=True)
        kept, skipped = [], []
        for i in counts.argsort(descending=True, stable=True).tolist():
            mask, rows = masks[i], int(counts[i])
            if rows < LEAST_ROWS:
                skipped.append((mask, rows))
                continue
            own, local = data[number == i], graph_at(graph, mask)
            widest = max(len(local.columns(names)) for names in local.parent_sets)
            fewer = max(1, min(components, rows // (ROWS_A_COLUMN * widest)))
            label = "".join(str(int(edge)) for edge in mask.flatten())
            mixtures = Mocoda.fit(own, local, fewer, covariance, shuffle, stream.child(label))
            kept.append(Neighbourhood(mask, rows, mixtures))
        if not kept:
            raise InputError(
                f"no local graph holds in {LEAST_ROWS} rows, the fewest to fit mixtures to; the commonest of "
                f"{len(counts)} holds in {int(counts.max())}. Record more data, or leave out stratified=True."
            )
        return Stratified(graph, tuple(kept), tuple(skipped), drawn)

    @property
    def source(self) -> dict[str, Any]:
        """What a table made of it should say: the recorded rows of each neighbourhood, and of those left out."""
        rows, skipped = [one.rows for one in self.neighbourhoods], [rows for _, rows in self.skipped]
        return {"neighbourhoods": {"drawn": self.drawn, "rows": rows, "skipped": skipped}}

    @property
    def shares(self) -> Tensor:
        """How often each neighbourhood is drawn, (neighbourhoods,) float64."""
        rows = [one.rows if self.drawn == "empirical" else 1 for one in self.neighbourhoods]
        return torch.tensor(rows, dtype=torch.float64) / sum(rows)

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        stream = as_stream(seed, "stratified", device=self.neighbourhoods[0].mask.device)
        chosen = stream.categories(self.shares.to(stream.device), n)
        rows = torch.zeros(n, self.graph.width, device=stream.device)
        for number, one in enumerate(self.neighbourhoods):
            mine, region, part = chosen == number, self.region(one.mask), stream.child(number)
            rows[mine] = inside(one.mixtures, region, int(mine.sum()), part, "neighbourhood", MISSED)
        return rows

    def changed(self, change: Callable[[GaussianMixture], GaussianMixture]) -> Stratified:
        """The same neighbourhoods with other mixtures."""
        changed = (replace(one, mixtures=one.mixtures.changed(change)) for one in self.neighbourhoods)
        return replace(self, neighbourhoods=tuple(changed))

    def region(self, mask: Tensor) -> Region:
        """Where the local graph is this one."""
        return lambda rows: (self.graph.mask(rows) == mask).all(2).all(1)


def graph_at(graph: LocalGraph, mask: Tensor) -> LocalGraph:
    """The graph whose sparsest edges are those of a mask (parents, children).

    Parent sets that were given stay, and children with other edges than in the sparsest graph add their own.
    """
    listened = mask.T.tolist()
    edges = {
        child: [name for name, edge in zip(graph.parents, listens, strict=True) if edge]
        for child, listens in zip(graph.children, listened, strict=True)
    }
    given = graph.given_parent_sets
    if given is not None:
        given = [*given, *(edges[child] for child in graph.children if set(edges[child]) != set(graph.edges[child]))]
    return replace(graph, edges=edges, local=None, given_parent_sets=given)
