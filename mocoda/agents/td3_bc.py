"""TD3-BC (Fujimoto and Gu, 2021): twin critics, a delayed actor, and a pull towards the data's actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from mocoda.agents.agent import Agent, Batch, Measured, Network, Noise, Stage, policy, q_values
from mocoda.engine.networks import Weights
from mocoda.engine.randomness import Stream

SMALLEST = 1e-6  # mean size of the values by which the published loss divides: critics may say 0 everywhere


@dataclass(frozen=True)
class TD3BC(Agent):
    """TD3 with behaviour cloning: the actor maximises the critics' value and stays near the recorded actions.

    The actor minimises  -mean min(Q1, Q2)(s, π(s)) + imitation · mean (π(s) - a)².  With `normalise` it is the
    published TD3+BC:  -λ mean Q1 + mean (π(s) - a)²  with  λ = normalised_scale / mean |Q1|.
    """

    name: ClassVar[str] = "td3-bc"

    smoothing: float = 0.2  # Standard deviation of the noise on the target's action.
    smoothing_clip: float = 0.5  # Largest size of that noise.
    imitation: float = 1.0  # Weight of the pull towards the data's actions.
    normalise: bool = False  # Use the published loss, which divides by the size of the values; `imitation` is unused.
    normalised_scale: float = 2.5  # Weight of the critic in the published loss.

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_least(0, "smoothing", "smoothing_clip", "imitation")

    def networks(self, state: int, action: int) -> dict[str, Network]:
        return {
            "critic": Network((state + action, *self.hidden, 1), members=2),
            "actor": Network((state, *self.hidden, action)),
        }

    def stages(self) -> tuple[Stage, ...]:
        return (Stage({"critic": 1, "actor": 2, "target-critic": 2, "target-actor": 2}, self.batch),)

    def noise(self, stream: Stream, updates: int, action: int) -> dict[str, Tensor]:
        return {"smoothing": stream.normal(updates, self.batch, action)}

    def target(self, weights: Weights, batch: Batch, noise: Noise) -> Tensor:
        smoothing = (self.smoothing * noise["smoothing"]).clamp(-self.smoothing_clip, self.smoothing_clip)
        next_action = (policy(weights, "target-actor", batch.next_state) + smoothing).clamp(-1, 1)
        next_q = q_values(weights, "target-critic", batch.next_state, next_action).amin(1)
        return self.bellman_target(batch, next_q)

    def actor_loss(self, weights: Weights, batch: Batch, noise: Noise) -> tuple[Tensor, Measured]:
        action = policy(weights, "actor", batch.state)
        q = q_values(weights, "critic", batch.state, action)
        distance = (action - batch.action).square().mean((-2, -1))
        if self.normalise:
            q = q[:, 0]
            size = q.detach().abs().mean(-1).clamp(min=SMALLEST)
            loss = distance - self.normalised_scale * q.mean(-1) / size
        else:
            q = q.amin(1)
            loss = self.imitation * distance - q.mean(-1)
        return loss, {"q": q, "imitation": distance}

    def act(self, weights: Weights, state: Tensor, noise: Noise) -> Tensor:
        return policy(weights, "actor", state)
