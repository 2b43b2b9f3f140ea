from __future__ import annotations

import functools
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from torch import Tensor

import mocoda
from mocoda import Dynamics, DynamicsConfig, InputError, LocalGraph, Transitions, fit_dynamics, fit_dynamics_runs
from mocoda.mechanisms import ARCHITECTURES, VARIANCE_FLOOR, Mechanisms
from mocoda.networks import Weights
from mocoda.randomness import Stream
from mocoda.training import Checkpoint, Chunked, load_tensors

TINY = DynamicsConfig(members=2, hidden=(16, 16), features=8, epochs=3, batch=64, window=2)

each_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)


def row_mask(rows: Tensor) -> Tensor:
    """b' listens to c only where the first column is positive, and a' then no longer to its own past."""
    mask = torch.zeros(len(rows), 5, 3, dtype=torch.bool)  # a b c u v -> a b c
    mask[:, 0, 0] = rows[:, 0] <= 0
    mask[:, 3, 0] = True
    mask[:, 1, 1] = True
    mask[:, 2, 1] = rows[:, 0] > 0
    mask[:, 4, 2] = True
    return mask


# Columns of a factor need not lie side by side, factors need not come in their columns' order.
GRAPH = LocalGraph(
    state={"a": [0, 2], "b": 1, "c": [5, 3, 4]},
    action={"u": [2, 0], "v": 1},
    edges={"a": ["a", "u"], "b": ["b"], "c": ["v"]},
    local=row_mask,
)
S, A = 6, 3


def stream(*labels: str | int) -> Stream:
    return Stream(0, "test-dynamics", *labels)


def some_rows(n: int = 50) -> Tensor:
    return stream("rows").normal(n, S + A)


def step(rows: Tensor) -> Tensor:
    """A world in which every child does what GRAPH allows."""
    s, a = rows[:, :S], rows[:, S:]
    far = s[:, 0] > 0
    following = torch.empty_like(s)
    own = torch.where(far[:, None], 0.0, s[:, [0, 2]])
    following[:, [0, 2]] = own + 0.5 * a[:, [2, 0]]
    following[:, 1] = 0.9 * s[:, 1] + torch.where(far, s[:, 3] - 0.5 * s[:, 5], 0.0)
    following[:, 3:] = a[:, 1:2] * torch.tensor([1.0, -2.0, 0.3])
    return following


def world(n: int = 200, seed: int = 0, noise: float = 0.05) -> Transitions:
    drawn = Stream(seed, "test-dynamics", "world")
    rows = drawn.normal(n, S + A)
    return Transitions(rows[:, :S], rows[:, S:], step(rows) + noise * drawn.normal(n, S))


def model(
    architecture: str = "local", config: DynamicsConfig = TINY, graph: LocalGraph = GRAPH, seed: int = 0
) -> Dynamics:
    """A model with fresh random weights and scaling: nothing of it was fitted."""
    drawn = Stream(seed, "test-dynamics", "model")
    shape = (config.members, config.hidden, config.features)
    mechanisms = Mechanisms(graph, architecture, *shape, torch.device("cpu"))
    scaling = {
        "input_shift": drawn.normal(graph.width),
        "input_scale": drawn.uniform(graph.width, low=0.5, high=2.0),
        "target_shift": drawn.normal(graph.state_width),
        "target_scale": drawn.uniform(graph.state_width, low=0.5, high=2.0),
    }
    return Dynamics(graph, architecture, config, mechanisms.initial_weights(drawn.child("weights")), scaling)


def blunt(means: Sequence[float], deviation: float, graph: LocalGraph = GRAPH) -> Dynamics:
    """A model whose member i says means[i] for every column, with this standard deviation, whatever it sees."""
    config = replace(TINY, members=len(means), predict_change=False)
    made = model("full", config, graph)
    last = f"mlp.{len(config.hidden)}"
    weights = {name: torch.zeros_like(weight) for name, weight in made.weights.items()}
    states = graph.state_width
    weights[f"{last}.bias"][..., :states] = torch.tensor(means)[:, None, None, None]
    weights[f"{last}.bias"][..., states:] = math.log(math.expm1(deviation**2 - VARIANCE_FLOOR))
    plain = {name: torch.ones_like(t) if "scale" in name else torch.zeros_like(t) for name, t in made.scaling.items()}
    return replace(made, weights=weights, scaling=plain)


