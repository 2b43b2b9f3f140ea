"""The contract of experiments: what each of them measures, writes, shows, and finds again after a kill."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from approved import refused
from experiment_contract import StopAt, StopError, cells_of, results_of, timeless
from tiny_experiments import LONG, TABLES, TINY

import experiments.cubes
import experiments.stages
import mocoda.agents.train
import mocoda.dynamics.fit
from experiments.experiment import experiment_names, find_experiment, find_kind, run_experiment
from mocoda import InputError
from mocoda.engine.checkpoint import Checkpoint
from mocoda.engine.files import write_json
from mocoda.tasks.hooksweep import HookSweep2

HEADING = {"table", "preset", "metric", "device", "seconds", "seconds_by_stage", "resumed", "versions", "config"}
MEASURED_ONCE = ("scale", "speed")  # times, which are never the same
KEEPING = ("table1", "table2", "whatif", "dose")  # models or agents, in their folders
NAMES = [pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in TINY]


@pytest.fixture(scope="module", autouse=True)
def small_tables() -> Iterator[None]:
    """Experiments on the tables' data find tiny ones."""
    with pytest.MonkeyPatch.context() as patch:
        for kind, table in TABLES.items():
            patch.setitem(kind.presets, "tiny", table)
        yield


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("experiments")


@functools.cache
def measured(name: str, folder: Path) -> tuple[dict[str, Any], StopAt]:
    """The results, and how often progress was reported on the way."""
    if name in ("cubes", "scene") and find_spec("ogbench") is None:
        pytest.skip("ogbench is not installed")
    progress = StopAt()
    return results_of(TINY[name], folder / name, progress=progress, workers=2 if name in LONG else 0), progress


def test_every_folder_with_a_readme_is_an_experiment_and_has_a_tiny_one_here() -> None:
    assert set(experiment_names()) == set(TINY)
    assert experiment_names()[:3] == ["table1", "table2", "table3"]


@pytest.mark.parametrize("name", experiment_names())
def test_presets_say_their_names_and_their_settings_are_json_values(name: str) -> None:
    kind = find_kind(name)
    assert {"quick", "paper"} <= set(kind.presets) and kind.name == name
    for preset, experiment in kind.presets.items():
        config = json.loads(json.dumps(experiment.config(), allow_nan=False))
        assert (config["preset"], config["seeds"]) == (experiment.preset, experiment.seeds)
        assert isinstance(find_experiment(name, preset), kind)
    with pytest.raises(InputError, match=r"seeds must be at least 1, got 0\.|an audit has one seed"):
        type(TINY[name])(**{**vars(TINY[name]), "seeds": 0})


UNFIT: list[tuple[str, dict[str, Any]]] = [
    ("ablations", {"variants": ("mocoda", "mean", "mean")}),
    ("whatif", {"questions": 0}),
    ("dose", {"doses": (1.0, 4.0)}),
    ("dose", {"tasks": ("objects",)}),
    ("audit", {"seeds": 3}),
    ("learned-masks", {"masks": ("drawn",)}),
    ("learned-masks", {"worlds": ()}),
    ("learned-masks", {"caution": 2}),
    ("masks", {"worlds": ("maze",)}),
    ("masks", {"methods": ("gradent",)}),
    ("masks", {"rows": (5, 5)}),
    ("masks", {"judged": 0}),
    ("reweighting", {"rare": 1.0}),
    ("reweighting", {"factors": ()}),
    ("theory", {"epsilon": 2.0}),
    ("theory", {"shares": (0.5, 1.0)}),
    ("theory", {"repetitions": 35}),
    ("scale", {"kills": 12}),
    ("cubes", {"kind": "cube-single"}),
    ("cubes", {"total": 100}),
    ("cubes", {"how": ("backwards",)}),
    ("cubes", {"kind": "cube-double-states"}),
    ("scene", {"total": 100}),
    ("table2", {"columns": ("emp", "mocoda_u")}),
    ("table2", {"columns": ("emp", "emp")}),
    ("table2", {"last": 3}),
    ("table3", {"columns": ()}),
    ("table3", {"total": 10}),
]


