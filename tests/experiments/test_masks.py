"""The exam of masks: methods on a world with an obvious edge, true edges by replay, measures, and the experiment."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sklearn.metrics
import torch
from approved import refused
from experiment_contract import results_of
from hypothesis import given
from hypothesis import strategies as st
from tiny_experiments import TINY as ALL
from torch import Tensor

import experiments.masks
from experiments.masks import Masks, dense
from experiments.masks.measures import (
    balanced_error,
    best_threshold,
    calibration_error,
    f1,
    measures,
    others,
)
from experiments.masks.mechanisms import Training, fit_mechanisms
from experiments.masks.methods import METHODS, Distance, Moved
from experiments.masks.truth import is_exact, replayed_edges, reproduced, true_edges, true_share
from experiments.random_dag import make_world
from experiments.worlds import COUPLED
from mocoda import LocalGraph, Transitions, make_task
from mocoda.engine.randomness import Stream
from mocoda.engine.statistics import area_under_curve

FAST = Training(hidden=(32, 32), updates=600, batch=64, learning_rate=3e-3)
TRAINED = ("gradient", "drop-one", "redrawn", "cai")
GRAPH = LocalGraph(
    state={"lamp": slice(0, 2), "dog": slice(2, 5)},
    action={"call": slice(0, 2)},
    edges={"lamp": ["lamp", "dog", "call"], "dog": ["lamp", "dog", "call"]},
)


def world(rows: int, seed: int) -> tuple[Transitions, Tensor]:
    """A lamp that stays as it is, and a dog that comes when it is called by lamplight; in a fifth there is no lamp."""
    stream = Stream(seed, "lamp and dog")
    lamp = stream.normal(rows, 2) * (stream.uniform(rows, 1) > 0.2)
    dog, call = stream.normal(rows, 3), stream.uniform(rows, 2, low=-1.0)
    lit = lamp[:, 0] > 0
    push = 3 * lit[:, None] * torch.cat([call, lamp[:, :1]], 1)
    mask = torch.eye(3, 2, dtype=torch.bool).repeat(rows, 1, 1)
    mask[:, 0, 1] = mask[:, 2, 1] = lit
    state = torch.cat([lamp, dog], 1)
    return Transitions(state, call, torch.cat([lamp, 0.9 * dog + push], 1)), mask


@cache
def scored(name: str, seed: int = 0) -> Tensor:
    kind: Any = METHODS[name]
    method = METHODS.make(name, training=FAST) if "training" in {field.name for field in fields(kind)} else kind()
    scores: Tensor = method.fit(world(2_000, 0)[0], GRAPH, seed=seed)(world(1_000, 1)[0])
    return scores


def auroc(scores: Tensor, parent: int, child: int) -> float:
    truth = world(1_000, 1)[1]
    return float(area_under_curve(scores[:, parent, child], truth[:, parent, child])["auroc"])


@pytest.mark.parametrize("name", TRAINED)
def test_scores_are_numbers_an_edge_and_row_the_same_for_the_same_seed(name: str) -> None:
    method = METHODS.make(name, training=replace(FAST, updates=12))
    data, rows = world(300, 0)[0], world(50, 1)[0]
    scores, again, other = (method.fit(data, GRAPH, seed=seed)(rows) for seed in (0, 0, 1))
    assert scores.shape == (50, 3, 2) and scores.dtype == torch.float32 and not scores.requires_grad
    assert bool(torch.isfinite(scores).all()) and again.equal(scores) and not other.equal(scores)
    if METHODS[name].probability:
        assert float(scores.min()) >= 0 and float(scores.max()) <= 1


@pytest.mark.parametrize("name", TRAINED)
def test_a_trained_method_finds_that_a_call_is_heard_by_lamplight_only(name: str) -> None:
    assert auroc(scored(name), 2, 1) > 0.75


def test_distance_is_between_positions_by_name_or_else_the_first_two_columns() -> None:
    graph = LocalGraph(
        state={"hand": slice(0, 3), "cube": slice(3, 6)}, action={"u": 0}, edges={"hand": ["hand"], "cube": ["cube"]}
    )
    state = torch.tensor([[9.0, 1, 1, 4, 5, 9], [0, 0, 0, 0, 0, 5]])
    for names, wanted in (
        (("hand.v", "hand.x", "hand.y", "cube_x", "cube_y", "cube_v", "u"), [5.0, 0.0]),
        ((), [(25.0 + 16) ** 0.5, 0.0]),
    ):
        data = Transitions(state, torch.zeros(2, 1), state, columns=names)
        scores = Distance().fit(data, graph, seed=0)(data)
        assert scores[:, 0, 1].tolist() == pytest.approx([-one for one in wanted])
        assert scores[:, 1, 0].equal(scores[:, 0, 1]) and not bool(scores[:, 0, 0].any())
        assert bool((scores[:, 2] == scores.min()).all())


def test_what_moved_more_than_usual_has_edges_from_everything() -> None:
    data = world(500, 0)[0]
    scores = Moved().fit(data, GRAPH, seed=0)(data)
    change = data.next_state[:, 2:] - data.state[:, 2:]
    wanted = ((change - change.mean(0)) / change.std(0, correction=0)).square().mean(1).sqrt()
    assert all(torch.allclose(scores[:, parent, 1], wanted, atol=1e-4) for parent in range(3))
    assert not bool(scores[:, :, 0].any())  # a lamp that never moves


def test_a_hidden_parent_does_not_reach_a_network() -> None:
    data = world(300, 0)[0]
    model = fit_mechanisms(data, GRAPH, replace(FAST, updates=20), Stream(0, "hidden"), drop=True)
    inputs, keep = model.columns.inputs(data.rows), torch.ones(300, 3)
    keep[:, 2] = 0
    other = torch.where(model.columns.owner == 2, inputs.flip(0), inputs)
    assert all(one.equal(two) for one, two in zip(model.predict(inputs, keep), model.predict(other, keep), strict=True))
    assert not model.predict(inputs)[0].equal(model.predict(other)[0])


# True edges by replay: where masks are exact too, the two agree, except where an edge is about a region


def both(name: str, rows: int) -> tuple[Tensor, Tensor, Any]:
    """A world's exact edges, and those by replay."""
    task: Any = make_world(name)
    data = task.collect(rows, seed=0)
    return true_edges(task, data), replayed_edges(data, task.graph, task.step), task


