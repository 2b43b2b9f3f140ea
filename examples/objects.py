"""Four gliding objects, recorded one at a time: how far can each model be trusted where nothing was recorded?

    python examples/objects.py            # under two minutes on two cores
    python examples/objects.py --tiny     # seconds, to see that it runs

The data shows one object at a time carried home; the target task is to bring all of them home. Recipes differ in how
often they place several at home, and models in whether they can predict what happens then. The true dynamics judge.
"""

from __future__ import annotations

import sys

import torch

import mocoda

TINY = sys.argv[1:] == ["--tiny"]
ROWS, NEW, EPOCHS = (1_000, 500, 1) if TINY else (20_000, 10_000, 30)

task = mocoda.make_task("objects", objects=4)
data = task.collect(rows=ROWS, seed=0)
edges = task.graph.mask(data.rows).float().mean()
print(f"{len(data):,} rows of {len(data.columns)} columns; a step has {edges:.0%} of all edges on average")

config = mocoda.DynamicsConfig(members=3, hidden=(128, 128), features=64, epochs=EPOCHS, window=1)
models = {kind: mocoda.fit_dynamics(data, task.graph, kind, config=config) for kind in ("full", "local")}
step = (data.next_state - data.state).norm(dim=1).mean()


def at_home(state: torch.Tensor) -> torch.Tensor:
    """The number of objects at home, (N,)."""
    return (state[:, 0:16:4] > 0.7).sum(1)


low, high = task.box
print("\nrows drawn by each recipe; of those in the world's box, the median error of the next state in average steps\n")
print(f"{'':10}{'in the box':>12}{'2 or more home':>16}{'all 4':>8}{'full model':>13}{'local model':>13}")
for recipe in ("emp", "dyna", "rand", "coda", "mocoda", "mocoda-u"):
    drawn = mocoda.fit_parents(data, task.graph, recipe, task=task, model=models["local"]).sample(NEW, seed=1)
    possible = ((drawn >= low) & (drawn <= high)).all(1)
    rows = drawn[possible]
    true = task.step(rows)
    off = {kind: (m.predict(rows).mean.mean(0) - true).norm(dim=1).median() / step for kind, m in models.items()}
    several, all_four = (at_home(rows) >= 2).float().mean(), (at_home(rows) == 4).float().mean()
    shares = f"{possible.float().mean():>12.0%}{several:>16.1%}{all_four:>8.1%}"
    print(f"{recipe:10}{shares}{off['full']:>13.2f}{off['local']:>13.2f}")

parents = mocoda.fit_parents(data, task.graph)
augmented = mocoda.augment(data, parents, models["local"], rows=4 * NEW, task=task, min_support=0.05)
augmented.save("objects-augmented.hdf5")
passed = augmented.source["filter"]["accepted_share"]
print(
    f"\n{passed:.0%} of the rows that recipe mocoda draws pass the filter min_support=0.05. objects-augmented.hdf5 has"
)
print(f"{len(augmented):,} rows, the recorded ones first. Next: mocoda train objects-augmented.hdf5 --task objects:4")
