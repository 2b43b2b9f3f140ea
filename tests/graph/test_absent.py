"""Objects that are absent in some rows: they have no edges, are added or removed as a whole, and stay absent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from approved import assert_approved, refused
from torch import Tensor

import mocoda
from mocoda import LocalGraph, Transitions
from mocoda.dynamics import DynamicsConfig
from mocoda.graph.learned import LEARNERS, GraphLearner

COLUMNS = ("hand.x", "box1.x", "box1.v", "box2.x", "box2.v", "push")
ABSENT = ("box1", "box2")
GRAPH = """
absent = ["box1", "box2"]
[edges]
hand = ["hand", "action"]
box1 = ["box1"]
box2 = ["box2"]
[[near]]
between = ["hand", "box1", "box2"]
columns = {hand = ["x"], box1 = ["x"], box2 = ["x"]}
within = 0.3
"""


def step(rows: Tensor) -> Tensor:
    """The truth: a hand is pushed, boxes slide and are pushed away by a hand that is near; absent ones stay 0."""
    hand, push, after = rows[:, 0], rows[:, 5], rows[:, :5].clone()
    after[:, 0] = hand + 0.1 * push
    for place in (1, 3):
        x, v = rows[:, place], rows[:, place + 1]
        near, there = (hand - x).abs() < 0.3, (rows[:, place : place + 2] != 0).any(1)
        faster = torch.where(near, v + 0.1 * torch.sign(x - hand), v)
        after[:, place], after[:, place + 1] = torch.where(there, x + 0.1 * faster, 0), torch.where(there, faster, 0)
    return after


@cache
def recorded(rows: int = 1_500) -> Transitions:
    """Rows with one box, with both and with none; never do the boxes touch."""
    random = np.random.default_rng(0)
    state = np.stack([random.normal(size=rows), 1 + random.random(rows), random.normal(size=rows)], 1)
    state = np.hstack([state, np.stack([-1 - random.random(rows), random.normal(size=rows)], 1)])
    which = random.integers(0, 4, rows)
    state[which % 2 == 1, 1:3], state[which >= 2, 3:5] = 0, 0
    push = random.uniform(-1, 1, (rows, 1))
    whole = torch.tensor(np.hstack([state, push])).float()
    return Transitions(whole[:, :5], whole[:, 5:], step(whole), columns=COLUMNS)


@pytest.fixture
def graph(tmp_path: Path) -> LocalGraph:
    (tmp_path / "graph.toml").write_text(GRAPH)
    return mocoda.load_graph(tmp_path / "graph.toml", recorded())


def gone(state: Tensor) -> Tensor:
    return torch.stack([(state[:, place : place + 2] == 0).all(1) for place in (1, 3)], 1)


def test_an_absent_object_has_no_edge_but_its_own(graph: LocalGraph) -> None:
    rows = recorded().rows.clone()
    rows[:, 0] = 0  # the hand is where absent boxes seem to be
    mask, absent = graph.mask(rows), graph.absent_at(rows)
    assert absent[:, 1:3].equal(gone(rows)) and not absent[:, [0, 3]].any()
    for row in range(0, 200):
        for name in absent[row].nonzero()[:, 0].tolist():
            assert mask[row, name].nonzero()[:, 0].tolist() == mask[row, :, name].nonzero()[:, 0].tolist() == [name]
    both = ~gone(rows).any(1)
    assert mask[both].equal(replace(graph, absent={}).mask(rows)[both])
    assert (mask[~gone(rows)[:, 0]][:, 0, 1]).equal(rows[~gone(rows)[:, 0], 1].abs() < 0.3)


@pytest.mark.parametrize("recipe", ["mocoda", "coda"])
def test_new_rows_add_and_remove_whole_objects_and_are_true(graph: LocalGraph, recipe: str) -> None:
    data = recorded()
    parents = mocoda.fit_parents(data, graph, recipe, seed=0)
    config = DynamicsConfig(members=2, hidden=(32, 32), epochs=30)
    model = mocoda.fit_dynamics(data, graph, config=config, seed=0) if recipe == "mocoda" else None
    made = mocoda.augment(data, parents, model, rows=2_000, keep_recorded=False, graph=graph, seed=0)
    for place in (1, 3):
        known = {tuple(row) for row in data.state[:, place : place + 2].tolist()}
        assert {tuple(row) for row in made.state[:, place : place + 2].tolist()} <= known  # never parts of one
    absent = gone(made.state)
    assert made.next_state[:, 1:3][absent[:, 0]].eq(0).all() and made.next_state[:, 3:5][absent[:, 1]].eq(0).all()
    donors = {name: made.provenance[f"donor_{name}"] for name in ("hand", "box2")}
    before = gone(data.state)[donors["hand"], 1]
    assert bool((absent[:, 1] & ~before).any()) and bool((~absent[:, 1] & before).any())  # removed, and added
    error = (made.next_state - step(made.rows)).abs().amax(1)
    assert float(error.quantile(0.9)) < (1e-6 if recipe == "coda" else 0.2)


def test_absence_is_read_from_nan_and_known_from_the_file_of_data(tmp_path: Path) -> None:
    data = recorded()
    arrays: dict[str, Any] = {name: getattr(data, name).numpy().copy() for name in ("state", "action", "next_state")}
    for name in ("state", "next_state"):
        for place in (1, 3):
            arrays[name][(arrays[name][:, place : place + 2] == 0).all(1), place : place + 2] = np.nan
    with refused():
        mocoda.read(arrays, columns=COLUMNS)
    with refused():
        mocoda.read(arrays, columns=COLUMNS, absent=["box3"])
    read = mocoda.read(arrays, columns=COLUMNS, absent=ABSENT)
    assert read.rows.equal(data.rows) and read.next_state.equal(data.next_state)
    found = mocoda.inspect(arrays, columns=COLUMNS, absent=ABSENT)
    assert found.bad_rows == 0 and not any("absent" in warning for warning in found.warnings)
    assert_approved(next(warning for warning in mocoda.inspect(data).warnings if "absent" in warning))
    read.save(tmp_path / "data.hdf5")
    (tmp_path / "graph.toml").write_text(GRAPH.partition("\n")[2].partition("\n")[2])
    known = mocoda.load_graph(tmp_path / "graph.toml", mocoda.read(tmp_path / "data.hdf5"))
    assert known.absent == {"box1": None, "box2": None}
    assert mocoda.load_graph(tmp_path / "graph.toml", data).absent == {}


@dataclass(frozen=True)
class Dense(GraphLearner):
    """Learns that everything may depend on everything."""

    name: ClassVar[str] = "dense"
    caution: ClassVar[float] = 0.5

    def learn(self, data: Any, graph: Any, always: Tensor, never: Tensor, *others: object) -> dict[str, Tensor]:
        return {"always": always, "never": never}

    def probability(self, tensors: Any, graph: Any, rows: Tensor) -> Tensor:
        return torch.ones(len(rows), *tensors["always"].shape)


def test_a_graph_that_is_learned_keeps_what_may_be_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LEARNERS, "data", {**LEARNERS.data, "dense": Dense})
    data = mocoda.read(recorded(), absent=ABSENT)
    learned = mocoda.learn_graph(data, learner=Dense(), unseen="linked", seed=0)
    learned.save(tmp_path / "learned.graph")
    for graph in (
        learned,
        mocoda.load_graph(tmp_path / "learned.graph"),
        mocoda.load_graph(tmp_path / "learned.graph", data),
    ):
        mask, absent = graph.mask(data.rows[:200]), graph.absent_at(data.rows[:200])
        assert graph.absent == {"box1": None, "box2": None}
        assert (mask[absent].sum(1) == 1).all()


def test_a_column_may_say_what_is_there(tmp_path: Path) -> None:
    data = recorded()
    (tmp_path / "graph.py").write_text('absent = {"box1": "v"}\nedges = {n: [n] for n in ("hand", "box1", "box2")}\n')
    graph = mocoda.load_graph(tmp_path / "graph.py", data)
    assert graph.absent == {"box1": 2} and graph.absent_at(data.rows)[:, 1].equal(data.state[:, 2] == 0)


@pytest.mark.parametrize(
    "absent", ['{"box3": "x"}', '{"box1": "y"}', '"box1"', "[1]", '["push"]', '["action"]'], ids=str
)
def test_what_cannot_be_absent_is_refused(absent: str, tmp_path: Path) -> None:
    (tmp_path / "graph.py").write_text(f"absent = {absent}\nedges = {{n: [n] for n in ('hand', 'box1', 'box2')}}\n")
    with refused():
        mocoda.load_graph(tmp_path / "graph.py", recorded())


def test_recipes_that_draw_new_values_are_refused(graph: LocalGraph) -> None:
    for recipe in ("rand", mocoda.make_recipe("mocoda", density="mixture")):
        with refused():
            mocoda.fit_parents(recorded(), graph, recipe)
    with refused():
        replace(graph, relative={1: 0})
