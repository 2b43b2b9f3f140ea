"""Training of agents on transitions: all data sets and seeds of a call are one program.

Axes: R runs (data sets × seeds), U updates of a chunk, B rows of a batch, S, A and G columns of state, action and goal.
Where rows have goals, agents see state and goal side by side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from mocoda.agents.agent import TARGET, Agent, Batch, Stage, make_agent
from mocoda.agents.batches import Range, Run, RunTable, runs_of
from mocoda.agents.evaluators import make_evaluator, metrics_of
from mocoda.agents.goals import OWN
from mocoda.agents.policy import Policies, Policy, acting_weights, agent_settings
from mocoda.data.transitions import Transitions
from mocoda.engine.checkpoint import Checkpoint, copy_tensors, fingerprint
from mocoda.engine.errors import InputError
from mocoda.engine.metrics import Metric, Report
from mocoda.engine.networks import Weights, half_precision, mlp_weights
from mocoda.engine.optimise import Adam, Captured, Tensors, Work, fast_products, in_turn, side_by_side
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream
from mocoda.tasks import Task

CHUNK = 100  # updates at a time, at most: one CUDA graph


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
    workers: int | None = None,
    report: Report | None = None,
    progress: Progress = silent,
) -> Policies:
    """Trains an agent per data set and seed, on the device of the data; each is the same as if trained alone.

    datasets        by name: a table for all seeds, or one table per seed
    agent           a name ("td3-bc", "bcq", "cql", "sac", "gciql") or an `Agent`: one of `make_agent`, or of your own
                    class
    task            gives the range of actions and evaluates the agents; without one, nothing is evaluated
    actions         without a task: the range of actions (low, high), a number or (A,) each. Data may lie outside, as
                    generated rows do; agents' actions never will. Unless given, all must lie in [-1, 1]
    evaluate_every  updates between evaluations of `episodes` episodes, whose results are the `curves` of the policies
    half            on a GPU, keep hidden layers in bfloat16: a quarter faster, and less precise
    checkpoint      a file to resume from if it exists, and to save progress to; the result is the same either way
    workers         processes that evaluate during training, if the task is played in its environment; None: one per
                    core. The result is the same
    report          is called with every run's losses and evaluations as they become known; `MetricLog(folder).add`
                    writes them to files. A resumed training reports its earlier evaluations again
    """
    agent = make_agent(agent) if isinstance(agent, str) else agent
    for name, number in (("updates", updates), ("evaluate_every", evaluate_every), ("episodes", episodes)):
        if number < 1:
            raise InputError(f"{name} must be at least 1, got {number}.")
    runs = runs_of(datasets, list(seeds), agent)
    table = RunTable.of(runs, agent, task, actions)
    streams = [Stream(run.seed, "agent", agent.name, device=table.device) for run in runs]
    learner = _Learner.of(agent, table, streams)
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
            ends = () if table.goals is None else (table.goals.last,)
            identity["data"] = fingerprint(table.rows, table.offset, table.length, *ends)
        saved = Checkpoint(checkpoint, identity)

        def restore(tensors: Weights) -> None:
            learner.restore(tensors)
            evaluator.results = [curve.reshape(3, len(runs)) for curve in tensors["curves"].to(table.device)]

        done = saved.resume(restore)
        stages = agent.stages()
        total = sum(stage.updates or updates for stage in stages)
        for chunk in _chunks(stages, updates, evaluate_every):
            if chunk.before + chunk.updates <= done:
                continue
            losses = learner.learn(chunk)  # (U, G, R)
            _check_finite(losses, chunk, runs, learner)
            if chunk.evaluated:
                evaluator.begin()
            if report is not None:
                report(_loss_metrics(losses, chunk, stages[chunk.stage], runs))
                report(evaluator.new_metrics(evaluate_every, runs))
            now = chunk.before + chunk.updates
            progress(f"agents {agent.name}", now, total)
            saved.offer(now, lambda: {**learner.tensors(), "curves": evaluator.curves()})
        curves = _curves(evaluator.curves(), evaluate_every)
        if report is not None:
            report(evaluator.new_metrics(evaluate_every, runs))
    tables = {id(run.data): run.data for run in runs}
    sources = {key: {"data": fingerprint(*data.arrays(episodes=False).values())} for key, data in tables.items()}
    policies = {
        (run.name, run.seed): replace(learner.policy(number), fingerprints=sources[id(run.data)])
        for number, run in enumerate(runs)
    }
    return Policies(policies, curves)


class _Chunk(NamedTuple):
    """Updates that are made without a pause."""

    stage: int
    before: int  # updates of the whole training before this one
    start: int  # updates of the stage before this one
    updates: int
    total: int  # updates of the stage
    evaluated: bool


def _chunks(stages: Sequence[Stage], updates: int, evaluate_every: int) -> Iterator[_Chunk]:
    """The whole training in pieces, each of which ends where an evaluation is due; only the last stage is evaluated."""
    before = 0
    for number, stage in enumerate(stages):
        total, start = stage.updates or updates, 0
        while start < total:
            due = (start // evaluate_every + 1) * evaluate_every
            count = min(CHUNK - start % CHUNK, due - start, total - start)
            evaluated = number == len(stages) - 1 and start + count == due
            yield _Chunk(number, before, start, count, total, evaluated)
            before, start = before + count, start + count


@dataclass(eq=False)
class _Learner:
    """The weights of all runs, and what updates them."""

    agent: Agent
    table: RunTable
    streams: Sequence[Stream]
    weights: dict[str, Tensor]  # (R, ...) each
    optimisers: dict[str, Adam]  # by group
    captured: list[Captured]  # by stage
    drawn: tuple[int, int, dict[str, Tensor]] = (-1, -1, {})  # stage, first update, and what was drawn for it

    @staticmethod
    def of(agent: Agent, table: RunTable, streams: Sequence[Stream]) -> _Learner:
        weights = initial_weights(agent, table.seen_width, table.action_width, streams)
        learner = _Learner(agent, table, streams, weights, {}, [])
        for stage in agent.stages():
            for group in stage.learned:
                own = [weights[name].requires_grad_() for name in _names(weights, group)]
                learner.optimisers[group] = Adam(own, agent.learning_rate, stage.weight_decay, group)
            learner.captured.append(Captured(in_turn(learner._update(stage)), table.device))
        return learner

    def learn(self, chunk: _Chunk) -> Tensor:
        """Makes the updates of a chunk and returns the losses (U, G, R) of its groups, 0 where one was not updated."""
        stage = self.agent.stages()[chunk.stage]
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
        """Row numbers and noise of CHUNK updates, (CHUNK, R, ...) each; they do not depend on evaluations."""
        drawn: list[dict[str, Tensor]] = []
        for run, stream in enumerate(self.streams):
            own = stream.child("updates", number, block)
            index = own.integers(int(self.table.length[run]), CHUNK, stage.batch)
            noise = self.agent.noise(own.child("noise"), CHUNK, self.table.action_width)
            drawn.append({"index": index + self.table.offset[run], **noise, **self._goals(own, run, index)})
        return {name: torch.stack([own[name] for own in drawn], 1) for name in drawn[0]}

    def _goals(self, stream: Stream, run: int, index: Tensor) -> dict[str, Tensor]:
        """A run's goals for rows (U, B) of its data, as numbers of rows of the table."""
        if self.table.goals is None:
            return {}
        offset, rows = self.table.offset[run], int(self.table.length[run])
        last = self.table.goals.last[index + offset]
        drawn = self.agent.draw_goals(stream.child("goals"), index, last, rows)
        return {name: torch.where(goal == OWN, OWN, goal + offset) for name, goal in drawn.items()}

    def tensors(self) -> dict[str, Tensor]:
        """All there is to save."""
        state = dict(self.weights)
        for adam in self.optimisers.values():
            state |= {f"optimiser.{name}": value for name, value in adam.state().items()}
        return state

    def restore(self, tensors: Weights) -> None:
        copy_tensors(tensors, self.weights)
        prefix = "optimiser."
        names = [name for name in tensors if name.startswith(prefix) and name not in self.weights]
        own = {name.removeprefix(prefix): tensors[name] for name in names}
        for adam in self.optimisers.values():
            adam.restore(own)

    def policy(self, run: int) -> Policy:
        weights = self.for_raw_inputs(self.weights)
        own = {n: w[run].detach().clone() for n, w in weights.items() if not n.startswith(TARGET)}
        return Policy(self.agent, self.table.seen_width, own, *self.table.action_range, self.table.columns[run])

    def policies(self) -> list[Policy]:
        """The runs' policies as they are now, copied to the CPU, with only the weights that acting needs."""
        weights = self.for_raw_inputs(acting_weights(self.agent, self.weights))
        weights = {n: w.detach().to("cpu", copy=True) for n, w in weights.items()}
        low, high = (end.cpu() for end in self.table.action_range)
        each = ({name: weight[run] for name, weight in weights.items()} for run in range(len(self.streams)))
        return [Policy(self.agent, self.table.seen_width, own, low, high) for own in each]

    def for_raw_inputs(self, weights: Weights) -> dict[str, Tensor]:
        """The weights with their first layers changed so that they take states and goals that are not standardised."""
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

    def _update(self, stage: Stage) -> Work:
        losses = self.agent.losses()
        names = {group: _names(self.weights, group) for group in stage.update_every}
        turns, learned = stage.turns, stage.learned

        def differentiate(group: str, batch: Batch, noise: Tensors) -> Tensor:
            seen = {name: weight.detach() for name, weight in self.weights.items()}
            seen |= {name: self.weights[name] for name in names[group]}
            loss = losses[group](seen, batch, noise)
            self.optimisers[group].differentiate(loss.sum())
            return loss.detach()

        def update(part: Tensors, number: int) -> Tensor:
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
                works = [partial(differentiate, group, batch, part) for group in due]
                found |= zip(due, side_by_side(works, self.table.device), strict=True)
                for group in due:
                    self.optimisers[group].descend()
            nothing = torch.zeros(len(self.streams), device=self.table.device)
            return torch.stack([found.get(group, nothing) for group in learned])

        return update


