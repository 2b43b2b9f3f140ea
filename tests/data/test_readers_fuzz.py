"""Damaged files of any kind are read as a valid table or refused as bad input: nothing else, and in little time."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mocoda
from mocoda import InputError, Transitions

KINDS = [
    *["data.hdf5", "d4rl.hdf5", "old.hdf5", "robomimic.hdf5", "data.npz", "packed.npz", "data.parquet", "data.csv"],
    *["lerobot/meta/info.json", "lerobot/meta/tasks.parquet", "lerobot/data/chunk-000/file-000.parquet"],
    *["lerobot/meta/mocoda.json", "d3rlpy.h5", "x-v0/data/metadata.json", "x-v0/data/main_data.hdf5"],
]
SLOW = {"robomimic.hdf5": 10}  # a process reads their texts first; `make test-long` runs all 200
MUTATIONS = 200


@cache
def whole(name: str) -> bytes:
    """A valid file of each kind."""
    numbers = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32)
    ends = np.arange(30) % 10 == 9
    table = Transitions(
        numbers[:, :3],
        numbers[:, 3:4],
        numbers[:, 4:7],
        numbers[:, 7],
        ends,
        goal=numbers[:, :2],
        provenance={"recipe": np.arange(30), "support": numbers[:, 7]},
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        if name == "old.hdf5":
            with h5py.File(path, "w") as file:
                for key, array in {"observations": numbers[:, :3], "actions": numbers[:, 3:], "timeouts": ends}.items():
                    file.create_dataset(key, data=array, compression="gzip", chunks=(7, *array.shape[1:]))
                file["rewards"], file["terminals"] = numbers[:, 0], np.zeros(30, bool)
                file["infos/goal"] = numbers[:, :2]
        elif name.startswith("lerobot"):
            mocoda.write(table, f"lerobot:{Path(folder) / 'lerobot'}")
        elif name.startswith("x-v0"):
            with pytest.MonkeyPatch.context() as environment:
                environment.setenv("MINARI_DATASETS_PATH", folder)
                mocoda.write(table, "minari:x-v0")
        elif name == "packed.npz":
            np.savez_compressed(path, observations=numbers[:, :3], actions=numbers[:, 3:], terminals=ends)
        else:
            kind = name.partition(".")[0]
            mocoda.write(table, f"{kind}:{path}" if kind in ("d4rl", "robomimic", "d3rlpy") else path)
        return path.read_bytes()


def damaged(data: st.DataObject, content: bytes) -> bytes:
    """Some bytes changed, a part cut out or overwritten with another part, or the end missing."""
    changed = bytearray(content)
    place = st.integers(0, len(content) - 1)
    for _ in range(data.draw(st.integers(1, 4))):
        what = data.draw(st.sampled_from(["flip", "flip", "flip", "truncate", "cut", "copy"]))
        begin = min(data.draw(place), max(len(changed) - 1, 0))
        length = data.draw(st.integers(1, 64))
        if what == "flip" and changed:
            changed[begin] = data.draw(st.sampled_from([0, 1, 127, 128, 255]) | st.integers(0, 255))
        elif what == "truncate":
            del changed[begin:]
        elif what == "cut":
            del changed[begin : begin + length]
        elif changed:
            source = min(data.draw(place), len(changed) - 1)
            changed[begin : begin + length] = changed[source : source + length]
    return bytes(changed)


def check_read(path: str | Path) -> None:
    """What can be read is a table like any other; what cannot be is said to be bad input."""
    try:
        table = mocoda.read(path, episode_steps=10)
    except InputError as refused:
        assert len(str(refused)) > 20
    else:
        assert isinstance(table, Transitions)
        assert len(table) == len(table.action) == len(table.next_state) <= 100_000
        assert torch.isfinite(table.rows).all()


def folder_of(place: Path, first: str) -> Path:
    """The files of a LeRobot folder, or a Minari data set, that are read, whole."""
    for part in KINDS:
        if part.startswith(f"{first}/"):
            (place / part).parent.mkdir(parents=True, exist_ok=True)
            (place / part).write_bytes(whole(part))
    return place / first


def check_mutations(name: str, count: int) -> None:
    @settings(max_examples=count, deadline=None, derandomize=True)
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        path.write_bytes(damaged(data, whole(name)))
        check_read(place)

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as environment:
        environment.setenv("MINARI_DATASETS_PATH", folder)
        path = Path(folder) / name
        first, in_folder, _ = name.partition("/")
        if in_folder:
            folder_of(Path(folder), first)
        place = {"x-v0": "minari:x-v0", "d3rlpy.h5": f"d3rlpy:{path}"}.get(first, Path(folder) / first)
        path.write_bytes(whole(name))
        assert len(mocoda.read(place, episode_steps=10)) > 20
        holds()


@pytest.mark.parametrize("name", KINDS)
def test_a_damaged_file_is_read_or_refused(name: str) -> None:
    check_mutations(name, SLOW.get(name, MUTATIONS))


@pytest.mark.long
@pytest.mark.parametrize("name", SLOW)
def test_a_damaged_file_is_read_or_refused_in_many_ways(name: str) -> None:
    check_mutations(name, MUTATIONS)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**40) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


@pytest.mark.parametrize("name", ["meta/info.json", "meta/mocoda.json"])
def test_a_folder_that_says_something_else_of_itself_is_read_or_refused(name: str) -> None:
    @settings(max_examples=100, deadline=None, derandomize=True)
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        told = json.loads(whole(f"lerobot/{name}"))
        place = told
        while isinstance(place, dict | list) and place:
            key = data.draw(st.sampled_from(range(len(place)) if isinstance(place, list) else sorted(place)))
            if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.integers(0, 3)) == 0:
                place[key] = data.draw(JSON)
                break
            place = place[key]
        (folder / name).write_text(json.dumps(told))
        check_read(folder)

    with tempfile.TemporaryDirectory() as temporary:
        folder = folder_of(Path(temporary), "lerobot")
        holds()


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    beginning=st.sampled_from([b"", b"PK\x03\x04", b"PAR1", b"\x89HDF\r\n\x1a\n", b"\x80\x04"]),
    rest=st.binary(max_size=200),
)
def test_bytes_of_no_file_at_all_are_refused(beginning: bytes, rest: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "noise"
        path.write_bytes(beginning + rest)
        with pytest.raises(InputError):
            mocoda.read(path)
