"""The model that most methods ask: for every child a network that predicts the mean and the variance of its change.

Axes: C children, P parents, N rows, W columns of a row, D columns of the widest child. The networks of all children are
one tensor (C, ...). A parent can be kept from a network: its columns are then 0, and a flag says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.networks import mlp, mlp_weights, softplus
from mocoda.engine.optimise import Adam, Captured, in_turn
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph

CHUNK = 10  # updates that are one program on a GPU
STRETCHES = 20  # of rows, a tenth of which is held out
LOOKS, LOOKED = 20, 4  # how often networks are compared on held-out rows, and on how many batches of them
SHARPEST = -3.0  # log standard deviation, of a change in its own units, below which no prediction gets
FARTHEST = 10.0  # standard deviations, of an input


@dataclass(frozen=True)
class Training:
    """How the networks of every method are trained."""

    hidden: tuple[int, ...] = (128, 128)
    updates: int = 5_000
    batch: int = 256
    learning_rate: float = 1e-3


USUAL = Training()


@dataclass(frozen=True, eq=False)
class Columns:
    """Recorded rows in their own units, and which columns belong to whom."""

    data: Transitions
    graph: LocalGraph

    @cached_property
    def owner(self) -> Tensor:
        """The parent of each column, (W,)."""
        owner = torch.zeros(self.graph.width, dtype=torch.long)
        for number, columns in enumerate(self.graph.factors.values()):
            owner[list(columns)] = number
        return owner.to(self.data.device)

    @cached_property
    def child(self) -> Tensor:
        """The columns of each child, (C, D); a narrower one has its first column more than once."""
        columns = [self.graph.factors[name] for name in self.graph.children]
        widest = max(map(len, columns))
        return torch.tensor([(*own, *own[:1] * (widest - len(own))) for own in columns], device=self.data.device)

    @cached_property
    def counts(self) -> Tensor:
        """Which columns of `child` count, bool (C, D)."""
        widths = torch.tensor([len(self.graph.factors[name]) for name in self.graph.children], device=self.data.device)
        return torch.arange(self.child.shape[1], device=self.data.device) < widths[:, None]

    def inputs(self, rows: Tensor) -> Tensor:
        """Rows (N, W) in standard deviations of the recorded ones."""
        mean, std = self._units
        return ((rows - mean) / std).clamp(-FARTHEST, FARTHEST)

    def changes(self, data: Transitions) -> Tensor:
        """What happened to the children, in standard deviations of the recorded changes: (C, N, D)."""
        mean, std = self._change_units
        change = (data.next_state - data.state - mean) / std
        return change[:, self.child].transpose(0, 1)

    @cached_property
    def _units(self) -> tuple[Tensor, Tensor]:
        return _units(self.data.rows)

    @cached_property
    def _change_units(self) -> tuple[Tensor, Tensor]:
        return _units(self.data.next_state - self.data.state)


@dataclass(frozen=True, eq=False)
class Mechanisms:
    """Fitted networks."""

    columns: Columns
    weights: Mapping[str, Tensor]

    def predict(self, inputs: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation (C, N, D) of the changes, in their units.

        inputs  (N, W), or (C, N, W) where they differ by child
        keep    (N, P) or (C, N, P): 0 where a parent is kept from the network; all are shown unless given
        """
        if keep is None:
            keep = inputs.new_ones(*inputs.shape[:-1], len(self.columns.graph.parents))
        shown = torch.cat([inputs * keep[..., self.columns.owner], keep], -1)
        mean, spread = mlp(self.weights, "child", shown).chunk(2, -1)
        return mean, SHARPEST + softplus(spread - SHARPEST)

    def log_likelihood(self, inputs: Tensor, changes: Tensor, keep: Tensor | None = None) -> Tensor:
        """How likely what happened to each child was, (C, N)."""
        return self.likelihood(*self.predict(inputs, keep), changes)

    def likelihood(self, mean: Tensor, log_std: Tensor, changes: Tensor) -> Tensor:
        """The log density (C, N) of changes (C, N, D) under normal distributions."""
        each = -0.5 * ((changes - mean) / log_std.exp()).square() - log_std - 0.5 * math.log(2 * math.pi)
        return (each * self.columns.counts[:, None]).sum(-1)


def fit_mechanisms(
    data: Transitions, graph: LocalGraph, training: Training, stream: Stream, *, drop: bool = False
) -> Mechanisms:
    """Trains the networks of all children; with `drop`, half of the rows are shown without one of their parents.

    By Adam, with a learning rate that falls along a cosine; the weights end as they were best on held-out rows.
    """
    columns, parents = Columns(data, graph), len(graph.parents)
    each = torch.arange(parents, device=data.device)
    sizes = (graph.width + parents, *training.hidden, 2 * columns.child.shape[1])
    weights = mlp_weights("child", (len(columns.child),), sizes, stream.child("weights"))
    model = Mechanisms(columns, weights)
    inputs, changes = columns.inputs(data.rows), columns.changes(data)
    hidden, picks, known = stream.child("drop"), stream.child("batches"), stream.child("looks")
    stretch = torch.arange(len(data), device=stream.device) * STRETCHES // len(data)  # neighbours are alike
    held = torch.isin(stretch, stream.child("held out").permutation(STRETCHES)[: STRETCHES // 10])
    apart, train = (held if bool(held.any()) else ~held).nonzero()[:, 0], (~held).nonzero()[:, 0]
    adam = Adam([weight.requires_grad_() for weight in weights.values()], training.learning_rate)

    def loss(given: Mapping[str, Tensor]) -> Tensor:
        rows = given["rows"]
        keep = (given["hidden"][:, None] != each).float() if drop else None
        return -model.log_likelihood(inputs[rows], changes[:, rows], keep).mean(1).sum()

    def update(given: Mapping[str, Tensor], phase: int) -> Tensor:
        value = loss(given)
        adam.step(value)
        return value.detach()

    def drawn(which: Tensor, picked: Stream, updates: int) -> dict[str, Tensor]:
        chosen = {"rows": which[picked.integers(len(which), updates, training.batch)]}
        if drop:  # a number beyond the parents: none is hidden
            chosen["hidden"] = hidden.integers(2 * parents, updates, training.batch).clamp(max=parents)
        return chosen

    chunk = Captured(in_turn(update), stream.device)
    exam, least = drawn(apart, known, LOOKED), math.inf
    best = {name: weight.detach().clone() for name, weight in weights.items()}
    for start in range(0, training.updates, CHUNK):
        updates = min(CHUNK, training.updates - start)
        adam.learning_rate.fill_(training.learning_rate * 0.5 * (1 + math.cos(math.pi * start / training.updates)))
        chunk(drawn(train, picks, updates))
        if (start // CHUNK + 1) % max(1, training.updates // CHUNK // LOOKS) == 0:
            with torch.no_grad():
                now = sum(float(loss({name: part[i] for name, part in exam.items()})) for i in range(LOOKED))
            if now < least:
                least, best = now, {name: weight.detach().clone() for name, weight in weights.items()}
    for name, weight in weights.items():
        weight.requires_grad_(False).copy_(best[name])
    return model


def without(parent: int, inputs: Tensor, parents: int) -> Tensor:
    """What to keep (N, P) so that one parent is hidden."""
    keep = inputs.new_ones(len(inputs), parents)
    keep[:, parent] = 0
    return keep


def _units(values: Tensor) -> tuple[Tensor, Tensor]:
    return values.mean(0), values.std(0, correction=0).clamp(min=1e-6)
