"""Evaluation of policies: episodes of many agents at once, during and after training, and statistics over seeds.

Episodes of a simulated task are batches of tensors; episodes of any other task are played in its Gymnasium environment,
in worker processes, several episodes of a policy side by side.

Axes: R runs, E episodes, K evaluations, T steps, S and A columns of state and action, O of an observation (state and
goal).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, count, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import numpy as np
import rich.table
import torch
from numpy.typing import NDArray
from rich.markup import escape
from torch import Tensor

from mocoda.agents.agent import Agent, Noise
from mocoda.agents.policy import Policy, acting_weights, agent_settings, to_task_range
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.metrics import Metric
from mocoda.engine.networks import Weights
from mocoda.engine.optimise import Captured, Tensors
from mocoda.engine.printed import Printed
from mocoda.engine.randomness import Stream, as_stream
from mocoda.engine.statistics import Summary, probability_of_improvement, summarise
from mocoda.engine.workers import Workers
from mocoda.tasks.task import Environment, SimulatedTask, Task, environment_action, make_environment

if TYPE_CHECKING:
    from mocoda.agents.train import Learner, Run

Floats = NDArray[np.float32]
MEASURES = {"steps": "fewer is better", "success": "more is better", "return": "more is better"}
SIDE_BY_SIDE = 25  # maximum number of episodes of a job, each in its own copy of the environment
MAX_PENDING = 2  # evaluations in other processes at a time


def is_simulated(task: object) -> TypeGuard[SimulatedTask]:
    """Returns whether episodes of a task run as batches of tensors, without its environment."""
    return all(hasattr(task, name) for name in ("step", "horizon", "start"))


def can_be_played(task: object) -> bool:
    """Returns whether agents can be evaluated in a task."""
    return is_simulated(task) or getattr(task, "environment", None) is not None


@dataclass(frozen=True, eq=False)
class Evaluation(Printed):
    """The results of all agents; prints as a table with one line per data set.

    values  measure -> (data set, seed) -> mean over the episodes
    """

    values: Mapping[str, Mapping[tuple[str, int], float]]
    episodes: int

    def __getitem__(self, measure: str) -> Mapping[tuple[str, int], float]:
        if measure not in self.values:
            raise unknown_name("measure", measure, self.values)
        return self.values[measure]

    @property
    def datasets(self) -> list[str]:
        return list(dict.fromkeys(data for data, _ in self.values["steps"]))

    def over_seeds(self, measure: str, data: str) -> list[float]:
        """Returns the values of a data set, one per seed."""
        if data not in self.datasets:
            raise unknown_name("data set", data, self.datasets)
        return [value for (name, _), value in self[measure].items() if name == data]

    def summary(self, measure: str, data: str) -> Summary:
        """Returns mean, standard deviation, interquartile mean (IQM) and 95% CI over the seeds of a data set."""
        return summarise(self.over_seeds(measure, data))

    def improvement(self, data: str, over: str, measure: str = "steps") -> float:
        """Returns the probability that a seed of `data` does better than a seed of `over`."""
        ours, theirs = self.over_seeds(measure, data), self.over_seeds(measure, over)
        return probability_of_improvement(ours, theirs, lower_is_better=MEASURES[measure] == "fewer is better")

    def to_json(self) -> dict[str, Any]:
        """Returns all values and summaries as JSON values."""
        runs = [
            {"data": data, "seed": seed} | {measure: values[data, seed] for measure, values in self.values.items()}
            for data, seed in self.values["steps"]
        ]
        summaries = {name: {one: self.summary(one, name)._asdict() for one in self.values} for name in self.datasets}
        return {"episodes": self.episodes, "runs": runs, "summaries": summaries}

    def __rich__(self) -> rich.table.Table:
        """Makes the table: mean ± standard deviation over seeds; IQM, CI and improvement are about the steps."""
        first, seeds = self.datasets[0], len(self.over_seeds("steps", self.datasets[0]))
        table = rich.table.Table(title=f"{self.episodes} episodes per seed, seeds: {seeds}")
        for column in ("data", "steps", "IQM", "95% CI", f"better than {first}", "success", "return"):
            table.add_column(column, justify="left" if column == "data" else "right")
        for data in self.datasets:
            steps, success, reward = (self.summary(measure, data) for measure in ("steps", "success", "return"))
            table.add_row(
                escape(data),
                f"{steps.mean:.1f} ± {steps.std:.1f}",
                f"{steps.iqm:.1f}",
                f"{steps.low:.1f} to {steps.high:.1f}",
                "" if data == first else f"{self.improvement(data, first):.0%}",
                f"{success.mean:.0%}",
                f"{reward.mean:.1f} ± {reward.std:.1f}",
            )
        return table


def evaluate(
    agents: Mapping[tuple[str, int], Policy],
    task: Task,
    *,
    episodes: int = 50,
    seed: int = 0,
    workers: int | None = None,
) -> Evaluation:
    """Evaluates every agent in the task, in the same `episodes` episodes for all agents.

    workers  number of processes, if the task is played in its environment; None: one per core. The result is the same
    """
    if not agents:
        raise InputError("there are no agents to evaluate.")
    if episodes < 1:
        raise InputError(f"episodes must be at least 1, got {episodes}.")
    results: dict[tuple[str, int], list[float]] = {}
    if is_simulated(task):
        for keys in _stackable(agents):
            together = play_simulated([agents[key] for key in keys], task, episodes=episodes, seed=seed)
            results |= dict(zip(keys, means(together).T.tolist(), strict=True))
    elif not can_be_played(task):
        raise InputError(
            f"the task {task.name!r} has no environment to evaluate agents in: make_task(environment=...)."
        )
    else:
        played = play_in_environment(list(agents.values()), task, episodes=episodes, seed=seed, workers=workers)
        results = dict(zip(agents, means(played).T.tolist(), strict=True))
    return Evaluation(
        {measure: {key: results[key][i] for key in agents} for i, measure in enumerate(MEASURES)}, episodes
    )


def _stackable(agents: Mapping[tuple[str, int], Policy]) -> list[list[tuple[str, int]]]:
    """Groups the keys of agents whose weights can be stacked."""
    kinds: dict[str, list[tuple[str, int]]] = {}
    for key, policy in agents.items():
        ends = (policy.action_low.tolist(), policy.action_high.tolist())
        kind = repr((agent_settings(policy.agent), policy.state_width, ends, policy.device))
        kinds.setdefault(kind, []).append(key)
    return list(kinds.values())


def means(episodes: Episodes | Played) -> Tensor:
    """Returns every run's mean steps, success and return, (3, R)."""
    return torch.stack([torch.as_tensor(measure) for measure in episodes[:3]]).double().mean(-1)