@pytest.mark.parametrize("name", ["objects:2", "objects:4", "dag:5", "dag:10"])
def test_replay_finds_the_exact_edges_of_what_acts_now_and_then(name: str) -> None:
    exact, replayed, _ = both(name, 1_000)
    away = others(exact)
    found, wanted = replayed[:, away], exact[:, away]
    assert bool(wanted.any()) and float((found != wanted).float().mean()) < 0.004
    assert float(found[wanted].float().mean()) > 0.98 and float(wanted[found].float().mean()) > 0.95
    assert float(replayed[:, ~away].float().mean()) > 0.97  # a factor's own value matters, unless a wall stops it


def test_a_change_within_the_simulators_own_noise_is_no_edge() -> None:
    """Two factors that glide by themselves, in a simulator whose answers shake."""
    graph = LocalGraph(state={"a": 0, "b": 1}, action={"u": 0}, edges={"a": ["a"], "b": ["b"]})
    rows, calls = Stream(0, "rows").normal(300, 3), iter(range(10**6))

    def shaky(given: Tensor) -> Tensor:
        moved = given[:, :2] + torch.stack([0.1 * given[:, 2], torch.zeros(len(given))], 1)
        return moved + 0.005 * Stream(next(calls), "noise").uniform(len(given), 2)

    data = Transitions(rows[:, :2], rows[:, 2:], rows[:, :2] + 0.1 * rows[:, 2:])
    found = replayed_edges(data, graph, shaky)
    assert float(found[:, 0, 1].float().mean()) == 0.0 == float(found[:, 2, 1].float().mean())
    assert float(found[:, 0, 0].float().mean()) > 0.9 and float(found[:, 2, 0].float().mean()) > 0.2


def test_a_replay_that_does_not_do_what_was_recorded_is_told_by_child() -> None:
    """The simulator lacks what pushed b in every third recorded row."""
    graph = LocalGraph(state={"a": 0, "b": 1}, action={"u": 0}, edges={"a": ["a"], "b": ["b"]})
    rows, pushed = Stream(0, "rows").normal(300, 3), torch.arange(300) % 3 == 0

    def step(given: Tensor) -> Tensor:
        return given[:, :2] + 0.1 * given[:, 2:]

    after = step(rows)
    after[pushed, 1] += 0.5
    found = reproduced(Transitions(rows[:, :2], rows[:, 2:], after), graph, step)
    assert bool(found[:, 0].all()) and found[:, 1].equal(~pushed)


