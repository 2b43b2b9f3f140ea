"""Checks an agent of your own against the contract of agents.

    mocoda.check_agent(MyAgent())

Use small networks, batches and first stages: the checks then take a few seconds, and hold for large ones too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mocoda.agents.agent import OWN, TARGET, Agent, Batch, loss_and_measured
from mocoda.agents.policy import Policies, Policy, acting_weights, agent_settings
from mocoda.agents.train import initial_weights, train_agents
from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Stream

STATE, ACTION, RUNS = 3, 2, 2  # columns and runs of the trial; unequal columns, so that a mix-up shows


def check_agent(agent: Agent) -> None:
    """Raises an InputError at the first part of the contract (mocoda.Agent) that `agent` breaks."""
    _check_groups(agent)
    streams = [Stream(run, "contract") for run in range(RUNS)]
    weights = initial_weights(agent, STATE, ACTION, streams)
    _check_noise(agent)
    if agent.goals_from_episodes:
        _check_goals(agent)
    _check_losses(agent, weights)
    _check_actions(agent, weights)
    policies = train_agents({"a": _data(0, agent.span), "b": _data(1, agent.span)}, agent, seeds=[0, 1], updates=4)
    _check_company(agent, policies)
    _check_file(agent, policies["a", 0])


def _require(agent: Agent, kept: bool, broken: str) -> None:
    if not kept:
        raise InputError(f"agent {getattr(agent, 'name', type(agent).__name__)!r} breaks its contract: {broken}")


def _check_groups(agent: Agent) -> None:
    """Networks, stages and losses must use the same names of groups."""
    _require(agent, isinstance(getattr(agent, "name", None), str), "it has no name.")
    try:
        agent_settings(agent)
    except TypeError as error:
        _require(agent, False, f"its settings are not JSON values ({error}).")
    networks, losses, stages = agent.networks(STATE, ACTION), agent.losses(), agent.stages()
    _require(agent, bool(networks) and bool(stages), "it has no networks, or no stages.")
    asked = stages[-1].updates is None
    _require(agent, asked, "its last stage must take as many updates as the caller asks for: None.")
    for stage in stages:
        for group, every in stage.update_every.items():
            source = group.removeprefix(TARGET)
            _require(agent, source in networks, f"a stage updates {group!r}, but there is no network {source!r}.")
            _require(agent, group.startswith(TARGET) or group in losses, f"group {group!r} has no loss.")
            _require(agent, every >= 1, f"group {group!r} must be updated every 1 or more updates, got {every}.")


def _check_noise(agent: Agent) -> None:
    for method, draw, n in (("noise", agent.noise, 4), ("acting_noise", agent.acting_noise, 6)):
        first, again, other = (draw(Stream(seed, "contract"), n, ACTION) for seed in (0, 0, 1))
        differs = any(not value.equal(other[name]) for name, value in first.items())
        for name, value in first.items():
            _require(agent, len(value) == n, f"{method} {name!r} must be ({n}, ...), got {tuple(value.shape)}.")
            from_stream = value.equal(again[name]) and differs
            _require(agent, from_stream, f"{method} {name!r} is not drawn from the stream it is given.")


def _check_goals(agent: Agent) -> None:
    """Each kind of goal must be a row, or the row's own state, and come from the stream."""
    row = torch.arange(20).expand(4, -1)
    once, again = (agent.draw_goals(Stream(0, "contract"), row, row // 5 * 5 + 4, 20) for _ in range(2))
    _require(agent, set(once) == {"value_goal", "actor_goal"}, f"draw_goals must return two goals, got {list(once)}.")
    for name, goal in once.items():
        inside = goal.shape == row.shape and bool(((goal >= OWN) & (goal < 20)).all())
        _require(agent, inside, f"the {name} of rows (U, B) must be (U, B) numbers of rows, or {OWN}.")
        _require(agent, goal.equal(again[name]), f"the same stream must give the same {name}.")


def _check_losses(agent: Agent, weights: dict[str, Tensor]) -> None:
    """There must be one loss per run, which depends on all weights of its group and on no other run."""
    for stage in agent.stages():
        batch = _batch(stage.batch, agent.span)
        drawn = [agent.noise(Stream(run, "contract"), 1, ACTION) for run in range(RUNS)]
        noise = {name: torch.stack([own[name][0] for own in drawn]) for name in drawn[0]}
        for group in stage.learned:
            own = {n: w.clone().requires_grad_() for n, w in weights.items() if n.startswith(f"{group}.")}
            loss, measured = loss_and_measured(agent.losses()[group]({**weights, **own}, batch, noise))
            _check_measured(agent, group, measured)
            shape = tuple(loss.shape)
            _require(agent, shape == (RUNS,), f"the {group} loss must be (R,), here ({RUNS},), got {shape}.")
            _require(agent, bool(loss.isfinite().all()), f"the {group} loss of finite numbers is {loss.tolist()}.")
            for run, other in ((0, 1), (1, 0)):
                gradients: Sequence[Tensor | None] = [None] * len(own)
                if loss.requires_grad:
                    gradients = torch.autograd.grad(loss[run], list(own.values()), allow_unused=True, retain_graph=True)
                for name, gradient in zip(own, gradients, strict=True):
                    _require(agent, gradient is not None, f"the {group} loss does not depend on its weights {name!r}.")
                    leaks = gradient is not None and bool(gradient[other].any())
                    _require(agent, not leaks, f"the {group} loss of one run depends on {name!r} of another run.")


def _check_measured(agent: Agent, group: str, measured: Any) -> None:
    """What a loss measures must have names, and a finite tensor per run."""
    kept = isinstance(measured, Mapping) and all(isinstance(name, str) for name in measured)
    _require(agent, kept, f"the {group} loss must return (R,), or (R,) and a dict of what it measured.")
    for name, value in measured.items():
        shape = tuple(getattr(value, "shape", ()))
        _require(agent, shape[:1] == (RUNS,), f"{name!r} of the {group} loss must be (R, ...), got {shape}.")
        _require(agent, bool(value.isfinite().all()), f"{name!r} of the {group} loss is not finite.")


def _check_actions(agent: Agent, weights: dict[str, Tensor]) -> None:
    states = 6
    drawn = [agent.acting_noise(Stream(run, "contract"), states, ACTION) for run in range(RUNS)]
    noise = {name: torch.stack([own[name] for own in drawn]) for name in drawn[0]}
    expected = (RUNS, states, ACTION)
    for far in (1.0, 1e4):  # initial weights make small actions of small states
        state = far * _batch(states).state
        action = agent.act(weights, state, noise)
        shape = tuple(action.shape)
        _require(agent, shape == expected, f"act must return (R, B, A), here {expected}, got {shape}.")
        _require(agent, bool((action.abs() <= 1).all()), "act must return actions in [-1, 1].")
        own_weights, own_noise = ({name: value[:1] for name, value in part.items()} for part in (weights, noise))
        alone = agent.act(own_weights, state[:1], own_noise)
        _require(agent, action[:1].equal(alone), "the actions of one run depend on other runs.")
    # Evaluations have no weights but those that `acting` names.
    state = _batch(states).state
    try:
        same = agent.act(weights, state, noise).equal(agent.act(acting_weights(agent, weights), state, noise))
    except Exception:  # a weight that it reads is missing
        same = False
    named = " and ".join(map(repr, agent.acting))
    _require(agent, same, f"acting names {named}, but act also reads other networks, which evaluations do not have.")


def _check_company(agent: Agent, together: Policies) -> None:
    alone = train_agents({"b": _data(1, agent.span)}, agent, seeds=[1], updates=4)
    for name, weight in alone["b", 1].weights.items():
        same = weight.equal(together["b", 1].weights[name])
        _require(agent, same, f"trained alone and with other runs, the weights {name!r} differ: runs share something.")


def _check_file(agent: Agent, policy: Policy) -> None:
    state = Stream(2, "contract-states").normal(64, policy.state_width)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "policy.safetensors"
        policy.save(file)
        loaded = Policy.load(file, agent)
    weights = {name: loaded.weights[name] for name in reversed(list(policy.weights))}  # a file may have any order
    loaded = replace(loaded, weights=weights)
    before, after = (torch.as_tensor(one.act(state)) for one in (policy, loaded))
    _require(agent, before.equal(after), "after save and load, it acts differently.")


def _data(seed: int, span: int) -> Transitions:
    stream = Stream(seed, "contract-data")
    state, action = stream.normal(64, STATE), stream.uniform(64, ACTION, low=-1.0)
    terminal = stream.uniform(64) < 0.1
    next_state, episode = state + 0.1 * action.sum(1, keepdim=True), torch.arange(64) // max(10, 2 * span)
    return Transitions(state, action, next_state, terminal.float() - 1, terminal, episode=episode)


def _batch(rows: int, span: int = 1) -> Batch:
    stream = Stream(0, "contract-batch")
    state, action = stream.normal(RUNS, rows, STATE), stream.uniform(RUNS, rows, ACTION, low=-1.0)
    reward, terminal = -stream.uniform(RUNS, rows), (stream.uniform(RUNS, rows) < 0.1).float()
    low, high, actor_state = torch.full((RUNS, 1), -50.0), torch.zeros(RUNS, 1), state.flip(1)
    others = stream.uniform(RUNS, rows, span - 1, ACTION, low=-1.0)
    actions, steps = torch.cat([action[:, :, None], others], 2), span * (1 - terminal)
    return Batch(state, action, reward, state + 0.1, terminal, low, high, actor_state, actions, steps)
