"""The agents: losses, targets and actions against slow twins, the paper's settings, and whole messages."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from agents_world import SAMPLERS, A, S
from approved import refused
from torch import Tensor
from torch.distributions import (
    Categorical,
    Independent,
    MixtureSameFamily,
    Normal,
    TanhTransform,
    TransformedDistribution,
)

from mocoda import make_agent
from mocoda.agents import BCQ, CQL, SAC, TD3BC, Agent, Batch
from mocoda.agents.agent import loss_and_measured
from mocoda.engine.networks import mlp_weights
from mocoda.engine.randomness import Stream

R, B = 3, 17
SMALL: dict[str, Any] = {"hidden": (20, 12), "batch": B}
CLIPPED: dict[str, Any] = SMALL | {"value_range": (-50.0, 0.0)}  # losses see its ends in the batch, one pair per run


def drawn(*labels: str | int) -> Stream:
    return Stream(0, "test-agents", *labels)


def some_weights(agent: Agent, scale: float = 2.0) -> dict[str, Tensor]:
    """Weights of all runs, in float64; targets are far from what they follow, so that a mix-up shows."""
    weights: dict[str, Tensor] = {}
    for group, network in agent.networks(S, A).items():
        leading = (R,) if network.members is None else (R, network.members)
        for name in (group, f"target-{group}"):
            weights |= mlp_weights(name, leading, network.sizes, drawn("weights", name))
    return {name: scale * weight.double() for name, weight in weights.items()}


def some_batch() -> Batch:
    """Rewards beyond both ends of the values that are possible, and ended episodes."""
    stream = drawn("batch")
    state, next_state = stream.normal(R, B, S).double(), stream.normal(R, B, S).double()
    action = stream.uniform(R, B, A, low=-1.0).double()
    reward = stream.uniform(R, B, low=-70.0, high=15.0).double()
    terminal = (stream.uniform(R, B) < 0.3).double()
    low, high = torch.tensor([[[-50.0], [-40.0], [-60.0]], [[0.0], [5.0], [-1.0]]], dtype=torch.float64)
    return Batch(state, action, reward, next_state, terminal, low, high)


def stacked(own: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The noise of all runs, in float64."""
    both = {name: torch.stack([noise[name] for noise in own]) for name in own[0]}
    return {name: value.double() if value.is_floating_point() else value for name, value in both.items()}


def some_noise(agent: Agent) -> dict[str, Tensor]:
    noise = stacked([agent.noise(drawn("noise", run), 1, A) for run in range(R)])
    return {name: value[:, 0] for name, value in noise.items()}


# A twin knows one run: its networks are lists of plain layers.
Plain = Callable[[Tensor], Tensor]


def plain(weights: dict[str, Tensor], group: str, run: int, member: int | None = None) -> Plain:
    place = (run,) if member is None else (run, member)
    layers = [name.removesuffix(".weight") for name in weights if name.startswith(f"{group}.") and "weight" in name]

    def network(x: Tensor) -> Tensor:
        for number, layer in enumerate(layers):
            x = x if number == 0 else torch.relu(x)
            x = torch.nn.functional.linear(x, weights[f"{layer}.weight"][place].T, weights[f"{layer}.bias"][place][0])
        return x

    return network


def critics(weights: dict[str, Tensor], group: str, run: int, members: int = 2) -> list[Callable[..., Tensor]]:
    networks = [plain(weights, group, run, member) for member in range(members)]
    return [lambda state, action, q=q: q(torch.cat([state, action], -1))[..., 0] for q in networks]


Twin = Callable[[dict[str, Tensor], Batch, dict[str, Tensor], int], Tensor]


def assert_loss_is(agent: Agent, group: str, twin: Twin, scale: float = 2.0) -> None:
    """The loss of every run, and its gradients, are those of the twin."""
    weights, batch, noise = some_weights(agent, scale), some_batch(), some_noise(agent)
    own = [weight.requires_grad_() for name, weight in weights.items() if name.startswith(f"{group}.")]
    loss, _ = loss_and_measured(agent.losses()[group](weights, batch, noise))
    expected = torch.stack([twin(weights, batch, noise, run) for run in range(R)])
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)
    made, wanted = (torch.autograd.grad(found.sum(), own) for found in (loss, expected))
    for one, other in zip(made, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)
        assert bool(other.any())


# TD3-BC


