"""settings -> Agent: the contract of an algorithm that trains by the hundred.

An agent is a value: it holds settings, never weights. Weights are a dict of stacked tensors, one group of names per
network ("actor.0.weight", ...), and every method works on all runs at once.

Axes: R runs, Q critics, B rows of a batch, S and A columns of state and action. Actions are in [-1, 1] here; a trained
policy scales them to its task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from mocoda.engine.errors import InputError
from mocoda.engine.networks import Weights, mlp
from mocoda.engine.randomness import Stream
from mocoda.engine.registry import Registry

TARGET = "target-"


class Batch(NamedTuple):
    """Rows drawn from every run's data."""

    state: Tensor  # (R, B, S)
    action: Tensor  # (R, B, A)
    reward: Tensor  # (R, B)
    next_state: Tensor  # (R, B, S)
    terminal: Tensor  # (R, B), 1.0 where the episode ends


class Network(NamedTuple):
    """An MLP from sizes[0] inputs to sizes[-1] outputs, `members` of them where an agent wants several."""

    sizes: tuple[int, ...]
    members: int | None = None


class Stage(NamedTuple):
    """A part of the training: which groups of weights move, and how often.

    rhythm   group -> every how many updates it descends its loss, in this order; "target-x" follows group x instead
    updates  None: as many as the caller asks for
    """

    rhythm: Mapping[str, int]
    batch: int
    updates: int | None = None
    weight_decay: float = 0.0


Noise = Mapping[str, Tensor]
Loss = Callable[[Weights, Batch, Noise], Tensor]  # -> (R,)


@dataclass(frozen=True)
class Agent:
    """What all agents share. An algorithm derives from it and says its networks, stages, losses and actions."""

    name: ClassVar[str]
    acting: ClassVar[tuple[str, ...]] = ("actor",)  # the groups that `act` reads; all, in an agent without these

    hidden: tuple[int, ...] = (512, 512)
    batch: int = 500
    learning_rate: float = 1e-3
    discount: float = 0.98
    polyak: float = 0.005
    lowest: float = -50.0  # what a state can be worth at all: targets are clipped
    highest: float = 0.0
    decay: bool = False  # lower the learning rate to zero along a cosine over the last stage
    # Let networks see states of mean 0 and variance 1 over their data; every first layer must take the state first.
    standardise: bool = False

    def __post_init__(self) -> None:
        self._check_layers("hidden")
        self._check_counts("batch")
        if not self.learning_rate > 0:
            raise InputError(f"learning_rate must be positive, got {self.learning_rate}.")
        for share in ("discount", "polyak"):
            if not 0 <= getattr(self, share) <= 1:
                raise InputError(f"{share} must lie between 0 and 1, got {getattr(self, share)}.")
        if not self.lowest < self.highest:
            raise InputError(f"lowest must be below highest, got {self.lowest} and {self.highest}.")

    def _check_counts(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}.")

    def _check_not_negative(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) < 0:
                raise InputError(f"{name} must not be negative, got {getattr(self, name)}.")

    def _check_layers(self, name: str) -> None:
        sizes = tuple(getattr(self, name))
        object.__setattr__(self, name, sizes)  # a file gives back a list
        if min(sizes, default=1) < 1:
            raise InputError(f"{name} must name layers of at least 1 unit, got {sizes}.")

    def networks(self, state: int, action: int) -> dict[str, Network]:
        """The groups of weights for states and actions this wide."""
        raise NotImplementedError

    def stages(self) -> tuple[Stage, ...]:
        raise NotImplementedError

    def losses(self) -> dict[str, Loss]:
        """The loss of each group. Only that group's weights carry gradients; all others are given."""
        raise NotImplementedError

    def noise(self, stream: Stream, updates: int, action: int) -> dict[str, Tensor]:
        """One run's random numbers for `updates` updates, (updates, ...) each; its losses see (R, ...)."""
        return {}

    def act(self, weights: Weights, state: Tensor, noise: Noise) -> Tensor:
        """Actions (R, B, A) for states (R, B, S), as when evaluated."""
        raise NotImplementedError

    def acting_noise(self, stream: Stream, states: int, action: int) -> dict[str, Tensor]:
        """One run's random numbers to act in `states` states, (states, ...) each."""
        return {}

    def bootstrapped(self, batch: Batch, worth: Tensor) -> Tensor:
        """The value to learn (R, B), where the next states are worth (R, B)."""
        target = batch.reward + self.discount * (1 - batch.terminal) * worth
        return target.clamp(self.lowest, self.highest)


AGENTS: Registry[type[Agent]] = Registry("agent")


def make_agent(name: str, **settings: Any) -> Agent:
    """The agent called `name`, with its default settings but for those given."""
    agent: Agent = AGENTS.make(name, **settings)
    return agent


def policy(weights: Weights, group: str, state: Tensor) -> Tensor:
    """Deterministic actions (R, B, A) in [-1, 1]."""
    return mlp(weights, group, state).tanh()


def values(weights: Weights, group: str, state: Tensor, action: Tensor) -> Tensor:
    """What every critic thinks of doing `action` in `state`, (R, Q, B)."""
    return mlp(weights, group, torch.cat([state, action], -1)[:, None])[..., 0]


def squared_error(predicted: Tensor, target: Tensor) -> Tensor:
    """Mean over the batch, summed over the critics: (R, Q, B), (R, B) -> (R,)."""
    return (predicted - target[:, None]).square().mean(-1).sum(-1)
