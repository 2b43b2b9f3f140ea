"""MoCoDA: recorded parent sets in new combinations, drawn from recorded rows or Gaussian mixtures (Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents.groups import belong_together, graph_at
from mocoda.parents.matching import drawing_order
from mocoda.parents.mixture import GaussianMixture, Manifold, check_components
from mocoda.parents.recipe import Model, Parents, Recipe, Region, TaskHints, inside
from mocoda.parents.recombination import ComposedParents, GroupedParents, MatchedParents

DENSITIES = ("matched", "mixture")
MIN_STRATUM_ROWS = 50  # of a local graph to which mixtures can be fitted
ROWS_PER_COLUMN = 10  # of every component, at least: with few rows, mixtures have fewer components
WAY_OUT = "Does its local graph hold on a thin set only? Pass stratified=False."


@dataclass(frozen=True)
class Mocoda(Recipe):
    """Parent sets recombined: each as recorded, together in new ways (MoCoDA).

    density      how parent sets are drawn: from recorded rows, "matched" on the columns they share, or from a Gaussian
                 "mixture"
    components   of every parent set's Gaussian mixture
    stratified   where the graph has a local rule, draw for every local graph what belongs together there, and only
                 where it holds (Appendix B.2): what touches is copied jointly. Recorded rows are drawn so only if the
                 data shows that what touches belongs together (see belong_together)
    composition  if matched, contacts that were recorded one at a time also occur together, in local graphs that were
                 never recorded (see ComposedParents)
    project      keep what a mixture draws in the recorded ranges, and unit vectors at length 1
    """

    name: ClassVar[str] = "mocoda"
    title: ClassVar[str] = "MoCoDA"
    colour: ClassVar[str] = "#2563a8"

    density: str = "matched"
    components: int = 32
    stratified: bool = True
    composition: bool = False
    project: bool = True

    def __post_init__(self) -> None:
        check_components(self.components)
        if self.density not in DENSITIES:
            raise unknown_name("density", self.density, DENSITIES)
        if self.composition and not self.stratified:
            raise InputError(
                "composition combines contacts that local graphs tell apart, which stratified=False ignores; leave it "
                "out."
            )
        if self.composition and self.density != "matched":
            raise InputError("composition matches recorded parts; leave out density='mixture'.")

    def fit(
        self, data: Transitions, graph: LocalGraph, *, task: TaskHints | None, model: Model | None, seed: int | Stream
    ) -> Parents:
        """One density of parent sets for all rows, or one for each local graph."""
        stream = as_stream(seed, "parents", device=data.device)
        by_local_graph = self.stratified and graph.varies
        if self.density == "mixture":
            manifold = Manifold.of(data.rows, graph) if self.project else None
            if by_local_graph:
                return StratifiedParents.fit(data, graph, self.components, stream, manifold)
            return MixtureParents.fit(data, graph, self.components, stream, manifold=manifold)
        if by_local_graph and self.composition:
            return ComposedParents.fit(GroupedParents.fit(data, graph, stream), stream)
        if by_local_graph and belong_together(data.rows, graph, stream.child("together")):
            return GroupedParents.fit(data, graph, stream)
        return MatchedParents.fit(data, graph, stream)


def fewer_components(components: int, rows: int, graph: LocalGraph) -> int:
    """As many components as so many rows can tell apart, at most `components`."""
    widest = max(len(graph.columns(names)) for names in graph.parent_sets)
    return max(1, min(components, rows // (ROWS_PER_COLUMN * widest)))


@dataclass(frozen=True, eq=False)
class MixtureParents:
    """The paper's Algorithm 1: one mixture per parent set, drawn in turn, each given the columns already drawn.

    Every parent set keeps its recorded distribution, and columns that no set has in common become independent. For
    that, the sets are drawn along a tree: the next one is always the one that shares the most columns with a single set
    already drawn. In a cycle of sets (ab, bc, ca) no order is exact, and the last one is conditioned on both others.

    width     columns of a row
    sets      the columns of each parent set, and their mixture
    manifold  ranges and unit vectors that rows are projected onto; None: they are not
    """

    name = Mocoda.name

    width: int
    sets: tuple[tuple[tuple[int, ...], GaussianMixture], ...]
    manifold: Manifold | None = None

    @staticmethod
    def fit(
        data: Transitions,
        graph: LocalGraph,
        components: int,
        seed: int | Stream,
        parent_sets: Sequence[Sequence[str]] | None = None,
        manifold: Manifold | None = None,
    ) -> MixtureParents:
        """Fits a mixture to each parent set of the graph, unless other sets are given."""
        rows = data.rows
        stream = as_stream(seed, "mocoda", device=rows.device)
        sets = []
        for names in graph.parent_sets if parent_sets is None else parent_sets:
            columns = graph.columns(names)
            mixture = GaussianMixture.fit(rows[:, columns], components, seed=stream.child(*names))
            sets.append((columns, mixture))
        return MixtureParents(graph.width, tuple(sets), manifold)

    @property
    def source(self) -> dict[str, Any]:
        """Notes for the source of augmented tables."""
        return {} if self.manifold is None else {"projected": {"unit_vectors": list(map(list, self.manifold.units))}}

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        """n rows, (n, S + A)."""
        stream = as_stream(seed, "mocoda", device=self.sets[0][1].means.device)
        rows = torch.zeros(n, self.width, device=stream.device)
        known_columns: set[int] = set()
        for number in self.order():
            columns, mixture = self.sets[number]
            known = [i for i, column in enumerate(columns) if column in known_columns]
            rows[:, columns] = mixture.complete(rows[:, columns], known=known, seed=stream.child(number))
            known_columns.update(columns)
        return rows if self.manifold is None else self.manifold.project(rows)

    def order(self) -> list[int]:
        """The numbers of all sets in the order in which they are drawn."""
        return drawing_order([columns for columns, _ in self.sets])

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log density of each parent set at rows (N, S + A): (N, sets)."""
        return torch.stack([mixture.log_prob(rows[:, columns]) for columns, mixture in self.sets], 1)


