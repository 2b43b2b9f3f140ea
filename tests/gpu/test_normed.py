"""The fused layer norm against torch, on a GPU; without one by Triton's interpreter: TRITON_INTERPRET=1."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mocoda.engine import normed
from mocoda.engine.randomness import Stream

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("ignore:overflow")]  # of the interpreter


@pytest.fixture
def device() -> torch.device:
    return torch.device("cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda")


def drawn(device: torch.device, many: int, rows: int, inputs: int, width: int) -> list[Tensor]:
    """x, weight, bias, scale and shift."""
    stream = Stream(0, "test-normed", device=device)
    sizes = {"x": (rows, inputs), "weight": (inputs, width), **dict.fromkeys(("bias", "scale", "shift"), (1, width))}
    return [stream.child(name).normal(many, *size) for name, size in sizes.items()]


def plain(x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    active = F.gelu(x @ weight + bias, approximate="tanh")
    return F.layer_norm(active, (active.shape[-1],), eps=normed.EPSILON) * scale + shift


def wanting(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


@pytest.mark.parametrize("rows", [1, 7, 50, 129])
@pytest.mark.parametrize(("inputs", "width"), [(3, 16), (8, 50), (26, 100), (5, 512), (17, 700)])
@pytest.mark.parametrize("half", [False, True])
def test_outputs_and_gradients_equal_those_of_torch(
    rows: int, inputs: int, width: int, half: bool, device: torch.device
) -> None:
    given = drawn(device, 3, rows, inputs, width)
    slope = Stream(1, "test-normed", device=device).normal(3, rows, width)
    found, exact = wanting(given), wanting([tensor.double() for tensor in given])
    y, expected = normed.fused_layer(*found, half=half), plain(*exact)
    assert y.dtype == (torch.bfloat16 if half else torch.float32)
    tolerance = 0.02 if half else 2e-5
    gradients = torch.autograd.grad(y, found, slope.to(y.dtype))
    exact_gradients = torch.autograd.grad(expected, exact, slope.double())
    pairs = zip([y.detach(), *gradients], [expected.detach(), *exact_gradients], strict=True)
    for got, wanted in pairs:
        assert got.shape == wanted.shape
        assert float((got - wanted).norm()) <= tolerance * float(wanted.norm()) + 1e-6


def test_inputs_alone_get_the_same_gradients(device: torch.device) -> None:
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
    expected = plain(x[:2, None].double(), *(part.double() for part in leading))
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
