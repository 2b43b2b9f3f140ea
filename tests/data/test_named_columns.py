"""Named columns: pandas and polars data frames, Parquet and CSV files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars
import pyarrow
import pyarrow.parquet
import pytest
from approved import refused
from test_formats import ACTIONS, ROWS, paired
from transition_tables import assert_identical, numbers, table

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
    kind = "Parquet" if parquet else "data frame"
    assert read.source == {"read_as": kind, "ignored": ["note"], "episodes": 3, "dropped_last_rows": 3}


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
    with refused():
        mocoda.read(given)
    other = polars.DataFrame({name: given[name].replace({pd.NA: None}).tolist() for name in given})
    assert_identical(mocoda.read(other, skip_bad_rows=True), mocoda.read(given, skip_bad_rows=True))


@pytest.mark.parametrize("kind", ["pandas", "polars", "csv", "parquet"])
def test_texts_are_categories(kind: str, tmp_path: Path) -> None:
    gears = [*"rnnfn"] * 2
    given: Any = frame(**{"state.gear": gears, "next_state.gear": ["p", *gears[1:]], "action.go": ["on", "off"] * 5})
    given = given.assign(**{"next_state.box1.x": ROWS, "next_state.y": ROWS})
    if kind == "polars":
        given = polars.DataFrame(given.to_dict("list"))
    elif kind != "pandas":
        getattr(given, f"to_{kind}")(tmp_path / f"x.{kind}", index=False)
        given = tmp_path / f"x.{kind}"
    for named in ([], ["gear"]):
        read = mocoda.read(given, categories=named)
        assert read.columns == ("box1.x", "y", "gear.f", "gear.n", "gear.p", "gear.r", "dx", "go.off", "go.on")
        assert ["fnpr"[place] for place in read.state[:, 2:].argmax(1)] == gears
        assert read.next_state[0].tolist() == [0, 0, 0, 0, 1, 0] and read.action[0, 1:].tolist() == [0, 1]


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
    assert [*read.columns][:5] == ["state.box1.x", "state.y", "action.push", "reward", "next_state.box1.x"]
    assert [*read.columns][5:] == ["next_state.y", "terminal", "goal.0", "goal.1", "provenance.recipe"]
    assert read["state.y"].tolist() == made.state[:, 1].tolist()
    assert mocoda.read(read).next_state.equal(made.next_state)


@pytest.mark.parametrize(
    "given",
    [
        pd.DataFrame({"x": ROWS}),
        frame(**{"state.name": ["a"] * 9 + [None]}, **EPISODES),
        frame(**{"next_state.y": ROWS}),
        frame(**{"action.y": ROWS}, **EPISODES),
        pd.concat([frame(), frame()], axis=1),
    ],
    ids=["none", "texts", "next", "both", "twice"],
)
def test_frames_that_do_not_fit_are_refused(given: pd.DataFrame) -> None:
    with refused():
        mocoda.read(given)


# --- columns of any name

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
    with refused():
        mocoda.read(frame)
    read = mocoda.read(frame, names=CALLED)
    assert read.columns == ("x", "y", "push") and read.source["ignored"] == ["hint"]
    assert np.array_equal(read.state[:, 0], COLUMNS["x"][[0, 1, 3, 4]])
    assert np.array_equal(read.next_state[:, 1], COLUMNS["y"][[1, 2, 4, 5]])
    assert read.episode is not None and read.episode.tolist() == [0, 0, 1, 1]


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
