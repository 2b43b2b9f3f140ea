"""Transitions -> Policies: all data sets and seeds of a call train as one program.

Axes: R runs (data sets × seeds), U updates of a chunk, B rows of a batch, S and A columns of state and action.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from mocoda.agents import Agent, Batch, Stage, make_agent
from mocoda.agents.agent import TARGET
from mocoda.evaluation import episode_noise, rollout
from mocoda.files import VERSION, InputError
from mocoda.networks import Weights, half_precision, mlp_weights
from mocoda.policies import Policies, Policy, agent_settings, unscaled
from mocoda.randomness import Stream
from mocoda.tasks import Task
from mocoda.training import (
    Adam,
    Captured,
    Checkpoint,
    Progress,
    Tensors,
    Work,
    fast_products,
    fingerprint,
    in_turn,
    silent,
)
from mocoda.transitions import Transitions

CHUNK = 100  # updates at a time, at most: one CUDA graph


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
    progress: Progress = silent,
) -> Policies:
    """Trains an agent per data set and seed, on the device the data is on; each is what it would be if trained alone.

    datasets        by name: a table for all seeds, or one table per seed
    agent           "td3-bc", "bcq", "cql", "sac", or one made by `make_agent` or by you
    task            gives the range of actions and the evaluations; without one, actions must lie in [-1, 1]
    evaluate_every  updates between evaluations of `episodes` episodes, whose results are the `curves` of the answer
    half            on a GPU, keep hidden layers in bfloat16: a quarter faster, and less precise
    checkpoint      a file to continue from if it exists, and to save progress to; the result is the same either way
    """
    agent = make_agent(agent) if isinstance(agent, str) else agent
    for name, number in (("updates", updates), ("evaluate_every", evaluate_every), ("episodes", episodes)):
        if number < 1:
            raise InputError(f"{name} must be at least 1, got {number}.")
    runs = _runs(datasets, list(seeds))
    table = _Table.of(runs, task)
    streams = [Stream(run.seed, "agent", agent.name, device=table.device) for run in runs]
    with fast_products(table.device), half_precision(half):
        learner = _Learner.of(agent, table, streams)
        evaluator = None if task is None else _Evaluator(learner, task, episodes)
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
        curves: list[Tensor] = []
        if done:
            learner.restore(tensors)
            curves = list(tensors["curves"].to(table.device))
        stages = agent.stages()
        total = sum(stage.updates or updates for stage in stages)
        for chunk in _chunks(stages, updates, evaluate_every):
            if chunk.before + chunk.updates <= done:
                continue
            losses = learner.learn(chunk)  # (U, G, R)
            _check_finite(losses, chunk, runs, learner)
            if chunk.evaluated and evaluator is not None:
                curves.append(evaluator.measure(len(curves)))
            now = chunk.before + chunk.updates
            progress(f"agents {agent.name}", now, total)
            saved.offer(now, lambda: {**learner.tensors(), "curves": _stacked(curves, len(runs), table.device)})
    return Policies(
        {(run.name, run.seed): learner.policy(number) for number, run in enumerate(runs)},
        _curves(_stacked(curves, len(runs), table.device), evaluate_every),
    )


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
            yield _Chunk(number, before, start, count, evaluated)
            before, start = before + count, start + count


@dataclass(frozen=True, eq=False)
class _Table:
    """All data sets as one table on the device, each stored once; runs know where theirs begins."""

    rows: Tensor  # (N, S + A + 1 + S + 1): state, action in [-1, 1], reward, next state, terminal
    offset: Tensor  # (R,)
    length: Tensor  # (R,)
    state_width: int
    action_width: int
    bounds: tuple[Tensor, Tensor]  # lowest and highest action, (A,) each

    @property
    def device(self) -> torch.device:
        return self.rows.device

    @staticmethod
    def of(runs: Sequence[_Run], task: Task | None) -> _Table:
        distinct = {id(run.data): run for run in runs}
        first = runs[0].data
        bounds = _bounds(list(distinct.values()), task)
        parts, place = [], {}
        begin = 0
        for key, run in distinct.items():
            data = run.data
            assert data.reward is not None
            place[key] = begin
            begin += len(data)
            columns = [data.state, unscaled(data.action, *bounds), data.reward[:, None], data.next_state]
            parts.append(torch.cat([*columns, data.terminal[:, None].float()], 1))
        return _Table(
            torch.cat(parts),
            torch.tensor([place[id(run.data)] for run in runs], device=first.device),
            torch.tensor([len(run.data) for run in runs], device=first.device),
            first.state.shape[1],
            first.action.shape[1],
            bounds,
        )

    def batch(self, index: Tensor) -> Batch:
        """The rows (R, B) of all runs, one gather."""
        widths = [self.state_width, self.action_width, 1, self.state_width, 1]
        state, action, reward, next_state, terminal = self.rows[index].split(widths, -1)
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
        networks = agent.networks(table.state_width, table.action_width)
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
        own = {n: w[run].detach().clone() for n, w in self.weights.items() if not n.startswith(TARGET)}
        return Policy(self.agent, self.table.state_width, own, *self.table.bounds)

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


class _Evaluator:
    """Episodes of all runs between updates, as one program."""

    def __init__(self, learner: _Learner, task: Task, episodes: int) -> None:
        self.learner, self.task, self.episodes = learner, task, episodes
        self._captured = Captured(self._measures, learner.table.device)

    def measure(self, number: int) -> Tensor:
        """Mean steps, success and return of every run's episodes, (3, R). Each run has starts of its own seed."""
        table, agent = self.learner.table, self.learner.agent
        streams = [stream.child("evaluation", number) for stream in self.learner.streams]
        start = [self.task.start(self.episodes, seed=stream, device=table.device) for stream in streams]
        noise = episode_noise(agent, streams, self.task, self.episodes, table.action_width)
        return self._captured({"start": torch.stack(start), **noise})

    @torch.no_grad()
    def _measures(self, tensors: Tensors, phase: int) -> Tensor:
        noise = {name: value for name, value in tensors.items() if name != "start"}
        learner = self.learner
        made = rollout(learner.agent, learner.weights, self.task, tensors["start"], noise, learner.table.bounds)
        return torch.stack([made.steps.mean(-1), made.success.mean(-1), made.reward.mean(-1)])


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
    lowest, highest = (end[states:].to(data.device) for end in task.box)
    return lowest, highest


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


def _stacked(curves: list[Tensor], runs: int, device: torch.device) -> Tensor:
    """(K, 3, R), also where there are none yet."""
    return torch.stack(curves) if curves else torch.zeros(0, 3, runs, device=device)


def _curves(measured: Tensor, every: int) -> dict[str, Tensor]:
    updates = every * torch.arange(1, len(measured) + 1)
    steps, success, reward = measured.cpu().permute(1, 2, 0)
    return {"updates": updates, "steps": steps, "success": success, "return": reward}
