"""The processor cores that this process may use, and how many of them other programs leave free."""

from __future__ import annotations

import os
import sys
import time
from math import isnan, nan
from pathlib import Path

STAT = Path("/proc/stat")
SECONDS = 0.2  # the shortest time in which the clock of STAT, of 100 ticks a second, says something
CHOSEN = ("OMP_NUM_THREADS", "LOKY_MAX_CPU_COUNT")  # by which users, too, say how many threads they want

_note = ""


def cores() -> int:
    """The cores that this process may use: by its affinity, a container's quota, and LOKY_MAX_CPU_COUNT."""
    from joblib import cpu_count

    return int(cpu_count())


def core_seconds() -> tuple[float, float]:
    """The time, and the seconds that the cores of this process were idle or worked for it, added up; NaN if unknown."""
    try:
        own = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        lines = [line.split() for line in STAT.read_text("ascii").splitlines()]
    except (OSError, AttributeError):  # not Linux
        return time.monotonic(), nan
    idle = sum(int(words[4]) + int(words[5]) for words in lines if words and words[0] in own)
    return time.monotonic(), idle / os.sysconf("SC_CLK_TCK") + time.process_time()


def leave_busy_cores(since: tuple[float, float]) -> None:
    """Limits torch's threads and later worker processes to the cores that others left free since `core_seconds`.

    Threads that share small products wait for the slowest of them after each: on busy cores, more threads are slower.
    """
    global _note
    begun, before = since
    now, ours = core_seconds()
    if any(name in os.environ for name in CHOSEN) or "torch" not in sys.modules or now - begun < SECONDS:
        return
    import torch

    allowed = cores()
    found = (ours - before) / (now - begun)
    free = max(1, min(allowed, round(allowed - os.getloadavg()[0] if isnan(found) else found)))
    torch.set_num_threads(min(free, torch.get_num_threads()))
    if free < allowed:
        os.environ["LOKY_MAX_CPU_COUNT"] = str(free)  # scikit-learn asks for it, and `cores`
        _note = (
            f"Other programs are busy: using {free} of {allowed} cores. Set OMP_NUM_THREADS to choose another number."
        )


def note() -> str:
    """What a user should know about it, once."""
    global _note
    said, _note = _note, ""
    return said
