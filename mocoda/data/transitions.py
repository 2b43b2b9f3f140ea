"""The table of transitions that every stage of mocoda takes and returns, and its HDF5 file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import h5py
import numpy as np
import rich.console
import rich.table
import torch
from numpy.typing import ArrayLike
from rich.markup import escape
from torch import Tensor

from mocoda.data.formats.array_files import FORMAT, FORMAT_VERSION, stored_arrays
from mocoda.data.formats.arrays import texts_of
from mocoda.data.formats.guarded import metadata_of, open_hdf5, put_metadata
from mocoda.data.names import ARRAYS as ARRAYS
from mocoda.data.names import EPISODES, PROVENANCE, TEXTS, printable
from mocoda.engine.errors import InputError
from mocoda.engine.files import hdf5_disk, versions, whole_file

SHOWN_ROWS, SHOWN_COLUMNS = 5, 20  # in a notebook
Array = Tensor | np.ndarray[Any, Any] | ArrayLike


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Transitions:
    """An immutable table of N transitions. Each row is complete in itself; its episode may be known, too.

    state       (N, S)  float32
    action      (N, A)  float32
    next_state  (N, S)  float32
    reward      (N,)    float32, or None while no task has labelled the rows
    terminal    (N,)    bool: the task ends here, so no value is bootstrapped from next_state; all False unless given
    goal        (N, G)  float32, the goal that the row's reward refers to; not part of the dynamics. None without goals
    columns     the S + A names of the state's and the action's columns
    source      how the rows were made, as JSON values; kept in files
    provenance  vectors (N,) by name, int64, int32 or float32, that say where each row comes from; empty unless given.
                `mocoda.augment` lists those that it writes
    episode     (N,)    int64, the row's episode, or -1 for a row of no episode; None where episodes are unknown
    step        (N,)    int64, the row's place in its episode, from 0; -1 for a row of no episode. Unless given, the
                rows of each episode are counted in the order of the table

    Rows of an episode may be anywhere in the table, and some may be missing. Arrays may be numpy or torch; the table
    keeps its own copies as torch tensors, on the device of the given ones.
    """

    state: Tensor
    action: Tensor
    next_state: Tensor
    reward: Tensor | None
    terminal: Tensor
    goal: Tensor | None
    columns: tuple[str, ...]
    source: Mapping[str, Any]
    provenance: Mapping[str, Tensor]
    episode: Tensor | None
    step: Tensor | None

    def __init__(
        self,
        state: Array,
        action: Array,
        next_state: Array,
        reward: Array | None = None,
        terminal: Array | None = None,
        goal: Array | None = None,
        columns: Sequence[str] = (),
        source: Mapping[str, Any] | None = None,
        provenance: Mapping[str, Array] | None = None,
        episode: Array | None = None,
        step: Array | None = None,
    ) -> None:
        arrays = {"state": _own("state", state, (None, None))}
        rows, states = arrays["state"].shape
        if rows == 0:
            raise InputError("state has no rows; expected at least 1. Was the data filtered to nothing?")
        arrays["action"] = _own("action", action, (rows, None))
        arrays["next_state"] = _own("next_state", next_state, (rows, states))
        if reward is not None:
            arrays["reward"] = _own("reward", reward, (rows,))
        if goal is not None:
            arrays["goal"] = _own("goal", goal, (rows, None))
        notes = {name: _own_note(name, array, rows) for name, array in (provenance or {}).items()}
        for name, array in (*arrays.items(), *((f"provenance {name!r}", note) for name, note in notes.items())):
            _check_finite(name, array)
        if terminal is None:
            terminal = torch.zeros(rows, dtype=torch.bool, device=arrays["state"].device)
        arrays["terminal"] = _own("terminal", terminal, (rows,), torch.bool)
        arrays |= _own_episodes(episode, step, rows)
        for name in ARRAYS:
            object.__setattr__(self, name, arrays.get(name))
        object.__setattr__(self, "columns", _checked_columns(columns, states, arrays["action"].shape[1]))
        try:
            copied = json.loads(json.dumps(dict(source or {})))  # what a file would give back
        except (TypeError, ValueError) as error:
            raise InputError(f"source must hold JSON values only, for it travels with the file ({error}).") from error
        object.__setattr__(self, "source", MappingProxyType(copied))
        object.__setattr__(self, "provenance", MappingProxyType(notes))

    def __len__(self) -> int:
        return len(self.state)

    def __repr__(self) -> str:
        reward = "None" if self.reward is None else f"({len(self):,},)"
        goal = "" if self.goal is None else f"goal={tuple(self.goal.shape)}, "
        provenance = f"provenance=[{', '.join(self.provenance)}], " if self.provenance else ""
        episodes = "" if self.episode is None else f"episodes={len(self.episode[self.episode >= 0].unique()):,}, "
        columns = ", ".join(map(printable, self.columns))
        return (
            f"Transitions(rows={len(self):,}, {episodes}state={tuple(self.state.shape)}, "
            f"action={tuple(self.action.shape)}, reward={reward}, {goal}columns=[{columns}], "
            f"{provenance}device={self.state.device.type})"
        )

    def _repr_html_(self) -> str:
        """What notebooks show: the first rows and columns."""
        from mocoda.data.formats.named_columns import named_columns
        from mocoda.engine.printed import as_html

        columns = named_columns(self[:SHOWN_ROWS])
        shown = list(columns)[:SHOWN_COLUMNS]
        title = f"{len(shown)} of {len(columns)} columns, {min(SHOWN_ROWS, len(self))} of {len(self):,} rows"
        table = rich.table.Table(*map(escape, shown), title=title, title_justify="left")
        for row in zip(*(columns[name].tolist() for name in shown), strict=True):
            table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row))
        return as_html(rich.console.Group(table, escape(repr(self))))

    def __getitem__(self, rows: slice | Tensor) -> Transitions:
        """The chosen rows: a slice, indices (M,) or a boolean mask (N,)."""
        if not isinstance(rows, slice | Tensor | np.ndarray | list):
            raise InputError(f"rows are chosen by a slice, indices or a boolean mask, got {rows!r}.")
        chosen = {name: array[rows] for name, array in self.arrays().items()}
        return from_arrays(chosen, self.columns, self.source)

    @cached_property
    def rows(self) -> Tensor:
        """State and action side by side, (N, S + A): the parents of the next state. Computed once, at first use."""
        return torch.cat([self.state, self.action], dim=1)

    @property
    def device(self) -> torch.device:
        return self.state.device

    def to(self, device: torch.device | str) -> Transitions:
        moved = {name: array.to(device) for name, array in self.arrays().items()}
        return from_arrays(moved, self.columns, self.source)

    def save(self, path: str | Path) -> None:
        """Writes the table to an HDF5 file, whole or not at all."""
        with whole_file(path) as part, hdf5_disk(part) as disk, h5py.File(disk, "w") as file:
            write_metadata(file, self)
            for name, array in self.arrays().items():
                file[name] = array.cpu().numpy()

    @staticmethod
    def load(path: str | Path) -> Transitions:
        """Reads a file that `save` wrote; what comes back is identical, to the bit."""
        with open_hdf5(Path(path)) as file:
            arrays = {name: torch.from_numpy(file[name][:]) for name in stored_arrays(file)}
            return from_arrays(arrays, **metadata_of(file, TEXTS))

    def __reduce__(self) -> tuple[Any, ...]:
        """Sends arrays to other processes as numpy: torch would use shared memory, of which containers have little."""
        arrays = {name: array.cpu().numpy() for name, array in self.arrays().items()}
        return from_arrays, (arrays, self.columns, dict(self.source))

    def arrays(self, *, episodes: bool = True) -> dict[str, Tensor]:
        """The table's arrays by their names in a file, provenance included; episode and step only if `episodes`."""
        names = ARRAYS if episodes else (name for name in ARRAYS if name not in EPISODES)
        own = {name: array for name in names if (array := getattr(self, name)) is not None}
        return own | {PROVENANCE + name: array for name, array in self.provenance.items()}


