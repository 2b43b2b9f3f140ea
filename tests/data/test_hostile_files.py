"""Files that are broken or mean harm: a clear sentence, no code run, little memory, nothing followed out of them."""

from __future__ import annotations

import json
import os
import pickle  # noqa: TID251, what must never be opened
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import h5py
import numpy as np
import pyarrow
import pyarrow.dataset
import pyarrow.parquet
import pytest
from approved import assert_approved, refused
from test_pairing import lerobot_folder
from transition_tables import numbers, refusal, table

import mocoda
from mocoda import InputError, Transitions, concatenate
from mocoda.data.formats import guarded
from mocoda.data.formats.shard_folder import Manifest

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


def hdf5(path: Path, change: Callable[[h5py.File], object], leave: str = "observations") -> None:
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
        file["observations"] = file["train"] = ARRAYS["observations"]
    return path.with_name("elsewhere.h5")


def external(path: Path, name: str = "observations", inside: str = "observations") -> Callable[[h5py.File], object]:
    return lambda file: file.__setitem__(name, h5py.ExternalLink(elsewhere(path), inside))


def virtual(path: Path) -> Callable[[h5py.File], object]:
    layout = h5py.VirtualLayout((4, 2), "f4")
    layout[:] = h5py.VirtualSource(elsewhere(path), "observations", (4, 2))
    return lambda file: file.create_virtual_dataset("observations", layout)


def raw_storage(path: Path) -> Callable[[h5py.File], object]:
    path.with_name("raw").write_bytes(bytes(32))
    return lambda file: file.create_dataset("observations", (4, 2), "f4", external=str(path.with_name("raw")))


def ours(path: Path, name: str, text: str) -> None:
    """One of our files, with another text of this name."""
    table().save(path)
    with h5py.File(path, "a") as file:
        del file[f"metadata/{name}"]
        file[f"metadata/{name}"] = np.frombuffer(text.encode(), np.uint8)


def of_episodes(path: Path, episode: Any) -> None:
    parquet(path, **{"state.x": [1.0, 2, 3], "action.a": [1.0, 2, 3], "episode": episode})


FILES: dict[str, Callable[[Path], object]] = {
    "empty.hdf5": lambda p: p.touch(),
    "text.npz": lambda p: p.write_text("hello"),
    "pickle.npz": lambda p: p.write_bytes(pickle.dumps(Evil(p.with_name("trace")))),
    "objects.npz": lambda p: npz(p, actions=np.array([Evil(p.with_name("trace"))] * 4)),
    "texts.npz": lambda p: npz(p, actions=["a"] * 4),
    "records.npz": lambda p: npz(p, actions=np.zeros(4, "f4,i4")),
    "long.npz": lambda p: claiming(p, npy_header("(10000000000, 2)")),
    "lying.npz": lambda p: claiming(p, npy_header("(100000000, 2)"), size=800_000_128),
    "negative.npz": lambda p: claiming(p, npy_header("(-1, -8)")),
    "code.npz": lambda p: claiming(p, npy_header("__import__('os').abort()")),
    "lengths.npz": lambda p: npz(p, actions=numbers(3, 1)),
    "surrogates.npz": lambda p: npz(p, columns=json.dumps(["\ud800", "y", "a"])),
    "long-name.npz": lambda p: np.savez(p, **{"x" * 60_000: numbers(4, 2), "actions": numbers(4, 1)}),  # type: ignore[arg-type]
    "long.hdf5": lambda p: hdf5(p, lambda f: f.create_dataset("observations", (10**10, 2), "f4", chunks=(1000, 2))),
    "chunks.hdf5": lambda p: hdf5(
        p, lambda f: f.create_dataset("observations", (4, 2), "f4", maxshape=(None, 2), chunks=(10**8, 2))
    ),
    "soft.hdf5": lambda p: hdf5(p, lambda f: f.__setitem__("observations", h5py.SoftLink("/actions"))),
    "external.hdf5": lambda p: hdf5(p, external(p)),
    "infos.hdf5": lambda p: hdf5(p, external(p, "infos", "/"), leave=""),
    "provenance.hdf5": lambda p: hdf5(p, external(p, "provenance", "/"), leave=""),
    "virtual.hdf5": lambda p: hdf5(p, virtual(p)),
    "storage.hdf5": lambda p: hdf5(p, raw_storage(p)),
    "texts.hdf5": lambda p: hdf5(p, lambda f: f.__setitem__("observations", ["a", "b", "c", "d"])),
    "group.hdf5": lambda p: hdf5(p, lambda f: f.create_group("observations/image")),
    "version.hdf5": lambda p: ours(p, "format", '["mocoda-transitions", 9]'),
    "columns.hdf5": lambda p: ours(p, "columns", "3"),
    "json.hdf5": lambda p: ours(p, "source", "{"),
    "deep.hdf5": lambda p: ours(p, "source", "[" * 100_000),
    "texts.parquet": lambda p: parquet(p, **{"state.x": ["a"], "action.x": [1.0]}),
    "strings.parquet": lambda p: parquet(p, **{"state.x": ["a"], "action.a": [1.0], "next_state.x": [1.0]}),
    "lists.parquet": lambda p: parquet(p, state=[[1.0]], action=[[1.0]]),
    "list-episodes.parquet": lambda p: of_episodes(p, [[1], [1, 2], [3]]),
    "map-episodes.parquet": lambda p: of_episodes(p, pyarrow.array([[("a", 1)]] * 3, pyarrow.map_("string", "int8"))),
    "byte-episodes.parquet": lambda p: of_episodes(p, [b"a", b"a", b"b"]),
}


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_is_refused_in_a_clear_sentence(name: str, tmp_path: Path) -> None:
    FILES[name](tmp_path / name)
    message = refusal(lambda: mocoda.read(tmp_path / name))
    assert_approved(message.partition(" (")[0] if " cannot be read as " in message else message)
    assert not (tmp_path / "trace").exists()


