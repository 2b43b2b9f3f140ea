"""Table 1 as a program, at a size that takes no time."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiment_contract import StopAt, StopError, by_place, check_experiment, files_in

import experiments.stages
import mocoda.dynamics.fit
from experiments import table1
from experiments.stages import fit_models
from experiments.table1 import PAPER, Measured1, Table1
from mocoda import DynamicsConfig, fit_dynamics
from mocoda.engine.checkpoint import Checkpoint
from mocoda.engine.randomness import Stream

ROWS = ("full", "global", "local")
COLUMNS = ("emp", "dyna", "rand", "mocoda", "mocoda-u")
TINY = Table1(
    "tiny",
    seeds=2,
    dynamics=DynamicsConfig(members=2, hidden=(16, 16), features=8, epochs=2, batch=128, window=1),
    rows=1_000,
    test_rows=300,
    components=4,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("table1")


@pytest.fixture(scope="module")
def measured(folder: Path) -> Measured1:
    return TINY.run(device="cpu", folder=folder)


def values(measured: Measured1) -> list[list[float]]:
    return [[*cell["values"], *cell["squared"]] for cell in measured.results["cells"]]


# Measuring


def test_the_results_keep_the_contract_and_have_every_cell_beside_the_paper_s(
    measured: Measured1, tmp_path: Path
) -> None:
    printed = check_experiment(TINY, measured, tmp_path)
    assert files_in(tmp_path) == sorted(TINY.outputs)
    found = by_place(measured.results)
    assert list(found) == [(row, column) for row in ROWS for column in COLUMNS]
    for (row, column), cell in found.items():
        assert len(cell["values"]) == len(cell["squared"]) == 2
        assert (cell["paper_mean"], cell["paper_std"]) == PAPER[row][COLUMNS.index(column)]
        assert f"{cell['mean']:.3f} ± {cell['std']:.3f} ({cell['paper_mean']:.2f})" in printed
    assert measured.results["resumed"] is False


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("column", COLUMNS)
def test_a_cell_is_the_mean_distance_of_a_draw_from_the_true_next_state(
    measured: Measured1, row: str, column: str
) -> None:
    cell = by_place(measured.results)[row, column]
    for seed in range(2):
        rows = measured.rows[column][seed]
        drawn = measured.models[row][seed].sample(rows, seed=Stream(seed, "table1-draw", column)).double().numpy()
        assert np.allclose(measured.task.step(rows).numpy(), true_step(rows.double().numpy()), atol=1e-6)
        distance = np.sqrt(((drawn - true_step(rows.double().numpy())) ** 2).sum(1))
        assert cell["values"][seed] == pytest.approx(100 * distance.mean(), rel=1e-4)
        assert cell["squared"][seed] == pytest.approx(100 * (distance**2).mean(), rel=1e-4)


def true_step(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The paper's 2D Navigation, written again."""
    x, y, dx, dy = rows.T
    both = (x > 0.5) & (y > 0.5)
    return np.stack([x + 0.05 * dx - 0.02 * dy * both, y + 0.05 * dy - 0.02 * dx * both], 1)


def test_the_empirical_column_is_recorded_alike_but_held_out(measured: Measured1) -> None:
    for data, rows in zip(measured.datasets, measured.rows["emp"], strict=True):
        trained = {tuple(row) for row in data.rows.tolist()}
        assert not trained & {tuple(row) for row in rows.tolist()}
        up = rows[:, 3] > 0.3
        assert 0.4 < float(up.float().mean()) < 0.6
        assert bool((rows[:, 2][~up] > 0.3).all())  # every row walks either up or right


def test_a_seed_s_model_is_the_one_trained_on_its_data_alone(measured: Measured1) -> None:
    alone = fit_dynamics(measured.datasets[1], measured.task.graph, "local", seed=1, config=TINY.dynamics)
    together = measured.models["local"][1]
    assert all(weight.equal(together.weights[name]) for name, weight in alone.weights.items())


