"""CQL (Kumar et al., 2020): SAC whose critics are pessimistic about actions that the data does not have.

The paper's penalty draws the values of random actions to the lowest value there is, and those of the data's actions to
the highest:  weight · (|mean Q(s, random) - lowest| + |mean Q(s, a) - highest|).  `penalty="logsumexp"` is CQL's own:
weight · mean (log Σ exp Q(s, ·) - Q(s, a)), the sum over random and the actor's actions, by importance sampling (its
authors use a weight of 5).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mocoda.agents.agent import AGENTS, Batch, Noise, squared_error, values
from mocoda.agents.sac import SAC, drawn_action
from mocoda.engine.errors import unknown_name
from mocoda.engine.networks import Weights
from mocoda.engine.randomness import Stream

PENALTIES = ("l1", "logsumexp")


@AGENTS.add
@dataclass(frozen=True)
class CQL(SAC):
    name: ClassVar[str] = "cql"

    lowest: float = -40.0
    penalty: str = "l1"
    weight: float = 0.1
    proposals: int = 10  # of each kind and state, for "logsumexp"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_counts("proposals")
        if self.penalty not in PENALTIES:
            raise unknown_name("penalty", self.penalty, PENALTIES)

    def noise(self, stream: Stream, updates: int, action: int) -> dict[str, Tensor]:
        noise = super().noise(stream, updates, action)
        if self.penalty == "l1":
            return noise | {"random": stream.uniform(updates, self.batch, action, low=-1.0)}
        rows = self.batch * self.proposals
        return noise | {
            "random": stream.uniform(updates, rows, action, low=-1.0),
            "proposed": stream.normal(updates, rows, action),
        }

    def critic_loss(self, weights: Weights, batch: Batch, noise: Noise) -> Tensor:
        recorded = values(weights, "critic", batch.state, batch.action)
        penalty = self._towards_bounds if self.penalty == "l1" else self._log_sum_exp
        return squared_error(recorded, self.target(weights, batch, noise)) + self.weight * penalty(
            weights, batch, noise, recorded
        )

    def _towards_bounds(self, weights: Weights, batch: Batch, noise: Noise, recorded: Tensor) -> Tensor:
        random = values(weights, "critic", batch.state, noise["random"])
        return ((random.mean(-1) - self.lowest).abs() + (recorded.mean(-1) - self.highest).abs()).sum(-1)

    def _log_sum_exp(self, weights: Weights, batch: Batch, noise: Noise, recorded: Tensor) -> Tensor:
        state = batch.state.repeat_interleave(self.proposals, 1)
        proposed, log_density = drawn_action(weights, state, noise["proposed"])
        uniform = -noise["random"].shape[-1] * math.log(2)  # log density in [-1, 1]^A
        weighed = [
            values(weights, "critic", state, noise["random"]) - uniform,
            values(weights, "critic", state, proposed) - log_density[:, None],
        ]
        every = torch.cat([part.unflatten(-1, (-1, self.proposals)) for part in weighed], -1)
        return (every.logsumexp(-1) - math.log(every.shape[-1]) - recorded).mean(-1).sum(-1)
