"""An augmentation in small pieces, where other processes can import it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from experiments.columns import column_recipe
from mocoda import DynamicsConfig, fit_dynamics, fit_parents
from mocoda.augmentation.generation import Augmentation, Piece
from mocoda.tasks.navigation import Navigation

CONFIG = DynamicsConfig(members=2, hidden=(8,), features=4, epochs=1, batch=64)


def prepare(
    recipe: str = "mocoda", rows: int = 450, seed: int = 0, min_support: float | None = None, other: str = ""
) -> Augmentation:
    task = Navigation()
    data = task.collect(200, seed=0)
    if other == "data":
        data.next_state.add_(0.001)
    model = fit_dynamics(data, task.graph, config=CONFIG)
    if other == "weights":
        next(iter(model.weights.values())).mul_(1.5)
    settled = column_recipe(recipe, components=3 if other == "parents" else 4)
    parents = fit_parents(data, task.graph, settled, seed=seed)
    return Augmentation(data, parents, model, rows=rows, task=task, seed=seed, min_support=min_support, chunk=100)


@dataclass(frozen=True, eq=False)
class Slow(Augmentation):
    """Its pieces take a while, and whoever makes one leaves the number of its process in the folder."""

    folder: Path = Path()

    def piece(self, number: int, drawn: int = 0) -> Piece:
        (self.folder / str(os.getpid())).touch()
        time.sleep(0.2)
        return super().piece(number, drawn)


@dataclass(frozen=True, eq=False)
class Dying(Augmentation):
    """A process that makes its piece `fatal` dies, as long as the marker exists."""

    fatal: int = -1
    marker: Path = Path()

    def piece(self, number: int, drawn: int = 0) -> Piece:
        if number == self.fatal and self.marker.exists():
            os._exit(1)
        return super().piece(number, drawn)


def prepared_as(kind: type[Augmentation], more: dict[str, Any], **options: Any) -> Augmentation:
    """The same augmentation, of another kind."""
    plan = prepare(**options)
    return kind(**{field.name: getattr(plan, field.name) for field in fields(plan)}, **more)
