"""train_agents: runs and seeds, batches, updates by hand, evaluations, and the range of actions."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from agents_world import (
    HILL,
    SMALL,
    A,
    Hill,
    S,
    each_agent,
    each_rewarded_agent,
    learned_rewards,
    recorded,
    same,
    small,
)
from cloning_agent import Cloning
from torch import Tensor

from mocoda import Agent, Policies, Transitions, train_agents
from mocoda.agents import Batch, Stage
from mocoda.agents import train as learning
from mocoda.agents.agent import Loss, Noise, loss_and_measured
from mocoda.agents.evaluation import rollout
from mocoda.agents.policy import to_task_range
from mocoda.engine.checkpoint import Checkpoint
from mocoda.engine.metrics import Metric
from mocoda.engine.networks import Weights, mlp_weights
from mocoda.engine.randomness import Stream

SLIM: dict[str, Any] = {"hidden": (5,), "batch": 3}


def slim(name: str) -> Agent:
    """An agent for trainings of many updates."""
    samplers = {"samplers": 2, "components": 2, "sampler_hidden": (4,), "sampler_updates": 103, "sampler_batch": 3}
    return small(name, **SLIM, **(samplers | {"proposals": 2} if name == "bcq" else {}))


@functools.cache
def trained(name: str, updates: int = 8) -> Policies:
    """Two data sets of unequal length and two seeds, with evaluations."""
    data = {"one": HILL.collect(101, seed=0), "other": HILL.collect(67, seed=1)}
    return train_agents(data, small(name), seeds=[5, 6], updates=updates, task=HILL, evaluate_every=4, episodes=3)


# Batches


@dataclass(frozen=True)
class Watchful(Cloning):
    """Clones, and notes every batch."""

    seen: ClassVar[list[Batch]] = []

    def actor_loss(self, weights: Weights, batch: Batch, noise: Noise) -> Tensor:
        self.seen.append(batch)
        return super().actor_loss(weights, batch, noise)


@pytest.fixture
def seen() -> Iterator[list[Batch]]:
    Watchful.seen.clear()
    yield Watchful.seen
    Watchful.seen.clear()


def test_batches_come_from_the_runs_own_rows_and_from_all_of_them(seen: list[Batch]) -> None:
    tables = [recorded(rows, seed=rows) for rows in (1, 7, 40, 13)]
    datasets: dict[str, Transitions | Sequence[Transitions]] = {"a": tables[:2], "b": tables[2], "c": tables[3]}
    train_agents(datasets, Watchful(**SMALL), seeds=[0, 1], updates=30)
    own = [tables[0], tables[1], tables[2], tables[2], tables[3], tables[3]]
    assert len(seen) == 30 and seen[0].state.shape == (6, 19, S)
    for run, data in enumerate(own):
        drawn = torch.cat([batch.state[run] for batch in seen])
        match = (drawn[:, None] == data.state).all(-1)  # (rows drawn, rows there are)
        assert bool((match.sum(1) == 1).all())
        assert bool(match.any(0).all())


# Runs and seeds


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@each_agent
def test_a_run_is_the_same_alone_and_in_company_to_the_bit(name: str) -> None:
    agent = small(name, hidden=(21, 13), batch=33)
    data = {"a": recorded(101), "b": recorded(67, seed=1), "c": recorded(9 if name == "dqc" else 1, seed=2)}
    together = train_agents(data, agent, seeds=[5, 6, 7], updates=7)
    alone = train_agents({"b": data["b"]}, agent, seeds=[6], updates=7)
    few = train_agents({"c": data["c"], "a": data["a"]}, agent, seeds=[7], updates=7)
    assert same(alone["b", 6], together["b", 6])
    assert same(few["c", 7], together["c", 7]) and same(few["a", 7], together["a", 7])


@each_agent
def test_the_same_seed_trains_to_the_same_bytes_and_another_to_others(name: str, tmp_path: Path) -> None:
    for file, seed in (("once", 3), ("again", 3), ("other", 4)):
        train_agents({"one": recorded()}, small(name), seeds=[seed], updates=5)["one", seed].save(tmp_path / file)
    once, again, other = ((tmp_path / file).read_bytes() for file in ("once", "again", "other"))
    assert once == again and once != other


def test_every_seed_may_have_data_of_its_own() -> None:
    tables = [recorded(rows, seed=rows) for rows in (50, 31, 101)]
    agent = small("td3-bc")
    together = train_agents({"own": tables, "shared": tables[0]}, agent, seeds=[7, 8, 9], updates=6)
    for seed, data in zip((7, 8, 9), tables, strict=True):
        assert same(together["own", seed], train_agents({"one": data}, agent, seeds=[seed], updates=6)["one", seed])
    assert same(together["own", 7], together["shared", 7]) and not same(together["own", 8], together["shared", 8])


# Updates by hand


def starting_weights(agent: Agent, seed: int) -> dict[str, Tensor]:
    """By the names of their streams, which a new version must not change: the same seed, the same agent."""
    made: dict[str, Tensor] = {}
    for group, network in agent.networks(S, A).items():
        leading = () if network.members is None else (network.members,)
        made |= mlp_weights(group, leading, network.sizes, Stream(seed, "agent", agent.name, "weights", group))
    return made


def by_hand(agent: Agent, data: Transitions, seed: int, updates: int) -> dict[str, Tensor]:
    """A whole training of one run in float64, update by update, targets included."""
    weights = {name: weight[None].double() for name, weight in starting_weights(agent, seed).items()}
    for stage in agent.stages():
        for group in stage.update_every:
            if group.startswith("target-"):
                own = [name for name in weights if name.startswith(group.removeprefix("target-") + ".")]
                weights |= {f"target-{name}": weights[name].clone() for name in own}
    moments: dict[str, tuple[Tensor, Tensor, int]] = {}
    assert data.reward is not None
    rewards, q0, scale = learned_rewards(data, agent.discount)
    columns = [data.state, data.action, torch.tensor(rewards), data.next_state, data.terminal]
    weight = 1 - agent.discount * (1 - data.terminal.double())
    ends = [(end - q0) / scale for end in torch.aminmax(data.reward / weight)]
    for number, stage in enumerate(agent.stages()):
        for update in range(stage.updates or updates):
            block, place = update - update % learning.CHUNK, update % learning.CHUNK
            stream = Stream(seed, "agent", agent.name, "updates", number, block)
            index = stream.integers(len(data), learning.CHUNK, stage.batch)
            noise = agent.noise(stream.child("noise"), learning.CHUNK, A)
            rows = [column[index[place]][None].double() for column in columns]
            batch = Batch(*rows, *(end[None, None] for end in ends))
            drawn = {key: as_one_run(value[place]) for key, value in noise.items()}
            for group, every in stage.update_every.items():
                if (update + 1) % every:
                    continue
                own = [name for name in weights if name.startswith(f"{group}.")]
                if group.startswith("target-"):
                    for name in own:
                        followed = weights[name.removeprefix("target-")]
                        weights[name] = (1 - agent.polyak) * weights[name] + agent.polyak * followed
                    continue
                moving = {name: weights[name].clone().requires_grad_() for name in own}
                loss = loss_and_measured(agent.losses()[group](weights | moving, batch, drawn))[0].sum()
                rate = agent.learning_rate
                if agent.decay and stage.updates is None:
                    rate *= 0.5 * (1 + math.cos(math.pi * block / updates))
                for name, gradient in zip(own, torch.autograd.grad(loss, list(moving.values())), strict=True):
                    weights[name] = adam(moments, name, weights[name], gradient, rate, stage)
    return {name: weight[0] for name, weight in weights.items()}


def as_one_run(noise: Tensor) -> Tensor:
    return noise[None].double() if noise.is_floating_point() else noise[None]


def adam(
    moments: dict[str, tuple[Tensor, Tensor, int]],
    name: str,
    weight: Tensor,
    gradient: Tensor,
    rate: float,
    stage: Stage,
) -> Tensor:
    """Kingma and Ba's update, with L2 decay."""
    zeros = torch.zeros_like(weight)
    first, second, steps = moments.get(name, (zeros, zeros, 0))
    gradient = gradient + stage.weight_decay * weight
    first, second, steps = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2, steps + 1
    moments[name] = first, second, steps
    mean, square = first / (1 - 0.9**steps), second / (1 - 0.999**steps)
    return weight - rate * mean / (square.sqrt() + 1e-8)


