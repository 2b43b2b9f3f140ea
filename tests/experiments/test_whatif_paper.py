"""The what-if demonstration as a program, at a size that takes no time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from experiment_contract import check_experiment, files_in

import experiments.stages
from experiments import Measured
from experiments.whatif import WhatIfs
from experiments.worlds import Knowing, NoisyWorld, bodies, navigation
from mocoda import DynamicsConfig, InputError
from mocoda.engine.randomness import Stream

TINY = WhatIfs(
    "tiny",
    seeds=2,
    dynamics=DynamicsConfig(members=2, hidden=(16,), features=8, epochs=2, batch=128, window=1),
    rows=1_500,
    questions=400,
    components=4,
)
MODELS = ("unfactored", "knowing", "factored")
CHILDREN = ("not reached", "alone", "coupled, known", "coupled, unknown")
each_world = pytest.mark.parametrize("world", [navigation(), bodies()], ids=lambda world: world.name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whatif")


@pytest.fixture(scope="module")
def measured(folder: Path) -> Measured:
    return TINY.run(device="cpu", folder=folder)


@pytest.fixture
def results(measured: Measured) -> dict[str, Any]:
    return measured.results


def test_there_is_a_cell_for_every_world_group_and_model(results: dict[str, Any]) -> None:
    found = [(cell["world"], cell["model"], cell["children"]) for cell in results["cells"]]
    assert found == [(w, m, c) for w in ("navigation", "bodies") for m in MODELS for c in CHILDREN]
    for cell in results["cells"]:
        assert len(cell["values"]) == 2 and 0 <= cell["inside"] <= 100
    for model in MODELS:
        own = [cell for cell in results["cells"] if cell["model"] == model]
        assert sum(cell["share"] for cell in own) == pytest.approx(200)  # of two worlds


def test_what_the_change_does_not_reach_is_exact_however_little_was_trained(results: dict[str, Any]) -> None:
    for cell in results["cells"]:
        if cell["children"] == "not reached" and cell["model"] == "factored":
            assert cell["values"] == [0.0, 0.0] and cell["inside"] == 100
        elif cell["model"] != "knowing":
            assert min(cell["values"]) > 0


def test_to_know_the_dynamics_is_to_know_the_answer_only_without_noise(results: dict[str, Any]) -> None:
    for cell in results["cells"]:
        if cell["model"] == "knowing":
            assert (cell["mean"] == 0) == (cell["world"] == "navigation")


def test_bins_of_support_hold_all_questions(results: dict[str, Any]) -> None:
    for world in ("navigation", "bodies"):
        own = [cell for cell in results["supports"] if cell["world"] == world]
        assert [cell["from"] for cell in own] == sorted(cell["from"] for cell in own)
        assert 30 < sum(cell["share"] for cell in own) <= 100  # of all children; the rest the change does not reach


def test_the_results_keep_the_contract(measured: Measured, tmp_path: Path) -> None:
    printed = check_experiment(TINY, measured, tmp_path)
    assert files_in(tmp_path) == sorted(TINY.outputs)
    assert printed.count("0.00 ± 0.00 (100)") == 2


def test_a_second_call_finds_the_models(results: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments.stages, "fit_dynamics_runs", lambda *given, **named: pytest.fail("trained again"))
    again = TINY.run(device="cpu", folder=folder).results
    assert again["resumed"] is True and results["resumed"] is False
    assert again["cells"] == results["cells"] and again["supports"] == results["supports"]


@each_world
def test_the_graph_of_a_world_is_true(world: NoisyWorld) -> None:
    """A parent that the mask leaves out changes its child by no bit, as long as the mask stays."""
    stream = Stream(0, "test-whatif-paper")
    rows, width = world.record(500, stream.child("rows")), world.graph.state_width
    noise = stream.child("noise").normal(500, width)
    other = world.record(500, stream.child("other"))
    for number, columns in enumerate(world.graph.factors.values()):
        changed = rows.clone()
        changed[:, list(columns)] = other[:, list(columns)]
        mask = world.graph.mask(rows)
        stays = (mask == world.graph.mask(changed)).all(2).all(1)
        same = world.step(changed, noise) == world.step(rows, noise)
        for child, name in enumerate(world.graph.children):
            out = stays & ~mask[:, number, child]
            assert same[out][:, list(world.graph.factors[name])].all()


@each_world
def test_recorded_transitions_are_steps_with_their_noise(world: NoisyWorld) -> None:
    data, noise = world.collect(100, Stream(3, "test"))
    assert data.next_state.equal(world.step(data.rows, noise))
    assert world.collect(100, Stream(3, "test"))[0].next_state.equal(data.next_state)
    prediction = Knowing(world).predict(data.rows)
    assert prediction.mean[0].equal(world.step(data.rows, torch.zeros_like(noise))) and not prediction.scale.any()


def test_no_question_is_refused_in_full() -> None:
    with pytest.raises(InputError) as caught:
        replace(TINY, questions=0)
    assert str(caught.value) == "questions must be at least 1, got 0."
