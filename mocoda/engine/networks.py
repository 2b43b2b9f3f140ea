"""Linear layers and MLPs with leading axes.

A layer's weight is (*L, in, out), where L may be runs, ensemble members, children: many networks are one tensor, and a
forward pass of all of them is one batched product.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from mocoda.engine import fused, normed
from mocoda.engine.randomness import Stream

Weights = Mapping[str, Tensor]
# Intel MKL rounds a product differently if a matrix of a batch does not start at a cache line (16 floats) or if threads
# share the rows of a single one unevenly. On a CPU all are padded, so that no network's result depends on the others.
LINE, ROWS = 16, 4
_half: ContextVar[bool] = ContextVar("half", default=False)
ROUNDING_STEPS = 4  # of float32: a column whose values differ by no more of them is constant
FUSED_INPUTS = 32  # up to this many, the fused kernels pay: their first layer is made for few


def linear_weights(name: str, leading: Sequence[int], inputs: int, outputs: int, stream: Stream) -> dict[str, Tensor]:
    """`name.weight` (*L, in, out) and `name.bias` (*L, 1, out), uniform within 1 / sqrt(in)."""
    bound = 1 / math.sqrt(inputs)
    return {
        f"{name}.weight": stream.uniform(*leading, inputs, outputs, low=-bound, high=bound),
        f"{name}.bias": stream.uniform(*leading, 1, outputs, low=-bound, high=bound),
    }


def linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    """x (*L, B, in) -> (*L, B, out); x may lack or share leading axes."""
    weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    leading, (inputs, outputs) = weight.shape[:-2], weight.shape[-2:]
    batch = x.shape[-2]
    many = math.prod(leading)
    x = x.expand(*leading, batch, inputs).reshape(many, batch, inputs)
    weight, bias = weight.reshape(many, inputs, outputs), bias.reshape(many, 1, outputs)
    if x.device.type == "cpu" and (inputs % LINE or outputs % LINE or batch % ROWS):
        more_inputs, more_outputs = -inputs % LINE, -outputs % LINE
        x, bias = _padded(x, more_inputs, -batch % ROWS), _padded(bias, more_outputs)
        weight = _padded(weight, more_outputs, more_inputs)
    return torch.baddbmm(bias, x, weight)[:, :batch, :outputs].reshape(*leading, batch, outputs)


def _padded(x: Tensor, columns: int, rows: int = 0) -> Tensor:
    """Adds columns and rows of zeros; `pad` alone would copy even where there is nothing to add."""
    return pad(x, (0, columns, 0, rows)) if columns or rows else x


def mlp_weights(
    name: str, leading: Sequence[int], sizes: Sequence[int], stream: Stream, norm: bool = False
) -> dict[str, Tensor]:
    """The weights of linear layers from sizes[0] inputs through the hidden sizes to sizes[-1] outputs.

    norm: hidden layers also have `name.layer.scale` and `name.layer.shift` (*L, 1, out) of a layer norm, ones and zeros
    """
    weights: dict[str, Tensor] = {}
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        weights |= linear_weights(f"{name}.{layer}", leading, inputs, outputs, stream)
        if norm and layer < len(sizes) - 2:
            for part, value in (("scale", 1.0), ("shift", 0.0)):
                weights[f"{name}.{layer}.{part}"] = stream.uniform(*leading, 1, outputs, low=value, high=value)
    return weights


def mlp(weights: Weights, name: str, x: Tensor) -> Tensor:
    """Linear layers with ReLU between them or, where they have a layer norm, with GELU and then the norm."""
    layers = sum(key.startswith(f"{name}.") and key.endswith(".weight") for key in weights)
    if f"{name}.0.scale" in weights:
        return _normed_mlp(weights, name, x, layers)
    if layers > 1 and x.shape[-1] <= FUSED_INPUTS and fused.usable(x):
        own = [weights[f"{name}.{layer}.{part}"] for part in ("weight", "bias") for layer in range(layers)]
        leading = own[0].shape[:-2]
        flat = [tensor.reshape(-1, *tensor.shape[-2:]) for tensor in (x.expand(*leading, *x.shape[-2:]), *own)]
        made = fused.mlp(flat[0], flat[1 : layers + 1], flat[layers + 1 :], half=_half.get())
        return made.reshape(*leading, *made.shape[-2:])
    for layer in range(layers):
        x = linear(weights, f"{name}.{layer}", x)
        if layer < layers - 1:
            x = x.relu()
    return x


def _normed_mlp(weights: Weights, name: str, x: Tensor, layers: int) -> Tensor:
    for layer in range(layers - 1):
        own = [weights[f"{name}.{layer}.{part}"] for part in ("bias", "scale", "shift")]
        if fused.usable(x):
            x = normed.fused_layer(x, weights[f"{name}.{layer}.weight"], *own, half=_half.get())
        else:
            x = normed.gelu_norm(linear(weights, f"{name}.{layer}", x), *own[1:])
    last = f"{name}.{layers - 1}"
    weight, bias = weights[f"{last}.weight"], weights[f"{last}.bias"]
    if fused.usable(x) and weight.shape[-1] <= normed.MAX_OUTPUTS:
        return normed.fused_last(x, weight, bias)
    return linear(weights, last, x.float())


def moments(values: Tensor, largest: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column of values (N, D), float64 (D,); 0 is the deviation of a constant.

    A column is constant if its values differ by no more than float32 rounds numbers of their size.

    largest  (D,) the largest absolute numbers that the values were computed from; without it, the values' own
    """
    exact = values.double()
    return exact.mean(0), torch.where(varies(exact, largest), exact.std(0, correction=0), 0.0)


def varies(values: Tensor, largest: Tensor | None = None) -> Tensor:
    """Which columns of values (N, ...) vary by more than float32 rounds, bool (...); `largest` as in `moments`."""
    low, high = values.double().aminmax(dim=0)
    largest = torch.maximum(low.abs(), high.abs()) if largest is None else largest.double()
    return high - low > ROUNDING_STEPS * torch.finfo(torch.float32).eps * largest


def input_scaling(values: Tensor) -> tuple[Tensor, Tensor]:
    """Shift and scale (D,) that standardise inputs (N, D); a constant is shifted to 0 and divided by its size."""
    mean, scale = moments(values)
    return mean.float(), torch.where(scale > 0, scale, mean.abs().clamp(min=1.0)).float()


@contextmanager
def half_precision(wanted: bool) -> Iterator[None]:
    """Inside the block, the fused kernels keep hidden layers in bfloat16, if wanted; a CPU has no such kernels."""
    token = _half.set(wanted)
    try:
        yield
    finally:
        _half.reset(token)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)). torch's own rounds the last few numbers of an array differently, so that a number's result would
    depend on its neighbours, and a run's on the other runs."""
    return x.clamp(min=0) + (-x.abs()).exp().log1p()
