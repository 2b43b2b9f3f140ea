"""The options of commands that train a dynamics model, or take one from an earlier run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import FlagCreatePairsOff, arg

from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.progress import Progress

if TYPE_CHECKING:
    from mocoda.data.transitions import Transitions
    from mocoda.dynamics import Dynamics
    from mocoda.graph.local_graph import LocalGraph

FILE, CHECKPOINT = MODEL_FILES = "dynamics.safetensors", "checkpoint.safetensors"
# What --quick trains: fewer and smaller networks, for a third of the epochs.
QUICK = {"members": 3, "hidden": (64, 64), "features": 64, "epochs": 10, "batch": 256, "learning_rate": 3e-3}


@dataclass(frozen=True)
class DynamicsOptions:
    """Which dynamics model predicts the next states."""

    dynamics: Any
    architecture: str = "local"
    """What the model knows of the graph: full (nothing), global (the edges that hold somewhere) or local (those that
    hold in each state)."""
    model: Annotated[Path | None, arg(metavar="PATH")] = None
    """Take the model of an earlier run, such as other.hdf5.run, instead of training one. --architecture and
    --dynamics.* are then that run's."""
    quick: FlagCreatePairsOff[bool] = False
    """Train a smaller model: faster, with larger errors. --dynamics.* still change it."""

    @classmethod
    def of(cls, words: Sequence[str]) -> DynamicsOptions:
        """The defaults, which --quick changes."""
        from mocoda.dynamics import DynamicsConfig

        settings: dict[str, Any] = QUICK if "--quick" in words else {}
        return cls(DynamicsConfig(**settings))

    def check(self, out: Path) -> None:
        """Refuses, before anything is read, what cannot be used by a run in the folder `out`."""
        from mocoda.dynamics import ARCHITECTURES

        if self.architecture not in ARCHITECTURES:
            raise unknown_name("architecture", self.architecture, ARCHITECTURES)
        if self.model is not None and out.resolve() in (self.model.resolve(), self.model.resolve().parent):
            raise InputError(f"--model is in {str(out)!r}, which this run would replace. Choose another --out.")

    def fit(self, folder: Path, data: Transitions, graph: LocalGraph, seed: int, progress: Progress) -> None:
        """Trains the model if the folder has none, and continues where an earlier training was killed."""
        from mocoda.dynamics import fit_dynamics

        checkpoint = folder / CHECKPOINT
        if self.model is None and not (folder / FILE).exists():
            model = fit_dynamics(
                data,
                graph,
                self.architecture,
                seed=seed,
                config=self.dynamics,
                progress=progress,
                checkpoint=checkpoint,
            )
            model.save(folder / FILE)
            checkpoint.unlink(missing_ok=True)

    def load(self, folder: Path, graph: LocalGraph) -> Dynamics:
        """The model that --model names, or that `fit` left in the folder."""
        from mocoda.dynamics import Dynamics

        place = folder if self.model is None else self.model
        return Dynamics.load(place / FILE if place.is_dir() else place, graph)
