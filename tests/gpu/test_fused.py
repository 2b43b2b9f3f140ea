"""The fused kernels against torch, on a GPU; without one by Triton's interpreter: TRITON_INTERPRET=1."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from mocoda.engine import fused
from mocoda.engine.randomness import Stream

pytestmark = pytest.mark.cuda

Layers = tuple[Tensor, list[Tensor], list[Tensor]]


@pytest.fixture
def device() -> torch.device:
    return torch.device("cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda")


def draw(device: torch.device, many: int, rows: int, *sizes: int) -> Layers:
    """x (N, B, I), and the weights and biases of layers of these sizes."""
    stream = Stream(0, "test-fused", device=device)
    x = stream.child("x").normal(many, rows, sizes[0])
    weights = [
        stream.child("weight", layer).normal(many, inputs, outputs) / inputs**0.5
        for layer, (inputs, outputs) in enumerate(itertools.pairwise(sizes))
    ]
    biases = [stream.child("bias", layer).normal(many, 1, size) for layer, size in enumerate(sizes[1:])]
    return x, weights, biases


def plain(x: Tensor, weights: list[Tensor], biases: list[Tensor]) -> Tensor:
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        x = (x.relu() if layer else x) @ weight + bias
    return x


def wanting(tensors: list[Tensor], wanted: bool = True) -> list[Tensor]:
    return [tensor.detach().clone().requires_grad_(wanted) for tensor in tensors]


def gradients(layers: Layers, g: Tensor, half: bool = False, exact: bool = False) -> list[Tensor]:
    """The output and the gradients of x, the weights and the biases; `exact`: by torch in float64."""
    x, weights, biases = layers
    leaves = wanting([tensor.double() if exact else tensor for tensor in (x, *weights, *biases)])
    split = len(weights) + 1
    if exact:
        y = plain(leaves[0], leaves[1:split], leaves[split:])
    else:
        y = fused.mlp(leaves[0], leaves[1:split], leaves[split:], half)
    return [y.detach(), *torch.autograd.grad(y, leaves, g.double() if exact else g)]


def assert_near(found: list[Tensor], expected: list[Tensor], tolerance: float = 1e-5) -> None:
    """Within `tolerance` of the size of each tensor."""
    assert len(found) == len(expected)
    for got, wanted in zip(found, expected, strict=True):
        assert got.dtype == torch.float32
        assert got.shape == wanted.shape
        assert float((got - wanted).norm()) <= tolerance * float(wanted.norm()) + 1e-6


@contextmanager
def keeping() -> Iterator[list[tuple[int, ...]]]:
    """The shapes of the tensors that are kept for a backward pass inside the block."""
    kept: list[tuple[int, ...]] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield kept


def g_for(layers: Layers) -> Tensor:
    x, weights, _ = layers
    return Stream(1, "test-fused", device=x.device).normal(*x.shape[:2], weights[-1].shape[-1])


@pytest.mark.parametrize("outputs", [1, 2, 3, 4, 5, 10])
@pytest.mark.parametrize("hidden", [1, 2, 3])
@pytest.mark.parametrize("width", [16, 32, 48, 50])
@pytest.mark.parametrize("inputs", [2, 4, 26])
@pytest.mark.parametrize("rows", [7, 50])
def test_outputs_and_gradients_equal_those_of_torch(
    rows: int, inputs: int, width: int, hidden: int, outputs: int, device: torch.device
) -> None:
    layers = draw(device, 3, rows, inputs, *[width] * hidden, outputs)
    g = g_for(layers)
    assert_near(gradients(layers, g), gradients(layers, g, exact=True))


@pytest.mark.parametrize("outputs", [1, 4, 5])
@pytest.mark.parametrize("hidden", [1, 2, 3])
def test_half_is_near(hidden: int, outputs: int, device: torch.device) -> None:
    layers = draw(device, 3, 50, 4, *[48] * hidden, outputs)
    g = g_for(layers)
    expected = gradients(layers, g, exact=True)
    assert_near(gradients(layers, g, half=True)[:1], expected[:1], 0.01)
    # Where a rounded sum has the other sign, a whole gradient is lost or won.
    assert_near(gradients(layers, g, half=True), expected, 0.1)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("outputs", [1, 5])
@pytest.mark.parametrize("hidden", [1, 2])
def test_weights_alone_get_gradients(
    hidden: int, outputs: int, half: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = draw(device, 3, 7, 4, *[16] * hidden, outputs)
    x, weights, biases = layers
    g = g_for(layers)
    expected = gradients(layers, g, half)
    monkeypatch.setattr(fused, "_inputs_backward", None)
    leaves = wanting([*weights, *biases])
    with keeping() as kept:
        y = fused.mlp(x, leaves[: len(weights)], leaves[len(weights) :], half)
    assert kept == [(3, 7, 4), *(tuple(w.shape) for w in weights[1:]), *[(3, 7, 16)] * hidden]
    found = [y.detach(), *torch.autograd.grad(y, leaves, g)]
    for got, wanted in zip(found, [expected[0], *expected[2:]], strict=True):
        assert got.equal(wanted)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("outputs", [1, 5])
@pytest.mark.parametrize("hidden", [1, 2, 3])
def test_inputs_alone_get_a_gradient(
    hidden: int, outputs: int, half: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = draw(device, 3, 7, 4, *[16] * hidden, outputs)
    x, weights, biases = layers
    g = g_for(layers)
    expected = gradients(layers, g, half)
    monkeypatch.setattr(fused, "_first_backward", None)
    monkeypatch.setattr(fused, "_product", None)
    (leaf,) = wanting([x])
    with keeping() as kept:
        y = fused.mlp(leaf, weights, biases, half)
    assert kept == [*(tuple(w.shape) for w in weights), *[(3, 7, 16)] * hidden]
    assert y.detach().equal(expected[0])
    assert torch.autograd.grad(y, leaf, g)[0].equal(expected[1])


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("outputs", [1, 5])
def test_where_nobody_wants_gradients_nothing_is_kept(outputs: int, half: bool, device: torch.device) -> None:
    layers = draw(device, 3, 7, 4, 16, 16, outputs)
    expected = gradients(layers, g_for(layers), half)[0]
    with keeping() as kept:
        y = fused.mlp(*layers, half)
        with torch.no_grad():
            leaves = wanting(layers[1])
            silent = fused.mlp(layers[0], leaves, layers[2], half)
    assert kept == []
    for found in (y, silent):
        assert not found.requires_grad
        assert found.equal(expected)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("hidden", [1, 2])
def test_a_network_has_the_same_bits_alone_and_in_company(hidden: int, half: bool, device: torch.device) -> None:
    """One hidden layer is all Triton's; of more, torch.bmm keeps the promise for these sizes on a CPU alone."""
    layers = draw(device, 5, 48, 6, *[32] * hidden, 2)
    g = g_for(layers)
    together = gradients(layers, g, half)
    x, weights, biases = layers
    for n in range(5):
        own = slice(n, n + 1)
        alone = gradients((x[own], [w[own] for w in weights], [b[own] for b in biases]), g[own], half)
        for got, wanted in zip(alone, together, strict=True):
            if hidden == 1 or device.type == "cpu":
                assert got.equal(wanted[own])
            else:
                assert_near([got], [wanted[own]], 0.02 if half else 1e-5)


