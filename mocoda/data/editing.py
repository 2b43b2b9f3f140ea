"""Edits of recorded data: merge tables, split one by whole episodes, trim episodes, drop episodes or rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from mocoda.data.episode_scores import episodes_of, large_step, numbered, score_episodes
from mocoda.data.formats import HowToRead, read_raw
from mocoda.data.formats.arrays import RawData, noted
from mocoda.data.names import EPISODES, PROVENANCE, printable
from mocoda.engine.errors import InputError

if TYPE_CHECKING:
    from mocoda.data.transitions import Transitions

NOTES = ("recipe", "task_index", "file", "donor_", "donor_step_")
RECIPE, TASK, FILE, DONOR, DONOR_STEP = (PROVENANCE + name for name in NOTES)
BLOCKS = 100  # of adjacent rows, into which rows of no episode are split
STILL = 0.05  # times a column's large steps: in a still row, no column moves farther
HEAD = "# mocoda: rows to drop of data"
HEAD_BY_SIZE = "# mocoda: rows to drop of a table of"  # of which an excerpt was read, so that only the size is known


def merge(sources: Sequence[Any], **how: Unpack[HowToRead]) -> Transitions:
    """One table of the rows of several, in order. Columns are matched by name, and episodes get new numbers.

    sources  two or more tables, or whatever else `mocoda.read` reads
    how      what is what in each, as for `mocoda.read`

    Rewards and goals are kept if all have them. Provenance `file` says which of `source["merged"]` a row comes from.
    Provenance that only some have is -1 in the rows of others; their recorded rows have recipe 0.
    """
    if len(sources) < 2:
        raise InputError(f"merge takes at least 2 data sets, got {len(sources)}.")
    raws = [read_raw(source, **how) for source in sources]
    notes = {name: array for raw in raws for name, array in raw.arrays.items() if name.startswith(PROVENANCE)}
    texts = [noted(raw.source, "tasks") or {} for raw in raws]  # LeRobot's, each with its own numbers
    tasks = {text: number for number, text in enumerate(dict.fromkeys(text for one in texts for text in one.values()))}
    parts: list[dict[str, NDArray[Any]]] = []
    files: list[dict[str, Any]] = []
    rows = episodes = 0
    for place, (source, raw) in enumerate(zip(sources, raws, strict=True)):
        name = str(source) if isinstance(source, str | Path) else f"table {place}"
        arrays = _in_order(name, raw, raws[0])
        unknown = np.full(len(arrays["state"]), -1)
        for note, array in notes.items():
            missing = np.where(raw.recorded, 0, -1) if note == RECIPE else unknown
            arrays.setdefault(note, missing.astype(array.dtype))
        for note in notes:  # donors are rows; or episodes, with their steps
            if note.startswith(DONOR) and not note.startswith(DONOR_STEP):
                by_step = note.replace(DONOR, DONOR_STEP) in raw.arrays
                arrays[note] = np.where(arrays[note] < 0, -1, arrays[note] + (episodes if by_step else rows))
        if texts[place] and TASK in notes:
            numbers = {int(number): tasks[text] for number, text in texts[place].items()}
            arrays[TASK] = np.array([numbers.get(number, -1) for number in arrays[TASK].tolist()])
        merged = raw.source.get("merged")
        arrays[FILE] = len(files) + (arrays[FILE] if merged and FILE in raw.arrays else 0 * unknown)
        files += merged or [{"data": name, "rows": len(unknown), "source": dict(raw.source)}]
        number = arrays.get("episode", unknown)
        arrays |= {"episode": np.where(number < 0, -1, number + episodes), "step": arrays.get("step", unknown)}
        rows, episodes = rows + len(unknown), episodes + max(0, int(number.max()) + 1)
        parts.append(arrays)
    every = {name for part in parts for name in part}
    shapes = {name: {part[name].shape[1:] if name in part else None for part in parts} for name in every}
    joined = {name: np.concatenate([part[name] for part in parts]) for name in shapes if len(shapes[name]) == 1}
    if episodes == 0:
        del joined["episode"], joined["step"]
    same = [key for key, value in raws[0].source.items() if all(raw.source.get(key) == value for raw in raws)]
    kept = {key: raws[0].source[key] for key in same if key not in ("recorded_rows", "generated_rows")}
    left = every.difference(joined, EPISODES).union(*(raw.source.get("ignored", ()) for raw in raws))
    kept |= {"merged": files} | ({"ignored": sorted(left)} if left else {})
    kept |= {"tasks": {str(number): text for text, number in tasks.items()}} if tasks else {}
    return RawData("merged", joined, tuple(raws[0].names), kept).table()


def _in_order(name: str, raw: RawData, first: RawData) -> dict[str, NDArray[Any]]:
    """The arrays of the data called `name`, with columns in the order of the first data."""
    arrays = dict(raw.arrays)
    for part, names in (("state", ["state", "next_state"]), ("action", ["action"])):
        own, wanted = (one.names_of(part) for one in (raw, first))
        if odd := sorted({*own} ^ {*wanted}):
            raise InputError(
                f"data must have the same columns to be merged, and the {part} of {name!r} differs from that of the "
                f"first in {', '.join(map(printable, odd))}. `mocoda export DATA --columns` gives columns other names."
            )
        arrays |= {array: arrays[array][:, [own.index(column) for column in wanted]] for array in names}
    return arrays


def split(
    source: Any, share: float = 0.9, *, seed: int = 0, **how: Unpack[HowToRead]
) -> tuple[Transitions, Transitions]:
    """Two tables: a share of the episodes, drawn at random, and the others. No episode is cut.

    share  of the episodes, larger than 0 and smaller than 1; each table gets one at least
    how    what is what in the data, as for `mocoda.read`

    Rows of no episode are split by blocks of adjacent rows.
    """
    from mocoda.engine.randomness import as_stream

    raw = read_raw(source, **how)
    episode, _ = episodes_of(raw.arrays)
    if not numbered(raw.arrays) and 2 * len(np.unique(episode)) > len(episode):  # rows stand alone
        episode = np.full(len(episode), -1)
    block = np.arange(len(episode)) * BLOCKS // len(episode)
    numbers, unit = np.unique(np.where(episode < 0, -1 - block, episode), return_inverse=True)
    if not 0 < share < 1 or len(numbers) < 2:
        raise InputError(
            f"share must be between 0 and 1, of 2 episodes or rows at least, got {share:g} of {len(numbers)}."
        )
    order = as_stream(seed, "split", device="cpu").permutation(len(numbers)).numpy()
    first = np.isin(unit, order[: min(max(1, round(share * len(numbers))), len(numbers) - 1)])
    return raw.only(first).table(), raw.only(~first).table()


def trim(source: Any, *, still: bool = False, steps: str = "", **how: Unpack[HowToRead]) -> Transitions:
    """The data without still rows at the starts and ends of its episodes, or with some steps of each episode only.

    still  leave out the first and last rows in which no column of the state moves by 5% of its large steps
    steps  "10:200" keeps steps 10 to 199 of each episode; ":-10" all but the last 10
    how    what is what in the data, as for `mocoda.read`

    Rows keep the numbers of their episodes and steps. Rows of no episode stay.
    """
    raw = read_raw(source, **how)
    episode, step = episodes_of(raw.arrays)
    _, place = np.unique(episode, return_inverse=True)
    first, last, length = np.tile([[step.max() + 1], [-1], [0]], place.max() + 1)
    np.maximum.at(length, place, step + 1)
    bounds = re.fullmatch(r"(-?\d+)?:(-?\d+)?", steps or ":")
    if bounds is None:
        raise InputError(f"steps are chosen as in 10:200, 10: or :-10, got {steps!r}.")
    begin, end = int(bounds[1] or 0), bounds[2]
    keep = step >= begin + (begin < 0) * length[place]
    if end is not None:
        keep &= step < int(end) + (int(end) < 0) * length[place]
    if still:
        moves = keep & _moves(raw)
        np.minimum.at(first, place[moves], step[moves])
        np.maximum.at(last, place[moves], step[moves])
        keep &= (step >= first[place]) & (step <= last[place])
    return _rest(raw, keep | (episode < 0))


def drop(
    source: Any,
    *,
    episodes: Sequence[int] = (),
    rows: str | Path | Sequence[int] = (),
    bad: bool = False,
    where: Sequence[str] = (),
    **how: Unpack[HowToRead],
) -> Transitions:
    """The data without some of its episodes and rows; all others stay as they are.

    episodes  numbers of episodes, as `mocoda.inspect` calls them
    rows      numbers of rows, counted from 0, or a file that lists them, one per line, such as one that the page of
              `mocoda.report` exports. Its lines that begin with # are comments; if the first one names the data that it
              is about, other data is refused
    bad       the episodes that `mocoda.inspect` flags
    where     the rows that meet all of these conditions, such as "box1.x > 1.9"
    how       what is what in the data, as for `mocoda.read`
    """
    raw = read_raw(source, **how)
    episode, _ = episodes_of(raw.arrays)
    unwanted = list(map(int, episodes))
    if odd := {*unwanted} - {*episode[episode >= 0].tolist()}:
        raise InputError(
            f"there is no episode {min(odd)}; there are {len(np.unique(episode[episode >= 0])):,}, with numbers from "
            f"{episode[episode >= 0].min(initial=0)} to {episode.max()}. `mocoda inspect` lists the bad ones."
        )
    if bad:
        recorded = raw.recorded
        recorded |= not recorded.any()  # then inspect judges generated rows, too
        scores = score_episodes({name: array[recorded] for name, array in raw.arrays.items()}, raw.names)
        if scores is None:
            raise InputError("most rows stand alone: there are no episodes that could be flagged.")
        unwanted += scores.flagged.tolist()
    keep = ~np.isin(episode, unwanted)
    listed = _listed(Path(rows), raw) if isinstance(rows, str | Path) else [*rows]
    if unknown := [row for row in listed if not 0 <= row < len(keep)]:
        raise InputError(f"there is no row {unknown[0]}; rows have numbers from 0 to {len(keep) - 1}.")
    keep[np.array(listed, np.int64)] = False
    if where and keep.any():
        from mocoda.data.where import Condition, columns_of

        columns = columns_of(raw.only(keep).table())
        keep[keep] = ~np.all([Condition(text)(columns).numpy() for text in where], axis=0)
    return _rest(raw, keep)


def _rest(raw: RawData, keep: NDArray[np.bool_]) -> Transitions:
    if not keep.any():
        raise InputError(f"nothing would be left of the {len(keep):,} rows.")
    return raw.only(keep).table()


def _moves(raw: RawData) -> NDArray[np.bool_]:
    """(N,) whether some column of the state moves."""
    moves = np.zeros(len(raw.arrays["state"]), bool)
    for here, there in zip(raw.arrays["state"].T, raw.arrays["next_state"].T, strict=True):
        with np.errstate(all="ignore"):  # tables refuse what is not finite
            moved = np.abs(there - here)
        moves |= moved > STILL * large_step(moved)
    return moves


def _listed(file: Path, raw: RawData) -> list[int]:
    """The rows that a file lists."""
    if not file.is_file():
        raise InputError(f"there is no file {str(file)!r} of rows to drop. The page of `mocoda report` exports one.")
    try:
        lines = [line.strip() for line in file.read_text("utf-8").splitlines()]
    except UnicodeDecodeError:
        raise InputError(f"{str(file)!r} is not text; expected one row number per line.") from None
    listed = [line for line in lines if line and not line.startswith("#")]
    if odd := [line for line in listed if not line.isdecimal() or len(line) > 18]:
        raise InputError(f"{str(file)!r} must list row numbers from 0 on, one per line, got {odd[0][:40]!r}.")
    for line in lines[:1]:
        of_data = line.startswith(HEAD)
        wanted = f"{HEAD} {content_of(raw.table())}" if of_data else f"{HEAD_BY_SIZE} {len(raw.arrays['state'])} rows"
        if line.startswith((HEAD, HEAD_BY_SIZE)) and line != wanted:
            raise InputError(
                f"{str(file)!r} lists rows of other data: it begins with {line!r}, and this data's would begin with "
                f"{wanted!r}. Rows are known by their place, so drop them from the file that the page was made of."
            )
    return [*map(int, listed)]


def content_of(data: Transitions) -> str:
    """A short hash of the rows and their next states, in their order."""
    from mocoda.engine.checkpoint import fingerprint

    return fingerprint(data.rows, data.next_state)
