"""An edge from the action where other actions would have led a child elsewhere: causal action influence."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.masks.mechanisms import USUAL, Training, fit_mechanisms
from experiments.masks.method import Method, NotApplicableError, Scores, in_blocks
from mocoda.data.transitions import Transitions
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph


@dataclass(frozen=True)
class ActionInfluence(Method):
    """Mean KL(child | action ‖ mixture over actions), for uniform actions; edges from state factors score 0."""

    name = "cai"
    threshold = 0.05

    training: Training = USUAL
    actions: int = 32

    def fit(self, data: Transitions, graph: LocalGraph, *, seed: int) -> Scores:
        if not graph.action:
            raise NotApplicableError("there is no action.")
        stream = Stream(seed, "cai", device=data.device)
        model = fit_mechanisms(data, graph, self.training, stream)
        low, high = data.rows.amin(0), data.rows.amax(0)
        drawn = low + (high - low) * stream.child("actions").uniform(self.actions, graph.width)
        states, counts = len(graph.state), model.columns.counts[:, None]

        @in_blocks
        def scores(rows: Transitions) -> Tensor:
            found = rows.rows.new_zeros(len(rows), len(graph.parents), len(graph.children))
            for parent in range(states, len(graph.parents)):
                own = model.columns.owner == parent
                means, log_stds = zip(
                    *(model.predict(model.columns.inputs(torch.where(own, one, rows.rows))) for one in drawn),
                    strict=True,
                )
                mean, log_std = torch.stack(means), torch.stack(log_stds)  # (K, C, N, D)
                each = []
                for m, s in zip(means, log_stds, strict=True):
                    gap = (mean - m).square() + (2 * s).exp()
                    apart = ((log_std - s + 0.5 * gap / (2 * log_std).exp() - 0.5) * counts).sum(-1)  # KL, (K, C, N)
                    each.append(math.log(self.actions) - (-apart).logsumexp(0))
                found[:, parent] = torch.stack(each).mean(0).T
            return found

        return scores
