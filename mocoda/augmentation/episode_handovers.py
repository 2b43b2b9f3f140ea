"""Where one recorded episode goes on from another in turn: where a robot is as nearly the same in both as can be."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from mocoda.augmentation.episode_walks import Walks
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph

BLOCK = 2**23  # pairs of rows that are compared at a time
LOOKS = 32  # rows of a rest that an episode may wait in are looked at, evenly spread
RESTS = 16  # of other episodes that are tried, the nearest first
SLOWEST = 0.01  # standard deviations by which a column changes in a step, at least: some never change in an episode
# Steps by which chance moves rows apart: it decides among those that are equally near, and where there is no robot.
TIE = 1e-4


class Rests(NamedTuple):
    """The C rows, of R rests, in which an episode may take over.

    rows     (C,)
    number   (C,), the rest that each is of
    episode  (R,), that a rest is of
    """

    rows: Tensor
    number: Tensor
    episode: Tensor


class Robot(NamedTuple):
    """What the actions move directly, in every row of the walks.

    places   (N, D) float64. The unit of a column is what it usually changes by in a step, so that the distance of two
             places says how many steps lie between them: a speed is soon another, a place is not
    episode  (N,), that a row is of
    """

    places: Tensor
    episode: Tensor

    @staticmethod
    def of(walks: Walks, graph: LocalGraph, things: list[int]) -> Robot:
        """All of the state but the things, which are numbers of children."""
        children = [child for number, child in enumerate(graph.children) if number not in things]
        columns = [column for child in children for column in graph.factors[child]]
        values, after = walks.rows[:, columns].double(), walks.next_state[:, columns].double()
        values, change = values - values.mean(0), after - values
        step, spread = (numbers.square().mean(0).sqrt() for numbers in (change, values))
        unit = step.maximum(SLOWEST * spread)
        return Robot(values / torch.where(unit > 0, unit, 1.0), walks.episode)

    def gap(self, one: Tensor, other: Tensor) -> Tensor:
        """How many steps apart the robot is in two rows (E,): the root mean square of its columns, (E,)."""
        return (self.places[one] - self.places[other]).square().mean(1).sqrt()

    def nearest_of_others(self, row: Tensor, rests: Rests, stream: Stream) -> Tensor:
        """The rows of other episodes in which the robot is nearest to where a row (Q,) has it, one of each rest.

        (Q, RESTS), the nearest first; -1 where there are no more rests.
        """
        found, wide = row.new_full((len(row), RESTS), -1), min(RESTS, len(rests.episode))
        there, here = (
            torch.cat([self.places[rows], TIE * stream.uniform(len(rows), 1, dtype=torch.float64)], 1)
            for rows in (rests.rows, row)
        )
        half, block = 0.5 * there.square().sum(1), max(1, BLOCK // max(1, len(there)))
        for start in range(0, len(row) if wide else 0, block):
            part = slice(start, start + block)
            # -|q - c|² / 2 = q·c - |c|² / 2 - |q|² / 2, of which the last is the same for all candidates.
            score = (here[part] @ there.T).sub_(half)
            rest = rests.number.expand(len(score), -1)
            best = score.new_full((len(score), len(rests.episode)), -torch.inf)
            best.scatter_reduce_(1, rest, score, "amax")
            winner = torch.where(score == best.gather(1, rest), rests.rows, -1)
            nearest = torch.full_like(best, -1, dtype=torch.long).scatter_reduce_(1, rest, winner, "amax")
            own = self.episode[row[part], None] == rests.episode
            value, number = best.masked_fill_(own, -torch.inf).topk(wide)
            found[part, :wide] = torch.where(value > -torch.inf, nearest.gather(1, number), -1)
        return found

    def nearest_of(self, begin: Tensor, count: Tensor, row: Tensor, stream: Stream) -> Tensor:
        """Of so many rows (E,) from one (E,) on, that (E,) in which the robot is nearest to where a row (E,) has it."""
        place = torch.arange(LOOKS, device=row.device) * (count[:, None] - 1).clamp(min=0) // (LOOKS - 1)
        rows = begin[:, None] + place
        squared = (self.places[rows] - self.places[row][:, None]).square().sum(2)
        squared += TIE**2 * stream.uniform(*squared.shape, dtype=torch.float64)
        return rows.gather(1, squared.argmin(1, keepdim=True))[:, 0]


def describe(gap: Tensor) -> dict[str, Any]:
    """What a table's source says of handovers (H,): how many steps lie between, None if there is no robot."""
    middle = float(gap.median())
    return {"median_steps": None if middle != middle else middle}
