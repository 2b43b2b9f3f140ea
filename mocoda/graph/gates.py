"""Small networks that say how likely each edge is at a row: what the mask of a learned graph is cut from.

Axes: *L leading axes (runs), C children, P parents, B rows, W columns of a row, K and L' those of the widest child and
parent.
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

THIN = 0.02  # the least probability of an edge, times that of any, to a child that something acts on
CLOSEST = 0.03  # standard deviations of the difference of two columns within which it does not matter how near
BLOCK = 256  # rows at a time on a CPU, always so many: a row's probabilities do not depend on how many are asked for
MOST = 2**20  # rows, times networks of pairs, at a time on a GPU: a quarter of a gigabyte a hidden layer


@dataclass(frozen=True)
class Layout:
    """Where the columns of the factors are, as index tensors on a device; W stands for a column that is not there."""

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
        """Which columns are a parent's, float (P, W)."""
        marks = torch.zeros(len(self.parents), self.graph.width + 1, device=self.device)
        return marks.scatter_(1, self.parents, 1.0)[:, :-1]

    @cached_property
    def alike(self) -> Tensor:
        """Which columns of a child the parent has, too, at the same place: float (C, P, 1, K)."""
        width = self.children.shape[1]
        there = (self.children[:, None] < self.graph.width) & (self.parents[:, :width] < self.graph.width)
        return there[:, :, None].float()

    @property
    def features(self) -> int:
        """The length of what `pairs` says of a pair."""
        return self.pairs(torch.zeros(1, 1, self.graph.width, device=self.device), empty_scaling(self)).shape[-1]

    def differences(self, rows: Tensor) -> Tensor:
        """A child's columns less the parent's at the same places, (*L, C, P, B, K), of rows (*L, C or 1, B, W)."""
        padded = pad(rows, (0, 1))
        width = self.children.shape[1]
        return (self._own(padded) - self._other(padded)[..., :width]) * self.alike

    def pairs(self, rows: Tensor, scaling: Weights) -> Tensor:
        """What is said of each child and parent in rows (*L, C or 1, B, W): float (*L, C, P, B, features).

        The columns of both, and how far apart those at the same places are, one by one and two by two: what touches is
        near.
        """
        padded = pad((rows - scaling["shift"]) / scaling["scale"], (0, 1))
        differences, spread = self.differences(rows), scaling["apart"][:, :, None]
        squares = differences.square()
        both = squares[..., self._first] + squares[..., self._second]
        mean_square = (spread[..., self._first].square() + spread[..., self._second].square()) / 2
        near = [_log_distance(squares / spread.square()), _log_distance(both / mean_square)]
        there = torch.cat([self.alike, self.alike[..., self._first] * self.alike[..., self._second]], -1)
        return torch.cat(
            [self._own(padded), self._other(padded), differences / spread, torch.cat(near, -1) * there], -1
        )

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
    """0 at a distance of 1, so that what is near is told apart as finely as what is far."""
    return 0.5 * torch.log(square + CLOSEST**2)


