"""Named columns: pandas data frames and Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest
from test_formats import ACTIONS, ROWS, firsts, paired
from transition_tables import assert_identical, numbers, refusal, table

import mocoda


def frame(**more: Any) -> pd.DataFrame:
    return pd.DataFrame({"state.box1.x": ROWS, "state.y": ROWS * 10.0, "action.dx": ACTIONS[:, 0], **more})


EPISODES = {"episode": np.where(ROWS <= 3, "a", np.where(ROWS <= 6, "c", "b"))}


@pytest.mark.parametrize("parquet", [False, True], ids=["frame", "parquet"])
def test_named_columns_keep_their_names_and_pair_within_episodes(parquet: bool, tmp_path: Path) -> None:
    given: Any = frame(reward=ROWS, note=["n"] * 10, **EPISODES)
    if parquet:
        given.to_parquet(tmp_path / "data.parquet")
        given = tmp_path / "data.parquet"
    read = mocoda.read(given)
    paired(read)
    assert read.columns == ("box1.x", "y", "dx")
    assert read.source == {
        "read_as": "Parquet" if parquet else "data frame",
        "ignored": ["note"],
        "episodes": 3,
        "dropped_last_rows": 3,
    }


def test_rows_of_episodes_that_were_recorded_side_by_side_are_paired_within_them() -> None:
    read = mocoda.read(frame(episode=ROWS % 2))
    assert firsts(read.state) == [0, 2, 4, 6, 1, 3, 5, 7]
    assert firsts(read.next_state) == [2, 4, 6, 8, 3, 5, 7, 9]


def test_next_states_are_matched_by_name_and_two_levels_pass_for_a_dot() -> None:
    given = frame(**{"next_state.y": ROWS + 0.5, "next_state.box1.x": ROWS + 0.25, "goal.x": ROWS, "goal.z": -ROWS})
    read = mocoda.read(given)
    assert read.next_state[1].tolist() == [1.25, 1.5]
    assert read.goal is not None and read.goal[2].tolist() == [2, -2]
    given.columns = pd.MultiIndex.from_tuples([tuple(name.split(".", 1)) for name in given.columns])
    assert_identical(mocoda.read(given), read)


def test_missing_values_of_a_frame_are_nan() -> None:
    given = frame(**EPISODES)
    given["state.y"] = given["state.y"].astype("Int64")
    given.loc[2, "state.y"] = pd.NA
    assert refusal(lambda: mocoda.read(given)) == (
        "state has NaN or inf in 1 of 7 rows, first in row 2. Drop or repair those rows."
    )


def test_a_parquet_column_of_records_passes_for_its_parts(tmp_path: Path) -> None:
    records = pyarrow.array([{"x": float(row), "y": row * 10.0} for row in ROWS])
    made = pyarrow.table({"state": records, "action.dx": ACTIONS[:, 0], "episode": pyarrow.array(EPISODES["episode"])})
    pyarrow.parquet.write_table(made, tmp_path / "data.parquet")
    read = mocoda.read(tmp_path / "data.parquet")
    paired(read)
    assert read.columns == ("x", "y", "dx")


def test_written_parquet_has_named_columns(tmp_path: Path) -> None:
    made = table(columns=["box1.x", "y", "push"], goal=numbers(5, 2), provenance={"recipe": np.arange(5)})
    mocoda.write(made, tmp_path / "data.parquet")
    read = pd.read_parquet(tmp_path / "data.parquet")
    assert [*read.columns] == [
        "state.box1.x",
        "state.y",
        "action.push",
        "reward",
        "next_state.box1.x",
        "next_state.y",
        "terminal",
        "goal.0",
        "goal.1",
        "provenance.recipe",
    ]
    assert read["state.y"].tolist() == made.state[:, 1].tolist()
    assert mocoda.read(read).next_state.equal(made.next_state)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            pd.DataFrame({"x": ROWS}),
            "data frame: there are no columns of the state; they are called state.x, state.y and so on. There are: "
            '\'x\'. If one of them is it, say so: names={"state": NAME, "action": NAME}, or --names state=NAME '
            "action=NAME.",
        ),
        (
            frame(**{"state.name": ["a"] * 10}, **EPISODES),
            "data frame: the column 'state.name' holds object, not numbers. Convert it, or leave it out.",
        ),
        (
            frame(**{"next_state.y": ROWS}),
            "data frame: state and next_state must have the same columns; they differ in ['box1.x'].",
        ),
        (
            frame(**{"action.y": ROWS}, **EPISODES),
            "data frame: ['y'] name columns of both state and action; every column needs its own name.",
        ),
        (
            pd.concat([frame(), frame()], axis=1),
            "data frame: the columns ['action.dx', 'state.box1.x', 'state.y'] are there more than once; every column "
            "needs its own name.",
        ),
    ],
    ids=["none", "texts", "next", "both", "twice"],
)
def test_frames_that_do_not_fit_are_refused(given: pd.DataFrame, message: str) -> None:
    assert refusal(lambda: mocoda.read(given)) == message
