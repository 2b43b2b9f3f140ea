"""OGBench's cubes as tasks: move one, two or three cubes to their places, with data from scripted oracles."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.tasks.cubes_env import (
    ACTION,
    CENTRE,
    CLOSED,
    CUBE,
    KINDS,
    OFFICIAL,
    ROBOT,
    SCALE,
    Floats,
    make_world,
    put,
    reset_official,
)
from mocoda.tasks.cubes_oracle import COUNTS, FIELD, LENGTH, VARIETIES, Job, record
from mocoda.tasks.recording import record_rows

# Distances between centres, in the state's units of 10 cm, below which bodies may depend on each other. Chosen from the
# contacts in 18,000 steps of "play" with two cubes, replayed substep by substep: of 8,560 steps in which the hand
# touched a cube, none began with a larger distance (at most 0.87), and of 1,498 steps in which cubes touched, one did.
HAND_NEAR, CUBES_NEAR = 0.9, 0.7
HAND = slice(12, 15)  # columns of a state: the position of the hand
WITHIN = 0.4  # a cube is at its goal up to this distance
HANDS = 64  # number of hands in goals, drawn as the benchmark does

JOINTS = ("shoulder_pan", "shoulder_lift", "elbow", "wrist_1", "wrist_2", "wrist_3")
ROBOT_COLUMNS = (
    *(f"robot_{joint}" for joint in JOINTS),
    *(f"robot_{joint}_speed" for joint in JOINTS),
    *(f"robot_hand_{name}" for name in ("x", "y", "z", "yaw_cos", "yaw_sin")),
    "robot_gripper_closed",
    "robot_gripper_contact",
)
CUBE_COLUMNS = ("x", "y", "z", "qw", "qx", "qy", "qz", "yaw_cos", "yaw_sin")
ACTION_COLUMNS = tuple(f"action_{name}" for name in ("x", "y", "z", "yaw", "gripper"))


def places(state: Tensor) -> Tensor:
    """Returns the positions of the cubes (N, cubes, 3) in states (N, S)."""
    cubes: Tensor = state[:, ROBOT:].unflatten(1, (-1, CUBE))[..., :3]
    return cubes


def local_mask(rows: Tensor) -> Tensor:
    """Hand and cube, or two cubes, affect each other where they are near; the action affects cubes near the hand."""
    state = rows[:, :-ACTION]
    cubes = places(state)
    count = cubes.shape[1]
    mask = torch.zeros(len(rows), count + 2, count + 1, dtype=torch.bool, device=rows.device)
    held = (cubes - state[:, None, HAND]).norm(dim=-1) < HAND_NEAR  # (N, cubes)
    mask[:, [0, -1], 0] = True
    mask[:, 0, 1:] = mask[:, -1, 1:] = mask[:, 1:-1, 0] = held
    mask[:, 1:-1, 1:] = (cubes[:, :, None] - cubes[:, None]).norm(dim=-1) < CUBES_NEAR
    return mask


@cache
def graph_of(cubes: int) -> LocalGraph:
    """Makes the graph of robot, cubes and action; in the sparsest graph no body is near another."""
    names = [f"cube{number}" for number in range(1, cubes + 1)]
    columns = {name: slice(ROBOT + CUBE * i, ROBOT + CUBE * (i + 1)) for i, name in enumerate(names)}
    return LocalGraph(
        state={"robot": slice(0, ROBOT), **columns},
        action={"action": slice(0, ACTION)},
        edges={"robot": ["robot", "action"], **{name: [name] for name in names}},
        local=local_mask,
    )


@dataclass(frozen=True)
class Cubes:
    """A cube task of OGBench, with whole states as goals.

    official  number of the official task, 1 to 5, from which goals and episodes come; None: all of them
    """

    cubes: int
    official: int | None = None

    tolerance = 0.05  # for audits: hand and cubes of a true row may be off by 5 mm

    def __post_init__(self) -> None:
        if self.official is not None and self.official not in OFFICIAL:
            raise InputError(f"the official tasks are numbered 1 to 5, got {self.official}.")

    @property
    def name(self) -> str:
        return f"cube-{KINDS[self.cubes]}" + ("" if self.official is None else f":{self.official}")

    @property
    def officials(self) -> dict[int, Cubes]:
        """The five official tasks by number."""
        return {number: replace(self, official=number) for number in OFFICIAL}

    @property
    def environment(self) -> str:
        return f"mocoda/Cube{KINDS[self.cubes].title()}{self.official or ''}-v0"

    @property
    def graph(self) -> LocalGraph:
        return graph_of(self.cubes)

    @property
    def columns(self) -> tuple[str, ...]:
        cubes = (f"cube{number}_{name}" for number in range(1, self.cubes + 1) for name in CUBE_COLUMNS)
        return (*ROBOT_COLUMNS, *cubes, *ACTION_COLUMNS)

    @property
    def compared(self) -> tuple[str, ...]:
        """The columns that an audit compares: the positions of hand and cubes."""
        return tuple(name for name in self.columns[:-ACTION] if name.endswith(("_x", "_y", "_z")))

    @property
    def box(self) -> tuple[Tensor, Tensor]:
        low = [-3, -2.4, 1.1, -2.7, -1.7, -4, *[-2.0] * 6, -1.8, -3.6, 0, -1, -1, 0, 0]
        high = [-0.8, -0.8, 2.8, -1.2, -1.4, 6.3, *[2.0] * 6, 1.8, 3.6, 3.5, 1, 1, CLOSED, 1]
        low += [-1.8, -3.9, 0.1, *[-1.0] * 6] * self.cubes + [-1.0] * ACTION
        high += [1.8, 3.9, 3.6, *[1.0] * 6] * self.cubes + [1.0] * ACTION
        return torch.tensor(low), torch.tensor(high)

    def goals(self, n: int, *, seed: int | Stream, device: torch.device | str = "cpu") -> Tensor:
        """Draws goals (n, S) of the official tasks: cubes in their places, in any order, the hand anywhere above."""
        stream = as_stream(seed, "goals", device=device)
        hands, wanted = (
            torch.as_tensor(part, dtype=torch.float32, device=device) for part in official_goals(self.cubes)
        )
        task = stream.child("task").integers(len(OFFICIAL), n)
        if self.official is not None:
            task = torch.full_like(task, self.official - 1)
        order = stream.child("order").uniform(n, self.cubes).argsort(1)
        cubes = wanted[task[:, None], order].flatten(1)
        return torch.cat([hands[stream.child("hand").integers(len(hands), n)], cubes], 1)

    def achieved(self, state: Tensor) -> Tensor:
        """Returns the goals (N, S) that states (N, S) have reached: the states themselves."""
        return state

    def label(self, state: Tensor, action: Tensor, next_state: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
        """Returns reward 0 and an end where all cubes are within 4 cm of their goals, and -1 elsewhere."""
        success = ((places(next_state) - places(goal)).norm(dim=-1) <= WITHIN).all(1)
        return success.float() - 1, success

    def features(self, rows: Tensor) -> Tensor:
        return places(rows[:, :-ACTION])[..., :2].flatten(1)

    def region(self, rows: Tensor) -> Tensor:
        """Returns the rows in which all cubes lie in the area of the targets."""
        low, high = (torch.as_tensor(end, dtype=rows.dtype, device=rows.device) for end in (FIELD - CENTRE[:2]) * SCALE)
        cubes = places(rows[:, :-ACTION])[..., :2]
        return ((cubes > low) & (cubes < high)).flatten(1).all(1)

    def step(self, rows: Tensor) -> Tensor:
        """Returns the simulator's next states for rows (N, S + 5), each set up as closely as `put` can."""
        world, next_states = make_world(self.cubes, "data_collection"), []
        for row in rows.cpu().double().numpy():
            put(world, row[:-ACTION])
            next_states.append(world.step(np.clip(row[-ACTION:], -1, 1))[0])
        return torch.as_tensor(np.array(next_states), dtype=torch.float32).to(rows.device)

    def collect(
        self,
        rows: int,
        *,
        seed: int | Stream,
        variety: str = "play",
        length: int = LENGTH,
        workers: int | None = 0,
        folder: Path | None = None,
        progress: Progress = silent,
    ) -> Transitions:
        """Records OGBench's oracles, and labels the rows with goals of the official tasks.

        variety  "play": the benchmark's default, any cube goes anywhere, by a plan with correlated noise; "noisy": its
                 other oracle, which reacts to each state, with independent noise at each step; "one-cube": as "play",
                 but one cube is handled in each episode, and the others rest in a strip beside the official places.
                 Episodes in which a resting cube is brushed are dropped, and counted in `source`
        length   steps of an episode
        workers  processes; None: one per core. The rows are the same for any number of them
        folder   keeps finished episodes, so that a second call can continue; it is not removed
        """
        for name, number in (("rows", rows), ("length", length)):
            if number < 1:
                raise InputError(f"{name} must be at least 1, got {number}.")
        if variety not in VARIETIES:
            raise unknown_name("variety", variety, VARIETIES)
        if variety == "one-cube" and self.cubes == 1:
            raise InputError("cube-single has no cube to park, so its only varieties are play and noisy.")
        stream = as_stream(seed, "cubes-collect", self.cubes, variety, length, device="cpu")

        def seed_of(number: int) -> int:
            return int(stream.child("episode", number).integers(2**31, 1))

        def job(number: int) -> Job:
            return Job(self.cubes, variety, length, seed_of(number))

        state, action, next_state, counts = record_rows(
            record, job, seed_of, rows, workers=workers, folder=folder, progress=progress
        )
        goal = self.goals(rows, seed=stream)
        reward, terminal = self.label(state, action, next_state, goal)
        source = {"task": self.name, "rows": rows, "seed": stream.seed, "variety": variety, "length": length}
        source |= dict(zip(COUNTS, counts, strict=True))
        return Transitions(
            state,
            action,
            next_state,
            reward,
            terminal,
            goal,
            columns=self.columns,
            source=source,
            episode=torch.arange(rows) // length,  # all episodes that are kept have this length
        )


