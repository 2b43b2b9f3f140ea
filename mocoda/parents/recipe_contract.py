"""Checks a recipe: raises an error that says which part of the contract it breaks.

mocoda.check_recipe(MyRecipe())
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import contract
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents.recipe import RECIPES, ParentsWithChildren, Recipe, fit_parents

RECORDED, DRAWN = 400, 64  # rows of the trial's data, and rows drawn of it


def check_recipe(recipe: Recipe, task: Any = None) -> None:
    """Raises an InputError at the first promise of the contract (mocoda.Recipe) that `recipe` breaks.

    task  whose data, graph and hints to try the recipe on, if it needs one of its own; else a small made-up world
    """
    name = getattr(recipe, "name", type(recipe).__name__)
    promise = contract(f"recipe {name!r} breaks its")
    _check_class(recipe, promise)
    world = task or _Trial()
    data = world.collect(RECORDED, seed=0)
    before = data.rows.clone(), data.next_state.clone()
    fit = partial(fit_parents, data, world.graph, recipe, task=world, seed=0)
    width = data.state.shape[1]
    model = SimpleNamespace(sample=lambda rows, seed: rows[:, :width])  # nothing moves; only the shape matters
    parents = fit(model=model)
    own = isinstance(parents, ParentsWithChildren)
    has, must_be = ("", False) if own else ("no ", True)
    promise(own != recipe.needs_model, f"what it fits has {has}sample_with_children, so needs_model must be {must_be}.")
    if own:
        try:
            fit(model=None)
        except Exception as error:
            promise(False, f"needs_model is False, but without a model its fit ends in {error!r}.")
    fitted = getattr(parents, "name", None)
    promise(fitted == name, f"what it fits must have the same name, which tables keep, got {fitted!r}.")
    for n in (0, 1, DRAWN):
        rows, expected = parents.sample(n, seed=0), (n, data.rows.shape[1])
        shape = tuple(rows.shape)
        promise(shape == expected, f"sample({n}) must return (n, S + A), here {expected}, got {shape}.")
        promise(rows.dtype == torch.float32, f"sample({n}) must return float32, got {rows.dtype}.")
        here = data.device
        promise(rows.device == here, f"sample({n}) must return rows on the data's device, {here}, got {rows.device}.")
        promise(bool(rows.isfinite().all()), f"sample({n}) has NaN or inf.")
    first, again = parents.sample(DRAWN, seed=1), fit(model=model).sample(DRAWN, seed=1)
    same = first.equal(parents.sample(DRAWN, seed=1))
    promise(same, "the same seed draws other rows the second time.")
    promise(first.equal(again), "fitted again with the same seed, it draws other rows.")
    other = parents.sample(DRAWN, seed=Stream(1, "contract"))
    promise(not first.equal(other), "two seeds draw the same rows.")
    if isinstance(parents, ParentsWithChildren):
        _check_children(parents, data, world, promise)
    unchanged = data.rows.equal(before[0]) and data.next_state.equal(before[1])
    promise(unchanged, "it changes the recorded rows.")


def _check_class(recipe: Recipe, promise: Callable[[bool, str], None]) -> None:
    for attribute in ("name", "title", "colour"):
        value = getattr(recipe, attribute, None)
        promise(isinstance(value, str), f"its {attribute} must be a string, got {value!r}.")
    registered = dict(RECIPES).get(recipe.name, type(recipe))
    promise(registered is type(recipe), f"its name is that of another recipe, {registered.__name__}.")
    try:
        settings = recipe.settings
    except TypeError as error:
        promise(False, f"its settings are not JSON values ({error}).")
    promise(replace(recipe, **settings) == recipe, "made again from its settings, it is another recipe.")


def _check_children(
    parents: ParentsWithChildren, data: Transitions, world: Any, promise: Callable[[bool, str], None]
) -> None:
    """Whole transitions are the sampled rows with next states of the data's own making."""
    for n in (0, 1, DRAWN):
        rows, children = parents.sample_with_children(n, seed=0)
        expected, shape = (n, data.state.shape[1]), tuple(children.shape)
        promise(shape == expected, f"sample_with_children({n}) must return (n, S), here {expected}, got {shape}.")
        promise(rows.equal(parents.sample(n, seed=0)), "sample and sample_with_children draw other rows.")
    for what, values, recorded in (("rows", rows, data.rows), ("next states", children, data.next_state)):
        within = bool(((values >= recorded.amin(0)) & (values <= recorded.amax(0))).all())
        promise(within, f"its {what} leave the recorded range, though it needs no model.")
    if isinstance(world, _Trial):
        promise(children.equal(world.step(rows)), "its next states are not those that follow its rows.")


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
