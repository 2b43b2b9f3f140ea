"""The command that asks counterfactual questions about recorded steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import arg

from mocoda.analysis import what_if
from mocoda.cli import options as opt
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.runs import RunFolder


@dataclass(frozen=True, kw_only=True)
class WhatIf(opt.OnData):
    """Ask what would have happened in a recorded step if some of its factors had been different."""

    row: int
    """Number of the step in the data, counted from 0."""
    change: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE [NAME=VALUE ...]", help_behavior_hint="(required)")]
    """Factors and their new values, such as y=0.3, or cup=0.1,0.2 for a factor with several columns."""
    model: opt.Flat[opt.DynamicsOptions]
    resample: opt.Words = ()
    """Factors to draw anew, given all others. All other factors stay as they were recorded."""
    least_support: float = 0.01
    """Refuse questions that are rarer than all but this share of the data; 0 answers any question."""
    device: opt.Device = "cpu"
    out: opt.Folder = Path("runs/whatif")
    """Folder that keeps the trained model: a second question about the same data is answered at once."""

    @classmethod
    def defaults(cls, words: Sequence[str]) -> dict[str, Any]:
        return {"model": opt.DynamicsOptions.of(words)}

    def run(self) -> None:
        self.model.check(self.out)
        changes = opt.assigned("change", self.change, opt.numbers, "y=0.3 or cup=0.1,0.2")
        recorded, world = self.read(self.device)
        for name in (*changes, *self.resample):
            if name not in world.graph.factors:
                raise unknown_name("factor", name, world.graph.factors)
        if not 0 <= self.row < len(recorded):
            raise InputError(f"row must be a row of {self.data!r}, from 0 to {len(recorded) - 1}, got {self.row}.")
        if self.model.model is None:
            question = ("row", "change", "resample", "least_support")
            settings = self.identity(recorded, world, "data", *question)
            with RunFolder(self.out, "whatif", settings, opt.MODEL_FILES, self.overwrite) as run:
                self.model.fit(run.path, recorded, world.graph, self.seed, run.progress)
        opt.show(
            what_if(
                recorded[self.row : self.row + 1],
                changes,
                model=self.model.load(self.out, world.graph).to(self.device),
                graph=world.graph,
                resample=self.resample,
                data=recorded,
                least_support=self.least_support,
                seed=self.seed,
            )
        )
