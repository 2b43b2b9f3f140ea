"""The contract of formats: what a new one takes, which one a path or prefix chooses, and what cannot be opened."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from transition_tables import arrays, assert_identical, numbers, refusal, table

import mocoda
from mocoda import Transitions
from mocoda.data import FORMATS, Format, convert, readable_formats, target_of, writable_formats


@pytest.fixture
def formats() -> Iterator[None]:
    before = dict(FORMATS._entries)
    yield
    FORMATS._entries = before


def test_a_format_of_one_s_own_takes_ten_lines(formats: None, tmp_path: Path) -> None:
    def read_csv(place: str) -> dict[str, Any]:
        x, push, next_x = np.loadtxt(place, delimiter=",", skiprows=1, unpack=True)
        return {"state": x, "action": push, "next_state": next_x}

    def write_csv(data: Transitions, place: str) -> None:
        rows = np.hstack([data.rows.numpy(), data.next_state.numpy()])
        np.savetxt(place, rows, delimiter=",", header="x,push,next_x", comments="")

    def is_csv(path: Path) -> bool:
        return path.suffix == ".csv"

    FORMATS.add(Format("csv", "CSV", "FILE.csv", read_csv, write_csv, suffixes=(".csv",), recognises=is_csv))

    made = Transitions(numbers(4, 1), numbers(4, 1) + 1, numbers(4, 1) + 2)
    mocoda.write(made, tmp_path / "data.csv")
    for source in (tmp_path / "data.csv", f"csv:{tmp_path / 'data.csv'}"):
        back = mocoda.read(source)
        assert back.rows.equal(made.rows) and back.next_state.equal(made.next_state)
        assert back.source == {"read_as": "CSV"}
    assert "CSV" in readable_formats() and "FILE.csv" in writable_formats()
    assert "FILE.csv" in refusal(lambda: mocoda.write(made, "data.txt"))
    assert mocoda.inspect(tmp_path / "data.csv").kind == "CSV"


def test_a_format_may_be_a_folder(formats: None, tmp_path: Path) -> None:
    def read_folder(place: str) -> dict[str, Any]:
        return {path.stem: np.load(path) for path in Path(place).glob("*.npy")}

    def write_folder(data: Transitions, place: str) -> None:
        Path(place).mkdir()
        for name, array in data.arrays().items():
            np.save(Path(place, f"{name}.npy"), array.numpy())

    FORMATS.add(
        Format(
            "folder",
            "folder of npy files",
            "folder:FOLDER",
            read_folder,
            write_folder,
            recognises=lambda path: (path / "state.npy").exists(),
            place="folder",
        )
    )
    made, target = table(), f"folder:{tmp_path / 'rows'}"
    mocoda.write(made, target)
    assert mocoda.read(tmp_path / "rows").rows.equal(made.rows)
    assert refusal(lambda: mocoda.write(made, target)) == (
        f"cannot write {str(tmp_path / 'rows')!r}: it exists. Name a new folder."
    )


def test_help_texts_name_every_format_and_need_no_torch() -> None:
    script = "import sys, mocoda.data as d; print(d.readable_formats(), d.writable_formats(), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == (
        "mocoda HDF5, D4RL-style HDF5, OGBench npz, npz, Parquet, minari:NAMESPACE/NAME-v0 or d3rlpy:FILE.h5 "
        "FILE.hdf5, d4rl:FILE.hdf5, FILE.npz, FILE.parquet, minari:NAMESPACE/NAME-v0 or d3rlpy:FILE.h5 False\n"
    )


# --- targets


@pytest.mark.parametrize(
    ("target", "name", "streamed", "path"),
    [
        ("a/x.hdf5", "mocoda", True, "a/x.hdf5"),
        ("x.h5", "mocoda", True, "x.h5"),
        ("x.npz", "npz", False, "x.npz"),
        ("d4rl:x.hdf5", "d4rl", False, "x.hdf5"),
        ("minari:me/x-v0", "minari", False, "minari-me-x-v0"),
        ("d3rlpy:x.h5", "d3rlpy", False, "x.h5"),
    ],
)
def test_the_ending_or_the_prefix_decides_and_only_our_hdf5_is_streamed(
    target: str, name: str, streamed: bool, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    chosen = target_of(target)
    assert (chosen.format.name, chosen.streamed, chosen.path) == (name, streamed, Path(path))
    made = table(columns=["x", "y", "push"], source={"seed": 1})
    made.save("finished.hdf5")
    convert("finished.hdf5", chosen)
    assert_identical(mocoda.read(f"{name}:{chosen.place}"), made)
    assert not [left for left in tmp_path.iterdir() if ":" in left.name]


def test_a_minari_data_set_that_exists_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    (tmp_path / "me" / "x-v0").mkdir(parents=True)
    assert "already" in refusal(lambda: target_of("minari:me/x-v0"))
    assert "cannot name a Minari data set" in refusal(lambda: target_of("minari:me/x"))


# --- plain HDF5, and files that lack what is needed


@pytest.mark.parametrize("label", [None, "somebody-else"])
def test_hdf5_with_our_names_and_no_header_is_read_as_npz_is(label: str | None, tmp_path: Path) -> None:
    plain = arrays(6)
    np.savez(tmp_path / "plain.npz", **plain)
    with h5py.File(tmp_path / "plain.hdf5", "w") as file:
        for name, array in plain.items():
            file[name] = array
        if label is not None:
            file.attrs["format"] = label
    read, same = mocoda.read(tmp_path / "plain.hdf5"), mocoda.read(tmp_path / "plain.npz")
    assert read.rows.equal(same.rows) and read.next_state.equal(same.next_state)


@pytest.mark.parametrize("suffix", ["hdf5", "npz"])
def test_a_file_without_states_is_answered_with_all_its_arrays(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"other.{suffix}"
    held: dict[str, Any] = {"data/demo_0/obs": numbers(5, 3), "actions": numbers(5, 1), "mask": np.zeros((5, 2, 2))}
    if suffix == "npz":
        np.savez(path, **held)
    else:
        with h5py.File(path, "w") as file:
            for name, array in held.items():
                file[name] = array
            file["data/self"] = file["data"]  # a walk without end, for who follows it
    kind = {"hdf5": "D4RL-style HDF5", "npz": "npz"}[suffix]
    assert refusal(lambda: mocoda.read(path)) == (
        f"{kind}: there is no array called 'state' or 'states' or 'observation' or 'observations' or 'obs'. There are: "
        "'actions' (5, 1), 'data/demo_0/obs' (5, 3), 'mask' (5, 2, 2)."
    )


# --- what cannot be opened


@pytest.fixture
def unprivileged(tmp_path: Path) -> Iterator[None]:
    """Not root, whom nothing is forbidden."""
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    as_root = os.geteuid() == 0
    if as_root:
        os.seteuid(65534)
    yield
    if as_root:
        os.seteuid(0)


FILES = ["mocoda:data.hdf5", "data.hdf5", "d4rl:data.hdf5", "data.npz", "ogbench:data.npz", "data.parquet"]


@pytest.mark.parametrize("source", [*FILES, "d3rlpy:data.h5"])
@pytest.mark.parametrize("harm", ["permission", "folder", "link", "pipe", "long", "null"])
def test_what_cannot_be_opened_is_refused_in_one_line(
    source: str, harm: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    prefix, _, name = source.rpartition(":")
    path = tmp_path / name
    if harm == "permission":
        path.write_bytes(b"\x89HDF\r\n\x1a\n")
        path.chmod(0)
        request.getfixturevalue("unprivileged")
        expected = "cannot be read: no permission. Its owner can give it with chmod +r."
    elif harm == "folder":
        path.mkdir()
        expected = " is a folder"
    elif harm == "link":
        path.symlink_to(tmp_path / "gone")
        expected = f"{str(path)!r} is a broken link: there is no {str(tmp_path / 'gone')!r}."
    elif harm == "pipe":
        os.mkfifo(path)
        expected = "cannot be read: it is neither a file nor a folder."
    else:
        path = tmp_path / ("x" * 300 + name if harm == "long" else f"\0{name}")
        expected = "cannot be read: " + ("File name too long." if harm == "long" else "embedded null byte.")
    message = refusal(lambda: mocoda.read(f"{prefix}:{path}" if prefix else path))
    assert expected in message and "\n" not in message and len(message) < 600
    if name.endswith("5"):
        assert expected in refusal(lambda: Transitions.load(path))


def test_a_minari_data_set_that_must_not_be_read_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    mocoda.write(table(), "minari:one-v0")
    data = tmp_path / "one-v0" / "data"
    (data / "main_data.hdf5").chmod(0)
    request.getfixturevalue("unprivileged")
    assert "main_data.hdf5' cannot be read: no permission" in refusal(lambda: mocoda.read("minari:one-v0"))
