"""fit_dynamics: runs and seeds, what is fitted and kept, and whole messages."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from approved import refused
from dynamics_world import GRAPH, TINY, each_architecture, family_of, same, some_rows, stream, world
from torch import Tensor

from mocoda import Dynamics, DynamicsConfig, LocalGraph, Transitions, fit_dynamics, fit_dynamics_runs
from mocoda.dynamics import DYNAMICS
from mocoda.dynamics.model import kept_state
from mocoda.engine.optimise import Captured, Tensors
from mocoda.engine.randomness import Stream

# Runs and seeds

ODD = DynamicsConfig(members=3, hidden=(13, 7), features=7, epochs=3, batch=37, window=2)
every_family = pytest.mark.parametrize("family", list(DYNAMICS))


@every_family
@pytest.mark.parametrize(
    ("config", "lengths"),
    [(TINY, [200] * 3), (ODD, [301] * 3), (replace(TINY, epoch_rows=150, validation=20), [31, 200, 97])],
    ids=["whole", "no multiple of a cache line", "other lengths"],
)
def test_a_run_is_the_same_alone_and_together_to_the_bit(
    family: str, config: DynamicsConfig, lengths: list[int]
) -> None:
    datasets, made = [world(rows, seed=seed) for seed, rows in enumerate(lengths)], family_of(family, config)
    together = fit_dynamics_runs(datasets, GRAPH, made, seeds=[5, 6, 7])
    for data, seed, found in zip(datasets, (5, 6, 7), together, strict=True):
        assert same(found, fit_dynamics(data, GRAPH, made, seed=seed))
    for name, weight in together[0].weights.items():
        assert not weight[0].equal(weight[1]) and not weight.equal(together[1].weights[name])  # members and seeds


@pytest.mark.parametrize("architecture", ["global", "local"])
def test_what_a_child_cannot_see_does_not_touch_its_training(architecture: str) -> None:
    graph = replace(GRAPH, local=None)
    data = world()
    action = data.action.clone()
    action[:, 1] = stream("other v").normal(len(data)) * 7  # v, which only c listens to
    other = Transitions(data.state, action, data.next_state)
    config = replace(TINY, window=1)  # what to keep is decided for a whole member, c included
    one, two = (fit_dynamics(d, graph, architecture, config=config) for d in (data, other))
    for name, weight in one.weights.items():
        same_children = weight[:, :2].equal(two.weights[name][:, :2])
        assert same_children or (architecture == "global" and name == "mlp.0.weight")
        assert same_children or weight[:, :2, :8].equal(two.weights[name][:, :2, :8])
    assert not one.weights["mlp.1.weight"][:, 2].equal(two.weights["mlp.1.weight"][:, 2])


# Fit


def nll(made: Dynamics, data: Transitions) -> Tensor:
    """Each member's mean negative log likelihood, but for a constant."""
    mean, scale = (part.double() for part in made.predict(data.rows))
    return (scale.log() + 0.5 * ((data.next_state - mean) / scale).square()).sum(-1).mean(-1)


def held_out(data: Transitions, seed: int, architecture: str, config: DynamicsConfig) -> Transitions:
    order = Stream(seed, "dynamics", architecture).child("split").permutation(len(data))
    return data[order[: round(config.validation * len(data))]]


