"""Small worlds whose true dynamics are known: bodies that act on each other when they are near."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.dynamics import Prediction
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.tasks.navigation import Navigation

NEAR = 0.3  # distance within which the bodies on a line act on each other
NOISE = 0.05  # standard deviation of what is added to their velocities


class Bodies:
    """k bodies in a square that circle by themselves. A push moves the first; where two are near, they share it.

    Recorded pushes are up to 1 in each direction, but no more than a quarter of that with another body near the first.
    """

    REACH = 0.15

    def __init__(self, bodies: int) -> None:
        names = [f"body{i}" for i in range(bodies)]
        self.bodies = bodies
        self.graph = LocalGraph(
            state={name: slice(2 * i, 2 * i + 2) for i, name in enumerate(names)},
            action={"push": slice(0, 2)},
            edges={name: [name] if i else [name, "push"] for i, name in enumerate(names)},
            local=self._mask,
        )

    def step(self, rows: Tensor) -> Tensor:
        place, push = self._place(rows), rows[:, None, -2:]
        apart = place[:, :, None] - place[:, None]  # (N, k, k, 2), from the second to the first
        close = (1 - apart.norm(dim=3, keepdim=True) / self.REACH).clamp(min=0) * self._others(rows)[..., None]
        centred = place - 0.5
        turned = torch.stack([-centred[..., 1], centred[..., 0]], 2)
        moved = place + 0.04 * turned - 0.02 * centred + 0.3 * (close * apart).sum(2)
        shared = 0.05 * push * close[:, 0, 1:]  # of the first body's push, with every other one
        moved[:, 0] += 0.05 * push[:, 0] - shared.sum(1)
        moved[:, 1:] += shared
        next_state: Tensor = moved.flatten(1)
        return next_state

    def collect(self, rows: int, *, seed: int | Stream, steps: int = 20) -> Transitions:
        """Walks of `steps` from everywhere."""
        stream = as_stream(seed, "bodies-collect", device="cpu")
        state, recorded = stream.uniform(-(-rows // steps), 2 * self.bodies), []
        for _ in range(steps):
            push = stream.uniform(len(state), 2, low=-1.0)
            touching = self._near(torch.cat([state, push], 1))[:, 0].sum(1) > 1
            recorded.append(torch.cat([state, torch.where(touching[:, None], 0.25, 1.0) * push], 1))
            state = self.step(recorded[-1])
        walked = torch.cat(recorded)[:rows]
        return Transitions(walked[:, :-2], walked[:, -2:], self.step(walked))

    def _place(self, rows: Tensor) -> Tensor:
        return rows[:, :-2].reshape(len(rows), self.bodies, 2)

    def _others(self, rows: Tensor) -> Tensor:
        return ~torch.eye(self.bodies, dtype=torch.bool, device=rows.device).expand(len(rows), -1, -1)

    def _near(self, rows: Tensor) -> Tensor:
        """Which bodies are near which, each near itself: bool (N, k, k)."""
        place = self._place(rows)
        near: Tensor = (place[:, :, None] - place[:, None]).norm(dim=3) < self.REACH
        return near | ~self._others(rows)

    def _mask(self, rows: Tensor) -> Tensor:
        near = self._near(rows)
        return torch.cat([near, near[:, :1]], 1)  # a push reaches the first body and those near it


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
