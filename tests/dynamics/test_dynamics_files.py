"""Checkpoints of a training that is interrupted, and files of models."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dynamics_world import GRAPH, TINY, each_architecture, model, same, some_rows, world

import mocoda
from mocoda import Dynamics, DynamicsConfig, InputError, LocalGraph, Transitions, fit_dynamics, fit_dynamics_runs
from mocoda.engine.checkpoint import Checkpoint, load_trained

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
def test_runs_of_different_lengths_resume_too(tmp_path: Path) -> None:
    path, config = tmp_path / "checkpoint", replace(LONGER, epoch_rows=100, validation=20)
    fit = functools.partial(fit_dynamics_runs, [world(50), world(120, seed=1)], GRAPH, seeds=[0, 1], config=config)
    for epochs in (2, 5):
        with pytest.raises(TrainingInterruptedError):
            fit(checkpoint=path, progress=interrupt_after(epochs))
    for resumed, expected in zip(fit(checkpoint=path), fit(), strict=True):
        assert same(resumed, expected)


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
    with pytest.raises(InputError) as caught:
        fit_dynamics(world(), GRAPH, config=other, checkpoint=path)
    assert str(caught.value) == (
        f"cannot read checkpoint {str(path)!r}: it belongs to another training, which differs in config. "
        "Delete it to start again, or give another path."
    )
    with pytest.raises(InputError, match="belongs to another training"):
        fit_dynamics(world(), GRAPH, seed=1, config=TINY, checkpoint=path)
    with pytest.raises(InputError, match="belongs to another training"):
        fit_dynamics(world(seed=1), GRAPH, config=TINY, checkpoint=path)
    with pytest.raises(InputError, match="belongs to another training"):
        fit_dynamics(world(), GRAPH, "global", config=TINY, checkpoint=path)
    with pytest.raises(InputError, match="belongs to another training"):
        fit_dynamics(world(), replace(GRAPH, local=None), config=TINY, checkpoint=path)
    assert path.read_bytes() == before


SWAPPED = replace(GRAPH, state={"a": [2, 0], "b": 1, "c": [3, 4, 5]})


NAVIGATION = DynamicsConfig(members=2, hidden=(16, 16), features=8, epochs=60, batch=64, window=50)
KILLED = """
import functools, sys, time
import mocoda.dynamics.fit
from mocoda import DynamicsConfig, fit_dynamics, make_task
mocoda.dynamics.fit.Checkpoint = functools.partial(mocoda.dynamics.fit.Checkpoint, interval=0.0)
task = make_task("navigation")
config = DynamicsConfig(members=2, hidden=(16, 16), features=8, epochs=60, batch=64, window=50)
data = task.collect(200, seed=0)
fit_dynamics(data, task.graph, config=config, checkpoint=sys.argv[1], progress=lambda *_: time.sleep(0.03))
"""


def test_a_killed_training_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    running = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], env=environment)
    try:
        waited = time.monotonic()
        while not (path.exists() and epochs_done(path) >= 20):  # it is well inside the window when it dies
            assert running.poll() is None and time.monotonic() - waited < 120
            time.sleep(0.01)
    finally:
        running.send_signal(signal.SIGKILL)
        assert running.wait() == -signal.SIGKILL
    done = epochs_done(path)
    assert 20 <= done < 60

    task, told = mocoda.make_task("navigation"), []
    data = task.collect(200, seed=0)
    resumed = fit_dynamics(
        data,
        task.graph,
        config=NAVIGATION,
        checkpoint=path,
        progress=lambda stage, done, total: told.append(done),
    )
    assert told == list(range(done + 1, 61))
    assert same(resumed, fit_dynamics(data, task.graph, config=NAVIGATION))


def epochs_done(path: Path) -> int:
    return int(load_trained(path, "checkpoint")[1]["settings"]["done"])


# Files


@each_architecture
def test_a_loaded_model_predicts_the_same_to_the_bit(tmp_path: Path, architecture: str) -> None:
    fitted = fit_dynamics(world(), GRAPH, architecture, config=replace(TINY, predict_change=architecture != "global"))
    fitted.save(tmp_path / "folder" / "model.safetensors")
    loaded = Dynamics.load(str(tmp_path / "folder" / "model.safetensors"), GRAPH)
    assert same(loaded, fitted)
    assert (loaded.architecture, loaded.config, loaded.graph) == (architecture, fitted.config, GRAPH)
    for one, other in zip(loaded.predict(some_rows()), fitted.predict(some_rows()), strict=True):
        assert one.equal(other)
    assert loaded.sample(some_rows(), seed=0).equal(fitted.sample(some_rows(), seed=0))


def test_a_model_of_several_runs_saves_its_own_weights_alone(tmp_path: Path) -> None:
    one, other = fit_dynamics_runs([world(), world(seed=1)], GRAPH, seeds=[0, 1], config=TINY)
    one.save(tmp_path / "one")
    other.save(tmp_path / "other")
    assert same(Dynamics.load(tmp_path / "other", GRAPH), other)
    assert (tmp_path / "one").stat().st_size == (tmp_path / "other").stat().st_size
    numbers = sum(t.numel() for part in (other.weights, other.scaling) for t in part.values())
    assert (tmp_path / "other").stat().st_size < 4 * numbers + 20_000


def test_a_model_is_not_loaded_for_another_graph(tmp_path: Path) -> None:
    model().save(tmp_path / "model")
    other = LocalGraph(state={"x": 0}, action={"dx": 0}, edges={"x": ["x", "dx"]})
    with pytest.raises(InputError) as caught:
        Dynamics.load(tmp_path / "model", other)
    assert str(caught.value) == (
        f"{str(tmp_path / 'model')!r} was fitted to another graph than LocalGraph(x' <- x, dx): "
        "they differ in children, edges, factors, local. Load it with the graph it was fitted to, or fit again."
    )


@pytest.mark.parametrize(
    "other",
    [SWAPPED, replace(GRAPH, state={"a": [0, 2], "b": [1, 3], "c": [4, 5]}), replace(GRAPH, action={"u": 0, "v": 1})],
    ids=["same widths", "other widths", "fewer actions"],
)
def test_a_model_is_not_loaded_for_a_graph_with_other_columns(tmp_path: Path, other: LocalGraph) -> None:
    model().save(tmp_path / "model")
    with pytest.raises(InputError, match="was fitted to another graph"):
        Dynamics.load(tmp_path / "model", other)


def test_numpy_data_fits_the_same_model_as_torch_data() -> None:
    data = world()
    state, action, next_state = (np.asarray(part, np.float64) for part in (data.state, data.action, data.next_state))
    numpy = fit_dynamics(Transitions(state, action, next_state), GRAPH, config=TINY)
    assert same(numpy, fit_dynamics(data, GRAPH, config=TINY))
