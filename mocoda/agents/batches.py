"""Data sets as one table on the device, from which every run draws its batches.

Axes: R runs (data sets × seeds), B rows of a batch, S, A and G columns of state, action and goal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mocoda.agents.agent import Agent, Batch
from mocoda.agents.goals import OWN, EpisodeGoals, achieved_by, check_goals, sorted_episodes
from mocoda.agents.policy import to_unit_range
from mocoda.data.transitions import Array, Transitions, as_tensor
from mocoda.engine.errors import InputError
from mocoda.tasks import Task, is_simulated

Range = tuple[float | Array, float | Array]  # low and high, a number or (A,) each


class Run(NamedTuple):
    """One agent to train."""

    name: str  # of the data set
    seed: int
    data: Transitions


@dataclass(frozen=True, eq=False)
class RunTable:
    """All data sets as one table on the device, each stored once; runs know where theirs begins."""

    # (N, S + A + 1 + S + 1 + G): state, action in [-1, 1], reward, next state, terminal, goal. Where goals are of
    # episodes, the goal is what the state achieves, and G more columns are what the next state achieves.
    rows: Tensor
    offset: Tensor  # (R,)
    length: Tensor  # (R,)
    state_width: int
    action_width: int
    goal_width: int
    action_range: tuple[Tensor, Tensor]  # low and high, (A,) each
    shift: Tensor  # (R, S + G), and
    scale: Tensor  # (R, S + G): agents see (state and goal - shift) / scale
    low: Tensor  # (R, 1), the smallest value possible, in the units of the reward column
    high: Tensor  # (R, 1), the largest
    columns: list[tuple[str, ...]]  # every run's names of state, goal and action
    goals: EpisodeGoals | None = None  # where they are of episodes

    @property
    def device(self) -> torch.device:
        return self.rows.device

    @property
    def seen_width(self) -> int:
        """Columns of what an agent sees: state and goal."""
        return self.state_width + self.goal_width

    @staticmethod
    def of(runs: Sequence[Run], agent: Agent, task: Task | None = None, actions: Range | None = None) -> RunTable:
        distinct = {id(run.data): run for run in runs}
        first = runs[0].data
        action_ends = action_range(list(distinct.values()), task, actions)
        from_episodes = agent.goals_from_episodes
        if from_episodes:
            check_goals(task, agent.name)
        states = first.state.shape[1]
        achieved_goal = achieved_by(task, first)
        goals = achieved_goal(first.state[:1]).shape[1] if from_episodes else _goal_width(first)
        width = 2 * states + first.action.shape[1] + (2 if from_episodes else 1) * goals + 2
        # Filled in place: a table may take more than half of the memory that the data leaves.
        rows = first.state.new_empty(sum(len(run.data) for run in distinct.values()), width)
        begins, scaling, ends = {}, {}, []
        begin = 0
        for key, run in distinct.items():
            data, achieved = run.data, None
            if from_episodes:
                data, achieved, last = sorted_episodes(data, run.name, achieved_goal)
                ends.append(last)
            seen = data.state if data.goal is None else torch.cat([data.state, data.goal], 1)
            shift, scale = _standard(seen, agent.standardise)
            reward, low, high = _learning_units(data, agent)
            seen, next_state = (seen - shift) / scale, (data.next_state - shift[:states]) / scale[:states]
            columns = [seen[:, :states], to_unit_range(data.action, *action_ends), reward[:, None], next_state]
            columns += [data.terminal[:, None].float(), seen[:, states:]]
            if achieved is not None:
                columns.append((achieved - shift[states:]) / scale[states:])
            torch.cat(columns, 1, out=rows[begin : begin + len(data)])
            begins[key], scaling[key] = begin, (shift, scale, low, high)
            begin += len(data)
        shift, scale, low, high = map(torch.stack, zip(*(scaling[id(run.data)] for run in runs), strict=True))
        return RunTable(
            rows,
            torch.tensor([begins[id(run.data)] for run in runs], device=first.device),
            torch.tensor([len(run.data) for run in runs], device=first.device),
            states,
            first.action.shape[1],
            goals,
            action_ends,
            shift,
            scale,
            low,
            high,
            [_columns(run.data, goals) for run in runs],
            EpisodeGoals(torch.cat(ends), getattr(task, "reached", None)) if from_episodes else None,
        )

    def batch(self, index: Tensor, value_goal: Tensor | None = None, actor_goal: Tensor | None = None) -> Batch:
        """The rows (R, B) of all runs, one gather; where goals are of episodes, with these goals beside them."""
        widths = [self.state_width, self.action_width, 1, self.state_width, 1, self.goal_width]
        rows = self.rows[index][..., : sum(widths)]
        state, action, reward, next_state, terminal, goal = rows.split(widths, -1)
        actor_state = None
        if value_goal is not None and actor_goal is not None:
            actor_state = torch.cat([state, self._goal(goal, actor_goal)], -1)
            own, goal = goal, self._goal(goal, value_goal)
            terminal = self._reached(own, goal)[..., None].float()
            reward = terminal - 1
        if self.goal_width:
            state, next_state = torch.cat([state, goal], -1), torch.cat([next_state, goal], -1)
        return Batch(state, action, reward[..., 0], next_state, terminal[..., 0], self.low, self.high, actor_state)

    def _goal(self, own: Tensor, number: Tensor) -> Tensor:
        """What the next states of numbered rows achieve, (R, B, G), or for OWN the row's own state."""
        later = self.rows[:, -self.goal_width :][number.clamp(min=0)]
        return torch.where((number == OWN)[..., None], own, later)

    def _reached(self, own: Tensor, goal: Tensor) -> Tensor:
        """Where what states achieve is the goal or, if the task knows, as good as it: bool (R, B)."""
        reached = (own == goal).all(-1)
        if self.goals is not None and self.goals.reached is not None:
            shift, scale = (part[:, None, self.state_width :] for part in (self.shift, self.scale))
            given = ((part * scale + shift).flatten(0, 1) for part in (own, goal))
            reached = reached | self.goals.reached(*given).reshape(reached.shape)
        return reached


