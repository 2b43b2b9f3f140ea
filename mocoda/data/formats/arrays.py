"""arrays <-> Transitions: what people call their arrays, where their episodes end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mocoda.data.transitions import PROVENANCE, Transitions
from mocoda.engine.errors import InputError

# Our name -> what it is called elsewhere. An array of another name is left alone, and said to be.
NAMES = {
    "state": ("state", "states", "observation", "observations", "obs"),
    "action": ("action", "actions"),
    "next_state": ("next_state", "next_states", "next_observation", "next_observations", "next_obs"),
    "reward": ("reward", "rewards"),
    "terminal": ("terminal", "terminals", "terminated", "terminations"),
    "timeout": ("timeout", "timeouts", "truncated", "truncations"),
    "goal": ("goal", "goals", "infos/goal", "desired_goal"),
    "episode": ("episode", "episodes", "episode_id"),
}
OURS = {theirs: ours for ours, names in NAMES.items() for theirs in names}
TEXTS = ("columns", "source")  # JSON that travels with the arrays
VECTORS = ("reward", "terminal", "timeout", "episode")


@dataclass(frozen=True, eq=False)
class Found:
    """What there was to read, as it is: other than in Transitions, numbers may be NaN or infinite.

    kind       what it was read as, in words
    arrays     (N, ...) by the names that Transitions give them, float32 and bool; provenance as it was stored
    columns    names of the state's and the action's columns; () where nobody gave any
    source     how the rows were made
    """

    kind: str
    arrays: Mapping[str, NDArray[Any]]
    columns: tuple[str, ...]
    source: Mapping[str, Any]

    @staticmethod
    def of(data: Transitions, kind: str) -> Found:
        return Found(kind, as_arrays(data), data.columns, data.source)

    def table(self, skip_bad_rows: bool = False) -> Transitions:
        arrays, source = dict(self.arrays), dict(self.source)
        if skip_bad_rows:
            bad = self.bad_rows()
            arrays, source["skipped_bad_rows"] = {name: array[~bad] for name, array in arrays.items()}, int(bad.sum())
        own = {name: _lent(array) for name, array in arrays.items() if not name.startswith(PROVENANCE)}
        notes = {name.removeprefix(PROVENANCE): array for name, array in arrays.items() if name not in own}
        return Transitions(**own, columns=self.columns, source=source, provenance=notes)

    def bad_rows(self) -> NDArray[np.bool_]:
        """(N,) where some number is NaN or infinite."""
        bad = np.zeros(len(self.arrays["state"]), bool)
        for array in self.arrays.values():
            bad |= ~np.isfinite(array.reshape(len(array), -1)).all(1)
        return bad


def as_arrays(data: Transitions) -> dict[str, NDArray[Any]]:
    """The arrays of a table that are there, provenance included, by the names that they have in a file of ours."""
    own = {name: getattr(data, name) for name in ("state", "action", "next_state", "reward", "terminal", "goal")}
    own |= {PROVENANCE + name: note for name, note in data.provenance.items()}
    return {name: array.cpu().numpy() for name, array in own.items() if array is not None}


def find_arrays(
    given: Mapping[str, Any],
    kind: str = "arrays",
    *,
    columns: Sequence[str] = (),
    episode_steps: int | None = None,
    ends_only: bool = False,
    source: Mapping[str, Any] | None = None,
    ignored: Sequence[str] = (),
) -> Found:
    """Arrays (N, ...) under names people use -> ours. Without next states, a row's next state is the following row's.

    episode_steps  rows of an episode, for data that does not mark all ends
    ends_only      terminals mark the last rows of episodes, as OGBench has it, and say nothing of values
    source         how the rows were made, where the file says so
    ignored        what else there was
    """
    arrays, notes, left = _named(given)
    for name in ("state", "action"):
        if name not in arrays:
            wanted, there = " or ".join(map(repr, NAMES[name])), ", ".join(map(repr, sorted(map(str, given))))
            raise InputError(f"{kind}: there is no array {wanted}; there is: {there or 'nothing'}.")
    rows = len(arrays["state"])
    for name, array in (*arrays.items(), *notes.items()):
        if len(array) != rows:
            raise InputError(f"{kind}: {name} has {len(array):,} rows, but state has {rows:,}; they must have as many.")
    if rows == 0:
        raise InputError(f"{kind}: there are no rows; expected at least 1.")
    terminal = _truth(kind, arrays.pop("terminal", None), "terminal")
    timeout = _truth(kind, arrays.pop("timeout", None), "timeout")
    episode = arrays.pop("episode", None)
    said: dict[str, Any] = {"read_as": kind}
    if left := sorted({*left, *ignored}):
        said["ignored"] = left
    if "next_state" not in arrays:
        last = np.zeros(rows, bool)
        for end in (terminal, timeout):
            last |= False if end is None else end
        if episode is not None:
            order, border = _episodes(episode)
            arrays, notes = ({name: array[order] for name, array in some.items()} for some in (arrays, notes))
            terminal, last = None if terminal is None else terminal[order], last[order] | border
        if episode_steps is not None:
            last |= _every(episode_steps, last)
        if not last[:-1].any() and not last[-1] and rows > 1:
            raise InputError(
                f"{kind}: there are no next states, and nothing marks where an episode ends (terminals, timeouts or an "
                "episode's number), so rows of two episodes might be taken for a step. Add one of them, or say "
                f"how long episodes are with episode_steps; episode_steps={rows} if all rows are one episode."
            )
        if terminal is not None and timeout is None and episode is None and episode_steps is None and not ends_only:
            said["note"] = "only terminals mark ends; if time limits ended episodes too, give episode_steps"
        last[-1] = True
        kept = np.flatnonzero(~last)
        if len(kept) == 0:
            raise InputError(f"{kind}: there are no next states, and every row is its episode's last: no steps remain.")
        said |= {"episodes": int(last.sum()), "dropped_last_rows": int(last.sum())}
        if terminal is not None and not ends_only:
            said["dropped_terminals"] = int((terminal & last).sum())  # nobody knows what came after
        arrays["next_state"] = arrays["state"][kept + 1]
        arrays |= {name: array[kept] for name, array in arrays.items() if name != "next_state"}
        notes = {name: array[kept] for name, array in notes.items()}
        terminal = None if terminal is None else terminal[kept]
        rows = len(kept)
    arrays["terminal"] = np.zeros(rows, bool) if terminal is None or ends_only else terminal
    if arrays["next_state"].shape != arrays["state"].shape:
        widths = arrays["next_state"].shape[1], arrays["state"].shape[1]
        raise InputError(
            f"{kind}: next_state has {widths[0]} columns, but state has {widths[1]}; they must have as many."
        )
    return Found(kind, arrays | notes, tuple(map(str, columns)), said if source is None else source)


def texts_of(data: Transitions) -> dict[str, str]:
    return {"columns": json.dumps(data.columns), "source": json.dumps(dict(data.source))}


def checked_texts(path: Path, texts: Mapping[str, Any]) -> dict[str, Any]:
    """What JSON a file brings along, if it is of the right kind."""
    if not isinstance(texts.get("columns", []), list) or not isinstance(texts.get("source", {}), dict):
        raise InputError(
            f"{str(path)!r} is damaged: its columns must be a list of names, and its source a JSON object."
        )
    return dict(texts)


@contextmanager
def refusing(path: Path, kind: str) -> Iterator[None]:
    """Whatever goes wrong while strange bytes are taken apart is an InputError that names the file."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # parsers of damaged files raise anything from KeyError to RecursionError
        reason = f"{type(error).__name__}: {error}".removesuffix(".")
        raise InputError(
            f"{str(path)!r} cannot be read as {kind}: it is truncated, damaged or of another format ({reason})."
        ) from error


