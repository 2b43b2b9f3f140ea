"""Tables in memory and on disk: what is kept, what is refused and what a failed write leaves behind."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mocoda.files import InputError, unknown_name, versions, whole_file, write_json
from mocoda.transitions import Array, Transitions, concatenate, save_stream

Floats = NDArray[np.float32]


def numbers(*shape: int) -> Floats:
    return np.random.default_rng(7).normal(size=shape).astype(np.float32)


def arrays(rows: int = 5) -> dict[str, Any]:
    return {"state": numbers(rows, 2), "action": numbers(rows, 1), "next_state": numbers(rows, 2)}


def table(rows: int = 5, **extra: Any) -> Transitions:
    return Transitions(**(arrays(rows) | {"reward": numbers(rows)} | extra))


def assert_identical(one: Transitions, other: Transitions) -> None:
    for name in ("state", "action", "next_state"):
        left, right = getattr(one, name), getattr(other, name)
        assert left.dtype == right.dtype == torch.float32
        assert left.shape == right.shape
        assert left.view(torch.int32).equal(right.view(torch.int32))
    if one.reward is None or other.reward is None:
        assert one.reward is other.reward
    else:
        assert one.reward.view(torch.int32).equal(other.reward.view(torch.int32))
    assert one.terminal.dtype == other.terminal.dtype == torch.bool
    assert one.terminal.equal(other.terminal)
    assert one.columns == other.columns
    assert one.source == other.source


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(InputError) as error:
        call()
    return str(error.value)


# --- a table keeps what it was given


def test_arrays_of_any_kind_become_float32_tensors() -> None:
    made = Transitions([[1, 2], [3, 4]], np.ones((2, 1)), torch.ones(2, 2, dtype=torch.float64), [1, 0], [0, 1])
    for array in (made.state, made.action, made.next_state, made.reward):
        assert array is not None
        assert array.dtype == torch.float32
    assert made.state.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert made.terminal.tolist() == [False, True]


def test_an_absent_reward_stays_none_and_terminal_is_all_false() -> None:
    made = table(reward=None)
    assert made.reward is None
    assert made.terminal.tolist() == [False] * 5


def test_columns_are_made_up_unless_given() -> None:
    assert table().columns == ("state0", "state1", "action0")
    assert table(columns=["x", "y", "push"]).columns == ("x", "y", "push")


def test_rows_are_state_and_action_side_by_side() -> None:
    made = table()
    assert made.rows.equal(torch.cat([made.state, made.action], 1))


def test_the_repr_prints_the_shapes() -> None:
    assert repr(table(1234)) == (
        "Transitions(rows=1,234, state=(1234, 2), action=(1234, 1), reward=(1,234,), "
        "columns=[state0, state1, action0], device=cpu)"
    )
    assert repr(table(2, reward=None, columns=["x", "y", "push"])) == (
        "Transitions(rows=2, state=(2, 2), action=(2, 1), reward=None, columns=[x, y, push], device=cpu)"
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
    made = table(terminal=[1, 0, 1, 0, 1], source={"made": "here"})
    part = made[chosen]
    assert made.reward is not None
    assert part.reward is not None
    assert part.state.equal(made.state[1:4])
    assert part.action.equal(made.action[1:4])
    assert part.next_state.equal(made.next_state[1:4])
    assert part.reward.equal(made.reward[1:4])
    assert part.terminal.tolist() == [False, True, False]
    assert (part.columns, part.source) == (made.columns, made.source)


def test_moving_to_the_same_device_changes_nothing() -> None:
    made = table()
    assert_identical(made.to("cpu"), made)
    assert made.device == torch.device("cpu")


def test_concatenate_takes_columns_and_source_from_the_first_unless_given() -> None:
    one, other = table(source={"a": 1}), table(source={"b": 2})
    assert concatenate([one, other]).source == {"a": 1}
    assert concatenate([one, other], source={"c": 3}).source == {"c": 3}
    assert len(concatenate([one, other])) == 10


# --- bad input is refused in full sentences


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["state", "action", "next_state"])
def test_rows_that_are_not_finite_are_refused(name: str, bad: float) -> None:
    array = numbers(5, 1 if name == "action" else 2)
    array[[2, 4], 0] = bad
    assert refusal(lambda: Transitions(**(arrays() | {name: array}))) == (
        f"{name} has NaN or inf in 2 of 5 rows, first in row 2. Drop or repair those rows."
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rewards_that_are_not_finite_are_refused(bad: float) -> None:
    reward = numbers(5)
    reward[0] = bad
    assert refusal(lambda: table(reward=reward)) == (
        "reward has NaN or inf in 1 of 5 rows, first in row 0. Drop or repair those rows."
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


@pytest.mark.parametrize("name", ["state", "action", "next_state", "reward", "terminal"])
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


@pytest.mark.parametrize("difference", ["columns", "arrays", "widths"])
def test_tables_that_differ_cannot_be_joined_or_streamed(difference: str, tmp_path: Path) -> None:
    one = Transitions(numbers(3, 2), numbers(3, 2), numbers(3, 2), columns=["a", "b", "c", "d"])
    other = {
        "columns": Transitions(numbers(3, 2), numbers(3, 2), numbers(3, 2), columns=["a", "b", "c", "e"]),
        "arrays": Transitions(numbers(3, 2), numbers(3, 2), numbers(3, 2), numbers(3), columns=["a", "b", "c", "d"]),
        "widths": Transitions(numbers(3, 3), numbers(3, 1), numbers(3, 3), columns=["a", "b", "c", "d"]),
    }[difference]
    message = f"tables must have the same columns and arrays to be joined, got {one!r} and {other!r}."
    assert refusal(lambda: concatenate([one, other])) == message
    assert refusal(lambda: save_stream(tmp_path / "joined.h5", [one, other])) == message
    assert list(tmp_path.iterdir()) == []


# --- files


def test_a_saved_table_is_identical_after_load(tmp_path: Path) -> None:
    made = table(terminal=[1, 0, 0, 0, 1], columns=["x", "y", "push"], source={"task": "t", "nested": {"seed": [1]}})
    made.save(tmp_path / "data.h5")
    assert_identical(Transitions.load(tmp_path / "data.h5"), made)
    assert [path.name for path in tmp_path.iterdir()] == ["data.h5"]


def test_a_table_without_reward_is_identical_after_load(tmp_path: Path) -> None:
    made = table(1, reward=None)
    made.save(str(tmp_path / "data.h5"))
    assert_identical(Transitions.load(str(tmp_path / "data.h5")), made)


def test_a_table_longer_than_a_chunk_of_the_file_is_identical_after_load(tmp_path: Path) -> None:
    made = table(20_000)
    assert save_stream(tmp_path / "data.h5", [made[:7], made[7:16_390], made[16_390:]]) == 20_000
    assert_identical(Transitions.load(tmp_path / "data.h5"), made)


def test_saving_makes_the_folders_and_replaces_the_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "data.h5"
    table(3).save(path)
    table(5).save(path)
    assert len(Transitions.load(path)) == 5
    assert [p.name for p in path.parent.iterdir()] == ["data.h5"]


def test_a_file_says_what_it_is_and_how_it_was_made(tmp_path: Path) -> None:
    made = table(columns=["x", "y", "push"], source={"task": "t", "seed": 3})
    made.save(tmp_path / "data.h5")
    with h5py.File(tmp_path / "data.h5", "r") as file:
        assert file.attrs["format"] == "mocoda-transitions"
        assert int(file.attrs["format_version"]) == 1
        assert json.loads(file.attrs["columns"]) == ["x", "y", "push"]
        assert json.loads(file.attrs["source"]) == {"task": "t", "seed": 3}
        assert json.loads(file.attrs["versions"]) == versions()
        assert {name: (array.shape, str(array.dtype)) for name, array in file.items()} == {
            "state": ((5, 2), "float32"),
            "action": ((5, 1), "float32"),
            "next_state": ((5, 2), "float32"),
            "reward": ((5,), "float32"),
            "terminal": ((5,), "bool"),
        }


def test_versions_name_what_a_result_depends_on() -> None:
    found = versions()
    assert found["python"] == platform.python_version()
    for package in ("mocoda", "torch", "numpy", "h5py", "gymnasium"):
        assert found[package] == version(package)


def test_loading_a_missing_file_is_refused(tmp_path: Path) -> None:
    def message(path: Path) -> str:
        return refusal(lambda: Transitions.load(path))

    for path in (tmp_path / "absent.h5", tmp_path):
        assert message(path) == f"there is no file {str(path)!r}. `mocoda collect` makes one."


@pytest.mark.parametrize("kept", [0, 1, 100, 2_000, -1])
def test_loading_a_truncated_file_is_refused(kept: int, tmp_path: Path) -> None:
    path = tmp_path / "data.h5"
    table().save(path)
    content = path.read_bytes()
    assert kept < len(content)
    path.write_bytes(content[:kept])
    assert_not_hdf5(path)


def test_loading_a_file_that_is_not_hdf5_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("x,y,dx,dy\n0,0,0,0\n")
    assert_not_hdf5(path)


def assert_not_hdf5(path: Path) -> None:
    with pytest.raises(OSError) as reason:
        h5py.File(path, "r")
    assert refusal(lambda: Transitions.load(path)) == (
        f"{str(path)!r} cannot be read as HDF5: it is truncated or of another format ({reason.value})."
    )


@pytest.mark.parametrize("label", [None, "somebody-else"])
def test_loading_hdf5_of_another_origin_is_refused(label: str | None, tmp_path: Path) -> None:
    path = tmp_path / "other.h5"
    with h5py.File(path, "w") as file:
        file["state"] = numbers(3, 2)
        if label is not None:
            file.attrs["format"] = label
    assert refusal(lambda: Transitions.load(path)) == (
        f"{str(path)!r} is HDF5 but not a mocoda-transitions file: its attribute 'format' is missing or other. "
        "Build a mocoda.Transitions from its arrays and save that."
    )


def test_loading_another_format_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.h5"
    table().save(path)
    with h5py.File(path, "a") as file:
        file.attrs["format_version"] = 2
    assert refusal(lambda: Transitions.load(path)) == (
        f"{str(path)!r} has format version 2; this mocoda reads version 1. "
        "Read it with the mocoda that wrote it (its attribute 'versions' says which)."
    )


@pytest.mark.parametrize("lost", [["state"], ["action", "terminal"], ["next_state"]])
def test_loading_a_file_that_lacks_arrays_is_refused(lost: list[str], tmp_path: Path) -> None:
    path = tmp_path / "data.h5"
    table().save(path)
    with h5py.File(path, "a") as file:
        for name in lost:
            del file[name]
    assert refusal(lambda: Transitions.load(path)) == (
        f"{str(path)!r} lacks the arrays {lost}; it was not written by mocoda, or damaged since."
    )


@pytest.mark.parametrize("lost", ["format_version", "columns", "source"])
def test_loading_a_file_that_lacks_an_attribute_is_refused(lost: str, tmp_path: Path) -> None:
    path = tmp_path / "data.h5"
    table().save(path)
    with h5py.File(path, "a") as file:
        del file.attrs[lost]
    message = refusal(lambda: Transitions.load(path))
    assert message.startswith(repr(str(path)))
    assert lost in message


def test_a_file_that_was_refused_is_closed_again(tmp_path: Path) -> None:
    path = tmp_path / "data.h5"
    table().save(path)
    with h5py.File(path, "a") as file:
        del file["state"]
    refusal(lambda: Transitions.load(path))
    with h5py.File(path, "a"):  # HDF5 refuses to write to what is still open for reading
        pass


# --- failed writes leave nothing behind


def listing(folder: Path) -> dict[str, bytes | None]:
    """Everything below `folder` and what it holds."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize(
    ("below", "reason"), [("plain/data.h5", "File exists"), ("plain/deeper/data.h5", "Not a directory")]
)
def test_saving_below_a_regular_file_is_refused_and_leaves_nothing(below: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("a regular file")
    before = listing(tmp_path)
    path = tmp_path / below
    message = f"cannot write {str(path)!r}: {reason}. Give a path in a folder that can be written."
    assert refusal(lambda: table().save(path)) == message
    assert refusal(lambda: write_json(path, {})) == message
    assert listing(tmp_path) == before


def test_saving_over_a_folder_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "kept.txt").write_text("kept")
    before = listing(tmp_path)
    message = f"cannot write {str(path)!r}: it is a folder. Give a path in a folder that can be written."
    assert refusal(lambda: table().save(path)) == message
    assert refusal(lambda: write_json(path, {})) == message
    assert listing(tmp_path) == before