def runs_of(
    datasets: Mapping[str, Transitions | Sequence[Transitions]], seeds: list[int], agent: Agent | None = None
) -> list[Run]:
    """One run per data set and seed, data set by data set; raises unless the agent can train on all of them at once."""
    labelled = agent is None or not agent.goals_from_episodes
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
    for run in runs:
        _check_alike(runs[0], run, labelled)
        if labelled and run.data.reward is None:
            raise InputError(
                f"data set {run.name!r} has no rewards. Add them with `mocoda label`, or in Python with "
                "mocoda.augment(..., task=task) or Transitions(..., reward=...)."
            )
    return runs


def _check_alike(first: Run, run: Run, labelled: bool) -> None:
    """Raises unless two runs can be trained together; goals matter if the data's own are used."""
    (states, actions), (expected_states, expected_actions) = (
        (data.state.shape[1], data.action.shape[1]) for data in (run.data, first.data)
    )
    if (states, actions) != (expected_states, expected_actions):
        raise InputError(
            f"data sets that train together need the same columns: {first.name!r} has {expected_states} of state and "
            f"{expected_actions} of action, {run.name!r} has {states} and {actions}. Train them separately."
        )
    if labelled and _goal_width(run.data) != _goal_width(first.data):
        raise InputError(
            f"data sets that train together need the same columns of goal: {first.name!r} has "
            f"{_goal_width(first.data)}, {run.name!r} has {_goal_width(run.data)}. Train them separately."
        )
    if run.data.device != first.data.device:
        raise InputError(
            f"data sets must be on one device: {first.name!r} is on {first.data.device}, {run.name!r} on "
            f"{run.data.device}. Move them with .to(device)."
        )


