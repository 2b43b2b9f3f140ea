"""Makes the arrays of a table of those in a file: checks their shapes, and pairs each row with its next state."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mocoda.data.formats.format import Contents
from mocoda.data.kinds import PERIODS, outliers
from mocoda.data.names import EPISODES, PROVENANCE, Arrays, Names, column_names, find_arrays, printable
from mocoda.engine.errors import InputError, unknown_name

if TYPE_CHECKING:
    from mocoda.data.transitions import Transitions

MOST_CATEGORIES = 100  # of a column, where nothing says how many there are
MOST_SWITCHES = 1 << 30  # numbers in one-hot columns, for a small file may say that there are many
EXACT = 2**53  # floats tell all whole numbers below this apart


@dataclass(frozen=True, eq=False)
class RawData:
    """Rows as they were read; unlike in Transitions, numbers may be NaN or infinite.

    kind       what they were read as, in words
    arrays     (N, ...) by the names that Transitions give them, float32 and bool, episode and step int64; provenance
               as it was stored
    columns    names of the state's and the action's columns; () where nobody gave any
    source     how the rows were made
    coarse     columns whose variation float32 rounds away
    """

    kind: str
    arrays: Mapping[str, NDArray[Any]]
    columns: tuple[str, ...]
    source: Mapping[str, Any]
    coarse: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The columns' names, made up where nobody gave each one."""
        widths = {part: self.arrays[part].shape[1] for part in ("state", "action")}
        made_up = column_names(widths, between="", always=True)
        return list(self.columns) if len(self.columns) == len(made_up) else made_up

    def names_of(self, part: str) -> list[str]:
        """The names of the columns of the state or of the action."""
        states = self.arrays["state"].shape[1]
        return self.names[:states] if part == "state" else self.names[states:]

    def table(self, skip_bad_rows: bool = False) -> Transitions:
        import torch

        from mocoda.data.transitions import from_arrays

        if skip_bad_rows:
            bad = self.bad_rows()
            return replace(self.only(~bad), source={**self.source, "skipped_bad_rows": int(bad.sum())}).table()
        # A table copies a tensor once and a numpy array twice; torch takes only native arrays that can be written to.
        lent = {
            name: torch.from_numpy(array) if array.flags.writeable and array.dtype.isnative else array
            for name, array in self.arrays.items()
        }
        return from_arrays(lent, self.columns, self.source)

    def only(self, rows: NDArray[np.bool_]) -> RawData:
        """The rows (N,) that are chosen."""
        source = dict(self.source)
        if PROVENANCE + "recipe" not in self.arrays and not (known := self.recorded).all():
            source |= {"recorded_rows": int((known & rows).sum()), "generated_rows": int((rows & ~known).sum())}
        return replace(self, arrays={name: array[rows] for name, array in self.arrays.items()}, source=source)

    @property
    def recorded(self) -> NDArray[np.bool_]:
        """(N,) whether a row was recorded, according to its provenance or to the source that `augment` wrote."""
        if PROVENANCE + "recipe" in self.arrays:
            return np.asarray(self.arrays[PROVENANCE + "recipe"] == 0)
        rows = len(self.arrays["state"])
        return np.asarray(np.arange(rows) < recorded_first(self.source, rows))

    def expanded(self, categories: Mapping[str, int | Sequence[str]], angles: Sequence[str] = ()) -> RawData:
        """The rows with one-hot columns gear.0, gear.1, ... in place of gear, and turn.sin and turn.cos of turn.

        categories  column -> how many there are, or their names; 0: as many as occur
        angles      columns in radians, or in degrees if some number is larger than 2 pi
        """
        raw = self
        for name, known in categories.items():
            raw = raw._in_place_of(name, partial(_one_hot, f"{self.kind}: the categories of {name!r}", known))
        for name in angles:
            raw = raw._in_place_of(name, _sine_and_cosine)
        return raw

    def _in_place_of(self, name: str, make: Callable[[NDArray[Any]], dict[str, NDArray[Any]]]) -> RawData:
        """The rows with other columns in place of one; `make` makes those of its states and then its next states."""
        arrays, names = dict(self.arrays), self.names
        if name not in names:
            raise unknown_name("column", name, names)
        (rows, states), at = arrays["state"].shape, names.index(name)
        parts, place = (("state", "next_state"), at) if at < states else (("action",), at - states)
        made = make(np.concatenate([arrays[part][:, place] for part in parts]))
        new = np.stack([*made.values()], 1).astype(np.float32)
        for number, part in enumerate(parts):
            before, after = arrays[part][:, :place], arrays[part][:, place + 1 :]
            arrays[part] = np.concatenate([before, new[number * rows : (number + 1) * rows], after], 1)
        names[at : at + 1] = [f"{name}.{end}" for end in made]
        return replace(self, arrays=arrays, columns=tuple(names))

    def without_absent(self, objects: Sequence[str]) -> RawData:
        """The rows with zeros where an object is absent, which is where all of its state's columns are NaN or 0."""
        if not objects:
            return self
        arrays = {name: self.arrays[name].copy() for name in ("state", "next_state")}
        names = self.names[: arrays["state"].shape[1]]
        for name in objects:
            own = [place for place, column in enumerate(names) if re.match(rf"{re.escape(name)}([._]|$)", column)]
            if not own:
                raise InputError(f"{self.kind}: no columns of the state belong to {name!r}, as {name}.x would.")
            for array in arrays.values():
                array[np.ix_((np.isnan(array[:, own]) | (array[:, own] == 0)).all(1), own)] = 0
        return replace(self, arrays={**self.arrays, **arrays}, source={**self.source, "absent": [*objects]})

    def doubts(self) -> list[str]:
        """What to know about numbers that float32, or any model, cannot make much of."""
        found = []
        if self.coarse:
            found.append(
                f"{', '.join(map(printable, self.coarse))}: the numbers are so large, compared with how they vary, "
                "that float32 rounds their variation away. Subtract an offset before reading them."
            )
        columns = zip(self.names, [*self.arrays["state"].T, *self.arrays["action"].T], strict=True)
        far = [(name, column, odd[0]) for name, column in columns if len(odd := outliers(column))]
        if far:
            listed = [f"{printable(name)} in row {row} ({column[row]:g})" for name, column, row in far]
            found.append(
                f"numbers lie 10,000 times as far out as nearly all others of their column: {', '.join(listed)}. They "
                "ruin the scale on which a model sees the column: leave these rows out, or repair them."
            )
        return found

    def bad_rows(self) -> NDArray[np.bool_]:
        """(N,) where some number is NaN or infinite."""
        bad = np.zeros(len(self.arrays["state"]), bool)
        for array in self.arrays.values():
            bad |= ~np.isfinite(array.reshape(len(array), -1)).all(1)
        return bad


