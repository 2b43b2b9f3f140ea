"""Recipes as the paper's published code draws them, where it departs from the paper's text.

Mixtures: their components are drawn uniformly. CoDA: rows exchange what the sparsest graph leaves unconnected, whatever
the local graph says, so that not all of them are possible transitions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents import Coda, Mocoda, MocodaP, MocodaU, Model, Recipe, TaskHints
from mocoda.parents.baselines import SwappedParents
from mocoda.parents.mixture import Manifold
from mocoda.parents.mocoda import MixtureParents


class EqualComponents(Mocoda):
    """Draws the components of every mixture equally often."""

    def fit_mixtures(
        self, data: Transitions, graph: LocalGraph, components: int, seed: Stream, manifold: Manifold | None
    ) -> MixtureParents:
        fitted = super().fit_mixtures(data, graph, components, seed, manifold)
        equal = ((columns, one, torch.full_like(one.weights, 1 / len(one.weights))) for columns, one in fitted.sets)
        return replace(fitted, sets=tuple((columns, replace(one, weights=weights)) for columns, one, weights in equal))


@dataclass(frozen=True)
class PublishedMocoda(EqualComponents, Mocoda):
    pass


@dataclass(frozen=True)
class PublishedMocodaU(EqualComponents, MocodaU):
    pass


@dataclass(frozen=True)
class PublishedMocodaP(EqualComponents, MocodaP):
    pass


@dataclass(frozen=True, eq=False)
class SwappedAnywhere(SwappedParents):
    """Exchanges what the sparsest graph leaves unconnected."""

    def mask(self, rows: Tensor) -> Tensor:
        return self.graph.sparsest.to(rows.device).expand(len(rows), -1, -1)


@dataclass(frozen=True)
class PublishedCoda(Coda):
    def fit(
        self, data: Transitions, graph: LocalGraph, *, task: TaskHints | None, model: Model | None, seed: int | Stream
    ) -> SwappedParents:
        return SwappedAnywhere(data, graph)


RECIPES: dict[str, type[Recipe]] = {
    recipe.name: recipe for recipe in (PublishedMocoda, PublishedMocodaU, PublishedMocodaP, PublishedCoda)
}


def published(recipe: Recipe) -> Recipe:
    """The same recipe as the published code draws it; recipes that do not differ stay."""
    settings: dict[str, Any] = dict(vars(recipe))
    return RECIPES[recipe.name](**settings) if recipe.name in RECIPES else recipe