@pytest.mark.parametrize("path", [".", "", "/"])
def test_saving_over_a_folder_without_a_name_is_refused(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal(lambda: table().save(path)) == (
        f"cannot write {str(Path(path))!r}: it is a folder. Give a path in a folder that can be written."
    )
    assert listing(tmp_path) == {}


def half_way() -> Iterator[Transitions]:
    yield table(4)
    yield table(4)
    raise RuntimeError("the source dried up")


def test_a_stream_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"^the source dried up$"):
        save_stream(tmp_path / "data.h5", half_way())
    assert listing(tmp_path) == {}


def test_a_stream_that_fails_half_way_leaves_an_existing_file_untouched(tmp_path: Path) -> None:
    path = tmp_path / "data.h5"
    table(3).save(path)
    before = listing(tmp_path)
    with pytest.raises(RuntimeError, match=r"^the source dried up$"):
        save_stream(path, half_way())
    assert listing(tmp_path) == before
    assert_identical(Transitions.load(path), table(3))


def test_a_stream_of_no_tables_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "data.h5"
    assert refusal(lambda: save_stream(path, [])) == (
        f"there are no rows to write to {str(path)!r}; expected at least one table."
    )
    assert listing(tmp_path) == {}


def test_a_source_that_is_not_json_is_refused() -> None:
    expected = (
        "source must hold JSON values only, for it travels with the file (Object of type set is not JSON serializable)."
    )
    assert refusal(lambda: table(source={"made": {1, 2}})) == expected


