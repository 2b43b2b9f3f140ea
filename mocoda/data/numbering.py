"""Which episodes of tables that are joined are the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from mocoda.data.transitions import Transitions


class Numbering:
    """Numbers for the episodes of tables that follow one another."""

    def __init__(self) -> None:
        self.taken = 0  # the first number that is free
        self.last: tuple[Transitions, int] | None = None  # the row before, and how far its episode's number was moved

    def on(self, table: Transitions, known: bool) -> dict[str, Tensor]:
        """A table's arrays; if episodes are not known of any table, without."""
        arrays, last, self.last = table.arrays(), self.last, None
        if not known:
            return arrays
        if table.episode is None:
            none = torch.full((len(table),), -1, device=table.device)
            return {**arrays, "episode": none, "step": none}
        moved = torch.full_like(table.episode, self.taken)
        if last is not None and _goes_on(last[0], table):
            same = table.episode == table.episode[0]
            moved[same] = last[1]
            if bool((table.episode[~same] + last[1] >= self.taken).all()):  # then all keep their distance
                moved[:] = last[1]
        number = torch.where(table.episode < 0, table.episode, table.episode + moved)
        self.taken = max(self.taken, int(number.max()) + 1)
        self.last = (table[-1:], int(moved[-1]))
        return {**arrays, "episode": number}


def _goes_on(last: Transitions, table: Transitions) -> bool:
    """Whether a table's first row is the next step of the row `last`."""
    assert last.episode is not None and last.step is not None and table.episode is not None and table.step is not None
    place = (int(last.episode[0]), int(last.step[0]) + 1)
    there = place[0] >= 0 and place == (int(table.episode[0]), int(table.step[0]))
    return there and last.next_state[0].cpu().view(torch.int32).equal(table.state[0].cpu().view(torch.int32))
