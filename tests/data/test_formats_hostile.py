"""Files that are broken or mean harm: a clear sentence, no code run, no memory asked for."""

from __future__ import annotations

import pickle  # noqa: TID251, what must never be opened
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from transition_tables import numbers, refusal, table

import mocoda

ARRAYS = {"observations": numbers(4, 2), "actions": numbers(4, 1), "next_observations": numbers(4, 2)}


class Evil:
    """Opened, it would leave a file behind."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return Path.touch, (self.trace,)


def npz(path: Path, **changed: Any) -> None:
    np.savez(path, **(ARRAYS | changed))


def npy_header(shape: str, dtype: str = "'<f4'") -> bytes:
    text = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def claiming(path: Path, header: bytes, size: int | None = None) -> None:
    """An npz whose observations have this header and no numbers; the zip may lie about their size, too."""
    npz(path)
    with zipfile.ZipFile(path) as file:
        others = {name: file.read(name) for name in file.namelist() if name != "observations.npy"}
    with zipfile.ZipFile(path, "w") as file:
        for name, content in {**others, "observations.npy": header}.items():
            file.writestr(name, content)
        if size is not None:
            file.getinfo("observations.npy").file_size = size  # in the directory, written when the file is closed


def hdf5(path: Path, change: Callable[[h5py.File], None], leave: str = "observations") -> None:
    with h5py.File(path, "w") as file:
        for name, array in ARRAYS.items():
            if name != leave:
                file[name] = array
        change(file)


def parquet(path: Path, **columns: Any) -> None:
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def elsewhere(path: Path) -> Path:
    """Another file, with numbers that are none of the reader's business."""
    with h5py.File(path.with_name("elsewhere.h5"), "w") as file:
        file["observations"] = ARRAYS["observations"]
    return path.with_name("elsewhere.h5")


def virtual(path: Path) -> Callable[[h5py.File], None]:
    layout = h5py.VirtualLayout((4, 2), "f4")
    layout[:] = h5py.VirtualSource(elsewhere(path), "observations", (4, 2))
    return lambda file: file.create_virtual_dataset("observations", layout) and None


def external(path: Path) -> Callable[[h5py.File], None]:
    path.with_name("raw").write_bytes(bytes(32))
    return lambda file: file.create_dataset("observations", (4, 2), "f4", external=str(path.with_name("raw"))) and None


def of_version_1(path: Path) -> None:
    """Makes one of our files one of those whose texts have variable length."""
    with h5py.File(path, "a") as file:
        for name in ("format", "columns", "source", "versions"):
            file.attrs[name] = file.attrs[name].decode()
        file.attrs["format_version"] = 1


def looping(path: Path) -> None:
    """One of our files whose texts HDF5 itself reads for ever."""
    table().save(path)
    of_version_1(path)
    content = bytearray(path.read_bytes())
    heap = content.index(b"GCOL")
    content[heap + 16 : heap + 32] = bytes(16)
    path.write_bytes(content)


def headed(path: Path, **attributes: Any) -> None:
    table().save(path)
    with h5py.File(path, "a") as file:
        file.attrs.update(attributes)


