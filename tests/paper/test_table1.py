"""Table 1 as a program, at a size that takes no time, and the numbers that are committed."""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rich.console
from committed_results import committed

import mocoda.dynamics.fit
import mocoda.paper.table1
from mocoda import DynamicsConfig, InputError, fit_dynamics
from mocoda.engine.checkpoint import Checkpoint
from mocoda.engine.files import versions
from mocoda.engine.optimise import device_name
from mocoda.engine.randomness import Stream
from mocoda.engine.statistics import mean_and_std
from mocoda.paper.experiment import preset
from mocoda.paper.table1 import METRIC, OUTPUTS, PAPER, PRESETS, SHADED, Measured1, Table1, fitted, table1, write

KEYS = {"table", "preset", "metric", "device", "seconds", "resumed", "versions", "config", "cells"}
CELL_KEYS = {"row", "column", "values", "mean", "std", "paper_mean", "paper_std", "squared"}
ROWS = ("full", "global", "local")
COLUMNS = ("emp", "dyna", "rand", "mocoda", "mocoda-u")
OUT_OF_DISTRIBUTION = COLUMNS[1:]
TINY = Table1(
    "tiny",
    seeds=2,
    dynamics=DynamicsConfig(members=2, hidden=(16, 16), features=8, epochs=2, batch=128, window=1),
    rows=1_000,
    test_rows=300,
    components=4,
)


@pytest.fixture(scope="module")
def measured() -> Measured1:
    return table1(TINY, device="cpu")


def cells(results: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(cell["row"], cell["column"]): cell for cell in results["cells"]}


def values(measured: Measured1) -> list[list[float]]:
    return [[*cell["values"], *cell["squared"]] for cell in measured.results["cells"]]


def check_schema(results: dict[str, Any], seeds: int) -> None:
    assert set(results) == KEYS
    assert results["table"] == "table1"
    assert [(cell["row"], cell["column"]) for cell in results["cells"]] == [(r, c) for r in ROWS for c in COLUMNS]
    for cell in results["cells"]:
        assert set(cell) == CELL_KEYS
        assert len(cell["values"]) == len(cell["squared"]) == seeds
        assert all(0 < value < 1_000 for value in (*cell["values"], *cell["squared"]))
        assert cell["mean"] == pytest.approx(statistics.fmean(cell["values"]), rel=1e-9)
        assert cell["std"] == pytest.approx(statistics.stdev(cell["values"]) if seeds > 1 else 0.0, rel=1e-9)
        paper = PAPER[cell["row"]][COLUMNS.index(cell["column"])]
        assert (cell["paper_mean"], cell["paper_std"]) == paper


# Measuring


def test_the_results_have_their_schema_and_can_be_written(measured: Measured1) -> None:
    check_schema(measured.results, seeds=2)
    written = json.loads(json.dumps(measured.results))
    assert written["cells"] == measured.results["cells"]
    assert written["config"] == json.loads(json.dumps(asdict(TINY)))
    assert measured.results["preset"] == "tiny" and measured.results["resumed"] is False
    assert measured.results["versions"] == versions() and measured.results["device"] == device_name("cpu")
    assert 0 < measured.results["seconds"] < 60


def test_what_it_was_measured_with_comes_along(measured: Measured1) -> None:
    assert [len(data) for data in measured.datasets] == [1_000, 1_000]
    assert set(measured.models) == set(ROWS) and set(measured.parents) == set(measured.rows) == set(COLUMNS)
    for row, models in measured.models.items():
        assert [(model.architecture, model.config) for model in models] == [(row, TINY.dynamics)] * 2
    for drawn in measured.rows.values():
        assert [tuple(rows.shape) for rows in drawn] == [(300, 4), (300, 4)]
        assert not drawn[0].equal(drawn[1])


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("column", COLUMNS)
def test_a_cell_is_the_mean_distance_of_a_draw_from_the_true_next_state(
    measured: Measured1, row: str, column: str
) -> None:
    cell = cells(measured.results)[row, column]
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


def test_a_seed_s_values_do_not_depend_on_how_many_there_are_and_progress_tells_every_stage(
    measured: Measured1,
) -> None:
    told: list[tuple[str, int, int]] = []
    alone = table1(replace(TINY, seeds=1), device="cpu", progress=lambda *step: told.append(step))
    check_schema(alone.results, seeds=1)
    for one, two in zip(alone.results["cells"], measured.results["cells"], strict=True):
        assert (one["values"], one["squared"]) == (two["values"][:1], two["squared"][:1])
    trained = [(f"dynamics {row}", done, 2) for row in ROWS for done in (1, 2)]
    assert told == [*trained, *(("test rows", done, 5) for done in range(1, 6))]


