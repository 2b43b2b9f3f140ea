"""TD3-BC (Fujimoto and Gu, 2021): twin critics, a delayed actor, and a pull towards the data's actions.

The actor minimises  -mean min(Q1, Q2)(s, π(s)) + imitation · mean (π(s) - a)².  `normalise` is the published TD3+BC:
-λ mean Q1 + mean (π(s) - a)²  with  λ = 2.5 / mean |Q1|.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from mocoda.agents.agent import AGENTS, Agent, Batch, Loss, Network, Noise, Stage, policy, squared_error, values
from mocoda.engine.networks import Weights
from mocoda.engine.randomness import Stream


@AGENTS.add
@dataclass(frozen=True)
class TD3BC(Agent):
    name: ClassVar[str] = "td3-bc"

    smoothing: float = 0.2  # noise on the target's action
    smoothing_clip: float = 0.5
    imitation: float = 1.0
    normalise: bool = False
    normalised_scale: float = 2.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_not_negative("smoothing", "smoothing_clip", "imitation")

    def networks(self, state: int, action: int) -> dict[str, Network]:
        return {
            "critic": Network((state + action, *self.hidden, 1), members=2),
            "actor": Network((state, *self.hidden, action)),
        }

    def stages(self) -> tuple[Stage, ...]:
        return (Stage({"critic": 1, "actor": 2, "target-critic": 2, "target-actor": 2}, self.batch),)

    def losses(self) -> dict[str, Loss]:
        return {"critic": self.critic_loss, "actor": self.actor_loss}

    def noise(self, stream: Stream, updates: int, action: int) -> dict[str, Tensor]:
        return {"smoothing": stream.normal(updates, self.batch, action)}

    def target(self, weights: Weights, batch: Batch, noise: Noise) -> Tensor:
        smoothing = (self.smoothing * noise["smoothing"]).clamp(-self.smoothing_clip, self.smoothing_clip)
        following = (policy(weights, "target-actor", batch.next_state) + smoothing).clamp(-1, 1)
        worth = values(weights, "target-critic", batch.next_state, following).amin(1)
        return self.bootstrapped(batch, worth)

    def critic_loss(self, weights: Weights, batch: Batch, noise: Noise) -> Tensor:
        return squared_error(values(weights, "critic", batch.state, batch.action), self.target(weights, batch, noise))

    def actor_loss(self, weights: Weights, batch: Batch, noise: Noise) -> Tensor:
        action = policy(weights, "actor", batch.state)
        worth = values(weights, "critic", batch.state, action)
        distance = (action - batch.action).square().mean((-2, -1))
        if self.normalise:
            first = worth[:, 0]
            return distance - self.normalised_scale * first.mean(-1) / first.detach().abs().mean(-1)
        return self.imitation * distance - worth.amin(1).mean(-1)

    def act(self, weights: Weights, state: Tensor, noise: Noise) -> Tensor:
        return policy(weights, "actor", state)
