"""Next states are the mean of the members where the world is deterministic, and noisy where it is noisy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from approved import refused
from dynamics_world import GRAPH, TINY, model, some_rows

from mocoda import Dynamics, DynamicsConfig, LocalGraph, Transitions, fit_dynamics
from mocoda.engine.checkpoint import load_trained, save_trained
from mocoda.engine.randomness import Stream

NOISE = 0.05
PAIR = LocalGraph(
    state={"still": 0, "moved": [1, 2]}, action={"u": 0}, edges={"still": ["still"], "moved": ["moved", "u"]}
)
SMALL = DynamicsConfig(members=3, hidden=(32,), features=32, epochs=15, batch=64, learning_rate=5e-3)


def pushed(rows: torch.Tensor) -> torch.Tensor:
    """`still` decays, `moved` turns and is pushed."""
    s, u = rows[:, :3], rows[:, 3]
    return torch.stack([0.8 * s[:, 0], s[:, 1] + 0.3 * s[:, 2].sin(), s[:, 2] + 0.3 * u], 1)


def recorded(noise: tuple[float, ...], n: int = 4_000) -> Transitions:
    drawn = Stream(0, "next-state")
    rows = drawn.uniform(n, 4, low=-1.0)
    return Transitions(rows[:, :3], rows[:, 3:], pushed(rows) + torch.tensor(noise) * drawn.normal(n, 3))


def middle(said: torch.Tensor) -> torch.Tensor:
    return said.sort(0).values[1:-1].mean(0) if len(said) > 2 else said.mean(0)


@pytest.mark.parametrize("noise", [(0.0, 0.0, 0.0), (NOISE, 0.0, 0.0), (0.0, 0.0, NOISE), (NOISE, NOISE, NOISE)])
def test_columns_are_noisy_where_the_world_is_and_then_as_noisy_as_it_is(noise: tuple[float, ...]) -> None:
    fitted = fit_dynamics(recorded(noise), PAIR, config=SMALL)
    assert [column in fitted.noisy for column in range(3)] == [deviation > 0 for deviation in noise]
    rows = recorded(noise, 6_000).rows
    sampled, mean = fitted.sample(rows, seed=0), middle(fitted.predict(rows).mean)
    torch.testing.assert_close((sampled - mean).std(0), torch.tensor(noise), rtol=0.15, atol=1e-6)
    words = repr(fitted)
    assert ("show no noise" in words) == (noise == (0.0, 0.0, 0.0)) and ("noise in still" in words) == (noise[0] > 0)
    assert fitted.settings["noisy_columns"] == list(fitted.noisy)


def test_a_model_that_learned_nothing_takes_its_errors_for_no_noise() -> None:
    fitted = fit_dynamics(recorded((0.0, 0.0, 0.0)), PAIR, config=replace(SMALL, epochs=1, hidden=(4,)))
    assert fitted.noisy == ()


def test_the_setting_chooses_the_way() -> None:
    drawn = {way: sampled(next_state=way) for way in ("auto", "mean", "member", "noisy")}
    rows = some_rows()
    mean = model().predict(rows).mean
    assert drawn["auto"].equal(drawn["mean"])  # nothing is noisy in a model that was not fitted
    torch.testing.assert_close(drawn["mean"], middle(mean))
    assert bool((drawn["member"] == mean).all(2).any(0).all()) and not drawn["member"].equal(drawn["mean"])
    assert not drawn["noisy"].equal(drawn["member"])
    with refused():
        replace(TINY, next_state="middle")  # type: ignore[arg-type]


def sampled(**settings: Any) -> torch.Tensor:
    return model(config=replace(TINY, **settings)).sample(some_rows(), seed=0)


def test_a_file_keeps_what_was_chosen_and_one_of_before_there_was_a_choice_draws_as_before(tmp_path: Path) -> None:
    path = tmp_path / "model"
    fitted = replace(model(), noisy=(4, 5))
    fitted.save(path)
    back = Dynamics.load(path, GRAPH)
    assert back.noisy == (4, 5) and back.sample(some_rows(), seed=1).equal(fitted.sample(some_rows(), seed=1))
    tensors, header = load_trained(path, "dynamics")
    header["settings"]["noisy_columns"] = [6]
    save_trained(path, "dynamics", tensors, header)
    with refused():
        Dynamics.load(path, GRAPH)
    del header["settings"]["noisy_columns"], header["settings"]["config"]["next_state"]
    save_trained(path, "dynamics", tensors, header)
    assert Dynamics.load(path, GRAPH).sample(some_rows(), seed=0).equal(sampled(next_state="noisy"))
