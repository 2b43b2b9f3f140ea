"""The episodes of a table."""

from __future__ import annotations

from torch import Tensor

from mocoda.data.transitions import Transitions


def walks(data: Transitions) -> dict[int, Tensor]:
    """The rows of each episode, in the order of their steps; rows of none are left out."""
    assert data.episode is not None and data.step is not None
    numbers = data.episode[data.episode >= 0].unique().tolist()
    rows = {number: (data.episode == number).nonzero()[:, 0] for number in numbers}
    return {number: found[data.step[found].argsort()] for number, found in rows.items()}
