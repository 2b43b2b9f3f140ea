"""Which episode a row is of: kept by whatever handles tables, found by readers, filled by tasks."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from approved import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from transition_tables import arrays, numbers, table

import mocoda
from mocoda import Transitions, concatenate

quick = settings(max_examples=30, deadline=None)
EPISODES = st.lists(st.integers(-1, 3), min_size=1, max_size=8)


def places(data: Transitions) -> list[tuple[int, int]]:
    """(episode, step) of every row."""
    assert data.episode is not None and data.step is not None
    assert data.episode.dtype == data.step.dtype == torch.int64
    return list(zip(data.episode.tolist(), data.step.tolist(), strict=True))


# --- tables


def test_steps_are_counted_as_rows_come_unless_given() -> None:
    made = table(6, episode=[3, 0, 3, -1, 0, 3])
    assert places(made) == [(3, 0), (0, 0), (3, 1), (-1, -1), (0, 1), (3, 2)]
    assert places(table(3, episode=[1, 1, -1], step=[5, 2, 9])) == [(1, 5), (1, 2), (-1, -1)]
    assert table().episode is None and table().step is None
    assert "rows=6, episodes=2, state=" in repr(made)


@pytest.mark.parametrize(
    "given",
    [
        {"step": [0, 1, 2]},
        {"episode": [0, 0]},
        {"episode": [0, -2, 0]},
        {"episode": [0.0, 1.0, 2.0]},
        {"episode": [0, 0, -1], "step": [0, -3, 0]},
    ],
    ids=["alone", "short", "negative", "floats", "step"],
)
def test_what_is_no_episode_is_refused(given: dict[str, Any]) -> None:
    with refused():
        table(3, **given)


@quick
@given(st.lists(st.none() | EPISODES, min_size=1, max_size=4))
def test_episodes_of_joined_tables_never_collide_and_stay_whole(given: list[list[int] | None]) -> None:
    tables = [table(3 if one is None else len(one), episode=one) for one in given]
    joined = concatenate(tables)
    if all(one is None for one in given):
        assert joined.episode is None
        return
    seen: set[int] = set()
    found, start = places(joined), 0
    for one in tables:
        own = found[start : start + len(one)]
        start += len(one)
        before = [(-1, -1)] * len(one) if one.episode is None else places(one)
        assert [step for _, step in own] == [step for _, step in before]
        renamed = {(old, new) for (old, _), (new, _) in zip(before, own, strict=True)}
        assert len({old for old, _ in renamed}) == len(renamed) == len({new for _, new in renamed})
        new = {number for number, _ in own} - {-1}
        assert not new & seen
        seen |= new


@quick
@given(st.lists(st.integers(1, 4), min_size=2, max_size=5), st.lists(st.integers(0, 20), max_size=4))
def test_a_table_that_was_cut_anywhere_has_its_episodes_again(lengths: list[int], cuts: list[int]) -> None:
    walks = [numbers(length + 1, 2) for length in lengths]
    rows = sum(lengths)
    whole = Transitions(
        np.concatenate([walk[:-1] for walk in walks]),
        numbers(rows, 1),
        np.concatenate([walk[1:] for walk in walks]),
        episode=np.repeat(np.arange(len(lengths)), lengths),
    )
    bounds = sorted({cut % rows for cut in cuts} | {0, rows})
    joined = concatenate([whole[a:b] for a, b in pairwise(bounds)])
    assert [step for _, step in places(joined)] == [step for _, step in places(whole)]
    pairs = {(old, new) for (old, _), (new, _) in zip(places(whole), places(joined), strict=True)}
    assert len(pairs) == len(lengths) == len({new for _, new in pairs})
    again = concatenate([joined, joined])  # two recordings of the same: no row goes on in the first again
    assert len({number for number, _ in places(again)}) == 2 * len(lengths)


def test_a_table_goes_on_in_an_episode_only_at_its_next_step_and_state() -> None:
    walk = numbers(7, 2)
    whole = Transitions(walk[:-1], numbers(6, 1), walk[1:], episode=[0, 0, 0, 0, 1, 1])
    assert places(concatenate([whole[:2], whole[2:]])) == places(whole)
    assert places(concatenate([whole[:2], whole[3:]]))[2:] == [(1, 3), (2, 0), (2, 1)]
    other = Transitions(walk[:-1] + 1, numbers(6, 1), walk[1:], episode=whole.episode)
    assert places(concatenate([whole[:2], other[2:]]))[2:] == [(1, 2), (1, 3), (2, 0), (2, 1)]


# --- readers


def test_paired_rows_know_their_episodes() -> None:
    given = {"observations": numbers(7, 2), "actions": numbers(7, 1)}
    ends = mocoda.read(given | {"timeouts": [0, 0, 1, 0, 0, 0, 1]})
    assert places(ends) == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    assert places(mocoda.read(given, episode_steps=4)) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    assert places(mocoda.read(given | {"episode": [7, 7, 7, 2, 2, 2, 2]}))[1:4] == [(7, 1), (2, 0), (2, 1)]
    named = mocoda.read(given | {"episode": np.array(["b", "b", "b", "a", "a", "a", "a"])})
    assert places(named)[1:4] == [(1, 1), (0, 0), (0, 1)]
    cut = mocoda.read(given | {"episode": [7, 7, 7, 2, 2, 2, 2], "timeouts": [0, 0, 0, 0, 1, 0, 0]})
    assert places(cut) == [(0, 0), (0, 1), (1, 0), (2, 0)]  # episode 2 is two: nothing leads from one to the other


def test_rows_with_next_states_are_of_episodes_where_something_says_so() -> None:
    state = numbers(6, 2)
    given = {"observations": state, "actions": numbers(6, 1), "next_observations": np.roll(state, -1, 0)}
    assert mocoda.read(given).episode is None
    assert mocoda.read(given | {"terminals": [0, 0, 1, 0, 0, 1]}).episode is None  # time limits may have ended others
    timed = given | {"timeouts": [0, 0, 1, 0, 0, 0]}
    assert places(mocoda.read(timed)) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    shuffled = {name: np.asarray(array)[[0, 3, 1, 5, 4, 2]] for name, array in timed.items()}
    assert {step for _, step in places(mocoda.read(shuffled))} == {0}
    assert places(mocoda.read(given | {"episode": [1, 1, 0, 1, 0, 0]}))[:4] == [(1, 0), (1, 1), (0, 0), (1, 2)]
    stepped = given | {"episode": [1, 1, 0, 1, 0, 0], "step": [4.0, 2, 0, 0, 1, 9]}
    assert places(mocoda.read(stepped))[:4] == [(1, 4), (1, 2), (0, 0), (1, 0)]


@pytest.mark.parametrize("step", [np.array(300), numbers(6), np.arange(9), np.array(["a"] * 6), np.arange(6) - 1])
def test_a_step_that_counts_something_else_is_not_used(step: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", **arrays(6), step=step)
    read = mocoda.read(tmp_path / "data.npz")
    assert read.episode is None and read.source["ignored"] == ["step"]
    np.savez(tmp_path / "data.npz", **arrays(6), episode=[0, 0, 0, 1, 1, 1], step=step)
    assert places(mocoda.read(tmp_path / "data.npz")) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_rows_left_out_leave_a_hole_in_their_episode() -> None:
    actions = numbers(6, 1)
    actions[2] = np.nan
    given = {"observations": numbers(6, 2), "actions": actions, "episode": [0] * 6}
    assert places(mocoda.read(given, skip_bad_rows=True)) == [(0, 0), (0, 1), (0, 3), (0, 4)]


# --- tasks and augmentation
