"""Emp: the recorded transitions again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents.recipe import Model, Recipe, TaskHints


@dataclass(frozen=True)
class Emp(Recipe):
    """The recorded transitions, drawn uniformly."""

    name: ClassVar[str] = "emp"
    title: ClassVar[str] = "Emp"
    colour: ClassVar[str] = "#9aa3b2"
    needs_model: ClassVar[bool] = False

    def fit(
        self, data: Transitions, graph: LocalGraph, *, task: TaskHints | None, model: Model | None, seed: int | Stream
    ) -> RecordedParents:
        return RecordedParents(data)


@dataclass(frozen=True, eq=False)
class RecordedParents:
    """The recorded rows. None is drawn again before all have been drawn."""

    name = Emp.name

    data: Transitions

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        return self.sample_with_children(n, seed=seed)[0]

    def sample_with_children(self, n: int, *, seed: int | Stream) -> tuple[Tensor, Tensor]:
        stream = as_stream(seed, "emp", device=self.data.device)
        passes = max(1, -(-n // len(self.data)))
        index = torch.cat([stream.permutation(len(self.data)) for _ in range(passes)])[:n]
        return self.data.rows[index], self.data.next_state[index]
