"""Tables in memory: what is kept and what is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transition_tables import arrays, assert_identical, numbers, refusal, table

from mocoda.data.transitions import Array, Transitions, concatenate, save_stream

# --- a table keeps what it was given


def test_arrays_of_any_kind_become_float32_tensors() -> None:
    made = Transitions([[1, 2], [3, 4]], np.ones((2, 1)), torch.ones(2, 2, dtype=torch.float64), [1, 0], [0, 1])
    for array in (made.state, made.action, made.next_state, made.reward):
        assert array is not None
        assert array.dtype == torch.float32
    assert made.state.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert made.terminal.tolist() == [False, True]


def test_a_goal_is_kept_as_float32_and_is_none_unless_given() -> None:
    made = table(2, goal=np.array([[1, 2, 3], [4, 5, 6]]))
    assert made.goal is not None and made.goal.dtype == torch.float32
    assert made.goal.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert made.rows.equal(table(2).rows) and made.columns == table(2).columns  # it is no part of the dynamics
    assert table().goal is None


def test_columns_are_made_up_unless_given() -> None:
    assert table().columns == ("state0", "state1", "action0")
    assert table(columns=["x", "y", "push"]).columns == ("x", "y", "push")


def test_rows_are_made_once_and_travel_with_no_copy_of_a_table() -> None:
    made = table()
    assert made.rows.equal(torch.cat([made.state, made.action], 1))
    assert made.rows is made.rows
    assert made[1:3].rows.equal(made.rows[1:3])
    sent = copy.deepcopy(made)  # as to another process
    assert "rows" in vars(made) and "rows" not in vars(sent)
    assert_identical(sent, made)


def test_the_repr_prints_the_shapes() -> None:
    assert repr(table(1234)) == (
        "Transitions(rows=1,234, state=(1234, 2), action=(1234, 1), reward=(1,234,), "
        "columns=[state0, state1, action0], device=cpu)"
    )
    assert repr(table(2, reward=None, columns=["x", "y", "push"])) == (
        "Transitions(rows=2, state=(2, 2), action=(2, 1), reward=None, columns=[x, y, push], device=cpu)"
    )
    assert repr(table(2, goal=numbers(2, 3))) == (
        "Transitions(rows=2, state=(2, 2), action=(2, 1), reward=(2,), goal=(2, 3), columns=[state0, state1, action0], "
        "device=cpu)"
    )


def test_a_tensor_that_requires_gradients_is_kept_without_them() -> None:
    made = table(state=torch.ones(5, 2, requires_grad=True))
    assert not made.state.requires_grad


def test_a_table_cannot_be_reassigned() -> None:
    made = table()
    with pytest.raises(AttributeError):
        made.state = made.action  # type: ignore[misc]


@pytest.mark.parametrize("kind", ["reversed", "big-endian", "read-only"])
def test_numpy_arrays_in_any_memory_layout_are_taken(kind: str) -> None:
    given = numbers(5, 2)
    awkward = {"reversed": given[::-1], "big-endian": given.astype(">f4"), "read-only": given.copy()}[kind]
    awkward.setflags(write=kind != "read-only")
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        made = table(state=awkward)
    finally:
        torch.set_warn_always(before)
    np.testing.assert_array_equal(made.state.numpy(), awkward)


@pytest.mark.parametrize(
    "chosen",
    [slice(1, 4), torch.tensor([1, 2, 3]), torch.tensor([False, True, True, True, False])],
    ids=["slice", "indices", "mask"],
)
def test_rows_are_chosen_by_slice_indices_or_mask(chosen: slice | torch.Tensor) -> None:
    made = table(terminal=[1, 0, 1, 0, 1], goal=numbers(5, 3), source={"made": "here"})
    part = made[chosen]
    assert made.reward is not None and made.goal is not None
    assert part.reward is not None and part.goal is not None
    assert part.goal.equal(made.goal[1:4])
    assert part.state.equal(made.state[1:4])
    assert part.action.equal(made.action[1:4])
    assert part.next_state.equal(made.next_state[1:4])
    assert part.reward.equal(made.reward[1:4])
    assert part.terminal.tolist() == [False, True, False]
    assert (part.columns, part.source) == (made.columns, made.source)


def test_moving_to_the_same_device_changes_nothing() -> None:
    made = table(goal=numbers(5, 3))
    assert_identical(made.to("cpu"), made)
    assert made.device == torch.device("cpu")


def test_concatenate_takes_columns_and_source_from_the_first_unless_given() -> None:
    one, other = table(source={"a": 1}), table(source={"b": 2})
    assert concatenate([one, other]).source == {"a": 1}
    assert concatenate([one, other], source={"c": 3}).source == {"c": 3}
    assert len(concatenate([one, other])) == 10


# --- bad input is refused in full sentences


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["state", "action", "next_state", "reward", "goal"])
def test_rows_that_are_not_finite_are_refused(name: str, bad: float) -> None:
    array = numbers(5) if name == "reward" else numbers(5, 1 if name == "action" else 2)
    array[[2, 4]] = bad
    assert refusal(lambda: Transitions(**(arrays() | {name: array}))) == (
        f"{name} has NaN or inf in 2 of 5 rows, first in row 2. Drop or repair those rows."
    )


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"state": numbers(5)}, "state must have shape (N, columns), got (5,)."),
        ({"state": numbers(5, 2, 2)}, "state must have shape (N, columns), got (5, 2, 2)."),
        ({"state": numbers(5, 0)}, "state must have shape (N, columns), got (5, 0)."),
        ({"action": numbers(4, 1)}, "action must have shape (5, columns), got (4, 1)."),
        ({"action": numbers(5)}, "action must have shape (5, columns), got (5,)."),
        ({"action": numbers(5, 0)}, "action must have shape (5, columns), got (5, 0)."),
        ({"next_state": numbers(5, 3)}, "next_state must have shape (5, 2), got (5, 3)."),
        ({"next_state": numbers(6, 2)}, "next_state must have shape (5, 2), got (6, 2)."),
        ({"reward": numbers(4)}, "reward must have shape (5,), one value a row, got (4,)."),
        ({"reward": numbers(5, 1)}, "reward must have shape (5,), one value a row, got (5, 1)."),
        ({"terminal": [True] * 6}, "terminal must have shape (5,), one value a row, got (6,)."),
        ({"terminal": True}, "terminal must have shape (5,), one value a row, got ()."),
        ({"goal": numbers(5)}, "goal must have shape (5, columns), got (5,)."),
        ({"goal": numbers(4, 2)}, "goal must have shape (5, columns), got (4, 2)."),
        ({"goal": numbers(5, 0)}, "goal must have shape (5, columns), got (5, 0)."),
    ],
)
def test_arrays_of_another_shape_are_refused(replaced: dict[str, Array], message: str) -> None:
    assert refusal(lambda: Transitions(**(arrays() | replaced))) == message


@pytest.mark.parametrize(
    "columns", [["x", "y"], ["x", "y", "push", "pull"], ["x", "x", "push"]], ids=["few", "many", "twice"]
)
def test_columns_of_wrong_count_or_named_twice_are_refused(columns: list[str]) -> None:
    assert refusal(lambda: table(columns=columns)) == (
        f"columns must name each of the 2 state and 1 action columns once, got {columns}."
    )


def test_an_empty_data_set_is_refused() -> None:
    message = "state has no rows; expected at least 1. Was the data filtered to nothing?"
    assert refusal(lambda: table(0)) == message
    assert refusal(lambda: table()[torch.zeros(5, dtype=torch.bool)]) == message


@pytest.mark.parametrize("name", ["state", "action", "next_state", "reward", "terminal", "goal"])
@pytest.mark.parametrize(
    "bad", ["abc", [["a", "b"]], object(), [[1.0, 2.0], [3.0]]], ids=["text", "texts", "object", "ragged"]
)
def test_what_is_not_an_array_of_numbers_is_refused(name: str, bad: Any) -> None:
    with pytest.raises((TypeError, ValueError, RuntimeError)) as reason:
        torch.as_tensor(bad)
    assert refusal(lambda: Transitions(**(arrays() | {name: bad}))) == (
        f"{name} must be an array of numbers, got {type(bad).__name__} ({reason.value})."
    )


def test_concatenate_of_nothing_is_refused() -> None:
    assert refusal(lambda: concatenate([])) == "concatenate got no tables; expected at least 1."


@pytest.mark.parametrize("difference", ["columns", "arrays", "widths", "goals"])
def test_tables_that_differ_cannot_be_joined_or_streamed(difference: str, tmp_path: Path) -> None:
    one = Transitions(numbers(3, 2), numbers(3, 2), numbers(3, 2), columns=["a", "b", "c", "d"])
    other = {
        "columns": Transitions(numbers(3, 2), numbers(3, 2), numbers(3, 2), columns=["a", "b", "c", "e"]),
        "arrays": Transitions(numbers(3, 2), numbers(3, 2), numbers(3, 2), numbers(3), columns=["a", "b", "c", "d"]),
        "goals": Transitions(
            numbers(3, 2), numbers(3, 2), numbers(3, 2), goal=numbers(3, 1), columns=["a", "b", "c", "d"]
        ),
        "widths": Transitions(numbers(3, 3), numbers(3, 1), numbers(3, 3), columns=["a", "b", "c", "d"]),
    }[difference]
    message = f"tables must have the same columns and arrays to be joined, got {one!r} and {other!r}."
    assert refusal(lambda: concatenate([one, other])) == message
    assert refusal(lambda: save_stream(tmp_path / "joined.h5", [one, other])) == message
    assert list(tmp_path.iterdir()) == []
