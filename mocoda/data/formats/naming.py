"""Which array of somebody else's data is the state, the action and so on: by the names that people use, or as told."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mocoda.data.formats.format import Contents
from mocoda.data.names import ALIASES, OUR_NAME, PROVENANCE, VECTORS
from mocoda.engine.errors import InputError, unknown_name

Arrays = dict[str, NDArray[Any]]
Names = Mapping[str, str | Sequence[str]]
LISTED = 200  # arrays that an error message names


@dataclass(frozen=True, eq=False)
class Named:
    """Arrays by our names, what their columns are called if anybody said so, and the names of arrays not used."""

    arrays: Arrays
    columns: tuple[str, ...]
    unused: list[str]


def named(contents: Contents, kind: str, names: Names | None = None) -> Named:
    """Finds the arrays of a table.

    names  our name -> theirs, for arrays that are called otherwise; several of theirs are put side by side
    """
    given = {ours: [theirs] if isinstance(theirs, str) else list(theirs) for ours, theirs in (names or {}).items()}
    for ours, theirs in given.items():
        if ours not in ALIASES:
            raise unknown_name("array of a table called", ours, ALIASES)
        if not theirs:
            raise InputError(f"names must say what {ours} is called, got nothing.")
    arrays: Arrays = {}
    found: dict[str, str] = {}
    unused = []
    taken = {name for theirs in given.values() for name in theirs}
    for key, value in contents.arrays.items():
        name = str(key)
        if name.startswith(("provenance.", PROVENANCE)):
            arrays[PROVENANCE + name[len(PROVENANCE) :]] = as_array(name, value)
        elif (ours_ := OUR_NAME.get(name)) is None or ours_ in given:
            unused += [] if name in taken else [name]
        elif ours_ == "step":  # of whatever it counts; looked at once episodes are known
            arrays[ours_] = np.asarray(value)
        elif ours_ in found:
            raise InputError(f"{found[ours_]!r} and {name!r} are both names of {ours_}; give one of them.")
        else:
            found[ours_], arrays[ours_] = name, _shaped(name, ours_, as_array(name, value, ours_))
    labels: dict[str, list[str]] = {}
    for ours, theirs in given.items():
        parts = [_shaped(name, ours, as_array(name, _fetched(contents, name, kind), ours)) for name in theirs]
        labels[ours] = _labels(ours, theirs, parts)
        arrays[ours] = parts[0] if len(parts) == 1 else _side_by_side(kind, ours, theirs, parts)
    for name in ("state", "action"):
        if name not in arrays:
            raise InputError(f"{kind}: {_missing(contents, name)} {_listing(contents)}")
    return Named(arrays, _columns(contents, arrays, labels), unused)


def as_array(name: str, value: Any, ours: str | None = None) -> NDArray[Any]:
    """An array of numbers; of an episode's names too."""
    if "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor):
        value = value.detach().cpu()
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be an array of numbers, got {type(value).__name__} ({error}).") from error
    if array.dtype.kind not in ("biufUO" if ours == "episode" else "biuf"):
        raise InputError(f"{name} must be an array of numbers, got one of {array.dtype}.")
    if array.ndim == 0:
        raise InputError(f"{name} must have a row for each step, got a single {array.dtype}.")
    return _episode_names(name, array) if ours == "episode" else array