# Continuing


class StopError(Exception):
    """What stops a run halfway."""


def stop_at(stage: str, when: int) -> Callable[[str, int, int], None]:
    def progress(name: str, done: int, total: int) -> None:
        if (name, done) == (stage, when):
            raise StopError

    return progress


def test_an_interrupted_run_goes_on_where_it_was_and_measures_the_same(
    measured: Measured1, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mocoda.dynamics.fit, "Checkpoint", functools.partial(Checkpoint, interval=0.0))
    with pytest.raises(StopError):
        table1(TINY, device="cpu", folder=tmp_path, progress=stop_at("dynamics global", 2))
    left = ["checkpoint-global", "dynamics-full-0", "dynamics-full-1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{name}.safetensors" for name in left]
    told: list[tuple[str, int]] = []
    again = table1(TINY, device="cpu", folder=tmp_path, progress=lambda name, done, total: told.append((name, done)))
    # The full models were finished, and the global ones had one epoch of two behind them.
    assert told[:3] == [("dynamics global", 2), ("dynamics local", 1), ("dynamics local", 2)]
    assert values(again) == values(measured)
    assert again.results["resumed"] is True
    models = sorted(f"dynamics-{row}-{seed}.safetensors" for row in ROWS for seed in (0, 1))
    assert sorted(path.name for path in tmp_path.iterdir()) == models


def test_the_same_call_measures_the_same_and_does_not_train_finished_models_again(
    measured: Measured1, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = table1(TINY, device="cpu", folder=tmp_path)
    assert first.results["resumed"] is False
    monkeypatch.setattr(mocoda.paper.table1, "fit_dynamics_runs", lambda *given, **named: pytest.fail("trained again"))
    second = table1(TINY, device="cpu", folder=tmp_path)
    assert second.results["resumed"] is True
    assert values(first) == values(second) == values(measured)


def test_models_that_were_fitted_are_found_again_one_missing_and_all_are_fitted_anew(
    measured: Measured1, tmp_path: Path
) -> None:
    told: list[str] = []

    def models() -> list[mocoda.Dynamics]:
        return fitted(
            measured.task, measured.datasets, "local", TINY.dynamics, tmp_path, lambda name, *step: told.append(name)
        )

    first, again = models(), models()
    assert told == ["dynamics local"] * 2  # its epochs, once
    (tmp_path / "dynamics-local-1.safetensors").unlink()
    anew = models()
    assert told == ["dynamics local"] * 4
    for made in (first, again, anew):
        for model, expected in zip(made, measured.models["local"], strict=True):
            assert all(weight.equal(expected.weights[name]) for name, weight in model.weights.items())
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"dynamics-local-{s}.safetensors" for s in (0, 1)]


# Writing


