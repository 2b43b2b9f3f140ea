"""A check names the edges that a graph lacks, is silent about right graphs, and says which recipe is worth trying."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import holding_world as world
import pytest
import torch
from approved import assert_approved, refused
from command_line import done
from command_line import refused as command_refused
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import mocoda
from experiments.check import without
from mocoda import Advice, LocalGraph, Transitions
from mocoda.analysis.graph_check import recommend
from mocoda.analysis.missing_edges import find_missing_edges, stand_ins_for
from mocoda.data.where import Condition
from mocoda.engine.randomness import Stream
from mocoda.tasks.navigation import Navigation

NAVIGATION = Navigation()


def bodies(k: int, rows: int, seed: int, edge: float = 0.0) -> Transitions:
    """k bodies (place, velocity) that swing alone though their places go together; body0 may pull body1."""
    drawn = Stream(seed, "test-advisor")
    place = 0.7 * drawn.normal(rows, 1) + 0.7 * drawn.normal(rows, k)
    velocity, push = drawn.normal(rows, k), drawn.uniform(rows, 1, low=-1)
    force = torch.zeros(rows, k)
    force[:, :1] += push
    force[:, 1] += edge * torch.tanh(place[:, 0] - place[:, 1])
    following = 0.9 * velocity - 0.3 * torch.sin(2 * place) + force + 0.02 * drawn.normal(rows, k)
    state, after = (
        torch.stack(pair, 2).flatten(1) for pair in ((place, velocity), (place + 0.1 * following, following))
    )
    return Transitions(state, push, after)


def alone(k: int) -> LocalGraph:
    """Every body depends on itself, and the first on the push."""
    return LocalGraph(
        state={f"body{i}": slice(2 * i, 2 * i + 2) for i in range(k)},
        action={"push": 0},
        edges={f"body{i}": [f"body{i}", *(["push"] if i == 0 else [])] for i in range(k)},
    )


def named(advice: Advice) -> set[tuple[str, str]]:
    return {(edge.parent, edge.child) for edge in advice.missing}


@pytest.fixture(scope="module")
def advice() -> Advice:
    return mocoda.check(NAVIGATION.collect(40_000, seed=0), NAVIGATION.graph, quick=True)


# --- missing edges


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_the_right_graph_of_bodies_passes(seed: int) -> None:
    assert mocoda.check(bodies(2, 3_000, seed), alone(2), seed=seed, quick=True).missing == ()


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_body_that_pulls_another_is_named(seed: int) -> None:
    found = mocoda.check(bodies(2, 3_000, seed, edge=0.3), alone(2), seed=seed, quick=True)
    assert named(found) == {("body0", "body1")} and found.recipe is None
    (edge,) = found.missing
    assert 0.3 < edge.false_rows < 0.9 and all(0 <= row < 3_000 for row in edge.rows)


@pytest.mark.parametrize(("parent", "child"), [("dx", "x"), pytest.param("dy", "x", marks=pytest.mark.long)])
def test_an_edge_taken_from_navigation_is_named(parent: str, child: str) -> None:
    found = mocoda.check(
        NAVIGATION.collect(4_000, seed=3), without(NAVIGATION.graph, parent, child), seed=3, quick=True
    )
    assert (parent, child) in named(found)
    assert {edge.child for edge in found.missing} == {child}
    assert found.recipe is None and f"{parent} -> {child}" in found.recommendation[0] and len(found.recommendation) == 3
    assert found.recipes == () and len(found.details.renderables) == 1


def test_an_edge_that_acts_in_few_recorded_rows_but_many_recombined_ones_is_named() -> None:
    """Drivers who brake for whoever is near: recorded in light traffic, where hardly anybody is."""
    drawn = Stream(0, "test-traffic")
    place = 100 * drawn.uniform(6_000, 2)
    place[:, 0] = torch.where((place[:, 1] - place[:, 0]).abs() < 15, place[:, 0] + 40, place[:, 0])
    few = drawn.uniform(6_000) < 0.02
    place[few, 0] = place[few, 1] - 15 * drawn.uniform(int(few.sum()))
    gap, speed = place[:, 1] - place[:, 0], 20 + drawn.normal(6_000, 2)
    after = speed + 0.1 * drawn.normal(6_000, 2)
    after[:, 0] -= torch.where((gap > 0) & (gap < 15), 0.2 * (15 - gap), 0.0)
    state = torch.stack([place[:, 0], speed[:, 0], place[:, 1], speed[:, 1]], 1)
    next_state = torch.stack([place[:, 0] + after[:, 0], after[:, 0], place[:, 1] + after[:, 1], after[:, 1]], 1)
    data = Transitions(state, torch.zeros(6_000, 1), next_state)
    graph = LocalGraph(
        state={"behind": [0, 1], "ahead": [2, 3]},
        action={"none": 0},
        edges={"behind": ["behind"], "ahead": ["ahead"]},
    )
    assert named(mocoda.check(data, graph, quick=True)) == {("ahead", "behind")}


@pytest.mark.parametrize("seed", range(3))
def test_an_error_that_the_parents_explain_is_blamed_on_nobody_else(seed: int) -> None:
    """Independent bodies, and an error that is hard to learn."""
    rows = Stream(seed, "test-advisor", "weak").normal(8_000, 7)
    error = torch.zeros(8_000, 6)
    for body in (0, 3):
        error[:, body + 1] = 0.3 * torch.sin(4 * rows[:, body]) * rows[:, body + 2]
    graph = LocalGraph(state={"a": slice(0, 3), "b": slice(3, 6)}, action={"u": 0}, edges={"a": ["a"], "b": ["b"]})
    block = torch.arange(8_000) // 40
    assert find_missing_edges(graph, rows, error, torch.ones(6), block, seed=Stream(seed, "edges")) == ()


def test_columns_that_rest_or_repeat_others_are_blamed_for_nothing() -> None:
    """A quaternion of an angle, a copy in other units, a resting object, and one that rests but for rounding."""
    drawn = Stream(0, "test-redundant")
    angle, speed = 3 * drawn.uniform(4_000, 1, low=-1), drawn.normal(4_000, 1)
    turned = angle + 0.1 * speed + 0.05 * torch.sin(3 * angle)

    def state(angle: Tensor) -> Tensor:
        quaternion = torch.cat([(angle / 2).cos(), (angle / 2).sin(), 0 * angle, 0 * angle], 1)
        still = torch.full((4_000, 2), 0.3)
        jitter = 1 + 1e-7 * (angle > 0)
        return torch.cat([angle, speed, quaternion, 100 * angle, still, jitter], 1)

    data = Transitions(state(angle), drawn.normal(4_000, 1), state(turned))
    names: dict[str, int | list[int]] = {"arm": [0, 1], "turn": [2, 3, 4, 5], "copy": 6, "box": [7, 8], "other": 9}
    edges = {"arm": ["arm"], "turn": ["arm", "turn"], "copy": ["arm", "copy"], "box": ["box"], "other": ["other"]}
    found = mocoda.check(data, LocalGraph(state=names, action={"push": 0}, edges=edges), quick=True)
    assert found.missing == ()


def test_columns_that_rest_categories_and_absent_objects_are_no_obstacle() -> None:
    """A body in one of three gears, one-hot; a label that never changes; and another body, absent in half the rows."""
    drawn = Stream(0, "test-columns")
    gear = torch.nn.functional.one_hot((3 * drawn.uniform(4_000)).long(), 3).float()
    place, push, label = drawn.normal(4_000, 2), drawn.normal(4_000, 1), torch.full((4_000, 1), 7.0)
    place[torch.arange(4_000) // 50 % 2 == 0, 1] = 0
    moved = place + torch.cat([push * (gear @ torch.tensor([[0.0], [0.5], [1.0]])), 0.1 * place[:, 1:]], 1)
    state, after = (torch.cat([one, label, gear], 1) for one in (place, moved))
    graph = LocalGraph(
        state={"body": 0, "other": 1, "label": 2, "gear": [3, 4, 5]},
        action={"push": 0},
        edges={"body": ["body", "gear", "push"], "other": ["other"], "label": ["label"], "gear": ["gear"]},
        absent={"other": None},
    )
    data = Transitions(state, push, after)
    assert mocoda.check(data, graph, quick=True).missing == ()
    assert named(mocoda.check(data, without(graph, "gear", "body"), quick=True)) == {("gear", "body")}


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(40, 400), seed=st.integers(0, 99))
def test_stand_ins_use_every_row_once_and_only_within_its_part(rows: int, seed: int) -> None:
    drawn = Stream(seed, "test-stand-ins")
    known, values = torch.zeros(rows, 1), torch.arange(rows, dtype=torch.float32)[:, None]  # nothing known: no shift
    order = drawn.permutation(rows)
    parts = [order < rows // 2, (order >= rows // 2) & (order < 2 * rows // 3), order >= 2 * rows // 3]
    stand_ins = stand_ins_for(known, values, torch.arange(rows) // 10, parts)[:, 0]
    for part in parts:
        assert sorted(stand_ins[part].tolist()) == sorted(values[part, 0].tolist())
        assert int(part.sum()) < 2 or not bool((stand_ins[part] == values[part, 0]).any())


# --- the recommendation


def test_a_quick_check_uses_fewer_rows_and_recommends_mocoda_in_navigation(advice: Advice) -> None:
    assert (advice.rows, advice.used, advice.missing, advice.recipe) == (40_000, 5_715, (), "mocoda")
    recorded, coda, ours = advice.recipes
    assert advice.recommendation == (
        "No missing edge was found in the graph.",
        f"Try recipe mocoda with its default settings: {ours.new_and_supported:.0%} of its rows are new and supported, "
        f"and {recorded.new_and_supported:.0%} of held-out recorded rows.",
        "Generate about 160,000 rows, 4 for each recorded one.",
    )
    assert recorded.new < 0.1 < min(coda.new, ours.new) and min(recorded.supported, coda.supported) > 0.95


def test_recipes_are_judged_by_the_rows_they_draw() -> None:
    """A hand that holds objects, which no recipe may tear apart."""
    found = mocoda.check(world.collect(3_000, seed=0), world.GRAPH, quick=True)
    recorded, _, ours = found.recipes
    assert recorded.valid == ours.valid == 1 and ours.supported > 0.8


def test_what_is_tied_in_all_recorded_rows_is_named_until_it_is_a_constraint() -> None:
    """A cube is listed at 0 where a hand holds it, which no edge says."""
    drawn = Stream(0, "test-ties")
    held, place = drawn.integers(2, 601).float(), 1 + drawn.uniform(601)
    state = torch.stack([drawn.uniform(601), held, place * (1 - held)], 1)
    names = ["hand.x", "hand.0", "cube.x", "push"]
    data = Transitions(state[:-1], drawn.normal(600, 1), state[1:], columns=names)
    edges = {"hand": ["hand", "push"], "cube": ["cube"]}
    graph = LocalGraph({"hand": [0, 1], "cube": 2}, {"push": 0}, edges)
    coda = mocoda.check(data, graph, quick=True).recipes[1]
    assert coda.valid < 0.8 and len(coda.torn) == 1
    constrained = replace(graph, constraints={"held": Condition(coda.torn[0], columns=tuple(names))})
    advice = mocoda.check(data, constrained, quick=True)
    assert advice.recipes[1].valid == 1 and not advice.recipes[1].torn and advice.recipe is not None


def test_a_graph_of_all_edges_has_nothing_to_recombine() -> None:
    everything = LocalGraph(
        state={"x": 0, "y": 1}, action={"d": [0, 1]}, edges={"x": ["x", "y", "d"], "y": ["x", "y", "d"]}
    )
    found = mocoda.check(NAVIGATION.collect(500, seed=0), everything, quick=True)
    assert found.recipe is None and "nothing to recombine" in found.recommendation[0]
    assert found.recipes[1].unusable is not None


def test_the_recommendation_follows_what_was_measured(advice: Advice) -> None:
    graph = NAVIGATION.graph
    recorded, coda, ours = advice.recipes

    def chosen(changed: Advice) -> tuple[str | None, float | None]:
        found = recommend(changed, graph, 0.5)
        assert 1 < len(found.recommendation) <= 3
        return found.recipe, found.max_disagreement

    def with_mocoda(**aspects: float | str) -> Advice:
        return replace(advice, recipes=(recorded, coda, replace(ours, **aspects)))  # type: ignore[arg-type]

    assert chosen(replace(advice, errors={"x": 0.6, "y": 0.1})) == ("coda", None)
    assert chosen(with_mocoda(unusable="too few rows.")) == ("coda", None)
    assert chosen(with_mocoda(agreed=0.3)) == ("coda", None)
    assert chosen(with_mocoda(agreed=0.8)) == ("mocoda", 0.5)
    old = {"new_and_supported": recorded.new_and_supported}
    assert chosen(with_mocoda(**old)) == ("emp", None)
    far_apart = recommend(with_mocoda(**old), graph, 0.5, dense=False)
    assert far_apart.recipe == "mocoda" and "far apart" in far_apart.recommendation[1]
    unusable = tuple(replace(one, unusable="too few rows.") for one in advice.recipes)
    assert chosen(replace(advice, recipes=unusable)) == (None, None)
    assert "too few to be certain" in recommend(replace(advice, rows=400), graph, 0.5).recommendation[0]


# --- what comes out


def test_advice_is_json_and_its_details_are_tables(advice: Advice) -> None:
    plain = json.loads(json.dumps(advice.to_json(), allow_nan=False))
    assert plain["recipe"] == "mocoda" and plain["recipes"][2]["new"] == advice.recipes[2].new
    assert str(advice) == "\n".join(advice.recommendation) and len(advice.details.renderables) == 2


def test_the_same_seed_gives_the_same_advice() -> None:
    data, graph = bodies(2, 200, 0), alone(2)
    assert mocoda.check(data, graph, seed=5, quick=True) == mocoda.check(data, graph, seed=5, quick=True)


def test_too_few_rows_are_refused() -> None:
    with refused():
        mocoda.check(bodies(2, 99, 0), alone(2))


def test_the_command_writes_json_and_needs_a_graph(tmp_path: Path) -> None:
    data, run = tmp_path / "data.hdf5", tmp_path / "run"
    NAVIGATION.collect(300, seed=0).save(data)
    done("check", data, "--details", "--out", run)
    assert json.loads((run / "advice.json").read_text("utf-8"))["rows"] == 300
    bodies(2, 200, 0).save(tmp_path / "bodies.hdf5")
    assert_approved(command_refused("check", tmp_path / "bodies.hdf5", "--out", tmp_path / "other"))
    assert_approved(command_refused("check", data, "--graph", "graph.py", "--task", "navigation"))
