"""OGBench's scene: an arm, a cube, a drawer and a window, each locked and unlocked by its own button.

It is no task of the package: this file is what a user writes for a simulator that mocoda does not know. A state has 40
numbers, a *world* is an environment object of OGBench's.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream, as_stream, generator, numpy_seed
from mocoda.graph.local_graph import LocalGraph
from mocoda.tasks.cubes import ACTION_COLUMNS, CUBE_COLUMNS, REST, ROBOT_COLUMNS, stepped
from mocoda.tasks.cubes_env import ACTION, ARM, CENTRE, CLOSED, GRIPPER_RANGE, SCALE, gripper_joints
from mocoda.tasks.hooksweep_env import mujoco
from mocoda.tasks.recording import Recording, record_table

OFFICIAL, STEPS = (1, 2, 3, 4, 5), 750  # the official tasks, and the steps of their episodes
LENGTH = 200  # steps of a recorded episode
LOCK = ("locked", "unlocked", "button", "button_speed")
COLUMNS = (
    *ROBOT_COLUMNS,
    *(f"cube_{name}" for name in CUBE_COLUMNS),
    *(f"{thing}_{name}" for thing in ("drawer", "window") for name in LOCK),
    *(f"{thing}_{name}" for thing in ("drawer", "window") for name in ("slide", "slide_speed")),
)
HAND, CUBE = slice(12, 15), slice(19, 22)
LOCKS, BUTTONS, SLIDES = [29, 33], [30, 34], [36, 38]  # columns of drawer and window
SPEEDS = [31, 35, 37, 39]
GOAL = [19, 20, 21, *LOCKS, *SLIDES]  # what goals are about, as in the benchmark's oracle representation
BUTTON_SCALE, SLIDE_SCALE = 120.0, np.array([18.0, 15.0])  # of a state's numbers in a metre
OPEN = -0.16 * SLIDE_SCALE[0]  # the drawer's number when it is open
AT = 0.04  # metres within which the benchmark takes cube, drawer and window for being where they belong
# In metres: drawer and window as boxes while they are closed, the tops of their buttons, and the distances below which
# hand or cube may touch them. In 12,000 recorded steps, replayed substep by substep, 4 of 4,300 contacts were farther.
BOXES = (((0.21, -0.51, 0.0), (0.45, -0.24, 0.15)), ((0.166, 0.215, 0.08), (0.386, 0.31, 0.3)))
BUTTON_PLACES = ((0.58, -0.05, 0.12), (0.58, 0.05, 0.12))
HAND_NEAR, CUBE_NEAR = 0.1, 0.06


def both_open(state: Tensor) -> Tensor:
    """The combination that is left out, bool (N,): neither drawer nor window is within 4 cm of being closed."""
    return (state[:, SLIDES].abs() > AT * state.new_tensor(SLIDE_SCALE)).all(1)


# --- the simulator


def make_world(mode: str) -> Any:
    """Makes a world with its own copy of the model, which holds the locks; a process compiles it once."""
    world = copy.copy(shared_world(mode))
    world._model = copy.copy(world._model)
    world._data = mujoco.MjData(world._model)
    return world


@cache
def shared_world(mode: str) -> Any:
    """A process's world: for mode "data_collection" with starts and targets at random, for "task" the official ones."""
    from ogbench.manipspace.envs.scene_env import SceneEnv

    class World(SceneEnv):  # type: ignore[misc]
        # OGBench takes random actions before it records the goal of an episode, each time from a new, unseeded space.
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (ACTION,), np.float32)

    world = World("scene", mode=mode)
    world.reset(seed=0, options={"task_id": 1})
    return world


def put(world: Any, state: Any) -> None:
    """Brings a world as close as possible to a state (S,), which lacks speeds of cube and gripper: they are set to 0.

    The angles of the gripper's other joints are set as for a gripper that closes on nothing.
    """
    closing, joints = gripper_joints(1)
    gripper = [np.interp(GRIPPER_RANGE * state[17] / CLOSED, closing, joint) for joint in joints.T]
    cube = [*(state[CUBE] / SCALE + CENTRE), *state[22:26]]
    data = world._data
    data.qpos[:] = [*state[ARM], *gripper, *cube, *(state[BUTTONS] / BUTTON_SCALE), *(state[SLIDES] / SLIDE_SCALE)]
    data.qvel[:], data.qacc_warmstart[:] = 0, 0
    data.qvel[ARM], data.qvel[-4:] = state[6:12], state[SPEEDS]
    world._cur_button_states = state[LOCKS].round().astype(int)
    world._apply_button_states()


