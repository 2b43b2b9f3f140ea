"""Transitions -> Policies: all data sets and seeds of a call train as one program.

Axes: R runs (data sets × seeds), U updates of a chunk, B rows of a batch, S, A and G columns of state, action and goal.
Where rows have goals, agents see state and goal side by side.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from mocoda.agents import Agent, Batch, Stage, make_agent
from mocoda.agents.agent import TARGET
from mocoda.episodes import Job, Played, gathered, jobs, play
from mocoda.evaluation import episode_noise, means, rollout
from mocoda.files import VERSION, InputError
from mocoda.networks import Weights, half_precision, mlp_weights
from mocoda.policies import Policies, Policy, acting_weights, agent_settings, unscaled
from mocoda.randomness import Stream
from mocoda.tasks import SimulatedTask, Task
from mocoda.training import (
    Adam,
    Captured,
    Checkpoint,
    Tensors,
    Work,
    fast_products,
    fingerprint,
    in_turn,
)
from mocoda.transitions import Transitions
from mocoda.workers import Progress, Workers, silent

CHUNK = 100  # updates at a time, at most: one CUDA graph
UNDER_WAY = 2  # evaluations in other processes, at most


def train_agents(
    datasets: Mapping[str, Transitions | Sequence[Transitions]],
    agent: str | Agent = "td3-bc",
    *,
    seeds: Sequence[int] = range(5),
    updates: int = 25_000,
    task: Task | None = None,
    evaluate_every: int = 100,
    episodes: int = 10,
    half: bool = False,
    checkpoint: str | Path | None = None,
    workers: int | None = None,
    progress: Progress = silent,
) -> Policies:
    """Trains an agent per data set and seed, on the device the data is on; each is what it would be if trained alone.

    datasets        by name: a table for all seeds, or one table per seed
    agent           "td3-bc", "bcq", "cql", "sac", or one made by `make_agent` or by you
    task            gives the range of actions and the evaluations; without one, actions must lie in [-1, 1]
    evaluate_every  updates between evaluations of `episodes` episodes, whose results are the `curves` of the answer
    half            on a GPU, keep hidden layers in bfloat16: a quarter faster, and less precise
    checkpoint      a file to continue from if it exists, and to save progress to; the result is the same either way
    workers         processes that evaluate while the training goes on, if the task is played in its environment; None:
                    one per core. The result is the same
    """
    agent = make_agent(agent) if isinstance(agent, str) else agent
    for name, number in (("updates", updates), ("evaluate_every", evaluate_every), ("episodes", episodes)):
        if number < 1:
            raise InputError(f"{name} must be at least 1, got {number}.")
    runs = _runs(datasets, list(seeds))
    table = _Table.of(runs, task, agent.standardise)
    streams = [Stream(run.seed, "agent", agent.name, device=table.device) for run in runs]
    learner = _Learner.of(agent, table, streams)
    with fast_products(table.device), half_precision(half), _evaluator(learner, task, episodes, workers) as evaluator:
        identity = {
            "version": VERSION,
            "agent": agent_settings(agent),
            "runs": [[run.name, run.seed] for run in runs],
            "updates": updates,
            "evaluations": [evaluate_every, episodes, None if task is None else task.name],
            "device": table.device.type,
            "half": half,
        }
        if checkpoint is not None:
            identity["data"] = fingerprint(table.rows, table.offset, table.length)
        saved = Checkpoint(checkpoint, identity)
        done, tensors = saved.load()
        if done:
            learner.restore(tensors)
            evaluator.found = list(tensors["curves"].to(table.device))
        stages = agent.stages()
        total = sum(stage.updates or updates for stage in stages)
        for chunk in _chunks(stages, updates, evaluate_every):
            if chunk.before + chunk.updates <= done:
                continue
            losses = learner.learn(chunk)  # (U, G, R)
            _check_finite(losses, chunk, runs, learner)
            if chunk.evaluated:
                evaluator.begin()
            now = chunk.before + chunk.updates
            progress(f"agents {agent.name}", now, total)
            saved.offer(now, lambda: {**learner.tensors(), "curves": evaluator.curves()})
        curves = _curves(evaluator.curves(), evaluate_every)
    return Policies({(run.name, run.seed): learner.policy(number) for number, run in enumerate(runs)}, curves)


class _Run(NamedTuple):
    name: str  # of the data set
    seed: int
    data: Transitions


class _Chunk(NamedTuple):
    """Updates that are made at a stretch."""

    stage: int
    before: int  # updates of the whole training before this one
    start: int  # updates of the stage before this one
    updates: int
    total: int  # updates of the stage
    evaluated: bool


def _chunks(stages: Sequence[Stage], updates: int, evaluate_every: int) -> Iterator[_Chunk]:
    """The whole training in pieces, with an end wherever an evaluation is due; the last stage alone is evaluated."""
    before = 0
    for number, stage in enumerate(stages):
        total, start = stage.updates or updates, 0
        while start < total:
            due = (start // evaluate_every + 1) * evaluate_every
            count = min(CHUNK - start % CHUNK, due - start, total - start)
            evaluated = number == len(stages) - 1 and start + count == due
            yield _Chunk(number, before, start, count, total, evaluated)
            before, start = before + count, start + count


@dataclass(frozen=True, eq=False)
class _Table:
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

    @property
    def device(self) -> torch.device:
        return self.rows.device

    @property
    def seen_width(self) -> int:
        """Columns of what an agent sees: state and goal."""
        return self.state_width + self.goal_width

    @staticmethod
    def of(runs: Sequence[_Run], task: Task | None, standardise: bool) -> _Table:
        distinct = {id(run.data): run for run in runs}
        first = runs[0].data
        bounds = _bounds(list(distinct.values()), task)
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
        return _Table(
            rows,
            torch.tensor([place[id(run.data)] for run in runs], device=first.device),
            torch.tensor([len(run.data) for run in runs], device=first.device),
            states,
            actions,
            goals,
            bounds,
            *(torch.stack(ends) for ends in zip(*(scaling[id(run.data)] for run in runs), strict=True)),
        )

    def batch(self, index: Tensor) -> Batch:
        """The rows (R, B) of all runs, one gather."""
        widths = [self.state_width, self.action_width, 1, self.state_width, 1, self.goal_width]
        state, action, reward, next_state, terminal, goal = self.rows[index].split(widths, -1)
        if self.goal_width:
            state, next_state = torch.cat([state, goal], -1), torch.cat([next_state, goal], -1)
        return Batch(state, action, reward[..., 0], next_state, terminal[..., 0])


@dataclass(eq=False)
class _Learner:
    """The weights of all runs, and what moves them."""

    agent: Agent
    table: _Table
    streams: Sequence[Stream]
    weights: dict[str, Tensor]  # (R, ...) each
    optimisers: dict[str, Adam]  # by group
    captured: list[Captured]  # by stage
    drawn: tuple[int, int, dict[str, Tensor]] = (-1, -1, {})  # stage, first update, and what was drawn for it

    @staticmethod
    def of(agent: Agent, table: _Table, streams: Sequence[Stream]) -> _Learner:
        networks = agent.networks(table.seen_width, table.action_width)
        fresh: list[dict[str, Tensor]] = []
        for stream in streams:
            own: dict[str, Tensor] = {}
            for group, network in networks.items():
                leading = () if network.members is None else (network.members,)
                own |= mlp_weights(group, leading, network.sizes, stream.child("weights", group))
            fresh.append(own)
        weights = {name: torch.stack([own[name] for own in fresh]).requires_grad_() for name in fresh[0]}
        stages = agent.stages()
        for group in {group for stage in stages for group in stage.rhythm if group.startswith(TARGET)}:
            followed = _names(weights, group.removeprefix(TARGET))
            weights |= {TARGET + name: weights[name].detach().clone() for name in followed}
        learner = _Learner(agent, table, streams, weights, {}, [])
        for stage in stages:
            for group in stage.rhythm:
                if not group.startswith(TARGET):
                    own_weights = [weights[name] for name in _names(weights, group)]
                    learner.optimisers[group] = Adam(own_weights, agent.learning_rate, stage.weight_decay, group)
            learner.captured.append(Captured(in_turn(learner._update(stage)), table.device))
        return learner

    def learn(self, chunk: _Chunk) -> Tensor:
        """Makes the updates of a chunk; the losses (U, G, R) of its groups, 0 where one did not move."""
        stage = self.agent.stages()[chunk.stage]
        block, begin = chunk.start - chunk.start % CHUNK, chunk.start % CHUNK
        if self.drawn[:2] != (chunk.stage, block):
            self.drawn = (chunk.stage, block, self._draw(stage, chunk.stage, block))
        tensors = {name: tensor[begin : begin + chunk.updates] for name, tensor in self.drawn[2].items()}
        if self.agent.decay and chunk.stage == len(self.captured) - 1:
            # By the block, not the chunk, so that the rate depends on no evaluation.
            rate = self.agent.learning_rate * 0.5 * (1 + math.cos(math.pi * block / chunk.total))
            for group in set(stage.rhythm) & set(self.optimisers):
                self.optimisers[group].learning_rate.fill_(rate)
        period = math.lcm(*stage.rhythm.values())
        return self.captured[chunk.stage](tensors, chunk.start % period)

    def _draw(self, stage: Stage, number: int, block: int) -> dict[str, Tensor]:
        """Row numbers and noise of CHUNK updates, (CHUNK, R, ...) each: what is drawn depends on no evaluation."""
        drawn: list[dict[str, Tensor]] = []
        for run, stream in enumerate(self.streams):
            own = stream.child("updates", number, block)
            index = own.integers(int(self.table.length[run]), CHUNK, stage.batch)
            noise = self.agent.noise(own.child("noise"), CHUNK, self.table.action_width)
            drawn.append({"index": index + self.table.offset[run], **noise})
        return {name: torch.stack([own[name] for own in drawn], 1) for name in drawn[0]}

    def tensors(self) -> dict[str, Tensor]:
        """All there is to save."""
        state = dict(self.weights)
        for adam in self.optimisers.values():
            state |= {f"optimiser.{name}": value for name, value in adam.state().items()}
        return state

    def restore(self, tensors: Weights) -> None:
        with torch.no_grad():
            for name, weight in self.weights.items():
                weight.copy_(tensors[name])
        prefix = "optimiser."
        for adam in self.optimisers.values():
            adam.restore({name.removeprefix(prefix): value for name, value in tensors.items() if prefix in name})

    def policy(self, run: int) -> Policy:
        weights = self.for_raw_inputs(self.weights)
        own = {n: w[run].detach().clone() for n, w in weights.items() if not n.startswith(TARGET)}
        return Policy(self.agent, self.table.seen_width, own, *self.table.bounds)

    def acting(self) -> list[Policy]:
        """The runs' policies as they are now, copied to the CPU, with the weights that they act by."""
        weights = self.for_raw_inputs(acting_weights(self.agent, self.weights))
        weights = {n: w.detach().to("cpu", copy=True) for n, w in weights.items()}
        bounds = [end.cpu() for end in self.table.bounds]
        return [
            Policy(self.agent, self.table.seen_width, {name: weight[run] for name, weight in weights.items()}, *bounds)
            for run in range(len(self.streams))
        ]

    def for_raw_inputs(self, weights: Weights) -> dict[str, Tensor]:
        """The weights with their first layers changed so that they take states and goals that are not standardised."""
        changed = dict(weights)
        if self.agent.standardise:
            shift, scale = self.table.shift, self.table.scale
            for name in [name for name in weights if name.endswith(".0.weight")]:
                bias = name.replace("weight", "bias")
                middle = (1,) * (weights[name].ndim - 3)  # of ensembles
                seen, rest = weights[name].split([shift.shape[1], weights[name].shape[-2] - shift.shape[1]], -2)
                seen = seen / scale.reshape(len(scale), *middle, -1, 1)
                changed[name] = torch.cat([seen, rest], -2)
                changed[bias] = weights[bias] - shift.reshape(len(shift), *middle, 1, -1) @ seen
        return changed

    def _update(self, stage: Stage) -> Work:
        losses = self.agent.losses()
        names = {group: _names(self.weights, group) for group in stage.rhythm}

        def update(part: Tensors, number: int) -> Tensor:
            batch = self.table.batch(part["index"])
            made = []
            for group, every in stage.rhythm.items():
                due = (number + 1) % every == 0
                if group.startswith(TARGET):
                    if due:
                        targets = [self.weights[name] for name in names[group]]
                        sources = [self.weights[name.removeprefix(TARGET)].detach() for name in names[group]]
                        torch._foreach_lerp_(targets, sources, self.agent.polyak)
                    continue
                loss = torch.zeros(len(self.streams), device=self.table.device)
                if due:
                    seen = {name: weight.detach() for name, weight in self.weights.items()}
                    seen |= {name: self.weights[name] for name in names[group]}
                    loss = losses[group](seen, batch, part)
                    self.optimisers[group].step(loss.sum())
                made.append(loss.detach())
            return torch.stack(made)

        return update