def _learning_units(data: Transitions, agent: Agent) -> tuple[Tensor, Tensor, Tensor]:
    """Rewards (N,) in the units that the agent learns in, and the smallest and largest value possible, (1,) each.

    With Q = q0 + scale · Q̂ and weight = 1 - discount · (1 - terminal), Bellman's equation of Q becomes
    Q̂ = (reward - q0 · weight) / scale + (1 - weight) · Q̂'. Here q0 · weight is the least-squares fit to the rewards, so
    that a · reward + b · weight, which ranks all policies alike (a > 0), gives the same Q̂. The scale makes the values
    that are possible span 1 / (1 - discount), as they do for rewards between -1 and 0.
    """
    assert data.reward is not None
    if agent.goals_from_episodes:  # a batch's rewards come with its goals: -1, and 0 for a goal that is reached
        ends = agent.value_range or (-1 / (1 - agent.discount) if agent.discount < 1 else -math.inf, 0.0)
        low, high = data.reward.new_tensor(ends)[:, None]
        return data.reward, low, high
    reward, weight = data.reward.double(), 1 - agent.discount * (1 - data.terminal.double())
    bounds = torch.stack(torch.aminmax(reward / weight))  # a policy that gets this at every step has this value
    span = (1 - agent.discount) * (bounds[1] - bounds[0])
    if agent.value_range is not None:
        bounds = bounds.new_tensor(agent.value_range)
    if agent.scale_rewards:
        q0 = (reward * weight).sum() / weight.square().sum().clamp(min=torch.finfo(torch.float64).tiny)
        rest = reward - q0 * weight
        scale = span if agent.discount < 1 else rest.abs().max()  # without a discount, values have no bounds
        vanishes = rest.abs().max() <= torch.finfo(torch.float32).eps * reward.abs().max()  # nothing but rounding
        rest, scale = torch.where(vanishes, 0.0, rest), torch.where(vanishes, 1.0, scale)
        reward, bounds = rest / scale, (bounds - q0) / scale
    low, high = bounds.float()[:, None]
    return reward.float(), low, high


def action_range(runs: Sequence[Run], task: Task | None, given: Range | None) -> tuple[Tensor, Tensor]:
    """The low and high end of the actions (A,): the task's, or as given, or [-1, 1] if all data lies in it."""
    data = runs[0].data
    states, actions = data.state.shape[1], data.action.shape[1]
    if task is None:
        if given is not None:
            return _check_range(given, data.action)
        for run in runs:
            least, most = map(float, run.data.action.aminmax())
            if least < -1 or most > 1:
                raise InputError(
                    f"data set {run.name!r} has actions from {least:.4g} to {most:.4g}, outside [-1, 1]. Say which are "
                    "possible: `--actions LOW HIGH`, in Python actions=(low, high), or the task, which knows it."
                )
        return _check_range((-1.0, 1.0), data.action)
    if given is not None:
        raise InputError(f"task {task.name!r} has its own range of actions; remove actions=.")
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
    low, high = (end[states:].to(data.device) for end in task.box)
    return low, high


def _check_range(given: Range, action: Tensor) -> tuple[Tensor, Tensor]:
    """The ends of a range of actions (A,), on the actions' device."""
    ends = [as_tensor(end).to(action) for end in given]
    if len(ends) != 2 or any(end.shape not in (action.shape[1:], ()) for end in ends):
        shapes = ", ".join(str(tuple(end.shape)) for end in ends)
        raise InputError(f"actions must be (low, high), a number or ({action.shape[1]},) each, got {shapes}.")
    low, high = (end.expand(action.shape[1]) for end in ends)
    if not bool((low < high).all() & (high - low).isfinite().all()):
        raise InputError(f"actions must be finite with low < high, got {low.tolist()} and {high.tolist()}.")
    return low, high


def _standard(seen: Tensor, wanted: bool) -> tuple[Tensor, Tensor]:
    """Shift and scale (columns,) that standardise rows (N, columns); a constant column is only shifted."""
    if not wanted:
        return torch.zeros_like(seen[0]), torch.ones_like(seen[0])
    scale = seen.double().std(0, correction=0).float()
    return seen.double().mean(0).float(), torch.where(scale > 1e-6, scale, 1.0)


def _columns(data: Transitions, goals: int) -> tuple[str, ...]:
    """The names of state, goal and action."""
    states = data.state.shape[1]
    return *data.columns[:states], *(f"goal{i}" for i in range(goals)), *data.columns[states:]


def _goal_width(data: Transitions) -> int:
    return 0 if data.goal is None else data.goal.shape[1]
