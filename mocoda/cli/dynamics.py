"""The options of commands that train a dynamics model, or use one from an earlier run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from mocoda.cli.options import Flag
from mocoda.cli.parser import Maybe, value_of
from mocoda.engine.errors import InputError
from mocoda.engine.progress import Progress

if TYPE_CHECKING:
    from mocoda.data.transitions import Transitions
    from mocoda.dynamics import Dynamics
    from mocoda.graph.local_graph import LocalGraph

FILE, CHECKPOINT = MODEL_FILES = "dynamics.safetensors", "checkpoint.safetensors"
# The settings of --quick: fewer and smaller networks, for a third of the epochs.
QUICK: dict[str, Any] = {
    "members": 3,
    "hidden": (64, 64),
    "features": 64,
    "epochs": 10,
    "batch": 256,
    "learning_rate": 3e-3,
}


@dataclass(frozen=True)
class DynamicsOptions:
    """Which dynamics model predicts the next states."""

    dynamics: Any
    family: Annotated[str, arg(name="dynamics", metavar="NAME")] = "local"
    """Kind of model: local (each factor depends on its parents in each row), global (on its parents in any row), full
    (on everything), or deterministic (like local, without noise). Its settings are --dynamics.*."""
    model: Annotated[Maybe[Path], arg(metavar="PATH")] = None
    """Use the model of an earlier run, such as other.hdf5.run, instead of training one. --dynamics and
    --dynamics.* are then those of that run."""
    quick: Flag = False
    """Train a smaller model: faster, but less accurate. Options --dynamics.* still apply."""

    @classmethod
    def of(cls, words: Sequence[str]) -> DynamicsOptions:
        """The defaults, which depend on the family and on --quick."""
        from mocoda.dynamics import DYNAMICS

        family = DYNAMICS[value_of("dynamics", words, "local")]
        known = {field.name for field in fields(family)}
        return cls(family(**{name: value for name, value in QUICK.items() if "--quick" in words and name in known}))

    def check(self, out: Path) -> None:
        """Refuses, before any data is read, a model that a run in the folder `out` would replace."""
        if self.model is not None and out.resolve() in (self.model.resolve(), self.model.resolve().parent):
            raise InputError(f"--model is in {str(out)!r}, which this run would replace. Choose another --out.")

    def fit(self, folder: Path, data: Transitions, graph: LocalGraph, seed: int, progress: Progress) -> None:
        """Trains the model unless the folder has it, continuing a training that was killed."""
        from mocoda.dynamics import fit_dynamics

        checkpoint = folder / CHECKPOINT
        if self.model is None and not (folder / FILE).exists():
            model = fit_dynamics(data, graph, self.dynamics, seed=seed, progress=progress, checkpoint=checkpoint)
            model.save(folder / FILE)
            checkpoint.unlink(missing_ok=True)

    def load(self, folder: Path, graph: LocalGraph) -> Dynamics:
        """The model that --model names, or that `fit` has left in the folder."""
        from mocoda.dynamics import Dynamics

        place = folder if self.model is None else self.model
        return Dynamics.load(place / FILE if place.is_dir() else place, graph)
