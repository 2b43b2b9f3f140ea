"""The contract of an agent: an offline RL algorithm that trains many runs as one program.

An agent holds settings, never weights. Weights are a dict of stacked tensors, one group of names per network
("actor.0.weight", ...), and every method works on all runs at once.

Axes: R runs, Q critics, B rows of a batch, S and A columns of state and action. Actions are in [-1, 1] here; a trained
policy scales them to its task.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from mocoda.engine.errors import InputError
from mocoda.engine.networks import Weights, mlp, mlp_weights
from mocoda.engine.randomness import Stream
from mocoda.engine.registry import Registry

TARGET = "target-"  # prefix of the groups that follow another group slowly
OWN = -1  # among numbers of rows that stand for goals: the row's own state


class Batch(NamedTuple):
    """Rows drawn from every run's data. Rewards and values are in the units that the agent learns in."""

    state: Tensor  # (R, B, S)
    action: Tensor  # (R, B, A)
    reward: Tensor  # (R, B)
    next_state: Tensor  # (R, B, S)
    terminal: Tensor  # (R, B), 1.0 where the episode ends
    low: Tensor  # (R, 1), the smallest possible value, by `value_range` or by the data's rewards
    high: Tensor  # (R, 1), the largest
    actor_state: Tensor | None = None  # (R, B, S), the state beside the actor's goal, if goals are drawn from episodes
    # If goals are drawn from episodes, with the agent's `span` C; the next state is that after the last of C actions.
    actions: Tensor | None = None  # (R, B, C, A), the row's action and those that follow it
    steps: Tensor | None = None  # (R, B), the number of these actions before a state that reaches the goal; C if none


class Network(NamedTuple):
    """An MLP from sizes[0] inputs to sizes[-1] outputs, with ReLU or, with `norm`, GELU and layer norm between layers.

    members  number of networks of an ensemble; None: one network without the extra axis
    """

    sizes: tuple[int, ...]
    members: int | None = None
    norm: bool = False


class Stage(NamedTuple):
    """A part of the training: which groups of weights are updated, and how often.

    update_every  group -> it descends its loss at every so many updates, in this order; "target-x" follows group x
    updates       length of the stage; None: as many updates as the caller of `train_agents` wants
    together      all losses of an update see the weights from before it, so that a GPU can work on them side by side;
                  otherwise each loss sees the groups ahead of it already updated
    """

    update_every: Mapping[str, int]
    batch: int
    updates: int | None = None
    weight_decay: float = 0.0
    together: bool = False

    @property
    def learned(self) -> list[str]:
        """The groups that descend a loss."""
        return [group for group in self.update_every if not group.startswith(TARGET)]

    @property
    def turns(self) -> list[list[str]]:
        """The groups in the order in which they are updated; groups of the same turn do not wait for each other."""
        if not self.together:
            return [[group] for group in self.update_every]
        return [self.learned, *([group] for group in self.update_every if group.startswith(TARGET))]


Noise = Mapping[str, Tensor]
# What a loss has computed besides the loss, for the curves of a training: by name, (R,) or more axes after that of the
# runs. The training logs the mean of each as "group/name", and takes care of detaching it. Values named "q" and "v" and
# differences of values named "advantage" are in the units that the agent learns in; they are logged in those of the
# rewards, with their largest: "critic/q_mean" and "critic/q_max".
Measured = Mapping[str, Tensor]
Found = Tensor | tuple[Tensor, Measured]  # a loss (R,), alone or with measurements
Loss = Callable[[Weights, Batch, Noise], Found]


def loss_and_measured(found: Found) -> tuple[Tensor, Measured]:
    """Splits what a loss has returned; a loss alone has measured nothing."""
    return found if isinstance(found, tuple) else (found, {})


