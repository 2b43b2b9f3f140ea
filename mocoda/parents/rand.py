"""Rand: states and actions drawn uniformly from a box."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents.recipe import Model, Recipe, TaskHints, box_of


@dataclass(frozen=True)
class Rand(Recipe):
    """States and actions drawn uniformly from the task's box, or the recorded range; the model may not know them."""

    name: ClassVar[str] = "rand"
    title: ClassVar[str] = "Rand"
    colour: ClassVar[str] = "#e0a243"

    def fit(
        self, data: Transitions, graph: LocalGraph, *, task: TaskHints | None, model: Model | None, seed: int | Stream
    ) -> UniformParents:
        return UniformParents(*box_of(data, task))


@dataclass(frozen=True, eq=False)
class UniformParents:
    """Rows of a box, uniformly."""

    name = Rand.name

    low: Tensor  # (S + A,)
    high: Tensor

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        stream = as_stream(seed, "rand", device=self.low.device)
        return self.low + (self.high - self.low) * stream.uniform(n, len(self.low))
