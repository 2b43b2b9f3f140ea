"""The contract of formats: what a new one takes, which one a path or prefix chooses, and what cannot be opened."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from approved import assert_approved, refused
from transition_tables import arrays, assert_identical, numbers, refusal, table

import mocoda
from mocoda import Transitions
from mocoda.data import FORMATS, Format, readable_formats, target_of, writable_formats


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


def test_a_format_may_be_a_folder(formats: None, tmp_path: Path) -> None:
    def read_folder(place: str) -> dict[str, Any]:
        return {path.stem: np.load(path) for path in Path(place).glob("*.npy")}

    def write_folder(data: Transitions, place: str) -> None:
        Path(place).mkdir()
        for name, array in data.arrays().items():
            np.save(Path(place, f"{name}.npy"), array.numpy())

    FORMATS.add(
        Format(
            "folder",
            "folder of npy files",
            "folder:FOLDER",
            read_folder,
            write_folder,
            recognises=lambda path: (path / "state.npy").exists(),
            place="folder",
        )
    )
    made, target = table(), f"folder:{tmp_path / 'rows'}"
    mocoda.write(made, target)
    assert mocoda.read(tmp_path / "rows").rows.equal(made.rows)
    with refused():
        mocoda.write(made, target)


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


def test_a_minari_data_set_that_exists_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    (tmp_path / "me" / "x-v0").mkdir(parents=True)
    for name in ("minari:me/x-v0", "minari:me/x"):
        with refused():
            target_of(name)


# --- episodes

FORMATS_WITH_EPISODES = [
    *["x.hdf5", "d4rl:x.hdf5", "robomimic:x.hdf5", "x.npz", "x.parquet", "x.csv"],
    *["lerobot:x", "minari:x-v0", "d3rlpy:x.h5"],
]


def recorded(random: np.random.Generator, lengths: tuple[int, ...] = (4, 1, 3), goals: bool = True) -> Transitions:
    """Whole episodes, each row with its own goal, some rows terminal; then two rows of no episode."""
    walks = [random.normal(size=(length + 1, 2)) for length in (*lengths, 1, 1)]
    rows = sum(lengths) + 2
    return Transitions(
        np.concatenate([walk[:-1] for walk in walks]),
        random.normal(size=(rows, 1)),
        np.concatenate([walk[1:] for walk in walks]),
        random.normal(size=rows),
        random.random(rows) < 0.3,
        random.normal(size=(rows, 3)) if goals else None,
        columns=["x", "y", "push"],
        source={"seed": 1},
        provenance={"recipe": np.arange(rows)},
        episode=np.append(np.repeat(2 * np.arange(len(lengths)), lengths), [-1, -1]),
    )


ORDER = [5, 2, 8, 0, 7, 3, 6, 9, 1, 4]
CHOSEN = {"holes": [0, 2, 3, 6, 7, 9], "twice": [0, 1, 1, 2, 8, 8], "shuffled": ORDER}


@pytest.mark.parametrize("target", FORMATS_WITH_EPISODES)
@pytest.mark.parametrize("change", ["whole", "without", *CHOSEN])
def test_every_row_comes_back_as_the_step_of_its_episode(
    target: str, change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    made = recorded(np.random.default_rng(0))
    if change == "without":
        made = replace(made, episode=None, step=None)
    mocoda.write(made[torch.tensor(CHOSEN.get(change, [*range(10)]))], target)
    back = mocoda.read(target if ":" in target else tmp_path / target)
    if change in CHOSEN:
        back, made = back[back.provenance["recipe"].argsort()], made[torch.tensor(sorted(CHOSEN[change]))]
    assert_identical(back, replace(made, source=back.source) if target == "x.csv" else made)
    assert back.provenance["recipe"].equal(made.provenance["recipe"])
    for name in ("episode", "step"):
        one, other = getattr(back, name), getattr(made, name)
        assert one is other is None if change == "without" else one.equal(other)


@pytest.mark.parametrize("shuffled", [False, True])
def test_episodes_of_a_table_are_episodes_for_others_too(
    shuffled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import minari

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    whole = recorded(np.random.default_rng(0))
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

    mocoda.write(made, "d4rl:x.hdf5")
    with h5py.File("x.hdf5") as file:
        recipe, timeouts = file["provenance/recipe"][:], file["timeouts"][:]
        assert sorted(recipe[timeouts | file["terminals"][:]]) == sorted(
            {rows[-1] for rows in order} | {*whole.terminal.nonzero()[:, 0].tolist()}
        )
        last = np.isin(recipe, [rows[-1] for rows in order])
        assert (file["next_observations"][:-1][~last[:-1]] == file["observations"][1:][~last[:-1]]).all()


def test_d3rlpy_s_episodes_end_with_the_task_and_in_files_with_the_goal(tmp_path: Path) -> None:
    plain = recorded(np.random.default_rng(0), goals=False)
    made = replace(plain, terminal=torch.arange(len(plain)) == 1)
    lengths = [episode.transition_count for episode in mocoda.to_d3rlpy(made).episodes]
    assert lengths == [2, 2, 1, 3, 1, 1]
    about = replace(made, goal=torch.arange(len(made))[:, None] < 3)
    buffer = mocoda.to_d3rlpy(about)
    assert [one.transition_count for one in buffer.episodes] == lengths
    drawn = [buffer.transition_picker(one, step) for one in buffer.episodes for step in range(one.transition_count)]
    assert about.goal is not None
    for goal, state, one in zip(about.goal, about.next_state, drawn, strict=True):
        assert one.observation[-1:].tolist() == one.next_observation[-1:].tolist() == goal.tolist()
        assert one.next_observation[:-1].tolist() == state.tolist()
    mocoda.write(about, f"d3rlpy:{tmp_path / 'x.h5'}")
    with h5py.File(tmp_path / "x.h5") as file:
        assert int(file["num_episodes"][()]) == 7  # for d3rlpy itself would take the next row's goal for the row's


# --- plain HDF5, and files that lack what is needed


@pytest.mark.parametrize("label", [None, "somebody-else"])
def test_hdf5_with_our_names_and_no_header_is_read_as_npz_is(label: str | None, tmp_path: Path) -> None:
    plain = arrays(6)
    np.savez(tmp_path / "plain.npz", **plain)
    with h5py.File(tmp_path / "plain.hdf5", "w") as file:
        for name, array in plain.items():
            file[name] = array
        if label is not None:
            file.attrs["format"] = label
    read, same = mocoda.read(tmp_path / "plain.hdf5"), mocoda.read(tmp_path / "plain.npz")
    assert read.rows.equal(same.rows) and read.next_state.equal(same.next_state)


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
