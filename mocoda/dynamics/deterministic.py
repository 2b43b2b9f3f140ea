"""A plain deterministic ensemble: one network per child, trained by the squared error."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mocoda.dynamics.fit import TrainedFamily
from mocoda.engine.networks import Weights, mlp, mlp_weights
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph


@dataclass(frozen=True)
class DeterministicDynamics(TrainedFamily):
    """Plain networks, one per child, that see its parents in each row and predict no noise."""

    name = "deterministic"

    def networks(self, graph: LocalGraph, device: torch.device) -> PlainNetworks:
        return PlainNetworks(self, graph, device)

    def loss(self, mean: Tensor, variance: Tensor, target: Tensor) -> Tensor:
        return (target - mean).square()


class PlainNetworks:
    """One network per child. It sees the row, with zeros for factors that are no parents, and which factors these are.

    Axes: *L leading axes (runs, members), C children, N rows, P parents.
    """

    def __init__(self, family: DeterministicDynamics, graph: LocalGraph, device: torch.device) -> None:
        own = [graph.factors[child] for child in graph.children]
        self.leading, width = (family.members, len(own)), max(map(len, own))
        self.sizes = (graph.width + len(graph.parents), *family.hidden, width)
        place = {column: c * width + i for c, columns in enumerate(own) for i, column in enumerate(columns)}
        # Made once: a captured program of a GPU may not copy them to the device.
        self.owner = graph.owner.to(device)
        self.place = torch.tensor([place[column] for column in range(graph.state_width)], device=device)

    def initial_weights(self, stream: Stream) -> dict[str, Tensor]:
        """Fresh weights, (E, C, in, out) each."""
        return mlp_weights("mlp", self.leading, self.sizes, stream)

    def __call__(self, weights: Weights, rows: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean (*L, N, S) and variance, which is 0, for standardised rows (*L, N, S + A) with masks (*L, N, P, C)."""
        assert mask is not None
        sees = mask.movedim(-1, -3)  # (*L, C, N, P)
        seen = torch.where(sees.index_select(-1, self.owner), rows[..., None, :, :], 0.0)
        output = mlp(weights, "mlp", torch.cat([seen, sees.float()], -1))
        mean = output.transpose(-3, -2).flatten(-2).index_select(-1, self.place)
        return mean, torch.zeros_like(mean)