@dataclass(eq=False)
class _Evaluator:
    """Evaluations between updates; none, without a task."""

    learner: _Learner
    found: list[Tensor] = field(default_factory=list)  # mean steps, success and return of every run's episodes, (3, R)

    def begin(self) -> None:
        """Evaluates the agents as they are now."""

    def curves(self) -> Tensor:
        """What all evaluations that were begun have found, (K, 3, R)."""
        none = torch.zeros(0, 3, len(self.learner.streams), device=self.learner.table.device)
        return torch.stack(self.found) if self.found else none


class _SimulatedEvaluator(_Evaluator):
    """Episodes of all runs as one program, while the training waits."""

    def __init__(self, learner: _Learner, task: SimulatedTask, episodes: int) -> None:
        super().__init__(learner)
        self.task, self.episodes = task, episodes
        self._captured = Captured(self._measures, learner.table.device)

    def begin(self) -> None:
        table, agent = self.learner.table, self.learner.agent
        streams = [stream.child("evaluation", len(self.found)) for stream in self.learner.streams]
        start = [self.task.start(self.episodes, seed=stream, device=table.device) for stream in streams]
        noise = episode_noise(agent, streams, self.task, self.episodes, table.action_width)
        self.found.append(self._captured({"start": torch.stack(start), **noise}))

    @torch.no_grad()
    def _measures(self, tensors: Tensors, phase: int) -> Tensor:
        noise = {name: value for name, value in tensors.items() if name != "start"}
        learner = self.learner
        weights = learner.for_raw_inputs(learner.weights)
        made = rollout(learner.agent, weights, self.task, tensors["start"], noise, learner.table.bounds)
        return torch.stack([made.steps.mean(-1), made.success.mean(-1), made.reward.mean(-1)])


