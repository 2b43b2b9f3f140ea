"""OGBench's cubes: a UR5e arm with a gripper moves cubes on a table, in the simulator of the package `ogbench`.

`docs/tasks.md` has the tables of states and actions. A *world* is an environment object of OGBench's.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from functools import cache
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from mocoda.engine.errors import InputError
from mocoda.tasks.hooksweep_env import PICTURE, DrawnEnv, Floats, cannot_draw, mujoco

KINDS = {1: "single", 2: "double", 3: "triple", 4: "quadruple"}  # number of cubes -> OGBench's word
OFFICIAL = (1, 2, 3, 4, 5)  # the numbers of the official tasks
ROBOT, CUBE, ACTION = 19, 9, 5  # columns of the robot, of each cube, and of an action
ARM, GRIPPER = slice(0, 6), slice(6, 14)  # of MuJoCo's positions and speeds
CLOSED = 3.0  # the gripper's column when it is closed
GRIPPER_RANGE = 0.8  # the joint's angle when it is closed
CENTRE, SCALE = np.array([0.425, 0.0, 0.0]), 10.0  # a position of a state is (metres - CENTRE) * SCALE


def make_world(cubes: int, mode: str) -> Any:
    """Makes a world with its own state; the worlds of a process share their model, which takes a second to compile.

    mode  "task": the official tasks; "data_collection": cubes start anywhere and targets are drawn
    """
    world = copy.copy(_prototype(cubes, mode))
    world._data = mujoco.MjData(world._model)
    world._renderer = None
    world.action_space = gymnasium.spaces.Box(-1.0, 1.0, (ACTION,), np.float32)
    return world


@cache
def _prototype(cubes: int, mode: str) -> Any:
    cube_env = _ogbench()

    class World(cube_env):  # type: ignore[misc, valid-type]
        # OGBench takes random actions before it records the goal of an episode, each time from a new, unseeded space.
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (ACTION,), np.float32)

    height, width = PICTURE
    world = World(KINDS[cubes], mode=mode, terminate_at_goal=mode == "task", height=height, width=width)
    world.reset(seed=0, options={"task_id": 1})
    return world


def _ogbench() -> Any:
    """Imports the class of OGBench's environment."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its libraries look for a screen, and warn if there is none
            from ogbench.manipspace.envs.cube_env import CubeEnv
    except ModuleNotFoundError as error:
        raise InputError("the tasks with cubes need ogbench; pip install 'mocoda[ogbench]'.") from error
    except Exception as error:  # raised where MUJOCO_GL names a way to draw that is missing
        raise cannot_draw(error) from error
    return CubeEnv


def reset_official(world: Any, task: int, seed: int) -> tuple[Floats, Floats]:
    """Starts an episode of an official task; returns its first state (S,) and its goal (S,), also a state."""
    world.action_space.seed(seed)
    state, info = world.reset(seed=seed, options={"task_id": task})
    return state, info["goal"]


def put(world: Any, state: Floats) -> None:
    """Brings a world as close as possible to a state (S,).

    The arm is placed by its joints' angles and speeds. A state does not hold the speeds of cubes and gripper, which are
    set to zero, or the angles of the gripper's other joints, which are set as for a gripper that closes on nothing.
    """
    model, data = world._model, world._data
    cubes = state[ROBOT:].reshape(-1, CUBE)
    closing, joints = gripper_joints(len(cubes))
    angle = GRIPPER_RANGE * state[17] / CLOSED
    position = np.zeros(model.nq)
    position[ARM] = state[:6]
    position[GRIPPER] = [np.interp(angle, closing, joint) for joint in joints.T]
    position[GRIPPER.stop :] = np.hstack([cubes[:, :3] / SCALE + CENTRE, cubes[:, 3:7]]).ravel()
    data.qvel[:], data.qacc_warmstart[:] = 0, 0
    data.qvel[ARM] = state[6:12]
    # OGBench moves the hand from its position one substep before the state: MuJoCo's positions lag by one substep.
    data.qpos[:] = position
    data.qpos[ARM] -= model.opt.timestep * state[6:12]
    mujoco.mj_forward(model, data)
    data.qpos[:] = position


@cache
def gripper_joints(cubes: int) -> tuple[Floats, Floats]:
    """Returns the angles of the gripper's driving joint (N,), rising, and of all its joints (N, 8), as it closes."""
    world = make_world(cubes, "data_collection")
    world.reset(seed=0)
    model, data = world._model, world._data
    data.qpos[GRIPPER] = 0
    data.ctrl[:6] = data.qpos[ARM]  # the arm stays where it is, above the cubes
    joints = []
    for closing in np.linspace(0, 255, 1500):  # of the actuator, in 3 seconds
        data.ctrl[6] = closing
        mujoco.mj_step(model, data)
        joints.append(data.qpos[GRIPPER].copy())
    rising = np.maximum.accumulate(np.array(joints)[:, 0])
    return rising, np.array(joints)


class CubesEnv(DrawnEnv):
    """OGBench's official cube tasks: an episode ends when all cubes are at their goals.

    official      number of the task, 1 to 5; None: drawn at each reset. The reset's option "task_id" takes precedence
    whole_states  goals are whole states, instead of the places (x, y, z) where the cubes belong
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012  (Gymnasium's own)

    def __init__(
        self, cubes: int = 2, official: int | None = None, render_mode: str | None = None, whole_states: bool = False
    ) -> None:
        states = ROBOT + CUBE * cubes
        super().__init__((states, states if whole_states else 3 * cubes, ACTION), 100.0, render_mode)
        self.official, self.whole_states = official, whole_states
        self.world = make_world(cubes, "task")
        self.goal = np.zeros(states)
        self.task = 0

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        drawn, world_seed = int(self.np_random.choice(OFFICIAL)), int(self.np_random.integers(2**31))
        self.task = (options or {}).get("task_id", self.official or drawn)
        if self.task not in OFFICIAL:
            raise InputError(f"the official tasks are numbered 1 to 5, got {self.task}.")
        state, self.goal = reset_official(self.world, self.task, world_seed)
        return self._observation(state), {"is_success": False, "task": self.task}

    def step(self, action: NDArray[np.float32]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        state, _, ended, _, info = self.world.step(np.clip(np.asarray(action, np.float64), -1, 1))
        success = bool(info["success"])
        info = {"is_success": success, "task": self.task}
        return self._observation(state), float(success) - 1, bool(ended), False, info

    def render(self) -> NDArray[np.uint8]:
        """Draws the scene from the front, with goals as translucent cubes."""
        self.world._renderer = self.renderer(self.world._model)
        # Without a GPU, the shadows of the detailed robot take longer than everything else.
        self.world._renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = False
        picture: NDArray[np.uint8] = self.world.render()
        return picture

    def _observation(self, state: Floats) -> dict[str, Floats]:
        return {
            "observation": state,
            "achieved_goal": self._counts(state),
            "desired_goal": self._counts(self.goal).copy(),
        }

    def _counts(self, state: Floats) -> Floats:
        """Returns the part of a state (S,) that goals are about."""
        return state if self.whole_states else state[ROBOT:].reshape(-1, CUBE)[:, :3].ravel()
