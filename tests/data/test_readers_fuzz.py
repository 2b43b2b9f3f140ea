"""Damaged data of any kind is read as a valid table or refused as bad input: nothing else, and in little memory."""

from __future__ import annotations

import json
import resource
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import polars
import pytest
import torch
from gymnasium.spaces import Box
from hypothesis import given, settings
from hypothesis import strategies as st
from test_minari import recorded

import mocoda
from mocoda import InputError, Transitions
from mocoda.data.formats.shard_folder import Manifest

FILES = [
    *["data.hdf5", "d4rl.hdf5", "old.hdf5", "robomimic.hdf5", "data.npz", "packed.npz", "data.parquet", "data.csv"],
    *["lerobot/meta/info.json", "lerobot/meta/tasks.parquet", "lerobot/data/chunk-000/file-000.parquet"],
    *["lerobot/meta/mocoda.json", "d3rlpy.h5", "x-v0/data/metadata.json", "x-v0/data/main_data.hdf5"],
    *["a-v0/data/metadata.json", "a-v0/data/0/observations.arrow"],
    *["shards/manifest.json", "shards/shard-00000.parquet"],
]
IN_MEMORY: dict[str, Callable[[dict[str, Any]], Any]] = {
    "arrays": lambda columns: columns,
    "pandas": lambda columns: pd.DataFrame({name: list(column) for name, column in columns.items()}),
    "polars": lambda columns: polars.DataFrame({name: list(column) for name, column in columns.items()}, strict=False),
}
MUTATIONS = 50


@cache
def table() -> Transitions:
    numbers = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32)
    return Transitions(
        numbers[:, :3],
        numbers[:, 3:4],
        numbers[:, 4:7],
        numbers[:, 7],
        np.arange(30) % 10 == 9,
        goal=numbers[:, :2],
        provenance={"recipe": np.arange(30), "support": numbers[:, 7]},
    )


@cache
def whole(name: str) -> dict[str, bytes]:
    """A valid file of each kind, and the others that its folder must have."""
    numbers, ends = table().rows.numpy(), np.arange(30) % 10 == 9
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as environment:
        environment.setenv("MINARI_DATASETS_PATH", folder)
        path, kind = Path(folder) / name, name.partition("/")[0]
        if name == "old.hdf5":
            with h5py.File(path, "w") as file:
                for key, array in {"observations": numbers[:, :3], "actions": numbers[:, 3:], "timeouts": ends}.items():
                    file.create_dataset(key, data=array, compression="gzip", chunks=(7, *array.shape[1:]))
                file["rewards"], file["terminals"] = numbers[:, 0], np.zeros(30, bool)
                file["infos/goal"] = numbers[:, :2]
        elif name == "packed.npz":
            np.savez_compressed(path, observations=numbers[:, :3], actions=numbers[:, 3:], terminals=ends)
        elif kind == "lerobot":
            mocoda.write(table(), f"lerobot:{Path(folder) / kind}")
        elif kind == "x-v0":
            mocoda.write(table(), "minari:x-v0")
        elif kind == "a-v0":
            arrow(Path(folder), numbers)
        elif kind == "shards":
            (Path(folder) / kind).mkdir()
            manifest = Manifest(1, 30, "f", {"recipe": "coda"})
            manifest.save(Path(folder) / kind)
            manifest.write(Path(folder) / kind, 0, [(table(), 30)])
        else:
            kind = name.partition(".")[0]
            mocoda.write(table(), f"{kind}:{path}" if kind in ("d4rl", "robomimic", "d3rlpy") else path)
        found = [part for part in Path(folder).rglob("*") if part.is_file()]
        return {str(part.relative_to(folder)): part.read_bytes() for part in found}


def arrow(folder: Path, numbers: Any) -> None:
    """A Minari data set in Arrow format; its first episode is in one file."""
    made = numbers[:29, 3:], Box(-9, 9, (1,))
    recorded(
        "a-v0",
        Box(-np.inf, np.inf, (3,)),
        numbers[:, :3],
        29,
        actions=made[0],
        action_space=made[1],
        data_format="arrow",
    )
    data = folder / "a-v0/data/0"
    next(data.glob("*.arrow")).rename(data / "observations.arrow")