@each_architecture
@pytest.mark.parametrize("decay", [True, False])
def test_training_is_adam_on_the_gaussian_likelihood_of_the_standardised_rows(architecture: str, decay: bool) -> None:
    config = replace(TINY, epochs=5, window=1, batch=1_000, decay=decay, weight_decay=0.5)  # all rows in one batch
    data, drawn = world(), Stream(3, "dynamics", architecture)
    fitted = fit_dynamics(data, GRAPH, architecture, seed=3, config=config)

    mechanisms = family_of(architecture, TINY).networks(GRAPH, torch.device("cpu"))
    weights = {n: w.requires_grad_() for n, w in mechanisms.initial_weights(drawn.child("weights")).items()}
    mask = GRAPH.mask(data.rows) if architecture == "local" else None
    change = data.next_state - kept_state(GRAPH, architecture, data.rows, mask)
    inputs, target = ((x - x.mean(0)) / x.std(0, correction=0) for x in (data.rows, change))
    seen = drawn.child("split").permutation(200)[25:]
    adam = torch.optim.Adam(weights.values(), weight_decay=0.5)
    for epoch in range(5):
        adam.param_groups[0]["lr"] = 1e-3 * (0.5 + 0.5 * math.cos(math.pi * epoch / 5) if decay else 1.0)
        adam.zero_grad()
        mean, variance = mechanisms(weights, inputs[seen].expand(2, -1, -1), None if mask is None else mask[seen])
        wanted = target[seen].expand_as(mean)
        loss = torch.nn.functional.gaussian_nll_loss(mean, wanted, variance, eps=1e-12, reduction="none")
        loss.sum((0, 2)).mean().backward()
        adam.step()
    for name, weight in weights.items():
        torch.testing.assert_close(fitted.weights[name], weight.detach(), rtol=0, atol=2e-5)


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The row numbers (updates, R, E, B) of every epoch that is trained."""
    noted: list[Tensor] = []

    class Noted(Captured):
        def __call__(self, tensors: Tensors, phase: int = 0) -> Tensor:
            noted.append(tensors["index"])
            return super().__call__(tensors, phase)

    monkeypatch.setattr("mocoda.dynamics.fit.Captured", Noted)
    return noted


def orders_of(chunks: list[Tensor]) -> Tensor:
    """What each epoch, run and member sees in turn."""
    return torch.stack(chunks).permute(0, 2, 3, 1, 4).flatten(3)


def test_every_member_goes_through_the_rows_in_an_order_of_its_own(chunks: list[Tensor]) -> None:
    config = replace(TINY, epochs=2, batch=35)  # 200 rows less 25 held out are five batches
    fit_dynamics_runs([world(), world(seed=1)], GRAPH, seeds=[0, 1], config=config)
    assert [tuple(chunk.shape) for chunk in chunks] == [(5, 2, 2, 35)] * 2
    orders = orders_of(chunks)
    assert orders[:, 0].sort(-1).values.equal(torch.arange(175).expand(2, 2, -1))
    assert orders[:, 1].sort(-1).values.equal(torch.arange(175, 350).expand(2, 2, -1))
    assert len({tuple(order) for order in orders.flatten(0, 2).tolist()}) == 8


def test_an_epoch_of_some_rows_draws_them_afresh_from_all_that_are_not_held_out(chunks: list[Tensor]) -> None:
    config = replace(TINY, epochs=40, epoch_rows=130, batch=32)  # four batches, and two rows over
    datasets = [world(100), world(60, seed=1)]
    fit_dynamics_runs(datasets, GRAPH, "full", seeds=[0, 1], config=replace(config, validation=20))
    assert [tuple(chunk.shape) for chunk in chunks] == [(4, 2, 2, 32)] * 40
    orders = orders_of(chunks)
    for run, rows in ((0, range(80)), (1, range(80, 120))):
        for member in range(2):
            found, counts = orders[:, run, member].unique(return_counts=True)
            assert found.tolist() == list(rows)
            expected = 40 * 128 / len(rows)
            assert float((counts - expected).abs().max()) < 5 * expected**0.5  # standard deviations
    assert len({tuple(order) for order in orders.flatten(0, 2).tolist()}) == 160


NOISY = replace(TINY, members=4, epochs=12, decay=False, learning_rate=0.03, batch=16)


@functools.cache
def after_each_epoch() -> list[Dynamics]:
    """Little data, and noisy, so that the later epoch is not always the better."""
    data = world(n=80, noise=0.5)
    return [fit_dynamics(data, GRAPH, config=replace(NOISY, epochs=n, window=1)) for n in range(1, NOISY.epochs + 1)]


@pytest.mark.parametrize("window", [1, 3, 12, 100])
def test_every_member_keeps_its_best_weights_of_the_last_epochs(window: int) -> None:
    data, config = world(n=80, noise=0.5), replace(NOISY, window=window)
    kept = fit_dynamics(data, GRAPH, config=config)
    candidates = after_each_epoch()[-window:]
    outside = held_out(data, 0, "local", config)
    losses = torch.stack([nll(made, outside) for made in candidates])  # (window, E)
    best: list[int] = losses.argmin(0).tolist()
    for member, epoch in enumerate(best):
        for name, weight in kept.weights.items():
            assert weight[member].equal(candidates[epoch].weights[name][member])
    if window == NOISY.epochs:
        assert len(set(best)) > 1 and min(best) < NOISY.epochs - 1  # else this would have shown nothing


def test_held_out_rows_are_not_trained_on_but_choose_the_epoch() -> None:
    config = replace(TINY, window=1)
    data = world()
    order = Stream(0, "dynamics", "local").child("split").permutation(len(data))
    next_state = data.next_state.clone()
    next_state[order[:25]] = next_state[order[:25]].flip(0)  # mean and variance stay: the others' targets do not move
    assert not next_state.equal(data.next_state)
    changed = Transitions(data.state, data.action, next_state)
    plain = replace(config, standardise=False, predict_change=False)
    assert same(fit_dynamics(data, GRAPH, config=plain), fit_dynamics(changed, GRAPH, config=plain))


@each_architecture
def test_the_model_learns_what_its_graph_lets_it_see(architecture: str) -> None:
    graph = replace(GRAPH, edges=dict.fromkeys(GRAPH.children, GRAPH.parents)) if architecture == "global" else GRAPH
    data, fresh = world(1_000, noise=0.05), world(300, seed=9, noise=0.0)
    config = DynamicsConfig(members=2, hidden=(32, 32), features=16, epochs=30, batch=64, learning_rate=6e-3)
    start, fitted = (fit_dynamics(data, graph, architecture, config=replace(config, epochs=n)) for n in (1, 30))
    assert bool((nll(fitted, fresh) < nll(start, fresh) - 1).all())
    error = (fitted.predict(fresh.rows).mean.mean(0) - fresh.next_state).square().mean().sqrt()
    assert float(error) < {"full": 0.3, "global": 0.25, "local": 0.05}[architecture]


def test_on_a_linear_world_the_error_is_small_and_the_scale_is_the_noise() -> None:
    graph = LocalGraph(state={"x": [0, 1]}, action={"u": 0}, edges={"x": ["x", "u"]})
    drawn = stream("linear")
    matrix = torch.tensor([[0.9, -0.2], [0.1, 0.8], [0.5, 1.0]])
    rows, noise = drawn.normal(2_000, 3), torch.tensor([0.1, 0.3])
    data = Transitions(rows[:, :2], rows[:, 2:], rows @ matrix + noise * drawn.normal(2_000, 2))
    config = DynamicsConfig(members=2, hidden=(16,), features=8, epochs=25, batch=64, learning_rate=5e-3)
    fitted = fit_dynamics(data, graph, config=config)
    fresh = drawn.normal(1_000, 3)
    mean, scale = fitted.predict(fresh)
    assert bool(((mean.mean(0) - fresh @ matrix).square().mean(0).sqrt() < 0.3 * noise).all())
    torch.testing.assert_close(scale.mean((0, 1)), noise, rtol=0.1, atol=0.0)


@each_architecture
def test_a_diverging_training_stops_and_says_so(architecture: str) -> None:
    with refused():
        fit_dynamics(world(), GRAPH, architecture, config=replace(TINY, learning_rate=1e30))


# Errors


@pytest.mark.parametrize(
    "settings",
    [{name: 0} for name in ("members", "features", "epochs", "epoch_rows", "batch", "window")]
    + [{"validation": share} for share in (0, 0.0, 1.0, 1.5, -3, 25.0, math.nan)]
    + [{"hidden": (4, 0)}, {"learning_rate": 0.0}, {"weight_decay": -1.0}],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with refused():
        DynamicsConfig(**settings)


@pytest.mark.parametrize(
    ("rows", "seeds", "config"),
    [
        ([200, 100, 150], 3, TINY),
        ([200, 100], 2, replace(TINY, validation=100, epoch_rows=50)),
        ([200, 1], 2, TINY),
        ([], 0, TINY),
        ([], 1, TINY),
        ([200, 200], 1, TINY),
        ([200], 2, TINY),
    ],
)
def test_data_that_does_not_fit_is_refused(rows: list[int], seeds: int, config: DynamicsConfig) -> None:
    with refused():
        fit_dynamics_runs([world(n) for n in rows], GRAPH, seeds=list(range(seeds)), config=config)


def test_data_of_another_width_is_refused() -> None:
    data = world()
    for state, action in ((data.state, data.action[:, :2]), (data.state[:, :5], some_rows(200)[:, :4])):
        with refused():
            fit_dynamics(Transitions(state, action, state), GRAPH, config=TINY)
