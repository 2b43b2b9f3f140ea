"""From arrays under the names that people use to the arrays of a table: names, shapes, and where episodes end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mocoda.data.formats.format import Contents
from mocoda.data.formats.naming import Arrays, Names, as_bool, named
from mocoda.data.names import EPISODES
from mocoda.engine.errors import InputError

if TYPE_CHECKING:
    from mocoda.data.transitions import Transitions

LARGEST = 2**53  # up to which floats tell whole numbers apart


@dataclass(frozen=True, eq=False)
class RawData:
    """Rows as they were read; unlike in Transitions, numbers may be NaN or infinite.

    kind       what they were read as, in words
    arrays     (N, ...) by the names that Transitions give them, float32 and bool, episode and step int64; provenance
               as it was stored
    columns    names of the state's and the action's columns; () where nobody gave any
    source     how the rows were made
    """

    kind: str
    arrays: Mapping[str, NDArray[Any]]
    columns: tuple[str, ...]
    source: Mapping[str, Any]

    @staticmethod
    def of(data: Transitions, kind: str) -> RawData:
        return RawData(kind, arrays_of(data), data.columns, data.source)

    def table(self, skip_bad_rows: bool = False) -> Transitions:
        import torch

        from mocoda.data.transitions import from_arrays

        arrays, source = dict(self.arrays), dict(self.source)
        if skip_bad_rows:
            bad = self.bad_rows()
            arrays, source["skipped_bad_rows"] = {name: array[~bad] for name, array in arrays.items()}, int(bad.sum())
        # A table copies a tensor once and a numpy array twice; torch takes only arrays that can be written to.
        lent = {name: torch.from_numpy(array) if array.flags.writeable else array for name, array in arrays.items()}
        return from_arrays(lent, self.columns, source)

    def bad_rows(self) -> NDArray[np.bool_]:
        """(N,) where some number is NaN or infinite."""
        bad = np.zeros(len(self.arrays["state"]), bool)
        for array in self.arrays.values():
            bad |= ~np.isfinite(array.reshape(len(array), -1)).all(1)
        return bad


def arrays_of(data: Transitions) -> Arrays:
    """The arrays of a table as numpy, provenance included, by the names that they have in our files."""
    return {name: array.cpu().numpy() for name, array in data.arrays().items()}


def raw_arrays(
    contents: Contents,
    kind: str,
    *,
    columns: Sequence[str] = (),
    names: Names | None = None,
    episode_steps: int | None = None,
) -> RawData:
    """Names, checks and pairs arrays. Without next states, a row's next state is the following row's.

    names          what our arrays are called there, where it is not as usual
    episode_steps  rows of an episode, for data that does not mark all ends
    """
    found = named(contents, kind, names)
    arrays, ignored = found.arrays, found.unused
    rows = len(arrays["state"])
    counter = arrays.pop("step", None)
    step = _places(kind, counter, rows, required="next_state" not in arrays) if "episode" in arrays else None
    if counter is not None and step is None:
        ignored.append("step")
    for name, array in arrays.items():
        if len(array) != rows:
            raise InputError(
                f"{kind}: {name} has {len(array):,} rows, but state has {rows:,}; they must have the same number."
            )
    if rows == 0:
        raise InputError(f"{kind}: there are no rows; expected at least 1.")
    for name in ("terminal", "timeout", "done"):
        if name in arrays:
            arrays[name] = as_bool(kind, name, arrays[name])
    source: dict[str, Any] = {"read_as": kind, **contents.about}
    if notes := [note for note in (contents.about.get("note"), _done(arrays)) if note]:
        source["note"] = "; ".join(notes)
    used = {name for theirs in (names or {}).values() for name in ([theirs] if isinstance(theirs, str) else theirs)}
    if ignored := sorted({*ignored, *contents.ignored} - used):
        source["ignored"] = ignored
    if "next_state" not in arrays:
        arrays, paired = _paired(arrays, kind, step, episode_steps, contents.ends_only)
        source = paired | source if "note" in source else source | paired
    else:
        widths = arrays["next_state"].shape[1], arrays["state"].shape[1]
        if widths[0] != widths[1]:
            raise InputError(
                f"{kind}: next_state has {widths[0]} columns, but state has {widths[1]}; they must have the same "
                "number."
            )
        arrays |= _known_episodes(arrays, step, contents.source is None)
    if "terminal" not in arrays or contents.ends_only:
        arrays["terminal"] = np.zeros(len(arrays["state"]), bool)
    kept = {name: array for name, array in arrays.items() if name != "timeout"}
    return RawData(
        kind, kept, tuple(map(str, columns)) or found.columns, source if contents.source is None else contents.source
    )


def _done(arrays: Arrays) -> str | None:
    """Takes `done` for the end of an episode, which it is in any case; and says what that leaves open."""
    done = arrays.pop("done", None)
    if done is None:
        return None
    arrays["timeout"] = arrays.get("timeout", False) | done
    if "terminal" in arrays:
        return None
    return (
        "done marks the ends of episodes; it does not tell whether the task or a time limit ended them, so no row is "
        'terminal. If it is the task, say so with names={"terminal": NAME} (--names terminal=NAME)'
    )


def noted(source: Mapping[str, Any], name: str) -> Any:
    """What a table's source says, or that of the recorded rows which a table was made of; None if neither does."""
    inner = source.get("recorded")
    return source[name] if name in source else noted(inner, name) if isinstance(inner, Mapping) else None


