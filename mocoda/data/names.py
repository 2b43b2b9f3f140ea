"""What arrays are called: in tables, in our files, and in other people's data."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mocoda.data.formats.format import Contents, Stored
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.errors import printable as printable

EPISODES = ("episode", "step")  # where a row was recorded; a table can do without
ARRAYS = ("state", "action", "reward", "next_state", "terminal", "goal", *EPISODES)  # of a table, as in a file
PROVENANCE = "provenance/"  # before the name of a provenance vector, in files and where arrays are listed

# Our name and its common spellings. An array of any other name is not read.
ALIASES = {
    "state": ("state", "states", "observation", "observations", "obs"),
    "action": ("action", "actions", "act", "acts"),
    "next_state": ("next_state", "next_states", "next_observation", "next_observations", "next_obs"),
    "reward": ("reward", "rewards", "rew", "rews"),
    "terminal": ("terminal", "terminals", "terminated", "terminations"),
    "timeout": ("timeout", "timeouts", "truncated", "truncations"),
    "done": ("done", "dones"),  # terminal or timeout: it does not say which
    "goal": ("goal", "goals", "infos/goal", "desired_goal"),
    "episode": ("episode", "episodes", "episode_id"),
    "step": ("step",),
}
OUR_NAME = {alias: name for name, aliases in ALIASES.items() for alias in aliases}
VECTORS = ("reward", "terminal", "timeout", "done", *EPISODES)  # one value a row
FLOATS = ("state", "action", "next_state", "reward", "goal")  # the arrays that become float32
TEXTS = ("columns", "source")  # JSON that is stored beside the arrays

Arrays = dict[str, NDArray[Any]]
Names = Mapping[str, str | Sequence[str]]
LISTED = 200  # arrays that an error message names
COARSE = 0.01  # of a column's standard deviation; rounding by more is worth a warning


def find_arrays(
    contents: Contents, kind: str, names: Names | None = None, columns: Sequence[str] = ()
) -> tuple[Arrays, tuple[str, ...], set[str], tuple[str, ...]]:
    """Finds the arrays of a table by their usual names.

    Returns the arrays by our names, the names of the state's and the action's columns (() where nobody gave any), the
    names of arrays that were not used, and of columns that float32 rounds by more than a hundredth of their spread.

    names  our name -> theirs, for arrays with unusual names; several of theirs are put side by side
    """
    given = {ours: [theirs] if isinstance(theirs, str) else list(theirs) for ours, theirs in (names or {}).items()}
    for ours, theirs in given.items():
        if ours not in ALIASES:
            raise unknown_name("array of a table called", ours, ALIASES)
        if not theirs:
            raise InputError(f"names must say what {ours} is called, got nothing.")
    native: Arrays = {}
    found: dict[str, str] = {}
    unused = {*contents.ignored}
    for key, value in contents.arrays.items():
        name = str(key)
        known = OUR_NAME.get(name)
        if isinstance(value, Stored):
            continue
        if name.startswith(("provenance.", PROVENANCE)):
            native[PROVENANCE + name[len(PROVENANCE) :]] = as_array(name, value)
        elif known is None or known in given:
            unused.add(name)
        elif known == "step":  # it may count something else, which is decided once episodes are known
            native[known] = np.asarray(value)
        elif known in found:
            raise InputError(f"{found[known]!r} and {name!r} are both names of {known}; give one of them.")
        else:
            found[known], native[known] = name, _shaped(name, known, value)
    labels: dict[str, list[str]] = {}
    for ours, theirs in given.items():
        parts = [_shaped(name, ours, _named(contents, name, kind)) for name in theirs]
        native[ours] = parts[0] if len(parts) == 1 else _side_by_side(kind, ours, theirs, parts)
        if ours in ("state", "action") and native[ours].shape[1] > 1 == len(parts):
            labels[ours] = column_names({ours: native[ours].shape[1]}, between="")
        elif ours in ("state", "action"):
            labels[ours] = column_names({name: part.shape[1] for name, part in zip(theirs, parts, strict=True)})
    for name in ("state", "action"):
        if name not in native:
            missing = contents.missing.format(name=name, names=" or ".join(map(repr, ALIASES[name])))
            raise InputError(f"{kind}: {missing} {_listing(contents)}")
    arrays = {name: as_float32(array) if name in FLOATS else array for name, array in native.items()}
    widths = {name: arrays[name].shape[1] for name in ("state", "action")}
    made_up = column_names(widths, between="", always=True)
    columns = tuple(map(str, columns)) or _columns(contents, widths, labels)
    rounded = np.concatenate([_rounded(native[name], arrays[name]) for name in widths])
    called = columns if len(columns) == len(made_up) else made_up
    taken = {name for theirs in given.values() for name in theirs}
    return arrays, columns, unused - taken, tuple(called[place] for place in np.flatnonzero(rounded))


def column_names(widths: Mapping[str, int], between: str = ".", always: bool = False) -> list[str]:
    """The names of columns side by side: an array's own if it has one column, else NAME.0, NAME.1 and so on.

    always  number single columns, too
    """
    return [
        f"{name}{between}{place}" if always or width > 1 else name
        for name, width in widths.items()
        for place in range(width)
    ]


def as_array(name: str, value: Any, ours: str | None = None) -> NDArray[Any]:
    """An array of numbers; where `ours` is "episode", of the episodes' names too."""
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


