"""Small tasks that are played in their environments, one of them with goals, where other processes can import them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mocoda import LocalGraph, Transitions
from mocoda.engine.randomness import Stream, as_stream

S, A, G = 3, 2, 2
HORIZON, NEAR = 12, 0.2
Floats = NDArray[np.float32]


class PointTask:
    """Walk to a goal. The state is a place, and a clock that no action touches; actions reach from -0.5 to 0.5."""

    name = "point"
    environment = "point_task:Point-v0"
    graph = LocalGraph(state={"p": [0, 1], "t": 2}, action={"u": [0, 1]}, edges={"p": ["p", "u"], "t": ["t"]})

    @property
    def box(self) -> tuple[Tensor, Tensor]:
        return torch.tensor([-1.0, -1.0, 0.0, -0.5, -0.5]), torch.tensor([1.0, 1.0, 1.0, 0.5, 0.5])

    def goals(self, n: int, *, seed: int | Stream, device: torch.device | str = "cpu") -> Tensor:
        return as_stream(seed, "point-goals", device=device).uniform(n, G, low=-1.0)

    def achieved(self, state: Tensor) -> Tensor:
        return state[:, :2]

    def label(self, state: Tensor, action: Tensor, next_state: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
        near = (self.achieved(next_state) - goal).norm(dim=1) < NEAR
        return near.float() - 1, torch.zeros_like(near)

    def collect(self, rows: int, *, seed: int | Stream) -> Transitions:
        stream = as_stream(seed, "point-collect", device="cpu")
        low, high = self.box
        drawn = low + (high - low) * stream.uniform(rows, S + A)
        state, action = drawn.split([S, A], 1)
        next_state = torch.cat([state[:, :2] + action, state[:, 2:] + 0.1], 1)
        goal = self.goals(rows, seed=stream)
        return Transitions(state, action, next_state, *self.label(state, action, next_state, goal), goal)

    def features(self, rows: Tensor) -> Tensor:
        return rows[:, :2]

    def region(self, rows: Tensor) -> Tensor:
        return torch.ones(len(rows), dtype=torch.bool)


class Point(gymnasium.Env[Any, Floats]):
    """The target task. Reaching the goal is a success, but ends nothing: time does."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  (Gymnasium's own declaration)

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Dict(
            {
                "observation": gymnasium.spaces.Box(-np.inf, np.inf, (S,), np.float64),
                "achieved_goal": gymnasium.spaces.Box(-np.inf, np.inf, (G,), np.float64),
                "desired_goal": gymnasium.spaces.Box(-np.inf, np.inf, (G,), np.float64),
            }
        )
        self.action_space = gymnasium.spaces.Box(-0.5, 0.5, (A,), np.float32)
        self.place = self.goal = np.zeros(2)
        self.time = 0.0

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.goal = self.np_random.uniform(-1.0, 1.0, (2, 2))
        self.time = 0.0
        return self._seen(), {}

    def step(self, action: Floats) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.place = self.place + action
        self.time += 0.1
        near = bool(np.linalg.norm(self.place - self.goal) < NEAR)
        return self._seen(), float(near) - 1, False, False, {"is_success": float(near)}

    def _seen(self) -> dict[str, Any]:
        state = np.array([*self.place, self.time])
        return {"observation": state, "achieved_goal": self.place.copy(), "desired_goal": self.goal.copy()}


class Corridor(gymnasium.Env[Floats, Floats]):
    """Shows a plain state, says nothing of success, and ends by itself at the right end. Its second action is idle."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (A,), np.float32)
        self.place = 0.0

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = float(self.np_random.uniform(0.0, 1.0))
        return np.array([self.place], np.float32), {}

    def step(self, action: Floats) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        self.place += float(action[0])
        return np.array([self.place], np.float32), -0.5, self.place > 3, False, {}


class CorridorTask(PointTask):
    name = "corridor"
    environment = "point_task:Corridor-v0"


gymnasium.register("Point-v0", "point_task:Point", max_episode_steps=HORIZON)
gymnasium.register("Corridor-v0", "point_task:Corridor", max_episode_steps=HORIZON)
