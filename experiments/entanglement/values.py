"""Values of a task's expert: learned by fitted iteration, and the true ones beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mocoda.engine.networks import Weights, mlp, mlp_weights
from mocoda.engine.optimise import Adam, Captured, Tensors, fast_products, in_turn
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream
from mocoda.tasks.objects import Objects

CHUNK = 100  # updates at a time
POLYAK = 0.03  # how far the target network goes towards the other after every update


@dataclass(frozen=True)
class ValueConfig:
    """How values are learned."""

    updates: int = 3_000
    hidden: tuple[int, ...] = (64, 64)
    batch: int = 256
    learning_rate: float = 1e-3
    discount: float = 0.95


def true_values(task: Objects, state: Tensor, discount: float) -> Tensor:
    """What the expert gets from states (N, S) on, times 1 - discount: from -1, no object ever at home, to 0."""
    value, weight = torch.zeros(len(state), device=state.device), torch.full((len(state),), 1 - discount).to(state)
    for _ in range(math.ceil(math.log(1e-3) / math.log(discount))):
        action = task.expert(state)
        next_state = task.step(torch.cat([state, action], 1))
        reward, ended = task.label(state, action, next_state)
        value, weight, state = value + weight * reward, discount * weight * ~ended, next_state
    return value


class Lesson(NamedTuple):
    """What a value function learns from; inputs are states and actions with mean 0 and variance 1."""

    rows: Tensor  # (N, S + A)
    next_rows: Tensor  # (N, S + A), the next state with the expert's action
    reward: Tensor  # (N,), times 1 - discount
    ahead: Tensor  # (N,), the discount, 0 where nothing follows


def fit_values(
    lessons: Mapping[tuple[int, str], Lesson], config: ValueConfig, *, device: str, progress: Progress = silent
) -> Weights:
    """The expert's action value, a network for every seed's lesson, (R, ...): fitted iteration, towards one behind."""
    streams = [Stream(seed, "entanglement-values", name, device=device) for seed, name in lessons]
    rows, next_rows, reward, ahead = (torch.cat(parts) for parts in zip(*lessons.values(), strict=True))
    lengths = [len(lesson.rows) for lesson in lessons.values()]
    offset = torch.tensor([sum(lengths[:i]) for i in range(len(lengths))], device=device)[:, None]
    sizes = (rows.shape[1], *config.hidden, 1)
    each = [mlp_weights("value", (), sizes, stream) for stream in streams]
    for own, lesson in zip(each, lessons.values(), strict=True):  # near the mean return, to begin with
        own[f"value.{len(config.hidden)}.bias"] += lesson.reward.mean() / (1 - lesson.ahead.mean())
    weights = {name: torch.stack([own[name] for own in each]).requires_grad_() for name in each[0]}
    behind = {name: weight.detach().clone() for name, weight in weights.items()}
    adam = Adam(list(weights.values()), config.learning_rate)

    def update(tensors: Tensors, phase: int) -> Tensor:
        index = tensors["index"]
        with torch.no_grad():
            target = reward[index] + ahead[index] * mlp(behind, "value", next_rows[index])[..., 0].clamp(-1, 0)
        loss = (mlp(weights, "value", rows[index])[..., 0] - target).square().mean(1)
        adam.step(loss.sum())
        with torch.no_grad():
            for name, weight in weights.items():
                behind[name].lerp_(weight, POLYAK)
        return loss.detach()

    chunk = Captured(in_turn(update), torch.device(device))
    with fast_products(torch.device(device)):
        for done in range(0, config.updates, CHUNK):
            adam.learning_rate.fill_(config.learning_rate * 0.5 * (1 + math.cos(math.pi * done / config.updates)))
            size = (min(CHUNK, config.updates - done), config.batch)
            drawn = [stream.integers(length, *size) for stream, length in zip(streams, lengths, strict=True)]
            chunk({"index": torch.stack(drawn, 1) + offset})
            progress("values", done + size[0], config.updates)
    return {name: weight.detach() for name, weight in weights.items()}