def test_parents_are_redrawn_from_the_pool() -> None:
    """What acts in all rows acts no longer where the pool says that it is far away."""
    graph = LocalGraph(state={"a": 0, "b": 1}, action={"u": 0}, edges={"a": ["a"], "b": ["b"]})

    def pulled(rows: Tensor) -> Tensor:
        near = (rows[:, :1] - rows[:, 1:2]).abs() < 1
        return rows[:, :2] + torch.where(near, 0.5, 0.0)

    rows = 0.2 * Stream(0, "rows").normal(50, 3)
    data = Transitions(rows[:, :2], rows[:, 2:], pulled(rows) + 0.01 * rows[:, :2])
    inside, outside = replayed_edges(data, graph, pulled), replayed_edges(data, graph, pulled, pool=rows + 50)
    assert not bool(inside[:, 0, 1].any()) and bool(outside[:, 0, 1].all())
    assert not bool(outside[:, 2].any())
    assert replayed_edges(data, graph, pulled, pool=rows + 50).equal(outside)


def test_masks_are_exact_where_they_are_known_to_be_and_a_world_without_either_is_refused() -> None:
    exact = ("navigation", "objects", "dag", *COUPLED)
    assert all(is_exact(make_world(name)) for name in exact) and not is_exact(make_world("hooksweep2"))
    data = make_task("navigation").collect(20, seed=0)
    task: Any = SimpleNamespace(name="maze", graph=make_task("navigation").graph)
    with refused():
        true_edges(task, data)


@pytest.mark.parametrize("name", COUPLED)
def test_rows_by_coda_are_true_with_the_edges_of_a_coupled_world_and_false_without_them(name: str) -> None:
    task: Any = make_world(name)
    data, graph = task.collect(3_000, seed=0), task.graph
    assert data.next_state.equal(task.step(data.rows))
    alone = LocalGraph(graph.state, graph.action, {child: [child] for child in graph.children})
    given, lacking = (true_share(task, data, own, 1_000, seed=0) for own in (graph, alone))
    assert given is not None and lacking is not None and given > 0.995 and lacking < 0.8


def test_a_driver_depends_on_who_is_ahead_in_the_same_lane() -> None:
    task: Any = make_world("traffic")
    rows = task.collect(1_000, seed=0).rows
    mask, found = task.graph.mask(rows), 0
    for row, edges in zip(rows.tolist(), mask.tolist(), strict=True):
        for driver in (1, 2, 3):
            ahead = {
                row[3 * other] - row[3 * driver]: other
                for other in range(4)
                if abs(row[3 * other + 1] - row[3 * driver + 1]) < 0.5 and 0 < row[3 * other] - row[3 * driver] < 100
            }
            others = {other for other in range(4) if edges[other][driver]} - {driver}
            assert others <= ({ahead[min(ahead)]} if ahead else set())
            found += len(others)
            assert not ahead or min(ahead) > 70 or others
    assert found > 500


def test_nothing_is_exchanged_where_a_graph_connects_everything() -> None:
    task: Any = make_world("resource")
    assert true_share(task, task.collect(100, seed=0), dense(task.graph), 10, seed=0) is None


@pytest.mark.long
def test_a_hook_that_sweeps_a_box_has_an_edge_to_it_and_one_that_is_far_has_none() -> None:
    task: Any = make_task("hooksweep2")
    data = task.collect(75, seed=0)
    # A box that slides on by its own speed is not swept; one that gets faster is.
    moved = [(data.next_state - data.state)[:, own].norm(dim=1) for own in ([6, 7], [11, 12])]
    speed = [data.state[:, own].norm(dim=1) for own in ([9, 10], [14, 15])]
    faster = torch.stack(moved, 1) - torch.stack(speed, 1) > 0.004
    swept = faster.any(1).nonzero()[:8, 0]
    assert len(swept) >= 4
    chosen = data[torch.cat([swept, torch.arange(2)])]  # it starts away from the boxes
    edges = replayed_edges(chosen, task.graph, task.step, redraws=1, pool=data.rows[:6])
    hook = edges[:, task.graph.parents.index("gripper"), 1:]
    assert bool(hook[:-2][faster[swept]].all()) and not bool(hook[-2:].any())
    assert not bool(edges[-2:, 1, 2].any()) and not bool(edges[-2:, 2, 1].any())  # and the boxes are apart


# Measures: known answers, scikit-learn's, and laws


def bools(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.bool)


# Scores that are nearly right, of 4 rows, 3 parents (the last is an action) and 2 children. Edges 1 -> 0 and 2 -> 0
# come and go; 0 -> 1 never holds, 2 -> 1 always does; a factor always depends on itself.
EDGES = torch.zeros(4, 3, 2, dtype=torch.bool)
EDGES[:, 0, 0] = EDGES[:, 1, 1] = EDGES[:, 2, 1] = True
EDGES[:2, 1, 0] = EDGES[:1, 2, 0] = True
SCORES = EDGES.float()
SCORES[1, 1, 0] = 0.4  # an edge that is hardly seen
SCORES[3, 2, 0] = 0.6  # and none that is


