"""Recordings in parts: worker processes make them, and a folder keeps the finished ones for a second call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from mocoda.data.transitions import Transitions
from mocoda.engine.files import whole_file
from mocoda.engine.progress import Progress
from mocoda.engine.randomness import Stream
from mocoda.engine.workers import Workers

Job = TypeVar("Job")


class Recording(NamedTuple):
    """The rows of one part, which may be none."""

    state: NDArray[np.float32]  # (N, S)
    action: NDArray[np.float32]  # (N, A)
    next_state: NDArray[np.float32]  # (N, S)
    counts: NDArray[np.int64]  # (1, C), of episodes: all, those dropped and so on


def record_table(
    task: Any,
    record: Callable[[Job], Recording],
    job: Callable[[int], Job],
    rows: int,
    stream: Stream,
    *,
    part: str,
    length: int,
    counts: tuple[str, ...],
    settings: Mapping[str, Any],
    workers: int | None,
    folder: Path | None,
    progress: Progress,
) -> Transitions:
    """Records part after part until there are enough rows, and labels them with goals of the target task.

    record    makes a part from a job
    job       the job of a part, by the part's seed
    part      what the stream of a part is called
    length    of every episode
    counts    the names of what parts count, for the table's source
    settings  of the recording, for the table's source
    """

    def seed_of(number: int) -> int:
        return int(stream.child(part, number).integers(2**31, 1))

    parts: list[Recording] = []
    for recording in _parts(record, job, seed_of, workers, folder):
        parts.append(recording)
        have = sum(len(one.action) for one in parts)
        progress("collect", min(have, rows), rows)
        if have >= rows:
            break
    *arrays, counted = (np.concatenate(array) for array in zip(*parts, strict=True))
    state, action, next_state = (torch.from_numpy(array)[:rows] for array in arrays)
    goal = task.goals(rows, seed=stream)
    reward, terminal = task.label(state, action, next_state, goal)
    source = {"task": task.name, "rows": rows, "seed": stream.seed, **settings}
    return Transitions(
        state,
        action,
        next_state,
        reward,
        terminal,
        goal,
        columns=task.columns,
        source=source | dict(zip(counts, counted.sum(0).tolist(), strict=True)),
        episode=torch.arange(rows) // length,
    )


def _parts(
    record: Callable[[Job], Recording],
    job: Callable[[int], Job],
    seed_of: Callable[[int], int],
    workers: int | None,
    folder: Path | None,
) -> Iterator[Recording]:
    """Yields parts without end; first those that the folder has, in files that are named by the parts' seeds."""

    def file(number: int) -> Path | None:
        return None if folder is None else folder / f"part-{seed_of(number)}.npz"

    saved = 0
    while (path := file(saved)) is not None and path.exists():
        with np.load(path) as arrays:
            yield Recording(*(arrays[name] for name in Recording._fields))
        saved += 1
    with Workers(record, workers) as processes:
        for number, part in enumerate(processes.map(job(seed_of(number)) for number in count(saved)), saved):
            if (path := file(number)) is not None:
                with whole_file(path) as unfinished, unfinished.open("wb") as handle:
                    np.savez(handle, **part._asdict())
            yield part
