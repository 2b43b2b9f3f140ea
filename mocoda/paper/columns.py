"""Columns of the paper's tables are recipes: how each is made, called and coloured."""

from __future__ import annotations

from typing import Any

from mocoda.engine.figures import INK
from mocoda.engine.registry import settings_of
from mocoda.parents import RECIPES, Recipe, make_recipe


def column_recipe(column: str, **settings: Any) -> Recipe:
    """The recipe of a column, with those of an experiment's settings that it has: only mixtures have components."""
    known = settings_of(RECIPES[column])
    return make_recipe(column, **{name: value for name, value in settings.items() if name in known})


def recipe_title(column: str) -> str:
    return RECIPES[column].title if column in RECIPES else column


def recipe_colour(column: str) -> str:
    return RECIPES[column].colour if column in RECIPES else INK
