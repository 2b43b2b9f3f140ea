"""Columns of the paper's tables: how the data of each is made, called and coloured.

A column is called by its recipe. "-matched" after it says that parents are matched rather than drawn from mixtures,
"-local" that they are matched for every local graph, and "-full" or "-global" that next states come from an unfactored
or a globally factored model. Besides:

default    MoCoDA as it is shipped: next states are recorded ones where these are known, and elsewhere the model's mean
coda-code  CoDA as in the paper's code: it exchanges whatever the sparsest graph leaves unconnected
diffusion  rows of a diffusion model of whole transitions (`experiments.diffusion`)
noise      recorded rows with noise on their states
mopo       Dyna's rows by an unfactored model, with a reward that is lower where its members are unsure
target     recordings of the target task: a ceiling
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from matplotlib.colors import to_rgb
from torch import Tensor

from mocoda.augmentation.generation import augment
from mocoda.augmentation.support import step_scale
from mocoda.data.transitions import Transitions
from mocoda.dynamics import Dynamics
from mocoda.engine.figure_style import INK
from mocoda.engine.randomness import Stream, as_stream
from mocoda.engine.registry import settings_of
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents import RECIPES, Parents, Recipe, fit_parents, make_recipe

MATCHED, LOCAL, FULL, GLOBAL = "-matched", "-local", "-full", "-global"
# The paper's recipes: one set of mixtures for all rows, wherever these draw.
PUBLISHED: dict[str, Any] = {"density": "mixture", "stratified": False, "project": False}
DEFAULT = "default"
# Columns that are no recipes: title and colour.
OTHERS = {
    DEFAULT: ("MoCoDA, default", "#123a66"),
    "coda-code": ("CoDA (paper's code)", "#b39ddb"),
    "diffusion": ("Diffusion", "#b5651d"),
    "noise": ("Noise", "#7f8c5a"),
    "mopo": ("MOPO's penalty", "#d48ab8"),
    "target": ("Target task", INK),
}
NOISE = 0.01  # standard deviation of the noise on states, in standard deviations of each column
PENALTY = 1.0  # of MOPO: reward for each standard deviation of a step that the least sure member is unsure by
BLOCK = 100_000  # rows whose uncertainty is computed at a time


class Column(NamedTuple):
    """What the name of a column says."""

    recipe: str
    density: str
    architecture: str  # of the model
    stratified: bool  # whether parents are drawn for every local graph

    @staticmethod
    def of(name: str) -> Column:
        if name in OTHERS:
            recipe = {DEFAULT: "mocoda", "mopo": "dyna"}.get(name, name)
            return Column(recipe, "matched", "full" if name == "mopo" else "local", name == DEFAULT)
        parents = name.removesuffix(FULL).removesuffix(GLOBAL)
        recipe = parents.removesuffix(MATCHED).removesuffix(LOCAL)
        density = "mixture" if recipe == parents else "matched"
        return Column(recipe, density, name[len(parents) + 1 :] or "local", parents.endswith(LOCAL))


def column_recipe(column: str, **settings: Any) -> Recipe:
    """The recipe of a column, with those of an experiment's settings that it has: only mixtures have components."""
    if column == DEFAULT:
        return make_recipe("mocoda")
    name, density, _, stratified = Column.of(column)
    known = settings_of(RECIPES[name])
    chosen = PUBLISHED | {"density": density, "stratified": stratified} | settings
    return make_recipe(name, **{key: value for key, value in chosen.items() if key in known})


def column_data(
    column: str,
    recorded: Transitions,
    task: Any,
    model: Dynamics | None,
    *,
    rows: int,
    seed: int,
    graph: LocalGraph | None = None,
    parents: Parents | None = None,
    **settings: Any,
) -> Transitions:
    """The recorded rows and, after them, `rows` of a column.

    graph     the task's, unless given
    parents   where the rows come from, unless the column's own recipe is fitted, with `settings`
    """
    graph = graph or task.graph
    if column == "noise":
        parents = NoisyRows(recorded)
    elif column == "coda-code":
        parents = fit_parents(recorded, replace(graph, local=None), "coda")
    elif parents is None:
        recipe = column_recipe(Column.of(column).recipe if column == "mopo" else column, **settings)
        parents = fit_parents(recorded, graph, recipe, seed=seed, task=task, model=model)
    shipped = column == DEFAULT
    if shipped and model is not None:
        model = replace(model, config=replace(model.config, next_state="auto"))
    made = augment(recorded, parents, model, rows=rows, task=task, seed=seed, provenance=False, reuse=shipped)
    return penalised(made, recorded, model) if column == "mopo" and model is not None else made


@dataclass(frozen=True, eq=False)
class NoisyRows:
    """Recorded transitions with noise on their states and next states (S4RL's idea)."""

    data: Transitions

    def sample_with_children(self, n: int, *, seed: int | Stream) -> tuple[Tensor, Tensor]:
        data, stream = self.data, as_stream(seed, "noise", device=self.data.device)
        index, scale = stream.integers(len(data), n), NOISE * data.state.std(0)
        state, next_state = (
            part[index] + scale * stream.child(name).normal(n, len(scale))
            for name, part in (("state", data.state), ("next", data.next_state))
        )
        return torch.cat([state, data.action[index]], 1), next_state

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        return self.sample_with_children(n, seed=seed)[0]


def penalised(made: Transitions, recorded: Transitions, model: Dynamics) -> Transitions:
    """Rewards of generated rows, lower by what the least sure member is unsure by (MOPO's penalty)."""
    assert made.reward is not None
    scale, own = step_scale(recorded), made.rows[len(recorded) :].split(BLOCK)
    unsure = [(model.predict(rows).scale / scale).norm(dim=-1).amax(0) for rows in own]
    kept = made.reward.new_zeros(len(recorded))
    return replace(made, reward=made.reward - PENALTY * torch.cat([kept, *unsure]))


# Names and colours


def column_label(column: str) -> str:
    """What a figure calls a column."""
    return column.replace(MATCHED, ", matched").replace(LOCAL, ", by local graph")


def recipe_title(column: str) -> str:
    return RECIPES[column].title if column in RECIPES else column


def recipe_colour(column: str) -> str:
    return RECIPES[column].colour if column in RECIPES else OTHERS.get(column, ("", INK))[1]


def column_style(column: str) -> dict[str, Any]:
    """How a figure draws a column: the recipe's colour, lighter and dashed where the model knows fewer factors."""
    red, green, blue = to_rgb(recipe_colour(column if column in OTHERS else Column.of(column).recipe))
    white = 0.45 if column.endswith((FULL, GLOBAL)) else 0.0
    colour = (red + white * (1 - red), green + white * (1 - green), blue + white * (1 - blue))
    return {"color": colour, "ls": "--" if column.endswith(FULL) else ":" if column.endswith(GLOBAL) else "-"}


def column_title(column: str) -> str:
    """What a table calls a column."""
    if column in OTHERS:
        return OTHERS[column][0]
    recipe, density, architecture, _ = Column.of(column)
    notes = ["matched"] if density == "matched" else []
    notes += {"full": ["unfactored model"], "global": ["globally factored model"]}.get(architecture, [])
    return recipe_title(recipe) + (f" ({', '.join(notes)})" if notes else "")
