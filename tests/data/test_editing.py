"""Recordings that are merged, split, trimmed, and of which parts are dropped: every row that stays, stays as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from approved import refused
from command_line import done, rejects
from hypothesis import given, settings
from hypothesis import strategies as st
from transition_tables import assert_identical, numbers, recording, table

import mocoda
from mocoda import Transitions

quick = settings(max_examples=40, deadline=None)


def assert_rows(made: Transitions, data: Transitions, rows: Any) -> None:
    """Expects exactly these rows of the data, unchanged."""
    assert_identical(replace(made, source={}), replace(data[torch.as_tensor(rows, dtype=torch.long)], source={}))
    for name, note in data.provenance.items():
        assert made.provenance[name].equal(note[rows])
    assert data.episode is not None and data.step is not None and made.episode is not None and made.step is not None
    assert made.episode.equal(data.episode[rows]) and made.step.equal(data.step[rows])


LENGTHS = st.lists(st.integers(1, 6), min_size=2, max_size=8)


@quick
@given(LENGTHS, st.integers(0, 5), st.floats(0.01, 0.99), st.integers(0, 9))
def test_what_was_split_and_merged_again_is_the_same_up_to_order(
    lengths: list[int], loose: int, share: float, seed: int
) -> None:
    data = recording(lengths, loose)
    one, other = mocoda.split(data, share, seed=seed)
    for made in (one, other):
        rows = made.provenance["row"]
        assert_rows(made, data, rows)
        assert made.episode is not None and data.episode is not None
        cut = {*made.episode.tolist()} - {-1}
        assert int(torch.isin(data.episode, torch.tensor([*cut])).sum()) == int((made.episode >= 0).sum())
    merged = mocoda.merge([one, other])
    order = merged.provenance["row"].argsort()
    assert merged.provenance["row"][order].tolist() == list(range(len(data)))
    assert_rows(replace(merged[order], episode=data.episode, step=data.step), data, [*range(len(data))])
    assert merged.provenance["file"].tolist() == [0] * len(one) + [1] * len(other)
    assert [part["rows"] for part in merged.source["merged"]] == [len(one), len(other)]
    again, _ = mocoda.split(data, share, seed=seed)
    assert_identical(one, again)


def test_a_share_is_of_episodes_and_rows_of_none_are_split_by_blocks() -> None:
    data = recording([5] * 50)
    one, other = mocoda.split(data, 0.8)
    assert (len(one), len(other)) == (200, 50)
    alone = replace(data, episode=None, step=None, next_state=data.state + 1)
    for part in mocoda.split(alone, 0.5, seed=1):
        assert 60 <= len(part) <= 190
        ends = part.provenance["row"].diff() != 1
        assert int(ends.sum()) < len(part) / 3


@quick
@given(LENGTHS, st.integers(0, 3), st.integers(-4, 4) | st.none(), st.integers(-4, 4) | st.none())
def test_steps_are_kept_as_slices_keep_them(lengths: list[int], loose: int, begin: int | None, end: int | None) -> None:
    data, first, kept = recording(lengths, loose), 0, []
    for length in lengths:
        kept += [first + step for step in range(length)[begin:end]]
        first += length
    kept += range(first, len(data))
    steps = ":".join("" if bound is None else str(bound) for bound in (begin, end))
    if kept:
        assert_rows(mocoda.trim(data, steps=steps), data, kept)
    else:
        with pytest.raises(mocoda.InputError):
            mocoda.trim(data, steps=steps)


@quick
@given(
    st.lists(st.lists(st.booleans(), min_size=1, max_size=8), min_size=1, max_size=6).filter(
        lambda all_: any(map(any, all_))
    )
)
def test_still_rows_leave_the_ends_of_episodes_only(moves: list[list[bool]]) -> None:
    moves = [[True], *moves]
    flat = np.concatenate(moves)
    state = numbers(len(flat), 2)
    data = Transitions(
        state,
        numbers(len(flat), 1),
        state + np.outer(flat, [0.5, 0]),
        provenance={"row": np.arange(len(flat))},
        episode=np.repeat(np.arange(len(moves)), [*map(len, moves)]),
    )
    first, kept = 0, list[int]()
    for one in moves:
        if any(one):
            kept += range(first + one.index(True), first + len(one) - one[::-1].index(True))
        first += len(one)
    assert_rows(mocoda.trim(data, still=True), data, kept)


@quick
@given(LENGTHS, st.data())
def test_all_but_what_is_dropped_stays(lengths: list[int], draw: st.DataObject) -> None:
    data = recording(lengths, 2)
    assert data.episode is not None
    episodes = draw.draw(st.sets(st.sampled_from(range(0, 2 * len(lengths), 2))))
    rows = draw.draw(st.sets(st.integers(0, len(data) - 1)))
    gone = np.isin(data.episode, [*episodes]) | np.isin(np.arange(len(data)), [*rows]) | (data.state[:, 0] > 1).numpy()
    if not gone.all():
        made = mocoda.drop(data, episodes=[*episodes], rows=[*rows], where=["hand.x > 1"])
        assert_rows(made, data, np.flatnonzero(~gone))


def test_columns_are_matched_by_name_and_what_only_some_have_is_left_out() -> None:
    data = recording([3, 4])
    turned = Transitions(
        data.state.flip(1),
        data.action,
        data.next_state.flip(1),
        columns=["cup.x", "hand.x", "push"],
        source={"fps": 30, "note": "x"},
        episode=data.episode,
    )
    merged = mocoda.merge([data, turned])
    assert merged.columns == data.columns and merged.source["fps"] == 30 and "note" not in merged.source
    assert merged.rows.equal(torch.cat([data.rows, data.rows])) and merged.next_state[:7].equal(merged.next_state[7:])
    assert merged.reward is None and merged.source["ignored"] == ["reward"]
    assert merged.episode is not None and merged.episode.tolist() == [0] * 3 + [2] * 4 + [3] * 3 + [5] * 4
    assert merged.provenance["row"].tolist() == [*range(7), *[-1] * 7]
    again = mocoda.merge([turned, merged])  # whose parts stay known
    assert again.provenance["file"].tolist() == [0] * 7 + [1] * 7 + [2] * 7 and len(again.source["merged"]) == 3


def test_donors_recipes_and_tasks_mean_the_same_after_a_merge() -> None:
    task = mocoda.make_task("navigation")
    parts = []
    for seed in (0, 1):
        data = task.collect(300, seed=seed)
        parents = mocoda.fit_parents(data, task.graph, "coda", seed=0)
        parts.append(mocoda.augment(data, parents, None, rows=200, task=task, seed=0))
    merged = mocoda.merge([*parts, task.collect(50, seed=2)])
    assert merged.provenance["recipe"].tolist() == [*parts[0].provenance["recipe"].tolist() * 2, *[0] * 50]
    assert mocoda.inspect(merged).generated == 400
    for name in ("donor_x", "donor_y"):
        donor, own = merged.provenance[name], merged.provenance["recipe"] == 0
        column = merged.columns.index(name[-1])
        place = {int(donor[row]): row for row in own.nonzero()[:, 0].tolist() if donor[row] >= 0}
        assert len(place) == 600
        for row in (~own).nonzero()[:, 0].tolist():
            if donor[row] >= 0:
                assert merged.rows[row, column] == merged.rows[place[int(donor[row])], column]
    demos = [
        table(3, source={"tasks": {"0": text, "1": "lift"}}, provenance={"task_index": np.array([0, 1, 1])})
        for text in ("push", "pull")
    ]
    both = mocoda.merge(demos)
    said = [both.source["tasks"][str(number)] for number in both.provenance["task_index"].tolist()]
    assert said == ["push", "lift", "lift", "pull", "lift", "lift"]


# --- files


TARGETS = [
    "{}.hdf5",
    "{}.npz",
    "{}.parquet",
    "{}.csv",
    "d4rl:{}.hdf5",
    "robomimic:{}.hdf5",
    "lerobot:{}",
    "minari:{}-v0",
]


@pytest.mark.parametrize("target", TARGETS)
def test_every_format_can_be_split_merged_trimmed_and_dropped_from(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    data = recording([4, 6, 5, 3], seed=3)
    start = target.format("data")
    mocoda.write(data, start)
    one, other, whole, cut, rest = (target.format(name) for name in ("one", "other", "whole", "cut", "rest"))
    done("split", start, "--share", 0.5, "--out", one, other)
    done("merge", one, other, "--out", whole)
    merged = mocoda.read(whole)
    order = merged.provenance["row"].argsort()
    assert_rows(replace(merged[order], episode=data.episode, step=data.step), data, [*range(18)])
    assert "2 episodes" in done("drop", start, "--episodes", 0, 4, "--rows", 17, "--out", rest)
    assert_rows(mocoda.read(rest), data, [4, 5, 6, 7, 8, 9, 15, 16])
    done("trim", start, "--steps", "1:-1", "--out", cut)
    assert_rows(mocoda.read(cut), data, [1, 2, 5, 6, 7, 8, 11, 12, 13, 16])


BAD = [
    "merge data.hdf5 --out x.hdf5",
    "merge data.hdf5 other.hdf5 --out x.hdf5",
    "merge data.hdf5 data.hdf5 --out data.hdf5",
    "split data.hdf5 --out x.hdf5 ./x.hdf5",
    "split data.hdf5 --out x.hdf5 data.hdf5 --overwrite",
    "split data.hdf5 --share 1 --out x.hdf5 y.hdf5",
    "trim data.hdf5 --out x.hdf5",
    "trim data.hdf5 --steps 10-20 --out x.hdf5",
    "trim data.hdf5 --steps 10: --out x.hdf5",
    "drop data.hdf5 --out x.hdf5",
    "drop data.hdf5 --episodes 0 3 --out x.hdf5",
    "drop data.hdf5 --rows 99 --out x.hdf5",
    "drop data.hdf5 --rows 1 list.txt --out x.hdf5",
    "drop data.hdf5 --rows list.txt --out x.hdf5",
    "drop alone.hdf5 --bad --out x.hdf5",
    "drop data.hdf5 --where hand.y>1 --out x.hdf5",
    "drop data.hdf5 --episodes 0 --out other.hdf5",
]


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_refused_and_writes_nothing(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recording([4, 5]).save("data.hdf5")
    table(5, columns=["hand.x", "hand.z", "push"]).save("other.hdf5")
    table(9, next_state=numbers(9, 2) + 1).save("alone.hdf5")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    rejects(*words.split())
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_sources_that_cannot_be_merged_are_refused() -> None:
    with refused():
        mocoda.merge([table()])
