"""Reading and writing transitions in the formats that people use.

Nothing is unpickled, no link is followed out of a file, and what a file claims is compared with its size before memory
is allocated.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeGuard, Unpack

import numpy as np

from mocoda.data.formats import array_files, d3rlpy, lerobot, minari, named_columns, robomimic, shard_folder
from mocoda.data.formats.arrays import RawData, arrays_of, raw_arrays, texts_of
from mocoda.data.formats.as_episodes import grouped_by_episode
from mocoda.data.formats.format import FORMATS as FORMATS
from mocoda.data.formats.format import Contents as Contents
from mocoda.data.formats.format import Format as Format
from mocoda.data.formats.format import readable_formats as readable_formats
from mocoda.data.formats.format import writable_formats as writable_formats
from mocoda.data.formats.guarded import check_readable
from mocoda.data.names import TEXTS, Names
from mocoda.engine.errors import InputError
from mocoda.engine.files import check_new_folder, check_writable

if TYPE_CHECKING:
    from mocoda.data.transitions import Transitions

OPTIONS = ("observations", "filter_key")
for format_ in (
    array_files.MOCODA,
    robomimic.ROBOMIMIC,
    array_files.D4RL,
    array_files.OGBENCH,
    array_files.NPZ,
    named_columns.PARQUET,
    named_columns.CSV,
    lerobot.LEROBOT,
    lerobot.LEROBOT_21,
    shard_folder.SHARDS,
    minari.MINARI,
    d3rlpy.D3RLPY,
):
    FORMATS.add(format_)


class HowToRead(TypedDict, total=False):
    """The keywords of `read` that describe the data."""

    columns: Sequence[str]
    names: Names | None
    observations: Sequence[str]
    filter_key: str | None
    episode_steps: int | None
    categories: Sequence[str]
    angles: Sequence[str]
    absent: Sequence[str]


def read(
    source: Any,
    *,
    columns: Sequence[str] = (),
    names: Names | None = None,
    observations: Sequence[str] = (),
    filter_key: str | None = None,
    episode_steps: int | None = None,
    categories: Sequence[str] = (),
    angles: Sequence[str] = (),
    absent: Sequence[str] = (),
    skip_bad_rows: bool = False,
) -> Transitions:
    """Reads recorded steps into a table.

    source         a file or folder, whose content shows its format unless a prefix names it: "d4rl:FILE",
                   "robomimic:FILE", "lerobot:FOLDER", "d3rlpy:FILE.h5", "minari:NAMESPACE/NAME-v0"; a mapping of
                   arrays, numpy or torch; a pandas or polars DataFrame
    columns        names of the state's and then the action's columns, for data that does not name them
    names          names of arrays or columns that have unusual ones: {"action": "act"}; several are put side by side:
                   {"state": ["qpos", "qvel"]}
    observations   the observations that make up the state, in robomimic's files and LeRobot's folders
    filter_key     which demonstrations of a robomimic file to read: "train"
    episode_steps  rows of an episode; needed where there are no next states and nothing marks an episode's end
    categories     columns whose numbers 0, 1, 2 ... are categories, such as "action0"; they become one-hot columns, as
                   columns of texts in frames, Parquet and CSV always do
    angles         columns of angles, in radians or degrees; sine and cosine take their places
    absent         objects, such as "car1" with columns car1.x and car1.y, that are absent in rows in which all of these
                   are 0 or NaN; NaN becomes 0. `source` notes them, and graph files know them from there
    skip_bad_rows  leave out rows with NaN or infinite numbers, after every row has got its next state

    Without next states, a row's next state is the state of the following row of its episode, sorted by `step` if there
    is one. Rows before a missing step, and the last row of each episode, are left out. Rows know their episode and step
    wherever the data marks the ends of episodes. The table's `source` counts what was left out or ignored.
    """
    how: HowToRead = {"columns": columns, "names": names, "observations": observations}
    how |= {"filter_key": filter_key, "episode_steps": episode_steps}
    how |= {"categories": categories, "angles": angles, "absent": absent}
    raw = read_raw(source, **how)
    for doubt in raw.doubts():
        warnings.warn(doubt, stacklevel=2)
    return raw.table(skip_bad_rows)


def read_raw(source: Any, **how: Unpack[HowToRead]) -> RawData:
    """Reads as `read` does, but keeps rows with NaN and infinite numbers, which no table can hold."""
    options = {name: value for name in OPTIONS if (value := how.get(name))}
    columns, names = tuple(how.get("columns", ())), how.get("names")
    contents: Any = source
    if isinstance(source, str | Path):
        format_, place = _source_format(source)
        for name in options:
            if name not in format_.options:
                titles = (known.title for known in FORMATS.values() if name in known.options)
                takes = " and ".join(dict.fromkeys(titles))
                raise InputError(f"{name} is for {takes}, and {place!r} is {format_.title}: remove it.")
        contents, title = format_.read(place, **options), format_.title
    elif options:
        raise InputError(f"{' and '.join(options)} choose from a file, and this is data in memory: choose there.")
    elif named_columns.is_frame(source):
        contents, title = named_columns.read_frame(source), "data frame"
    else:
        title = "table" if _is_table(source) else "arrays"
    if _is_table(contents):
        if names:
            raise InputError("names is for arrays of other names, and this is a table already: remove it.")
        raw = RawData(title, arrays_of(contents), columns or contents.columns, contents.source)
    else:
        contents = Contents(contents) if isinstance(contents, Mapping) else contents
        if not isinstance(contents, Contents):
            raise InputError(
                "data is read from a file, a mapping of arrays or a pandas or polars DataFrame, got "
                f"{type(source).__name__}."
            )
        raw = raw_arrays(contents, title, columns=columns, names=names, episode_steps=how.get("episode_steps"))
    raw = raw.without_absent(how.get("absent", ()))
    known = getattr(contents, "categories", ())  # one-hot already
    return raw.expanded({name: 0 for name in how.get("categories", ()) if name not in known}, how.get("angles", ()))


def _is_table(source: Any) -> TypeGuard[Transitions]:
    """Whether something is a table, of which there are none before their module is imported, and torch with it."""
    module = sys.modules.get("mocoda.data.transitions")
    return module is not None and isinstance(source, module.Transitions)


def write(data: Transitions, target: str | Path | Target) -> None:
    """Writes a table, completely or not at all.

    The suffix chooses the format (FILE.hdf5, FILE.npz, FILE.parquet, FILE.csv), or a prefix does: "d4rl:FILE.hdf5"
    (with next observations), "robomimic:FILE.hdf5", "lerobot:FOLDER" (v3.0), "lerobot-v2.1:FOLDER",
    "minari:NAMESPACE/NAME-v0", "d3rlpy:FILE.h5".
    """
    chosen = target if isinstance(target, Target) else target_of(target)
    assert chosen.format.write is not None
    chosen.format.write(data, chosen.place)


def compare(data: Transitions, target: Target) -> tuple[bool, str]:
    """Reads back what `write` wrote; whether it is the same table, to the bit, and a sentence that says so."""
    back = read_raw(f"{target.format.name}:{target.place}").table()
    orders = {"in the same order": data, "the rows of each episode together": grouped_by_episode(data)}
    found = {order: _differences(table, back) for order, table in orders.items()}
    order, wrong = min(found.items(), key=lambda one: len(one[1]))
    lost = [name for name in target.format.lacks if wrong.pop(name, None)]
    held = ", ".join(name for name in (*data.arrays(), *TEXTS) if name not in target.format.lacks)
    same = f"{len(data):,} rows are identical ({held}), {order}"
    said = f"it differs: {'; '.join(wrong.values())}" if wrong else same
    lacks = f"; {target.format.title} cannot hold {' and '.join(lost)}" if lost else ""
    return not wrong, f"Read back, {said}{lacks}."


def _differences(written: Transitions, back: Transitions) -> dict[str, str]:
    """What differs between two tables, in words, by the names of arrays, "columns" and "source"."""
    ours, theirs = arrays_of(written), arrays_of(back)
    if len(written) != len(back):
        return {"rows": f"there are {len(back):,} rows instead of {len(written):,}"}
    found = {name: f"{name} is missing" for name in ours if name not in theirs}
    found |= {name: f"there is {name}" for name in theirs if name not in ours}
    for name, one in ours.items():
        other = theirs.get(name, one)
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            found[name] = f"{name} is {other.dtype} {other.shape} instead of {one.dtype} {one.shape}"
        elif len(rows := np.flatnonzero((one != other).reshape(len(one), -1).any(1))):
            apart = np.abs(one.astype(np.float64) - other).max()
            found[name] = f"{name} differs in {len(rows):,} rows, first in row {rows[0]}, by up to {apart:g}"
    return found | {name: f"not the same {name}" for name in TEXTS if texts_of(written)[name] != texts_of(back)[name]}


@dataclass(frozen=True)
class Target:
    """Where to write, and in which format."""

    format: Format
    place: str

    @property
    def path(self) -> Path:
        """The file or folder; for a data set's name, a file name made from it, for files about the work."""
        if self.format.place == "name":
            return Path(f"{self.format.name}-{self.place.replace('/', '-')}")
        return Path(self.place)


