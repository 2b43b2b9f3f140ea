"""Conditions on rows: what they mean is what Python says of the same numbers, and nothing that is no condition runs."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mocoda.data.transitions import Transitions
from mocoda.data.where import Condition, columns_of
from mocoda.engine.errors import InputError

ROWS = np.arange(-4, 4).astype(np.float32)
NUMBERS: dict[str, Any] = {
    "x": ROWS,
    "y": ROWS[::-1] / 2,
    "z": np.abs(ROWS) * 0.25,
}  # exact in float32, as are sums of a few
BY_HAND: dict[str, Any] = {
    "abs": np.abs,
    "min": lambda *given: np.minimum.reduce(np.broadcast_arrays(*given)),
    "max": lambda *given: np.maximum.reduce(np.broadcast_arrays(*given)),
    "norm": lambda *given: np.sqrt(sum(np.square(one) for one in given)),
}

number = st.recursive(
    st.sampled_from([*NUMBERS, "0.5", "2", "-1", "3"]),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from("+-*"), inner),
        st.builds("-{}".format, inner),
        st.builds("({})**2".format, inner),
        st.builds("{}({})".format, st.sampled_from(["abs", "norm"]), inner),
        st.builds("{}({}, {})".format, st.sampled_from(["min", "max"]), inner, inner),
    ),
    max_leaves=4,
)
comparison = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
compared = st.one_of(
    st.builds("{} {} {}".format, number, comparison, number),
    st.builds("{} {} {} {} {}".format, number, comparison, number, comparison, number),
)
condition = st.recursive(
    compared,
    lambda inner: st.one_of(
        st.builds("({}) {} ({})".format, inner, st.sampled_from(["and", "or"]), inner),
        st.builds("not ({})".format, inner),
    ),
    max_leaves=4,
)


def by_python(text: str, row: int) -> bool:
    """What Python says of one row."""
    names = {name: float(values[row]) for name, values in NUMBERS.items()}
    return bool(eval(text, {**BY_HAND, **names}))


def holds(text: str, **columns: Any) -> list[bool]:
    held: list[bool] = Condition(text)({name: torch.as_tensor(values) for name, values in columns.items()}).tolist()
    return held


@given(condition)
def test_a_condition_means_what_python_says_of_the_same_numbers(text: str) -> None:
    expected = [by_python(text, row) for row in range(len(ROWS))]
    columns = {name: torch.tensor(np.ascontiguousarray(values)) for name, values in NUMBERS.items()}
    found = Condition(text)
    assert found(columns).tolist() == expected
    parts = [part(columns) for part in found.conjuncts]
    assert torch.stack(parts).all(0).tolist() == expected


@given(
    st.text(max_size=30) | st.text("xy .=<>!&()+-*/'`\"12eandornot,", max_size=30) | condition.map(lambda t: t[::-1])
)
def test_what_is_no_condition_is_refused_and_nothing_else_happens(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            found = Condition(text)
            found({name: torch.zeros(2) for name in (*found.names, "x")})
        except InputError:
            pass


@pytest.mark.parametrize(
    "text",
    ["", "x > > 2", "x=1 and y=", "x + 1", "(x > 1) + 1 > 1", "x in y", "x % 2 == 0", "f(x) > 1", "abs(x, y) > 1",
     "x.__class__() > 1", "x[0] > 1", "[x for x in y]", "x & y", "not " * 3_000 + "x", "-" * 5_000 + "x > 1",
     "1" * 400 + " > x", "True", "1j > x", "b'x' > 1", "f'{x}' > 1", "x := 1", "norm(*x) > 1", "(lambda: 1)() > 1"],
)  # fmt: skip
def test_other_python_is_no_condition(text: str) -> None:
    with pytest.raises(InputError):
        Condition(text)


def test_names_quotes_single_equals_and_truth() -> None:
    assert holds("confirmed=1", confirmed=[1, 0, -1]) == [True, False, False]
    assert holds("confirmed and not new", confirmed=[1, 1, -1], new=[0.0, 0.9, 0.0]) == [True, False, False]
    assert holds("`pos/x` > 1 and 'a b' = 2", **{"pos/x": [2.0, 2.0], "a b": [2, 3]}) == [True, False]
    assert holds("box1.x == 0.1 and 0 < next.box1.x", **{"box1.x": [0.1, 0.1], "next.box1.x": [1.0, 0.0]}) == [1, 0]
    assert holds("id == 9007199254740991", id=[2**53 - 1, 2**53 - 2]) == [True, False]
    assert Condition("norm(x, y) == 1", 1e-3)({"x": torch.tensor([0.6, 0.7]), "y": torch.tensor([0.8001, 0.8])})[0]
    with pytest.raises(InputError, match=r"Did you mean 'box1\.x'"):
        holds("box1.z > 1", **{"box1.x": [1.0]})
    with pytest.raises(InputError, match="`pos/x`"):
        holds("pos/x > 1", **{"pos/x": [1.0]})
    with pytest.raises(InputError, match=r"`gear\.0`"):
        holds("gear.0 > 0.5", **{"gear.0": [1.0]})


def test_a_table_s_columns_by_name() -> None:
    table = Transitions([[1.0], [2.0]], [[3.0], [4.0]], [[5.0], [6.0]], [0.0, 1.0], columns=("a.x", "push"),
                        provenance={"new": [0, 1]}, episode=[7, 7])  # fmt: skip
    assert {name: column.tolist() for name, column in columns_of(table).items()} == {
        "reward": [0, 1], "terminal": [False, False], "episode": [7, 7], "step": [0, 1], "new": [0, 1],
        "next.a.x": [5, 6], "a.x": [1, 2], "push": [3, 4],
    }  # fmt: skip
