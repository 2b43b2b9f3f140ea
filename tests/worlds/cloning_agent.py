"""The smallest agent there is: it does what the data does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

import mocoda
from mocoda.agents import Batch, Network, Stage
from mocoda.agents.agent import Noise
from mocoda.engine.networks import Weights, mlp


@dataclass(frozen=True)
class Cloning(mocoda.Agent):
    name: ClassVar[str] = "cloning"

    def networks(self, state: int, action: int) -> dict[str, Network]:
        return {"actor": Network((state, *self.hidden, action))}

    def stages(self) -> tuple[Stage, ...]:
        return (Stage({"actor": 1}, self.batch),)

    def actor_loss(self, weights: Weights, batch: Batch, noise: Noise) -> Tensor:
        return (self.act(weights, batch.state, noise) - batch.action).square().mean((-2, -1))

    def act(self, weights: Weights, state: Tensor, noise: Noise) -> Tensor:
        return mlp(weights, "actor", state).tanh()