def target_of(target: str | Path) -> Target:
    """Chooses the format of a target; raises before any work if it cannot be written. Creates nothing."""
    format_, place = _split(target)
    if format_ is None:
        suffix = Path(place).suffix
        format_ = next((known for known in FORMATS.values() if known.write and suffix in known.suffixes), None)
    if format_ is None or format_.write is None:
        raise InputError(f"{str(target)!r} does not say which format to write; expected {writable_formats()}.")
    if format_.check is not None:
        format_.check(place)
    elif format_.place != "name":
        (check_new_folder if format_.place == "folder" else check_writable)(place)
    return Target(format_, place)


def _source_format(source: str | Path) -> tuple[Format, str]:
    """The format of a source, and its place."""
    format_, place = _split(source)
    if format_ is not None and format_.place == "name":
        return format_, place
    path = Path(place)
    check_readable(path)
    kind = "folder" if path.is_dir() else "file"
    for known in [format_] if format_ else FORMATS.values():
        if known.place == kind and (format_ or (known.recognises and known.recognises(path))):
            return known, place
    if kind == "folder":
        raise InputError(
            f"{place!r} is a folder; name a file, a folder of LeRobot's, which has a file meta/info.json, or a Minari "
            f"data set as {minari.MINARI.example}."
        )
    if format_ is not None:
        raise InputError(f"{place!r} is a file; {format_.name} data lies in a folder.")
    with path.open("rb") as file:
        first = file.read(1)
    if not first:
        raise InputError(f"{place!r} is empty.")
    hint = " It may be a pickle, which could run code when opened: save its arrays as npz." if first == b"\x80" else ""
    raise InputError(f"{place!r} is in none of the formats that mocoda reads: {readable_formats()}.{hint}")


def _split(place: str | Path) -> tuple[Format | None, str]:
    """The format that a prefix names, or None, and the rest of the text."""
    prefix, colon, name = str(place).partition(":")
    # A single letter is a drive, as in C:\data. Unlike Path.exists, os.path.exists never raises.
    if isinstance(place, Path) or not colon or len(prefix) == 1 or os.path.exists(place):  # noqa: PTH110
        return None, str(place)
    return FORMATS[prefix], name
