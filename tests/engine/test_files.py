"""Files in the way, names that are too long, and disks that are full."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mocoda import InputError
from mocoda.engine.errors import file_error
from mocoda.engine.files import check_target, check_writable, whole_file, write_json
from mocoda.engine.runs import RunFolder


def refusal(path: Path, **options: object) -> str:
    with pytest.raises(InputError) as caught:
        check_target(path, **options)  # type: ignore[arg-type]
    return str(caught.value)


def test_a_file_that_is_there_is_refused_unless_it_may_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "mine.png"
    check_target(path)
    path.write_text("mine")
    message = f"there is a file {str(path)!r} already. Write to another one, or pass --overwrite."
    assert refusal(path) == message
    check_target(path, overwrite=True)
    assert path.read_text() == "mine"


@pytest.mark.parametrize("how", ["the same path", "another spelling", "a symbolic link", "a hard link"])
def test_an_input_is_never_written_over(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given, target = tmp_path / "in.hdf5", tmp_path / "out.hdf5"
    given.write_text("mine")
    if how == "the same path":
        target = given
    elif how == "another spelling":
        Path("x").mkdir()
        target = Path("x/../in.hdf5")
    elif how == "a symbolic link":
        target.symlink_to(given)
    else:
        target.hardlink_to(given)
    said = refusal(target, inputs=["minari:me/pushing-v0", given], overwrite=True)
    assert said == f"{str(target)!r} is the input. Write to another file."


@pytest.mark.parametrize(
    ("length", "reason"), [(300, "File name too long"), (250, "its name has more than 223 bytes"), (223, None)]
)
def test_a_name_that_is_too_long_even_with_our_suffix_is_refused(
    tmp_path: Path, length: int, reason: str | None
) -> None:
    path = tmp_path / ("ä" * (length // 2) + "x" * (length % 2))
    if reason is None:
        with whole_file(path) as part:
            part.write_text("fits")
        path.with_name(f"{path.name}.run").mkdir()
        return
    with pytest.raises(InputError) as caught:
        check_writable(path)
    assert str(caught.value) == f"cannot write {str(path)!r}: {reason}. Give a path in a folder that can be written."


def test_an_error_of_the_file_system_is_one_sentence(tmp_path: Path) -> None:
    assert file_error(PermissionError(13, "Permission denied", "data.npz")) == (
        "cannot read or write 'data.npz': Permission denied."
    )
    assert file_error(OSError("odd")) == "a file cannot be read or written: odd."
    assert file_error(OSError(28, "No space left on device")).startswith("the disk is full. Make room")


def test_a_file_of_somebody_else_is_no_leftover(tmp_path: Path) -> None:
    own = tmp_path / ".data.json.notes.part"
    own.write_text("mine")
    with whole_file(tmp_path / "data.json") as part:
        part.write_text("{}")
    assert own.read_text() == "mine"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


# In a process of its own: a full disk used to end it with a segmentation fault.
WRITE = """
import sys
import torch
from mocoda import Transitions
from mocoda.data.formats import write
from mocoda.data.transitions import save_stream
from mocoda.engine.errors import file_error
rows, to = int(sys.argv[1]), sys.argv[2]
table = Transitions(torch.rand(rows, 8), torch.rand(rows, 2), torch.rand(rows, 8), reward=torch.rand(rows))
try:
    if to == "stream":
        save_stream("stream.hdf5", (table for _ in range(1_000)))
    else:
        write(table, to)
except OSError as error:
    print(file_error(error))
"""


@pytest.mark.parametrize(
    ("rows", "to"),
    [
        (50_000, "x.hdf5"),
        (13_431, "x.hdf5"),  # the last bytes find no room, when the file is closed
        (1_000, "stream"),
        (13_403, "d4rl:x.hdf5"),
        (50_000, "x.npz"),
        (50_000, "x.parquet"),
        (5_000, "minari:me/x-v0"),
        (20_000, "d3rlpy:x.h5"),
    ],
)
def test_a_full_disk_is_one_sentence_and_leaves_nothing(rows: int, to: str, small_disk: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WRITE, str(rows), to],
        cwd=small_disk,
        env={**os.environ, "MINARI_DATASETS_PATH": str(small_disk)},
        capture_output=True,
        text=True,
    )
    full = "the disk is full. Make room and run the same command again: it goes on from what is finished.\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, full, "")
    assert [path.name for path in small_disk.rglob("*") if path.is_file()] == []


def test_a_run_that_begins_on_a_full_disk_is_begun_again(small_disk: Path) -> None:
    outputs = ["results.json", *(f"{number}-{'x' * 200}.json" for number in range(100))]
    with pytest.raises(OSError, match="No space left"):
        (small_disk / "fill").write_bytes(bytes(2**21))
    with pytest.raises(InputError, match="No space left"), RunFolder(small_disk / "run", "x", {}, outputs):
        pass
    (small_disk / "fill").unlink()
    with RunFolder(small_disk / "run", "x", {}, outputs):
        write_json(small_disk / "run" / "results.json", {})
    with RunFolder(small_disk / "run", "x", {"other": 1}, overwrite=True):
        assert not (small_disk / "run" / "results.json").exists()


def test_a_signal_just_after_a_file_was_begun_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch = Path.touch

    def interrupted(path: Path, exist_ok: bool) -> None:
        touch(path, exist_ok=exist_ok)
        raise SystemExit(143)

    monkeypatch.setattr(Path, "touch", interrupted)
    with pytest.raises(SystemExit), whole_file(tmp_path / "made.json"):
        pass
    assert not [*tmp_path.iterdir()]
