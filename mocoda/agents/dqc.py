"""DQC: decoupled Q-chunking (Li, Park and Levine, 2025), goal-conditioned values of chunks of actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mocoda.agents.agent import Agent, Batch, Measured, Network, Noise, Stage, q_values
from mocoda.agents.goals import GoalShares, Shares, check_shares, discounted
from mocoda.engine.errors import InputError
from mocoda.engine.networks import Weights, mlp, softplus
from mocoda.engine.randomness import Stream


@dataclass(frozen=True)
class DQC(Agent):
    """Decoupled Q-chunking: learns from episodes how to get from any state to any other, many steps at a time.

    The value of a state is the discount to the power of the number of steps to the goal: 1 at the goal, near 0 far from
    it. Networks predict its logit. Training looks at recorded actions only, and has four parts:

    chunk   critics of the next `chunk` actions, which learn the value of the state after them, or the steps to the goal
            if it is reached earlier. A long chunk carries values far in one update
    critic  critics of the first `short` of these actions, which learn an expectile of the former over what follows
    value   values of states, which learn a quantile of the latter over recorded actions
    flow    a flow that makes noise into the recorded `short` actions, whatever the goal is

    To act, the flow proposes `proposals` chunks, and the first action of the one with the largest value is executed.

    Goals are those of GCIQL: states of the data or, if the task has `achieved`, what these achieve, with the task's
    `reached`. Chunks never go beyond an episode or a step that it lacks: rows with fewer steps left only end them.
    """

    name: ClassVar[str] = "dqc"
    acting: ClassVar[tuple[str, ...]] = ("flow", "critic")
    goals_from_episodes: ClassVar[bool] = True

    hidden: tuple[int, ...] = (512, 512, 512)  # Widths of the hidden layers.
    batch: int = 1_024  # Rows of each update.
    learning_rate: float = 3e-4  # Step size of Adam.
    discount: float = 0.999  # Weight of a reward one step later.
    scale_rewards: bool = False  # No effect: the reward is 1 at the goal, whatever the data's are.
    value_range: tuple[float, float] | None = None  # No effect: values lie between 0 and 1.
    chunk: int = 5  # Actions of the long chunks, by which values are learned.
    short: int = 1  # Actions of the short chunks, which are proposed and compared; the first is executed.
    expectile: float = (
        0.8  # Expectile of the long chunks' values that a short one learns: 0.5 is the mean, 1 the maximum.
    )
    quantile: float = 0.93  # Quantile of the short chunks' values that a state learns.
    proposals: int = 32  # Chunks that the flow proposes for each action.
    flow_steps: int = 10  # Euler steps from noise to a chunk.
    value_goals: Shares = (0.2, 0.5, 0.3)  # Shares of goals of values and critics: own, future, random.
    # With random goals, the flow learns to ignore them; with future ones, it proposes actions that led to the goal.
    flow_goals: Shares = (0.0, 0.0, 1.0)  # Shares of goals of the flow: own, future, random.

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_least(1, "short", "proposals", "flow_steps")
        for name in ("expectile", "quantile", "discount"):
            if not 0 < getattr(self, name) < 1:
                raise InputError(f"{name} must lie between 0 and 1, got {getattr(self, name)}.")
        if self.chunk < self.short:
            raise InputError(f"chunk must be at least as long as short, {self.short}, got {self.chunk}.")
        check_shares(self, "value_goals", "flow_goals")

    @property
    def span(self) -> int:
        return self.chunk

    def networks(self, state: int, action: int) -> dict[str, Network]:
        return {
            "value": Network((state, *self.hidden, 1), norm=True),
            "chunk": Network((state + self.chunk * action, *self.hidden, 1), members=2, norm=True),
            "critic": Network((state + self.short * action, *self.hidden, 1), members=2, norm=True),
            "flow": Network((state + self.short * action + 1, *self.hidden, self.short * action), norm=True),
        }

    def stages(self) -> tuple[Stage, ...]:
        learned = {"value": 1, "chunk": 1, "critic": 1, "flow": 1}
        return (Stage(learned | {"target-chunk": 1, "target-critic": 1}, self.batch, together=True),)

    def noise(self, stream: Stream, updates: int, action: int) -> dict[str, Tensor]:
        return {
            "start": stream.normal(updates, self.batch, self.short * action),
            "time": stream.uniform(updates, self.batch, 1),
        }

    def acting_noise(self, stream: Stream, states: int, action: int) -> dict[str, Tensor]:
        return {"start": stream.normal(states, self.proposals, self.short * action)}

    def draw_goals(self, stream: Stream, row: Tensor, last: Tensor, rows: int) -> dict[str, Tensor]:
        value, flow = GoalShares(*self.value_goals[:2]), GoalShares(*self.flow_goals[:2])
        return {
            "value_goal": value.draw(stream.child("value"), row, last, rows),
            "actor_goal": flow.draw(stream.child("flow"), row, last, rows),
        }

    def chunk_loss(self, weights: Weights, batch: Batch, noise: Noise) -> tuple[Tensor, Measured]:
        assert batch.steps is not None
        ahead = torch.where(batch.terminal > 0, 1.0, sigmoid(mlp(weights, "value", batch.next_state)[..., 0]))
        target = discounted(batch.steps, self.discount) * ahead
        logit = q_values(weights, "chunk", batch.state, self._actions(batch, self.chunk))
        return cross_entropy(logit, target[:, None]).mean(-1).sum(-1), {"q": sigmoid(logit)}

    def critic_loss(self, weights: Weights, batch: Batch, noise: Noise) -> tuple[Tensor, Measured]:
        judged = q_values(weights, "target-chunk", batch.state, self._actions(batch, self.chunk)).amin(1, keepdim=True)
        logit = q_values(weights, "critic", batch.state, self._actions(batch, self.short))
        weight = torch.where(judged > logit, self.expectile, 1 - self.expectile)
        loss = (weight * cross_entropy(logit, sigmoid(judged))).mean(-1).sum(-1)
        return loss, {"q": sigmoid(logit), "advantage": sigmoid(judged) - sigmoid(logit)}

    def value_loss(self, weights: Weights, batch: Batch, noise: Noise) -> tuple[Tensor, Measured]:
        """The quantile loss of logits: the quantile of a logit is the logit of the quantile."""
        judged = q_values(weights, "target-critic", batch.state, self._actions(batch, self.short)).amin(1)
        logit = mlp(weights, "value", batch.state)[..., 0]
        advantage = judged - logit
        loss = torch.where(advantage > 0, self.quantile, self.quantile - 1) * advantage
        return loss.mean(-1), {"v": sigmoid(logit)}

    def flow_loss(self, weights: Weights, batch: Batch, noise: Noise) -> Tensor:
        """The squared error of the speed on the straight way from noise to the recorded actions."""
        state = batch.state if batch.actor_state is None else batch.actor_state
        start, end, time = noise["start"], self._actions(batch, self.short), noise["time"]
        speed = mlp(weights, "flow", torch.cat([state, start + time * (end - start), time], -1))
        return (speed - (end - start)).square().mean((-2, -1))

    def act(self, weights: Weights, state: Tensor, noise: Noise) -> Tensor:
        chunk = noise["start"]  # (R, B, N, K A), on its way from noise to actions
        shape, actions = chunk.shape[1:3], chunk.shape[-1] // self.short
        seen = state[:, :, None].expand(-1, -1, self.proposals, -1).flatten(1, 2)
        chunk = chunk.flatten(1, 2)
        for step in range(self.flow_steps):
            time = torch.full_like(chunk[..., :1], step / self.flow_steps)
            chunk = chunk + mlp(weights, "flow", torch.cat([seen, chunk, time], -1)) / self.flow_steps
        chunk = chunk.clamp(-1, 1)
        best = q_values(weights, "critic", seen, chunk).amin(1).unflatten(-1, shape).argmax(-1)
        index = best[..., None, None].expand(-1, -1, 1, actions)
        proposed: Tensor = chunk.unflatten(1, shape)
        return proposed.gather(2, index)[:, :, 0]

    @staticmethod
    def _actions(batch: Batch, count: int) -> Tensor:
        """The first actions of the batch's chunks, side by side, (R, B, count · A)."""
        assert batch.actions is not None
        return batch.actions[:, :, :count].flatten(2)


def sigmoid(logit: Tensor) -> Tensor:
    """By tanh: torch's own sigmoid rounds the last numbers of an array differently from the rest."""
    return 0.5 + 0.5 * (0.5 * logit).tanh()


def cross_entropy(logit: Tensor, target: Tensor) -> Tensor:
    """Minus the log likelihood of values in [0, 1], each the share of successes, under predicted logits."""
    return softplus(logit) - target * logit
