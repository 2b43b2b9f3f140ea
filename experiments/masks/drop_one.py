"""An edge where what happened to a child is less likely without the parent: local conditional mutual information."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.masks.mechanisms import USUAL, Training, fit_mechanisms, without
from experiments.masks.method import Method, Scores, in_blocks
from mocoda.data.transitions import Transitions
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph


@dataclass(frozen=True)
class DropOne(Method):
    """log p(child | all) - log p(child | all but the parent), at least 0, of networks trained with a parent hidden."""

    name = "drop-one"
    threshold = 0.02
    looks_ahead = True

    training: Training = USUAL

    def fit(self, data: Transitions, graph: LocalGraph, *, seed: int) -> Scores:
        model = fit_mechanisms(data, graph, self.training, Stream(seed, "drop-one", device=data.device), drop=True)
        parents = len(graph.parents)

        @in_blocks
        def scores(rows: Transitions) -> Tensor:
            inputs, changes = model.columns.inputs(rows.rows), model.columns.changes(rows)
            whole = model.log_likelihood(inputs, changes)
            lost = [whole - model.log_likelihood(inputs, changes, without(p, inputs, parents)) for p in range(parents)]
            return torch.stack(lost).clamp(min=0).permute(2, 0, 1)

        return scores
