"""Policies: actions for states of all shapes, files, and driving an environment."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from agents_world import HILL, SMALL, S, all_same, each_agent, same, small, untrained
from approved import refused
from cloning_agent import Cloning
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mocoda import InputError, Policies, Policy, make_task, train_agents
from mocoda.agents.policy import SHIPPED, shipped_policy, to_task_range, to_unit_range
from mocoda.engine.randomness import Stream

STATE = Stream(0, "test-policies").normal(9, S)


def acted(policy: Policy, state: Tensor, seed: int = 0) -> Tensor:
    action = policy.act(state, seed=seed)
    assert isinstance(action, Tensor)
    return action


# Acting


@each_agent
def test_numpy_in_is_numpy_out(name: str) -> None:
    policy = untrained(small(name))
    for state in (STATE, STATE[0]):
        for dtype in (np.float32, np.float64):
            action = policy.act(state.numpy().astype(dtype))
            assert isinstance(action, np.ndarray) and action.dtype == np.float32
            assert torch.from_numpy(action).equal(acted(policy, state))


@pytest.mark.parametrize("shape", [(), (S + 1,), (2, 4, S)])
def test_a_state_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    policy = untrained(small("td3-bc"))
    for state in (torch.zeros(shape), np.zeros(shape)):
        with refused():
            policy.act(state)


@settings(deadline=None, max_examples=50, derandomize=True)
@given(
    low=st.floats(-100, 100, width=32),
    width=st.floats(0.125, 100, width=32),
    action=st.floats(-1, 1, width=32),
)
def test_to_scale_and_back_changes_nothing(low: float, width: float, action: float) -> None:
    ends = [torch.tensor([number], dtype=torch.float64) for number in (low, low + width)]
    one = torch.tensor([action], dtype=torch.float64)
    there = to_task_range(one, *ends)
    torch.testing.assert_close(to_unit_range(there, *ends), one, rtol=0, atol=1e-9)
    assert low - 1e-9 <= float(there) <= low + width + 1e-9
    assert to_task_range(-torch.ones(1), *ends).equal(ends[0])
    torch.testing.assert_close(to_task_range(torch.ones(1, dtype=torch.float64), *ends), ends[1])


# Files


@each_agent
def test_a_loaded_policy_is_the_saved_one_to_the_bit(name: str, tmp_path: Path) -> None:
    policy = untrained(small(name))
    policy.save(tmp_path / "folder" / "policy.safetensors")
    loaded = Policy.load(str(tmp_path / "folder" / "policy.safetensors"))
    assert same(loaded, policy) and loaded.state_width == S
    assert type(loaded.agent) is type(policy.agent)
    assert acted(loaded, STATE, seed=5).equal(acted(policy, STATE, seed=5))
    assert same(Policy.load(tmp_path / "folder" / "policy.safetensors", small(name)), policy)


@each_agent
def test_a_policy_acts_the_same_without_the_networks_that_it_was_trained_with(name: str, tmp_path: Path) -> None:
    policy = untrained(small(name))
    policy.save(tmp_path / "whole")
    policy.without_training().save(tmp_path / "less")
    less = Policy.load(tmp_path / "less")
    assert acted(less, STATE, seed=5).equal(acted(policy, STATE, seed=5))
    assert {key.split(".")[0] for key in less.weights} == set(policy.agent.acting)
    smaller = (tmp_path / "less").stat().st_size < (tmp_path / "whole").stat().st_size
    assert smaller or name == "bcq"  # which acts by all that it has


@pytest.mark.parametrize(
    ("task", "columns"),
    [
        ("hooksweep2", ("gripper_x", "action_finger")),
        ("cube-double:1", ("robot_shoulder_pan", "action_gripper")),
    ],
)
def test_policies_that_come_along_are_small_and_know_the_robot_s_columns(task: str, columns: tuple[str, str]) -> None:
    policy, made = shipped_policy(task), make_task(task)
    state, width = made.graph.state_width, made.graph.width
    assert (policy.state_width, policy.action_width) == (
        state + made.achieved(torch.zeros(1, state)).shape[1],
        width - state,
    )
    assert (policy.columns[0], policy.columns[-1]) == columns
    assert (SHIPPED / f"{task.partition(':')[0]}.safetensors").stat().st_size < 3_000_000
    with refused():
        shipped_policy("navigation")


def test_a_policy_is_loaded_only_for_its_own_agent(tmp_path: Path) -> None:
    path, policy = tmp_path / "policy", untrained(Cloning(**SMALL))
    policy.save(path)
    loaded = Policy.load(path, agent=Cloning(**SMALL))
    assert same(loaded, policy) and acted(loaded, STATE).equal(acted(policy, STATE))
    untrained(small("sac")).save(tmp_path / "other")
    for file, agent in (
        (path, None),
        (tmp_path / "other", small("sac", entropy=0.5)),
        (tmp_path / "other", loaded.agent),
    ):
        with refused():
            Policy.load(file, agent)


# Several policies


@functools.cache
def trained() -> Policies:
    data = {"one": HILL.collect(60, seed=0), "other": HILL.collect(40, seed=1)}
    return train_agents(data, small("bcq"), seeds=[3, 8], updates=6, task=HILL, evaluate_every=2, episodes=2)


def test_policies_are_a_mapping_in_the_order_of_data_sets_and_seeds() -> None:
    found = trained()
    assert list(found) == [("one", 3), ("one", 8), ("other", 3), ("other", 8)]
    assert len(found) == 4 and ("one", 3) in found and ("one", 4) not in found
    assert all_same(found.to("cpu"), found)


def test_loaded_policies_are_the_saved_ones_with_their_curves(tmp_path: Path) -> None:
    trained().save(tmp_path / "agents")
    loaded = Policies.load(tmp_path / "agents")
    assert all_same(loaded, trained())
    assert loaded.curves["updates"].tolist() == [2, 4, 6] and loaded.curves["steps"].shape == (4, 3)
    for name, curve in trained().curves.items():
        assert loaded.curves[name].dtype == curve.dtype
    assert sorted(path.name for path in (tmp_path / "agents").iterdir()) == [
        "agents.json",
        "policy-one-3.safetensors",
        "policy-one-8.safetensors",
        "policy-other-3.safetensors",
        "policy-other-8.safetensors",
    ]


def test_a_folder_without_policies_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with refused():
            Policies.load(folder)


@pytest.mark.parametrize(
    "content", ["", "[]", '{"runs": [{"data": "one"}], "curves": {}}', '{"runs": [], "curves": {"steps": "many"}}']
)
def test_a_damaged_list_of_policies_is_refused(content: str, tmp_path: Path) -> None:
    listed = tmp_path / "agents.json"
    listed.write_text(content)
    with pytest.raises(InputError, match="was not written by mocoda, or damaged since"):
        Policies.load(tmp_path)
