"""An augmented table of any size as a folder of shards, which many processes, or machines, make in any order.

A shard is some pieces of the table, and a piece depends on the seed and its number alone. So any process may make any
shard, at any time, and again if it was killed; it is a file only once it is whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from mocoda.augmentation.generation import Augmentation, chunk_of
from mocoda.augmentation.streaming import check_importable, fingerprint_of
from mocoda.data.formats.shard_folder import Manifest, shard_name, source_of
from mocoda.data.transitions import Transitions
from mocoda.engine.engines import Engine, Processes
from mocoda.engine.errors import InputError
from mocoda.engine.progress import Progress, silent
from mocoda.engine.workers import one_thread


def augment_to_shards(
    folder: str | Path,
    prepare: Callable[[], Augmentation],
    *,
    shards: int,
    only: Iterable[int] | None = None,
    engine: Engine | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Writes an augmented table as Parquet files, `shards` of them, and makes only those that are not there yet.

    The rows are those of `augment`, and the bytes the same whoever makes them. `mocoda.read(folder)` reads them as one
    table, `mocoda.read_pieces(folder)` piece by piece. Returns the table's source.

    prepare  what to write. Every process calls it once, so others must be able to import it: a function of a module, or
             a partial of one
    only     numbers of the shards that this call is to make, such as one for each job of a cluster; None: all
    engine   where they are made: `mocoda.make_engine("processes", workers=2)` or `mocoda.make_engine("ray")`; None:
             here
    """
    folder, engine = Path(folder), engine or Processes(0)
    work = _Shards(prepare, shards, folder)
    wanted = range(shards) if only is None else sorted({*only})
    if bad := [number for number in wanted if not 0 <= number < shards]:
        raise InputError(f"shards are counted from 0 to {shards - 1}, got {bad[0]}.")
    here = isinstance(engine, Processes) and engine.workers == 0
    if not here:
        check_importable(work)
    with one_thread():
        manifest = work.manifest
    manifest.save(folder)
    rows = [work.rows(number) for number in range(shards)]
    todo = [number for number in wanted if not manifest.has(folder, number)]
    total = sum(rows[number] for number in wanted)
    done = total - sum(rows[number] for number in todo)
    progress("augment", done, total)
    for number, _ in engine.run(work if here else replace(work), todo):  # others prepare their own
        if not manifest.has(folder, number):
            raise InputError(
                f"another machine says that it has made {str(folder / shard_name(number))!r}, but it is not there. "
                "Choose a folder that all machines share."
            )
        done += rows[number]
        progress("augment", done, total)
    return source_of(manifest, sum(manifest.about(folder / shard_name(number), number)["drawn"] for number in wanted))


@dataclass(frozen=True)
class _Shards:
    """What a process does: make a shard, unless it is there."""

    prepare: Callable[[], Augmentation]
    shards: int
    folder: Path

    def __call__(self, number: int) -> None:
        manifest = self.manifest
        if not manifest.has(self.folder, number):
            manifest.write(self.folder, number, self._tables(number))

    def rows(self, number: int) -> int:
        return sum(self._plan.sizes[piece] for piece in self._pieces(number))

    @cached_property
    def manifest(self) -> Manifest:
        plan = self._plan
        source = json.loads(json.dumps(plan.source(0, 0)))
        depends = json.dumps([source, fingerprint_of(plan), plan.provenance, plan.chunk, self.shards], sort_keys=True)
        return Manifest(self.shards, sum(plan.sizes), sha256(depends.encode()).hexdigest()[:16], source)

    @cached_property
    def _plan(self) -> Augmentation:
        plan = self.prepare()
        if not 1 <= self.shards <= plan.rows:
            raise InputError(f"shards must be a number from 1 to that of the rows, {plan.rows:,}, got {self.shards}.")
        return replace(plan, chunk=min(plan.chunk or chunk_of(plan.data.device), plan.rows // self.shards))

    def _pieces(self, number: int) -> list[int]:
        """The pieces of a shard; recorded rows come first in the first."""
        recorded = int(self._plan.keep_recorded)
        generated = len(self._plan.sizes) - recorded
        begin, end = (recorded + generated * place // self.shards for place in (number, number + 1))
        return [*range(recorded if number == 0 else 0), *range(begin, end)]

    def _tables(self, number: int) -> Iterator[tuple[Transitions, int]]:
        for piece in self._pieces(number):
            yield self._plan.piece(piece)
