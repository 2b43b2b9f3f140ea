"""Provenance: which recipe and local graph each row comes from, and how far it can be trusted."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mocoda.augmentation.support import Support, disagreement
from mocoda.data.transitions import Transitions
from mocoda.dynamics import Ensemble
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents import BUILT_IN

RECORDED, OWN = 0, -1  # numbers of recipes that are not built in: none, and one of the user's own
NAMED = 100  # local graphs of the data, the commonest, that a table's source names
IDENTIFIER = 2**63 - 1


@dataclass(frozen=True, eq=False)
class Provenance:
    """What is noted about rows. Numbers mean the same in every table, so tables can be joined.

    recipe         0: recorded; from 1 for "emp" to 7 for "mocoda-p", in the order of RECIPES; -1: one of your own
    disagreement   `disagreement` of the model that predicted the next state, in units of `scale`; 0 where no model
                   did, or one whose members cannot disagree
    neighbourhood  the number of the row's local graph, see `neighbourhood`; only if a graph is known
    support        `Support.score` of the row, from 0, beyond all that was recorded, to 1; only if a graph is known
    """

    graph: LocalGraph | None
    support: Support | None
    model: Ensemble | None
    scale: Tensor  # (S,)

    def of(self, rows: Tensor, recipe: int, predicted: bool) -> dict[str, Tensor]:
        """Notes (N,) on rows (N, S + A), whose next states the model predicted, or not."""
        notes = {"recipe": torch.full((len(rows),), recipe, device=rows.device)}
        if self.model is not None and predicted:
            notes["disagreement"] = disagreement(self.model, rows, self.scale)
        else:
            notes["disagreement"] = torch.zeros(len(rows), device=rows.device)
        if self.graph is not None and self.support is not None:
            notes |= {"neighbourhood": neighbourhood(self.graph, rows), "support": self.support.score(rows)}
        return notes

    def of_recorded(self, data: Transitions) -> dict[str, Tensor]:
        """The same for recorded rows; notes from an earlier augmentation stay."""
        notes = self.of(data.rows, RECORDED, predicted=False)
        return notes | {name: note for name, note in data.provenance.items() if name in notes}


def recipe_number(name: str) -> int:
    return 1 + BUILT_IN.index(name) if name in BUILT_IN else OWN


def neighbourhood(graph: LocalGraph, rows: Tensor) -> Tensor:
    """A number for the local graph at each row (N, S + A): int64 (N,), the same in any table.

    Its binary digits are the edges (parents × children, the first one lowest) that differ from the sparsest graph,
    which is 0. Where there are more than 63 edges, it is a hash of these. A table's source names the commonest.
    """
    return _number(graph, graph.mask(rows))


def local_graphs(graph: LocalGraph, rows: Tensor) -> dict[str, Any]:
    """What the numbers of `neighbourhood` stand for at these rows, as JSON values; of many, the commonest."""
    masks, counts = torch.unique(graph.mask(rows), dim=0, return_counts=True)
    order = counts.argsort(descending=True, stable=True)[:NAMED]
    numbers = _number(graph, masks[order]).tolist()
    described = {}
    for number, mask, count in zip(numbers, masks[order].tolist(), counts[order].tolist(), strict=True):
        edges = [
            f"{parent} -> {child}"
            for parent, row in zip(graph.parents, mask, strict=True)
            for child, edge in zip(graph.children, row, strict=True)
            if edge
        ]
        described[str(number)] = {"rows": count, "edges": edges}
    return described


def _number(graph: LocalGraph, masks: Tensor) -> Tensor:
    return set_number((masks != graph.sparsest.to(masks.device)).flatten(1))


def set_number(members: Tensor) -> Tensor:
    """A number for each set, given who is in it (N, members): int64 (N,).

    Its binary digits are the members, the first one lowest; of more than 63 members it is a hash of those in the set.
    """
    size = members.shape[1]
    if size <= 63:
        weights = [1 << member for member in range(size)]
    else:
        digests = (hashlib.sha256(str(member).encode()).digest() for member in range(size))
        weights = [int.from_bytes(digest[:8], "big") & IDENTIFIER for digest in digests]
    return (members * torch.tensor(weights, device=members.device)).sum(1) & IDENTIFIER
