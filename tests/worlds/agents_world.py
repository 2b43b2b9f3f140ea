"""A small task, its data and small agents, for the tests of what learns and acts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from mocoda import Agent, LocalGraph, Policies, Policy, Transitions, make_agent
from mocoda.agents.agent import AGENTS
from mocoda.agents.train import initial_weights
from mocoda.engine.randomness import Stream, as_stream

S, A = 3, 2
SMALL: dict[str, Any] = {"hidden": (20, 12), "batch": 19, "learning_rate": 0.01}
SAMPLERS: dict[str, Any] = {
    "samplers": 3,
    "components": 2,
    "sampler_hidden": (9, 7),
    "sampler_updates": 5,
    "sampler_batch": 23,
    "proposals": 6,
}
CHUNKS = {"chunk": 4, "short": 2, "proposals": 6, "flow_steps": 3}
each_agent = pytest.mark.parametrize("name", AGENTS)
# Those that learn from the data's rewards, also in tasks without goals.
each_rewarded_agent = pytest.mark.parametrize("name", [n for n in AGENTS if not AGENTS[n].goals_from_episodes])


def small(name: str, **settings: Any) -> Agent:
    own = {"bcq": SAMPLERS, "dqc": CHUNKS}.get(name, {})
    return make_agent(name, **(SMALL | own | settings))


class Hill:
    """Walk to the origin; q looks on. Its actions reach from -2 to 2, and from 0 to 3."""

    name = "hill"
    environment = "none"
    graph = LocalGraph(state={"p": [0, 1], "q": 2}, action={"u": [0, 1]}, edges={"p": ["p", "u"], "q": ["q", "p"]})
    horizon = 7

    @property
    def box(self) -> tuple[Tensor, Tensor]:
        return torch.tensor([-3.0, -3.0, -3.0, -2.0, 0.0]), torch.tensor([3.0, 3.0, 3.0, 2.0, 3.0])

    def start(self, n: int, *, seed: int | Stream, device: torch.device | str = "cpu") -> Tensor:
        return as_stream(seed, "start", device=device).normal(n, S)

    def step(self, rows: Tensor) -> Tensor:
        place, q, move = rows.split([2, 1, 2], 1)
        return torch.cat([0.8 * place + 0.3 * (move - 0.5), 0.9 * q + place.sum(1, keepdim=True)], 1)

    def label(self, state: Tensor, action: Tensor, next_state: Tensor) -> tuple[Tensor, Tensor]:
        distance = next_state[:, :2].abs().sum(1)
        return -distance, distance < 0.6

    def collect(self, rows: int, *, seed: int | Stream) -> Transitions:
        stream = as_stream(seed, "hill-collect", device="cpu")
        low, high = (end[S:] for end in self.box)
        return self.labelled(stream.normal(rows, S), low + (high - low) * stream.uniform(rows, A))

    def labelled(self, state: Tensor, action: Tensor) -> Transitions:
        next_state = self.step(torch.cat([state, action], 1))
        episode = torch.arange(len(state)) // 10
        return Transitions(state, action, next_state, *self.label(state, action, next_state), episode=episode)

    def features(self, rows: Tensor) -> Tensor:
        return rows[:, :2]

    def region(self, rows: Tensor) -> Tensor:
        return torch.ones(len(rows), dtype=torch.bool)


HILL = Hill()


def recorded(rows: int = 101, seed: int = 0) -> Transitions:
    """Data whose actions lie in [-1, 1], so that it needs no task."""
    stream = Stream(seed, "test-agents", "recorded")
    return HILL.labelled(stream.normal(rows, S), stream.uniform(rows, A, low=-1.0))


def learned_rewards(data: Transitions, discount: float) -> tuple[list[float], float, float]:
    """Rewards as an agent learns from them, row by row, and the q0 and scale of Q = q0 + scale · Q̂."""
    assert data.reward is not None
    rewards = data.reward.tolist()
    weights = [1.0 if ended else 1 - discount for ended in data.terminal.tolist()]
    q0 = sum(r * w for r, w in zip(rewards, weights, strict=True)) / sum(w * w for w in weights)
    rest = [r - q0 * w for r, w in zip(rewards, weights, strict=True)]
    possible = [r / w for r, w in zip(rewards, weights, strict=True)]
    scale = (1 - discount) * (max(possible) - min(possible))
    if max(map(abs, rest)) <= 1.2e-7 * max(map(abs, rewards)):  # nothing but rounding
        return [0.0] * len(rest), q0, 1.0
    return [r / scale for r in rest], q0, scale


def untrained(agent: Agent, seed: int = 0, bounds: Sequence[Sequence[float]] = ((-2.0, 0.0), (2.0, 3.0))) -> Policy:
    """A policy with fresh random weights."""
    weights = initial_weights(agent, S, A, [Stream(seed, "test-agents", "policy")])
    own = {name: weight[0] for name, weight in weights.items() if not name.startswith("target-")}
    low, high = map(torch.tensor, bounds)
    return Policy(agent, S, own, low, high)


def same(one: Policy, other: Policy) -> bool:
    """Whether two policies have the same agent and the same numbers, to the bit."""
    alike = one.agent == other.agent and one.weights.keys() == other.weights.keys()
    bounds = one.action_low.equal(other.action_low) and one.action_high.equal(other.action_high)
    return alike and bounds and all(weight.equal(other.weights[name]) for name, weight in one.weights.items())


def all_same(one: Policies, other: Policies) -> bool:
    """Whether two trainings came to the same, curves included."""
    curves = one.curves.keys() == other.curves.keys() and all(c.equal(other.curves[n]) for n, c in one.curves.items())
    return curves and list(one) == list(other) and all(same(policy, other[key]) for key, policy in one.items())
