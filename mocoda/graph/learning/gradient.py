"""A simple learner: an edge is present where the predicted change of a child is sensitive to the parent.

Axes: C children, P parents, N rows, W columns of a row, K columns of the widest child.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.networks import Weights, mlp, mlp_weights, softplus
from mocoda.engine.progress import Progress
from mocoda.engine.randomness import Shapes, Stream
from mocoda.graph.learned import GraphLearner
from mocoda.graph.learning.baseline import Table, descend
from mocoda.graph.learning.gate_networks import Layout
from mocoda.graph.local_graph import LocalGraph

MIN_LOG_SCALE = -3.0  # of a predicted standard deviation, in standard deviations of the changes
CONSTANTS = 6  # inputs that are always 1: with their weights, the first layer's biases learn faster


@dataclass(frozen=True)
class GradientLearner(GraphLearner):
    """Gradients of one model per child that sees everything: simple, but less accurate."""

    name = "gradient"
    caution = 0.5

    hidden: tuple[int, ...] = (128, 128)  # Widths of the hidden layers.
    steps: int = 5_000  # Updates.
    batch: int = 256  # Rows of each update.
    learning_rate: float = 1e-3  # Step size of Adam.
    sensitivity: float = 2e-3  # Sum of absolute derivatives, in standard deviations, where an edge has probability 0.5.

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))
        for name in ("steps", "batch", "learning_rate", "sensitivity"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be positive, got {getattr(self, name)}.")

    @staticmethod
    def quick() -> GradientLearner:
        return GradientLearner(hidden=(64, 64), steps=1_000)

    def learn(
        self, data: Transitions, graph: LocalGraph, always: Tensor, never: Tensor, stream: Stream, progress: Progress
    ) -> dict[str, Tensor]:
        table = Table.of(data, graph, stream)
        weights = self._weights(table.layout, stream.child("weights"))

        def draw(start: int, updates: int) -> dict[str, Tensor]:
            return {"rows": table.train[stream.integers(len(table.train), updates, self.batch)]}

        def loss(given: Mapping[str, Tensor]) -> Tensor:
            mean, spread = self._predicted(weights, table.inputs[given["rows"]])
            log_scale = MIN_LOG_SCALE + softplus(spread - MIN_LOG_SCALE)
            error = (mean - table.target[:, given["rows"]]) * (-log_scale).exp()
            return table.per_column(0.5 * error.square() + log_scale).mean(-1).sum()

        trained = descend(
            weights, loss, draw, rate=self.learning_rate, steps=self.steps, progress=progress, stage="model"
        )
        scaling = {name: table.scaling[name] for name in ("shift", "scale")}
        return {"always": always, "never": never, **scaling, **trained}

    def probability(self, tensors: Weights, graph: LocalGraph, rows: Tensor) -> Tensor:
        layout = Layout(graph, rows.device)
        inputs = ((rows - tensors["shift"]) / tensors["scale"]).expand(len(graph.children), -1, -1).contiguous()
        with torch.enable_grad():
            mean, _ = self._predicted(tensors, inputs.requires_grad_())
            changes = (mean * (layout.children < graph.width)[:, None]).unbind(-1)
            slopes = [torch.autograd.grad(change.sum(), inputs, retain_graph=True)[0].abs() for change in changes]
        sensitivity = torch.stack(slopes).sum(0) @ layout.owned.T  # (C, N, P)
        return (sensitivity / (sensitivity + self.sensitivity)).permute(1, 2, 0)

    def _predicted(self, weights: Weights, inputs: Tensor) -> Sequence[Tensor]:
        """Mean and raw log scale (C, N, K) of the changes at standardised rows (*C, N, W)."""
        return mlp(weights, "child", pad(inputs, (0, CONSTANTS), value=1.0)).chunk(2, -1)

    def expected(self, graph: LocalGraph) -> dict[str, Tensor]:
        scaling = {"shift": torch.empty(graph.width), "scale": torch.empty(graph.width)}
        weights = self._weights(Layout(graph, torch.device("cpu")), Shapes())
        return {**super().expected(graph), **scaling, **weights}

    def _weights(self, layout: Layout, stream: Stream) -> dict[str, Tensor]:
        children, width = layout.children.shape
        return mlp_weights("child", (children,), (layout.graph.width + CONSTANTS, *self.hidden, 2 * width), stream)
