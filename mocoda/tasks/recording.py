"""Recordings in parts: worker processes make them, and a folder keeps the finished ones for a second call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mocoda.engine.files import whole_file
from mocoda.engine.progress import Progress
from mocoda.engine.workers import Workers

Job = TypeVar("Job")


class Recording(NamedTuple):
    """The rows of one part, which may be none."""

    state: NDArray[np.float32]  # (N, S)
    action: NDArray[np.float32]  # (N, A)
    next_state: NDArray[np.float32]  # (N, S)
    counts: NDArray[np.int64]  # (1, C), of episodes: all, those dropped and so on


def record_rows(
    record: Callable[[Job], Recording],
    job: Callable[[int], Job],
    seed: Callable[[int], int],
    rows: int,
    *,
    workers: int | None,
    folder: Path | None,
    progress: Progress,
) -> tuple[Tensor, Tensor, Tensor, list[int]]:
    """Records part after part until there are enough rows; returns states, actions, next states and the summed counts.

    record  makes a part from a job
    job     the job of a part, by the part's number
    seed    the seed of a part, which names its file, so that parts of another recording are not used by mistake
    """
    parts: list[Recording] = []
    have = 0
    for part in _parts(record, job, seed, workers, folder):
        parts.append(part)
        have += len(part.action)
        progress("collect", min(have, rows), rows)
        if have >= rows:
            break
    state, action, next_state, counts = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    rows_of = (torch.from_numpy(array)[:rows] for array in (state, action, next_state))
    return *rows_of, counts.sum(0).tolist()


def _parts(
    record: Callable[[Job], Recording],
    job: Callable[[int], Job],
    seed: Callable[[int], int],
    workers: int | None,
    folder: Path | None,
) -> Iterator[Recording]:
    """Yields parts without end; first those that the folder has."""

    def file(number: int) -> Path | None:
        return None if folder is None else folder / f"part-{seed(number)}.npz"

    saved = 0
    while (path := file(saved)) is not None and path.exists():
        with np.load(path) as arrays:
            yield Recording(*(arrays[name] for name in Recording._fields))
        saved += 1
    with Workers(record, workers) as processes:
        for number, part in enumerate(processes.map(map(job, count(saved))), saved):
            if (path := file(number)) is not None:
                with whole_file(path) as unfinished, unfinished.open("wb") as handle:
                    np.savez(handle, **part._asdict())
            yield part
