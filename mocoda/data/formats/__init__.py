"""what people have <-> Transitions: files of any kind, arrays and data frames.

Nothing is unpickled, no link is followed out of a file, and no more memory is asked for than a file's bytes can fill.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.files import check_writable

if TYPE_CHECKING:
    from mocoda.data.formats.arrays import Found
    from mocoda.data.transitions import Transitions

KINDS = ("mocoda", "d4rl", "ogbench", "npz", "parquet", "minari", "d3rlpy")
ENDINGS = {".hdf5": "mocoda", ".h5": "mocoda", ".npz": "npz", ".parquet": "parquet"}
BEGINNINGS = {b"\x89HDF\r\n\x1a\n": "hdf5", b"PK": "npz", b"PAR1": "parquet"}
FORMS = "FILE.hdf5, d4rl:FILE.hdf5, FILE.npz, FILE.parquet, minari:NAMESPACE/NAME-v0 or d3rlpy:FILE.h5"


def read(
    source: Any, *, columns: Sequence[str] = (), episode_steps: int | None = None, skip_bad_rows: bool = False
) -> Transitions:
    """Recorded steps as a table, whatever they come in.

    source         a file (HDF5 of ours or in D4RL's layout, npz of arrays or of OGBench, Parquet), told by its content;
                   or said with a word in front: "d4rl:FILE", "ogbench:FILE", "npz:FILE", "parquet:FILE", "mocoda:FILE";
                   "d3rlpy:FILE.h5", "minari:NAMESPACE/NAME-v0"; a mapping of arrays, numpy or torch; a pandas DataFrame
    columns        names of the state's and then the action's columns, for data that does not name them
    episode_steps  rows of an episode; needed where there are no next states and nothing marks an episode's end
    skip_bad_rows  leave out rows with NaN or infinite numbers, after every row has got its next state

    Where there are no next states, that of a row is the following row of its episode, and each episode's last row is
    left out. The table's `source` counts what was left out or ignored.
    """
    return find(source, columns=columns, episode_steps=episode_steps).table(skip_bad_rows)


def write(data: Transitions, target: str | Path) -> None:
    """Writes a table, whole or not at all, as FILE.hdf5 (ours), FILE.npz or FILE.parquet; with a word in front as
    "d4rl:FILE.hdf5" (next observations included), "minari:NAMESPACE/NAME-v0" or "d3rlpy:FILE.h5"."""
    kind, name = target_of(target)
    if kind == "mocoda":
        data.save(name)
    elif kind == "d4rl":
        from mocoda.data.formats.d4rl import write_d4rl

        write_d4rl(data, name)
    elif kind == "npz":
        from mocoda.data.formats.npz import write_npz

        write_npz(data, name)
    elif kind == "parquet":
        from mocoda.data.formats.frames import write_parquet

        write_parquet(data, name)
    elif kind == "minari":
        from mocoda.data.formats import minari

        minari.write(data, name)
    else:
        from mocoda.data.formats import d3rlpy

        d3rlpy.write(data, name)


def target_of(target: str | Path) -> tuple[str, str]:
    """The kind and the name of something to write; raises where that cannot be done, before any work."""
    kind, name = _split(target)
    kind = kind or ENDINGS.get(Path(name).suffix, "")
    if kind == "ogbench" or not kind:
        raise InputError(f"{str(target)!r} does not say what to write; expected {FORMS}.")
    if kind != "minari":
        check_writable(name)
    return kind, name


def find(source: Any, *, columns: Sequence[str] = (), episode_steps: int | None = None) -> Found:
    """What `read` reads, before it is judged: numbers may be NaN or infinite."""
    from mocoda.data.formats.arrays import Found, find_arrays
    from mocoda.data.transitions import Transitions

    if isinstance(source, Transitions):
        return Found.of(source, "table")
    if isinstance(source, Mapping):
        return find_arrays(source, columns=columns, episode_steps=episode_steps)
    if hasattr(source, "iloc") and hasattr(source, "columns"):
        from mocoda.data.formats.frames import find_frame

        return find_frame(source, columns=columns, episode_steps=episode_steps)
    if not isinstance(source, str | Path):
        raise InputError(
            f"data is read from a file, a mapping of arrays or a pandas DataFrame, got {type(source).__name__}."
        )
    kind, name = _split(source)
    if kind == "minari":
        from mocoda.data.formats import minari

        return Found.of(minari.read(name), f"Minari data set {name}")
    return _find_file(kind, Path(name), columns, episode_steps)


def _find_file(kind: str, path: Path, columns: Sequence[str], episode_steps: int | None) -> Found:
    from mocoda.data.formats.arrays import Found, find_arrays
    from mocoda.data.formats.d4rl import is_ours, read_d4rl, read_ours
    from mocoda.data.formats.npz import read_npz

    held = _content(path)
    wanted = {"mocoda": "hdf5", "d4rl": "hdf5", "d3rlpy": "hdf5", "ogbench": "npz", "": held}.get(kind, kind)
    if wanted != held:
        raise InputError(f"{str(path)!r} was to be read as {kind}, but it is {held}.")
    if kind == "d3rlpy":
        from mocoda.data.formats import d3rlpy

        return Found.of(d3rlpy.read(path), "d3rlpy replay buffer")
    if held == "parquet":
        from mocoda.data.formats.frames import find_parquet

        return find_parquet(path, columns=columns, episode_steps=episode_steps)
    if held == "npz":
        arrays, texts, left = read_npz(path)
        ogbench = kind == "ogbench" or (not kind and _is_ogbench(arrays))
        described = "OGBench npz" if ogbench else "npz"
    else:
        ours, ogbench = kind == "mocoda" or (not kind and is_ours(path)), False
        arrays, texts, left = read_ours(path) if ours else read_d4rl(path)
        described = "mocoda HDF5" if ours else "D4RL-style HDF5"
    return find_arrays(
        arrays,
        described,
        columns=columns or texts.get("columns", ()),
        episode_steps=episode_steps,
        ends_only=ogbench,
        source=texts.get("source"),
        ignored=left,
    )


def _is_ogbench(arrays: Mapping[str, Any]) -> bool:
    """Its files hold neither rewards nor next observations, and terminals that mark the last rows of episodes."""
    return {*arrays} == {"observations", "actions", "terminals"}


def _split(place: str | Path) -> tuple[str, str]:
    """The word in front, "" where there is none, and the rest."""
    kind, colon, name = str(place).partition(":")
    if isinstance(place, Path) or not colon or len(kind) == 1 or Path(place).exists():  # C:\data is a path
        return "", str(place)
    if kind not in KINDS:
        raise unknown_name("format", kind, KINDS)
    return kind, name


def _content(path: Path) -> str:
    """hdf5, npz or parquet, told by the first bytes."""
    if path.is_dir():
        raise InputError(f"{str(path)!r} is a folder; name a file, or a Minari data set as minari:NAMESPACE/NAME-v0.")
    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}.")
    with path.open("rb") as file:
        first = file.read(8)
    for beginning, kind in BEGINNINGS.items():
        if first.startswith(beginning):
            return kind
    if not first:
        raise InputError(f"{str(path)!r} is empty.")
    hint = " It may be a pickle, which could run code when opened: save its arrays as npz." * first.startswith(b"\x80")
    raise InputError(f"{str(path)!r} is neither HDF5 nor npz nor Parquet.{hint}")
