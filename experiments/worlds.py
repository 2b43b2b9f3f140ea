"""Small worlds whose true dynamics are known, and true dynamics in the place of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.dynamics import Prediction
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.tasks.navigation import Navigation

NEAR = 0.3  # distance within which the bodies on a line act on each other
NOISE = 0.05  # standard deviation of what is added to their velocities


class TrueModel(NamedTuple):
    """The true dynamics of a task, in the place of a model."""

    task: Any

    def sample(self, rows: Tensor, *, seed: int | Stream) -> Tensor:
        next_state: Tensor = self.task.step(rows)
        return next_state


class NoisyWorld(NamedTuple):
    """A world whose true dynamics are known, and the noise in what is recorded."""

    name: str
    graph: LocalGraph
    asked: tuple[str, ...]  # the factors that questions change, together; the first of them also alone
    record: Callable[[int, Stream], Tensor]  # rows (N, S + A)
    step: Callable[[Tensor, Tensor], Tensor]  # rows, noise (N, S) -> next states (N, S)

    def collect(self, rows: int, stream: Stream) -> tuple[Transitions, Tensor]:
        """Recorded transitions and the noise in them."""
        walked, width = self.record(rows, stream.child("rows")), self.graph.state_width
        noise = stream.child("noise").normal(rows, width)
        return Transitions(walked[:, :width], walked[:, width:], self.step(walked, noise)), noise


class Knowing(NamedTuple):
    """A model that knows the dynamics, but of the noise only that its mean is zero."""

    world: NoisyWorld

    @property
    def graph(self) -> LocalGraph:
        return self.world.graph

    def predict(self, rows: Tensor) -> Prediction:
        mean = self.sample(rows, seed=0)[None]
        return Prediction(mean, torch.zeros_like(mean))

    def sample(self, rows: Tensor, *, seed: int | Stream) -> Tensor:
        return self.world.step(rows, torch.zeros_like(rows[:, : self.world.graph.state_width]))


def navigation() -> NoisyWorld:
    """The L of 2D Navigation; what if y and dy had been another row's."""
    task = Navigation()
    return NoisyWorld(
        "navigation",
        task.graph,
        ("y", "dy"),
        lambda rows, stream: task.collect(rows, seed=stream).rows,
        lambda rows, noise: task.step(rows),
    )


def bodies() -> NoisyWorld:
    """Two bodies on a line, position and velocity each, the first one pushed; one of them is always near its place."""

    def near(rows: Tensor) -> Tensor:
        return (rows[:, 0] - rows[:, 2]).abs() < NEAR

    def mask(rows: Tensor) -> Tensor:
        sparsest = torch.tensor([[True, False], [False, True], [True, False]], device=rows.device)
        meeting = torch.tensor([[False, True], [True, False], [False, False]], device=rows.device)
        return sparsest | (near(rows)[:, None, None] & meeting)

    def record(rows: int, stream: Stream) -> Tensor:
        anywhere, velocity = stream.uniform(rows, low=-1.0), stream.uniform(rows, 2, low=-1.0)
        place, push = stream.uniform(rows, low=0.3, high=0.7), stream.uniform(rows, low=-1.0)
        first = torch.arange(rows) < rows // 2
        a, b = torch.where(first, anywhere, place), torch.where(first, -place, anywhere)
        return torch.stack([a, velocity[:, 0], b, velocity[:, 1], push], 1)

    def step(rows: Tensor, noise: Tensor) -> Tensor:
        position, velocity, push = rows[:, [0, 2]], rows[:, [1, 3]], rows[:, 4:]
        apart = rows[:, 0] - rows[:, 2]
        force = torch.where(near(rows), 12 * (NEAR - apart.abs()) * apart, 0.0)
        gained = torch.stack([force, -force], 1) + 0.3 * torch.cat([(2 * push).tanh(), torch.zeros_like(push)], 1)
        velocity = velocity - 0.2 * velocity * velocity.abs() + gained + NOISE * noise[:, [1, 3]]
        return torch.stack([position + 0.2 * velocity, velocity], 2).flatten(1)

    factors = {"a": slice(0, 2), "b": slice(2, 4)}
    graph = LocalGraph(state=factors, action={"push": 0}, edges={"a": ["a", "push"], "b": ["b"]}, local=mask)
    return NoisyWorld("bodies", graph, ("a", "push"), record, step)
