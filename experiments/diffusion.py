"""A diffusion model of whole transitions: what SynthER makes data with, in the place of a graph and a dynamics model.

A transition is a vector: state, action, and the change of state, standardised. A network learns to remove noise of any
size from such vectors; from pure noise it then makes new ones in a few steps. Preconditioning, noise sizes and the
sampler are those of Karras et al. (2022), "EDM".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.networks import Weights, mlp, mlp_weights, moments
from mocoda.engine.optimise import Adam, Captured, Tensors, fast_products, in_turn
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream, as_stream

CHUNK = 50  # updates that are one program on a GPU
SMALLEST, LARGEST, CURVE = 0.002, 80.0, 7.0  # sizes of the noise while sampling
LOG_MEAN, LOG_STD = -1.2, 1.2  # of the noise while training, log-normal
FREQUENCIES = 8  # of the sines and cosines that tell the network the size of the noise
BLOCK = 500_000  # rows that are made at a time


@dataclass(frozen=True)
class DiffusionConfig:
    """How a diffusion model is trained, and in how many steps it samples."""

    hidden: tuple[int, ...] = (512, 512, 512, 512)
    updates: int = 20_000
    batch: int = 1_024
    learning_rate: float = 1e-3
    average: float = 0.999  # share that the averaged weights keep in an update
    steps: int = 32  # of the sampler


@dataclass(frozen=True, eq=False)
class DiffusionParents:
    """A fitted model: new transitions, with their next states."""

    weights: Weights
    mean: Tensor  # (D,) of state, action and change
    scale: Tensor  # (D,)
    state_width: int
    steps: int

    name = "diffusion"

    def sample_with_children(self, n: int, *, seed: int | Stream) -> tuple[Tensor, Tensor]:
        stream = as_stream(seed, "diffusion", device=self.mean.device)
        sizes = [min(BLOCK, n - start) for start in range(0, n, BLOCK)]
        whole = torch.cat([self._block(size, stream.child(number)) for number, size in enumerate(sizes)])
        rows, change = (self.mean + self.scale * whole).split([len(self.mean) - self.state_width, self.state_width], 1)
        return rows, rows[:, : self.state_width] + change

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        return self.sample_with_children(n, seed=seed)[0]

    def _block(self, n: int, stream: Stream) -> Tensor:
        """n standardised vectors, by Heun's method along falling sizes of noise."""
        ramp = torch.linspace(0, 1, self.steps, device=self.mean.device)
        ends = LARGEST ** (1 / CURVE), SMALLEST ** (1 / CURVE)
        sizes: list[float] = [*((ends[0] + ramp * (ends[1] - ends[0])) ** CURVE).tolist(), 0.0]
        x: Tensor = sizes[0] * stream.normal(n, len(self.mean))
        with torch.no_grad(), fast_products(self.mean.device):
            for size, after in pairwise(sizes):
                slope = (x - self._clean(x, size)) / size
                ahead = x + (after - size) * slope
                if after:
                    slope = (slope + (ahead - self._clean(ahead, after)) / after) / 2
                x = x + (after - size) * slope
        return x

    def _clean(self, x: Tensor, size: float) -> Tensor:
        return denoised(self.weights, x, torch.full_like(x[:, :1], size))


def denoised(weights: Weights, x: Tensor, size: Tensor) -> Tensor:
    """What the network takes noisy vectors x (..., B, D) for, given the size of their noise (..., B, 1)."""
    wave = size.log() / 4 * 2.0 ** torch.arange(FREQUENCIES, device=x.device)
    inputs = torch.cat([x / (1 + size.square()).sqrt(), wave.sin(), wave.cos()], -1)
    residual = mlp(weights, "denoise", inputs)
    return x / (1 + size.square()) + size / (1 + size.square()).sqrt() * residual


def fit_diffusion(
    tables: Sequence[Transitions], seeds: Sequence[int], config: DiffusionConfig, progress: Progress = silent
) -> list[DiffusionParents]:
    """A model for every table and seed, all trained as one program."""
    device, width = tables[0].device, tables[0].state.shape[1]
    streams = [Stream(seed, "diffusion", device=device) for seed in seeds]
    whole = [torch.cat([table.rows, table.next_state - table.state], 1) for table in tables]
    units = [(mean.float(), std.clamp(min=1e-6).float()) for mean, std in map(moments, whole)]
    rows = [(part - mean) / scale for part, (mean, scale) in zip(whole, units, strict=True)]
    sizes = (rows[0].shape[1] + 2 * FREQUENCIES, *config.hidden, rows[0].shape[1])
    each = [mlp_weights("denoise", (), sizes, stream.child("weights")) for stream in streams]
    weights = {name: torch.stack([own[name] for own in each]).requires_grad_() for name in each[0]}
    averaged = {name: weight.detach().clone() for name, weight in weights.items()}
    adam = Adam(list(weights.values()), config.learning_rate)

    def update(given: Tensors, phase: int) -> Tensor:
        clean = torch.stack([own[index] for own, index in zip(rows, given["index"], strict=True)])
        size = (LOG_MEAN + LOG_STD * given["size"]).exp()
        guess = denoised(weights, clean + size * given["noise"], size)
        loss = ((1 + size.square()) / size.square() * (guess - clean).square()).mean((-2, -1))
        adam.step(loss.sum())
        with torch.no_grad():
            for name, weight in weights.items():
                averaged[name].lerp_(weight, 1 - config.average)
        return loss.detach()

    chunk = Captured(in_turn(update), device)
    with fast_products(device):
        for done in range(0, config.updates, CHUNK):
            adam.learning_rate.fill_(config.learning_rate * 0.5 * (1 + math.cos(math.pi * done / config.updates)))
            count, batch = min(CHUNK, config.updates - done), config.batch
            index = [stream.integers(len(own), count, batch) for stream, own in zip(streams, rows, strict=True)]
            noise = [stream.normal(count, batch, sizes[-1]) for stream in streams]
            size = [stream.normal(count, batch, 1) for stream in streams]
            chunk({"index": torch.stack(index, 1), "noise": torch.stack(noise, 1), "size": torch.stack(size, 1)})
            progress("diffusion", done + count, config.updates)
    return [
        DiffusionParents({name: weight[run] for name, weight in averaged.items()}, mean, scale, width, config.steps)
        for run, (mean, scale) in enumerate(units)
    ]