class _EnvironmentEvaluator(_Evaluator):
    """Episodes of all runs in other processes, while the training goes on."""

    def __init__(self, learner: _Learner, environment: str, episodes: int, workers: Workers[Job, Played]) -> None:
        super().__init__(learner)
        self.environment, self.episodes, self.workers = environment, episodes, workers
        self._under_way: deque[list[int]] = deque()  # the jobs of every evaluation whose result is not yet known

    def begin(self) -> None:
        if len(self._under_way) == UNDER_WAY:
            self._await_first()
        number = len(self.found) + len(self._under_way)
        streams = [stream.child("evaluation", number) for stream in self.learner.streams]
        todo = [
            job
            for policy, stream in zip(self.learner.acting(), streams, strict=True)
            for job in jobs(policy, self.environment, self.episodes, stream)
        ]
        self._under_way.append([self.workers.submit(job) for job in todo])

    def curves(self) -> Tensor:
        while self._under_way:
            self._await_first()
        return super().curves()

    def _await_first(self) -> None:
        parts = [self.workers.result(number) for number in self._under_way.popleft()]
        made = gathered(parts, len(self.learner.streams))
        self.found.append(means(made).to(self.learner.table.device, torch.float32))


@contextmanager
def _evaluator(learner: _Learner, task: Task | None, episodes: int, workers: int | None) -> Iterator[_Evaluator]:
    if task is None:
        yield _Evaluator(learner)
    elif isinstance(task, SimulatedTask):
        yield _SimulatedEvaluator(learner, task, episodes)
    else:
        with Workers(play, workers) as processes:
            yield _EnvironmentEvaluator(learner, task.environment, episodes, processes)


