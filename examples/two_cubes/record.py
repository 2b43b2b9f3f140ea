"""Records a Franka arm that pushes one of two cubes per episode; the other one is not touched.

python examples/two_cubes/record.py --rows 40_000 --out cubes.hdf5
"""

from __future__ import annotations

import argparse

import numpy as np
from franka import ACTIONS, COLUMNS, GOALS, HOME, HORIZON, REACH, Floats, TwoCubes

import mocoda


class Pusher:
    """A noisy script that goes behind a cube, pushes it into its zone, and takes the hand home."""

    def __init__(self, random: np.random.Generator) -> None:
        self.random = random
        self.cube = random.integers(2)
        self.speed = random.uniform(0.5, 1.0)
        self.noise = random.uniform(0.05, 0.3)
        self.goal = GOALS[self.cube] + random.uniform(-0.02, 0.02, 2)
        self.rest = HOME + random.uniform([-0.03, -0.15], [0.02, 0.15])
        self.pushing, self.done = False, False

    def act(self, state: Floats) -> Floats:
        """The next action (2,) in a state (43,)."""
        hand, cube = state[14:16], state[17 + 13 * self.cube :][:2]
        self.done |= bool(cube[0] + 0.12 * state[24 + 13 * self.cube] > self.goal[0])  # the hand needs time to stop
        slope = np.clip((self.goal[1] - cube[1]) / max(self.goal[0] - cube[0], 0.03), -0.3, 0.3)
        ahead = np.array([1.0, slope]) / np.hypot(1.0, slope)
        behind = cube - 0.075 * ahead
        aside = (hand - cube) @ [-ahead[1], ahead[0]]
        self.pushing = not self.done and hand[0] < cube[0] - 0.03 and abs(aside) < (0.02 if self.pushing else 0.008)
        if self.pushing:
            move = self.speed * ahead - 20 * aside * np.array([-ahead[1], ahead[0]])
        else:  # behind the cube, or home; first straight back
            target = self.rest if self.done else behind
            back = np.array([min(target[0], behind[0] - 0.02), hand[1]])
            move = ((target if hand[0] < behind[0] + 0.015 else back) - hand) / REACH
            move *= min(1.0, self.speed / max(np.abs(move).max(), 1e-9))
        return np.clip(move + self.noise * self.random.normal(size=2), -1, 1)


def record(rows: int, seed: int = 0) -> dict[str, Floats]:
    """Records whole episodes until there are enough rows, as arrays by name."""
    random, world = np.random.default_rng(seed), TwoCubes()
    table: dict[str, list[Floats]] = {name: [] for name in ("state", "action", "next_state", "episode", "step")}
    episode = 0
    while len(table["state"]) < rows:
        state, _ = world.reset(seed=int(random.integers(2**31)))
        pusher = Pusher(random)
        for number in range(HORIZON):
            action = pusher.act(state).astype(np.float32)
            next_state, *_ = world.step(action)
            for name, value in zip(table, (state, action, next_state, episode, number), strict=True):
                table[name].append(value)
            state = next_state
        episode += 1
    return {name: np.array(values[:rows]) for name, values in table.items()}


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=int, default=40_000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--out", default="cubes.hdf5")
    given = options.parse_args()
    recorded = record(given.rows, given.seed)
    mocoda.write(mocoda.read(recorded, columns=[*COLUMNS, *ACTIONS]), given.out)
