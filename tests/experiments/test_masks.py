"""The exam of masks: its methods on a world with an obvious edge, and its experiment."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from approved import refused
from experiment_contract import StopAt, StopError, results_of, timeless
from tiny_experiments import TINY as ALL
from torch import Tensor

import experiments.masks
import mocoda
from experiments.masks import Masks, _length, dense
from experiments.masks.mechanisms import Training, fit_mechanisms
from experiments.masks.methods import METHODS, Distance, Given, Method, Moved, NotApplicableError
from mocoda import LocalGraph, Transitions
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


def test_methods_are_settings_with_a_name_and_a_line_of_help() -> None:
    kinds: dict[str, Any] = dict(METHODS)
    for name, kind in kinds.items():
        assert fields(kind) is not None and issubclass(kind, Method) and kind.name == name
        assert 10 < len((kind.__doc__ or "").splitlines()[0]) < 120
        assert not kind.fixed or kind.threshold is not None


@pytest.mark.parametrize("name", TRAINED)
def test_scores_are_numbers_an_edge_and_row_the_same_for_the_same_seed(name: str) -> None:
    method = METHODS.make(name, training=replace(FAST, updates=12))
    data, rows = world(300, 0)[0], world(50, 1)[0]
    scores, again, other = (method.fit(data, GRAPH, seed=seed)(rows) for seed in (0, 0, 1))
    assert scores.shape == (50, 3, 2) and scores.dtype == torch.float32 and not scores.requires_grad
    assert bool(torch.isfinite(scores).all()) and again.equal(scores) and not other.equal(scores)
    if METHODS[name].probability:
        assert float(scores.min()) >= 0 and float(scores.max()) <= 1


@pytest.mark.parametrize("name", ["gradient", "drop-one", "redrawn", "cai"])
def test_a_trained_method_finds_that_a_call_is_heard_by_lamplight_only(name: str) -> None:
    assert auroc(scored(name), 2, 1) > 0.75


def test_action_influence_says_nothing_of_other_edges() -> None:
    assert not bool(scored("cai")[:, :2].any())


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


def test_the_given_mask_is_that_of_the_task() -> None:
    task = mocoda.make_task("navigation")
    data = task.collect(300, seed=0)
    assert Given().fit(data, dense(task.graph), seed=0)(data).equal(task.graph.mask(data.rows).float())
    with pytest.raises(NotApplicableError):
        Given().fit(world(10, 0)[0], GRAPH, seed=0)


def test_ours_scores_by_the_edge_probabilities_of_the_learned_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    class Graph:
        def edge_probability(self, rows: Tensor) -> Tensor:
            return rows.new_full((len(rows), 3, 2), 0.25)

    def learn_graph(data: Transitions, *, state: Any, action: Any, learner: Any, seed: int, unseen: str) -> Graph:
        assert (state, action, seed, unseen) == (GRAPH.state, GRAPH.action, 7, "apart")
        return Graph()

    data = world(20, 0)[0]
    monkeypatch.setattr("experiments.masks.methods.learn_graph", learn_graph)
    assert bool((METHODS["learned"]().fit(data, GRAPH, seed=7)(data) == 0.25).all())


def test_a_hidden_parent_does_not_reach_a_network() -> None:
    data = world(300, 0)[0]
    model = fit_mechanisms(data, GRAPH, replace(FAST, updates=20), Stream(0, "hidden"), drop=True)
    inputs, keep = model.columns.inputs(data.rows), torch.ones(300, 3)
    keep[:, 2] = 0
    other = torch.where(model.columns.owner == 2, inputs.flip(0), inputs)
    assert all(one.equal(two) for one, two in zip(model.predict(inputs, keep), model.predict(other, keep), strict=True))
    assert not model.predict(inputs)[0].equal(model.predict(other)[0])


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


def test_a_run_that_is_stopped_asks_only_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StopError):
        results_of(TINY, tmp_path, progress=StopAt(6))
    kept, made = len([*(tmp_path / "cells").glob("*.json")]), []
    examine = Masks.examine

    def counted(self: Masks, sheet: Any, data: Transitions, name: str, seed: int) -> dict[str, Any]:
        made.append(name)
        return examine(self, sheet, data, name, seed)

    monkeypatch.setattr(Masks, "examine", counted)
    results_of(TINY, tmp_path)
    assert kept > 0 and len(made) == 2 * 2 * 2 * 3 - kept


def test_what_takes_longest_is_asked_first_and_alone(tmp_path: Path) -> None:
    long, *_, short = sorted(replace(TINY, methods=("distance", "learned"))._sittings(tmp_path), key=_length)[::-1]
    assert (long[:2], long.methods) == (("navigation", 200), ("learned",))
    assert (short[:2], short.methods) == (("dag:2", 60), ("distance",))


@pytest.mark.long
def test_any_number_of_processes_gives_the_same_answers(tmp_path: Path) -> None:
    few = replace(TINY, methods=("gradient", "distance"), rows=(60,))
    answers = [timeless(results_of(few, tmp_path / str(workers), workers=workers)["cells"]) for workers in (0, 2)]
    assert answers[0] == answers[1]


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


@pytest.mark.parametrize(
    "change",
    [
        {"worlds": ("maze",)},
        {"methods": ("gradent",)},
        {"methods": ()},
        {"rows": (5, 5)},
        {"rows": (0,)},
        {"judged": 0},
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused(change: dict[str, Any]) -> None:
    with refused():
        replace(TINY, **change)
