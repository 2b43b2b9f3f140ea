"""Objects that exchange places: an observation that lists objects by distance swaps their columns as they move.

Found by the jumps that this makes: two objects jump at once, each to where the other one was expected. `track` undoes
it, so that every object keeps its columns throughout an episode.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mocoda.data.formats.as_episodes import as_episodes, grouped_by_episode
from mocoda.engine.errors import InputError, unknown_name

if TYPE_CHECKING:
    from mocoda.data.transitions import Transitions

CLEAR = 5  # times as long as a usual step: so far an object must jump for an exchange, or to be lost
MAX_LOST = 0.01  # of the rows; where objects jump more often, they cannot be followed
BLOCK = 16_384  # rows that are compared at a time


@dataclass(frozen=True, eq=False)
class Alike:
    """K objects that are described by the same W columns of the state."""

    names: tuple[str, ...]
    columns: NDArray[np.int64]  # (K, W)


@dataclass(frozen=True, eq=False)
class Exchanges:
    """Where the objects of a state are in the next state.

    after  (N, K), the place in the next state of the object in each place of the state
    lost   (N,), whether an object jumps to where none was expected
    """

    after: NDArray[np.int64]
    lost: NDArray[np.bool_]

    @property
    def rows(self) -> NDArray[np.bool_]:
        """(N,) whether objects have other places in the next state than in the state."""
        return np.asarray((self.after != np.arange(self.after.shape[1])).any(1))


def alike_objects(state_columns: Sequence[str], objects: Sequence[str] = ()) -> list[Alike]:
    """Groups of objects with columns of the same names: car1.x and car1.v like car2.x and car2.v.

    objects  the objects of the only group; unless given, objects are alike whose names differ in their number
    """
    owned: dict[str, dict[str, int]] = {}  # object -> the end of a column's name -> its place
    for place, name in enumerate(state_columns):
        if parts := re.fullmatch(r"(.+?)[._](.+)", name):
            owned.setdefault(parts[1], {})[parts[2]] = place
    for name in objects:
        if name not in owned:
            raise unknown_name("object with columns such as NAME.x called", name, owned)
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in objects or owned:
        kind = "" if objects else re.sub(r"\d+", "", name)
        groups.setdefault((kind, *sorted(owned[name])), []).append(name)
    if objects and len(groups) > 1:
        raise InputError(f"the objects {', '.join(objects)} must have columns of the same names, such as x and y.")
    return [
        Alike(tuple(names), np.array([[owned[name][end] for end in ends] for name in names]))
        for (_, *ends), names in groups.items()
        if len(names) > 1
    ]


def find_exchanges(state: NDArray[Any], next_state: NDArray[Any], alike: Alike) -> Exchanges:
    """Follows objects from states (N, S) to next states, by the assignment in which they move least in all.

    Objects whose columns are all 0 are absent, and may come and go.
    """
    from scipy.optimize import linear_sum_assignment

    here, there = state[:, alike.columns], next_state[:, alike.columns]  # (N, K, W)
    spread = here.reshape(-1, here.shape[2]).std(0)
    here, there = (array[..., spread > 0] / spread[spread > 0] for array in (here, there))
    count = here.shape[1]
    after = np.tile(np.arange(count), (len(here), 1))
    moved, stayed = np.empty(after.shape), np.empty(after.shape)
    for begin in range(0, len(here), BLOCK):
        rows = slice(begin, begin + BLOCK)
        apart = np.sqrt(np.square(here[rows, :, None] - there[rows, None]).mean(3))  # (rows, K, K)
        for row in np.flatnonzero((apart.argmin(2) != np.arange(count)).any(1)):
            after[begin + row] = linear_sum_assignment(apart[row])[1]
        moved[rows] = np.take_along_axis(apart, after[rows, :, None], 2)[..., 0]
        stayed[rows] = apart[:, np.arange(count), np.arange(count)]
    present = here.any(2) & np.take_along_axis(there.any(2), after, 1)
    usual = float(np.quantile(moved[present], 0.9)) if present.any() else 0.0
    changed = (after != np.arange(count)) & present
    clear = (stayed > CLEAR * moved) & (stayed > usual)
    if not (changed.any(1) & (clear | ~changed).all(1)).any():  # objects that merely pass each other
        after, moved = np.tile(np.arange(count), (len(here), 1)), stayed
    return Exchanges(after, ((moved > CLEAR * max(usual, 1e-6)) & present).any(1))


def track(data: Transitions, objects: Sequence[str] = ()) -> Transitions:
    """Returns the same steps with every object in the same columns throughout its episode.

    Rows of an episode come together, sorted by step. Goals and actions stay as they are.

    objects  the names of objects that exchange places, such as "car1"; unless given, they are found by their columns
    """
    import torch

    data = grouped_by_episode(data)
    bounds = as_episodes(data).bounds
    state, next_state = data.state.cpu().numpy().copy(), data.next_state.cpu().numpy().copy()
    names = data.columns[: state.shape[1]]
    noted: dict[str, int] = {}
    for alike in alike_objects(names, objects):
        found = find_exchanges(state, next_state, alike)
        listed = ", ".join(alike.names)
        if not found.rows.any():
            continue
        if found.lost.mean() > MAX_LOST:
            raise InputError(
                f"{listed} cannot be followed: in {found.lost.mean():.0%} of the rows one of them jumps to where none "
                "was expected, as when only the nearest of many are listed. Record all, or an identity for each."
            )
        order = np.tile(np.arange(len(alike.names)), (len(data), 1))  # the place of each object in the state
        for begin, end in pairwise(bounds.tolist()):
            for row in range(begin + 1, end):
                order[row] = found.after[row - 1][order[row - 1]]
        following = np.take_along_axis(found.after, order, 1)
        for array, places in ((state, order), (next_state, following)):
            array[:, alike.columns] = np.take_along_axis(array[:, alike.columns], places[..., None], 1)
        noted[listed] = int(found.rows.sum())
    if not noted:
        raise InputError("no objects exchange places: there is nothing to undo. `mocoda inspect` says what is there.")
    source = {**data.source, "tracked": noted}
    there = torch.from_numpy(next_state).to(data.device)
    return replace(data, state=torch.from_numpy(state).to(data.device), next_state=there, source=source)
