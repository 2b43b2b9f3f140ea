"""Success and model error by the number of recorded rows, at a size that takes no time."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import rich.console

import mocoda.cli
import mocoda.cli.console
import mocoda.cli.verbs
import mocoda.paper.scarcity
from mocoda import Dynamics, DynamicsConfig, InputError, Policies, Transitions, fit_dynamics, make_agent, train_agents
from mocoda.agents.policy import agent_settings
from mocoda.engine.files import versions
from mocoda.engine.optimise import device_name
from mocoda.engine.runs import RunFolder
from mocoda.paper import table3
from mocoda.paper.experiment import preset
from mocoda.paper.scarcity import METRIC, OUTPUTS, PRESETS, Scarcity, scarcity, write
from mocoda.tasks.hooksweep import HookSweep2

KEYS = {"table", "preset", "metric", "device", "seconds", "resumed", "versions", "config", "points"}
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

    results: dict[str, Any]
    folder: Path
    datasets: dict[str, list[Transitions]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """As `mocoda paper scarcity` does it."""
    folder = tmp_path_factory.mktemp("scarcity")
    datasets: dict[str, list[Transitions]] = {}

    def noted(given: dict[str, list[Transitions]], *agent: Any, **options: Any) -> Policies:
        datasets.update(given)
        return train_agents(given, *agent, **options)

    identity = ("paper scarcity", {**TINY.config(), "device": "cpu"})
    with pytest.MonkeyPatch.context() as patch, RunFolder(folder, *identity, OUTPUTS) as here:
        patch.setattr(mocoda.paper.scarcity, "train_agents", noted)
        results = scarcity(TINY, device="cpu", folder=folder, workers=0, progress=here.progress)
    return Run(results, folder, datasets)


def model(folder: Path, architecture: str, size: int, seed: int) -> Dynamics:
    return Dynamics.load(folder / f"dynamics-{architecture}-{size}-{seed}.safetensors", HookSweep2().graph)


def check_schema(results: dict[str, Any]) -> None:
    assert set(results) == KEYS and results["table"] == "scarcity" and results["metric"] == METRIC
    config = results["config"]
    assert [(p["rows"], p["architecture"]) for p in results["points"]] == [
        (s, m) for s in config["sizes"] for m in MODELS
    ]
    for point in results["points"]:
        assert set(point) == {"rows", "architecture", "success", "error_one", "error_two"}
        assert {len(point[name]) for name in ("success", "error_one", "error_two")} == {config["seeds"]}
        assert all(0 <= share <= 100 for share in point["success"])
        assert all(error > 0 for error in (*point["error_one"], *point["error_two"]))


def test_the_results_have_their_schema_and_can_be_written(run: Run) -> None:
    check_schema(run.results)
    written = json.loads(json.dumps(run.results, allow_nan=False))
    assert written["points"] == run.results["points"]
    assert written["config"] == json.loads(json.dumps(TINY.config()))
    assert written["config"]["agent"] == agent_settings(TINY.agent)
    assert run.results["preset"] == "tiny" and run.results["resumed"] is False
    assert run.results["versions"] == versions() and run.results["device"] == device_name("cpu")


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
    for number, point in enumerate(run.results["points"]):
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

    monkeypatch.setattr(mocoda.paper.scarcity, "model_errors", errors)
    models = {(400, seed): model(run.folder, "full", 400, seed) for seed in (0, 1)}
    tests = {mode: Transitions.load(run.folder / "recorded.hdf5") for mode in ("one", "two")}
    policies = Policies.load(run.folder / "agents")
    point = mocoda.paper.scarcity._point(400, "full", models, policies, tests, TINY)
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


def test_the_same_command_takes_everything_from_its_folder_measures_the_same_and_says_so(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(run.folder, tmp_path / "again"))
    for owner, name in (
        (mocoda.paper.scarcity, "fit_dynamics_runs"),
        (mocoda.paper.scarcity, "train_agents"),
        (HookSweep2, "collect"),
    ):
        monkeypatch.setattr(owner, name, lambda *given, **named: pytest.fail("made again"))
    monkeypatch.setitem(PRESETS, "tiny", TINY)
    console = rich.console.Console(width=200)
    for module in (mocoda.cli.verbs, mocoda.cli.console):
        monkeypatch.setattr(module, "out", console)
    with console.capture() as said:
        mocoda.cli.verbs.paper("scarcity", preset="tiny", workers=0, out_dir=folder)
    again = json.loads((folder / "scarcity.json").read_text("utf-8"))
    check_schema(again)
    assert again["points"] == run.results["points"] and again["resumed"] is True
    assert f"Measured in {again['seconds']} s after resuming on {device_name('cpu')}" in said.get()
    assert (folder / "scarcity.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_points_are_written_drawn_and_told_as_a_table(run: Run, tmp_path: Path) -> None:
    table = write(run.results, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(OUTPUTS) == ["scarcity.json", "scarcity.png"]
    assert json.loads((tmp_path / "scarcity.json").read_text("utf-8"))["points"] == run.results["points"]
    figure = (tmp_path / "scarcity.png").read_bytes()
    assert figure[:8] == b"\x89PNG\r\n\x1a\n" and len(figure) > 5_000
    console = rich.console.Console(width=200)
    with console.capture() as said:
        console.print(table)
    lines = [[text.strip() for text in line.strip("│ ").split("│")] for line in said.get().splitlines() if "│" in line]
    expected = [
        [f"{p['rows']:,}", p["architecture"], *(f"{sum(p[n]) / 2:.1f}" for n in ("success", "error_one", "error_two"))]
        for p in run.results["points"]
    ]
    assert lines == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": 0}, "seeds must be at least 1, got 0."),
        ({"sizes": ()}, "sizes must be different numbers of rows, and at least one, got []."),
        ({"sizes": (5, 5)}, "sizes must be different numbers of rows, and at least one, got [5, 5]."),
        ({"sizes": (5, 0)}, "sizes must be different numbers of rows, and at least one, got [5, 0]."),
        ({"total": 1_000}, "total must be at least the most rows, got 1000 and 1100."),
        ({"last": 0}, "last must be a number of evaluations, from 1 to 2, got 0."),
        ({"last": 3}, "last must be a number of evaluations, from 1 to 2, got 3."),
    ],
)
def test_settings_that_cannot_be_are_refused_in_full(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        replace(TINY, **change)
    assert str(caught.value) == message


def test_an_unknown_preset_is_refused_in_full() -> None:
    with pytest.raises(InputError) as caught:
        preset(PRESETS, "papper")
    assert str(caught.value) == "there is no preset 'papper'; there are: paper, quick. Did you mean 'paper'?"
    assert all(PRESETS[name].preset == name for name in ("paper", "quick"))


@pytest.mark.parametrize("name", ["paper", "quick"])
def test_presets_share_the_agent_and_the_networks_of_table_3_and_may_have_unequal_lengths(name: str) -> None:
    preset, table = PRESETS[name], table3.PRESETS[name]
    assert preset.agent == table.agents[0] and preset.variety == table.variety
    assert replace(preset.dynamics, epochs=1) == replace(table.dynamics, epochs=1)
    assert preset.dynamics.epoch_rows is not None
    assert (preset.acceptance, preset.density_floor) == (table.acceptance, table.density_floor)
