"""What every experiment must do, checked on one that is small."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
import rich.console

from experiments import Experiment, Measured
from experiments.experiment import device_name
from mocoda.engine.files import versions

HEADING = ("table", "preset", "metric", "device", "seconds", "versions", "config")


def check_experiment(experiment: Experiment[Any], measured: Measured, folder: Path) -> str:
    """Results say how they were made; they, and the figures, are written to the folder. Returns the printed table."""
    results = measured.results
    assert set(HEADING) < set(results)
    assert (results["table"], results["preset"]) == (experiment.name, experiment.preset)
    assert (results["metric"], results["versions"]) == (experiment.metric, versions())
    assert results["device"] == device_name("cpu") and results["seconds"] >= 0
    as_json = json.loads(json.dumps(results, allow_nan=False))
    assert as_json["config"] == json.loads(json.dumps(experiment.config()))
    for cell in cells_of(results):
        assert cell["mean"] == pytest.approx(np.mean(cell["values"]), rel=1e-9)
        assert cell["std"] == pytest.approx(np.std(cell["values"], ddof=1) if len(cell["values"]) > 1 else 0, rel=1e-9)
    folder.mkdir(exist_ok=True)
    table = experiment.write(measured, folder)
    assert json.loads((folder / experiment.outputs[0]).read_text("utf-8")) == as_json
    for name in experiment.outputs:
        assert (folder / name).exists()
        if name.endswith(".png"):
            assert np.asarray(matplotlib.image.imread(folder / name)).std() > 0.01  # not blank
    console = rich.console.Console(width=220)
    with console.capture() as printed:
        console.print(table)
    return printed.get()


def cells_of(results: Any) -> Iterator[dict[str, Any]]:
    """Every dictionary in the results with the values of several seeds and their mean and deviation."""
    if isinstance(results, dict):
        if {"values", "mean", "std"} <= set(results):
            yield results
        for value in results.values():
            yield from cells_of(value)
    elif isinstance(results, list):
        for value in results:
            yield from cells_of(value)


def by_place(results: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """The cells of a table by row and column."""
    return {(cell["row"], cell["column"]): cell for cell in results["cells"]}


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


class StopError(Exception):
    """What stops a run halfway."""


class StopAt:
    """A progress callback that stops a run at a step of a stage, and keeps what it was called with."""

    def __init__(self, stage: str = "", done: int = 0) -> None:
        self.where = (stage, done)
        self.steps: list[tuple[str, int, int]] = []

    def __call__(self, stage: str, done: int, total: int) -> None:
        self.steps.append((stage, done, total))
        if (stage, done) == self.where:
            raise StopError
