"""CSV files: a line of names, which are those of data frames (`state.x`, `action.dx`), and a line for every row.

Numbers come back to the bit. What CSV cannot hold: how the rows were made (`source`).
"""

from __future__ import annotations

import csv
import io
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mocoda.data.formats.arrays import refusing
from mocoda.data.formats.format import Contents, Format
from mocoda.data.formats.frames import by_column, named_columns, pyarrow_for
from mocoda.data.names import EPISODES
from mocoda.engine.errors import InputError
from mocoda.engine.files import whole_file

if TYPE_CHECKING:
    from mocoda.data.transitions import Transitions

SUFFIXES = (".csv", ".tsv")


def read_csv(place: str) -> Contents:
    """Columns of numbers; those of anything else are fetched only if they are named. Empty cells are NaN."""
    pyarrow = pyarrow_for("read CSV files")
    with refusing(place, "CSV"):
        with Path(place).open(encoding="utf-8", errors="replace", newline="") as file:
            start = file.read(1 << 20)
        separator = "," if _names_by(start, ",") > 1 else max(";\t", key=partial(_names_by, start))
        parse = pyarrow.csv.ParseOptions(delimiter=separator, newlines_in_values=True)
        table = pyarrow.csv.read_csv(place, parse_options=parse)
        names = [name.lstrip(" ") for name in table.column_names]
    if len({*names}) < len(names):
        raise InputError(f"{place!r} has several columns of one name; every column needs its own.")
    return by_column({name: partial(_column, table, at, name) for at, name in enumerate(names)}, "CSV")


def write_csv(data: Transitions, place: str) -> None:
    """Floats are written as doubles and with a point, so that every reader gets their very bits, and floats again."""
    pyarrow = pyarrow_for("write CSV files")
    columns = {
        name: list(map(repr, array.tolist())) if array.dtype.kind == "f" else array
        for name, array in named_columns(data).items()
    }
    options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="none")
    with whole_file(place) as part, part.open("wb") as file:
        header = io.StringIO(newline="")
        csv.writer(header).writerow(columns)
        file.write(header.getvalue().removesuffix("\r\n").encode() + b"\n")
        pyarrow.csv.write_csv(pyarrow.table(columns), file, options)


CSV = Format(
    "csv",
    "CSV",
    "FILE.csv",
    read_csv,
    write_csv,
    suffixes=(".csv",),
    recognises=lambda path: path.is_file() and path.suffix.lower() in SUFFIXES and path.stat().st_size > 0,
)


def _names_by(start: str, separator: str) -> int:
    """How many names a file's first line has if this separates them; quoted names may break the line."""
    try:
        return len(next(csv.reader(io.StringIO(start, newline=""), delimiter=separator), ()))
    except csv.Error:
        return 0


def _column(table: Any, at: int, name: str) -> Any:
    column = table.column(at)
    texts = name in EPISODES and not str(column.type).startswith(("int", "float", "double"))
    return np.asarray((column.cast("string") if texts else column).to_numpy())