def test_what_is_measured_is_written_as_cells_and_figures_and_told_as_a_table(
    measured: Measured1, tmp_path: Path
) -> None:
    table = write(measured, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(OUTPUTS)
    assert json.loads((tmp_path / OUTPUTS[0]).read_text())["cells"] == measured.results["cells"]
    for name in OUTPUTS[1:]:
        assert (tmp_path / name).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    console = rich.console.Console(width=200)
    with console.capture() as said:
        console.print(table)
    first = measured.results["cells"][0]
    assert f"{first['mean']:.3f} ± {first['std']:.3f} ({first['paper_mean']:.2f})" in said.get()


def test_figure_3_shows_five_distributions_recorded_moves_of_emp_and_the_local_model_s_of_the_rest(
    measured: Measured1, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(mocoda.paper.table1, "draw_transitions", lambda *given: drawn.append(given))
    write(measured, tmp_path)
    ((panels, path, shaded),) = drawn
    assert (path, shaded) == (tmp_path / "figure3.png", SHADED)
    assert list(panels) == ["emp", "dyna", "mocoda", "mocoda-u", "rand"]
    for name, (state, following) in panels.items():
        rows = measured.rows[name][0]
        assert state.equal(rows[:, :2]) and following.shape == state.shape == (300, 2)
        assert following.equal(measured.task.step(rows)) == (name == "emp")
        if name != "emp":
            assert following.equal(measured.models["local"][0].sample(rows, seed=0))


# Refusing


@pytest.mark.parametrize("seeds", [0, -1])
def test_less_than_one_seed_is_refused_in_full(seeds: int, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        table1(replace(TINY, seeds=seeds), device="cpu", folder=tmp_path)
    assert str(caught.value) == f"seeds must be at least 1, got {seeds}."
    assert not list(tmp_path.iterdir())


def test_an_unknown_preset_is_refused_in_full() -> None:
    with pytest.raises(InputError) as caught:
        preset(PRESETS, "quik")
    assert str(caught.value) == "there is no preset 'quik'; there are: paper, quick. Did you mean 'quick'?"
    assert all(PRESETS[name].preset == name for name in ("paper", "quick"))


def test_mean_and_deviation_are_the_sample_s() -> None:
    assert mean_and_std([1.0, 2.0, 4.0]) == pytest.approx((7 / 3, statistics.stdev([1, 2, 4])))
    assert mean_and_std([3.0]) == (3.0, 0.0)


def test_the_paper_s_preset_is_the_paper_s_setting_but_for_predicting_the_change() -> None:
    preset = PRESETS["paper"]
    assert replace(preset.dynamics, predict_change=False) == DynamicsConfig.paper() and preset.dynamics.predict_change
    assert (preset.seeds, preset.rows, preset.components, preset.covariance) == (5, 40_000, 32, "full")
    assert mocoda.paper.table1.COLUMNS == COLUMNS and tuple(PAPER) == ROWS


# What is committed


@pytest.mark.parametrize("name", ["table1.json", "ablations/table1-standardised.json", "ablations/table1-state.json"])
def test_committed_tables_have_the_schema(name: str) -> None:
    results = committed(name)
    check_schema(results, seeds=5)
    assert results["preset"] == "paper" and results["metric"] == METRIC


def test_the_committed_table_is_of_the_paper_s_preset_as_the_code_has_it() -> None:
    results = committed("table1.json")
    assert results["config"] == json.loads(json.dumps(asdict(PRESETS["paper"])))
    assert "mean Euclidean norm x 1e2" in results["metric"]


def test_the_committed_ablations_differ_from_the_preset_in_one_switch_each() -> None:
    preset = json.loads(json.dumps(asdict(PRESETS["paper"])))
    for name, switch in (("standardised", "standardise"), ("state", "predict_change")):
        config = committed(f"ablations/table1-{name}.json")["config"]
        changed = [key for key, value in config["dynamics"].items() if value != preset["dynamics"][key]]
        assert changed == [switch]
        assert {**config, "dynamics": None} == {**preset, "dynamics": None}


def test_the_committed_local_errors_are_at_most_the_paper_s_everywhere() -> None:
    found = cells(committed("table1.json"))
    for column in COLUMNS:
        assert found["local", column]["mean"] <= found["local", column]["paper_mean"]


def test_the_committed_local_errors_are_below_the_full_ones_off_the_recorded_distribution() -> None:
    found = cells(committed("table1.json"))
    for column in OUT_OF_DISTRIBUTION:
        assert found["local", column]["mean"] < found["full", column]["mean"]


def test_the_committed_table_took_under_three_minutes_of_an_h200_in_one_go() -> None:
    results = committed("table1.json")
    assert "H200" in results["device"] and 0 < results["seconds"] < 180 and results["resumed"] is False


# Rows that miss their target, and the share of it that they reach; docs/speed.md says so.
MISSED = {"sweep-dynamics": 0.98, "sweep-agents": 0.79}


@pytest.mark.parametrize(("name", "kind"), [("bench-cpu.json", "cpu"), ("bench-h200.json", "cuda")])
def test_committed_benchmarks_reach_their_targets_but_for_two(name: str, kind: str) -> None:
    from mocoda.paper.bench import TARGETS

    results = committed(name)
    assert ("H200" if kind == "cuda" else "CPU") in results["device"]
    found = cells(results)
    targets = TARGETS[kind]
    assert {row for row, column in found if column == "ratio"} == set(targets)
    for row, target in targets.items():
        assert found[row, "target"]["values"] == [target]
        tolerance = 0.9 if row == "growth" else MISSED.get(row, 1.0)
        assert found[row, "ratio"]["mean"] >= tolerance * target


@pytest.mark.long
def test_the_quick_preset_shows_the_ordering_in_two_minutes() -> None:
    results = table1(PRESETS["quick"], device="cpu").results
    check_schema(results, seeds=2)
    found = cells(results)
    for column in OUT_OF_DISTRIBUTION:
        assert found["local", column]["mean"] < found["full", column]["mean"]
    assert results["seconds"] < 120
