"""An edge where a child's predicted change has a gradient with respect to the parent."""

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
class Gradient(Method):
    """The sum of absolute derivatives of the predicted mean, in standard units."""

    name = "gradient"
    threshold = 2e-3

    training: Training = USUAL

    def fit(self, data: Transitions, graph: LocalGraph, *, seed: int) -> Scores:
        model = fit_mechanisms(data, graph, self.training, Stream(seed, "gradient", device=data.device))
        owner = model.columns.owner

        @in_blocks
        def scores(rows: Transitions) -> Tensor:
            inputs = model.columns.inputs(rows.rows).expand(len(graph.children), -1, -1).clone().requires_grad_()
            mean = model.predict(inputs)[0] * model.columns.counts[:, None]
            slopes = sum(
                torch.autograd.grad(column.sum(), inputs, retain_graph=True)[0].abs() for column in mean.unbind(2)
            )
            assert isinstance(slopes, Tensor)
            total = slopes.new_zeros(*slopes.shape[:2], len(graph.parents)).index_add(2, owner, slopes)
            return total.permute(1, 2, 0)

        return scores