def _names(weights: Weights, group: str) -> list[str]:
    return [name for name in weights if name.startswith(f"{group}.")]


def _runs(datasets: Mapping[str, Transitions | Sequence[Transitions]], seeds: list[int]) -> list[_Run]:
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
        runs += [_Run(name, seed, table) for seed, table in zip(seeds, tables, strict=True)]
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


def _bounds(runs: Sequence[_Run], task: Task | None) -> tuple[Tensor, Tensor]:
    """The range of actions: the task's, or [-1, 1] if all data lies in it."""
    data = runs[0].data
    states, actions = data.state.shape[1], data.action.shape[1]
    if task is None:
        for run in runs:
            if float(run.data.action.abs().max()) > 1:
                raise InputError(
                    f"data set {run.name!r} has actions outside [-1, 1]. Pass task=, whose box says their range, or "
                    "scale them."
                )
        return -torch.ones(actions, device=data.device), torch.ones(actions, device=data.device)
    graph = task.graph
    if (states, actions) != (graph.state_width, graph.width - graph.state_width):
        raise InputError(
            f"task {task.name!r} has {graph.state_width} columns of state and {graph.width - graph.state_width} of "
            f"action, but data set {runs[0].name!r} has {states} and {actions}."
        )
    if data.goal is not None and isinstance(task, SimulatedTask):
        raise InputError(
            f"task {task.name!r} has no goals, but data set {runs[0].name!r} has {_goal_width(data)} columns of them."
        )
    lowest, highest = (end[states:].to(data.device) for end in task.box)
    return lowest, highest


