"""Arrays and columns of other names: common spellings are known, and users say what the rest is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import polars
import pytest
from transition_tables import assert_identical, numbers, refusal, table

import mocoda

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
    assert refusal(lambda: mocoda.read(source)).endswith(
        "'observations' or 'obs'. There are: 'a' (5,), 'note' (5,), 's' (5, 2), 's2' (5, 2). If one of them is it, say "
        'so: names={"state": NAME, "action": NAME}, or --names state=NAME action=NAME.'
    )
    read = mocoda.read(source, names=NAMES)
    assert np.array_equal(read.state, SHORT["s"]) and np.array_equal(read.next_state, SHORT["s2"])
    assert read.columns == ("state0", "state1", "a")
    assert read.source["ignored"] == ["note"]
    assert refusal(lambda: mocoda.read(source, names=NAMES | {"reward": "r"})).endswith(
        ": there is no array 'r'. There are: 'a' (5,), 'note' (5,), 's' (5, 2), 's2' (5, 2)."
    )


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
    ("names", "message"),
    [
        ({"stat": "s"}, "there is no array of a table called 'stat'; there are: state, action, next_state,"),
        ({"reward": ["a", "s"]}, "s must have shape (5,), one value a row, got (5, 2)."),
        ({"reward": ["a", "a"]}, "reward is one value a row, so names gives it one array, got ['a', 'a']."),
        ({"reward": []}, "names must say what reward is called, got nothing."),
        (
            {"goal": ["s", "short"]},
            "arrays: the parts of goal must have the same number of rows, got 's' (5, 2), 'short'",
        ),
        ({"goal": "note"}, "note must be an array of numbers, got one of <U1."),
    ],
)
def test_names_that_cannot_be_are_refused(names: Any, message: str) -> None:
    given = SHORT | {"short": numbers(3, 2)}
    assert refusal(lambda: mocoda.read(given, names=NAMES | names)).startswith(message)


def test_a_table_is_named_already() -> None:
    assert mocoda.read(table(), columns=["x", "y", "u"]).columns == ("x", "y", "u")
    assert refusal(lambda: mocoda.read(table(), names={"state": "s"})) == (
        "names is for arrays of other names, and this is a table already: remove it."
    )
    assert refusal(lambda: mocoda.read(SHORT, observations=["s"])) == (
        "observations choose from a file, and this is data in memory: choose there."
    )


# --- CSV and frames

COLUMNS: dict[str, Any] = {"x": numbers(6), "y": 10 + numbers(6), "push": 20 + numbers(6)}
COLUMNS |= {"run": list("aaabbb"), "hint": list("uvwxyz")}
CALLED = {"state": ["x", "y"], "action": "push", "episode": "run"}


@pytest.mark.parametrize("kind", ["pandas", "polars", "csv", "semicolons", "parquet"])
def test_columns_of_any_name_are_read_as_they_are_said_to_be(kind: str, tmp_path: Path) -> None:
    frame: Any = pd.DataFrame(COLUMNS)
    if kind == "polars":
        frame = polars.DataFrame(COLUMNS)
    elif kind == "parquet":
        frame.to_parquet(tmp_path / "x.parquet")
        frame = tmp_path / "x.parquet"
    elif kind != "pandas":
        frame.to_csv(tmp_path / "x.csv", index=False, sep="," if kind == "csv" else ";")
        frame = tmp_path / "x.csv"
    message = refusal(lambda: mocoda.read(frame))
    assert (
        "there are no columns of the state; they are called state.x, state.y and so on. There are: 'hint'," in message
    )
    read = mocoda.read(frame, names=CALLED)
    assert read.columns == ("x", "y", "push") and read.source["ignored"] == ["hint"]
    assert np.array_equal(read.state[:, 0], COLUMNS["x"][[0, 1, 3, 4]])
    assert np.array_equal(read.next_state[:, 1], COLUMNS["y"][[1, 2, 4, 5]])
    assert read.episode is not None and read.episode.tolist() == [0, 0, 1, 1]


def test_a_polars_frame_is_read_as_the_pandas_one() -> None:
    columns: dict[str, Any] = {
        "state.x": numbers(4),
        "state.y": [1.0, None, 2, 3],
        "action.u": [1, 2, 3, 4],
        "episode": list("aabb"),
    }
    frames = [
        kind({**columns, "next_state.x": numbers(4), "next_state.y": numbers(4)})
        for kind in (pd.DataFrame, polars.DataFrame)
    ]
    one, other = (mocoda.read(frame, skip_bad_rows=True) for frame in frames)
    assert_identical(one, other)
    assert len(one) == 3 and one.source["skipped_bad_rows"] == 1


def test_csv_is_read_by_others_and_empty_cells_are_nan(tmp_path: Path) -> None:
    made = table(columns=["box, large", "y", "push"], provenance={"recipe": [2**62, 1, 2, 3, 4]})
    mocoda.write(made, tmp_path / "x.csv")
    frame = pd.read_csv(tmp_path / "x.csv")
    assert np.array_equal(frame["state.box, large"].astype(np.float32), made.state[:, 0])
    assert frame["provenance.recipe"].tolist() == made.provenance["recipe"].tolist()
    assert polars.read_csv(tmp_path / "x.csv")["terminal"].to_list() == [False] * 5
    (tmp_path / "gap.csv").write_text("state.x, action.u, next_state.x\n1,2,3\n,5,6\n7,8,9\n")
    assert mocoda.inspect(tmp_path / "gap.csv").bad_rows == 1
    assert mocoda.read(tmp_path / "gap.csv", skip_bad_rows=True).state[:, 0].tolist() == [1, 7]


@pytest.mark.parametrize("names", [("\n", "0"), ("a,b", ";;;"), ('"', "\t")])
def test_names_of_csv_columns_may_hold_what_separates_them(names: tuple[str, str], tmp_path: Path) -> None:
    zero = np.zeros((1, 1), np.float32)
    mocoda.write(mocoda.Transitions(zero, zero, zero, columns=names), tmp_path / "x.csv")
    assert mocoda.read(tmp_path / "x.csv").columns == names
