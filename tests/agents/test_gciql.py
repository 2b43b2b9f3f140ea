"""GCIQL and DQC: their losses, and worlds in which the answer is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from mocoda import Agent, Transitions, train_agents
from mocoda.agents import DQC, GCIQL, Batch
from mocoda.agents.agent import loss_and_measured, q_values
from mocoda.agents.train import initial_weights
from mocoda.engine.networks import mlp
from mocoda.engine.randomness import Stream

SMALL: dict[str, Any] = {"hidden": (12, 8), "batch": 19, "learning_rate": 0.01}
QUICK: dict[str, Any] = {"hidden": (32, 32), "batch": 128, "learning_rate": 5e-3, "polyak": 0.1, "discount": 0.9}


# Losses


def trial() -> tuple[dict[str, Tensor], Batch]:
    stream = Stream(0, "test-gciql")
    weights = initial_weights(GCIQL(**SMALL), 6, 2, [stream.child("run", run) for run in (0, 1)])
    weights |= {n: w + 0.1 * stream.child(n).normal(*w.shape) for n, w in weights.items() if n.startswith("target-")}
    state, following, other = (stream.normal(2, 30, 6) for _ in range(3))
    terminal = (stream.uniform(2, 30) < 0.3).float()
    action, low = stream.uniform(2, 30, 2, low=-1.0), torch.zeros(2, 1)
    return weights, Batch(state, action, terminal - 1, following, terminal, low, low, other)


def test_the_value_learns_an_expectile_of_the_lesser_target_critic() -> None:
    weights, batch = trial()
    q = q_values(weights, "target-critic", batch.state, batch.action)
    gap = torch.minimum(q[:, 0], q[:, 1]) - mlp(weights, "value", batch.state)[..., 0]
    expected = torch.where(gap > 0, 0.7, 0.3) * gap**2
    found = GCIQL(expectile=0.7, **SMALL).value_loss(weights, batch, {})[0]
    torch.testing.assert_close(found, expected.mean(1))
    assert bool((gap > 0).any() & (gap < 0).any())


def test_critics_learn_the_reward_and_the_value_of_what_follows_until_the_goal() -> None:
    weights, batch = trial()
    target = batch.reward + 0.99 * (1 - batch.terminal) * mlp(weights, "value", batch.next_state)[..., 0]
    q = q_values(weights, "critic", batch.state, batch.action)
    expected = (q[:, 0] - target).square().mean(1) + (q[:, 1] - target).square().mean(1)
    torch.testing.assert_close(GCIQL(**SMALL).critic_loss(weights, batch, {})[0], expected)


def test_the_actor_climbs_the_critic_and_imitates_with_goals_of_its_own() -> None:
    weights, batch = trial()
    assert batch.actor_state is not None
    action = mlp(weights, "actor", batch.actor_state)
    q = q_values(weights, "critic", batch.actor_state, action.clamp(-1, 1)).amin(1)
    imitation = 0.5 * (action - batch.action).square().sum(-1).mean(1)
    expected = 0.3 * imitation - q.mean(1) / q.abs().mean(1)
    torch.testing.assert_close(
        GCIQL(imitation=0.3, **SMALL).actor_loss(weights, batch, {})[0], expected, rtol=1e-4, atol=1e-4
    )


def test_in_several_steps_they_learn_what_these_cost_and_the_value_after_them() -> None:
    weights, batch = trial()
    steps = torch.arange(30.0).remainder(4).expand(2, 30)  # 3: the goal is not reached
    batch = batch._replace(steps=steps, terminal=(steps < 3).float())
    value = mlp(weights, "value", batch.next_state)[..., 0]
    target = torch.stack([-torch.ones(2, 30) * sum(0.99**i for i in range(k)) for k in range(4)])
    target[3] += 0.99**3 * value
    expected = target.gather(0, steps.long()[None])[0]
    torch.testing.assert_close(GCIQL(steps=3, **SMALL).target(weights, batch, {}), expected)


# DQC


@pytest.mark.parametrize("group", ["chunk", "critic", "value", "flow"])
def test_dqcs_losses_are_those_of_the_paper(group: str) -> None:
    agent, stream = DQC(chunk=3, short=2, discount=0.9, **SMALL), Stream(0, "test-dqc")
    weights = initial_weights(agent, 6, 2, [stream.child("run", run) for run in (0, 1)])
    weights |= {n: w + 0.1 * stream.child(n).normal(*w.shape) for n, w in weights.items() if n.startswith("target-")}
    actions, steps = stream.uniform(2, 30, 3, 2, low=-1.0), torch.arange(30.0).remainder(4).expand(2, 30)
    batch = trial()[1]._replace(actions=actions, steps=steps, terminal=(steps < 3).float())
    noise = {"start": stream.normal(2, 30, 4), "time": stream.uniform(2, 30, 1)}
    long, short = actions.flatten(2), actions[:, :, :2].flatten(2)

    def logit(name: str, *more: Tensor) -> Tensor:
        return mlp(weights, name, torch.cat([batch.state, *more], -1)[:, None] if more else batch.state)[..., 0]

    def least(name: str, given: Tensor) -> Tensor:
        return torch.minimum(*logit(name, given).unbind(1))

    if group == "chunk":
        ahead = torch.where(steps < 3, 1.0, mlp(weights, "value", batch.next_state)[..., 0].sigmoid())
        target = (0.9**steps * ahead)[:, None].expand(-1, 2, -1)
        each = binary_cross_entropy_with_logits(logit("chunk", long), target, reduction="none").sum(1)
    elif group == "critic":
        target, found = least("target-chunk", long).sigmoid()[:, None].expand(-1, 2, -1), logit("critic", short)
        weight = torch.where(target > found.sigmoid(), 0.8, 0.2)
        each = (weight * binary_cross_entropy_with_logits(found, target, reduction="none")).sum(1)
    elif group == "value":
        gap = least("target-critic", short) - logit("value")
        each = torch.maximum(0.93 * gap, -0.07 * gap)
    else:
        assert batch.actor_state is not None
        between = (1 - noise["time"]) * noise["start"] + noise["time"] * short
        speed = mlp(weights, "flow", torch.cat([batch.actor_state, between, noise["time"]], -1))
        each = (speed - (short - noise["start"])).square().mean(-1)
    loss, _ = loss_and_measured(agent.losses()[group](weights, batch, noise))
    torch.testing.assert_close(loss, each.mean(1))


# Worlds


def moved(place: Tensor, action: Tensor) -> Tensor:
    return (place + 0.2 * action).clamp(-1, 1)


def reached(act: Callable[[Tensor], Tensor], steps: int = 20) -> tuple[float, float]:
    """Of 200 pairs of start and goal in the square: the share that is reached, and the mean steps by the least."""
    stream = Stream(0, "test-gciql", "pairs")
    place, goal = stream.uniform(200, 2, low=-1.0), stream.uniform(200, 2, low=-1.0)
    least = (((place - goal).abs().amax(1) - 0.15) / 0.2).ceil().clamp(min=1)
    taken = torch.full((200,), float(steps))
    for step in range(steps):
        place = moved(place, act(torch.cat([place, goal], 1)))
        near = (place - goal).norm(dim=1) < 0.15
        taken = torch.where(near, taken.clamp(max=step + 1), taken)
    return float((taken < steps).float().mean()), float(taken.mean() / least.mean())


@pytest.mark.parametrize(
    ("agent", "slower"),
    [(GCIQL(imitation=0.1, **QUICK), 1.5), (DQC(**QUICK), 2.0)],  # DQC does no better than the best recorded actions
    ids=["gciql", "dqc"],
)
def test_from_a_random_walk_it_learns_the_straight_way_to_every_goal(agent: Agent, slower: float) -> None:
    stream = Stream(0, "test-gciql", "walk")
    places, actions = [stream.uniform(100, 2, low=-1.0)], []
    for _ in range(40):
        actions.append(stream.uniform(100, 2, low=-1.0))
        places.append(moved(places[-1], actions[-1]))
    state, action, following = (torch.stack(part, 1).flatten(0, 1) for part in (places[:-1], actions, places[1:]))
    data = Transitions(state, action, following, episode=torch.arange(100).repeat_interleave(40))
    policy = train_agents({"walk": data}, agent, seeds=[0], updates=350)["walk", 0]
    success, detour = reached(lambda seen: torch.as_tensor(policy.act(seen)))
    random, _ = reached(lambda seen: stream.uniform(200, 2, low=-1.0))
    assert success > 0.97 and detour < slower and random < 0.2
