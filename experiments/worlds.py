"""Small worlds whose true dynamics are known, and true dynamics in the place of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise, permutations
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.dynamics import Prediction
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.tasks.navigation import Navigation

NEAR = 0.3  # distance within which the bodies on a line act on each other
NOISE = 0.05  # standard deviation of what is added to their velocities
EPISODE = 25  # recorded steps of a coupled world
LEAST_EFFECT = 0.05  # standard deviations of a column's recorded changes: a parent that changes less has no edge


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


class CoupledWorld(ABC):
    """A world of continuous interactions, with exact next states and exact local edges, recorded with little variety.

    A parent acts on a child in a row if the child's next state would be another one without it.

    factors  state factor -> its columns
    action   columns of the action
    always   child -> parents that it has in all rows, besides itself
    """

    name: ClassVar[str]
    factors: ClassVar[Mapping[str, Sequence[str]]]
    action: ClassVar[Sequence[str]]
    always: ClassVar[Mapping[str, Sequence[str]]]

    @abstractmethod
    def start(self, n: int, stream: Stream) -> Tensor:
        """The first states of n recorded episodes, (n, S)."""

    @abstractmethod
    def act(self, state: Tensor, stream: Stream) -> Tensor:
        """Recorded actions (N, A) in states (N, S)."""

    @abstractmethod
    def step(self, rows: Tensor) -> Tensor:
        """The next states (N, S) of rows (N, S + A)."""

    @abstractmethod
    def without(self, rows: Tensor, parent: int) -> Tensor:
        """Rows (N, S + A) in which a state factor does nothing to the others."""

    @cached_property
    def graph(self) -> LocalGraph:
        ends = pairwise(accumulate(map(len, self.factors.values()), initial=0))
        return LocalGraph(
            state={name: slice(*own) for name, own in zip(self.factors, ends, strict=True)},
            action={"action": slice(0, len(self.action))},
            edges={name: [name, *self.always.get(name, ())] for name in self.factors},
            local=self.local_mask,
        )

    @property
    def columns(self) -> tuple[str, ...]:
        return (*(f"{name}.{part}" for name, parts in self.factors.items() for part in parts), *self.action)

    @cached_property
    def sizes(self) -> Tensor:
        """The standard deviation of each column's recorded changes, (S,)."""
        data = self.collect(4_000, seed=0)
        return (data.next_state - data.state).std(0)

    def local_mask(self, rows: Tensor) -> Tensor:
        """The true edges of each row, bool (N, P, C)."""
        after, mask = self.step(rows), self.graph.sparsest.to(rows.device).repeat(len(rows), 1, 1)
        least, children = LEAST_EFFECT * self.sizes.to(rows.device), self.graph.children
        for parent, child in permutations(range(len(children)), 2):
            own = list(self.graph.factors[children[child]])
            moved = (self.step(self.without(rows, parent)) - after)[:, own].abs() > least[own]
            mask[:, parent, child] |= moved.any(1)
        return mask

    def collect(self, rows: int, *, seed: int | Stream) -> Transitions:
        """Records episodes of 25 steps (the last may be shorter)."""
        stream, episodes = as_stream(seed, f"{self.name}-collect", device="cpu"), -(-rows // EPISODE)
        state, recorded = self.start(episodes, stream), list[Tensor]()
        for _ in range(EPISODE):
            recorded.append(torch.cat([state, self.act(state, stream)], 1))
            state = self.step(recorded[-1])
        walked, width = torch.stack(recorded, 1).flatten(0, 1)[:rows], self.graph.state_width
        return Transitions(
            walked[:, :width],
            walked[:, width:],
            self.step(walked),
            columns=self.columns,
            source={"task": self.name, "rows": rows, "seed": stream.seed},
            episode=torch.arange(rows) // EPISODE,
        )


class Traffic(CoupledWorld):
    """An ego on a road of three lanes, and three cars whose drivers brake for whoever is ahead in their lane.

    Places are in metres, relative to a point that moves at 22 m/s. In recorded episodes, cars start far apart.
    """

    name = "traffic"
    factors: ClassVar = {name: ("x", "y", "v") for name in ("ego", "car1", "car2", "car3")}
    action = ("speed", "steer")
    always: ClassVar = {"ego": ("action",)}
    seconds, usual, reach = 0.5, 22.0, 100.0

    def start(self, n: int, stream: Stream) -> Tensor:
        place = 40.0 * stream.uniform(n, 4).argsort(1) + stream.uniform(n, 4, low=-20.0, high=20.0)
        lane = (3 * stream.uniform(n, 4)).floor()
        return torch.stack([place, lane, stream.uniform(n, 4, low=16.0, high=28.0)], 2).flatten(1)

    def act(self, state: Tensor, stream: Stream) -> Tensor:
        speed = (24 - state[:, 2]) / 8 + stream.normal(len(state))
        return torch.stack([speed, stream.uniform(len(state), low=-1.5, high=1.5)], 1).clamp(-1, 1)

    def step(self, rows: Tensor) -> Tensor:
        x, y, v = rows[:, :12].unflatten(1, (4, 3)).unbind(2)
        ahead = x[:, None] - x[:, :, None]  # (N, driver, other)
        follows = ((y[:, None] - y[:, :, None]).abs() < 0.5) & (ahead > 0) & (ahead < self.reach)
        gap, leader = torch.where(follows, ahead, self.reach).min(2)
        near, closing = 1 - gap / self.reach, (v - v.gather(1, leader)).clamp(min=0)
        gained = 0.4 * (self.usual - v) - near * (5.0 * near + 0.6 * closing)
        gained[:, 0] = 3.0 * rows[:, 12]
        speed = v + self.seconds * gained.clamp(-6.0, 3.0)
        lane = torch.cat([(y[:, :1] + 0.4 * rows[:, 13:]).clamp(0, 2), y[:, 1:]], 1)
        return torch.stack([x + self.seconds * (speed - self.usual), lane, speed], 2).flatten(1)

    def without(self, rows: Tensor, parent: int) -> Tensor:
        away = rows.clone()
        away[:, 3 * parent + 1] = 9.0  # a lane of its own
        return away


class Springs(CoupledWorld):
    """Four bodies at the corners of a square; some pairs attract or repel each other.

    `a` and `b` are on a spring. The forces between `b` and `c`, `c` and `d`, and `a` and `d` fade with their distance;
    other pairs do nothing to each other. In a recorded episode, one body starts anywhere and the others at home.
    """

    name = "springs"
    factors: ClassVar = {name: ("x", "y", "vx", "vy") for name in "abcd"}
    action = ("push.x", "push.y")
    always: ClassVar = {"a": ("b", "action"), "b": ("a",)}
    homes = torch.tensor([[0.1, 0.1], [0.9, 0.1], [0.9, 0.9], [0.1, 0.9]])
    fading = ((1, 2, 3.0), (2, 3, -3.0), (0, 3, -3.0))
    length, seconds = 0.18, 0.2

    def start(self, n: int, stream: Stream) -> Tensor:
        place, each = self.homes + 0.05 * stream.normal(n, 4, 2), torch.arange(n)
        place[each, each % 4] = stream.uniform(n, 2)
        return torch.cat([place, 0.1 * stream.normal(n, 4, 2)], 2).flatten(1)

    def act(self, state: Tensor, stream: Stream) -> Tensor:
        return stream.uniform(len(state), 2, low=-1.0)

    def step(self, rows: Tensor) -> Tensor:
        place, speed = rows[:, :16].unflatten(1, (4, 4)).split(2, 2)
        force = 0.6 * (self.homes.to(rows.device) - place) - 0.2 * speed
        force[:, 0] += 0.4 * rows[:, 16:]
        spring = 0.4 * (place[:, 1] - place[:, 0])
        force[:, 0] += spring
        force[:, 1] -= spring
        for one, other, strength in self.fading:
            apart = place[:, other] - place[:, one]
            pull = strength * apart * (-(apart / self.length).square().sum(1, keepdim=True) / 2).exp()
            force[:, one] += pull
            force[:, other] -= pull
        speed = speed + self.seconds * force
        return torch.cat([place + self.seconds * speed, speed], 2).flatten(1)

    def without(self, rows: Tensor, parent: int) -> Tensor:
        away = rows.clone()
        away[:, 4 * parent : 4 * parent + 2] = 99.0
        return away


class Resource(CoupledWorld):
    """Three pumps and a town draw from a tank that the action fills; a pump feels the tank only when it runs low.

    A pump draws if its stock is below what it wants. In a recorded episode, one pump wants more than nothing.
    """

    name = "resource"
    factors: ClassVar = {"tank": ("level",), "town": ("load",)} | {f"pump{i}": ("stock", "wanted") for i in (1, 2, 3)}
    action = ("filled",)
    always: ClassVar = {"tank": ("town", "action")}

    def start(self, n: int, stream: Stream) -> Tensor:
        state, each = stream.uniform(n, 8), torch.arange(n)
        wanted = 0.3 + 0.7 * state[each, 3 + 2 * (each % 3)]
        state[:, 3::2] = 0
        state[each, 3 + 2 * (each % 3)] = wanted
        return state

    def act(self, state: Tensor, stream: Stream) -> Tensor:
        return stream.uniform(len(state), 1)

    def step(self, rows: Tensor) -> Tensor:
        level, load, stock, wanted = rows[:, :1], rows[:, 1:2], rows[:, 2:8:2], rows[:, 3:8:2]
        drawn = 0.2 * ((wanted - stock) / 0.3).clamp(0, 1) * (level / 0.4).clamp(max=1)
        level = (level - drawn.sum(1, keepdim=True) - 0.1 * load + 0.2 * rows[:, 8:]).clamp(0, 1)
        pumps = torch.stack([0.95 * stock + drawn, wanted], 2).flatten(1)
        return torch.cat([level, load + 0.2 * load * (1 - load) * (0.5 - load), pumps], 1)

    def without(self, rows: Tensor, parent: int) -> Tensor:
        away = rows.clone()
        if parent == 0:
            away[:, 0] = 1.0  # full
        elif parent > 1:
            away[:, 2 * parent - 1] = 0.0  # it wants nothing
        return away


COUPLED = {kind.name: kind for kind in (Traffic, Springs, Resource)}