NO_FORMAT = (
    "PATH is in none of the formats that mocoda reads: mocoda HDF5, robomimic HDF5, D4RL-style HDF5, OGBench npz, npz, "
    "Parquet, CSV, LeRobot data set, a folder of Parquet shards, minari:NAMESPACE/NAME-v0 or d3rlpy:FILE.h5."
)
DAMAGED = "PATH cannot be read as KIND: it is truncated, damaged or of another format"
TAMPERED = "PATH is damaged or was tampered with: /observations"
FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty.hdf5": (lambda p: p.touch(), "PATH is empty."),
    "text.npz": (lambda p: p.write_text("hello"), NO_FORMAT),
    "pickle.npz": (
        lambda p: p.write_bytes(pickle.dumps(Evil(p.with_name("trace")))),
        f"{NO_FORMAT} It may be a pickle, which could run code when opened: save its arrays as npz.",
    ),
    "objects.npz": (
        lambda p: npz(p, actions=np.array([Evil(p.with_name("trace"))] * 4)),
        "PATH: actions.npy holds pickled objects, which could run code when opened. Save plain numbers.",
    ),
    "texts.npz": (lambda p: npz(p, actions=["a"] * 4), "PATH: actions.npy holds <U1, not plain numbers."),
    "records.npz": (lambda p: npz(p, actions=np.zeros(4, "f4,i4")), "PATH: actions.npy holds [('f0',"),
    "long.npz": (
        lambda p: claiming(p, npy_header("(10000000000, 2)")),
        "PATH: observations.npy claims 80,000,000,000 bytes and stores 128.",
    ),
    "lying.npz": (
        lambda p: claiming(p, npy_header("(100000000, 2)"), size=800_000_128),
        "PATH: observations.npy claims 800,000,128 bytes and stores 128.",
    ),
    "negative.npz": (lambda p: claiming(p, npy_header("(-1, -8)")), DAMAGED.replace("KIND", "npz")),
    "code.npz": (
        lambda p: claiming(p, npy_header("__import__('os').abort()")),
        "PATH cannot be read as npz: it is truncated, damaged or of another format (ValueError: ",
    ),
    "lengths.npz": (
        lambda p: npz(p, actions=numbers(3, 1)),
        "npz: action has 3 rows, but state has 4; they must have the same number.",
    ),
    "long.hdf5": (
        lambda p: hdf5(p, lambda f: f.create_dataset("observations", (10**10, 2), "f4", chunks=(1000, 2)) and None),
        "PATH: /observations claims 80,000,000,000 bytes and stores 0.",
    ),
    "chunks.hdf5": (
        lambda p: hdf5(
            p, lambda f: f.create_dataset("observations", (4, 2), "f4", maxshape=(None, 2), chunks=(10**8, 2)) and None
        ),
        f"{TAMPERED} has 32 bytes in chunks of 800,000,000.",
    ),
    "soft.hdf5": (
        lambda p: hdf5(p, lambda f: f.__setitem__("observations", h5py.SoftLink("/actions"))),
        f"{TAMPERED} is a link to elsewhere.",
    ),
    "external.hdf5": (
        lambda p: hdf5(p, lambda f: f.__setitem__("observations", h5py.ExternalLink(elsewhere(p), "observations"))),
        f"{TAMPERED} is a link to elsewhere.",
    ),
    "infos.hdf5": (
        lambda p: hdf5(p, lambda f: f.__setitem__("infos", h5py.ExternalLink(elsewhere(p), "/")), leave=""),
        "PATH is damaged or was tampered with: /infos/goal is a link to elsewhere.",
    ),
    "provenance.hdf5": (
        lambda p: hdf5(p, lambda f: f.__setitem__("provenance", h5py.ExternalLink(elsewhere(p), "/")), leave=""),
        "PATH is damaged or was tampered with: /provenance is a link to elsewhere.",
    ),
    "virtual.hdf5": (lambda p: hdf5(p, virtual(p)), f"{TAMPERED} keeps its numbers in another file."),
    "storage.hdf5": (lambda p: hdf5(p, external(p)), f"{TAMPERED} keeps its numbers in another file."),
    "texts.hdf5": (
        lambda p: hdf5(p, lambda f: f.__setitem__("observations", ["a", "b", "c", "d"])),
        f"{TAMPERED} holds object, not plain numbers.",
    ),
    "group.hdf5": (
        lambda p: hdf5(p, lambda f: f.create_group("observations/image") and None),
        "PATH: observations is not an array, or damaged (observations).",
    ),
    "looping.hdf5": (looping, "PATH cannot be read as HDF5: it is truncated, damaged or of another format."),
    "version.hdf5": (
        lambda p: headed(p, format_version=9),
        "PATH has format version 9; this mocoda reads versions up to 2. Read it with the mocoda that wrote it (its "
        "attribute 'versions' says which).",
    ),
    "columns.hdf5": (
        lambda p: headed(p, columns="3"),
        "PATH is damaged: its columns must be a list of names, and its source a JSON object.",
    ),
    "json.hdf5": (lambda p: headed(p, source="{"), DAMAGED.replace("KIND", "HDF5")),
    "deep.hdf5": (lambda p: headed(p, source="[" * 100_000), DAMAGED.replace("KIND", "HDF5")),
    "texts.parquet": (
        lambda p: parquet(p, **{"state.x": ["a"], "action.x": [1.0]}),
        "Parquet: ['x'] name columns of both state and action; every column needs its own name.",
    ),
    "strings.parquet": (
        lambda p: parquet(p, **{"state.x": ["a"], "action.a": [1.0], "next_state.x": [1.0]}),
        "Parquet: the column 'state.x' holds object, not numbers. Convert it, or leave it out.",
    ),
    "lists.parquet": (
        lambda p: parquet(p, state=[[1.0]], action=[[1.0]]),
        "Parquet: there are no columns of the state; they are called state.x, state.y and so on. There are: "
        "'action', 'state'.",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_is_refused_in_a_clear_sentence(name: str, tmp_path: Path) -> None:
    make, message = FILES[name]
    path = tmp_path / name
    make(path)
    assert refusal(lambda: mocoda.read(path)).startswith(message.replace("PATH", repr(str(path))))
    assert not (tmp_path / "trace").exists()


def test_a_name_that_is_no_text_is_passed_over(tmp_path: Path) -> None:
    hdf5(tmp_path / "data.hdf5", lambda file: file.id.links.create_soft(b"\xff\xfe", b"/actions"), leave="")
    assert mocoda.read(tmp_path / "data.hdf5").source["ignored"] == ["\ufffd\ufffd"]


def test_hostile_files_are_refused_in_little_memory(tmp_path: Path) -> None:
    for name, (make, _) in FILES.items():
        if name != "looping.hdf5":  # it takes seconds, and no memory
            make(tmp_path / name)
    constant = pyarrow.array(np.zeros(20_000_000, np.int8))
    parquet(tmp_path / "long.parquet", **{"state.x": constant, "action.a": constant, "next_state.x": constant})
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "import mocoda, mocoda.data.formats, pyarrow.parquet\n"
        "mocoda.Transitions\n"
        "reserved = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (reserved + (4 << 30),) * 2)  # pyarrow reserves some for itself\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for path in sorted(Path(sys.argv[1]).iterdir()):\n"
        "    try: mocoda.read(path)\n"
        "    except mocoda.InputError as refused: print(path.name, str(refused).count('Memory'), sep='\\t')\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    names = sorted({*FILES, "long.parquet", "raw", "elsewhere.h5"} - {"looping.hdf5"})
    *said, kilobytes = done.stdout.splitlines()
    assert said == [f"{name}\t0" for name in names]
    assert int(kilobytes) < 100_000


@pytest.mark.parametrize("name", ["minari:../../etc/x-v0", "minari:/etc/x-v0", "minari:me/../../x-v0", "minari:"])
def test_names_that_climb_out_of_a_folder_are_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "inside"))
    assert refusal(lambda: mocoda.read(name))
    assert refusal(lambda: mocoda.write(table(), name))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kept", [8, 100, 0.5, 0.9, -1])
