"""an Agent -> nothing, or an error that says which promise it breaks: the battery for an algorithm of your own.

    mocoda.check_agent(MyAgent())

Give it small networks, batches and first stages: what holds for them holds for large ones, and takes a few seconds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from mocoda.agents.agent import TARGET, Agent, Batch
from mocoda.agents.policy import Policies, Policy, acting_weights, agent_settings
from mocoda.agents.train import train_agents
from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.networks import mlp_weights
from mocoda.engine.randomness import Stream

STATE, ACTION, RUNS = 3, 2, 2  # widths and runs of the trial; unequal, so that a mix-up shows


def check_agent(agent: Agent) -> None:
    """Raises an InputError at the first promise of the contract (mocoda.Agent) that `agent` breaks."""
    weights = _check_networks(agent)
    _check_noise(agent)
    _check_losses(agent, weights)
    _check_actions(agent, weights)
    policies = _train(agent, {"a": _data(0), "b": _data(1)}, [0, 1])
    _check_company(agent, policies)
    _check_file(agent, policies["a", 0])


def _promise(agent: Agent, kept: bool, broken: str) -> None:
    if not kept:
        raise InputError(f"agent {getattr(agent, 'name', type(agent).__name__)!r} breaks its contract: {broken}")


def _check_networks(agent: Agent) -> dict[str, Tensor]:
    """Groups, stages and losses name each other; fresh weights (R, ...) of all of them."""
    _promise(agent, isinstance(getattr(agent, "name", None), str), "it has no name.")
    try:
        agent_settings(agent)
    except TypeError as error:
        raise InputError(
            f"agent {agent.name!r} breaks its contract: its settings are no JSON values ({error})."
        ) from error
    networks, losses, stages = agent.networks(STATE, ACTION), agent.losses(), agent.stages()
    _promise(agent, bool(networks) and bool(stages), "it has no networks, or no stages.")
    _promise(
        agent, stages[-1].updates is None, "its last stage must take as many updates as the caller asks for: None."
    )
    for stage in stages:
        for group, every in stage.rhythm.items():
            source = group.removeprefix(TARGET)
            _promise(agent, source in networks, f"stage moves {group!r}, but there is no network {source!r}.")
            _promise(agent, group.startswith(TARGET) or group in losses, f"group {group!r} moves, but has no loss.")
            _promise(agent, every >= 1, f"group {group!r} must move every 1 or more updates, not {every}.")
    weights: dict[str, Tensor] = {}
    for group, network in networks.items():
        leading = (RUNS,) if network.members is None else (RUNS, network.members)
        weights |= mlp_weights(group, leading, network.sizes, Stream(0, "contract", group))
    for group in {group for stage in stages for group in stage.rhythm if group.startswith(TARGET)}:
        source = group.removeprefix(TARGET)
        weights |= {TARGET + name: weights[name].clone() for name in list(weights) if name.startswith(f"{source}.")}
    return weights


def _check_noise(agent: Agent) -> None:
    for what, draw, n in (("noise", agent.noise, 4), ("acting_noise", agent.acting_noise, 6)):
        first, again, other = (draw(Stream(seed, "contract"), n, ACTION) for seed in (0, 0, 1))
        elsewhere = all(value.equal(other[name]) for name, value in first.items())
        for name, value in first.items():
            _promise(agent, len(value) == n, f"{what} {name!r} must be ({n}, ...), got {tuple(value.shape)}.")
            own = value.equal(again[name]) and not elsewhere
            _promise(agent, own, f"{what} {name!r} is not drawn from the stream it is given.")


def _check_losses(agent: Agent, weights: dict[str, Tensor]) -> None:
    """A loss a run, which moves its own group and nothing of another run's."""
    for stage in agent.stages():
        batch = _batch(stage.batch)
        drawn = [agent.noise(Stream(run, "contract"), 1, ACTION) for run in range(RUNS)]
        noise = {name: torch.stack([own[name][0] for own in drawn]) for name in drawn[0]}
        for group in stage.rhythm:
            if group.startswith(TARGET):
                continue
            own = {n: w.clone().requires_grad_() for n, w in weights.items() if n.startswith(f"{group}.")}
            loss = agent.losses()[group]({**weights, **own}, batch, noise)
            _promise(
                agent, loss.shape == (RUNS,), f"the {group} loss must be (R,), here ({RUNS},), got {tuple(loss.shape)}."
            )
            _promise(agent, bool(loss.isfinite().all()), f"the {group} loss of plain numbers is {loss.tolist()}.")
            for run, other in ((0, 1), (1, 0)):
                gradients: Sequence[Tensor | None] = [None] * len(own)
                if loss.requires_grad:
                    gradients = torch.autograd.grad(loss[run], list(own.values()), allow_unused=True, retain_graph=True)
                for name, gradient in zip(own, gradients, strict=True):
                    if gradient is None:
                        _promise(agent, False, f"the {group} loss does not depend on its weights {name!r}.")
                    elif bool(gradient[other].any()):
                        _promise(agent, False, f"the {group} loss of one run moves {name!r} of another run.")


