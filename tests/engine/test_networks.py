from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mocoda.engine.networks import linear, linear_weights, mlp, mlp_weights, softplus
from mocoda.engine.normed import EPSILON, gelu_norm
from mocoda.engine.randomness import Stream


def stream(*labels: str | int) -> Stream:
    return Stream(0, "test-networks", *labels)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("leading", [(), (3,), (2, 1, 3)])
@pytest.mark.parametrize("hidden", [(), (6, 3)])
def test_an_mlp_is_torch_linears_with_relu_or_gelu_and_a_layer_norm_between_them(
    leading: tuple[int, ...], hidden: tuple[int, ...], norm: bool
) -> None:
    weights = mlp_weights("net", leading, (5, *hidden, 4), stream("weights"), norm)
    fresh = {name: weight for name, weight in weights.items() if name.endswith(("scale", "shift"))}
    assert all(bool((weight == name.endswith("scale")).all()) for name, weight in fresh.items())
    weights |= {name: stream("drawn", name).normal(*weight.shape) for name, weight in fresh.items()}
    x = stream("x").normal(*leading, 7, 5)
    y = mlp(weights, "net", x)
    assert y.shape == (*leading, 7, 4)
    for index in itertools.product(*map(range, leading)):
        own = {name: weight[index] for name, weight in weights.items()}
        expected = x[index]
        for layer in range(len(hidden) + 1):
            expected = F.linear(expected, own[f"net.{layer}.weight"].T, own[f"net.{layer}.bias"][0])
            if layer < len(hidden) and norm:
                scale, shift = own[f"net.{layer}.scale"][0], own[f"net.{layer}.shift"][0]
                expected = F.layer_norm(F.gelu(expected, approximate="tanh"), scale.shape, scale, shift, eps=EPSILON)
            elif layer < len(hidden):
                expected = expected.relu()
        torch.testing.assert_close(y[index], expected, rtol=1e-5, atol=1e-5)


def test_the_gradients_of_gelu_and_layer_norm_are_those_of_torch() -> None:
    shapes = {"h": (3, 2, 7, 33), "scale": (3, 2, 1, 33), "shift": (3, 2, 1, 33)}
    given = [stream("norm", name).normal(*shape, dtype=torch.float64) for name, shape in shapes.items()]
    h, scale, shift = given = [tensor.requires_grad_() for tensor in given]
    exact = F.layer_norm(F.gelu(h, approximate="tanh"), (33,), eps=EPSILON) * scale + shift
    found, slope = gelu_norm(*given), stream("slope").normal(*shapes["h"], dtype=torch.float64)
    torch.testing.assert_close(found, exact)
    for one, other in zip(
        torch.autograd.grad(found, given, slope), torch.autograd.grad(exact, given, slope), strict=True
    ):
        torch.testing.assert_close(one, other)


# Widths that are no whole cache lines


@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (15, 17), (16, 4), (17, 48), (100, 1)])
@pytest.mark.parametrize("batch", [1, 37])
def test_padding_changes_nothing_but_bits(inputs: int, outputs: int, batch: int) -> None:
    weights = {n: w.requires_grad_() for n, w in linear_weights("l", (3,), inputs, outputs, stream("w")).items()}
    x = stream("x").normal(3, batch, inputs).requires_grad_()
    given = [x, weights["l.weight"], weights["l.bias"]]
    padded, plain = linear(weights, "l", x), x @ weights["l.weight"] + weights["l.bias"]
    assert padded.shape == plain.shape == (3, batch, outputs)
    torch.testing.assert_close(padded, plain, rtol=1e-5, atol=1e-5)
    slope = stream("slope").normal(3, batch, outputs)
    for found, expected, tensor in zip(
        torch.autograd.grad(padded, given, slope), torch.autograd.grad(plain, given, slope), given, strict=True
    ):
        assert found.shape == tensor.shape
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_an_inf_or_nan_stays_in_its_row() -> None:
    weights = mlp_weights("net", (2,), (5, 7, 3), stream("weights"))
    x = stream("x").normal(2, 9, 5)
    clean = mlp(weights, "net", x)
    x[1, 4, 2], x[0, 0, 0] = math.nan, math.inf
    found = mlp(weights, "net", x)
    hurt = torch.zeros(2, 9, dtype=torch.bool)
    hurt[1, 4] = hurt[0, 0] = True
    assert found[~hurt].equal(clean[~hurt]) and not bool(found[hurt].isfinite().all(1).any())


def taught(weights: dict[str, Tensor], x: Tensor, target: Tensor) -> list[Tensor]:
    """Outputs and all gradients of every network."""
    leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    given = x.clone().requires_grad_()
    made = mlp(leaves, "net", given)
    loss = ((made - target) * (made - target)).sum()
    return [made.detach(), *torch.autograd.grad(loss, [given, *leaves.values()])]


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("sizes", "batch"),
    [
        *(((4, 13, 7, 3), 37), ((1, 1), 1), ((3, 33, 65, 2), 129), ((4, 64, 64, 2), 256)),
        *[((4, 64, 33, 2), batch) for batch in (*range(1, 13, 2), 17, 27)],  # few rows, which threads share
    ],
    ids=str,
)
def test_a_network_is_the_same_alone_and_in_company_to_the_bit(
    sizes: tuple[int, ...], batch: int, threads: int, norm: bool
) -> None:
    weights = mlp_weights("net", (5,), sizes, stream("weights"), norm)
    x, target = stream("x").normal(5, batch, sizes[0]), stream("target").normal(5, batch, sizes[-1])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = taught(weights, x, target)
        for own in (slice(0, 1), slice(3, 4), slice(1, 3), slice(2, 5)):
            alone = taught({name: weight[own].clone() for name, weight in weights.items()}, x[own], target[own])
            assert all(a.equal(t[own]) for a, t in zip(alone, together, strict=True))
    finally:
        torch.set_num_threads(before)


# Softplus


def awkward_numbers() -> Tensor:
    drawn = stream("softplus").normal(20_011) * 10
    return torch.cat([drawn, torch.tensor([0.0, -0.0, 1e-8, -1e-8, 20.0, -20.0, 88.0, -88.0, 104.0, -104.0])])


def test_softplus_equals_torchs_and_the_exact_one() -> None:
    x = awkward_numbers()
    torch.testing.assert_close(softplus(x), F.softplus(x), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(softplus(x).double(), x.double().exp().log1p(), rtol=1e-6, atol=1e-30)
    huge = torch.tensor([1e30, 3e38, -1e30, -3e38])
    assert softplus(huge).tolist() == [float(huge[0]), float(huge[1]), 0.0, 0.0]


def test_softplus_of_a_number_does_not_depend_on_its_neighbours() -> None:
    x = awkward_numbers()
    whole = softplus(x)
    for start, size in itertools.product((0, 1, 16, 1_000), (1, 2, 3, 7, 8, 9, 17, 33, 1_001)):
        assert softplus(x[start : start + size].clone()).equal(whole[start : start + size])
