"""CQL (Kumar et al., 2020): SAC whose critics are pessimistic about actions that the data does not have."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mocoda.agents.agent import Batch, Measured, Noise, q_values
from mocoda.agents.sac import SAC, sample_action
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.networks import Weights
from mocoda.engine.randomness import Stream

PENALTIES = ("l1", "logsumexp")


@dataclass(frozen=True)
class CQL(SAC):
    """Conservative Q-learning: SAC with a penalty on the values of actions that were not recorded.

    "l1" is the MoCoDA paper's penalty. It pulls the values of random actions to the smallest possible value and those
    of the data's actions to the largest:  weight · (|mean Q(s, random) - low| + |mean Q(s, a) - high|),  where low and
    high are `value_range` or, without it, the bounds that the data's rewards imply.

    "logsumexp" is CQL's own:  weight · mean (log Σ exp Q(s, ·) - Q(s, a)),  the sum over random actions and the actor's
    by importance sampling. Its authors use a weight of 5.
    """

    name: ClassVar[str] = "cql"

    penalty: str = "l1"  # Which penalty: l1 or logsumexp.
    weight: float = 0.1  # Weight of the penalty.
    proposals: int = 10  # Actions of each kind per state, for the penalty logsumexp.

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_least(1, "proposals")
        if self.penalty not in PENALTIES:
            raise unknown_name("penalty", self.penalty, PENALTIES)
        if self.penalty == "l1" and self.value_range is None and self.discount == 1:
            raise InputError("with a discount of 1 values have no bounds: give value_range, or penalty='logsumexp'.")

    def noise(self, stream: Stream, updates: int, action: int) -> dict[str, Tensor]:
        noise = super().noise(stream, updates, action)
        if self.penalty == "l1":
            return noise | {"random": stream.uniform(updates, self.batch, action, low=-1.0)}
        rows = self.batch * self.proposals
        return noise | {
            "random": stream.uniform(updates, rows, action, low=-1.0),
            "proposed": stream.normal(updates, rows, action),
        }

    def critic_loss(self, weights: Weights, batch: Batch, noise: Noise) -> tuple[Tensor, Measured]:
        error, measured = super().critic_loss(weights, batch, noise)
        penalty_of = self.l1_penalty if self.penalty == "l1" else self.logsumexp_penalty
        penalty = penalty_of(weights, batch, noise, measured["q"])
        return error + self.weight * penalty, {**measured, "penalty": penalty}

    def l1_penalty(self, weights: Weights, batch: Batch, noise: Noise, q: Tensor) -> Tensor:
        random_q = q_values(weights, "critic", batch.state, noise["random"])
        return ((random_q.mean(-1) - batch.low).abs() + (q.mean(-1) - batch.high).abs()).sum(-1)

    def logsumexp_penalty(self, weights: Weights, batch: Batch, noise: Noise, q: Tensor) -> Tensor:
        state = batch.state.repeat_interleave(self.proposals, 1)
        proposed, log_density = sample_action(weights, state, noise["proposed"])
        uniform = -noise["random"].shape[-1] * math.log(2)  # log density in [-1, 1]^A
        weighted = [
            q_values(weights, "critic", state, noise["random"]) - uniform,
            q_values(weights, "critic", state, proposed) - log_density[:, None],
        ]
        every = torch.cat([part.unflatten(-1, (-1, self.proposals)) for part in weighted], -1)
        return (every.logsumexp(-1) - math.log(every.shape[-1]) - q).mean(-1).sum(-1)