def from_arrays(arrays: Mapping[str, Array], columns: Sequence[str], source: Mapping[str, Any]) -> Transitions:
    """Makes a table from arrays by their names in a file."""
    own = {name: array for name, array in arrays.items() if not name.startswith(PROVENANCE)}
    notes = {name.removeprefix(PROVENANCE): array for name, array in arrays.items() if name not in own}
    return Transitions(**own, columns=columns, source=source, provenance=notes)


def as_tensor(array: Array | float) -> Tensor:
    """`array` as a tensor; torch itself takes neither reversed nor big-endian nor read-only numpy arrays."""
    if isinstance(array, np.ndarray):
        array = np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
    return torch.as_tensor(array)


def concatenate(tables: Sequence[Transitions], source: Mapping[str, Any] | None = None) -> Transitions:
    """One table of all rows, in order; columns, and the source unless given, are the first table's.

    Episodes of later tables get new numbers, after those of earlier ones. But if a table begins at the very step, in
    the very state, where the previous one ends, they share that episode: the parts of a table that was cut have their
    episodes again. Rows of tables without episodes belong to none.
    """
    if not tables:
        raise InputError("concatenate got no tables; expected at least 1.")
    first = tables[0]
    for table in tables[1:]:
        one, other = ({n: array.shape[1:] for n, array in t.arrays(episodes=False).items()} for t in (first, table))
        if table.columns != first.columns or one != other:
            raise InputError(f"tables must have the same columns and arrays to be joined, got {first!r} and {table!r}.")
    known = any(table.episode is not None for table in tables)
    parts = list(_renumbered(tables)) if known else [table.arrays() for table in tables]
    joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return from_arrays(joined, first.columns, first.source if source is None else source)


