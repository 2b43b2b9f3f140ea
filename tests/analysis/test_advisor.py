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
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import mocoda
from mocoda import Advice, InputError, LocalGraph, Transitions
from mocoda.analysis.advice import LOCAL_MIXTURE, MIXTURE, UNSTRATIFIED, Law, LocalShare
from mocoda.analysis.coverage import joined
from mocoda.analysis.edges import GROUP, MissingEdge, _stand_ins, _Test, missing_edges
from mocoda.analysis.graph_check import _recombined
from mocoda.analysis.verdict import choose_settings, judge
from mocoda.cli.data import Check
from mocoda.cli.options import GraphOptions
from mocoda.engine.randomness import Stream
from mocoda.tasks import TASKS
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
    assert "No missing edge was found." in advice.verdict


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
    assert found.recipe is None and any(f"Missing edge: {parent} -> {child}" in said for said in found.verdict)


def test_what_a_weak_model_leaves_of_the_parents_own_doing_is_blamed_on_nobody(seed: int = 0) -> None:
    """Independent bodies, and an error that is hard to learn: networks of one kind differ much by luck."""
    rows = Stream(seed, "test-advisor", "weak").normal(8_000, 7)
    error = torch.zeros(8_000, 6)
    for body in (0, 3):
        error[:, body + 1] = 0.3 * torch.sin(4 * rows[:, body]) * rows[:, body + 2]
    graph = LocalGraph(state={"a": slice(0, 3), "b": slice(3, 6)}, action={"u": 0}, edges={"a": ["a"], "b": ["b"]})
    block = torch.arange(8_000) // 40
    place = Stream(seed, "test-advisor", "parts").permutation(200)[block]
    fit, choose, judge = (part.nonzero()[:, 0] for part in (place < 140, (place >= 140) & (place < 160), place >= 160))
    found = missing_edges(graph, rows, error, block, (fit, choose, judge), seed=Stream(seed, "test-advisor", "edges"))
    assert [(child.outside, child.missing) for child in found] == [(0.0, ()), (0.0, ())]


