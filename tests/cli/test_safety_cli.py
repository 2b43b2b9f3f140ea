"""Nothing of the user's is lost, whatever is written where; what cannot be read or written is one line, exit code 2."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import done, refused, rejects

from mocoda.tasks import make_task


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_task("navigation").collect(300, seed=0).save("recorded.hdf5")
    return tmp_path


TRAIN = ("train", "recorded.hdf5", "--seeds", "1", "--hidden", "8", "--batch", "16")


def refuses(*words: str) -> None:
    """Expects one approved line; no file is touched, added or removed."""
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    rejects(*words)
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


def test_train_beside_its_data_keeps_the_data() -> None:
    before = Path("recorded.hdf5").read_bytes()
    done(*TRAIN, "--updates", "2", "--out", ".")
    assert Path("recorded.hdf5").read_bytes() == before and Path("agents.json").exists()


def test_a_finished_training_is_not_replaced_without_a_word() -> None:
    words = (*TRAIN, "--out", "runs/agents")
    done(*words, "--updates", "2")
    done(*words, "--updates", "2")  # there is nothing left to do
    refuses(*words, "--updates", "3")
    refuses("whatif", "recorded.hdf5", "--row", "0", "--change", "x=0.5", "--out", "runs/agents")
    Path("runs/agents/notes.txt").write_text("mine")
    done("evaluate", "runs/agents", "--episodes", "1")
    done(*words, "--updates", "3", "--overwrite")
    left = {path.name for path in Path("runs/agents").iterdir()}
    assert {"notes.txt", "agents.json"} < left and "evaluation.json" not in left


def test_check_does_not_replace_a_file_of_the_user() -> None:
    Path("advice.json").write_text("mine")
    refuses("check", "recorded.hdf5", "--out", ".")


@pytest.mark.parametrize("verb", ["collect navigation", "augment recorded.hdf5 --recipe emp"])
def test_a_file_of_the_user_is_replaced_only_on_request(verb: str) -> None:
    words = [*verb.split(), "--rows", "10", "--out", "mine.hdf5"]
    Path("mine.hdf5").write_text("mine")
    refuses(*words)
    done(*words, "--overwrite")
    first = Path("mine.hdf5").read_bytes()
    done(*words)  # its own now
    assert Path("mine.hdf5").read_bytes() == first
    refuses(*words, "--rows", "11")


def test_names_that_are_too_long_are_one_line() -> None:
    for name in ("x" * 300 + ".hdf5", "x" * 248 + ".hdf5"):
        refuses("collect", "navigation", "--rows", "10", "--out", name)
        refuses("inspect", name)


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes this process an ordinary user for a while, in a folder that it can read; root may do everything."""
    import h5py  # noqa: F401  # what an ordinary user may not be allowed to import

    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        monkeypatch.chdir(folder)
        make_task("navigation").collect(10, seed=0).save("recorded.hdf5")
        done("export", "recorded.hdf5", "--to", "closed.npz")
        for verb in ("collect", "train"):
            done(verb, "--help")
        done("inspect", "recorded.hdf5")
        Path("recorded.hdf5").rename("closed.hdf5")
        Path("closed.hdf5").chmod(0)
        Path("closed.npz").chmod(0)
        os.seteuid(65534)
        yield
        os.seteuid(0)


def test_what_must_not_be_read_or_written_is_one_line(nobody: None) -> None:
    for words in (
        ("inspect", "closed.hdf5"),
        ("inspect", "closed.npz"),
        ("export", "closed.hdf5", "--to", "/tmp/x.npz"),
        ("collect", "navigation", "--rows", "10", "--out", "x.hdf5"),
        ("train", "closed.hdf5", "--out", "."),
    ):
        said = refused(*words)
        assert "ermission" in said and "\n" not in said


SLOW = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
from mocoda.engine import progress, runs
whole = runs.RunFolder.progress
def slow(self, stage, done, total):
    whole(self, stage, done, total)
    time.sleep(0.3)
runs.RunFolder.progress = slow
from mocoda.agents import train
from mocoda.engine.checkpoint import Checkpoint
import functools
train.Checkpoint = functools.partial(Checkpoint, interval=0.0)
from mocoda.cli import main
if __name__ == "__main__":
    main()
"""


def started(*words: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", SLOW, *words], stdout=pipe, stderr=pipe, text=True)


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 250
    while not path.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    assert path.exists(), process.communicate()[1]


def test_two_processes_on_one_folder_and_ctrl_c() -> None:
    words = (*TRAIN, "--updates", "200", "--evaluate-every", "1", "--out", "agents")
    first = started(*words)
    wait_for(Path("agents/checkpoint.safetensors"), first)
    assert refused(*words).startswith("another process is writing in the folder 'agents'.")
    first.send_signal(signal.SIGINT)
    _, said = first.communicate(timeout=250)
    assert first.returncode == 130
    assert said.endswith("interrupted: the same command continues from its last checkpoint.\n")
    done(*words)


@pytest.mark.parametrize("words", [("--help",), ("train", "--help"), ("--version",)])
def test_output_that_nobody_reads_any_more_is_no_error(words: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run([sys.executable, "-m", "mocoda.cli", *words], stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (1, b"")
