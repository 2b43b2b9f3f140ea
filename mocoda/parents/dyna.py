"""Dyna: rollouts of a dynamics model from recorded rows, with random actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents.recipe import Model, Recipe, TaskHints, box_of


@dataclass(frozen=True)
class Dyna(Recipe):
    """Recorded rows, and model rollouts from them with uniformly random actions.

    horizon  steps of a rollout
    """

    name: ClassVar[str] = "dyna"
    title: ClassVar[str] = "Dyna"
    colour: ClassVar[str] = "#8a5a44"

    horizon: int = 5

    def __post_init__(self) -> None:
        if self.horizon < 0:
            raise InputError(f"horizon must be a number of steps, 0 or more, got {self.horizon}.")

    def fit(
        self, data: Transitions, graph: LocalGraph, *, task: TaskHints | None, model: Model | None, seed: int | Stream
    ) -> RolloutParents:
        if model is None:
            raise InputError("recipe 'dyna' rolls a dynamics model forward; pass model=mocoda.fit_dynamics(...).")
        low, high = box_of(data, task)
        width = data.state.shape[1]
        return RolloutParents(data.rows, model, self.horizon, low[width:], high[width:])


@dataclass(frozen=True, eq=False)
class RolloutParents:
    """Every step of rollouts, the recorded first ones among them."""

    name = Dyna.name

    rows: Tensor
    model: Model
    horizon: int
    low: Tensor  # (A,)
    high: Tensor

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        stream = as_stream(seed, "dyna", device=self.rows.device)
        starts = -(-n // (self.horizon + 1))
        steps = [self.rows[stream.integers(len(self.rows), starts)]]
        for step in range(self.horizon):
            state = self.model.sample(steps[-1], seed=stream.child("step", step))
            action = self.low + (self.high - self.low) * stream.uniform(starts, len(self.low))
            steps.append(torch.cat([state, action], 1))
        return torch.cat(steps)[stream.permutation(starts * (self.horizon + 1))[:n]]