@pytest.mark.parametrize(
    ("with_them", "with_stand_ins", "real"),
    [
        ((0.0024, 0.0041, 0.0030), (0.0059, 0.0101, 0.0070), False),  # seen where nothing is missing: apart by luck
        ((0.0024, 0.0025, 0.0024), (0.0059, 0.0061, 0.0060), True),
        ((0.0024, 0.0025, 0.0060), (0.0059, 0.0061, 0.0060), False),  # one of them is no better
        ((0.0058, 0.0058, 0.0058), (0.0060, 0.0060, 0.0060), False),  # a thirtieth is not worth a word
        ((0.00001, 0.00001, 0.00001), (0.00006, 0.00006, 0.00006), False),  # of next to nothing
    ],
)
def test_a_gain_must_stand_out_from_what_networks_differ_by(
    with_them: tuple[float, ...], with_stand_ins: tuple[float, ...], real: bool
) -> None:
    graph, rows, block = alone(2), torch.zeros(900, 5), torch.arange(900) // 10
    thirds = torch.arange(900).split(300)
    everywhere, edges = torch.ones(300, dtype=torch.bool), torch.tensor([[True, False, False]]).expand(900, 3)
    test = _Test.of(
        graph, rows, edges, rows[:, :2], block, (thirds[0], thirds[1], thirds[2]), everywhere, Stream(0, "test-gain")
    )
    seen, stand_ins = (torch.tensor(errors)[:, None].expand(-1, 300) for errors in (with_them, with_stand_ins))
    gain = test.gain(seen, stand_ins, everywhere, float(stand_ins.mean()))
    assert gain == pytest.approx(sum(with_stand_ins) / 3 - sum(with_them) / 3 if real else 0.0, abs=1e-7)


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(40, 400), seed=st.integers(0, 99))
def test_stand_ins_use_every_row_once_and_only_within_its_part(rows: int, seed: int) -> None:
    drawn = Stream(seed, "test-stand-ins")
    known, values = torch.zeros(rows, 1), torch.arange(rows, dtype=torch.float32)[:, None]  # nothing known: no shift
    order = drawn.permutation(rows)
    parts = order[: rows // 2], order[rows // 2 : 2 * rows // 3], order[2 * rows // 3 :]
    stand_ins = _stand_ins(known, values, torch.arange(rows) // 10, parts)[:, 0]
    for part in parts:
        assert sorted(stand_ins[part].tolist()) == sorted(values[part, 0].tolist())
        assert len(part) < 2 or not bool((stand_ins[part] == values[part, 0]).any())


def test_the_stand_in_of_a_column_that_repeats_a_parent_repeats_it_too() -> None:
    known = Stream(0, "test-stand-ins").normal(2_000, 3)
    copy = known[:, :1] + 0.01 * Stream(1, "test-stand-ins").normal(2_000, 1)
    third = torch.arange(2_000).split([1_000, 500, 500])
    stand_ins = _stand_ins(known, copy, torch.arange(2_000) // 10, (third[0], third[1], third[2]))
    assert float((stand_ins - known[:, :1]).std()) < 0.012
    assert GROUP > 1 and float((stand_ins - copy).abs().min()) > 0


def test_recombined_rows_keep_the_childs_parents_and_its_edges() -> None:
    rows = NAVIGATION.collect(2_000, seed=0).rows
    made, kept = _recombined(rows, NAVIGATION.graph, "x", Stream(0, "test-recombined"))
    assert made[:, [0, 2]].equal(rows[kept][:, [0, 2]])
    assert NAVIGATION.step(made)[:, 0].equal(NAVIGATION.step(rows[kept])[:, 0])
    assert float((made[:, 1] != rows[kept][:, 1]).float().mean()) > 0.9


def test_on_recombined_rows_the_unfactored_model_is_worse(advice: Advice) -> None:
    for child in advice.children:
        assert child.recombined_full is not None and child.recombined_factored is not None
        assert child.recombined_full > 3 * child.recombined_factored


def test_filtering_by_disagreement_lowers_the_true_error(advice: Advice) -> None:
    errors = [one.true_error for one in advice.filters if one.by == "disagreement"]
    assert errors[-1] < 0.7 * errors[0]
    assert {one.name: one.true_error for one in advice.recipes}["coda"] == pytest.approx(0, abs=1e-5)


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
    assert found.verdict[-1] == (
        "There is nothing to recombine: one parent set (x, y, d) covers every factor. "
        "If some factors do not depend on each other, or only in some states, say so in the graph."
    )
    assert [one.not_here for one in found.recipes if one.name == "coda"] == ["the graph connects everything"]
    assert all(child.judged == 0 and child.recombined_full is None for child in found.children)


def test_the_verdict_follows_what_was_measured(advice: Advice) -> None:
    edge = MissingEdge("dy", "x", 0.34)
    assert str(edge) == "missing edge: dy -> x (explains 34% of its error)"
    wrong = replace(advice, children=(replace(advice.children[0], outside=0.34, missing=(edge,)), advice.children[1]))
    assert judge(wrong)[0] is None
    assert "Missing edge: dy -> x (explains 34% of its error)." in judge(wrong)[1]
    covered = replace(advice, reachable_cells=1.2 * advice.recorded_cells)
    assert judge(covered)[0] == "emp"
    hard = replace(advice, children=tuple(replace(child, heldout_factored=0.6) for child in advice.children))
    assert judge(hard)[0] == "coda"
    far = replace(
        advice, recipes=tuple(replace(one, relative=50.0) if one.name == "mocoda" else one for one in advice.recipes)
    )
    assert judge(far)[0] == "coda"
    own_cells = replace(advice, recorded_cells=advice.rows - 1, reachable_cells=advice.rows)
    recipe, reasons = judge(own_cells)
    assert recipe == "mocoda" and not any("little to gain" in reason for reason in reasons)
    assert any(reason.startswith("How much recombining reaches cannot be counted") for reason in reasons)
    assert reasons[-1].startswith(f"Generate about {4 * advice.rows:,} rows, 4 for each recorded one")
    few = replace(advice, rows=400)
    assert judge(few)[1][0] == "400 rows are few: with less than 1,000, nothing here is certain."


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

    assert choose_settings(plain) == (
        "mocoda",
        [
            "For recipe mocoda, keep the defaults: its rows are as common as recorded ones, in ranges, norms, local "
            "graphs and parent sets.",
            'density="mixture", stratified=False would do, too.',
        ],
    )
    broken = with_faults(MIXTURE, broken=0.3, vectors=(("a.cos, a.sin", 0.3),), outside=0.5, columns=(("u", 0.5),))
    assert choose_settings(broken)[1][1] == (
        'Not with density="mixture", stratified=False: 30% of its rows break the length of the unit vector (a.cos, '
        "a.sin); 50% leave a column's recorded range, such as u in 50%."
    )
    rare = with_faults("mocoda", unsupported=0.4)
    assert choose_settings(rare)[0] == MIXTURE
    assert choose_settings(rare)[1][:2] == [
        'For recipe mocoda, take density="mixture", stratified=False: its rows are as common as recorded ones, in '
        "ranges, norms, local graphs and parent sets.",
        "Not with the defaults: 40% have a part that is rarer than 99% of those recorded where the same factors are "
        "linked, and 1% of the recorded rows do.",
    ]
    lost = replace(plain, local_graphs=(LocalShare("hand - cube", 0.4, plain.local_graphs[0].drawn | {MIXTURE: 0.1}),))
    assert choose_settings(lost)[1][1].endswith(
        "the local graph with hand - cube is drawn in 10% of the rows, and recorded in 40%."
    )
    told = replace(plain, laws=(Law(MIXTURE, X, 0.9, 0.88, 0.92),))
    assert choose_settings(told)[1][1].endswith(
        "a classifier tells its (x, dx) from recorded ones, AUC 0.90 [0.88, 0.92], where 0.5 is perfect."
    )
    filtered = choose_settings(replace(plain, min_support=0.05))[1]
    assert filtered[-1] == (
        "Add --min-support 0.05, which rejects most of the rows whose parts are rarer than 99% of recorded ones."
    )
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
    assert any(said.startswith('Not with density="mixture"') for said in found.verdict)


def test_with_few_rows_nothing_is_said_about_the_law() -> None:
    few = mocoda.check(bodies(2, 100, 0), alone(2), quick=True)
    assert few.laws == ()
    assert "told from recorded" not in str(few)


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
    with pytest.raises(InputError) as error:
        mocoda.check(bodies(2, 99, 0), alone(2))
    assert str(error.value) == "check needs at least 100 rows, to fit models and to evaluate them, got 99."


def test_advice_prints_and_is_drawn(advice: Advice, tmp_path: Path) -> None:
    from mocoda.analysis.figure import draw_advice

    text = str(advice)
    assert "x, dx" in text and "mocoda-u" in text and "Verdict" in text
    for name, shown in (("known", advice), ("unknown", replace(advice, filters=()))):
        draw_advice(shown, tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 20_000


def test_the_command_writes_json_and_a_figure(tmp_path: Path) -> None:
    NAVIGATION.collect(300, seed=0).save(tmp_path / "data.hdf5")
    Check(str(tmp_path / "data.hdf5"), out=tmp_path / "run").run()
    found = json.loads((tmp_path / "run" / "advice.json").read_text("utf-8"))
    assert found["rows"] == 300 and (tmp_path / "run" / "advice.png").is_file()


def test_the_command_needs_a_graph(tmp_path: Path) -> None:
    file = str(tmp_path / "data.hdf5")
    bodies(2, 200, 0).save(file)
    with pytest.raises(InputError) as error:
        Check(file).run()
    assert str(error.value) == (
        f"nothing describes the graph of {file!r}: pass --graph with a graph file, or --task for data of a built-in "
        f"task ({', '.join([*TASKS][:-1])} or dag)."
    )
    with pytest.raises(InputError) as error:
        Check(file, GraphOptions(Path("graph.py"), "navigation")).run()
    assert str(error.value) == "--graph and --task both describe the graph; give one of them."
