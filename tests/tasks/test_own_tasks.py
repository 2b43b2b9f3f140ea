"""Tasks of one's own: a graph file, an environment, and what its goals are about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from approved import refused
from command_line import done
from point_task import Point, PointTask

import mocoda
from mocoda import Transitions, make_task
from mocoda.tasks.task import environment_action, make_environment

NAMES = ("p.x", "p.y", "t", "u.x", "u.y")
WALKS = PointTask().collect(80, seed=0)
EPISODES = torch.arange(80) // 10
DATA = Transitions(WALKS.state, WALKS.action, WALKS.next_state, columns=NAMES, episode=EPISODES)
TOML = """
environment = "point_task:Point-v0"
achieved = ["p.x", "p.y"]
tolerance = 0.2
[action]
u = ["u.x", "u.y"]
[edges]
p = ["p", "u"]
t = ["t"]
"""
EDGES = 'action = {"u": ["u.x", "u.y"]}\nedges = {"p": ["p", "u"], "t": ["t"]}\n'
AGENTS: Any = {("one", 0): None}
# An environment of the file's own: it shows plain states, knows no goals, and draws.
PLAIN = f"""
import gymnasium, numpy as np, torch
{EDGES}
achieved = ["p.x", "p.y"]
tolerance = 0.3

class World(gymnasium.Env):
    metadata = {{"render_modes": ["rgb_array"], "render_fps": 5}}
    observation_space = gymnasium.spaces.Box(-9, 9, (3,))
    action_space = gymnasium.spaces.Box(-0.5, 0.5, (2,))
    def __init__(self, render_mode=None):
        self.render_mode = render_mode
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = np.zeros(3, np.float32)
        return self.at.copy(), {{}}
    def step(self, action):
        self.at = self.at + np.float32([*action, 0.1])
        return self.at.copy(), 7.0, False, bool(self.at[2] > 0.75), {{}}
    def render(self):
        return np.zeros((16, 16, 3), np.uint8)

environment = World
def goals(n, seed, device):
    return torch.tensor([[0.4, 0.4]], device=device).expand(n, 2)
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("g.toml", TOML), ("plain.py", PLAIN), ("bare.py", EDGES)):
        Path(name).write_text(text)


def test_columns_and_a_distance_are_enough_to_label_train_and_evaluate() -> None:
    task = make_task(graph="g.toml", data=DATA)
    labelled = mocoda.label(DATA, task, seed=0, hindsight=0.5)
    assert labelled.goal is not None and labelled.reward is not None and labelled.goal.shape == (80, 2)
    near = (DATA.next_state[:, :2] - labelled.goal).norm(dim=1) <= 0.2
    assert labelled.reward.equal(near.float() - 1) and labelled.terminal.equal(near) and near.any() and not near.all()
    seen = {tuple(Point().reset(seed=number)[0]["desired_goal"].astype(np.float32)) for number in range(256)}
    assert {tuple(goal) for goal in task.goals(50, seed=1, device="cpu").numpy()} <= seen
    for agent, data in (("td3-bc", labelled), ("gciql", DATA)):
        settings: dict[str, Any] = {"seeds": [0], "updates": 4, "task": task, "evaluate_every": 2, "workers": 0}
        policies = mocoda.train_agents({"one": data}, mocoda.make_agent(agent, hidden=(8,), batch=16), **settings)
        low, high = policies["one", 0].action_low, policies["one", 0].action_high
        assert low.tolist() == [-0.5, -0.5] and high.tolist() == [0.5, 0.5]  # the environment's
        assert policies.curves["updates"].tolist() == [2, 4]
        assert mocoda.evaluate(policies, task, episodes=3, workers=int(agent == "gciql"))["steps"]["one", 0] <= 12


def test_what_is_given_replaces_what_the_file_says_and_every_factor_must_be_within_the_distance() -> None:
    task = make_task(graph="g.toml", data=DATA, achieved=["t", "p.x", "p.y"], tolerance=1.0)
    assert task.achieved(DATA.state).equal(DATA.state[:, [2, 0, 1]])
    goal = torch.tensor([[0.0, 0.0, 0.0], [0.9, 0.6, 0.6], [0.9, 0.8, 0.8], [1.1, 0.0, 0.0]])
    assert task.reached(torch.zeros(4, 3), goal).tolist() == [True, True, False, False]


def test_a_file_that_has_changed_is_loaded_again() -> None:
    goal, found = torch.full((1, 2), 0.25), []
    for tolerance in ("0.2", "0.4"):
        Path("g.toml").write_text(TOML.replace("0.2", tolerance))
        found.append(bool(make_task(graph="g.toml", data=DATA).reached(torch.zeros(1, 2), goal)))
    assert found == [False, True]