@pytest.mark.parametrize(("name", "change"), UNFIT, ids=str)
def test_settings_that_cannot_be_are_refused(name: str, change: dict[str, Any]) -> None:
    with refused():
        replace(TINY[name], **change)


@pytest.mark.parametrize("change", [{"sizes": (5, 5)}, {"last": 3}], ids=str)
def test_doses_of_a_trial_that_cannot_be_are_refused(change: dict[str, Any]) -> None:
    with refused():
        replace(TINY["dose"].navigation, **change)


@pytest.mark.parametrize("name", NAMES)
def test_results_say_how_they_were_made_and_become_files_a_table_and_figures(
    name: str, folders: Path, tmp_path: Path
) -> None:
    experiment, (results, _) = TINY[name], measured(name, folders)
    assert set(results) > HEADING and results["resumed"] is False
    assert (results["table"], results["preset"], results["metric"]) == (name, "tiny", experiment.metric)
    assert results["config"] == json.loads(json.dumps(experiment.config()))
    for cell in cells_of(results):
        assert cell["mean"] == pytest.approx(np.mean(cell["values"]), rel=1e-9)
        assert cell["std"] == pytest.approx(np.std(cell["values"], ddof=1) if len(cell["values"]) > 1 else 0, rel=1e-9)
    write_json(tmp_path / experiment.outputs[0], results)
    experiment.draw(results, tmp_path)
    for output in experiment.outputs[1:]:
        file = next(folder / output for folder in (tmp_path, folders / name) if (folder / output).exists())
        if file.suffix == ".png":
            assert np.asarray(matplotlib.image.imread(file)).std() > 0.01  # not blank
    lines = experiment.table(results).splitlines()
    assert len(lines) > 2 and len({line.count("|") for line in lines}) == 1


@pytest.mark.parametrize("name", [name for name in NAMES if name not in (*MEASURED_ONCE, "cubes", "scene")])
def test_a_run_that_was_killed_halfway_goes_on_and_measures_the_same(
    name: str, folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (mocoda.dynamics.fit, mocoda.agents.train):
        monkeypatch.setattr(module, "Checkpoint", functools.partial(Checkpoint, interval=0.0))
    whole, progress = measured(name, folders)
    with pytest.raises(StopError):
        results_of(TINY[name], tmp_path, progress=StopAt(1 + progress.calls // 2))
    again = results_of(TINY[name], tmp_path)
    assert timeless(again) == timeless(whole)


@pytest.mark.parametrize("name", KEEPING)
def test_the_same_call_trains_nothing_again(name: str, folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = measured(name, folders)
    for owner, made in ((experiments.stages, "fit_dynamics_runs"), (experiments.stages, "train_agents")):
        monkeypatch.setattr(owner, made, lambda *given, **named: pytest.fail("made again"))
    again = results_of(TINY[name], folders / name)
    assert again["resumed"] is True and timeless(again) == timeless(whole)


@pytest.mark.long
def test_agents_on_cubes_that_were_kept_are_neither_trained_nor_played_again(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = measured("cubes", folders)
    for made in ("train_agents", "evaluate"):
        monkeypatch.setattr(experiments.cubes, made, lambda *given, **named: pytest.fail("made again"))
    assert timeless(results_of(TINY["cubes"], folders / "cubes")) == timeless(whole)


@pytest.mark.long
def test_nothing_is_recorded_again(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = measured("table3", folders)
    monkeypatch.setattr(HookSweep2, "collect", lambda *given, **named: pytest.fail("recorded again"))
    assert timeless(results_of(TINY["table3"], folders / "table3")) == timeless(whole)


def test_a_run_folder_of_other_settings_is_refused_and_replaced_only_if_asked_for(tmp_path: Path) -> None:
    tiny = replace(TINY["reweighting"], factors=(1,), test_rows=100)
    results = run_experiment(tiny, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "reweighting.json").read_text("utf-8")) == json.loads(json.dumps(results))
    other = replace(tiny, rows=400)
    with pytest.raises(InputError, match="other settings"):
        run_experiment(other, tmp_path / "run")
    assert run_experiment(other, tmp_path / "run", overwrite=True)["config"]["rows"] == 400
