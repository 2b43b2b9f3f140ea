"""Nothing of the user's is lost, whatever is written where; what cannot be read or written is one line, exit code 2."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import done, mocoda, refused, rejects

from mocoda import read
from mocoda.tasks import make_task


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_task("navigation").collect(300, seed=0).save("recorded.hdf5")
    return tmp_path


NO_TENSOR = "[enforce fail at alloc_cpu.cpp:124] data. DefaultCPUAllocator: can't allocate memory: you tried to"
NO_LIBRARY = "x.so: failed to map segment from shared object"
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


@pytest.mark.filterwarnings("ignore:Glyph")  # which the picture of the graph cannot show
def test_names_that_give_a_terminal_orders_are_printed_as_codes() -> None:
    evil = "\x1b]0;owned\x07\x9b2J"
    table = replace(read("recorded.hdf5"), columns=(evil, "y", "dx", "dy"), source={"ignored": [evil]})
    table.save("evil.hdf5")
    edges = {evil: [evil, "action"], "y": ["y", "action"]}
    lines = (f"{json.dumps(child)} = {json.dumps(parents)}\n" for child, parents in edges.items())
    Path("graph.toml").write_text(f"[edges]\n{''.join(lines)}")
    words = ["evil.hdf5", "--graph", "graph.toml"]
    for verb, *more in (
        ["inspect", "evil.hdf5"],
        ["graph", *words],
        ["export", "evil.hdf5", "--to", "again.hdf5"],
        ["whatif", *words, "--row", "0", "--change", "z=1"],
    ):
        _, out, err = mocoda(verb, *more)
        assert "\\x1b]0;owned" in out + err and not {"\x1b", "\x07", "\x9b"} & {*out, *err}, out + err


@pytest.mark.parametrize(
    ("words", "at", "error"),
    [
        ("augment recorded.hdf5 --recipe emp", "mocoda.augmentation.augment_to_file", MemoryError()),
        (f"{' '.join(TRAIN)}", "mocoda.cli.agents.train_agents", RuntimeError(NO_TENSOR)),
        ("export agents/policy-recorded-0.safetensors --to p.onnx", "onnx", ImportError(NO_LIBRARY)),
        ("report recorded.hdf5", "altair", ImportError(NO_LIBRARY)),
    ],
)
def test_too_little_memory_is_one_line(
    words: str, at: str, error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*arguments: object, **options: object) -> Any:
        if arguments[0] == at or "." in at:
            raise error

    if words.startswith("export"):
        done(*TRAIN, "--updates", "1", "--out", "agents")
    if "." in at:
        monkeypatch.setattr(at, fail)
    else:
        monkeypatch.delitem(sys.modules, at, raising=False)
        monkeypatch.setattr(sys, "meta_path", [SimpleNamespace(find_spec=fail), *sys.meta_path])
    assert refused(*words.split()).startswith("memory ran out. ")


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


def test_two_processes_on_one_folder_and_ctrl_c() -> None:
    words = (*TRAIN, "--updates", "200", "--evaluate-every", "1", "--out", "agents")
    first = started(*words)
    while not Path("agents/checkpoint.safetensors").exists():
        assert first.poll() is None, first.communicate()
        time.sleep(0.01)
    assert refused(*words).startswith("another process is writing in the folder 'agents'.")
    first.send_signal(signal.SIGINT)
    _, said = first.communicate(timeout=250)
    assert first.returncode == 130
    assert said.endswith("interrupted: the same command continues from its last checkpoint.\n")
    done(*words)


def test_output_that_nobody_reads_any_more_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(
        [sys.executable, "-m", "mocoda.cli", "train", "--help"], stdout=write, stderr=subprocess.PIPE
    )
    os.close(write)
    assert (ended.returncode, ended.stderr) == (1, b"")
