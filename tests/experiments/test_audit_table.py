"""Audits of the tasks at a size that takes no time: every recipe's rows against the simulator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from experiment_contract import check_experiment

from experiments.audit import HookSweepAudit, NavigationAudit, ObjectsAudit, TaskAudit
from experiments.columns import column_recipe
from mocoda import DynamicsConfig, InputError, make_task

TINY = DynamicsConfig(members=2, hidden=(8,), features=4, epochs=1, batch=64, validation=50, window=1)
COLUMNS = ("coda", "mocoda", "mocoda-matched")
SMALL: dict[str, TaskAudit] = {
    "navigation": NavigationAudit("tiny", 1, COLUMNS, TINY, rows=400, audited=120, components=4),
    "objects": ObjectsAudit("tiny", 1, COLUMNS, TINY, rows=400, audited=120, components=4),
    "hooksweep2": HookSweepAudit("tiny", 1, ("mocoda", "mocoda-matched"), TINY, rows=300, audited=30, components=4),
}


@pytest.mark.parametrize("name", SMALL)
def test_every_recipe_s_rows_are_audited_beside_recorded_ones(name: str, tmp_path: Path) -> None:
    experiment, task = SMALL[name], make_task(name)
    measured = experiment.run(device="cpu", folder=tmp_path, workers=0)
    printed = check_experiment(experiment, measured, tmp_path)
    results = measured.results
    assert list(results["audits"]) == list(experiment.columns)
    assert results["recorded"]["rows"] == experiment.audited and results["task"] == name
    for column, one in results["audits"].items():
        assert column in printed
        assert one["rows"] == experiment.audited and 0 <= one["confirmed"] <= 1
        assert one["by"]["recipe"]["recorded"] == results["recorded"]
        assert set(one["by"]["factor"]) <= set(task.graph.children)
    if name != "hooksweep2":  # whose state does not say all
        assert results["recorded"]["share"] == 1.0
        assert results["audits"]["coda"]["confirmed"] > 0.9
    else:
        assert set(results["tolerance"].values()) == {0.01}
        assert results["recorded"]["share"] > 0.7


def test_a_second_run_asks_the_simulator_nothing_and_finds_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = SMALL["navigation"]
    monkeypatch.setattr("mocoda.analysis.replay.INTERVAL", 0.0)
    first = experiment.run(device="cpu", folder=tmp_path).results

    def unwanted(task: Any, rows: torch.Tensor) -> torch.Tensor:
        raise AssertionError

    class Silent:
        def __getattr__(self, name: str) -> Any:
            return (lambda rows: unwanted(self, rows)) if name == "step" else getattr(make_task("navigation"), name)

    monkeypatch.setattr("experiments.audit.make_task", lambda name: Silent())
    second = experiment.run(device="cpu", folder=tmp_path).results
    assert second["audits"] == first["audits"]


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match=r"^an audit has one seed, for its intervals are over rows, got 3 seeds\.$"):
        replace(SMALL["navigation"], seeds=3)
    with pytest.raises(InputError, match=r"^there is no column 'emp-matched'; there are: emp, coda"):
        replace(SMALL["navigation"], columns=("emp-matched",))


def test_columns_say_which_parents_they_are_of() -> None:
    settings = {name: column_recipe(name, components=4) for name in ("mocoda", "mocoda-matched", "mocoda-u-local")}
    found = {name: (recipe.name, recipe.density, recipe.stratified) for name, recipe in settings.items()}  # type: ignore[attr-defined]
    assert found == {
        "mocoda": ("mocoda", "mixture", False),
        "mocoda-matched": ("mocoda", "matched", False),
        "mocoda-u-local": ("mocoda-u", "matched", True),
    }
