"""agents in training -> curves: evaluations between updates, here or in other processes.

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
from mocoda.agents.episodes import Job, Played, gathered, jobs, play
from mocoda.agents.evaluation import MEASURES, episode_noise, means, rollout
from mocoda.agents.policy import Policy
from mocoda.engine.metrics import Metric
from mocoda.engine.networks import Weights
from mocoda.engine.optimise import Captured, Tensors
from mocoda.engine.randomness import Stream
from mocoda.engine.workers import Workers
from mocoda.tasks import SimulatedTask, Task, is_simulated

UNDER_WAY = 2  # evaluations in other processes, at most


class Learner(Protocol):
    """What evaluators ask of those that learn."""

    agent: Agent
    table: RunTable
    streams: Sequence[Stream]  # one a run
    weights: dict[str, Tensor]  # (R, ...) each

    def acting(self) -> list[Policy]: ...

    def for_raw_inputs(self, weights: Weights) -> dict[str, Tensor]: ...


@dataclass(eq=False)
class Evaluator:
    """Evaluations between updates; none, without a task."""

    learner: Learner
    found: list[Tensor] = field(default_factory=list)  # mean steps, success and return of every run's episodes, (3, R)
    told: int = 0  # how many of them were news

    def begin(self) -> None:
        """Evaluates the agents as they are now."""

    def curves(self) -> Tensor:
        """What all evaluations that were begun have found, (K, 3, R)."""
        none = torch.zeros(0, 3, len(self.learner.streams), device=self.learner.table.device)
        return torch.stack(self.found) if self.found else none

    def news(self, every: int, runs: Sequence[Run]) -> list[Metric]:
        """What was found since this was last asked, of evaluations after every so many updates."""
        new = list(enumerate(self.found, 1))[self.told :]
        self.told = len(self.found)
        return [
            metric
            for number, found in new
            for name, values in zip(MEASURES, found, strict=True)
            for metric in of_runs(every * number, name, values, runs)
        ]


class _SimulatedEvaluator(Evaluator):
    """Episodes of all runs as one program, while the training waits."""

    def __init__(self, learner: Learner, task: SimulatedTask, episodes: int) -> None:
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


class _EnvironmentEvaluator(Evaluator):
    """Episodes of all runs in other processes, while the training goes on."""

    def __init__(self, learner: Learner, environment: str, episodes: int, workers: Workers[Job, Played]) -> None:
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


def of_runs(update: int, name: str, values: Tensor, runs: Sequence[Run]) -> list[Metric]:
    """A number (R,) of every run."""
    return [Metric(update, run.name, run.seed, name, value) for run, value in zip(runs, values.tolist(), strict=True)]


@contextmanager
def evaluated(learner: Learner, task: Task | None, episodes: int, workers: int | None) -> Iterator[Evaluator]:
    """An evaluator, and its processes as long as they are needed."""
    if task is None:
        yield Evaluator(learner)
    elif is_simulated(task):
        yield _SimulatedEvaluator(learner, task, episodes)
    else:
        with Workers(play, workers) as processes:
            yield _EnvironmentEvaluator(learner, task.environment, episodes, processes)
