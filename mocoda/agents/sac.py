"""SAC (Haarnoja et al., 2018): twin critics, a stochastic actor, and a fixed reward for its entropy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from mocoda.agents.agent import Agent, Batch, Measured, Network, Noise, Stage, q_values
from mocoda.engine.networks import Weights, mlp, softplus
from mocoda.engine.randomness import Stream

LOG_SCALE = (-20.0, 2.0)  # bounds of the log standard deviation of the actor's Gaussian


@dataclass(frozen=True)
class SAC(Agent):
    """Soft actor-critic, an algorithm for online learning: nothing keeps it near the data.

    The actor minimises  mean (entropy · log π(a|s) - min(Q1, Q2)(s, a))  over its own actions a. The value of a next
    state includes the same bonus for entropy.
    """

    name: ClassVar[str] = "sac"

    entropy: float = 0.2  # Weight of the actor's entropy, in the units that values are learned in.

    def networks(self, state: int, action: int) -> dict[str, Network]:
        return {
            "critic": Network((state + action, *self.hidden, 1), members=2),
            "actor": Network((state, *self.hidden, 2 * action)),
        }

    def stages(self) -> tuple[Stage, ...]:
        return (Stage({"critic": 1, "actor": 1, "target-critic": 1}, self.batch),)

    def noise(self, stream: Stream, updates: int, action: int) -> dict[str, Tensor]:
        return {
            "next_action": stream.normal(updates, self.batch, action),
            "action": stream.normal(updates, self.batch, action),
        }

    def target(self, weights: Weights, batch: Batch, noise: Noise) -> Tensor:
        next_action, log_density = sample_action(weights, batch.next_state, noise["next_action"])
        next_q = q_values(weights, "target-critic", batch.next_state, next_action).amin(1)
        return self.bellman_target(batch, next_q - self.entropy * log_density)

    def actor_loss(self, weights: Weights, batch: Batch, noise: Noise) -> tuple[Tensor, Measured]:
        action, log_density = sample_action(weights, batch.state, noise["action"])
        q = q_values(weights, "critic", batch.state, action).amin(1)
        return (self.entropy * log_density - q).mean(-1), {"q": q, "log_density": log_density}

    def act(self, weights: Weights, state: Tensor, noise: Noise) -> Tensor:
        return mlp(weights, "actor", state).chunk(2, -1)[0].tanh()


def sample_action(weights: Weights, state: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Draws actions (R, B, A) of the tanh-squashed Gaussian; also returns their log density (R, B)."""
    mean, log_scale = mlp(weights, "actor", state).chunk(2, -1)
    log_scale = log_scale.clamp(*LOG_SCALE)
    free = mean + log_scale.exp() * noise
    gaussian = -0.5 * noise.square() - log_scale - 0.5 * math.log(2 * math.pi)
    squashing = 2 * (math.log(2) - free - softplus(-2 * free))  # log (1 - tanh²), without its overflow
    return free.tanh(), (gaussian - squashing).sum(-1)
