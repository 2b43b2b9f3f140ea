"""The contract of a recipe, which says how new states and actions are drawn.

A recipe is a value: it holds settings, never data. Fitted to recorded rows and a graph, it gives a distribution of
states and actions (`Parents`). Write your own as a frozen dataclass that derives from `Recipe`, check it with
`mocoda.check_recipe`, and add it with `RECIPES.add` to choose it by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Stream
from mocoda.engine.registry import Registry
from mocoda.graph.local_graph import LocalGraph

FeatureMap = Callable[[Tensor], Tensor]  # rows (N, S + A) -> features (N, F)
Region = Callable[[Tensor], Tensor]  # rows (N, S + A) -> bool (N,)


class Parents(Protocol):
    """A distribution of states and actions. Any object with this one method will do."""

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        """n rows, (n, S + A)."""


class Draw(NamedTuple):
    """Rows that were drawn, and the recorded rows that their values were taken from.

    rows        (n, S + A)
    donors      (n, S + A) int64, for each value the index of a recorded row among those that the recipe was fitted to;
                -1 where it was not taken from one
    next_state  (n, S), where it is known
    """

    rows: Tensor
    donors: Tensor
    next_state: Tensor | None = None

    def at(self, index: Tensor | slice) -> Draw:
        """The chosen rows."""
        return Draw(*(None if array is None else array[index] for array in self))  # type: ignore[arg-type]

    def put(self, index: Tensor, other: Draw) -> None:
        """Overwrites the chosen rows, and their donors, in place."""
        self.rows[index], self.donors[index] = other.rows, other.donors

    @staticmethod
    def join(parts: Sequence[Draw]) -> Draw:
        """The rows of all parts, in order."""
        columns = zip(*parts, strict=True)
        return Draw(*(None if arrays[0] is None else torch.cat(arrays) for arrays in columns))  # type: ignore[arg-type]


class ParentsWithDonors:
    """Base class of distributions that know which recorded rows their values come from."""

    def draw(self, n: int, *, seed: int | Stream) -> Draw:
        """n rows, with their donors."""
        raise NotImplementedError

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        """n rows, (n, S + A)."""
        return self.draw(n, seed=seed).rows


@runtime_checkable
class ParentsWithChildren(Parents, Protocol):
    """A distribution of whole transitions, which needs no dynamics model."""

    def sample_with_children(self, n: int, *, seed: int | Stream) -> tuple[Tensor, Tensor]:
        """n rows (n, S + A) and their next states (n, S)."""


class Model(Protocol):
    """A dynamics model, as far as recipes that roll it forward need it."""

    def sample(self, rows: Tensor, *, seed: int | Stream) -> Tensor:
        """Next states (n, S) of rows (n, S + A)."""


class TaskHints(Protocol):
    """Hints that a task may give to recipes; None where it gives none."""

    @property
    def box(self) -> tuple[Tensor, Tensor] | None:
        """The lowest and the highest row, (S + A,) each."""

    @property
    def features(self) -> FeatureMap | None:
        """A method features(rows): the features (N, F) that matter for the task."""

    @property
    def region(self) -> Region | None:
        """A method region(rows): which rows matter for the task, bool (N,)."""


@dataclass(frozen=True)
class Recipe:
    """Base class of recipes: adds its settings as fields, and says how it is fitted."""

    name: ClassVar[str]  # what `fit_parents` calls it; what it fits has the same `name`
    title: ClassVar[str]  # in figures and tables
    colour: ClassVar[str] = "#1f2430"  # in figures
    needs_model: ClassVar[bool] = True  # False: what it fits is ParentsWithChildren

    def fit(
        self, data: Transitions, graph: LocalGraph, *, task: TaskHints | None, model: Model | None, seed: int | Stream
    ) -> Parents:
        """Fits a distribution of states and actions to recorded rows, on their device."""
        raise NotImplementedError

    @property
    def settings(self) -> dict[str, Any]:
        """The settings as JSON values; functions, which have no JSON value, are left out."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        plain: dict[str, Any] = json.loads(json.dumps({k: v for k, v in values.items() if not callable(v)}))
        return plain


RECIPES: Registry[type[Recipe]] = Registry("recipe")


def make_recipe(name: str, **settings: Any) -> Recipe:
    """Makes the recipe called `name`; settings that are not given have their defaults."""
    recipe: Recipe = RECIPES.make(name, **settings)
    return recipe


def fit_parents(
    data: Transitions,
    graph: LocalGraph,
    recipe: str | Recipe = "mocoda",
    *,
    task: TaskHints | None = None,
    model: Model | None = None,
    seed: int | Stream = 0,
) -> Parents:
    """Fits a recipe to the recorded rows: a distribution of new states and actions.

    recipe  a name, for its default settings, or a recipe such as make_recipe("mocoda-u", bandwidth=0.1)
    task    gives "rand" and "dyna" the box to draw from, and "mocoda-p" the features and the region that matter
    model   what "dyna" rolls forward
    """
    graph.check_data(data)
    recipe = make_recipe(recipe) if isinstance(recipe, str) else recipe
    parents = recipe.fit(data, graph, task=task, model=model, seed=seed)
    if graph.absent and not isinstance(parents, ParentsWithDonors | ParentsWithChildren):
        raise InputError(
            f"recipe {recipe.name!r} draws new values, and {', '.join(graph.absent)} may be absent, which is all or "
            "nothing: choose a recipe that recombines recorded objects, such as mocoda or coda."
        )
    return parents


def draw_from(parents: Parents, n: int, *, seed: int | Stream) -> Draw:
    """n rows of any parents; donors are -1 where the parents do not tell them."""
    if isinstance(parents, ParentsWithDonors):
        return parents.draw(n, seed=seed)
    next_state = None
    if isinstance(parents, ParentsWithChildren):
        rows, next_state = parents.sample_with_children(n, seed=seed)
    else:
        rows = parents.sample(n, seed=seed)
    return Draw(rows, torch.full((), -1, device=rows.device).expand(rows.shape), next_state)
