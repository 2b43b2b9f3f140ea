"""Agents with standardise=True see states and goals of mean 0 and variance 1; their policies take them as they are."""

from __future__ import annotations

import dataclasses

import torch
from agents_world import each_rewarded_agent, small
from point_task import PointTask

from mocoda import Transitions, train_agents

DATA = PointTask().collect(200, seed=0)
SHIFTED = Transitions(  # as positions in metres are: far from 0, and close to each other
    0.01 * DATA.state + 1.85, DATA.action, 0.01 * DATA.next_state + 1.85, DATA.reward, DATA.terminal, DATA.goal
)


def seen(data: Transitions) -> torch.Tensor:
    assert data.goal is not None
    return torch.cat([data.state, data.goal], 1)


def standardised_by_hand(data: Transitions) -> Transitions:
    assert data.goal is not None
    states = data.state.shape[1]
    shift, scale = seen(data).double().mean(0).float(), seen(data).double().std(0, correction=0).float()
    parts = [(part - shift[:states]) / scale[:states] for part in (data.state, data.next_state)]
    goal = (data.goal - shift[states:]) / scale[states:]
    return Transitions(parts[0], data.action, parts[1], data.reward, data.terminal, goal)


@each_rewarded_agent
def test_a_policy_acts_on_raw_states_as_the_network_does_on_standardised_ones(name: str) -> None:
    ours = train_agents({"d": SHIFTED}, dataclasses.replace(small(name), standardise=True), seeds=[0], updates=20)
    theirs = train_agents({"d": standardised_by_hand(SHIFTED)}, small(name), seeds=[0], updates=20)
    by_hand = seen(standardised_by_hand(SHIFTED))
    acted = (ours["d", 0].act(seen(SHIFTED)), theirs["d", 0].act(by_hand))
    assert all(isinstance(actions, torch.Tensor) for actions in acted)
    difference = torch.as_tensor(acted[0]) - torch.as_tensor(acted[1])
    # Proposals near a tie may be chosen differently after rounding.
    assert float((difference.abs().amax(1) < 1e-3).float().mean()) > (0.9 if name == "bcq" else 0.999)