class SceneGame(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Episodes of official tasks with goals, as agents play them."""

    def __init__(self, official: int | None = None) -> None:
        super().__init__(gymnasium.wrappers.TimeLimit(make_world("task"), STEPS))
        self.official = official

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        random = generator(0 if seed is None else seed)
        task, number = self.official or int(random.choice(OFFICIAL)), int(random.integers(2**31))
        self.action_space.seed(number)
        state, _ = self.env.reset(seed=number, options={"task_id": task})
        self.goal = official_goal(task)
        return self._shown(state), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        state, _, _, truncated, info = self.env.step(np.clip(np.asarray(action, np.float64), -1, 1))
        success = bool(info["success"])
        return self._shown(state), float(success) - 1, success, truncated, {"is_success": success}

    def _shown(self, state: Any) -> dict[str, Any]:
        return {"observation": state, "achieved_goal": state[GOAL], "desired_goal": np.array(self.goal)}


def official_goal(task: int) -> list[float]:
    goal = shared_world("task").task_infos[task - 1]["goal"]
    slides = np.array([goal["drawer_pos"], goal["window_pos"]]) * SLIDE_SCALE
    return [*((goal["block_xyzs"][0] - CENTRE) * SCALE).tolist(), *map(float, goal["button_states"]), *slides.tolist()]


# --- recordings of OGBench's scripted oracles


class Job(NamedTuple):
    """One episode to record; left out: drawer and window are never both open."""

    left_out: bool
    seed: int


def record(job: Job) -> Recording:
    """Plays an episode; it has no rows if drawer and window came to be open although that is left out."""
    world, random, oracles = shared_world("data_collection"), generator(job.seed), {}
    for kind in ("cube", "button", "drawer", "window"):
        plans = import_module(f"ogbench.manipspace.oracles.plan.{kind}_plan")
        oracles[kind] = getattr(plans, f"{kind.title()}PlanOracle")(env=world, noise=0.1, noise_smoothing=0.5)
    states, actions, oracle = [], [], None
    with numpy_seed(random):  # OGBench's oracles draw from numpy's global generator
        state, info = world.reset(seed=int(random.integers(2**31)))
        if job.left_out:  # one of the two starts closed
            world._data.joint(str(random.choice(["drawer_slide", "window_slide"]))).qpos[0] = 0
            mujoco.mj_forward(world._model, world._data)
        for _ in range(LENGTH):
            if oracle is None or oracle.done:
                state, info = _new_target(world, job.left_out)
                oracle = oracles[info["privileged/target_task"]]
                oracle.reset(state, info)
            actions.append(np.clip(oracle.select_action(state, info), -1, 1))
            states.append(state)
            state, _, _, _, info = world.step(actions[-1])
    every, acted = np.array([*states, state], np.float32), np.array(actions, np.float32)
    dropped = job.left_out and bool(both_open(torch.from_numpy(every)).any())
    rows = slice(0 if dropped else LENGTH)
    return Recording(every[:-1][rows], acted[rows], every[1:][rows], np.array([[1, int(dropped)]]))


def _new_target(world: Any, left_out: bool) -> tuple[Any, dict[str, Any]]:
    """Draws what is handled next as the benchmark does, again if that would open one of the two beside the other."""
    while True:
        state, info = world.set_new_target()
        drawer, window = np.abs(state[SLIDES] / SLIDE_SCALE)
        other = {"drawer": window, "window": drawer}.get(info["privileged/target_task"], 0.0)
        if not left_out or other <= AT / 2:
            return state, info


# --- the graph and the task


def _apart(place: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The distance (N,) in metres between places and boxes, (N, 3) each."""
    apart: Tensor = torch.maximum(low - place, place - high).clamp(min=0).norm(dim=1)
    return apart


def local_mask(rows: Tensor) -> Tensor:
    """What is near each other may depend on each other; what the hand is near depends on the action, too."""
    state = rows[:, :-ACTION]
    hand, cube = (state[:, at] / SCALE + state.new_tensor(CENTRE) for at in (HAND, CUBE))
    slides = state[:, SLIDES] / state.new_tensor(SLIDE_SCALE)
    mask = torch.zeros(len(rows), 5, 4, dtype=torch.bool, device=rows.device)
    mask[:, range(4), range(4)] = mask[:, 4, :1] = True
    touched = [(hand - cube).norm(dim=1) < HAND_NEAR]
    for thing, way in enumerate(((0, -1, 0), (1, 0, 0))):  # a drawer's slide is negative where it is open, along y
        low, high = (state.new_tensor(end) + slides[:, thing, None] * state.new_tensor(way) for end in BOXES[thing])
        button = state.new_tensor(BUTTON_PLACES[thing])
        touched.append((_apart(hand, low, high) < HAND_NEAR) | ((hand - button).norm(dim=1) < HAND_NEAR))
        met = (_apart(cube, low, high) < CUBE_NEAR) | ((cube - button).norm(dim=1) < CUBE_NEAR)
        mask[:, 1, 2 + thing] = mask[:, 2 + thing, 1] = met
    for thing, near in enumerate(touched, 1):
        mask[:, 0, thing] = mask[:, thing, 0] = mask[:, 4, thing] = near
    return mask


GRAPH = LocalGraph(
    state={
        "robot": slice(0, 19),
        "cube": slice(19, 28),
        "drawer": [28, 29, 30, 31, 36, 37],  # with its lock, for a lock that rests decides how far its drawer moves
        "window": [32, 33, 34, 35, 38, 39],
    },
    action={"action": slice(0, ACTION)},
    edges={"robot": ["robot", "action"], **{thing: [thing] for thing in ("cube", "drawer", "window")}},
    local=local_mask,
)


@dataclass(frozen=True)
class Scene:
    """OGBench's scene as a task.

    official  number of the official task from which goals and episodes come; None: all of them
    """

    official: int | None = None

    name, graph, columns = "scene", GRAPH, (*COLUMNS, *ACTION_COLUMNS)
    # Hand, cube, drawer and window of a true row may be off by 5 mm; its locks by nothing.
    tolerance = (("robot", 0.05), ("cube", 0.05), ("drawer", 0.09), ("window", 0.075))
    compared = (*COLUMNS[HAND], *COLUMNS[CUBE], *(COLUMNS[column] for column in (*LOCKS, *SLIDES)))

    @property
    def environment(self) -> Any:
        return partial(SceneGame, self.official)

    @property
    def officials(self) -> dict[int, Scene]:
        return {number: replace(self, official=number) for number in OFFICIAL}

    def goals(self, n: int, *, seed: int | Stream, device: torch.device | str = "cpu") -> Tensor:
        """Draws goals (n, 7) of the official tasks."""
        wanted = [official_goal(task) for task in OFFICIAL if self.official in (None, task)]
        return torch.tensor(wanted, device=device)[as_stream(seed, "goals", device=device).integers(len(wanted), n)]

    def achieved(self, state: Tensor) -> Tensor:
        """Where the cube is, whether the locks are open, and how far drawer and window are, (N, 7)."""
        return state[:, GOAL]

    def reached(self, achieved: Tensor, goal: Tensor) -> Tensor:
        """What the benchmark calls a success, bool (N,): everything within 4 cm, and the same locks open."""
        off = (achieved - goal).abs()
        drawer, window = (off[:, 5 + at] <= AT * float(scale) for at, scale in enumerate(SLIDE_SCALE))
        cube: Tensor = off[:, :3].norm(dim=1) <= AT * SCALE
        return cube & (off[:, 3:5] < 0.5).all(1) & drawer & window

    def next_goal(self, achieved: Tensor, goal: Tensor) -> Tensor:
        """A goal on the way, (7,), in which one thing has yet to change.

        First the cube, for which the drawer is opened if it belongs there; then drawer and window, which are unlocked
        before they move; then the locks.
        """
        shown, wanted = achieved.clone(), goal.clone()
        in_drawer = bool(goal[2] > 2 * REST * SCALE)
        if in_drawer:  # the cube's goal is where it lies in the drawer, which is elsewhere while that is open
            wanted[1] += SCALE * float((achieved[5] - goal[5]) / SLIDE_SCALE[0])
        missing = bool((achieved[:3] - wanted[:3]).norm() > AT * SCALE)
        if missing:
            if not in_drawer or achieved[5] < OPEN + AT * SLIDE_SCALE[0]:
                shown[:3] = wanted[:3]
                return shown
            wanted[5] = OPEN
        for slide, lock, scale in ((5, 3, SLIDE_SCALE[0]), (6, 4, SLIDE_SCALE[1])):
            if (achieved[slide] - wanted[slide]).abs() > AT * scale:
                changes, value = (slide, wanted[slide]) if achieved[lock] > 0.5 else (lock, 1.0)
                if in_drawer and not missing and changes == 5:  # the cube moves along
                    shown[1] += SCALE * float((value - achieved[5]) / SLIDE_SCALE[0])
                shown[changes] = value
                return shown
        for lock in (3, 4):
            if (achieved[lock] - goal[lock]).abs() > 0.5:
                shown[lock] = goal[lock]
                return shown
        return goal

    def label(self, state: Tensor, action: Tensor, next_state: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
        there = self.reached(self.achieved(next_state), goal)
        return there.float() - 1, there

    def region(self, rows: Tensor) -> Tensor:
        """The rows with the combination that is left out."""
        return both_open(rows[:, :-ACTION])

    def step(self, rows: Tensor) -> Tensor:
        """The simulator's next states for rows (N, S + 5), each set up as closely as `put` can."""
        return stepped(shared_world("data_collection"), put, rows)

    def collect(
        self,
        rows: int,
        *,
        seed: int | Stream,
        variety: str,
        workers: int | None = 0,
        folder: Path | None = None,
        progress: Progress = silent,
    ) -> Transitions:
        """Records the benchmark's oracles: all they do ("play"), or never drawer and window both open ("left-out")."""
        return record_table(
            self,
            record,
            partial(Job, variety == "left-out"),
            rows,
            as_stream(seed, "scene", variety, device="cpu"),
            part="episode",
            length=LENGTH,
            counts=("episodes", "dropped"),
            settings={"variety": variety},
            workers=workers,
            folder=folder,
            progress=progress,
        )
