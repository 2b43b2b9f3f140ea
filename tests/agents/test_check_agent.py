"""check_agent: it passes agents that keep their promises, and refuses one mutant per promise."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from agents_world import small
from approved import refused
from cloning_agent import Cloning
from torch import Tensor

from mocoda import Agent, check_agent
from mocoda.agents import Batch, Network, Stage
from mocoda.agents.agent import Noise
from mocoda.engine.networks import Weights, mlp
from mocoda.engine.randomness import Stream

TINY: dict[str, Any] = {"hidden": (7, 5), "batch": 6}


# Agents that keep their promises


@pytest.mark.parametrize(
    "agent",
    [
        small("td3-bc"),
        small("td3-bc", normalise=True, smoothing=0.0, imitation=0.0),
        small("bcq"),
        small("bcq", samplers=1, components=1, proposals=1),
        small("cql"),
        small("cql", penalty="logsumexp", weight=5.0),
        small("sac", hidden=(), batch=1, entropy=0.0),
        small("gciql", standardise=True),
        small("gciql", steps=3, uniform=True),
        small("dqc"),
        small("dqc", standardise=True, chunk=1, short=1),
        Cloning(**TINY),
    ],
    ids=lambda agent: agent.name,
)
def test_an_agent_that_keeps_its_promises_passes(agent: Agent) -> None:
    check_agent(agent)


@dataclass(frozen=True)
class TwoStages(Cloning):
    """Two cloning networks that act by their mean, with extra noise and a stage of fixed length."""

    acting: ClassVar[tuple[str, ...]] = ("actor", "clone")

    def networks(self, state: int, action: int) -> dict[str, Network]:
        actor = Network((state, *self.hidden, action))
        return {"clone": actor, "actor": actor}

    def stages(self) -> tuple[Stage, ...]:
        return Stage({"clone": 1}, 5, updates=3, weight_decay=0.1), Stage({"actor": 3, "target-actor": 2}, self.batch)

    def clone_loss(self, weights: Weights, batch: Batch, noise: Noise) -> Tensor:
        return (mlp(weights, "clone", batch.state).tanh() - batch.action).square().mean((-2, -1))

    def actor_loss(self, weights: Weights, batch: Batch, noise: Noise) -> Tensor:
        wanted = batch.action + 0.1 * noise["offset"]
        return (Cloning.act(self, weights, batch.state, noise) - wanted).square().mean((-2, -1))

    def act(self, weights: Weights, state: Tensor, noise: Noise) -> Tensor:
        return (super().act(weights, state, noise) + mlp(weights, "clone", state)[..., :2].tanh()) / 2

    def noise(self, stream: Stream, updates: int, action: int) -> dict[str, Tensor]:
        return {"offset": stream.normal(updates, self.batch, action)}


def test_an_agent_with_stages_and_several_groups_passes() -> None:
    check_agent(TwoStages(**TINY))


# Mutants: a class that clones, but for these methods


def own_noise(*shape: int) -> dict[str, Tensor]:
    return {"offset": torch.from_numpy(np.random.default_rng().normal(size=shape))}


def measured(agent: Cloning, given: Sequence[Any], measure: Callable[[Tensor], Any]) -> tuple[Tensor, Any]:
    loss = Cloning.actor_loss(agent, *given)
    return loss, measure(loss)


def idle_loss(agent: Cloning, weights: Weights, batch: Batch, noise: Noise) -> Tensor:
    without = {name: weight for name, weight in weights.items() if not name.startswith("actor.2")}
    return mlp(without, "actor", batch.state).square().mean((-2, -1))


def clone_loss(agent: Cloning, weights: Weights, batch: Batch, noise: Noise) -> Tensor:
    """Does not depend on how the mutant acts."""
    return (Cloning.act(agent, weights, batch.state, noise) - batch.action).square().mean((-2, -1))


CALLS = itertools.count()
METHODS: dict[str, dict[str, Any]] = {
    "OneGoal": {
        "goals_from_episodes": True,
        "draw_goals": lambda self, stream, row, last, rows: {"value_goal": row},
    },
    "GoalsBeyondTheData": {
        "goals_from_episodes": True,
        "draw_goals": lambda self, stream, row, last, rows: {"value_goal": row, "actor_goal": row + 1},
    },
    "NoNetworks": {"networks": lambda self, state, action: {}},
    "FixedLastStage": {"stages": lambda self: (Stage({"actor": 1}, self.batch, updates=10),)},
    "UnknownGroup": {"stages": lambda self: (Stage({"actor": 1, "critic": 1}, self.batch),)},
    "NoLoss": {"losses": lambda self: {"critic": self.actor_loss}},
    "NeverMoves": {"stages": lambda self: (Stage({"actor": 0}, self.batch),)},
    "NoiseInOnePiece": {"noise": lambda self, stream, updates, action: {"offset": stream.normal(self.batch, action)}},
    "NoiseOfItsOwn": {"noise": lambda self, stream, updates, action: own_noise(updates, 3)},
    "ActingNoiseOfItsOwn": {"acting_noise": lambda self, stream, states, action: own_noise(states, action)},
    "OneLoss": {"actor_loss": lambda self, *given: Cloning.actor_loss(self, *given).mean()},
    "NoNumber": {
        "actor_loss": lambda self, weights, batch, noise: (
            Cloning.actor_loss(self, weights, batch, noise) + (batch.reward.mean(-1) - 1).log()
        )
    },
    "IdleWeights": {"actor_loss": idle_loss},
    "AveragedOverRuns": {"actor_loss": lambda self, *given: Cloning.actor_loss(self, *given).mean().expand(2)},
    # No gradient leaks, but the data does.
    "StandardisedOverRuns": {
        "actor_loss": lambda self, weights, batch, noise: Cloning.actor_loss(
            self, weights, batch._replace(state=batch.state / batch.state.std()), noise
        )
    },
    "MeasuresNoNames": {"losses": lambda self: {"actor": lambda *given: measured(self, given, lambda loss: loss)}},
    "MeasuresNoNumber": {
        "losses": lambda self: {"actor": lambda *given: measured(self, given, lambda loss: {"distance": loss / 0})}
    },
    # Small states and fresh weights give small actions: one has to look further.
    "Unbounded": {"act": lambda self, weights, state, noise: mlp(weights, "actor", state)},
    "ActsOnOthersStates": {
        "actor_loss": clone_loss,
        "act": lambda self, weights, state, noise: Cloning.act(self, weights, state - state.mean((0, 1)), noise),
    },
    # A file has them in another order.
    "ActsByTheOrderOfItsWeights": {
        "actor_loss": clone_loss,
        "act": lambda self, weights, state, noise: (
            Cloning.act(self, weights, state, noise)
            / (1 + next(iter(weights.values())).flatten(1).amax(1).abs()[:, None, None])
        ),
    },
    # Acts differently at every call.
    "Forgetful": {
        "actor_loss": clone_loss,
        "act": lambda self, weights, state, noise: Cloning.act(self, weights, state, noise) / (1 + next(CALLS)),
    },
}


@dataclass(frozen=True)
class NotJson(Cloning):
    seen: frozenset[int] = frozenset({1})


class ActsByAGroupItDoesNotName(TwoStages):
    """Without the clone's weights `mlp` returns the state, and nobody would notice."""

    acting = ("actor",)


MUTANTS: list[type[Cloning]] = [type(name, (Cloning,), methods) for name, methods in METHODS.items()]
MUTANTS += [NotJson, ActsByAGroupItDoesNotName]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_promise_is_named(mutant: type[Cloning]) -> None:
    with refused():
        check_agent(mutant(**TINY))
