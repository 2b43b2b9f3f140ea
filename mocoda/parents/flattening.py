"""MoCoDA-U and MoCoDA-P: MoCoDA's rows thinned by rejection until features of them are near uniform."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents.mocoda import Mocoda
from mocoda.parents.recipe import (
    Draw,
    FeatureMap,
    Model,
    Parents,
    ParentsWithDonors,
    Region,
    TaskHints,
    inside,
    within,
)

MIN_PROPOSALS, MAX_PROPOSALS = 1_024, 65_536  # rows proposed at a time
REFERENCE = 10_000  # proposals that the density is estimated from, and as many others that scale it
# Squared distance from the centre, in bandwidths, up to which float32 keeps three digits of the density.
FLOAT32_REACH = 1e4


@dataclass(frozen=True)
class MocodaU(Mocoda):
    """MoCoDA's rows, made near uniform: what is rare is drawn as often as what is common (MoCoDA-U).

    bandwidth      of the kernel density estimate over the features
    density_floor  features less dense than this are not favoured further
    acceptance     share of the proposals to keep; less is flatter, and slower
    features       rows (N, S + A) -> the features (N, F) to spread; the whole state if None
    region         rows (N, S + A) -> which rows may be drawn, bool (N,); all if None
    """

    name: ClassVar[str] = "mocoda-u"
    title: ClassVar[str] = "MoCoDA-U"
    colour: ClassVar[str] = "#c0392b"

    bandwidth: float = 0.05
    density_floor: float = 0.01
    acceptance: float = 0.1
    features: FeatureMap | None = None
    region: Region | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("bandwidth", "density_floor"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be positive, got {getattr(self, name)}.")
        if not 0 < self.acceptance <= 1:
            raise InputError(
                f"acceptance must be a share of the proposals, above 0 and at most 1, got {self.acceptance}."
            )

    def fit(
        self, data: Transitions, graph: LocalGraph, *, task: TaskHints | None, model: Model | None, seed: int | Stream
    ) -> Parents:
        features, region = self.spread_over(graph, task)
        proposals = super().fit(data, graph, task=task, model=model, seed=seed)
        stream = as_stream(seed, "flatten", device=data.device)
        return FlattenedParents.fit(self, proposals, features, region, stream)

    def spread_over(self, graph: LocalGraph, task: TaskHints | None) -> tuple[FeatureMap, Region | None]:
        """The features to spread, and the region to do so in; None: everywhere."""
        return self.features or (lambda rows: rows[:, : graph.state_width]), self.region


@dataclass(frozen=True)
class MocodaP(MocodaU):
    """MoCoDA's rows, spread over the features and the region that matter for a task (MoCoDA-P).

    Settings are those of "mocoda-u". `features` and `region` are the task's unless given.
    """

    name: ClassVar[str] = "mocoda-p"
    title: ClassVar[str] = "MoCoDA-P"
    colour: ClassVar[str] = "#2e8b57"

    def spread_over(self, graph: LocalGraph, task: TaskHints | None) -> tuple[FeatureMap, Region | None]:
        features = self.features or getattr(task, "features", None)
        if features is None:
            raise InputError("recipe 'mocoda-p' needs to know what matters; pass task= or features= (and region=).")
        return features, self.region or getattr(task, "region", None)


@dataclass(frozen=True, eq=False)
class FlattenedParents(ParentsWithDonors):
    """Keeps proposals with a probability of min(1, scale / density), so that their features are near uniform.

    recipe     its settings
    proposals  what is drawn before any is rejected
    features   rows (N, S + A) -> the features (N, F) to spread
    region     which rows may be drawn; None: all
    reference  (M, F), features of proposals, around which a kernel estimate gives the density
    kept       the share of proposals that is kept
    """

    recipe: MocodaU
    proposals: Parents
    features: FeatureMap
    region: Region | None
    reference: Tensor
    scale: float = 1.0
    kept: float = 1.0

    @staticmethod
    def fit(
        recipe: MocodaU, proposals: Parents, features: FeatureMap, region: Region | None, stream: Stream
    ) -> FlattenedParents:
        """Estimates the density from some proposals, and the scale from others."""
        rows = inside(proposals, region, 2 * REFERENCE, stream).rows
        known = _finite(features, rows[:REFERENCE], recipe.name)
        unscaled = FlattenedParents(recipe, proposals, features, region, known)
        weights = unscaled.weights(rows[REFERENCE:])
        if float(weights.max()) < 1.01 * float(weights.min()):
            spread = known.std(0).mean()
            raise InputError(
                f"with bandwidth {recipe.bandwidth} and density_floor {recipe.density_floor} all proposals are equally "
                f"dense: there is nothing to flatten. The features' standard deviation is about {spread:.3g}; try a "
                "bandwidth of a fifth of that, and a floor well under the densities there."
            )
        scale = recipe.acceptance / float(weights.mean())
        return replace(unscaled, scale=scale, kept=float((scale * weights).clamp(max=1).mean()))

    @property
    def name(self) -> str:
        return self.recipe.name

    @property
    def source(self) -> dict[str, Any]:
        """Notes for the source of augmented tables: those of the proposals."""
        return getattr(self.proposals, "source", {})

    def within(self, region: str | Region, data: Transitions, seed: int | Stream) -> FlattenedParents:
        """Flattens the features of the proposals inside a region."""
        stream = as_stream(seed, "flatten", device=data.device)
        proposals = within(self.proposals, region, data, seed=stream)
        return FlattenedParents.fit(self.recipe, proposals, self.features, self.region, stream)

    def weights(self, rows: Tensor) -> Tensor:
        """scale / density at each row (N, S + A): (N,), not yet capped at 1."""
        density = kernel_density(self.reference, _finite(self.features, rows, self.name), self.recipe.bandwidth)
        return self.scale / density.clamp(min=self.recipe.density_floor)

    def draw(self, n: int, *, seed: int | Stream) -> Draw:
        """n rows, with the donors of the proposals."""
        stream = as_stream(seed, "flattened", device=self.reference.device)
        size = min(MAX_PROPOSALS, max(MIN_PROPOSALS, math.ceil(1.1 * n / self.kept)))
        kept, have = [inside(self.proposals, self.region, 0, stream)], 0
        while have < n:
            drawn = inside(self.proposals, self.region, size, stream.child("batch", len(kept) - 1))
            kept.append(drawn.at(stream.uniform(size) < self.weights(drawn.rows)))
            have += len(kept[-1].rows)
        return Draw.join(kept).at(slice(n))


def _finite(features: FeatureMap, rows: Tensor, recipe: str) -> Tensor:
    """Features (N, F) of rows (N, S + A); refuses NaN and inf, with which no row would ever be kept."""
    found = features(rows)
    if found.ndim != 2 or len(found) != len(rows):
        raise InputError(f"features(rows) must have shape ({len(rows)}, F), got {tuple(found.shape)}.")
    bad = (~torch.isfinite(found).all(1)).nonzero()[:, 0]
    if len(bad):
        raise InputError(
            f"features(rows) has NaN or inf in {len(bad)} of {len(rows):,} rows that recipe {recipe!r} draws, such as "
            f"{[round(value, 4) for value in rows[bad[0]].tolist()]}. Return finite numbers for them, or exclude them "
            "by region(rows)."
        )
    return found


def kernel_density(points: Tensor, at: Tensor, bandwidth: float) -> Tensor:
    """The mean of Gaussian kernels around `points` (M, D), evaluated `at` (N, D): (N,) float32.

    A kernel more than about 13 bandwidths away contributes nothing.
    """
    # -|x - y|² / 2h² = x·y - |x|²/2 - |y|²/2 in units of h, about the points' centre to keep the terms small. The three
    # terms are one product of widened matrices, so a block is a product, an exponential and a sum. The unit makes the
    # base 2, whose exponential is the fastest.
    unit = bandwidth / math.sqrt(math.log2(math.e))
    centre = points.double().mean(0)
    sources = (points.double() - centre) / unit
    targets = (at.double() - centre) / unit
    if torch.cat([sources, targets]).square().sum(1).max() < FLOAT32_REACH:
        sources, targets = sources.float(), targets.float()
    ones = torch.ones_like
    left = torch.cat([targets, ones(targets[:, :1]), -0.5 * targets.square().sum(1, keepdim=True)], 1)
    right = torch.cat([sources, -0.5 * sources.square().sum(1, keepdim=True), ones(sources[:, :1])], 1).T
    entries = 2**19 if at.device.type == "cpu" else 2**28  # a block of results stays in the cache of a core
    rows = max(1, entries // len(points))
    total = torch.cat([(block @ right).exp2_().sum(1) for block in left.split(rows)])
    normaliser = len(points) * (bandwidth * math.sqrt(2 * math.pi)) ** points.shape[1]
    return (total / normaliser).float()
