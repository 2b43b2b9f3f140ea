"""Files in the way, names that are too long, and disks that are full."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from approved import refused

from mocoda import InputError
from mocoda.engine.files import check_target, check_writable, whole_file, whole_folder, write_json
from mocoda.engine.runs import RunFolder


def test_a_file_that_is_there_is_refused_unless_it_may_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "mine.png"
    check_target(path)
    path.write_text("mine")
    with refused():
        check_target(path)
    check_target(path, overwrite=True)
    assert path.read_text() == "mine"


def test_an_input_is_never_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given, link, hard = (tmp_path / name for name in ("in.hdf5", "link.hdf5", "hard.hdf5"))
    given.write_text("mine")
    link.symlink_to(given)
    hard.hardlink_to(given)
    Path("x").mkdir()
    for target in (given, Path("x/../in.hdf5"), link, hard):
        with refused():
            check_target(target, inputs=["minari:me/pushing-v0", given], overwrite=True)


def test_the_longest_name_has_room_for_our_suffixes(tmp_path: Path) -> None:
    path = tmp_path / ("ä" * 111 + "x")
    with whole_file(path) as part:
        part.write_text("fits")
    path.with_name(f"{path.name}.run").mkdir()
    with refused():
        check_writable(tmp_path / ("ä" * 125))


# Temporary files


@pytest.mark.parametrize("failure", [None, KeyError("inside")])
def test_a_file_takes_its_name_only_when_the_block_ends_well(tmp_path: Path, failure: KeyError | None) -> None:
    path = tmp_path / "value.json"
    write_json(path, {"name": "Grüße", "numbers": [1, 2.5, None]})
    with nullcontext() if failure is None else pytest.raises(KeyError), whole_file(path) as part:
        part.write_text("second")
        assert path.read_text("utf-8").startswith('{\n  "name": "Grüße",')
        if failure is not None:
            raise failure
    assert [file.name for file in tmp_path.iterdir()] == ["value.json"]
    assert (path.read_text("utf-8") == "second") == (failure is None)


KILLED = """
import os, sys
from mocoda.engine.files import whole_file
with whole_file(sys.argv[1]) as part:
    part.write_text("half")
    os.utime(part, (0, 0))
    print(part.name, flush=True)
    os.kill(os.getpid(), 9)
"""


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """What a process leaves that is killed while it writes data.json."""
    command = [sys.executable, "-c", KILLED, str(tmp_path / "data.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not (tmp_path / "data.json").exists()
    part = tmp_path / done.stdout.strip()
    assert part.read_text() == "half"
    return part


def begin(path: Path) -> None:
    with whole_file(path) as part:
        part.write_text("{}")


def test_what_a_killed_process_left_is_removed_by_the_next_writer_of_the_file(left: Path) -> None:
    begin(left.parent / "other.json")
    assert left.exists()
    begin(left.parent / "data.json")
    assert not left.exists()


@pytest.mark.parametrize("whole", [whole_file, whole_folder])
def test_what_a_living_process_writes_and_files_of_others_are_no_leftovers(whole: Any, tmp_path: Path) -> None:
    """Locks tell them from what was left, also where containers that share a folder have the same process ids."""
    own = tmp_path / ".data.json.notes.part"
    own.write_text("mine")
    with whole(tmp_path / "data.json") as one:
        os.utime(one, (0, 0))
        with whole_file(tmp_path / "data.json") as other:
            assert one != other and one.exists() and other.exists()
            other.write_text("{}")
        (tmp_path / "data.json").unlink()
    assert own.read_text() == "mine"


@pytest.mark.parametrize("whole", [whole_file, whole_folder])
def test_a_temporary_name_that_is_taken_is_not_written_to(
    whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where somebody has guessed it, and made it a link to another file."""
    monkeypatch.setattr("mocoda.engine.files.secrets.token_hex", lambda size: "0" * 2 * size)
    monkeypatch.setattr("mocoda.engine.files._remove", lambda part: None)
    with pytest.raises(InterruptedError), whole(tmp_path / "data") as part:
        raise InterruptedError
    mine = tmp_path / "mine"
    part.rename(mine)  # a file or a folder, and empty
    part.symlink_to(mine)
    with pytest.raises(FileExistsError), whole(tmp_path / "data"):
        pass
    assert not any(mine.iterdir()) if mine.is_dir() else not mine.read_text()


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
import os
import sys
import torch
from mocoda import Transitions
from mocoda.data.formats import write
from mocoda.engine.errors import file_error
for given in sys.argv[1:]:
    rows, _, to = given.partition(" ")
    rows = int(rows)
    table = Transitions(torch.rand(rows, 8), torch.rand(rows, 2), torch.rand(rows, 8), reward=torch.rand(rows))
    try:
        write(table, to)
    except OSError as error:
        print(to, file_error(error), [name for _, _, names in os.walk(".") for name in names])
"""
FULL = "the disk is full. Make room and run the same command again: it goes on from what is finished."
TOO_LARGE = (
    *("50000 x.hdf5", "13560 x.hdf5"),  # the latter's last bytes find no room, when the file is closed
    *("13403 d4rl:x.hdf5", "50000 x.npz", "50000 x.parquet", "5000 minari:me/x-v0", "20000 d3rlpy:x.h5"),
)


def test_a_full_disk_is_one_sentence_and_leaves_nothing(small_disk: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WRITE, *TOO_LARGE],
        cwd=small_disk,
        env={**os.environ, "MINARI_DATASETS_PATH": str(small_disk)},
        capture_output=True,
        text=True,
    )
    said = "".join(f"{given.partition(' ')[2]} {FULL} []\n" for given in TOO_LARGE)
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")


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
