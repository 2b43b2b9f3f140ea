"""Actions that are categories: read as one-hot columns, recombined as such, and given to environments as categories."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from approved import assert_approved, refused

import mocoda
from mocoda import LocalGraph, Transitions
from mocoda.agents.assumptions import assumptions
from mocoda.analysis.replay import EnvironmentStep
from mocoda.data import one_hot_groups
from mocoda.tasks.task import environment_action

COLUMNS = ["cart.x", "cart.v", "pole.angle", "pole.speed"]


@cache
def cart_pole(steps: int = 400) -> dict[str, Any]:
    """Random steps of CartPole, whose two actions are recorded as 0 and 1."""
    env = gymnasium.make("CartPole-v1").unwrapped
    random = np.random.default_rng(0)
    state, found = env.reset(seed=0)[0], []
    for _ in range(steps):
        action = int(random.integers(2))
        following, _, ended, *_ = env.step(action)
        found.append((state, action, following))
        state = env.reset()[0] if ended else following
    states, actions, next_states = (np.array(part) for part in zip(*found, strict=True))
    return {"state": states, "action": actions, "next_state": next_states, "reward": np.ones(steps)}


def read() -> Transitions:
    return mocoda.read(cart_pole(), columns=[*COLUMNS, "push"], categories=["push"])


def put(env: Any, state: Any) -> None:
    env.state, env.steps_beyond_terminated = state, None


def test_categories_become_columns_that_an_environment_takes_back() -> None:
    data = read()
    assert data.columns == (*COLUMNS, "push.0", "push.1") and one_hot_groups(data) == ((4, 5),)
    assert data.action.argmax(1).tolist() == cart_pole()["action"].tolist()
    replayed = EnvironmentStep("CartPole-v1", put)(data.rows[:50])
    assert np.allclose(replayed, data.next_state[:50], atol=1e-5)
    start = gymnasium.spaces.Discrete(3, start=5)
    assert environment_action(start, np.array([0.1, 0.9, 0.2])) == 6


@pytest.mark.parametrize("recipe", ["mocoda", "coda"])
def test_categories_of_new_rows_are_categories(recipe: str) -> None:
    data = read()
    edges = {"cart": ["cart", "pole", "push"], "pole": ["cart", "pole", "push"], "lamp": ["lamp"]}
    lamp = np.eye(3)[np.arange(len(data)) % 3]
    state = np.hstack([data.state, lamp])
    wide = Transitions(state, data.action, np.hstack([data.next_state, lamp]))
    graph = LocalGraph({"cart": [0, 1], "pole": [2, 3], "lamp": [4, 5, 6]}, {"push": [0, 1]}, edges)
    made = mocoda.fit_parents(wide, graph, recipe, seed=0).sample(500, seed=1).numpy()
    for group in one_hot_groups(wide):
        assert np.isin(made[:, group], [0, 1]).all() and (made[:, group].sum(1) == 1).all()
    assert len(one_hot_groups(wide)) == 2


def test_what_is_no_category_is_refused(tmp_path: Path) -> None:
    for columns in (["cart.x"], ["pus"]):
        with refused():
            mocoda.read(cart_pole(), columns=[*COLUMNS, "push"], categories=columns)


def test_training_says_how_categories_are_taken() -> None:
    assert_approved(assumptions("cart", read(), mocoda.make_agent("td3-bc"))[0])
