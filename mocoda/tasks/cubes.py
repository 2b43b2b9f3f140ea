"""OGBench's cubes as tasks: move one to four cubes to their places, with data from scripted oracles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError, check_counts, check_names
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Random, Stream, as_stream, generator, numpy_seed
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
    make_world,
    put,
    reset_official,
)
from mocoda.tasks.hooksweep_env import Floats
from mocoda.tasks.recording import Recording, record_table

# Distances between centres, in the state's units of 10 cm, below which bodies may depend on each other. Chosen from the
# contacts in 18,000 steps of "play" with two cubes, replayed substep by substep: of 8,560 steps in which the hand
# touched a cube, none began with a larger distance (at most 0.87), and of 1,498 steps in which cubes touched, one did.
HAND_NEAR, CUBES_NEAR = 0.9, 0.7
HAND = slice(12, 15)  # columns of a state: the position of the hand
WITHIN = 0.4  # a cube is at its goal up to this distance
ON_TOP = 0.3  # horizontal distance up to which a higher cube lies on a lower one
OVERLAP = 0.35  # distance below which two cubes, which are 4 cm wide, would be in one place
HANDS = 64  # number of hands in goals, drawn as the benchmark does

LENGTH = 1_000  # steps of an episode, as in the benchmark's data
STACKED = {
    1: (0.0, 0.0),
    2: (0.0, 0.25),
    3: (0.05, 0.35),
    4: (0.1, 0.5),
}  # cubes -> range of an episode's share of stacked targets
RANDOM_ACTIONS, NOISE = 0.1, np.array([1, 1, 1, 3, 10]) * 0.1  # of "noisy": share of random actions, maximum noise
# In metres. Cubes are placed on FIELD, of which official tasks use x from 0.34 to 0.51 and y from -0.21 to 0.21. Parked
# cubes rest in STRIP, between these places and the invisible wall at y = 0.38 that keeps cubes on the table.
FIELD = np.array([[0.3, -0.3], [0.55, 0.3]])
STRIP = np.array([[0.27, 0.32], [0.58, 0.345]])
CLEARANCE = 0.12  # distance from parked cubes at which the handled one is picked up or placed
PARKED_APART = 0.08
REST = 0.02  # height of a cube on the table
BRUSHED = 0.001  # a parked cube that moves farther has been brushed
VARIETIES = ("play", "one-cube", "noisy")
COUNTS = ("episodes", "dropped")

# Places on the table where a cube can be put aside, in the state's units: where official tasks have cubes, every 3 cm.
ASIDE = torch.tensor([[0.3 * x, 0.3 * y, REST * SCALE] for x in range(-2, 3) for y in range(-7, 8)])

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


def at_places(achieved: Tensor, goal: Tensor) -> Tensor:
    """Returns whether all cubes are within 4 cm of their goals, positions (N, 3 cubes) each: bool (N,)."""
    apart: Tensor = (achieved - goal).unflatten(1, (-1, 3)).norm(dim=-1)
    return (apart <= WITHIN).all(1)


def next_places(cubes: Tensor, goal: Tensor) -> Tensor:
    """Returns the places of the cubes with one of them moved, on the way to their goals, (cubes, 3) each.

    The cube that moves is not under another one, and its goal is free and, above the table, has its support; cubes with
    low goals go first. If there is no such cube, one that is in another's way is put aside.
    """
    missing = ((cubes - goal).norm(dim=1) > WITHIN).nonzero()[:, 0].tolist()
    missing.sort(key=lambda cube: float(goal[cube, 2]))
    moved, in_the_way = cubes.clone(), list[int]()
    for cube in missing:
        if over := _on_top(cubes, cube):
            in_the_way += over
            continue
        below = (goal[:, :2] - goal[cube, :2]).norm(dim=1) < ON_TOP
        below &= goal[:, 2] < goal[cube, 2] - REST * SCALE
        if below[[*missing, *in_the_way]].any():  # its support has yet to move
            continue
        from_goal = cubes - goal[cube]
        there = from_goal.norm(dim=1) < OVERLAP
        there[missing] |= from_goal[missing, :2].norm(dim=1) < CUBES_NEAR
        there[cube] = False
        if there.any():
            in_the_way += there.nonzero()[:, 0].tolist()
            continue
        moved[cube] = goal[cube]
        return moved
    if not in_the_way:
        return goal
    in_the_way += [over for cube in in_the_way for over in _on_top(cubes, cube)]
    highest = max(in_the_way, key=lambda cube: float(cubes[cube, 2]))
    others = torch.cat([cubes[torch.arange(len(cubes)) != highest], goal])
    gaps = (ASIDE[:, None, :2] - others[:, :2]).norm(dim=-1).amin(1)
    far = (ASIDE - cubes[highest]).norm(dim=1)
    free = gaps > CLEARANCE * SCALE
    moved[highest] = ASIDE[torch.where(free, far, torch.inf).argmin() if bool(free.any()) else gaps.argmax()]
    return moved


def _on_top(cubes: Tensor, cube: int) -> list[int]:
    """The cubes that lie on a cube, directly or on others."""
    higher = cubes[:, 2] > cubes[cube, 2] + REST * SCALE
    over: list[int] = (higher & ((cubes - cubes[cube])[:, :2].norm(dim=1) < ON_TOP)).nonzero()[:, 0].tolist()
    return over


def stepped(world: Any, put: Callable[[Any, Floats], None], rows: Tensor) -> Tensor:
    """Returns the next states of rows (N, S + 5), each of which is `put` in a world that then takes one step."""
    next_states = []
    for row in rows.cpu().double().numpy():
        put(world, row[:-ACTION])
        next_states.append(world.step(np.clip(row[-ACTION:], -1, 1))[0])
    return torch.as_tensor(np.array(next_states), dtype=torch.float32).to(rows.device)


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
    """A cube task of OGBench.

    official      number of the official task, 1 to 5, from which goals and episodes come; None: all of them
    whole_states  goals are whole states. Otherwise they are the places (x, y, z) where the cubes belong, which alone
                  decide success; the benchmark calls these its oracle representation of goals
    """

    cubes: int
    official: int | None = None
    whole_states: bool = False

    tolerance = 0.05  # for audits: hand and cubes of a true row may be off by 5 mm

    def __post_init__(self) -> None:
        if self.official is not None and self.official not in OFFICIAL:
            raise InputError(f"the official tasks are numbered 1 to 5, got {self.official}.")

    @property
    def name(self) -> str:
        goals = "-states" if self.whole_states else ""
        return f"cube-{KINDS[self.cubes]}{goals}" + ("" if self.official is None else f":{self.official}")

    @property
    def officials(self) -> dict[int, Cubes]:
        """The five official tasks by number."""
        return {number: replace(self, official=number) for number in OFFICIAL}

    @property
    def environment(self) -> str:
        goals = "States" if self.whole_states else ""
        return f"mocoda/Cube{KINDS[self.cubes].title()}{goals}{self.official or ''}-v0"

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
        """Draws goals (n, G) of the official tasks: cubes in their places, in any order, the hand anywhere above."""
        stream = as_stream(seed, "goals", device=device)
        hands, wanted = (
            torch.as_tensor(part, dtype=torch.float32, device=device) for part in official_goals(self.cubes)
        )
        task = stream.child("task").integers(len(OFFICIAL), n)
        if self.official is not None:
            task = torch.full_like(task, self.official - 1)
        order = stream.child("order").uniform(n, self.cubes).argsort(1)
        cubes = wanted[task[:, None], order].flatten(1)
        return self.achieved(torch.cat([hands[stream.child("hand").integers(len(hands), n)], cubes], 1))

    def achieved(self, state: Tensor) -> Tensor:
        """Returns the goals (N, G) that states (N, S) have reached: the states, or the places of their cubes."""
        return state if self.whole_states else places(state).flatten(1)

    @property
    def reached(self) -> Callable[[Tensor, Tensor], Tensor] | None:
        """Whether all cubes are within 4 cm of their goals, for achieved and wanted places, (N, G) each: bool (N,)."""
        return None if self.whole_states else at_places

    def next_goal(self, achieved: Tensor, goal: Tensor) -> Tensor:
        """Returns a goal in which one cube has yet to move, on the way from places to others, (3 cubes,) each."""
        moved = next_places(achieved.reshape(-1, 3), goal.reshape(-1, 3))
        return moved.flatten()

    def label(self, state: Tensor, action: Tensor, next_state: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
        """Returns reward 0 and an end where all cubes are within 4 cm of their goals, and -1 elsewhere."""
        success = at_places(places(next_state).flatten(1), places(goal).flatten(1) if self.whole_states else goal)
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
        return stepped(make_world(self.cubes, "data_collection"), put, rows)

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
        check_counts(rows=rows, length=length)
        check_names("variety", [variety], VARIETIES)
        if variety == "one-cube" and self.cubes == 1:
            raise InputError("cube-single has no cube to park, so its only varieties are play and noisy.")
        stream = as_stream(seed, "cubes-collect", self.cubes, variety, length, device="cpu")
        return record_table(
            self,
            record,
            partial(Job, self.cubes, variety, length),
            rows,
            stream,
            part="episode",
            length=length,
            counts=COUNTS,
            settings={"variety": variety, "length": length},
            workers=workers,
            folder=folder,
            progress=progress,
        )


@cache
def official_goals(cubes: int) -> tuple[Floats, Floats]:
    """Returns the robot columns of goals (HANDS, 19), and the cubes' goals in each official task (5, cubes, 9)."""
    world = make_world(cubes, "task")
    goals = [reset_official(world, OFFICIAL[number % len(OFFICIAL)], number)[1] for number in range(HANDS)]
    lying = np.array([1.0, 0, 0, 0, 1, 0])  # with yaw 0
    wanted = [[[*(SCALE * (place - CENTRE)), *lying] for place in task["goal_xyzs"]] for task in world.task_infos]
    return np.array(goals)[:, :ROBOT], np.array(wanted)


