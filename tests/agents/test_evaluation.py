"""Rollouts against a loop through Gymnasium, evaluations, and what they say about data sets."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import pytest
import torch
from agents_world import HILL, A, Hill, S, small, untrained
from torch import Tensor

from mocoda import Agent, Evaluation, InputError, Policy, evaluate
from mocoda.agents.agent import Noise
from mocoda.agents.evaluation import MEASURES, episode_noise, play_simulated
from mocoda.engine.networks import Weights, mlp_weights
from mocoda.engine.randomness import Stream, as_stream
from mocoda.engine.statistics import probability_of_improvement
from mocoda.tasks.navigation import HORIZON, Navigation, Navigation2D

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


class Diagonal(Navigation):
    """Starts where x and y are equal."""

    def start(self, n: int, *, seed: int | Stream, device: torch.device | str = "cpu") -> Tensor:
        return as_stream(seed, "diagonal", device=device).uniform(n, 1, high=0.15).expand(n, 2)


# One episode after the other


def driven(policy: Policy, start: Tensor) -> tuple[int, bool, float, list[list[float]]]:
    """Steps, success, return and path of one episode in the Gymnasium environment."""
    environment = gymnasium.make("mocoda/Navigation2D-v0")
    environment.reset(seed=0)
    inner = environment.unwrapped
    assert isinstance(inner, Navigation2D)
    inner._state = start[None].clone()
    state, path, total, steps = start.numpy(), [start.tolist()], 0.0, 0
    while True:
        state, reward, terminated, truncated, _ = environment.step(policy.act(state))
        path.append(state.tolist())
        total, steps = total + float(reward), steps + 1
        if terminated or truncated:
            environment.close()
            return steps, terminated, total, path


@pytest.mark.parametrize("policy", [walker(), walker(1.0, 0.9), navigator("td3-bc"), navigator("sac", 1)], ids=repr)
def test_episodes_are_those_of_the_gymnasium_environment(policy: Policy) -> None:
    made = play_simulated([policy], TASK, episodes=8, seed=3, keep_path=True)
    for episode, start in enumerate(TASK.start(8, seed=Stream(3, "evaluate"))):
        steps, success, total, path = driven(policy, start)
        assert float(made.steps[0, episode]) == steps
        assert bool(made.success[0, episode]) == success
        assert float(made.reward[0, episode]) == pytest.approx(total)
        torch.testing.assert_close(made.path[: steps + 1, 0, episode], torch.tensor(path), rtol=0, atol=1e-5)


def test_the_diagonal_at_full_speed_takes_the_fewest_steps_there_are() -> None:
    made = play_simulated([walker()], Diagonal(), episodes=50, seed=0)
    start = Diagonal().start(50, seed=Stream(0, "evaluate"))
    assert made.steps[0].double().equal(TASK.least_steps(start))
    assert bool(made.success.all()) and made.reward.equal(1 - made.steps)
    assert len(set(made.steps[0].tolist())) > 1


def test_from_any_start_the_diagonal_takes_at_least_the_fewest_steps() -> None:
    made = play_simulated([walker()], TASK, episodes=200, seed=0)
    start = TASK.start(200, seed=Stream(0, "evaluate"))
    assert bool((made.steps[0] >= TASK.least_steps(start)).all())
    assert 0 < float(made.success.mean()) < 1  # some starts are too far off the diagonal


def test_an_episode_that_does_not_end_counts_the_whole_horizon() -> None:
    made = play_simulated([walker(-1.0, 0.0), walker(0.0, 0.0)], TASK, episodes=4, seed=0)
    assert made.steps.equal(torch.full((2, 4), float(HORIZON)))
    assert made.success.equal(torch.zeros(2, 4)) and made.reward.equal(torch.full((2, 4), -float(HORIZON)))


class Short(Diagonal):
    """Too short for the slowest walks along the diagonal."""

    horizon = 18


def test_an_episode_that_would_end_after_the_horizon_is_a_failure() -> None:
    long, short = (play_simulated([walker()], task, episodes=50, seed=0) for task in (Diagonal(), Short()))
    in_time = long.steps <= 18
    assert bool(in_time.any()) and not bool(in_time.all())
    assert short.success.equal(in_time.float()) and short.steps.equal(long.steps.clamp(max=18))
    assert short.reward.equal(torch.where(in_time, 1 - long.steps, -18.0))
    assert bool((short.steps == 18)[in_time].any())  # to end with the last step is in time


def test_an_ended_episode_stays_where_it_is() -> None:
    made = play_simulated([walker(), walker(0.99, 1.0)], TASK, episodes=20, seed=1, keep_path=True)
    assert made.path.shape[1:] == (2, 20, 2)
    ended = 0
    for run in range(2):
        for episode in range(20):
            steps, path = int(made.steps[run, episode]), made.path[:, run, episode]
            assert bool((path[1 : steps + 1] != path[:steps]).any(1).all())
            assert bool((path[steps:] == path[steps]).all())
            ended += steps < len(path) - 1
    assert ended > 0


def test_a_path_is_kept_only_if_it_is_asked_for() -> None:
    made = play_simulated([walker()], TASK, episodes=5, seed=0)
    assert made.path.shape == (1, 1, 5, 2)
    assert made.path[0, 0].equal(TASK.start(5, seed=Stream(0, "evaluate")))


def test_rewards_after_the_end_do_not_count() -> None:
    class Tempting(Hill):
        """Ends at the third step, and pays only after that."""

        def step(self, rows: Tensor) -> Tensor:
            return rows[:, :S] + torch.tensor([0.0, 0.0, 1.0])

        def start(self, n: int, *, seed: int | Stream, device: torch.device | str = "cpu") -> Tensor:
            return torch.zeros(n, S)

        def label(self, state: Tensor, action: Tensor, next_state: Tensor) -> tuple[Tensor, Tensor]:
            return torch.where(state[:, 2] < 3, -1.0, 100.0), next_state[:, 2] == 3

    made = play_simulated([untrained(small("sac"))], Tempting(), episodes=2, seed=0)
    assert made.steps.tolist() == [[3, 3]] and made.reward.tolist() == [[-3, -3]] and made.success.tolist() == [[1, 1]]


def test_actions_are_scaled_to_the_policys_box() -> None:
    policy = Policy(Walker(), 2, {"way": torch.ones(2)}, torch.zeros(2), torch.tensor([0.5, 0.25]))
    made = play_simulated([policy], TASK, episodes=1, seed=0, keep_path=True)
    torch.testing.assert_close(made.path[1] - made.path[0], torch.tensor([[[0.025, 0.0125]]]))


def test_runs_side_by_side_are_runs_one_by_one() -> None:
    policies = [navigator("bcq", seed) for seed in range(4)]
    together = play_simulated(policies, TASK, episodes=5, seed=2, keep_path=True)
    for run, policy in enumerate(policies):
        alone = play_simulated([policy], TASK, episodes=5, seed=2, keep_path=True)
        assert alone.path[:, 0].equal(together.path[: len(alone.path), run])
        assert alone.steps[0].equal(together.steps[run]) and alone.reward[0].equal(together.reward[run])


def test_noise_is_new_at_every_step_and_in_every_episode() -> None:
    streams = [Stream(seed, "test-evaluation") for seed in range(3)]
    noise = episode_noise(small("bcq"), streams, HILL, 4, A)
    assert noise["offset"].shape == (HILL.horizon, 3, 4, 6, A)
    assert len({tuple(row) for row in noise["offset"].flatten(0, 2).flatten(1).tolist()}) == HILL.horizon * 3 * 4
    alone = episode_noise(small("bcq"), [Stream(1, "test-evaluation")], HILL, 4, A)
    assert all(value[:, 1].equal(alone[name][:, 0]) for name, value in noise.items())
    assert episode_noise(small("sac"), [Stream(0)], HILL, 4, A) == {}


# Evaluations


class Noted(Navigation):
    """Remembers the starts it gave."""

    def __init__(self) -> None:
        self.given: list[Tensor] = []

    def start(self, n: int, *, seed: int | Stream, device: torch.device | str = "cpu") -> Tensor:
        self.given.append(super().start(n, seed=seed, device=device))
        return self.given[-1]


def different_agents() -> dict[tuple[str, int], Policy]:
    return {
        ("walk", 0): walker(),
        ("sac", 0): navigator("sac"),
        ("walk", 1): walker(1.0, 0.9),
        ("bcq", 0): navigator("bcq"),
        ("sac", 1): navigator("sac", 1),
        ("bcq", 1): navigator("bcq", 1),
    }


def test_agents_of_different_kinds_are_evaluated_in_one_call() -> None:
    agents = different_agents()
    together = evaluate(agents, TASK, episodes=6, seed=4)
    for measure in MEASURES:
        assert list(together[measure]) == list(agents)
    for key, policy in agents.items():
        alone = evaluate({key: policy}, TASK, episodes=6, seed=4)
        assert all(alone[measure][key] == together[measure][key] for measure in MEASURES)
        made = play_simulated([policy], TASK, episodes=6, seed=4)
        found = [together[measure][key] for measure in MEASURES]
        assert found == pytest.approx([float(part.mean()) for part in (made.steps, made.success, made.reward)])


def test_agents_of_one_kind_but_different_boxes_keep_their_boxes() -> None:
    slow = Policy(Walker(), 2, {"way": torch.ones(2)}, -0.5 * torch.ones(2), 0.5 * torch.ones(2))
    found = evaluate({("fast", 0): walker(), ("slow", 0): slow}, Diagonal(), episodes=5)
    assert found["steps"]["slow", 0] > 1.8 * found["steps"]["fast", 0]


def test_all_agents_have_the_same_starts() -> None:
    task = Noted()
    evaluate(different_agents(), task, episodes=6, seed=4)
    assert len(task.given) == 3  # walkers, SAC, BCQ
    assert all(start.equal(TASK.start(6, seed=Stream(4, "evaluate"))) for start in task.given)


def test_the_same_seed_starts_in_the_same_states_and_another_in_others() -> None:
    agents = {("walk", 0): walker(), ("walk", 1): walker()}
    once, again, other = (evaluate(agents, TASK, episodes=20, seed=seed) for seed in (0, 0, 1))
    assert once.values == again.values and once.values != other.values
    assert once["steps"]["walk", 0] == once["steps"]["walk", 1]


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


def test_data_sets_need_not_have_the_same_seeds() -> None:
    found = an_evaluation({("a", 3): 10.0, ("b", 0): 5.0, ("b", 1): 15.0})
    assert found.improvement("a", "b") == 0.5 and found.over_seeds("steps", "b") == [5.0, 15.0]
    assert "a" in str(found)


def test_an_evaluation_prints_as_a_table_with_a_line_a_data_set() -> None:
    text = str(an_evaluation())
    cells = [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in text.splitlines()]
    title, (header, old, new) = text.splitlines()[0].strip(), [row for row in cells if row]
    assert title == "10 episodes per seed, seeds: 3"
    assert header == ["data", "steps", "IQM", "95% CI", "better than old", "success", "return"]
    summary = an_evaluation().summary("steps", "new")
    assert old[:3] + old[4:] == ["old", "40.0 ± 10.0", "40.0", "", "43%", "-40.0 ± 10.0"]
    interval = f"{summary.low:.1f} to {summary.high:.1f}"
    assert new == ["new", "25.0 ± 5.0", "25.0", interval, "94%", "64%", "-25.0 ± 5.0"]


def test_an_evaluation_goes_through_json_and_back() -> None:
    found = an_evaluation()
    content: dict[str, Any] = json.loads(json.dumps(found.to_json()))
    assert content == found.to_json()
    assert content["episodes"] == 10
    assert [(run["data"], run["seed"]) for run in content["runs"]] == list(STEPS)
    again = Evaluation(
        {measure: {(run["data"], run["seed"]): run[measure] for run in content["runs"]} for measure in MEASURES},
        content["episodes"],
    )
    assert again.values == found.values and str(again) == str(found)
    for data in ("old", "new"):
        for measure in MEASURES:
            assert content["summaries"][data][measure] == found.summary(measure, data)._asdict()


# Errors


def test_no_agents_are_refused() -> None:
    with pytest.raises(InputError) as caught:
        evaluate({}, TASK)
    assert str(caught.value) == "there are no agents to evaluate."


@pytest.mark.parametrize("episodes", [0, -1])
def test_no_episodes_are_refused(episodes: int) -> None:
    with pytest.raises(InputError) as caught:
        evaluate({("walk", 0): walker()}, TASK, episodes=episodes)
    assert str(caught.value) == f"episodes must be at least 1, got {episodes}."


def test_agents_of_another_task_are_refused() -> None:
    with pytest.raises(InputError) as caught:
        evaluate({("walk", 0): walker(), ("hill", 0): untrained(small("sac"))}, TASK, episodes=1)
    assert str(caught.value) == (
        "the agents were trained on states of 3 columns, but the task starts in states of 2. "
        "Evaluate them on the task they were trained for."
    )


def test_an_unknown_measure_is_answered_with_those_that_exist() -> None:
    message = "there is no measure 'step'; there are: steps, success, return. Did you mean 'steps'?"
    found = an_evaluation()
    for ask in (
        lambda: found["step"],
        lambda: found.over_seeds("step", "old"),
        lambda: found.summary("step", "old"),
        lambda: found.improvement("new", "old", "step"),
    ):
        with pytest.raises(InputError) as caught:
            ask()
        assert str(caught.value) == message


def test_an_unknown_data_set_is_answered_with_those_that_exist() -> None:
    message = "there is no data set 'odl'; there are: old, new. Did you mean 'old'?"
    found = an_evaluation()
    for ask in (
        lambda: found.over_seeds("steps", "odl"),
        lambda: found.summary("steps", "odl"),
        lambda: found.improvement("odl", "new"),
        lambda: found.improvement("new", over="odl"),
    ):
        with pytest.raises(InputError) as caught:
            ask()
        assert str(caught.value) == message
