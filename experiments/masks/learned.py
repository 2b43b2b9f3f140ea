"""Our own: the edge probabilities of `mocoda.learn_graph`."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.masks.method import Method, Scores
from mocoda.data.transitions import Transitions
from mocoda.graph.learned import CAUTION
from mocoda.graph.learning import learn_graph
from mocoda.graph.local_graph import LocalGraph


@dataclass(frozen=True)
class Learned(Method):
    """What the learned graph's masks are cut from."""

    name = "learned"
    threshold = CAUTION
    probability = True

    def fit(self, data: Transitions, graph: LocalGraph, *, seed: int) -> Scores:
        # What never meets in the data is taken to be apart, as it is in the rows that are judged.
        learned = learn_graph(data, state=graph.state, action=graph.action, seed=seed, unseen="apart")
        return lambda rows: learned.edge_probability(rows.rows).to(rows.device)
