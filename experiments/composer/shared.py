"""A family of dynamics models in which all children have one Masked Composer and one network of the hidden layers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mocoda.dynamics import DynamicsConfig
from mocoda.dynamics.fit import Mechanisms
from mocoda.dynamics.model import Scaling
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.networks import Weights, input_scaling, linear, linear_weights, mlp, mlp_weights, moments
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph


@dataclass(frozen=True)
class SharedDynamics(DynamicsConfig):
    """Like the local family, with one network for all children.

    alike  groups of factors of one kind, which share all weights and are standardised by one rule
    """

    alike: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "alike", tuple(map(tuple, self.alike)))
        named = [name for group in self.alike for name in group]
        if len(set(named)) < len(named) or not all(self.alike):
            raise InputError(f"alike must be groups of factors, none of them named twice, got {self.alike}.")

    def networks(self, graph: LocalGraph, device: torch.device) -> SharedMechanisms:
        return SharedMechanisms(graph, self, device)

    def scaling(self, rows: Tensor, target: Tensor, largest: Tensor, graph: LocalGraph) -> Scaling:
        scaling = super().scaling(rows, target, largest, graph)
        for group in self.alike if self.standardise else ():
            columns = torch.tensor([graph.factors[name] for name in group], device=rows.device)
            scaling.input_shift[columns], scaling.input_scale[columns] = input_scaling(rows[:, columns].flatten(0, 1))
            if group[0] in graph.state:  # actions have no targets
                shift, scale = moments(target[:, columns].flatten(0, 1), largest[columns].amax(0))
                scaling.target_shift[columns], scaling.target_scale[columns] = shift.float(), scale.float()
        return scaling


@dataclass(frozen=True)
class SharedMechanisms(Mechanisms):
    """The networks of `SharedDynamics`.

    `trunk` is everyone's. A kind has an embedding, and one of a state two: for its own child, and for others. By the
    second, one network can tell a child's own past from its other parents, whichever child it is.
    """

    config: SharedDynamics

    def __post_init__(self) -> None:
        for group in self.config.alike:
            for name in group:
                if name not in self.graph.factors:
                    raise unknown_name("factor", name, self.graph.factors)
            if len({(name in self.graph.state, len(self.graph.factors[name])) for name in group}) > 1:
                raise InputError(
                    f"factors that are alike must all be of the state or all of the action and as wide as each other, "
                    f"got {', '.join(group)}."
                )

    def initial_weights(self, stream: Stream) -> dict[str, Tensor]:
        """Fresh weights, (E, in, out) each."""
        leading, width = (self.config.members,), max(map(len, self.outputs))
        sizes, bound = (self.config.features, *self.config.hidden), 1 / math.sqrt(self.config.features)
        weights = mlp_weights("trunk", leading, sizes, stream)
        for kind in dict.fromkeys(self._kinds.values()):
            columns = len(self.graph.factors[kind])
            weights |= linear_weights(f"embed.{kind}", leading, columns, self.config.features, stream)
            if kind in self.graph.state:
                weights |= linear_weights(f"own.{kind}", leading, columns, self.config.features, stream)
                weights |= linear_weights(f"head.{kind}", leading, sizes[-1], 2 * width, stream)
                weights[f"child.{kind}"] = stream.uniform(*leading, 1, self.config.features, low=-bound, high=bound)
        return weights

    def __call__(self, weights: Weights, rows: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean and variance (*L, B, S) for standardised rows (*L, B, S + A) with masks (*L, B, P, C)."""
        assert mask is not None
        composed = self._composed(weights, rows, mask)
        hidden = mlp(weights, "trunk", composed.flatten(-3, -2)).relu().unflatten(-2, composed.shape[-3:-1])
        heads = {f"head.{part}": self._by_child(weights, "head", f".{part}") for part in ("weight", "bias")}
        return self._assembled(linear(heads, "head", hidden))

    @cached_property
    def _kinds(self) -> dict[str, str]:
        """The kind of every factor, named after the first of its group."""
        return {name: name for name in self.graph.factors} | {n: group[0] for group in self.config.alike for n in group}

    @cached_property
    def _not_own(self) -> Tensor:
        """Which parents are other factors than the child, bool (P, C): state factors come first among the parents."""
        return ~torch.eye(len(self.graph.parents), len(self.graph.children), dtype=torch.bool, device=self.device)

    def _composed(self, weights: Weights, rows: Tensor, mask: Tensor) -> Tensor:
        """The Masked Composer's sum with everyone's embeddings, and with who the child is, (*L, C, B, features)."""
        mine = mask.diagonal(dim1=-2, dim2=-1).transpose(-1, -2)[..., None]  # (*L, C, B, 1)
        others = (mask & self._not_own).movedim(-1, -3)[..., None]  # (*L, C, B, P, 1)
        factors = {name: rows.index_select(-1, columns) for name, columns in self._factor_columns.items()}
        own = [linear(weights, f"own.{self._kinds[child]}", factors[child]).relu() for child in self.graph.children]
        total = self._by_child(weights, "child") + torch.where(mine, torch.stack(own, -3), 0.0)
        for number, (name, factor) in enumerate(factors.items()):
            embedded = linear(weights, f"embed.{self._kinds[name]}", factor).relu()
            total = total + torch.where(others[..., number, :], embedded[..., None, :, :], 0.0)
        return total

    def _by_child(self, weights: Weights, name: str, part: str = "") -> Tensor:
        """The weights of every child's kind, (*L, C, in, out)."""
        return torch.stack([weights[f"{name}.{self._kinds[child]}{part}"] for child in self.graph.children], -3)
