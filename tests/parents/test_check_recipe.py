"""check_recipe: every built-in recipe passes, and each promise that is broken on purpose is caught with its message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from approved import refused
from parents_world import TASK
from torch import Tensor

from experiments.columns import PUBLISHED
from mocoda import check_recipe, make_recipe
from mocoda.data.transitions import Transitions
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents import BUILT_IN, Coda, Emp, Mocoda, MocodaP, MocodaU, Model, Recipe, TaskHints
from mocoda.parents.baselines import RecordedParents


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_recipe_keeps_its_promises(name: str) -> None:
    check_recipe(make_recipe(name))


@pytest.mark.parametrize(
    "recipe",
    [
        Mocoda(components=4, density="mixture"),
        Mocoda(composition=True),
        MocodaU(acceptance=0.5),
        MocodaP(components=4, acceptance=0.5, **PUBLISHED),
    ],
    ids=str,
)
def test_so_it_does_with_other_settings(recipe: Recipe) -> None:
    check_recipe(recipe)


@pytest.mark.parametrize("recipe", [Emp(), Coda(), MocodaP(components=8, **PUBLISHED)], ids=str)
def test_a_recipe_may_be_checked_on_a_task_of_its_own(recipe: Recipe) -> None:
    check_recipe(recipe, TASK)


class Rows:
    """Keeps every promise: recorded rows. What `wrong` names is broken."""

    name = "mine"

    def __init__(self, rows: Tensor, wrong: str, fit: int = 0) -> None:
        self.rows, self.wrong, self.draws = rows, wrong, fit

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        self.draws += 1
        stream = as_stream(0 if self.wrong == "seed" else seed, "mine", device="cpu")
        if self.wrong in ("again", "refit"):
            stream = stream.child(self.draws if self.wrong == "again" else id(self))
        rows = self.rows[stream.integers(len(self.rows), n)]
        if self.wrong == "changes":
            self.rows += 1
        if self.wrong == "nan":
            rows[:1] = torch.nan
        if self.wrong == "shape":
            rows = rows[:, 1:]
        if self.wrong == "empty" and n == 0:
            rows = self.rows[:1]
        return rows.double() if self.wrong == "dtype" else rows.to("meta") if self.wrong == "device" else rows


@dataclass(frozen=True)
class Mine(Recipe):
    name: ClassVar[str] = "mine"
    title: ClassVar[str] = "Mine"

    wrong: Any = ""

    def fit(
        self, data: Transitions, graph: LocalGraph, *, task: TaskHints | None, model: Model | None, seed: int | Stream
    ) -> Rows:
        return Rows(data.rows if self.wrong == "changes" else data.rows.clone(), self.wrong)


def test_a_recipe_that_keeps_them_all_passes() -> None:
    check_recipe(Mine())


@pytest.mark.parametrize(
    "wrong", [{1, 2}, (1, 2), "shape", "empty", "dtype", "device", "nan", "seed", "again", "refit"], ids=str
)
def test_what_is_wrong_with_the_rows_is_said(wrong: Any) -> None:
    with refused():
        check_recipe(Mine(wrong))


def altered(name: str, kind: type[Recipe], /, **attributes: Any) -> Recipe:
    """A recipe of this kind with other class attributes."""
    made: Recipe = type(name, (kind,), attributes)()
    return made


@dataclass(frozen=True)
class Whole(Recipe):
    """Whole recorded transitions, with what `wrong` names broken."""

    name: ClassVar[str] = "whole"
    title: ClassVar[str] = "Whole"
    needs_model: ClassVar[bool] = False

    wrong: str = ""

    def fit(
        self, data: Transitions, graph: LocalGraph, *, task: TaskHints | None, model: Model | None, seed: int | Stream
    ) -> RecordedParents:
        if self.wrong == "model" and model is None:
            raise ValueError("no model")
        made: RecordedParents = type(self.wrong or "Right", (WholeParents,), {"wrong": self.wrong})(data)
        return made


class WholeParents(RecordedParents):
    name = "whole"
    wrong: str

    def sample_with_children(self, n: int, *, seed: int | Stream) -> tuple[Tensor, Tensor]:
        rows, children = super().sample_with_children(n, seed=7 if self.wrong == "other" else seed)
        if self.wrong == "width":
            children = rows
        if self.wrong == "range":
            children = children + 10
        if self.wrong == "untrue":
            children = children.flip(0)
        return rows, children


@pytest.mark.parametrize(
    "recipe",
    [
        altered("Nameless", Recipe, title="?"),
        altered("Untitled", Mine, title=None),
        altered("Namesake", Mine, name="emp"),
        altered("Renamed", Mine, name="yours"),
        altered("Promising", Mine, needs_model=False),
        altered("Modest", Whole, needs_model=True),
        *(Whole(wrong) for wrong in ("model", "width", "other", "range", "untrue")),
    ],
    ids=str,
)
def test_what_else_is_wrong_is_said(recipe: Recipe) -> None:
    with refused():
        check_recipe(recipe)


def test_a_recipe_with_whole_transitions_passes() -> None:
    check_recipe(Whole())
