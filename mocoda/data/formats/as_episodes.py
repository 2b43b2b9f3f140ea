"""Tables as episodes, for formats that store whole episodes rather than rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mocoda.data.transitions import Transitions


@dataclass(frozen=True, eq=False)
class Episodes:
    """N rows as E episodes. An episode of T rows has T + 1 observations; the last is the last row's next state.

    bounds       (E + 1,)    episode e is rows bounds[e] to bounds[e + 1]
    observation  (N + E, S)  states, and after each episode's last one the next state
    goal         (N + E, G)  or None
    """

    bounds: NDArray[np.int64]
    observation: NDArray[np.float32]
    goal: NDArray[np.float32] | None

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __iter__(self) -> Iterator[tuple[slice, slice]]:
        """The rows and the observations of each episode."""
        for number, (begin, end) in enumerate(pairwise(self.bounds.tolist())):
            yield slice(begin, end), slice(begin + number, end + number + 1)


def grouped_by_episode(data: Transitions) -> Transitions:
    """The same rows, each episode's together and sorted by step; the same table if they are so already.

    An episode takes the place of its first row; rows of no episode stay between the others.
    """
    import torch

    if data.episode is None or data.step is None:
        return data
    episode, row = data.episode.cpu().numpy(), np.arange(len(data))
    _, first, number = np.unique(episode, return_index=True, return_inverse=True)
    order = np.lexsort((data.step.cpu().numpy(), np.where(episode < 0, row, first[number])))
    return data if (order == row).all() else data[torch.from_numpy(order)]


def as_episodes(data: Transitions, *, end_at_terminal: bool = False, one_goal: bool = False) -> Episodes:
    """Splits a table into the longest episodes from which every row can be read back exactly.

    The following row continues an episode if the row's next state is its state, bit by bit, and if it is the next step
    of the same recorded episode. Where no episodes were recorded, it continues unless the row is terminal or the goal
    changes. Generated rows seldom continue: most become episodes of one step.

    end_at_terminal  also end recorded episodes at terminal rows
    one_goal         also end recorded episodes where the goal changes
    """
    state, next_state = data.state.cpu().numpy(), data.next_state.cpu().numpy()
    last = np.ones(len(data), bool)
    last[:-1] = _differ(next_state, state)
    known = np.zeros(len(data) - 1, bool)
    if data.episode is not None and data.step is not None:
        episode, step = data.episode.cpu().numpy(), data.step.cpu().numpy()
        known = episode[:-1] >= 0
        last[:-1] |= (episode[:-1] != episode[1:]) | (known & (step[1:] != step[:-1] + 1))
    last[:-1] |= data.terminal.cpu().numpy()[:-1] & (~known | end_at_terminal)
    goal = None if data.goal is None else data.goal.cpu().numpy()
    if goal is not None:
        last[:-1] |= _differ(goal, goal) & (~known | one_goal)
    ends = np.flatnonzero(last) + 1
    bounds = np.append(0, ends).astype(np.int64)
    observation = np.insert(state, ends, next_state[ends - 1], axis=0)
    return Episodes(bounds, observation, None if goal is None else np.insert(goal, ends, goal[ends - 1], axis=0))


def _differ(array: NDArray[Any], following: NDArray[Any]) -> NDArray[np.bool_]:
    """(N - 1,) whether a row of one array and the following row of another differ in any bit."""
    return np.asarray((array.view(np.int32)[:-1] != following.view(np.int32)[1:]).any(1))


def noted_audit(source: Mapping[str, Any]) -> dict[str, Any]:
    """What an audit has noted of these rows, for metadata that other programs read: {"audit": ...}, or nothing."""
    return {name: found for name, found in source.items() if name == "audit" and isinstance(found, Mapping)}