# --- episodes of a simulated task


class Episodes(NamedTuple):
    """The results of simulated episodes. An episode that does not end in time counts as the whole horizon."""

    steps: Tensor  # (R, E)
    success: Tensor  # (R, E), 1.0 where it ended in time
    reward: Tensor  # (R, E), the sum over the episode
    path: Tensor  # (steps + 1, R, E, S) if it was kept, until all have ended; an ended episode stays where it is


def play_simulated(
    policies: list[Policy], task: SimulatedTask, *, episodes: int, seed: int, keep_path: bool = False
) -> Episodes:
    """Plays episodes of agents of one kind, all from the same starts and with the same noise."""
    first, runs = policies[0], len(policies)
    stream = Stream(seed, "evaluate", device=first.device)
    start = task.start(episodes, seed=stream, device=first.device)
    if start.shape[1] != first.state_width:
        raise InputError(
            f"the agents were trained on states of {first.state_width} columns, but the task starts in states of "
            f"{start.shape[1]}. Evaluate them on the task they were trained for."
        )
    weights = {name: torch.stack([policy.weights[name] for policy in policies]) for name in first.weights}
    noise = episode_noise(first.agent, [stream.child("noise")], task, episodes, first.action_width)
    noise = {name: value.expand(len(value), runs, *value.shape[2:]) for name, value in noise.items()}
    bounds = first.action_low, first.action_high
    with torch.no_grad():
        return rollout(first.agent, weights, task, start.expand(runs, *start.shape), noise, bounds, keep_path)


def rollout(
    agent: Agent,
    weights: Weights,
    task: SimulatedTask,
    start: Tensor,
    noise: Noise,
    action_range: tuple[Tensor, Tensor],
    keep_path: bool = False,
) -> Episodes:
    """Plays all episodes of all runs side by side, from states (R, E, S) with noise (T, R, E, ...)."""
    state = start
    going = torch.ones_like(start[..., 0], dtype=torch.bool)
    steps, reward = torch.zeros_like(start[..., 0]), torch.zeros_like(start[..., 0])
    path = [state]
    for step in range(task.horizon):
        action = agent.act(weights, state, {name: value[step] for name, value in noise.items()})
        rows = torch.cat([state, to_task_range(action, *action_range)], -1).flatten(0, 1)
        next_state = task.step(rows)
        gained, ended = task.label(*rows.split([state.shape[-1], action.shape[-1]], 1), next_state)
        steps = steps + going
        reward = reward + torch.where(going, gained.reshape(going.shape), 0.0)
        state = torch.where(going[..., None], next_state.reshape(state.shape), state)
        going = going & ~ended.reshape(going.shape)
        if keep_path:
            path.append(state)
        if start.device.type == "cpu" and not bool(going.any()):  # a GPU would have to wait to know
            break
    return Episodes(steps, (~going).float(), reward, torch.stack(path))


