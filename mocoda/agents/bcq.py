"""BCQ (Fujimoto et al., 2019): a critic that only compares actions like those of the data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from mocoda.agents.agent import Agent, Batch, Network, Noise, Stage, q_values
from mocoda.engine.networks import Weights, mlp, softplus
from mocoda.engine.randomness import Stream

MIN_SCALE = 1e-3  # smallest standard deviation of a component


@dataclass(frozen=True)
class BCQ(Agent):
    """Batch-constrained Q-learning: samplers propose actions like the data's, and the critic chooses among them.

    First, mixture density networks learn which actions the data takes. Then they propose actions wherever one is
    needed: the critic's target is the value of the best proposal, and the agent takes the best proposal. There is no
    actor and no perturbation network, and one critic, as in DDPG, unless `critics` is larger.
    """

    name: ClassVar[str] = "bcq"
    acting: ClassVar[tuple[str, ...]] = ("sampler", "critic")

    proposals: int = 20  # Proposed actions per state.
    samplers: int = 7  # Mixture density networks that propose.
    components: int = 5  # Gaussians in each of their mixtures.
    critics: int = 1  # An action's value is the smallest of theirs: the maximum over proposals seeks out errors.
    temperature: float = 1.0  # Factor on the Gaussians' standard deviations when they propose.
    sampler_hidden: tuple[int, ...] = (128, 128)  # Widths of the samplers' hidden layers.
    sampler_updates: int = 1_000  # Updates of the samplers, before those of the critic.
    sampler_batch: int = 2_000  # Rows of each of these updates.
    sampler_weight_decay: float = 5e-5  # L2 penalty on the samplers' weights.

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_least(1, "proposals", "samplers", "components", "critics", "sampler_updates", "sampler_batch")
        self._check_layers("sampler_hidden")
        self._check_least(0, "temperature", "sampler_weight_decay")

    def networks(self, state: int, action: int) -> dict[str, Network]:
        outputs = self.components * (1 + 2 * action)
        return {
            "sampler": Network((state, *self.sampler_hidden, outputs), members=self.samplers),
            "critic": Network((state + action, *self.hidden, 1), members=self.critics),
        }

    def stages(self) -> tuple[Stage, ...]:
        sampler = Stage({"sampler": 1}, self.sampler_batch, self.sampler_updates, self.sampler_weight_decay)
        return sampler, Stage({"critic": 1, "target-critic": 1}, self.batch)

    def noise(self, stream: Stream, updates: int, action: int) -> dict[str, Tensor]:
        return self._proposing_noise(stream, (updates, self.batch), action)

    def acting_noise(self, stream: Stream, states: int, action: int) -> dict[str, Tensor]:
        return self._proposing_noise(stream, (states,), action)

    def sampler_loss(self, weights: Weights, batch: Batch, noise: Noise) -> Tensor:
        """Negative log likelihood of the data's actions, summed over the ensemble."""
        log_share, mean, scale = self._mixture(weights, batch.state, batch.action.shape[-1])
        offset = (batch.action[:, None, :, None] - mean) / scale
        log_density = (-0.5 * offset.square() - scale.log() - 0.5 * math.log(2 * math.pi)).sum(-1)
        return -(log_share + log_density).logsumexp(-1).mean(-1).sum(-1)

    def target(self, weights: Weights, batch: Batch, noise: Noise) -> Tensor:
        _, next_q = self._best(weights, "target-critic", batch.next_state, noise)
        return self.bellman_target(batch, next_q)

    def act(self, weights: Weights, state: Tensor, noise: Noise) -> Tensor:
        return self._best(weights, "critic", state, noise)[0]

    def _best(self, weights: Weights, critic: str, state: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        """Returns the proposals with the largest value (R, B, A), and these values (R, B)."""
        proposed = self._proposals(weights, state, noise)  # (R, B, P, A)
        repeated = state[:, :, None].expand(*proposed.shape[:3], state.shape[-1])
        q = q_values(weights, critic, repeated.flatten(1, 2), proposed.flatten(1, 2)).amin(1)
        best_q, choice = q.unflatten(-1, proposed.shape[1:3]).max(-1)
        index = choice[..., None, None].expand(*choice.shape, 1, proposed.shape[-1])
        return proposed.gather(2, index)[:, :, 0], best_q

    def _proposals(self, weights: Weights, state: Tensor, noise: Noise) -> Tensor:
        """Draws actions (R, B, P, A), each from a random component of a random member."""
        log_share, mean, scale = self._mixture(weights, state, noise["offset"].shape[-1])
        # All members' components side by side, so that one gather chooses.
        cumulative = log_share.exp().cumsum(-1).movedim(1, 2)  # (R, B, E, K)
        own = cumulative.gather(2, noise["member"][..., None].expand(*noise["member"].shape, self.components))
        component = (own[..., :-1] <= noise["component"][..., None]).sum(-1)
        flat = noise["member"] * self.components + component
        chosen = flat[..., None].expand(*flat.shape, mean.shape[-1])
        mean, scale = (part.movedim(1, 2).flatten(2, 3).gather(2, chosen) for part in (mean, scale))
        return (mean + self.temperature * scale * noise["offset"]).clamp(-1, 1)

    def _mixture(self, weights: Weights, state: Tensor, action: int) -> tuple[Tensor, Tensor, Tensor]:
        """Returns log shares (R, E, B, K), means and scales (R, E, B, K, A) of every member's mixture."""
        output = mlp(weights, "sampler", state[:, None]).unflatten(-1, (self.components, 1 + 2 * action))
        log_share = output[..., 0].log_softmax(-1)
        return log_share, output[..., 1 : 1 + action], softplus(output[..., 1 + action :]) + MIN_SCALE

    def _proposing_noise(self, stream: Stream, leading: tuple[int, ...], action: int) -> dict[str, Tensor]:
        shape = (*leading, self.proposals)
        return {
            "member": stream.integers(self.samplers, *shape),
            "component": stream.uniform(*shape),
            "offset": stream.normal(*shape, action),
        }
