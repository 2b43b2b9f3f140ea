"""The exam of masks at a size that takes no time: its methods on a world with an obvious edge, and its experiment."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import experiments.masks.experiment
import pytest
import torch
from experiment_contract import StopAt, StopError, check_experiment
from experiments.masks.experiment import SHOWN, Cell, Masks, _length, dense
from experiments.masks.heuristics import Distance, Given, Moved
from experiments.masks.null_test import NullTest
from torch import Tensor

import mocoda
from experiments import Measured
from experiments.masks import METHODS, Method, NotApplicableError, Training
from experiments.masks.mechanisms import fit_mechanisms
from mocoda import InputError, LocalGraph, Transitions
from mocoda.engine.randomness import Stream
from mocoda.engine.statistics import area_under_curve

FAST = Training(hidden=(32, 32), updates=600, batch=64, learning_rate=3e-3)
NAMES = (
    "learned",
    *("gradient", "drop-one", "redrawn", "attention", "cai", "code-book", "null-test"),
    *("distance", "moved", "given", "dense", "sparsest"),
)
TRAINED = NAMES[1:8]
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


# Methods


def test_methods_are_settings_with_a_name_and_a_line_of_help() -> None:
    assert tuple(METHODS)[: len(NAMES)] == NAMES
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
    if name == "attention":
        assert torch.allclose(scores.sum(1), torch.ones(50, 2), atol=1e-5)
    if name == "code-book":
        assert len(scores.flatten(1).unique(dim=0)) <= 16


@pytest.mark.parametrize("name", ["gradient", "drop-one", "redrawn", "cai"])
def test_a_trained_method_finds_that_a_call_is_heard_by_lamplight_only(name: str) -> None:
    assert auroc(scored(name), 2, 1) > 0.75


def test_action_influence_says_nothing_of_other_edges_and_a_null_test_nothing_of_what_is_never_absent() -> None:
    assert not bool(scored("cai")[:, :2].any())
    data = world(300, 0)[0]
    asked = NullTest(training=replace(FAST, updates=30)).fit(data, GRAPH, seed=0)(data)
    assert bool(asked[:, 0].any()) and not bool(asked[:, 1:].any())


def test_a_null_test_is_of_worlds_in_which_a_factor_can_be_absent() -> None:
    data = mocoda.make_task("objects:2").collect(200, seed=0)
    with pytest.raises(NotApplicableError) as error:
        NullTest().fit(data, dense(mocoda.make_task("objects:2").graph), seed=0)
    assert str(error.value) == "no factor is ever absent (all zeros) in the recorded rows."


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


def test_always_dense_always_sparsest_and_the_given_mask() -> None:
    assert bool((scored("dense") == 1).all())
    assert bool((scored("sparsest") == torch.eye(3, 2)).all())
    task = mocoda.make_task("navigation")
    data = task.collect(300, seed=0)
    assert Given().fit(data, dense(task.graph), seed=0)(data).equal(task.graph.mask(data.rows).float())
    with pytest.raises(NotApplicableError):
        Given().fit(world(10, 0)[0], GRAPH, seed=0)


def test_ours_scores_by_the_edge_probabilities_of_the_learned_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    class Graph:
        def edge_probability(self, rows: Tensor) -> Tensor:
            return rows.new_full((len(rows), 3, 2), 0.25)

    def learn_graph(data: Transitions, *, state: Any, action: Any, seed: int, unseen: str) -> Graph:
        assert (state, action, seed, unseen) == (GRAPH.state, GRAPH.action, 7, "apart")
        return Graph()

    data = world(20, 0)[0]
    monkeypatch.setattr("experiments.masks.learned.learn_graph", learn_graph)
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

TINY = Masks(
    "tiny",
    seeds=2,
    worlds=("navigation", "dag:2"),
    rows=(60, 200),
    methods=("gradient", "null-test", "distance", "given", "sparsest"),
    judged=300,
    training=Training(hidden=(8,), updates=3, batch=16),
)


@cache
def measured_in(folder: Path) -> Measured:
    return TINY.run(device="cpu", folder=folder, workers=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("masks")


def test_every_world_size_and_method_has_a_cell_with_all_measures(folder: Path) -> None:
    measured = measured_in(folder)
    printed = check_experiment(TINY, measured, folder / "written")
    cells = {(c["world"], c["rows"], c["method"]): c for c in measured.results["cells"]}
    assert len(cells) == 2 * 2 * 5
    for (world_, _, name), cell in cells.items():
        assert cell["truth"] == "exact"
        skipped = name == "given" or (world_, name) == ("navigation", "null-test")
        assert (cell["skipped"] is not None) == skipped
        if not skipped:
            assert {*SHOWN, "seconds", "edges", "share"} - {"auroc_known"} <= set(cell)
            assert len(cell["auroc"]["values"]) == 2 and 0 <= cell["auroc"]["mean"] <= 1
            assert cell["edges"]["mean"] == {"navigation": 4, "dag:2": 3}[world_]
            assert (cell["calibration"] is None) == (name in ("gradient", "distance"))
    assert cells["navigation", 200, "given"]["skipped"] == "it is the truth itself."
    assert "Edges found from 200 recorded rows" in printed and "sparsest" in printed


def test_a_run_that_is_stopped_goes_on_with_what_is_missing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StopError):
        TINY.run(device="cpu", folder=tmp_path, progress=StopAt("masks", 15), workers=0)
    assert len([*(tmp_path / "cells").glob("*.json")]) == 15
    made: list[str] = []
    answer = Masks.answer

    def counted(self: Masks, sheet: Any, data: Transitions, name: str, seed: int) -> Cell:
        made.append(name)
        return answer(self, sheet, data, name, seed)

    monkeypatch.setattr(Masks, "answer", counted)
    (tmp_path / "cells" / "navigation-200-distance-0.json").unlink()
    resumed = TINY.run(device="cpu", folder=tmp_path, workers=0)
    assert len(made) == 2 * 2 * 2 * 5 - 15 + 1
    whole = measured_in(folder).results["cells"]
    assert resumed.results["resumed"] is True and _timeless(resumed.results["cells"]) == _timeless(whole)


def test_what_takes_longest_is_asked_first_and_alone(tmp_path: Path) -> None:
    long, *_, short = sorted(replace(TINY, methods=("distance", "learned"))._sittings(tmp_path), key=_length)[::-1]
    assert (long[:2], long.methods) == (("navigation", 200), ("learned",))
    assert (short[:2], short.methods) == (("dag:2", 60), ("distance",))


@pytest.mark.long
def test_any_number_of_processes_gives_the_same_answers(folder: Path, tmp_path: Path) -> None:
    seen: list[str] = []
    few = replace(TINY, methods=("gradient", "distance"), rows=(60,))
    spread_out = few.run(device="cpu", folder=tmp_path, workers=2, progress=lambda stage, *_: seen.append(stage))
    alone = [c for c in measured_in(folder).results["cells"] if c["rows"] == 60 and c["method"] in few.methods]
    assert _timeless(spread_out.results["cells"]) == _timeless(alone) and seen.count("masks") == 1 + 2 * 2


def test_where_masks_are_not_exact_the_truth_is_replayed_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiments.masks.truth, "is_exact", lambda task: False)
    monkeypatch.setattr(experiments.masks.experiment, "is_exact", lambda task: False)
    small = replace(TINY, seeds=1, worlds=("objects:2",), rows=(60,), methods=("distance", "given"), replayed=250)
    distance, given = small.run(device="cpu", folder=tmp_path, workers=0).results["cells"]
    assert (distance["truth"], distance["skipped"], given["skipped"]) == ("replay", None, None)
    assert given["auroc"]["mean"] > 0.9 and given["hamming"]["mean"] < 0.02
    assert any(" -> object" in key for key in given)
    whole = {name: given[name]["mean"] for name in ("auroc", "auroc_known")}
    monkeypatch.setattr(
        experiments.masks.experiment, "reproduced", lambda data, *_, **__: torch.zeros(len(data), 3) > 0
    )
    missed = small.run(device="cpu", folder=tmp_path / "missed", workers=0).results["cells"][1]
    assert whole["auroc_known"] == whole["auroc"] and missed["auroc_known"] is None  # no "no edge" is known
    kept = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    parts = ("reproduced-objects-2", "truth-objects-2-test", "truth-objects-2-valid")
    assert kept == [f"{part}.safetensors" for part in parts]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"worlds": ("maze",)}, "there is no task 'maze'; there are: "),
        ({"methods": ("gradent",)}, "there is no method 'gradent'; there are: "),
        ({"methods": ()}, "methods must be different ones, and at least one, got []."),
        ({"rows": (5, 5)}, "rows must be different ones, and at least one, got [5, 5]."),
        ({"rows": (0,)}, "rows must be at least 1, the number of recorded transitions, got [0]."),
        ({"judged": 0}, "judged must be at least 1, got 0."),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        replace(TINY, **changes)
    assert str(error.value).startswith(message)


def test_the_paper_s_preset_is_of_all_methods_and_of_the_worlds_of_the_issue() -> None:
    paper = Masks.presets["paper"]
    assert paper.methods == NAMES and (paper.seeds, paper.rows[0], paper.rows[-1]) == (5, 3_000, 300_000)
    assert set(paper.worlds) == {"navigation", "hooksweep2", *(f"objects:{k}" for k in (2, 4, 8))} | {
        f"dag:{k}" for k in (5, 10, 30)
    }


def _timeless(cells: list[dict[str, Any]]) -> Any:
    return json.loads(json.dumps([{key: value for key, value in cell.items() if key != "seconds"} for cell in cells]))