def test_a_file_is_not_there_until_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "data.h5"

    def watched() -> Iterator[Transitions]:
        for _ in range(2):
            assert not path.exists()
            yield table(4)

    assert save_stream(path, watched()) == 8
    assert len(Transitions.load(path)) == 8


def test_a_whole_file_takes_its_name_only_when_the_block_ends_well(tmp_path: Path) -> None:
    path = tmp_path / "note.txt"
    with whole_file(path) as part:
        assert part == tmp_path / f".note.txt.{os.getpid()}.part"
        part.write_text("first")
        assert not path.exists()
    assert listing(tmp_path) == {"note.txt": b"first"}
    with pytest.raises(KeyError), whole_file(path) as part:
        part.write_text("second")
        raise KeyError
    assert listing(tmp_path) == {"note.txt": b"first"}


def test_json_is_written_readable_and_reads_back(tmp_path: Path) -> None:
    value = {"name": "Grüße", "numbers": [1, 2.5, None]}
    write_json(tmp_path / "value.json", value)
    text = (tmp_path / "value.json").read_text(encoding="utf-8")
    assert json.loads(text) == value
    assert "Grüße" in text
    assert text.endswith("}\n")


def test_json_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_json(tmp_path / "value.json", {"made": {1, 2}})
    assert listing(tmp_path) == {}


def test_an_unknown_name_is_answered_with_the_names_there_are_and_the_nearest() -> None:
    assert str(unknown_name("task", "navigatoin", ["navigation", "push"])) == (
        "there is no task 'navigatoin'; there are: navigation, push. Did you mean 'navigation'?"
    )
    assert str(unknown_name("task", "zzz", ["navigation", "push"])) == (
        "there is no task 'zzz'; there are: navigation, push."
    )
