"""Columns of the paper's tables are recipes: how each is made, called and coloured.

A column is called by its recipe; "-matched" after it says that parents are matched rather than drawn from mixtures,
"-local" that they are matched for every local graph, as is the default outside of the paper, and "-full" that next
states come from the unfactored model. Below are the recipes as the paper's code draws them, where that departs from the
paper's text.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.figure_style import INK
from mocoda.engine.randomness import Stream
from mocoda.engine.registry import settings_of
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents import RECIPES, Coda, Mocoda, MocodaP, MocodaU, Model, Recipe, TaskHints, make_recipe
from mocoda.parents.baselines import SwappedParents
from mocoda.parents.mixture import Manifold
from mocoda.parents.mocoda import MixtureParents

MATCHED, LOCAL, FULL = "-matched", "-local", "-full"
# The paper's recipes: one set of mixtures for all rows, wherever these draw.
PUBLISHED: dict[str, Any] = {"density": "mixture", "stratified": False, "project": False}


class Column(NamedTuple):
    """What the name of a column says."""

    recipe: str
    density: str
    architecture: str  # of the model
    stratified: bool  # whether parents are drawn for every local graph

    @staticmethod
    def of(name: str) -> Column:
        parents = name.removesuffix(FULL)
        recipe = parents.removesuffix(MATCHED).removesuffix(LOCAL)
        return Column(
            recipe,
            "mixture" if recipe == parents else "matched",
            "local" if parents == name else "full",
            parents.endswith(LOCAL),
        )


def column_recipe(column: str, **settings: Any) -> Recipe:
    """The recipe of a column, with those of an experiment's settings that it has: only mixtures have components."""
    name, density, _, stratified = Column.of(column)
    known = settings_of(RECIPES[name])
    chosen = PUBLISHED | {"density": density, "stratified": stratified} | settings
    return make_recipe(name, **{key: value for key, value in chosen.items() if key in known})


def column_label(column: str) -> str:
    """What a figure calls a column."""
    return column.replace(MATCHED, ", matched").replace(LOCAL, ", by local graph")


def recipe_title(column: str) -> str:
    return RECIPES[column].title if column in RECIPES else column


def recipe_colour(column: str) -> str:
    return RECIPES[column].colour if column in RECIPES else INK


# As the paper's code draws them


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
    """MoCoDA with the components of its mixtures drawn equally often."""


@dataclass(frozen=True)
class PublishedMocodaU(EqualComponents, MocodaU):
    """MoCoDA-U with the components of its mixtures drawn equally often."""


@dataclass(frozen=True)
class PublishedMocodaP(EqualComponents, MocodaP):
    """MoCoDA-P with the components of its mixtures drawn equally often."""


@dataclass(frozen=True, eq=False)
class SwappedAnywhere(SwappedParents):
    """Exchanges what the sparsest graph leaves unconnected."""

    def mask(self, rows: Tensor) -> Tensor:
        return self.graph.sparsest.to(rows.device).expand(len(rows), -1, -1)


@dataclass(frozen=True)
class PublishedCoda(Coda):
    """CoDA whatever the local graph says, so that not all of its rows are possible transitions."""

    def fit(
        self, data: Transitions, graph: LocalGraph, *, task: TaskHints | None, model: Model | None, seed: int | Stream
    ) -> SwappedParents:
        return SwappedAnywhere(data, graph)


PUBLISHED_CODE: dict[str, type[Recipe]] = {
    recipe.name: recipe for recipe in (PublishedMocoda, PublishedMocodaU, PublishedMocodaP, PublishedCoda)
}


def published(recipe: Recipe) -> Recipe:
    """The same recipe as the published code draws it; recipes that do not differ stay."""
    settings: dict[str, Any] = dict(vars(recipe))
    return PUBLISHED_CODE[recipe.name](**settings) if recipe.name in PUBLISHED_CODE else recipe
