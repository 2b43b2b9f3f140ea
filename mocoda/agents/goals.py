"""Goals that are states of the data's own episodes: what they are about, how they are drawn, and when they are reached.

Axes: N rows of data, S columns of state, G of a goal, U updates, B rows of a batch.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mocoda.agents.agent import OWN, Agent
from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError, check_names
from mocoda.engine.randomness import Stream
from mocoda.graph.columns import guessed_factors
from mocoda.graph.graph_file import near
from mocoda.tasks import Task

ACHIEVED, TOLERANCE = "achieved_goal", "goal_tolerance"  # entries of a table's source: columns of goals, and a distance
TRIED, LOOKED_AT = 32, 100_000  # goals of a task, and rows of the data, that are compared before the training
Shares = tuple[float, float, float]
Achieved = Callable[[Tensor], Tensor]
Reached = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class GoalShares:
    """The distribution from which goals are drawn for rows; the shares add up to 1.

    own        share of goals that are the row's own state
    future     share of goals that are a later state of the row's episode: k ≥ 1 steps later with probability
               (1 - discount) · discount^(k - 1), or its last state if the episode is shorter; without a discount, all
               later states are equally likely
    otherwise  the next state of any row
    """

    own: float
    future: float
    discount: float | None = None

    def draw(self, stream: Stream, row: Tensor, last: Tensor, rows: int) -> Tensor:
        """Draws goals for rows whose episodes end with row `last`: numbers of rows, for their next states, or OWN.

        The rows of an episode must be neighbours, in order, among the `rows` rows of the data.
        """
        kind, place = stream.uniform(*row.shape), 1 - stream.uniform(*row.shape, dtype=torch.float64)  # in (0, 1]
        if self.discount is None:
            later = row + ((1 - place) * (last + 1 - row)).long()
        else:
            later = row + (place.log() / (math.log(self.discount) if self.discount else -math.inf)).long()
        goal = torch.where(kind < self.own + self.future, later.minimum(last), stream.integers(rows, *row.shape))
        return torch.where(kind < self.own, OWN, goal)


def check_shares(agent: Agent, *names: str) -> None:
    """Raises unless the settings of these names are shares of goals."""
    for name in names:
        shares = tuple(getattr(agent, name))  # JSON gives a list
        object.__setattr__(agent, name, shares)
        if len(shares) != 3 or min(shares) < 0 or not math.isclose(sum(shares), 1, abs_tol=1e-6):
            raise InputError(f"{name} must be three shares that add up to 1: own, future, random, got {shares}.")


def discounted(steps: Tensor, discount: float) -> Tensor:
    """The discount to the power of the steps; torch's own power rounds the last numbers of an array differently."""
    return (steps * math.log(max(discount, 1e-30))).exp()


def sorted_episodes(data: Transitions, name: str, achieved: Achieved) -> tuple[Transitions, Tensor, Tensor, Tensor]:
    """Sorts the data by episode and step; what each row's state achieves becomes its goal.

    Also returns what the next states achieve (N, G), the last row of each row's episode (N,), and the number of rows
    from each on, itself included, that follow each other without a missing step (N,). A row without an episode is an
    episode of one row.
    """
    if data.episode is None or data.step is None or not bool((data.episode >= 0).any()):
        raise InputError(
            f"data set {name!r} has no episodes, from which this agent takes its goals. Give each row its episode: "
            "Transitions(..., episode=...), or a file that has them."
        )
    alone = data.episode < 0
    number = torch.where(alone, data.episode.max() + alone.cumsum(0), data.episode)
    order = data.step.argsort(stable=True)  # the minor key first: a stable sort keeps its order within an episode
    order = order[number[order].argsort(stable=True)]
    number, step, place = number[order], data.step[order], torch.arange(len(order), device=order.device)
    last = _ends(number)
    gap = (number[1:] != number[:-1]) | (step[1:] != step[:-1] + 1)
    left = _ends(torch.cat([gap.new_zeros(1), gap]).cumsum(0)) + 1 - place
    parts, sorted_already = (data.state, data.action, data.next_state), bool((order == place).all())
    state, action, next_state = (part if sorted_already else part[order] for part in parts)
    own, later = achieved(state).float(), achieved(next_state).float()
    made = Transitions(state, action, next_state, -torch.ones_like(state[:, 0]), goal=own)
    return made, later, last, left


def _ends(number: Tensor) -> Tensor:
    """The place of the last of the neighbours (N,) that have the same number, for each of them."""
    _, counts = torch.unique_consecutive(number, return_counts=True)
    ends: Tensor = (counts.cumsum(0) - 1).repeat_interleave(counts)
    return ends