def episode_noise(
    agent: Agent, streams: list[Stream], task: SimulatedTask, episodes: int, action: int
) -> dict[str, Tensor]:
    """Draws every run's random numbers for acting throughout its episodes, (T, R, E, ...) each."""
    drawn = [agent.acting_noise(stream, task.horizon * episodes, action) for stream in streams]
    return {
        name: torch.stack([own[name].unflatten(0, (task.horizon, episodes)) for own in drawn], 1) for name in drawn[0]
    }


# --- episodes in an environment


class Played(NamedTuple):
    """The results of episodes in an environment."""

    steps: Floats  # (R, E)
    success: Floats  # (R, E), 1.0 where the environment reports success; if it reports nothing, where it terminated
    reward: Floats  # (R, E), the sum over the episode
    first: Floats  # (R, E, O), the first observation
    last: Floats  # (R, E, O), the last observation


class Job(NamedTuple):
    """One policy, as arrays (torch would send tensors as shared memory), and the episodes that it plays."""

    environment: Environment
    agent: Agent
    weights: Mapping[str, Floats]
    action_range: tuple[Floats, Floats]  # low and high, (A,) each
    width: int  # of the observations it was trained on
    seeds: list[int]  # of the resets
    stream: tuple[int, tuple[str | int, ...]]  # seed and labels of the stream of its acting noise


def play_in_environment(
    policies: Sequence[Policy], task: Task, *, episodes: int, seed: int, workers: int | None = None
) -> Played:
    """Plays episodes of every policy in the task's environment, all from the same resets and with the same noise.

    workers  number of processes; None: one per core. The result is the same
    """
    stream = Stream(seed, "evaluate")
    todo = (job for policy in policies for job in jobs(policy, task.environment, episodes, stream))
    with Workers(play, workers) as processes:
        return gather(processes.map(todo), len(policies))


def jobs(policy: Policy, environment: Environment, episodes: int, stream: Stream) -> Iterator[Job]:
    """Splits a policy's episodes into jobs; resets and noise come from the stream, on the CPU."""
    seeds: list[int] = as_stream(stream, "resets", device="cpu").integers(2**31, episodes).tolist()
    weights = {name: weight.cpu().numpy() for name, weight in acting_weights(policy.agent, policy.weights).items()}
    action_range = policy.action_low.cpu().numpy(), policy.action_high.cpu().numpy()
    for start in range(0, episodes, SIDE_BY_SIDE):
        part = seeds[start : start + SIDE_BY_SIDE]
        noise = stream.seed, (*stream.labels, "noise", start)
        yield Job(environment, policy.agent, weights, action_range, policy.state_width, part, noise)


def gather(parts: Iterable[Played], runs: int) -> Played:
    """Joins the results of all jobs, run after run, to arrays (R, E, ...)."""
    joined = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return Played(*(column.reshape(runs, -1, *column.shape[1:]) for column in joined))


def play(job: Job) -> Played:
    """Plays a job's episodes side by side, (E, ...): the policy acts in all of them at once."""
    weights = {name: torch.from_numpy(weight) for name, weight in job.weights.items()}
    low, high = map(torch.from_numpy, job.action_range)
    policy = Policy(job.agent, job.width, weights, low, high)
    environments = [make_environment(job.environment) for _ in job.seeds]
    first = np.stack([flat(copy.reset(seed=seed)[0]) for copy, seed in zip(environments, job.seeds, strict=True)])
    if first.shape[1] != job.width:
        raise InputError(
            f"the agents were trained on {job.width} columns of state and goal, but {job.environment!r} shows "
            f"{first.shape[1]}. Evaluate them on the task they were trained for."
        )
    steps, success, total = np.zeros((3, len(first)), np.float32)
    last, going = first.copy(), np.ones(len(first), bool)
    seed, labels = job.stream
    for step in count():
        action = np.asarray(policy.act(last, seed=Stream(seed, *labels, step)))
        for i in np.flatnonzero(going):
            observation, reward, terminated, truncated, info = environments[i].step(
                environment_action(environments[i].action_space, action[i])
            )
            steps[i] += 1
            total[i] += reward
            success[i] = info.get("is_success", terminated)
            last[i] = flat(observation)
            going[i] = not (terminated or truncated)
        if not going.any():
            break
    for environment in environments:
        environment.close()
    return Played(steps, success, total, first, last)