def damaged(random: np.random.Generator, content: bytes) -> bytes:
    """Some bytes changed, a part cut out or overwritten with another part, or the end missing."""
    changed = bytearray(content)
    for _ in range(random.integers(1, 5)):
        what = random.choice(["flip", "flip", "flip", "truncate", "cut", "copy"])
        begin, source = random.integers(0, len(changed) + 1, 2)
        length = int(random.integers(1, 65))
        if what == "truncate":
            del changed[begin:]
        elif what == "cut":
            del changed[begin : begin + length]
        elif what == "copy":
            changed[begin : begin + length] = changed[source : source + length]
        elif begin < len(changed):
            changed[begin] = random.choice([0, 1, 127, 128, 255, int(random.integers(0, 256))])
    return bytes(changed)


ODD: list[Callable[[Any], Any]] = [
    *[lambda column: column[:7], lambda column: column.astype(str), lambda column: column.astype(object)],
    *[lambda column: np.where(np.arange(len(column)) == 3, np.nan, column), lambda column: column * 1e300],
    *[
        lambda column: [*column[:-1], None],
        lambda column: [*column[:-1], "x"],
        lambda column: [[value] for value in column],
    ],
    *[lambda column: column.astype(complex), lambda column: column.astype("M8[s]"), lambda column: -column - 0.5],
]


def check_mutation(name: str, number: int) -> str:
    """Damages data of a kind and reads it: "read", or "refused" as bad input."""
    random = np.random.default_rng([number, *name.encode()])
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as environment:
        environment.setenv("MINARI_DATASETS_PATH", folder)
        if name in IN_MEMORY:
            columns: dict[str, Any] = {"state.x": np.arange(20.0), "action.u": np.ones(20)}
            columns |= {"reward": np.ones(20), "terminal": np.zeros(20)}
            columns |= {"episode": np.arange(20) // 10, "step": np.arange(20) % 10}
            columns = {key.partition(".")[0] if name == "arrays" else key: value for key, value in columns.items()}
            for key in random.choice([*columns], 2, replace=False):
                columns[str(key)] = ODD[random.integers(len(ODD))](np.asarray(columns[str(key)]))
            try:
                source: Any = IN_MEMORY[name](columns)
            except (ValueError, TypeError, polars.exceptions.PolarsError):  # nor is there such a data frame
                return "refused"
        else:
            for part, content in whole(name).items():
                (Path(folder) / part).parent.mkdir(parents=True, exist_ok=True)
                (Path(folder) / part).write_bytes(damaged(random, content) if part == name and number else content)
            first = name.partition("/")[0]
            source = f"minari:{first}" if first.endswith("-v0") else Path(folder) / first
            source = f"d3rlpy:{source}" if name == "d3rlpy.h5" else source
        try:
            found = mocoda.read(source, episode_steps=10)
        except InputError as refused:
            assert len(str(refused)) > 20
            return "refused"
    assert isinstance(found, Transitions) and torch.isfinite(found.rows).all()
    assert len(found) == len(found.action) == len(found.next_state) <= 100_000
    return "read"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*FILES, *IN_MEMORY])
def test_damaged_data_is_read_or_refused_soon_and_in_little_memory(name: str) -> None:
    assert name in IN_MEMORY or check_mutation(name, 0) == "read"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(1, MUTATIONS):
        start = time.monotonic()
        check_mutation(name, number)
        assert time.monotonic() - start < 20, number
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2_000_000  # kilobytes


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**40) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["lerobot/meta/info.json", "lerobot/meta/mocoda.json", "shards/manifest.json"])
def test_a_folder_that_says_something_else_of_itself_is_read_or_refused(name: str) -> None:
    @settings(max_examples=50, deadline=None, derandomize=True)
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        told = json.loads(whole(name)[name])
        place = told
        while isinstance(place, dict | list) and place:
            key = data.draw(st.sampled_from(range(len(place)) if isinstance(place, list) else sorted(place)))
            if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.integers(0, 3)) == 0:
                place[key] = data.draw(JSON)
                break
            place = place[key]
        (folder / name).write_text(json.dumps(told))
        try:
            mocoda.read(folder / name.partition("/")[0], episode_steps=10)
        except InputError as refused:
            assert len(str(refused)) > 20

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for part, content in whole(name).items():
            (folder / part).parent.mkdir(parents=True, exist_ok=True)
            (folder / part).write_bytes(content)
        holds()
