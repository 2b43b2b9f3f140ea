"""The least time that an agent's update can take: arithmetic and memory traffic, counted, at a device's peak.

Counted are the matrix products, each of which reads its factors and writes its result once, the optimiser (it reads
weight, gradient and two moments and writes three of them) and the targets. What can be fused into these is free.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mocoda.agents import Agent
from mocoda.agents.agent import TARGET
from mocoda.agents.train import train_agents
from mocoda.data.transitions import Transitions
from mocoda.engine import networks
from mocoda.engine.randomness import Stream

# Products per second in TF32 (dense) and bytes per second, by the maker's data sheet.
PEAKS = {"NVIDIA H200": (494e12, 4.8e12)}


class Work(NamedTuple):
    """What an update of one run takes, on average."""

    operations: float
    bytes: float

    def milliseconds(self, runs: int, device_name: str) -> float | None:
        """For `runs` runs at once, with arithmetic and traffic side by side; None on a device we have no peaks of."""
        if device_name not in PEAKS:
            return None
        operations, traffic = PEAKS[device_name]
        return 1e3 * runs * max(self.operations / operations, self.bytes / traffic)


def work(agent: Agent, state: int, action: int) -> Work:
    """Counts the updates of an agent's last stage, over a whole period of its update_every."""
    stage = agent.stages()[-1]
    period = math.lcm(*stage.update_every.values())
    moved = 0.0
    sizes = agent.networks(2 * state if agent.goals_from_episodes else state, action)  # a goal is a state too
    for group, every in stage.update_every.items():
        network = sizes[group.removeprefix(TARGET)]
        layers = zip(network.sizes[:-1], network.sizes[1:], strict=True)
        weights = (network.members or 1) * sum(inputs * outputs + outputs for inputs, outputs in layers)
        weights += (network.members or 1) * 2 * sum(network.sizes[1:-1]) * network.norm
        moved += 4 * weights * (3 if group.startswith(TARGET) else 7) / every
    stream = Stream(0, "roofline")
    rows = stream.normal(8, state)
    data = Transitions(rows, stream.uniform(8, action, low=-1.0), rows, -torch.ones(8), episode=torch.zeros(8).long())
    counts = []
    for updates in (0, period):  # the difference leaves out stages before the last
        with _unpadded(), _Products() as products:
            train_agents({"data": data}, agent, seeds=[0], updates=period + updates)
        counts.append((products.operations, products.bytes))
    operations, traffic = ((after - before) / period for before, after in zip(counts[0], counts[1], strict=True))
    return Work(operations, traffic + moved)


@contextmanager
def _unpadded() -> Iterator[None]:
    """Matrices of their true size, which a CPU would otherwise pad."""
    line, rows = networks.LINE, networks.ROWS
    networks.LINE = networks.ROWS = 1
    try:
        yield
    finally:
        networks.LINE, networks.ROWS = line, rows


class _Products(TorchDispatchMode):
    """Counts batched matrix products."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations, self.bytes = 0.0, 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.bmm.default, torch.ops.aten.baddbmm.default):
            left, right = (arg for arg in args[-2:] if isinstance(arg, Tensor))
            self.operations += 2 * left.numel() * right.shape[-1]
            self.bytes += 4 * (left.numel() + right.numel() + result.numel())
        return result
