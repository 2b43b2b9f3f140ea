"""Laws of tables: saving, slicing, joining and copying lose and change nothing."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from mocoda.data.transitions import Transitions, concatenate, save_stream

FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | NAMES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=4,
)
quick = settings(max_examples=30, deadline=None)


def floats(*shape: int) -> st.SearchStrategy[NDArray[np.float32]]:
    return arrays(np.float32, shape, elements=FLOATS)


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
        "terminal": draw(st.none() | arrays(np.bool_, rows)),
        "goal": draw(st.none() | st.integers(1, 3).flatmap(lambda goals: floats(rows, goals))),
        "columns": draw(st.just([]) | st.lists(NAMES, min_size=width, max_size=width, unique=True)),
        "source": draw(st.dictionaries(NAMES, JSON, max_size=3)),
    }


tables = parts().map(lambda made: Transitions(**made))


def bits(table: Transitions) -> dict[str, Any]:
    """All that a table holds, to the bit."""
    held: dict[str, Any] = {"columns": table.columns, "source": table.source, "reward": None, "goal": None}
    for name in ("state", "action", "next_state", "reward", "terminal", "goal"):
        array = getattr(table, name)
        if array is not None:
            held[name] = (tuple(array.shape), array.dtype, array.numpy().tobytes())
    return held


@quick
@given(tables)
def test_a_saved_table_is_identical_after_load(table: Transitions) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.h5"
        table.save(path)
        assert bits(Transitions.load(path)) == bits(table)
        assert [found.name for found in Path(folder).iterdir()] == ["data.h5"]


@quick
@given(tables, st.data())
def test_slicing_then_concatenating_is_the_identity(table: Transitions, data: st.DataObject) -> None:
    assert bits(concatenate(cut(table, data))) == bits(table)


@quick
@given(tables, st.data())
def test_a_stream_of_slices_is_stored_as_the_whole(table: Transitions, data: st.DataObject) -> None:
    slices = cut(table, data)
    with tempfile.TemporaryDirectory() as folder:
        whole, streamed = Path(folder) / "whole.h5", Path(folder) / "streamed.h5"
        table.save(whole)
        assert save_stream(streamed, iter(slices)) == len(table)
        assert bits(Transitions.load(streamed)) == bits(Transitions.load(whole)) == bits(table)


def cut(table: Transitions, data: st.DataObject) -> list[Transitions]:
    """The table in slices of one or more rows."""
    inner = data.draw(st.sets(st.integers(1, len(table) - 1))) if len(table) > 1 else set()
    edges = [0, *sorted(inner), len(table)]
    return [table[start:end] for start, end in itertools.pairwise(edges)]


@quick
@given(tables, st.data())
def test_choosing_by_indices_is_choosing_each_row(table: Transitions, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(table) - 1), min_size=1, max_size=8))
    each = concatenate([table[i : i + 1] for i in chosen])
    assert bits(table[torch.tensor(chosen)]) == bits(each)


@quick
@given(tables)
def test_a_permutation_and_its_inverse_are_the_identity(table: Transitions) -> None:
    backwards = torch.arange(len(table)).flip(0)
    assert bits(table[backwards][backwards]) == bits(table)


@quick
@given(parts(), st.booleans())
def test_changing_the_arrays_it_was_built_from_does_not_change_a_table(made: dict[str, Any], as_torch: bool) -> None:
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
    assert bits(table) == before


@quick
@given(tables)
def test_changing_a_slice_does_not_change_the_table(table: Transitions) -> None:
    before = bits(table)
    part = table[:]
    part.state.fill_(7.0)
    part.terminal.logical_not_()
    assert bits(table) == before


@quick
@given(tables)
def test_rows_hold_the_state_and_then_the_action(table: Transitions) -> None:
    states = table.state.shape[1]
    assert table.rows.shape == (len(table), len(table.columns))
    assert table.rows[:, :states].equal(table.state)
    assert table.rows[:, states:].equal(table.action)
