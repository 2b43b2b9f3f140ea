"""The contract of formats: what a new one takes, which one a path or prefix chooses, and that every row comes back."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from approved import assert_approved, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as any_arrays
from test_hostile_files import unprivileged as unprivileged
from test_transitions import FLOATS, bits, parts
from transition_tables import assert_identical, numbers, recording, refusal, table

import mocoda
from mocoda import Transitions
from mocoda.data import FORMATS, Format, readable_formats, target_of, writable_formats
from mocoda.data.formats import compare
from mocoda.data.formats.as_episodes import grouped_by_episode


@pytest.fixture
def formats() -> Iterator[None]:
    before = dict(FORMATS.data)
    yield
    FORMATS.data = before


def test_a_format_of_one_s_own_takes_ten_lines(formats: None, tmp_path: Path) -> None:
    def read_text(place: str) -> dict[str, Any]:
        x, push, next_x = np.loadtxt(place, unpack=True)
        return {"state": x, "action": push, "next_state": next_x}

    def write_text(data: Transitions, place: str) -> None:
        np.savetxt(place, np.hstack([data.rows.numpy(), data.next_state.numpy()]))

    def is_text(path: Path) -> bool:
        return path.suffix == ".txt"

    FORMATS.add(Format("text", "text", "FILE.txt", read_text, write_text, suffixes=(".txt",), recognises=is_text))

    made = Transitions(numbers(4, 1), numbers(4, 1) + 1, numbers(4, 1) + 2)
    mocoda.write(made, tmp_path / "data.txt")
    for source in (tmp_path / "data.txt", f"text:{tmp_path / 'data.txt'}"):
        back = mocoda.read(source)
        assert back.rows.equal(made.rows) and back.next_state.equal(made.next_state)
        assert back.source == {"read_as": "text"}
    assert "text" in readable_formats() and "FILE.txt" in writable_formats()
    assert "FILE.txt" in refusal(lambda: mocoda.write(made, "data.dat"))
    assert mocoda.inspect(tmp_path / "data.txt").kind == "text"
    named = mocoda.read(tmp_path / "data.txt", columns=["cart", "push"], names={"reward": "action"})
    assert named.columns == ("cart", "push") and named.reward is not None


def test_help_texts_name_every_format_and_need_no_torch() -> None:
    script = "import sys, mocoda.data as d; print(d.readable_formats(), d.writable_formats(), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert_approved(done.stdout)


# --- targets


@pytest.mark.parametrize(
    ("target", "name", "path"),
    [
        ("a/x.hdf5", "mocoda", "a/x.hdf5"),
        ("x.h5", "mocoda", "x.h5"),
        ("mocoda:x", "mocoda", "x"),
        ("x.npz", "npz", "x.npz"),
        ("d4rl:x.hdf5", "d4rl", "x.hdf5"),
        ("minari:me/x-v0", "minari", "minari-me-x-v0"),
        ("d3rlpy:x.h5", "d3rlpy", "x.h5"),
    ],
)
def test_the_ending_or_the_prefix_decides(
    target: str, name: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    chosen = target_of(target)
    assert (chosen.format.name, chosen.format.streamed, chosen.path) == (name, name == "mocoda", Path(path))
    made = table(columns=["x", "y", "push"], source={"seed": 1})
    mocoda.write(made, chosen)
    assert_identical(mocoda.read(f"{name}:{chosen.place}"), made)
    assert not [left for left in tmp_path.iterdir() if ":" in left.name]


# --- episodes


def recorded(**more: Any) -> Transitions:
    """Whole episodes, each row with its own goal, some rows terminal; then two rows of no episode."""
    told: dict[str, Any] = {"goal": numbers(10, 3), "provenance": {"recipe": np.arange(10)}}
    return recording([4, 1, 3], 2, terminal=np.isin(np.arange(10), [1, 7, 8]), **told | more)


ORDER = [5, 2, 8, 0, 7, 3, 6, 9, 1, 4]


@pytest.mark.parametrize("shuffled", [False, True])
def test_episodes_of_a_table_are_episodes_for_others_too(
    shuffled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import minari

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    whole = recorded()
    made = whole[torch.tensor(ORDER)] if shuffled else whole
    order = [[0, 1, 2, 3], [4], [5, 6, 7], [8], [9]]

    mocoda.write(made, "minari:x-v0")
    found = sorted(minari.load_dataset("x-v0"), key=lambda one: one.infos["mocoda"]["recipe"][1])
    assert [one.infos["mocoda"]["recipe"][1:].tolist() for one in found] == order
    for one, rows in zip(found, order, strict=True):
        part = whole[torch.tensor(rows)]
        assert part.goal is not None and part.reward is not None
        assert np.array_equal(one.observations["observation"], np.vstack([part.state, part.next_state[-1:]]))
        assert np.array_equal(one.observations["desired_goal"][:-1], part.goal)
        assert np.array_equal(one.actions, part.action) and np.array_equal(one.rewards, part.reward)
        assert np.array_equal(one.terminations, part.terminal)
        assert one.truncations.tolist() == [False] * (len(rows) - 1) + [not part.terminal[-1]]


def test_d3rlpy_s_episodes_end_with_the_task_and_in_files_with_the_goal(tmp_path: Path) -> None:
    plain = recorded(goal=None)
    made = replace(plain, terminal=torch.arange(len(plain)) == 1)
    lengths = [episode.transition_count for episode in mocoda.to_d3rlpy(made).episodes]
    assert lengths == [2, 2, 1, 3, 1, 1]
    about = replace(made, goal=torch.arange(len(made))[:, None] < 3)
    buffer = mocoda.to_d3rlpy(about)
    assert [one.transition_count for one in buffer.episodes] == lengths
    mocoda.write(about, f"d3rlpy:{tmp_path / 'x.h5'}")
    with h5py.File(tmp_path / "x.h5") as file:
        assert int(file["num_episodes"][()]) == 7  # for d3rlpy itself would take the next row's goal for the row's


# --- plain HDF5, and files that lack what is needed


@pytest.mark.parametrize("suffix", ["hdf5", "npz"])
def test_a_file_without_states_is_answered_with_all_its_arrays(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"other.{suffix}"
    held: dict[str, Any] = {"data/demo_0/obs": numbers(5, 3), "actions": numbers(5, 1), "mask": np.zeros((5, 2, 2))}
    if suffix == "npz":
        np.savez(path, **held)
    else:
        with h5py.File(path, "w") as file:
            for name, array in held.items():
                file[name] = array
            file["data/self"] = file["data"]  # a walk without end, for who follows it
    with refused():
        mocoda.read(path)
    assert mocoda.read(path, names={"state": "data/demo_0/obs"}, episode_steps=5).state.shape == (4, 3)


# --- what is written comes back, to the bit

TARGETS = {  # and whether rows come back as they are, or each episode's together
    "data.hdf5": False,
    "d4rl:data.hdf5": True,
    "robomimic:data.hdf5": True,
    "data.npz": False,
    "data.parquet": False,
    "data.csv": False,
    "lerobot:data": True,
    "lerobot-v2.1:data": True,
    "minari:data-v0": True,
    "d3rlpy:data.h5": True,
}
EXAMPLES = {
    "robomimic:data.hdf5": 6,
    "lerobot:data": 15,
    "lerobot-v2.1:data": 10,
    "minari:data-v0": 10,
    "d3rlpy:data.h5": 10,
}  # take longer


@st.composite
def tables(draw: st.DrawFn) -> Transitions:
    made = draw(parts())
    rows = len(made["state"])
    if draw(st.booleans()):  # rows that follow one another
        made["next_state"][:-1] = made["state"][1:]
    notes = {
        "recipe": any_arrays.arrays(np.int64, rows, elements=st.integers(-(2**63), 2**63 - 1)),
        "support": any_arrays.arrays(np.float32, rows, elements=FLOATS),
    }
    chosen = draw(st.sets(st.sampled_from(sorted(notes))))
    if draw(st.booleans()):
        made["episode"] = draw(any_arrays.arrays(np.int64, rows, elements=st.integers(-1, 2) | st.just(2**63 - 1)))
        made["step"] = draw(st.none() | any_arrays.arrays(np.int64, rows, elements=st.integers(0, 5)))
    return Transitions(**made, provenance={name: draw(notes[name]) for name in sorted(chosen)})


@settings(max_examples=50, deadline=None)
@given(tables())
def test_exporters_put_an_episode_s_rows_together_in_the_order_of_its_steps(table: Transitions) -> None:
    assert bits(grouped_by_episode(grouped_by_episode(table))) == bits(grouped_by_episode(table))
    if table.episode is None or table.step is None:
        assert grouped_by_episode(table) is table
        return
    rows = torch.arange(len(table))
    marked = grouped_by_episode(replace(table, provenance={"row": rows}))
    order = marked.provenance["row"]
    assert order.sort().values.equal(rows) and marked.rows.equal(table.rows[order])
    episode, step = table.episode[order].tolist(), table.step[order].tolist()
    assert len([*groupby(number for number in episode if number >= 0)]) == len({*episode} - {-1})
    for (one, first), (other, second) in pairwise(zip(episode, step, strict=True)):
        assert one != other or one < 0 or first <= second


@pytest.mark.parametrize("target", TARGETS)
def test_a_table_that_was_written_and_read_is_identical(target: str) -> None:
    @settings(max_examples=EXAMPLES.get(target, 25), deadline=None)
    @given(table=tables())
    def holds(table: Transitions) -> None:
        kind, _, name = target.rpartition(":")
        if kind == "d3rlpy" and table.reward is None:  # which needs one
            table = replace(table, reward=torch.zeros(len(table)))
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as environment:
            environment.setenv("MINARI_DATASETS_PATH", folder)
            place = target if kind == "minari" else f"{kind}:{Path(folder) / name}" if kind else Path(folder) / name
            chosen = target_of(place)
            mocoda.write(table, chosen)
            assert compare(table, chosen)[0]
            back = mocoda.read(place)
            if target == "data.csv":  # which cannot hold it
                back = replace(back, source=table.source)
            assert bits(back) == bits(grouped_by_episode(table) if TARGETS[target] else table)
            assert [found.name for found in Path(folder).iterdir()] == [name]

    holds()


CHANGES: dict[str, Callable[[Transitions], Transitions]] = {
    "nothing": lambda made: made,
    "order": lambda made: made[torch.tensor(ORDER)],
    "rows": lambda made: made[:9],
    "one value": lambda made: replace(made, state=made.state + (torch.arange(10) == 4)[:, None] * 0.5),
    "no goals": lambda made: replace(made, goal=None),
    "more": lambda made: replace(made, provenance={**made.provenance, "support": made.state[:, 0]}),
    "names": lambda made: replace(made, columns=("cup.x", "hand.x", "push"), source={}),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("target", ["x.csv", "lerobot:x"])
def test_a_comparison_says_what_differs(
    target: str, change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made, chosen = recorded(), target_of(target)
    changed = CHANGES[change](made)
    mocoda.write(changed, chosen)
    for wanted in (made, changed):
        same, said = compare(wanted, chosen)
        assert same == (change == "nothing" or wanted is changed)
        assert_approved(said)


@pytest.mark.parametrize("target", [*TARGETS, "sub/data.npz", "lerobot:sub/data"])
def test_a_folder_that_is_closed_is_said_to_be(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    kind, _, name = target.rpartition(":")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(closed))
    place = target if kind == "minari" else f"{kind}:{closed / name}" if kind else closed / name
    request.getfixturevalue("unprivileged")
    for write in (target_of, lambda place: mocoda.write(recorded(), place)):
        message = refusal(partial(write, place))
        assert message.startswith(f"cannot write '{closed}") and message.endswith("in a folder that can be written.")
