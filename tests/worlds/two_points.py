"""Two points on a line, each with its own goal, and an agent that moves each towards the goal that it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import mocoda
from mocoda import Policy
from mocoda.agents.agent import Noise
from mocoda.engine.networks import Weights

Floats = NDArray[np.float32]
NEAR, REACH = 0.05, 0.1


class TwoPoints(gymnasium.Env[Any, Floats]):
    """An episode ends when both points are at their goals."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012  (Gymnasium's own)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        space = gymnasium.spaces.Box(-99, 99, (2,), np.float32)
        self.observation_space = gymnasium.spaces.Dict(observation=space, achieved_goal=space, desired_goal=space)
        self.action_space = gymnasium.spaces.Box(-REACH, REACH, (2,), np.float32)
        self.points = self.goal = np.zeros(2, np.float32)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Floats], dict[str, Any]]:
        super().reset(seed=seed)
        self.points = self.np_random.uniform(-1.0, 0.0, 2).astype(np.float32)
        self.goal = self.np_random.uniform(0.2, 1.0, 2).astype(np.float32)
        return self._seen(), {}

    def step(self, action: Floats) -> tuple[dict[str, Floats], float, bool, bool, dict[str, Any]]:
        self.points = self.points + action
        there = bool((np.abs(self.points - self.goal) <= NEAR).all())
        return self._seen(), float(there) - 1, there, False, {"is_success": there}

    def render(self) -> NDArray[np.uint8]:
        return np.zeros((16, 16, 3), np.uint8)

    def _seen(self) -> dict[str, Floats]:
        return {
            "observation": self.points.copy(),
            "achieved_goal": self.points.copy(),
            "desired_goal": self.goal.copy(),
        }


class Line:
    """Both points at their goals, the second one first."""

    name = "line"
    environment: ClassVar[Any] = "two_points:TwoPoints-v0"

    def reached(self, achieved: Tensor, goal: Tensor) -> Tensor:
        return ((achieved - goal).abs() <= NEAR).all(1)

    def next_goal(self, achieved: Tensor, goal: Tensor) -> Tensor:
        second = torch.stack([achieved[0], goal[1]])
        return goal if bool(self.reached(achieved[None], second[None])) else second


@dataclass(frozen=True)
class Towards(mocoda.Agent):
    """Moves each point as far as it can towards the goal that is shown; it has nothing to learn."""

    name: ClassVar[str] = "towards"

    def act(self, weights: Weights, state: Tensor, noise: Noise) -> Tensor:
        return ((state[..., 2:] - state[..., :2]) / REACH).clamp(-1, 1)


def towards() -> Policy:
    """The agent as a policy."""
    return Policy(Towards(), 4, {}, torch.full((2,), -REACH), torch.full((2,), REACH))


gymnasium.register("TwoPoints-v0", "two_points:TwoPoints", max_episode_steps=60)