def _standard(seen: Tensor, wanted: bool) -> tuple[Tensor, Tensor]:
    """Shift and scale (columns,) that standardise rows (N, columns); a constant column is only shifted."""
    if not wanted:
        return torch.zeros_like(seen[0]), torch.ones_like(seen[0])
    scale = seen.double().std(0, correction=0).float()
    return seen.double().mean(0).float(), torch.where(scale > 1e-6, scale, 1.0)


def _goal_width(data: Transitions) -> int:
    return 0 if data.goal is None else data.goal.shape[1]


def _check_finite(losses: Tensor, chunk: _Chunk, runs: Sequence[_Run], learner: _Learner) -> None:
    """Stops at the first loss (U, G, R) that is no number; the last update's own effect shows in the weights."""
    bad = ~torch.isfinite(losses)
    effect = torch.stack([weight.detach().flatten(1).sum(1) for weight in learner.weights.values()]).sum(0)  # (R,)
    if not bool(bad.any() | ~torch.isfinite(effect).all()):
        return
    first = (
        bad.nonzero()[0]
        if bool(bad.any())
        else torch.tensor([chunk.updates - 1, 0, int(effect.isfinite().float().argmin())])
    )
    run = runs[int(first[2])]
    raise FloatingPointError(
        f"the loss of {learner.agent.name} on data set {run.name!r}, seed {run.seed}, became NaN or inf at update "
        f"{chunk.start + int(first[0]) + 1}. Lower the learning rate, or look for extreme values in the data."
    )


def _curves(measured: Tensor, every: int) -> dict[str, Tensor]:
    updates = every * torch.arange(1, len(measured) + 1)
    steps, success, reward = measured.cpu().permute(1, 2, 0)
    return {"updates": updates, "steps": steps, "success": success, "return": reward}