def starts_of(left: Tensor, agent: Agent, name: str) -> Tensor:
    """The rows from which on as many follow each other as the agent needs, of `left` (N,) from each."""
    starts = (left >= agent.span).nonzero()[:, 0]
    if not len(starts):
        most = int(left.max())
        raise InputError(
            f"the agent {agent.name!r} learns from {agent.span} successive steps at a time, but data set {name!r} has "
            f"at most {most} of an episode without a gap, where `step` counts up by 1. Choose fewer: chunk={most} "
            f"(`--chunk {most}`, and a `--short` up to it) for dqc, `--steps` for gciql."
        )
    return starts.int() if len(left) < 2**31 else starts  # half the memory


def achieved_by(task: Task | None, data: Transitions) -> Achieved:
    """Returns the function from states (N, S) to the goals (N, G) they have reached.

    It is the task's; without one, it selects the columns that the data's source names, or returns whole states.
    """
    by_task: Achieved | None = getattr(task, "achieved", None)
    if by_task is not None:
        return by_task
    names = data.source.get(ACHIEVED)
    if not names:
        return lambda state: state
    known = list(data.columns[: data.state.shape[1]])
    check_names("column of the state called", names, known)
    columns = [known.index(name) for name in names]
    return lambda state: state[:, columns]


def reached_by(task: Task | None, data: Transitions) -> Reached | None:
    """Returns the function that says which achieved goals are as good as wanted ones, (N, G) each, bool (N,).

    It is the task's; without one, the columns of each thing must lie within the distance that the data's source says.
    None: only equal ones are.
    """
    if task is not None:
        return getattr(task, "reached", None)
    distance = data.source.get(TOLERANCE)
    if distance is None:
        return None
    groups = guessed_factors("state", data.source.get(ACHIEVED) or data.columns[: data.state.shape[1]]).values()
    return partial(near, float(distance), [list(own) for own in groups])


def check_goals(task: Any, data: Transitions, name: str) -> None:
    """Raises if a task's goals cannot be goals of the data's episodes; warns if no row of the data reaches any."""
    achieved, reached, goals = (getattr(task, part, None) for part in ("achieved", "reached", "goals"))
    if achieved is None:
        if goals is None:
            return
        raise InputError(
            f"task {task.name!r} draws goals, but does not say which of them a state has reached: define "
            "achieved(state), or name the columns that goals are about."
        )
    some = data.state[:: 1 + len(data) // LOOKED_AT]
    found = achieved(some)
    if not isinstance(found, Tensor) or found.ndim != 2 or len(found) != len(some):
        raise _returns("achieved(state)", task, "a tensor of the goals (N, G) that states (N, S) have reached", found)
    found = found.float()
    if reached is not None:
        _check_reached(reached, task, found)
    if goals is None:
        return
    wanted = goals(TRIED, seed=0, device=data.device).float()
    if wanted.shape[1] != found.shape[1]:
        raise InputError(
            f"goals of task {task.name!r} have {wanted.shape[1]} columns, but what its states achieve has "
            f"{found.shape[1]}. They must be the same: see achieved(state)."
        )
    if reached is None:
        return
    nearest = math.inf
    for goal in wanted:
        if bool(reached(found, goal.expand_as(found)).any()):
            return
        nearest = min(nearest, float((found - goal).norm(dim=1).min()))
    warnings.warn(
        f"none of {TRIED} goals of task {task.name!r} is reached in any of {len(found):,} rows of data set {name!r}: "
        f"the nearest is {nearest:.3g} away. Agents can put together what the data shows apart; but if some row should "
        "be at a goal, look at the units of `achieved` and the goals, or raise the tolerance.",
        stacklevel=4,  # the caller of train_agents
    )


def _check_reached(reached: Reached, task: Any, found: Tensor) -> None:
    """Raises unless `reached` returns what it should for what states have achieved, and a GPU can capture it."""
    there = reached(found, found)
    if not isinstance(there, Tensor) or there.dtype != torch.bool or there.shape != (len(found),):
        raise _returns("reached(achieved, goal)", task, "a tensor of bools (N,), for goals (N, G) each", there)
    if found.is_cuda:
        try:
            with torch.cuda.device(found.device), torch.cuda.graph(torch.cuda.CUDAGraph()):
                reached(found, found)
        except RuntimeError as error:
            raise InputError(
                f"reached(achieved, goal) of task {task.name!r} cannot be captured in a CUDA graph: {error}. Use "
                "PyTorch functions and Python numbers only; no tensors made of numbers, lists as indices, or .item()."
            ) from error


def _returns(function: str, task: Any, expected: str, found: object) -> InputError:
    got = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
    return InputError(f"{function} of task {task.name!r} must return {expected}, got {got}.")
