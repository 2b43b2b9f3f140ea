"""An edge where the local graph that a code book has for the row holds it, in the manner of FCDL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.masks.mechanisms import USUAL, Columns, Mechanisms, Training, fresh_weights, minimise
from experiments.masks.method import Method, Scores, in_blocks
from mocoda.data.transitions import Transitions
from mocoda.engine.networks import linear, linear_weights, mlp, mlp_weights
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph


@dataclass(frozen=True)
class CodeBook(Method):
    """Each row is of one of 16 local graphs, which are learned along with what chooses them (vector quantisation)."""

    name = "code-book"
    threshold = 0.5
    probability = True

    training: Training = USUAL
    codes: int = 16
    width: int = 16  # of a code
    sparsity: float = 1e-3  # times the mean probability of an edge
    commitment: float = 0.25
    memory: float = 0.99  # of the moving averages that the codes are

    def fit(self, data: Transitions, graph: LocalGraph, *, seed: int) -> Scores:
        stream = Stream(seed, "code-book", device=data.device)
        columns = Columns(data, graph)
        parents, children = len(graph.parents), len(graph.children)
        inputs, changes = columns.inputs(data.rows), columns.changes(data)
        weights = fresh_weights(columns, self.training, stream)
        weights |= mlp_weights("row", (), (graph.width, *self.training.hidden, self.width), stream.child("row"))
        weights |= linear_weights("edges", (), self.width, parents * children, stream.child("edges"))
        model = Mechanisms(columns, weights)
        with torch.no_grad():  # codes begin as what some rows are
            some = inputs[stream.child("codes").integers(len(data), self.codes)]
            code = mlp(weights, "row", some).clone()
        count, each = torch.ones_like(code[:, :1]), torch.arange(self.codes, device=data.device)
        total = code.clone()

        def edges(codes: Tensor) -> Tensor:
            logits: Tensor = linear(weights, "edges", codes).unflatten(1, (parents, children))
            return logits

        def loss(given: Mapping[str, Tensor]) -> Tensor:
            rows, noise = given["rows"], given["noise"]
            found = mlp(weights, "row", inputs[rows])
            chosen = _nearest(found, code)
            logits = edges(found + (code[chosen] - found).detach())
            soft = (logits + noise.logit(1e-6)).sigmoid()
            keep = (soft > 0.5).float() + soft - soft.detach()  # hard, with the gradient of the soft one
            fit = -model.log_likelihood(inputs[rows], changes[:, rows], keep.permute(2, 0, 1)).mean(1).sum()
            away = (found - code[chosen].detach()).square().sum(1).mean()
            if torch.is_grad_enabled():  # not while held-out rows are looked at
                with torch.no_grad():
                    members = (chosen[:, None] == each).float()
                    count.lerp_(members.sum(0)[:, None], 1 - self.memory)
                    total.lerp_(members.T @ found, 1 - self.memory)
                    code.copy_(total / count.clamp(min=1e-3))
            return fit + self.sparsity * children * logits.sigmoid().mean() + self.commitment * away

        draw = stream.child("noise")
        size = (self.training.batch, parents, children)
        draws = {"noise": lambda updates: draw.uniform(updates, *size)}
        minimise(weights, loss, len(data), self.training, stream, draws, (code, count, total))

        def scores(rows: Transitions) -> Tensor:
            chosen = _nearest(mlp(weights, "row", columns.inputs(rows.rows)), code)
            return edges(code[chosen]).sigmoid()

        return in_blocks(scores)


def _nearest(found: Tensor, code: Tensor) -> Tensor:
    """The number of the code (K, Z) that each vector (N, Z) is nearest to, (N,)."""
    return (found[:, None] - code).square().sum(2).argmin(1)
