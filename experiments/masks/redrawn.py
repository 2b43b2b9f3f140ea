"""An edge where what happened to a child is less likely once the parent has another row's value."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.masks.mechanisms import USUAL, Training, fit_mechanisms
from experiments.masks.method import Method, Scores, in_blocks
from mocoda.data.transitions import Transitions
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph


@dataclass(frozen=True)
class Redrawn(Method):
    """log p(child | row) - mean log p(child | row with the parent of other recorded rows), at least 0."""

    name = "redrawn"
    looks_ahead = True

    training: Training = USUAL
    draws: int = 8

    def fit(self, data: Transitions, graph: LocalGraph, *, seed: int) -> Scores:
        stream = Stream(seed, "redrawn", device=data.device)
        model = fit_mechanisms(data, graph, self.training, stream)

        @in_blocks
        def scores(rows: Transitions) -> Tensor:
            inputs, changes = model.columns.inputs(rows.rows), model.columns.changes(rows)
            whole, lost = model.log_likelihood(inputs, changes), []
            for parent in range(len(graph.parents)):
                own, means = model.columns.owner == parent, torch.zeros_like(whole)
                for number in range(self.draws):
                    others = data.rows[stream.child("draw", parent, number).integers(len(data), len(rows))]
                    changed = torch.where(own, model.columns.inputs(others), inputs)
                    means += model.log_likelihood(changed, changes) / self.draws
                lost.append(whole - means)
            return torch.stack(lost).clamp(min=0).permute(2, 0, 1)

        return scores
