"""HookSweep2: sweep two boxes, with data in which only one is swept at a time (Section 5, Appendix C.2)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import check_counts, check_names
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream, as_stream, generator
from mocoda.graph.local_graph import LocalGraph
from mocoda.tasks.hooksweep_env import BOX_COLUMNS, GOAL, HORIZON, JITTER, SHIFT, TOLERANCE, Simulator, sweep_reward
from mocoda.tasks.hooksweep_expert import STYLES, Episode, play
from mocoda.tasks.recording import Recording, record_table

NEAR = 0.05  # L1 distance in xy below which the boxes may affect each other
EPISODES = 20  # episodes of a part, which is the job of one worker process
COUNTS = ("episodes", "successes", "dropped")
PLACE = ("x", "y", "z")
COLUMNS = (
    *(f"gripper_{name}" for name in (*PLACE, "dx", "dy", "dz")),
    *(f"box{number}_{name}" for number in (1, 2) for name in (*PLACE, "dx", "dy")),
    *(f"action_{name}" for name in (*PLACE, "finger")),
)


def local_mask(rows: Tensor) -> Tensor:
    """The paper's graph: all edges, except those between the boxes where these are not near each other."""
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
    # The gripper's own parent set is omitted: it would group the boxes, which hardly move the gripper (Appendix C.2).
    given_parent_sets=[["gripper", "box1", "action"], ["gripper", "box2", "action"]],
    # A box in the hook moves with the hook: x and y of each box are relative to those of the gripper.
    relative={6: 0, 7: 1, 11: 0, 12: 1},
)


class HookSweep2:
    """Sweep both boxes to one side; in the recorded data one box is swept and the other stays where it is."""

    name = "hooksweep2"
    environment = "mocoda/HookSweep2-v0"
    graph = GRAPH
    columns = COLUMNS
    # For audits: metres by which the next state of a true row may be off, and the columns that it is about.
    tolerance = 0.01
    compared = tuple(name for name in COLUMNS[:16] if name.endswith(("_x", "_y", "gripper_z")))

    @property
    def box(self) -> tuple[Tensor, Tensor]:
        speed = 0.06  # metres a step
        low = [0.8, 0.2, 0.38, *[-speed] * 3, *[1.1, 0.15, 0.4, *[-speed] * 2] * 2, *[-1.0] * 4]
        high = [1.7, 1.4, 0.75, *[speed] * 3, *[2.6, 1.35, 0.5, *[speed] * 2] * 2, *[1.0] * 4]
        return torch.tensor(low), torch.tensor(high)

    def goals(self, n: int, *, seed: int | Stream, device: torch.device | str = "cpu") -> Tensor:
        """Draws goals (n, 6) of the target task: both boxes shifted together."""
        stream = as_stream(seed, "goals", device=device)
        shift = stream.child("jitter").uniform(n, 1, 3, low=-JITTER, high=JITTER)
        shift[..., 0] += SHIFT * (2 * stream.child("side").integers(2, n, 1) - 1)
        shift[..., 2] = 0
        return (torch.as_tensor(GOAL, dtype=torch.float32, device=device) + shift).flatten(1)

    def achieved(self, state: Tensor) -> Tensor:
        """Returns the goals (N, 6) that states (N, 16) have reached: the positions of the boxes."""
        return state[:, BOX_COLUMNS]

    def reached(self, achieved: Tensor, goal: Tensor) -> Tensor:
        """Returns whether both boxes are within the tolerance of their goals, (N, 6) each: bool (N,)."""
        return sweep_reward(achieved, goal, achieved[:, 2])[1]

    def label(self, state: Tensor, action: Tensor, next_state: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
        reward, success = sweep_reward(self.achieved(next_state), goal, next_state[:, 2])
        return reward, torch.zeros_like(success)  # episodes go on after success

    def features(self, rows: Tensor) -> Tensor:
        return rows[:, [6, 7, 11, 12]]

    def region(self, rows: Tensor) -> Tensor:
        """Returns the rows in which the boxes are not far from each other."""
        return (rows[:, 6:8] - rows[:, 11:13]).square().sum(1) < 0.3**2

    def step(self, rows: Tensor) -> Tensor:
        """Returns the simulator's next states for rows (N, 20), each set up as closely as `Simulator.put` can."""
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

        variety  "plain": the expert always sweeps the same way; "varied": its style varies, as a learned expert's would
        workers  processes; the rows are the same for any number of them
        folder   keeps finished parts, so that a second call can continue; it is not removed
        """
        check_counts(rows=rows)
        check_names("variety", [variety], STYLES)
        stream = as_stream(seed, "hooksweep-collect", variety, device="cpu")
        return record_table(
            self,
            record,
            lambda seed: (variety, seed),
            rows,
            stream,
            part="part",
            length=HORIZON,
            counts=COUNTS,
            settings={"variety": variety},
            workers=workers,
            folder=folder,
            progress=progress,
        )


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
    states = np.array([episode.states for episode in kept], np.float32).reshape(-1, HORIZON + 1, 16)
    actions = np.array([episode.actions for episode in kept], np.float32).reshape(-1, 4)
    return Recording(states[:, :-1].reshape(-1, 16), actions, states[:, 1:].reshape(-1, 16), counts)
