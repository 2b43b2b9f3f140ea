"""check_agent: it passes agents that keep their promises, and refuses one mutant per promise."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
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
from mocoda.agents.agent import Loss, Noise
from mocoda.engine.networks import Weights, mlp
from mocoda.engine.randomness import Stream

TINY: dict[str, Any] = {"hidden": (7, 5), "batch": 6}


# Agents that keep their promises


@pytest.mark.parametrize(
    "agent",
    [
        small("td3-bc"),
        small("td3-bc", normalise=True),
        small("td3-bc", smoothing=0.0, imitation=0.0),
        small("bcq"),
        small("bcq", samplers=1, components=1, proposals=1),
        small("cql"),
        small("cql", penalty="logsumexp", weight=5.0),
        small("sac"),
        small("sac", hidden=(), batch=1, entropy=0.0),
        small("gciql"),
        small("gciql", hidden=(), batch=1, standardise=True),
        Cloning(**TINY),
        Cloning(hidden=()),
    ],
    ids=lambda agent: agent.name,
)
def test_an_agent_that_keeps_its_promises_passes(agent: Agent) -> None:
    check_agent(agent)


@dataclass(frozen=True)
class TwoStages(Cloning):
    """Clones, then follows its clone: groups of its own, noise of its own, a stage of fixed length."""

    spread: float = 0.1

    def networks(self, state: int, action: int) -> dict[str, Network]:
        actor = Network((state, *self.hidden, action))
        return {"clone": actor, "actor": actor}

    def stages(self) -> tuple[Stage, ...]:
        return Stage({"clone": 1}, 5, updates=3, weight_decay=0.1), Stage({"actor": 3, "target-actor": 2}, self.batch)

    def losses(self) -> dict[str, Loss]:
        return {"clone": self.clone_loss, "actor": self.actor_loss}

    def clone_loss(self, weights: Weights, batch: Batch, noise: Noise) -> Tensor:
        return (mlp(weights, "clone", batch.state).tanh() - batch.action).square().mean((-2, -1))

    def actor_loss(self, weights: Weights, batch: Batch, noise: Noise) -> Tensor:
        wanted = mlp(weights, "clone", batch.state).tanh() + self.spread * noise["offset"]
        return (self.act(weights, batch.state, noise) - wanted).square().mean((-2, -1))

    def noise(self, stream: Stream, updates: int, action: int) -> dict[str, Tensor]:
        return {"offset": stream.normal(updates, self.batch, action)}


@dataclass(frozen=True)
class ActsByBoth(TwoStages):
    """Acts by the mean of actor and clone, and says so."""

    acting: ClassVar[tuple[str, ...]] = ("actor", "clone")

    def actor_loss(self, weights: Weights, batch: Batch, noise: Noise) -> Tensor:
        return (Cloning.act(self, weights, batch.state, noise) - batch.action).square().mean((-2, -1))

    def act(self, weights: Weights, state: Tensor, noise: Noise) -> Tensor:
        return (super().act(weights, state, noise) + mlp(weights, "clone", state)[..., :2].tanh()) / 2


@pytest.mark.parametrize("kind", [TwoStages, ActsByBoth])
def test_an_agent_with_stages_and_several_groups_passes(kind: type[Cloning]) -> None:
    check_agent(kind(**TINY))


# Mutants


@dataclass(frozen=True)
class NotJson(Cloning):
    seen: frozenset[int] = frozenset({1})


class NoNetworks(Cloning):
    def networks(self, state: int, action: int) -> dict[str, Network]:
        return {}


class FixedLastStage(Cloning):
    def stages(self) -> tuple[Stage, ...]:
        return (Stage({"actor": 1}, self.batch, updates=10),)


class UnknownGroup(Cloning):
    def stages(self) -> tuple[Stage, ...]:
        return (Stage({"actor": 1, "critic": 1}, self.batch),)


class NoLoss(Cloning):
    def losses(self) -> dict[str, Loss]:
        return {"critic": self.actor_loss}


class NeverMoves(Cloning):
    def stages(self) -> tuple[Stage, ...]:
        return (Stage({"actor": 0}, self.batch),)


class NoiseInOnePiece(Cloning):
    def noise(self, stream: Stream, updates: int, action: int) -> dict[str, Tensor]:
        return {"offset": stream.normal(self.batch, action)}


class NoiseOfItsOwn(Cloning):
    def noise(self, stream: Stream, updates: int, action: int) -> dict[str, Tensor]:
        return {"offset": torch.from_numpy(np.random.default_rng().normal(size=(updates, 3)))}


class ActingNoiseOfItsOwn(Cloning):
    def acting_noise(self, stream: Stream, states: int, action: int) -> dict[str, Tensor]:
        return {"offset": torch.from_numpy(np.random.default_rng().normal(size=(states, action)))}


class OneLoss(Cloning):
    def actor_loss(self, weights: Weights, batch: Batch, noise: Noise) -> Tensor:
        return super().actor_loss(weights, batch, noise).mean()


class NoNumber(Cloning):
    def actor_loss(self, weights: Weights, batch: Batch, noise: Noise) -> Tensor:
        return super().actor_loss(weights, batch, noise) + (batch.reward.mean(-1) - 1).log()


class IdleWeights(Cloning):
    def actor_loss(self, weights: Weights, batch: Batch, noise: Noise) -> Tensor:
        without = {name: weight for name, weight in weights.items() if not name.startswith("actor.2")}
        return mlp(without, "actor", batch.state).square().mean((-2, -1))


class AveragedOverRuns(Cloning):
    def actor_loss(self, weights: Weights, batch: Batch, noise: Noise) -> Tensor:
        loss = super().actor_loss(weights, batch, noise)
        return loss.mean().expand(len(loss))


class StandardisedOverRuns(Cloning):
    """No gradient leaks, but the data does."""

    def actor_loss(self, weights: Weights, batch: Batch, noise: Noise) -> Tensor:
        return super().actor_loss(weights, batch._replace(state=batch.state / batch.state.std()), noise)


class MeasuresNoNames(Cloning):
    def losses(self) -> dict[str, Any]:
        return {"actor": lambda *given: (self.actor_loss(*given), self.actor_loss(*given))}


class MeasuresOneNumber(Cloning):
    def losses(self) -> dict[str, Loss]:
        return {"actor": lambda *given: (self.actor_loss(*given), {"distance": self.actor_loss(*given).mean()})}


class MeasuresNoNumber(Cloning):
    def losses(self) -> dict[str, Loss]:
        return {"actor": lambda *given: (self.actor_loss(*given), {"distance": -self.actor_loss(*given).log() / 0})}


class Unbounded(Cloning):
    """Small states and fresh weights give small actions: one has to look further."""

    def act(self, weights: Weights, state: Tensor, noise: Noise) -> Tensor:
        return mlp(weights, "actor", state)


class ActsOnOthersStates(Cloning):
    def actor_loss(self, weights: Weights, batch: Batch, noise: Noise) -> Tensor:
        return (super().act(weights, batch.state, noise) - batch.action).square().mean((-2, -1))

    def act(self, weights: Weights, state: Tensor, noise: Noise) -> Tensor:
        return super().act(weights, state - state.mean((0, 1)), noise)


class ActsByTheOrderOfItsWeights(Cloning):
    """A file has them in another."""

    def actor_loss(self, weights: Weights, batch: Batch, noise: Noise) -> Tensor:
        return (super().act(weights, batch.state, noise) - batch.action).square().mean((-2, -1))

    def act(self, weights: Weights, state: Tensor, noise: Noise) -> Tensor:
        first = next(iter(weights.values()))
        return super().act(weights, state, noise) / (1 + first.flatten(1).amax(1).abs()[:, None, None])


class Forgetful(Cloning):
    """Acts differently at every call."""

    calls: ClassVar[Iterator[int]] = itertools.count()

    def actor_loss(self, weights: Weights, batch: Batch, noise: Noise) -> Tensor:
        return (super().act(weights, batch.state, noise) - batch.action).square().mean((-2, -1))

    def act(self, weights: Weights, state: Tensor, noise: Noise) -> Tensor:
        return super().act(weights, state, noise) / (1 + next(self.calls))


class ActsByAGroupItDoesNotName(ActsByBoth):
    """Without the clone's weights `mlp` returns the state, and nobody would notice."""

    acting = ("actor",)


