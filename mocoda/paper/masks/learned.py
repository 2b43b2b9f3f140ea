"""Our own: the edge probabilities of `mocoda.learn_graph`."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from mocoda.data.transitions import Transitions
from mocoda.graph.local_graph import LocalGraph
from mocoda.paper.masks.method import Method, NotApplicableError, Scores


@dataclass(frozen=True)
class Learned(Method):
    """What the learned graph's masks are cut from."""

    name = "learned"
    threshold = 0.2  # the caution that learn_graph takes by itself
    probability = True

    def fit(self, data: Transitions, graph: LocalGraph, *, seed: int) -> Scores:
        learn: Any = getattr(import_module("mocoda"), "learn_graph", None)
        if learn is None:
            raise NotApplicableError("this version of mocoda cannot learn graphs.")
        # What never meets in the data is taken to be apart, as it is in the rows that are judged.
        learned = learn(data, state=graph.state, action=graph.action, seed=seed, unseen="apart")
        return lambda rows: learned.edge_probability(rows.rows).to(rows.device)
