"""Columns of the paper's tables are recipes: how each is made, called and coloured.

A column is called by its recipe; "-matched" after it says that parents are matched rather than drawn from mixtures,
"-local" that they are matched for every local graph, as is the default outside of the paper, and "-full" that next
states come from the unfactored model.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from mocoda.engine.figures import INK
from mocoda.engine.registry import settings_of
from mocoda.parents import RECIPES, Recipe, make_recipe

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
    chosen = PUBLISHED | settings | {"density": density, "stratified": stratified}
    return make_recipe(name, **{key: value for key, value in chosen.items() if key in known})


def column_label(column: str) -> str:
    """What a figure calls a column."""
    return column.replace(MATCHED, ", matched").replace(LOCAL, ", by local graph")


def recipe_title(column: str) -> str:
    return RECIPES[column].title if column in RECIPES else column


def recipe_colour(column: str) -> str:
    return RECIPES[column].colour if column in RECIPES else INK
