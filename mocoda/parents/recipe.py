"""The contract of a recipe: where new states and actions come from.

A recipe is a value: it holds settings, never data. `fit` turns it, recorded rows and a graph into a distribution of
states and actions (`Parents`). Write your own as a frozen dataclass that derives from `Recipe`, check it with
`mocoda.check_recipe`, and add it with `RECIPES.add` to choose it by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Stream
from mocoda.engine.registry import Registry
from mocoda.graph.local_graph import LocalGraph

FeatureMap = Callable[[Tensor], Tensor]  # rows (N, S + A) -> features (N, F)
Region = Callable[[Tensor], Tensor]  # rows (N, S + A) -> bool (N,)


class Parents(Protocol):
    """A distribution of states and actions. Any object with this one method can be augmented with."""

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        """n rows, (n, S + A)."""


@runtime_checkable
class ParentsWithChildren(Protocol):
    """A distribution of whole transitions, which needs no dynamics model."""

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        """n rows, (n, S + A)."""

    def sample_with_children(self, n: int, *, seed: int | Stream) -> tuple[Tensor, Tensor]:
        """n rows (n, S + A) and their next states (n, S)."""


class Model(Protocol):
    """What a recipe that rolls forward needs of a dynamics model."""

    def sample(self, rows: Tensor, *, seed: int | Stream) -> Tensor:
        """Next states (n, S) of rows (n, S + A)."""


class TaskHints(Protocol):
    """What a recipe may ask a task. A task that does not know has None."""

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
    """What all recipes share. A recipe derives from it, adds its settings as fields, and says how it is fitted."""

    name: ClassVar[str]  # what `fit_parents` calls it; what it fits has the same `name`
    title: ClassVar[str]  # in figures and tables
    colour: ClassVar[str] = "#1f2430"  # in figures
    needs_model: ClassVar[bool] = True  # False: what it fits is ParentsWithChildren

    def fit(
        self, data: Transitions, graph: LocalGraph, *, task: TaskHints | None, model: Model | None, seed: int | Stream
    ) -> Parents:
        """The distribution of states and actions that this recipe makes of recorded rows, on their device."""
        raise NotImplementedError

    @property
    def settings(self) -> dict[str, Any]:
        """The settings as JSON values; functions, which have no JSON value, are left out."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        plain: dict[str, Any] = json.loads(json.dumps({k: v for k, v in values.items() if not callable(v)}))
        return plain

    def _check_positive(self, *names: str) -> None:
        for name in names:
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be positive, got {getattr(self, name)}.")


RECIPES: Registry[type[Recipe]] = Registry("recipe")


def make_recipe(name: str, **settings: Any) -> Recipe:
    """The recipe called `name`, with its default settings but for those given."""
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
    """A distribution of new states and actions, fitted to the recorded rows.

    recipe  a name, for its default settings, or a recipe such as make_recipe("mocoda-u", bandwidth=0.1)
    task    gives "rand" and "dyna" the box to draw from, and "mocoda-p" the features and the region that matter
    model   what "dyna" rolls forward
    """
    graph.check_data(data)
    recipe = make_recipe(recipe) if isinstance(recipe, str) else recipe
    return recipe.fit(data, graph, task=task, model=model, seed=seed)


def box_of(data: Transitions, task: TaskHints | None) -> tuple[Tensor, Tensor]:
    """The lowest and the highest row, (S + A,) each: the task's, or else those recorded."""
    box = getattr(task, "box", None)
    if box is None:
        return data.rows.amin(0), data.rows.amax(0)
    low, high = box
    return low.to(data.device), high.to(data.device)