def _episode_names(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Numbers or names of episodes, one for every row: a row of an unknown episode could be paired with any other."""
    if array.dtype.kind == "O":
        known = (str, int, float, np.number, np.bool_, type(None))
        if odd := [row for row, cell in enumerate(array.flat) if not isinstance(cell, known)]:
            got = type(array.flat[odd[0]]).__name__
            raise InputError(f"{name} must hold numbers or names of episodes, got {got} in row {odd[0]}.")
        empty = np.array([cell is None or cell != cell or cell == "" for cell in array.flat], bool)
        array = array.astype(str)
    else:
        empty = (array == "") if array.dtype.kind == "U" else np.isnan(array)
    if empty.any():
        raise InputError(
            f"{name} is empty or NaN in {int(empty.sum()):,} of {len(array):,} rows, first in row "
            f"{int(np.argmax(empty))}; it must say for every row which episode it is of. Fill the empty cells, or "
            "leave those rows out."
        )
    return array


def as_bool(kind: str, name: str, array: NDArray[Any]) -> NDArray[np.bool_]:
    if array.dtype != bool and len(odd := np.flatnonzero((array != 0) & (array != 1))):
        raise InputError(f"{kind}: {name} must hold 0 and 1 only, got {array[odd[0]]} in row {odd[0]}.")
    return np.asarray(array == 1)


def _shaped(name: str, ours: str, array: NDArray[Any]) -> NDArray[Any]:
    """A vector, or a table as float32; (N, 1) passes for the one and (N,) for the other."""
    rows = len(array)
    if ours in VECTORS:
        if array.shape not in ((rows,), (rows, 1)):
            raise InputError(f"{name} must have shape ({rows},), one value a row, got {array.shape}.")
        array = array.reshape(rows)
    else:
        array = array.reshape(rows, 1) if array.ndim == 1 else array
        if array.ndim != 2 or array.shape[1] == 0:
            hint = " Images cannot be states: encode them first." if array.ndim > 3 else ""
            raise InputError(f"{name} must have shape ({rows}, columns), got {array.shape}.{hint}")
    if ours in ("terminal", "timeout", "done", "episode", "step"):
        return array
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused as such
        return np.ascontiguousarray(array, np.float32)


def _fetched(contents: Contents, name: str, kind: str) -> Any:
    if name in contents.arrays:
        return contents.arrays[name]
    if contents.fetch is None or name not in contents.others:
        raise InputError(f"{kind}: there is no array {name!r}. {_listing(contents, hint=False)}")
    return contents.fetch(name)


def _side_by_side(kind: str, ours: str, theirs: Sequence[str], parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    if ours in VECTORS:
        raise InputError(f"{ours} is one value a row, so names gives it one array, got {list(theirs)}.")
    if len({len(part) for part in parts}) > 1:
        shapes = ", ".join(f"{name!r} {part.shape}" for name, part in zip(theirs, parts, strict=True))
        raise InputError(f"{kind}: the parts of {ours} must have the same number of rows, got {shapes}.")
    return np.concatenate(parts, 1)


def _labels(ours: str, theirs: Sequence[str], parts: Sequence[NDArray[Any]]) -> list[str]:
    """The columns' names: a column's own, or of wider arrays side by side NAME.0, NAME.1 and so on."""
    if ours in VECTORS:
        return []
    if len(parts) == 1 and parts[0].shape[1] > 1:
        return [f"{ours}{number}" for number in range(parts[0].shape[1])]
    return [
        name if part.shape[1] == 1 else f"{name}.{number}"
        for name, part in zip(theirs, parts, strict=True)
        for number in range(part.shape[1])
    ]


def _columns(contents: Contents, arrays: Arrays, labels: Mapping[str, list[str]]) -> tuple[str, ...]:
    if not {"state", "action"} & {*labels}:
        return tuple(map(str, contents.columns))
    columns: list[str] = []
    for name in ("state", "action"):
        width = arrays[name].shape[1]
        known = contents.columns[:width] if name == "state" else contents.columns[-width:]
        columns += labels.get(name) or (known if len(known) == width else [f"{name}{i}" for i in range(width)])
    return tuple(map(str, columns))


def _missing(contents: Contents, name: str) -> str:
    return contents.missing.format(name=name, names=" or ".join(map(repr, ALIASES[name])))


def _listing(contents: Contents, hint: bool = True) -> str:
    """All arrays, and the call that says which is which."""
    shapes = {str(key): str(np.shape(value)) for key, value in contents.arrays.items()} | dict(contents.others)
    if not shapes:
        return "There are no arrays at all."
    listed = [f"{name!r} {shapes[name]}".rstrip() for name in sorted(shapes)[:LISTED]]
    more = f" and {len(shapes) - LISTED} more" if len(shapes) > LISTED else ""
    way_out = ' If one of them is it, say so: names={"state": NAME, "action": NAME}, or --names state=NAME action=NAME.'
    return f"There are: {', '.join(listed)}{more}.{way_out if hint else ''}"
