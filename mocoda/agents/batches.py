"""Transitions -> batches: all data sets of a training as one table on the device, of which every run sees its own.

Axes: R runs (data sets × seeds), B rows of a batch, S, A and G columns of state, action and goal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mocoda.agents.agent import Batch
from mocoda.agents.policy import unscaled
from mocoda.data.transitions import Array, Transitions, as_tensor
from mocoda.engine.errors import InputError
from mocoda.tasks import Task, is_simulated

Range = tuple[float | Array, float | Array]  # the lowest and the highest action, a number or (A,) each


class Run(NamedTuple):
    """One agent to be."""

    name: str  # of the data set
    seed: int
    data: Transitions


@dataclass(frozen=True, eq=False)
class RunTable:
    """All data sets as one table on the device, each stored once; runs know where theirs begins."""

    rows: Tensor  # (N, S + A + 1 + S + 1 + G): state, action in [-1, 1], reward, next state, terminal, goal
    offset: Tensor  # (R,)
    length: Tensor  # (R,)
    state_width: int
    action_width: int
    goal_width: int
    bounds: tuple[Tensor, Tensor]  # lowest and highest action, (A,) each
    shift: Tensor  # (R, S + G), and
    scale: Tensor  # (R, S + G): what agents see is state and goal less shift, over scale
    columns: list[tuple[str, ...]]  # every run's names of state, goal and action

    @property
    def device(self) -> torch.device:
        return self.rows.device

    @property
    def seen_width(self) -> int:
        """Columns of what an agent sees: state and goal."""
        return self.state_width + self.goal_width

    @staticmethod
    def of(runs: Sequence[Run], task: Task | None, standardise: bool, possible: Range | None = None) -> RunTable:
        distinct = {id(run.data): run for run in runs}
        first = runs[0].data
        bounds = _bounds(list(distinct.values()), task, possible)
        states, actions, goals = first.state.shape[1], first.action.shape[1], _goal_width(first)
        # Filled in place: a table may take more than half of the memory that the data leaves.
        rows = first.state.new_empty(sum(len(run.data) for run in distinct.values()), 2 * states + actions + goals + 2)
        place, scaling = {}, {}
        begin = 0
        for key, run in distinct.items():
            data = run.data
            assert data.reward is not None
            seen = data.state if data.goal is None else torch.cat([data.state, data.goal], 1)
            shift, scale = scaling[key] = _standard(seen, standardise)
            seen, following = (seen - shift) / scale, (data.next_state - shift[:states]) / scale[:states]
            columns = [seen[:, :states], unscaled(data.action, *bounds), data.reward[:, None], following]
            columns += [data.terminal[:, None].float(), seen[:, states:]]
            torch.cat(columns, 1, out=rows[begin : begin + len(data)])
            place[key] = begin
            begin += len(data)
        return RunTable(
            rows,
            torch.tensor([place[id(run.data)] for run in runs], device=first.device),
            torch.tensor([len(run.data) for run in runs], device=first.device),
            states,
            actions,
            goals,
            bounds,
            torch.stack([scaling[id(run.data)][0] for run in runs]),
            torch.stack([scaling[id(run.data)][1] for run in runs]),
            [_columns(run.data) for run in runs],
        )

    def batch(self, index: Tensor) -> Batch:
        """The rows (R, B) of all runs, one gather."""
        widths = [self.state_width, self.action_width, 1, self.state_width, 1, self.goal_width]
        state, action, reward, next_state, terminal, goal = self.rows[index].split(widths, -1)
        if self.goal_width:
            state, next_state = torch.cat([state, goal], -1), torch.cat([next_state, goal], -1)
        return Batch(state, action, reward[..., 0], next_state, terminal[..., 0])


def runs_of(datasets: Mapping[str, Transitions | Sequence[Transitions]], seeds: list[int]) -> list[Run]:
    """One run per data set and seed, data set by data set."""
    if not datasets or not seeds:
        raise InputError(f"expected at least one data set and one seed, got {len(datasets)} and {len(seeds)}.")
    if len(set(seeds)) != len(seeds):
        raise InputError(f"seeds must differ, got {seeds}.")
    runs = []
    for name, data in datasets.items():
        tables = [data] * len(seeds) if isinstance(data, Transitions) else list(data)
        if len(tables) != len(seeds):
            raise InputError(f"data set {name!r} must be one table, or one per seed: {len(seeds)}, got {len(tables)}.")
        runs += [Run(name, seed, table) for seed, table in zip(seeds, tables, strict=True)]
    first = runs[0]
    for run in runs:
        widths, expected = ((r.data.state.shape[1], r.data.action.shape[1]) for r in (run, first))
        if widths != expected:
            raise InputError(
                f"data sets that train together need the same columns: {first.name!r} has {expected[0]} of state and "
                f"{expected[1]} of action, {run.name!r} has {widths[0]} and {widths[1]}. Train them apart."
            )
        goals, expected_goals = _goal_width(run.data), _goal_width(first.data)
        if goals != expected_goals:
            raise InputError(
                f"data sets that train together need the same columns of goal: {first.name!r} has {expected_goals}, "
                f"{run.name!r} has {goals}. Train them apart."
            )
        if run.data.reward is None:
            raise InputError(
                f"data set {run.name!r} has no rewards. Label it: mocoda.augment(..., task=task), or a Transitions "
                "with reward=."
            )
        if run.data.device != first.data.device:
            raise InputError(
                f"data sets must lie on one device: {first.name!r} is on {first.data.device}, {run.name!r} on "
                f"{run.data.device}. Move them with .to(device)."
            )
    return runs


def _bounds(runs: Sequence[Run], task: Task | None, given: Range | None) -> tuple[Tensor, Tensor]:
    """The range of actions: the task's, or as given, or [-1, 1] if all data lies in it."""
    data = runs[0].data
    states, actions = data.state.shape[1], data.action.shape[1]
    if task is None:
        for run in runs if given is None else ():
            if float(run.data.action.abs().max()) > 1:
                raise InputError(
                    f"data set {run.name!r} has actions outside [-1, 1]. Say which are possible, actions=(lowest, "
                    "highest), or pass task=, whose box says so."
                )
        return _range((-1.0, 1.0) if given is None else given, data.action)
    if given is not None:
        raise InputError(f"task {task.name!r} says which actions are possible; leave out actions=.")
    graph = task.graph
    if (states, actions) != (graph.state_width, graph.width - graph.state_width):
        raise InputError(
            f"task {task.name!r} has {graph.state_width} columns of state and {graph.width - graph.state_width} of "
            f"action, but data set {runs[0].name!r} has {states} and {actions}."
        )
    if data.goal is not None and is_simulated(task):
        raise InputError(
            f"task {task.name!r} has no goals, but data set {runs[0].name!r} has {_goal_width(data)} columns of them."
        )
    lowest, highest = (end[states:].to(data.device) for end in task.box)
    return lowest, highest


