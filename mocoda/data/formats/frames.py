"""Tables with named columns: pandas and polars data frames, and Parquet files.

A column is called `state.x`, `action.dx`, `next_state.x` or `goal.x`: what the number belongs to, a dot, and its own
name, which may have dots in turn (`state.box1.x` is the column `box1.x`, of the factor `box1`). `reward`, `terminal`,
`timeout`, `episode` and `step` stand alone. Without `next_state.` columns, the next state is that of the following row
of the same episode.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mocoda.data.formats.arrays import checked_texts, refusing, texts_of
from mocoda.data.formats.format import Contents, Format, begins_with
from mocoda.data.formats.guarded import COMPRESSION, SMALL
from mocoda.data.names import EPISODES, VECTORS
from mocoda.engine.errors import InputError
from mocoda.engine.files import whole_file

if TYPE_CHECKING:
    from mocoda.data.transitions import Transitions

GROUPS = ("state", "action", "next_state", "goal", "provenance")
Column = Callable[[], NDArray[Any]]  # fetched when its place in a table is known


def is_frame(source: Any) -> bool:
    """Whether something is a data frame of pandas or polars; neither is imported."""
    return hasattr(source, "columns") and (hasattr(source, "iloc") or hasattr(source, "get_column"))


def read_frame(frame: Any) -> Contents:
    """The columns of a data frame; an index is not used. Two-level columns ("state", "x") pass for "state.x"."""

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
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"data frame: the columns {twice} are there more than once; every column needs its own name.")
    column = of_pandas if hasattr(frame, "iloc") else of_polars
    return by_column({name: partial(column, place) for place, name in enumerate(names)}, "data frame")


def read_parquet(place: str, group: int | None = None) -> Contents:
    """The columns of a file, or of one of its row groups."""
    with refusing(place, "Parquet"), pyarrow_for("read Parquet files").parquet.ParquetFile(place) as file:
        checked_file(place, file)
        texts = dict(file.schema_arrow.metadata or {}).get(b"mocoda", b"{}")
        names = file.schema_arrow.names
        wanted = [name for name in names if name in VECTORS or name.split(".")[0] in GROUPS]
        table = file.read(columns=wanted) if group is None else file.read_row_group(group, columns=wanted)
        table = table.flatten()  # a column of records `state` becomes `state.x`, `state.y`
        fetch: dict[str, Column] = {name: table.column(at).to_numpy for at, name in enumerate(table.column_names)}
        if len(fetch) < table.num_columns or len({*names}) < len(names):
            raise InputError(f"{place!r} has several columns of one name; every column needs its own.")
        fetch |= {name: partial(_parquet_column, place, name) for name in names if name not in wanted}
        return by_column(fetch, "Parquet", checked_texts(place, json.loads(texts)))


def checked_file(place: str, file: Any) -> None:
    """Refuses a Parquet file that claims more than its bytes can hold."""
    about = file.metadata
    claimed = sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups))
    claimed, size = max(8 * about.num_rows * about.num_columns, claimed), Path(place).stat().st_size
    if claimed > SMALL + COMPRESSION * size:
        raise InputError(f"{place!r} claims {claimed:,} bytes and stores {size:,}.")


def _parquet_column(place: str, name: str) -> NDArray[Any]:
    with refusing(place, "Parquet"), pyarrow_for("read Parquet files").parquet.ParquetFile(place) as file:
        return np.asarray(file.read(columns=[name]).column(0).to_numpy())


def write_parquet(data: Transitions, place: str) -> None:
    """Columns named as above, `goal.0`, `goal.1` and so on for goals, and `provenance.recipe` for provenance."""
    pyarrow = pyarrow_for("write Parquet files")
    columns = named_columns(data)
    texts = json.dumps({name: json.loads(text) for name, text in texts_of(data).items()})
    table = pyarrow.table(columns).replace_schema_metadata({"mocoda": texts})
    with whole_file(place) as part:
        pyarrow.parquet.write_table(table, part)


def named_columns(data: Transitions) -> dict[str, NDArray[Any]]:
    """A table as columns (N,) by the names above."""
    states = data.state.shape[1]
    names = {"state": data.columns[:states], "next_state": data.columns[:states], "action": data.columns[states:]}
    columns: dict[str, NDArray[Any]] = {}
    for name, array in data.arrays().items():
        if array.ndim == 1:
            columns[name.replace("/", ".")] = array.cpu().numpy()
        else:
            by_column = array.T.contiguous().cpu().numpy()  # turned where the table is: a GPU does it at once
            own = names.get(name, range(len(by_column)))
            columns |= {f"{name}.{column}": values for column, values in zip(own, by_column, strict=True)}
    return columns


PARQUET = Format(
    "parquet",
    "Parquet",
    "FILE.parquet",
    read_parquet,
    write_parquet,
    suffixes=(".parquet",),
    recognises=lambda path: begins_with(path, b"PAR1"),
)


def by_column(fetch: Mapping[str, Column], kind: str, texts: Mapping[str, Any] | None = None) -> Contents:
    """Groups columns by what they belong to, and makes an array of each group. The others are fetched if named."""
    texts = texts or {}
    groups: dict[str, list[str]] = {name: [] for name in GROUPS}
    others = {}
    for name in fetch:
        group, _, own = name.partition(".")
        if own and group in groups:
            groups[group].append(own)
        elif name not in VECTORS:
            others[name] = ""
    if groups["next_state"]:
        if groups["state"] and {*groups["next_state"]} != {*groups["state"]}:
            odd = sorted({*groups["next_state"]} ^ {*groups["state"]})
            raise InputError(f"{kind}: state and next_state must have the same columns; they differ in {odd}.")
        groups["next_state"] = groups["state"] or groups["next_state"]
    if both := sorted({*groups["state"]} & {*groups["action"]}):
        raise InputError(f"{kind}: {both} name columns of both state and action; every column needs its own name.")
    arrays: dict[str, NDArray[Any]] = {name: _numbers(kind, name, fetch[name]) for name in VECTORS if name in fetch}
    for group, names in groups.items():
        found = {f"{group}.{name}": _numbers(kind, f"{group}.{name}", fetch[f"{group}.{name}"]) for name in names}
        if group == "provenance":
            arrays |= found
        elif found:
            with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused as such
                arrays[group] = np.stack([values.astype(np.float32) for values in found.values()], 1)
    return Contents(
        arrays,
        texts.get("columns") or (*groups["state"], *groups["action"]),
        texts.get("source"),
        ignored=list(others),
        others=others,
        fetch=lambda name: _numbers(kind, name, fetch[name], texts=True),
        missing="there are no columns of the {name}; they are called {name}.x, {name}.y and so on.",
    )


def _numbers(kind: str, name: str, fetch: Column, texts: bool = False) -> NDArray[Any]:
    values = np.asarray(fetch())
    if texts or name in EPISODES or values.dtype.kind in "biuf":
        return values
    raise InputError(f"{kind}: the column {name!r} holds {values.dtype}, not numbers. Convert it, or leave it out.")


def pyarrow_for(what: str) -> Any:
    """pyarrow, with its readers of Parquet and CSV."""
    try:
        import pyarrow
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(f'to {what}, pyarrow is needed: pip install "mocoda[parquet]".') from error
    return pyarrow
