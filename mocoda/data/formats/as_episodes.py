"""Tables as episodes, for formats that store whole episodes rather than rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

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
    state, next_state = _bits(data.state), _bits(data.next_state)
    last = np.ones(len(data), bool)
    last[:-1] = (next_state[:-1] != state[1:]).any(1)
    known = np.zeros(len(data) - 1, bool)
    if data.episode is not None and data.step is not None:
        episode, step = data.episode.cpu().numpy(), data.step.cpu().numpy()
        known = episode[:-1] >= 0
        last[:-1] |= (episode[:-1] != episode[1:]) | (known & (step[1:] != step[:-1] + 1))
    last[:-1] |= data.terminal.cpu().numpy()[:-1] & (~known | end_at_terminal)
    if data.goal is not None:
        goal = _bits(data.goal)
        last[:-1] |= (goal[:-1] != goal[1:]).any(1) & (~known | one_goal)
    ends = np.flatnonzero(last)
    bounds = np.concatenate([[0], ends + 1]).astype(np.int64)
    place = np.arange(len(data)) + np.cumsum(last) - last  # of a row's state among the observations
    observation = _placed(data.state, data.next_state, place, ends)
    return Episodes(bounds, observation, None if data.goal is None else _placed(data.goal, data.goal, place, ends))


def _placed(values: Tensor, closing: Tensor, place: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.float32]:
    placed = np.empty((len(place) + len(ends), values.shape[1]), np.float32)
    placed[place] = values.cpu().numpy()
    placed[place[ends] + 1] = closing.cpu().numpy()[ends]
    return placed


def _bits(array: Tensor) -> NDArray[Any]:
    return array.cpu().numpy().view(np.int32)
