"""Checkpoints of a training that is interrupted, and files of models."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from approved import refused
from dynamics_world import GRAPH, TINY, each_architecture, model, same, world

from mocoda import Dynamics, LocalGraph, fit_dynamics
from mocoda.engine.checkpoint import Checkpoint

# Checkpoints


class TrainingInterruptedError(Exception):
    pass


def interrupt_after(epochs: int) -> Callable[[str, int, int], None]:
    def progress(stage: str, done: int, total: int) -> None:
        if done > epochs:  # a checkpoint is written after the callback
            raise TrainingInterruptedError

    return progress


@pytest.fixture
def at_every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mocoda.dynamics.fit.Checkpoint", functools.partial(Checkpoint, interval=0.0))


LONGER = replace(TINY, epochs=8, window=5, learning_rate=0.02, batch=32)


@pytest.mark.usefixtures("at_every_epoch")
@each_architecture
@pytest.mark.parametrize("epochs", [1, 5, 7])
def test_an_interrupted_training_goes_on_to_the_same_bytes(tmp_path: Path, architecture: str, epochs: int) -> None:
    path, told = tmp_path / "checkpoint", []
    fit = functools.partial(fit_dynamics, world(), GRAPH, architecture, seed=2, config=LONGER)
    with pytest.raises(TrainingInterruptedError):
        fit(checkpoint=path, progress=interrupt_after(epochs))
    resumed = fit(checkpoint=path, progress=lambda stage, done, total: told.append(done))
    assert told == list(range(epochs + 1, 9))
    assert same(resumed, fit())


@pytest.mark.usefixtures("at_every_epoch")
def test_a_finished_training_called_again_trains_no_more(tmp_path: Path) -> None:
    path, told = tmp_path / "checkpoint", []
    fit = functools.partial(fit_dynamics, world(), GRAPH, config=TINY, checkpoint=path)
    finished = fit()
    assert same(fit(progress=lambda stage, done, total: told.append(done)), finished)
    assert told == []


@pytest.mark.usefixtures("at_every_epoch")
def test_a_checkpoint_of_another_training_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    fit_dynamics(world(), GRAPH, config=TINY, checkpoint=path)
    before = path.read_bytes()
    other = replace(TINY, learning_rate=0.5)
    with refused():
        fit_dynamics(world(), GRAPH, config=other, checkpoint=path)
    with refused():
        fit_dynamics(world(), GRAPH, seed=1, config=TINY, checkpoint=path)
    with refused():
        fit_dynamics(world(seed=1), GRAPH, config=TINY, checkpoint=path)
    with refused():
        fit_dynamics(world(), GRAPH, "global", config=TINY, checkpoint=path)
    with refused():
        fit_dynamics(world(), replace(GRAPH, local=None), config=TINY, checkpoint=path)
    assert path.read_bytes() == before


SWAPPED = replace(GRAPH, state={"a": [2, 0], "b": 1, "c": [3, 4, 5]})


# Files


@pytest.mark.parametrize(
    "other",
    [
        LocalGraph({"x": 0}, {"dx": 0}, {"x": ["x", "dx"]}),
        SWAPPED,
        replace(GRAPH, state={"a": [0, 2], "b": [1, 3], "c": [4, 5]}),
        replace(GRAPH, action={"u": 0, "v": 1}),
    ],
    ids=["other factors", "same widths", "other widths", "fewer actions"],
)
def test_a_model_is_not_loaded_for_a_graph_with_other_columns(tmp_path: Path, other: LocalGraph) -> None:
    model().save(tmp_path / "model")
    with refused():
        Dynamics.load(tmp_path / "model", other)
