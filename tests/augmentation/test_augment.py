from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from approved import refused
from point_task import PointTask
from torch import Tensor

from experiments.columns import PUBLISHED, column_recipe
from mocoda import DynamicsConfig, Transitions, concatenate, fit_dynamics, fit_parents
from mocoda.augmentation.generation import Augmentation, augment
from mocoda.augmentation.support import local_graphs
from mocoda.engine.progress import silent
from mocoda.engine.randomness import Stream, as_stream
from mocoda.parents import Mocoda, Parents
from mocoda.tasks.navigation import Navigation

TASK, POINT = Navigation(), PointTask()
ARRAYS = ("state", "action", "next_state", "reward", "terminal", "episode", "step")


@pytest.fixture(scope="module")
def data() -> Transitions:
    return TASK.collect(200, seed=0)


@dataclass
class Box:
    """Parents from all over the box, and a note of what was asked of them."""

    asked: list[int] = field(default_factory=list)

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        self.asked.append(n)
        low, high = TASK.box
        return low + (high - low) * as_stream(seed, "box", device="cpu").uniform(n, 4)


@dataclass
class Truth:
    """A model that knows the world, and a note of what it was shown."""

    noise: float = 0.0
    shown: list[Tensor] = field(default_factory=list)

    def __repr__(self) -> str:
        return "Truth()"

    def sample(self, rows: Tensor, *, seed: int | Stream) -> Tensor:
        self.shown.append(rows)
        return TASK.step(rows) + self.noise * as_stream(seed, "truth", device="cpu").normal(len(rows), 2)


@dataclass
class Always:
    """Parents that return the same whatever is asked."""

    rows: Tensor

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        return self.rows


@dataclass
class AlwaysWithChildren(Always):
    children: Tensor

    def sample_with_children(self, n: int, *, seed: int | Stream) -> tuple[Tensor, Tensor]:
        return self.rows, self.children


def same(one: Transitions, other: Transitions) -> bool:
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in ARRAYS if labelled(one, name))


def labelled(table: Transitions, name: str) -> bool:
    return getattr(table, name) is not None


# What comes out


def test_the_recorded_rows_come_first_and_unchanged_then_the_generated_ones(data: Transitions) -> None:
    box, truth = Box(), Truth()
    table = augment(data, box, truth, rows=300, task=TASK)
    assert len(table) == 500
    assert same(table[:200], data)
    assert table.columns == data.columns
    assert box.asked == [300]
    assert table.rows[200:].equal(torch.cat(truth.shown))
    assert table.next_state[200:].equal(TASK.step(table.rows[200:]))


@pytest.mark.parametrize("recipe", ["mocoda", "rand", "emp", "coda"])
def test_every_stored_reward_and_terminal_is_the_tasks_own(data: Transitions, recipe: str) -> None:
    wrong = Transitions(data.state, data.action, data.next_state, torch.full((200,), 7.0), columns=data.columns)
    parents = fit_parents(wrong, TASK.graph, column_recipe(recipe, components=4), task=TASK)
    table = augment(wrong, parents, Truth(0.05), rows=2_000, task=TASK)
    reward, terminal = TASK.label(table.state, table.action, table.next_state)
    assert table.reward is not None and table.reward.equal(reward)
    assert table.terminal.equal(terminal)
    if recipe == "rand":
        assert 0 < int(terminal.sum()) < len(table)  # both kinds of rows occur


def test_the_source_tells_recorded_from_generated_rows(data: Transitions) -> None:
    table = augment(data, Box(), Truth(), rows=300, task=TASK)
    assert table.source == {
        "recorded": {"task": "navigation", "rows": 200, "seed": 0},
        "recorded_rows": 200,
        "generated_rows": 300,
        "recipe": "Box",
        "model": "Truth",
        "seed": 0,
        "reuse": True,
        "task": "navigation",
        "local_graphs": local_graphs(TASK.graph, data.rows),
    }
    assert "local_graphs" not in augment(data, Box(), Truth(), rows=3, task=TASK, provenance=False).source
    alone = augment(data, fit_parents(data, TASK.graph, "emp"), rows=30, keep_recorded=False)
    assert (alone.source["recorded_rows"], alone.source["generated_rows"]) == (0, 30)
    assert (alone.source["recipe"], alone.source["model"], alone.source["task"]) == ("emp", "NoneType", None)