def _lent(array: NDArray[Any]) -> NDArray[Any] | torch.Tensor:
    """For a table, which copies a tensor once and a numpy array twice; torch takes only what could be written to."""
    return torch.from_numpy(array) if array.flags.writeable else array


def _named(given: Mapping[str, Any]) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]], list[str]]:
    """Arrays by our names, provenance, and the names of what is neither."""
    arrays: dict[str, NDArray[Any]] = {}
    notes: dict[str, NDArray[Any]] = {}
    origin: dict[str, str] = {}
    left = []
    for key, value in given.items():
        name = str(key)
        if name.startswith(("provenance.", PROVENANCE)):
            notes[PROVENANCE + name[len(PROVENANCE) :]] = _array(name, value)
        elif (ours := OURS.get(name)) is None:
            left.append(name)
        elif ours in origin:
            raise InputError(f"{origin[ours]!r} and {name!r} are both names of {ours}; give one of them.")
        else:
            origin[ours], arrays[ours] = name, _shaped(name, ours, _array(name, value))
    return arrays, notes, left


def _array(name: str, value: Any) -> NDArray[Any]:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be an array of numbers, got {type(value).__name__} ({error}).") from error
    if array.dtype.kind not in ("biufUO" if OURS.get(name) == "episode" else "biuf"):
        raise InputError(f"{name} must be an array of numbers, got one of {array.dtype}.")
    if array.ndim == 0:
        raise InputError(f"{name} must have a row for each step, got a single {array.dtype}.")
    return array


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
            hint = " Images are no states: encode them first." if array.ndim > 3 else ""
            raise InputError(f"{name} must have shape ({rows}, columns), got {array.shape}.{hint}")
    if ours in ("terminal", "timeout", "episode"):
        return array
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused as such
        return np.ascontiguousarray(array, np.float32)


def _truth(kind: str, array: NDArray[Any] | None, name: str) -> NDArray[np.bool_] | None:
    if array is None or array.dtype == bool:
        return array
    odd = np.flatnonzero((array != 0) & (array != 1))
    if len(odd):
        raise InputError(f"{kind}: {name} must hold 0 and 1 only, got {array[odd[0]]} in row {odd[0]}.")
    return np.asarray(array == 1)


def _episodes(episode: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Rows of an episode together, in their order, and where each one's last is. As they are, if they already were."""
    _, number = np.unique(episode.astype(str) if episode.dtype.kind == "O" else episode, return_inverse=True)
    border = np.append(number[1:] != number[:-1], True)
    if border.sum() == number.max() + 1:
        return np.arange(len(number)), border
    order = np.argsort(number, kind="stable")
    return order, np.append(number[order][1:] != number[order][:-1], True)


def _every(steps: int, last: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Each `steps`-th row of an episode, counted from the row after a known end."""
    if steps < 2:
        raise InputError(f"episode_steps must be at least 2, the rows of an episode, got {steps}.")
    row = np.arange(len(last))
    first = np.maximum.accumulate(np.where(np.append(True, last[:-1]), row, 0))
    return np.asarray((row - first) % steps == steps - 1)