def initial_weights(agent: Agent, state: int, action: int, streams: Sequence[Stream]) -> dict[str, Tensor]:
    """Every run's random weights (R, ...), drawn from its stream, and those of the targets, which are the same."""
    runs: list[dict[str, Tensor]] = []
    for stream in streams:
        runs.append({})
        for group, network in agent.networks(state, action).items():
            leading = () if network.members is None else (network.members,)
            own = stream.child("weights", group)
            runs[-1] |= mlp_weights(group, leading, network.sizes, own, network.norm)
    weights = {name: torch.stack([run[name] for run in runs]) for name in runs[0]}
    for group in {group for stage in agent.stages() for group in stage.update_every if group.startswith(TARGET)}:
        weights |= {TARGET + name: weights[name].clone() for name in _names(weights, group.removeprefix(TARGET))}
    return weights


def _names(weights: Weights, group: str) -> list[str]:
    return [name for name in weights if name.startswith(f"{group}.")]


def _check_finite(losses: Tensor, chunk: _Chunk, runs: Sequence[Run], learner: _Learner) -> None:
    """Stops at the first loss (U, G, R) that is NaN or inf; the last update's own effect shows in the weights."""
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
    raise InputError(
        f"the loss of {learner.agent.name} on data set {run.name!r}, seed {run.seed}, became NaN or inf at update "
        f"{chunk.start + int(first[0]) + 1}. Lower the learning rate, or look for extreme values in the data."
    )


def _loss_metrics(losses: Tensor, chunk: _Chunk, stage: Stage, runs: Sequence[Run]) -> list[Metric]:
    """Every group's mean loss over those of the chunk's updates (U, G, R) that updated it."""
    metrics = []
    for place, group in enumerate(stage.learned):
        every = stage.update_every[group]
        updated = losses[-(chunk.start + 1) % every :: every, place]
        if len(updated):
            metrics += metrics_of(runs, chunk.start + chunk.updates, f"loss/{group}", updated.mean(0))
    return metrics


def _curves(measured: Tensor, every: int) -> dict[str, Tensor]:
    updates = every * torch.arange(1, len(measured) + 1)
    steps, success, reward = measured.cpu().permute(1, 2, 0)
    return {"updates": updates, "steps": steps, "success": success, "return": reward}
