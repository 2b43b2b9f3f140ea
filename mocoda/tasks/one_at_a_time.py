"""Goals of several things, pursued one thing at a time.

An agent that has learned to move one thing while the others rest need not plan for all of them at once: it is shown a
goal in which only one thing has yet to move, then the next. Episodes and their success are those of the task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import torch
from torch import Tensor

from mocoda.engine.errors import InputError
from mocoda.tasks.task import Environment, make_environment


@dataclass(frozen=True)
class OneAtATime:
    """A task whose environment shows agents goals on the way to the task's own; all else is the task's.

    task     has goals, `reached(achieved, goal)` and `next_goal(achieved, goal)`, which says what to pursue first
    settled  successive steps that a goal on the way must be reached before the next one is shown
    limit    steps after which it is chosen anew, reached or not
    """

    task: Any
    settled: int = 10
    limit: int = 150

    def __post_init__(self) -> None:
        missing = [name for name in ("reached", "next_goal", "environment") if getattr(self.task, name, None) is None]
        if missing:
            raise InputError(
                f"the goals of task {self.task.name!r} cannot be pursued one at a time, because it has no "
                f"`{missing[0]}`. Choose a task of cubes, such as `cube-double`, or name in a graph file the columns "
                "of several factors in `achieved`, with a `tolerance` and an `environment`."
            )
        for name in ("settled", "limit"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}.")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "task":  # while it is copied or unpickled
            raise AttributeError(name)
        return getattr(self.task, name)

    @property
    def name(self) -> str:
        return f"{self.task.name}, one at a time"

    @property
    def environment(self) -> Environment:
        task = self.task
        return _Maker(task.environment, task.reached, task.next_goal, self.settled, self.limit)


@dataclass(frozen=True)
class _Maker:
    """Makes the environment, also in other processes; it is therefore no lambda, and does not hold the whole task."""

    environment: Environment
    reached: Callable[[Tensor, Tensor], Tensor]
    next_goal: Callable[[Tensor, Tensor], Tensor]
    settled: int
    limit: int

    def __call__(self, **options: Any) -> gymnasium.Env[Any, Any]:
        return _OnTheWay(make_environment(self.environment, **options), self)

    def __repr__(self) -> str:
        return repr(self.environment)


class _OnTheWay(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Shows a goal on the way as "desired_goal", until it has been reached for some steps or time is up."""

    def __init__(self, env: gymnasium.Env[Any, Any], task: _Maker) -> None:
        super().__init__(env)
        self.task = task
        self.shown: Tensor | None = None  # the goal on the way, (G,)
        self.reached = self.age = 0  # steps for which it has been reached, and shown

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**options)
        self.shown = None
        return self._observation(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, *rest = self.env.step(action)
        return self._observation(observation), *rest

    def _observation(self, observation: Any) -> Any:
        if not isinstance(observation, Mapping) or not {"achieved_goal", "desired_goal"} <= observation.keys():
            raise InputError(
                f"to pursue one thing at a time, the environment {self.task!r} must show 'achieved_goal' and "
                "'desired_goal' beside its 'observation'."
            )
        # Copies, which next_goal may change.
        achieved, goal = (torch.tensor(observation[f"{kind}_goal"]).float() for kind in ("achieved", "desired"))
        task, self.age = self.task, self.age + 1
        if self.shown is not None:
            there = bool(task.reached(achieved[None], self.shown[None]))
            self.reached = self.reached + 1 if there else 0
        if self.shown is None or self.reached >= task.settled or self.age >= task.limit:
            shown = task.next_goal(achieved, goal)
            if not isinstance(shown, Tensor) or shown.shape != goal.shape:
                got = tuple(shown.shape) if isinstance(shown, Tensor) else type(shown).__name__
                raise InputError(
                    f"next_goal(achieved, goal) must return a tensor of the shape of the goal, {tuple(goal.shape)}, "
                    f"got {got}."
                )
            self.shown, self.reached, self.age = shown.float(), 0, 0
        return {**observation, "desired_goal": self.shown.numpy()}