def test_all_measures_of_known_scores() -> None:
    found = measures((EDGES.float(), EDGES), (SCORES, EDGES), actions=1, threshold=0.5, probability=True)
    assert found["edges"] == 2 and found["share"] == 3 / 8
    assert found["auroc"] == pytest.approx(14 / 15)  # of 3 × 5 pairs, 0.4 < 0.6 is wrong
    assert found["auroc_actions"] == 1.0
    # On validation rows the best cut is at 1: one edge is missed, and none is said that is not there.
    assert found["f1"] == pytest.approx(2 * 2 / (2 + 3))
    assert found["rebalanced"] == pytest.approx((1 / 3 + 0) / 2)
    assert found["f1_own"] == pytest.approx(2 * 2 / (3 + 3))  # at 0.5
    assert found["calibration"] == pytest.approx((0.6 + 0.6) / 8)


def test_where_no_edge_comes_or_goes_there_is_nothing_to_measure() -> None:
    truth = torch.ones(3, 2, 2, dtype=torch.bool)
    assert measures((truth.float(), truth), (truth.float(), truth), actions=0) == {"edges": 0.0}
    assert f1(bools(0, 0), bools(0, 0)) is None
    assert balanced_error(bools(1, 0), bools(1, 1)) is None


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=40))
def test_f1_is_scikit_learns_and_thresholds_are_the_best(pairs: list[tuple[int, bool]]) -> None:
    scores, truth = torch.tensor([score for score, _ in pairs]).float(), bools(*(edge for _, edge in pairs))
    if not bool(truth.any()):
        return
    cut = best_threshold(scores, truth)
    best = max(sklearn.metrics.f1_score(truth.numpy(), (scores >= level).numpy()) for level in scores.unique())
    assert f1(scores >= cut, truth) == pytest.approx(best)
    if not bool(truth.all()):
        fair = best_threshold(scores, truth, balanced=True)
        least = min(balanced_error(scores >= level, truth) or 0.0 for level in scores.unique())
        assert balanced_error(scores >= fair, truth) == pytest.approx(least)


def test_a_true_probability_is_calibrated_and_a_doubled_one_is_not() -> None:
    stream = Stream(0, "calibration")
    probability = 0.5 * stream.uniform(40_000)
    truth = stream.uniform(40_000) < probability
    assert calibration_error(probability, truth) < 0.01
    assert calibration_error(2 * probability, truth) == pytest.approx(0.25, abs=0.02)


# The experiment

TINY: Masks = ALL["masks"]


def test_every_world_size_and_method_has_a_cell(tmp_path: Path) -> None:
    cells = {(c["world"], c["rows"], c["method"]): c for c in results_of(TINY, tmp_path)["cells"]}
    assert len(cells) == 2 * 2 * 3
    for (name, _, method), cell in cells.items():
        assert cell["truth"] == "exact" and (cell["skipped"] is not None) == (method == "given")
        if method != "given":
            assert len(cell["auroc"]["values"]) == 2 and 0 <= cell["auroc"]["mean"] <= 1
            assert cell["edges"]["mean"] == {"navigation": 4, "dag:2": 3}[name]


def test_where_masks_are_not_exact_the_truth_is_replayed_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.masks.truth.is_exact", lambda task: False)
    monkeypatch.setattr(experiments.masks, "is_exact", lambda task: False)
    small = replace(TINY, seeds=1, worlds=("objects:2",), rows=(60,), methods=("distance", "given"), replayed=250)
    distance, given = results_of(small, tmp_path)["cells"]
    assert (distance["truth"], distance["skipped"], given["skipped"]) == ("replay", None, None)
    assert given["auroc"]["mean"] > 0.9 and any(" -> object" in key for key in given)
    assert given["auroc_known"]["mean"] == given["auroc"]["mean"]
    monkeypatch.setattr(experiments.masks, "reproduced", lambda data, *_, **__: torch.zeros(len(data), 3) > 0)
    missed = results_of(small, tmp_path / "missed")["cells"][1]
    assert missed["auroc_known"] is None  # no "no edge" is known
    parts = ("reproduced-objects-2", "truth-objects-2-test", "truth-objects-2-valid")
    assert sorted(path.stem for path in tmp_path.glob("*.safetensors")) == list(parts)
