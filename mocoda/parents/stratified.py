"""Stratified mixtures (Appendix B.2): one set of mixtures for each local graph.

A *neighbourhood* is where one local graph holds: all rows with the same mask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents.flattening import inside
from mocoda.parents.mixture import GaussianMixture
from mocoda.parents.recipe import Parents, Region

LEAST_ROWS = 50  # of a neighbourhood that can be fitted
ROWS_PER_COLUMN = 10  # of every component, at least: small neighbourhoods have fewer components
WAY_OUT = "Does its local graph hold on a thin set only? Pass stratified=False."


def fewer_components(components: int, rows: int, graph: LocalGraph) -> int:
    """As many components as so many rows can tell apart, at most `components`."""
    widest = max(len(graph.columns(names)) for names in graph.parent_sets)
    return max(1, min(components, rows // (ROWS_PER_COLUMN * widest)))


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """One local graph, and the mixtures of its own parent sets over the rows recorded there."""

    mask: Tensor  # bool (parents, children)
    rows: int
    mixtures: Any  # MixtureParents


@dataclass(frozen=True, eq=False)
class StratifiedParents:
    """One set of mixtures per neighbourhood; what they draw outside of it is rejected.

    Within every neighbourhood, each parent set of its local graph keeps the distribution that it has there, as far as
    the borders allow. Neighbourhoods of fewer than LEAST_ROWS rows are not drawn, and not merged with others.
    """

    name = "mocoda"

    graph: LocalGraph
    neighbourhoods: tuple[Neighbourhood, ...]  # commonest first
    skipped: tuple[tuple[Tensor, int], ...]  # mask, and rows: too few
    shares_by: str  # "empirical": neighbourhoods are drawn as often as recorded; "even": uniformly

    @staticmethod
    def fit(
        data: Transitions,
        graph: LocalGraph,
        fit_mixtures: Callable[[Transitions, LocalGraph, int, Stream], Parents],
        components: int,
        shares_by: str,
        seed: int | Stream,
    ) -> StratifiedParents:
        """`fit_mixtures` fits a neighbourhood: from its rows, its graph, a number of components and a seed."""
        stream = as_stream(seed, "stratified", device=data.device)
        masks, number, counts = torch.unique(graph.mask(data.rows), dim=0, return_inverse=True, return_counts=True)
        kept, skipped = [], []
        for i in counts.argsort(descending=True, stable=True).tolist():
            mask, rows = masks[i], int(counts[i])
            if rows < LEAST_ROWS:
                skipped.append((mask, rows))
                continue
            local, label = graph_at(graph, mask), "".join(str(int(edge)) for edge in mask.flatten())
            fewer = fewer_components(components, rows, local)
            kept.append(Neighbourhood(mask, rows, fit_mixtures(data[number == i], local, fewer, stream.child(label))))
        if not kept:
            raise InputError(
                f"no local graph holds in {LEAST_ROWS} rows, the fewest to draw from; the commonest of "
                f"{len(counts)} holds in {int(counts.max())}. Record more data, or pass stratified=False."
            )
        return StratifiedParents(graph, tuple(kept), tuple(skipped), shares_by)

    @property
    def source(self) -> dict[str, Any]:
        """What a table made of it should say: the recorded rows of each neighbourhood, and of those left out."""
        rows, skipped = [one.rows for one in self.neighbourhoods], [rows for _, rows in self.skipped]
        own = {"neighbourhoods": {"drawn": self.shares_by, "rows": rows, "skipped": skipped}}
        return own | getattr(self.neighbourhoods[0].mixtures, "source", {})

    @property
    def shares(self) -> Tensor:
        """How often each neighbourhood is drawn, (neighbourhoods,) float64."""
        rows = [one.rows if self.shares_by == "empirical" else 1 for one in self.neighbourhoods]
        return torch.tensor(rows, dtype=torch.float64) / sum(rows)

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        stream = as_stream(seed, "stratified", device=self.neighbourhoods[0].mask.device)
        chosen = stream.categories(self.shares.to(stream.device), n)
        rows = torch.zeros(n, self.graph.width, device=stream.device)
        for number, one in enumerate(self.neighbourhoods):
            here, region, part = chosen == number, self.region(one.mask), stream.child(number)
            rows[here] = inside(one.mixtures, region, int(here.sum()), part, "neighbourhood", WAY_OUT)
        return rows

    def with_mixtures(self, change: Callable[[GaussianMixture], GaussianMixture]) -> StratifiedParents:
        """The same neighbourhoods with every mixture changed."""
        changed = (replace(one, mixtures=one.mixtures.with_mixtures(change)) for one in self.neighbourhoods)
        return replace(self, neighbourhoods=tuple(changed))

    def region(self, mask: Tensor) -> Region:
        """Where the local graph is this one."""
        return lambda rows: (self.graph.mask(rows) == mask).all(2).all(1)


def graph_at(graph: LocalGraph, mask: Tensor) -> LocalGraph:
    """The graph whose sparsest edges are those of a mask (parents, children).

    Parent sets that were given stay, and children with other edges than in the sparsest graph add their own.
    """
    edges = {
        child: [name for name, edge in zip(graph.parents, column, strict=True) if edge]
        for child, column in zip(graph.children, mask.T.tolist(), strict=True)
    }
    given = graph.given_parent_sets
    if given is not None:
        given = [*given, *(edges[child] for child in graph.children if set(edges[child]) != set(graph.edges[child]))]
    return replace(graph, edges=edges, local=None, given_parent_sets=given)
