"""What a column holds is read off its values: switches, categories, counts, angles, clocks and outliers.

Categories are read as one-hot columns, recombined as such, and given to environments as categories.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import gymnasium
import numpy as np
import pytest
from approved import assert_approved, refused

import mocoda
from mocoda import LocalGraph, Transitions
from mocoda.agents.assumptions import assumptions
from mocoda.analysis.replay import EnvironmentStep
from mocoda.data import column_kinds, one_hot_groups
from mocoda.dynamics import DynamicsConfig
from mocoda.tasks.task import environment_action

STEPS = 400


def made(**changed: Any) -> Transitions:
    """One episode: a place, a heading that wraps around, time, a gear of three, a constant, a switch and a count."""
    random = np.random.default_rng(0)
    turn = np.cumsum(random.normal(0.1, 0.05, STEPS + 1))
    columns = {
        "cart.x": random.normal(size=STEPS + 1),
        "cart.heading": (turn + np.pi) % (2 * np.pi) - np.pi,
        "t": np.arange(STEPS + 1) * 0.05,
        **{f"gear.{i}": random.integers(0, 3, STEPS + 1) == i for i in range(3)},
        "mass": np.full(STEPS + 1, 2.5),
        "lamp": random.integers(0, 2, STEPS + 1),
        "coins": random.integers(0, 9, STEPS + 1),
    }
    gear = random.integers(0, 3, STEPS + 1)
    columns |= {f"gear.{i}": gear == i for i in range(3)} | changed
    state = np.stack([*columns.values()], 1).astype(np.float64)
    action = np.column_stack([np.eye(4)[random.integers(0, 4, STEPS)], random.normal(size=STEPS)])
    return Transitions(state[:-1], action, state[1:], columns=[*columns, "left", "right", "up", "down", "force"])


def test_each_column_is_of_its_kind() -> None:
    data = made()
    assert dict(zip(data.columns, column_kinds(data), strict=True)) == {
        **{"cart.x": "number", "cart.heading": "angle", "t": "clock", "mass": "constant", "lamp": "binary"},
        **{"coins": "integer", "gear.0": "one-hot", "gear.1": "one-hot", "gear.2": "one-hot"},
        **{"left": "one-hot", "right": "one-hot", "up": "one-hot", "down": "one-hot", "force": "number"},
    }
    assert one_hot_groups(data) == ((3, 4, 5), (9, 10, 11, 12))
    assert {*column_kinds(data[:9])} == {"number"} and one_hot_groups(data[:9]) == ()


def test_columns_that_are_nearly_of_a_kind_are_numbers_or_switches() -> None:
    gear = np.random.default_rng(1).integers(0, 3, STEPS + 1)
    both = {
        f"gear.{i}": (gear == i) | ((np.arange(STEPS + 1) == 7) & (i < 2)) for i in range(3)
    }  # two at once, in a row
    assert one_hot_groups(made(**both)) == ((9, 10, 11, 12),)
    kinds = dict(zip(made().columns, column_kinds(made(**both, t=np.arange(STEPS + 1.0) ** 1.1)), strict=True))
    assert (kinds["gear.0"], kinds["t"]) == ("binary", "number")
    half = np.random.default_rng(2).uniform(-np.pi, np.pi, STEPS + 1)  # jumps of any length, no angle that turns
    assert column_kinds(made(**{"cart.heading": half}))[1] == "number"
    degrees = (np.arange(STEPS + 1) * 7.0) % 360
    assert column_kinds(made(**{"cart.heading": degrees}))[1] == "angle"


@pytest.mark.parametrize("unit", [1.0, 180 / np.pi], ids=["radians", "degrees"])
def test_an_angle_becomes_its_sine_and_cosine_which_a_model_can_follow(unit: float) -> None:
    turn = (np.arange(2_001) * 0.3 + np.pi) % (2 * np.pi) - np.pi
    given = {"state": unit * turn[:-1], "action": np.zeros(2_000), "next_state": unit * turn[1:]}
    assert mocoda.inspect(given).columns[0].kind == "angle"
    data = mocoda.read(given, columns=["turn", "push"], angles=["turn"])
    assert data.columns == ("turn.sin", "turn.cos", "push")
    for part, known in ((data.state, turn[:-1]), (data.next_state, turn[1:])):
        assert np.allclose(np.arctan2(*part.T), known, atol=1e-5)
    graph = LocalGraph({"turn": [0, 1]}, {"push": 0}, {"turn": ["turn"]})
    config = DynamicsConfig(members=1, hidden=(32, 32), epochs=60)
    mean = mocoda.fit_dynamics(data, graph, config=config, seed=0).predict(data.rows).mean[0]
    assert float((mean - data.next_state).abs().max()) < 0.1  # at every wrap, too


@pytest.mark.filterwarnings("ignore:numbers lie")
def test_inspect_names_the_kinds_and_what_to_do() -> None:
    far = np.random.default_rng(3).normal(size=STEPS + 1)
    far[[5, 17]] = 1e20, -1e9
    data = made(**{"cart.x": far})
    found = mocoda.inspect(data)
    assert [column.kind for column in found.columns[: len(data.columns)]] == [*column_kinds(data)]
    assert_approved("\n".join(found.warnings))
    assert "one-hot" in str(found)
    with pytest.warns(UserWarning, match=r"cart.x in row 5 \(1e\+20\)"):
        mocoda.read({"state": data.state, "action": data.action, "next_state": data.next_state}, columns=data.columns)


def test_heavy_tails_and_columns_that_mostly_rest_have_no_outliers() -> None:
    random = np.random.default_rng(4)
    rest = 1e-9 * random.normal(size=STEPS + 1) + (np.arange(STEPS + 1) % 50 == 0)
    data = made(**{"cart.x": random.standard_t(2, size=STEPS + 1), "mass": rest})
    assert not any("far out" in warning for warning in mocoda.inspect(data).warnings)


# --- categories

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
    unused = mocoda.Transitions(data.state[:9, :2] / 9, data.action[:9], data.state[:9, :2])  # of three categories
    truth = EnvironmentStep("MountainCar-v0", lambda env, state: setattr(env, "state", state), 2)(unused.rows)
    change = truth[:, 1] - unused.state[:, 1].numpy() + 0.0025 * np.cos(3 * unused.state[:, 0].numpy())
    assert np.allclose(change, -0.001 * data.action[:9, 0], atol=1e-6)
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


def test_what_is_no_category_is_refused() -> None:
    for columns in (["cart.x"], ["pus"]):
        with refused():
            mocoda.read(cart_pole(), columns=[*COLUMNS, "push"], categories=columns)


def test_training_says_how_categories_are_taken() -> None:
    assert_approved(assumptions("cart", read(), mocoda.make_agent("td3-bc"))[0])