def test_a_name_that_is_no_text_is_passed_over(tmp_path: Path) -> None:
    hdf5(tmp_path / "data.hdf5", lambda file: file.id.links.create_soft(b"\xff\xfe", b"/actions"), leave="")
    assert mocoda.read(tmp_path / "data.hdf5").source["ignored"] == ["\ufffd\ufffd"]


# --- memory


def lerobot(folder: Path, lists: Any, width: int) -> Path:
    """A LeRobot folder whose features claim a width, and whose actions are these lists."""
    rows = len(lists)
    columns = {"observation.state": np.zeros(rows), "action": lists}
    columns |= {"episode_index": np.zeros(rows, np.int64), "frame_index": np.arange(rows)}
    return lerobot_folder(folder, columns, {"action": width})


def repeated_lists(rows: int, width: int) -> Any:
    ends = np.arange(rows + 1, dtype=np.int64) * width
    return pyarrow.LargeListArray.from_arrays(ends, pyarrow.array(np.zeros(rows * width, np.float32)))


def test_hostile_files_are_refused_in_little_memory(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for name, make in FILES.items():
        make(files / name)
    constant = pyarrow.array(np.zeros(20_000_000, np.int8))
    parquet(files / "rows.parquet", **{"state.x": constant, "action.a": constant, "next_state.x": constant})
    lerobot(files, repeated_lists(10_000, 2_000), 2)
    column = pyarrow.array(np.arange(20_000.0))
    text = pyarrow.DictionaryArray.from_arrays(np.zeros(20_000, np.int32), pyarrow.array(["x" * 100_000]))
    parquet(files / "read.parquet", **{"state.x": column, "action.a": column, "episode": text})  # 2 GB of texts
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "import mocoda, mocoda.data.formats, pyarrow.parquet\n"
        "mocoda.Transitions\n"
        "reserved = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (reserved + (4 << 30),) * 2)  # pyarrow reserves some for itself\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for path in sorted(Path(sys.argv[1]).iterdir()):\n"
        "    try: mocoda.read(path); print(path.name, 'read', sep='\\t')\n"
        "    except mocoda.InputError as refused: print(path.name, str(refused).count('Memory'), sep='\\t')\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(files)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    *said, kilobytes = done.stdout.splitlines()
    names = {*FILES, "rows.parquet", "raw", "elsewhere.h5", "lerobot"}
    assert sorted(said) == sorted([*(f"{name}\t0" for name in names), "read.parquet\tread"])
    assert int(kilobytes) < 150_000


TARGETS = ["x.npz", "x.hdf5", "d4rl:x.hdf5", "x.parquet", "lerobot:x", "robomimic:x.hdf5", "minari:x-v0", "d3rlpy:x.h5"]


@pytest.mark.parametrize("target", [*TARGETS, "shards:x", "minari:arrow"])
def test_what_all_arrays_unpack_to_is_counted_and_capped(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    zeros = np.zeros((20_000, 2), np.float32)
    data = Transitions(zeros, zeros, zeros, zeros[:, 0])
    if target == "shards:x":
        Path("x").mkdir()
        manifest = Manifest(2, 40_000, "f", {})
        manifest.save(Path("x"))
        for number in range(2):  # each alone is small enough
            manifest.write(Path("x"), number, [(data, 20_000)])
    elif target == "minari:arrow":
        target, lists = "minari:x-v0", pyarrow.FixedSizeListArray.from_arrays(zeros.ravel(), 2)
        columns = {"observations": lists, "actions": lists, "rewards": zeros[:, 0], "terminations": zeros[:, 0] > 0}
        arrow = pyarrow.table({**columns, "truncations": zeros[:, 0] > 0})
        pyarrow.dataset.write_dataset(arrow, minari(tmp_path, data_format="arrow") / "0", format="arrow")
    else:
        mocoda.write(concatenate([data, data]), target)
    monkeypatch.setattr(guarded, "ALWAYS_READ", 1_500_000 if target == "shards:x" else 500_000)
    monkeypatch.setattr(guarded, "MOST_UNPACKED", 0)
    with pytest.raises(InputError, match="unpacks to more than"):
        mocoda.read(target)


def minari(folder: Path, **changed: Any) -> Path:
    """The folder of a Minari data set that says this of itself."""
    place = folder / "x-v0" / "data"
    place.mkdir(parents=True)
    box = json.dumps({"type": "Box", "shape": [2], "dtype": "float32"})
    about = {"total_episodes": 1, "observation_space": box, "action_space": box} | changed
    (place / "metadata.json").write_text(json.dumps(about))
    return place


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_lists_of_unknown_length_in_a_minari_data_set_are_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    place = minari(tmp_path, data_format=kind)
    lists = [[0.0, 1.0]] * 4
    columns = {"observations": lists, "actions": lists, "rewards": np.zeros(4), "terminations": np.zeros(4, bool)}
    pyarrow.dataset.write_dataset(pyarrow.table(columns), place / "0", format=kind)
    with pytest.raises(InputError, match="expected lists of one length"):
        mocoda.read("minari:x-v0")


SHAPES = ["3", "[true]", "[-1]", "[1.5]", '["a"]', "[null]", f"[{10**12}]", f"[{'9' * 4000}, {'9' * 4000}]"]


@pytest.mark.parametrize(
    "space",
    [
        *(f'{{"type": "Box", "shape": {shape}, "dtype": "float32"}}' for shape in SHAPES),
        *(f'{{"type": "Discrete", "n": {n}, "start": 0}}' for n in ('"a"', "-1", "1.5", f"{2**40}")),
    ],
)
def test_impossible_spaces_of_a_minari_data_set_are_refused(
    space: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    minari(tmp_path, observation_space=space)
    with pytest.raises(InputError, match="cannot be read as a Minari data set"):
        mocoda.read("minari:x-v0")


def test_categories_beyond_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    place = minari(tmp_path, observation_space=json.dumps({"type": "Discrete", "n": 1 << 30, "start": 0}))
    with h5py.File(place / "main_data.hdf5", "w") as file:
        arrays = {"observations": [0, 1, 2], "actions": numbers(2, 2), "rewards": [0.0, 0], "terminations": [0, 0]}
        for name, array in arrays.items():
            file[f"episode_0/{name}"] = array
    with refused():
        mocoda.read("minari:x-v0")


def test_numbers_of_thousands_of_digits_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    place = minari(tmp_path, total_episodes=int("9" * 4000))
    assert len(refusal(lambda: mocoda.read("minari:x-v0"))) < 500
    for number in ("9" * 5000, "1e400"):
        (place / "metadata.json").write_text(f'{{"total_episodes": {number}}}')
        assert len(refusal(lambda: mocoda.read("minari:x-v0"))) < 500


# --- links


@pytest.mark.parametrize("name", ["minari:../../etc/x-v0", "minari:/etc/x-v0", "minari:me/../../x-v0", "minari:"])
def test_names_that_climb_out_of_a_folder_are_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "inside"))
    assert refusal(lambda: mocoda.read(name))
    assert refusal(lambda: mocoda.write(table(), name))
    assert list(tmp_path.iterdir()) == []


# --- what reaches the terminal


def test_a_name_of_sixty_thousand_characters_is_cut(tmp_path: Path) -> None:
    npz(tmp_path / "x.npz", **{"x" * 60_000: np.zeros(4)})
    assert len(str(mocoda.inspect(tmp_path / "x.npz"))) < 3000  # wrapping all of it takes most of a minute


# --- files that are cut off, or cannot be opened


@pytest.mark.parametrize("place", ["nowhere.hdf5", ".", "d4rl:data.npz", "d3rlpy:data.npz", "mnari:me/x-v0", 3, {}])
def test_what_is_not_there_is_said_to_be(place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    npz(Path("data.npz"))
    with refused():
        mocoda.read(place)


@pytest.fixture
def unprivileged(tmp_path: Path) -> Iterator[None]:
    """Not root, who may do anything, but one who may read here and not write."""
    for folder in takewhile(lambda folder: folder != Path(gettempdir()), (tmp_path, *tmp_path.parents)):
        folder.chmod(0o755)
    tmp_path.chmod(0o555)
    as_root = os.geteuid() == 0
    if as_root:
        os.seteuid(65534)
    yield
    if as_root:
        os.seteuid(0)
    tmp_path.chmod(0o755)


SOURCES = ["data.hdf5", "d4rl:data.hdf5", "robomimic:data.hdf5", "ogbench:data.npz", "data.parquet", "d3rlpy:data.h5"]


@pytest.mark.parametrize("source", SOURCES)
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
    elif harm == "folder":
        path.mkdir()
    elif harm == "link":
        path.symlink_to(tmp_path / "gone")
    elif harm == "pipe":
        os.mkfifo(path)
    else:
        path = tmp_path / ("x" * 300 + name if harm == "long" else f"\0{name}")
    expected = {
        "permission": "cannot be read: no permission. Its owner can give it with chmod +r.",
        "folder": " is a folder",
        "link": f"{str(path)!r} is a broken link: there is no {str(tmp_path / 'gone')!r}.",
        "pipe": "cannot be read: it is neither a file nor a folder.",
        "long": "cannot be read: File name too long.",
        "null": "cannot be read: embedded null byte.",
    }[harm]
    message = refusal(lambda: mocoda.read(f"{prefix}:{path}" if prefix else path))
    assert expected in message and "\n" not in message and len(message) < 600
    if name.endswith("5"):
        assert expected in refusal(lambda: Transitions.load(path))


def test_pipes_in_a_folder_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = lerobot(tmp_path, repeated_lists(3, 2), 2)
    os.mkfifo(folder / "data/chunk-000/file-001.parquet")
    with refused():
        mocoda.read(folder)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    place = minari(tmp_path, data_format="arrow")
    (place / "0").mkdir()
    os.mkfifo(place / "0/part-0.arrow")
    with refused():
        mocoda.read("minari:x-v0")


# --- processes that are killed while they write

KILLED = """
import os, sys
from pathlib import Path
import mocoda
Path.rename = lambda part, target: (os.utime(part, (0, 0)), os.kill(os.getpid(), 9))
mocoda.write(mocoda.read("data.npz"), sys.argv[1])
"""


@pytest.mark.parametrize("target", ["minari:x-v0", "lerobot:x"])
def test_what_a_killed_process_leaves_is_no_data_set_and_goes_with_the_next_one_of_its_name(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    mocoda.write(table(), "data.npz")
    assert subprocess.run([sys.executable, "-c", KILLED, target], check=False).returncode == -9
    assert len([*tmp_path.glob(".x*.part")]) == 1
    refusal(lambda: mocoda.read(target))
    mocoda.write(table(), target)
    assert len(mocoda.read(target)) == 5 and not [*tmp_path.glob(".x*")]
