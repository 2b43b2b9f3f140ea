"""Networks that predict the next state's columns and see only what the graph lets them.

Three architectures (Appendix B.3):

    full    one mechanism that sees everything
    global  one mechanism per child, which sees its parents in the sparsest graph
    local   one mechanism per child behind a Masked Composer, which sees its parents at that very row

A local one may be `shared`: all children then share the weights of the Masked Composer and of the network behind it.
Each factor still has its own embedding and last layer, unless it is `alike` to others: these share them too.

Axes: *L any leading axes (runs, ensemble members), C mechanisms, B rows of a batch, P parents, F features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.networks import Weights, linear, linear_weights, mlp, mlp_weights, softplus
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph

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
    shared: bool = False  # one Masked Composer and one network for all children
    alike: tuple[tuple[str, ...], ...] = ()  # groups of factors of one kind

    def __post_init__(self) -> None:
        if self.shared and self.architecture != "local":
            raise InputError(
                f"shared=True needs the Masked Composer of the architecture 'local', got {self.architecture!r}. "
                "Remove it."
            )
        for group in self.alike:
            for name in group:
                if name not in self.graph.factors:
                    raise unknown_name("factor", name, self.graph.factors)
            if len({(name in self.graph.state, len(self.graph.factors[name])) for name in group}) > 1:
                raise InputError(
                    f"factors that are alike must all be of the state or all of the action and as wide as each other, "
                    f"got {', '.join(group)}."
                )

    def initial_weights(self, stream: Stream) -> dict[str, Tensor]:
        """Fresh weights of all members, (E, C, in, out) each; shared ones, or those of a kind, (E, in, out)."""
        if self.shared:
            return self._shared_weights(stream)
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
            hidden = self._shared_composed(weights, rows, mask) if self.shared else self._composed(weights, rows, mask)
        else:
            hidden = torch.where(self._gates, rows[..., None, :, :], 0.0)
        output = self._shared_output(weights, hidden) if self.shared else mlp(weights, "mlp", hidden)
        mean, raw = self._assembled(output).chunk(2, -1)
        return mean, softplus(raw) + VARIANCE_FLOOR

    def kept_state(self, rows: Tensor, mask: Tensor | None) -> Tensor:
        """The state (*L, B, S) to which a predicted change is added: only where a child depends on its own past."""
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
    def alike_columns(self) -> tuple[Tensor, ...]:
        """The columns of factors that are alike, (factors, width) of every group."""
        return tuple(torch.tensor([self.graph.factors[n] for n in group], device=self.device) for group in self.alike)

    @cached_property
    def _child_of_column(self) -> Tensor:
        owner = {column: c for c, columns in enumerate(self.outputs) for column in columns}
        return torch.tensor([owner[column] for column in range(self.graph.state_width)], device=self.device)

    @cached_property
    def _factor_columns(self) -> dict[str, Tensor]:
        return {name: torch.tensor(columns, device=self.device) for name, columns in self.graph.factors.items()}

    @cached_property
    def _kinds(self) -> dict[str, str]:
        """The kind of every factor, named after the first of its group."""
        return {name: name for name in self.graph.factors} | {n: group[0] for group in self.alike for n in group}

    @cached_property
    def _not_own(self) -> Tensor:
        """Which parents are other factors than the child, bool (P, C): state factors come first among the parents."""
        return ~torch.eye(len(self.graph.parents), len(self.graph.children), dtype=torch.bool, device=self.device)

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

    def _shared_weights(self, stream: Stream) -> dict[str, Tensor]:
        """`trunk` is everyone's. A kind has an embedding, and one of a state two: for its own child, and for others.

        By the second, one network can tell a child's own past from its other parents, whichever child it is.
        """
        leading, width = (self.members,), max(map(len, self.outputs))
        sizes, bound = (self.features, *self.hidden), 1 / math.sqrt(self.features)
        weights = mlp_weights("trunk", leading, sizes, stream)
        for kind in dict.fromkeys(self._kinds.values()):
            columns = len(self.graph.factors[kind])
            weights |= linear_weights(f"embed.{kind}", leading, columns, self.features, stream)
            if kind in self.graph.state:
                weights |= linear_weights(f"own.{kind}", leading, columns, self.features, stream)
                weights |= linear_weights(f"head.{kind}", leading, sizes[-1], 2 * width, stream)
                weights[f"child.{kind}"] = stream.uniform(*leading, 1, self.features, low=-bound, high=bound)
        return weights

    def _shared_composed(self, weights: Weights, rows: Tensor, mask: Tensor) -> Tensor:
        """The same sum with everyone's embeddings, and with who the child is, (*L, C, B, F)."""
        mine = mask.diagonal(dim1=-2, dim2=-1).transpose(-1, -2)[..., None]  # (*L, C, B, 1)
        others = (mask & self._not_own).movedim(-1, -3)[..., None]  # (*L, C, B, P, 1)
        factors = {name: rows.index_select(-1, columns) for name, columns in self._factor_columns.items()}
        own = [linear(weights, f"own.{self._kinds[child]}", factors[child]).relu() for child in self.graph.children]
        total = self._by_child(weights, "child") + torch.where(mine, torch.stack(own, -3), 0.0)
        for number, (name, factor) in enumerate(factors.items()):
            embedded = linear(weights, f"embed.{self._kinds[name]}", factor).relu()
            total = total + torch.where(others[..., number, :], embedded[..., None, :, :], 0.0)
        return total

    def _shared_output(self, weights: Weights, composed: Tensor) -> Tensor:
        """What the one network gives for every child, (*L, C, B, 2 W): a child is so many more rows to it."""
        hidden = mlp(weights, "trunk", composed.flatten(-3, -2)).relu().unflatten(-2, composed.shape[-3:-1])
        heads = {f"head.{part}": self._by_child(weights, "head", f".{part}") for part in ("weight", "bias")}
        return linear(heads, "head", hidden)

    def _by_child(self, weights: Weights, name: str, part: str = "") -> Tensor:
        """The weights of every child's kind, (*L, C, in, out)."""
        return torch.stack([weights[f"{name}.{self._kinds[child]}{part}"] for child in self.graph.children], -3)