def as_float32(array: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused as such
        return np.ascontiguousarray(array, np.float32)


def _episode_names(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Numbers or names of episodes, one for every row: a row of an unknown episode could be paired with any other."""
    if array.dtype.kind == "O":
        cells = array.ravel().tolist()
        known = (str, int, float, np.number, np.bool_, type(None))
        if odd := [row for row, cell in enumerate(cells) if not isinstance(cell, known)]:
            got = type(cells[odd[0]]).__name__
            raise InputError(f"{name} must hold numbers or names of episodes, got {got} in row {odd[0]}.")
        empty = np.array([cell is None or cell != cell or cell == "" for cell in cells], bool)
        ranks = {cell: rank for rank, cell in enumerate(sorted({*map(str, cells)}))}  # unlike texts, they stay small
        array = np.array([ranks[str(cell)] for cell in cells], np.int64).reshape(array.shape)
    else:
        empty = (array == "") if array.dtype.kind == "U" else np.isnan(array)
    if empty.any():
        raise InputError(
            f"{name} is empty or NaN in {int(empty.sum()):,} of {len(array):,} rows, first in row "
            f"{int(np.argmax(empty))}; it must say for every row which episode it is of. Fill the empty cells, or "
            "leave those rows out."
        )
    return array


def _shaped(name: str, ours: str, value: Any) -> NDArray[Any]:
    """An array as a vector (N,) or a table (N, columns); a single column may have either shape."""
    array = as_array(name, value, ours)
    rows = len(array)
    if ours in VECTORS:
        if array.shape not in ((rows,), (rows, 1)):
            raise InputError(f"{name} must have shape ({rows},), one value a row, got {array.shape}.")
        return array.reshape(rows)
    array = array.reshape(rows, 1) if array.ndim == 1 else array
    if array.ndim != 2 or array.shape[1] == 0:
        hint = " Images cannot be states: encode them first." if array.ndim > 3 else ""
        raise InputError(f"{name} must have shape ({rows}, columns), got {array.shape}.{hint}")
    return array


def _rounded(native: NDArray[Any], array: NDArray[np.float32]) -> NDArray[np.bool_]:
    """(columns,) whether float32 rounds a column by more than a hundredth of its standard deviation."""
    if native.dtype.itemsize < 4 or native.dtype == np.float32 or len(native) == 0:
        return np.zeros(native.shape[1], bool)
    with np.errstate(all="ignore"):  # numbers that are not finite are refused later
        columns = [(column.astype(np.float64), rounded) for column, rounded in zip(native.T, array.T, strict=True)]
        return np.array([COARSE * exact.std() < np.abs(exact - rounded).max() for exact, rounded in columns])


def _named(contents: Contents, name: str, kind: str) -> Any:
    if name not in contents.arrays:
        raise InputError(f"{kind}: there is no array {name!r}. {_listing(contents, hint=False)}")
    value = contents.arrays[name]
    return value.load() if isinstance(value, Stored) else value


def _side_by_side(kind: str, ours: str, theirs: Sequence[str], parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    if ours in VECTORS:
        raise InputError(f"{ours} is one value a row, so names gives it one array, got {list(theirs)}.")
    if len({len(part) for part in parts}) > 1:
        shapes = ", ".join(f"{name!r} {part.shape}" for name, part in zip(theirs, parts, strict=True))
        raise InputError(f"{kind}: the parts of {ours} must have the same number of rows, got {shapes}.")
    return np.concatenate(parts, 1)


def _columns(contents: Contents, widths: Mapping[str, int], labels: Mapping[str, list[str]]) -> tuple[str, ...]:
    """The columns' names; those of arrays that the user has named (`labels`) come before the file's."""
    if not labels:
        return tuple(map(str, contents.columns))
    columns: list[str] = []
    for name, width in widths.items():
        known = contents.columns[:width] if name == "state" else contents.columns[-width:]
        made_up = column_names({name: width}, between="", always=True)
        columns += labels.get(name) or (known if len(known) == width else made_up)
    return tuple(map(str, columns))


def _listing(contents: Contents, hint: bool = True) -> str:
    """All arrays with their shapes, and how to say which is which."""
    shapes = {
        str(name): value.shape if isinstance(value, Stored) else str(np.shape(value))
        for name, value in contents.arrays.items()
    }
    if not shapes:
        return "There are no arrays at all."
    listed = [f"{name[:200]!r} {shapes[name]}".rstrip() for name in sorted(shapes)[:LISTED]]
    more = f" and {len(shapes) - LISTED} more" if len(shapes) > LISTED else ""
    way_out = ' If one of them is it, say so: names={"state": NAME, "action": NAME}, or --names state=NAME action=NAME.'
    return f"There are: {', '.join(listed)}{more}.{way_out if hint else ''}"