def _one_hot(what: str, known: int | Sequence[str], values: NDArray[Any]) -> dict[str, NDArray[Any]]:
    count = known if isinstance(known, int) else len(known)
    largest = count - 1 if count else MOST_CATEGORIES - 1
    if len(odd := np.flatnonzero(~((values == np.round(values)) & (values >= 0) & (values <= largest)))):
        raise InputError(f"{what} must be whole numbers from 0 to at most {largest}, got {values[odd[0]]:g}.")
    count = count or int(values.max()) + 1
    if count * len(values) > MOST_SWITCHES:
        raise InputError(f"{what} are {count:,} in {len(values):,} rows, too many to become one column each.")
    names = range(count) if isinstance(known, int) else known
    return {str(name): values == number for number, name in enumerate(names)}


def _sine_and_cosine(values: NDArray[Any]) -> dict[str, NDArray[Any]]:
    period = PERIODS[0] if (abs(values) <= 1.01 * PERIODS[0]).all() else PERIODS[1]
    radians = values.astype(np.float64) * (2 * np.pi / period)
    return {"sin": np.sin(radians), "cos": np.cos(radians)}


def recorded_first(source: Mapping[str, Any], rows: int) -> int:
    """How many of the rows, the first ones, were recorded, by the source that `augment` wrote; all if it was not."""
    first, rest = source.get("recorded_rows"), source.get("generated_rows")
    return first if isinstance(first, int) and isinstance(rest, int) and first + rest == rows else rows


def arrays_of(data: Transitions) -> Arrays:
    """The arrays of a table as numpy, provenance included, by the names that they have in our files."""
    return {name: array.cpu().numpy() for name, array in data.arrays().items()}


def side_by_side(parts: Sequence[NDArray[Any]], rows: int) -> NDArray[Any]:
    """Arrays (rows, ...) as the columns of one, (rows, columns)."""
    return np.concatenate([part.reshape(rows, -1) for part in parts], 1) if parts else np.empty((rows, 0), np.float32)


