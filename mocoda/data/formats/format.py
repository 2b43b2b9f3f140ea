"""The contract of a data format, and the list of all formats.

To add one, make a `Format` and call `FORMATS.add`: `mocoda.read`, `mocoda.write`, help texts and error messages then
know it. This module does not import torch, and formats import the libraries they need when they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mocoda.engine.registry import Registry

if TYPE_CHECKING:
    from mocoda.data.transitions import Transitions


class Stored(NamedTuple):
    """An array in a file that is read only if a user names it."""

    load: Callable[[], Any]
    shape: str = ""


@dataclass(frozen=True, eq=False)
class Contents:
    """What a file holds, as it is stored: `mocoda.read` pairs states with next states and checks the rest.

    arrays     arrays (N, ...) by their names in the file, which may be any in `mocoda.data.names.ALIASES`, or
               "provenance/NAME"; and `Stored` arrays that users may name
    columns    names of the state's and then the action's columns; () where the file does not name them
    source     how the rows were made; None where the file does not tell
    ignored    what the file holds besides
    about      what else the file says, as JSON values that go into the table's source
    missing    the message if there is no {name}, which has the aliases {names}
    categories columns whose numbers are categories, and how many there are, or their names; they become one-hot
    ends_only  terminals mark the last rows of episodes and say nothing about values, as in OGBench's files
    """

    arrays: Mapping[str, Any]
    columns: Sequence[str] = ()
    source: Mapping[str, Any] | None = None
    ignored: Sequence[str] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    missing: str = "there is no array called {names}."
    categories: Mapping[str, int | Sequence[str]] = field(default_factory=dict)
    ends_only: bool = False


@dataclass(frozen=True, eq=False)
class Format:
    """A way to store transitions, in a file, in a folder or under the name of a data set.

    name        the prefix that chooses it: "npz:FILE"
    title       what messages and help texts call it
    example     how a path or name of this format is spelled: "FILE.npz"
    read        place -> contents, or plain arrays by name, or a whole table; with the `options` as keywords
    write       (table, place) -> None, writing all of it or nothing; None for formats that are only read
    suffixes    endings that choose it for writing without a prefix
    recognises  whether an existing file (or folder) is of this format, judged by what is in it; None if only the prefix
                chooses it. The first format that recognises a path reads it
    place       what `read` and `write` are given: the path of a file or of a folder, or a "name" that is no path
    check       place -> None, raising where nothing can be written, before any work. Unless given, paths are checked
    options     keywords of `mocoda.read` that `read` understands too: "observations", "filter_key"
    streamed    the format that tables too large for memory are written in, part by part
    lacks       what of a table it cannot hold: "source", "reward", "provenance/recipe"
    """

    name: str
    title: str
    example: str
    read: Callable[..., Contents | Mapping[str, Any] | Transitions]
    write: Callable[[Transitions, str], None] | None = None
    suffixes: tuple[str, ...] = ()
    recognises: Callable[[Path], bool] | None = None
    place: Literal["file", "folder", "name"] = "file"
    check: Callable[[str], None] | None = None
    options: tuple[str, ...] = ()
    streamed: bool = False
    lacks: tuple[str, ...] = ()


FORMATS: Registry[Format] = Registry("format")


def begins_with(path: Path, beginning: bytes) -> bool:
    """Whether a path is a file that begins with these bytes."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(beginning)) == beginning


def readable_formats() -> str:
    """What `mocoda.read` reads, as part of a sentence: titles, or examples where a prefix is needed."""
    titles = (format_.title if format_.recognises else format_.example for format_ in FORMATS.values())
    return _listed(dict.fromkeys(titles))


def writable_formats() -> str:
    """What `mocoda.write` writes, as part of a sentence: FILE.hdf5, FILE.npz and so on."""
    return _listed(format_.example for format_ in FORMATS.values() if format_.write)


def _listed(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}"
