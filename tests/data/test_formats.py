"""Reading what people have, and writing what others read: every kind, by its conventions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from approved import refused
from transition_tables import assert_identical, numbers, table

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
    assert read.source == {"read_as": "D4RL-style HDF5", "episodes": 3, "dropped_last_rows": 3, "dropped_terminals": 1}


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
    for steps in (None, 1):
        with refused():
            mocoda.read(path, episode_steps=steps)
    assert firsts(mocoda.read(path, episode_steps=10).state) == list(range(9))
    assert firsts(mocoda.read(path, episode_steps=4).state) == [0, 1, 2, 4, 5, 6, 8]


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
    assert read.source == {"read_as": "OGBench npz", "ignored": ["qpos", "qvel"], "episodes": 3, "dropped_last_rows": 3}
    assert read.episode is not None and read.episode.tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert read.step is not None and read.step.tolist() == [0, 1, 2, 0, 1, 0, 1]
    np.savez(tmp_path / "labelled.npz", **arrays, rewards=ROWS)
    assert mocoda.read(tmp_path / "labelled.npz").source["dropped_terminals"] == 3
    assert "dropped_terminals" not in mocoda.read(f"ogbench:{tmp_path / 'labelled.npz'}").source


def test_written_npz_needs_no_pickles_and_says_its_columns(tmp_path: Path) -> None:
    made = table(columns=["x", "y", "push"], source={"seed": 1}, provenance={"recipe": np.arange(5)})
    mocoda.write(made, tmp_path / "data.npz")
    with np.load(tmp_path / "data.npz", allow_pickle=False) as file:
        arrays = {"state", "action", "next_state", "reward", "terminal", "provenance.recipe"}
        assert {*file} == arrays | {"columns", "source"}
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


def test_half_precision_tensors_are_read() -> None:
    half = torch.ones(3, 2, dtype=torch.bfloat16)
    assert mocoda.read({"state": half, "action": half, "next_state": half}).state.tolist() == [[1, 1]] * 3


def test_rows_with_nan_are_refused_or_left_out_after_pairing() -> None:
    broken = OBSERVATIONS.copy()
    broken[1, 0] = np.nan
    arrays = {"observations": broken, "actions": ACTIONS, **ENDS}
    with refused():
        mocoda.read(arrays)
    read = mocoda.read(arrays, skip_bad_rows=True)
    assert firsts(read.state) == [2, 4, 5, 7, 8]  # row 0 led to the broken one
    assert firsts(read.next_state) == [3, 5, 6, 8, 9]
    assert read.source["skipped_bad_rows"] == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"observations": None, "object": ROWS},
        {"actions": ACTIONS[:4]},
        {"next_observations": numbers(10, 3)},
        {"state": OBSERVATIONS},
        {"terminals": ROWS},
        {"terminals": np.ones(10)},
        {"rewards": ["a"] * 10},
        {"rewards": 3.0},
        {"observations": np.zeros((10, 8, 8, 3))},
        {"rewards": ACTIONS.repeat(2, 1)},
    ],
    ids=["missing", "lengths", "widths", "twice", "odd", "nothing", "texts", "number", "images", "wide"],
)
def test_arrays_that_do_not_fit_are_refused(changed: dict[str, Any]) -> None:
    with refused():
        mocoda.read({name: array for name, array in (D4RL | ENDS | changed).items() if array is not None})


@pytest.mark.parametrize("target", ["data.txt", "d4r:data.hdf5", "/dev/null/data.npz"])
def test_targets_that_name_no_format_or_file_are_refused(target: str) -> None:
    with refused():
        mocoda.write(table(), target)


# --- arrays with unusual names

SHORT: dict[str, Any] = {"s": numbers(5, 2), "a": numbers(5), "s2": numbers(5, 2) + 1, "note": np.array(["x"] * 5)}
NAMES = {"state": "s", "action": "a", "next_state": "s2"}


def stored(kind: str, folder: Path, arrays: dict[str, Any]) -> Any:
    if kind == "arrays":
        return arrays
    if kind == "npz":
        np.savez(folder / "x.npz", **arrays)
        return folder / "x.npz"
    with h5py.File(folder / "x.hdf5", "w") as file:
        for name, array in arrays.items():
            file[name] = array.astype("S") if array.dtype.kind == "U" else array
    return folder / "x.hdf5"


@pytest.mark.parametrize("kind", ["arrays", "npz", "hdf5"])
def test_what_is_not_known_is_listed_and_named(kind: str, tmp_path: Path) -> None:
    source = stored(kind, tmp_path, SHORT)
    with refused():
        mocoda.read(source)
    read = mocoda.read(source, names=NAMES)
    assert np.array_equal(read.state, SHORT["s"]) and np.array_equal(read.next_state, SHORT["s2"])
    assert read.columns == ("state0", "state1", "a")
    assert read.source["ignored"] == ["note"]
    with refused():
        mocoda.read(source, names=NAMES | {"reward": "r"})


@pytest.mark.parametrize("kind", ["arrays", "npz", "hdf5"])
def test_the_spellings_of_replay_buffers_are_known(kind: str, tmp_path: Path) -> None:
    made = {"obs": numbers(6, 2), "act": numbers(6, 1), "rew": numbers(6), "next_obs": numbers(6, 2) + 1}
    made["done"] = np.array([0, 0, 1, 0, 0, 1.0])
    read = mocoda.read(stored(kind, tmp_path, made))
    assert np.array_equal(read.state, made["obs"]) and np.array_equal(read.next_state, made["next_obs"])
    assert read.reward is not None and np.array_equal(read.reward, made["rew"])
    assert read.episode is not None and read.episode.tolist() == [0, 1, 2, 3, 4, 5]  # no state goes on in the next
    assert not read.terminal.any() and "names" in read.source["note"]
    ended = mocoda.read(stored(kind, tmp_path, made), names={"terminal": "done"})
    assert ended.terminal.tolist() == made["done"].astype(bool).tolist() and "note" not in ended.source


def test_several_arrays_are_put_side_by_side_and_name_their_columns() -> None:
    given: dict[str, Any] = {"qpos": numbers(4, 2), "grip": numbers(4), "act": numbers(4, 2), "t": [0, 1, 2, 3]}
    read = mocoda.read(given, names={"state": ["qpos", "grip"]}, episode_steps=4)
    assert read.columns == ("qpos.0", "qpos.1", "grip", "action0", "action1") and read.source["ignored"] == ["t"]
    assert np.array_equal(read.state, np.hstack([given["qpos"], given["grip"][:, None]])[:3])
    assert mocoda.read(given, names={"state": ["qpos"]}, columns=list("abcd"), episode_steps=4).columns == tuple("abcd")


@pytest.mark.parametrize(
    "names",
    [
        {"stat": "s"},
        {"reward": ["a", "s"]},
        {"reward": ["a", "a"]},
        {"reward": []},
        {"goal": ["s", "short"]},
        {"goal": "note"},
    ],
    ids=str,
)
def test_names_that_cannot_be_are_refused(names: Any) -> None:
    with refused():
        mocoda.read(SHORT | {"short": numbers(3, 2)}, names=NAMES | names)


def test_a_table_is_named_already() -> None:
    assert mocoda.read(table(), columns=["x", "y", "u"]).columns == ("x", "y", "u")
    with refused():
        mocoda.read(table(), names={"state": "s"})
    with refused():
        mocoda.read(SHORT, observations=["s"])


def test_arrays_of_another_byte_order_are_read(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        **D4RL,
        "next_observations": OBSERVATIONS,
        "provenance/recipe": ROWS,
        "episode": ROWS // 4,
    }
    big = {name: np.asarray(array).astype(np.asarray(array).dtype.newbyteorder(">")) for name, array in arrays.items()}
    assert_identical(mocoda.read(hdf5(tmp_path / "big.hdf5", big)), mocoda.read(hdf5(tmp_path / "own.hdf5", arrays)))
