"""An augmentation in small pieces, where other processes can import it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import mocoda.augmentation.generation
from experiments.columns import column_recipe
from mocoda import DynamicsConfig, fit_dynamics, fit_parents
from mocoda.augmentation.generation import Augmentation, Piece
from mocoda.tasks.navigation import Navigation

CONFIG = DynamicsConfig(members=2, hidden=(8,), features=4, epochs=1, batch=64)


def prepare(
    recipe: str = "mocoda", rows: int = 450, seed: int = 0, min_support: float | None = None, other: str = ""
) -> Augmentation:
    mocoda.augmentation.generation.CHUNK["cpu"] = 100
    task = Navigation()
    data = task.collect(200, seed=0)
    if other == "data":
        data.next_state.add_(0.001)
    model = fit_dynamics(data, task.graph, config=CONFIG)
    if other == "weights":
        next(iter(model.weights.values())).mul_(1.5)
    settled = column_recipe(recipe, components=3 if other == "parents" else 4)
    parents = fit_parents(data, task.graph, settled, seed=seed)
    return Augmentation(data, parents, model, rows=rows, task=task, seed=seed, min_support=min_support)


def prepare_slowly(folder: Path, **options: Any) -> Augmentation:
    """An augmentation whose pieces take a while, and whose makers leave their process's number in the folder."""
    plan, whole = prepare(**options), Augmentation.piece
    if "pytest" in sys.modules:  # the test's own process
        return plan

    def piece(self: Augmentation, number: int, drawn: int = 0) -> Piece:
        (folder / str(os.getpid())).touch()
        time.sleep(0.2)
        return whole(self, number, drawn)

    Augmentation.piece = piece  # type: ignore[method-assign]  # in a worker process, which is thrown away
    return plan
