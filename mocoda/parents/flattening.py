"""Proposals -> flatter ones: by rejection, or by reweighting the components of the mixtures they come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Stream, as_stream
from mocoda.parents.density import kernel_density
from mocoda.parents.mixture import GaussianMixture

FeatureMap = Callable[[Tensor], Tensor]  # rows (N, S + A) -> features (N, F)
Region = Callable[[Tensor], Tensor]  # rows (N, S + A) -> bool (N,)
PROPOSALS = 65_536  # rows proposed at a time by rejection


class Proposals(Protocol):
    """Any distribution of rows."""

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        """n rows, (n, S + A)."""


@dataclass(frozen=True, eq=False)
class Flattened:
    """Proposals thinned by rejection until their features are near uniform on their support, inside a region.

    A proposal is kept with probability min(1, scale / density), density from a kernel estimate over `reference`.
    """

    name: str
    proposals: Proposals
    features: FeatureMap
    region: Region | None
    bandwidth: float
    density_floor: float
    reference: Tensor  # (M, F)
    scale: float = 1.0

    @staticmethod
    def fit(
        name: str,
        proposals: Proposals,
        features: FeatureMap,
        region: Region | None,
        bandwidth: float,
        density_floor: float,
        acceptance: float,
        stream: Stream,
        reference: int = 10_000,
    ) -> Flattened:
        """Estimates the density from `reference` proposals, and the scale from as many others."""
        if not 0 < acceptance <= 1:
            raise InputError(f"acceptance must be a share of the proposals, above 0 and at most 1, got {acceptance}.")
        drawn = inside(proposals, region, 2 * reference, stream)
        known = features(drawn[:reference])
        unscaled = Flattened(name, proposals, features, region, bandwidth, density_floor, known)
        weights = unscaled.weights(drawn[reference:])
        if float(weights.max()) < 1.01 * float(weights.min()):
            spread = known.std(0).mean()
            raise InputError(
                f"with bandwidth {bandwidth} and density_floor {density_floor} every proposal looks alike: there is "
                f"nothing to flatten. The features' standard deviation is about {spread:.3g}; try a bandwidth of a "
                "fifth of that, and a floor well under the densities there."
            )
        return replace(unscaled, scale=acceptance / float(weights.mean()))

    @property
    def source(self) -> dict[str, Any]:
        """What a table made of it should say: what its proposals say."""
        return getattr(self.proposals, "source", {})

    def weights(self, rows: Tensor) -> Tensor:
        """scale / density at each row, (N,), not yet capped at 1."""
        density = kernel_density(self.reference, self.features(rows), self.bandwidth)
        return self.scale / density.clamp(min=self.density_floor)

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        stream = as_stream(seed, "flattened", device=self.reference.device)
        kept, have, batch = [self.proposals.sample(0, seed=stream)], 0, 0
        while have < n:
            rows = inside(self.proposals, self.region, PROPOSALS, stream.child("batch", batch))
            accepted = rows[stream.uniform(len(rows)) < self.weights(rows)]
            kept.append(accepted)
            have, batch = have + len(accepted), batch + 1
        return torch.cat(kept)[:n]


@dataclass(frozen=True, eq=False)
class Reweighted:
    """Mixtures whose components are drawn by volume, inside a region: flat at the cost of a plain sample."""

    name = "mocoda-u"

    mixtures: Proposals
    region: Region | None = None

    @property
    def source(self) -> dict[str, Any]:
        """What a table made of it should say."""
        return {"flatten": "reweighting", **getattr(self.mixtures, "source", {})}

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        if self.region is None:
            return self.mixtures.sample(n, seed=seed)
        return inside(self.mixtures, self.region, n, as_stream(seed, "reweighted", device="cpu"))


def by_volume(mixture: GaussianMixture) -> GaussianMixture:
    """The same components, each weighing its volume √|Σ|: then all peaks are as high, and the mixture is near flat.

    A cluster that EM has split in two weighs what it did whole; one that many rows share weighs no more for that.
    """
    log_volume: Tensor = torch.linalg.cholesky(mixture.covariances).diagonal(dim1=1, dim2=2).log().sum(1)
    return replace(mixture, weights=log_volume.softmax(0))


def inside(
    proposals: Proposals,
    region: Region | None,
    n: int,
    stream: Stream,
    place: str = "region",
    way_out: str = "Widen the region or record more data.",
) -> Tensor:
    """n proposals inside the region; if it holds next to none, an error that names the place and a way out."""
    if region is None or n == 0:
        return proposals.sample(n, seed=stream)
    kept: list[Tensor] = []
    have = proposed = 0
    while have < n:
        rows = proposals.sample(max(n, 4_096), seed=stream.child("inside", len(kept)))
        kept.append(rows[region(rows)])
        have, proposed = have + len(kept[-1]), proposed + len(rows)
        if proposed >= 2_000_000 and have < 1e-5 * proposed:
            raise InputError(
                f"the {place} holds {have} of {proposed:,} proposals: the recorded parts hardly combine into it. "
                f"{way_out}"
            )
    return torch.cat(kept)[:n]
