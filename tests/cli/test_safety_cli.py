"""Nothing of the user's is lost, whatever is written where; what cannot be read or written is one line, exit code 2."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import command_line
import pytest

from mocoda.cli import main
from mocoda.tasks import make_task


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_task("navigation").collect(300, seed=0).save("recorded.hdf5")
    return tmp_path


def mocoda(*words: str) -> tuple[object, str]:
    """Exit code and stderr of a command in this process."""
    stderr = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()), redirect_stderr(stderr):
        patch.setattr(sys, "argv", ["mocoda", *words])
        before = signal.getsignal(signal.SIGTERM)
        try:
            main()
        except SystemExit as ended:
            return ended.code, stderr.getvalue()
        finally:
            signal.signal(signal.SIGTERM, before)
    return 0, stderr.getvalue()


def contents() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(Path().rglob("*")) if path.is_file()}


TRAIN = ("train", "recorded.hdf5", "--seeds", "1", "--hidden", "8", "--batch", "16")


def rejects(*words: str) -> None:
    """Expects one approved line; no file is touched, added or removed."""
    before = contents()
    command_line.rejects(*words)
    assert contents() == before


def test_train_beside_its_data_keeps_the_data() -> None:
    before = Path("recorded.hdf5").read_bytes()
    assert mocoda(*TRAIN, "--updates", "2", "--out", ".") == (0, "")
    assert Path("recorded.hdf5").read_bytes() == before and Path("agents.json").exists()


def test_a_finished_training_is_not_replaced_without_a_word() -> None:
    words = (*TRAIN, "--out", "runs/agents")
    assert mocoda(*words, "--updates", "2") == (0, "")
    assert mocoda(*words, "--updates", "2") == (0, "")  # there is nothing left to do
    rejects(*words, "--updates", "0")
    rejects(*words, "--updates", "3")
    rejects("whatif", "recorded.hdf5", "--row", "0", "--change", "x=0.5", "--out", "runs/agents")
    Path("runs/agents/notes.txt").write_text("mine")
    assert mocoda("evaluate", "runs/agents", "--episodes", "1") == (0, "")
    assert mocoda(*words, "--updates", "3", "--overwrite") == (0, "")
    left = {path.name for path in Path("runs/agents").iterdir()}
    assert {"notes.txt", "agents.json"} < left and "evaluation.json" not in left


def test_check_does_not_replace_a_file_of_the_user() -> None:
    Path("advice.json").write_text("mine")
    rejects("check", "recorded.hdf5", "--out", ".")


def test_augment_never_replaces_its_input() -> None:
    words = ("augment", "recorded.hdf5", "--recipe", "emp", "--rows", "10", "--no-keep-recorded")
    rejects(*words, "--out", "recorded.hdf5", "--overwrite")
    Path("link.hdf5").symlink_to("recorded.hdf5")
    rejects(*words, "--out", "link.hdf5", "--overwrite")


@pytest.mark.parametrize(
    "words",
    [
        ("collect", "navigation", "--rows", "10", "--out"),
        ("augment", "recorded.hdf5", "--recipe", "emp", "--rows", "10", "--out"),
    ],
)
def test_a_file_of_the_user_is_replaced_only_on_request(words: tuple[str, ...]) -> None:
    Path("mine.hdf5").write_text("mine")
    rejects(*words, "mine.hdf5")
    assert mocoda(*words, "mine.hdf5", "--overwrite") == (0, "")
    first = Path("mine.hdf5").read_bytes()
    assert mocoda(*words, "mine.hdf5") == (0, "")  # its own now
    assert Path("mine.hdf5").read_bytes() == first
    rejects(*words, "mine.hdf5", "--rows", "11")


def test_names_that_are_too_long_are_one_line() -> None:
    for name in ("x" * 300 + ".hdf5", "x" * 248 + ".hdf5"):
        rejects("collect", "navigation", "--rows", "10", "--out", name)
        rejects("inspect", name)


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
        assert mocoda("export", "recorded.hdf5", "--to", "closed.npz")[0] == 0
        for verb in ("collect", "train"):
            assert mocoda(verb, "--help")[0] == 0
        mocoda("inspect", "recorded.hdf5")
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
        code, said = mocoda(*words)
        assert code == 2 and said.startswith("error: ") and said.count("\n") == 1, said
        assert "ermission" in said


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
    code, said = mocoda(*words)
    assert (code, said) == (
        2,
        "error: another process is writing in the folder 'agents'. Wait until it ends, or choose another path.\n",
    )
    first.send_signal(signal.SIGINT)
    _, said = first.communicate(timeout=250)
    assert first.returncode == 130
    assert said.endswith("interrupted: the same command continues from its last checkpoint.\n")
    assert mocoda(*words)[0] == 0


@pytest.mark.parametrize("words", [("--help",), ("train", "--help"), ("--version",)])
def test_output_that_nobody_reads_any_more_is_no_error(words: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run([sys.executable, "-m", "mocoda.cli", *words], stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (1, b"")
