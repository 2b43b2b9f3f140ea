"""Tables on disk: what is kept, what is refused and what a failed write leaves behind."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import h5py
import pytest
from transition_tables import assert_identical, numbers, refusal, table

from mocoda.data.transitions import Transitions, save_stream
from mocoda.engine.files import versions, write_json

# --- files


def test_a_table_with_goals_is_identical_after_load_and_one_without_is_the_file_it_always_was(tmp_path: Path) -> None:
    made = table(goal=numbers(5, 3))
    made.save(tmp_path / "data.h5")
    assert_identical(Transitions.load(tmp_path / "data.h5"), made)
    table().save(tmp_path / "plain.h5")
    with h5py.File(tmp_path / "data.h5", "r") as file, h5py.File(tmp_path / "plain.h5", "r") as plain:
        assert set(plain) == set(file) - {"goal"} == {"state", "action", "next_state", "reward", "terminal"}
        assert file.attrs["format_version"] == plain.attrs["format_version"] == 2
    assert Transitions.load(tmp_path / "plain.h5").goal is None


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
        assert file.attrs["format"] == b"mocoda-transitions"
        assert int(file.attrs["format_version"]) == 2
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
    absent = tmp_path / "absent.h5"
    assert refusal(lambda: Transitions.load(absent)) == f"there is no file {str(absent)!r}."
    assert refusal(lambda: Transitions.load(tmp_path)) == f"{str(tmp_path)!r} is a folder; expected an HDF5 file."


@pytest.mark.parametrize("kept", [0, 1, 100, 2_000, -1])
def test_loading_a_truncated_file_is_refused(kept: int, tmp_path: Path) -> None:
    path = tmp_path / "data.h5"
    table().save(path)
    content = path.read_bytes()
    assert kept < len(content)
    path.write_bytes(content[:kept])
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
        "mocoda.read reads it if its arrays have names such as observations and actions."
    )


def test_loading_another_format_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.h5"
    table().save(path)
    with h5py.File(path, "a") as file:
        file.attrs["format_version"] = 3
    assert refusal(lambda: Transitions.load(path)) == (
        f"{str(path)!r} has format version 3; this mocoda reads versions up to 2. "
        "Read it with the mocoda that wrote it (its attribute 'versions' says which)."
    )


@pytest.mark.parametrize("lost", [["state"], ["columns", "action", "terminal"], ["format_version", "source"]])
def test_loading_a_file_that_lacks_arrays_or_attributes_is_refused(lost: list[str], tmp_path: Path) -> None:
    path = tmp_path / "data.h5"
    table().save(path)
    with h5py.File(path, "a") as file:
        for name in lost:
            del (file if name in file else file.attrs)[name]
    assert refusal(lambda: Transitions.load(path)) == (
        f"{str(path)!r} lacks {', '.join(lost)}; it was not written by mocoda, or damaged since."
    )


# --- failed writes leave nothing behind


def listing(folder: Path) -> dict[str, bytes | None]:
    """Everything below `folder` and what it holds."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize("below", ["plain/data.h5", "plain/deeper/data.h5"])
def test_saving_below_a_regular_file_is_refused_and_leaves_nothing(below: str, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("a regular file")
    before = listing(tmp_path)
    path = tmp_path / below
    reason = f"{str(tmp_path / 'plain')!r} is not a folder"
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


def test_a_special_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / "pipe"
    message = f"cannot write {str(path)!r}: it is not a regular file. Give a path in a folder that can be written."
    assert refusal(lambda: table().save(path)) == message
    assert path.is_fifo()
