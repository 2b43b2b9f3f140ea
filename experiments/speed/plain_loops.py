"""TD3-BC and GCIQL as plain PyTorch loops of one agent: `nn.Sequential`, `torch.optim.Adam` and the same losses."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from mocoda.agents import GCIQL, TD3BC
from mocoda.data.transitions import Transitions
from mocoda.engine.randomness import Stream


def train_td3_bc(data: Transitions, agent: TD3BC, updates: int, stream: Stream) -> None:
    state, action = data.state.shape[1], data.action.shape[1]
    critics = nn.ModuleList(network((state + action, *agent.hidden, 1)) for _ in range(2))
    actor = network((state, *agent.hidden, action))
    target_critics, target_actor = deepcopy(critics), deepcopy(actor)
    critic_adam, actor_adam = (torch.optim.Adam(part.parameters(), agent.learning_rate) for part in (critics, actor))
    assert data.reward is not None
    for update in range(1, updates + 1):
        rows = stream.integers(len(data), agent.batch)
        s, a, following = data.state[rows], data.action[rows], data.next_state[rows]
        with torch.no_grad():
            jitter = agent.smoothing * stream.normal(*a.shape)
            jitter = jitter.clamp(-agent.smoothing_clip, agent.smoothing_clip)
            next_action = (target_actor(following).tanh() + jitter).clamp(-1, 1)
            next_q = torch.minimum(*values(target_critics, following, next_action))
            target = data.reward[rows] + agent.discount * (1 - data.terminal[rows].float()) * next_q
        step(critic_adam, torch.stack([mse_loss(q, target) for q in values(critics, s, a)]).sum())
        if update % 2 == 0:
            own = actor(s).tanh()
            loss = agent.imitation * mse_loss(own, a) - torch.minimum(*values(critics, s, own)).mean()
            step(actor_adam, loss)
            follow(target_critics, critics, agent.polyak)
            follow(target_actor, actor, agent.polyak)


def train_gciql(data: Transitions, agent: GCIQL, updates: int, stream: Stream) -> None:
    """Goals are states of random rows: to draw later states of the episodes would take more time, not less."""
    state, action = 2 * data.state.shape[1], data.action.shape[1]
    value, actor = (network((state, *agent.hidden, outputs), norm=True) for outputs in (1, action))
    critics = nn.ModuleList(network((state + action, *agent.hidden, 1), norm=True) for _ in range(2))
    target_critics = deepcopy(critics)
    value_adam, critic_adam, actor_adam = (
        torch.optim.Adam(part.parameters(), agent.learning_rate) for part in (value, critics, actor)
    )
    for _ in range(updates):
        rows, goal_rows, actor_rows = stream.integers(len(data), 3, agent.batch)
        goal, a = data.state[goal_rows], data.action[rows]
        reached = (data.state[rows] == goal).all(1).float()
        s, following = (torch.cat([part[rows], goal], 1) for part in (data.state, data.next_state))
        actor_s = torch.cat([data.state[rows], data.state[actor_rows]], 1)
        with torch.no_grad():
            q = torch.minimum(*values(target_critics, s, a))
            target = reached - 1 + agent.discount * (1 - reached) * value(following)[:, 0]
        advantage = q - value(s)[:, 0]
        weight = torch.where(advantage < 0, 1 - agent.expectile, agent.expectile)
        step(value_adam, (weight * advantage.square()).mean())
        step(critic_adam, torch.stack([mse_loss(each, target) for each in values(critics, s, a)]).sum())
        own = actor(actor_s)
        own_q = torch.minimum(*values(critics, actor_s, own.clamp(-1, 1)))
        distance = (own - a).square().sum(1).mean()
        step(actor_adam, 0.5 * agent.imitation * distance - own_q.mean() / (own_q.detach().abs().mean() + 1e-6))
        follow(target_critics, critics, agent.polyak)


def network(sizes: Sequence[int], norm: bool = False) -> nn.Sequential:
    """Linear layers with ReLU between them or, with `norm`, GELU and layer norm."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes[:-1]):
        layers += [nn.Linear(inputs, outputs)]
        layers += [nn.GELU(approximate="tanh"), nn.LayerNorm(outputs)] if norm else [nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


def values(critics: nn.ModuleList, state: Tensor, action: Tensor) -> list[Tensor]:
    """Every critic's values (B,)."""
    both = torch.cat([state, action], 1)
    return [critic(both)[:, 0] for critic in critics]


def step(optimiser: torch.optim.Adam, loss: Tensor) -> None:
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


@torch.no_grad()
def follow(target: nn.Module, source: nn.Module, polyak: float) -> None:
    for ours, theirs in zip(target.parameters(), source.parameters(), strict=True):
        ours.lerp_(theirs, polyak)
