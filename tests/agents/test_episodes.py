"""Episodes in Gymnasium environments: against a plain loop, and the same in any number of processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from agents_world import small
from approved import refused
from point_task import HORIZON, A, CorridorTask, G, PointTask, S
from torch import Tensor

from mocoda import Agent, Policy, evaluate
from mocoda.agents.agent import Noise
from mocoda.agents.evaluation import MEASURES, SIDE_BY_SIDE, Played, flat, jobs, play, play_in_environment
from mocoda.engine.networks import Weights, mlp_weights
from mocoda.engine.randomness import Stream
from mocoda.tasks.navigation import Navigation

POINT, CORRIDOR = PointTask(), CorridorTask()


@dataclass(frozen=True)
class Seeker(Agent):
    """Walks straight to the goal, at a pace that is its only weight."""

    name: ClassVar[str] = "seeker"

    def act(self, weights: Weights, state: Tensor, noise: Noise) -> Tensor:
        return ((state[..., S:] - state[..., :2]) * weights["pace"][:, None]).clamp(-1, 1)


@dataclass(frozen=True)
class Drunkard(Agent):
    """Walks at random, but to the right on the whole."""

    name: ClassVar[str] = "drunkard"

    def act(self, weights: Weights, state: Tensor, noise: Noise) -> Tensor:
        return (weights["pace"][:, None] + noise["way"]).clamp(-1, 1)

    def acting_noise(self, stream: Stream, states: int, action: int) -> dict[str, Tensor]:
        return {"way": stream.normal(states, action)}


def seeker(pace: float = 1.0) -> Policy:
    return Policy(Seeker(), S + G, {"pace": torch.tensor([pace])}, torch.full((A,), -0.5), torch.full((A,), 0.5))


def drunkard(pace: float = 0.3) -> Policy:
    return Policy(Drunkard(), 1, {"pace": torch.tensor([pace])}, -torch.ones(A), torch.ones(A))


def untrained(name: str, seed: int = 0) -> Policy:
    agent = small(name)
    weights: dict[str, Tensor] = {}
    for group, network in agent.networks(S + G, A).items():
        leading = () if network.members is None else (network.members,)
        weights |= mlp_weights(group, leading, network.sizes, Stream(seed, "test-episodes", group))
    return Policy(agent, S + G, weights, torch.full((A,), -0.5), torch.full((A,), 0.5))


def same(one: Played, other: Played) -> bool:
    return all(np.array_equal(ours, theirs) for ours, theirs in zip(one, other, strict=True))


# One after the other


def driven(policy: Policy, environment: str, seed: int, noise: list[Stream]) -> tuple[Any, ...]:
    """Steps, success, return, first and last observation of the only episode of a job."""
    copy = gymnasium.make(environment)
    observation, _ = copy.reset(seed=seed)
    first, total, steps = flat(observation), 0.0, 0
    while True:
        action = np.asarray(policy.act(flat(observation)[None], seed=noise[steps]))[0]
        observation, reward, terminated, truncated, info = copy.step(action)
        steps, total = steps + 1, total + float(reward)
        if terminated or truncated:
            return steps, info.get("is_success", terminated), total, first, flat(observation)


@pytest.mark.parametrize(
    ("policy", "environment"),
    [(seeker(), POINT.environment), (untrained("bcq"), POINT.environment), (drunkard(), CORRIDOR.environment)],
    ids=["seeker", "bcq", "drunkard"],
)
def test_an_episode_is_that_of_a_plain_loop(policy: Policy, environment: str) -> None:
    stream = Stream(3, "test-episodes")
    (job,) = jobs(policy, environment, 1, stream)
    steps, success, total, first, last = driven(
        policy, environment, job.seeds[0], [stream.child("noise", 0, step) for step in range(HORIZON)]
    )
    made = play(job)
    assert (made.steps.tolist(), made.success.tolist()) == ([steps], [success])
    assert made.reward.tolist() == pytest.approx([total])
    assert np.array_equal(made.first[0], first)
    np.testing.assert_allclose(made.last[0], last, rtol=0, atol=1e-6)


def test_the_last_step_tells_of_success_where_the_environment_speaks_of_it() -> None:
    made = play_in_environment([seeker(1.0), seeker(0.0)], POINT, episodes=20, seed=0, workers=0)
    distance = np.linalg.norm(made.last[..., :2] - made.last[..., S:], axis=-1)
    assert np.array_equal(made.success, (distance < 0.2).astype(np.float32))
    assert made.success[0].all() and not made.success[1].all()
    assert (made.steps == HORIZON).all()  # nothing but time ends them


def test_to_terminate_is_a_success_where_the_environment_says_nothing_and_to_run_out_of_time_is_none() -> None:
    made = play_in_environment([drunkard(0.3), drunkard(-0.9)], CORRIDOR, episodes=20, seed=0, workers=0)
    assert np.array_equal(made.success, (made.last[..., 0] > 3).astype(np.float32))
    assert made.success[0].mean() > 0 and made.success[1].mean() == 0
    assert (made.steps[made.success == 1] <= HORIZON).all() and (made.steps[made.success == 0] == HORIZON).all()
    assert len(set(made.steps[0].tolist())) > 2  # an ended episode waits for the others
    assert np.array_equal(made.reward, -0.5 * made.steps)


# Several policies


@pytest.fixture(scope="module")
def policies() -> list[Policy]:
    return [seeker(), untrained("bcq"), untrained("sac", 1), seeker(0.1)]


@pytest.fixture(scope="module")
def here(policies: list[Policy]) -> Played:
    return play_in_environment(policies, POINT, episodes=SIDE_BY_SIDE + 5, seed=2, workers=0)


def test_all_policies_start_alike_and_end_differently(here: Played) -> None:
    assert (here.first == here.first[:1]).all()
    assert len({tuple(row) for row in here.first[0].tolist()}) == SIDE_BY_SIDE + 5
    assert (here.last[..., S:] == here.first[..., S:]).all()
    assert not (here.last[0] == here.last[3]).all()


def test_episodes_do_not_depend_on_the_number_of_processes(here: Played, policies: list[Policy]) -> None:
    assert same(play_in_environment(policies, POINT, episodes=SIDE_BY_SIDE + 5, seed=2, workers=2), here)


def test_a_policy_for_other_observations_is_refused(policies: list[Policy]) -> None:
    with refused():
        play_in_environment([drunkard()], POINT, episodes=1, seed=0, workers=0)


# Evaluations


def test_an_evaluation_holds_the_means_over_episodes(here: Played, policies: list[Policy]) -> None:
    agents = {("a", 0): policies[0], ("b", 0): policies[1], ("a", 1): policies[2], ("b", 1): policies[3]}
    found = evaluate(agents, POINT, episodes=SIDE_BY_SIDE + 5, seed=2, workers=0)
    for measure, part in zip(MEASURES, here, strict=False):
        assert list(found[measure]) == list(agents)
        assert list(found[measure].values()) == pytest.approx(part.astype(np.float64).mean(1).tolist(), rel=1e-6)
    assert found.episodes == SIDE_BY_SIDE + 5 and "success" in str(found)


class InItsEnvironment:
    """Navigation as a task that can only be played in its environment."""

    def __init__(self) -> None:
        inner = Navigation()
        self.name, self.environment, self.graph, self.box = inner.name, inner.environment, inner.graph, inner.box
        self.collect, self.label, self.features, self.region = inner.collect, inner.label, inner.features, inner.region


def test_ids_of_mocoda_are_known_in_other_processes() -> None:
    weights = {"actor.0.weight": torch.zeros(2, 2), "actor.0.bias": torch.full((1, 2), 9.0)}
    diagonal = Policy(small("td3-bc"), 2, weights, -torch.ones(2), torch.ones(2))
    made = play_in_environment([diagonal], InItsEnvironment(), episodes=3, seed=0, workers=1)
    assert made.success.any() and (made.steps <= 70).all() and (made.first < 0.15).all()
