"""Step 1: draw new parents, that is states and actions."""

from mocoda.parents.baselines import Coda, Dyna, Emp, Rand
from mocoda.parents.flattening import MocodaP, MocodaU
from mocoda.parents.mixture import GaussianMixture
from mocoda.parents.mocoda import Mocoda
from mocoda.parents.recipe import (
    RECIPES,
    Draw,
    Model,
    Parents,
    ParentsWithChildren,
    ParentsWithDonors,
    Recipe,
    TaskHints,
    fit_parents,
    make_recipe,
)
from mocoda.parents.recipe_contract import check_recipe

for _recipe in (Emp, Coda, Dyna, Rand, Mocoda, MocodaU, MocodaP):
    RECIPES.add(_recipe)
BUILT_IN = tuple(RECIPES)  # tables number them in this order, from 1

__all__ = [
    "BUILT_IN",
    "RECIPES",
    "Coda",
    "Draw",
    "Dyna",
    "Emp",
    "GaussianMixture",
    "Mocoda",
    "MocodaP",
    "MocodaU",
    "Model",
    "Parents",
    "ParentsWithChildren",
    "ParentsWithDonors",
    "Rand",
    "Recipe",
    "TaskHints",
    "check_recipe",
    "fit_parents",
    "make_recipe",
]
