"""HookSweep2: a Fetch robot with a long hook, a table and two boxes (Section 5, Appendix C.2), on MuJoCo directly.

The packaged Fetch model of gymnasium-robotics is edited in Python: a hook on the gripper, two boxes, a larger table.
`docs/tasks.md` has the tables of actions, observations, rewards and starts.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import weakref
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mocoda.engine.errors import InputError, check_names
from mocoda.engine.randomness import Random, generator

broken: Exception | None = None  # why mujoco cannot be imported; raised when a simulator is made
try:
    import mujoco as mujoco
except Exception as error:  # also raised where MUJOCO_GL names a graphics library that is missing
    mujoco, broken = None, error

Floats = NDArray[np.float64]

HORIZON = 75
SUBSTEPS = 20  # of 2 ms
STEP = 0.04  # seconds
REACH = 0.05  # metres by which an action of 1 moves the gripper's guide
DOWNWARD = np.array([1.0, 0.0, 1.0, 0.0]) / np.sqrt(2)  # the gripper's pose
HOME = np.array([1.342, 0.749, 0.555])  # where the gripper starts
CENTRE = np.array([1.85, 0.75])
OUT_OF_THE_WAY = np.array([[2.5, 0.3], [2.5, 1.2]])  # places of the boxes that the hook does not reach
REST = 0.425  # height of a box on the table
SPREAD, LEAST_DISTANCE = 0.08, 0.1  # of the boxes at the start
GOAL = np.array([[1.85, 0.7, 0.42], [1.85, 0.8, 0.42]])
SHIFT, JITTER = 0.31, 0.1  # of a goal
TOLERANCE = 0.14
LOW_HOOK = 0.42  # rewarded height of the gripper
PICTURE = (480, 640)  # height and width
MODES = ("two", "one")
TOUCHES = ("hook-box1", "hook-box2", "box1-box2")
BOX_COLUMNS = [6, 7, 8, 11, 12, 13]  # columns of a state: positions of the boxes
STEEL, COLOURS = [0.75, 0.35, 0.1, 1], ([0.2, 0.4, 0.85, 1], [0.95, 0.75, 0.2, 1])
TABLE, FLOOR, SKY = [0.52, 0.47, 0.42, 1], [0.6, 0.6, 0.62, 1], [0.82, 0.86, 0.9]
ARM = ("shoulder_pan", "shoulder_lift", "upperarm_roll", "elbow_flex", "forearm_roll", "wrist_flex", "wrist_roll")
TESTED = (3, 4), (3, 11)  # the first and the last version of mujoco, as in pyproject.toml


def sweep_reward(boxes: Tensor, goal: Tensor, height: Tensor) -> tuple[Tensor, Tensor]:
    """Returns rewards and success (...,) for boxes and goals (..., 6) and the gripper's height (...,).

    The reward is 0 where both boxes are within the tolerance, and elsewhere -1 plus up to 0.5 for a low hook; each box
    costs up to 0.1 for its distance.
    """
    distance = (boxes - goal).unflatten(-1, (2, 3)).norm(dim=-1)
    success = (distance <= TOLERANCE).all(-1)
    cost = 0.1 * (distance / TOLERANCE).clamp(max=1).sum(-1)
    bonus = (0.5 - 5 * (height - LOW_HOOK).abs()).clamp(min=0)
    return (torch.where(success, 0.0, bonus - 1) - cost).clamp(-1, 0), success


def draw_goal(random: Random, mode: str) -> Floats:
    """Draws a target position per box, (6,): both boxes shifted together, or one of them alone."""
    shift = np.append(random.uniform(-JITTER, JITTER, 2) + random.choice([-SHIFT, SHIFT]) * np.array([1, 0]), 0.0)
    moved = np.ones(2) if mode == "two" else np.eye(2)[random.integers(2)]
    goal: Floats = GOAL + moved[:, None] * shift
    return goal.ravel()


def draw_boxes(random: Random) -> Floats:
    """Draws the starts of the boxes (2, 2), apart from each other, box 1 on the low-y side."""
    while True:
        boxes = CENTRE + random.uniform(-SPREAD, SPREAD, (2, 2))
        if np.linalg.norm(boxes[0] - boxes[1]) > LEAST_DISTANCE:
            return boxes[np.argsort(boxes[:, 1])]


@cache
def fetch_with_hook() -> Any:
    """Makes the MuJoCo model, once per process: environments share it, and none changes its physics."""
    _check_installed()
    spec = mujoco.MjSpec.from_file(str(_assets() / "fetch" / "push.xml"))
    spec.delete(spec.body("object0"))
    for side in "rl":
        finger = spec.body(f"robot0:{side}_gripper_finger_link")
        for joint in list(finger.joints):
            spec.delete(joint)
    for axis, place in enumerate((0.4049, 0.48, 0.0)):  # position of the robot
        spec.body("robot0:base_link").pos[axis] += place
    table = spec.body("table0")
    table.pos, table.geoms[0].size = [*CENTRE, 0.2], [0.77, 0.6, 0.2]
    box = mujoco.mjtGeom.mjGEOM_BOX
    hook = spec.body("robot0:gripper_link").add_body(name="hook", pos=[0.022, 0, 0.3], quat=[0, 0.7071, 0, 0.7071])
    hook.add_geom(type=box, size=[0.35, 0.015, 0.03], mass=0.01, rgba=STEEL)
    hook.add_geom(type=box, size=[0.015, 0.1, 0.03], pos=[0.35, 0.085, 0], mass=0.01, rgba=STEEL)
    for number, colour in enumerate(COLOURS, 1):
        body = spec.worldbody.add_body(name=f"box{number}", pos=[*CENTRE, REST])
        body.add_joint(name=f"box{number}", type=mujoco.mjtJoint.mjJNT_FREE, damping=0.01)
        body.add_geom(type=box, size=[0.025] * 3, mass=2, condim=3, rgba=colour)
    spec.delete(spec.site("target0"))  # Fetch's own target
    for mark in spec.body("robot0:mocap").geoms:  # the markers of the gripper's guide
        mark.rgba = [0.0] * 4
    table.geoms[0].rgba, spec.geom("floor0").rgba = TABLE, FLOOR
    spec.textures[0].rgb1 = spec.textures[0].rgb2 = SKY
    model = spec.compile()
    model.eq_data[0, :7] = [0, 0, 0, 0, 0, 0, 1]  # the gripper is welded to its guide without an offset
    return model


class Simulator:
    """The robot, the table and the boxes: actions in, states (16,) out."""

    def __init__(self) -> None:
        self.model = fetch_with_hook()
        self.data = mujoco.MjData(self.model)
        self._grip = self.model.site("robot0:grip").id
        self._gripper = self.model.body("robot0:gripper_link").id
        boxes = [self.model.joint(name) for name in ("box1", "box2")]
        arm = [self.model.joint(f"robot0:{name}_joint") for name in ARM]
        self._boxes, self._angles = ([int(joint.qposadr[0]) for joint in joints] for joints in (boxes, arm))
        self._box_speeds, self._rates = ([int(joint.dofadr[0]) for joint in joints] for joints in (boxes, arm))
        self._sign = np.zeros(self.model.ngeom, np.int64)  # the sum of two signs identifies the bodies that touch
        for sign, name in ((1, "hook"), (2, "box1"), (4, "box2")):
            self._sign[self.model.geom_bodyid == self.model.body(name).id] = sign

    def reset(self, boxes: Floats) -> None:
        """Puts the arm at home and at rest, and the boxes at these places (2, 2)."""
        mujoco.mj_setState(self.model, self.data, settled(), mujoco.mjtState.mjSTATE_INTEGRATION)
        self._place(boxes)
        mujoco.mj_forward(self.model, self.data)

    def put(self, state: Floats) -> None:
        """Brings the simulator as close as possible to a state (16,).

        A state does not hold orientations: boxes are put upright with yaw 0, and the hook gets the orientation that it
        had on recorded drives where the gripper was nearest to this place.
        """
        self.reset(OUT_OF_THE_WAY)
        self._reach(state[:3], state[3:6] / STEP)
        boxes = state[6:].reshape(2, 5)
        self._place(boxes[:, :2], boxes[:, 3:] / STEP, boxes[:, 2])
        mujoco.mj_forward(self.model, self.data)

    def step(self, action: Floats) -> NDArray[np.bool_]:
        """Moves the gripper's guide by an action (4,) in [-1, 1]; returns which of `TOUCHES` occurred, (3,)."""
        self.data.mocap_pos[0] = self.data.xpos[self._gripper] + REACH * action[:3]
        self.data.mocap_quat[0] = DOWNWARD
        pairs = []
        for _ in range(SUBSTEPS):
            mujoco.mj_step(self.model, self.data)
            pairs.append(self._sign[self.data.contact.geom])
        return np.isin([1 + 2, 1 + 4, 2 + 4], np.concatenate(pairs).sum(1))

    def state(self) -> Floats:
        """Returns position and velocity of the gripper, and position and xy velocity of each box, in metres a step."""
        speed = np.zeros(6)
        mujoco.mj_objectVelocity(self.model, self.data, mujoco.mjtObj.mjOBJ_SITE, self._grip, speed, 0)
        parts = [self.data.site_xpos[self._grip], STEP * speed[3:]]
        for place, rate in zip(self._boxes, self._box_speeds, strict=True):
            parts += [self.data.qpos[place : place + 3], STEP * self.data.qvel[rate : rate + 2]]
        return np.concatenate(parts)

    def _place(self, boxes: Floats, speeds: Floats | float = 0.0, heights: Floats | float = REST) -> None:
        states = np.c_[boxes, np.broadcast_to(heights, 2)], np.broadcast_to(speeds, (2, 2))
        for place, rate, position, speed in zip(self._boxes, self._box_speeds, *states, strict=True):
            self.data.qpos[place : place + 7] = [*position, 1, 0, 0, 0]
            self.data.qvel[rate : rate + 6] = [*speed, 0, 0, 0, 0]

    def _reach(self, place: Floats, speed: Floats) -> None:
        """Brings the gripper to `place`, from the nearest pose in `seen_poses`, and gives it the velocity `speed`."""
        places, poses = seen_poses()
        self.data.qpos[: poses.shape[1]] = poses[np.square(places - place).sum(1).argmin()]
        self._bend(place)
        for _ in range(3):  # the arm finds a pose in which nothing pushes it out of the table
            self.step(np.clip((place - self.state()[:3]) / REACH, -1, 1))
        towards = self._bend(place)
        self.data.qvel[:] = 0
        self.data.qvel[self._rates] = towards @ speed

    def _bend(self, place: Floats, rounds: int = 20) -> Floats:
        """Turns the joints until the gripper is at `place` in the same pose; returns the inverse Jacobian (J, 3)."""
        jacobian = np.zeros((6, self.model.nv))
        for _ in range(rounds):
            mujoco.mj_kinematics(self.model, self.data)
            mujoco.mj_comPos(self.model, self.data)
            mujoco.mj_jacSite(self.model, self.data, jacobian[:3], jacobian[3:], self._grip)
            own = jacobian[:, self._rates]
            towards: Floats = (own.T @ np.linalg.inv(own @ own.T + 1e-6 * np.eye(6)))[:, :3]
            wrong = place - self.data.site_xpos[self._grip]
            if np.abs(wrong).max() < 1e-6:
                break
            self.data.qpos[self._angles] += np.clip(towards @ wrong, -0.2, 0.2)
        return towards


