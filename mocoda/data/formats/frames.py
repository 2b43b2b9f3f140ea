"""named columns <-> Transitions: pandas data frames and Parquet files.

A column is called `state.x`, `action.dx`, `next_state.x` or `goal.x`: what the number belongs to, a dot, and its own
name, which may have dots in turn (`state.box1.x` is the column `box1.x`, of the factor `box1`). `reward`, `terminal`,
`timeout` and `episode` stand alone. Without `next_state.` columns, the next state is that of the following row of the
same episode.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mocoda.data.formats.arrays import VECTORS, Found, as_arrays, checked_texts, find_arrays, refusing, texts_of
from mocoda.data.formats.guarded import COMPRESSION, SMALL
from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.files import whole_file

GROUPS = ("state", "action", "next_state", "goal", "provenance")
Column = Callable[[], NDArray[Any]]  # fetched when its place in a table is known


def find_frame(frame: Any, *, columns: Sequence[str] = (), episode_steps: int | None = None) -> Found:
    """A pandas DataFrame; its index is of no account. Two-level columns ("state", "x") pass for "state.x"."""

    def column(place: int) -> NDArray[Any]:
        series = frame.iloc[:, place]
        if getattr(series.dtype, "kind", "O") in "biuf":
            values = series.to_numpy()
            return np.asarray(series.to_numpy("float64", na_value=np.nan) if values.dtype == object else values)
        return np.asarray(series.astype(str) if names[place] == "episode" else series.to_numpy())

    names = [".".join(map(str, name)) if isinstance(name, tuple) else str(name) for name in frame.columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"data frame: the columns {twice} are there more than once; every column needs its own name.")
    fetch = {name: lambda place=place: column(place) for place, name in enumerate(names)}
    return _found(fetch, len(frame), "data frame", columns=columns, episode_steps=episode_steps)


def find_parquet(path: Path, *, columns: Sequence[str] = (), episode_steps: int | None = None) -> Found:
    parquet = _pyarrow("read").parquet
    with refusing(path, "Parquet"), parquet.ParquetFile(path) as file:
        about, texts = file.metadata, dict(file.schema_arrow.metadata or {}).get(b"mocoda", b"{}")
        claimed = sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups))
        claimed = max(8 * about.num_rows * about.num_columns, claimed)
        if claimed > SMALL + COMPRESSION * path.stat().st_size:
            raise InputError(f"{str(path)!r} claims {claimed:,} bytes and stores {path.stat().st_size:,}.")
        wanted = [name for name in file.schema_arrow.names if name in VECTORS or name.split(".")[0] in GROUPS]
        left = [name for name in file.schema_arrow.names if name not in wanted]
        table = file.read(columns=wanted).flatten()  # a column of records `state` becomes `state.x`, `state.y`
        stored = checked_texts(path, json.loads(texts))
        fetch = {
            name: lambda place=place: np.asarray(table.column(place).to_numpy())
            for place, name in enumerate(table.column_names)
        }
        if len(fetch) < table.num_columns:
            raise InputError(f"{str(path)!r} has several columns of one name; every column needs its own.")
        return _found(
            fetch,
            table.num_rows,
            "Parquet",
            columns=columns or stored.get("columns", ()),
            episode_steps=episode_steps,
            source=stored.get("source"),
            ignored=left,
        )


def write_parquet(data: Transitions, path: str | Path) -> None:
    """Columns named as above, `goal.0`, `goal.1` and so on for goals, and `provenance.recipe` for provenance."""
    pyarrow = _pyarrow("write")
    states, names = data.state.shape[1], {}
    names["state"] = names["next_state"] = data.columns[:states]
    names["action"] = data.columns[states:]
    columns: dict[str, NDArray[Any]] = {}
    for name, array in as_arrays(data).items():
        if array.ndim == 1:
            columns[name.replace("/", ".")] = array
        else:
            for place, own in enumerate(names.get(name, range(array.shape[1]))):
                columns[f"{name}.{own}"] = np.ascontiguousarray(array[:, place])
    texts = json.dumps({name: json.loads(text) for name, text in texts_of(data).items()})
    table = pyarrow.table(columns).replace_schema_metadata({"mocoda": texts})
    with whole_file(path) as part:
        pyarrow.parquet.write_table(table, part)


def _found(
    fetch: Mapping[str, Column],
    rows: int,
    kind: str,
    *,
    columns: Sequence[str],
    episode_steps: int | None,
    source: Mapping[str, Any] | None = None,
    ignored: Sequence[str] = (),
) -> Found:
    groups: dict[str, list[str]] = {name: [] for name in GROUPS}
    left = list(ignored)
    for name in fetch:
        group, _, own = name.partition(".")
        if own and group in groups:
            groups[group].append(own)
        elif name not in VECTORS:
            left.append(name)
    for name in ("state", "action"):
        if not groups[name]:
            raise InputError(
                f"{kind}: there are no columns of the {name}; they are called {name}.x, {name}.y and so on. "
                f"There are: {', '.join(map(repr, (*fetch, *ignored))) or 'none'}."
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
        if group == "provenance":
            arrays |= {name: _numbers(kind, name, fetch[name]) for name in (f"{group}.{own}" for own in names)}
        elif names:
            arrays[group] = np.empty((rows, len(names)), np.float32)
            for place, own in enumerate(names):
                with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused as such
                    arrays[group][:, place] = _numbers(kind, f"{group}.{own}", fetch[f"{group}.{own}"])
    return find_arrays(
        arrays,
        kind,
        columns=columns or (*groups["state"], *groups["action"]),
        episode_steps=episode_steps,
        source=source,
        ignored=left,
    )


def _numbers(kind: str, name: str, fetch: Column) -> NDArray[Any]:
    values = fetch()
    if name == "episode" or values.dtype.kind in "biuf":
        return values
    raise InputError(f"{kind}: the column {name!r} holds {values.dtype} and no numbers. Convert it, or leave it out.")


def _pyarrow(what: str) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(f'to {what} Parquet files, pyarrow is needed: pip install "mocoda[parquet]".') from error
    return pyarrow
