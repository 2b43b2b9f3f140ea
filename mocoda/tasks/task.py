"""The contract of a task: an environment with its graph, its recorded data and its rewards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeGuard

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph


class Task(Protocol):
    """What mocoda needs to know of a task. Yours needs these members and no base class.

    One whose reward is about a goal has two more: `goals(n, seed=, device=)`, goals (n, G) of the target task, and
    `achieved(state)`, the goals (N, G) that are reached in states (N, S).
    """

    @property
    def name(self) -> str:
        """What `make_task` calls it."""

    @property
    def environment(self) -> str:
        """The id under which Gymnasium makes it, "module:id" where a module has to be imported first.

        Observations are states, or of the keys "observation", a state, and "desired_goal". Every episode ends, and a
        reset leaves no trace of the one before.
        """

    @property
    def graph(self) -> LocalGraph:
        """Who listens to whom."""

    @property
    def box(self) -> tuple[Tensor, Tensor]:
        """The lowest and the highest row, (S + A,) each."""

    def collect(self, rows: int, *, seed: int | Stream) -> Transitions:
        """The recorded data, labelled with the target task's rewards."""

    @property
    def label(self) -> Callable[..., tuple[Tensor, Tensor]]:
        """A method `label(state, action, next_state)`, or `label(state, action, next_state, goal)` if there are goals:
        the target task's reward (N,) and whether the episode ends there, bool (N,)."""

    def features(self, rows: Tensor) -> Tensor:
        """The features (N, F) in which "mocoda-p" spreads the parents."""

    def region(self, rows: Tensor) -> Tensor:
        """Which rows "mocoda-p" may use, bool (N,)."""


class SimulatedTask(Task, Protocol):
    """A task whose state is all there is to know of its simulator, so that episodes run as batches of tensors.

    Any other task is evaluated in its Gymnasium environment.
    """

    def step(self, rows: Tensor) -> Tensor:
        """The true next states (N, S) of rows (N, S + A)."""

    @property
    def horizon(self) -> int:
        """Steps after which an episode that has not ended is a failure."""

    def start(self, n: int, *, seed: int | Stream, device: torch.device | str = "cpu") -> Tensor:
        """States (n, S) in which episodes of the target task start."""


def is_simulated(task: object) -> TypeGuard[SimulatedTask]:
    """Whether it has what batches of episodes need; who never spreads parents may leave out features and region."""
    return all(hasattr(task, name) for name in ("step", "horizon", "start"))
