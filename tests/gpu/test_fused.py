"""The fused kernels against torch, on a GPU; without one by Triton's interpreter: TRITON_INTERPRET=1."""

from __future__ import annotations

import itertools
import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mocoda.engine import fused, normed
from mocoda.engine.randomness import Stream

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("ignore:overflow")]  # of the interpreter

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


def g_for(layers: Layers) -> Tensor:
    x, weights, _ = layers
    return Stream(1, "test-fused", device=x.device).normal(*x.shape[:2], weights[-1].shape[-1])


@pytest.mark.parametrize("outputs", [1, 3, 4, 5, 10])
@pytest.mark.parametrize("hidden", [1, 2, 3])
@pytest.mark.parametrize("width", [16, 48, 50])
@pytest.mark.parametrize("inputs", [2, 26])
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
@pytest.mark.parametrize("hidden", [1, 2, 3])
@pytest.mark.parametrize("wanted", ["weights", "inputs", "nothing"])
def test_gradients_have_the_same_bits_where_not_all_are_wanted(
    wanted: str, hidden: int, outputs: int, half: bool, device: torch.device
) -> None:
    layers = draw(device, 3, 7, 4, *[16] * hidden, outputs)
    x, weights, biases = layers
    g = g_for(layers)
    expected, *slopes = gradients(layers, g, half)
    inputs = wanting([x], wanted == "inputs")
    leaves = wanting([*weights, *biases], wanted == "weights")
    y = fused.mlp(inputs[0], leaves[: len(weights)], leaves[len(weights) :], half)
    assert y.equal(expected) and y.requires_grad == (wanted != "nothing")
    if wanted != "nothing":
        found = torch.autograd.grad(y, leaves if wanted == "weights" else inputs, g)
        assert all(map(torch.equal, found, slopes[1:] if wanted == "weights" else slopes[:1]))


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


# The fused layer norm


def drawn(device: torch.device, many: int, rows: int, inputs: int, width: int) -> list[Tensor]:
    """x, weight, bias, scale and shift."""
    stream = Stream(0, "test-normed", device=device)
    sizes = {"x": (rows, inputs), "weight": (inputs, width), **dict.fromkeys(("bias", "scale", "shift"), (1, width))}
    return [stream.child(name).normal(many, *size) for name, size in sizes.items()]


def plain_normed(x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    active = F.gelu(x @ weight + bias, approximate="tanh")
    return F.layer_norm(active, (active.shape[-1],), eps=normed.EPSILON) * scale + shift


@pytest.mark.parametrize("rows", [1, 7, 50, 129])
@pytest.mark.parametrize(("inputs", "width"), [(3, 16), (8, 50), (26, 100), (5, 512), (17, 700)])
@pytest.mark.parametrize("half", [False, True])
def test_a_normed_layer_and_its_gradients_equal_those_of_torch(
    rows: int, inputs: int, width: int, half: bool, device: torch.device
) -> None:
    given = drawn(device, 3, rows, inputs, width)
    slope = Stream(1, "test-normed", device=device).normal(3, rows, width)
    found, exact = wanting(given), wanting([tensor.double() for tensor in given])
    y, expected = normed.fused_layer(*found, half=half), plain_normed(*exact)
    assert y.dtype == (torch.bfloat16 if half else torch.float32)
    tolerance = 0.02 if half else 2e-5
    gradients = torch.autograd.grad(y, found, slope.to(y.dtype))
    exact_gradients = torch.autograd.grad(expected, exact, slope.double())
    pairs = zip([y.detach(), *gradients], [expected.detach(), *exact_gradients], strict=True)
    for got, wanted in pairs:
        assert got.shape == wanted.shape
        assert float((got - wanted).norm()) <= tolerance * float(wanted.norm()) + 1e-6


def test_inputs_of_a_normed_layer_alone_get_the_same_gradients(device: torch.device) -> None:
    x, *rest = drawn(device, 2, 37, 9, 40)
    results = []
    for parameters in (rest, wanting(rest)):
        leaf = x.clone().requires_grad_()
        results.append(torch.autograd.grad(normed.fused_layer(leaf, *parameters).square().sum(), leaf)[0])
    assert results[0].equal(results[1])


def test_an_input_may_be_shared_by_networks(device: torch.device) -> None:
    x, *rest = drawn(device, 4, 10, 6, 20)
    leading = [part.unflatten(0, (2, 2)) for part in rest]
    y = normed.fused_layer(x[:2, None], *leading)
    assert y.shape == (2, 2, 10, 20)
    expected = plain_normed(x[:2, None].double(), *(part.double() for part in leading))
    torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("rows", "width", "outputs"), [(1, 16, 1), (50, 100, 5), (129, 512, 1), (70, 700, 8)])
@pytest.mark.parametrize("half", [False, True])
def test_a_last_layer_of_few_outputs_equals_that_of_torch(
    rows: int, width: int, outputs: int, half: bool, device: torch.device
) -> None:
    stream = Stream(2, "test-normed", device=device)
    h = stream.child("h").normal(2, 3, rows, width).to(torch.bfloat16 if half else torch.float32)
    rest = [stream.child("weight").normal(2, 3, width, outputs), stream.child("bias").normal(2, 3, 1, outputs)]
    slope = stream.child("slope").normal(2, 3, rows, outputs)
    found, exact = wanting([h, *rest]), wanting([tensor.double() for tensor in (h, *rest)])
    y, expected = normed.fused_last(*found), exact[0] @ exact[1] + exact[2]
    assert y.dtype == torch.float32
    gradients = torch.autograd.grad(y, found, slope, retain_graph=True)
    exact_gradients = torch.autograd.grad(expected, exact, slope.double())
    for got, wanted in zip([y.detach(), *gradients], [expected.detach(), *exact_gradients], strict=True):
        assert got.shape == wanted.shape
        tolerance = 0.01 if got.dtype == torch.bfloat16 else 1e-4
        assert float((got - wanted).norm()) <= tolerance * float(wanted.norm()) + 1e-6
    alone = torch.autograd.grad(normed.fused_last(found[0], *rest), found[0], slope)[0]
    assert alone.equal(gradients[0])
