"""Hidden layers with GELU and a layer norm, of many networks at once, with a backward pass written by hand.

h = x @ weight + bias;  a = gelu(h), by its tanh formula;  n = (a - mean a) / std a, by row;  y = n · scale + shift

On a CPU, what surrounds the product is a few passes of torch; on a GPU, one pass of a Triton kernel each way.

Axes: *L leading axes or N networks, B rows, I inputs, H hidden columns.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from mocoda.engine import fused
from mocoda.engine.fused import available, kernel, tile

if available:
    import triton  # type: ignore[import,unused-ignore]
    import triton.language as tl  # type: ignore[import,unused-ignore]

EPSILON = 1e-6  # added to the variance
SLOPE, CUBE = math.sqrt(2 / math.pi), 0.044715  # gelu(h) = h/2 · (1 + tanh(SLOPE · (h + CUBE · h³)))
STRIP = 16  # rows of a program of the backward kernel, which sums over them
WARP = 512  # columns of a row per warp, 16 numbers per thread: sums along a row need no synchronisation
MAX_OUTPUTS = 8  # outputs up to which the last layer is a pass over its inputs
ALIGNED = 8  # inputs are padded to a multiple of it: tensor cores want rows that start at 16 bytes


def gelu_norm(h: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """The layer norm of gelu(h), all (*L, B, H), with scale and shift (*L, 1, H)."""
    result: Tensor = _GeluNorm.apply(h, scale, shift)  # type: ignore[no-untyped-call]
    return result


class _GeluNorm(torch.autograd.Function):
    """Saves three numbers per activation, and passes over them as rarely as torch allows.

    torch's own GELU rounds the last numbers of an array differently from the rest; its tanh does not.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        bent = torch.addcmul(h, h * h, h, value=CUBE).mul_(SLOPE).tanh_()
        twice = torch.addcmul(h, h, bent)  # twice gelu(h): the norm divides the factor out
        n, _, inverse = torch.native_layer_norm(twice, [h.shape[-1]], None, None, 4 * EPSILON)
        ctx.save_for_backward(h, bent, n, inverse, scale)
        return torch.addcmul(shift, n, scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        h, bent, n, inverse, scale = ctx.saved_tensors
        h_g = scale_g = shift_g = None
        if ctx.needs_input_grad[0]:
            n_g = g * scale
            projected = (n_g * n).mean(-1, keepdim=True)
            n_g.sub_(n_g.mean(-1, keepdim=True)).addcmul_(n, projected, value=-1).mul_(inverse)
            # The slope of twice gelu: 1 + t + h · (1 - t²) · SLOPE · (1 + 3 · CUBE · h²)
            bend = (h * h).mul_(3 * CUBE * SLOPE).add_(SLOPE).mul_(h)
            h_g = n_g.mul_(bend.addcmul_(bend * bent, bent, value=-1).add_(bent).add_(1))
        if ctx.needs_input_grad[1]:
            scale_g, shift_g = (g * n).sum(-2, keepdim=True), g.sum(-2, keepdim=True)
        return h_g, scale_g, shift_g


def fused_layer(x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor, *, half: bool = False) -> Tensor:
    """The layer of x (*L, B, I), which may lack or share leading axes: (*L, B, H), in bfloat16 if `half`.

    weight (*L, I, H); bias, scale and shift (*L, 1, H). cuBLAS multiplies, in TF32 or bfloat16.
    """
    leading, (inputs, width) = weight.shape[:-2], weight.shape[-2:]
    x = x.expand(*leading, *x.shape[-2:]).reshape(-1, x.shape[-2], inputs)
    weight = weight.reshape(-1, inputs, width)
    if inputs % ALIGNED:
        x, weight = pad(x, (0, -inputs % ALIGNED)), pad(weight, (0, 0, 0, -inputs % ALIGNED))
    if half:
        x, weight = x.bfloat16(), weight.bfloat16()
    y = fused_norm(torch.bmm(x, weight), *(part.reshape(-1, 1, width) for part in (bias, scale, shift)))
    return y.reshape(*leading, *y.shape[-2:])


def fused_norm(h: Tensor, bias: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """gelu_norm(h + bias, scale, shift) for h (N, B, H), in its type, and the others (N, 1, H) in float32."""
    inputs = [tensor.contiguous() for tensor in (h, bias, scale, shift)]
    with torch.cuda.device_of(h):  # Triton launches on the current device
        result: Tensor = _FusedNorm.apply(*inputs)  # type: ignore[no-untyped-call]
    return result


class _FusedNorm(torch.autograd.Function):
    """Saves h alone, from whose rows the backward pass computes all else."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, bias: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        ctx.save_for_backward(h, bias, scale)
        y, (many, rows, width) = torch.empty_like(h), h.shape
        tall = _tall(width)
        sizes = (rows, width, tall, triton.next_power_of_2(width), SLOPE, CUBE, EPSILON)
        _forward[triton.cdiv(rows, tall), many](h, bias, scale, shift, y, *sizes, num_warps=_warps(width))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        h, bias, scale = ctx.saved_tensors
        g, (many, rows, width) = g.contiguous(), h.shape
        strips = triton.cdiv(rows, STRIP)
        learns = any(ctx.needs_input_grad[1:])
        h_g = torch.empty_like(h)
        sums = bias.new_empty(3, many, strips, width) if learns else None  # of bias, scale and shift, by strip
        sizes = (many, rows, width, _tall(width), triton.next_power_of_2(width), STRIP, SLOPE, CUBE, EPSILON)
        _backward[strips, many](g, h, bias, scale, h_g, sums, *sizes, num_warps=_warps(width))
        if sums is None:
            return h_g, None, None, None
        return h_g, *sums.sum(2)[:, :, None].unbind()


def fused_last(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The last, linear layer of x (*L, B, H), in its type, with few outputs: (*L, B, O) in float32.

    weight (*L, H, O), bias (*L, 1, O). A product of matrices with so few columns takes longer than a pass over x.
    """
    leading = weight.shape[:-2]
    x, weight, bias = (part.reshape(-1, *part.shape[-2:]).contiguous() for part in (x, weight, bias))
    with torch.cuda.device_of(x):
        result: Tensor = _FusedLast.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return result.reshape(*leading, *result.shape[-2:])


class _FusedLast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(h, weight)
        return fused.last_layer(h, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        h, weight = ctx.saved_tensors
        (many, rows, width), outputs = h.shape, weight.shape[-1]
        g, h_g = g.contiguous(), torch.empty_like(h)
        weight_g = bias_g = None
        if any(ctx.needs_input_grad[1:]):
            weight_g, bias_g = torch.empty_like(weight), weight.new_empty(many, 1, outputs)
        sizes = (rows, outputs, width, fused.MIN_SIDE, fused.SIDE, fused.SIDE)
        grid = (triton.cdiv(width, fused.SIDE), many)
        fused.last_backward[grid](g, weight, h, h_g, weight_g, bias_g, None, *sizes, False)
        return h_g, weight_g, bias_g


def _tall(width: int) -> int:
    """Rows per program: several if they fit into a warp."""
    return max(1, min(STRIP, WARP // int(triton.next_power_of_2(width))))


def _warps(width: int) -> int:
    return max(1, int(triton.next_power_of_2(width)) // WARP)


@kernel
def _normalised(
    h: tl.tensor, bias: tl.tensor, there: tl.tensor, width: tl.constexpr,
    slope: tl.constexpr, cube: tl.constexpr, epsilon: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """Of a block of whole rows: n, the slope of gelu, and 1 / std by row."""
    total = tl.load(h, there, 0.0).to(tl.float32) + bias
    square = total * total
    # (1 + tanh(z)) / 2 = sigmoid(2 z)
    share = tl.sigmoid(2 * slope * total * (1 + cube * square))
    active = tl.where(there, total * share, 0.0)
    centred = tl.where(there, active - (tl.sum(active, 1) / width)[:, None], 0.0)
    inverse = 1 / tl.sqrt(tl.sum(centred * centred, 1) / width + epsilon)
    bend = share + 2 * slope * total * share * (1 - share) * (1 + 3 * cube * square)
    return centred * inverse[:, None], bend, inverse


@kernel
def _forward(
    h: tl.tensor, bias: tl.tensor, scale: tl.tensor, shift: tl.tensor, y: tl.tensor, rows: tl.tensor,
    width: tl.constexpr, tall: tl.constexpr, wide: tl.constexpr,
    slope: tl.constexpr, cube: tl.constexpr, epsilon: tl.constexpr,
) -> None:  # fmt: skip
    """y (N, B, H), some rows of it."""
    network = tl.program_id(1).to(tl.int64)
    row, column = tl.program_id(0) * tall + tl.arange(0, tall), tl.arange(0, wide)
    place, there = tile(row, column, rows, width)
    inside, first = column < width, network * width + column
    before = tl.load(bias + first, inside, 0.0)[None, :]
    n, _, _ = _normalised(h + network * rows * width + place, before, there, width, slope, cube, epsilon)
    total = n * tl.load(scale + first, inside, 0.0)[None, :] + tl.load(shift + first, inside, 0.0)[None, :]
    tl.store(y + network * rows * width + place, total.to(y.dtype.element_ty), there)


@kernel
def _backward(
    g: tl.tensor, h: tl.tensor, bias: tl.tensor, scale: tl.tensor, h_g: tl.tensor, sums: tl.tensor,
    many: tl.tensor, rows: tl.tensor,
    width: tl.constexpr, tall: tl.constexpr, wide: tl.constexpr, strip: tl.constexpr,
    slope: tl.constexpr, cube: tl.constexpr, epsilon: tl.constexpr,
) -> None:  # fmt: skip
    """h_g (N, B, H), a strip of rows of it; with `sums` also the gradients of bias, scale and shift, summed over it."""
    network = tl.program_id(1).to(tl.int64)
    column = tl.arange(0, wide)
    inside, first = column < width, network * width + column
    before, factor = tl.load(bias + first, inside, 0.0)[None, :], tl.load(scale + first, inside, 0.0)[None, :]
    bias_sum, scale_sum = tl.zeros((tall, wide), tl.float32), tl.zeros((tall, wide), tl.float32)
    shift_sum = tl.zeros((tall, wide), tl.float32)
    for start in range(0, strip, tall):
        row = tl.program_id(0) * strip + start + tl.arange(0, tall)
        place, there = tile(row, column, rows, width)
        place += network * rows * width
        n, bend, inverse = _normalised(h + place, before, there, width, slope, cube, epsilon)
        gradient = tl.load(g + place, there, 0.0).to(tl.float32)
        n_g = gradient * factor
        mean, projected = tl.sum(n_g, 1) / width, tl.sum(n_g * n, 1) / width
        total = (n_g - mean[:, None] - n * projected[:, None]) * inverse[:, None] * bend
        tl.store(h_g + place, total.to(h_g.dtype.element_ty), there)
        if sums is not None:
            bias_sum += tl.where(there, total, 0.0)
            scale_sum += gradient * n
            shift_sum += gradient
    if sums is not None:
        strips = tl.num_programs(0)
        sums += (network * strips + tl.program_id(0)) * width + column
        apart = many * strips * width
        tl.store(sums, tl.sum(bias_sum, 0), inside)
        tl.store(sums + apart, tl.sum(scale_sum, 0), inside)
        tl.store(sums + 2 * apart, tl.sum(shift_sum, 0), inside)
