"""Small networks that see every child beside every parent, and the probabilities of edges that they give.

Axes: *L leading axes (runs), C children, P parents, B rows, W columns of a row, K and L' columns of the widest child
and parent.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import torch
from torch import Tensor
from torch.nn.functional import pad

from mocoda.engine.networks import Weights, linear, linear_weights, mlp, mlp_weights
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph

MIN_EDGE_SHARE = 0.02  # minimum edge probability relative to P(any edge to the child)
MIN_DISTANCE = 0.03  # standard deviations of a difference of two columns: shorter distances all count as this one
MAX_PAIR_ROWS = 2**20  # rows, times networks of pairs, at a time on a GPU: a quarter of a gigabyte per hidden layer


@dataclass(frozen=True)
class Layout:
    """Where the columns of the factors are, as index tensors on a device; the number W stands for a missing column."""

    graph: LocalGraph
    device: torch.device

    @cached_property
    def parents(self) -> Tensor:
        """The columns of each parent, (P, L')."""
        widest = max(map(len, self.graph.factors.values()))
        padded = [[*own, *[self.graph.width] * (widest - len(own))] for own in self.graph.factors.values()]
        return torch.tensor(padded, device=self.device)

    @cached_property
    def children(self) -> Tensor:
        """The columns of each child, (C, K)."""
        widest = max(len(self.graph.factors[child]) for child in self.graph.children)
        return self.parents[: len(self.graph.children), :widest]

    @cached_property
    def owned(self) -> Tensor:
        """Which columns belong to each parent, float (P, W)."""
        marks = torch.zeros(len(self.parents), self.graph.width + 1, device=self.device)
        return marks.scatter_(1, self.parents, 1.0)[:, :-1]

    @cached_property
    def alike(self) -> Tensor:
        """Which columns of a child have a counterpart in the parent, at the same place: float (C, P, 1, K)."""
        width = self.children.shape[1]
        there = (self.children[:, None] < self.graph.width) & (self.parents[:, :width] < self.graph.width)
        return there[:, :, None].float()

    @property
    def features(self) -> int:
        """The number of features that `pairs` gives for each pair."""
        return self.pairs(torch.zeros(1, 1, self.graph.width, device=self.device), empty_scaling(self)).shape[-1]

    def differences(self, rows: Tensor, other: Tensor | None = None) -> Tensor:
        """A child's columns less the parent's at the same places, (*L, C, P, B, K), of rows (*L, C or 1, B, W)."""
        own, others = (pad(rows if part is None else part, (0, 1)) for part in (rows, other))
        return (self._own(own) - self._other(others)[..., : self.children.shape[1]]) * self.alike

    def pairs(self, rows: Tensor, scaling: Weights, other: Tensor | None = None) -> Tensor:
        """Features of each child and parent in rows (*L, C or 1, B, W): float (*L, C, P, B, features).

        The columns of both, their differences, and the log distances in one and in two columns: what touches is near.

        other  rows that the parents are taken from; the same unless given
        """
        both_rows = [rows, rows if other is None else other]
        own, others = (pad((part - scaling["shift"]) / scaling["scale"], (0, 1)) for part in both_rows)
        differences, spread = self.differences(*both_rows), scaling["apart"][:, :, None]
        squares = differences.square()
        both = squares[..., self._first] + squares[..., self._second]
        mean_square = (spread[..., self._first].square() + spread[..., self._second].square()) / 2
        near = [_log_distance(squares / spread.square()), _log_distance(both / mean_square)]
        there = torch.cat([self.alike, self.alike[..., self._first] * self.alike[..., self._second]], -1)
        return torch.cat([self._own(own), self._other(others), differences / spread, torch.cat(near, -1) * there], -1)

    def _own(self, padded: Tensor) -> Tensor:
        """(*L, C, P, B, K)"""
        return self._gathered(padded, self.children[:, None].expand(-1, len(self.parents), -1))

    def _other(self, padded: Tensor) -> Tensor:
        """(*L, C, P, B, L')"""
        return self._gathered(padded, self.parents.expand(len(self.children), -1, -1))

    def _gathered(self, padded: Tensor, columns: Tensor) -> Tensor:
        """Columns (C, P, D) of rows (*L, C or 1, B, W + 1): (*L, C, P, B, D)."""
        *leading, _, batch, _ = padded.shape
        index = columns.flatten(1)[:, None].expand(*leading, len(columns), batch, -1)
        found = padded.expand(*leading, len(columns), batch, -1).gather(-1, index)
        gathered: Tensor = found.unflatten(-1, columns.shape[1:]).transpose(-3, -2)
        return gathered

    @cached_property
    def _first(self) -> Tensor:
        return torch.tensor([i for i, _ in self._couples], dtype=torch.long, device=self.device)

    @cached_property
    def _second(self) -> Tensor:
        return torch.tensor([j for _, j in self._couples], dtype=torch.long, device=self.device)

    @property
    def _couples(self) -> list[tuple[int, int]]:
        return list(combinations(range(self.children.shape[1]), 2))


def _log_distance(square: Tensor) -> Tensor:
    """0 at a distance of 1; short distances are resolved as finely as long ones."""
    return 0.5 * torch.log(square + MIN_DISTANCE**2)


def block_of(device: torch.device, networks: int, on_cpu: int) -> int:
    """The number of rows to evaluate at a time with this many networks of pairs; on a GPU limited by its memory."""
    return on_cpu if device.type == "cpu" else max(256, min(16_384, MAX_PAIR_ROWS // networks))


def empty_scaling(layout: Layout) -> dict[str, Tensor]:
    """Tensors with the shapes of the scaling that `pairs` uses."""
    wide, (children, width) = layout.graph.width, layout.children.shape
    shapes = {"shift": (wide,), "scale": (wide,), "apart": (children, len(layout.parents), width)}
    return {name: torch.ones(shape, device=layout.device) for name, shape in shapes.items()}


def pair_weights(layout: Layout, runs: int, hidden: int, outputs: int, more: int, stream: Stream) -> dict[str, Tensor]:
    """Networks that embed every parent beside its child, and map the sum of these and `more` inputs to the outputs."""
    children, parents = len(layout.children), len(layout.parents)
    weights = mlp_weights("pair", (runs, children, parents), (layout.features, hidden, hidden), stream)
    weights |= mlp_weights("sum", (runs, children), (hidden + more, hidden, hidden, outputs), stream)
    return weights | linear_weights("skip", (runs, children), hidden, outputs, stream)


def gate_weights(layout: Layout, runs: int, hidden: int, stream: Stream) -> dict[str, Tensor]:
    """The weights of `gate_logits`."""
    weights = pair_weights(layout, runs, hidden, len(layout.parents), 0, stream)
    leading = (runs, len(layout.children), len(layout.parents))
    return weights | linear_weights("own", leading, hidden, 1, stream)


def gate_logits(weights: Weights, pairs: Tensor) -> Tensor:
    """Log odds of edges (*L, C, B, P), from each pair of parent and child and from all parents together."""
    each = embedded(weights, pairs)
    own = linear(weights, "own", each)[..., 0].movedim(-2, -1)
    return summed(weights, each.sum(-3)) + own


def embedded(weights: Weights, pairs: Tensor) -> Tensor:
    """Each parent beside its child, embedded: (*L, C, P, B, hidden)."""
    return mlp(weights, "pair", pairs).relu()


def summed(weights: Weights, total: Tensor, *more: Tensor) -> Tensor:
    """The outputs (*L, C, B, outputs) for the sum (*L, C, B, hidden) of a child's embedded parents."""
    return mlp(weights, "sum", torch.cat([total, *more], -1)) + linear(weights, "skip", total)


def gate_probabilities(layout: Layout, tensors: Weights, rows: Tensor) -> Tensor:
    """How likely each edge is at rows (B, W), float (B, P, C), by the tensors of a `GateLearner`."""
    weights = {name.removeprefix("gates."): tensor for name, tensor in tensors.items() if name.startswith("gates.")}
    logits = gate_logits(weights, layout.pairs(rows[None], tensors))
    always, (slope, offset) = tensors["always"], tensors["calibration"]
    odds = logits.sigmoid().mean(0).movedim(0, -1).clamp(1e-6, 1 - 1e-6).logit()
    made = (slope * odds + offset).sigmoid()
    departs = 1 - torch.where(always, 1.0, 1 - made).prod(-2, keepdim=True)
    return through_bodies(torch.maximum(made, MIN_EDGE_SHARE * departs), always)


def through_bodies(made: Tensor, always: Tensor) -> Tensor:
    """Probabilities (B, P, C) in which whatever an action always moves acts wherever the action does.

    An action reaches other factors through the body that it moves. The evidence often attributes this to the action
    alone, since where and how the action acts determines where the body must be.

    always  bool (P, C), edges that are present in all rows
    """
    children = always.shape[1]
    bodies, actions = made.split([children, len(always) - children], -2)
    for acts, moves in zip(actions.unbind(-2), always[children:], strict=True):
        elsewhere = torch.where(moves, 0.0, acts)  # on factors that it does not always move
        bodies = torch.maximum(bodies, moves[:, None] * elsewhere[:, None])
    return torch.cat([bodies, actions], -2)
