"""HookSweep2: sweep two boxes, after data in which only one is swept at a time (Section 5, Appendix C.2)."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream, as_stream, generator
from mocoda.graph.local_graph import LocalGraph
from mocoda.tasks.hooksweep_env import BOX_COLUMNS, GOAL, HORIZON, JITTER, SHIFT, TOLERANCE, Simulator, sweep_reward
from mocoda.tasks.hooksweep_expert import STYLES, Episode, play
from mocoda.tasks.parts import parts as parts_of

NEAR = 0.05  # L1 distance in xy below which each box is taken to depend on the other
EPISODES = 20  # of a part, the job of one worker process
COUNTS = ("episodes", "successes", "dropped")
Floats32 = NDArray[np.float32]
PLACE = ("x", "y", "z")
COLUMNS = (
    *(f"gripper_{name}" for name in (*PLACE, "dx", "dy", "dz")),
    *(f"box{number}_{name}" for number in (1, 2) for name in (*PLACE, "dx", "dy")),
    *(f"action_{name}" for name in (*PLACE, "finger")),
)


def local_mask(rows: Tensor) -> Tensor:
    """The paper's graph: all edges but those between the boxes, and these too where the boxes are near each other."""
    apart = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 1], [1, 1, 1]], dtype=torch.bool, device=rows.device)
    near = (rows[:, 6:8] - rows[:, 11:13]).abs().sum(1) < NEAR
    return apart | near[:, None, None]


GRAPH = LocalGraph(
    state={"gripper": slice(0, 6), "box1": slice(6, 11), "box2": slice(11, 16)},
    action={"action": slice(0, 4)},
    edges={
        "gripper": ["gripper", "box1", "box2", "action"],
        "box1": ["gripper", "box1", "action"],
        "box2": ["gripper", "box2", "action"],
    },
    local=local_mask,
    # The gripper's own set is left out: it would link the boxes, which hardly move the gripper (Appendix C.2).
    given_parent_sets=[["gripper", "box1", "action"], ["gripper", "box2", "action"]],
    # A box in the hook is where the hook is: x and y of each box go with those of the gripper.
    relative={6: 0, 7: 1, 11: 0, 12: 1},
)