class OneGoal(Cloning):
    goals_from_episodes = True

    def draw_goals(self, stream: Stream, row: Tensor, last: Tensor, rows: int) -> dict[str, Tensor]:
        return {"value_goal": row}


class GoalsBeyondTheData(OneGoal):
    def draw_goals(self, stream: Stream, row: Tensor, last: Tensor, rows: int) -> dict[str, Tensor]:
        return {"value_goal": row, "actor_goal": row + 1}


MUTANTS: list[type[Cloning]] = [
    OneGoal,
    GoalsBeyondTheData,
    NotJson,
    NoNetworks,
    FixedLastStage,
    UnknownGroup,
    NoLoss,
    NeverMoves,
    NoiseInOnePiece,
    NoiseOfItsOwn,
    ActingNoiseOfItsOwn,
    OneLoss,
    NoNumber,
    IdleWeights,
    AveragedOverRuns,
    StandardisedOverRuns,
    MeasuresNoNames,
    MeasuresOneNumber,
    MeasuresNoNumber,
    Unbounded,
    ActsOnOthersStates,
    Forgetful,
    ActsByTheOrderOfItsWeights,
    ActsByAGroupItDoesNotName,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_promise_is_named(mutant: type[Cloning]) -> None:
    with refused():
        check_agent(mutant(**TINY))
