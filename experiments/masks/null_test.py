"""An edge where what happened to a child is less likely had the parent been absent, in the manner of NCII."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.masks.mechanisms import USUAL, Training, fit_mechanisms, minimise
from experiments.masks.method import Method, NotApplicableError, Scores, in_blocks
from mocoda.data.transitions import Transitions
from mocoda.engine.networks import mlp, mlp_weights, softplus
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph

LEAST = 0.005  # the share of the rows in which a factor is absent from which on it can be


@dataclass(frozen=True)
class NullTest(Method):
    """A classifier of rows, trained on log p(child | row) - log p(child | row without the parent) > 3.

    A factor is absent where all its columns are 0, and only of a state factor that is absent in some recorded rows can
    it be asked: all other edges score 0. The published method alternates between model and classifier; this one
    trains them one after the other.
    """

    name = "null-test"
    threshold = 0.5
    probability = True

    training: Training = USUAL
    evidence: float = 3.0  # the authors' 0.1, with our densities, is mostly noise: 8% of what it says on dag:5 is true

    def fit(self, data: Transitions, graph: LocalGraph, *, seed: int) -> Scores:
        factors = [list(graph.factors[name]) for name in graph.state]
        absent = torch.stack([(data.rows[:, columns] == 0).all(1) for columns in factors], 1)
        asked = (absent.float().mean(0) >= LEAST).nonzero()[:, 0].tolist()
        if not asked:
            raise NotApplicableError("no factor is ever absent (all zeros) in the recorded rows.")
        stream = Stream(seed, "null-test", device=data.device)
        model = fit_mechanisms(data, graph, self.training, stream.child("model"))
        columns, parents, children = model.columns, len(graph.parents), len(graph.children)

        @in_blocks
        def evidence(rows: Transitions) -> Tensor:
            inputs, changes = columns.inputs(rows.rows), columns.changes(rows)
            nothing = columns.inputs(torch.zeros_like(rows.rows))
            whole = model.log_likelihood(inputs, changes)
            found = inputs.new_zeros(len(rows), parents, children)
            for parent in asked:
                changed = torch.where(columns.owner == parent, nothing, inputs)
                found[:, parent] = (whole - model.log_likelihood(changed, changes)).T
            return found

        label = (evidence(data) > self.evidence).float().permute(2, 0, 1)  # (C, N, P)
        inputs = columns.inputs(data.rows)
        sizes = (graph.width, *self.training.hidden, parents)
        weights = mlp_weights("edges", (children,), sizes, stream.child("classifier"))

        def loss(given: Mapping[str, Tensor]) -> Tensor:
            odds, wanted = mlp(weights, "edges", inputs[given["rows"]]), label[:, given["rows"]]
            return (softplus(odds) - wanted * odds).mean((1, 2)).sum()

        minimise(weights, loss, len(data), self.training, stream.child("classifier"))
        can = torch.isin(torch.arange(parents, device=data.device), torch.tensor(asked, device=data.device))

        def scores(rows: Transitions) -> Tensor:
            found = mlp(weights, "edges", columns.inputs(rows.rows)).sigmoid() * can
            return found.permute(1, 2, 0)

        return in_blocks(scores)
