"""Policies as ONNX: the same actions under onnxruntime, a file that explains itself, and what cannot be written."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import onnxruntime
import pytest
from agents_world import SMALL, A, S, each_agent, each_rewarded_agent, recorded, small, untrained
from approved import refused
from cloning_agent import Cloning
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from mocoda import Policy, Transitions, export_onnx, train_agents
from mocoda.agents.agent import Noise
from mocoda.agents.onnx_export import noise_for
from mocoda.agents.policy import agent_settings
from mocoda.engine.files import VERSION
from mocoda.engine.networks import Weights
from mocoda.engine.randomness import Stream

Floats = NDArray[np.float32]


def states(rows: int, width: int = S, seed: int = 0) -> Floats:
    drawn: Floats = (2 * Stream(seed, "test-onnx").normal(rows, width)).numpy()
    return drawn


def session(policy: Policy, path: Path) -> onnxruntime.InferenceSession:
    export_onnx(policy, path)
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def acted(running: onnxruntime.InferenceSession, policy: Policy, state: Floats, seed: int = 0) -> Floats:
    fed = {"observation": state}
    if policy.agent.name in ("bcq", "dqc"):
        fed["noise"] = noise_for(policy, len(state), seed=seed)
    (action,) = running.run(["action"], fed)
    assert isinstance(action, np.ndarray) and action.dtype == np.float32
    return action


def assert_alike(running: onnxruntime.InferenceSession, policy: Policy, state: Floats, seed: int = 0) -> None:
    expected = np.asarray(policy.act(state, seed=seed), np.float32)
    assert np.abs(acted(running, policy, state, seed) - expected).max() <= 1e-5
    assert len(state) < 9 or expected.std(0).min() > 0.01  # there was something to compare


# The same actions


@each_agent
def test_onnxruntime_does_what_the_policy_does_in_one_state_and_in_many(name: str, tmp_path: Path) -> None:
    policy = untrained(small(name))
    running = session(policy, tmp_path / "policy.onnx")
    for rows in (1, 1_000):
        state = states(rows, seed=rows)
        assert acted(running, policy, state).shape == (rows, A)
        assert_alike(running, policy, state, seed=rows)


@each_rewarded_agent
def test_agents_that_were_trained_on_standardised_states_take_them_as_they_are(name: str, tmp_path: Path) -> None:
    data = recorded(200)
    far = Transitions(0.05 * data.state + 1.85, data.action, 0.05 * data.next_state + 1.85, data.reward, data.terminal)
    policy = train_agents({"one": far}, small(name, standardise=True), seeds=[0], updates=20)["one", 0]
    state = (0.05 * states(200) + 1.85).astype(np.float32)
    running = session(policy, tmp_path / "policy.onnx")
    assert_alike(running, policy, state, 5)


def test_an_agent_of_ones_own_that_acts_by_its_actor_can_be_written(tmp_path: Path) -> None:
    policy = untrained(Cloning(**SMALL))
    assert_alike(session(policy, tmp_path / "policy.onnx"), policy, states(9))


@settings(max_examples=10, deadline=None)
@given(
    members=st.integers(1, 4),
    components=st.integers(1, 4),
    proposals=st.integers(1, 7),
    critics=st.integers(1, 3),
    temperature=st.sampled_from([0.0, 0.5, 1.0]),
    layers=st.lists(st.integers(1, 9), max_size=2),
    seed=st.integers(0, 99),
)
def test_proposals_of_any_number_of_samplers_components_and_critics_are_the_policy_s(
    members: int,
    components: int,
    proposals: int,
    critics: int,
    temperature: float,
    layers: list[int],
    seed: int,
    tmp_path_factory: Any,
) -> None:
    agent = small(
        "bcq",
        samplers=members,
        components=components,
        proposals=proposals,
        critics=critics,
        temperature=temperature,
        hidden=(6,),
        sampler_hidden=tuple(layers),
    )
    policy = untrained(agent, seed)
    policy.weights["sampler.0.bias"].mul_(5)  # shares that are not all alike
    state = states(20, seed=seed)
    running = session(policy, tmp_path_factory.mktemp("bcq") / "policy.onnx")
    close = np.isclose(acted(running, policy, state, seed), np.asarray(policy.act(state, seed=seed)), rtol=0, atol=1e-5)
    assert close.all(1).mean() >= 0.95  # of two proposals worth the same, either may be the best


# The file


@each_rewarded_agent
def test_the_file_is_sound_and_says_what_it_is(name: str, tmp_path: Path) -> None:
    agent = small(name)
    policy = train_agents({"one": recorded()}, agent, seeds=[0], updates=2)["one", 0]
    policy = replace(policy, columns=("x", "y", "q", "u", "v"))
    running = session(policy, tmp_path / "policy.onnx")
    model = onnx.load(tmp_path / "policy.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 17)] and model.ir_version == 8
    assert (model.producer_name, model.producer_version) == ("mocoda", VERSION)
    shapes = {"observation": ["rows", S]} | ({"noise": ["rows", 6, 2 + A]} if name == "bcq" else {})
    assert {given.name: given.shape for given in running.get_inputs()} == shapes
    assert [(made.name, made.shape) for made in running.get_outputs()] == [("action", ["rows", A])]
    about = running.get_modelmeta().custom_metadata_map
    assert json.loads(about["columns"]) == {"observation": ["x", "y", "q"], "action": ["u", "v"]}
    assert json.loads(about["agent"]) == agent_settings(agent)
    assert about["mocoda"] == VERSION


@dataclass(frozen=True)
class Hasty(Cloning):
    """Does everything twice as strongly as its actor says."""

    name: ClassVar[str] = "hasty"

    def act(self, weights: Weights, state: Tensor, noise: Noise) -> Tensor:
        return (2 * super().act(weights, state, noise)).clamp(-1, 1)


def test_agents_that_act_in_other_ways_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with refused():
        export_onnx(untrained(Hasty(**SMALL)), tmp_path / "policy.onnx")
    assert list(tmp_path.iterdir()) == []


def test_without_onnx_the_way_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with refused():
        export_onnx(untrained(small("sac")), tmp_path / "policy.onnx")
