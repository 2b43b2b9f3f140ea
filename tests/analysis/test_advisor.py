"""A check names the edges that a graph lacks, is silent about right graphs, and says which recipe is worth trying."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

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
from mocoda import Advice, LocalGraph, Transitions
from mocoda.analysis.advice import LOCAL_MIXTURE, MIXTURE, UNSTRATIFIED
from mocoda.analysis.check_figure import draw_advice
from mocoda.analysis.coverage import joined
from mocoda.analysis.missing_edges import MissingEdge, missing_edges, stand_ins_for
from mocoda.analysis.rarity import LocalShare
from mocoda.analysis.recommendation import choose_settings, recommend
from mocoda.analysis.two_samples import Law
from mocoda.engine.randomness import Stream
from mocoda.tasks.navigation import Navigation, local_mask

NAVIGATION = Navigation()
X, Y = NAVIGATION.graph.parent_sets


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


def without(parent: str, child: str) -> LocalGraph:
    """Navigation's graph less one edge, wherever it was."""
    graph = NAVIGATION.graph
    edges = {name: [p for p in graph.edges[name] if (p, name) != (parent, child)] for name in graph.children}

    def local(rows: Tensor) -> Tensor:
        mask = local_mask(rows).clone()
        mask[:, graph.parents.index(parent), graph.children.index(child)] = False
        return mask

    return replace(graph, edges=edges, local=local)


def named(advice: Advice) -> set[tuple[str, str]]:
    return {(edge.parent, edge.child) for edge in advice.missing}


@pytest.fixture(scope="module")
def advice() -> Advice:
    return mocoda.check(NAVIGATION.collect(40_000, seed=0), NAVIGATION.graph, task=NAVIGATION, quick=True)


def test_a_quick_check_uses_fewer_rows_and_passes_navigations_right_graph(advice: Advice) -> None:
    assert (advice.rows, advice.used) == (40_000, 5_715)
    assert advice.missing == () and all(child.outside == 0 and child.judged > 0 for child in advice.children)
    assert advice.recipe == "mocoda"
    assert advice.recommendation == (
        "No missing edge was found in the graph.",
        "Try recipe mocoda with its default settings.",
        "Generate about 160,000 rows, 4 for each recorded one.",
    )


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_the_right_graph_of_bodies_passes(seed: int) -> None:
    found = mocoda.check(bodies(2, 3_000, seed), alone(2), seed=seed, quick=True)
    assert found.missing == () and all(child.outside == 0 for child in found.children)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_body_that_pulls_another_is_named(seed: int) -> None:
    found = mocoda.check(bodies(2, 3_000, seed, edge=0.3), alone(2), seed=seed, quick=True)
    assert named(found) == {("body0", "body1")}
    assert found.recipe is None


@pytest.mark.parametrize(("parent", "child"), [("dx", "x"), pytest.param("dy", "x", marks=pytest.mark.long)])
def test_an_edge_taken_from_navigation_is_named(parent: str, child: str) -> None:
    found = mocoda.check(NAVIGATION.collect(4_000, seed=3), without(parent, child), seed=3, quick=True)
    assert (parent, child) in named(found)
    assert {edge.child for edge in found.missing} == {child}
    assert found.recipe is None and f"{parent} -> {child}" in found.recommendation[0]


@pytest.mark.parametrize("seed", range(3))
def test_an_error_that_the_parents_explain_is_blamed_on_nobody_else(seed: int) -> None:
    """Independent bodies, and an error that is hard to learn."""
    rows = Stream(seed, "test-advisor", "weak").normal(8_000, 7)
    error = torch.zeros(8_000, 6)
    for body in (0, 3):
        error[:, body + 1] = 0.3 * torch.sin(4 * rows[:, body]) * rows[:, body + 2]
    graph = LocalGraph(state={"a": slice(0, 3), "b": slice(3, 6)}, action={"u": 0}, edges={"a": ["a"], "b": ["b"]})
    block = torch.arange(8_000) // 40
    place = Stream(seed, "test-advisor", "parts").permutation(200)[block]
    found = missing_edges(graph, rows, error, block, place >= 120, seed=Stream(seed, "test-advisor", "edges"))
    assert [(child.outside, child.missing) for child in found] == [(0.0, ()), (0.0, ())]


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