def check_chosen(kind: str, what: str, wanted: Sequence[str], flat: Mapping[str, int], more: str = "") -> None:
    """Refuses observations that are not there or are chosen twice; lists those that are, with their widths."""
    for name in wanted:
        if name not in flat or [*wanted].count(name) > 1:
            problem = f"{name!r} is named twice" if name in flat else f"there is no {what} {name!r}"
            raise InputError(f"{kind}: {problem}. {widths_of(flat)}{more}")


def widths_of(flat: Mapping[str, int]) -> str:
    listed = ", ".join(f"{name!r} ({width})" for name, width in flat.items()) or "none"
    return f"There are, with their numbers of columns: {listed}."


def raw_arrays(
    contents: Contents,
    kind: str,
    *,
    columns: Sequence[str] = (),
    names: Names | None = None,
    episode_steps: int | None = None,
) -> RawData:
    """Finds and checks a table's arrays, and pairs states with next states where the file does not hold those.

    names          what arrays with unusual names are called
    episode_steps  rows of an episode, for data that does not mark all ends
    """
    arrays, labels, unused, coarse = find_arrays(contents, kind, names, columns)
    rows = len(arrays["state"])
    counter = arrays.pop("step", None)
    step = _places(kind, counter, rows, required="next_state" not in arrays) if "episode" in arrays else None
    if counter is not None and step is None:
        unused.add("step")
    for name, array in arrays.items():
        if len(array) != rows:
            raise _differ(kind, name, f"{len(array):,} rows", f"{rows:,}")
    if rows == 0:
        raise InputError(f"{kind}: there are no rows; expected at least 1.")
    for name in sorted({"terminal", "timeout", "done"} & {*arrays}):
        if len(odd := np.flatnonzero((arrays[name] != 0) & (arrays[name] != 1))):
            raise InputError(f"{kind}: {name} must hold 0 and 1 only, got {arrays[name][odd[0]]} in row {odd[0]}.")
        arrays[name] = arrays[name] == 1
    source: dict[str, Any] = {"read_as": kind, **contents.about}
    if notes := [note for note in (contents.about.get("note"), _done(arrays)) if note]:
        source["note"] = "; ".join(notes)
    if unused:
        source["ignored"] = sorted(unused)
    if "next_state" not in arrays:
        arrays, paired = _paired(arrays, kind, step, episode_steps, contents.ends_only)
        source = paired | source if "note" in source else source | paired
    else:
        widths = arrays["next_state"].shape[1], arrays["state"].shape[1]
        if widths[0] != widths[1]:
            raise _differ(kind, "next_state", f"{widths[0]} columns", f"{widths[1]}")
        arrays |= _known_episodes(arrays, step, contents.source is None)
    if "terminal" not in arrays or contents.ends_only:
        arrays["terminal"] = np.zeros(len(arrays["state"]), bool)
    arrays.pop("timeout", None)
    raw = RawData(kind, arrays, labels, source if contents.source is None else contents.source, coarse)
    return raw.expanded(contents.categories)


def _differ(kind: str, name: str, has: str, state_has: str) -> InputError:
    return InputError(f"{kind}: {name} has {has}, but state has {state_has}; they must have the same number.")


def _done(arrays: Arrays) -> str | None:
    """Uses `done` as the end of an episode, which it is in any case; returns a note on what it does not say."""
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
    """The entry `name` of a table's source, or of the source of its recorded rows; None if neither has one."""
    inner = source.get("recorded")
    return source[name] if name in source else noted(inner, name) if isinstance(inner, Mapping) else None


def texts_of(data: Transitions) -> dict[str, Any]:
    """The JSON values that are stored beside a table's arrays."""
    return {"columns": list(data.columns), "source": dict(data.source)}


