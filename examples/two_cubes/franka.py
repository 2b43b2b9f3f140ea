"""A Franka arm pushes two cubes over a table: a Gymnasium environment on MuJoCo, which knows nothing of mocoda.

The arm's model comes with gymnasium-robotics (`pip install "mocoda[hooksweep]"`). A step takes 50 ms. An action, two
numbers in [-1, 1], moves the hand's target along x and y by up to 5 cm; its height and direction are kept.

A state (43 numbers) is everything the simulator needs to continue: angles and speeds of the arm's seven joints, and
position, orientation (a quaternion) and velocities of each cube. The place of the hand follows from the angles; it is
in the state for whoever looks at distances.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CUBES = ("cube1", "cube2")
OF_A_CUBE = ("x", "y", "z", "qw", "qx", "qy", "qz", "vx", "vy", "vz", "wx", "wy", "wz")
COLUMNS = (
    *(f"arm.angle{i}" for i in range(1, 8)),
    *(f"arm.speed{i}" for i in range(1, 8)),
    *(f"arm.{axis}" for axis in "xyz"),
    *(f"{cube}.{name}" for cube in CUBES for name in OF_A_CUBE),
)
ACTIONS = ("move.x", "move.y")

SUBSTEPS = 25  # of 2 ms
HORIZON = 80
REACH = 0.05  # metres by which an action of 1 moves the hand's target
HALF = 0.025  # half the edge of a cube
HOME = np.array([0.40, 0.0])  # where the hand starts, less a jitter of 3 cm
LOW, HIGH = np.array([0.34, -0.28]), np.array([0.76, 0.28])  # where it can go
HEIGHT = 0.075  # of the hand over the table; the tips of its fingers are 5 cm lower
STARTS, JITTER = np.array([[0.52, -0.12], [0.52, 0.12]]), np.array([0.03, 0.04])  # of the cubes
GOALS, TOLERANCE = np.array([[0.66, -0.12], [0.66, 0.12]]), 0.05  # a round zone for each cube
FINGERS = 0.012  # metres by which each finger is open: two points push straight
STIFFNESS = np.array([2000.0] * 4 + [150.0] * 3)  # of the joints
DAMPING = np.array([80.0] * 4 + [6.0] * 3)
BENT = np.array([0, 0.22, 0, -2.65, 0, 1.3, 0])  # angles near which the arm's pose is sought


def at_goal(state: Floats) -> NDArray[np.bool_]:
    """Which cubes are in their zones, (..., 2), by states (..., 43)."""
    places = np.stack([state[..., 17:19], state[..., 30:32]], -2)
    return np.asarray(np.linalg.norm(places - GOALS, axis=-1) < TOLERANCE)


class TwoCubes(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """Push both cubes into their zones. Observations are states; an episode has up to 80 steps."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (len(COLUMNS),), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (len(ACTIONS),), np.float32)
        self.render_mode = render_mode
        self.simulator = Simulator()
        self._renderer: Any = None

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        draw = self.np_random.uniform
        state = np.zeros(len(COLUMNS))
        state[:7] = angles(HOME + draw(-0.03, 0.03, 2), BENT, iterations=30)
        for cube, start in zip((slice(17, 30), slice(30, 43)), STARTS, strict=True):
            turned = draw(-0.3, 0.3) / 2
            state[cube] = [*(start + draw(-JITTER, JITTER)), HALF, np.cos(turned), 0, 0, np.sin(turned), *[0] * 6]
        self.simulator.put(state)
        return self.simulator.state().astype(np.float32), {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self.simulator.step(np.asarray(action, np.float64))
        state = self.simulator.state()
        there = at_goal(state)
        return state.astype(np.float32), float(there.mean() - 1), bool(there.all()), False, {"is_success": there.all()}

    def render(self) -> Any:
        if self._renderer is None:
            self._renderer = mujoco.Renderer(self.simulator.model, 480, 640)
        self._renderer.update_scene(self.simulator.data, camera="front")
        return self._renderer.render()

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()


gymnasium.register("TwoCubes-v0", TwoCubes, max_episode_steps=HORIZON)


class Simulator:
    """The arm and the cubes, put into states and moved by actions."""

    def __init__(self) -> None:
        self.model = model()
        self.data = mujoco.MjData(self.model)

    def state(self) -> Floats:
        """The state, (43,)."""
        q, v, hand = self.data.qpos, self.data.qvel, self.data.site("end_effector").xpos
        return np.concatenate([q[:7], v[:7], hand, q[9:16], v[9:15], q[16:23], v[15:21]])

    def put(self, state: Floats) -> None:
        """Puts the simulator into a state (43,), also one that nobody has recorded."""
        mujoco.mj_resetData(self.model, self.data)
        q, v = self.data.qpos, self.data.qvel
        q[:7], v[:7], q[7:9] = state[:7], state[7:14], FINGERS
        q[9:16], v[9:15], q[16:23], v[15:21] = np.split(state[17:], [7, 13, 20])
        mujoco.mj_kinematics(self.model, self.data)

    def step(self, action: Floats) -> None:
        """Moves the hand's target by an action (2,), and lets the arm follow for 50 ms."""
        hand = self.data.site("end_effector").xpos[:2]
        target = np.clip(hand + REACH * np.clip(action, -1, 1), LOW, HIGH)
        self.data.ctrl[:7], self.data.ctrl[7:] = angles(target, self.data.qpos[:7]), FINGERS
        # What the state does not say, and the next step must not depend on: the solver's first guess, and the fingers.
        self.data.qacc_warmstart[:], self.data.qpos[7:9], self.data.qvel[7:9] = 0, FINGERS, 0
        mujoco.mj_step(self.model, self.data, SUBSTEPS)
        mujoco.mj_kinematics(self.model, self.data)


def step(rows: Floats) -> Floats:
    """The true next states (N, 43) of rows (N, 45): each is put into the simulator and moved by its action."""
    simulator, after = Simulator(), np.empty((len(rows), len(COLUMNS)))
    for i, row in enumerate(np.asarray(rows, np.float64)):
        simulator.put(row[:43])
        simulator.step(row[43:])
        after[i] = simulator.state()
    return after


def angles(place: Floats, near: Floats, iterations: int = 3) -> Floats:
    """The joint angles (7,), near given ones, for which the hand is at a place (x, y), by damped least squares."""
    data, site, q = _scratch(), model().site("end_effector").id, near.copy()
    jacobian = np.zeros((6, model().nv))
    for _ in range(iterations):
        data.qpos[:7] = q
        mujoco.mj_kinematics(model(), data)
        mujoco.mj_comPos(model(), data)
        mujoco.mj_jacSite(model(), data, jacobian[:3], jacobian[3:], site)
        turned = np.cross(data.site_xmat[site].reshape(3, 3).T, DOWNWARD).sum(0) / 2
        error = np.concatenate([[*place, HEIGHT] - data.site_xpos[site], turned])
        j = jacobian[:, :7]
        inverse = j.T @ np.linalg.inv(j @ j.T + 1e-4 * np.eye(6))
        q += inverse @ error + (np.eye(7) - inverse @ j) @ (BENT - q) / 10
    return q


DOWNWARD = np.diag([1.0, -1.0, -1.0])  # the axes of a hand that points down, its fingers side by side along y


@cache
def _scratch() -> Any:
    return mujoco.MjData(model())


@cache
def model() -> Any:
    """The MuJoCo model of the arm, a table and two cubes."""
    package = importlib.util.find_spec("gymnasium_robotics")
    if package is None or package.origin is None:
        raise ImportError('the model of the arm is missing; pip install "mocoda[hooksweep]"')
    assets = Path(package.origin).parent / "envs" / "assets" / "kitchen_franka" / "franka_assets"

    def part(name: str) -> str:
        return re.sub("</?mujocoinclude>|<!--.*?-->", "", (assets / name).read_text("utf-8"), flags=re.DOTALL)

    objects = ""
    for cube, (x, y), colour in zip(CUBES, GOALS, ("0.2 0.4 0.85", "0.95 0.75 0.2"), strict=True):
        objects += f"""
            <body name="{cube}"><freejoint/><geom type="box" size="{HALF} {HALF} {HALF}" mass="0.3"
                rgba="{colour} 1" friction="0.5 0.005 0.0001" priority="1"/></body>
            <geom type="cylinder" size="{TOLERANCE} 0.0005" pos="{x} {y} 0"
                rgba="{colour} 0.4" contype="0" conaffinity="0"/>"""
    spec = mujoco.MjSpec.from_string(f"""<mujoco>
        {part("assets.xml")}
        <compiler meshdir="{assets}/meshes"/>
        <visual><headlight ambient="0.4 0.4 0.4"/></visual>
        <asset><texture type="skybox" builtin="flat" rgb1="0.85 0.88 0.92" width="16" height="16"/></asset>
        <worldbody>
            <light pos="0.5 0 2" dir="0 0 -1" diffuse="0.5 0.5 0.5"/>
            <camera name="front" pos="1.45 0 0.75" xyaxes="0 1 0 -0.65 0 0.76"/>
            <geom type="box" size="0.35 0.5 0.02" pos="0.62 0 -0.02" rgba="0.55 0.5 0.45 1"/>
            {part("chain.xml")}{objects}
        </worldbody>
        {part("actuator.xml")}</mujoco>""")
    for body in spec.bodies:
        body.gravcomp = float(body.name.startswith("panda"))
    made = spec.compile()
    made.actuator_gainprm[:7, 0], made.actuator_biasprm[:7, 1], made.dof_damping[:7] = STIFFNESS, -STIFFNESS, DAMPING
    return made
