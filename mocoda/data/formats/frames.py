"""Tables with named columns: pandas data frames and Parquet files.

A column is called `state.x`, `action.dx`, `next_state.x` or `goal.x`: what the number belongs to, a dot, and its own
name, which may have dots in turn (`state.box1.x` is the column `box1.x`, of the factor `box1`). `reward`, `terminal`,
`timeout`, `episode` and `step` stand alone. Without `next_state.` columns, the next state is that of the following row
of the same episode.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
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


def read_frame(frame: Any) -> Contents:
    """The columns of a pandas DataFrame; its index is not used. Two-level columns ("state", "x") pass for "state.x"."""

    def column(place: int) -> NDArray[Any]:
        series = frame.iloc[:, place]
        if getattr(series.dtype, "kind", "O") in "biuf":
            values = series.to_numpy()
            return np.asarray(series.to_numpy("float64", na_value=np.nan) if values.dtype == object else values)
        return np.asarray(series.astype(str) if names[place] in EPISODES else series.to_numpy())

    names = [".".join(map(str, name)) if isinstance(name, tuple) else str(name) for name in frame.columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"data frame: the columns {twice} are there more than once; every column needs its own name.")
    return _contents({name: partial(column, place) for place, name in enumerate(names)}, "data frame")


def read_parquet(place: str, group: int | None = None) -> Contents:
    """The columns of a file, or of one of its row groups."""
    with refusing(place, "Parquet"), pyarrow_to("read").parquet.ParquetFile(place) as file:
        about, texts = file.metadata, dict(file.schema_arrow.metadata or {}).get(b"mocoda", b"{}")
        claimed = sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups))
        claimed, size = max(8 * about.num_rows * about.num_columns, claimed), Path(place).stat().st_size
        if claimed > SMALL + COMPRESSION * size:
            raise InputError(f"{place!r} claims {claimed:,} bytes and stores {size:,}.")
        wanted = [name for name in file.schema_arrow.names if name in VECTORS or name.split(".")[0] in GROUPS]
        table = file.read(columns=wanted) if group is None else file.read_row_group(group, columns=wanted)
        table = table.flatten()  # a column of records `state` becomes `state.x`, `state.y`
        fetch = {name: table.column(place).to_numpy for place, name in enumerate(table.column_names)}
        if len(fetch) < table.num_columns:
            raise InputError(f"{place!r} has several columns of one name; every column needs its own.")
        left = [name for name in file.schema_arrow.names if name not in wanted]
        return _contents(fetch, "Parquet", checked_texts(place, json.loads(texts)), left)


def write_parquet(data: Transitions, place: str) -> None:
    """Columns named as above, `goal.0`, `goal.1` and so on for goals, and `provenance.recipe` for provenance."""
    texts = json.dumps({name: json.loads(text) for name, text in texts_of(data).items()})
    with whole_file(place) as part:
        pyarrow_to("write").parquet.write_table(arrow_table(data).replace_schema_metadata({"mocoda": texts}), part)


def arrow_table(data: Transitions) -> Any:
    """The rows of a table in named columns, for pyarrow."""
    states, names = data.state.shape[1], {}
    names["state"] = names["next_state"] = data.columns[:states]
    names["action"] = data.columns[states:]
    columns: dict[str, NDArray[Any]] = {}
    for name, array in data.arrays().items():
        if array.ndim == 1:
            columns[name.replace("/", ".")] = array.cpu().numpy()
        else:
            by_column = array.T.contiguous().cpu().numpy()  # turned where the table is: a GPU does it at once
            own = names.get(name, range(len(by_column)))
            columns |= {f"{name}.{column}": values for column, values in zip(own, by_column, strict=True)}
    return pyarrow_to("write").table(columns)


PARQUET = Format(
    "parquet",
    "Parquet",
    "FILE.parquet",
    read_parquet,
    write_parquet,
    suffixes=(".parquet",),
    recognises=lambda path: begins_with(path, b"PAR1"),
)


def _contents(
    fetch: Mapping[str, Column], kind: str, texts: Mapping[str, Any] | None = None, left: Sequence[str] = ()
) -> Contents:
    """Groups columns by what they belong to, and makes an array of each group."""
    texts = texts or {}
    groups: dict[str, list[str]] = {name: [] for name in GROUPS}
    ignored = list(left)
    for name in fetch:
        group, _, own = name.partition(".")
        if own and group in groups:
            groups[group].append(own)
        elif name not in VECTORS:
            ignored.append(name)
    for name in ("state", "action"):
        if not groups[name]:
            raise InputError(
                f"{kind}: there are no columns of the {name}; they are called {name}.x, {name}.y and so on. "
                f"There are: {', '.join(map(repr, (*fetch, *left))) or 'none'}."
            )
    if groups["next_state"]:
        if {*groups["next_state"]} != {*groups["state"]}:
            odd = sorted({*groups["next_state"]} ^ {*groups["state"]})
            raise InputError(f"{kind}: state and next_state must have the same columns; they differ in {odd}.")
        groups["next_state"] = groups["state"]
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
    columns = texts.get("columns") or (*groups["state"], *groups["action"])
    return Contents(arrays, columns, texts.get("source"), ignored)


def _numbers(kind: str, name: str, fetch: Column) -> NDArray[Any]:
    values = np.asarray(fetch())
    if name in EPISODES or values.dtype.kind in "biuf":
        return values
    raise InputError(f"{kind}: the column {name!r} holds {values.dtype}, not numbers. Convert it, or leave it out.")


def pyarrow_to(what: str) -> Any:
    """pyarrow, or a sentence that says how to get it."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(f'to {what} Parquet files, pyarrow is needed: pip install "mocoda[parquet]".') from error
    return pyarrow