def _renumbered(tables: Iterable[Transitions]) -> Iterator[dict[str, Tensor]]:
    """The arrays of tables that follow one another, whose episodes get numbers that do not collide."""
    free, last, before = 0, None, 0  # the lowest number that no episode has yet, and what was added to the previous row
    for table in tables:
        if table.episode is None:
            none = torch.full((len(table),), -1, device=table.device)
            last = None
            yield {**table.arrays(), "episode": none, "step": none}
            continue
        added = torch.full_like(table.episode, free)
        if last is not None and _continues(last, table):
            same = table.episode == table.episode[0]
            added[same] = before
            if bool((table.episode[~same] + before >= free).all()):  # then all keep their distance
                added[:] = before
        number = torch.where(table.episode < 0, table.episode, table.episode + added)
        free, last, before = max(free, int(number.max()) + 1), table[-1:], int(added[-1])
        yield {**table.arrays(), "episode": number}


def _continues(last: Transitions, table: Transitions) -> bool:
    """Whether a table's first row is the step after the single row `last`, in the same episode and state."""
    assert last.episode is not None and last.step is not None and table.episode is not None and table.step is not None
    place = (int(last.episode[0]), int(last.step[0]) + 1)
    if place[0] < 0 or place != (int(table.episode[0]), int(table.step[0])):
        return False
    return last.next_state[0].cpu().view(torch.int32).equal(table.state[0].cpu().view(torch.int32))


def write_metadata(file: h5py.File, table: Transitions) -> None:
    """Writes a table's format, columns, source and versions of packages."""
    put_metadata(file, {"format": [FORMAT, FORMAT_VERSION], "versions": versions()} | texts_of(table))


def _own(name: str, array: Array, shape: tuple[int | None, ...], dtype: torch.dtype | None = torch.float32) -> Tensor:
    """`array` as a tensor that shares no memory with it; sizes of None may be any, and dtype None keeps its type."""
    try:
        given = as_tensor(array)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} must be an array of numbers, got {type(array).__name__} ({error}).") from error
    sizes = tuple(given.shape)
    same_axes = len(sizes) == len(shape) and all(size in (None, own) for size, own in zip(shape, sizes, strict=True))
    if not same_axes or 0 in sizes[1:]:
        named = [str(size or other) for size, other in zip(shape, ("N", "columns"), strict=False)]
        expected = f"({', '.join(named)})" if len(named) > 1 else f"({named[0]},), one value a row"
        raise InputError(f"{name} must have shape {expected}, got {sizes}.")
    return given.detach().to(dtype or given.dtype, copy=True).contiguous()


def _own_note(name: str, array: Array, rows: int) -> Tensor:
    """A vector of provenance: whole numbers as int64, or as int32 where they are, others as float32."""
    if not name.isidentifier():
        raise InputError(f"provenance is called by names such as 'recipe', of letters, digits and _, got {name!r}.")
    note = _own(f"provenance {name!r}", array, (rows,), None)
    if note.is_floating_point():
        return note.float()
    return note if note.dtype == torch.int32 else note.long()


def _own_episodes(episode: Array | None, step: Array | None, rows: int) -> dict[str, Tensor]:
    if episode is None:
        if step is not None:
            raise InputError(
                "step is given without episode, and is a row's place in its episode; give both, or neither."
            )
        return {}
    number = _own_whole("episode", episode, rows)
    if bool((number < -1).any()):
        raise InputError(f"episode must be -1, for a row of no episode, or larger, got {int(number.min())}.")
    place = count_steps(number) if step is None else _own_whole("step", step, rows)
    place = torch.where(number < 0, -1, place)
    if bool(((place < 0) & (number >= 0)).any()):
        raise InputError(f"step must be 0 or larger for rows of an episode, got {int(place[number >= 0].min())}.")
    return {"episode": number, "step": place}


def _own_whole(name: str, array: Array, rows: int) -> Tensor:
    own = _own(name, array, (rows,), None)
    if own.is_floating_point():
        raise InputError(f"{name} must be whole numbers, got {own.dtype}.")
    return own.long()


def count_steps(episode: Tensor) -> Tensor:
    """The place (N,) of each row among those of its episode, in the order in which they come."""
    order = episode.argsort(stable=True)
    _, counts = torch.unique_consecutive(episode[order], return_counts=True)
    first = (counts.cumsum(0) - counts).repeat_interleave(counts)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device) - first
    return place


def _checked_columns(columns: Sequence[str], states: int, actions: int) -> tuple[str, ...]:
    made_up = [f"{part}{place}" for part, width in (("state", states), ("action", actions)) for place in range(width)]
    names = tuple(str(name) for name in columns) or tuple(made_up)
    if len(names) != len(made_up) or len(set(names)) != len(names):
        raise InputError(
            f"columns must name each of the {states} state and {actions} action columns once, got {list(names)}."
        )
    for name in names:
        if name.encode(errors="ignore").decode() != name:  # half a surrogate pair, which damaged JSON may hold
            raise InputError(f"columns must be named by text, which UTF-8 can encode, got {name!r}.")
    return names


def _check_finite(name: str, array: Tensor) -> None:
    bad = ~torch.isfinite(array.reshape(len(array), -1)).all(1)
    if bool(bad.any()):
        raise InputError(
            f"{name} has NaN or inf in {int(bad.sum())} of {len(array)} rows, first in row {int(bad.nonzero()[0])}. "
            "Drop or repair those rows."
        )
