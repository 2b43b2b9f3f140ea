"""Goals from episodes: the row's own state, a later state of its episode, or any state of the data.

What was recorded on the way to anywhere shows how to get there, so every state of the data can be a goal.

Axes: N rows, R runs, B rows of a batch, S and G columns of state and goal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Stream
from mocoda.tasks import Task, is_simulated

OWN = -1  # stands for the row's own state where a row's number stands for its next state
Reached = Callable[[Tensor, Tensor], Tensor]
Achieved = Callable[[Tensor], Tensor]
ACHIEVED = "achieved_goal"  # of a table's source: the state columns that goals are about


@dataclass(frozen=True)
class GoalShares:
    """How goals are drawn for rows: in these shares, which add up to 1.

    own        the row's own state
    future     a later state of its episode: k ≥ 1 steps later with probability (1 - discount) · discount^(k - 1), or
               its last one where the episode is shorter; without a discount, each of the later states alike
    otherwise  the next state of any row
    """

    own: float
    future: float
    discount: float | None = None

    def draw(self, stream: Stream, row: Tensor, last: Tensor, rows: int) -> Tensor:
        """Goals of rows whose episodes end with row `last`: the number of the row whose next state it is, or OWN.

        Rows of an episode must be neighbours, in order, among the `rows` rows of the data.
        """
        kind, place = stream.uniform(*row.shape), 1 - stream.uniform(*row.shape, dtype=torch.float64)  # in (0, 1]
        if self.discount is None:
            later = row + ((1 - place) * (last + 1 - row)).long()
        else:
            later = row + (place.log() / (math.log(self.discount) if self.discount else -math.inf)).long()
        goal = torch.where(kind < self.own + self.future, later.minimum(last), stream.integers(rows, *row.shape))
        return torch.where(kind < self.own, OWN, goal)


@dataclass(frozen=True, eq=False)
class EpisodeGoals:
    """Where the episodes of a table end, and when a goal is reached."""

    last: Tensor  # (N,), the last row of the row's episode, counted from the first of its data set
    reached: Reached | None  # the task's, of achieved and goal (N, G): bool (N,)


def sorted_episodes(data: Transitions, name: str, achieved: Achieved) -> tuple[Transitions, Tensor, Tensor]:
    """The data episode by episode, step by step, with what each row's state achieves as its goal.

    Also what the next states achieve (N, G), and the last row of each row's episode (N,). A row of no episode is one of
    its own.
    """
    if data.episode is None or data.step is None or not bool((data.episode >= 0).any()):
        raise InputError(
            f"data set {name!r} has no episodes, from which this agent takes its goals. Give each row its episode: "
            "Transitions(..., episode=...), or a file that has them."
        )
    alone = data.episode < 0
    number = torch.where(alone, data.episode.max() + alone.cumsum(0), data.episode)
    order = data.step.argsort(stable=True)  # first by the lesser key, so that the greater keeps it in its ties
    order = order[number[order].argsort(stable=True)]
    _, counts = torch.unique_consecutive(number[order], return_counts=True)
    last = (counts.cumsum(0) - 1).repeat_interleave(counts)
    state, next_state = data.state[order], data.next_state[order]
    own, later = achieved(state).float(), achieved(next_state).float()
    made = Transitions(state, data.action[order], next_state, -torch.ones_like(state[:, 0]), goal=own)
    return made, later, last


def check_goals(task: Task | None, agent: str) -> None:
    """Raises if the task's episodes have no goals that an agent could be shown."""
    if task is not None and is_simulated(task):
        raise InputError(
            f"task {task.name!r} has no goals, which the agent {agent!r} needs to act. Train it without a task, or on "
            "one whose environment shows goals."
        )


def achieved_by(task: Task | None, data: Transitions) -> Achieved:
    """Gives the goals (N, G) that states (N, S) have reached: as the task or data says, or the states themselves."""
    by_task: Achieved | None = getattr(task, "achieved", None)
    if by_task is not None:
        return by_task
    names = data.source.get(ACHIEVED)
    if not names:
        return lambda state: state
    known = list(data.columns[: data.state.shape[1]])
    missing = [name for name in names if name not in known]
    if missing:
        raise InputError(f"goals are about columns of the state: {', '.join(known)}; there is no {missing[0]!r}.")
    columns = [known.index(name) for name in names]
    return lambda state: state[:, columns]
