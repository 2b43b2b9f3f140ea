"""Tasks of one's own, from a graph file and a Gymnasium environment.

Everything is optional but the graph. What is missing is asked for when it is needed.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.columns import ColumnNames
from mocoda.graph.graph_file import FileTask, load_task
from mocoda.graph.learned import load_learned
from mocoda.tasks.task import Environment, make_environment

GOALS = 256  # resets of an environment from which goals are drawn


def own_task(graph: str | Path, *, data: Transitions | ColumnNames | None = None, **given: Any) -> FileTask:
    """A task made of a graph file and of what is given besides; the arguments are explained in `make_task`."""
    if data is None:
        if Path(graph).suffix != ".graph":
            raise InputError(f"{str(graph)!r} speaks of columns by name: pass data=, a table that has these columns.")
        data = load_learned(graph).names
    task = load_task(graph, data, **given)
    if task.environment is None:
        return task
    names = data if isinstance(data, ColumnNames) else ColumnNames.of(data)
    given = {name: one for name, one in given.items() if one is not None}
    place = OwnEnvironment(Path(graph).resolve(), names, task.fingerprint, given)
    goals = partial(_goals_of, place) if task.achieved is not None and task.goals is None else task.goals
    # Functions of a file cannot be sent to other processes, but the file can be loaded there.
    reached, next_goal = (getattr(task, name) and partial(_called, place, name) for name in ("reached", "next_goal"))
    return replace(task, goals=goals, environment=place, reached=reached, next_goal=next_goal)


@dataclass(frozen=True)
class OwnEnvironment:
    """Makes the environment of a graph file, with the goals, rewards and ends that the file defines."""

    graph: Path
    names: ColumnNames
    fingerprint: str  # a file that has changed is loaded again
    given: Mapping[str, Any] = field(hash=False)  # besides the file

    def __call__(self, **options: Any) -> gymnasium.Env[Any, Any]:
        task = _loaded(self)
        environment: Any = task.environment
        if callable(environment):
            known = inspect.signature(environment).parameters
            options = {name: value for name, value in options.items() if name in known}
        try:
            return _OwnEnv(make_environment(environment, **options), task)
        except (ImportError, gymnasium.error.Error) as error:
            raise InputError(
                f"gymnasium cannot make the environment {environment!r}: {str(error).rstrip('.')}. Give an id such as "
                "'my_module:Pushing-v0', whose module registers it and can be imported from the folder of the graph "
                "file."
            ) from error

    def __repr__(self) -> str:
        return repr(self.given.get("environment", str(self.graph)))


@cache
def _loaded(place: OwnEnvironment) -> FileTask:
    return load_task(place.graph, place.names, **place.given)


def _called(place: OwnEnvironment, name: str, achieved: Tensor, goal: Tensor) -> Tensor:
    """Calls the function of a graph file that has this name."""
    found: Tensor = getattr(_loaded(place), name)(achieved, goal)
    return found


class _OwnEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Shows states, beside goals if the task has them, and judges by the task."""

    def __init__(self, env: gymnasium.Env[Any, Any], task: FileTask) -> None:
        super().__init__(env)
        self.task = task
        self.seen = torch.zeros(1, task.graph.state_width)
        self.goal: Tensor | None = None  # (1, G)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self.seen = self._state(observation)
        if self.task.achieved is not None:
            self.goal = self._goal(observation, seed)
        return self._observation(), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        space = self.env.action_space
        if isinstance(space, gymnasium.spaces.Discrete):
            action = np.eye(int(space.n))[int(action) - int(space.start)]  # as in the data
        before, self.seen = self.seen, self._state(observation)
        success = bool(terminated)
        if self.task.label is not None:
            goal = () if self.goal is None else (self.goal,)
            labelled, ended = self.task.label(before, _row(action), self.seen, *goal)
            reward, success, terminated = float(labelled), bool(ended), terminated or bool(ended)
        if self.task.reached is not None and self.goal is not None:
            success = bool(self.task.reached(self._achieved(), self.goal))
        return self._observation(), reward, terminated, truncated, {"is_success": success, **info}

    def _state(self, observation: Any) -> Tensor:
        seen = observation
        if isinstance(observation, Mapping):
            if "observation" not in observation:
                raise InputError(
                    f"the environment shows a dictionary of {', '.join(map(repr, observation))}; the state must be its "
                    "'observation'."
                )
            seen = observation["observation"]
        state, wanted = _row(seen), self.task.graph.state_width
        if state.shape[1] != wanted:
            raise InputError(
                f"the environment shows {state.shape[1]} numbers, but states of the data have {wanted}. Its "
                "observations must be the states that were recorded."
            )
        return state

    def _goal(self, observation: Any, seed: int | None) -> Tensor:
        """The goal that the environment shows, or one that the task draws."""
        if isinstance(observation, Mapping) and "desired_goal" in observation:
            goal = _row(observation["desired_goal"])
        elif self.task.goals is not None:
            drawn = int(self.env.unwrapped.np_random.integers(2**31)) if seed is None else seed
            goal = self.task.goals(1, seed=drawn, device="cpu").float()
        else:
            raise InputError(
                "the goals of the target task are not known: let the environment's observations have 'desired_goal', "
                "or define goals(n, seed, device) in the graph file."
            )
        if goal.shape[1] != (width := self._achieved().shape[1]):
            raise InputError(
                f"a goal has {goal.shape[1]} numbers, but achieved has {width} columns. They must be the same."
            )
        return goal

    def _achieved(self) -> Tensor:
        assert self.task.achieved is not None
        return self.task.achieved(self.seen).float()

    def _observation(self) -> Any:
        if self.goal is None:
            return self.seen[0].numpy()
        shown = {"observation": self.seen, "achieved_goal": self._achieved(), "desired_goal": self.goal}
        return {name: row[0].numpy() for name, row in shown.items()}


def _row(numbers: Any) -> Tensor:
    """What an environment shows or is given as a row, (1, N)."""
    return torch.from_numpy(np.ravel(numbers).astype(np.float32))[None]


def _goals_of(place: OwnEnvironment, n: int, *, seed: int | Stream, device: torch.device | str) -> Tensor:
    """Draws goals (n, G) from those that the environment shows after its resets."""
    stream = as_stream(seed, "goals", device=device)
    return _pool(place).to(device)[stream.integers(GOALS, n)]


@cache
def _pool(place: OwnEnvironment) -> Tensor:
    environment = place()
    goals = [environment.reset(seed=number)[0]["desired_goal"] for number in range(GOALS)]
    environment.close()
    return torch.as_tensor(np.array(goals), dtype=torch.float32)


def environment_range(environment: Environment, actions: int) -> tuple[Tensor, Tensor]:
    """The lowest and the highest action (A,) that an environment takes."""
    space = make_environment(environment).action_space
    if isinstance(space, gymnasium.spaces.Discrete):
        return torch.zeros(actions), torch.ones(actions)
    if not isinstance(space, gymnasium.spaces.Box) or int(np.prod(space.shape)) != actions:
        raise InputError(f"the environment takes actions of {space}, but the data's have {actions} columns.")
    low, high = (torch.as_tensor(np.ravel(end), dtype=torch.float32) for end in (space.low, space.high))
    if not bool((high - low).isfinite().all()):
        raise InputError("the environment's actions have no bounds: define box = (low, high) in the graph file.")
    return low, high