def block_of(device: torch.device, networks: int, on_cpu: int) -> int:
    """Rows at a time, for so many networks of pairs; on a GPU as many as its memory takes without trouble."""
    return on_cpu if device.type == "cpu" else max(BLOCK, min(16_384, MOST // networks))


def empty_scaling(layout: Layout) -> dict[str, Tensor]:
    """Tensors with the shapes of what `pairs` measures by."""
    wide, (children, width) = layout.graph.width, layout.children.shape
    shapes = {"shift": (wide,), "scale": (wide,), "apart": (children, len(layout.parents), width)}
    return {name: torch.ones(shape, device=layout.device) for name, shape in shapes.items()}


def pair_weights(layout: Layout, runs: int, hidden: int, outputs: int, more: int, stream: Stream) -> dict[str, Tensor]:
    """Networks that embed every parent beside its child, and that make something of the sum and of `more` inputs."""
    children, parents = len(layout.children), len(layout.parents)
    weights = mlp_weights("pair", (runs, children, parents), (layout.features, hidden, hidden), stream)
    weights |= mlp_weights("sum", (runs, children), (hidden + more, hidden, hidden, outputs), stream)
    return weights | linear_weights("skip", (runs, children), hidden, outputs, stream)


def gate_weights(layout: Layout, runs: int, hidden: int, stream: Stream) -> dict[str, Tensor]:
    """Networks of `gate_logits`."""
    weights = pair_weights(layout, runs, hidden, len(layout.parents), 0, stream)
    leading = (runs, len(layout.children), len(layout.parents))
    return weights | linear_weights("own", leading, hidden, 1, stream)


def gate_logits(weights: Weights, pairs: Tensor) -> Tensor:
    """Log odds of edges (*L, C, B, P): what parent and child say by themselves, and what all parents do together."""
    each = embedded(weights, pairs)
    own = linear(weights, "own", each)[..., 0].movedim(-2, -1)
    return summed(weights, each.sum(-3)) + own


def embedded(weights: Weights, pairs: Tensor) -> Tensor:
    """Each parent beside its child, (*L, C, P, B, hidden)."""
    return mlp(weights, "pair", pairs).relu()


def summed(weights: Weights, total: Tensor, *more: Tensor) -> Tensor:
    """What the sum (*L, C, B, hidden) of a child's parents gives: (*L, C, B, outputs)."""
    return mlp(weights, "sum", torch.cat([total, *more], -1)) + linear(weights, "skip", total)


@dataclass(frozen=True, eq=False)
class Gates:
    """Trained networks for the probabilities of edges.

    graph        the factors; its edges do not matter here
    weights      (R, ...) each
    scaling      what `Layout.pairs` measures by
    calibration  slope and offset (2,) of the log odds
    always, never
                 edges that are not asked about, bool (P, C)
    """

    graph: LocalGraph
    weights: Weights
    scaling: Weights
    calibration: Tensor
    always: Tensor
    never: Tensor

    @property
    def device(self) -> torch.device:
        return self.calibration.device

    def tensors(self) -> dict[str, Tensor]:
        """All of them by name, as `of_tensors` takes them."""
        fixed = {"calibration": self.calibration, "always": self.always, "never": self.never}
        return {**self.scaling, **fixed, **{f"gates.{name}": weight for name, weight in self.weights.items()}}

    def to(self, device: torch.device) -> Gates:
        moved = {name: tensor.to(device) for name, tensor in self.tensors().items()}
        return of_tensors(self.graph, moved)

    @torch.no_grad()
    def probability(self, rows: Tensor) -> Tensor:
        """How likely each edge is at rows (N, W): float (N, P, C)."""
        block = block_of(rows.device, len(self.weights["skip.bias"]) * self.always.numel(), BLOCK)
        blocks = [self._block(pad(part, (0, 0, 0, block - len(part))))[: len(part)] for part in rows.split(block)]
        return torch.cat(blocks) if blocks else rows.new_zeros(0, *self.always.shape)

    def _block(self, rows: Tensor) -> Tensor:
        pairs = self._layout.pairs(rows[None], self.scaling)
        return self.calibrated(gate_logits(self.weights, pairs).sigmoid().mean(0).movedim(0, -1))

    def calibrated(self, probability: Tensor) -> Tensor:
        """Probabilities (N, P, C) whose log odds are stretched and shifted; those of fixed edges are 0 or 1."""
        made = (self.calibration[0] * probability.clamp(1e-6, 1 - 1e-6).logit() + self.calibration[1]).sigmoid()
        departs = 1 - torch.where(self.always, 1.0, 1 - made).prod(-2, keepdim=True)
        made = self._through_bodies(torch.maximum(made, THIN * departs))
        return torch.where(self.always, 1.0, torch.where(self.never, 0.0, made))

    def _through_bodies(self, made: Tensor) -> Tensor:
        """Probabilities (N, P, C) in which what an action always moves acts wherever the action does.

        An action reaches other things through the body that it moves. Of the two the evidence often finds the action
        alone: where it acts, and how, says where the body must be.
        """
        children = self.always.shape[1]
        bodies, actions = made.split([children, len(self.always) - children], -2)
        for acts, moves in zip(actions.unbind(-2), self.always[children:], strict=True):
            elsewhere = torch.where(moves, 0.0, acts)  # on what it does not always move
            bodies = torch.maximum(bodies, moves[:, None] * elsewhere[:, None])
        return torch.cat([bodies, actions], -2)

    @cached_property
    def _layout(self) -> Layout:
        return Layout(self.graph, self.device)


def of_tensors(graph: LocalGraph, tensors: Weights) -> Gates:
    """Gates of the tensors that `Gates.tensors` gave."""
    weights = {name.removeprefix("gates."): tensor for name, tensor in tensors.items() if name.startswith("gates.")}
    rest = {name: tensor for name, tensor in tensors.items() if not name.startswith("gates.")}
    fixed = {name: rest.pop(name) for name in ("calibration", "always", "never")}
    return Gates(graph, weights, rest, **fixed)
