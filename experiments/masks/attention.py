"""An edge where a child attends to the parent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.masks.mechanisms import SHARPEST, USUAL, Columns, Mechanisms, Training, minimise, padded
from experiments.masks.method import Method, Scores, in_blocks
from mocoda.data.transitions import Transitions
from mocoda.engine.networks import linear, linear_weights, mlp, mlp_weights, softplus
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph


@dataclass(frozen=True)
class Attention(Method):
    """The attention that a child pays to each parent, in one layer with one head; its own value it sees anyway."""

    name = "attention"

    training: Training = USUAL
    features: int = 64

    def fit(self, data: Transitions, graph: LocalGraph, *, seed: int) -> Scores:
        stream = Stream(seed, "attention", device=data.device)
        columns, wide = Columns(data, graph), self.features
        parents, children = len(graph.parents), len(graph.children)
        parts, changes = padded(columns, columns.inputs(data.rows)), columns.changes(data)
        outputs = 2 * columns.child.shape[1]
        weights = linear_weights("embed", (parents,), parts.shape[2], wide, stream.child("embed"))
        for name, count in (("key", parents), ("value", parents), ("query", children)):
            weights |= linear_weights(name, (count,), wide, wide, stream.child(name))
        weights |= mlp_weights("out", (children,), (2 * wide, *self.training.hidden[1:], outputs), stream.child("out"))

        def look(given: Tensor) -> tuple[Tensor, Tensor]:
            """Attention (C, N, P) of parts (P, N, widest), and what the networks say of the children (C, N, 2 D)."""
            seen = linear(weights, "embed", given).relu()
            key, value, query = (
                linear(weights, name, seen[: len(weights[f"{name}.weight"])]) for name in ("key", "value", "query")
            )
            match = (query.unsqueeze(2) * key.transpose(0, 1)).sum(-1) / math.sqrt(wide)  # (C, N, P)
            paid = match.softmax(-1)
            heard = (paid.unsqueeze(-2) @ value.transpose(0, 1)).squeeze(-2)
            return paid, mlp(weights, "out", torch.cat([seen[:children], heard], -1))

        model = Mechanisms(columns, weights)

        def loss(given: Mapping[str, Tensor]) -> Tensor:
            rows = given["rows"]
            mean, spread = look(parts[:, rows])[1].chunk(2, -1)
            log_std = SHARPEST + softplus(spread - SHARPEST)
            return -model.likelihood(mean, log_std, changes[:, rows]).mean(1).sum()

        minimise(weights, loss, len(data), self.training, stream)
        return in_blocks(lambda rows: look(padded(columns, columns.inputs(rows.rows)))[0].permute(1, 2, 0))
