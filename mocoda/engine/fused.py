"""Many MLPs at once on a CUDA device, with a backward pass written by hand.

The products of hidden layers are cuBLAS's; what surrounds them is traffic of activations, which Triton kernels cut to
one pass each. All sums over rows are made by the one program that owns their columns, in a fixed order.

Axes: N networks, B rows, I inputs, H hidden columns, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

try:
    import triton  # type: ignore[import,unused-ignore]
    import triton.language as tl  # type: ignore[import,unused-ignore]

    available = True
except ImportError:  # a torch without CUDA comes without it
    available = False

MAX_OUTPUTS = 4  # outputs up to which the last layer is a sum along each row, and not a product of matrices
MIN_SIDE = 16  # rows and columns of the smallest matrix that tensor cores take
# Rows and columns of a block in the backward kernels. 32 float32 are a cache line; 5 networks of 512 columns still make
# 80 programs; and larger blocks need more registers than leave room for several programs per processor.
SIDE = 32


def usable(x: Tensor) -> bool:
    """Whether `mlp` takes x."""
    return available and x.is_cuda


def mlp(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], half: bool = False) -> Tensor:
    """x (N, B, I), weights (N, in, out) and biases (N, 1, out) of two or more layers -> (N, B, O), all in float32.

    half: keep hidden activations, and multiply hidden layers, in bfloat16; gradients are float32 all the same.
    """
    inputs = [tensor.contiguous() for tensor in (x, *weights, *biases)]
    with torch.cuda.device_of(x):  # Triton launches on the current device
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
            result: Tensor = _Mlp.apply(half, *inputs)  # type: ignore[no-untyped-call]
            return result
        return _forward(inputs[0], _cast(inputs[1 : len(weights) + 1], half), inputs[len(weights) + 1 :], half)


class _Mlp(torch.autograd.Function):
    """Saves and computes only what the requested gradients (of x, of the weights, or of both) need."""

    @staticmethod
    def forward(ctx: Any, half: bool, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.layers, ctx.inputs = len(parameters) // 2, x.shape[-1]
        weights, biases = _cast(parameters[: ctx.layers], half), parameters[ctx.layers :]
        hidden: list[Tensor] = []
        out = _forward(x, weights, biases, half, hidden)
        _, ctx.moves, *learns = ctx.needs_input_grad
        ctx.learns = any(learns)
        kept = (x if ctx.learns else None, weights[0] if ctx.moves else None)
        ctx.save_for_backward(*kept, *weights[1:], *hidden)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, *saved = ctx.saved_tensors
        weights, hidden = saved[: ctx.layers], saved[ctx.layers :]
        g, h, last = g.contiguous(), hidden[-1], weights[-1]
        many, rows, outputs = g.shape
        x_g: Tensor | None = None
        weight_g: list[Tensor | None] = [None] * ctx.layers
        bias_g: list[Tensor | None] = [None] * ctx.layers
        if ctx.learns:
            bias_g = [g.new_empty(many, 1, tensor.shape[-1]) for tensor in (*hidden, g)]
            weight_g[0] = g.new_empty(many, ctx.inputs, hidden[0].shape[-1])
            weight_g[-1] = torch.empty_like(last)
        if outputs <= MAX_OUTPUTS:
            masked, grid = torch.empty_like(h), (triton.cdiv(h.shape[-1], SIDE), many)
            gradients = (masked, weight_g[-1], bias_g[-1], bias_g[-2])
            last_backward[grid](g, last, h, *gradients, rows, outputs, h.shape[-1], MIN_SIDE, SIDE, SIDE, True)
        else:
            if ctx.learns:
                weight_g[-1], bias_g[-1] = torch.bmm(h.float().mT, g), g.sum(1, keepdim=True)
            masked = _masked(torch.bmm(g, last.mT), h, bias_g[-2])
        for layer in range(ctx.layers - 2, 0, -1):
            h = hidden[layer - 1]
            if ctx.learns:
                weight_g[layer] = _product(h.mT, masked)
            masked = torch.bmm(masked, weights[layer].mT)
            if layer > 1:  # the first layer's kernels mask for themselves
                masked = _masked(masked, h, bias_g[layer - 1])
        h, width = hidden[0], hidden[0].shape[-1]
        sizes = (rows, ctx.inputs, width, _padded(ctx.inputs), SIDE, SIDE)
        if ctx.learns:
            _first_backward[triton.cdiv(width, SIDE), many](masked, h, x, weight_g[0], bias_g[0], *sizes)
        if ctx.moves:
            x_g = g.new_empty(many, rows, ctx.inputs)
            _inputs_backward[triton.cdiv(rows, SIDE), many](masked, h, weights[0], x_g, *sizes)
        return None, x_g, *weight_g, *bias_g


def _cast(weights: Sequence[Tensor], half: bool) -> list[Tensor]:
    """Hidden layers' weights in the type of their products; the first and the last layer stay in float32."""
    return [weights[0], *(w.bfloat16() if half else w for w in weights[1:-1]), weights[-1]]


