"""Step 1: draw new parents, that is states and actions. One file a recipe."""

from mocoda.parents.mixture import GaussianMixture
from mocoda.parents.recipes import Parents, fit_parents

__all__ = ["GaussianMixture", "Parents", "fit_parents"]
