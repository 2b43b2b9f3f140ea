"""Runs many updates of weights as one program, and Adam over the weights of many runs.

An update is a function of tensors: it reads its slice of a chunk (batch indices, noise), changes the weights in place
and returns its losses. On the CPU a chunk is a loop; on a GPU it is one captured CUDA graph with the same arithmetic.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mocoda.engine.checkpoint import check_tensors

Tensors = Mapping[str, Tensor]
Work = Callable[[Tensors, int], Tensor]


class Captured:
    """Calls `work` with tensors; on CUDA, from the second call of a kind on, it replays a captured graph of it.

    Calls are of one kind if their tensors have the same shapes and their `phase` is the same. The first runs eagerly,
    with the same arithmetic, which also warms everything up. On the CPU all calls are eager.
    """

    def __init__(self, work: Work, device: torch.device) -> None:
        self.work = work
        self.device = device
        self._graphs: dict[Any, tuple[torch.cuda.CUDAGraph, dict[str, Tensor], Tensor] | None] = {}

    def __call__(self, tensors: Tensors, phase: int = 0) -> Tensor:
        if self.device.type != "cuda":
            return self.work(tensors, phase)
        with torch.cuda.device(self.device):
            return self._replayed(tensors, phase)

    def _replayed(self, tensors: Tensors, phase: int) -> Tensor:
        kind = (phase, *((name, tensor.shape) for name, tensor in tensors.items()))
        if kind not in self._graphs:
            self._graphs[kind] = None
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                result = self.work(tensors, phase)
            torch.cuda.current_stream().wait_stream(side)
            return result
        captured = self._graphs[kind]
        if captured is None:
            static = {name: tensor.clone() for name, tensor in tensors.items()}
            graph = torch.cuda.CUDAGraph()
            gc.collect()
            gc.disable()  # a graph of earlier work that is freed during a capture would break it
            try:
                with torch.cuda.graph(graph):
                    output = self.work(static, phase)
            finally:
                gc.enable()
            captured = self._graphs[kind] = (graph, static, output)
        graph, static, output = captured
        for name, tensor in tensors.items():
            static[name].copy_(tensor)
        graph.replay()
        return output.clone()


def in_turn(update: Work) -> Work:
    """Calls `update` with each slice of a chunk of tensors (U, ...) and its number, counted from the phase.

    The results are stacked, (U, ...).
    """

    def chunk(tensors: Tensors, phase: int) -> Tensor:
        count = len(next(iter(tensors.values())))
        parts = ({name: tensor[i] for name, tensor in tensors.items()} for i in range(count))
        return torch.stack([update(part, phase + i) for i, part in enumerate(parts)])

    return chunk


def side_by_side(works: Sequence[Callable[[], Tensor]], device: torch.device) -> list[Tensor]:
    """Calls functions that do not depend on each other: a GPU runs them concurrently, a CPU in turn."""
    if device.type != "cuda" or len(works) == 1:
        return [work() for work in works]
    here, results = torch.cuda.current_stream(device), []
    for work, stream in zip(works, _streams(device, len(works)), strict=True):
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            results.append(work())
    # What follows here, and what these streams do next, begins when all are done: memory can change hands safely.
    for stream in _streams(device, len(works)):
        here.wait_stream(stream)
    return results


@cache
def _streams(device: torch.device, count: int) -> list[torch.cuda.Stream]:
    """Always the same streams, as each keeps its own memory."""
    return [torch.cuda.Stream(device) for _ in range(count)]


@contextmanager
def fast_products(device: torch.device) -> Iterator[None]:
    """Lets a GPU multiply matrices in TF32 (products of 10-bit mantissas, summed in float32) inside the block."""
    before = torch.get_float32_matmul_precision()
    try:
        if device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class Adam:
    """torch's Adam over the stacked weights of many runs; as it is elementwise, runs do not affect each other."""

    def __init__(
        self, weights: Sequence[Tensor], learning_rate: float, weight_decay: float = 0.0, name: str = "adam"
    ) -> None:
        self.name = name
        self.weights = list(weights)
        device = self.weights[0].device
        self.learning_rate = torch.tensor(learning_rate, device=device)
        self.optimiser = torch.optim.Adam(
            self.weights,
            lr=self.learning_rate,
            weight_decay=weight_decay,
            # torch's fused CPU kernel rounds the last numbers of an array differently: runs would affect each other.
            fused=device.type == "cuda",
            foreach=False,
            capturable=device.type == "cuda",
        )

    def step(self, loss: Tensor) -> None:
        """Does one step of gradient descent on the loss."""
        self.differentiate(loss)
        self.descend()

    def differentiate(self, loss: Tensor) -> None:
        """Computes the gradients of the loss, for `descend`."""
        for weight, gradient in zip(self.weights, torch.autograd.grad(loss, self.weights), strict=True):
            weight.grad = gradient.contiguous()  # the fused kernel wants it laid out as its weight is

    def descend(self) -> None:
        """Updates the weights by the gradients that were computed last."""
        self.optimiser.step()

    def state(self) -> dict[str, Tensor]:
        """The optimiser's tensors by name, as `restore` takes them."""
        return {
            f"{self.name}.{i}.{name}": value
            for i, weight in enumerate(self.weights)
            for name, value in self.optimiser.state[weight].items()
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restores this optimiser's state; a weight that has not been updated yet has none."""
        for i, weight in enumerate(self.weights):
            prefix = f"{self.name}.{i}."
            own = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
            if own:
                check_tensors(own, {"step": weight.new_empty(()), "exp_avg": weight, "exp_avg_sq": weight})
            self.optimiser.state[weight].update({name: value.to(weight.device) for name, value in own.items()})
