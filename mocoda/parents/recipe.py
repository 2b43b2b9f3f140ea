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
from mocoda.data.where import Condition
from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Stream, as_stream
from mocoda.engine.registry import Registry
from mocoda.graph.local_graph import LocalGraph

FeatureMap = Callable[[Tensor], Tensor]  # rows (N, S + A) -> features (N, F)
Region = Callable[[Tensor], Tensor]  # rows (N, S + A) -> bool (N,)
Part = tuple[list[int], Tensor]  # the columns that a condition is about, and the recorded rows (N,) that meet it


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


class RecordedTransitions(ParentsWithDonors):
    """Base class of parents whose next states are recorded too."""

    def sample_with_children(self, n: int, *, seed: int | Stream) -> tuple[Tensor, Tensor]:
        """n rows (n, S + A) and their next states (n, S)."""
        rows, _, next_state = self.draw(n, seed=seed)
        assert next_state is not None
        return rows, next_state


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
# Rows drawn at a time to find out which share is in a region, rows inside that are enough, and rows drawn at most.
PILOT, ENOUGH, MAX_PILOT = 16_384, 100, 262_144


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
    region: str | Region | None = None,
    seed: int | Stream = 0,
) -> Parents:
    """Fits a recipe to the recorded rows: a distribution of new states and actions.

    recipe  a name, for its default settings, or a recipe such as make_recipe("mocoda-u", bandwidth=0.1)
    task    gives "rand" and "dyna" the box to draw from, and "mocoda-p" the features and the region that matter
    model   what "dyna" rolls forward
    region  draw only rows inside it, which may be one that was never recorded (see `within`)
    """
    graph.check_data(data)
    recipe = make_recipe(recipe) if isinstance(recipe, str) else recipe
    parents = recipe.fit(data, graph, task=task, model=model, seed=seed)
    if graph.absent and not isinstance(parents, ParentsWithDonors | ParentsWithChildren):
        raise InputError(
            f"recipe {recipe.name!r} draws new values, and {', '.join(graph.absent)} may be absent, which is all or "
            "nothing: choose a recipe that recombines recorded objects, such as mocoda or coda."
        )
    return parents if region is None else within(parents, region, data, seed=seed)


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


def inside(
    proposals: Parents,
    region: Region | None,
    n: int,
    stream: Stream,
    kind: str = "region",
    way_out: str = "Widen the region or record more data.",
) -> Draw:
    """n proposals inside a region; raises an error with a way out if it holds next to none."""
    if region is None or n == 0:
        return draw_from(proposals, n, seed=stream)
    kept: list[Draw] = []
    have = proposed = 0
    while have < n:
        drawn = draw_from(proposals, max(n, 4_096), seed=stream.child("inside", len(kept)))
        kept.append(drawn.at(region(drawn.rows)))
        have, proposed = have + len(kept[-1].rows), proposed + len(drawn.rows)
        if proposed >= 2_000_000 and have < 1e-5 * proposed:
            raise InputError(
                f"the {kind} holds {have} of {proposed:,} proposals: the recorded parts hardly combine into it. "
                f"{way_out}"
            )
    return Draw.join(kept).at(slice(n))


# --- rows in a region


def within(parents: Parents, region: str | Region, data: Transitions, *, seed: int | Stream) -> Parents:
    """Parents that draw only rows inside a region, of which not one need be among the recorded rows.

    Recorded pieces are chosen by those conditions of an expression that are about no other piece, as far as the parents
    can do so. What they combine to is kept if it is inside the region.

    region  an expression over columns of the state and the action, such as "box1.x > 1.9 and box2.x > 1.9" (see
            mocoda.data.where), or a function: rows (N, S + A) -> bool (N,)
    """
    if hasattr(parents, "within"):
        own: Parents = parents.within(region, data, seed)
        return own
    meets = Condition(region, columns=data.columns) if isinstance(region, str) else region
    recorded = meets(data.rows)
    if not isinstance(recorded, Tensor) or recorded.dtype != torch.bool or recorded.shape != data.terminal.shape:
        raise InputError(f"region(rows) must return a boolean tensor of shape ({len(data)},), one value per row.")
    conditions = [one for one in meets.conjuncts if one.names] if isinstance(meets, Condition) else []
    parts = [(list(map(data.columns.index, one.names)), one(data.rows)) for one in conditions]
    counts = {one.text: int(holds.sum()) for one, (_, holds) in zip(conditions, parts, strict=True)}
    proposals: Parents = parents.conditioned(parts) if hasattr(parents, "conditioned") else parents
    stream = as_stream(seed, "region", device=data.device)
    kept = drawn = 0
    while kept < ENOUGH and drawn < MAX_PILOT:
        kept += int(meets(draw_from(proposals, PILOT, seed=stream.child(drawn)).rows).sum())
        drawn += PILOT
    if not kept:
        ends = zip(data.columns, *torch.stack(data.rows.aminmax(dim=0)).tolist(), strict=True)
        range_of = {name: f"{name} is from {low:.4g} to {high:.4g}" for name, low, high in ends}
        missing = [
            f"no recorded row has {one.text}, where {' and '.join(map(range_of.__getitem__, one.names))}"
            for one in conditions
            if not counts[one.text]
        ]
        each = ", ".join(f"{text} in {rows:,} rows" for text, rows in counts.items())
        found = "; ".join(missing) or f"what was recorded ({each}) does not combine into it"
        raise InputError(f"none of {drawn:,} rows drawn is in the region: {found}. Record more, or widen the region.")
    text = region if isinstance(region, str) else getattr(region, "__qualname__", type(region).__name__)
    note = {"where": text, "recorded": {**counts, "all of it": int(recorded.sum())}, "accepted_share": kept / drawn}
    return (RegionTransitions if isinstance(parents, ParentsWithChildren) else RegionParents)(proposals, meets, note)


@dataclass(frozen=True, eq=False)
class RegionParents(ParentsWithDonors):
    """Those rows of other parents that are inside a region.

    note  about the region, for the source of augmented tables
    """

    proposals: Parents
    region: Region
    note: dict[str, Any]

    @property
    def name(self) -> str:
        return getattr(self.proposals, "name", type(self.proposals).__name__)

    @property
    def graph(self) -> LocalGraph | None:
        return getattr(self.proposals, "graph", None)

    @property
    def source(self) -> dict[str, Any]:
        """Notes for the source of augmented tables."""
        return {**getattr(self.proposals, "source", {}), "region": self.note}

    def draw(self, n: int, *, seed: int | Stream) -> Draw:
        stream = as_stream(seed, "inside", device=getattr(seed, "device", "cpu"))
        return inside(self.proposals, self.region, n, stream)


class RegionTransitions(RegionParents, RecordedTransitions):
    """Those transitions of other parents that are inside a region."""