def texts_of(data: Transitions) -> dict[str, str]:
    """The JSON texts that travel with a table's arrays."""
    return {"columns": json.dumps(data.columns), "source": json.dumps(dict(data.source))}


def checked_texts(path: str, texts: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON values of a file, refused if they are not of the types that `texts_of` writes."""
    if not isinstance(texts.get("columns", []), list) or not isinstance(texts.get("source", {}), dict):
        raise InputError(f"{path!r} is damaged: its columns must be a list of names, and its source a JSON object.")
    return dict(texts)


@contextmanager
def refusing(path: str, kind: str) -> Iterator[None]:
    """Turns whatever goes wrong while a strange file is parsed into an InputError that names the file."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # parsers of damaged files raise anything from KeyError to RecursionError
        reason = f"{type(error).__name__}: {error}".removesuffix(".")
        raise InputError(
            f"{path!r} cannot be read as {kind}: it is truncated, damaged or of another format ({reason})."
        ) from error


def _places(kind: str, counter: NDArray[Any] | None, rows: int, required: bool) -> NDArray[np.int64] | None:
    """(N,) the place of each row in its episode; None where `step` is not there or counts something else.

    required  the places decide which row follows which, so numbers that cannot be places are refused
    """
    if counter is None or counter.shape not in ((rows,), (rows, 1)) or counter.dtype.kind not in "biuf":
        return None
    counter = counter.reshape(rows)
    step = whole_numbers(counter)
    if not required or (step is not None and not (step < 0).any()):
        return step
    odd = int(np.flatnonzero((counter < 0) | ~(counter < LARGEST) | (counter != np.floor(counter)))[0])
    raise InputError(
        f"{kind}: step must be whole numbers from 0, a row's place in its episode, because there are no next states; "
        f"got {counter[odd]} in row {odd}. Number the rows of each episode, or leave step out if they are in order."
    )


def _paired(
    arrays: Arrays, kind: str, step: NDArray[np.int64] | None, episode_steps: int | None, ends_only: bool
) -> tuple[Arrays, dict[str, Any]]:
    """The rows that another row of their episode follows, whose state is their next state; and counts of the rest."""
    rows = len(arrays["state"])
    last, gaps = np.zeros(rows, bool), 0
    counts: dict[str, Any] = {}
    for name in ("terminal", "timeout"):
        last |= arrays.get(name, False)
    if "episode" in arrays:
        order, border = _episodes(arrays["episode"])
        if step is not None:
            in_order, gap, unsorted = _sorted_by_step(kind, arrays["episode"], order, border, step)
            order, step = order[in_order], step[order[in_order]]
            counts |= {"episodes_sorted_by_step": unsorted} if unsorted else {}
        arrays, last = {name: array[order] for name, array in arrays.items()}, last[order] | border
        if step is not None:
            gaps = int((gap & ~last).sum())
            counts |= {"gaps_in_step": gaps} if gaps else {}
            last |= gap
    if episode_steps is not None:
        last |= _every(episode_steps, last)
    if not last.any() and rows > 1:
        raise InputError(
            f"{kind}: there are no next states, and nothing marks where an episode ends (terminals, timeouts or "
            "episode numbers), so rows of two episodes might be paired. Add one of them, or give the length of "
            f"episodes as episode_steps; episode_steps={rows} if all rows are one episode."
        )
    if "terminal" in arrays and not ends_only and episode_steps is None and not {"timeout", "episode"} & {*arrays}:
        counts["note"] = "only terminals mark ends; if time limits ended episodes too, give episode_steps"
    last[-1] = True
    kept = np.flatnonzero(~last)
    if len(kept) == 0:
        if gaps:
            raise InputError(
                f"{kind}: there are no next states, and in no episode does step count on by 1 from one row to another: "
                "no row has a next state. Number the rows of each episode 0, 1, 2 and so on."
            )
        raise InputError(f"{kind}: there are no next states, and every row is its episode's last: no steps remain.")
    number, place = counted(last)
    if step is not None:
        number, place = _episode_numbers(arrays["episode"], least=0), step
    elif "episode" in arrays and (border == last).all():
        number = _episode_numbers(arrays["episode"], least=0)
    counts |= {"episodes": len(np.unique(number)), "dropped_last_rows": int(last.sum())}
    if "terminal" in arrays and not ends_only:
        counts["dropped_terminals"] = int((arrays["terminal"] & last).sum())  # nobody knows what came after
    following = arrays["state"][kept + 1]
    arrays |= {"episode": number, "step": place}
    return {name: array[kept] for name, array in arrays.items()} | {"next_state": following}, counts


def _sorted_by_step(
    kind: str, episode: NDArray[Any], order: NDArray[np.intp], border: NDArray[np.bool_], step: NDArray[np.int64]
) -> tuple[NDArray[np.intp], NDArray[np.bool_], int]:
    """How to sort each episode's rows by step, for rows in `order`, where each episode's last row is at a `border`.

    Returns the new order, the rows (N,) after which a step is missing, and how many episodes were not in order.
    """
    group = np.append(0, np.cumsum(border)[:-1])
    inside = ~border[:-1]
    unsorted = len(np.unique(group[:-1][inside & (np.diff(step[order]) < 0)]))
    found = np.lexsort((step[order], group))
    ahead = np.diff(step[order][found])
    if len(twice := np.flatnonzero(inside & (ahead == 0))):
        row = order[found[twice[0]]]
        raise InputError(
            f"{kind}: the step {step[row]} of episode {episode[row]} is there more than once, so the row that follows "
            "is not known. Number the rows of each episode 0, 1, 2 and so on."
        )
    return found, np.append(inside & (ahead > 1), False), unsorted


def _known_episodes(arrays: Arrays, step: NDArray[np.int64] | None, foreign: bool) -> Arrays:
    """Episode and step of rows that have next states; none where nothing tells.

    foreign  not written by us, so that timeouts mark the ends of episodes that were recorded
    """
    rows = len(arrays["state"])
    if "episode" in arrays:
        number = _episode_numbers(arrays["episode"], least=-1)
        if step is None or (step[number >= 0] < 0).any():
            order = np.argsort(number, kind="stable")
            step = np.empty(rows, np.int64)
            step[order] = counted(np.append(np.diff(number[order]) != 0, True))[1]
        return {"episode": number, "step": step}
    if not foreign or "timeout" not in arrays:
        return {}
    last = arrays["timeout"] | arrays.get("terminal", False)
    last[:-1] |= (arrays["next_state"][:-1] != arrays["state"][1:]).any(1)
    last[-1] = True
    return dict(zip(EPISODES, counted(last), strict=True))


def counted(last: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Numbers of episodes, and of steps in them, for rows that follow one another up to an episode's last one."""
    number: NDArray[np.int64] = np.cumsum(last, dtype=np.int64) - last
    first = np.append(0, np.flatnonzero(last)[:-1] + 1)
    return number, np.arange(len(last), dtype=np.int64) - first[number]


def whole_numbers(array: NDArray[Any]) -> NDArray[np.int64] | None:
    """As int64, (N, 1) passing for (N,); None where some are anything else."""
    if array.dtype.kind not in "biuf" or (array.dtype.kind in "uf" and not (abs(array) < LARGEST).all()):
        return None
    array = array.reshape(len(array)) if array.ndim == 2 and array.shape[1] == 1 else array
    numbers: NDArray[np.int64] = array.astype(np.int64)
    return numbers if (numbers == array).all() else None


def _episode_numbers(episode: NDArray[Any], least: int) -> NDArray[np.int64]:
    """Their numbers if they have such, from `least` on; else numbers in the order of their names."""
    numbers = whole_numbers(episode)
    if numbers is None or (least == 0 and (numbers < 0).any()):
        numbers = np.unique(episode, return_inverse=True)[1]
    return np.maximum(numbers, least).astype(np.int64)


def _episodes(episode: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """An order of the rows that puts each episode's together, and which of them are last; unchanged if they were."""
    number = np.unique(episode, return_inverse=True)[1]
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
