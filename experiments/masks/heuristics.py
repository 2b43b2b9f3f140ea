"""What needs no learning: distance between positions, whether the child moved, every edge, no edge, a written mask."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.masks.mechanisms import Columns
from experiments.masks.method import Method, NotApplicableError, Scores
from experiments.random_dag import make_world
from mocoda.data.transitions import Transitions
from mocoda.graph.local_graph import LocalGraph
from mocoda.graph.meetings import PLACE


@dataclass(frozen=True)
class Distance(Method):
    """Minus the distance between two positions; edges from actions, which are nowhere, score lowest."""

    name = "distance"

    def fit(self, data: Transitions, graph: LocalGraph, *, seed: int) -> Scores:
        places = [_place(data.columns, graph.factors[name]) for name in graph.state]
        common = min(map(len, places))

        def scores(rows: Transitions) -> Tensor:
            place = torch.stack([rows.state[:, own[:common]] for own in places], 1)
            apart = (place[:, :, None] - place[:, None]).norm(dim=3)
            nowhere = apart.max().expand(len(rows), len(graph.action), len(graph.children))
            return -torch.cat([apart, nowhere], 1)

        return scores


@dataclass(frozen=True)
class Moved(Method):
    """How much a child changed, in standard deviations of its recorded changes: the same for all its parents."""

    name = "moved"
    threshold = 1.0
    looks_ahead = True

    def fit(self, data: Transitions, graph: LocalGraph, *, seed: int) -> Scores:
        columns = Columns(data, graph)

        def scores(rows: Transitions) -> Tensor:
            change = (columns.changes(rows).square() * columns.counts[:, None]).sum(2)
            usual = columns.counts.sum(1, keepdim=True)
            return (change / usual).sqrt().T[:, None].expand(-1, len(graph.parents), -1)

        return scores


@dataclass(frozen=True)
class Dense(Method):
    """Every edge, in every row."""

    name = "dense"
    threshold = 0.5
    fixed = probability = True

    def fit(self, data: Transitions, graph: LocalGraph, *, seed: int) -> Scores:
        return lambda rows: rows.state.new_ones(len(rows), len(graph.parents), len(graph.children))


@dataclass(frozen=True)
class Sparsest(Method):
    """Every child depends on itself alone, in every row."""

    name = "sparsest"
    threshold = 0.5
    fixed = probability = True

    def fit(self, data: Transitions, graph: LocalGraph, *, seed: int) -> Scores:
        itself = torch.eye(len(graph.parents), len(graph.children), device=data.device)
        return lambda rows: itself.expand(len(rows), -1, -1)


@dataclass(frozen=True)
class Given(Method):
    """The mask that the task's authors wrote; the truth itself where masks are exact."""

    name = "given"
    threshold = 0.5
    fixed = probability = True

    def fit(self, data: Transitions, graph: LocalGraph, *, seed: int) -> Scores:
        task = data.source.get("task")
        if task is None:
            raise NotApplicableError("the data does not say which task it is of.")
        written = make_world(task).graph
        return lambda rows: written.mask(rows.rows).float()


def _place(names: tuple[str, ...], columns: tuple[int, ...]) -> list[int]:
    """The columns that say where a factor is, by their names (box.x, box_x); the first two unless there are any."""
    named = [column for column in columns if names[column].replace(".", "_").rpartition("_")[2] in PLACE]
    return named or list(columns[:2])
