"""MoCoDA-P: MoCoDA's rows where they matter for a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents.mocoda_u import MocodaU
from mocoda.parents.recipe import Model, Parents, TaskHints


@dataclass(frozen=True)
class MocodaP(MocodaU):
    """MoCoDA's rows, spread over the features and the region that matter for a task (MoCoDA-P).

    Settings are those of "mocoda-u". `features` and `region` are the task's unless given. With flatten="reweighting",
    reweighted rows are the proposals, and are still thinned by rejection.
    """

    name: ClassVar[str] = "mocoda-p"
    title: ClassVar[str] = "MoCoDA-P"
    colour: ClassVar[str] = "#2e8b57"

    def fit(
        self, data: Transitions, graph: LocalGraph, *, task: TaskHints | None, model: Model | None, seed: int | Stream
    ) -> Parents:
        features = self.features or getattr(task, "features", None)
        if features is None:
            raise InputError("recipe 'mocoda-p' needs to know what matters; pass task= or features= (and region=).")
        region = self.region or getattr(task, "region", None)
        return self.reject(self.propose(data, graph, seed), features, region, data, seed)
