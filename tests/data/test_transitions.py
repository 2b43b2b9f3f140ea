"""Tables: what they keep and refuse, in memory and in files, and the laws of slicing, joining and saving them."""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from approved import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as any_arrays
from numpy.typing import NDArray
from transition_tables import arrays, numbers, refusal, table

from mocoda.data.transitions import Transitions, concatenate
from mocoda.engine.files import versions, write_json

# --- a table keeps what it was given


def test_arrays_of_any_kind_become_float32_tensors() -> None:
    made = Transitions([[1, 2], [3, 4]], np.ones((2, 1)), torch.ones(2, 2, dtype=torch.float64), [1, 0], [0, 1])
    for array in (made.state, made.action, made.next_state, made.reward):
        assert array is not None and array.dtype == torch.float32
    assert made.state.tolist() == [[1.0, 2.0], [3.0, 4.0]] and made.terminal.tolist() == [False, True]
    goal = table(2, goal=np.array([[1, 2, 3], [4, 5, 6]])).goal
    assert goal is not None and goal.dtype == torch.float32 and goal.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert not table(state=torch.ones(5, 2, requires_grad=True)).state.requires_grad


@pytest.mark.parametrize("kind", ["reversed", "big-endian", "read-only"])
def test_numpy_arrays_in_any_memory_layout_are_taken(kind: str) -> None:
    given_ = numbers(5, 2)
    awkward = {"reversed": given_[::-1], "big-endian": given_.astype(">f4"), "read-only": given_.copy()}[kind]
    awkward.setflags(write=kind != "read-only")
    np.testing.assert_array_equal(table(state=awkward).state.numpy(), awkward)


def test_concatenate_takes_columns_and_source_from_the_first_unless_given() -> None:
    one, other = table(source={"a": 1}), table(source={"b": 2})
    assert concatenate([one, other]).source == {"a": 1}
    assert concatenate([one, other], source={"c": 3}).source == {"c": 3}


# --- and refuses the rest


@pytest.mark.parametrize("name", ["state", "action", "next_state", "reward", "goal"])
def test_rows_that_are_not_finite_are_refused(name: str) -> None:
    for bad in (np.nan, np.inf, -np.inf):
        array = numbers(5) if name == "reward" else numbers(5, 1 if name == "action" else 2)
        array[[2, 4]] = bad
        with pytest.raises(ValueError, match=rf"^{name} has NaN or inf in 2 of 5 rows, first in row 2\."):
            Transitions(**(arrays() | {name: array}))


SHAPES: dict[str, list[tuple[int, ...]]] = {
    "state": [(5,), (5, 2, 2), (5, 0)],
    "action": [(4, 1), (5,), (5, 0)],
    "next_state": [(5, 3), (6, 2)],
    "reward": [(4,), (5, 1)],
    "terminal": [(6,), ()],
    "goal": [(5,), (4, 2), (5, 0)],
}


@pytest.mark.parametrize("name", SHAPES)
def test_arrays_of_another_shape_are_refused(name: str) -> None:
    for shape in SHAPES[name]:
        with refused():
            Transitions(**(arrays() | {name: np.ones(shape)}))


@pytest.mark.parametrize("name", ["state", "reward", "terminal", "goal"])
@pytest.mark.parametrize(
    "bad", ["abc", [["a", "b"]], object(), [[1.0, 2.0], [3.0]]], ids=["text", "texts", "object", "ragged"]
)
def test_what_is_not_an_array_of_numbers_is_refused(name: str, bad: Any) -> None:
    message = refusal(lambda: Transitions(**(arrays() | {name: bad})))
    assert message.startswith(f"{name} must be an array of numbers, got {type(bad).__name__} (")


REFUSED: dict[str, Callable[[], object]] = {
    "too few columns": lambda: table(columns=["x", "y"]),
    "a column named twice": lambda: table(columns=["x", "x", "push"]),
    "half a character": lambda: table(columns=["\ud800", "y", "push"]),
    "no rows": lambda: table(0),
    "none chosen": lambda: table()[torch.zeros(5, dtype=torch.bool)],
    "a row that is no slice": lambda: table()["state"],  # type: ignore[index]
    "no tables": lambda: concatenate([]),
    "a source that is not JSON": lambda: table(source={"made": {1, 2}}),
    "provenance by a number": lambda: table(provenance={"1": np.arange(5)}),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_table_is_refused(what: str) -> None:
    with refused():
        REFUSED[what]()


@pytest.mark.parametrize("difference", ["columns", "arrays", "widths", "goals"])
def test_tables_that_differ_cannot_be_joined(difference: str) -> None:
    given: dict[str, Any] = {"action": numbers(3, 2), "columns": ["a", "b", "c", "d"], "reward": None}
    changes: dict[str, Any] = {
        "columns": {"columns": ["a", "b", "c", "e"]},
        "arrays": {"reward": numbers(3)},
        "goals": {"goal": numbers(3, 1)},
        "widths": {"action": numbers(3, 1), "state": numbers(3, 3), "next_state": numbers(3, 3)},
    }
    one, other = table(3, **given), table(3, **given | changes[difference])
    with refused():
        concatenate([one, other])


# --- files


def test_a_file_says_what_it_is_and_how_it_was_made(tmp_path: Path) -> None:
    made = table(columns=["x", "y", "push"], source={"task": "t", "seed": 3})
    made.save(tmp_path / "data.h5")
    with h5py.File(tmp_path / "data.h5", "r") as file:
        said = {name: json.loads(text[:].tobytes()) for name, text in file["metadata"].items()}
        assert (said["format"], said["versions"]) == (["mocoda-transitions", 3], versions())
        assert (said["columns"], said["source"]) == (["x", "y", "push"], {"task": "t", "seed": 3})
        assert {name: (file[name].shape, str(file[name].dtype)) for name in file if name != "metadata"} == {
            "state": ((5, 2), "float32"),
            "action": ((5, 1), "float32"),
            "next_state": ((5, 2), "float32"),
            "reward": ((5,), "float32"),
            "terminal": ((5,), "bool"),
        }


def changed(path: Path, *lost: str, format: str = "") -> Path:
    table().save(path)
    with h5py.File(path, "a") as file:
        for name in (*lost, "metadata/format") if format else lost:
            del file[name]
        if format:
            file["metadata/format"] = np.frombuffer(format.encode(), np.uint8)
    return path


def test_loading_what_is_no_file_of_ours_is_refused(tmp_path: Path) -> None:
    paths = [
        tmp_path / "absent.h5",
        tmp_path,
        changed(tmp_path / "nameless.h5", "metadata/format"),
        changed(tmp_path / "named.h5", format='["somebody-else", 3]'),
        changed(tmp_path / "later.h5", format='["mocoda-transitions", 4]'),
        changed(tmp_path / "arrays.h5", "metadata/columns", "action", "terminal"),
    ]
    for path in paths:
        with refused():
            Transitions.load(path)


# --- failed writes leave nothing behind


def listing(folder: Path) -> dict[str, bytes | None]:
    """Everything below `folder` and what it holds."""
    paths = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in paths}