@dataclass(frozen=True)
class Agent:
    """The settings that all agents share. An algorithm subclasses it and defines networks, stages, losses and actions.

    With `scale_rewards`, the agent rescales rewards by its data: values are written as Q = q0 + scale · Q̂, where q0
    and scale are computed from each data set, and the critics learn Q̂. The best policy does not change, and rewards
    of any sign and size train alike: -1/0, 0/1 or ten times as large.

    `value_range` clips the targets of the critics to the possible values, in the units of the rewards: (-50, 0) for a
    reward of -1 per step until the goal and a discount of 0.98. It can help where critics diverge or overestimate. Use
    it only if the bounds are certain: if the range is too narrow, good and better actions get the same value. None
    does not clip.
    """

    name: ClassVar[str]
    acting: ClassVar[tuple[str, ...]] = ("actor",)  # the groups that `act` reads; all groups if these do not exist
    # Goals are states of the data's episodes, chosen by `draw_goals`; the data needs neither goals nor rewards.
    goals_from_episodes: ClassVar[bool] = False

    hidden: tuple[int, ...] = (512, 512)  # Widths of the hidden layers.
    batch: int = 500  # Rows of each update.
    learning_rate: float = 1e-3  # Step size of Adam.
    discount: float = 0.98  # Weight of a reward one step later.
    polyak: float = 0.005  # Share by which target networks move towards their source at each of their updates.
    value_range: tuple[float, float] | None = None  # Clip value targets to (low, high), in the units of the rewards.
    scale_rewards: bool = True  # Rescale rewards by the data, so that any sign and size trains alike.
    decay: bool = False  # Lower the learning rate to zero along a cosine over the last stage.
    # The state must be the first input of every network.
    standardise: bool = False  # Give the networks states of mean 0 and variance 1.

    def __post_init__(self) -> None:
        self._check_layers("hidden")
        self._check_least(1, "batch")
        if not self.learning_rate > 0:
            raise InputError(f"learning_rate must be positive, got {self.learning_rate}.")
        for name in ("discount", "polyak"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} must lie between 0 and 1, got {getattr(self, name)}.")
        if self.value_range is not None:
            ends = tuple(self.value_range)  # JSON gives a list
            object.__setattr__(self, "value_range", ends)
            if len(ends) != 2 or not -math.inf < ends[0] < ends[1] < math.inf:
                raise InputError(f"value_range must be two finite numbers, low < high, got {self.value_range}.")

    def _check_least(self, least: int, *names: str) -> None:
        for name in names:
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}, got {getattr(self, name)}.")

    def _check_layers(self, name: str) -> None:
        sizes = tuple(getattr(self, name))  # JSON gives a list
        object.__setattr__(self, name, sizes)
        if min(sizes, default=1) < 1:
            raise InputError(f"{name} must name layers of at least 1 unit, got {sizes}.")

    def networks(self, state: int, action: int) -> dict[str, Network]:
        """The networks by group, for `state` and `action` columns."""
        raise NotImplementedError

    def stages(self) -> tuple[Stage, ...]:
        """The parts of the training, in order."""
        raise NotImplementedError

    def losses(self) -> dict[str, Loss]:
        """The loss function of each group, unless defined otherwise: `actor_loss` for "actor", and so on.

        Only that group's weights carry gradients; all others are constants.
        """
        groups = [group for stage in self.stages() for group in stage.learned]
        return {group: getattr(self, f"{group}_loss") for group in groups if hasattr(self, f"{group}_loss")}

    def noise(self, stream: Stream, updates: int, action: int) -> dict[str, Tensor]:
        """Draws one run's random numbers for `updates` updates, (updates, ...) each; the losses see (R, ...)."""
        return {}

    @property
    def span(self) -> int:
        """The number of successive steps of an episode that a row of a batch is about, where goals are of episodes."""
        return 1

    def draw_goals(self, stream: Stream, row: Tensor, last: Tensor, rows: int) -> dict[str, Tensor]:
        """Draws one run's goals, "value_goal" and "actor_goal", for the rows of some updates, (updates, B) each.

        row   numbers of the rows; `last` are those of the last rows of their episodes
        rows  number of rows of the data

        A goal is the number of the row whose next state it is, or OWN. `GoalShares.draw` draws such numbers.
        """
        raise NotImplementedError

    def act(self, weights: Weights, state: Tensor, noise: Noise) -> Tensor:
        """Chooses actions (R, B, A) for states (R, B, S), as in an evaluation."""
        raise NotImplementedError

    def acting_noise(self, stream: Stream, states: int, action: int) -> dict[str, Tensor]:
        """Draws one run's random numbers for acting in `states` states, (states, ...) each."""
        return {}

    def target(self, weights: Weights, batch: Batch, noise: Noise) -> Tensor:
        """Returns the values (R, B) that `critic_loss` compares the critics with."""
        raise NotImplementedError

    def critic_loss(self, weights: Weights, batch: Batch, noise: Noise) -> tuple[Tensor, Measured]:
        """The squared error of all critics, for agents whose critics are the group "critic"."""
        q = q_values(weights, "critic", batch.state, batch.action)
        return squared_error(q, self.target(weights, batch, noise)), {"q": q}

    def bellman_target(self, batch: Batch, next_q: Tensor) -> Tensor:
        """Returns the values (R, B) that critics learn, given the values of the next states (R, B)."""
        target = batch.reward + self.discount * (1 - batch.terminal) * next_q
        return target if self.value_range is None else target.clamp(batch.low, batch.high)


def network_weights(agent: Agent, state: int, action: int, stream: Stream) -> dict[str, Tensor]:
    """Draws one run's weights of all networks, without targets."""
    weights: dict[str, Tensor] = {}
    for group, network in agent.networks(state, action).items():
        leading = () if network.members is None else (network.members,)
        weights |= mlp_weights(group, leading, network.sizes, stream.child(group), network.norm)
    return weights


AGENTS: Registry[type[Agent]] = Registry("agent")


def make_agent(name: str, **settings: Any) -> Agent:
    """Makes the agent called `name`; settings that are not given keep their defaults."""
    agent: Agent = AGENTS.make(name, **settings)
    return agent


def policy(weights: Weights, group: str, state: Tensor) -> Tensor:
    """Returns the deterministic actions (R, B, A) of a network with tanh, in [-1, 1]."""
    return mlp(weights, group, state).tanh()


def q_values(weights: Weights, group: str, state: Tensor, action: Tensor) -> Tensor:
    """Returns every critic's value of `action` in `state`, (R, Q, B)."""
    return mlp(weights, group, torch.cat([state, action], -1)[:, None])[..., 0]


def squared_error(predicted: Tensor, target: Tensor) -> Tensor:
    """Squared error, averaged over the batch and summed over the critics: (R, Q, B), (R, B) -> (R,)."""
    return (predicted - target[:, None]).square().mean(-1).sum(-1)
