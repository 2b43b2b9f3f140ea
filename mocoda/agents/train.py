"""Training of agents on transitions: all data sets and seeds of a call are one program.

The data sets become one table on the device, from which every run draws its batches. A learner holds the weights of all
runs and updates them in chunks, each of which is one CUDA graph on a GPU.

Axes: R runs (data sets × seeds), U updates of a chunk, B rows of a batch, N rows of data, S, A and G columns of state,
action and goal. Agents see state and goal side by side.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mocoda.agents.agent import (
    OWN,
    TARGET,
    Agent,
    Batch,
    Measured,
    Stage,
    loss_and_measured,
    make_agent,
    network_weights,
)
from mocoda.agents.evaluation import is_simulated, make_evaluator
from mocoda.agents.goals import Reached, achieved_by, check_goals, reached_by, sorted_episodes, starts_of
from mocoda.agents.policy import Policies, Policy, agent_settings, to_unit_range
from mocoda.data.transitions import Array, Transitions, as_tensor
from mocoda.engine.checkpoint import Checkpoint, copy_tensors, fingerprint
from mocoda.engine.engines import Engine
from mocoda.engine.errors import InputError, ran_out_of_memory
from mocoda.engine.metrics import CSV, JSONL, Metric, MetricLog, Report, read_metrics
from mocoda.engine.networks import Weights, half_precision, input_scaling
from mocoda.engine.optimise import Adam, Captured, Tensors, Work, fast_products, side_by_side
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream
from mocoda.tasks import Task
from mocoda.tasks.own import environment_range

CHUNK = 100  # updates at a time, at most: one CUDA graph
PULSE = 2.0  # seconds between reports of progress in a long chunk
VALUES = ("q", "v", "advantage")  # measurements of losses that are values, or differences of values
BLOCK = 2**20  # rows of the table that are made at a time: a copy of all may not fit into memory
Range = tuple[float | Array, float | Array]  # low and high, a number or (A,) each


class Run(NamedTuple):
    """One agent to train."""

    name: str  # of the data set
    seed: int
    data: Transitions


def train_agents(
    datasets: Mapping[str, Transitions | Sequence[Transitions]],
    agent: str | Agent = "td3-bc",
    *,
    seeds: Sequence[int] = range(5),
    updates: int = 25_000,
    task: Task | None = None,
    actions: Range | None = None,
    evaluate_every: int = 100,
    episodes: int = 10,
    half: bool = False,
    checkpoint: str | Path | None = None,
    engine: Engine | None = None,
    workers: int | None = None,
    report: Report | None = None,
    progress: Progress = silent,
) -> Policies:
    """Trains an agent per data set and seed, all at once, on the device of the data.

    On a CPU every agent is the same, to the bit, as if it had been trained alone. On a GPU this holds up to rounding,
    which training amplifies: the GPU's matrix products depend on the number of networks that are multiplied together,
    so an agent trained among others can end up better or worse than the same agent trained alone.

    datasets        by name: a table for all seeds, or one table per seed
    agent           a name ("td3-bc", "bcq", "cql", "sac", "gciql", "dqc") or an `Agent`, by `make_agent` or your own
    task            gives the range of actions and evaluates the agents; without one, nothing is evaluated
    actions         without a task: the range of actions (low, high), a number or (A,) each. Data may lie outside, as
                    generated rows do; agents' actions never will. Without it, all actions must lie in [-1, 1]
    evaluate_every  updates between evaluations of `episodes` episodes, whose results are the `curves` of the policies
    half            on a GPU, keep hidden layers in bfloat16: a quarter faster, and less precise
    checkpoint      a file to resume from if it exists, and to save progress to; the result is the same either way. With
                    an engine, a folder. `remove_checkpoint` removes either
    engine          train each agent as a job of its own, in processes or on a Ray cluster (`make_engine`); all machines
                    must see the checkpoint
    workers         processes that evaluate during training, if the task is played in its environment; None: one per
                    core. The result is the same
    report          is called with every run's losses, what the losses measured (`Agent.losses`) and evaluations as they
                    become known; `MetricLog(folder).add` writes them to files. A resumed training reports its earlier
                    evaluations again
    """
    agent = make_agent(agent) if isinstance(agent, str) else agent
    for name, number in (("updates", updates), ("evaluate_every", evaluate_every), ("episodes", episodes)):
        if number < 1:
            raise InputError(f"{name} must be at least 1, got {number}.")
    runs = runs_of(datasets, list(seeds), agent)
    if engine is not None:
        if checkpoint is None:
            raise InputError("an engine needs a folder in which its jobs leave their agents: pass checkpoint=.")
        every = {"evaluate_every": evaluate_every, "episodes": episodes, "half": half}
        options: dict[str, Any] = {"updates": updates, "task": task, "actions": actions, **every}
        return _train_by_jobs(runs, agent, options, Path(checkpoint), engine, report, progress)
    table = RunTable.of(runs, agent, task, actions)
    streams = [Stream(run.seed, "agent", agent.name, device=table.device) for run in runs]
    learner = Learner.of(agent, table, streams)
    with (
        fast_products(table.device),
        half_precision(half),
        make_evaluator(learner, task, episodes, workers) as evaluator,
    ):
        identity = {
            "agent": agent_settings(agent),
            "runs": [[run.name, run.seed] for run in runs],
            "updates": updates,
            "evaluations": [evaluate_every, episodes, None if task is None else task.name],
            "device": table.device.type,
            "half": half,
        }
        if checkpoint is not None:
            ends = () if table.last is None else (table.last,)
            identity["data"] = fingerprint(table.rows, table.offset, table.length, *ends, *table.starts)
        saved = Checkpoint(checkpoint, identity)

        def restore(tensors: Weights) -> None:
            learner.restore(tensors)
            evaluator.results = [curve.reshape(3, len(runs)) for curve in tensors["curves"].to(table.device)]

        done = saved.resume(restore)
        stages = agent.stages()
        total = sum(stage.updates or updates for stage in stages)
        learner.made = _Pulse(lambda made: progress(f"agents {agent.name}", made, total))
        for chunk in _chunks(stages, updates, evaluate_every):
            if chunk.before + chunk.updates <= done:
                continue
            losses = learner.learn(chunk)  # (U, G, R)
            _check_finite(losses, chunk, runs, learner)
            if chunk.evaluated:
                evaluator.begin()
            if report is not None:
                report(_loss_metrics(losses, learner.measured, chunk, stages[chunk.stage], runs))
                report(evaluator.new_metrics(evaluate_every, runs))
            now = chunk.before + chunk.updates
            learner.made(now, always=True)
            saved.offer(now, lambda: {**learner.tensors(), "curves": evaluator.curves()})
        curves = _curves(evaluator.curves(), evaluate_every)
        if report is not None:
            report(evaluator.new_metrics(evaluate_every, runs))
    tables = {id(run.data): run.data for run in runs}
    sources = {key: {"data": fingerprint(*data.arrays(episodes=False).values())} for key, data in tables.items()}
    policies = {
        (run.name, run.seed): replace(policy, fingerprints=sources[id(run.data)])
        for run, policy in zip(runs, learner.policies(), strict=True)
    }
    return Policies(policies, curves)


# --- one job per agent


def _train_by_jobs(
    runs: list[Run],
    agent: Agent,
    options: Mapping[str, Any],
    folder: Path,
    engine: Engine,
    report: Report | None,
    progress: Progress,
) -> Policies:
    """Trains each run as a job of the engine; runs that an earlier call has finished in the folder are kept."""
    device = runs[0].data.device
    tables = {id(run.data): run.data.to("cpu") for run in runs}  # seeds may share one
    job = _Job([run._replace(data=tables[id(run.data)]) for run in runs], agent, options, folder, str(device))
    finished = [number for number in range(len(runs)) if job.done(number)]
    new = engine.run(job, [number for number in range(len(runs)) if number not in finished])
    for done, number in enumerate(chain(finished, (number for number, _ in new)), 1):
        progress(f"agents {agent.name}", done, len(runs))
        if report is not None:
            report(read_metrics(job.part(number)))
    parts = [Policies.load(job.part(number), agent) for number in range(len(runs))]
    policies = {key: policy for part in parts for key, policy in part.items()}
    curves = {
        name: curve if name == "updates" else torch.cat([part.curves[name] for part in parts])
        for name, curve in parts[0].curves.items()
    }
    return Policies(policies, curves).to(device)


@dataclass(frozen=True, eq=False)
class _Job:
    """Trains the run of a number, unless its folder has it: the work of another process."""

    runs: list[Run]
    agent: Agent
    options: Mapping[str, Any]  # of train_agents
    folder: Path
    device: str

    def part(self, number: int) -> Path:
        return self.folder / f"{self.runs[number].name}-{self.runs[number].seed}"

    def done(self, number: int) -> bool:
        return (self.part(number) / "agents.json").exists()

    def __call__(self, number: int) -> None:
        if not self.done(number):
            run, part = self.runs[number], self.part(number)
            train_agents(
                {run.name: run.data.to(self.device)},
                self.agent,
                seeds=[run.seed],
                checkpoint=part / "checkpoint.safetensors",
                workers=0,
                report=MetricLog(part).add,
                **self.options,
            ).save(part)


def remove_checkpoint(checkpoint: Path) -> None:
    """Removes the checkpoint of a finished training: a file, or the folder of an engine's jobs."""
    if not checkpoint.is_dir():
        checkpoint.unlink(missing_ok=True)
        return
    for part in checkpoint.glob("*"):
        for name in ("agents.json", "checkpoint.safetensors", JSONL, CSV, f"policy-{part.name}.safetensors"):
            (part / name).unlink(missing_ok=True)
    for folder in (*checkpoint.glob("*"), checkpoint):
        if not any(folder.iterdir()):
            folder.rmdir()


