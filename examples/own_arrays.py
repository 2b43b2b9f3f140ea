"""From your own arrays and a graph file to trained agents, without an environment.

    python examples/own_arrays.py            # under two minutes on two cores
    python examples/own_arrays.py --tiny     # seconds, to see that it runs

The log is of a cart with a lift on it, whose drivers use one motor at a time: across, then up. With both at once the
job is done sooner. At the end, the world that wrote the log shows whether the agents found that out.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import mocoda

GRAPH = Path(__file__).parent / "graphs" / "lift.py"  # which part depends on which, and what is rewarded
TINY = sys.argv[1:] == ["--tiny"]


def world(state: np.ndarray, action: np.ndarray) -> np.ndarray:
    """The next states, (N, 2). You need not have this function: it stands for whatever wrote your log."""
    return state + np.array([0.05, 0.04]) * action


def log(episodes: int, steps: int = 30) -> dict[str, np.ndarray]:
    """Records drivers who drive while the lift is down, and hoist when the cart has arrived."""
    random = np.random.default_rng(0)
    hoists = np.arange(episodes) % 2
    state = np.stack([random.uniform(0, 0.2, episodes) + 0.75 * hoists, random.uniform(0, 0.2, episodes)], 1)
    recorded = []
    for _ in range(steps):
        action = random.uniform(-0.05, 0.05, (episodes, 2))
        action[np.arange(episodes), hoists] += random.uniform(0.4, 0.9, episodes)
        recorded.append((state, action, world(state, action)))
        state = recorded[-1][-1]
    state, action, next_state = (np.stack(part, 1).reshape(-1, 2) for part in zip(*recorded, strict=True))
    there = (next_state > 0.8).all(1)
    return {"state": state, "action": action, "next_state": next_state, "reward": there - 1.0, "terminal": there}


# Arrays become a table. `mocoda.read` also takes files, data frames and Minari data sets.
data = mocoda.read(log(50 if TINY else 200), columns=["cart.place", "lift.height", "drive", "hoist"])
print(mocoda.inspect(data))

# Does the data support the graph?
task = mocoda.load_task(GRAPH, data)
print(mocoda.check(data, task.graph, quick=TINY))

# New rows use both motors as recorded, but together. The graph file's reward labels them.
small = mocoda.DynamicsConfig(hidden=(64, 64), epochs=2 if TINY else 40, window=1)
model = mocoda.fit_dynamics(data, task.graph, config=small)
parents = mocoda.fit_parents(data, task.graph)
augmented = mocoda.augment(data, parents, model, rows=2 * len(data), task=task)
new = augmented[len(data) :]
for name, table in (("recorded", data), ("generated", new)):
    print(
        f"{name:>9}: both motors above 0.4 in {(table.action > 0.4).all(1).float().mean():.1%} of {len(table):,} rows"
    )
off = np.abs(new.next_state.numpy() - world(new.state.numpy(), new.action.numpy())).mean()
print(f"next states of generated rows are off by {off:.5f} on average; a step is 0.05 at most\n")

# For other libraries: D4RL's layout, and npz.
mocoda.write(augmented, "d4rl:lift-augmented.hdf5")
mocoda.write(augmented, "lift-augmented.npz")

# Or train here. There is no environment, so nothing is evaluated during training. Mixtures have tails, so some
# generated actions are beyond what the motors can do: `actions` is their range.
agent = mocoda.make_agent("td3-bc", hidden=(64, 64), batch=256, polyak=0.01, imitation=0.25)
datasets = {"recorded": data, "augmented": augmented}
agents = mocoda.train_agents(datasets, agent, seeds=range(2), updates=20 if TINY else 6_000, actions=(-1, 1))
for name, seed in agents:
    state, steps, done = np.zeros((100, 2)), np.zeros(100), np.zeros(100, bool)
    state += np.random.default_rng(1).uniform(0, 0.2, state.shape)
    for _ in range(100):
        steps += ~done
        state = np.where(done[:, None], state, world(state, np.asarray(agents[name, seed].act(state))))
        done |= (state > 0.8).all(1)
    print(f"trained on {name:>9} rows, seed {seed}: {done.mean():.0%} of 100 jobs done, in {steps.mean():.1f} steps")
print("\nwritten: lift-augmented.hdf5 and lift-augmented.npz")
