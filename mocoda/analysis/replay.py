"""Replay: what truly follows states and actions, by a simulator or any function that knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mocoda.data.transitions import as_tensor
from mocoda.engine.checkpoint import Checkpoint, fingerprint
from mocoda.engine.errors import InputError
from mocoda.engine.progress import Progress, silent
from mocoda.engine.workers import Workers
from mocoda.tasks.task import environment_action

CHUNK = 100  # rows that `step` gets at a time: the job of a worker process
INTERVAL = 5.0  # seconds between checkpoints
Step = Callable[[Tensor], Tensor | NDArray[Any]]  # rows (N, S + A) -> next states (N, S)
Put = Callable[[Any, NDArray[np.float64]], object]  # puts an environment in a state (S,)


def replay(
    rows: Tensor,
    step: Step,
    states: int,
    *,
    numbers: Tensor | None = None,
    workers: int | None = 0,
    checkpoint: Path | None = None,
    progress: Progress = silent,
) -> Tensor:
    """The next states (N, S) that `step` gives for rows (N, S + A), 100 at a time, on the device of the rows.

    states      S, the columns of a state
    numbers     what the rows are called in errors, (N,); from 0 unless given
    workers     processes; they must be able to import `step`. None: one per core; 0: this process
    checkpoint  file that keeps what is finished, for a second call to go on from; it is not removed
    """
    called = torch.arange(len(rows)) if numbers is None else numbers.cpu()
    found = torch.empty(len(rows), states)
    saved = Checkpoint(checkpoint, {"rows": fingerprint(rows), "states": states}, INTERVAL)

    def restore(tensors: dict[str, Tensor]) -> None:
        found[: len(tensors["next_state"])] = tensors["next_state"]

    def finished() -> dict[str, Tensor]:
        return {"next_state": found[:done]}

    done = saved.resume(restore)
    work = _Work(step, str(rows.device) if workers == 0 else "cpu", states)
    if workers != 0:
        try:
            ForkingPickler.dumps(work)
        except Exception as error:
            raise InputError(
                f"other processes cannot be told what step is ({error}): it must be a function that they can import. "
                "Or pass workers=0."
            ) from error
    starts = range(done, len(rows), CHUNK)
    jobs = ((called[at : at + CHUNK].numpy(), rows[at : at + CHUNK].cpu().numpy()) for at in starts)
    progress("audit", done, len(rows))
    with Workers(work, workers) as pool:
        try:
            for next_state in pool.map(jobs):
                found[done : done + len(next_state)] = torch.from_numpy(next_state)
                done += len(next_state)
                saved.offer(done, finished)
                progress("audit", done, len(rows))
        except BaseException:
            saved.interval = 0.0
            if done:
                saved.offer(done, finished)
            raise
    return found.to(rows.device)


@dataclass(frozen=True)
class EnvironmentStep:
    """A step of a Gymnasium environment from any state: it is reset, put in the state, and given the action.

    environment  the id that `gymnasium.make` takes
    put          (env, state (S,)) puts the environment, without its wrappers, in a state
    states       S; None: the columns of a row less those of all actions, also of categories that were never recorded
    """

    environment: str
    put: Put
    states: int | None = None

    def __call__(self, rows: Tensor) -> NDArray[np.float32]:
        env, space = self._env, self._env.action_space
        actions = space.n if isinstance(space, gymnasium.spaces.Discrete) else np.prod(space.shape or ())
        states = rows.shape[1] - int(actions) if self.states is None else self.states
        if isinstance(space, gymnasium.spaces.Discrete) and not bool((rows[:, states:].sum(1) == 1).all()):
            raise InputError(
                f"the actions of {self.environment!r} are {space}, so the columns of a row after the first {states}, "
                "which are the state's, must be one-hot. Read data whose actions are numbers of "
                "categories with categories=[COLUMN]."
            )
        found = []
        for row in rows.cpu().double().numpy():
            env.reset(seed=0)  # so that a row does not depend on those before it
            self.put(env.unwrapped, row[:states].copy())
            seen = env.step(environment_action(space, row[states:]))[0]
            found.append(np.ravel(seen["observation"] if isinstance(seen, dict) else seen))
        return np.array(found, np.float32)

    @cached_property
    def _env(self) -> gymnasium.Env[Any, Any]:
        try:
            env = gymnasium.make(self.environment, disable_env_checker=True)
        except Exception as error:
            raise InputError(f"gymnasium cannot make the environment {self.environment!r}: {error}") from error
        if not isinstance(env.action_space, gymnasium.spaces.Box | gymnasium.spaces.Discrete):
            raise InputError(
                f"the actions of {self.environment!r} are {env.action_space}; only a Box, and categories as one-hot "
                "columns, can be replayed. Write step(rows) instead."
            )
        return env


@dataclass(frozen=True)
class _Work:
    """What a process does: ask the step what follows some rows, and check the answer."""

    step: Step
    device: str
    states: int

    def __call__(self, job: tuple[NDArray[np.int64], NDArray[np.float32]]) -> NDArray[np.float32]:
        numbers, rows = job
        given = torch.from_numpy(rows).to(self.device)
        try:
            answer = self.step(given.clone())  # which may write in it
        except Exception as error:
            raise InputError(f"{_raised(error)} {self._which(numbers, given)}") from error
        if not isinstance(answer, Tensor | np.ndarray):
            raise InputError(f"step must return an array of next states, got {type(answer).__name__}.")
        wanted, next_state = (len(rows), self.states), as_tensor(answer)
        if tuple(next_state.shape) != wanted:
            raise InputError(
                f"step must return next states of shape (N, S) = {wanted} for rows of shape {tuple(rows.shape)}, got "
                f"{tuple(next_state.shape)}."
            )
        found: NDArray[np.float32] = next_state.detach().cpu().float().numpy()
        bad = ~np.isfinite(found).all(1)
        if bad.any():
            at = int(bad.argmax())
            raise InputError(
                f"step returned NaN or infinite numbers for row {numbers[at]} of the data: got {found[at].tolist()} "
                f"for {rows[at].tolist()}. It must know what follows every row."
            )
        return found

    def _which(self, numbers: NDArray[np.int64], given: Tensor) -> str:
        """Which row it was that the step does not like."""
        for number, row in zip(numbers.tolist(), given, strict=True):
            try:
                self.step(row[None].clone())
            except Exception:
                return f"That was row {number} of the data."
        return f"That was for rows {numbers[0]} to {numbers[-1]} of the data together; each alone is answered."


def _raised(error: Exception) -> str:
    if isinstance(error, InputError):  # of a graph file, which names itself
        return str(error)
    return f"step raised {type(error).__name__}: {str(error).rstrip('.')}."