def flat(observation: Any) -> Floats:
    """Returns an observation as agents see it, (O,): the state, followed by the goal if there is one."""
    if isinstance(observation, Mapping):
        return np.concatenate([observation["observation"], observation["desired_goal"]]).astype(np.float32)
    return np.asarray(observation, np.float32)


# --- evaluations during training


@dataclass(eq=False)
class Evaluator:
    """Evaluates the agents between updates of their training. This one does nothing: there is no task."""

    learner: Learner
    task: Any = None
    episodes: int = 0
    results: list[Tensor] = field(default_factory=list)  # mean steps, success and return of each run's episodes, (3, R)
    reported: int = 0  # number of results that `new_metrics` has returned

    def begin(self) -> None:
        """Evaluates the agents as they are now."""

    def streams(self, number: int) -> list[Stream]:
        """The runs' sources of random numbers for evaluation `number`."""
        return [stream.child("evaluation", number) for stream in self.learner.streams]

    def curves(self) -> Tensor:
        """Returns the results of all evaluations so far, (K, 3, R)."""
        none = torch.zeros(0, 3, len(self.learner.streams), device=self.learner.table.device)
        return torch.stack(self.results) if self.results else none

    def new_metrics(self, every: int, runs: Sequence[Run]) -> list[Metric]:
        """Returns the results since the last call, of evaluations at `every` updates."""
        new = list(enumerate(self.results, 1))[self.reported :]
        self.reported = len(self.results)
        return [
            Metric(every * number, run.name, run.seed, name, value)
            for number, result in new
            for name, values in zip(MEASURES, result.tolist(), strict=True)
            for run, value in zip(runs, values, strict=True)
        ]


@dataclass(eq=False)
class _SimulatedEvaluator(Evaluator):
    """Plays the episodes of all runs as one program while the training waits."""

    def __post_init__(self) -> None:
        self._captured = Captured(self._measure, self.learner.table.device)

    def begin(self) -> None:
        table, streams = self.learner.table, self.streams(len(self.results))
        start = torch.stack([self.task.start(self.episodes, seed=stream, device=table.device) for stream in streams])
        noise = episode_noise(self.learner.agent, streams, self.task, self.episodes, table.action_width)
        self.results.append(self._captured({"start": start, **noise}))

    @torch.no_grad()
    def _measure(self, tensors: Tensors, phase: int) -> Tensor:
        noise = {name: value for name, value in tensors.items() if name != "start"}
        learner = self.learner
        weights = learner.for_raw_inputs(learner.weights)
        episodes = rollout(learner.agent, weights, self.task, tensors["start"], noise, learner.table.action_range)
        return torch.stack([measure.mean(-1) for measure in episodes[:3]])


@dataclass(eq=False)
class _EnvironmentEvaluator(Evaluator):
    """Plays the episodes of all runs in other processes while the training goes on."""

    workers: Workers[Job, Played] = field(kw_only=True)
    pending: deque[list[Future[Played]]] = field(default_factory=deque)  # the jobs of evaluations without a result yet

    def begin(self) -> None:
        if len(self.pending) == MAX_PENDING:
            self._await_first()
        acting = acting_weights(self.learner.agent, self.learner.weights)
        policies = self.learner.policies(acting, torch.device("cpu"))
        streams = self.streams(len(self.results) + len(self.pending))
        todo = map(jobs, policies, repeat(self.task.environment), repeat(self.episodes), streams)
        self.pending.append([self.workers.submit(job) for job in chain.from_iterable(todo)])

    def curves(self) -> Tensor:
        while self.pending:
            self._await_first()
        return super().curves()

    def _await_first(self) -> None:
        parts = [future.result() for future in self.pending.popleft()]
        played = gather(parts, len(self.learner.streams))
        self.results.append(means(played).to(self.learner.table.device, torch.float32))


@contextmanager
def make_evaluator(learner: Learner, task: Task | None, episodes: int, workers: int | None) -> Iterator[Evaluator]:
    """Yields the evaluator that the task needs; its processes live as long as the block."""
    if task is None or not can_be_played(task):
        yield Evaluator(learner)
    elif is_simulated(task):
        yield _SimulatedEvaluator(learner, task, episodes)
    else:
        with Workers(play, workers) as processes:
            yield _EnvironmentEvaluator(learner, task, episodes, workers=processes)