def checked_texts(path: str, texts: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON values of a file; refuses other types than `texts_of` writes."""
    if not isinstance(texts.get("columns", []), list) or not isinstance(texts.get("source", {}), dict):
        raise InputError(f"{path!r} is damaged: its columns must be a list of names, and its source a JSON object.")
    return dict(texts)


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
    odd = int(np.flatnonzero((counter < 0) | ~(counter < EXACT) | (counter != np.floor(counter)))[0])
    raise InputError(
        f"{kind}: step must be whole numbers from 0, a row's place in its episode, because there are no next states; "
        f"got {counter[odd]} in row {odd}. Number the rows of each episode, or leave step out if they are in order."
    )


def _paired(
    arrays: Arrays, kind: str, step: NDArray[np.int64] | None, episode_steps: int | None, ends_only: bool
) -> tuple[Arrays, dict[str, Any]]:
    """Gives every row the state of the following row of its episode, and drops rows that have none.

    Returns the rows that are left, and what the source should say of the others.
    """
    rows = len(arrays["state"])
    last, gaps = np.zeros(rows, bool), 0
    counts: dict[str, Any] = {}
    for name in ("terminal", "timeout"):
        last |= arrays.get(name, False)
    if "episode" in arrays:
        order, border, gap, unsorted = _episode_order(kind, arrays["episode"], step)
        arrays, last = {name: array[order] for name, array in arrays.items()}, last[order] | border
        step = None if step is None else step[order]
        gaps = int((gap & ~last).sum())
        last |= gap
        counts |= {"episodes_sorted_by_step": unsorted} if unsorted else {}
        counts |= {"gaps_in_step": gaps} if gaps else {}
    if episode_steps is not None:
        if episode_steps < 2:
            raise InputError(f"episode_steps must be at least 2, the rows of an episode, got {episode_steps}.")
        last |= counted(np.append(last[:-1], True))[1] % episode_steps == episode_steps - 1
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


def _episode_order(
    kind: str, episode: NDArray[Any], step: NDArray[np.int64] | None
) -> tuple[NDArray[np.intp], NDArray[np.bool_], NDArray[np.bool_], int]:
    """Puts the rows of each episode together, sorted by step; rows that are in order stay where they are.

    Returns the order (N,), which rows (N,) are then the last of their episode, which rows (N,) come before a missing
    step, and how many episodes had to be sorted.
    """
    number = np.unique(episode, return_inverse=True)[1]
    changes = np.diff(number) != 0
    group = np.append(0, np.cumsum(changes)) if changes.sum() == number.max() else number
    order = np.argsort(group, kind="stable")
    last = np.append(np.diff(group[order]) != 0, True)
    if step is None:
        return order, last, np.zeros(len(order), bool), 0
    unsorted = len(np.unique(group[order[1:]][~last[:-1] & (np.diff(step[order]) < 0)]))
    order = order[np.lexsort((step[order], group[order]))]
    ahead = np.where(last[:-1], 1, np.diff(step[order]))
    if len(twice := order[:-1][ahead == 0]):
        row = twice[0]
        raise InputError(
            f"{kind}: the step {step[row]} of episode {episode[row]} is there more than once, so the row that follows "
            "is not known. Number the rows of each episode 0, 1, 2 and so on."
        )
    return order, last, np.append(ahead > 1, False), unsorted


def _known_episodes(arrays: Arrays, step: NDArray[np.int64] | None, foreign: bool) -> Arrays:
    """Episode and step of rows that have next states; nothing where the data does not tell.

    foreign  the file is not ours, so timeouts mark where recorded episodes end
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
    """Episode and step (N,) of rows in order, given which rows (N,) are the last of their episodes."""
    number: NDArray[np.int64] = np.cumsum(last, dtype=np.int64) - last
    first = np.append(0, np.flatnonzero(last)[:-1] + 1)
    return number, np.arange(len(last), dtype=np.int64) - first[number]


def whole_numbers(array: NDArray[Any]) -> NDArray[np.int64] | None:
    """The array as int64, (N,) rather than (N, 1); None if it holds anything but whole numbers."""
    if array.dtype.kind not in "biuf" or (array.dtype.kind in "uf" and not (abs(array) < EXACT).all()):
        return None
    array = array.reshape(len(array)) if array.ndim == 2 and array.shape[1] == 1 else array
    numbers: NDArray[np.int64] = array.astype(np.int64)
    return numbers if (numbers == array).all() else None


def _episode_numbers(episode: NDArray[Any], least: int) -> NDArray[np.int64]:
    """Whole numbers as they are, raised to `least`; anything else is numbered in the order of its names."""
    numbers = whole_numbers(episode)
    if numbers is None or (least == 0 and (numbers < 0).any()):
        numbers = np.unique(episode, return_inverse=True)[1]
    return np.maximum(numbers, least).astype(np.int64)
