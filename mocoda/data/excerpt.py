"""Some rows of a table that may be too large for memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mocoda.data.formats import read
from mocoda.data.formats.shards import complete, is_shards, pieces_of, read_group
from mocoda.data.transitions import Transitions, concatenate
from mocoda.engine.randomness import Stream, as_stream

SPREAD = 4  # times as many rows as an excerpt takes are in the pieces that it comes from


@dataclass(frozen=True, eq=False)
class Excerpt:
    """Some rows of a table.

    table    the rows, in their order
    numbers  (M,), their numbers in the whole table
    whole    how many rows that has
    """

    table: Transitions
    numbers: Tensor
    whole: int


def read_excerpt(
    source: str | Path, *, rows: int = 1_000_000, show: Sequence[int] = (), seed: int | Stream = 0
) -> Transitions | Excerpt:
    """Reads a table whole, but of a folder of shards with more than `rows` rows about so many, piece by piece.

    These are the recorded rows, which are all read, those of the numbers in `show`, and others at random.
    """
    folder = Path(str(source).removeprefix("shards:"))
    if not (folder.is_dir() and is_shards(folder)) or (manifest := complete(folder)).rows <= rows:
        return read(source)
    pieces, stream = pieces_of(folder, manifest), as_stream(seed, "excerpt", device="cpu")
    said = manifest.source.get("recorded_rows")
    recorded = min(max(said, 0), manifest.rows) if isinstance(said, int) else 0  # which come first
    sizes, room = torch.tensor([size for _, _, size in pieces]), max(rows - recorded, 1)
    order = stream.permutation(len(pieces))
    order = order[sizes.cumsum(0)[order] > recorded]
    drawn = order[sizes[order].cumsum(0) - sizes[order] < SPREAD * room]
    share = room / max(int(sizes[drawn].sum()), room)
    chosen, tables, numbers, begin = set(drawn.tolist()), [], [], 0
    for place, (file, group, size) in enumerate(pieces):
        wanted = torch.arange(begin, begin + size) < recorded
        wanted[[row - begin for row in show if begin <= row < begin + size]] = True
        if place in chosen:
            wanted[stream.child(place).permutation(size)[: round(share * size)]] = True
        if bool(wanted.any()):
            tables.append(read_group(file, group)[wanted])
            numbers.append(begin + wanted.nonzero()[:, 0])
        begin += size
    generated = sum(map(len, tables)) - recorded
    counted = {**tables[0].source, "recorded_rows": recorded, "generated_rows": generated}
    return Excerpt(concatenate(tables, counted), torch.cat(numbers), manifest.rows)
