"""Rollouts against a loop through Gymnasium, evaluations, and what they say about data sets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import pytest
import torch
from agents_world import small, untrained
from approved import refused
from torch import Tensor

from mocoda import Agent, Evaluation, Policy, evaluate
from mocoda.agents.agent import Noise
from mocoda.agents.evaluation import MEASURES, play_simulated
from mocoda.engine.networks import Weights, mlp_weights
from mocoda.engine.randomness import Stream
from mocoda.engine.statistics import probability_of_improvement
from mocoda.tasks.navigation import Navigation, Navigation2D

TASK = Navigation()


@dataclass(frozen=True)
class Walker(Agent):
    """Always walks the same way, which is its only weight."""

    name: ClassVar[str] = "walker"

    def act(self, weights: Weights, state: Tensor, noise: Noise) -> Tensor:
        return weights["way"][:, None].expand(*state.shape[:-1], 2)


def walker(dx: float = 1.0, dy: float = 1.0) -> Policy:
    return Policy(Walker(), 2, {"way": torch.tensor([dx, dy])}, -torch.ones(2), torch.ones(2))


def navigator(name: str, seed: int = 0) -> Policy:
    """An untrained agent for Navigation, an actor that walks to the upper right."""
    agent = small(name)
    weights: dict[str, Tensor] = {}
    for group, network in agent.networks(2, 2).items():
        leading = () if network.members is None else (network.members,)
        weights |= mlp_weights(group, leading, network.sizes, Stream(seed, "test-evaluation", group))
    if "actor.2.bias" in weights:
        weights["actor.2.bias"] = weights["actor.2.bias"].abs() + 1.0
    return Policy(agent, 2, weights, -torch.ones(2), torch.ones(2))


# One episode after the other


def driven(policy: Policy, start: Tensor) -> tuple[int, bool, float, list[list[float]]]:
    """Steps, success, return and path of one episode in the Gymnasium environment."""
    environment = gymnasium.make("mocoda/Navigation2D-v0")
    environment.reset(seed=0)
    inner = environment.unwrapped
    assert isinstance(inner, Navigation2D)
    inner.state = start[None].clone()
    state, path, total, steps = start.numpy(), [start.tolist()], 0.0, 0
    while True:
        state, reward, terminated, truncated, _ = environment.step(policy.act(state))
        path.append(state.tolist())
        total, steps = total + float(reward), steps + 1
        if terminated or truncated:
            environment.close()
            return steps, terminated, total, path


@pytest.mark.parametrize("policy", [walker(1.0, 0.9), walker(-1.0, 0.0), navigator("td3-bc"), navigator("sac", 1)])
def test_episodes_are_those_of_the_gymnasium_environment(policy: Policy) -> None:
    made = play_simulated([policy], TASK, episodes=8, seed=3, keep_path=True)
    for episode, start in enumerate(TASK.start(8, seed=Stream(3, "evaluate"))):
        steps, success, total, path = driven(policy, start)
        assert float(made.steps[0, episode]) == steps
        assert bool(made.success[0, episode]) == success
        assert float(made.reward[0, episode]) == pytest.approx(total)
        torch.testing.assert_close(made.path[: steps + 1, 0, episode], torch.tensor(path), rtol=0, atol=1e-5)


# Evaluations


def test_agents_of_different_kinds_are_evaluated_in_one_call() -> None:
    agents = {
        ("walk", 0): walker(),
        ("sac", 0): navigator("sac"),
        ("walk", 1): walker(1.0, 0.9),
        ("bcq", 0): navigator("bcq"),
        ("bcq", 1): navigator("bcq", 1),
    }
    together = evaluate(agents, TASK, episodes=6, seed=4)
    for measure in MEASURES:
        assert list(together[measure]) == list(agents)
    for key, policy in agents.items():
        alone = evaluate({key: policy}, TASK, episodes=6, seed=4)
        assert all(alone[measure][key] == together[measure][key] for measure in MEASURES)
        made = play_simulated([policy], TASK, episodes=6, seed=4)
        found = [together[measure][key] for measure in MEASURES]
        assert found == pytest.approx([float(part.mean()) for part in (made.steps, made.success, made.reward)])


# What an evaluation says

STEPS = {("old", 0): 40.0, ("old", 1): 30.0, ("old", 2): 50.0, ("new", 0): 20.0, ("new", 1): 30.0, ("new", 2): 25.0}


def an_evaluation(steps: Mapping[tuple[str, int], float] = STEPS) -> Evaluation:
    success = {key: (70 - value) / 70 for key, value in steps.items()}
    return Evaluation({"steps": steps, "success": success, "return": {k: -v for k, v in steps.items()}}, 10)


def test_fewer_steps_and_more_of_the_rest_are_an_improvement() -> None:
    found = an_evaluation()
    expected = probability_of_improvement([20.0, 30.0, 25.0], [40.0, 30.0, 50.0], lower_is_better=True)
    assert expected == pytest.approx(8.5 / 9)
    assert found.improvement("new", "old") == found.improvement("new", over="old", measure="steps") == expected
    assert found.improvement("new", "old", "success") == pytest.approx(expected)
    assert found.improvement("new", "old", "return") == pytest.approx(expected)
    assert found.improvement("old", "new") == pytest.approx(1 - expected)


def test_an_evaluation_goes_through_json_and_back() -> None:
    found = an_evaluation()
    content: dict[str, Any] = json.loads(json.dumps(found.to_json()))
    assert content == found.to_json()
    assert content["episodes"] == 10
    assert [(run["data"], run["seed"]) for run in content["runs"]] == list(STEPS)
    for measure in MEASURES:
        assert {(run["data"], run["seed"]): run[measure] for run in content["runs"]} == found[measure]
    for data in ("old", "new"):
        for measure in MEASURES:
            assert content["summaries"][data][measure] == found.summary(measure, data)._asdict()


# Errors


@pytest.mark.parametrize(
    "ask",
    [
        lambda: evaluate({}, TASK),
        lambda: evaluate({("walk", 0): walker()}, TASK, episodes=0),
        lambda: evaluate({("walk", 0): walker(), ("hill", 0): untrained(small("sac"))}, TASK, episodes=1),
        lambda: an_evaluation()["step"],
        lambda: an_evaluation().summary("steps", "odl"),
        lambda: an_evaluation().improvement("new", over="odl"),
    ],
)
def test_bad_questions_are_refused(ask: Callable[[], object]) -> None:
    with refused():
        ask()
