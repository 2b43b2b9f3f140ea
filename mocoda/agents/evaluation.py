"""Evaluation of trained policies: episodes of all of them at once, and statistics over seeds.

Episodes of a simulated task are batches of tensors, played here; those of any other task are played in its environment.

Axes: R runs, E episodes, S and A columns of state and action, T steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import rich.console
import rich.table
import torch
from torch import Tensor

from mocoda.agents.agent import Agent, Noise
from mocoda.agents.episodes import Played, played_in_each
from mocoda.agents.policy import Policy, agent_settings, to_task_range
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.networks import Weights
from mocoda.engine.randomness import Stream
from mocoda.engine.statistics import Summary, probability_of_improvement, summarise
from mocoda.tasks import SimulatedTask, Task, is_simulated

Key = TypeVar("Key")
MEASURES = {"steps": "fewer is better", "success": "more is better", "return": "more is better"}


class Episodes(NamedTuple):
    """The results of every episode. One that does not end in time counts as the whole horizon."""

    steps: Tensor  # (R, E)
    success: Tensor  # (R, E), 1.0 where it ended in time
    reward: Tensor  # (R, E), the sum over the episode
    path: Tensor  # (steps + 1, R, E, S) if it was kept, until all have ended; an ended episode stays where it is


def rollout(
    agent: Agent,
    weights: Weights,
    task: SimulatedTask,
    start: Tensor,
    noise: Noise,
    action_range: tuple[Tensor, Tensor],
    keep_path: bool = False,
) -> Episodes:
    """Runs all episodes of all runs side by side, from states (R, E, S) with noise (T, R, E, ...)."""
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
    """Every run's random numbers to act throughout its episodes, (T, R, E, ...) each."""
    drawn = [agent.acting_noise(stream, task.horizon * episodes, action) for stream in streams]
    return {
        name: torch.stack([own[name].unflatten(0, (task.horizon, episodes)) for own in drawn], 1) for name in drawn[0]
    }


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The results of all agents; prints as a table with one line per data set.

    values  measure -> (data set, seed) -> its mean over the episodes
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
        """The data set's values, one per seed."""
        if data not in self.datasets:
            raise unknown_name("data set", data, self.datasets)
        return [value for (name, _), value in self[measure].items() if name == data]

    def summary(self, measure: str, data: str) -> Summary:
        """Mean, standard deviation, interquartile mean (IQM) and 95% CI over the data set's seeds."""
        return summarise(self.over_seeds(measure, data))

    def improvement(self, data: str, over: str, measure: str = "steps") -> float:
        """The probability that a seed of `data` does better than one of `over`."""
        ours, theirs = self.over_seeds(measure, data), self.over_seeds(measure, over)
        return probability_of_improvement(ours, theirs, lower_is_better=MEASURES[measure] == "fewer is better")

    def to_json(self) -> dict[str, Any]:
        """All values and summaries as JSON values."""
        runs = [
            {"data": data, "seed": seed} | {measure: self.values[measure][data, seed] for measure in self.values}
            for data, seed in self.values["steps"]
        ]
        summaries = {
            data: {measure: self.summary(measure, data)._asdict() for measure in self.values} for data in self.datasets
        }
        return {"episodes": self.episodes, "runs": runs, "summaries": summaries}

    def __rich__(self) -> rich.table.Table:
        """Mean ± standard deviation over seeds; IQM, CI and probability of improvement are of the steps."""
        first, seeds = self.datasets[0], len(self.over_seeds("steps", self.datasets[0]))
        table = rich.table.Table(title=f"{self.episodes} episodes per seed, seeds: {seeds}")
        for column in ("data", "steps", "IQM", "95% CI", f"better than {first}", "success", "return"):
            table.add_column(column, justify="left" if column == "data" else "right")
        for data in self.datasets:
            steps, success, reward = (self.summary(measure, data) for measure in ("steps", "success", "return"))
            table.add_row(
                data,
                f"{steps.mean:.1f} ± {steps.std:.1f}",
                f"{steps.iqm:.1f}",
                f"{steps.low:.1f} to {steps.high:.1f}",
                "" if data == first else f"{self.improvement(data, first):.0%}",
                f"{success.mean:.0%}",
                f"{reward.mean:.1f} ± {reward.std:.1f}",
            )
        return table

    def __str__(self) -> str:
        console = rich.console.Console(width=110, force_terminal=False, color_system=None)
        with console.capture() as text:
            console.print(self)
        return text.get().rstrip()


