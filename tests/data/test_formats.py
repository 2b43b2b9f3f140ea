"""Reading what people have, and writing what others read: every kind, by its conventions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from transition_tables import assert_identical, numbers, refusal, table

import mocoda
from mocoda import Transitions

ROWS = np.arange(10)
OBSERVATIONS = np.stack([ROWS, ROWS * 10.0], 1)  # row i is (i, 10 i), so that a next state shows where it is from
ACTIONS = ROWS[:, None] / 100
TERMINALS = np.isin(ROWS, [3])
TIMEOUTS = np.isin(ROWS, [6])
KEPT = [0, 1, 2, 4, 5, 7, 8]  # rows 3, 6 and 9 are last in their episodes
D4RL = {"observations": OBSERVATIONS, "actions": ACTIONS, "rewards": ROWS * 1.0}
ENDS = {"terminals": TERMINALS, "timeouts": TIMEOUTS}


def hdf5(path: Path, arrays: dict[str, Any]) -> Path:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return path


def firsts(values: torch.Tensor) -> list[float]:
    return [float(value) for value in values[:, 0]]


def paired(read: Transitions) -> None:
    """Rows of one episode only, each with the following row as its next state."""
    assert firsts(read.state) == KEPT
    assert firsts(read.next_state) == [row + 1 for row in KEPT]
    assert torch.allclose(read.action[:, 0], torch.tensor(KEPT) / 100)
    assert not read.terminal.any()


# --- D4RL


def test_d4rl_without_next_observations_pairs_rows_within_episodes_only(tmp_path: Path) -> None:
    read = mocoda.read(hdf5(tmp_path / "data.hdf5", D4RL | ENDS))
    paired(read)
    assert read.reward is not None and read.reward.tolist() == KEPT
    assert read.source == {
        "read_as": "D4RL-style HDF5",
        "episodes": 3,
        "dropped_last_rows": 3,
        "dropped_terminals": 1,
    }


def test_d4rl_with_next_observations_keeps_every_row_and_only_terminals_are_terminal(tmp_path: Path) -> None:
    arrays = D4RL | ENDS | {"next_observations": OBSERVATIONS + 0.5}
    read = mocoda.read(hdf5(tmp_path / "data.hdf5", arrays))
    assert firsts(read.state) == ROWS.tolist()
    assert firsts(read.next_state) == (ROWS + 0.5).tolist()
    assert read.terminal.tolist() == TERMINALS.tolist()
    assert read.source == {"read_as": "D4RL-style HDF5"}


def test_d4rl_s_goals_are_kept_and_other_information_is_left_alone(tmp_path: Path) -> None:
    more = {"infos/goal": OBSERVATIONS, "infos/qpos": OBSERVATIONS, "metadata/algorithm": b"sac", "extra": ROWS}
    read = mocoda.read(hdf5(tmp_path / "data.hdf5", D4RL | ENDS | more))
    assert read.goal is not None and firsts(read.goal) == KEPT
    assert read.source["ignored"] == ["extra"]
    short = mocoda.read(hdf5(tmp_path / "short.hdf5", D4RL | ENDS | {"infos/goal": OBSERVATIONS[:3]}))
    assert short.goal is None


def test_where_no_end_is_marked_the_length_of_episodes_has_to_be_said(tmp_path: Path) -> None:
    path = hdf5(tmp_path / "data.hdf5", D4RL | {"terminals": np.zeros(10, bool)})
    assert refusal(lambda: mocoda.read(path)) == (
        "D4RL-style HDF5: there are no next states, and nothing marks where an episode ends (terminals, timeouts or "
        "episode numbers), so rows of two episodes might be paired. Add one of them, or give the length of episodes as "
        "episode_steps; episode_steps=10 if all rows are one episode."
    )
    assert firsts(mocoda.read(path, episode_steps=10).state) == list(range(9))
    assert firsts(mocoda.read(path, episode_steps=4).state) == [0, 1, 2, 4, 5, 6, 8]
    assert refusal(lambda: mocoda.read(path, episode_steps=1)) == (
        "episode_steps must be at least 2, the rows of an episode, got 1."
    )


def test_episode_steps_are_counted_from_the_last_known_end(tmp_path: Path) -> None:
    path = hdf5(tmp_path / "data.hdf5", D4RL | {"terminals": TERMINALS})
    assert firsts(mocoda.read(path, episode_steps=5).state) == [0, 1, 2, 4, 5, 6, 7]
    assert mocoda.read(path).source["note"] == (
        "only terminals mark ends; if time limits ended episodes too, give episode_steps"
    )


def test_written_d4rl_has_next_observations_and_timeouts_where_rows_break_off(tmp_path: Path) -> None:
    state, following = OBSERVATIONS[KEPT], OBSERVATIONS[[row + 1 for row in KEPT]]
    data = Transitions(state, ACTIONS[KEPT], following, KEPT, np.array(KEPT) == 2, provenance={"recipe": KEPT})
    mocoda.write(data, f"d4rl:{tmp_path / 'data.hdf5'}")
    with h5py.File(tmp_path / "data.hdf5") as file:
        assert file["next_observations"][:, 0].tolist() == [1, 2, 3, 5, 6, 8, 9]
        assert file["terminals"][:].tolist() == [False, False, True, False, False, False, False]
        assert file["timeouts"][:].tolist() == [False, False, False, False, True, False, True]
        assert file["provenance/recipe"][:].tolist() == KEPT
        assert set(file) == {*D4RL, *ENDS, "next_observations", "provenance", "metadata"}


# --- npz and OGBench


def test_ogbench_s_terminals_end_episodes_and_stop_no_values(tmp_path: Path) -> None:
    ends = np.isin(ROWS, [3, 6, 9]).astype(np.float32)
    arrays: dict[str, Any] = {"observations": OBSERVATIONS, "actions": ACTIONS, "terminals": ends}
    np.savez(tmp_path / "cube.npz", **arrays, qpos=OBSERVATIONS, qvel=OBSERVATIONS)
    read = mocoda.read(tmp_path / "cube.npz")
    paired(read)
    assert read.source == {
        "read_as": "OGBench npz",
        "ignored": ["qpos", "qvel"],
        "episodes": 3,
        "dropped_last_rows": 3,
    }
    assert read.episode is not None and read.episode.tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert read.step is not None and read.step.tolist() == [0, 1, 2, 0, 1, 0, 1]
    np.savez(tmp_path / "labelled.npz", **arrays, rewards=ROWS)
    assert mocoda.read(tmp_path / "labelled.npz").source["dropped_terminals"] == 3
    assert "dropped_terminals" not in mocoda.read(f"ogbench:{tmp_path / 'labelled.npz'}").source


@pytest.mark.parametrize("names", [("state", "action", "next_state"), ("obs", "actions", "next_obs")], ids=str)
def test_npz_with_names_of_either_kind_is_read(tmp_path: Path, names: tuple[str, str, str]) -> None:
    made = table(6)
    arrays = (made.state.numpy(), made.action.numpy(), made.next_state.numpy())
    given: dict[str, Any] = dict(zip(names, arrays, strict=True))
    np.savez_compressed(tmp_path / "data.npz", **given)
    read = mocoda.read(tmp_path / "data.npz", columns=["x", "y", "push"])
    assert read.rows.equal(made.rows) and read.next_state.equal(made.next_state)
    assert read.columns == ("x", "y", "push")


def test_written_npz_needs_no_pickles_and_says_its_columns(tmp_path: Path) -> None:
    made = table(columns=["x", "y", "push"], source={"seed": 1}, provenance={"recipe": np.arange(5)})
    mocoda.write(made, tmp_path / "data.npz")
    with np.load(tmp_path / "data.npz", allow_pickle=False) as file:
        assert {*file} == {
            "state",
            "action",
            "next_state",
            "reward",
            "terminal",
            "provenance.recipe",
            "columns",
            "source",
        }
        assert json.loads(str(file["columns"])) == ["x", "y", "push"]
    assert_identical(mocoda.read(tmp_path / "data.npz"), made)


# --- arrays in memory


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_a_mapping_of_arrays_is_read_and_one_column_needs_no_second_axis(kind: Any) -> None:
    read = mocoda.read(
        {
            "observations": kind(ROWS * 1.0),
            "actions": kind(ROWS),
            "rewards": kind(ROWS[:, None]),
            "terminals": kind(TERMINALS.astype(int)),
            "timeouts": kind(TIMEOUTS[:, None]),
        }
    )
    assert firsts(read.state) == KEPT and firsts(read.action) == KEPT
    assert read.state.shape == (7, 1)
    assert read.reward is not None and read.reward.tolist() == KEPT


def test_a_mapping_is_copied_and_its_provenance_kept() -> None:
    state = numbers(5, 2)
    read = mocoda.read({"state": state, "action": state, "next_state": state, "provenance.recipe": np.arange(5)})
    before = read.state.clone()
    state[:] = 0
    assert read.state.equal(before)
    assert read.provenance["recipe"].tolist() == [0, 1, 2, 3, 4]


def test_half_precision_tensors_are_read() -> None:
    half = torch.ones(3, 2, dtype=torch.bfloat16)
    assert mocoda.read({"state": half, "action": half, "next_state": half}).state.tolist() == [[1, 1]] * 3


def test_rows_with_nan_are_refused_or_left_out_after_pairing() -> None:
    broken = OBSERVATIONS.copy()
    broken[1, 0] = np.nan
    arrays = {"observations": broken, "actions": ACTIONS, **ENDS}
    assert refusal(lambda: mocoda.read(arrays)) == (
        "state has NaN or inf in 1 of 7 rows, first in row 1. Drop or repair those rows."
    )
    read = mocoda.read(arrays, skip_bad_rows=True)
    assert firsts(read.state) == [2, 4, 5, 7, 8]  # row 0 led to the broken one
    assert firsts(read.next_state) == [3, 5, 6, 8, 9]
    assert read.source["skipped_bad_rows"] == 2


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"observations": None, "object": ROWS},
            "arrays: there is no array called 'state' or 'states' or 'observation' or 'observations' or 'obs'. "
            "There are: 'actions' (10, 1), 'object' (10,), 'rewards' (10,), 'terminals' (10,), 'timeouts' (10,).",
        ),
        ({"actions": ACTIONS[:4]}, "arrays: action has 4 rows, but state has 10; they must have the same number."),
        (
            {"next_observations": numbers(10, 3)},
            "arrays: next_state has 3 columns, but state has 2; they must have the same number.",
        ),
        ({"state": OBSERVATIONS}, "'observations' and 'state' are both names of state; give one of them."),
        ({"terminals": ROWS}, "arrays: terminal must hold 0 and 1 only, got 2 in row 2."),
        (
            {"terminals": np.ones(10)},
            "arrays: there are no next states, and every row is its episode's last: no steps remain.",
        ),
        ({"rewards": ["a"] * 10}, "rewards must be an array of numbers, got one of <U1."),
        ({"rewards": 3.0}, "rewards must have a row for each step, got a single float64."),
        ({"actions": [[1], [2, 3]]}, "actions must be an array of numbers, got list (setting an array element"),
        (
            {"observations": np.zeros((10, 8, 8, 3))},
            "observations must have shape (10, columns), got (10, 8, 8, 3). Images cannot be states: encode them",
        ),
        ({"rewards": ACTIONS.repeat(2, 1)}, "rewards must have shape (10,), one value a row, got (10, 2)."),
    ],
    ids=["missing", "lengths", "widths", "twice", "odd", "nothing", "texts", "number", "ragged", "images", "wide"],
)
def test_arrays_that_do_not_fit_are_refused(changed: dict[str, Any], message: str) -> None:
    arrays = {name: array for name, array in (D4RL | ENDS | changed).items() if array is not None}
    assert refusal(lambda: mocoda.read(arrays)).startswith(message)


# --- which kind


@pytest.mark.parametrize("target", ["d.hdf5", "d.h5", "mocoda:d", "d4rl:d", "d.npz", "npz:d", "d.parquet", "parquet:d"])
def test_a_kind_is_told_by_its_ending_or_word_and_read_by_its_content(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = table(columns=["x", "y", "push"], source={"seed": 1})
    mocoda.write(made, target)
    name = target.split(":")[-1]
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert_identical(mocoda.read(name), made)
    assert_identical(mocoda.read(Path(name)), made)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            "data.txt",
            "'data.txt' does not say which format to write; expected FILE.hdf5, robomimic:FILE.hdf5, d4rl:FILE.hdf5, "
            "FILE.npz, FILE.parquet, FILE.csv, lerobot:FOLDER, minari:NAMESPACE/NAME-v0 or d3rlpy:FILE.h5.",
        ),
        (
            "d4r:data.hdf5",
            "there is no format 'd4r'; there are: mocoda, robomimic, d4rl, ogbench, npz, parquet, csv, lerobot, "
            "shards, minari, d3rlpy. Did you mean 'd4rl'?",
        ),
        (
            "/dev/null/data.npz",
            "cannot write '/dev/null/data.npz': '/dev/null' is not a folder. "
            "Give a path in a folder that can be written.",
        ),
    ],
)
def test_targets_that_say_nothing_are_refused(target: str, message: str) -> None:
    assert refusal(lambda: mocoda.write(table(), target)) == message
