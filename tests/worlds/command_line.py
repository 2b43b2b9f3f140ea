"""The command line in this process, which is quicker than starting one, and as a process where that matters."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from approved import assert_approved

from mocoda.cli import main

ENVIRONMENT = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
# A dynamics model that is trained in no time.
TINY = [
    "--dynamics.members=2",
    "--dynamics.hidden=8",
    "--dynamics.features=4",
    "--dynamics.epochs=1",
    "--dynamics.batch=64",
    "--dynamics.window=1",
]


# The command line with pieces that take so many seconds, its first word, so that it can be killed among them. If the
# next word is "small", they are, and are noted at once; and a model is saved every epoch.
SLOW = """
import functools, sys, time
import mocoda.augmentation.generation, mocoda.augmentation.streaming, mocoda.dynamics.fit as fit
from mocoda.augmentation.generation import Augmentation
whole, pause = Augmentation.piece, float(sys.argv.pop(1))
if sys.argv[1] == "small":
    del sys.argv[1]
    Augmentation.piece_rows = property(lambda self: self.chunk or 50)
    mocoda.augmentation.streaming.INTERVAL = 0.0
    fit.Checkpoint = functools.partial(fit.Checkpoint, interval=0.0)
def piece(self, number, drawn=0):
    time.sleep(pause)
    return whole(self, number, drawn)
Augmentation.piece = piece
from mocoda.cli import main
main()
"""


class Ended(NamedTuple):
    """How a command ended."""

    code: Any
    out: str
    err: str


def mocoda(*words: object) -> Ended:
    """Runs a command here."""
    out, err, handler = io.StringIO(), io.StringIO(), signal.getsignal(signal.SIGTERM)
    code: Any = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main([str(word) for word in words])
        except SystemExit as end:
            code = end.code or 0
        finally:
            signal.signal(signal.SIGTERM, handler)
    return Ended(code, out.getvalue(), err.getvalue())


def done(*words: object) -> str:
    """What a command prints that has to succeed."""
    ended = mocoda(*words)
    assert ended.code == 0, ended.err
    return ended.out


def refused(*words: object) -> str:
    """The one line of a command that has to be refused, without "error: "."""
    ended = mocoda(*words)
    assert (ended.code, ended.out, ended.err[:7], ended.err[-1:]) == (2, "", "error: ", "\n"), ended
    return ended.err[7:-1]


def rejects(*words: object) -> None:
    """Expects a command to be refused with the approved message."""
    assert_approved(refused(*words))


def start(*words: object, cwd: Path, script: str | None = None) -> subprocess.Popen[str]:
    """Starts a command as a process of its own."""
    program = ["-m", "mocoda.cli"] if script is None else ["-c", script]
    command, pipe = [sys.executable, *program, *map(str, words)], subprocess.PIPE
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(command, cwd=cwd, env=environment, stdout=pipe, stderr=pipe, text=True)


def kill(process: subprocess.Popen[str], when: Callable[[], object], how: int = signal.SIGKILL) -> None:
    """Ends a process as soon as something is the case, which it has to live to see."""
    deadline = time.monotonic() + 250
    while not when():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.01)
    process.send_signal(how)
    process.communicate(timeout=250)
    assert process.returncode != 0


def below(folder: Path) -> list[str]:
    """All files and folders in a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
