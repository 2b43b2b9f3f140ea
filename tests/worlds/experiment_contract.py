"""Running experiments in tests: measured, stopped halfway, and compared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.experiment import Experiment, Run, measure
from mocoda.engine.progress import Progress, silent

TIMES = {"seconds", "seconds_by_stage", "resumed"}


def results_of(
    experiment: Experiment,
    folder: Path,
    *,
    progress: Progress = silent,
    workers: int | None = 0,
    only: tuple[str, ...] = (),
) -> dict[str, Any]:
    """What an experiment measures, as JSON reads it back."""
    folder.mkdir(parents=True, exist_ok=True)
    found = measure(experiment, Run(folder, workers=workers, progress=progress, only=only))
    as_json: dict[str, Any] = json.loads(json.dumps(found, allow_nan=False))
    return as_json


def timeless(value: Any) -> Any:
    """Results without what a clock says."""
    if isinstance(value, dict):
        return {key: timeless(inner) for key, inner in value.items() if key not in TIMES}
    return list(map(timeless, value)) if isinstance(value, list) else value


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


class StopError(Exception):
    """What stops a run halfway."""


class StopAt:
    """A progress callback that stops a run at its n-th call, and counts its calls."""

    def __init__(self, last: int = 0) -> None:
        self.last, self.calls = last, 0

    def __call__(self, stage: str, done: int, total: int) -> None:
        self.calls += 1
        if self.calls == self.last:
            raise StopError