def same(one: Dynamics, other: Dynamics) -> bool:
    """Whether two models have the same numbers, to the bit."""
    pairs = [(one.weights, other.weights), (one.scaling, other.scaling)]
    return all(a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a) for a, b in pairs)


# The networks, against a slow twin


def net(weights: Weights, index: tuple[int, ...], x: Tensor, layers: int) -> Tensor:
    for layer in range(layers):
        x = x @ weights[f"mlp.{layer}.weight"][index] + weights[f"mlp.{layer}.bias"][index][0]
        x = x.clamp(min=0) if layer < layers - 1 else x
    return x


def slow_twin(made: Dynamics, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Appendix B.3 member by member, row by row, child by child, parent by parent, in double precision."""
    graph, config = made.graph, made.config
    weights = {name: weight.double() for name, weight in made.weights.items()}
    scaling = {name: values.double() for name, values in made.scaling.items()}
    masks = graph.mask(rows) if made.architecture == "local" else graph.sparsest.expand(len(rows), -1, -1)
    rows = rows.double()
    mean = torch.full((config.members, len(rows), graph.state_width), math.nan, dtype=torch.float64)
    variance = mean.clone()
    layers = len(config.hidden) + 1
    everything = ("everything",)
    mechanisms = everything if made.architecture == "full" else graph.children
    for member in range(config.members):
        for n, row in enumerate(rows):
            seen = (row - scaling["input_shift"]) / scaling["input_scale"]
            for c, child in enumerate(mechanisms):
                if made.architecture == "local":
                    x = torch.zeros(config.features, dtype=torch.float64)
                    for p, parent in enumerate(graph.parents):
                        if masks[n, p, c]:
                            weight, bias = (weights[f"embed.{parent}.{kind}"][member, c] for kind in ("weight", "bias"))
                            x = x + (seen[list(graph.factors[parent])] @ weight + bias[0]).clamp(min=0)
                elif made.architecture == "global":
                    x = torch.zeros_like(seen)
                    for parent in graph.edges[child]:
                        x[list(graph.factors[parent])] = seen[list(graph.factors[parent])]
                else:
                    x = seen
                output = net(weights, (member, c), x, layers)
                columns = range(graph.state_width) if child == "everything" else graph.factors[child]
                half = len(output) // 2  # narrower children leave the rest of their outputs unused
                for i, column in enumerate(columns):
                    scale, shift = scaling["target_scale"][column], scaling["target_shift"][column]
                    mean[member, n, column] = output[i] * scale + shift
                    if config.predict_change and (child == "everything" or masks[n, c, c]):
                        mean[member, n, column] += row[column]
                    spread = math.log1p(math.exp(float(output[half + i]))) + VARIANCE_FLOOR
                    variance[member, n, column] = spread * scale**2
    return mean, variance.sqrt()


@each_architecture
@pytest.mark.parametrize("predict_change", [True, False])
def test_predictions_equal_those_of_loops_over_members_rows_children_and_parents(
    architecture: str, predict_change: bool
) -> None:
    made = model(architecture, replace(TINY, predict_change=predict_change))
    rows = some_rows(24)
    assert 0 < int((rows[:, 0] > 0).sum()) < 24  # both of the local graphs occur
    mean, scale = slow_twin(made, rows)
    found = made.predict(rows)
    torch.testing.assert_close(found.mean.double(), mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.scale.double(), scale, rtol=1e-5, atol=1e-5)


@each_architecture
def test_networks_without_hidden_layers_are_linear_and_work(architecture: str) -> None:
    made = model(architecture, replace(TINY, hidden=()))
    mean, scale = slow_twin(made, some_rows(8))
    found = made.predict(some_rows(8))
    torch.testing.assert_close(found.mean.double(), mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.scale.double(), scale, rtol=1e-5, atol=1e-5)


def test_every_child_has_a_masked_composer_and_a_network_of_its_own() -> None:
    shapes = {name: tuple(weight.shape) for name, weight in model("local").weights.items()}
    embeddings = {"a": 2, "b": 1, "c": 3, "u": 2, "v": 1}
    expected = {f"embed.{name}.weight": (2, 3, width, 8) for name, width in embeddings.items()}
    expected |= {f"embed.{name}.bias": (2, 3, 1, 8) for name in embeddings}
    expected |= {"mlp.0.weight": (2, 3, 8, 16), "mlp.1.weight": (2, 3, 16, 16), "mlp.2.weight": (2, 3, 16, 6)}
    expected |= {"mlp.0.bias": (2, 3, 1, 16), "mlp.1.bias": (2, 3, 1, 16), "mlp.2.bias": (2, 3, 1, 6)}
    assert shapes == expected


def test_the_unfactored_model_is_one_network_and_the_global_one_has_one_per_child() -> None:
    full, factored = model("full").weights, model("global").weights
    assert tuple(full["mlp.0.weight"].shape) == (2, 1, S + A, 16)
    assert tuple(full["mlp.2.weight"].shape) == (2, 1, 16, 2 * S)
    assert tuple(factored["mlp.0.weight"].shape) == (2, 3, S + A, 16)
    assert tuple(factored["mlp.2.weight"].shape) == (2, 3, 16, 2 * 3)


# predict


@each_architecture
def test_a_prediction_has_a_mean_and_a_positive_scale_per_member_row_and_column(architecture: str) -> None:
    found = model(architecture).predict(some_rows(50))
    assert found.mean.shape == found.scale.shape == (2, 50, S)
    assert found.mean.dtype == found.scale.dtype == torch.float32
    assert bool((found.scale > 0).all()) and bool(found.mean.isfinite().all())
    assert not found.mean.requires_grad
    assert not found.mean[0].equal(found.mean[1])  # the members are different networks


@pytest.mark.parametrize(
    "given", [lambda rows: rows.numpy(), lambda rows: rows.double().numpy(), lambda rows: rows.tolist(), torch.clone]
)
def test_rows_may_be_torch_or_numpy_or_lists(given: Callable[[Tensor], Tensor]) -> None:
    made, rows = model(), some_rows(10)
    assert made.predict(given(rows)).mean.equal(made.predict(rows).mean)
    assert made.sample(given(rows), seed=1).equal(made.sample(rows, seed=1))


def test_predicting_and_sampling_leave_the_rows_alone() -> None:
    made, rows = model(), some_rows(10)
    made.predict(rows)
    made.sample(rows, seed=0)
    assert rows.equal(some_rows(10))


@pytest.mark.parametrize("shape", [(4, 8), (4, 10), (9,), (2, 4, 9)])
def test_rows_of_another_width_are_refused(shape: tuple[int, ...]) -> None:
    message = f"rows must have shape (N, 9), the graph's 6 state and 3 action columns, got {shape}."
    for ask in (model().predict, functools.partial(model().sample, seed=0)):
        with pytest.raises(InputError) as caught:
            ask(torch.zeros(shape))
        assert str(caught.value) == message


@each_architecture
def test_no_rows_in_no_rows_out(architecture: str) -> None:
    found = model(architecture).predict(torch.zeros(0, S + A))
    assert found.mean.shape == found.scale.shape == (2, 0, S)
    assert model(architecture).sample(torch.zeros(0, S + A), seed=0).shape == (0, S)


@each_architecture
@pytest.mark.parametrize("block", [1, 7, 50, 1_000])
def test_the_number_of_rows_at_a_time_changes_nothing(
    architecture: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, rows = model(architecture), some_rows(50)
    whole, sampled = made.predict(rows), made.sample(rows, seed=3)
    monkeypatch.setattr(Dynamics, "_block", property(lambda self: block))
    parts = made.predict(rows)
    torch.testing.assert_close(parts.mean, whole.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(parts.scale, whole.scale, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(made.sample(rows, seed=3), sampled, rtol=1e-6, atol=1e-6)


def test_more_rows_than_one_block_come_back_in_their_order() -> None:
    made, rows = model(), some_rows(2_500)
    found = made.predict(rows)
    assert found.mean.shape == (2, 2_500, S)
    torch.testing.assert_close(found.mean[:, 2_000:2_050], made.predict(rows[2_000:2_050]).mean, rtol=1e-5, atol=1e-5)


def test_a_model_says_what_it_is() -> None:
    assert repr(model("local")) == "Dynamics('local', members=2, children=['a', 'b', 'c'])"


def test_a_model_moved_to_where_it_is_predicts_the_same() -> None:
    made = model()
    assert made.to("cpu").predict(some_rows()).mean.equal(made.predict(some_rows()).mean)


# sample


def test_every_sample_is_one_members_and_members_take_equal_turns() -> None:
    made = blunt([-100.0, 0.0, 100.0], deviation=0.01)
    drawn = made.sample(some_rows(6_000), seed=0)
    assert drawn.shape == (6_000, S) and drawn.dtype == torch.float32
    nearest = (drawn / 100).round()
    assert float((drawn - 100 * nearest).abs().max()) < 0.1  # six standard deviations, and more
    assert nearest.eq(nearest[:, :1]).all()  # all columns of a row come from the same member
    for number in (-1, 0, 1):
        assert int((nearest[:, 0] == number).sum()) == pytest.approx(2_000, abs=150)  # four standard deviations
    alike = nearest[1:, 0] == nearest[:-1, 0]  # whose turn it is has nothing to do with a row's place
    assert float(alike.float().mean()) == pytest.approx(1 / 3, abs=0.03)


def test_each_rows_sample_is_its_own_members_prediction_for_that_row() -> None:
    made = model("local")
    narrow = {name: weight.clone() for name, weight in made.weights.items()}
    narrow["mlp.2.weight"][..., 3:] = 0.0
    narrow["mlp.2.bias"][..., 3:] = -100.0
    narrow["mlp.2.bias"][1, ..., :3] += 50.0
    made = replace(made, weights=narrow)
    rows = some_rows(400)
    gaps = (made.predict(rows).mean - made.sample(rows, seed=0)).abs().amax(-1)  # (E, N)
    assert float(gaps.amin(0).max()) < 0.02
    assert 140 < int((gaps[0] < gaps[1]).sum()) < 260


def test_only_a_rows_own_member_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    original = Mechanisms.__call__

    def counted(self: Mechanisms, weights: Weights, rows: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        asked.append((len(weights["mlp.0.weight"]), len(rows)))
        return original(self, weights, rows, mask)

    monkeypatch.setattr(Mechanisms, "__call__", counted)
    model("local", replace(TINY, members=4)).sample(some_rows(300), seed=0)
    assert {members for members, _ in asked} == {1}
    assert sum(rows for _, rows in asked) == 300
    assert len(asked) == 4


def test_a_member_that_no_row_falls_to_is_no_trouble() -> None:
    made = model("local", replace(TINY, members=5))
    assert made.sample(some_rows(1), seed=0).shape == (1, S)


def test_samples_spread_a_third_as_far_as_the_model_says() -> None:
    made = blunt([2.0], deviation=0.6)
    found = made.predict(some_rows(3))
    torch.testing.assert_close(found.scale, torch.full((1, 3, S), 0.6), rtol=1e-5, atol=1e-6)
    drawn = made.sample(some_rows(20_000), seed=0)
    torch.testing.assert_close(drawn.std(0), torch.full((S,), 0.2), rtol=0.025, atol=0.0)  # five standard errors
    torch.testing.assert_close(drawn.mean(0), torch.full((S,), 2.0), rtol=0.0, atol=0.007)
    assert float((torch.corrcoef(drawn.T) - torch.eye(S)).abs().max()) < 0.04  # columns are independent
    tails = ((drawn - 2.0).abs() > 0.4).float().mean()
    assert float(tails) == pytest.approx(0.0455, abs=0.004)  # and Gaussian


def test_the_same_seed_draws_the_same_samples_and_another_draws_others() -> None:
    made, rows = model(), some_rows()
    once = made.sample(rows, seed=4)
    assert made.sample(rows, seed=4).equal(once)
    assert not made.sample(rows, seed=5).equal(once)
    assert made.sample(rows, seed=Stream(4, "x")).equal(made.sample(rows, seed=Stream(4, "x")))
    assert not made.sample(rows, seed=Stream(4, "x")).equal(made.sample(rows, seed=Stream(4, "y")))


# Training: runs and seeds


@each_architecture
def test_a_run_is_the_same_alone_and_in_company_to_the_bit(architecture: str) -> None:
    datasets = [world(seed=seed) for seed in range(3)]
    together = fit_dynamics_runs(datasets, GRAPH, architecture, seeds=[5, 6, 7], config=TINY)
    for data, seed, found in zip(datasets, (5, 6, 7), together, strict=True):
        assert same(found, fit_dynamics(data, GRAPH, architecture, seed=seed, config=TINY))


ALONE = """
from mocoda import DynamicsConfig, fit_dynamics, fit_dynamics_runs, make_task
task = make_task("navigation")
config = DynamicsConfig(members=3, hidden=(13, 7), features=7, epochs=3, batch=37, window=2)
datasets = [task.collect(301, seed=seed) for seed in range(3)]
together = fit_dynamics_runs(datasets, task.graph, seeds=[5, 6, 7], config=config)
for data, seed, found in zip(datasets, (5, 6, 7), together):
    alone = fit_dynamics(data, task.graph, seed=seed, config=config)
    assert all(weight.equal(alone.weights[name]) for name, weight in found.weights.items())
"""


def test_with_strict_mkl_that_holds_for_sizes_that_are_no_multiple_of_a_cache_line() -> None:
    environment = os.environ | {"MKL_CBWR": "AVX2,STRICT"}
    subprocess.run([sys.executable, "-c", ALONE], env=environment, check=True)


@each_architecture
def test_permuted_runs_give_permuted_models(architecture: str) -> None:
    datasets = [world(seed=seed) for seed in range(3)]
    found = fit_dynamics_runs(datasets, GRAPH, architecture, seeds=[5, 6, 7], config=TINY)
    order = [2, 0, 1]
    permuted = fit_dynamics_runs(
        [datasets[i] for i in order], GRAPH, architecture, seeds=[5 + i for i in order], config=TINY
    )
    for place, run in enumerate(order):
        assert same(permuted[place], found[run])


def test_runs_of_the_same_data_and_different_seeds_differ_and_of_the_same_seed_agree() -> None:
    one, other, again = fit_dynamics_runs([world()] * 3, GRAPH, seeds=[0, 1, 0], config=TINY)
    assert same(one, again) and not same(one, other)


@each_architecture
def test_the_same_seed_fits_the_same_model_and_another_seed_another(architecture: str) -> None:
    once, again, other = (fit_dynamics(world(), GRAPH, architecture, seed=s, config=TINY) for s in (3, 3, 4))
    assert same(once, again)
    assert all(not once.weights[name].equal(other.weights[name]) for name in once.weights)


def test_members_start_apart_and_stay_apart() -> None:
    fitted = fit_dynamics(world(), GRAPH, config=TINY)
    assert all(not weight[0].equal(weight[1]) for weight in fitted.weights.values())


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


# Training: fit


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

    mechanisms = Mechanisms(GRAPH, architecture, 2, (16, 16), 8, torch.device("cpu"))
    weights = {n: w.requires_grad_() for n, w in mechanisms.initial_weights(drawn.child("weights")).items()}
    mask = GRAPH.mask(data.rows) if architecture == "local" else None
    change = data.next_state - mechanisms.kept_state(data.rows, mask)
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


def test_every_member_goes_through_the_rows_in_an_order_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks: list[Tensor] = []

    class Noted(Chunked):
        def __call__(self, chunk: Tensor) -> Tensor:
            chunks.append(chunk)
            return super().__call__(chunk)

    monkeypatch.setattr("mocoda.dynamics.Chunked", Noted)
    config = replace(TINY, epochs=2, batch=35)  # 200 rows less 25 held out are five batches
    fit_dynamics_runs([world(), world(seed=1)], GRAPH, seeds=[0, 1], config=config)
    assert [tuple(chunk.shape) for chunk in chunks] == [(5, 2, 2, 35)] * 2
    orders = torch.stack(chunks).permute(0, 2, 3, 1, 4).reshape(8, 175)  # epochs, runs and members
    assert orders.sort(1).values.equal(torch.arange(175).expand(8, -1))
    assert len({tuple(order) for order in orders.tolist()}) == 8


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


def test_a_window_of_no_epochs_does_not_return_untrained_weights() -> None:
    with pytest.raises(InputError):
        fit_dynamics(world(), GRAPH, config=replace(TINY, window=0))


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
@pytest.mark.parametrize("standardise", [True, False])
def test_constant_columns_make_no_nan(architecture: str, standardise: bool) -> None:
    data = world()
    state, action, next_state = data.state.clone(), data.action.clone(), data.next_state.clone()
    state[:, 1], action[:, 0] = 0.3, -1e-9
    next_state[:, 1] = 0.3  # neither the next state nor the change moves
    fitted = fit_dynamics(
        Transitions(state, action, next_state), GRAPH, architecture, config=replace(TINY, standardise=standardise)
    )
    found = fitted.predict(data.rows)
    assert bool(found.mean.isfinite().all()) and bool(found.scale.isfinite().all())
    assert all(bool(weight.isfinite().all()) for weight in fitted.weights.values())
    assert bool((fitted.scaling["target_scale"] > 0).all()) and bool((fitted.scaling["input_scale"] > 0).all())


def test_inputs_and_targets_are_standardised_with_the_datas_mean_and_deviation() -> None:
    data = world()
    fitted = fit_dynamics(data, GRAPH, "full", config=TINY)
    change = data.next_state - data.state
    torch.testing.assert_close(fitted.scaling["input_shift"], data.rows.mean(0))
    torch.testing.assert_close(fitted.scaling["input_scale"], data.rows.std(0, correction=0))
    torch.testing.assert_close(fitted.scaling["target_shift"], change.mean(0))
    torch.testing.assert_close(fitted.scaling["target_scale"], change.std(0, correction=0))
    plain = fit_dynamics(data, GRAPH, "full", config=replace(TINY, standardise=False))
    assert all(bool((t == float("scale" in name)).all()) for name, t in plain.scaling.items())


def test_the_data_does_not_change_under_the_fit() -> None:
    data = world()
    fit_dynamics(data, GRAPH, config=TINY)
    assert data.rows.equal(world().rows) and data.next_state.equal(world().next_state)


@pytest.mark.parametrize("rows", [2, 3, 9])
def test_few_rows_are_enough_to_fit(rows: int) -> None:
    fitted = fit_dynamics(world(rows), GRAPH, config=TINY)
    assert bool(fitted.predict(some_rows(5)).mean.isfinite().all())


@each_architecture
def test_a_diverging_training_stops_and_says_so(architecture: str) -> None:
    with pytest.raises(FloatingPointError) as caught:
        fit_dynamics(world(), GRAPH, architecture, config=replace(TINY, learning_rate=1e30))
    assert str(caught.value) == (
        f"the loss of the {architecture!r} dynamics became NaN or inf in epoch 0; "
        "lower the learning rate or standardise the data."
    )


def test_a_training_that_diverges_in_its_very_last_update_does_not_return_untrained_weights() -> None:
    config = replace(TINY, learning_rate=1e30, epochs=1, batch=1_000)  # one update in all
    with pytest.raises(FloatingPointError):
        fit_dynamics(world(), GRAPH, config=config)


def test_progress_counts_the_epochs() -> None:
    told: list[tuple[str, int, int]] = []
    fit_dynamics(world(), GRAPH, "global", config=TINY, progress=lambda *said: told.append(said))
    assert told == [("dynamics global", 1, 3), ("dynamics global", 2, 3), ("dynamics global", 3, 3)]


def test_the_papers_configuration_is_the_papers() -> None:
    paper = DynamicsConfig.paper()
    assert (paper.members, paper.epochs, paper.learning_rate, paper.decay) == (5, 600, 1e-4, False)
    assert (paper.predict_change, paper.standardise) == (False, False)


# Errors


def test_an_unknown_architecture_is_refused_with_the_three_there_are() -> None:
    with pytest.raises(InputError) as caught:
        fit_dynamics(world(), GRAPH, "locale", config=TINY)
    assert str(caught.value) == (
        "there is no architecture 'locale'; there are: full, global, local. Did you mean 'local'?"
    )
    with pytest.raises(InputError) as caught:
        fit_dynamics(world(), GRAPH, "transformer", config=TINY)
    assert str(caught.value) == "there is no architecture 'transformer'; there are: full, global, local."


def test_data_sets_of_different_lengths_do_not_train_together() -> None:
    with pytest.raises(InputError) as caught:
        fit_dynamics_runs([world(200), world(100), world(150)], GRAPH, seeds=[0, 1, 2], config=TINY)
    assert str(caught.value) == (
        "runs that train together need the same number of rows, got [100, 150, 200]. Call fit_dynamics for each."
    )


@pytest.mark.parametrize(("datasets", "seeds"), [(0, 0), (0, 1), (2, 1), (1, 2)])
def test_there_is_one_seed_per_data_set(datasets: int, seeds: int) -> None:
    with pytest.raises(InputError) as caught:
        fit_dynamics_runs([world()] * datasets, GRAPH, seeds=list(range(seeds)), config=TINY)
    assert str(caught.value) == f"expected one seed per data set and at least one, got {datasets} and {seeds}."


def test_one_row_is_too_few() -> None:
    with pytest.raises(InputError) as caught:
        fit_dynamics(world(1), GRAPH, config=TINY)
    assert str(caught.value) == "a dynamics model needs at least 2 rows, one of them to hold out, got 1."


def test_data_of_another_width_is_refused() -> None:
    data = world()
    with pytest.raises(InputError) as caught:
        fit_dynamics(Transitions(data.state, data.action[:, :2], data.next_state), GRAPH, config=TINY)
    assert str(caught.value) == "the data has 6 state and 2 action columns, the graph 6 and 3; they must agree."
    with pytest.raises(InputError) as caught:
        fit_dynamics(Transitions(data.state[:, :5], some_rows(200)[:, :4], data.state[:, :5]), GRAPH, config=TINY)
    assert str(caught.value) == "the data has 5 state and 4 action columns, the graph 6 and 3; they must agree."


def test_a_wrong_data_set_is_found_in_any_place() -> None:
    with pytest.raises(InputError) as caught:
        fit_dynamics_runs([world(200), world(1)], GRAPH, seeds=[0, 1], config=TINY)
    assert str(caught.value) == "a dynamics model needs at least 2 rows, one of them to hold out, got 1."


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
    monkeypatch.setattr("mocoda.dynamics.Checkpoint", functools.partial(Checkpoint, interval=0.0))


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
def test_runs_in_company_resume_too(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    fit = functools.partial(fit_dynamics_runs, [world(), world(seed=1)], GRAPH, seeds=[0, 1], config=LONGER)
    for epochs in (2, 3, 6):
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


def test_a_training_with_a_checkpoint_is_the_training_without(tmp_path: Path) -> None:
    assert same(
        fit_dynamics(world(), GRAPH, config=TINY, checkpoint=tmp_path / "checkpoint"),
        fit_dynamics(world(), GRAPH, config=TINY),
    )


@pytest.mark.usefixtures("at_every_epoch")
def test_a_checkpoint_of_another_training_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    fit_dynamics(world(), GRAPH, config=TINY, checkpoint=path)
    before = path.read_bytes()
    other = replace(TINY, learning_rate=0.5)
    with pytest.raises(InputError) as caught:
        fit_dynamics(world(), GRAPH, config=other, checkpoint=path)
    assert str(caught.value) == (
        f"checkpoint {str(path)!r} belongs to another training: it differs in config. Delete it, or write elsewhere."
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


@pytest.mark.usefixtures("at_every_epoch")
def test_a_checkpoint_of_a_graph_with_other_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    with pytest.raises(TrainingInterruptedError):
        fit_dynamics(world(), GRAPH, config=TINY, checkpoint=path, progress=interrupt_after(1))
    with pytest.raises(InputError, match="belongs to another training"):
        fit_dynamics(world(), SWAPPED, config=TINY, checkpoint=path)


@pytest.mark.usefixtures("at_every_epoch")
def test_a_truncated_checkpoint_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    fit_dynamics(world(), GRAPH, config=TINY, checkpoint=path)
    path.write_bytes(path.read_bytes()[:-100])
    before = path.read_bytes()
    with pytest.raises(InputError) as caught:
        fit_dynamics(world(), GRAPH, config=TINY, checkpoint=path)
    message = str(caught.value)
    assert message.startswith(f"checkpoint {str(path)!r} cannot be read (")
    assert message.endswith("). Delete it to start anew.")
    assert path.read_bytes() == before


NAVIGATION = DynamicsConfig(members=2, hidden=(16, 16), features=8, epochs=60, batch=64, window=50)
KILLED = """
import functools, sys, time
import mocoda.dynamics
from mocoda import DynamicsConfig, fit_dynamics, make_task
mocoda.dynamics.Checkpoint = functools.partial(mocoda.dynamics.Checkpoint, interval=0.0)
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
    return int(load_tensors(path)[1]["done"])


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
    assert (tmp_path / "other").stat().st_size < 4 * numbers + 5_000


def test_the_same_model_is_the_same_file(tmp_path: Path) -> None:
    made, contents = model(), set()
    for _ in range(10):
        made.save(tmp_path / "model")
        contents.add((tmp_path / "model").read_bytes())
    assert len(contents) == 1


def test_a_model_is_not_loaded_for_another_graph(tmp_path: Path) -> None:
    model().save(tmp_path / "model")
    other = LocalGraph(state={"x": 0}, action={"dx": 0}, edges={"x": ["x", "dx"]})
    with pytest.raises(InputError) as caught:
        Dynamics.load(tmp_path / "model", other)
    assert str(caught.value) == (
        f"{str(tmp_path / 'model')!r} was fitted to another graph than LocalGraph(x' <- x, dx); "
        "they differ in children, edges, factors, local."
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


def test_a_missing_model_file_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(InputError) as caught:
            Dynamics.load(path, GRAPH)
        assert str(caught.value) == f"there is no file {str(path)!r}. `model.save(path)` makes one."


@pytest.mark.parametrize("content", [b"", b"garbage that is long enough to have a header", None])
def test_a_file_that_is_not_safetensors_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "model"
    model().save(path)
    path.write_bytes(path.read_bytes()[:-10] if content is None else content)
    with pytest.raises(InputError) as caught:
        Dynamics.load(path, GRAPH)
    assert str(caught.value).startswith(f"{str(path)!r} cannot be read as safetensors (")
    assert str(caught.value).endswith(").")


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_a_safetensors_file_of_other_origin_is_refused(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    path = tmp_path / "model"
    safetensors.torch.save_file({"a": torch.zeros(2)}, path, metadata)
    with pytest.raises(InputError) as caught:
        Dynamics.load(path, GRAPH)
    assert str(caught.value) == f"{str(path)!r} is not a mocoda dynamics model: it does not say its architecture."


def test_a_safetensors_file_that_speaks_of_an_architecture_of_its_own_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model"
    safetensors.torch.save_file({"a": torch.zeros(2)}, path, {"architecture": "llama"})
    with pytest.raises(InputError, match="is not a mocoda dynamics model"):
        Dynamics.load(path, GRAPH)


def test_a_model_whose_saving_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half_then_fail(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(safetensors.torch, "save_file", half_then_fail)
    with pytest.raises(OSError, match="disk full"):
        model().save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_model_cannot_be_saved_to_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        model().save(tmp_path)
    assert str(caught.value) == (
        f"cannot write {str(tmp_path)!r}: it is a folder. Give a path in a folder that can be written."
    )


def test_numpy_data_fits_the_same_model_as_torch_data() -> None:
    data = world()
    state, action, next_state = (np.asarray(part, np.float64) for part in (data.state, data.action, data.next_state))
    numpy = fit_dynamics(Transitions(state, action, next_state), GRAPH, config=TINY)
    assert same(numpy, fit_dynamics(data, GRAPH, config=TINY))
