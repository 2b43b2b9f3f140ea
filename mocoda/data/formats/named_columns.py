"""Tables with named columns: pandas and polars data frames, Parquet and CSV files.

A column is called `state.x`, `action.dx`, `next_state.x` or `goal.x`: the array it belongs to, a dot, and the column's
own name, which may contain dots (`state.box1.x` is the column `box1.x` of the factor `box1`). `reward`, `terminal`,
`timeout`, `episode` and `step` stand alone. Without `next_state.` columns, a row's next state is the state of the
following row of its episode.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mocoda.data.formats.arrays import MOST_CATEGORIES, checked_texts, texts_of
from mocoda.data.formats.format import Contents, Format, Stored, begins_with
from mocoda.data.formats.guarded import Unpacked, check_readable, refusing
from mocoda.data.names import EPISODES, VECTORS
from mocoda.engine.errors import InputError
from mocoda.engine.files import whole_file

if TYPE_CHECKING:
    from mocoda.data.transitions import Transitions

GROUPS = ("state", "action", "next_state", "goal", "provenance")
Load = Callable[[], Any]  # reads a column


def pyarrow_for(what: str) -> Any:
    """pyarrow, with its readers of Parquet and CSV."""
    try:
        import pyarrow
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(f'to {what}, pyarrow is needed: pip install "mocoda[parquet]".') from error
    return pyarrow


# Data frames


def is_frame(source: Any) -> bool:
    """Whether something is a data frame of pandas or polars; imports neither."""
    return hasattr(source, "columns") and (hasattr(source, "iloc") or hasattr(source, "get_column"))


def read_frame(frame: Any) -> Contents:
    """The columns of a data frame, without its index. Two-level columns ("state", "x") are read as "state.x"."""

    def of_pandas(place: int) -> NDArray[Any]:
        series = frame.iloc[:, place]
        if getattr(series.dtype, "kind", "O") in "biuf":
            values = series.to_numpy()
            return np.asarray(series.to_numpy("float64", na_value=np.nan) if values.dtype == object else values)
        if names[place] in EPISODES:
            return np.asarray(series.astype(str).astype(object).mask(series.isna(), None))
        return np.asarray(series.to_numpy())

    def of_polars(place: int) -> NDArray[Any]:
        return np.asarray(frame.to_series(place).to_numpy())

    names = [".".join(map(str, name)) if isinstance(name, tuple) else str(name) for name in frame.columns]
    column = of_pandas if hasattr(frame, "iloc") else of_polars
    return by_column([(name, partial(column, place)) for place, name in enumerate(names)], "data frame")


# Parquet


def open_parquet(place: str | Path) -> Any:
    """Opens a Parquet file. Texts will be read as dictionaries: each text once, however many rows have it."""
    parquet = pyarrow_for("read Parquet files").parquet
    check_readable(Path(place))
    texts = [field.name for field in parquet.read_schema(place) if str(field.type) in ("string", "large_string")]
    return parquet.ParquetFile(place, read_dictionary=texts)


def parquet_table(file: Any, names: Sequence[str], unpacked: Unpacked, group: int | None = None) -> Any:
    """Reads columns of an open Parquet file, or of one of its row groups, once types and sizes have been checked."""
    for name in names:
        kind = file.schema_arrow.field(name).type
        for part in [part.type for part in kind] if str(kind).startswith("struct<") else [kind]:
            if not str(part).startswith(("int", "uint", "float", "halffloat", "double", "bool", "null", "dictionary")):
                raise InputError(
                    f"Parquet: the column {name!r} holds {part}, not numbers. Convert it, or leave it out."
                )
    about = file.metadata  # its columns are left alone: pyarrow aborts the process where they are damaged
    groups = [about.row_group(number) for number in (range(about.num_row_groups) if group is None else [group])]
    unpacked.add(sum(max(8 * part.num_rows * about.num_columns, part.total_byte_size) for part in groups))
    return file.read(columns=[*names]) if group is None else file.read_row_group(group, columns=[*names])


def column_values(column: Any) -> NDArray[Any]:
    """A column of a pyarrow table as an array (N,); texts as objects, which rows share."""
    if not hasattr(column.type, "index_type"):
        return np.asarray(column.to_numpy())
    whole = column.unify_dictionaries().combine_chunks()
    texts = np.array([*whole.dictionary.to_pylist(), None], object)
    return np.asarray(texts[whole.indices.fill_null(len(texts) - 1).to_numpy(zero_copy_only=False)])


def read_parquet(place: str, group: int | None = None, unpacked: Unpacked | None = None) -> Contents:
    """The columns of a file, or of one of its row groups; `unpacked` counts the bytes of several files."""
    unpacked = unpacked or Unpacked(place, Path(place))
    with refusing(place, "Parquet"), open_parquet(place) as file:
        names = file.schema_arrow.names
        _check_names(names, place)
        wanted = []
        for field in file.schema_arrow:  # `state.x`, or a record `state` of several columns
            group_, dot, _ = field.name.partition(".")
            if field.name in VECTORS or (group_ in GROUPS and (dot or str(field.type).startswith("struct<"))):
                wanted.append(field.name)
        table = parquet_table(file, wanted, unpacked, group).flatten()  # `state` to `state.x`
        load = [(name, partial(column_values, column)) for name, column in zip(table.column_names, table, strict=True)]
        others = [(name, partial(_parquet_column, place, name)) for name in names if name not in wanted]
        texts = json.loads(dict(file.schema_arrow.metadata or {}).get(b"mocoda", b"{}"))
        return by_column([*load, *others], "Parquet", checked_texts(place, texts))


def _parquet_column(place: str, name: str) -> NDArray[Any]:
    with refusing(place, "Parquet"), open_parquet(place) as file:
        return column_values(parquet_table(file, [name], Unpacked(place, Path(place))).column(0))


def write_parquet(data: Transitions, place: str) -> None:
    """Writes columns named as above; goals as `goal.0`, `goal.1` and so on, provenance as `provenance.recipe`."""
    pyarrow = pyarrow_for("write Parquet files")
    table = pyarrow.table(named_columns(data)).replace_schema_metadata({"mocoda": json.dumps(texts_of(data))})
    with whole_file(place) as part:
        pyarrow.parquet.write_table(table, part)


PARQUET = Format(
    "parquet",
    "Parquet",
    "FILE.parquet",
    read_parquet,
    write_parquet,
    suffixes=(".parquet",),
    recognises=lambda path: begins_with(path, b"PAR1"),
)


# CSV: a line of names, and a line for every row. It cannot hold how the rows were made (`source`).


def read_csv(place: str) -> Contents:
    """The columns of a file, separated by commas, semicolons or tabs. Empty cells are NaN."""
    pyarrow = pyarrow_for("read CSV files")
    with refusing(place, "CSV"):
        with Path(place).open(encoding="utf-8", errors="replace") as file:
            line = file.readline(1 << 20)
        parse = pyarrow.csv.ParseOptions(delimiter=max(",;\t", key=line.count), newlines_in_values=True)
        table = pyarrow.csv.read_csv(place, parse_options=parse)
        names = [name.lstrip(" ") for name in table.column_names]
    return by_column(
        [(name, partial(_csv_column, column, name)) for name, column in zip(names, table, strict=True)], "CSV"
    )


def write_csv(data: Transitions, place: str) -> None:
    """Writes floats with enough digits, and a point, so that every reader gets the same floats back."""
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
    recognises=lambda path: path.is_file() and path.suffix.lower() in (".csv", ".tsv") and path.stat().st_size > 0,
    lacks=("source",),
)


def _csv_column(column: Any, name: str) -> NDArray[Any]:
    texts = name in EPISODES and not str(column.type).startswith(("int", "float", "double"))
    return np.asarray((column.cast("string") if texts else column).to_numpy())


# What all of them share


def named_columns(data: Transitions) -> dict[str, NDArray[Any]]:
    """A table as columns (N,) by the names above."""
    states = data.state.shape[1]
    names = {"state": data.columns[:states], "next_state": data.columns[:states], "action": data.columns[states:]}
    columns: dict[str, NDArray[Any]] = {}
    for name, array in data.arrays().items():
        if array.ndim == 1:
            columns[name.replace("/", ".")] = array.cpu().numpy()
        else:
            by_column = array.T.contiguous().cpu().numpy()  # transposed where the table is: a GPU does it at once
            own = names.get(name, range(len(by_column)))
            columns |= {f"{name}.{column}": values for column, values in zip(own, by_column, strict=True)}
    return columns


def _check_names(names: Sequence[str], kind: str) -> None:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"{kind}: the columns {twice} are there more than once; every column needs its own name.")


def by_column(columns: Sequence[tuple[str, Load]], kind: str, texts: Mapping[str, Any] | None = None) -> Contents:
    """Joins columns `state.x`, `state.y` to an array `state`, and so on; users may name the other columns."""
    _check_names([name for name, _ in columns], kind)
    load, texts = dict(columns), texts or {}
    groups: dict[str, list[str]] = {name: [] for name in GROUPS}
    others = []
    for name in load:
        group, _, own = name.partition(".")
        if own and group in groups:
            groups[group].append(own)
        elif name not in VECTORS:
            others.append(name)
    if groups["next_state"]:
        if groups["state"] and {*groups["next_state"]} != {*groups["state"]}:
            odd = sorted({*groups["next_state"]} ^ {*groups["state"]})
            raise InputError(f"{kind}: state and next_state must have the same columns; they differ in {odd}.")
        groups["next_state"] = groups["state"] or groups["next_state"]
    if both := sorted({*groups["state"]} & {*groups["action"]}):
        raise InputError(f"{kind}: {both} name columns of both state and action; every column needs its own name.")
    cells = {f"{group}.{name}": np.asarray(load[f"{group}.{name}"]()) for group in groups for name in groups[group]}
    categories = {}
    for key in [key for key in cells if key.startswith(("state.", "action."))]:
        both = [name for name in (key, f"next_{key}") if name in cells]
        if not all(_holds_texts(cells[name]) for name in both):
            continue
        known, numbers = np.unique(np.concatenate([cells[name] for name in both]), return_inverse=True)
        cells |= zip(both, np.split(numbers.astype(float), len(both)), strict=True)
        categories[key.partition(".")[2]] = known.tolist()
    arrays: dict[str, Any] = {name: _numbers(kind, name, np.asarray(load[name]())) for name in VECTORS if name in load}
    for group, names in groups.items():
        found = {key: _numbers(kind, key, cells[key]) for key in (f"{group}.{name}" for name in names)}
        if group == "provenance":
            arrays |= found
        elif found:
            arrays[group] = np.stack([*found.values()], 1)
    arrays |= {name: Stored(load[name]) for name in others}
    return Contents(
        arrays,
        texts.get("columns") or (*groups["state"], *groups["action"]),
        texts.get("source"),
        ignored=others,
        missing="there are no columns of the {name}; they are called {name}.x, {name}.y and so on.",
        categories=categories,
    )


def _holds_texts(values: NDArray[Any]) -> bool:
    """Whether every row holds a text, and few enough differ to be categories."""
    texts = values.tolist() if values.dtype.kind in "OU" else [None]
    return all(isinstance(text, str) for text in texts) and len({*texts}) <= MOST_CATEGORIES


def _numbers(kind: str, name: str, values: NDArray[Any]) -> NDArray[Any]:
    if name in EPISODES or values.dtype.kind in "biuf":
        return values
    raise InputError(
        f"{kind}: the column {name!r} holds {values.dtype}, neither numbers nor categories, which are up to "
        f"{MOST_CATEGORIES} texts, one in every row. Convert it, or leave it out."
    )
