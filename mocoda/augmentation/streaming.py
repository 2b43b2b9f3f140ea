"""Augmentation -> a file larger than memory: written in place by several processes, and continued after a kill.

The file gets its full size first, with every array in one piece at a place that never changes. What processes write
after that is rows and nothing else, each to its own place. So whenever they are killed, the file is sound, and what it
lacks is known: the pieces after the last one that was noted as finished.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import h5py
import torch

from mocoda.augmentation.generation import Augmentation, Piece
from mocoda.data.transitions import Transitions, write_attributes
from mocoda.engine.errors import InputError
from mocoda.engine.files import check_writable, write_json
from mocoda.engine.progress import Progress, silent
from mocoda.engine.workers import Workers

UNFINISHED, FINISHED = "unfinished.hdf5", "unfinished.json"  # in the folder: the rows, and how many pieces they are
MANY, MOST = 1_000_000, 3  # rows from which on several processes pay; and so many, with torch in each, fit into 2 GB
INTERVAL = 1.0  # seconds between notes of how far it is


def augment_to_file(
    path: str | Path,
    prepare: Callable[[], Augmentation],
    *,
    folder: str | Path,
    workers: int = 0,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Writes an augmented table of any size, holding a chunk a process in memory. Returns its source.

    prepare  what to write. Every process calls it once, so others must be able to import it: a function of a module, or
             a partial of one
    folder   keeps what is unfinished, on the disk of `path`: the same call goes on from there, to the same file
    workers  processes that generate, 0: this one. The rows are the same, however many
    """
    check_writable(path)
    with _one_thread():
        plan = prepare()
    unfinished, note = Path(folder) / UNFINISHED, Path(folder) / FINISHED
    sizes, source = plan.sizes, json.loads(json.dumps(plan.told(0, 0)))
    recorded = sum(sizes) - plan.rows
    done, drawn = _left_behind(unfinished, note, source)
    if done == 0:
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        with _one_thread():
            first = plan.piece(0)
        _lay_out(unfinished, first.table, sum(sizes))
        _write(unfinished, first.table, 0)
        done, drawn = 1, first.drawn
    work = _Work(prepare if workers else lambda: plan, unfinished)
    if workers:
        _check_importable(work)
    progress("augment", sum(sizes[:done]) - recorded, plan.rows)
    with Workers(work, workers) as pool, unfinished.open("rb") as handle:
        noted = time.monotonic()
        for more in pool.map(range(done, len(sizes))):
            done, drawn = done + 1, drawn + more
            if time.monotonic() - noted >= INTERVAL:
                os.fsync(handle.fileno())
                write_json(note, {"pieces": done, "drawn": drawn, "source": source})
                noted = time.monotonic()
            progress("augment", sum(sizes[:done]) - recorded, plan.rows)
        os.fsync(handle.fileno())
    final = plan.told(drawn)
    if plan.told(0, 0) != final:  # what filters have accepted is known only now
        with h5py.File(unfinished, "r+") as file:
            file.attrs["source"] = json.dumps(final)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    unfinished.replace(path)
    note.unlink(missing_ok=True)
    return final


def workers_for(rows: int, device: str) -> int:
    """Processes that are worth their start for so many rows."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST, cores) if device == "cpu" and cores > 1 and rows >= MANY else 0


@dataclass(frozen=True)
class _Work:
    """What a process does: make a piece and write it to its place."""

    prepare: Callable[[], Augmentation]
    file: Path

    def __call__(self, number: int) -> int:
        piece: Piece = self._plan.piece(number)
        _write(self.file, piece.table, sum(self._plan.sizes[:number]))
        return piece.drawn

    @cached_property
    def _plan(self) -> Augmentation:
        return self.prepare()


def _left_behind(unfinished: Path, note: Path, source: dict[str, Any]) -> tuple[int, int]:
    """Pieces that an earlier call has finished, and rows drawn for them; none of another table, or of a damaged one."""
    try:
        found = json.loads(note.read_text("utf-8"))
        with h5py.File(unfinished, "r"):
            return (int(found["pieces"]), int(found["drawn"])) if found["source"] == source else (0, 0)
    except (OSError, ValueError, KeyError, TypeError):
        return 0, 0


def _lay_out(file: Path, like: Transitions, rows: int) -> None:
    """A file with the arrays of a table, and room for so many rows, which takes no space before it is written to."""
    with h5py.File(file, "w") as made:
        write_attributes(made, like)
        for name, array in like.arrays().items():
            values = array[:0].cpu().numpy()
            layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            layout.set_layout(h5py.h5d.CONTIGUOUS)
            layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
            layout.set_obj_track_times(False)  # the same rows, the same bytes
            links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
            links.set_create_intermediate_group(True)
            space = h5py.h5s.create_simple((rows, *values.shape[1:]))
            kind = h5py.h5t.py_create(values.dtype, logical=True)
            h5py.h5d.create(made.id, name.encode(), kind, space, dcpl=layout, lcpl=links)


def _write(file: Path, table: Transitions, start: int) -> None:
    """Puts a table's rows into the file, from row `start` on."""
    with h5py.File(file, "r") as made:
        places = {name: made[name].id.get_offset() for name in table.arrays()}
    with file.open("r+b") as handle:
        for name, array in table.arrays().items():
            values = array.cpu().numpy()
            handle.seek(places[name] + start * (values.nbytes // len(values)))
            handle.write(values.data)


def _check_importable(work: _Work) -> None:
    try:
        ForkingPickler.dumps(work)
    except Exception as error:
        raise InputError(
            f"other processes cannot be told what to do ({error}): prepare must be a function that they can import, or "
            "a partial of one. Or pass workers=0."
        ) from error


@contextmanager
def _one_thread() -> Iterator[None]:
    """As in other processes: what is fitted must not depend on who fits it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
