"""Work that other processes can import and do, for the tests of mocoda.engine.workers."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch

Errand = tuple[str, Any]


class OddError(Exception):
    """An error with arguments of its own."""


class UnreadableError(Exception):
    """An error that can be pickled and not unpickled."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{what} at {where}")


class Unreadable:
    """An answer that can be pickled and not unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def run(errand: Errand) -> Any:
    """Does what the errand's name says with its second part."""
    match errand:
        case "square", number:
            return number**2
        case "sleep", seconds:
            time.sleep(seconds)
            return seconds
        case "megabytes", number:
            return bytes(2**20 * number)
        case "process", _:
            return os.getpid()
        case "environment", name:
            return os.environ.get(name)
        case "threads", _:
            return torch.get_num_threads()
        case "meet", folder:
            return _meet(folder)
        case "fail", notes:
            return _fail(notes)
        case "fail unreadably", _:
            raise UnreadableError("lost", "sea")
        case "answer unreadably", _:
            return Unreadable()
        case "die", _:
            os._exit(1)
        case "die once", marker:
            return _die_once(marker)


def _meet(folder: Path) -> int:
    """Waits for another process that is to come to the same folder."""
    (folder / str(os.getpid())).touch()
    end = time.monotonic() + 250
    while len(list(folder.iterdir())) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    return os.getpid()


def _fail(notes: Path) -> None:
    with notes.open("a") as file:
        file.write("tried\n")
    raise OddError("no", 7)


def _die_once(marker: Path) -> str:
    """As if memory had run out, the first time."""
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"