# --- data


@dataclass(frozen=True, eq=False)
class RunTable:
    """All data sets as one table on the device, each stored once."""

    # (N, S + A + 1 + S + 1 + G): state, action in [-1, 1], reward, next state, terminal, goal. If goals are drawn from
    # episodes, the goal is what the state achieves, and G more columns are what the next state achieves.
    rows: Tensor
    offset: Tensor  # (R,), the first row of every run's data
    length: Tensor  # (R,)
    state_width: int
    action_width: int
    goal_width: int
    action_range: tuple[Tensor, Tensor]  # low and high, (A,) each
    shift: Tensor  # (R, S + G), and
    scale: Tensor  # (R, S + G): agents see (state and goal - shift) / scale
    low: Tensor  # (R, 1), the smallest possible value, in the units of the reward column
    high: Tensor  # (R, 1), the largest
    zero: Tensor  # (R, 1), and
    unit: Tensor  # (R, 1): a value in the units of the data's rewards is zero + unit · learned value
    columns: list[tuple[str, ...]]  # every run's names of state, goal and action
    # If goals are drawn from episodes:
    last: Tensor | None = None  # (N,), the last row of the row's episode, counted from the first row of its data set
    reached: Reached | None = None  # the task's function of achieved and goal (N, G): bool (N,)
    span: int = 1  # of the agent; and if it is larger, for each run:
    starts: Sequence[Tensor] = ()  # (K,), the rows that so many steps follow without a gap, from the data set's first

    @property
    def device(self) -> torch.device:
        return self.rows.device

    @property
    def seen_width(self) -> int:
        """Number of columns that an agent sees: state and goal."""
        return self.state_width + self.goal_width

    @staticmethod
    def of(runs: Sequence[Run], agent: Agent, task: Task | None = None, actions: Range | None = None) -> RunTable:
        distinct = {id(run.data): run for run in runs}
        first = runs[0].data
        action_ends = action_range(list(distinct.values()), task, actions)
        from_episodes = agent.goals_from_episodes
        if from_episodes and task is not None and is_simulated(task):
            raise InputError(
                f"task {task.name!r} has no goals, which the agent {agent.name!r} needs to act. Train it without a "
                "task, or on one whose environment shows goals."
            )
        states = first.state.shape[1]
        goals = _goal_width(first)
        if from_episodes:
            check_goals(task, first, runs[0].name)
            achieved_goal = achieved_by(task, first)
            goals = achieved_goal(first.state[:1]).shape[1]
        width = 2 * states + first.action.shape[1] + (2 if from_episodes else 1) * goals + 2
        # Filled in place: a table may take more than half of the memory that the data leaves.
        rows = room(sum(len(run.data) for run in distinct.values()), width, first.state)
        begins, scaling, ends = {}, {}, []
        starts: dict[int, Tensor] = {}
        begin = 0
        for key, run in distinct.items():
            data, achieved = run.data, None
            if from_episodes:
                data, achieved, last, left = sorted_episodes(data, run.name, achieved_goal)
                ends.append(last)
                if agent.span > 1:
                    starts[key] = starts_of(left, agent, run.name)
            shift, scale = data.state.new_zeros(states + goals), data.state.new_ones(states + goals)
            if agent.standardise:
                shift, scale = input_scaling(_seen(data, slice(None)))
            reward, *values = _learning_units(data, agent)
            for block in range(0, len(data), BLOCK):
                own = slice(block, min(block + BLOCK, len(data)))
                seen = (_seen(data, own) - shift) / scale
                next_state = (data.next_state[own] - shift[:states]) / scale[:states]
                parts = [seen[:, :states], to_unit_range(data.action[own], *action_ends), reward[own, None], next_state]
                parts += [data.terminal[own, None].float(), seen[:, states:]]
                if achieved is not None:
                    parts.append((achieved[own] - shift[states:]) / scale[states:])
                torch.cat(parts, 1, out=rows[begin + block : begin + own.stop])
            begins[key], scaling[key] = begin, (shift, scale, *values)
            begin += len(data)
        shift, scale, low, high, zero, unit = map(
            torch.stack, zip(*(scaling[id(run.data)] for run in runs), strict=True)
        )
        named = [(run.data.columns[:states], run.data.columns[states:]) for run in runs]
        columns = [(*state, *(f"goal{i}" for i in range(goals)), *action) for state, action in named]
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
            zero,
            unit,
            columns,
            torch.cat(ends) if from_episodes else None,
            reached_by(task, first) if from_episodes else None,
            agent.span,
            [starts[id(run.data)] for run in runs] if starts else (),
        )

    def batch(self, index: Tensor, value_goal: Tensor | None = None, actor_goal: Tensor | None = None) -> Batch:
        """Gathers the rows (R, B) of all runs; if goals are drawn from episodes, with these goals (numbers of rows)."""
        widths = [self.state_width, self.action_width, 1, self.state_width, 1, self.goal_width]
        rows = self.rows[index][..., : sum(widths)]
        state, action, reward, next_state, terminal, goal = rows.split(widths, -1)
        actor_state = actions = steps = None
        if value_goal is not None and actor_goal is not None:
            actor_state = torch.cat([state, self._goal(goal, actor_goal)], -1)
            actions, own = action[:, :, None], goal[:, :, None]
            goal = self._goal(goal, value_goal)
            if self.span > 1:
                ahead = index[..., None] + torch.arange(self.span, device=index.device)  # (R, B, C)
                actions, next_state, own = (
                    self.rows[:, sum(widths[:part]) : sum(widths[: part + 1])][number]
                    for part, number in ((1, ahead), (3, ahead[..., -1]), (5, ahead))
                )
            reached = self._reached(own, goal[:, :, None].expand_as(own))  # (R, B, C)
            terminal = reached.any(-1, keepdim=True).float()
            steps = 1 - terminal[..., 0] if self.span == 1 else (reached.cumsum(-1) == 0).float().sum(-1)
            reward = terminal - 1
        if self.goal_width:
            state, next_state = torch.cat([state, goal], -1), torch.cat([next_state, goal], -1)
        labels = reward[..., 0], next_state, terminal[..., 0]
        return Batch(state, action, *labels, self.low, self.high, actor_state, actions, steps)

    def _goal(self, own: Tensor, number: Tensor) -> Tensor:
        """Returns what the next states of numbered rows achieve, (R, B, G); for OWN, what the row's state achieves."""
        later = self.rows[:, -self.goal_width :][number.clamp(min=0)]
        return torch.where((number == OWN)[..., None], own, later)

    def _reached(self, own: Tensor, goal: Tensor) -> Tensor:
        """Returns where states achieve their goals or, by the task's `reached`, as good ones: bool (R, B, C)."""
        reached = (own == goal).all(-1)
        if self.reached is not None:
            shift, scale = (part[:, None, None, self.state_width :] for part in (self.shift, self.scale))
            given = ((part * scale + shift).flatten(0, 2) for part in (own, goal))
            reached = reached | self.reached(*given).reshape(reached.shape)
        return reached


