"""Small tables, and how the tests of mocoda.data.transitions compare and refuse them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError

Floats = NDArray[np.float32]


def numbers(*shape: int) -> Floats:
    return np.random.default_rng(7).normal(size=shape).astype(np.float32)


def arrays(rows: int = 5) -> dict[str, Any]:
    return {"state": numbers(rows, 2), "action": numbers(rows, 1), "next_state": numbers(rows, 2)}


def table(rows: int = 5, **extra: Any) -> Transitions:
    return Transitions(**(arrays(rows) | {"reward": numbers(rows)} | extra))


def recording(lengths: Sequence[int], loose: int = 0, seed: int = 0, **more: Any) -> Transitions:
    """Episodes of these lengths, whose number is twice their place, and rows of none; each row knows its number."""
    random, rows = np.random.default_rng(seed), sum(lengths) + loose
    walks = [random.normal(size=(length + 1, 2)).cumsum(0) for length in [*lengths, *[1] * loose]]
    made: dict[str, Any] = {
        "state": np.concatenate([walk[:-1] for walk in walks]),
        "action": random.normal(size=(rows, 1)),
        "next_state": np.concatenate([walk[1:] for walk in walks]),
        "reward": random.normal(size=rows),
        "terminal": random.random(rows) < 0.1,
        "columns": ["hand.x", "cup.x", "push"],
        "source": {"fps": 30},
        "provenance": {"row": np.arange(rows)},
        "episode": np.append(np.repeat(2 * np.arange(len(lengths)), lengths), [-1] * loose).astype(np.int64),
    }
    return Transitions(**made | more)


def assert_identical(one: Transitions, other: Transitions) -> None:
    for name in ("state", "action", "next_state"):
        left, right = getattr(one, name), getattr(other, name)
        assert left.dtype == right.dtype == torch.float32
        assert left.shape == right.shape
        assert left.view(torch.int32).equal(right.view(torch.int32))
    for name in ("reward", "goal"):
        left, right = getattr(one, name), getattr(other, name)
        if left is None or right is None:
            assert left is right
        else:
            assert left.view(torch.int32).equal(right.view(torch.int32))
    assert one.terminal.dtype == other.terminal.dtype == torch.bool
    assert one.terminal.equal(other.terminal)
    assert one.columns == other.columns
    assert one.source == other.source


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(InputError) as error:
        call()
    return str(error.value)


def walks(data: Transitions) -> dict[int, torch.Tensor]:
    """The rows of each episode, in the order of their steps; rows of none are left out."""
    assert data.episode is not None and data.step is not None
    numbers = data.episode[data.episode >= 0].unique().tolist()
    rows = {number: (data.episode == number).nonzero()[:, 0] for number in numbers}
    return {number: found[data.step[found].argsort()] for number, found in rows.items()}