# --- recordings of OGBench's scripted oracles, which keep picking up and placing cubes


class Job(NamedTuple):
    """One episode to record."""

    cubes: int
    variety: str
    length: int
    seed: int


def record(job: Job) -> Recording:
    """Plays an episode of an oracle; it has no rows if it is dropped."""
    random = generator(job.seed)
    handled = int(random.integers(job.cubes)) if job.variety == "one-cube" else None
    with numpy_seed(random):  # OGBench's oracles draw from numpy's global generator
        steps = list(_play(job, handled, random))
    states = np.array([state for state, _ in steps], np.float32)
    actions = np.array([action for _, action in steps[:-1]], np.float32)
    kept = handled is None or not brushed(states, handled)
    rows = slice(len(actions) if kept else 0)
    return Recording(states[:-1][rows], actions[rows], states[1:][rows], np.array([[1, int(not kept)]]))


def brushed(states: NDArray[np.float32], handled: int) -> bool:
    """Returns whether any cube but the handled one moves in an episode's states (T, S)."""
    parked = np.delete(states[:, ROBOT:].reshape(len(states), -1, CUBE)[..., :3], handled, 1) / SCALE
    return bool((np.linalg.norm(parked - parked[0], axis=2) > BRUSHED).any())


def _play(job: Job, handled: int | None, random: Random) -> Iterator[tuple[Floats, Floats]]:
    """Yields the states and actions of an episode; the last state's action is not played."""
    world = make_world(job.cubes, "data_collection")
    state, info = world.reset(seed=int(random.integers(2**31)))
    stacked = random.uniform(*STACKED[job.cubes])
    if handled is not None:
        stacked = 0.0
        _park(world, handled, random)
        state, info = _new_target(world, handled, stacked)
    noise = NOISE * random.uniform() if job.variety == "noisy" else None
    oracle = _oracle(world, job.variety)
    oracle.reset(state, info)
    for _ in range(job.length):
        action = oracle.select_action(state, info)
        if noise is not None:
            anything = random.random() < RANDOM_ACTIONS
            action = random.uniform(-1, 1, len(noise)) if anything else action + noise * random.normal(size=len(noise))
        action = np.clip(action, -1, 1)
        yield state, action
        state, _, _, _, info = world.step(action)
        if oracle.done:
            oracle.reset(*_new_target(world, handled, stacked))
    yield state, action