def runs_of(
    datasets: Mapping[str, Transitions | Sequence[Transitions]], seeds: list[int], agent: Agent | None = None
) -> list[Run]:
    """Makes a run per data set and seed, data set by data set; raises unless the agent can train on all at once."""
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
    """Raises unless two runs can be trained together; `labelled` data is compared in its goals too."""
    widths = {
        kind: [0 if part is None else part.shape[1] for part in (getattr(first.data, kind), getattr(run.data, kind))]
        for kind in ("state", "action", *(("goal",) if labelled else ()))
    }
    for kind, (expected, found) in widths.items():
        if found != expected:
            raise InputError(
                f"data sets that train together need the same columns of {kind}: {first.name!r} has {expected}, "
                f"{run.name!r} has {found}. Train them separately."
            )
    if run.data.device != first.data.device:
        raise InputError(
            f"data sets must be on one device: {first.name!r} is on {first.data.device}, {run.name!r} on "
            f"{run.data.device}. Move them with .to(device)."
        )


def _learning_units(data: Transitions, agent: Agent) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Converts rewards (N,) to the units that the agent learns in.

    Also returns the smallest and largest possible value in these units, q0 and scale, (1,) each.

    With Q = q0 + scale · Q̂ and weight = 1 - discount · (1 - terminal), Bellman's equation of Q becomes
    Q̂ = (reward - q0 · weight) / scale + (1 - weight) · Q̂'. Here q0 · weight is the least-squares fit to the rewards, so
    that a · reward + b · weight, which ranks all policies alike (a > 0), gives the same Q̂. With this scale the possible
    values span 1 / (1 - discount), as they do for rewards between -1 and 0.
    """
    assert data.reward is not None
    if agent.goals_from_episodes:  # rewards come with the goals of a batch: -1, and 0 for a goal that is reached
        ends = agent.value_range or (-1 / (1 - agent.discount) if agent.discount < 1 else -math.inf, 0.0)
        low, high, zero, unit = data.reward.new_tensor([*ends, 0.0, 1.0])[:, None]
        return data.reward, low, high, zero, unit
    reward, weight = data.reward.double(), 1 - agent.discount * (1 - data.terminal.double())
    bounds = torch.stack(torch.aminmax(reward / weight))  # a policy that gets this at every step has this value
    span = (1 - agent.discount) * (bounds[1] - bounds[0])
    if agent.value_range is not None:
        bounds = bounds.new_tensor(agent.value_range)
    q0, scale = bounds.new_tensor([0.0, 1.0])
    if agent.scale_rewards:
        q0 = (reward * weight).sum() / weight.square().sum().clamp(min=torch.finfo(torch.float64).tiny)
        rest = reward - q0 * weight
        scale = span if agent.discount < 1 else rest.abs().max()  # without a discount, values have no bounds
        vanishes = rest.abs().max() <= torch.finfo(torch.float32).eps * reward.abs().max()  # only rounding is left
        rest, scale = torch.where(vanishes, 0.0, rest), torch.where(vanishes, 1.0, scale)
        reward, bounds = rest / scale, (bounds - q0) / scale
    low, high, zero, unit = torch.stack([*bounds, q0, scale]).float()[:, None]
    return reward.float(), low, high, zero, unit


def action_range(runs: Sequence[Run], task: Task | None, given: Range | None) -> tuple[Tensor, Tensor]:
    """Returns the low and high end of the actions (A,): the task's, the given ones, or [-1, 1] if all data fits."""
    data = runs[0].data
    states, actions = data.state.shape[1], data.action.shape[1]
    box: Any = getattr(task, "box", None)
    environment: Any = getattr(task, "environment", None)
    if task is None or (box is None and environment is None):
        for run in runs if given is None else ():
            least, most = map(float, run.data.action.aminmax())
            if least < -1 or most > 1:
                raise InputError(
                    f"data set {run.name!r} has actions from {least:.4g} to {most:.4g}, outside [-1, 1]. Say which are "
                    "possible: `--actions LOW HIGH`, in Python actions=(low, high), or the task, which knows it."
                )
        return _check_range((-1.0, 1.0) if given is None else given, data.action)
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
    ends = environment_range(environment, actions) if box is None else [end[states:] for end in box]
    low, high = (end.to(data.device) for end in ends)
    return low, high


