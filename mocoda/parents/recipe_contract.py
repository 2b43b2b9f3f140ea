"""The battery for a recipe of your own: raises an error that says which promise the recipe breaks.

mocoda.check_recipe(MyRecipe())
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents.recipe import RECIPES, Parents, ParentsWithChildren, Recipe, fit_parents

RECORDED, DRAWN = 400, 64  # rows of the trial's data, and rows drawn of it


def check_recipe(recipe: Recipe, task: Any = None) -> None:
    """Raises an InputError at the first promise of the contract (mocoda.Recipe) that `recipe` breaks.

    task  whose data, graph and hints to try the recipe on, if it needs one of its own; else a small made-up world
    """
    _check_class(recipe)
    world = task or _Trial()
    data = world.collect(RECORDED, seed=0)
    before = data.rows.clone(), data.next_state.clone()
    parents = _fit(recipe, data, world)
    _check_model(recipe, parents, data, world)
    name = getattr(parents, "name", None)
    _promise(recipe, name == recipe.name, f"what it fits must have the same name, which tables keep, got {name!r}.")
    _check_rows(recipe, parents, data)
    _check_seeds(recipe, parents, _fit(recipe, data, world))
    if isinstance(parents, ParentsWithChildren):
        _check_children(recipe, parents, data, world)
    unchanged = data.rows.equal(before[0]) and data.next_state.equal(before[1])
    _promise(recipe, unchanged, "it changes the recorded rows.")


def _promise(recipe: Recipe, kept: bool, broken: str) -> None:
    if not kept:
        raise InputError(f"recipe {getattr(recipe, 'name', type(recipe).__name__)!r} breaks its contract: {broken}")


def _fit(recipe: Recipe, data: Transitions, world: Any) -> Parents:
    return fit_parents(data, world.graph, recipe, task=world, model=_Still(data.state.shape[1]), seed=0)


def _check_class(recipe: Recipe) -> None:
    for attribute in ("name", "title", "colour"):
        value = getattr(recipe, attribute, None)
        _promise(recipe, isinstance(value, str), f"its {attribute} must be a string, got {value!r}.")
    registered = RECIPES[recipe.name] if recipe.name in RECIPES else type(recipe)
    _promise(recipe, registered is type(recipe), f"its name is that of another recipe, {registered.__name__}.")
    try:
        settings = recipe.settings
    except TypeError as error:
        raise InputError(
            f"recipe {recipe.name!r} breaks its contract: its settings are not JSON values ({error})."
        ) from error
    _promise(recipe, replace(recipe, **settings) == recipe, "made again from its settings, it is another recipe.")


def _check_model(recipe: Recipe, parents: Parents, data: Transitions, world: Any) -> None:
    """`needs_model` says whether next states come from a model."""
    own = isinstance(parents, ParentsWithChildren)
    if recipe.needs_model:
        _promise(recipe, not own, "what it fits has sample_with_children, so needs_model must be False.")
        return
    _promise(recipe, own, "what it fits has no sample_with_children, so needs_model must be True.")
    try:
        fit_parents(data, world.graph, recipe, task=world, model=None, seed=0)
    except Exception as error:
        _promise(recipe, False, f"needs_model is False, but without a model its fit ends in {error!r}.")


def _check_rows(recipe: Recipe, parents: Parents, data: Transitions) -> None:
    for n in (0, 1, DRAWN):
        rows, expected = parents.sample(n, seed=0), (n, data.rows.shape[1])
        shape = tuple(rows.shape)
        _promise(recipe, shape == expected, f"sample({n}) must return (n, S + A), here {expected}, got {shape}.")
        _promise(recipe, rows.dtype == torch.float32, f"sample({n}) must return float32, got {rows.dtype}.")
        _promise(
            recipe,
            rows.device == data.device,
            f"sample({n}) must return rows on the data's device, {data.device}, got {rows.device}.",
        )
        _promise(recipe, bool(rows.isfinite().all()), f"sample({n}) has NaN or inf.")


def _check_seeds(recipe: Recipe, parents: Parents, refitted: Parents) -> None:
    first, again = parents.sample(DRAWN, seed=1), refitted.sample(DRAWN, seed=1)
    if not first.equal(again):
        same = first.equal(parents.sample(DRAWN, seed=1))
        _promise(recipe, not same, "fitted again with the same seed, it draws other rows.")
        _promise(recipe, same, "the same seed draws other rows the second time.")
    other = parents.sample(DRAWN, seed=Stream(1, "contract"))
    _promise(recipe, not first.equal(other), "two seeds draw the same rows.")


def _check_children(recipe: Recipe, parents: ParentsWithChildren, data: Transitions, world: Any) -> None:
    """Whole transitions are the sampled rows with next states of the data's own making."""
    for n in (0, 1, DRAWN):
        rows, children = parents.sample_with_children(n, seed=0)
        expected = (n, data.state.shape[1])
        shape = tuple(children.shape)
        _promise(
            recipe, shape == expected, f"sample_with_children({n}) must return (n, S), here {expected}, got {shape}."
        )
        _promise(recipe, rows.equal(parents.sample(n, seed=0)), "sample and sample_with_children draw other rows.")
    for what, values, recorded in (("rows", rows, data.rows), ("next states", children, data.next_state)):
        within = bool(((values >= recorded.amin(0)) & (values <= recorded.amax(0))).all())
        _promise(recipe, within, f"its {what} leave the recorded range, though it needs no model.")
    if isinstance(world, _Trial):
        _promise(recipe, children.equal(world.step(rows)), "its next states are not those that follow its rows.")


class _Trial:
    """Two points on a line that are pushed by an action each: widths are unequal, so that a mix-up shows."""

    graph = LocalGraph(state={"a": [0, 1], "b": 2}, action={"u": 0, "v": 1}, edges={"a": ["a", "u"], "b": ["b", "v"]})
    box = (torch.full((5,), -4.0), torch.full((5,), 4.0))

    def collect(self, rows: int, *, seed: int) -> Transitions:
        stream = Stream(seed, "contract-recipe")
        state, action = 0.3 * stream.normal(rows, 3), stream.uniform(rows, 2, low=-1.0)
        return Transitions(state, action, self.step(torch.cat([state, action], 1)))

    def step(self, rows: Tensor) -> Tensor:
        return rows[:, :3] + 0.1 * rows[:, [3, 3, 4]]

    def features(self, rows: Tensor) -> Tensor:
        return rows[:, :2]

    def region(self, rows: Tensor) -> Tensor:
        return rows[:, 2] > 0


class _Still:
    """A model in which nothing moves: recipes may ask for next states, of which only the shape matters."""

    def __init__(self, state_width: int) -> None:
        self.state_width = state_width

    def sample(self, rows: Tensor, *, seed: int | Stream) -> Tensor:
        return rows[:, : self.state_width]