class DrawnEnv(gymnasium.Env[Any, NDArray[np.float32]]):
    """An environment with states and goals that MuJoCo draws.

    sizes  of the spaces: of states, goals and actions
    limit  the largest number that an observation may have
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 25}  # noqa: RUF012  (Gymnasium's own)

    def __init__(self, sizes: tuple[int, int, int], limit: float, render_mode: str | None) -> None:
        if render_mode not in (None, "rgb_array"):
            raise InputError(f"render_mode must be None or 'rgb_array', got {render_mode!r}.")
        self.render_mode = render_mode
        self._renderer: Any = None
        state, goal = (gymnasium.spaces.Box(-limit, limit, (size,), np.float64) for size in sizes[:2])
        self.observation_space = gymnasium.spaces.Dict(observation=state, achieved_goal=goal, desired_goal=goal)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (sizes[2],), np.float32)

    def renderer(self, model: Any) -> Any:
        """MuJoCo's renderer, made when it is first needed."""
        if self._renderer is None:
            height, width = PICTURE
            model.vis.global_.offheight, model.vis.global_.offwidth = height, width  # the largest picture
            try:
                self._renderer = mujoco.Renderer(model, height, width)
            except Exception as error:  # its type depends on the graphics library
                raise cannot_draw(error) from error
            # A renderer left open until Python ends would be closed after its graphics library, and print an error.
            atexit.register(_close, weakref.ref(self._renderer))
        return self._renderer

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None