def _check_range(given: Range, action: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the ends of a range of actions (A,), on the actions' device."""
    ends = [as_tensor(end).to(action) for end in given]
    if len(ends) != 2 or any(end.shape not in (action.shape[1:], ()) for end in ends):
        shapes = ", ".join(str(tuple(end.shape)) for end in ends)
        raise InputError(f"actions must be (low, high), a number or ({action.shape[1]},) each, got {shapes}.")
    low, high = (end.expand(action.shape[1]) for end in ends)
    if not bool((low < high).all() & (high - low).isfinite().all()):
        raise InputError(f"actions must be finite with low < high, got {low.tolist()} and {high.tolist()}.")
    return low, high


def _goal_width(data: Transitions) -> int:
    return 0 if data.goal is None else data.goal.shape[1]


def _seen(data: Transitions, rows: slice) -> Tensor:
    """States, with the goals beside them if there are goals."""
    return data.state[rows] if data.goal is None else torch.cat([data.state[rows], data.goal[rows]], 1)


def room(rows: int, width: int, like: Tensor) -> Tensor:
    """Memory for a table on the device of `like`; raises if there is none, and says how many rows would fit."""
    try:
        return like.new_empty(rows, width)
    except (RuntimeError, MemoryError) as error:
        if not ran_out_of_memory(error):
            raise
        free = 0
        if like.is_cuda:
            free = torch.cuda.mem_get_info(like.device)[0]
        elif "SC_AVPHYS_PAGES" in os.sysconf_names:
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        raise InputError(
            f"memory on {like.device} does not suffice: {rows:,} rows of {width} numbers take "
            f"{4 * width * rows / 2**30:,.1f} GiB beside the data. About {int(0.8 * free) // (4 * width):,} rows would "
            "fit. Train on fewer rows, or on fewer data sets at a time."
        ) from error


# --- learning


class _Chunk(NamedTuple):
    """Updates that are made in one go."""

    stage: int
    before: int  # updates of the whole training before this one
    start: int  # updates of the stage before this one
    updates: int
    total: int  # updates of the stage
    evaluated: bool


def _chunks(stages: Sequence[Stage], updates: int, evaluate_every: int) -> Iterator[_Chunk]:
    """Splits the training into chunks that end where an evaluation is due; only the last stage is evaluated."""
    before = 0
    for number, stage in enumerate(stages):
        total, start = stage.updates or updates, 0
        while start < total:
            due = (start // evaluate_every + 1) * evaluate_every
            count = min(CHUNK - start % CHUNK, due - start, total - start)
            evaluated = number == len(stages) - 1 and start + count == due
            yield _Chunk(number, before, start, count, total, evaluated)
            before, start = before + count, start + count


class _Pulse:
    """Reports how many updates were made: after every chunk, and every PULSE seconds in chunks that take longer."""

    def __init__(self, tell: Callable[[int], None] = lambda made: None) -> None:
        self.tell, self.told = tell, time.monotonic()

    def __call__(self, made: int, always: bool = False) -> None:
        if always or time.monotonic() - self.told >= PULSE:
            self.tell(made)
            self.told = time.monotonic()


@dataclass(eq=False)
class Learner:
    """The weights of all runs and their updates."""

    agent: Agent
    table: RunTable
    streams: Sequence[Stream]
    weights: dict[str, Tensor]  # (R, ...) each
    optimisers: dict[str, Adam]  # by group
    captured: list[Captured]  # by stage
    drawn: tuple[int, int, dict[str, Tensor]] = (-1, -1, {})  # stage, first update, and the draws for its block
    measured: dict[str, Tensor] = field(default_factory=dict)  # (R,) each, as of each group's last update of a chunk
    before: int = 0  # updates of the whole training before the current chunk
    made: _Pulse = field(default_factory=_Pulse)

    @staticmethod
    def of(agent: Agent, table: RunTable, streams: Sequence[Stream]) -> Learner:
        weights = initial_weights(agent, table.seen_width, table.action_width, streams)
        learner = Learner(agent, table, streams, weights, {}, [])
        for stage in agent.stages():
            for group in stage.learned:
                own = [weights[name].requires_grad_() for name in _names(weights, group)]
                learner.optimisers[group] = Adam(own, agent.learning_rate, stage.weight_decay, f"optimiser.{group}")
            learner.captured.append(Captured(learner._chunk(stage), table.device))
        return learner

    def learn(self, chunk: _Chunk) -> Tensor:
        """Makes the updates of a chunk and returns the losses (U, G, R) of its groups, 0 where one was not updated."""
        stage, self.before = self.agent.stages()[chunk.stage], chunk.before
        block, begin = chunk.start - chunk.start % CHUNK, chunk.start % CHUNK
        if self.drawn[:2] != (chunk.stage, block):
            self.drawn = (chunk.stage, block, self._draw(stage, chunk.stage, block))
        tensors = {name: tensor[begin : begin + chunk.updates] for name, tensor in self.drawn[2].items()}
        if self.agent.decay and chunk.stage == len(self.captured) - 1:
            # By the block, not the chunk, so that the rate does not depend on evaluations.
            rate = self.agent.learning_rate * 0.5 * (1 + math.cos(math.pi * block / chunk.total))
            for group in set(stage.update_every) & set(self.optimisers):
                self.optimisers[group].learning_rate.fill_(rate)
        period = math.lcm(*stage.update_every.values())
        return self.captured[chunk.stage](tensors, chunk.start % period)

    def _draw(self, stage: Stage, number: int, block: int) -> dict[str, Tensor]:
        """Draws row numbers, noise and goals of CHUNK updates, (CHUNK, R, ...) each; evaluations change nothing."""
        drawn: list[dict[str, Tensor]] = []
        lengths = self.table.length.tolist()
        for run, (stream, offset, length) in enumerate(zip(self.streams, self.table.offset, lengths, strict=True)):
            own = stream.child("updates", number, block)
            starts = self.table.starts[run] if self.table.starts else None
            index = own.integers(length if starts is None else len(starts), CHUNK, stage.batch)
            index = index if starts is None else starts[index].long()
            drawn.append(
                {"index": index + offset, **self.agent.noise(own.child("noise"), CHUNK, self.table.action_width)}
            )
            if self.table.last is not None:
                goals = self.agent.draw_goals(own.child("goals"), index, self.table.last[index + offset], length)
                drawn[-1] |= {name: torch.where(goal == OWN, OWN, goal + offset) for name, goal in goals.items()}
        return {name: torch.stack([own[name] for own in drawn], 1) for name in drawn[0]}

    def tensors(self) -> dict[str, Tensor]:
        """Returns everything that a checkpoint needs."""
        optimisers = (adam.state() for adam in self.optimisers.values())
        return {name: tensor for part in (self.weights, *optimisers) for name, tensor in part.items()}

    def restore(self, tensors: Weights) -> None:
        copy_tensors(tensors, self.weights)
        for adam in self.optimisers.values():
            adam.restore(tensors)

    def policies(self, weights: Weights | None = None, device: torch.device | None = None) -> list[Policy]:
        """Copies the current policies to a device, with these weights; without any, with all but the targets."""
        weights = weights or {n: w for n, w in self.weights.items() if not n.startswith(TARGET)}
        device = device or self.table.device
        there = {n: w.detach().to(device) for n, w in self.for_raw_inputs(weights).items()}
        low, high = (end.to(device) for end in self.table.action_range)
        own = ({n: w[run].clone() for n, w in there.items()} for run in range(len(self.streams)))
        width, named = self.table.seen_width, self.table.columns
        return [Policy(self.agent, width, w, low, high, names) for w, names in zip(own, named, strict=True)]

    def for_raw_inputs(self, weights: Weights) -> dict[str, Tensor]:
        """Returns weights whose first layers take states and goals that are not standardised."""
        changed = dict(weights)
        if self.agent.standardise:
            shift, scale = self.table.shift, self.table.scale
            for name in [name for name in weights if name.endswith(".0.weight")]:
                bias = name.replace("weight", "bias")
                middle = (1,) * (weights[name].ndim - 3)  # axes of ensembles
                seen, rest = weights[name].split([shift.shape[1], weights[name].shape[-2] - shift.shape[1]], -2)
                seen = seen / scale.reshape(len(scale), *middle, -1, 1)
                changed[name] = torch.cat([seen, rest], -2)
                changed[bias] = weights[bias] - shift.reshape(len(shift), *middle, 1, -1) @ seen
        return changed

    def _chunk(self, stage: Stage) -> Work:
        """Returns the function that makes the updates of a chunk; it returns their losses (U, G, R)."""
        period = math.lcm(*stage.update_every.values())
        losses = self.agent.losses()
        names = {group: _names(self.weights, group) for group in stage.update_every}
        turns, learned = stage.turns, stage.learned

        def differentiate(group: str, batch: Batch, noise: Tensors, measure: bool) -> Tensor:
            seen = {name: weight.detach() for name, weight in self.weights.items()}
            seen |= {name: self.weights[name] for name in names[group]}
            loss, measured = loss_and_measured(losses[group](seen, batch, noise))
            self.optimisers[group].differentiate(loss.sum())
            if measure:
                self._measure(group, measured)
            return loss.detach()

        def update(part: Tensors, number: int, measure: bool) -> Tensor:
            batch = self.table.batch(part["index"], part.get("value_goal"), part.get("actor_goal"))
            found: dict[str, Tensor] = {}
            for turn in turns:
                due = [group for group in turn if (number + 1) % stage.update_every[group] == 0]
                if turn[0].startswith(TARGET):
                    for group in due:
                        targets = [self.weights[name] for name in names[group]]
                        sources = [self.weights[name.removeprefix(TARGET)].detach() for name in names[group]]
                        torch._foreach_lerp_(targets, sources, self.agent.polyak)
                    continue
                works = [partial(differentiate, group, batch, part, measure) for group in due]
                found |= zip(due, side_by_side(works, self.table.device), strict=True)
                for group in due:
                    self.optimisers[group].descend()
            nothing = torch.zeros(len(self.streams), device=self.table.device)
            return torch.stack([found.get(group, nothing) for group in learned])

        def chunk(tensors: Tensors, phase: int) -> Tensor:
            count = len(tensors["index"])
            parts = [{name: tensor[i] for name, tensor in tensors.items()} for i in range(count)]
            losses = []
            for i, part in enumerate(parts):
                # Measuring costs time, so only the updates of the last period do it: there, every group has its turn.
                losses.append(update(part, phase + i, i >= count - period))
                if self.table.device.type == "cpu":  # a GPU replays all at once
                    self.made(self.before + i + 1)
            return torch.stack(losses)

        return chunk

    @torch.no_grad()
    def _measure(self, group: str, measured: Measured) -> None:
        """Keeps what a loss has measured as numbers (R,), at the same place in memory each time, for CUDA graphs."""
        for name, tensor in measured.items():
            each = tensor.detach().float().reshape(len(tensor), -1)
            if name in VALUES:
                each = self.table.unit * each + (0.0 if name == "advantage" else self.table.zero)
                numbers = {f"{group}/{name}_mean": each.mean(1), f"{group}/{name}_max": each.amax(1)}
            else:
                numbers = {f"{group}/{name}": each.mean(1)}
            for key, number in numbers.items():
                if key in self.measured:
                    self.measured[key].copy_(number)
                else:
                    self.measured[key] = number.clone()


def initial_weights(agent: Agent, state: int, action: int, streams: Sequence[Stream]) -> dict[str, Tensor]:
    """Draws every run's initial weights (R, ...) from its stream; targets begin as copies of what they follow."""
    runs = [network_weights(agent, state, action, stream.child("weights")) for stream in streams]
    weights = {name: torch.stack([run[name] for run in runs]) for name in runs[0]}
    for group in {group for stage in agent.stages() for group in stage.update_every if group.startswith(TARGET)}:
        weights |= {TARGET + name: weights[name].clone() for name in _names(weights, group.removeprefix(TARGET))}
    return weights


def _names(weights: Weights, group: str) -> list[str]:
    return [name for name in weights if name.startswith(f"{group}.")]


def _check_finite(losses: Tensor, chunk: _Chunk, runs: Sequence[Run], learner: Learner) -> None:
    """Raises at the first loss (U, G, R) that is NaN or inf; the effect of the last update shows in the weights."""
    bad = ~losses.isfinite()
    effect = torch.stack([weight.detach().flatten(1).sum(1) for weight in learner.weights.values()]).sum(0)  # (R,)
    bad[-1, 0] |= ~effect.isfinite()
    if bool(bad.any()):
        update, _, number = bad.nonzero()[0].tolist()
        run = runs[number]
        raise InputError(
            f"the loss of {learner.agent.name} on data set {run.name!r}, seed {run.seed}, became NaN or inf at update "
            f"{chunk.start + update + 1}. Lower the learning rate, or look for extreme values in the data."
        )


def _loss_metrics(
    losses: Tensor, measured: Mapping[str, Tensor], chunk: _Chunk, stage: Stage, runs: Sequence[Run]
) -> list[Metric]:
    """Returns every group's mean loss over the updates of the chunk (U, G, R) that changed it, and its measurements."""
    numbers: dict[str, Tensor] = {}
    for place, group in enumerate(stage.learned):
        every = stage.update_every[group]
        updated = losses[-(chunk.start + 1) % every :: every, place]
        if len(updated):
            numbers[f"loss/{group}"] = updated.mean(0)
            numbers |= {name: number for name, number in measured.items() if name.startswith(f"{group}/")}
    now = chunk.start + chunk.updates
    each = torch.stack(list(numbers.values())).tolist() if numbers else []  # one copy from the device
    return [
        Metric(now, run.name, run.seed, name, value)
        for name, values in zip(numbers, each, strict=True)
        for run, value in zip(runs, values, strict=True)
    ]


def _curves(measured: Tensor, every: int) -> dict[str, Tensor]:
    updates = every * torch.arange(1, len(measured) + 1)
    steps, success, reward = measured.cpu().permute(1, 2, 0)
    return {"updates": updates, "steps": steps, "success": success, "return": reward}