def td3_next_q(agent: TD3BC, weights: dict[str, Tensor], batch: Batch, noise: dict[str, Tensor], run: int) -> Tensor:
    """The values of the next states by the target networks, (2, B)."""
    state = batch.next_state[run]
    action = torch.tanh(plain(weights, "target-actor", run)(state)).detach().clone()
    for row in range(B):
        for column in range(A):
            jitter = agent.smoothing * float(noise["smoothing"][run, row, column])
            jitter = min(max(jitter, -agent.smoothing_clip), agent.smoothing_clip)
            action[row, column] = min(max(float(action[row, column]) + jitter, -1.0), 1.0)
    return torch.stack([q(state, action) for q in critics(weights, "target-critic", run)]).detach()


def bellman(agent: Agent, batch: Batch, next_q: Tensor, run: int) -> Tensor:
    target = batch.reward[run] + torch.where(batch.terminal[run] == 1, 0.0, agent.discount * next_q)
    if agent.value_range is None:
        return target
    low, high = float(batch.low[run]), float(batch.high[run])
    return torch.tensor([min(max(value, low), high) for value in target.tolist()], dtype=torch.float64)


@pytest.mark.parametrize("settings", [SMALL, CLIPPED], ids=["as they are", "clipped"])
def test_td3s_critics_learn_the_smaller_of_the_target_critics_at_a_smoothed_action(settings: dict[str, Any]) -> None:
    agent = TD3BC(**settings, smoothing=0.4)

    def twin(weights: dict[str, Tensor], batch: Batch, noise: dict[str, Tensor], run: int) -> Tensor:
        first, second = td3_next_q(agent, weights, batch, noise, run)
        smaller = torch.stack([a if a < b else b for a, b in zip(first, second, strict=True)])
        target = bellman(agent, batch, smaller, run)
        total = torch.zeros((), dtype=torch.float64)
        for q in critics(weights, "critic", run):
            total = total + sum((q(batch.state[run], batch.action[run]) - target) ** 2) / B
        return total

    assert_loss_is(agent, "critic", twin)


@pytest.mark.parametrize("imitation", [1.0, 0.3])
def test_td3s_actor_climbs_the_smaller_critic_and_stays_near_the_data(imitation: float) -> None:
    agent = TD3BC(**SMALL, imitation=imitation)

    def twin(weights: dict[str, Tensor], batch: Batch, noise: dict[str, Tensor], run: int) -> Tensor:
        state = batch.state[run]
        action = torch.tanh(plain(weights, "actor", run)(state))
        first, second = (q(state, action) for q in critics(weights, "critic", run))
        smaller = torch.stack([a if a < b else b for a, b in zip(first, second, strict=True)])
        return -sum(smaller) / B + imitation * torch.nn.functional.mse_loss(action, batch.action[run])

    assert_loss_is(agent, "actor", twin)


def test_td3s_normalised_actor_climbs_the_first_critic_in_units_of_its_size() -> None:
    agent = TD3BC(**SMALL, normalise=True)

    def twin(weights: dict[str, Tensor], batch: Batch, noise: dict[str, Tensor], run: int) -> Tensor:
        state = batch.state[run]
        action = torch.tanh(plain(weights, "actor", run)(state))
        first = critics(weights, "critic", run)[0](state, action)
        size: float = sum(map(abs, first.tolist())) / B  # a number: it is not climbed
        return -2.5 * first.mean() / size + torch.nn.functional.mse_loss(action, batch.action[run])

    assert_loss_is(agent, "actor", twin)


# SAC


def squashed(output: Tensor) -> TransformedDistribution:
    """The distribution of actions that an actor's outputs (..., 2 A) stand for."""
    mean, log_scale = output[..., :A], output[..., A:].clamp(-20, 2)
    return TransformedDistribution(Normal(mean, log_scale.exp()), [TanhTransform(cache_size=1)])