def _check_actions(agent: Agent, weights: dict[str, Tensor]) -> None:
    states = 6
    drawn = [agent.acting_noise(Stream(run, "contract"), states, ACTION) for run in range(RUNS)]
    noise = {name: torch.stack([own[name] for own in drawn]) for name in drawn[0]}
    expected = (RUNS, states, ACTION)
    for far in (1.0, 1e4):  # fresh weights make small actions of small states
        state = far * _batch(states).state
        action = agent.act(weights, state, noise)
        found = tuple(action.shape)
        _promise(agent, found == expected, f"act must return (R, B, A), here {expected}, got {found}.")
        _promise(agent, bool((action.abs() <= 1).all()), "act must return actions in [-1, 1].")
        alone = ({name: value[:1] for name, value in part.items()} for part in (weights, noise))
        first = agent.act(next(alone), state[:1], next(alone))
        _promise(agent, action[:1].equal(first), "what one run does depends on the others.")
    _check_acting(agent, weights, _batch(states).state, noise)


def _check_acting(agent: Agent, weights: dict[str, Tensor], state: Tensor, noise: dict[str, Tensor]) -> None:
    """Where agents are evaluated there are no weights but those of the groups that `acting` names."""
    action = agent.act(weights, state, noise)

    def same(some: dict[str, Tensor]) -> bool:
        try:
            return action.equal(agent.act(some, state, noise))
        except Exception:  # it missed what it reads
            return False

    acting = acting_weights(agent, weights)
    others = list(dict.fromkeys(name.split(".")[0] for name in weights if name not in acting))
    without = {group: {n: w for n, w in weights.items() if n.split(".")[0] != group} for group in others}
    read = [group for group in others if not same(without[group])] or others
    named, unnamed = (" and ".join(map(repr, groups)) for groups in (agent.acting, read))
    kept = not others or same(acting)
    _promise(
        agent, kept, f"acting names {named}, but act reads {unnamed} too, which is not there when it is evaluated."
    )


def _check_company(agent: Agent, together: Policies) -> None:
    alone = _train(agent, {"b": _data(1)}, [1])
    for name, weight in alone["b", 1].weights.items():
        _promise(
            agent,
            weight.equal(together["b", 1].weights[name]),
            f"trained alone and in company, a run's weights {name!r} differ: something is shared between runs.",
        )


def _check_file(agent: Agent, policy: Policy) -> None:
    state = _data(2).state
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "policy.safetensors"
        policy.save(file)
        loaded = Policy.load(file, agent)
    before, after = (torch.as_tensor(one.act(state)) for one in (policy, loaded))
    _promise(agent, before.equal(after), "saved and loaded, it acts differently.")


def _train(agent: Agent, datasets: dict[str, Transitions], seeds: list[int]) -> Policies:
    return train_agents(datasets, agent, seeds=seeds, updates=4)


def _data(seed: int) -> Transitions:
    stream = Stream(seed, "contract-data")
    state, action = stream.normal(64, STATE), stream.uniform(64, ACTION, low=-1.0)
    terminal = stream.uniform(64) < 0.1
    return Transitions(state, action, state + 0.1 * action.sum(1, keepdim=True), terminal.float() - 1, terminal)


def _batch(rows: int) -> Batch:
    stream = Stream(0, "contract-batch")
    state, action = stream.normal(RUNS, rows, STATE), stream.uniform(RUNS, rows, ACTION, low=-1.0)
    reward, terminal = -stream.uniform(RUNS, rows), (stream.uniform(RUNS, rows) < 0.1).float()
    return Batch(state, action, reward, state + 0.1, terminal)
