"""Threads and processes on a busy machine, as the command line chooses them."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mocoda.cli import main
from mocoda.engine import cores
from mocoda.engine.progress import PlainProgress
from mocoda.engine.workers import Workers

TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture(autouse=True)
def four(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine of four cores, no choice of the user, and torch with a thread for each core."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 5})
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(cores, "STAT", tmp_path / "stat")
    monkeypatch.setattr("mocoda.cli.signal.signal", lambda number, handler: None)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    for name in cores.CHOSEN:
        monkeypatch.setenv(name, "4")  # so that it is undone, whatever sets it
        monkeypatch.delenv(name)
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(threads)
    cores.note()


def stat(*idle: float) -> None:
    """Seconds for which each core was idle since the machine was started, one of them waiting for a disk."""
    lines = (f"cpu{core} 9 9 9 {(each - 1) * TICKS:.0f} {TICKS} 9 9 0 0 0\n" for core, each in enumerate(idle))
    cores.STAT.write_text(f"cpu  9 9 9 9 9\n{''.join(lines)}intr 9\n", "ascii")


@pytest.mark.parametrize(
    ("idle", "free"),
    [((1, 1, 1, 0, 0, 1), 4), ((1, 0.4, 0, 0, 0, 0.5), 2), ((0, 0, 0, 1, 1, 0), 1)],
)
def test_a_command_takes_the_cores_that_are_free(
    idle: tuple[float, ...], free: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What happens on cores 3 and 4 is nothing to it."""
    clock = iter([100.0, 101.0])
    times = SimpleNamespace(monotonic=lambda: next(clock), process_time=lambda: 7.0)
    monkeypatch.setattr("mocoda.engine.cores.time", times)
    stat(*(100 for _ in idle))
    begun = cores.core_seconds()
    stat(*(100 + each for each in idle))
    cores.leave_busy_cores(begun)
    assert torch.get_num_threads() == cores.cores() == free
    assert Workers(abs).count == free
    show = PlainProgress()
    show.due = 0.0
    for done in (1, 2):
        show("fit", done, 2)
        show.due = 0.0
    said = f"Other programs are busy: using {free} of 4 cores. Set OMP_NUM_THREADS to choose another number.\n"
    assert capsys.readouterr().err == (said if free < 4 else "") + "fit: 1 of 2\nfit: 2 of 2, about 0 s left\n"


@pytest.mark.parametrize("load", [0.2, 2.7, 9.0])
def test_where_cores_say_nothing_the_load_does(load: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    begun, unknown = cores.core_seconds()
    cores.leave_busy_cores((begun - 5, unknown))
    assert cores.cores() == torch.get_num_threads() == max(1, round(4 - load))


@pytest.mark.parametrize(("how", "threads"), [("a command", 1), ("a user's choice", 4), ("Python", 4)])
def test_only_commands_leave_busy_cores_and_a_user_s_number_of_threads_wins(
    how: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mocoda.cli.core_seconds", lambda: (0.0, 0.0))  # all cores have been busy all the time
    stat(0, 0, 0, 0, 0, 0)
    words = ["inspect", "none.hdf5"]
    monkeypatch.setattr(sys, "argv", ["mocoda", *words])
    if how == "a user's choice":
        monkeypatch.setenv("OMP_NUM_THREADS", "3")
    with pytest.raises(SystemExit):
        main(words if how == "Python" else None)
    assert torch.get_num_threads() == cores.cores() == threads
