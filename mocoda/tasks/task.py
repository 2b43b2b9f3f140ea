"""What a task must have: an environment with its graph, its recorded data and its rewards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph

Floats32 = NDArray[np.float32]
Environment = str | Callable[..., gymnasium.Env[Any, Any]]


def make_environment(environment: Environment, **options: Any) -> gymnasium.Env[Any, Any]:
    """Makes a task's environment."""
    if callable(environment):
        return environment(**options)
    return gymnasium.make(environment, disable_env_checker=True, **options)


def environment_action(space: gymnasium.Space[Any], action: NDArray[Any]) -> Any:
    """What an environment is given for an action (A,): if it expects a category, the number of the largest column."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return int(space.start) + int(np.argmax(action))
    return action.astype(space.dtype).reshape(space.shape)


class Task(Protocol):
    """The contract of a task. A task of your own needs these members and no base class.

    A task whose reward depends on a goal has two more: `goals(n, seed=, device=)`, which draws goals (n, G) of the
    target task, and `achieved(state)`, the goals (N, G) that states (N, S) have reached. It may have a third,
    `reached(achieved, goal)`: whether what was achieved is as good as the goal, (N, G) each, bool (N,). Agents that
    take goals from episodes use it. With a fourth, `next_goal(achieved, goal)`, `OneAtATime` pursues the goal one thing
    at a time: it returns a goal on the way, (G,) each, in which a single thing has yet to move.
    """

    @property
    def name(self) -> str:
        """The name under which `make_task` makes it."""

    @property
    def environment(self) -> Environment:
        """The id that `gymnasium.make` takes, also in other processes; "module:id" if a module must be imported first.

        It may also be a function that makes the environment and can be sent to other processes. Observations are
        states, or dicts with a state as "observation" and a goal as "desired_goal". Every episode ends, and what
        happens after a reset does not depend on earlier episodes.
        """

    @property
    def graph(self) -> LocalGraph:
        """Which factors of the next state depend on which factors of state and action."""

    @property
    def box(self) -> tuple[Tensor, Tensor]:
        """The lowest and the highest value of each column of state and action, (S + A,) each."""

    def collect(self, rows: int, *, seed: int | Stream) -> Transitions:
        """Records data with the rewards of the target task; rows know their episode if there are episodes."""

    @property
    def label(self) -> Callable[..., tuple[Tensor, Tensor]]:
        """A method that returns the target task's reward (N,) and whether the episode ends there, bool (N,).

        It is called as `label(state, action, next_state)`, or `label(state, action, next_state, goal)` for a task with
        goals.
        """

    def features(self, rows: Tensor) -> Tensor:
        """Returns the features (N, F) in which "mocoda-p" spreads the parents."""

    def region(self, rows: Tensor) -> Tensor:
        """Returns which rows "mocoda-p" may use, bool (N,)."""


class SimulatedTask(Task, Protocol):
    """A task whose simulator needs only the state, so that episodes run as batches of tensors.

    Any other task is evaluated in its Gymnasium environment.
    """

    def step(self, rows: Tensor) -> Tensor:
        """Returns the true next states (N, S) of rows (N, S + A)."""

    @property
    def horizon(self) -> int:
        """The number of steps after which an episode that has not terminated counts as a failure."""

    def start(self, n: int, *, seed: int | Stream, device: torch.device | str = "cpu") -> Tensor:
        """Draws states (n, S) in which episodes of the target task start."""


class SimulatedEnv(gymnasium.Env[Floats32, Floats32]):
    """A simulated task as a Gymnasium environment, for which a subclass draws the starts."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  (Gymnasium's own declaration)

    def __init__(self, task: SimulatedTask, low: Floats32 | float, high: Floats32 | float) -> None:
        states = task.graph.state_width
        actions = task.graph.width - states
        self.observation_space = gymnasium.spaces.Box(low, high, (states,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (actions,), np.float32)
        self.task = task
        self.state = torch.zeros(1, states)
        self._steps = 0

    def draw_start(self) -> Tensor:
        """Draws a start state (1, S) from `np_random`."""
        raise NotImplementedError

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Floats32, dict[str, Any]]:
        super().reset(seed=seed)
        self.state, self._steps = self.draw_start(), 0
        return self._observation(), {}

    def step(self, action: Floats32) -> tuple[Floats32, float, bool, bool, dict[str, Any]]:
        chosen = torch.as_tensor(np.asarray(action, np.float32)).reshape(1, -1).clamp(-1.0, 1.0)
        before, self.state = self.state, self.task.step(torch.cat([self.state, chosen], 1))
        reward, ended = self.task.label(before, chosen, self.state)
        self._steps += 1
        out_of_time = self._steps >= self.task.horizon and not bool(ended)
        return self._observation(), float(reward), bool(ended), out_of_time, {}

    def _observation(self) -> Floats32:
        return self.state[0].numpy().copy()
