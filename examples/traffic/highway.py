"""A car among slower ones on a motorway: a Gymnasium environment on highway-env, which knows nothing of mocoda.

    pip install highway-env

A step takes 0.2 s. The action of the ego, in [-1, 1], is the speed that it wants, from 15 to 32 m/s, and its place
on the road, from the left lane to the right one; highway-env's controllers accelerate and steer. The four other drivers
keep their lanes and brake for whoever is ahead of them (highway-env's IDM). An episode ends when the ego has passed
everybody, when it crashes, or after 100 steps.

A state (20 numbers) is everything the simulator needs to continue. highway-env's own observations lack the speed that
each driver wants, and list cars by distance, so that a column means another car in every row. So the state is read
from the simulator. Positions along the road are relative to a point that moves at 22 m/s; absolute ones only grow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from highway_env.envs.highway_env import HighwayEnv
from highway_env.vehicle.behavior import IDMVehicle
from highway_env.vehicle.controller import ControlledVehicle
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CARS = ("car1", "car2", "car3", "car4")
COLUMNS = (
    *(f"ego.{name}" for name in ("x", "y", "heading", "speed")),
    *(f"{car}.{name}" for car in CARS for name in ("x", "y", "speed", "wish")),
)
ACTIONS = ("wish.speed", "wish.place")

SECONDS = 0.2
HORIZON = 100
MOVING = 22.0  # metres per second of the point from which positions along the road are measured
ORIGIN = 300.0  # where it starts, on a road of 10 km
LANES = (0.0, 4.0, 8.0)
LENGTH, WIDTH = 5.0, 2.0  # of a car


def crashed(state: Floats) -> NDArray[np.bool_]:
    """Whether the ego has hit a car, (...,), by states (..., 20)."""
    ego, cars = state[..., None, :2], np.stack([state[..., 4::4], state[..., 5::4]], -1)
    return np.asarray((np.abs(ego - cars) < [LENGTH, WIDTH]).all(-1).any(-1))


def passed(state: Floats) -> NDArray[np.bool_]:
    """Whether the ego is ahead of all cars, (...,)."""
    return np.asarray(state[..., 0] > state[..., 4::4].max(-1) + 10)


class Wisher(ControlledVehicle):
    """The ego: told by two numbers how fast and where it should drive."""

    wish: Floats | NDArray[np.float32] = np.zeros(2)

    def act(self, action: object = None) -> None:
        speed, place = (self.wish + 1) / 2
        here = self.position
        self.position = here - [0, place * LANES[-1] - LANES[1]]  # as if the place were in the middle lane
        steering = self.steering_control(("0", "1", 1))
        self.position = here
        self.action = {"steering": steering, "acceleration": np.clip(self.speed_control(15 + 17 * speed), -5, 5)}


class Traffic(HighwayEnv):
    """Pass four cars, which start 25 to 90 metres ahead; in light traffic they are 80 metres apart."""

    def __init__(self, light: bool = False, render_mode: str | None = None) -> None:
        self.light = light
        super().__init__(render_mode=render_mode)

    @classmethod
    def default_config(cls) -> dict[str, Any]:
        return super().default_config() | {
            "lanes_count": len(LANES),
            "simulation_frequency": round(1 / SECONDS),
            "policy_frequency": round(1 / SECONDS),
        }

    def define_spaces(self) -> None:
        super().define_spaces()
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (len(COLUMNS),), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (len(ACTIONS),), np.float32)

    def _create_vehicles(self) -> None:
        draw, lanes = self.np_random.uniform, self.np_random.choice(LANES, 5)
        if self.light:
            places = np.arange(4) * 80 + draw(-20, 60) + draw(-15, 15, 4)
        else:
            places = draw(25, 90, 4)
            while any(
                abs(a - b) < 20
                for i, a in enumerate(places)
                for j, b in enumerate(places)
                if i < j and lanes[i + 1] == lanes[j + 1]
            ):
                places = draw(25, 90, 4)
        cars = np.stack([self.np_random.permutation(places), lanes[1:], *draw(17, 22, (2, 4))], 1)
        self.put(np.concatenate([[0, lanes[0], 0, draw(20, 28)], cars.ravel()]))

    def put(self, state: Floats) -> None:
        """Puts the simulator into a state (20,), also one that nobody has recorded."""
        self._create_road()
        self.time = 0
        x, y, heading, speed = state[:4]
        self.vehicle = Wisher(self.road, [ORIGIN + x, y], heading, speed)
        drivers = [
            IDMVehicle(self.road, [ORIGIN + x, y], speed=speed, target_speed=wish, enable_lane_change=False)
            for x, y, speed, wish in state[4:].reshape(-1, 4)
        ]
        self.road.vehicles = [self.vehicle, *drivers]
        for car in self.road.vehicles:
            car.collidable = (
                False  # a crash ends the episode: nobody has to bounce, which takes a step that no state shows
            )

    def state(self) -> Floats:
        """The state, (20,)."""
        ego, *cars = self.road.vehicles
        start = ORIGIN + MOVING * self.time
        others = [(car.position[0] - start, car.position[1], car.speed, car.target_speed) for car in cars]
        return np.array([ego.position[0] - start, ego.position[1], ego.heading, ego.speed, *np.ravel(others)])

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        return self.state().astype(np.float32), {}

    def drive(self, action: Floats | NDArray[np.float32]) -> None:
        """Lets everybody drive for a step; as HighwayEnv.step, less its observation, which takes most of the time."""
        self.vehicle.wish = np.clip(action, -1, 1)
        self.road.act()
        self.road.step(SECONDS)
        self.time += SECONDS

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self.drive(action)
        state = self.state()
        crash, success = bool(crashed(state)), bool(passed(state))
        reward = -30.0 if crash else 30.0 if success else (state[3] - 20) / 10
        return state.astype(np.float32), reward, crash or success, False, {"is_success": success and not crash}


gymnasium.register("DenseTraffic-v0", Traffic, max_episode_steps=HORIZON)
gymnasium.register("LightTraffic-v0", Traffic, max_episode_steps=HORIZON, kwargs={"light": True})


def step(rows: Floats) -> Floats:
    """The true next states (N, 20) of rows (N, 22): each is put into the simulator and moved by its action."""
    world, after = Traffic(), np.empty((len(rows), len(COLUMNS)))
    for i, row in enumerate(np.asarray(rows, np.float64)):
        world.put(row[: len(COLUMNS)])
        world.drive(row[len(COLUMNS) :])
        after[i] = world.state()
    return after
