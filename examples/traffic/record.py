"""Records drivers in light traffic, where nobody has to look beyond the next car.

python record.py --rows 24_000 --out light.hdf5
"""

from __future__ import annotations

import argparse

import numpy as np
from highway import ACTIONS, COLUMNS, HORIZON, LANES, Floats, Traffic

import mocoda


class Driver:
    """Overtakes on the left where there is a lane, else on the right, without looking whether it is free."""

    def __init__(self, random: np.random.Generator) -> None:
        self.random = random
        self.speed = random.uniform(22, 31)
        self.distance = random.uniform(12, 45)  # to the car ahead at which the lane is changed
        self.noise = random.uniform(0.02, 0.2)
        self.lane: int | None = None

    def act(self, state: Floats) -> Floats:
        """The next action (2,) in a state (20,)."""
        x, y, _, speed = state[:4]
        cars = state[4:].reshape(-1, 4)
        if self.lane is None:
            self.lane = int(np.abs(np.subtract(LANES, y)).argmin())
        ahead = cars[(np.abs(cars[:, 1] - y) < 3) & (cars[:, 0] > x)]
        gap = ahead[:, 0].min() - x if len(ahead) else np.inf
        settled = abs(LANES[self.lane] - y) < 0.5
        if settled and self.random.random() < 0.01:
            self.lane = self.random.integers(3)
        elif settled and gap < self.distance:
            self.lane = self.lane - 1 if self.lane > 0 else 1
        speed = self.speed if gap > 10 else ahead[:, 2].min() - 2
        wish = np.array([(speed - 15) / 8.5 - 1, self.lane - 1.0])
        return np.clip(wish + self.noise * self.random.normal(size=2), -1, 1)


def record(rows: int, seed: int = 0) -> dict[str, Floats]:
    """Records whole episodes until there are enough rows, as arrays by name."""
    random, world = np.random.default_rng(seed), Traffic(light=True)
    table: dict[str, list[Floats]] = {name: [] for name in ("state", "action", "next_state", "episode", "step")}
    episode = 0
    while len(table["state"]) < rows:
        state, _ = world.reset(seed=int(random.integers(2**31)))
        driver, ended = Driver(random), False
        for number in range(HORIZON):
            action = driver.act(state).astype(np.float32)
            next_state, _, ended, *_ = world.step(action)
            for name, value in zip(table, (state, action, next_state, episode, number), strict=True):
                table[name].append(value)
            state = next_state
            if ended:
                break
        episode += 1
    return {name: np.array(values[:rows]) for name, values in table.items()}


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=int, default=24_000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--out", default="light.hdf5")
    given = options.parse_args()
    mocoda.write(mocoda.read(record(given.rows, given.seed), columns=[*COLUMNS, *ACTIONS]), given.out)
