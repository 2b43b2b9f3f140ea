"""Columns that never change, or always by the same, are predicted exactly; small and far-off motion is learned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from dynamics_world import GRAPH, TINY, each_architecture, world
from torch import Tensor

from mocoda import Dynamics, DynamicsConfig, LocalGraph, Transitions, fit_dynamics
from mocoda.augmentation.support import disagreement, step_scale
from mocoda.engine.networks import moments
from mocoda.engine.randomness import Stream
from mocoda.graph.learning.baseline import Table
from mocoda.graph.learning.learn import never_met

PUSHED = LocalGraph(
    state={"hand": 0, "box": [1, 2]},
    action={"push": 0},
    edges={"hand": ["hand", "push"], "box": ["box", "hand", "push"]},
)
SMALL = DynamicsConfig(members=2, hidden=(32,), features=16, epochs=40, batch=64, learning_rate=1e-2, window=1)


def pushed(box: Tensor, change: Tensor | float) -> Transitions:
    """A hand that is pushed, and a box (N, 2) that changes by this (N, 2)."""
    drawn = Stream(0, "pushed")
    hand, push = drawn.normal(len(box), 1), drawn.normal(len(box), 1)
    return Transitions(torch.cat([hand, box], 1), push, torch.cat([hand + 0.1 * push, box + change], 1))


def places(n: int = 500) -> Tensor:
    return Stream(1, "pushed").uniform(n, 2, low=-1.0)


@each_architecture
@pytest.mark.parametrize("offset", [0.0, 0.3, 1e6])
def test_a_box_that_never_moves_stays_where_it_is_to_the_bit(architecture: str, offset: float, tmp_path: Path) -> None:
    data = pushed(places() + offset, 0.0)
    model = fit_dynamics(data, PUSHED, architecture, config=TINY)
    model.save(tmp_path / "model")
    rows = 1.5 * data.rows.roll(1, 0)
    for one in (model, Dynamics.load(tmp_path / "model", PUSHED)):
        assert one.sample(rows, seed=0)[:, 1:].equal(rows[:, 1:3])
        assert not one.sample(rows, seed=0)[:, 0].equal(rows[:, 0])
    assert bool(model.predict(rows).scale[..., 1:].eq(0).all())
    for scale in (None, step_scale(data)):
        assert bool(disagreement(model, rows, scale).isfinite().all())


@each_architecture
def test_a_column_that_always_moves_by_the_same_does_so_exactly(architecture: str) -> None:
    data = pushed(places(), torch.tensor([0.25, 1e-3]))
    next_state = fit_dynamics(data, PUSHED, architecture, config=TINY).sample(data.rows, seed=0)
    torch.testing.assert_close(next_state[:, 1:], data.next_state[:, 1:], rtol=0, atol=2e-7)
    assert (next_state[:, 1:] - data.state[:, 1:]).std(0).max() < 1e-7  # which is the rounding of the sum


@pytest.mark.parametrize("standardise", [True, False])
def test_a_next_state_that_is_always_the_same_is_predicted_exactly(standardise: bool) -> None:
    data = world()
    next_state = data.next_state.clone()
    next_state[:, 4] = -3.7  # a column of c, which has no edge from itself
    config = replace(TINY, standardise=standardise, predict_change=standardise)
    model = fit_dynamics(Transitions(data.state, data.action, next_state), GRAPH, config=config)
    assert bool((model.sample(data.rows, seed=0)[:, 4] == next_state[:, 4]).all())


@pytest.mark.parametrize(
    ("offset", "size"), [(0.0, 1e-6), (0.0, 1e-12), (1.0, 1e-5), (1e6, 10.0)], ids=["1e-6", "1e-12", "at 1", "at 1e6"]
)
def test_motion_is_learned_however_small_it_is_and_wherever(offset: float, size: float) -> None:
    box = offset + size * places(1_000)
    drawn = pushed(box, 0.0)
    data = Transitions(drawn.state, drawn.action, drawn.next_state.clone())
    data.next_state[:, 1:] += size * drawn.action
    model = fit_dynamics(data, PUSHED, config=SMALL)
    error = model.predict(data.rows).mean.mean(0)[:, 1:] - data.next_state[:, 1:]
    assert float(error.square().mean().sqrt()) < 0.2 * size


def test_a_constant_is_one_up_to_the_rounding_of_float32() -> None:
    values = torch.tensor([[1e6, 0.1, 1e-12, 5.0], [1e6 + 0.0625, 0.1, -1e-12, 5.0], [1e6, 0.1, 0.0, 5.1]])
    mean, deviation = moments(values)
    assert (deviation > 0).tolist() == [False, False, True, True]
    torch.testing.assert_close(mean, values.double().mean(0))
    assert (moments(values, torch.full((4,), 1e9))[1] == 0).all()


def test_a_graph_is_not_learned_from_rounding_but_from_small_motion() -> None:
    graph = LocalGraph(PUSHED.state, PUSHED.action, dict.fromkeys(PUSHED.state, ("hand", "box", "push")))
    box = places() * torch.tensor([1e6, 1e-10])
    data = pushed(box, torch.tensor([0.3, 0.0]))
    data.next_state[:, 2] += 1e-11 * data.action[:, 0]
    table = Table.of(data, graph, Stream(0, "graph"))
    assert bool(table.target[1, :, 0].eq(0).all())
    torch.testing.assert_close(table.target[1, :, 1].std(correction=0), torch.tensor(1.0))
    assert bool((table.scaling["scale"] > 0).all() and (table.scaling["apart"] > 0).all())
    attached = Transitions(box[:, :1].repeat(1, 2) * 1e-6 + torch.tensor([0.0, 0.5]), data.action, box * 1e-6)
    pair = LocalGraph({"a": 0, "b": 1}, {"u": 0}, {"a": ["a", "b"], "b": ["a", "b"]})
    assert bool((Table.of(attached, pair, Stream(0, "graph")).scaling["apart"][0, 1] >= 0.5).all())


def test_factors_meet_by_their_own_measure() -> None:
    graph = LocalGraph({"a": 0, "b": 1}, {"u": 0}, {"a": ["a"], "b": ["b"]})
    state = 1e-9 * places(1_000)
    state[:, 1] += 4e-9
    data = Transitions(state, state[:, :1], state, columns=("a.x", "b.x", "u"))
    assert bool(never_met(data, graph)[0, 1])