class Neighbourhood(NamedTuple):
    """One local graph, and the mixtures of its own parent sets over the rows recorded there."""

    mask: Tensor  # bool (parents, children)
    rows: int
    mixtures: MixtureParents


@dataclass(frozen=True, eq=False)
class StratifiedParents:
    """Stratified mixtures (Appendix B.2): one set of them for each neighbourhood, outside of which draws are rejected.

    A *neighbourhood* is where one local graph holds: all rows with the same mask. Within it, each parent set of its
    local graph keeps the distribution that it has there, as far as the borders allow. Neighbourhoods of fewer than
    MIN_STRATUM_ROWS rows are not drawn, and not merged with others.

    neighbourhoods  commonest first; each is drawn as often as recorded
    skipped         the rows of those that have too few
    """

    name = Mocoda.name

    graph: LocalGraph
    neighbourhoods: tuple[Neighbourhood, ...]
    skipped: tuple[int, ...]

    @staticmethod
    def fit(
        data: Transitions, graph: LocalGraph, components: int, seed: int | Stream, manifold: Manifold | None
    ) -> StratifiedParents:
        """Fits mixtures to the rows of each neighbourhood, of fewer components where the rows are few."""
        stream = as_stream(seed, "stratified", device=data.device)
        masks, number, counts = torch.unique(graph.mask(data.rows), dim=0, return_inverse=True, return_counts=True)
        kept, skipped = [], []
        for i in counts.argsort(descending=True, stable=True).tolist():
            mask, rows = masks[i], int(counts[i])
            if rows < MIN_STRATUM_ROWS:
                skipped.append(rows)
                continue
            local, label = graph_at(graph, mask), "".join(str(int(edge)) for edge in mask.flatten())
            fewer, own = fewer_components(components, rows, local), data[number == i]
            mixtures = MixtureParents.fit(own, local, fewer, stream.child(label), manifold=manifold)
            kept.append(Neighbourhood(mask, rows, mixtures))
        if not kept:
            raise InputError(
                f"no local graph holds in {MIN_STRATUM_ROWS} rows, the fewest to draw from; the commonest of "
                f"{len(counts)} holds in {int(counts.max())}. Record more data, or pass stratified=False."
            )
        return StratifiedParents(graph, tuple(kept), tuple(skipped))

    @property
    def source(self) -> dict[str, Any]:
        """Notes for the source of augmented tables: the rows of each neighbourhood, and of those left out."""
        own = {"drawn": "empirical", "rows": [one.rows for one in self.neighbourhoods], "skipped": list(self.skipped)}
        return {"neighbourhoods": own} | self.neighbourhoods[0].mixtures.source

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        stream = as_stream(seed, "stratified", device=self.neighbourhoods[0].mask.device)
        often = torch.tensor([one.rows for one in self.neighbourhoods], dtype=torch.float64)
        chosen = stream.categories((often / often.sum()).to(stream.device), n)
        rows = torch.zeros(n, self.graph.width, device=stream.device)
        for number, one in enumerate(self.neighbourhoods):
            here, region, part = chosen == number, self.region(one.mask), stream.child(number)
            rows[here] = inside(one.mixtures, region, int(here.sum()), part, "neighbourhood", WAY_OUT).rows
        return rows

    def region(self, mask: Tensor) -> Region:
        """A function that tells in which rows the local graph has these edges."""
        return lambda rows: (self.graph.mask(rows) == mask).all(2).all(1)