def test_nan_comes_through(device: torch.device) -> None:
    x, weights, biases = draw(device, 2, 7, 4, 16, 16, 1)
    x[1, 3, 2] = float("nan")
    g = torch.ones(2, 7, 1, device=device)
    y, _, *found = gradients((x, weights, biases), g)
    expected = torch.zeros(2, 7, 1, dtype=torch.bool, device=device)
    expected[1, 3] = True
    assert y.isnan().equal(expected)
    assert [bool(gradient[0].isnan().any()) for gradient in found] == [False] * 6
    assert found[0][1].isnan().any()


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("outputs", [1, 4, 10])
@pytest.mark.parametrize("many", [5, 40])
def test_a_captured_graph_repeats_it(many: int, outputs: int, half: bool, device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("captures CUDA graphs")
    layers = draw(device, many, 500, 26, 512, 512, outputs)
    x, weights, biases = layers
    g = g_for(layers)
    leaves = wanting([x, *weights, *biases])

    def work() -> list[Tensor]:
        y = fused.mlp(leaves[0], leaves[1 : len(weights) + 1], leaves[len(weights) + 1 :], half)
        return [y.detach(), *torch.autograd.grad(y, leaves, g)]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        eager = work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = work()
    for _ in range(2):
        graph.replay()
        for got, wanted in zip(captured, eager, strict=True):
            assert got.equal(wanted)
    # At this size a few units lie so near 0 that rounding decides whether they are on.
    assert_near(eager, gradients(layers, g, exact=True), 0.1 if half else 1e-3)


def test_more_numbers_than_32_bits_count(device: torch.device) -> None:
    if device.type != "cuda" or torch.cuda.mem_get_info()[0] < 40 * 2**30:
        pytest.skip("needs 40 GiB of GPU memory")
    layers = draw(device, 5, 900_000, 2, 512, 1)  # 2.3e9 hidden numbers
    x, weights, biases = layers
    g = g_for(layers)
    together = gradients(layers, g, half=True)
    alone = gradients((x[4:], [w[4:] for w in weights], [b[4:] for b in biases]), g[4:], half=True)
    for got, wanted in zip(alone, together, strict=True):
        assert got.equal(wanted[4:])
