"""MoCoDA: parent sets as recorded, in new combinations: recorded ones, or by mixtures of them (Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents.composed import ComposedParents, Recombined
from mocoda.parents.linked import LinkedParents
from mocoda.parents.manifold import Manifold
from mocoda.parents.matched import MatchedParents
from mocoda.parents.mixture import GaussianMixture, check_mixture
from mocoda.parents.recipe import Model, Parents, Recipe, TaskHints
from mocoda.parents.stratified import StratifiedParents
from mocoda.parents.together import belong_together
from mocoda.parents.tree import drawing_order

DENSITIES = ("matched", "mixture")
NEIGHBOURHOODS = ("empirical", "even", "composed")


@dataclass(frozen=True)
class Mocoda(Recipe):
    """Parent sets recombined: each as recorded, together in new ways (MoCoDA).

    density         of every parent set: recorded ones, "matched" on the columns they share, or a Gaussian "mixture"
    smoothing       if matched, noise on the rows drawn, in standard deviations of each column; 0: none. It stays in the
                    recorded ranges and keeps unit vectors, but not columns that follow from others
    components      of every parent set's Gaussian mixture
    covariance      of each component, "full" or "diag"
    shuffle         draw the parent sets in random order
    stratified      where the graph has a local rule, draw for every local graph what belongs together there, and only
                    where it holds (Appendix B.2): what touches stays as recorded together. Unless mixtures are asked
                    for, or other neighbourhoods, only if the data shows that it belongs together (see belong_together)
    neighbourhoods  if stratified, how often each local graph is drawn: as recorded, "empirical"; uniformly, "even"; or,
                    if matched, "composed": as recorded, but what was handled one at a time also at once, in local
                    graphs that were never recorded (see ComposedParents)
    project         keep what a mixture draws in the recorded ranges, and unit vectors at length 1
    published_code  as the paper's code rather than its text: draw the components of a mixture uniformly
    """

    name: ClassVar[str] = "mocoda"
    title: ClassVar[str] = "MoCoDA"
    colour: ClassVar[str] = "#2563a8"

    density: str = "matched"
    smoothing: float = 0.0
    components: int = 32
    covariance: str = "full"
    shuffle: bool = False
    stratified: bool = True
    neighbourhoods: str = "empirical"
    project: bool = True
    published_code: bool = False

    def __post_init__(self) -> None:
        check_mixture(self.components, self.covariance)
        if self.density not in DENSITIES:
            raise unknown_name("density", self.density, DENSITIES)
        if not 0 <= self.smoothing < math.inf:
            raise InputError(f"smoothing must be 0 or a positive number, got {self.smoothing}.")
        if self.density == "mixture" and self.smoothing:
            raise InputError("smoothing is for density='matched': a mixture is smooth already. Leave it out.")
        if self.density == "matched" and self.published_code:
            raise InputError("the published code draws from mixtures; pass density='mixture' too.")
        if self.neighbourhoods not in NEIGHBOURHOODS:
            raise unknown_name("way to draw neighbourhoods", self.neighbourhoods, NEIGHBOURHOODS)
        if self.neighbourhoods != "empirical" and not self.stratified:
            raise InputError(
                f"neighbourhoods={self.neighbourhoods!r} says how often each local graph is drawn, which only "
                "stratified parents choose; leave out stratified=False."
            )
        if self.neighbourhoods == "composed" and self.density != "matched":
            raise InputError("neighbourhoods='composed' matches recorded parts; leave out density='mixture'.")

    def fit(
        self, data: Transitions, graph: LocalGraph, *, task: TaskHints | None, model: Model | None, seed: int | Stream
    ) -> Parents:
        return self.fit_density(data, graph, seed)

    def fit_density(
        self, data: Transitions, graph: LocalGraph, seed: int | Stream
    ) -> MixtureParents | StratifiedParents | Recombined:
        """One density of parent sets for all rows, or one for each local graph."""
        stream = as_stream(seed, "parents", device=data.device)
        by_local_graph, as_recorded = self.stratified and graph.local is not None, self.neighbourhoods == "empirical"
        if self.density == "matched":
            if by_local_graph and (not as_recorded or belong_together(data.rows, graph, stream.child("together"))):
                even = self.neighbourhoods == "even"
                linked = LinkedParents.fit(data, graph, stream, self.shuffle, self.smoothing, even)
                return linked if as_recorded or even else ComposedParents.fit(linked, stream)
            return MatchedParents.fit(data, graph, stream, self.shuffle, self.smoothing)
        manifold = Manifold.of(data.rows, graph) if self.project else None
        if by_local_graph:
            fit_mixtures = partial(self._fit_mixtures, manifold=manifold)
            return StratifiedParents.fit(data, graph, fit_mixtures, self.components, self.neighbourhoods, stream)
        return self._fit_mixtures(data, graph, self.components, stream, manifold)

    def _fit_mixtures(
        self, data: Transitions, graph: LocalGraph, components: int, seed: Stream, manifold: Manifold | None
    ) -> MixtureParents:
        mixtures = MixtureParents.fit(data, graph, components, seed, self.covariance, self.shuffle)
        mixtures = replace(mixtures, manifold=manifold)
        return mixtures.with_mixtures(GaussianMixture.with_equal_weights) if self.published_code else mixtures


@dataclass(frozen=True, eq=False)
class MixtureParents:
    """The paper's Algorithm 1: one mixture per parent set, drawn in turn, each given the columns already drawn.

    Every parent set keeps its recorded distribution, and what no set has in common becomes independent. For that, the
    sets are drawn along a tree: the next one is always that which shares the most columns with a single set already
    drawn. Where the sets form a cycle (ab, bc, ca) no order is exact, and the last of them is conditioned on both.
    """

    name = Mocoda.name

    width: int
    sets: tuple[tuple[tuple[int, ...], GaussianMixture], ...]  # columns of a row, and their mixture
    shuffle: bool = False
    manifold: Manifold | None = None  # that rows are projected onto

    @staticmethod
    def fit(
        data: Transitions,
        graph: LocalGraph,
        components: int,
        seed: int | Stream,
        covariance: str = "full",
        shuffle: bool = False,
        parent_sets: Sequence[Sequence[str]] | None = None,
    ) -> MixtureParents:
        """Of all parent sets of the graph, unless some are given."""
        rows = data.rows
        stream = as_stream(seed, "mocoda", device=rows.device)
        sets = []
        for names in graph.parent_sets if parent_sets is None else parent_sets:
            columns = graph.columns(names)
            mixture = GaussianMixture.fit(rows[:, columns], components, covariance, stream.child(*names))
            sets.append((columns, mixture))
        return MixtureParents(graph.width, tuple(sets), shuffle)

    @property
    def source(self) -> dict[str, Any]:
        """What a table made of it should say."""
        return {} if self.manifold is None else {"projected": {"unit_vectors": list(map(list, self.manifold.units))}}

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        stream = as_stream(seed, "mocoda", device=self.sets[0][1].means.device)
        rows = self._sample(n, stream)
        return rows if self.manifold is None else self.manifold.project(rows)

    def _sample(self, n: int, stream: Stream) -> Tensor:
        if not self.shuffle:
            return self._sample_in(self.order(), n, stream)
        orders = max(1, min(n, 16))
        sizes = [n // orders + (part < n % orders) for part in range(orders)]
        parts = [
            self._sample_in(self.order(stream.permutation(len(self.sets)).tolist()), size, stream.child("part", part))
            for part, size in enumerate(sizes)
        ]
        return torch.cat(parts)[stream.permutation(n)]

    def order(self, preferred: list[int] | None = None) -> list[int]:
        """The numbers of all sets in the order to draw them, the preferred ones as early as the tree allows."""
        return drawing_order([columns for columns, _ in self.sets], preferred)

    def _sample_in(self, order: list[int], n: int, stream: Stream) -> Tensor:
        rows = torch.zeros(n, self.width, device=stream.device)
        known_columns: set[int] = set()
        for number in order:
            columns, mixture = self.sets[number]
            known = [i for i, column in enumerate(columns) if column in known_columns]
            rows[:, columns] = mixture.complete(rows[:, columns], known=known, seed=stream.child(number))
            known_columns.update(columns)
        return rows

    def with_mixtures(self, change: Callable[[GaussianMixture], GaussianMixture]) -> MixtureParents:
        """The same sets with every mixture changed."""
        return replace(self, sets=tuple((columns, change(mixture)) for columns, mixture in self.sets))

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log density of each parent set at rows (N, S + A): (N, sets). The least says how well a row is supported."""
        return torch.stack([mixture.log_prob(rows[:, columns]) for columns, mixture in self.sets], 1)
