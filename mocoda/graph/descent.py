"""Gradient descent on the networks that learn a graph: many updates are one program on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from mocoda.engine.networks import Weights
from mocoda.engine.optimise import Adam, Captured, in_turn
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream

CHUNK = 10  # updates that are one program on a GPU
Draw = Callable[[int, int], dict[str, Tensor]]  # number of the first update and of updates U -> tensors (U, ...)


def descend(
    weights: Weights,
    loss: Callable[[Mapping[str, Tensor]], Tensor],
    draw: Draw,
    *,
    rate: float,
    steps: int,
    decay: float = 0.0,
    progress: Progress = silent,
    stage: str = "",
) -> dict[str, Tensor]:
    """Adam with a learning rate that falls along a cosine; returns the trained weights.

    loss  of what `draw` gives for one update; what is random must be drawn there
    """
    adam = Adam([weight.requires_grad_() for weight in weights.values()], rate, decay)

    def update(given: Mapping[str, Tensor], phase: int) -> Tensor:
        value = loss(given)
        adam.step(value)
        return value.detach()

    chunk = Captured(in_turn(update), next(iter(weights.values())).device)
    for start in range(0, steps, CHUNK):
        updates = min(CHUNK, steps - start)
        adam.learning_rate.fill_(rate * 0.5 * (1 + math.cos(math.pi * start / steps)))
        chunk(draw(start, updates))
        progress(stage, start + updates, steps)
    return {name: weight.detach() for name, weight in weights.items()}


def drawn_rows(often: Tensor, shape: tuple[int, int, int], updates: int, stream: Stream) -> Tensor:
    """Numbers (U, R, C, B) of rows drawn as often (C, M) as they are to be."""
    runs, _, batch = shape
    drawn = [stream.categories(own, updates * runs * batch) for own in often]
    return torch.stack([own.view(updates, runs, batch) for own in drawn], 2)
