"""Rewards, ends of episodes and goals for rows that lack them: from a task, or learned from the recorded rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from mocoda.augmentation.generation import GoalLabels, Labels, draw_goals
from mocoda.data.transitions import Transitions
from mocoda.engine.checkpoint import check_tensors, fingerprint, load_trained, reading, save_trained
from mocoda.engine.errors import InputError
from mocoda.engine.networks import Weights, input_scaling, mlp, mlp_weights
from mocoda.engine.optimise import Adam, Captured, in_turn
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Shapes, Stream, as_stream
from mocoda.graph.local_graph import LocalGraph

MAX_CLASSES = 16  # up to so many different rewards are classified rather than fitted: a sparse reward stays sparse
BLOCK = 16_384  # rows labelled at a time
REPORTED = 100  # updates between two reports of progress
QUALITY, TERMINAL = ("held_out_rows", "held_out_r2"), ("terminal_recall", "terminal_precision")


def label(
    data: Transitions, task: Labels | GoalLabels | LearnedReward, *, seed: int | Stream = 0, hindsight: float = 0.0
) -> Transitions:
    """Labels rows with the rewards and terminals that a task gives them.

    task       a task, a graph file (`load_task`), a reward learned from other data (`fit_reward`), or any object with
               `label(state, action, next_state)`. Where it has goals, `label` takes them too: rows keep the goals they
               have, and rows without get some of `task.goals`
    hindsight  share of the rows whose goal becomes what their next state achieves
    """
    if getattr(task, "label", None) is None:
        raise InputError(
            f"{getattr(task, 'name', type(task).__name__)!r} defines no reward(state, action, next_state) to label "
            "rows with; write one, or name the columns of a goal and the distance at which it is reached: achieved, "
            "tolerance."
        )
    if not 0 <= hindsight <= 1:
        raise InputError(f"hindsight must be a share of the rows between 0 and 1, got {hindsight}.")
    graph = getattr(task, "graph", None)
    if isinstance(graph, LocalGraph):
        graph.check_data(data)
    rows, goal = (data.state, data.action, data.next_state), None
    if getattr(task, "achieved", None) is not None:
        if data.goal is None and getattr(task, "goals", None) is None:
            raise InputError(
                "this reward is about goals, and neither the data nor the task has any. Define goals(n, seed, device), "
                "or name an environment that shows goals."
            )
        goal = draw_goals(data.next_state, task, hindsight, as_stream(seed, "label", device=data.device), data.goal)
    elif hindsight:
        raise InputError("hindsight needs a task that defines which goal a state reaches: achieved(state).")
    elif isinstance(task, LearnedReward):
        goal = data.goal
    give: Callable[..., tuple[Tensor, Tensor]] = task.label
    reward, terminal = give(*rows) if goal is None else give(*rows, goal)
    name = getattr(task, "name", None)
    source = {**data.source, **({} if name is None else {"task": name}), **getattr(task, "source", {})}
    return replace(data, reward=reward, terminal=terminal, goal=data.goal if goal is None else goal, source=source)


@dataclass(frozen=True, eq=False)
class GoalsOf:
    """Gives new rows the goals that were recorded, each as often as it was recorded.

    data     whose goals are drawn
    labels   has `label(state, action, next_state, goal)`, such as `fit_reward(data)`
    reaches  states (N, S) -> the goals (N, G) reached there; only hindsight needs it
    """

    data: Transitions
    labels: Any
    reaches: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        if self.data.goal is None:
            raise InputError("this data has no goals to draw from; pass a Transitions with goal=, or leave goals out.")

    @property
    def name(self) -> str | None:
        return getattr(self.labels, "name", None)

    @property
    def source(self) -> dict[str, Any]:
        return {**getattr(self.labels, "source", {}), "goals": "recorded"}

    def goals(self, n: int, *, seed: int | Stream, device: torch.device | str) -> Tensor:
        assert self.data.goal is not None
        stream = as_stream(seed, "recorded-goals", device=self.data.device)
        return self.data.goal[stream.integers(len(self.data), n)].to(device)

    def achieved(self, state: Tensor) -> Tensor:
        if self.reaches is None:
            raise InputError("hindsight needs to know which goal a state reaches; pass GoalsOf(..., reaches=).")
        return self.reaches(state)

    def label(self, state: Tensor, action: Tensor, next_state: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
        reward, terminal = self.labels.label(state, action, next_state, goal)
        return reward, terminal


@dataclass(frozen=True)
class RewardConfig:
    """Settings of the network that learns a reward."""

    hidden: tuple[int, ...] = (256, 256)
    updates: int = 4_000
    batch: int = 512
    learning_rate: float = 1e-3
    validation: float = 0.125  # share of the rows held out to tell how well it was learned

    def __post_init__(self) -> None:
        if self.updates < 1 or self.batch < 1 or not self.learning_rate > 0 or not 0 < self.validation < 1:
            raise InputError(
                "updates and batch must be at least 1, learning_rate positive and validation a share between 0 and 1, "
                f"got {self.updates}, {self.batch}, {self.learning_rate} and {self.validation}."
            )


@dataclass(frozen=True, eq=False)
class LearnedReward:
    """A network that predicts reward and ends of episodes from state, action, next state and goal."""

    weights: Weights
    shift: Tensor  # (inputs,)
    scale: Tensor
    values: Tensor | None  # (C,) the rewards there are; None: any number
    unit: tuple[float, float]  # the recorded rewards' mean and standard deviation
    ends: bool  # whether any recorded row is terminal; else none ever is
    held_out: dict[str, float | int | None]
    fingerprints: Mapping[str, str] = field(default_factory=dict)  # of the data

    @property
    def source(self) -> dict[str, Any]:
        """Notes for the source of tables that it labels."""
        return {"reward": {"learned": True, **self.held_out}}

    def label(
        self, state: Tensor, action: Tensor, next_state: Tensor, goal: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        inputs = _inputs(state, action, next_state, goal)
        if inputs.shape[1] != len(self.shift):
            raise InputError(
                f"this reward was learned from {len(self.shift)} columns of state, action, next state and goal, got "
                f"{inputs.shape[1]}."
            )
        blocks = [self._outputs(block) for block in inputs.split(BLOCK)]
        reward, ending = torch.cat(blocks).split([blocks[0].shape[1] - self.ends, int(self.ends)], 1)
        mean, spread = self.unit
        reward = mean + spread * reward[:, 0] if self.values is None else self.values[reward.argmax(1)]
        terminal = ending[:, 0] > 0 if self.ends else torch.zeros_like(reward, dtype=torch.bool)
        return reward, terminal

    @property
    def in_words(self) -> str:
        """A sentence part that says how well it was learned."""
        share, rows = self.held_out["held_out_r2"], self.held_out["held_out_rows"]
        if share is None:
            quality = "the reward is the same in all of them"
        else:
            quality = f"{100 * share:.4g}% of the reward's variance is explained (R²)"
        if self.ends and self.held_out["terminal_recall"] is not None:
            quality += f", and {100 * self.held_out['terminal_recall']:.4g}% of the ends are found"
        return f"on {rows:,} rows held out, {quality}."

    def to(self, device: torch.device | str) -> LearnedReward:
        weights = {name: weight.to(device) for name, weight in self.weights.items()}
        values = None if self.values is None else self.values.to(device)
        return replace(self, weights=weights, shift=self.shift.to(device), scale=self.scale.to(device), values=values)

    def save(self, path: str | Path) -> None:
        """Writes it to a safetensors file."""
        tensors = {**self.weights, "shift": self.shift, "scale": self.scale}
        tensors |= {} if self.values is None else {"values": self.values}
        widths = [weight.shape[-1] for name, weight in self.weights.items() if name.endswith(".weight")]
        settings = {
            "sizes": [len(self.shift), *widths],
            "unit": self.unit,
            "ends": self.ends,
            "held_out": self.held_out,
        }
        save_trained(path, "reward", tensors, {"settings": settings, "fingerprints": self.fingerprints})

    @staticmethod
    def load(path: str | Path) -> LearnedReward:
        """Reads what `save` wrote."""
        tensors, header = load_trained(path, "reward")
        with reading(path, "reward"):
            settings = header["settings"]
            (mean, spread), ends, held_out, sizes = (settings[name] for name in ("unit", "ends", "held_out", "sizes"))
            noted = [held_out[name] for name in (*QUALITY, *(TERMINAL if ends else ()))]
            numbers = [mean, spread, noted[0], *(number for number in noted[1:] if number is not None)]
            if type(ends) is not bool or not all(type(number) in (int, float) for number in numbers):
                raise InputError("its settings are not those of a learned reward")
            inputs, outputs = sizes[0], sizes[-1] - ends
            expected = mlp_weights("reward", (1,), sizes, Shapes())
            expected |= {name: torch.empty(inputs, device="meta") for name in ("shift", "scale")}
            if "values" in tensors or outputs != 1 or len(sizes) < 2:  # one output and no values: any number
                expected["values"] = torch.empty(outputs, device="meta")
            check_tensors(tensors, expected)
        shift, scale, values = tensors.pop("shift"), tensors.pop("scale"), tensors.pop("values", None)
        return LearnedReward(tensors, shift, scale, values, (mean, spread), ends, held_out, header["fingerprints"])

    @torch.no_grad()
    def _outputs(self, inputs: Tensor) -> Tensor:
        return mlp(self.weights, "reward", (inputs - self.shift) / self.scale)[0]


def fit_reward(
    data: Transitions,
    *,
    seed: int | Stream = 0,
    config: RewardConfig | None = None,
    progress: Progress = silent,
) -> LearnedReward:
    """Learns the reward, and where episodes end, from the recorded rows. The result can be the task of `augment`.

    Up to 16 different rewards are classified, so that a sparse one stays sparse; more are fitted by least squares. How
    well, on rows held out, is in `held_out`: the reward's R² (None where it never changes), and the recall and the
    precision of recorded ends.
    """
    if data.reward is None:
        raise InputError("this data has no rewards to learn from; leave the rows unlabelled, or pass a task.")
    if len(data) < 2:
        raise InputError("learning a reward takes at least 2 rows, one of them to hold out, got 1.")
    config = config or RewardConfig()
    stream = as_stream(seed, "reward", device=data.device)
    inputs = _inputs(data.state, data.action, data.next_state, data.goal)
    order = stream.child("split").permutation(len(data))
    held = min(len(data) - 1, max(1, round(config.validation * len(data))))
    train, test = order[held:], order[:held]
    rewards, target = torch.unique(data.reward, return_inverse=True)
    values = rewards if len(rewards) <= MAX_CLASSES else None
    mean, spread = float(data.reward.double().mean()), float(data.reward.double().std(correction=0)) or 1.0
    shift, scale = input_scaling(inputs)
    ends = bool(data.terminal.any())
    sizes = (inputs.shape[1], *config.hidden, (1 if values is None else len(values)) + ends)
    weights = mlp_weights("reward", (1,), sizes, stream.child("weights"))
    if ends or len(rewards) > 1:
        rows = (inputs[train] - shift) / scale
        kinds = target[train] if values is not None else ((data.reward - mean) / spread)[train]
        _train(weights, rows, kinds, data.terminal[train] if ends else None, config, stream, progress)
    source = {"data": fingerprint(*data.arrays(episodes=False).values())}
    learned = LearnedReward(weights, shift, scale, values, (mean, spread), ends, {}, source)
    return replace(learned, held_out=_held_out(learned, data[test]))


def _train(
    weights: dict[str, Tensor],
    rows: Tensor,
    target: Tensor,
    terminal: Tensor | None,
    config: RewardConfig,
    stream: Stream,
    progress: Progress,
) -> None:
    """Changes the weights in place; an integer target is a class of reward, others are the reward itself."""
    for weight in weights.values():
        weight.requires_grad_()
    adam = Adam(list(weights.values()), config.learning_rate)

    def update(part: Weights, number: int) -> Tensor:
        index = part["index"]
        outputs = mlp(weights, "reward", rows[index])[0]
        loss = torch.zeros((), device=rows.device)
        if terminal is not None:
            loss = loss + binary_cross_entropy_with_logits(outputs[:, -1], terminal[index].float())
            outputs = outputs[:, :-1]
        if target.is_floating_point():
            loss = loss + (outputs[:, 0] - target[index]).square().mean()
        else:
            loss = loss + cross_entropy(outputs, target[index])
        adam.step(loss)
        return loss.detach()

    chunk = Captured(in_turn(update), rows.device)
    for start in range(0, config.updates, REPORTED):
        adam.learning_rate.fill_(config.learning_rate * 0.5 * (1 + math.cos(math.pi * start / config.updates)))
        n = min(REPORTED, config.updates - start)
        losses = chunk({"index": stream.child("batch", start).integers(len(rows), n, min(config.batch, len(rows)))})
        if not bool(torch.isfinite(losses).all()):
            raise InputError(
                f"the loss of the reward became NaN or inf within {start + n} updates. "
                "Lower the learning rate, or look for extreme values in the data."
            )
        progress("reward", start + n, config.updates)
    for weight in weights.values():
        weight.requires_grad_(False)


def _held_out(learned: LearnedReward, test: Transitions) -> dict[str, float | int | None]:
    assert test.reward is not None
    reward, terminal = learned.label(test.state, test.action, test.next_state, test.goal)
    truth = test.reward.double()
    error, variance = ((guess.double() - truth).square().sum() for guess in (reward, truth.mean()))
    quality: dict[str, float | int | None] = {"held_out_rows": len(test)}
    quality["held_out_r2"] = round(float(1 - error / variance), 4) if float(variance) > 0 else None
    if learned.ends:
        right = float((terminal & test.terminal).sum())
        for name, of in (("recall", test.terminal), ("precision", terminal)):
            quality[f"terminal_{name}"] = round(right / float(of.sum()), 4) if bool(of.any()) else None
    return quality


def _inputs(state: Tensor, action: Tensor, next_state: Tensor, goal: Tensor | None) -> Tensor:
    """The columns that a reward may depend on, side by side: (N, inputs)."""
    return torch.cat([state, action, next_state, *([] if goal is None else [goal])], 1).float()
