"""MoCoDA-U: MoCoDA's rows made near uniform."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents.composed import Recombined
from mocoda.parents.flattening import FlattenedParents, ReweightedParents, by_volume
from mocoda.parents.mocoda import Mocoda
from mocoda.parents.recipe import FeatureMap, Model, Parents, Region, TaskHints

FLATTEN = ("rejection", "reweighting")


@dataclass(frozen=True)
class MocodaU(Mocoda):
    """MoCoDA's rows, made near uniform: what is rare is drawn as often as what is common (MoCoDA-U).

    bandwidth      of the kernel density estimate over the features
    density_floor  features less dense than this are not favoured further
    acceptance     share of the proposals to keep; less is flatter, and slower
    flatten        "rejection", or "reweighting": draw a mixture's components by volume, which costs nothing
    features       rows (N, S + A) -> the features (N, F) to spread; the whole state if None
    region         rows (N, S + A) -> which rows may be drawn, bool (N,); all if None
    """

    name: ClassVar[str] = "mocoda-u"
    title: ClassVar[str] = "MoCoDA-U"
    colour: ClassVar[str] = "#c0392b"

    bandwidth: float = 0.05
    density_floor: float = 0.01
    acceptance: float = 0.1
    flatten: str = "rejection"
    features: FeatureMap | None = None
    region: Region | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_positive("bandwidth", "density_floor")
        if not 0 < self.acceptance <= 1:
            raise InputError(
                f"acceptance must be a share of the proposals, above 0 and at most 1, got {self.acceptance}."
            )
        if self.flatten not in FLATTEN:
            raise unknown_name("way to flatten", self.flatten, FLATTEN)
        if self.flatten == "reweighting" and self.density == "matched":
            raise InputError(
                "reweighting draws the components of a mixture by volume, and density='matched' has none; pass "
                "density='mixture' too."
            )

    def fit(
        self, data: Transitions, graph: LocalGraph, *, task: TaskHints | None, model: Model | None, seed: int | Stream
    ) -> Parents:
        if self.flatten == "reweighting":
            if self.features is not None:
                raise InputError(
                    "reweighting flattens whole parent sets, not features; leave out features= or flatten=."
                )
            return self.propose(data, graph, seed)
        features = self.features or (lambda rows: rows[:, : graph.state_width])
        return self.reject(self.propose(data, graph, seed), features, self.region, data, seed)

    def propose(self, data: Transitions, graph: LocalGraph, seed: int | Stream) -> Parents:
        """What is drawn before any is rejected."""
        fitted = self.fit_density(data, graph, seed)
        if self.flatten == "rejection" or isinstance(fitted, Recombined):
            return fitted
        return ReweightedParents(fitted.with_mixtures(by_volume), self.region)

    def reject(
        self, proposals: Parents, features: FeatureMap, region: Region | None, data: Transitions, seed: int | Stream
    ) -> FlattenedParents:
        """The proposals thinned by their density in these features."""
        stream = as_stream(seed, "flatten", device=data.device)
        return FlattenedParents.fit(
            self.name, proposals, features, region, self.bandwidth, self.density_floor, self.acceptance, stream
        )
