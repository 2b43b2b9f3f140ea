"""Reading and writing transitions in the formats that people use.

Nothing is unpickled, no link is followed out of a file, and no more memory is asked for than a file's bytes can fill.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from mocoda.data.formats import csv, d3rlpy, frames, hdf5, lerobot, minari, npz, robomimic, shards
from mocoda.data.formats.arrays import RawData, raw_arrays
from mocoda.data.formats.format import FORMATS, Contents, Format, readable_formats, writable_formats
from mocoda.data.formats.guarded import check_readable
from mocoda.data.formats.naming import Names
from mocoda.data.formats.shards import read_pieces
from mocoda.engine.errors import InputError
from mocoda.engine.files import check_writable

if TYPE_CHECKING:
    from mocoda.data.transitions import Transitions

__all__ = [
    "FORMATS",
    "Contents",
    "Format",
    "HowToRead",
    "RawData",
    "Target",
    "convert",
    "read",
    "read_pieces",
    "read_raw",
    "readable_formats",
    "target_of",
    "writable_formats",
    "write",
]

OPTIONS = ("observations", "filter_key")
for format_ in (
    hdf5.MOCODA,
    robomimic.ROBOMIMIC,
    hdf5.D4RL,
    npz.OGBENCH,
    npz.NPZ,
    frames.PARQUET,
    csv.CSV,
    lerobot.LEROBOT,
    shards.SHARDS,
    minari.MINARI,
    d3rlpy.D3RLPY,
):
    FORMATS.add(format_)


class HowToRead(TypedDict, total=False):
    """The keywords of `read` that say what is what in the data."""

    columns: Sequence[str]
    names: Names | None
    observations: Sequence[str]
    filter_key: str | None
    episode_steps: int | None


def read(
    source: Any,
    *,
    columns: Sequence[str] = (),
    names: Names | None = None,
    observations: Sequence[str] = (),
    filter_key: str | None = None,
    episode_steps: int | None = None,
    skip_bad_rows: bool = False,
) -> Transitions:
    """Reads recorded steps into a table.

    source         a file or folder, whose format its content tells, or which a prefix names: "d4rl:FILE",
                   "robomimic:FILE", "lerobot:FOLDER", "d3rlpy:FILE.h5", "minari:NAMESPACE/NAME-v0"; a mapping of
                   arrays, numpy or torch; a pandas or polars DataFrame
    columns        names of the state's and then the action's columns, for data that does not name them
    names          what arrays or columns are called, where it is not as usual: {"action": "act"}; several are put side
                   by side: {"state": ["qpos", "qvel"]}
    observations   which observations make up the state, in robomimic's files and LeRobot's folders
    filter_key     which demonstrations of a robomimic file to read: "train"
    episode_steps  rows of an episode; needed where there are no next states and nothing marks an episode's end
    skip_bad_rows  leave out rows with NaN or infinite numbers, after every row has got its next state

    Where there are no next states, that of a row is the following row of its episode, and each episode's last row is
    left out. Rows know their episode and step wherever the data marks the ends of episodes. The table's `source` counts
    what was left out or ignored.
    """
    how: HowToRead = {"columns": columns, "names": names, "observations": observations}
    how |= {"filter_key": filter_key, "episode_steps": episode_steps}
    return read_raw(source, **how).table(skip_bad_rows)


def read_raw(source: Any, **how: Unpack[HowToRead]) -> RawData:
    """Reads what `read` reads, but keeps rows with NaN and infinite numbers, which no table can hold."""
    from mocoda.data.transitions import Transitions

    options = {name: value for name in OPTIONS if (value := how.get(name))}
    if isinstance(source, str | Path):
        format_, place = _source_format(source)
        for name in options:
            if name not in format_.options:
                takes = " and ".join(known.title for known in FORMATS.values() if name in known.options)
                raise InputError(f"{name} is for {takes}, and {place!r} is {format_.title}: remove it.")
        contents, title = format_.read(place, **options), format_.title
    elif options:
        raise InputError(f"{' and '.join(options)} choose from a file, and this is data in memory: choose there.")
    elif isinstance(source, Mapping):
        contents, title = Contents(source), "arrays"
    elif frames.is_frame(source):
        contents, title = frames.read_frame(source), "data frame"
    elif isinstance(source, Transitions):
        contents, title = source, "table"
    else:
        raise InputError(
            "data is read from a file, a mapping of arrays or a pandas or polars DataFrame, got "
            f"{type(source).__name__}."
        )
    columns, names = how.get("columns", ()), how.get("names")
    if isinstance(contents, Transitions):
        if names:
            raise InputError("names is for arrays of other names, and this is a table already: remove it.")
        raw = RawData.of(contents, title)
        return replace(raw, columns=tuple(columns)) if columns else raw
    if isinstance(contents, Mapping):
        contents = Contents(contents)
    return raw_arrays(contents, title, columns=columns, names=names, episode_steps=how.get("episode_steps"))


def write(data: Transitions, target: str | Path) -> None:
    """Writes a table, all of it or nothing.

    The ending chooses the format (FILE.hdf5, FILE.npz, FILE.parquet, FILE.csv), or a prefix does: "d4rl:FILE.hdf5"
    (with next observations), "robomimic:FILE.hdf5", "lerobot:FOLDER", "minari:NAMESPACE/NAME-v0", "d3rlpy:FILE.h5".
    """
    chosen = target_of(target)
    assert chosen.format.write is not None
    chosen.format.write(data, chosen.place)


@dataclass(frozen=True)
class Target:
    """Where to write, and in which format."""

    format: Format
    place: str

    @property
    def streamed(self) -> bool:
        """Whether `save_stream` writes this very file; anything else is converted from a finished HDF5 file."""
        return self.format.streamed

    @property
    def path(self) -> Path:
        """The file or folder. For a data set's name: a file name made from it, to keep notes on the work under."""
        if self.format.place == "name":
            return Path(f"{self.format.name}-{self.place.replace('/', '-')}")
        return Path(self.place)


def target_of(target: str | Path) -> Target:
    """Chooses the format of something to write; raises if it cannot be written, before any work. Makes nothing."""
    format_, place = _split(target)
    if format_ is None:
        suffix = Path(place).suffix
        format_ = next((known for known in FORMATS.values() if known.write and suffix in known.suffixes), None)
    if format_ is None or format_.write is None:
        raise InputError(f"{str(target)!r} does not say which format to write; expected {writable_formats()}.")
    if format_.check is not None:
        format_.check(place)
    elif format_.place == "folder" and Path(place).exists():
        raise InputError(f"cannot write {place!r}: it exists. Name a new folder.")
    elif format_.place != "name":
        check_writable(place)
    return Target(format_, place)


def convert(file: str | Path, target: Target) -> None:
    """Writes a finished HDF5 file of ours in the format of `target`, for commands that stream their rows to HDF5."""
    from mocoda.data.transitions import Transitions

    assert target.format.write is not None
    target.format.write(Transitions.load(file), target.place)


def _source_format(source: str | Path) -> tuple[Format, str]:
    """The format of something to read, and its place."""
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
    """The format that a prefix names, None where there is no prefix, and the rest."""
    prefix, colon, name = str(place).partition(":")
    # A single letter is a drive, as in C:\data. Unlike Path.exists, os.path.exists never raises.
    if isinstance(place, Path) or not colon or len(prefix) == 1 or os.path.exists(place):  # noqa: PTH110
        return None, str(place)
    return FORMATS[prefix], name