def evaluate(
    agents: Mapping[tuple[str, int], Policy],
    task: Task,
    *,
    episodes: int = 50,
    seed: int = 0,
    workers: int | None = None,
) -> Evaluation:
    """Lets every agent play the task from the same `episodes` starts, all of them side by side.

    workers  how many processes play, where the task needs its environment; None: one per core. The result is the same
    """
    return evaluate_each(agents, {0: task}, episodes=episodes, seed=seed, workers=workers)[0]


def evaluate_each(
    agents: Mapping[tuple[str, int], Policy],
    tasks: Mapping[Key, Task],
    *,
    episodes: int = 50,
    seed: int = 0,
    workers: int | None = None,
) -> dict[Key, Evaluation]:
    """Lets every agent play each of several tasks, as `evaluate` does one, with the same processes for all of them.

    tasks  by any name, such as `make_task("cube-double").officials`
    """
    if not agents:
        raise InputError("there are no agents to evaluate.")
    if episodes < 1:
        raise InputError(f"episodes must be at least 1, got {episodes}.")
    found: dict[Key, Evaluation] = {}
    for name, task in tasks.items():
        if is_simulated(task):
            results: dict[tuple[str, int], list[float]] = {}
            for keys in _alike(agents):
                together = played([agents[key] for key in keys], task, episodes=episodes, seed=seed)
                results |= dict(zip(keys, means(together).T.tolist(), strict=True))
            found[name] = _evaluation(agents, results, episodes)
    others = {name: task for name, task in tasks.items() if name not in found}
    policies = list(agents.values())
    played_each = played_in_each(policies, list(others.values()), episodes=episodes, seed=seed, workers=workers)
    for name, each in zip(others, played_each, strict=True):
        found[name] = _evaluation(agents, dict(zip(agents, means(each).T.tolist(), strict=True)), episodes)
    return {name: found[name] for name in tasks}


def _evaluation(
    agents: Iterable[tuple[str, int]], results: Mapping[tuple[str, int], list[float]], episodes: int
) -> Evaluation:
    return Evaluation({name: {key: results[key][i] for key in agents} for i, name in enumerate(MEASURES)}, episodes)


def means(episodes: Episodes | Played) -> Tensor:
    """Every run's mean steps, success and return, (3, R)."""
    return torch.stack([torch.as_tensor(measure) for measure in episodes[:3]]).double().mean(-1)


def played(
    policies: list[Policy], task: SimulatedTask, *, episodes: int, seed: int, keep_path: bool = False
) -> Episodes:
    """The episodes of agents of one kind, all from the same starts and with the same noise."""
    first = policies[0]
    stream = Stream(seed, "evaluate", device=first.device)
    start = task.start(episodes, seed=stream, device=first.device)
    if start.shape[1] != first.state_width:
        raise InputError(
            f"the agents were trained on states of {first.state_width} columns, but the task starts in states of "
            f"{start.shape[1]}. Evaluate them on the task they were trained for."
        )
    noise = episode_noise(first.agent, [stream.child("noise")], task, episodes, first.action_width)
    runs = len(policies)
    with torch.no_grad():
        return rollout(
            first.agent,
            {name: torch.stack([policy.weights[name] for policy in policies]) for name in first.weights},
            task,
            start.expand(runs, *start.shape),
            {name: value.expand(len(value), runs, *value.shape[2:]) for name, value in noise.items()},
            (first.action_low, first.action_high),
            keep_path,
        )


def _alike(agents: Mapping[tuple[str, int], Policy]) -> list[list[tuple[str, int]]]:
    """Keys of agents whose weights can be stacked."""
    kinds: dict[str, list[tuple[str, int]]] = {}
    for key, policy in agents.items():
        ends = (policy.action_low.tolist(), policy.action_high.tolist())
        kind = repr((agent_settings(policy.agent), policy.state_width, ends, policy.device))
        kinds.setdefault(kind, []).append(key)
    return list(kinds.values())