def test_a_seed_s_values_do_not_depend_on_how_many_there_are_and_progress_names_every_stage(
    measured: Measured1, tmp_path: Path
) -> None:
    progress = StopAt()
    alone = replace(TINY, seeds=1).run(device="cpu", folder=tmp_path, progress=progress)
    for one, two in zip(alone.results["cells"], measured.results["cells"], strict=True):
        assert (one["values"], one["squared"]) == (two["values"][:1], two["squared"][:1])
    trained = [(f"dynamics {row}", done, 2) for row in ROWS for done in (1, 2)]
    assert progress.steps == [*trained, *(("test rows", done, 5) for done in range(1, 6))]


# Continuing


def test_an_interrupted_run_continues_where_it_was_and_measures_the_same(
    measured: Measured1, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mocoda.dynamics.fit, "Checkpoint", functools.partial(Checkpoint, interval=0.0))
    with pytest.raises(StopError):
        TINY.run(device="cpu", folder=tmp_path, progress=StopAt("dynamics global", 2))
    left = ["checkpoint-global", "dynamics-full-0", "dynamics-full-1"]
    assert files_in(tmp_path) == [f"{name}.safetensors" for name in left]
    progress = StopAt()
    again = TINY.run(device="cpu", folder=tmp_path, progress=progress)
    # The full models were finished, and the global ones had one epoch of two behind them.
    stages = [(stage, done) for stage, done, _ in progress.steps]
    assert stages[:3] == [("dynamics global", 2), ("dynamics local", 1), ("dynamics local", 2)]
    assert values(again) == values(measured)
    assert again.results["resumed"] is True
    assert files_in(tmp_path) == sorted(f"dynamics-{row}-{seed}.safetensors" for row in ROWS for seed in (0, 1))


def test_the_same_call_measures_the_same_and_does_not_train_finished_models_again(
    measured: Measured1, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiments.stages, "fit_dynamics_runs", lambda *given, **named: pytest.fail("trained again"))
    again = TINY.run(device="cpu", folder=folder)
    assert again.results["resumed"] is True and values(again) == values(measured)


def test_if_a_model_is_missing_all_of_its_stage_are_fitted_again(measured: Measured1, tmp_path: Path) -> None:
    progress = StopAt()

    def models() -> list[mocoda.Dynamics]:
        data, graph = measured.datasets, measured.task.graph
        return fit_models(data, graph, "local", TINY.dynamics, folder=tmp_path, progress=progress)

    first, again = models(), models()
    assert len(progress.steps) == 2  # its epochs, once
    (tmp_path / "dynamics-local-1.safetensors").unlink()
    anew = models()
    assert len(progress.steps) == 4
    for made in (first, again, anew):
        for model, expected in zip(made, measured.models["local"], strict=True):
            assert all(weight.equal(expected.weights[name]) for name, weight in model.weights.items())
    assert files_in(tmp_path) == [f"dynamics-local-{seed}.safetensors" for seed in (0, 1)]


# The paper


def test_the_paper_s_preset_is_the_paper_s_setting_but_for_predicting_the_change() -> None:
    preset = Table1.presets["paper"]
    assert replace(preset.dynamics, predict_change=False) == DynamicsConfig.paper() and preset.dynamics.predict_change
    assert (preset.seeds, preset.rows, preset.components) == (5, 40_000, 32)
    assert table1.COLUMNS == COLUMNS and tuple(PAPER) == ROWS


@pytest.mark.long
def test_the_quick_preset_shows_the_ordering_in_two_minutes(tmp_path: Path) -> None:
    results = Table1.presets["quick"].run(device="cpu", folder=tmp_path).results
    found = by_place(results)
    for column in COLUMNS[1:]:
        assert found["local", column]["mean"] < found["full", column]["mean"]
    assert results["seconds"] < 120
