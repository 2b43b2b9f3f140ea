"""Tasks of one's own, from a graph file and a Gymnasium environment.

Everything is optional but the graph. What is missing is asked for when it is needed.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.columns import ColumnNames
from mocoda.graph.graph_file import FileTask, load_task
from mocoda.graph.learned import load_learned
from mocoda.tasks.task import Environment, make_environment

GOALS = 256  # resets of an environment from which goals are drawn


def own_task(
    graph: str | Path,
    *,
    data: Transitions | ColumnNames | None = None,
    environment: Environment | None = None,
    achieved: Sequence[str] | None = None,
    tolerance: float | None = None,
) -> FileTask:
    """A task made of a graph file and of what is known besides; the arguments are explained in `make_task`."""
    if data is None:
        if Path(graph).suffix != ".graph":
            raise InputError(f"{str(graph)!r} speaks of columns by name: pass data=, a table that has these columns.")
        data = load_learned(graph).names
    names = data if isinstance(data, ColumnNames) else ColumnNames.of(data)
    about = None if achieved is None else tuple(achieved)
    given = {"environment": environment, "achieved": about, "tolerance": tolerance}
    task = load_task(graph, data, **given)
    if task.environment is None:
        return task
    place = OwnEnvironment(Path(graph).resolve(), names, {k: v for k, v in given.items() if v is not None})
    if task.achieved is not None and task.goals is None:
        task = replace(task, goals=partial(_goals_of, place))
    return replace(task, environment=place)


@dataclass(frozen=True)
class OwnEnvironment:
    """Makes the environment of a graph file, with the goals, rewards and ends that the file defines."""

    graph: Path
    names: ColumnNames
    given: Mapping[str, Any]  # what was given besides the file

    def __call__(self, **options: Any) -> gymnasium.Env[Any, Any]:
        task = _loaded(self.graph, self.names, tuple(self.given.items()))
        return _OwnEnv(_made(task.environment, self.graph, options), task)

    def __repr__(self) -> str:
        return repr(self.given.get("environment", str(self.graph)))

    def __hash__(self) -> int:
        return hash((self.graph, self.names, repr(self.given)))


@cache
def _loaded(graph: Path, names: ColumnNames, given: tuple[tuple[str, Any], ...]) -> FileTask:
    return load_task(graph, names, **dict(given))


def _made(environment: Environment | None, graph: Path, options: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    """The environment itself; modules beside the graph file can be imported."""
    assert environment is not None
    if str(graph.parent) not in sys.path:
        sys.path.append(str(graph.parent))
    if callable(environment):
        known = inspect.signature(environment).parameters
        options = {name: value for name, value in options.items() if name in known}
    try:
        return make_environment(environment, **options)
    except (ImportError, gymnasium.error.Error) as error:
        raise InputError(
            f"gymnasium cannot make the environment {environment!r}: {str(error).rstrip('.')}. Give an id such as "
            "'my_module:Pushing-v0', whose module registers it and can be imported from the folder of the graph file."
        ) from error


class _OwnEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Shows states, beside goals if the task has them, and judges by the task."""

    def __init__(self, env: gymnasium.Env[Any, Any], task: FileTask) -> None:
        super().__init__(env)
        self.task = task
        self.seen: NDArray[np.float32] = np.zeros(task.graph.state_width, np.float32)
        self.goal: NDArray[np.float32] | None = None

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
        success = bool(terminated) and self.task.label is None
        if self.task.label is not None:
            rows = [torch.as_tensor(part, dtype=torch.float32)[None] for part in (before, action, self.seen)]
            goal = [] if self.goal is None else [torch.as_tensor(self.goal)[None]]
            labelled, ended = self.task.label(*rows, *goal)
            reward, success, terminated = float(labelled), bool(ended), terminated or bool(ended)
        if self.task.reached is not None and self.goal is not None:
            success = bool(self.task.reached(self._achieved(), torch.as_tensor(self.goal)[None]))
        return self._observation(), reward, terminated, truncated, {"is_success": success, **info}

    def _state(self, observation: Any) -> NDArray[np.float32]:
        seen = observation["observation"] if isinstance(observation, Mapping) and "observation" in observation else None
        if isinstance(observation, Mapping) and seen is None:
            raise InputError(
                f"the environment shows a dictionary of {', '.join(map(repr, observation))}; the state must be its "
                "'observation'."
            )
        state = np.ravel(observation if seen is None else seen).astype(np.float32)
        if len(state) != self.task.graph.state_width:
            raise InputError(
                f"the environment shows {len(state)} numbers, but states of the data have "
                f"{self.task.graph.state_width}. Its observations must be the states that were recorded."
            )
        return state

    def _goal(self, observation: Any, seed: int | None) -> NDArray[np.float32]:
        """The goal that the environment shows, or one that the task draws."""
        if isinstance(observation, Mapping) and "desired_goal" in observation:
            goal = np.ravel(observation["desired_goal"]).astype(np.float32)
        elif self.task.goals is not None:
            drawn = int(self.env.unwrapped.np_random.integers(2**31)) if seed is None else seed
            goal = self.task.goals(1, seed=drawn, device="cpu")[0].numpy().astype(np.float32)
        else:
            raise InputError(
                "the goals of the target task are not known: let the environment's observations have 'desired_goal', "
                "or define goals(n, seed, device) in the graph file."
            )
        if len(goal) != (width := self._achieved().shape[1]):
            raise InputError(
                f"a goal has {len(goal)} numbers, but achieved has {width} columns. They must be the same."
            )
        return goal

    def _achieved(self) -> Tensor:
        assert self.task.achieved is not None
        return self.task.achieved(torch.as_tensor(self.seen)[None]).float()

    def _observation(self) -> Any:
        if self.goal is None:
            return self.seen
        return {"observation": self.seen, "achieved_goal": self._achieved()[0].numpy(), "desired_goal": self.goal}


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