class HookSweep2:
    """The task, with recorded data in which one box is swept and the other stays where it is."""

    name = "hooksweep2"
    environment = "mocoda/HookSweep2-v0"
    graph = GRAPH
    tolerance = (
        0.01  # metres by which a row's next state may be off and still be true, and the columns that it is about
    )
    compared = tuple(name for name in COLUMNS[:16] if name.endswith(("_x", "_y", "gripper_z")))

    @property
    def box(self) -> tuple[Tensor, Tensor]:
        speed = 0.06  # metres a step
        low = [0.8, 0.2, 0.38, *[-speed] * 3, *[1.1, 0.15, 0.4, *[-speed] * 2] * 2, *[-1.0] * 4]
        high = [1.7, 1.4, 0.75, *[speed] * 3, *[2.6, 1.35, 0.5, *[speed] * 2] * 2, *[1.0] * 4]
        return torch.tensor(low), torch.tensor(high)

    def goals(self, n: int, *, seed: int | Stream, device: torch.device | str = "cpu") -> Tensor:
        """Goals (n, 6) of the target task: both boxes shifted together. On a CPU, fewer goals are the first of more."""
        stream = as_stream(seed, "goals", device=device)
        shift = stream.child("jitter").uniform(n, 1, 3, low=-JITTER, high=JITTER)
        shift[..., 0] += SHIFT * (2 * stream.child("side").integers(2, n, 1) - 1)
        shift[..., 2] = 0
        return (torch.as_tensor(GOAL, dtype=torch.float32, device=device) + shift).flatten(1)

    def achieved(self, state: Tensor) -> Tensor:
        """The goals (N, 6) that states (N, 16) have reached."""
        return state[:, BOX_COLUMNS]

    def reached(self, achieved: Tensor, goal: Tensor) -> Tensor:
        """Whether achieved goals (N, 6) are within the tolerance of others, both boxes: bool (N,)."""
        return sweep_reward(achieved, goal, achieved[:, 2])[1]

    def label(self, state: Tensor, action: Tensor, next_state: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
        reward, success = sweep_reward(self.achieved(next_state), goal, next_state[:, 2])
        return reward, torch.zeros_like(success)  # episodes go on after success

    def features(self, rows: Tensor) -> Tensor:
        return rows[:, [6, 7, 11, 12]]

    def region(self, rows: Tensor) -> Tensor:
        """Rows in which the boxes are not far from each other."""
        return (rows[:, 6:8] - rows[:, 11:13]).square().sum(1) < 0.3**2

    def step(self, rows: Tensor) -> Tensor:
        """The simulator's next states for rows (N, 20), each set up as closely as `Simulator.put` can."""
        simulator, next_states = Simulator(), []
        for row in rows.cpu().double().numpy():
            simulator.put(row[:16])
            simulator.step(row[16:])
            next_states.append(simulator.state())
        return torch.as_tensor(np.array(next_states), dtype=torch.float32).to(rows.device)

    def collect(
        self,
        rows: int,
        *,
        seed: int | Stream,
        variety: str = "varied",
        workers: int | None = 0,
        folder: Path | None = None,
        progress: Progress = silent,
    ) -> Transitions:
        """Records the scripted expert as it sweeps one box, and labels the rows with goals of the target task.

        Episodes in which the other box ends outside its tolerance are dropped, and counted in `source`.

        variety  "plain": the expert always sweeps the same way; "varied": it varies as a learned, noisy expert would
        workers  processes; the rows are the same for any number of them
        folder   where finished parts are kept for a second call to go on from; it is not removed
        """
        if rows < 1:
            raise InputError(f"rows must be at least 1, the number of transitions to record, got {rows}.")
        if variety not in STYLES:
            raise unknown_name("variety", variety, STYLES)
        stream = as_stream(seed, "hooksweep-collect", variety, device="cpu")
        parts: list[Recording] = []
        have = 0

        def seed_of(number: int) -> int:
            return int(stream.child("part", number).integers(2**31, 1))

        for part in parts_of(record, Recording, lambda number: (variety, seed_of(number)), seed_of, workers, folder):
            parts.append(part)
            have += len(part.action)
            progress("collect", min(have, rows), rows)
            if have >= rows:
                break
        whole = [torch.from_numpy(np.concatenate(arrays)) for arrays in zip(*parts, strict=True)]
        state, action, next_state = (array[:rows].float() for array in whole[:3])
        goal = self.goals(rows, seed=stream)
        reward, terminal = self.label(state, action, next_state, goal)
        counts = dict(zip(COUNTS, whole[3].sum(0).tolist(), strict=True))
        source = {"task": self.name, "rows": rows, "seed": stream.seed, "variety": variety, **counts}
        episode = torch.arange(rows) // HORIZON  # all have the same length
        return Transitions(
            state, action, next_state, reward, terminal, goal, columns=COLUMNS, source=source, episode=episode
        )


class Recording(NamedTuple):
    """The rows of one part of the episodes."""

    state: Floats32  # (N, 16)
    action: Floats32  # (N, 4)
    next_state: Floats32  # (N, 16)
    counts: NDArray[np.int64]  # (1, 3), of COUNTS


def record(job: tuple[str, int]) -> Recording:
    """Plays the episodes of one part, given its variety and seed."""
    variety, seed = job
    simulator = Simulator()
    kept: list[Episode] = []
    counts = np.zeros((1, len(COUNTS)), np.int64)
    for number in range(EPISODES):
        episode = play(simulator, generator(seed, number), "one", variety)
        swept, left = episode.distances() <= TOLERANCE
        counts += [1, int(swept and left), int(not left)]
        if left:
            kept.append(episode)
    states = [episode.states.astype(np.float32) for episode in kept]
    return Recording(
        np.concatenate([np.zeros((0, 16), np.float32), *(states_of[:-1] for states_of in states)]),
        np.concatenate([np.zeros((0, 4), np.float32), *(episode.actions.astype(np.float32) for episode in kept)]),
        np.concatenate([np.zeros((0, 16), np.float32), *(states_of[1:] for states_of in states)]),
        counts,
    )
