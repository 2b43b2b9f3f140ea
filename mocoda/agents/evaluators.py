"""Evaluations of agents during training, in this process or in others.

Axes: R runs, K evaluations.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from mocoda.agents.agent import Agent
from mocoda.agents.batches import Run, RunTable
from mocoda.agents.episodes import Job, Played, gather, jobs, play
from mocoda.agents.evaluation import MEASURES, episode_noise, means, rollout
from mocoda.agents.policy import Policy
from mocoda.engine.metrics import Metric
from mocoda.engine.networks import Weights
from mocoda.engine.optimise import Captured, Tensors
from mocoda.engine.randomness import Stream
from mocoda.engine.workers import Workers
from mocoda.tasks import SimulatedTask, Task, is_simulated

MAX_PENDING = 2  # evaluations in other processes at a time


class Learner(Protocol):
    """What evaluators need of a training."""

    agent: Agent
    table: RunTable
    streams: Sequence[Stream]  # one per run
    weights: dict[str, Tensor]  # (R, ...) each

    def policies(self) -> list[Policy]: ...

    def for_raw_inputs(self, weights: Weights) -> dict[str, Tensor]: ...


@dataclass(eq=False)
class Evaluator:
    """Evaluations between updates. This one makes none: there is no task."""

    learner: Learner
    results: list[Tensor] = field(default_factory=list)  # mean steps, success and return of each run's episodes, (3, R)
    reported: int = 0  # how many of them `new_metrics` has returned

    def begin(self) -> None:
        """Evaluates the agents as they are now."""

    def curves(self) -> Tensor:
        """The results of all evaluations that were begun, (K, 3, R)."""
        none = torch.zeros(0, 3, len(self.learner.streams), device=self.learner.table.device)
        return torch.stack(self.results) if self.results else none

    def new_metrics(self, every: int, runs: Sequence[Run]) -> list[Metric]:
        """The results since the last call, of evaluations after every so many updates."""
        new = list(enumerate(self.results, 1))[self.reported :]
        self.reported = len(self.results)
        return [
            metric
            for number, result in new
            for name, values in zip(MEASURES, result, strict=True)
            for metric in metrics_of(runs, every * number, name, values)
        ]


class _SimulatedEvaluator(Evaluator):
    """Plays the episodes of all runs as one program, while the training waits."""

    def __init__(self, learner: Learner, task: SimulatedTask, episodes: int) -> None:
        super().__init__(learner)
        self.task, self.episodes = task, episodes
        self._captured = Captured(self._measure, learner.table.device)

    def begin(self) -> None:
        table, agent = self.learner.table, self.learner.agent
        streams = [stream.child("evaluation", len(self.results)) for stream in self.learner.streams]
        start = [self.task.start(self.episodes, seed=stream, device=table.device) for stream in streams]
        noise = episode_noise(agent, streams, self.task, self.episodes, table.action_width)
        self.results.append(self._captured({"start": torch.stack(start), **noise}))

    @torch.no_grad()
    def _measure(self, tensors: Tensors, phase: int) -> Tensor:
        noise = {name: value for name, value in tensors.items() if name != "start"}
        learner = self.learner
        weights = learner.for_raw_inputs(learner.weights)
        episodes = rollout(learner.agent, weights, self.task, tensors["start"], noise, learner.table.action_range)
        return torch.stack([measure.mean(-1) for measure in episodes[:3]])


class _EnvironmentEvaluator(Evaluator):
    """Plays the episodes of all runs in other processes, while the training goes on."""

    def __init__(self, learner: Learner, environment: str, episodes: int, workers: Workers[Job, Played]) -> None:
        super().__init__(learner)
        self.environment, self.episodes, self.workers = environment, episodes, workers
        self._pending: deque[list[int]] = deque()  # the jobs of every evaluation whose result is not yet known

    def begin(self) -> None:
        if len(self._pending) == MAX_PENDING:
            self._await_first()
        number = len(self.results) + len(self._pending)
        streams = [stream.child("evaluation", number) for stream in self.learner.streams]
        todo = [
            job
            for policy, stream in zip(self.learner.policies(), streams, strict=True)
            for job in jobs(policy, self.environment, self.episodes, stream)
        ]
        self._pending.append([self.workers.submit(job) for job in todo])

    def curves(self) -> Tensor:
        while self._pending:
            self._await_first()
        return super().curves()

    def _await_first(self) -> None:
        parts = [self.workers.result(number) for number in self._pending.popleft()]
        played = gather(parts, len(self.learner.streams))
        self.results.append(means(played).to(self.learner.table.device, torch.float32))


def metrics_of(runs: Sequence[Run], update: int, name: str, values: Tensor) -> list[Metric]:
    """One metric per run, from values (R,)."""
    return [Metric(update, run.name, run.seed, name, value) for run, value in zip(runs, values.tolist(), strict=True)]


@contextmanager
def make_evaluator(learner: Learner, task: Task | None, episodes: int, workers: int | None) -> Iterator[Evaluator]:
    """The evaluator that the task needs, with its processes as long as the block lasts."""
    if task is None:
        yield Evaluator(learner)
    elif is_simulated(task):
        yield _SimulatedEvaluator(learner, task, episodes)
    else:
        with Workers(play, workers) as processes:
            yield _EnvironmentEvaluator(learner, task.environment, episodes, processes)
