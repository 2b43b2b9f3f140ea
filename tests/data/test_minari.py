"""Minari data sets go in and out with every row as it is; Minari itself made, or takes, all of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import minari
import numpy as np
import pytest
import torch
from approved import assert_approved, refused
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from minari.data_collector.episode_buffer import EpisodeBuffer
from transition_tables import numbers, refusal

import mocoda
from mocoda.data.formats.as_episodes import as_episodes
from mocoda.data.formats.minari import write
from mocoda.data.transitions import Transitions, concatenate

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # Minari's, of metadata that nobody gave


def read(name: str) -> Transitions:
    return mocoda.read(f"minari:{name}")


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "minari"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder))
    return folder


def recorded(name: str, space: Space[Any], observations: Any, steps: int = 3, **options: Any) -> Any:
    """A data set that Minari has written: two episodes of the same observations, one terminated, one truncated."""
    ends = np.zeros(steps, bool)
    ends[-1] = True
    actions = options.pop("actions", numbers(steps, 2))
    episodes = [
        EpisodeBuffer(
            observations=observations,
            actions=actions,
            rewards=np.arange(steps, dtype=np.float64),
            terminations=terminations,
            truncations=ends & ~terminations,
            infos={},
        )
        for terminations in (ends, ~ends & False)
    ]
    action_space = options.pop("action_space", Box(-9, 9, (2,), np.float32))
    return minari.create_dataset_from_buffers(
        name, episodes, observation_space=space, action_space=action_space, **options
    )


def box(*shape: int, kind: Any = np.float32) -> Space[Any]:
    return Box(-np.inf, np.inf, shape, kind)


def walk(steps: int, goal: bool = False, **extra: Any) -> Transitions:
    """Steps that follow one another."""
    states = numbers(steps + 1, 3)
    aim: dict[str, Any] = {"goal": np.tile(numbers(1, 2), (steps, 1))} if goal else {}
    return Transitions(states[:-1], numbers(steps, 2), states[1:], numbers(steps), **aim, **extra)


# In


@pytest.mark.parametrize("data_format", ["hdf5", "arrow", "parquet"])
def test_an_episode_of_t_plus_one_observations_is_t_rows_with_their_true_next_states(data_format: str) -> None:
    seen = numbers(4, 3)
    recorded("plain-v0", box(3), seen, data_format=data_format)
    data = read("plain-v0")
    assert data.state.equal(torch.tensor(np.tile(seen[:-1], (2, 1))))
    assert data.next_state.equal(torch.tensor(np.tile(seen[1:], (2, 1))))
    assert data.action.equal(torch.tensor(np.tile(numbers(3, 2), (2, 1))))
    assert data.reward is not None and data.reward.tolist() == [0.0, 1.0, 2.0, 0.0, 1.0, 2.0]
    assert data.columns == ("state0", "state1", "state2", "action0", "action1")
    assert data.source == {"minari": "plain-v0"}
    assert data.episode is not None and data.episode.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.step is not None and data.step.tolist() == [0, 1, 2, 0, 1, 2]
    assert data.terminal.tolist() == [False, False, True, False, False, False]  # what is truncated is not terminal


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_dicts_and_tuples_name_their_columns(data_format: str) -> None:
    space = Dict(box1=box(3), lid=box(1), arm=Dict(hand=box(2, kind=np.float64), parts=Tuple((box(1), box(2, 1)))))
    seen: dict[str, Any] = {
        "box1": numbers(4, 3),
        "lid": numbers(4, 1) + 1,
        "arm": {"hand": numbers(4, 2).astype(np.float64) + 2, "parts": (numbers(4, 1) + 3, numbers(4, 2, 1) + 4)},
    }
    acted = {"box1": numbers(3, 1), "grip": numbers(3, 1)}
    spaces: dict[str, Any] = {"action_space": Dict(box1=box(1), grip=box(1)), "actions": acted}
    recorded("named-v0", space, seen, data_format=data_format, **spaces)
    data = read("named-v0")
    assert dict(zip(data.columns, [*data.state[1].tolist(), *data.action[1].tolist()], strict=True)) == {
        **{f"box1.{i}": seen["box1"][1, i] for i in range(3)},
        "lid": seen["lid"][1, 0],
        **{f"arm.hand.{i}": seen["arm"]["hand"][1, i] for i in range(2)},
        "arm.parts.part0": seen["arm"]["parts"][0][1, 0],
        **{f"arm.parts.part1.{i}": seen["arm"]["parts"][1][1, i, 0] for i in range(2)},
        "box1": acted["box1"][1, 0],
        "grip": acted["grip"][1, 0],
    }


@pytest.mark.parametrize("copied", [True, False])
def test_goals_are_kept_apart_and_achieved_goals_are_no_columns_twice(copied: bool) -> None:
    seen = {"observation": numbers(4, 5), "desired_goal": numbers(4, 2) + 1}
    seen["achieved_goal"] = seen["observation"][:, [3, 1]].copy()
    if not copied:
        seen["achieved_goal"][-1, 0] += 1  # in a next state only
    space = Dict(observation=box(5), desired_goal=box(2), achieved_goal=box(2))
    recorded("goals-v0", space, seen)
    data = read("goals-v0")
    assert data.goal is not None and data.goal[:3].equal(torch.tensor(seen["desired_goal"][:3]))
    own = tuple(f"observation.{i}" for i in range(5))
    extra = () if copied else ("achieved_goal.0", "achieved_goal.1")
    assert data.columns == (*own, *extra, "action0", "action1")
    assert data.source["achieved_goal"] == (["observation.3", "observation.1"] if copied else list(extra))
    wide = [seen["observation"]] + ([] if copied else [seen["achieved_goal"]])
    assert data.state[:3].equal(torch.tensor(np.concatenate(wide, 1)[:3]))
    assert data.next_state[:3].equal(torch.tensor(np.concatenate(wide, 1)[1:]))


def test_no_environment_is_made_though_the_data_set_says_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded("there-v0", box(3), numbers(4, 3), env="CartPole-v1")
    about = root / "there-v0" / "data" / "metadata.json"
    text = json.loads(about.read_text())
    text["env_spec"] = json.dumps({"id": "Gone-v0", "entry_point": "os:system", "kwargs": {"command": "false"}})
    about.write_text(json.dumps(text))
    monkeypatch.setattr(gymnasium, "make", None)
    data = read("there-v0")
    assert data.source == {"minari": "there-v0", "environment": "Gone-v0"}
    assert data.state.shape == (6, 3) and data.action.shape == (6, 2)


def test_old_data_sets_without_spaces_are_refused_with_the_way_out(root: Path) -> None:
    recorded("old-v0", box(3), numbers(4, 3))
    (root / "old-v0" / "data" / "metadata.json").write_text(json.dumps({"total_episodes": 2}))
    with refused():
        read("old-v0")


# Out


cells = st.sampled_from([-0.0, 0.0, 1.0])  # few, so that rows often follow one another; and zeros of two signs


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(cells, cells, st.booleans(), st.sampled_from([1.0, 2.0])), min_size=1, max_size=12))
def test_episodes_are_the_longest_that_give_every_row_back(rows: list[tuple[float, float, bool, float]]) -> None:
    state, following, terminal, goal = (np.array(column) for column in zip(*rows, strict=True))
    data = Transitions(state[:, None], state[:, None], following[:, None], state, terminal, goal[:, None])
    found = as_episodes(data)
    assert found.goal is not None
    last = []
    for rows_, seen in found:
        last.append(rows_.stop - 1)
        observed = torch.tensor(found.observation[seen])
        assert observed[:-1].view(torch.int32).equal(data.state[rows_].view(torch.int32))
        assert observed[1:].view(torch.int32).equal(data.next_state[rows_].view(torch.int32))
        assert (found.goal[seen] == goal[rows_.start]).all() and (goal[rows_] == goal[rows_.start]).all()
    signed = [str(value) for value in state], [str(value) for value in following]
    assert last == [
        i
        for i in range(len(rows))
        if i == len(rows) - 1 or terminal[i] or signed[1][i] != signed[0][i + 1] or goal[i] != goal[i + 1]
    ]


# Minari takes what is written


def test_minari_loads_samples_and_combines_what_is_written() -> None:
    data = concatenate([walk(5, goal=True), walk(2, goal=True)[torch.tensor([1, 0])]])
    write(data, "me/one-v0")
    write(data, "two-v0")
    one, two = minari.load_dataset("me/one-v0"), minari.load_dataset("two-v0")
    assert (one.total_episodes, one.total_steps, one.spec.namespace) == (3, 7, "me")
    assert set(minari.list_local_datasets()) == {"me/one-v0", "two-v0"}
    lengths = [len(episode) for episode in one.sample_episodes(3)]
    assert sorted(lengths) == [1, 1, 5]
    for episode in one:
        assert "EpisodeData" in repr(episode)
        for i in range(len(episode) + 1):
            assert one.observation_space.contains({key: array[i] for key, array in episode.observations.items()})
        assert all(one.action_space.contains(action) for action in episode.actions)
        assert not episode.terminations.any() and episode.truncations.nonzero()[0].tolist() == [len(episode) - 1]
    both = minari.combine_datasets([one, two], "both-v0")
    assert (both.total_episodes, both.total_steps) == (6, 14)
    joined = read("both-v0")
    assert joined.next_state.equal(torch.cat([data.next_state, data.next_state]))
    assert joined.goal is not None and data.goal is not None and joined.goal.equal(torch.cat([data.goal, data.goal]))


@pytest.mark.parametrize(("scale", "low", "high"), [(1.0, -1.0, 1.0), (3.0, -3.0, 1.5)])
def test_the_action_space_is_that_of_most_tasks_or_the_box_of_the_actions(
    scale: float, low: float, high: float
) -> None:
    action = np.array([[-1.0], [0.5]]) * scale
    write(Transitions(numbers(2, 2), action, numbers(2, 2)), "acts-v0")
    space = minari.load_dataset("acts-v0").action_space
    assert (space.low.tolist(), space.high.tolist()) == ([low], [high])


# What is refused


def test_an_existing_data_set_is_never_written_over() -> None:
    write(walk(2), "me/there-v0")
    with refused():
        write(walk(3), "me/there-v0")
    assert len(read("me/there-v0")) == 2


def test_a_data_set_that_is_not_here_is_not_fetched_but_near_ones_are_named() -> None:
    with refused():
        read("me/one-v0")
    write(walk(2), "me/one-v0")
    write(walk(2), "two-v0")
    with refused():
        read("me/on-v0")


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_categories_become_one_hot_and_switches_columns(data_format: str) -> None:
    switch = {"x": numbers(4, 1), "on": np.eye(4, 2, dtype=np.int8), "gear": np.array([7, 5, 6, 5])}
    space = Dict(x=box(1), on=MultiBinary(2), gear=Discrete(3, start=5))
    acted: dict[str, Any] = {"actions": np.array([1, 0, 3]), "action_space": Discrete(4)}
    recorded("switches-v0", space, switch, data_format=data_format, **acted)
    data = read("switches-v0")
    assert data.columns == ("x", "on.0", "on.1", "gear.0", "gear.1", "gear.2", *(f"action0.{i}" for i in range(4)))
    assert data.state[:3, 1:].tolist() == [[1, 0, 0, 0, 1], [0, 1, 1, 0, 0], [0, 0, 0, 1, 0]]
    assert data.next_state[2, 3:].tolist() == [1, 0, 0]
    assert data.action[:3].tolist() == [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1]]


def test_images_and_other_spaces_are_refused_with_a_way_out() -> None:
    recorded("seen-v0", Dict(eye=Box(0, 255, (32, 32, 3), np.uint8)), {"eye": np.zeros((4, 32, 32, 3), np.uint8)})
    recorded("kinds-v0", MultiDiscrete([4, 2]), np.ones((4, 2), np.int64))
    for name in ("kinds-v0", "seen-v0"):
        with refused():
            read(name)


def replaced(folder: Path, name: str, change: Callable[[h5py.Group], object]) -> None:
    """Replaces an array of the first episode."""
    with h5py.File(folder / "main_data.hdf5", "r+") as file:
        del file["episode_0"][name]
        change(file["episode_0"])


def told(folder: Path, **changes: Any) -> None:
    about = json.loads((folder / "metadata.json").read_text())
    (folder / "metadata.json").write_text(json.dumps(about | changes))


HARM: dict[str, Callable[[Path], object]] = {
    "no json": lambda f: (f / "metadata.json").write_text("[" * 100_000),
    "link": lambda f: replaced(f, "rewards", lambda g: g.__setitem__("rewards", h5py.ExternalLink("x", "rewards"))),
    "many": lambda f: told(f, total_episodes=10**9),
    "format": lambda f: told(f, data_format="exe"),
}


@pytest.mark.parametrize("harm", HARM)
def test_broken_and_hostile_data_sets_end_in_a_clear_error(root: Path, harm: str) -> None:
    write(walk(3), "bad-v0")
    HARM[harm](root / "bad-v0" / "data")
    message = refusal(lambda: read("bad-v0"))
    assert_approved(message.partition(" (")[0])