def test_the_stand_in_of_a_column_that_repeats_a_parent_repeats_it_too() -> None:
    known = Stream(0, "test-stand-ins").normal(2_000, 3)
    copy = known[:, :1] + 0.01 * Stream(1, "test-stand-ins").normal(2_000, 1)
    half = torch.arange(2_000) < 1_000
    stand_ins = stand_ins_for(known, copy, torch.arange(2_000) // 10, [half, ~half])
    assert float((stand_ins - known[:, :1]).std()) < 0.012
    assert float((stand_ins - copy).abs().min()) > 0


def test_recipes_that_leave_the_data_are_seen_to(advice: Advice) -> None:
    relative = {one.name: one.relative or 0.0 for one in advice.recipes}
    assert relative["emp"] < 1.5 < relative["rand"] and relative["mocoda"] < relative["rand"]
    assert {one.name: one.unsupported or 0.0 for one in advice.recipes}["rand"] > 0.5


def test_a_graph_of_all_edges_has_nothing_to_recombine() -> None:
    everything = LocalGraph(
        state={"x": 0, "y": 1}, action={"d": [0, 1]}, edges={"x": ["x", "y", "d"], "y": ["x", "y", "d"]}
    )
    found = mocoda.check(NAVIGATION.collect(500, seed=0), everything, quick=True)
    assert found.times_larger == 1 and found.recipe is None
    assert found.recommendation[0] == "There is nothing to recombine: one parent set (x, y, d) covers every factor."
    assert [one.not_here for one in found.recipes if one.name == "coda"] == ["the graph connects everything"]
    assert all(child.judged == 0 for child in found.children)


def test_the_recommendation_follows_what_was_measured(advice: Advice) -> None:
    edge = MissingEdge("dy", "x", 0.34)
    wrong = replace(advice, children=(replace(advice.children[0], outside=0.34, missing=(edge,)), advice.children[1]))
    recipe, said, details = recommend(wrong)
    assert recipe is None and "dy -> x" in said[0] and "Missing edge: dy -> x (explains 34% of its error)." in details
    unclear = replace(advice, children=(replace(advice.children[0], outside=0.34), advice.children[1]))
    assert recommend(unclear)[0] is None
    assert recommend(replace(advice, reachable_cells=1.2 * advice.recorded_cells))[0] == "emp"
    hard = replace(advice, children=tuple(replace(child, error=0.6) for child in advice.children))
    assert recommend(hard)[0] == "coda"
    far = replace(
        advice, recipes=tuple(replace(one, relative=50.0) if one.name == "mocoda" else one for one in advice.recipes)
    )
    assert recommend(far)[0] == "coda"
    own_cells = replace(advice, recorded_cells=advice.rows - 1, reachable_cells=advice.rows)
    recipe, said, details = recommend(own_cells)
    assert recipe == "mocoda" and any("cannot be counted" in detail for detail in details)
    assert "400 rows are too few to be certain" in recommend(replace(advice, rows=400))[1][0]
    assert all(len(recommend(one)[1]) <= 3 for one in (wrong, unclear, hard, far, own_cells))


def test_the_law_is_examined_for_every_recipe_but_the_one_that_means_to_differ(advice: Advice) -> None:
    drawn = [one.name for one in advice.recipes if one.not_here is None and one.name != "mocoda-u"]
    assert {"mocoda", MIXTURE} < set(drawn) and not {UNSTRATIFIED, LOCAL_MIXTURE} & set(drawn)
    assert [(law.recipe, law.factors) for law in advice.laws] == [(n, s) for n in drawn for s in (X, Y)]
    aucs = {(law.recipe, law.factors): law.auc for law in advice.laws}
    for factors in (X, Y):
        assert abs(aucs["emp", factors] - 0.5) < 0.06 and abs(aucs["mocoda", factors] - 0.5) < 0.06
        assert aucs["rand", factors] > 0.8 and aucs["dyna", factors] > 0.7


def test_parts_that_need_not_stay_together_are_judged_by_themselves(advice: Advice) -> None:
    """In the empty corner nobody was recorded, though many were as high up."""
    found = {one.name: one for one in advice.recipes}
    recorded = found["emp"].unsupported or 0.0
    assert (found["mocoda"].unsupported or 0.0) < recorded + 0.03
    assert advice.density == "matched" and advice.stratified is True and advice.min_support is None


def test_settings_are_chosen_by_what_is_wrong_with_their_rows(advice: Advice) -> None:
    clean = {"unsupported": 0.01, "strange": 0.0, "outside": 0.0, "broken": 0.0, "columns": (), "vectors": ()}
    plain = replace(
        advice,
        recipes=tuple(replace(one, **clean) for one in advice.recipes),  # type: ignore[arg-type]
        laws=(),
        local_graphs=(LocalShare("hand - cube", 0.4, {one.name: 0.4 for one in advice.recipes}),),
    )

    def with_faults(name: str, **faults: Any) -> Advice:
        return replace(
            plain, recipes=tuple(replace(one, **faults) if one.name == name else one for one in plain.recipes)
        )

    assert choose_settings(plain)[0] == "mocoda"
    broken = with_faults(MIXTURE, broken=0.3, vectors=(("a.cos, a.sin", 0.3),), outside=0.5, columns=(("u", 0.5),))
    assert "30% of its rows break the length of the unit vector (a.cos, a.sin)" in choose_settings(broken)[1][1]
    assert "50% leave a column's recorded range, such as u in 50%" in choose_settings(broken)[1][1]
    rare = with_faults("mocoda", unsupported=0.4)
    assert choose_settings(rare)[0] == MIXTURE and "40% have a part" in choose_settings(rare)[1][1]
    assert recommend(rare)[1][1] == 'Try recipe mocoda with density="mixture", stratified=False.'
    lost = replace(plain, local_graphs=(LocalShare("hand - cube", 0.4, plain.local_graphs[0].drawn | {MIXTURE: 0.1}),))
    assert "hand - cube is drawn in 10% of the rows, and recorded in 40%" in choose_settings(lost)[1][1]
    separable = replace(plain, laws=(Law(MIXTURE, X, 0.9, 0.88, 0.92),))
    assert "AUC 0.90 [0.88, 0.92]" in choose_settings(separable)[1][1]
    assert "--min-support 0.05" in choose_settings(replace(plain, min_support=0.05))[1][-1]
    absent = replace(plain, recipes=tuple(replace(one, not_here="too few.") for one in plain.recipes))
    assert choose_settings(absent) == (None, [])


def test_a_check_sees_what_a_mixture_breaks() -> None:
    """Hand and objects are drawn independently, unit vectors leave their circle, and actions their range."""
    found = mocoda.check(world.collect(3_000, seed=0), world.GRAPH, quick=True)
    ours, mixture, apart = (
        {one.name: one for one in found.recipes}[name] for name in ("mocoda", MIXTURE, UNSTRATIFIED)
    )
    # A held object by itself is rare, though it is as common as a hand that holds it.
    assert (apart.unsupported or 0.0) > (ours.unsupported or 0.0) + 0.05
    assert (ours.outside, ours.broken) == (0, 0) and 0.05 < (ours.as_recorded or 0) < 0.4
    assert {one.name: one.as_recorded for one in found.recipes}["emp"] == 1 and mixture.as_recorded == 0
    assert (mixture.outside or 0) > 0.5 and (mixture.broken or 0) > 0.5
    vectors = {f"{name}.cos, {name}.sin" for name in ("hand", "object1", "object2")}
    assert {name for name, _ in mixture.vectors} == vectors
    holding = next(one for one in found.local_graphs if one.links == "hand - object1, object1 - action")
    assert holding.drawn[MIXTURE] < 0.5 * holding.recorded
    assert (found.density, found.stratified) == ("matched", True)
    assert any(said.startswith('Recipe mocoda with density="mixture"') for said in found.details)


def test_with_few_rows_nothing_is_said_about_the_law() -> None:
    few = mocoda.check(bodies(2, 100, 0), alone(2), quick=True)
    assert few.laws == ()


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_reachable_cells_are_counted_as_by_hand(data: st.DataObject) -> None:
    sets = data.draw(st.sampled_from([([0, 1], [2]), ([0, 1], [1, 2]), ([0], [1], [2])]))
    cell = st.integers(0, 2)
    tables = [
        (
            columns,
            torch.tensor(sorted(data.draw(st.sets(st.tuples(*[cell] * len(columns)), min_size=1))), dtype=torch.uint8),
        )
        for columns in sets
    ]
    filled = [{tuple(row) for row in cells.tolist()} for _, cells in tables]
    by_hand = sum(
        all(tuple(row[i] for i in columns) in own for (columns, _), own in zip(tables, filled, strict=True))
        for row in product(range(3), repeat=3)
    )
    counted = joined(tables, 3, Stream(0, "test-cells").integers(2**62, 3), Stream(1, "test-cells"))
    assert counted == pytest.approx(by_hand, rel=0.1, abs=0.05)


def test_advice_is_json(advice: Advice) -> None:
    plain = json.loads(json.dumps(advice.to_json(), allow_nan=False))
    assert plain["recipe"] == "mocoda" and plain["times_larger"] == advice.times_larger


def test_the_same_seed_gives_the_same_advice() -> None:
    data, graph = bodies(2, 200, 0), alone(2)
    assert mocoda.check(data, graph, seed=5, quick=True) == mocoda.check(data, graph, seed=5, quick=True)


def test_too_few_rows_are_refused() -> None:
    with refused():
        mocoda.check(bodies(2, 99, 0), alone(2))


def test_advice_prints_and_is_drawn(advice: Advice, tmp_path: Path) -> None:
    assert str(advice).endswith("\n".join(["Recommendation", *advice.recommendation]))
    draw_advice(replace(advice, laws=()), tmp_path / "advice.png")
    assert (tmp_path / "advice.png").stat().st_size > 20_000


def test_the_command_writes_json_and_a_figure_and_needs_a_graph(tmp_path: Path) -> None:
    data, run = tmp_path / "data.hdf5", tmp_path / "run"
    NAVIGATION.collect(300, seed=0).save(data)
    done("check", data, "--out", run)
    assert json.loads((run / "advice.json").read_text("utf-8"))["rows"] == 300 and (run / "advice.png").is_file()
    bodies(2, 200, 0).save(tmp_path / "bodies.hdf5")
    assert_approved(command_refused("check", tmp_path / "bodies.hdf5", "--out", tmp_path / "other"))
    assert_approved(command_refused("check", data, "--graph", "graph.py", "--task", "navigation"))