# Pieces


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Augmentation, "piece_rows", 100)


def pieces(data: Transitions, parents: Parents | None = None, rows: int = 250, **options: Any) -> Iterator[Transitions]:
    progress = options.pop("progress", silent)
    return Augmentation(data, parents or Box(), Truth(0.1), rows=rows, task=TASK, chunk=100, **options).chunks(progress)


def test_pieces_have_the_stated_sizes_and_are_labelled_each(data: Transitions) -> None:
    found = list(pieces(data))
    assert [len(piece) for piece in found] == [200, 100, 100, 50]
    assert [len(piece) for piece in pieces(data, keep_recorded=False)] == [100, 100, 50]
    assert same(found[0], data)
    for piece in found:
        assert piece.reward is not None
        assert piece.reward.equal(TASK.label(piece.state, piece.action, piece.next_state)[0])
        assert piece.source == found[0].source


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("keep_recorded", [True, False])
def test_pieces_joined_are_the_whole_table(data: Transitions, keep_recorded: bool) -> None:
    whole = augment(data, Box(), Truth(0.1), rows=250, task=TASK, keep_recorded=keep_recorded)
    joined = concatenate(list(pieces(data, keep_recorded=keep_recorded)))
    assert same(joined, whole) and joined.source == whole.source and joined.columns == whole.columns


def test_pieces_are_made_only_as_they_are_asked_for(data: Transitions) -> None:
    box = Box()
    found = pieces(data, box)
    next(found)
    assert box.asked == []
    next(found)
    assert box.asked == [100]


# Seeds


def test_the_same_seed_generates_the_same_bytes_and_another_seed_others(data: Transitions) -> None:
    once, again, other = (augment(data, Box(), Truth(0.1), rows=100, task=TASK, seed=s) for s in (3, 3, 4))
    assert same(once, again)
    assert not once.rows[200:].equal(other.rows[200:])
    assert once.rows[:200].equal(other.rows[:200])


# Goals


@pytest.fixture(scope="module")
def points() -> Transitions:
    return POINT.collect(150, seed=0)


class Still:
    """A model in which nothing moves."""

    def sample(self, rows: Tensor, *, seed: int | Stream) -> Tensor:
        return rows[:, :3]


def about_goals(data: Transitions, rows: int = 250, **options: Any) -> Transitions:
    return augment(data, fit_parents(data, POINT.graph, "emp"), rows=rows, task=POINT, **options)


def own_goals(table: Transitions) -> Tensor:
    """Which rows are about what they achieve, bool (N,)."""
    assert table.goal is not None
    return (table.goal == POINT.achieved(table.next_state)).all(1)


@pytest.mark.parametrize("hindsight", [0.0, 0.3])
def test_every_row_is_labelled_for_its_own_goal(points: Transitions, hindsight: float) -> None:
    table = about_goals(points, hindsight=hindsight)
    assert table.goal is not None and table.reward is not None
    assert table.goal.shape == (400, 2)
    reward, terminal = POINT.label(table.state, table.action, table.next_state, table.goal)
    assert table.reward.equal(reward) and table.terminal.equal(terminal)
    assert table.reward.unique().tolist() == [-1, 0]


@pytest.mark.usefixtures("small_pieces")
def test_goals_are_fresh_draws_of_the_task_in_recorded_rows_too(points: Transitions) -> None:
    table = about_goals(points, seed=4)
    assert table.goal is not None and points.goal is not None
    assert not bool((table.goal[:150] == points.goal).any())
    assert len(table.goal.unique(dim=0)) == 400
    for piece, place in (("recorded", slice(0, 150)), (0, slice(150, 250)), (1, slice(250, 350)), (2, slice(350, 400))):
        part = table.goal[place]
        assert part.equal(POINT.goals(len(part), seed=Stream(4, "augment", piece, "goals")))