def test_saving_where_no_file_can_be_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plain").write_text("a regular file")
    Path("folder").mkdir()
    Path("folder/kept.txt").write_text("kept")
    before = listing(tmp_path)
    for path in ("plain/data.h5", "plain/deeper/data.h5", "folder", ".", "", "/"):
        with refused():
            table().save(path)
        with refused():
            write_json(path, {})
    assert listing(tmp_path) == before
    os.mkfifo("pipe")
    with refused():
        table().save("pipe")
    assert Path("pipe").is_fifo()


# --- laws

FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | NAMES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=4,
)
quick = settings(max_examples=30, deadline=None)


def floats(*shape: int) -> st.SearchStrategy[NDArray[np.float32]]:
    return any_arrays(np.float32, shape, elements=FLOATS)


@st.composite
def parts(draw: st.DrawFn) -> dict[str, Any]:
    """The arguments of a table: any widths, any number of rows from 1, with and without reward, terminal and goal."""
    rows, states, actions = draw(st.integers(1, 6)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    width = states + actions
    return {
        "state": draw(floats(rows, states)),
        "action": draw(floats(rows, actions)),
        "next_state": draw(floats(rows, states)),
        "reward": draw(st.none() | floats(rows)),
        "terminal": draw(st.none() | any_arrays(np.bool_, rows)),
        "goal": draw(st.none() | st.integers(1, 3).flatmap(lambda goals: floats(rows, goals))),
        "columns": draw(st.just([]) | st.lists(NAMES, min_size=width, max_size=width, unique=True)),
        "source": draw(st.dictionaries(NAMES, JSON, max_size=3)),
    }


tables = parts().map(lambda made: Transitions(**made))


def bits(table: Transitions) -> dict[str, Any]:
    """Everything that a table holds, to the bit."""
    held = {name: (array.shape, array.dtype, array.numpy().tobytes()) for name, array in table.arrays().items()}
    return {**held, "columns": table.columns, "source": table.source}


@quick
@given(tables, st.data())
def test_a_table_cut_and_joined_or_saved_is_the_same(table: Transitions, data: st.DataObject) -> None:
    inner = data.draw(st.sets(st.integers(1, len(table) - 1))) if len(table) > 1 else set()
    slices = [table[start:end] for start, end in itertools.pairwise([0, *sorted(inner), len(table)])]
    assert bits(concatenate(slices)) == bits(table)
    with tempfile.TemporaryDirectory() as folder:
        table.save(Path(folder) / "whole.h5")
        assert bits(Transitions.load(Path(folder) / "whole.h5")) == bits(table)
        assert [found.name for found in Path(folder).iterdir()] == ["whole.h5"]


@quick
@given(tables, st.data())
def test_choosing_by_indices_or_a_mask_is_choosing_each_row(table: Transitions, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(table) - 1), min_size=1, max_size=8))
    assert bits(table[torch.tensor(chosen)]) == bits(concatenate([table[i : i + 1] for i in chosen]))
    mask = torch.isin(torch.arange(len(table)), torch.tensor(chosen))
    assert bits(table[mask]) == bits(table[torch.tensor(sorted({*chosen}))])


@quick
@given(parts(), st.booleans())
def test_tables_share_no_memory_with_what_they_were_made_of(made: dict[str, Any], as_torch: bool) -> None:
    given_arrays: dict[str, Any] = {
        name: torch.from_numpy(value) if as_torch else value
        for name, value in made.items()
        if isinstance(value, np.ndarray)
    }
    columns, source = list(made["columns"]), dict(made["source"])
    table = Transitions(**given_arrays, columns=columns, source=source)
    before = bits(table)
    for array in given_arrays.values():
        array[...] = array == 0  # turns every value into another
    columns.append("another")
    source["another"] = 1
    part = table[:]
    part.state.fill_(7.0)
    part.terminal.logical_not_()
    assert bits(table) == before