def _forward(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], half: bool, kept: list[Tensor] | None = None
) -> Tensor:
    """The forward pass; appends the hidden activations (N, B, H) to `kept`, or frees each as soon as it was used."""
    many, rows, inputs = x.shape
    width = weights[0].shape[-1]
    h = x.new_empty(many, rows, width, dtype=torch.bfloat16 if half else x.dtype)
    # This and the next grid have 320 programs for 5 networks of 500 rows and 512 columns.
    grid = (triton.cdiv(rows, 64), triton.cdiv(width, 64), many)
    _first_layer[grid](x, weights[0], biases[0], h, rows, inputs, width, _padded(inputs), 64, 64)
    for weight, bias in zip(weights[1:-1], biases[1:-1], strict=True):
        if kept is not None:
            kept.append(h)
        h = torch.bmm(h, weight)
        width = h.shape[-1]
        _bias_relu[triton.cdiv(rows, 32), triton.cdiv(width, 128), many](h, bias, rows, width, 32, 128)
    if kept is not None:
        kept.append(h)
    if weights[-1].shape[-1] > MAX_OUTPUTS:
        return torch.baddbmm(biases[-1], h.float(), weights[-1])
    return last_layer(h, weights[-1], biases[-1])


def last_layer(h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """h (N, B, H) @ weight (N, H, O) + bias (N, 1, O) for few outputs: (N, B, O) in float32."""
    (many, rows, width), outputs = h.shape, weight.shape[-1]
    out = weight.new_empty(many, rows, outputs)
    wide = triton.next_power_of_2(width)
    tall = max(1, min(64, 8192 // wide))  # 32 numbers a thread: they stay in registers while the outputs take turns
    sizes = (rows, outputs, width, tall, wide)
    _last_layer[triton.cdiv(rows, tall), many](h, weight, bias, out, *sizes, num_warps=8)
    return out


def _masked(h_g: Tensor, h: Tensor, bias_g: Tensor | None) -> Tensor:
    """The gradient (N, B, H) before the ReLU that gave h, from the one after it, in place if the types agree; its sums
    over rows go to `bias_g`."""
    (many, rows, width), masked = h.shape, h_g if h_g.dtype == h.dtype else torch.empty_like(h)
    # Tall blocks: few trips through the loop, each with many loads in flight, for nothing overlaps trips here.
    _mask[triton.cdiv(width, SIDE), many](h_g, h, masked, bias_g, rows, width, 128, SIDE, num_warps=8)
    return masked


def _product(a: Tensor, b: Tensor) -> Tensor:
    """torch.bmm with a float32 result, which a CPU does not offer for bfloat16."""
    if a.dtype == torch.float32 or not a.is_cuda:
        return torch.bmm(a.float(), b.float())
    return torch.bmm(a, b, out_dtype=torch.float32)


def _padded(inputs: int) -> int:
    return max(MIN_SIDE, int(triton.next_power_of_2(inputs)))


def kernel(function: Callable[..., Any]) -> Any:
    """Compiles `function` by Triton at its first call, and not again for another number of rows or alignment of x or g:
    nothing may be left to compile when a CUDA graph is captured."""
    if not available:
        return function
    return triton.jit(function, do_not_specialize=["rows"], do_not_specialize_on_alignment=["x", "g"])


@kernel
def tile(row: tl.tensor, column: tl.tensor, rows: tl.tensor, columns: tl.tensor) -> tl.tuple:
    """Offsets of a block of a matrix, and which of them lie inside the matrix."""
    return row[:, None] * columns + column[None, :], (row < rows)[:, None] & (column < columns)[None, :]


@kernel
def _behind_relu(h_g: tl.tensor, h: tl.tensor, there: tl.tensor) -> tl.tensor:
    """A block of h_g where h > 0 or, as in torch, NaN."""
    total = tl.load(h_g, there, 0.0).to(tl.float32)
    return tl.where(tl.load(h, there, 0.0).to(tl.float32) <= 0, 0.0, total)


@kernel
def _first_layer(
    x: tl.tensor, weight: tl.tensor, bias: tl.tensor, h: tl.tensor, rows: tl.tensor,
    inputs: tl.constexpr, width: tl.constexpr, padded: tl.constexpr, tall: tl.constexpr, wide: tl.constexpr,
) -> None:  # fmt: skip
    """h (N, B, H) = relu(x (N, B, I) @ weight (N, I, H) + bias (N, 1, H)), a block of it."""
    network = tl.program_id(2).to(tl.int64)  # N × B × H may not fit into 32 bits; B × H must
    row, i = tl.program_id(0) * tall + tl.arange(0, tall), tl.arange(0, padded)
    column = tl.program_id(1) * wide + tl.arange(0, wide)
    place, there = tile(row, i, rows, inputs)
    left = tl.load(x + network * rows * inputs + place, there, 0.0)
    place, there = tile(i, column, inputs, width)
    right = tl.load(weight + network * inputs * width + place, there, 0.0)
    # Three products of TF32 parts: nearly as precise as float32, and cheap enough to hide behind the traffic.
    total = tl.dot(left, right, input_precision="tf32x3")
    total += tl.load(bias + network * width + column, column < width, 0.0)[None, :]
    place, there = tile(row, column, rows, width)
    # Not a maximum, which would turn NaN into 0.
    tl.store(h + network * rows * width + place, tl.where(total <= 0, 0.0, total).to(h.dtype.element_ty), there)


@kernel
def _bias_relu(
    h: tl.tensor, bias: tl.tensor, rows: tl.tensor, width: tl.constexpr, tall: tl.constexpr, wide: tl.constexpr,
) -> None:  # fmt: skip
    """h (N, B, H) becomes relu(h + bias (N, 1, H)), a block of it."""
    network = tl.program_id(2).to(tl.int64)
    column = tl.program_id(1) * wide + tl.arange(0, wide)
    h += network * rows * width
    place, there = tile(tl.program_id(0) * tall + tl.arange(0, tall), column, rows, width)
    total = tl.load(h + place, there, 0.0).to(tl.float32)
    total += tl.load(bias + network * width + column, column < width, 0.0)[None, :]
    tl.store(h + place, tl.where(total <= 0, 0.0, total).to(h.dtype.element_ty), there)


@kernel
def _last_layer(
    h: tl.tensor, weight: tl.tensor, bias: tl.tensor, out: tl.tensor, rows: tl.tensor,
    outputs: tl.constexpr, width: tl.constexpr, tall: tl.constexpr, wide: tl.constexpr,
) -> None:  # fmt: skip
    """out (N, B, O) = h (N, B, H) @ weight (N, H, O) + bias (N, 1, O), some rows of it."""
    network = tl.program_id(1).to(tl.int64)
    row, column = tl.program_id(0) * tall + tl.arange(0, tall), tl.arange(0, wide)
    h, weight, out = h + network * rows * width, weight + network * width * outputs, out + network * rows * outputs
    place, there = tile(row, column, rows, width)
    left = tl.load(h + place, there, 0.0).to(tl.float32)
    for o in tl.static_range(outputs):
        right = tl.load(weight + column * outputs + o, column < width, 0.0)
        total = tl.sum(left * right[None, :], 1) + tl.load(bias + network * outputs + o)
        tl.store(out + row * outputs + o, total, row < rows)


@kernel
def last_backward(
    g: tl.tensor, weight: tl.tensor, h: tl.tensor, masked: tl.tensor,
    weight_g: tl.tensor, bias_g: tl.tensor, hidden_bias_g: tl.tensor, rows: tl.tensor,
    outputs: tl.constexpr, width: tl.constexpr, padded: tl.constexpr, tall: tl.constexpr, wide: tl.constexpr,
    relu: tl.constexpr,
) -> None:  # fmt: skip
    """masked (N, B, H) = g (N, B, O) @ weightᵀ, with relu where h > 0, some columns of it, and with `weight_g` also

    weight_g (N, H, O) = hᵀ @ g and, as sums over rows, bias_g (N, 1, O) of g and hidden_bias_g (N, 1, H), if any, of
    masked.
    """
    network = tl.program_id(1).to(tl.int64)
    column, output = tl.program_id(0) * wide + tl.arange(0, wide), tl.arange(0, padded)
    g, weight = g + network * rows * outputs, weight + network * width * outputs
    h, masked = h + network * rows * width, masked + network * rows * width
    weight_sum = tl.zeros((padded, wide), tl.float32)
    bias_sum, hidden_sum = tl.zeros((tall, padded), tl.float32), tl.zeros((tall, wide), tl.float32)
    for start in range(0, rows, tall):
        row = start + tl.arange(0, tall)
        place, there = tile(row, column, rows, width)
        activation = tl.load(h + place, there, 0.0).to(tl.float32)
        total = tl.zeros((tall, wide), tl.float32)
        for o in tl.static_range(outputs):
            left = tl.load(g + row * outputs + o, row < rows, 0.0)
            total += left[:, None] * tl.load(weight + column * outputs + o, column < width, 0.0)[None, :]
        if relu:
            total = tl.where(activation <= 0, 0.0, total)
        tl.store(masked + place, total.to(masked.dtype.element_ty), there)
        if weight_g is not None:
            place, there = tile(row, output, rows, outputs)
            across = tl.load(g + place, there, 0.0)
            weight_sum = tl.dot(tl.trans(across), activation, weight_sum, input_precision="tf32x3")
            bias_sum += across
            hidden_sum += total
    if weight_g is not None:
        place, there = tile(column, output, width, outputs)
        tl.store(weight_g + network * width * outputs + place, tl.trans(weight_sum), there)
        if hidden_bias_g is not None:
            tl.store(hidden_bias_g + network * width + column, tl.sum(hidden_sum, 0), column < width)
        first = (output < outputs) & (tl.program_id(0) == 0)  # one program is enough for this
        tl.store(bias_g + network * outputs + output, tl.sum(bias_sum, 0), first)


@kernel
def _mask(
    h_g: tl.tensor, h: tl.tensor, masked: tl.tensor, bias_g: tl.tensor, rows: tl.tensor,
    width: tl.constexpr, tall: tl.constexpr, wide: tl.constexpr,
) -> None:  # fmt: skip
    """masked (N, B, H) = h_g where h > 0, some columns of it; bias_g (N, 1, H), if any, its sums over rows."""
    network = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * wide + tl.arange(0, wide)
    h_g, h, masked = h_g + network * rows * width, h + network * rows * width, masked + network * rows * width
    bias_sum = tl.zeros((tall, wide), tl.float32)
    for start in range(0, rows, tall):
        place, there = tile(start + tl.arange(0, tall), column, rows, width)
        total = _behind_relu(h_g + place, h + place, there)
        tl.store(masked + place, total.to(masked.dtype.element_ty), there)
        bias_sum += total
    if bias_g is not None:
        tl.store(bias_g + network * width + column, tl.sum(bias_sum, 0), column < width)


@kernel
def _first_backward(
    h_g: tl.tensor, h: tl.tensor, x: tl.tensor, weight_g: tl.tensor, bias_g: tl.tensor, rows: tl.tensor,
    inputs: tl.constexpr, width: tl.constexpr, padded: tl.constexpr, tall: tl.constexpr, wide: tl.constexpr,
) -> None:  # fmt: skip
    """weight_g (N, I, H) = xᵀ @ (h_g (N, B, H) where h > 0) and bias_g (N, 1, H) the sums over rows, some columns."""
    network = tl.program_id(1).to(tl.int64)
    column, i = tl.program_id(0) * wide + tl.arange(0, wide), tl.arange(0, padded)
    h_g, h, x = h_g + network * rows * width, h + network * rows * width, x + network * rows * inputs
    weight_sum, bias_sum = tl.zeros((padded, wide), tl.float32), tl.zeros((tall, wide), tl.float32)
    for start in range(0, rows, tall):
        row = start + tl.arange(0, tall)
        place, there = tile(row, column, rows, width)
        total = _behind_relu(h_g + place, h + place, there)
        place, there = tile(row, i, rows, inputs)
        left = tl.trans(tl.load(x + place, there, 0.0))
        weight_sum = tl.dot(left, total, weight_sum, input_precision="tf32x3")
        bias_sum += total
    place, there = tile(i, column, inputs, width)
    tl.store(weight_g + network * inputs * width + place, weight_sum, there)
    tl.store(bias_g + network * width + column, tl.sum(bias_sum, 0), column < width)


@kernel
def _inputs_backward(
    h_g: tl.tensor, h: tl.tensor, weight: tl.tensor, x_g: tl.tensor, rows: tl.tensor,
    inputs: tl.constexpr, width: tl.constexpr, padded: tl.constexpr, tall: tl.constexpr, wide: tl.constexpr,
) -> None:  # fmt: skip
    """x_g (N, B, I) = (h_g (N, B, H) where h > 0) @ weight (N, I, H)ᵀ, some rows of it."""
    network = tl.program_id(1).to(tl.int64)
    row, i = tl.program_id(0) * tall + tl.arange(0, tall), tl.arange(0, padded)
    h_g, h, weight = h_g + network * rows * width, h + network * rows * width, weight + network * inputs * width
    x_sum = tl.zeros((tall, padded), tl.float32)
    for start in range(0, width, wide):
        column = start + tl.arange(0, wide)
        place, there = tile(row, column, rows, width)
        total = _behind_relu(h_g + place, h + place, there)
        place, there = tile(i, column, inputs, width)
        right = tl.trans(tl.load(weight + place, there, 0.0))
        x_sum = tl.dot(total, right, x_sum, input_precision="tf32x3")
    place, there = tile(row, i, rows, inputs)
    tl.store(x_g + network * rows * inputs + place, x_sum, there)
