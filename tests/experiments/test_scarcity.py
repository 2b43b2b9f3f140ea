"""Success and model error by the number of recorded rows, at a size that takes no time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from experiment_contract import check_experiment, files_in

import experiments.scarcity
import experiments.stages
from experiments import Measured
from experiments.scarcity import Scarcity
from experiments.table3 import Table3
from mocoda import Dynamics, DynamicsConfig, InputError, Policies, Transitions, fit_dynamics, make_agent, train_agents
from mocoda.tasks.hooksweep import HookSweep2

SIZES, MODELS = (1_100, 400), ("local", "full")
TINY = Scarcity(
    "tiny",
    seeds=2,
    sizes=SIZES,
    dynamics=DynamicsConfig(
        members=2, hidden=(16,), features=8, epochs=2, epoch_rows=256, batch=128, validation=100, window=1
    ),
    agent=make_agent("td3-bc", hidden=(8,), batch=32, standardise=True),
    total=1_500,
    updates=20,
    evaluate_every=10,
    episodes=1,
    last=1,
    components=4,
    expert_episodes=6,  # of which one sweeps box 1
)


class Run(NamedTuple):
    """The results, where they were measured, and the data sets that the agents were given."""

    measured: Measured
    folder: Path
    datasets: dict[str, list[Transitions]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("scarcity")
    datasets: dict[str, list[Transitions]] = {}

    def keep(given: dict[str, list[Transitions]], *agent: Any, **options: Any) -> Policies:
        datasets.update(given)
        return train_agents(given, *agent, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiments.stages, "train_agents", keep)
        measured = TINY.run(device="cpu", folder=folder, workers=0)
    return Run(measured, folder, datasets)


def model(folder: Path, architecture: str, size: int, seed: int) -> Dynamics:
    return Dynamics.load(folder / f"dynamics-{architecture}-{size}-{seed}.safetensors", HookSweep2().graph)


def test_the_results_keep_the_contract_and_have_every_point(run: Run, tmp_path: Path) -> None:
    printed = check_experiment(TINY, run.measured, tmp_path)
    assert files_in(tmp_path) == sorted(TINY.outputs) and run.measured.results["resumed"] is False
    points = run.measured.results["points"]
    assert [(p["rows"], p["architecture"]) for p in points] == [(size, model) for size in SIZES for model in MODELS]
    for point in points:
        assert {len(point[name]) for name in ("success", "error_one", "error_two")} == {2}
        assert all(error > 0 for error in (*point["error_one"], *point["error_two"]))
        for name in ("success", "error_one", "error_two"):
            assert f"{sum(point[name]) / 2:.1f}" in printed


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("architecture", MODELS)
def test_models_are_fitted_to_the_first_rows_of_one_recording_however_many_others_have(
    run: Run, size: int, architecture: str
) -> None:
    recorded = Transitions.load(run.folder / "recorded.hdf5")
    assert len(recorded) == max(SIZES)
    alone = fit_dynamics(recorded[:size], HookSweep2().graph, architecture, seed=1, config=TINY.dynamics)
    together = model(run.folder, architecture, size, 1)
    assert all(weight.equal(together.weights[name]) for name, weight in alone.weights.items())
    assert all(scale.equal(together.scaling[name]) for name, scale in alone.scaling.items())


def test_a_point_s_numbers_are_those_of_its_own_models_and_agents(run: Run) -> None:
    policies = Policies.load(run.folder / "agents")
    names = [f"{architecture}-{size}" for size in SIZES for architecture in MODELS]
    assert list(policies) == [(name, seed) for name in names for seed in (0, 1)]
    errors = set()
    for number, point in enumerate(run.measured.results["points"]):
        success = 100 * policies.curves["success"][2 * number : 2 * number + 2, -1].double()
        assert point["success"] == success.tolist()
        errors |= {*point["error_one"], *point["error_two"]}
    assert len(errors) == 16  # every model's are its own


def test_errors_are_the_mean_of_both_boxes(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    def errors(models: dict[str, list[Dynamics]], tests: dict[str, Transitions]) -> list[dict[str, Any]]:
        (architecture,) = models
        values = {"gripper": [99.0, 99.0], "box1": [1.0, 2.0], "box2": [3.0, 6.0]}
        return [
            {"data": d, "architecture": architecture, "factor": f, "values": v}
            for d in tests
            for f, v in values.items()
        ]

    monkeypatch.setattr(experiments.scarcity, "model_errors", errors)
    models = {(400, seed): model(run.folder, "full", 400, seed) for seed in (0, 1)}
    tests = {mode: Transitions.load(run.folder / "recorded.hdf5") for mode in ("one", "two")}
    policies = Policies.load(run.folder / "agents")
    point = TINY.point(400, "full", models, policies, tests)
    assert point["error_one"] == point["error_two"] == [2.0, 4.0]


def test_the_data_sets_are_as_large_as_asked_for_whatever_was_recorded(run: Run) -> None:
    recorded = Transitions.load(run.folder / "recorded.hdf5")
    for size in SIZES:
        for seed in (0, 1):
            ours, full = (run.datasets[f"{architecture}-{size}"][seed] for architecture in MODELS)
            assert len(ours) == len(full) == 1_500
            assert ours.rows[:size].equal(recorded.rows[:size]) and ours.rows.equal(full.rows)
            assert ours.next_state[:size].equal(full.next_state[:size])
            assert not ours.next_state[size:].equal(full.next_state[size:])


def test_the_same_call_takes_everything_from_its_folder_and_measures_the_same(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner, name in (
        (experiments.stages, "fit_dynamics_runs"),
        (experiments.stages, "train_agents"),
        (HookSweep2, "collect"),
    ):
        monkeypatch.setattr(owner, name, lambda *given, **named: pytest.fail("made again"))
    again = TINY.run(device="cpu", folder=run.folder, workers=0).results
    assert again["points"] == run.measured.results["points"] and again["resumed"] is True


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sizes": ()}, "sizes must be different numbers of rows, and at least one, got []."),
        ({"sizes": (5, 5)}, "sizes must be different numbers of rows, and at least one, got [5, 5]."),
        ({"sizes": (5, 0)}, "sizes must be different numbers of rows, and at least one, got [5, 0]."),
        ({"total": 1_000}, "total must be at least the number of recorded rows, got 1000 and 1100."),
        ({"last": 0}, "last must be a number of evaluations, from 1 to 2, got 0."),
        ({"last": 3}, "last must be a number of evaluations, from 1 to 2, got 3."),
    ],
)
def test_settings_that_cannot_be_are_refused_in_full(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        replace(TINY, **change)
    assert str(caught.value) == message


@pytest.mark.parametrize("name", ["paper", "quick"])
def test_presets_share_the_agent_and_the_networks_of_table_3_and_may_have_unequal_lengths(name: str) -> None:
    preset, table = Scarcity.presets[name], Table3.presets[name]
    assert replace(preset.agent, batch=500) == replace(table.agents[0], batch=500)
    assert preset.variety == table.variety
    assert replace(preset.dynamics, epochs=1) == replace(table.dynamics, epochs=1)
    assert preset.dynamics.epoch_rows is not None
    assert (preset.acceptance, preset.density_floor) == (table.acceptance, table.density_floor)
