"""Policies: actions for states of all shapes, files, and driving an environment."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from agents_world import HILL, SMALL, A, S, all_same, each_agent, recorded, same, small, untrained
from cloning_agent import Cloning
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mocoda import InputError, Policies, Policy, make_task, train_agents
from mocoda.agents.agent import AGENTS
from mocoda.agents.policy import SHIPPED, shipped_policy, to_task_range, to_unit_range
from mocoda.engine.checkpoint import load_trained
from mocoda.engine.files import VERSION
from mocoda.engine.randomness import Stream

STATE = Stream(0, "test-policies").normal(9, S)


def acted(policy: Policy, state: Tensor, seed: int = 0) -> Tensor:
    action = policy.act(state, seed=seed)
    assert isinstance(action, Tensor)
    return action


# Acting


@each_agent
def test_one_state_gives_one_action_and_many_give_many(name: str) -> None:
    policy = untrained(small(name))
    assert acted(policy, STATE[0]).shape == (A,)
    assert acted(policy, STATE).shape == (9, A)
    assert acted(policy, STATE[:1]).shape == (1, A)
    torch.testing.assert_close(acted(policy, STATE[0]), acted(policy, STATE[:1])[0], rtol=0, atol=0)


@pytest.mark.parametrize("name", ["td3-bc", "cql", "sac"])
def test_an_agent_without_noise_does_the_same_alone_and_among_others(name: str) -> None:
    policy = untrained(small(name))
    one_by_one = torch.stack([acted(policy, state) for state in STATE])
    torch.testing.assert_close(one_by_one, acted(policy, STATE), rtol=0, atol=1e-6)


@each_agent
def test_numpy_in_is_numpy_out(name: str) -> None:
    policy = untrained(small(name))
    for state in (STATE, STATE[0]):
        for dtype in (np.float32, np.float64):
            action = policy.act(state.numpy().astype(dtype))
            assert isinstance(action, np.ndarray) and action.dtype == np.float32
            assert torch.from_numpy(action).equal(acted(policy, state))


def test_odd_arrays_are_states_too() -> None:
    policy = untrained(small("td3-bc"))
    numpy = STATE.numpy()
    for state in (numpy[::-1], numpy.astype(">f8"), np.asfortranarray(numpy)):
        expected = acted(policy, torch.from_numpy(state.astype(np.float32).copy()))
        assert np.array_equal(policy.act(state), expected.numpy())
    assert np.array_equal(policy.act(STATE[0].tolist()), acted(policy, STATE[0]).numpy())
    whole = torch.arange(S)
    assert acted(policy, whole).equal(acted(policy, whole.float()))


@each_agent
def test_actions_lie_in_the_box_and_carry_no_gradient(name: str) -> None:
    policy = untrained(small(name))
    action = acted(policy, (100 * STATE).requires_grad_())
    assert bool((action >= policy.action_low).all()) and bool((action <= policy.action_high).all())
    assert not action.requires_grad and action.device == policy.device


def test_the_same_seed_proposes_the_same_actions_and_another_others() -> None:
    policy = untrained(small("bcq"))
    assert acted(policy, STATE, seed=3).equal(acted(policy, STATE, seed=3))
    assert not acted(policy, STATE, seed=3).equal(acted(policy, STATE, seed=4))
    assert acted(policy, STATE).equal(acted(policy, STATE, seed=0))
    assert acted(policy, STATE[0], seed=3).equal(acted(policy, STATE[0], seed=3))


def test_equal_states_get_proposals_of_their_own() -> None:
    action = acted(untrained(small("bcq")), STATE[:1].expand(9, S))
    assert len({tuple(row) for row in action.tolist()}) > 1


@pytest.mark.parametrize("shape", [(), (S + 1,), (S - 1,), (4, S + 1), (2, 4, S), (S, 1)])
def test_a_state_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    policy = untrained(small("td3-bc"))
    for state in (torch.zeros(shape), np.zeros(shape)):
        with pytest.raises(InputError) as caught:
            policy.act(state)
        assert str(caught.value) == f"state must have shape (3,) or (N, 3), got {shape}."


def test_a_policy_says_what_it_is() -> None:
    policy = untrained(small("cql"))
    assert repr(policy) == "Policy('cql', state=3, action=2)"
    assert (policy.state_width, policy.action_width, policy.device) == (S, A, torch.device("cpu"))


def test_a_policy_moved_to_where_it_is_is_the_same() -> None:
    policy = untrained(small("bcq"))
    assert same(policy.to("cpu"), policy)


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


def test_a_policy_without_a_network_that_it_acts_by_is_refused(tmp_path: Path) -> None:
    policy = untrained(small("td3-bc"))
    rest = {key: weight for key, weight in policy.weights.items() if key.startswith("critic")}
    replace(policy, weights=rest).save(tmp_path / "policy")
    with pytest.raises(InputError, match="actor"):
        Policy.load(tmp_path / "policy")


@pytest.mark.parametrize(
    ("task", "widths", "columns"),
    [
        ("hooksweep2", (22, 4), ("gripper_x", "action_finger")),
        ("cube-double:1", (74, 5), ("robot_shoulder_pan", "action_gripper")),
    ],
)
def test_policies_that_come_along_are_small_and_know_the_robot_s_columns(
    task: str, widths: tuple[int, int], columns: tuple[str, str]
) -> None:
    policy = shipped_policy(task)
    assert (policy.state_width, policy.action_width) == widths
    assert (policy.columns[0], policy.columns[-1]) == columns
    assert (SHIPPED / f"{task.partition(':')[0]}.safetensors").stat().st_size < 3_000_000


def test_a_task_without_a_policy_that_comes_along_is_refused_by_name() -> None:
    with pytest.raises(InputError) as caught:
        shipped_policy("navigation")
    assert str(caught.value) == (
        "no trained policy for 'navigation' comes with mocoda; there is one for: cube-double, hooksweep2."
    )


def test_the_same_policy_is_the_same_file(tmp_path: Path) -> None:
    contents = set()
    for _ in range(5):
        untrained(small("bcq")).save(tmp_path / "policy")
        contents.add((tmp_path / "policy").read_bytes())
    assert len(contents) == 1


def test_a_policy_of_several_runs_saves_its_own_weights_alone(tmp_path: Path) -> None:
    trained = train_agents({"one": recorded(30)}, small("sac"), seeds=[0, 1, 2], updates=1)
    policy = trained["one", 1]
    policy.save(tmp_path / "policy")
    numbers = sum(weight.numel() for weight in policy.weights.values())
    assert (tmp_path / "policy").stat().st_size < 4 * numbers + 5_000
    assert same(Policy.load(tmp_path / "policy"), policy)


def test_an_agent_of_ones_own_class_is_loaded_only_if_it_is_given(tmp_path: Path) -> None:
    path, policy = tmp_path / "policy", untrained(Cloning(**SMALL))
    policy.save(path)
    with pytest.raises(InputError) as caught:
        Policy.load(path)
    assert str(caught.value) == (
        f"{str(path)!r} holds an agent 'cloning' that is not one of mocoda's ({', '.join(AGENTS)}). "
        "Pass it: load(path, agent=...)."
    )
    loaded = Policy.load(path, agent=Cloning(**SMALL))
    assert same(loaded, policy) and acted(loaded, STATE).equal(acted(policy, STATE))


def test_a_policy_is_not_loaded_for_another_agent(tmp_path: Path) -> None:
    path = tmp_path / "policy"
    untrained(small("sac")).save(path)
    other = small("sac", entropy=0.5, discount=0.9)
    with pytest.raises(InputError) as caught:
        Policy.load(path, other)
    assert str(caught.value) == (
        f"{str(path)!r} was trained by another agent than {other!r}; they differ in discount, entropy."
    )
    with pytest.raises(InputError) as caught:
        Policy.load(path, Cloning(**SMALL))
    assert str(caught.value) == (
        f"{str(path)!r} was trained by another agent than {Cloning(**SMALL)!r}; they differ in agent, entropy."
    )


def test_a_policy_of_an_agent_with_decay_says_so_in_its_file(tmp_path: Path) -> None:
    path = tmp_path / "policy"
    untrained(small("sac", decay=True)).save(path)
    assert load_trained(path, "policy")[1]["settings"]["agent"]["decay"] is True
    assert Policy.load(path).agent == small("sac", decay=True)
    with pytest.raises(InputError, match=r"they differ in decay\.$"):
        Policy.load(path, small("sac"))


@dataclass(frozen=True)
class Tuned(Cloning):
    name: ClassVar[str] = "tuned"
    levels: tuple[tuple[int, ...], ...] = ((1, 2), (3,))


def test_settings_that_json_changes_are_still_the_same_agents(tmp_path: Path) -> None:
    """A tuple of tuples comes back from a file as a list of lists."""
    untrained(Tuned(**SMALL)).save(tmp_path / "policy")
    assert Policy.load(tmp_path / "policy", Tuned(**SMALL)).agent == Tuned(**SMALL)
    with pytest.raises(InputError, match=r"they differ in levels\.$"):
        Policy.load(tmp_path / "policy", Tuned(**SMALL, levels=((1, 2), (4,))))


# Several policies


@functools.cache
def trained() -> Policies:
    data = {"one": HILL.collect(60, seed=0), "other": HILL.collect(40, seed=1)}
    return train_agents(data, small("bcq"), seeds=[3, 8], updates=6, task=HILL, evaluate_every=2, episodes=2)


def test_policies_are_a_mapping_in_the_order_of_data_sets_and_seeds() -> None:
    found = trained()
    assert list(found) == [("one", 3), ("one", 8), ("other", 3), ("other", 8)]
    assert len(found) == 4 and ("one", 3) in found and ("one", 4) not in found
    assert repr(found) == "Policies(('one', 3), ('one', 8), ('other', 3), ('other', 8))"
    assert all(found[key] is policy for key, policy in found.items())
    assert all_same(found.to("cpu"), found)


def test_a_policy_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(InputError) as caught:
        trained()["one", 4]
    assert str(caught.value) == (
        "there is no agent ('one', 4); there are: ('one', 3), ('one', 8), ('other', 3), ('other', 8)."
    )


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


def test_policies_without_evaluations_are_loaded_as_they_were(tmp_path: Path) -> None:
    bare = train_agents({"one": recorded(20)}, small("sac"), seeds=[0, 1], updates=1)
    bare.save(tmp_path)
    loaded = Policies.load(str(tmp_path))
    assert all_same(loaded, bare)
    for name, curve in bare.curves.items():
        assert (loaded.curves[name].dtype, loaded.curves[name].shape) == (curve.dtype, curve.shape)


def test_policies_of_ones_own_class_are_loaded_if_their_agent_is_given(tmp_path: Path) -> None:
    own = train_agents({"one": recorded(20)}, Cloning(**SMALL), seeds=[0, 1], updates=1)
    own.save(tmp_path)
    assert all_same(Policies.load(tmp_path, Cloning(**SMALL)), own)
    with pytest.raises(InputError, match=r"Pass it: load\(path, agent=\.\.\.\)\.$"):
        Policies.load(tmp_path)


def test_data_sets_may_have_any_name(tmp_path: Path) -> None:
    names = ["a", "a-1", "a/b", "ä ö", "..", "policy"]
    made = Policies({(name, seed): untrained(small("sac"), seed) for name in names for seed in (0, 1)}, {})
    made.save(tmp_path / "inside" / "agents")
    assert all_same(Policies.load(tmp_path / "inside" / "agents"), made)
    assert [path.name for path in (tmp_path / "inside").iterdir()] == ["agents"]


def test_a_folder_without_policies_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(InputError) as caught:
            Policies.load(folder)
        assert str(caught.value) == f"the folder {str(folder)!r} holds no agents.json. `mocoda train` makes one."


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "{}", "null", '{"runs": 3, "curves": {}}', '{"runs": [{"data": "one"}], "curves": {}}'),
        *('{"runs": [], "curves": []}', '{"runs": [], "curves": {"steps": "many"}}'),
    ],
)
def test_a_damaged_list_of_policies_is_refused(content: str, tmp_path: Path) -> None:
    listed = tmp_path / "agents.json"
    listed.write_text(content)
    with pytest.raises(InputError) as caught:
        Policies.load(tmp_path)
    assert str(caught.value).startswith(f"{str(listed)!r} was not written by mocoda, or damaged since (")
    assert str(caught.value).endswith(").")


def test_a_listed_policy_that_is_missing_is_an_error(tmp_path: Path) -> None:
    trained().save(tmp_path)
    file = tmp_path / "policy-one-8.safetensors"
    file.unlink()
    with pytest.raises(InputError) as caught:
        Policies.load(tmp_path)
    assert str(caught.value) == (
        f"cannot read policy {str(file)!r}: there is no such file. Train an agent and save it with `policy.save(path)`."
    )


def test_the_list_of_policies_is_json_that_others_can_read(tmp_path: Path) -> None:
    trained().save(tmp_path)
    content: dict[str, Any] = json.loads((tmp_path / "agents.json").read_text())
    assert content["runs"][0] == {"data": "one", "seed": 3, "file": "policy-one-3.safetensors"}
    assert content["curves"]["updates"] == [2, 4, 6] and content["mocoda"] == VERSION
    settings = load_trained(tmp_path / "policy-one-3.safetensors", "policy")[1]["settings"]
    assert settings["agent"]["agent"] == "bcq" and settings["agent"]["hidden"] == [20, 12]


# In an environment


@pytest.mark.parametrize("name", ["td3-bc", "bcq"])
def test_a_policy_drives_the_gymnasium_environment(name: str) -> None:
    task = make_task("navigation")
    agent = replace(small(name), hidden=(16, 16))
    policy = train_agents({"one": task.collect(100, seed=0)}, agent, seeds=[0], updates=5, task=task)["one", 0]
    environment = gymnasium.make("mocoda/Navigation2D-v0")
    state, _ = environment.reset(seed=0)
    steps, ended = 0, False
    while not ended:
        action = policy.act(state, seed=steps)
        assert isinstance(action, np.ndarray) and environment.action_space.contains(action)
        state, reward, terminated, truncated, _ = environment.step(action)
        steps, ended = steps + 1, terminated or truncated
        assert reward in (-1.0, 0.0)
    assert 1 <= steps <= 70
    environment.close()
