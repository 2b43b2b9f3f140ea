"""LocalGraph -> Mechanisms: networks that give the next state's columns and can see only what the graph lets them.

Three architectures (Appendix B.3):

    full    one mechanism that sees everything
    global  one mechanism per child, which sees its parents in the sparsest graph
    local   one mechanism per child behind a Masked Composer, which sees its parents at that very row

Axes: *L any leading axes (runs, ensemble members), C mechanisms, B rows of a batch, P parents.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mocoda.graph import LocalGraph
from mocoda.networks import Weights, linear, linear_weights, mlp, mlp_weights, softplus
from mocoda.randomness import Stream

ARCHITECTURES = ("full", "global", "local")
VARIANCE_FLOOR = 1e-6


@dataclass(frozen=True)
class Mechanisms:
    """The networks of an architecture, as functions of weights whose leading axes are free.

    Index tensors are made once and kept on the device: a captured graph may not copy them there.
    """

    graph: LocalGraph
    architecture: str
    members: int
    hidden: tuple[int, ...]
    features: int  # width of the Masked Composer's embeddings
    device: torch.device

    def initial_weights(self, stream: Stream) -> dict[str, Tensor]:
        """Fresh weights of all members, (E, C, in, out) each."""
        leading = (self.members, len(self.outputs))
        weights: dict[str, Tensor] = {}
        inputs = self.graph.width
        if self.architecture == "local":
            inputs = self.features
            for name, columns in self.graph.factors.items():
                weights |= linear_weights(f"embed.{name}", leading, len(columns), inputs, stream)
        width = max(map(len, self.outputs))
        return weights | mlp_weights("mlp", leading, (inputs, *self.hidden, 2 * width), stream)

    def __call__(self, weights: Weights, rows: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean and variance (*L, B, S) for standardised rows (*L, B, S + A) with masks (*L, B, P, C)."""
        if self.architecture == "local":
            assert mask is not None
            hidden = self._composed(weights, rows, mask)
        else:
            hidden = torch.where(self._gates, rows[..., None, :, :], 0.0)
        mean, raw = self._assembled(mlp(weights, "mlp", hidden)).chunk(2, -1)
        return mean, softplus(raw) + VARIANCE_FLOOR

    def kept_state(self, rows: Tensor, mask: Tensor | None) -> Tensor:
        """The state (*L, B, S) to which a predicted change is added: only where a child listens to its own past."""
        state = rows[..., : self.graph.state_width]
        if self.architecture == "full":
            return state
        edges = self.graph.sparsest.to(self.device) if mask is None else mask
        own = edges.diagonal(dim1=-2, dim2=-1)  # state factors come first among the parents
        return torch.where(own.index_select(-1, self._child_of_column), state, 0.0)

    @cached_property
    def outputs(self) -> tuple[tuple[int, ...], ...]:
        """The state columns that each mechanism gives."""
        if self.architecture == "full":
            return (tuple(range(self.graph.state_width)),)
        return tuple(self.graph.factors[child] for child in self.graph.children)

    @cached_property
    def _child_of_column(self) -> Tensor:
        owner = {column: c for c, columns in enumerate(self.outputs) for column in columns}
        return torch.tensor([owner[column] for column in range(self.graph.state_width)], device=self.device)

    @cached_property
    def _factor_columns(self) -> dict[str, Tensor]:
        return {name: torch.tensor(columns, device=self.device) for name, columns in self.graph.factors.items()}

    @cached_property
    def _gates(self) -> Tensor:
        """Which columns each mechanism sees, bool (C, 1, S + A)."""
        gates = torch.zeros(len(self.outputs), 1, self.graph.width, dtype=torch.bool)
        if self.architecture == "full":
            return torch.ones_like(gates, device=self.device)
        for number, child in enumerate(self.graph.children):
            gates[number, 0, list(self.graph.columns(self.graph.edges[child]))] = True
        return gates.to(self.device)

    @cached_property
    def _slots(self) -> Tensor:
        """Where the state columns' means, and then their raw variances, stand among the mechanisms' outputs, (2 S,).

        Every mechanism gives both for as many columns as the widest.
        """
        width = max(map(len, self.outputs))
        slots = {column: 2 * c * width + i for c, own in enumerate(self.outputs) for i, column in enumerate(own)}
        means = [slots[column] for column in range(self.graph.state_width)]
        return torch.tensor([*means, *(slot + width for slot in means)], device=self.device)

    def _composed(self, weights: Weights, rows: Tensor, mask: Tensor) -> Tensor:
        """The Masked Composer: Σ over parents of mask · relu(embedding), (*L, C, B, features).

        A masked-out embedding is replaced by zero, so its parent cannot reach the child, not even by a bit.
        """
        total: Tensor | None = None
        for number, (name, columns) in enumerate(self._factor_columns.items()):
            seen = mask[..., number, :].transpose(-1, -2)[..., None]  # (*L, C, B, 1)
            own = rows.index_select(-1, columns)[..., None, :, :]
            embedded = linear(weights, f"embed.{name}", own).relu()
            part = torch.where(seen, embedded, 0.0)
            total = part if total is None else total + part
        assert total is not None
        return total

    def _assembled(self, output: Tensor) -> Tensor:
        """Mechanisms' outputs (*L, C, B, 2 W) as means and raw variances of the state columns, (*L, B, 2 S)."""
        return output.transpose(-3, -2).flatten(-2).index_select(-1, self._slots)
