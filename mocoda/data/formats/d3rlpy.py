"""d3rlpy's replay buffers and their files, with every next state as it is.

d3rlpy stores episodes and makes rows of them: it drops the last step of an episode that does not end in a terminal row,
and gives a terminal row a next observation of zeros. Our episodes therefore have one more observation than rows, the
last row's next state. Those that do not end in a terminal row have one more step, too, of zeros, which is never drawn.
Our buffers come with `NextStates`, which finds a terminal row's next observation and keeps the row's goal in it.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from mocoda.data.formats.arrays import checked_texts, raw_arrays
from mocoda.data.formats.as_episodes import as_episodes, grouped_by_episode
from mocoda.data.formats.format import Contents, Format
from mocoda.data.formats.guarded import array_at, names_in, open_hdf5, refusing
from mocoda.data.names import EPISODES, PROVENANCE
from mocoda.engine.errors import InputError
from mocoda.engine.files import hdf5_disk, whole_file

if TYPE_CHECKING:
    from mocoda.data.transitions import Transitions


class _Steps(NamedTuple):
    """The arrays of one of d3rlpy's episodes; O is at least the number of steps T."""

    observations: NDArray[Any]  # (O, columns)
    actions: NDArray[Any]  # (T, A)
    rewards: NDArray[Any]  # (T, 1)
    terminated: Any  # whether the last step is terminal


class NextStates:
    """Picks rows as d3rlpy does by default, but with each row's true next state and its own goal.

    goal  number of goal columns, the last ones of an observation
    """

    def __init__(self, goal: int = 0) -> None:
        from d3rlpy.dataset import BasicTransitionPicker

        self._pick, self._goal = BasicTransitionPicker(), goal

    def __call__(self, episode: Any, index: int) -> Any:
        """The `d3rlpy.dataset.Transition` number `index` of an episode."""
        row = self._pick(episode, index)
        if len(episode.observations) == index + 1 or not (row.terminal or self._goal):
            return row
        following = np.array(episode.observations[index + 1])
        width = len(following) - self._goal
        following[width:] = row.observation[width:]
        return replace(row, next_observation=following)


def to_d3rlpy(data: Transitions, *, one_goal: bool = False) -> Any:
    """A `d3rlpy.dataset.ReplayBuffer` of all rows, for any of its algorithms with continuous actions.

    It samples the rows of `data` uniformly. The last columns of an observation are the goal; a row's next observation
    keeps the row's goal. An episode with terminal rows inside becomes several; with `one_goal`, a new one begins
    wherever the goal changes, too.
    """
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # a package that it loads prints a notice of its own
            from d3rlpy.constants import ActionSpace
            from d3rlpy.dataset import Episode, InfiniteBuffer, ReplayBuffer
    except ImportError as error:
        raise InputError(f'a replay buffer of d3rlpy needs d3rlpy; pip install "mocoda[d3rlpy]" ({error}).') from error
    if data.reward is None:
        raise InputError("the rows have no rewards, and d3rlpy learns from them; label the rows with a task first.")
    episodes = [Episode(*steps) for steps in _episodes(data, one_goal)]
    first = episodes[0]
    return ReplayBuffer(
        InfiniteBuffer(),
        transition_picker=NextStates(0 if data.goal is None else data.goal.shape[1]),
        episodes=episodes,
        observation_signature=first.observation_signature,
        action_signature=first.action_signature,
        reward_signature=first.reward_signature,
        action_space=ActionSpace.CONTINUOUS,  # it would take actions of -1, 0 and 1 for categories
        action_size=data.action.shape[1],
    )


def from_d3rlpy(buffer: Any, goal: int = 0) -> Transitions:
    """The rows of a d3rlpy replay buffer; the last `goal` columns of its observations are the goal.

    Buffers that mocoda did not make do not know the state after a terminal row: such rows are left out, and counted in
    the source.
    """
    contents = _contents(buffer.episodes, goal, {"d3rlpy": type(buffer).__name__})
    return raw_arrays(contents, D3RLPY.title).table()


