"""Transitions, Parents, Dynamics, Task -> Transitions: recorded rows, and counterfactual ones after them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from mocoda.files import InputError
from mocoda.parents import Model, Parents, ParentsWithChildren
from mocoda.randomness import Stream, as_stream
from mocoda.transitions import Transitions, concatenate
from mocoda.workers import Progress, silent

# Rows generated at a time, at most; part of what a seed means on that kind of device.
CHUNK = {"cpu": 65_536, "cuda": 1_048_576}


class Labels(Protocol):
    """What a task says of transitions."""

    def label(self, state: Tensor, action: Tensor, next_state: Tensor) -> tuple[Tensor, Tensor]:
        """Reward (N,) and terminal, bool (N,)."""


@runtime_checkable
class GoalLabels(Protocol):
    """What a task with goals says of transitions: every row can be about any goal."""

    def goals(self, n: int, *, seed: int | Stream, device: torch.device | str) -> Tensor:
        """Goals (n, G) of the target task."""

    def achieved(self, state: Tensor) -> Tensor:
        """The goals (N, G) that are reached in states (N, S)."""

    def label(self, state: Tensor, action: Tensor, next_state: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
        """Reward (N,) and terminal, bool (N,), for goals (N, G)."""


def augment(
    data: Transitions,
    parents: Parents,
    model: Model | None = None,
    *,
    rows: int,
    task: Labels | GoalLabels | None = None,
    seed: int | Stream = 0,
    keep_recorded: bool = True,
    hindsight: float = 0.0,
    progress: Progress = silent,
) -> Transitions:
    """The recorded rows, followed by `rows` generated ones.

    parents        where new states and actions come from, as from `fit_parents`, or any object with `sample(n, seed=)`
    model          gives their next states; recipes that recombine recorded transitions ("emp", "coda") need none
    task           labels all rows; without one, no row has a reward and none is terminal. One with goals draws a goal
                   for every row, recorded ones too
    keep_recorded  False: the generated rows alone
    hindsight      the share of rows whose goal is what their own next state achieves
    """
    chunks = augment_chunks(
        data,
        parents,
        model,
        rows=rows,
        task=task,
        seed=seed,
        keep_recorded=keep_recorded,
        hindsight=hindsight,
        progress=progress,
    )
    return concatenate(list(chunks))


def augment_chunks(
    data: Transitions,
    parents: Parents,
    model: Model | None = None,
    *,
    rows: int,
    task: Labels | GoalLabels | None = None,
    seed: int | Stream = 0,
    keep_recorded: bool = True,
    hindsight: float = 0.0,
    progress: Progress = silent,
) -> Iterator[Transitions]:
    """The same table piece by piece, for `save_stream`: memory does not grow with `rows`."""
    if rows < 0 or (rows == 0 and not keep_recorded):
        raise InputError(f"rows must be positive, the number of rows to generate, got {rows}.")
    if model is None and not isinstance(parents, ParentsWithChildren):
        raise InputError("these parents have no next states of their own; pass model=mocoda.fit_dynamics(...).")
    if not 0 <= hindsight <= 1:
        raise InputError(f"hindsight must be a share of the rows between 0 and 1, got {hindsight}.")
    goals = isinstance(task, GoalLabels)
    if hindsight and not goals:
        raise InputError("hindsight needs a task with goals: methods goals, achieved and label(..., goal).")
    stream = as_stream(seed, "augment", device=data.device)
    source = {
        "recorded": dict(data.source),
        "recorded_rows": len(data) if keep_recorded else 0,
        "generated_rows": rows,
        "recipe": getattr(parents, "name", type(parents).__name__),
        "model": getattr(model, "settings", type(model).__name__),
        "task": getattr(task, "name", None),
        "seed": stream.seed,
        **getattr(parents, "source", {}),  # what a recipe has to report, such as neighbourhoods it skipped
        **({"hindsight": hindsight} if goals else {}),
    }
    labelled = partial(_labelled, like=data, task=task, hindsight=hindsight, source=source)
    return _chunks(data, parents, model, rows, stream, keep_recorded, progress, labelled)


def _chunks(
    data: Transitions,
    parents: Parents,
    model: Model | None,
    rows: int,
    stream: Stream,
    keep_recorded: bool,
    progress: Progress,
    labelled: Callable[[Tensor, Tensor, Stream], Transitions],
) -> Iterator[Transitions]:
    if keep_recorded:
        yield labelled(data.rows, data.next_state, stream.child("recorded"))
    width, states = data.rows.shape[1], data.state.shape[1]
    chunk = CHUNK.get(data.device.type, CHUNK["cpu"])
    for number, start in enumerate(range(0, rows, chunk)):
        n = min(chunk, rows - start)
        part = stream.child(number)
        if isinstance(parents, ParentsWithChildren):
            drawn, next_state = parents.sample_with_children(n, seed=part.child("parents"))
            _check_shape(f"parents.sample_with_children({n})", "rows", drawn, (n, width))
            _check_shape(f"parents.sample_with_children({n})", "next states", next_state, (n, states))
        else:
            assert model is not None
            drawn = parents.sample(n, seed=part.child("parents"))
            _check_shape(f"parents.sample({n})", "rows", drawn, (n, width))
            next_state = model.sample(drawn, seed=part.child("model"))
            _check_shape("model.sample", "next states", next_state, (n, states))
        yield labelled(drawn, next_state, part)
        progress("augment", start + n, rows)


def _labelled(
    rows: Tensor,
    next_state: Tensor,
    stream: Stream,
    like: Transitions,
    task: Labels | GoalLabels | None,
    hindsight: float,
    source: dict[str, object],
) -> Transitions:
    # Labels are those of the rows as the table keeps them.
    rows, next_state = rows.float(), next_state.float()
    state, action = rows.split([like.state.shape[1], like.action.shape[1]], 1)
    reward: Tensor | None = None
    terminal: Tensor | None = None
    goal: Tensor | None = None
    if isinstance(task, GoalLabels):
        goal = _goals(next_state, task, hindsight, stream)
        reward, terminal = task.label(state, action, next_state, goal)
    elif task is not None:
        reward, terminal = task.label(state, action, next_state)
    return Transitions(state, action, next_state, reward, terminal, goal, like.columns, source)


def _goals(next_state: Tensor, task: GoalLabels, hindsight: float, stream: Stream) -> Tensor:
    """A goal (N, G) for every row: one of the target task, or what the row achieves."""
    drawn = task.goals(len(next_state), seed=stream.child("goals"), device=next_state.device).float()
    if hindsight == 0:
        return drawn
    achieved = task.achieved(next_state).float()
    _check_shape("task.achieved", "goals", achieved, tuple(drawn.shape))
    own = stream.child("hindsight").uniform(len(next_state), 1) < hindsight
    return torch.where(own, achieved, drawn)


def _check_shape(call: str, what: str, array: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(array.shape) != shape:
        raise InputError(f"{call} must return {what} of shape {shape}, got {tuple(array.shape)}.")
