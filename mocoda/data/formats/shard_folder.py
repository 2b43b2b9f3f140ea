"""Tables that may be too large for memory: a folder with a manifest and one Parquet file per shard.

The manifest says how many shards there are, and of which table, so missing shards are known and shards of two tables
are never mixed. Tables can be read whole, piece by piece, or as an excerpt.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mocoda.data.formats.arrays import raw_arrays
from mocoda.data.formats.format import Contents, Format
from mocoda.data.formats.guarded import Unpacked, refusing
from mocoda.data.formats.named_columns import PARQUET, named_columns, open_parquet, pyarrow_for, read_parquet
from mocoda.engine.errors import InputError, differing_keys
from mocoda.engine.files import whole_file, write_json

if TYPE_CHECKING:
    from torch import Tensor

    from mocoda.data.transitions import Transitions
    from mocoda.engine.randomness import Stream

MANIFEST, FORMAT, FORMAT_VERSION = "manifest.json", "mocoda-shards", 1
MOST_SHARDS = 1_000_000
MANIFEST_BYTES = 1 << 24  # the largest size of a manifest
LISTED = 3  # missing shards that a message names
SPREAD = 4  # an excerpt is drawn from pieces with this many times its rows


@dataclass(frozen=True)
class Manifest:
    """The table that the shards of a folder belong to.

    shards       number of shards
    rows         number of rows of all shards
    fingerprint  a hash of everything that the rows depend on
    source       how the rows were made
    """

    shards: int
    rows: int
    fingerprint: str
    source: Mapping[str, Any]

    def save(self, folder: Path) -> None:
        """Writes the manifest unless it exists; refuses a folder with shards of another table."""
        if (folder / MANIFEST).exists():
            found = Manifest.load(folder)
            if found != self:
                raise InputError(
                    f"the folder {str(folder)!r} holds shards of another table, which differs in "
                    f"{differing_keys(asdict(found), asdict(self))}. Choose another folder."
                )
        else:
            write_json(folder / MANIFEST, {"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(self)})

    @staticmethod
    def load(folder: Path) -> Manifest:
        path = folder / MANIFEST
        with refusing(str(path), "a manifest of shards"):
            if path.stat().st_size > MANIFEST_BYTES:
                raise InputError(f"{str(path)!r} is too large for a manifest of shards.")
            found = json.loads(path.read_bytes())
            if found["format"] != FORMAT:
                raise InputError(f"{str(path)!r} is not a manifest of {FORMAT}.")
            if found["format_version"] != FORMAT_VERSION:
                raise InputError(
                    f"{str(path)!r} has format version {found['format_version']}; this mocoda reads version "
                    f"{FORMAT_VERSION}."
                )
            numbers = [found["shards"], found["rows"]]
            sound = all(type(number) is int and number > 0 for number in numbers) and found["shards"] <= MOST_SHARDS
            if not sound or not isinstance(found["fingerprint"], str) or not isinstance(found["source"], dict):
                raise InputError(f"{str(path)!r} is damaged: its numbers of shards and rows cannot be.")
            return Manifest(found["shards"], found["rows"], found["fingerprint"], found["source"])

    def has(self, folder: Path, number: int) -> bool:
        """Whether a shard is there; refuses another file of its name."""
        path = folder / shard_name(number)
        if path.exists():
            self.about(path, number)
        return path.exists()

    def about(self, path: Path, number: int) -> tuple[list[int], int]:
        """The rows of a shard's row groups, and how many rows were drawn; refuses a file that is not this shard."""
        with refusing(str(path), "Parquet"), open_parquet(path) as file:
            texts = {key: (file.metadata.metadata or {}).get(key) for key in (b"shard", b"drawn")}
            if texts[b"shard"] != self._mark(number).encode():
                raise InputError(
                    f"{str(path)!r} is not the shard {number} of {self.shards} that {MANIFEST} tells of. Move it away."
                )
            return group_sizes(file), int(texts[b"drawn"] or 0)

    def write(self, folder: Path, number: int, tables: Iterable[tuple[Transitions, int]]) -> int:
        """Writes a shard, whole or not at all, one row group per table. Returns how many rows were drawn for it.

        tables  with the number of rows that were drawn for each
        """
        pyarrow, writer, drawn = pyarrow_for("write Parquet files"), None, 0
        with whole_file(folder / shard_name(number)) as part:
            try:
                for table, more in tables:
                    rows = pyarrow.table(named_columns(table))
                    if writer is None:
                        texts = {"mocoda": json.dumps({"columns": table.columns, "source": dict(self.source)})}
                        schema = rows.schema.with_metadata({**texts, "shard": self._mark(number)})
                        writer = pyarrow.parquet.ParquetWriter(part, schema, **_settings(schema))
                    writer.write_table(rows.cast(writer.schema), row_group_size=len(table))
                    drawn += more
                assert writer is not None
                writer.add_key_value_metadata({"drawn": str(drawn)})
            finally:
                if writer is not None:
                    writer.close()
        return drawn

    def _mark(self, number: int) -> str:
        return json.dumps([number, self.shards, self.fingerprint])


def shard_name(number: int) -> str:
    return f"shard-{number:05d}.parquet"


