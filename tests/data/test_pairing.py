"""Next states that a file does not hold: they are the states of the following step of the same episode."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import polars
import pyarrow
import pyarrow.parquet
import pytest
from approved import assert_approved, refused
from hypothesis import given, settings
from hypothesis import strategies as st

import mocoda
from mocoda import InputError, Transitions

Rows = dict[str, np.ndarray[Any, Any]]


def rows_of(places: list[tuple[int, int]]) -> Rows:
    """Rows of these episodes and steps; the state says where a row is from: 100 · episode + step."""
    episode, step = np.array(places).T
    return {
        "state": 100.0 * episode[:, None] + step[:, None],
        "action": step[:, None],
        "episode": episode,
        "step": step,
    }


def named(rows: Rows) -> dict[str, Any]:
    return {"state.x": rows["state"][:, 0], "action.a": rows["action"][:, 0]} | {
        name: rows[name] for name in rows if name not in ("state", "action")
    }


def npz(folder: Path, rows: Rows) -> Path:
    np.savez(folder / "data.npz", **rows)  # type: ignore[arg-type]
    return folder / "data.npz"


def hdf5(folder: Path, rows: Rows) -> Path:
    with h5py.File(folder / "data.hdf5", "w") as file:
        for name, array in rows.items():
            file[name] = array
    return folder / "data.hdf5"


def parquet(folder: Path, rows: Rows) -> Path:
    pyarrow.parquet.write_table(pyarrow.table(named(rows)), folder / "data.parquet")
    return folder / "data.parquet"


def csv(folder: Path, rows: Rows) -> Path:
    pd.DataFrame(named(rows)).to_csv(folder / "data.csv", index=False)
    return folder / "data.csv"


def lerobot_folder(folder: Path, columns: dict[str, Any], widths: dict[str, int] | None = None) -> Path:
    """A LeRobot folder of these columns, which says that they have these widths, or else 1."""
    place = folder / "lerobot"
    for part in ("meta", "data/chunk-000"):
        (place / part).mkdir(parents=True, exist_ok=True)
    features = {name: {"dtype": "float32", "shape": [(widths or {}).get(name, 1)]} for name in columns}
    info = {"codebase_version": "v3.0", "total_frames": len(columns["action"]), "features": features}
    (place / "meta/info.json").write_text(json.dumps(info))
    pyarrow.parquet.write_table(pyarrow.table(columns), place / "data/chunk-000/file-000.parquet")
    return place


def lerobot(folder: Path, rows: Rows) -> Path:
    parts = {"observation.state": rows["state"][:, 0], "action": rows["action"][:, 0]}
    return lerobot_folder(folder, parts | {"episode_index": rows["episode"], "frame_index": rows["step"]})


FORMATS: dict[str, Callable[[Path, Rows], Any]] = {
    "arrays": lambda _, rows: rows,
    "pandas": lambda _, rows: pd.DataFrame(named(rows)),
    "polars": lambda _, rows: polars.DataFrame(named(rows)),
    **{"npz": npz, "hdf5": hdf5, "parquet": parquet, "csv": csv, "lerobot": lerobot},
}
formats = pytest.mark.parametrize("form", FORMATS)


def read(form: str, rows: Rows) -> Transitions:
    with tempfile.TemporaryDirectory() as folder:
        return mocoda.read(FORMATS[form](Path(folder), rows))


def found(data: Transitions) -> list[tuple[float, ...]]:
    """Every row of a table: episode, step, state, action and next state."""
    assert data.episode is not None and data.step is not None
    columns = (data.episode, data.step, data.state[:, 0], data.action[:, 0], data.next_state[:, 0])
    return list(zip(*(column.tolist() for column in columns), strict=True))


def expected(rows: Rows) -> list[tuple[float, ...]]:
    """The same by a loop over pairs of rows."""
    places = list(zip(rows["episode"].tolist(), rows["step"].tolist(), strict=True))
    return sorted((e, s, 100 * e + s, s, 100 * e + s + 1) for e, s in places if (e, s + 1) in places)


PLACES = [(episode, step) for episode in (4, 2, 9) for step in range(19)]


@formats
def test_shuffled_rows_get_the_next_state_of_their_step(form: str) -> None:
    order = np.random.default_rng(0).permutation(len(PLACES))
    data = read(form, rows_of([PLACES[row] for row in order]))
    assert sorted(found(data)) == expected(rows_of(PLACES))
    assert data.source["episodes_sorted_by_step"] == 3


@formats
def test_no_next_state_comes_from_beyond_a_gap(form: str) -> None:
    rows = rows_of([place for place in PLACES if place[1] not in (5, 11, 12)])
    data = read(form, rows)
    assert sorted(found(data)) == expected(rows)
    assert (data.source["gaps_in_step"], data.source["episodes"], data.source["dropped_last_rows"]) == (6, 3, 9)


@pytest.mark.parametrize("form", [form for form in FORMATS if form not in ("lerobot",)])
@pytest.mark.parametrize("kind", ["numbers", "names"])
def test_rows_of_unknown_episodes_are_refused(form: str, kind: str) -> None:
    rows = rows_of(PLACES)
    rows["episode"] = np.where(rows["step"] == 7, np.nan, rows["episode"])
    if kind == "names" and form not in ("npz", "hdf5"):  # which hold no empty names
        rows["episode"] = np.array([None if step == 7 else f"e{number}" for number, step in PLACES])
    with pytest.raises(InputError, match=r"^episode is empty or NaN in 3 of 57 rows, first in row 7"):
        read(form, rows)


@formats
def test_a_step_that_is_there_twice_is_refused(form: str) -> None:
    with pytest.raises(InputError, match="the step 3 of episode 2 is there more than once"):
        read(form, rows_of([*PLACES, (2, 3)]))


def test_steps_that_cannot_be_counted_are_refused() -> None:
    rows = rows_of(PLACES)
    for step in (-1, 0.5, np.nan, np.inf, 1e300):
        with refused():
            mocoda.read(rows | {"step": np.where(rows["step"] == 3, step, rows["step"])})
    with refused():  # and those that never count on
        mocoda.read(rows_of([(0, 0), (0, 5), (0, 10)]))


def test_inspect_says_what_was_sorted_and_where_steps_are_missing() -> None:
    rows = rows_of([(0, 1), (0, 0), (0, 2), (0, 4), (0, 5), (1, 0), (1, 1), (1, 3)])
    warnings = mocoda.inspect(rows).warnings
    assert_approved("\n".join(warning for warning in warnings if "step" in warning))


def test_ends_within_an_episode_leave_its_numbers_alone() -> None:
    rows = rows_of([(5, step) for step in range(8)])
    data = mocoda.read(rows | {"terminal": rows["step"] == 3})
    assert [(episode, step) for episode, step, *_ in found(data)] == [(5, step) for step in (0, 1, 2, 4, 5, 6)]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), min_size=2, max_size=20, unique=True),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_a_shuffled_table_reads_as_the_same_transitions(places: Any, random: Any, words: bool) -> None:
    shuffled = random.sample(places, len(places))
    if not any((episode, step + 1) in places for episode, step in places):
        return
    tables = []
    for order in (sorted(places), shuffled):
        rows = rows_of(order)
        if words:
            rows["episode"] = np.array([f"episode {number}" for number in rows["episode"]])
        tables.append(mocoda.read(rows))
    one, other = map(found, tables)
    assert sorted(one) == sorted(other)
    assert sorted(row[1:] for row in one) == sorted(row[1:] for row in expected(rows_of(places)))