def _oracle(world: Any, variety: str) -> Any:
    """Makes the benchmark's oracle: a plan with correlated noise, or for "noisy" one that reacts to each state."""
    if variety == "noisy":
        from ogbench.manipspace.oracles.markov.cube_markov import CubeMarkovOracle

        return CubeMarkovOracle(env=world, min_norm=0.4)
    from ogbench.manipspace.oracles.plan.cube_plan import CubePlanOracle

    return CubePlanOracle(env=world, noise=0.1, noise_smoothing=0.5)


def _new_target(world: Any, handled: int | None, stacked: float) -> tuple[Floats, dict[str, Any]]:
    """Draws a cube and its next target; if one cube is handled, until it is this one, clear of the parked cubes."""
    while True:
        state, info = world.set_new_target(p_stack=stacked)
        if handled is None:
            break
        parked = np.delete(state[ROBOT:].reshape(-1, CUBE)[:, :2], handled, 0) / SCALE + CENTRE[:2]
        if info["privileged/target_block"] == handled and _clear(info["privileged/target_block_pos"][:2], parked):
            break
    return state, info


def _park(world: Any, handled: int, random: Random) -> None:
    """Puts all cubes but one in the strip, and that one on the field, clear of them."""
    while True:
        places = random.uniform(STRIP[0], STRIP[1], (world._num_cubes, 2))
        places[handled] = random.uniform(FIELD[0], FIELD[1])
        parked = np.delete(places, handled, 0)
        gaps = [np.linalg.norm(one - other) for i, one in enumerate(parked) for other in parked[:i]]
        if _clear(places[handled], parked) and all(gap > PARKED_APART for gap in gaps):
            break
    for number, place in enumerate(places):
        world._data.joint(f"object_joint_{number}").qpos[:3] = [*place, REST]


def _clear(place: Floats, parked: Floats) -> bool:
    return bool((np.linalg.norm(parked - place, axis=1) > CLEARANCE).all())