def test_goals_shift_nothing_else_that_is_drawn(points: Transitions) -> None:
    unlabelled = augment(points, fit_parents(points, POINT.graph, "emp"), rows=250)
    for hindsight in (0.0, 0.4):
        table = about_goals(points, hindsight=hindsight)
        assert table.rows.equal(unlabelled.rows) and table.next_state.equal(unlabelled.next_state)
    assert unlabelled.goal is None


@pytest.mark.parametrize("hindsight", [0.0, 0.25, 1.0])
def test_a_share_of_the_rows_is_about_what_they_achieve(points: Transitions, hindsight: float) -> None:
    table = about_goals(points, rows=4_000, hindsight=hindsight)
    own = own_goals(table)
    assert float(own.float().mean()) == pytest.approx(hindsight, abs=3 * 0.5 / 4_000**0.5)
    assert (own.all() if hindsight == 1 else own.any()) == (hindsight > 0)
    assert table.reward is not None and bool((table.reward[own] == 0).all())
    plain = about_goals(points, rows=4_000)
    assert table.goal is not None and plain.goal is not None
    assert table.goal[~own].equal(plain.goal[~own])  # the other rows keep the goals they would have


# Recipes


def test_generated_next_states_obey_the_model(data: Transitions) -> None:
    recorded = TASK.collect(2_000, seed=1)
    config = DynamicsConfig(members=2, hidden=(32, 32), features=16, epochs=30, batch=128, learning_rate=4e-3)
    model = fit_dynamics(recorded, TASK.graph, config=config)
    parents = fit_parents(recorded, TASK.graph, Mocoda(components=8, **PUBLISHED))
    table = augment(recorded, parents, model, rows=500, task=TASK, keep_recorded=False)
    torch.testing.assert_close(table.next_state, model.predict(table.rows).mean.mean(0))
    apart = ~(table.rows[:, :2] > 0.5).all(1)  # where this data has seen both mechanisms
    assert int(apart.sum()) > 200
    error = (table.next_state - TASK.step(table.rows))[apart].square().mean().sqrt()
    assert float(error) < 0.01  # a step is 0.02 to 0.045 long
    assert table.source["model"] == model.settings


# Errors


class Narrow:
    def sample(self, rows: Tensor, *, seed: int | Stream) -> Tensor:
        return rows[:, :1]


@pytest.mark.parametrize(
    "options",
    [
        {"model": None},
        *({"rows": rows, "keep_recorded": rows < 0} for rows in (-1, 0)),
        *({"parents": Always(torch.zeros(shape))} for shape in ((10, 3), (9, 4), (40,), (10, 4, 1))),
        *(
            {"parents": AlwaysWithChildren(torch.zeros(rows), torch.zeros(children))}
            for rows, children in (((10, 5), (10, 2)), ((10, 4), (9, 2)), ((10, 4), (10, 3)))
        ),
        {"model": Narrow()},
        *({"hindsight": share} for share in (-0.1, 1.1, float("nan"))),
        *({"hindsight": 0.5, "task": task} for task in (TASK, None)),
    ],
)
def test_what_cannot_be_augmented_is_refused(data: Transitions, options: dict[str, Any]) -> None:
    with refused():
        augment(data, **{"parents": Box(), "model": Truth(), "rows": 10, **options})


def test_a_task_that_achieves_goals_of_another_shape_is_refused(points: Transitions) -> None:
    class Odd(PointTask):
        def achieved(self, state: Tensor) -> Tensor:
            return state

    with refused():
        augment(points, Always(points.rows[:20]), Still(), rows=20, task=Odd(), hindsight=0.5, keep_recorded=False)


def test_a_model_that_returns_nan_is_refused(data: Transitions) -> None:
    class Broken:
        def sample(self, rows: Tensor, *, seed: int | Stream) -> Tensor:
            next_state = rows[:, :2].clone()
            next_state[3] = torch.nan
            return next_state

    with refused():
        augment(data, Box(), Broken(), rows=10)