def _settings(schema: Any) -> dict[str, Any]:
    """How columns are stored: floats byte by byte and lightly compressed, which is quick; others by dictionary."""
    numbers = [field.name for field in schema if str(field.type) == "float" and field.name != "reward"]
    return {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": [field.name for field in schema if field.name not in numbers and str(field.type) != "bool"],
        "column_encoding": {name: "BYTE_STREAM_SPLIT" for name in numbers},
    }


def is_shards(path: Path) -> bool:
    if not (path / MANIFEST).is_file():
        return False
    with (path / MANIFEST).open("rb") as file:
        return f'"{FORMAT}"'.encode() in file.read(100)


def read_shards(place: str) -> Contents:
    """All rows, in the order of the shards."""
    manifest, pieces, drawn = pieces_of(Path(place))
    arrays: dict[str, Any] = {}
    at, unpacked = 0, Unpacked(place, *{file for file, _, _ in pieces})
    with refusing(place, "a folder of shards"):
        for file, group, rows in pieces:
            contents = read_parquet(str(file), group, unpacked)
            if not arrays:
                shapes = {name: (array.shape[1:], array.dtype) for name, array in contents.arrays.items()}
                arrays = {name: np.empty((manifest.rows, *shape), kind) for name, (shape, kind) in shapes.items()}
            if arrays.keys() != contents.arrays.keys():
                raise InputError(f"{str(file)!r} has other columns than the shards before it. Is it damaged?")
            for name, array in contents.arrays.items():
                arrays[name][at : at + rows] = array
            at += rows
    return Contents(arrays, contents.columns, source_of(manifest, drawn))


def source_of(manifest: Manifest, drawn: int) -> dict[str, Any]:
    """The source of the whole table, once the number of drawn rows is known."""
    source = dict(manifest.source)
    if "filter" in source:
        share = source["generated_rows"] / drawn if drawn else None
        source["filter"] = {**source["filter"], "drawn_rows": drawn, "accepted_share": share}
    return source


def read_pieces(source: str | Path) -> Iterator[Transitions]:
    """Reads a table piece by piece, in order, holding one piece in memory.

    source  a folder of shards or a Parquet file, whose pieces are those it was written in (65,536 rows; about a million
            if written on a GPU); anything else that `mocoda.read` reads is one piece
    """
    from mocoda.data.formats import read

    path = Path(source)
    if path.is_dir() and is_shards(path):
        pieces = pieces_of(path)[1]
    elif PARQUET.recognises is not None and PARQUET.recognises(path):
        with refusing(str(path), "Parquet"), open_parquet(path) as file:
            pieces = [(path, group, size) for group, size in enumerate(group_sizes(file))]
    else:
        yield read(source)
        return
    for file, group, _ in pieces:
        yield read_group(file, group)


def pieces_of(folder: Path) -> tuple[Manifest, list[tuple[Path, int, int]], int]:
    """The manifest of a complete folder, its pieces in order (file, row group, rows), and how many rows were drawn."""
    manifest = Manifest.load(folder)
    files = [folder / shard_name(number) for number in range(manifest.shards)]
    if missing := [file.name for file in files if not file.is_file()]:
        names = ", ".join(missing[:LISTED]) + (", …" if missing[LISTED:] else "")
        raise InputError(
            f"{str(folder)!r} lacks {len(missing):,} of {manifest.shards:,} shards ({names}). The command that began "
            "them makes those that are missing."
        )
    about = [manifest.about(file, number) for number, file in enumerate(files)]
    pieces = [(file, *piece) for file, (sizes, _) in zip(files, about, strict=True) for piece in enumerate(sizes)]
    if (rows := sum(size for _, _, size in pieces)) != manifest.rows:
        raise InputError(
            f"the shards in {str(folder)!r} have {rows:,} rows, and {MANIFEST} tells of {manifest.rows:,}."
        )
    return manifest, pieces, sum(drawn for _, drawn in about)


def group_sizes(file: Any) -> list[int]:
    return [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]


def read_group(file: Path, group: int) -> Transitions:
    return raw_arrays(read_parquet(str(file), group), PARQUET.title).table()


@dataclass(frozen=True, eq=False)
class Excerpt:
    """Some rows of a table that may be too large for memory.

    table    the rows, in their order
    numbers  (M,), their numbers in the whole table
    whole    number of rows of the whole table
    """

    table: Transitions
    numbers: Tensor
    whole: int


def read_excerpt(
    source: str | Path, *, rows: int = 1_000_000, show: Sequence[int] = (), seed: int | Stream = 0
) -> Transitions | Excerpt:
    """Reads a table; of a folder of shards with more than `rows` rows, it reads only about that many.

    An excerpt holds all recorded rows, the rows with the numbers in `show`, and a random sample of the others.
    """
    import torch

    from mocoda.data.formats import read
    from mocoda.data.transitions import concatenate
    from mocoda.engine.randomness import as_stream

    folder = Path(str(source).removeprefix("shards:"))
    if not (folder.is_dir() and is_shards(folder)) or Manifest.load(folder).rows <= rows:
        return read(source)
    (manifest, pieces, _), stream = pieces_of(folder), as_stream(seed, "excerpt", device="cpu")
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


SHARDS = Format(
    "shards", "a folder of Parquet shards", "shards:FOLDER", read_shards, recognises=is_shards, place="folder"
)
