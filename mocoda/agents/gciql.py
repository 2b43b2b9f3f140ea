"""GCIQL: implicit Q-learning (Kostrikov et al., 2022) for goals, with the actor and the settings of OGBench (2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mocoda.agents.agent import Agent, Batch, Measured, Network, Noise, Stage, q_values
from mocoda.agents.goals import GoalShares, Shares, check_shares, discounted
from mocoda.engine.errors import InputError
from mocoda.engine.networks import Weights, mlp
from mocoda.engine.randomness import Stream


@dataclass(frozen=True)
class GCIQL(Agent):
    """Goal-conditioned implicit Q-learning: learns from episodes how to get from any state to any other.

    Goals are states of the data or, if the task has `achieved`, what these achieve; recorded goals and rewards are not
    used. The reward is -1 in every state but the goal, and 0 there, where the bootstrap ends: a value is minus the
    discounted number of steps to go. A share of the goals are the rows' own states, so that goals are reached exactly
    and no threshold is needed. If goals are less than a state, others may be as good: a task can say so with
    `reached(achieved, goal)`, of (N, G) each, bool (N,).

    The value learns the expectile of the critics' minimum, the critics learn  r + discount · V(s', g),  and the actor
    minimises  -mean min(Q1, Q2)(s, π(s, g), g) / mean |Q| + imitation · ½ mean |π(s, g) - a|²,  where the second term
    is the negative log likelihood of a Gaussian of unit variance. Actions are clipped to the range, not squashed, so
    that an actor that has gone too far is still pulled back.

    Shares of goals are (own state, a later state of the row's episode, the next state of any row). The later states of
    the value are geometrically distributed, with the discount, unless `uniform`; the actor's are uniform over the rest
    of the episode. With `steps` above 1, critics learn from the rewards of that many recorded steps and the value after
    them; rows with fewer steps left, in their episode or before a missing step, are then not drawn.
    """

    name: ClassVar[str] = "gciql"
    goals_from_episodes: ClassVar[bool] = True

    hidden: tuple[int, ...] = (512, 512, 512)  # Widths of the hidden layers.
    batch: int = 1_024  # Rows of each update.
    learning_rate: float = 3e-4  # Step size of Adam.
    discount: float = 0.99  # Weight of a reward one step later.
    scale_rewards: bool = False  # No effect: rewards are -1 and 0, whatever the data's are.
    expectile: float = 0.9  # Expectile of the critics that the value learns: 0.5 is the mean, 1 the maximum.
    imitation: float = 1.0  # Weight of the pull towards the data's actions; small for noisy data, such as 0.03.
    value_goals: Shares = (0.2, 0.5, 0.3)  # Shares of goals of value and critics: own, future, random.
    actor_goals: Shares = (0.0, 1.0, 0.0)  # Shares of goals of the actor: own, future, random.
    uniform: bool = False  # Draw the value's later states uniformly from the rest of the episode.
    steps: int = 1  # Recorded steps between a state and the value that its critics learn from.

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_least(0, "imitation")
        self._check_least(1, "steps")
        if not 0 < self.expectile < 1:
            raise InputError(f"expectile must lie between 0 and 1, got {self.expectile}.")
        if self.discount == 1:
            raise InputError("gciql draws goals by its discount, which must be less than 1, got 1.")
        check_shares(self, "value_goals", "actor_goals")

    @property
    def span(self) -> int:
        return self.steps

    def networks(self, state: int, action: int) -> dict[str, Network]:
        return {
            "value": Network((state, *self.hidden, 1), norm=True),
            "critic": Network((state + action, *self.hidden, 1), members=2, norm=True),
            "actor": Network((state, *self.hidden, action), norm=True),
        }

    def stages(self) -> tuple[Stage, ...]:
        return (Stage({"value": 1, "critic": 1, "actor": 1, "target-critic": 1}, self.batch, together=True),)

    def draw_goals(self, stream: Stream, row: Tensor, last: Tensor, rows: int) -> dict[str, Tensor]:
        value = GoalShares(*self.value_goals[:2], None if self.uniform else self.discount)
        actor = GoalShares(*self.actor_goals[:2])
        return {
            "value_goal": value.draw(stream.child("value"), row, last, rows),
            "actor_goal": actor.draw(stream.child("actor"), row, last, rows),
        }

    def value_loss(self, weights: Weights, batch: Batch, noise: Noise) -> tuple[Tensor, Measured]:
        q = q_values(weights, "target-critic", batch.state, batch.action).amin(1)
        value = self.value(weights, batch.state)
        advantage = q - value
        loss = torch.where(advantage < 0, 1 - self.expectile, self.expectile) * advantage.square()
        return loss.mean(-1), {"v": value, "advantage": advantage}

    def target(self, weights: Weights, batch: Batch, noise: Noise) -> Tensor:
        value = self.value(weights, batch.next_state)
        if batch.steps is not None and self.steps > 1:  # a step costs 1 until the goal
            weight = discounted(batch.steps, self.discount)
            batch = batch._replace(reward=(weight - 1) / (1 - self.discount))
            value = value * self.discount ** (self.steps - 1)
        return self.bellman_target(batch, value)

    def actor_loss(self, weights: Weights, batch: Batch, noise: Noise) -> tuple[Tensor, Measured]:
        state = batch.state if batch.actor_state is None else batch.actor_state
        action = mlp(weights, "actor", state)
        q = q_values(weights, "critic", state, action.clamp(-1, 1)).amin(1)
        distance = (action - batch.action).square().sum(-1).mean(-1)
        loss = 0.5 * self.imitation * distance - q.mean(-1) / (q.detach().abs().mean(-1) + 1e-6)
        return loss, {"q": q, "imitation": distance}

    def act(self, weights: Weights, state: Tensor, noise: Noise) -> Tensor:
        return mlp(weights, "actor", state).clamp(-1, 1)

    def value(self, weights: Weights, state: Tensor) -> Tensor:
        """Returns the values (R, B) of states with their goals beside them (R, B, S + G)."""
        return mlp(weights, "value", state)[..., 0]
