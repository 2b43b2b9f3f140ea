"""What a task must have: an environment with its graph, its recorded data and its rewards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeGuard

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph


class Task(Protocol):
    """The contract of a task. One of yours needs these members and no base class.

    One whose reward is about a goal has two more: `goals(n, seed=, device=)`, goals (n, G) of the target task, and
    `achieved(state)`, the goals (N, G) that are reached in states (N, S). It may have a third, `reached(achieved,
    goal)`: whether what was achieved is as good as the goal, (N, G) each, bool (N,). Agents that make goals of states
    ask it.
    """

    @property
    def name(self) -> str:
        """The name that `make_task` knows it by."""

    @property
    def environment(self) -> str:
        """The id that `gymnasium.make` takes, also in other processes; "module:id" if a module must be imported first.

        Observations are states, or dicts with a state as "observation" and a goal as "desired_goal". Every episode
        ends, and what happens after a reset does not depend on earlier episodes.
        """

    @property
    def graph(self) -> LocalGraph:
        """Which factors of the next state depend on which factors of state and action."""

    @property
    def box(self) -> tuple[Tensor, Tensor]:
        """The lowest and the highest value of each column of state and action, (S + A,) each."""

    def collect(self, rows: int, *, seed: int | Stream) -> Transitions:
        """Records data and labels it with the target task's rewards; rows know their episode if they are of any."""

    @property
    def label(self) -> Callable[..., tuple[Tensor, Tensor]]:
        """A method that gives the target task's reward (N,) and whether the episode ends there, bool (N,).

        It is called as `label(state, action, next_state)`, or `label(state, action, next_state, goal)` for a task with
        goals.
        """

    def features(self, rows: Tensor) -> Tensor:
        """The features (N, F) in which "mocoda-p" spreads the parents."""

    def region(self, rows: Tensor) -> Tensor:
        """Which rows "mocoda-p" may use, bool (N,)."""


class SimulatedTask(Task, Protocol):
    """A task whose state determines what its simulator does, so that episodes run as batches of tensors.

    Any other task is evaluated in its Gymnasium environment.
    """

    def step(self, rows: Tensor) -> Tensor:
        """The true next states (N, S) of rows (N, S + A)."""

    @property
    def horizon(self) -> int:
        """Steps after which an episode that has not terminated counts as a failure."""

    def start(self, n: int, *, seed: int | Stream, device: torch.device | str = "cpu") -> Tensor:
        """States (n, S) in which episodes of the target task start."""


def is_simulated(task: object) -> TypeGuard[SimulatedTask]:
    """Whether a task has what batches of episodes need; `features` and `region` are only needed for "mocoda-p"."""
    return all(hasattr(task, name) for name in ("step", "horizon", "start"))