def _range(given: Range, action: Tensor) -> tuple[Tensor, Tensor]:
    """Lowest and highest action (A,), on the actions' device."""
    ends = [as_tensor(end).to(action) for end in given]
    if len(ends) != 2 or any(end.shape not in (action.shape[1:], ()) for end in ends):
        shapes = ", ".join(str(tuple(end.shape)) for end in ends)
        raise InputError(
            f"actions must be the lowest and the highest action, a number or ({action.shape[1]},) each, got {shapes}."
        )
    lowest, highest = (end.expand(action.shape[1]) for end in ends)
    if not bool((lowest < highest).all() & (highest - lowest).isfinite().all()):
        raise InputError(f"the lowest action must be below the highest, got {lowest.tolist()} and {highest.tolist()}.")
    return lowest, highest


def _standard(seen: Tensor, wanted: bool) -> tuple[Tensor, Tensor]:
    """Shift and scale (columns,) that standardise rows (N, columns); a constant column is only shifted."""
    if not wanted:
        return torch.zeros_like(seen[0]), torch.ones_like(seen[0])
    scale = seen.double().std(0, correction=0).float()
    return seen.double().mean(0).float(), torch.where(scale > 1e-6, scale, 1.0)


def _columns(data: Transitions) -> tuple[str, ...]:
    """The names of state, goal and action."""
    states = data.state.shape[1]
    return *data.columns[:states], *(f"goal{i}" for i in range(_goal_width(data))), *data.columns[states:]


def _goal_width(data: Transitions) -> int:
    return 0 if data.goal is None else data.goal.shape[1]
