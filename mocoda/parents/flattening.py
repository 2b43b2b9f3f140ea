"""Makes proposals near uniform: by rejection, or by reweighting the components of the mixtures they come from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Stream, as_stream
from mocoda.parents.density import kernel_density
from mocoda.parents.mixture import GaussianMixture
from mocoda.parents.recipe import FeatureMap, Parents, Region

PROPOSALS = 65_536  # rows proposed at a time by rejection


@dataclass(frozen=True, eq=False)
class FlattenedParents:
    """Proposals thinned by rejection until their features are near uniform on their support, inside a region.

    A proposal is kept with probability min(1, scale / density), density from a kernel estimate over `reference`.
    """

    name: str
    proposals: Parents
    features: FeatureMap
    region: Region | None
    bandwidth: float
    density_floor: float
    reference: Tensor  # (M, F)
    scale: float = 1.0

    @staticmethod
    def fit(
        name: str,
        proposals: Parents,
        features: FeatureMap,
        region: Region | None,
        bandwidth: float,
        density_floor: float,
        acceptance: float,
        stream: Stream,
        reference: int = 10_000,
    ) -> FlattenedParents:
        """Estimates the density from `reference` proposals, and the scale from as many others."""
        rows = inside(proposals, region, 2 * reference, stream)
        known = features(rows[:reference])
        unscaled = FlattenedParents(name, proposals, features, region, bandwidth, density_floor, known)
        weights = unscaled.weights(rows[reference:])
        if float(weights.max()) < 1.01 * float(weights.min()):
            spread = known.std(0).mean()
            raise InputError(
                f"with bandwidth {bandwidth} and density_floor {density_floor} all proposals are equally dense: there "
                f"is nothing to flatten. The features' standard deviation is about {spread:.3g}; try a bandwidth of a "
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
class ReweightedParents:
    """Mixtures whose components are drawn by volume, inside a region: flat at the cost of a plain sample."""

    name = "mocoda-u"

    mixtures: Parents
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
    """The same components weighted by their volume √|Σ|: all peaks are equally high, and the mixture is near flat.

    Splitting a cluster into two components does not change its weight, nor does the number of rows in it.
    """
    log_volume: Tensor = torch.linalg.cholesky(mixture.covariances).diagonal(dim1=1, dim2=2).log().sum(1)
    return replace(mixture, weights=log_volume.softmax(0))


def inside(
    proposals: Parents,
    region: Region | None,
    n: int,
    stream: Stream,
    kind: str = "region",
    way_out: str = "Widen the region or record more data.",
) -> Tensor:
    """n proposals inside the region; if it holds next to none, an error that names its kind and a way out."""
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
                f"the {kind} holds {have} of {proposed:,} proposals: the recorded parts hardly combine into it. "
                f"{way_out}"
            )
    return torch.cat(kept)[:n]
