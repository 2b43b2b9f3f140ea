"""Recorded next values are used where they are known, exactly, and nowhere else; the model says the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from approved import refused
from torch import Tensor

from experiments.random_dag import RandomDag
from mocoda import Transitions, augment, fit_parents, make_task
from mocoda.augmentation import follows_recorded
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents.recipe import Draw, ParentsWithDonors
from mocoda.parents.recombination import GroupedParents

N = 400


def touching(rows: Tensor) -> Tensor:
    """`a` acts on `b` where both are positive."""
    mask = GRAPH.sparsest.repeat(len(rows), 1, 1)
    mask[:, 0, 1] = (rows[:, 0] > 0) & (rows[:, 2] > 0)
    return mask


GRAPH = LocalGraph(
    state={"a": [0, 1], "b": 2},
    action={"u": 0, "v": 1},
    edges={"a": ["a", "u"], "b": ["b", "v"]},
    local=touching,
)
DRAWN = Stream(0, "next-states").normal(N, 8)
DATA = Transitions(DRAWN[:, :3], DRAWN[:, 3:5], DRAWN[:, 5:])  # next states that no model could predict


class Model:
    """Says 7 of everything."""

    architecture = "local"

    def sample(self, rows: Tensor, *, seed: int | Stream) -> Tensor:
        return torch.full((len(rows), 3), 7.0)


class Recombined(ParentsWithDonors):
    """Each factor from another recorded row, or of none."""

    name = "mocoda"

    def draw(self, n: int, *, seed: int | Stream) -> Draw:
        stream = Stream(0, "draw")
        pair = stream.integers(N, n, 2)  # most rows have factors of two recorded ones
        donors = pair.gather(1, stream.integers(2, n, 4))[:, GRAPH.owner]
        return Draw(DATA.rows.gather(0, donors), donors)


def slowly(drawn: Draw) -> tuple[Tensor, Tensor]:
    """Next states row by row, and whether each factor's was predicted."""
    new, recorded = touching(drawn.rows), touching(DATA.rows)
    next_state, predicted = torch.full((len(drawn.rows), 3), 7.0), torch.ones(len(drawn.rows), 2)
    for row, (mask, donors) in enumerate(zip(new, drawn.donors, strict=True)):
        for number, child in enumerate(GRAPH.children):
            parents = [name for p, name in enumerate(GRAPH.parents) if mask[p, number]]
            rows = {int(donors[column]) for name in parents for column in GRAPH.factors[name]}
            if len(rows) == 1 and recorded[min(rows), :, number].equal(mask[:, number]):
                own = list(GRAPH.factors[child])
                next_state[row, own] = DATA.next_state[min(rows), own]
                predicted[row, number] = 0
    return next_state, predicted


def made(parents: Any = None, **options: Any) -> Transitions:
    return augment(DATA, parents or Recombined(), Model(), rows=300, graph=GRAPH, keep_recorded=False, **options)


def test_next_values_are_recorded_ones_where_these_are_known_and_nowhere_else() -> None:
    table = made()
    next_state, predicted = slowly(Recombined().draw(300, seed=0))
    assert 50 < int(predicted.sum()) < 550 and not predicted[:, 0].equal(predicted[:, 1])
    assert table.next_state.equal(next_state)
    assert table.provenance["predicted"].equal(predicted.mean(1))
    assert made(provenance=False).next_state.equal(next_state)


@pytest.mark.parametrize("why", ["off", "unfactored", "other values", "other data", "no graph"])
def test_the_model_says_everything_where_nothing_is_known(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if why == "no graph":
        table = augment(DATA, Recombined(), Model(), rows=300, keep_recorded=False)
    elif why == "other data":  # donors are of other rows than those that are augmented
        data = Transitions(DATA.state + 1, DATA.action, DATA.next_state)
        table = augment(data, Recombined(), Model(), rows=300, graph=GRAPH, keep_recorded=False)
    elif why == "other values":
        plain = Recombined.draw
        monkeypatch.setattr(Recombined, "draw", lambda *a, **k: plain(*a, **k)._replace(rows=0.5 + DATA.rows[:300]))
        table = made()
    else:
        monkeypatch.setattr(Model, "architecture", "full" if why == "unfactored" else "local")
        table = made(reuse=why != "off")
    assert bool((table.next_state == 7).all()) and bool((table.provenance["predicted"] == 1).all())


def test_recombined_groups_need_no_model() -> None:
    parents = fit_parents(DATA, GRAPH, "mocoda")
    table = made(parents)
    assert bool((table.provenance["predicted"] == 0).all()) and bool((table.provenance["disagreement"] == 0).all())
    assert bool((table.next_state.sum(1)[:, None] != 21).all())


@pytest.mark.parametrize("world", ["objects:2", "objects:4", "dag:3", "dag:6", "navigation"])
@pytest.mark.parametrize("rows", [60, 500])
def test_if_no_model_is_needed_none_is_asked(world: str, rows: int) -> None:
    name, _, number = world.partition(":")
    task: Any = RandomDag(int(number)) if name == "dag" else make_task(world)
    data = task.collect(rows, seed=1)
    for seed in range(3):
        parents = fit_parents(data, task.graph, seed=seed)
        if follows_recorded(parents):
            assert len(augment(data, parents, rows=2_000, seed=seed)) == rows + 2_000


@pytest.mark.parametrize("region", [None, "object1.x > 0.1"])
def test_where_whole_groups_are_copied_no_model_is_asked(region: str | None) -> None:
    task = make_task("objects:3")
    data = task.collect(2_000, seed=0)
    parents = fit_parents(data, task.graph, region=region, seed=0)
    assert follows_recorded(parents)
    given: dict[str, Any] = {"rows": 3_000, "task": task, "seed": 0}
    made, unasked = augment(data, parents, **given), augment(data, parents, Never(), graph=task.graph, **given)
    assert made.next_state.equal(unasked.next_state) and made.rows.equal(unasked.rows)
    assert int(made.provenance["predicted"].sum()) == 0
    everyone = replace(task.graph, local=None, edges=dict.fromkeys(task.graph.children, task.graph.parents))
    for wrong in ({"reuse": False}, {"graph": everyone}):
        with refused():
            augment(data, parents, **given, **wrong)


class Never:
    """A model that must not be asked."""

    architecture = "local"

    def sample(self, rows: Tensor, *, seed: int | Stream) -> Tensor:
        raise AssertionError("asked")


def test_where_parts_of_a_group_are_matched_a_model_is_needed() -> None:
    graph = replace(GRAPH, action={"u": [0, 1]}, edges={"a": ["a", "u"], "b": ["b", "u"]}, local=both_touched)
    parents = fit_parents(DATA, graph, seed=0)
    assert isinstance(parents, GroupedParents) and not follows_recorded(parents)
    with refused():
        augment(DATA, parents, rows=10)


def both_touched(rows: Tensor) -> Tensor:
    """`a` acts on `b` where both are positive; the action acts on both."""
    mask = torch.tensor([[True, False], [False, True], [True, True]]).repeat(len(rows), 1, 1)
    mask[:, 0, 1] = (rows[:, 0] > 0) & (rows[:, 2] > 0)
    return mask


def test_where_parts_are_matched_a_model_is_needed() -> None:
    task = make_task("navigation")
    data = task.collect(4_000, seed=0)
    parents = fit_parents(data, task.graph, seed=0)
    assert not follows_recorded(parents)
    with refused():
        augment(data, parents, rows=10)