def test_an_environment_that_knows_no_goals_shows_and_judges_those_of_the_file() -> None:
    task = make_task(graph="plain.py", data=DATA)
    env: gymnasium.Env[Any, Any] = make_environment(task.environment)
    seen, _ = env.reset(seed=0)
    assert seen["desired_goal"].tolist() == pytest.approx([0.4, 0.4]) and seen["observation"].tolist() == [0, 0, 0]
    told = [env.step(np.array([0.2, 0.2], np.float32)) for _ in range(2)]
    # Within 0.3, and the file's reward rather than the environment's.
    assert [(reward, ended, info["is_success"]) for _, reward, ended, _, info in told] == [(0.0, True, True)] * 2
    assert env.step(np.array([0.5, 0.5], np.float32))[1] == -1.0


def test_rewards_of_the_file_are_those_of_an_evaluation() -> None:
    Path("reward.py").write_text(
        PLAIN.split("achieved")[0]
        + "class World"
        + PLAIN.split("class World")[1].partition("def goals")[0]
        + "def reward(state, action, next_state):\n    return next_state[:, 0]\n"
        + "def terminal(state, action, next_state):\n    return next_state[:, 0] > 0.9\n"
    )
    env = make_environment(make_task(graph="reward.py", data=DATA).environment)
    env.reset(seed=0)
    told = [env.step(np.array([0.5, 0.0], np.float32)) for _ in range(2)]
    assert [(reward, ended) for _, reward, ended, *_ in told] == [(0.5, False), (1.0, True)]
    assert told[1][4]["is_success"]


def test_one_hot_actions_are_the_numbers_of_a_discrete_environment() -> None:
    Path("discrete.py").write_text(
        PLAIN.replace("spaces.Box(-0.5, 0.5, (2,))", "spaces.Discrete(2)").replace("[*action, 0.1]", "[action, 0, 0.1]")
    )
    env = make_environment(make_task(graph="discrete.py", data=DATA).environment)
    env.reset(seed=0)
    chosen = environment_action(env.action_space, np.array([0.1, 0.9], np.float32))
    assert env.step(chosen)[0]["observation"][0] == 1.0


@pytest.mark.parametrize(
    "given",
    [
        {"graph": "g.toml"},
        {"name": "navigation", "graph": "g.toml", "data": DATA},
        {},
        {"graph": "bare.py", "data": DATA, "tolerance": 0.1},
        {"graph": "bare.py", "data": DATA, "achieved": ["q"]},
        {"graph": "bare.py", "data": DATA, "achieved": ["p.x"], "tolerance": -1},
    ],
)
def test_what_cannot_be_a_task_is_refused(given: dict[str, Any]) -> None:
    with refused():
        make_task(**given)


@pytest.mark.parametrize(
    ("given", "do"),
    [
        ({}, lambda task: mocoda.label(DATA, task)),
        ({"achieved": ["p.x"]}, lambda task: mocoda.label(DATA, task)),
        ({}, lambda task: mocoda.evaluate(AGENTS, task)),
        ({"environment": "nowhere:World-v0"}, lambda task: make_environment(task.environment)),
        (
            {"environment": "point_task:Point-v0", "achieved": ["p.x"]},
            lambda task: make_environment(task.environment).reset(seed=0),
        ),
        ({"environment": "point_task:Corridor-v0"}, lambda task: make_environment(task.environment).reset(seed=0)),
        (
            {"environment": "point_task:Corridor-v0", "achieved": ["p.x"], "tolerance": 1},
            lambda task: task.goals(3, seed=0, device="cpu"),
        ),
    ],
)
def test_what_is_missing_is_asked_for_when_it_is_needed(given: dict[str, Any], do: Any) -> None:
    task = make_task(graph="bare.py", data=DATA, **given)
    with refused():
        do(task)


def test_the_command_line_trains_evaluates_and_films_it(capfd: pytest.CaptureFixture[str]) -> None:
    DATA.save("walks.hdf5")
    done("label", "walks.hdf5", "--graph", "plain.py", "--hindsight", 0.5, "--out", "labelled.hdf5")
    sizes = ("--hidden", 8, "--batch", 16, "--seeds", 1, "--updates", 2, "--evaluate-every", 1)
    done("train", "labelled.hdf5", "--graph", "plain.py", *sizes, "--workers", 0, "--out", "agents")
    assert (Path("agents") / "metrics.csv").read_text().count("success") == 2
    assert "labelled" in done("evaluate", "agents", "--episodes", 2)
    done("watch", "agents", "--episodes", 1, "--out", "film.gif")
    assert Path("film.gif").stat().st_size > 50
