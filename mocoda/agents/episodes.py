"""Episodes of policies in a Gymnasium environment, played in worker processes, several of a policy side by side.

Axes: R runs, E episodes, O columns of an observation (of state and goal), A of an action.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from mocoda.agents.agent import Agent
from mocoda.agents.policy import Policy, acting_weights
from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Stream, as_stream
from mocoda.engine.workers import Workers
from mocoda.tasks import Task

Floats = NDArray[np.float32]

SIDE_BY_SIDE = 25  # episodes of a job at most: as many copies of the environment live in every process


class Played(NamedTuple):
    """The results of every episode."""

    steps: Floats  # (R, E)
    success: Floats  # (R, E), 1.0 where the environment says so, or where it terminated if it says nothing
    reward: Floats  # (R, E), the sum over the episode
    first: Floats  # (R, E, O), the observation it started with
    last: Floats  # (R, E, O), and the one it ended with


class Job(NamedTuple):
    """One policy, as arrays (torch would send tensors as shared memory), and the episodes that it plays."""

    environment: str
    agent: Agent
    weights: Mapping[str, Floats]
    action_range: tuple[Floats, Floats]  # low and high, (A,) each
    width: int  # of the observations it was trained on
    seeds: list[int]  # of the resets
    stream: tuple[int, tuple[str | int, ...]]  # seed and labels of what it draws to act


def played_in_environment(
    policies: Sequence[Policy], task: Task, *, episodes: int, seed: int, workers: int | None = None
) -> Played:
    """Plays episodes of every policy in the task's environment, all from the same resets and with the same noise.

    workers  how many processes play; None: one per core. The result is the same
    """
    return played_in_each(policies, [task], episodes=episodes, seed=seed, workers=workers)[0]


def played_in_each(
    policies: Sequence[Policy], tasks: Sequence[Task], *, episodes: int, seed: int, workers: int | None = None
) -> list[Played]:
    """As `played_in_environment` in each of the tasks alone, with all episodes shared out among the same processes."""
    stream = Stream(seed, "evaluate")
    todo = (job for task in tasks for policy in policies for job in jobs(policy, task.environment, episodes, stream))
    with Workers(play, workers) as processes:
        parts = processes.map(todo)
        jobs_each = len(policies) * -(-episodes // SIDE_BY_SIDE)
        return [gather(itertools.islice(parts, jobs_each), len(policies)) for _ in tasks]


def jobs(policy: Policy, environment: str, episodes: int, stream: Stream) -> Iterator[Job]:
    """A policy's episodes in parts that are played side by side; resets and noise come from the stream, on the CPU."""
    seeds: list[int] = as_stream(stream, "resets", device="cpu").integers(2**31, episodes).tolist()
    weights = {name: weight.cpu().numpy() for name, weight in acting_weights(policy.agent, policy.weights).items()}
    action_range = policy.action_low.cpu().numpy(), policy.action_high.cpu().numpy()
    for start in range(0, episodes, SIDE_BY_SIDE):
        part = seeds[start : start + SIDE_BY_SIDE]
        noise = stream.seed, (*stream.labels, "noise", start)
        yield Job(environment, policy.agent, weights, action_range, policy.state_width, part, noise)


def gather(parts: Iterable[Played], runs: int) -> Played:
    """Joins the parts of all runs, run after run, to arrays (R, E, ...)."""
    joined = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return Played(*(column.reshape(runs, -1, *column.shape[1:]) for column in joined))


def play(job: Job) -> Played:
    """Plays a job's episodes side by side, (E, ...): the policy acts in all of them at once."""
    weights = {name: torch.from_numpy(weight) for name, weight in job.weights.items()}
    low, high = map(torch.from_numpy, job.action_range)
    policy = Policy(job.agent, job.width, weights, low, high)
    environments = _environments(job.environment, len(job.seeds))
    first = np.stack([flat(copy.reset(seed=seed)[0]) for copy, seed in zip(environments, job.seeds, strict=True)])
    if first.shape[1] != job.width:
        raise InputError(
            f"the agents were trained on {job.width} columns of state and goal, but {job.environment!r} shows "
            f"{first.shape[1]}. Evaluate them on the task they were trained for."
        )
    steps, success, total = np.zeros((3, len(first)), np.float32)
    last, going = first.copy(), np.ones(len(first), bool)
    seed, labels = job.stream
    for step in itertools.count():
        action = np.asarray(policy.act(last, seed=Stream(seed, *labels, step)))
        for i in np.flatnonzero(going):
            observation, reward, terminated, truncated, info = environments[i].step(action[i])
            steps[i] += 1
            total[i] += reward
            success[i] = info.get("is_success", terminated)
            last[i] = flat(observation)
            going[i] = not (terminated or truncated)
        if not going.any():
            break
    return Played(steps, success, total, first, last)


def flat(observation: Any) -> Floats:
    """An observation as the agents see it, (O,): the state, and beside it the goal if there is one."""
    if isinstance(observation, Mapping):
        return np.concatenate([observation["observation"], observation["desired_goal"]]).astype(np.float32)
    return np.asarray(observation, np.float32)


_copies: dict[str, list[gymnasium.Env[Any, Any]]] = {}


def _environments(name: str, count: int) -> list[gymnasium.Env[Any, Any]]:
    """Copies of an environment, which this process keeps for its next job."""
    copies = _copies.setdefault(name, [])
    while len(copies) < count:
        copies.append(gymnasium.make(name, disable_env_checker=True))
    return copies[:count]