def whole_state(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Tensor]]:
    """Collects what a checkpoint would hold after every chunk: weights, targets and optimisers."""
    states: list[dict[str, Tensor]] = []

    class Noted(Checkpoint):
        def offer(self, done: int, tensors: object) -> None:
            assert callable(tensors)
            states.append({name: tensor.detach().clone() for name, tensor in tensors().items()})

    monkeypatch.setattr(learning, "Checkpoint", Noted)
    return states


@pytest.mark.parametrize(("block", "decay"), [(100, False), (2, False), (2, True)])
@each_rewarded_agent
def test_a_training_is_polyak_and_adam_on_the_agents_losses(
    name: str, block: int, decay: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With rows and noise drawn for 100 updates, of which five are made, and for two at a time."""
    more = {"sampler_weight_decay": 0.5} if name == "bcq" else {}
    agent, data = small(name, polyak=0.3, decay=decay, **more), recorded()
    states = whole_state(monkeypatch)
    monkeypatch.setattr(learning, "CHUNK", block)
    train_agents({"one": recorded(50, seed=1), "two": data}, agent, seeds=[3], updates=5)
    expected = by_hand(agent, data, 3, 5)
    assert expected.keys() <= states[-1].keys()
    for key, weight in expected.items():
        torch.testing.assert_close(states[-1][key][1].double(), weight, rtol=0, atol=2e-5)


# Evaluations


@each_rewarded_agent
def test_the_last_evaluation_is_a_fresh_rollout_of_the_policies(name: str) -> None:
    policies = trained(name)
    for place, ((_, seed), policy) in enumerate(policies.items()):
        stream = Stream(seed, "agent", name, "evaluation", 1)
        noise = policy.agent.acting_noise(stream, HILL.horizon * 3, A)
        made = rollout(
            policy.agent,
            {key: weight[None] for key, weight in policy.weights.items()},
            HILL,
            HILL.start(3, seed=stream)[None],
            {key: value.unflatten(0, (HILL.horizon, 3))[:, None] for key, value in noise.items()},
            (policy.action_low, policy.action_high),
        )
        found = [float(policies.curves[measure][place, -1]) for measure in ("steps", "success", "return")]
        expected = [float(part.mean()) for part in (made.steps, made.success, made.reward)]
        assert found == pytest.approx(expected, rel=1e-6)
    assert len(set(policies.curves["return"][:, -1].tolist())) == len(policies)


class Unit(Hill):
    """A hill whose actions need no scaling, so that a training with it can be compared with one without."""

    @property
    def box(self) -> tuple[Tensor, Tensor]:
        return torch.tensor([-3.0, -3.0, -3.0, -1.0, -1.0]), torch.ones(5)


@each_rewarded_agent
def test_what_is_learned_does_not_depend_on_when_it_is_evaluated(name: str) -> None:
    """Past the first hundred updates, whose rows and noise are drawn at once, and with chunks that end at odd ones."""
    fit = functools.partial(train_agents, {"one": recorded()}, slim(name), seeds=[0, 1], updates=107, episodes=1)
    expected = fit(evaluate_every=100)
    for every, task in ((7, None), (7, Unit()), (100, Unit())):
        made = fit(evaluate_every=every, task=task)
        assert all(same(made[key], policy) for key, policy in expected.items())
        assert made.curves["updates"].tolist() == ([] if task is None else list(range(every, 108, every)))


# The range of actions


@each_rewarded_agent
def test_a_policys_actions_are_its_agents_in_the_tasks_box(name: str) -> None:
    policy, state = trained(name)["one", 5], recorded(9).state
    noise = policy.agent.acting_noise(Stream(3, "act"), 9, A)
    inside = policy.agent.act(
        {key: weight[None] for key, weight in policy.weights.items()},
        state[None],
        {k: v[None] for k, v in noise.items()},
    )[0]
    expected = to_task_range(inside, torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 3.0]))
    torch.testing.assert_close(torch.as_tensor(policy.act(state, seed=3)), expected)


# What losses measure


@dataclass(frozen=True)
class Measuring(Watchful):
    """Notes every batch, and measures rewards as if they were values."""

    def losses(self) -> dict[str, Loss]:
        return {
            "actor": lambda weights, batch, noise: (
                self.actor_loss(weights, batch, noise),
                {"q": batch.reward, "advantage": batch.reward, "state": batch.state},
            )
        }


def reported(agent: Agent, datasets: dict[str, Transitions], **options: Any) -> dict[tuple[Any, ...], float]:
    found: list[Metric] = []
    train_agents(datasets, agent, report=found.extend, **options)
    return {metric[:4]: metric.value for metric in found}


def test_measured_values_are_reported_in_the_units_of_the_rewards(seen: list[Batch]) -> None:
    agent, data = Measuring(**SMALL, discount=0.0), {"a": recorded(), "b": recorded(80, 1)}
    found = reported(agent, data, seeds=[0], updates=7, evaluate_every=3)
    for update in (3, 6, 7):  # the last of every chunk
        batch = seen[update - 1]
        for run, (name, table) in enumerate(data.items()):
            assert table.reward is not None
            number = [((batch.state[run, i] == table.state).all(1)).nonzero()[0] for i in range(agent.batch)]
            rewards = table.reward[torch.cat(number)]
            _, q0, _ = learned_rewards(table, 0.0)
            expected = {
                "loss/actor": found[update, name, 0, "loss/actor"],
                "actor/q_mean": float(rewards.mean()),
                "actor/q_max": float(rewards.max()),
                "actor/advantage_mean": float(rewards.mean()) - q0,
                "actor/advantage_max": float(rewards.max()) - q0,
                "actor/state": float(batch.state[run].mean()),
            }
            made = {key[3]: value for key, value in found.items() if key[:3] == (update, name, 0)}
            assert made == pytest.approx(expected, rel=1e-4, abs=1e-4)