def write(data: Transitions, place: str) -> None:
    """Writes a file as d3rlpy's `ReplayBuffer.dump` does; its `load` returns all rows.

    Loaded by d3rlpy, terminal rows have next observations of zeros, and episodes are split where the goal changes,
    because d3rlpy would take the next row's goal for the row's own. `to_d3rlpy(read(path))` restores everything.
    """
    data = grouped_by_episode(data)
    buffer = to_d3rlpy(data, one_goal=True)
    with whole_file(place) as part:
        with hdf5_disk(part) as disk:
            buffer.dump(disk)
        # d3rlpy reads what it knows, and leaves the rest alone.
        with hdf5_disk(part, "r+") as disk, h5py.File(disk, "r+") as file:
            goal = 0 if data.goal is None else data.goal.shape[1]
            about = {"columns": list(data.columns), "source": dict(data.source), "goal": goal}
            file.create_dataset("mocoda", data=np.frombuffer(json.dumps(about).encode(), np.uint8))
            for name, note in data.provenance.items():
                file[f"mocoda_provenance/{name}"] = note.cpu().numpy()
            for name in EPISODES if data.episode is not None else ():
                file[f"mocoda_episodes/{name}"] = getattr(data, name).cpu().numpy()


def read(place: str) -> Contents:
    """Reads a file that `write`, or d3rlpy's own `dump`, has written; d3rlpy is not needed."""
    with refusing(place, f"a {D3RLPY.title}"), open_hdf5(Path(place)) as file:
        about = checked_texts(place, json.loads(array_at(file, "mocoda").tobytes()) if "mocoda" in {*file} else {})
        episodes = (
            _Steps(*(array_at(file, f"{part}_{number}") for part in _Steps._fields))
            for number in range(int(array_at(file, "num_episodes")))
        )
        source = about.get("source", {"d3rlpy": Path(place).name})
        contents = _contents(episodes, about.get("goal", 0), source, about.get("columns", ()))
        arrays = dict(contents.arrays)
        if about:  # the episodes in the file are not those of the table
            arrays = {name: array for name, array in arrays.items() if name not in EPISODES}
        for group, prefix in (("mocoda_episodes", ""), ("mocoda_provenance", PROVENANCE)):
            arrays |= {prefix + name: array_at(file, f"{group}/{name}") for name in names_in(file, group)}
        return replace(contents, arrays=arrays)


D3RLPY = Format("d3rlpy", "d3rlpy replay buffer", "d3rlpy:FILE.h5", read, write)


def _episodes(data: Transitions, one_goal: bool) -> Iterable[_Steps]:
    """The episodes, as views of common arrays: copying would take most of the time where episodes are single rows."""
    data = grouped_by_episode(data)
    assert data.reward is not None
    episodes = as_episodes(data, end_at_terminal=True, one_goal=one_goal)
    observation = episodes.observation
    if episodes.goal is not None:
        observation = np.concatenate([observation, episodes.goal], 1)
    ends = episodes.bounds[1:]
    action = np.insert(data.action.cpu().numpy(), ends, 0, axis=0)
    reward = np.insert(data.reward.cpu().numpy()[:, None], ends, 0, axis=0)
    terminal = data.terminal.cpu().numpy()
    for rows, observed in episodes:
        terminated = bool(terminal[rows.stop - 1])
        steps = slice(observed.start, observed.stop - terminated)
        yield _Steps(observation[observed], action[steps], reward[steps], terminated)


def _contents(episodes: Iterable[Any], goal: int, source: dict[str, Any], columns: Any = ()) -> Contents:
    parts: list[tuple[NDArray[Any], ...]] = []
    unknown = 0
    for number, episode in enumerate(episodes):
        observations, steps, terminated = episode.observations, len(episode.actions), bool(episode.terminated)
        if not isinstance(observations, np.ndarray) or observations.ndim != 2:
            raise InputError("observations of d3rlpy must be vectors, one array an episode, not images or tuples.")
        rows = min(steps, len(observations) - 1)
        unknown += terminated and rows < steps
        if rows > 0:
            ends = np.zeros(rows, bool)
            ends[-1] = terminated and rows == steps
            following = observations[1 : rows + 1]
            place = np.full(rows, number), np.arange(rows)
            rewards = episode.rewards[:rows, 0]
            parts.append((observations[:rows], episode.actions[:rows], following, rewards, ends, *place))
    if not parts:
        raise InputError("the replay buffer has no rows whose next state is known; expected at least one.")
    observed, action, following, reward, *rest = (np.concatenate(part) for part in zip(*parts, strict=True))
    width = observed.shape[1] - goal
    if not 0 < width <= observed.shape[1]:
        raise InputError(f"goal must be a number of the {observed.shape[1]} observation columns, got {goal}.")
    arrays = {"state": observed[:, :width], "action": action, "next_state": following[:, :width], "reward": reward}
    arrays |= dict(zip(("terminal", *EPISODES), rest, strict=True))
    if goal:
        arrays["goal"] = observed[:, width:]
    return Contents(arrays, columns, source | ({"terminal_rows_left_out": unknown} if unknown else {}))