class CubePlaces(Cubes):
    """A cube task whose goals are the target positions of the cubes, (x, y, z) of each.

    Only these decide success; the benchmark calls them its oracle representation of goals. A state of the data in which
    every cube is within 4 cm of a goal has reached it.
    """

    @property
    def name(self) -> str:
        return f"cube-{KINDS[self.cubes]}-places" + ("" if self.official is None else f":{self.official}")

    @property
    def environment(self) -> str:
        return f"mocoda/Cube{KINDS[self.cubes].title()}Places{self.official or ''}-v0"

    def goals(self, n: int, *, seed: int | Stream, device: torch.device | str = "cpu") -> Tensor:
        """Draws goals (n, 3 cubes) of the official tasks: the cubes' places, in any order."""
        return self.achieved(super().goals(n, seed=seed, device=device))

    def achieved(self, state: Tensor) -> Tensor:
        """Returns the positions of the cubes (N, 3 cubes) in states (N, S)."""
        return places(state).flatten(1)

    def reached(self, achieved: Tensor, goal: Tensor) -> Tensor:
        """Returns whether all cubes are within 4 cm of their goals, (N, 3 cubes) each: bool (N,)."""
        apart: Tensor = (achieved - goal).unflatten(1, (-1, 3)).norm(dim=-1)
        return (apart <= WITHIN).all(1)

    def label(self, state: Tensor, action: Tensor, next_state: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
        """Returns reward 0 and an end where all cubes are within 4 cm of their goals, and -1 elsewhere."""
        success = self.reached(self.achieved(next_state), goal)
        return success.float() - 1, success


@cache
def official_goals(cubes: int) -> tuple[Floats, Floats]:
    """Returns the robot columns of goals (HANDS, 19), and the cubes' goals in each official task (5, cubes, 9)."""
    world = make_world(cubes, "task")
    goals = [reset_official(world, OFFICIAL[number % len(OFFICIAL)], number)[1] for number in range(HANDS)]
    lying = np.array([1.0, 0, 0, 0, 1, 0])  # with yaw 0
    wanted = [[[*(SCALE * (place - CENTRE)), *lying] for place in task["goal_xyzs"]] for task in world.task_infos]
    return np.array(goals)[:, :ROBOT], np.array(wanted)
