"""Recordings in parts: worker processes make them, and a folder keeps those that are finished."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from mocoda.engine.files import whole_file
from mocoda.engine.workers import Workers

Job = TypeVar("Job")
Part = TypeVar("Part", bound=NamedTuple)


def parts(
    record: Callable[[Job], Part],
    kind: type[Part],
    job: Callable[[int], Job],
    seed: Callable[[int], int],
    workers: int | None,
    folder: Path | None,
) -> Iterator[Part]:
    """Yields part after part without end; parts that are in the folder are not recorded again.

    record  makes a part, a tuple of arrays of this kind, from a job
    job     the job of a part, by the part's number
    seed    of a part, which names its file, so that parts of another recording are never mistaken for it
    """

    def file(number: int) -> Path | None:
        return None if folder is None else folder / f"part-{seed(number)}.npz"

    saved = 0
    while (path := file(saved)) is not None and path.exists():
        with np.load(path) as arrays:
            fields: Any = kind._fields
            yield kind(*(arrays[name] for name in fields))
        saved += 1
    with Workers(record, workers) as processes:
        for number, part in enumerate(processes.map(map(job, count(saved))), saved):
            if (path := file(number)) is not None:
                with whole_file(path) as unfinished, unfinished.open("wb") as handle:
                    np.savez(handle, **part._asdict())
            yield part
