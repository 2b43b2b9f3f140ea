"""An augmented table larger than memory is written in place by several processes, and continued after a kill.

The file gets its full size first, with every array in one piece at a place that never changes. After that, processes
only write rows, each to its own place. So the file is sound whenever they are killed, and what it lacks is known: the
pieces after the last one that was noted as finished.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from torch import Tensor

from mocoda.augmentation.generation import Augmentation, Piece
from mocoda.data.formats.guarded import put_text
from mocoda.data.transitions import Transitions, as_tensor, write_attributes
from mocoda.engine.checkpoint import fingerprint
from mocoda.engine.errors import InputError
from mocoda.engine.files import check_writable, hdf5_disk, write_json
from mocoda.engine.progress import Progress, silent
from mocoda.engine.workers import Workers, one_thread

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
    with one_thread():
        plan = prepare()
    unfinished, note = Path(folder) / UNFINISHED, Path(folder) / FINISHED
    sizes = plan.sizes
    recorded = sum(sizes) - plan.rows
    identity = json.loads(json.dumps({"source": plan.source(0, 0), "fingerprint": fingerprint_of(plan)}))
    done, drawn = _left_behind(unfinished, note, identity)
    if done == 0:
        with one_thread():
            first = plan.piece(0)
        _lay_out(unfinished, first.table, sum(sizes))
        _write(unfinished, first.table, 0)
        done, drawn = 1, first.drawn
    work = _Work(prepare if workers else lambda: plan, unfinished)
    if workers:
        check_importable(work)
    progress("augment", sum(sizes[:done]) - recorded, plan.rows)
    with unfinished.open("rb") as handle:

        def keep() -> None:
            """Notes what is finished, after it is on the disk."""
            os.fsync(handle.fileno())
            write_json(note, {"pieces": done, "drawn": drawn, **identity})

        try:
            with Workers(work, workers) as pool:
                noted = time.monotonic()
                for more in pool.map(range(done, len(sizes))):
                    done, drawn = done + 1, drawn + more
                    if time.monotonic() - noted >= INTERVAL:
                        keep()
                        noted = time.monotonic()
                    progress("augment", sum(sizes[:done]) - recorded, plan.rows)
        except BaseException:
            with suppress(OSError):  # the disk may be full
                keep()
            raise
        os.fsync(handle.fileno())
    final = plan.source(drawn)
    if plan.source(0, 0) != final:  # what filters have accepted is known only now
        with hdf5_disk(unfinished, "r+") as disk, h5py.File(disk, "r+") as file:
            put_text(file, "source", json.dumps(final))
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


def fingerprint_of(plan: Augmentation) -> str:
    """A hash of the data, and of the numbers in the parents, the model and the task."""
    return fingerprint(*_numbers_in((plan.data, plan.parents, plan.model, plan.task), set()))


def _numbers_in(thing: Any, seen: set[int]) -> Iterator[Tensor]:
    if isinstance(thing, Tensor | np.ndarray | float | int):
        yield as_tensor(thing)
    elif isinstance(thing, Mapping):
        for key in sorted(thing, key=str):  # safetensors reads weights in any order
            yield from _numbers_in(thing[key], seen)
    elif isinstance(thing, list | tuple):
        for value in thing:
            yield from _numbers_in(value, seen)
    elif hasattr(thing, "__dict__") and not callable(thing) and id(thing) not in seen:
        seen.add(id(thing))
        # Of a dataclass only its fields: what it has computed and kept since would come and go.
        own = [getattr(thing, field.name) for field in fields(thing)] if is_dataclass(thing) else vars(thing)
        yield from _numbers_in(own, seen)


def _left_behind(unfinished: Path, note: Path, identity: dict[str, Any]) -> tuple[int, int]:
    """Pieces that an earlier call has finished, and rows drawn for them; none of another table, or of a damaged one."""
    try:
        found = json.loads(note.read_text("utf-8"))
        with h5py.File(unfinished, "r"):
            same = all(found[key] == value for key, value in identity.items())
            return (int(found["pieces"]), int(found["drawn"])) if same else (0, 0)
    except (OSError, ValueError, KeyError, TypeError):
        return 0, 0


def _lay_out(file: Path, like: Transitions, rows: int) -> None:
    """Makes a file with the arrays of a table and room for so many rows; raises where the disk has less."""
    file.parent.mkdir(parents=True, exist_ok=True)
    room = sum(array.nbytes // len(like) for array in like.arrays().values()) * rows
    if room > shutil.disk_usage(file.parent).free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
    with hdf5_disk(file) as disk, h5py.File(disk, "w") as made:
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


def check_importable(work: object) -> None:
    try:
        ForkingPickler.dumps(work)
    except Exception as error:
        raise InputError(
            f"other processes cannot be told what to do ({error}): prepare must be a function that they can import, or "
            "a partial of one. Or pass workers=0."
        ) from error
