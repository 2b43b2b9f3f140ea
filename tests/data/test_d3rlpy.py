"""d3rlpy sees our rows and nothing else, single steps and timeouts too, and learns from them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import d3rlpy
import h5py
import numpy as np
import pytest
import structlog
import torch
from approved import assert_approved, refused
from d3rlpy.dataset import Episode, InfiniteBuffer, MDPDataset, ReplayBuffer
from transition_tables import assert_identical, numbers, refusal

import mocoda
from mocoda.data.formats.d3rlpy import NextStates, from_d3rlpy, to_d3rlpy, write
from mocoda.data.transitions import Transitions, concatenate


def read(path: str) -> Transitions:
    return mocoda.read(f"d3rlpy:{path}")


@pytest.fixture(autouse=True)
def quiet() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def walk(steps: int, start: int, terminal: bool, goal: bool) -> Transitions:
    """Steps that follow one another; every number of it occurs once."""
    states = np.arange(3 * steps + 3).reshape(-1, 3) + start + 0.5
    ends = np.zeros(steps, bool)
    ends[-1] = terminal
    count = np.arange(steps, dtype=np.float32) + start
    aim = np.full((steps, 2), start) if goal else None
    return Transitions(states[:-1], np.tanh(numbers(steps, 2)), states[1:], count, ends, aim)


def mixed(goal: bool = False) -> Transitions:
    """An episode that terminates, one that times out, and single steps of both kinds."""
    whole = [walk(4, 100, True, goal), walk(3, 200, False, goal)]
    single = [walk(1, 300 + 10 * i, terminal, goal) for i, terminal in enumerate([True, False, False, True])]
    return concatenate([*whole, *single])


def arrays(data: Transitions) -> dict[str, Any]:
    return {name: getattr(data, name) for name in ("state", "action", "next_state", "reward", "terminal", "goal")}


def rows_of(data: Transitions) -> set[tuple[float, ...]]:
    assert data.reward is not None
    goal = [] if data.goal is None else [data.goal]
    columns = [data.state, *goal, data.action, data.reward[:, None], data.next_state, *goal, data.terminal[:, None]]
    return {tuple(row) for row in torch.cat([column.float() for column in columns], 1).tolist()}


def drawn(buffer: Any, n: int = 400) -> set[tuple[float, ...]]:
    batch = buffer.sample_transition_batch(n)
    assert (batch.intervals == 1).all()
    columns = (batch.observations, batch.actions, batch.rewards, batch.next_observations, batch.terminals)
    return {tuple(row) for row in np.concatenate(columns, 1).tolist()}


@pytest.mark.parametrize("goal", [False, True])
def test_every_row_is_drawn_and_given_back_and_nothing_else(goal: bool) -> None:
    data = mixed(goal)
    buffer = to_d3rlpy(data)
    assert buffer.transition_count == len(data)
    assert drawn(buffer) == rows_of(data)
    back = from_d3rlpy(buffer, goal=2 if goal else 0)
    assert_identical(back, Transitions(**arrays(data), source={"d3rlpy": "ReplayBuffer"}))


def test_actions_at_the_corners_are_no_categories() -> None:
    data = Transitions(numbers(2, 2), [[1.0], [-1.0]], numbers(2, 2), numbers(2))
    info = to_d3rlpy(data).dataset_info
    assert (info.action_space, info.action_size) == (d3rlpy.constants.ActionSpace.CONTINUOUS, 1)


def test_a_buffer_of_d3rlpy_s_own_gives_the_rows_whose_next_states_it_knows() -> None:
    states, ends = np.arange(14, dtype=np.float32).reshape(7, 2), np.array([0, 0, 1, 0, 0, 0, 0])
    late = np.array([0, 0, 0, 0, 0, 0, 1])
    buffer = MDPDataset(states, numbers(7, 1), np.arange(7, dtype=np.float32), ends, late)
    data = from_d3rlpy(buffer)
    kept = [0, 1, 3, 4, 5]  # not the terminal row, nor what follows the last
    assert data.state.equal(torch.tensor(states[kept])) and data.reward is not None
    assert data.next_state.equal(torch.tensor(states[[i + 1 for i in kept]]))
    assert data.reward.tolist() == kept and not data.terminal.any()
    assert data.source == {"d3rlpy": "MDPDataset", "terminal_rows_left_out": 1}


@pytest.mark.filterwarnings("error")
def test_d3rlpy_loads_the_file_with_all_rows(tmp_path: Path) -> None:
    data = mixed()
    write(data, str(tmp_path / "rows.h5"))
    with (tmp_path / "rows.h5").open("rb") as handle:
        buffer = ReplayBuffer.load(handle, InfiniteBuffer(), transition_picker=NextStates())
    assert drawn(buffer) == rows_of(data)
    with (tmp_path / "rows.h5").open("rb") as handle:
        default = ReplayBuffer.load(handle, InfiniteBuffer())
    nothing_after = Transitions(
        **arrays(data) | {"next_state": torch.where(data.terminal[:, None], 0.0, data.next_state)}
    )
    assert drawn(default) == rows_of(nothing_after)


def test_a_file_that_d3rlpy_dumped_itself_is_read(tmp_path: Path) -> None:
    episodes = [Episode(numbers(4, 2), numbers(4, 1), numbers(4, 1), False) for _ in range(2)]
    with (tmp_path / "own.h5").open("w+b") as handle:
        ReplayBuffer(InfiniteBuffer(), episodes=episodes).dump(handle)
    data = read(str(tmp_path / "own.h5"))
    assert data.next_state[:3].equal(torch.tensor(numbers(4, 2)[1:])) and len(data) == 6
    assert data.episode is not None and data.episode.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.step is not None and data.step.tolist() == [0, 1, 2, 0, 1, 2]
    assert data.source == {"d3rlpy": "own.h5"}


def test_rows_without_rewards_and_goals_without_a_state_are_refused() -> None:
    with refused():
        to_d3rlpy(Transitions(numbers(2, 2), numbers(2, 1), numbers(2, 2)))
    with refused():
        from_d3rlpy(to_d3rlpy(mixed()), goal=3)


def noted(file: h5py.File, text: bytes) -> None:
    del file["mocoda"]
    file["mocoda"] = np.frombuffer(text, np.uint8)


HARM: dict[str, Callable[[h5py.File], object]] = {
    "huge": lambda f: f["num_episodes"].__setitem__((), 10**15),
    "images": lambda f: (f.__delitem__("observations_0"), f.__setitem__("observations_0", numbers(5, 2, 2))),
    "note": lambda f: noted(f, b"[3]"),
    "provenance": lambda f: f.__setitem__("mocoda_provenance", h5py.ExternalLink("elsewhere.h5", "/")),
}


@pytest.mark.parametrize("harm", HARM)
def test_broken_files_end_in_a_clear_error(tmp_path: Path, harm: str) -> None:
    path = tmp_path / "rows.h5"
    write(mixed(), str(path))
    with h5py.File(path, "r+") as file:
        HARM[harm](file)
    assert_approved(refusal(lambda: read(str(path))).partition(" (")[0])
