"""What a column holds is read off its values: switches, categories, counts, angles, clocks and outliers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from approved import assert_approved

import mocoda
from mocoda import LocalGraph, Transitions
from mocoda.data import column_kinds, one_hot_groups
from mocoda.dynamics import DynamicsConfig

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
