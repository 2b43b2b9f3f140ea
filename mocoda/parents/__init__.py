"""Step 1: draw new parents, that is states and actions. One file a recipe."""

from mocoda.parents.battery import check_recipe
from mocoda.parents.coda import Coda
from mocoda.parents.dyna import Dyna
from mocoda.parents.emp import Emp
from mocoda.parents.mixture import GaussianMixture
from mocoda.parents.mocoda import Mocoda
from mocoda.parents.mocoda_p import MocodaP
from mocoda.parents.mocoda_u import MocodaU
from mocoda.parents.rand import Rand
from mocoda.parents.recipe import (
    RECIPES,
    Model,
    Parents,
    ParentsWithChildren,
    Recipe,
    TaskHints,
    fit_parents,
    make_recipe,
)

for _recipe in (Emp, Coda, Dyna, Rand, Mocoda, MocodaU, MocodaP):
    RECIPES.add(_recipe)
BUILT_IN = tuple(RECIPES)  # in this order tables number them, from 1

__all__ = [
    "BUILT_IN",
    "RECIPES",
    "Coda",
    "Dyna",
    "Emp",
    "GaussianMixture",
    "Mocoda",
    "MocodaP",
    "MocodaU",
    "Model",
    "Parents",
    "ParentsWithChildren",
    "Rand",
    "Recipe",
    "TaskHints",
    "check_recipe",
    "fit_parents",
    "make_recipe",
]