@pytest.mark.parametrize("target", ["data.hdf5", "d4rl:data.hdf5", "data.npz", "data.parquet"])
def test_a_truncated_file_is_refused(target: str, kept: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mocoda.write(table(), target)
    path = Path(target.split(":")[-1])
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content)) if 0 < kept < 1 else int(kept)])
    kind = {".hdf5": "HDF5", ".npz": "npz", ".parquet": "Parquet"}[path.suffix]
    assert refusal(lambda: mocoda.read(path)).startswith(f"{str(path)!r} cannot be read as {kind}: it is truncated")


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nowhere.hdf5", "there is no file 'nowhere.hdf5'."),
        (
            ".",
            "'.' is a folder; name a file, a folder of LeRobot's, which has a file meta/info.json, or a Minari data "
            "set as minari:NAMESPACE/NAME-v0.",
        ),
        ("d4rl:data.npz", "'data.npz' cannot be read as HDF5: it is truncated or of another format ("),
        ("d3rlpy:data.npz", "'data.npz' cannot be read as HDF5: it is truncated or of another format ("),
        (
            "mnari:me/x-v0",
            "there is no format 'mnari'; there are: mocoda, robomimic, d4rl, ogbench, npz, parquet, csv, lerobot, "
            "shards, minari, d3rlpy. Did you mean 'minari'?",
        ),
        (3, "data is read from a file, a mapping of arrays or a pandas or polars DataFrame, got int."),
        (
            {},
            "arrays: there is no array called 'state' or 'states' or 'observation' or 'observations' or 'obs'. "
            "There are no arrays at all.",
        ),
    ],
)
def test_what_is_not_there_is_said_to_be(
    place: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    npz(Path("data.npz"))
    assert refusal(lambda: mocoda.read(place)).startswith(message)


def test_files_of_ours_are_read_in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process takes 20 times as long as reading a small file; only texts of variable length are worth one."""
    table().save(tmp_path / "data.hdf5")
    long = tmp_path / "long.hdf5"
    table(source={"a": "ä" * 50_000}).save(long)
    assert mocoda.read(long).source == {"a": "ä" * 50_000}

    def started(*given: object, **more: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("subprocess.run", started)
    assert mocoda.read(tmp_path / "data.hdf5").rows.equal(table().rows)
    with pytest.raises(mocoda.InputError, match="a process was started"):
        mocoda.read(long)