class HookSweep2Env(DrawnEnv):
    """Sweep both boxes (mode "two", the target task) or one of them (mode "one", as in the data) to one side.

    flat  observations are states and goals side by side, (22,), as agents see them, instead of a dict
    """

    def __init__(self, mode: str = "two", flat: bool = False, render_mode: str | None = None) -> None:
        check_names("mode", [mode], MODES)
        super().__init__((16, 6, 4), 10.0, render_mode)
        self.mode, self.flat = mode, flat
        self.simulator = Simulator()
        self.goal = np.zeros(6)
        if flat:
            self.observation_space = gymnasium.spaces.Box(-10.0, 10.0, (22,), np.float64)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.goal = draw_goal(self.np_random, self.mode)
        self.simulator.reset(draw_boxes(self.np_random))
        state = self.simulator.state()
        return self._observation(state), self._info(state, np.zeros(3, dtype=np.bool_))

    def step(self, action: NDArray[np.float32]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        touched = self.simulator.step(np.clip(np.asarray(action, np.float64), -1, 1))
        state = self.simulator.state()
        info = self._info(state, touched)
        reward = self.compute_reward(boxes_of(state), self.goal, info)
        return self._observation(state), float(reward), False, False, info

    def compute_reward(
        self, achieved_goal: Floats, desired_goal: Floats, info: Mapping[str, Any] | Sequence[Mapping[str, Any]]
    ) -> Floats:
        """Returns rewards (...,) for goals (..., 6); `info` has the gripper's height, for all rows or one each."""
        height = info["grip_height"] if isinstance(info, Mapping) else [one["grip_height"] for one in info]
        given = (torch.as_tensor(np.asarray(array, np.float64)) for array in (achieved_goal, desired_goal, height))
        rewards: Floats = sweep_reward(*given)[0].numpy()
        return rewards

    def render(self) -> NDArray[np.uint8]:
        """Draws the scene from the side, with goals as translucent boxes on discs of the tolerance's size."""
        renderer, camera = self.renderer(self.simulator.model), mujoco.MjvCamera()
        camera.lookat, camera.distance, camera.azimuth, camera.elevation = [1.73, 0.84, 0.45], 1.3, 120, -42
        renderer.update_scene(self.simulator.data, camera)
        for place, colour in zip(self.goal.reshape(2, 3), COLOURS, strict=True):
            _add_goal(renderer.scene, place, colour[:3])
        picture: NDArray[np.uint8] = renderer.render()
        return picture

    def _observation(self, state: Floats) -> Any:
        if self.flat:
            return np.concatenate([state, self.goal])
        return {"observation": state, "achieved_goal": boxes_of(state), "desired_goal": self.goal.copy()}

    def _info(self, state: Floats, touched: NDArray[np.bool_]) -> dict[str, Any]:
        distance = np.linalg.norm((boxes_of(state) - self.goal).reshape(2, 3), axis=1)
        return {
            "is_success": bool((distance <= TOLERANCE).all()),
            "grip_height": float(state[2]),
            "touched": dict(zip(TOUCHES, touched.tolist(), strict=True)),
        }


def boxes_of(state: Floats) -> Floats:
    """Returns the positions of the boxes (6,) in a state (16,)."""
    return state[BOX_COLUMNS]


@cache
def settled() -> Floats:
    """Returns the full MuJoCo state with the arm at rest at home and the boxes out of the way."""
    simulator = Simulator()
    model, data = simulator.model, simulator.data
    mujoco.mj_forward(model, data)
    for _ in range(100):
        simulator._place(OUT_OF_THE_WAY)
        data.mocap_pos[0], data.mocap_quat[0] = HOME + np.array([0, 0, 0.02]), DOWNWARD
        mujoco.mj_step(model, data, nstep=SUBSTEPS)
    data.qvel[:], data.time = 0, 0
    state = np.zeros(mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION))
    mujoco.mj_getState(model, data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
    return state


@cache
def seen_poses() -> tuple[Floats, Floats]:
    """Returns gripper positions (N, 3) on short drives from home, as in episodes, and the arm's joints there."""
    simulator, random = Simulator(), generator(0)
    arm = simulator._boxes[0]
    places, poses = [], []
    for _ in range(70):
        simulator.reset(OUT_OF_THE_WAY)
        for target in random.uniform([0.83, 0.5, 0.41], [1.6, 1.1, 0.5], (3, 3)):
            for _ in range(12):
                simulator.step(np.append(np.clip(25 * (target - simulator.state()[:3]), -1, 1), 0.0))
                places.append(simulator.state()[:3])
                poses.append(simulator.data.qpos[:arm].copy())
    return np.array(places), np.array(poses)


def _close(renderer: weakref.ref[Any]) -> None:
    alive = renderer()
    if alive is not None:
        alive.close()


def _add_goal(scene: Any, place: Floats, colour: Sequence[float]) -> None:
    on_the_table = np.array([*place[:2], REST - 0.024])
    for shape, size, at, strength in (
        (mujoco.mjtGeom.mjGEOM_BOX, [0.025] * 3, place, 0.35),
        (mujoco.mjtGeom.mjGEOM_CYLINDER, [TOLERANCE, 0.0005, 0], on_the_table, 0.2),
    ):
        rgba = np.array([*colour, strength], np.float32)
        mujoco.mjv_initGeom(scene.geoms[scene.ngeom], shape, np.array(size), at, np.eye(3).ravel(), rgba)
        scene.ngeom += 1


def _assets() -> Path:
    """Returns the folder of gymnasium-robotics' models. The package is not imported: only its files are needed."""
    package = importlib.util.find_spec("gymnasium_robotics")
    if package is None or not package.submodule_search_locations:
        raise InputError("HookSweep2 takes the Fetch model from gymnasium-robotics; pip install 'mocoda[hooksweep]'.")
    return Path(package.submodule_search_locations[0], "envs", "assets")


def _check_installed() -> None:
    if isinstance(broken, ModuleNotFoundError):
        raise InputError("HookSweep2 needs mujoco; pip install 'mocoda[hooksweep]'.") from broken
    if broken is not None:
        raise cannot_draw(broken) from broken
    if not TESTED[0] <= tuple(map(int, mujoco.__version__.split(".")[:2])) <= TESTED[1]:
        raise InputError(
            f"HookSweep2 works with mujoco 3.4 to 3.11, this is {mujoco.__version__}; pip install 'mujoco==3.11.0'."
        )


def cannot_draw(error: Exception) -> InputError:
    return InputError(
        f"MuJoCo cannot draw here ({error}). Without a screen, install EGL (libegl1) and set MUJOCO_GL=egl before "
        f"Python starts; it is {os.environ.get('MUJOCO_GL', 'not set')!r} now."
    )