def drawn_by_hand(weights: dict[str, Tensor], run: int, state: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    distribution = squashed(plain(weights, "actor", run)(state))
    base = distribution.base_dist
    assert isinstance(base, Normal)
    action = distribution.transforms[0](base.loc + base.scale * noise)
    return action, distribution.log_prob(action).sum(-1)


def sac_target(agent: SAC, weights: dict[str, Tensor], batch: Batch, noise: dict[str, Tensor], run: int) -> Tensor:
    state = batch.next_state[run]
    action, log_density = drawn_by_hand(weights, run, state, noise["next_action"][run])
    first, second = (q(state, action) for q in critics(weights, "target-critic", run))
    smaller = torch.stack([a if a < b else b for a, b in zip(first, second, strict=True)])
    return bellman(agent, batch, (smaller - agent.entropy * log_density).detach(), run)


def temporal_error(agent: SAC, weights: dict[str, Tensor], batch: Batch, noise: dict[str, Tensor], run: int) -> Tensor:
    target = sac_target(agent, weights, batch, noise, run)
    errors = [q(batch.state[run], batch.action[run]) - target for q in critics(weights, "critic", run)]
    return sum(((error**2).mean() for error in errors), torch.zeros((), dtype=torch.float64))


@pytest.mark.parametrize("entropy", [0.2, 1.7])
def test_sacs_critics_learn_a_value_that_pays_for_randomness(entropy: float) -> None:
    agent = SAC(**CLIPPED, entropy=entropy)
    assert_loss_is(agent, "critic", functools.partial(temporal_error, agent))


def test_sacs_actor_climbs_the_smaller_critic_and_its_entropy() -> None:
    agent = SAC(**SMALL, entropy=0.7)

    def twin(weights: dict[str, Tensor], batch: Batch, noise: dict[str, Tensor], run: int) -> Tensor:
        state = batch.state[run]
        action, log_density = drawn_by_hand(weights, run, state, noise["action"][run])
        first, second = (q(state, action) for q in critics(weights, "critic", run))
        return (0.7 * log_density - torch.minimum(first, second)).mean()

    assert_loss_is(agent, "actor", twin)


def test_sac_acts_at_the_middle_of_its_gaussian() -> None:
    agent, state = SAC(**SMALL), some_batch().state
    weights = some_weights(agent)
    for run, action in enumerate(agent.act(weights, state, {})):
        torch.testing.assert_close(action, torch.tanh(plain(weights, "actor", run)(state[run])[:, :A]))


# CQL


@pytest.mark.parametrize("weight", [0.1, 3.0])
@pytest.mark.parametrize("settings", [SMALL, CLIPPED], ids=["as they are", "clipped"])
def test_cqls_l1_penalty_draws_random_actions_down_and_the_datas_up(settings: dict[str, Any], weight: float) -> None:
    agent = CQL(**settings, penalty="l1", weight=weight)

    def twin(weights: dict[str, Tensor], batch: Batch, noise: dict[str, Tensor], run: int) -> Tensor:
        loss = temporal_error(agent, weights, batch, noise, run)
        for q in critics(weights, "critic", run):
            random, data = q(batch.state[run], noise["random"][run]), q(batch.state[run], batch.action[run])
            loss = loss + weight * (abs(random.mean() - batch.low[run, 0]) + abs(data.mean() - batch.high[run, 0]))
        return loss

    assert_loss_is(agent, "critic", twin)


def test_cqls_logsumexp_penalty_weighs_actions_by_how_likely_they_are_drawn() -> None:
    agent, many = CQL(**SMALL, penalty="logsumexp", weight=5.0, proposals=4), 4

    def twin(weights: dict[str, Tensor], batch: Batch, noise: dict[str, Tensor], run: int) -> Tensor:
        loss = temporal_error(agent, weights, batch, noise, run)
        for q in critics(weights, "critic", run):
            for row in range(B):
                state = batch.state[run, row]
                total = torch.zeros((), dtype=torch.float64)
                for place in range(row * many, (row + 1) * many):
                    total = total + q(state, noise["random"][run, place]).exp() / 0.5**A
                    proposed, log_density = drawn_by_hand(weights, run, state, noise["proposed"][run, place])
                    total = total + q(state, proposed).exp() / log_density.exp()
                loss = loss + 5.0 * ((total / (2 * many)).log() - q(state, batch.action[run, row])) / B
        return loss

    assert_loss_is(agent, "critic", twin, scale=1.2)


def test_the_published_loss_is_finite_where_critics_say_zero_everywhere() -> None:
    agent = TD3BC(**SMALL, normalise=True)
    weights = {n: w * 0 if n.startswith("critic") else w for n, w in some_weights(agent).items()}
    loss, measured = loss_and_measured(agent.losses()["actor"](weights, some_batch(), some_noise(agent)))
    assert bool(loss.isfinite().all()) and not bool(measured["q"].any())


# BCQ

PROPOSING: dict[str, Any] = SMALL | SAMPLERS


def mixture(weights: dict[str, Tensor], run: int, member: int, state: Tensor, components: int) -> MixtureSameFamily:
    """One member's distribution of actions in states (B, S)."""
    output = plain(weights, "sampler", run, member)(state).reshape(*state.shape[:-1], components, 1 + 2 * A)
    scale = torch.nn.functional.softplus(output[..., 1 + A :]) + 1e-3
    return MixtureSameFamily(Categorical(logits=output[..., 0]), Independent(Normal(output[..., 1 : 1 + A], scale), 1))


def test_bcqs_samplers_climb_the_likelihood_of_the_datas_actions() -> None:
    agent = BCQ(**PROPOSING)

    def twin(weights: dict[str, Tensor], batch: Batch, noise: dict[str, Tensor], run: int) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for member in range(3):
            distribution = mixture(weights, run, member, batch.state[run], 2)
            total = total - distribution.log_prob(batch.action[run]).mean()
        return total

    assert_loss_is(agent, "sampler", twin)


def proposals_by_hand(
    weights: dict[str, Tensor], noise: dict[str, Tensor], run: int, row: int, state: Tensor
) -> list[Tensor]:
    """A state's proposals: the noise says which member, where in its components' shares, and how far off the mean."""
    made = []
    for place in range(noise["member"].shape[2]):
        member = mixture(weights, run, int(noise["member"][run, row, place]), state, 2)
        share, gaussian = member.mixture_distribution.probs, member.component_distribution
        assert isinstance(share, Tensor) and isinstance(gaussian, Independent)
        component = 0 if float(noise["component"][run, row, place]) < float(share[0]) else 1
        offset = noise["offset"][run, row, place]
        made.append((gaussian.base_dist.loc + gaussian.base_dist.scale * offset)[component].clamp(-1, 1).detach())
    return made


@pytest.mark.parametrize("number", [1, 2])
def test_bcqs_critics_learn_the_least_value_of_the_best_proposal(number: int) -> None:
    agent = BCQ(**PROPOSING, value_range=(-50.0, 0.0), critics=number)

    def twin(weights: dict[str, Tensor], batch: Batch, noise: dict[str, Tensor], run: int) -> Tensor:
        learning = critics(weights, "critic", run, members=number)
        judges = critics(weights, "target-critic", run, members=number)
        best = []
        for row, state in enumerate(batch.next_state[run]):
            proposed = proposals_by_hand(weights, noise, run, row, state)
            best.append(max(min(float(judge(state, a)) for judge in judges) for a in proposed))
        target = bellman(agent, batch, torch.tensor(best, dtype=torch.float64), run)
        errors = [((critic(batch.state[run], batch.action[run]) - target) ** 2).mean() for critic in learning]
        return torch.stack(errors).sum()

    assert_loss_is(agent, "critic", twin)


@pytest.mark.parametrize("number", [1, 2])
def test_bcq_does_the_proposal_that_its_critics_like_best(number: int) -> None:
    agent, state = BCQ(**PROPOSING, critics=number), some_batch().state
    weights = some_weights(agent)
    noise = stacked([agent.acting_noise(drawn("acting", run), B, A) for run in range(R)])
    action, places = agent.act(weights, state, noise), set()
    for run in range(R):
        judges = critics(weights, "critic", run, members=number)
        for row in range(B):
            proposed = proposals_by_hand(weights, noise, run, row, state[run, row])
            q = [min(float(judge(state[run, row], one)) for judge in judges) for one in proposed]
            best = q.index(max(q))
            torch.testing.assert_close(action[run, row], proposed[best])
            places.add(best)
    assert len(places) == agent.proposals  # every place was the best somewhere


# Settings


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dreamer", {}),
        ("sac", {"entrophy": 1.0}),
        ("cql", {"penalty": "log-sum-exp"}),
        ("cql", {"proposals": 0}),
        ("td3-bc", {"smoothing_clip": -0.5}),
        ("bcq", {"samplers": 0}),
        ("bcq", {"sampler_hidden": (0,)}),
        ("bcq", {"sampler_weight_decay": -1.0}),
        ("sac", {"hidden": (16, 0)}),
        ("sac", {"learning_rate": math.nan}),
        ("sac", {"discount": 1.01}),
        *(("sac", {"value_range": ends}) for ends in ((0, 0), (0, math.inf), [1, 2, 3])),
        ("gciql", {"expectile": 1.0}),
        ("gciql", {"discount": 1.0}),
        ("gciql", {"value_goals": (0.5, 0.6, 0.1)}),
        ("dqc", {"short": 6}),
        ("dqc", {"quantile": 1.0}),
    ],
)
def test_settings_that_make_no_sense_are_refused(name: str, settings: dict[str, Any]) -> None:
    with refused():
        make_agent(name, **settings)
