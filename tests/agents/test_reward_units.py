"""Rewards of any sign and size: agents learn in the units of the data, and clip values only if they are told to."""

from __future__ import annotations

import pytest
import torch
from agents_world import learned_rewards, recorded, small
from approved import refused
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from mocoda import Transitions, train_agents
from mocoda.agents.agent import Agent
from mocoda.agents.train import RunTable, runs_of

DISCOUNT = 0.98
numbers = st.floats(-100, 100, width=32)


def with_rewards(data: Transitions, reward: Tensor, terminal: Tensor | None = None) -> Transitions:
    terminal = data.terminal if terminal is None else terminal
    return Transitions(data.state, data.action, data.next_state, reward, terminal)


def weights_of(terminal: Tensor) -> Tensor:
    return 1 - DISCOUNT * (1 - terminal.double())


def equivalent(data: Transitions, a: float, b: float) -> Transitions:
    """Other rewards under which all policies rank alike: Q becomes a Q + b."""
    assert data.reward is not None
    return with_rewards(data, (a * data.reward.double() + b * weights_of(data.terminal)).float())


def learned(data: Transitions, agent: Agent) -> tuple[Tensor, float, float]:
    """What the agent learns from: the rewards, and the smallest and largest value."""
    table = RunTable.of(runs_of({"one": data}, [0]), agent)
    batch = table.batch(torch.arange(len(data))[None])
    return batch.reward[0], float(batch.low), float(batch.high)


# In the units of the data


@settings(deadline=None, max_examples=60, derandomize=True)
@given(rewards=st.lists(numbers, min_size=2, max_size=12), ended=st.integers(0, 2**12 - 1))
def test_rewards_are_learned_less_a_multiple_of_what_ends_and_in_units_of_the_rest(
    rewards: list[float], ended: int
) -> None:
    terminal = torch.tensor([bool(ended >> i & 1) for i in range(len(rewards))])
    data = with_rewards(recorded(len(rewards)), torch.tensor(rewards), terminal)
    expected, q0, scale = learned_rewards(data, DISCOUNT)
    found, low, high = learned(data, small("sac", value_range=(-200.0, 300.0)))
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-4, atol=1e-4)
    assert [low, high] == pytest.approx([(-200 - q0) / scale, (300 - q0) / scale], rel=1e-4, abs=1e-4)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(a=st.floats(0.01, 100), b=numbers, ends=st.booleans(), seed=st.integers(0, 9))
def test_rewards_under_which_policies_rank_alike_are_learned_alike(a: float, b: float, ends: bool, seed: int) -> None:
    data = recorded(60, seed=seed)
    assert data.reward is not None and bool(data.terminal.any())
    data = data if ends else with_rewards(data, data.reward, torch.zeros(60, dtype=torch.bool))
    assume(abs(b) * (1 if ends else 0.02) < 1e3 * a)  # else float32 rewards have lost what they were
    one, other = (learned(some, small("sac")) for some in (data, equivalent(data, a, b)))
    torch.testing.assert_close(one[0], other[0], rtol=0, atol=2e-3)
    assert one[1:] == pytest.approx(other[1:], rel=2e-3, abs=2e-3)


@pytest.mark.parametrize("reward", [0.0, 0.1, -3e30])
@pytest.mark.parametrize("terminals", [True, False])
def test_rewards_without_anything_to_learn_are_zero(reward: float, terminals: bool) -> None:
    data = recorded(40)
    terminal = data.terminal & terminals
    some = with_rewards(data, (reward * weights_of(terminal)).float(), terminal)
    assert learned(some, small("sac"))[0].tolist() == [0.0] * 40
    for name in ("td3-bc", "cql"):
        policy = train_agents({"one": some}, small(name), seeds=[3], updates=6)["one", 3]
        assert all(bool(weight.isfinite().all()) for weight in policy.weights.values())


# The range of values


def test_values_without_bounds_are_refused_where_cql_needs_them() -> None:
    with refused():
        small("cql", penalty="l1", discount=1.0)
    small("cql", penalty="l1", discount=1.0, value_range=(-50, 0))
    small("cql", penalty="logsumexp", discount=1.0)
