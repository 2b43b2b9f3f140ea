"""Augmented tables larger than memory, made by several processes or machines, and continued after a kill.

`augment_to_file` writes one file in place. The file gets its full size first, with every array in one piece at a place
that never changes. After that, processes only write rows, each to its own place. So the file is sound whenever they are
killed, and the missing rows are known: the pieces after the last one that was noted as finished.

`augment_to_shards` writes a folder of files. A shard is some pieces of the table, and a piece depends on the seed and
its number alone. So any process may make any shard, at any time, and again if it was killed; it is a file only once it
is whole.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import cloudpickle
import h5py
import numpy as np
from torch import Tensor

from mocoda.augmentation.generation import Augmentation, Piece
from mocoda.data.formats.guarded import put_metadata
from mocoda.data.formats.shard_folder import Manifest, shard_name, source_of
from mocoda.data.transitions import Transitions, as_tensor, write_metadata
from mocoda.engine.checkpoint import fingerprint
from mocoda.engine.cores import cores
from mocoda.engine.engines import Engine, Processes
from mocoda.engine.errors import InputError
from mocoda.engine.files import check_writable, hdf5_disk, write_json
from mocoda.engine.progress import Progress, silent
from mocoda.engine.workers import Workers, one_thread

UNFINISHED, FINISHED = "unfinished.hdf5", "unfinished.json"  # in the folder: the rows, and how many pieces they are
MANY_ROWS = 1_000_000  # from so many rows on, several processes are faster than one
MAX_PROCESSES = 3  # with torch in each, so many fit into 2 GB
INTERVAL = 1.0  # seconds between notes of how far it is


def augment_to_file(
    path: str | Path,
    prepare: Callable[[], Augmentation],
    *,
    folder: str | Path,
    workers: int = 0,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Writes an augmented table of any size, with one piece per process in memory. Returns its source.

    prepare  makes what to write. It is called once; other processes are sent what it returns
    folder   keeps unfinished work, on the disk of `path`: the same call goes on from there, to the same file
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
    work = _Rows(plan if workers == 0 else sent(plan, prepare), unfinished)
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
            put_metadata(file, {"source": final})
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    unfinished.replace(path)
    note.unlink(missing_ok=True)
    return final


def augment_to_shards(
    folder: str | Path,
    prepare: Callable[[], Augmentation],
    *,
    shards: int,
    only: Iterable[int] | None = None,
    engine: Engine | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Writes an augmented table as a folder of Parquet files, and makes only those that are not there yet.

    The rows are those of `augment`, and the bytes the same whoever makes them. `mocoda.read(folder)` reads them as one
    table, `mocoda.read_pieces(folder)` piece by piece. Returns the table's source.

    prepare  makes what to write. It is called once; other processes are sent what it returns
    only     numbers of the shards that this call is to make, such as one for each job of a cluster; None: all
    engine   where they are made: `mocoda.make_engine("processes", workers=2)` or `mocoda.make_engine("ray")`; None:
             here
    """
    folder, engine = Path(folder), engine or Processes(0)
    wanted = range(shards) if only is None else sorted({*only})
    with one_thread():
        plan = prepare()
        check_shards(shards, wanted, plan.rows)
        work = _Shards.of(plan, shards, folder)
    manifest = work.manifest
    manifest.save(folder)
    rows = [work.rows(number) for number in range(shards)]
    todo = [number for number in wanted if not manifest.has(folder, number)]
    total = sum(rows[number] for number in wanted)
    done = total - sum(rows[number] for number in todo)
    progress("augment", done, total)
    if not (isinstance(engine, Processes) and engine.workers == 0) and todo:
        work = replace(work, made=sent(work.plan, prepare))
    for number, _ in engine.run(work, todo):
        if not manifest.has(folder, number):
            raise InputError(
                f"another machine says that it has made {str(folder / shard_name(number))!r}, but it is not there. "
                "Choose a folder that all machines share."
            )
        done += rows[number]
        progress("augment", done, total)
    return source_of(manifest, sum(manifest.about(folder / shard_name(number), number)[1] for number in wanted))


def check_shards(shards: int, wanted: Iterable[int], rows: int) -> None:
    """Raises unless so many rows can be split into so many shards, and the wanted ones are among them."""
    if not 1 <= shards <= rows:
        raise InputError(f"shards must be a number from 1 to that of the rows, {rows:,}, got {shards}.")
    if bad := [number for number in wanted if not 0 <= number < shards]:
        raise InputError(f"shards are counted from 0 to {shards - 1}, got {bad[0]}.")


def workers_for(rows: int, device: str) -> int:
    """The number of processes that are worth starting for so many rows; 0: this one alone."""
    return min(MAX_PROCESSES, cores()) if device == "cpu" and rows >= MANY_ROWS and cores() > 1 else 0


@dataclass(frozen=True)
class _Work:
    """Work on an augmentation, which may have been sent from another process (see `sent`)."""

    made: Augmentation | bytes

    @cached_property
    def plan(self) -> Augmentation:
        made = cloudpickle.loads(self.made) if isinstance(self.made, bytes) else self.made
        plan: Augmentation = made if isinstance(made, Augmentation) else made()
        return plan


@dataclass(frozen=True)
class _Rows(_Work):
    """Makes a piece and writes it to its place in a file."""

    file: Path

    def __call__(self, number: int) -> int:
        piece: Piece = self.plan.piece(number)
        _write(self.file, piece.table, sum(self.plan.sizes[:number]))
        return piece.drawn


@dataclass(frozen=True)
class _Shards(_Work):
    """Makes a shard, unless it is there."""

    manifest: Manifest
    folder: Path

    @staticmethod
    def of(plan: Augmentation, shards: int, folder: Path) -> _Shards:
        plan = replace(plan, chunk=min(plan.piece_rows, plan.rows // shards))
        source = json.loads(json.dumps(plan.source(0, 0)))
        depends = json.dumps([source, fingerprint_of(plan), plan.provenance, plan.chunk, shards], sort_keys=True)
        identity = sha256(depends.encode()).hexdigest()[:16]
        return _Shards(plan, Manifest(shards, sum(plan.sizes), identity, source), folder)

    def __call__(self, number: int) -> None:
        if not self.manifest.has(self.folder, number):
            self.manifest.write(self.folder, number, (self.plan.piece(piece) for piece in self.pieces(number)))

    def rows(self, number: int) -> int:
        """The rows of a shard."""
        return sum(self.plan.sizes[piece] for piece in self.pieces(number))

    def pieces(self, number: int) -> list[int]:
        """The pieces of a shard; recorded rows come first in the first."""
        recorded = int(self.plan.keep_recorded)
        generated = len(self.plan.sizes) - recorded
        begin, end = (recorded + generated * place // self.manifest.shards for place in (number, number + 1))
        return [*range(recorded if number == 0 else 0), *range(begin, end)]


def sent(plan: Augmentation, prepare: Callable[[], Augmentation]) -> bytes:
    """An augmentation for other processes, with all that was fitted; or else the function that makes it."""
    with one_thread():
        plan.prepare()
    chunk = plan.chunk
    try:
        return bytes(cloudpickle.dumps(plan))
    except Exception as error:  # a graph file may use what cannot be sent, such as an open file
        try:
            return bytes(cloudpickle.dumps(lambda: replace(prepare(), chunk=chunk)))
        except Exception:
            raise InputError(
                f"this augmentation cannot be sent to other processes ({error}). Let its task and recipe hold nothing "
                "like open files, or pass workers=0."
            ) from error


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
        write_metadata(made, like)
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
