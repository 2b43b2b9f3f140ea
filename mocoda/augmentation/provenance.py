"""Provenance: which recipe and local graph each row comes from, and how far it can be trusted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mocoda.augmentation.support import Support, disagreement
from mocoda.data.transitions import Transitions
from mocoda.dynamics import Ensemble
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents import BUILT_IN
from mocoda.parents.groups import neighbourhood as neighbourhood
from mocoda.parents.groups import number_of
from mocoda.parents.recipe import Draw

RECORDED, OWN = 0, -1  # numbers of recipes that are not built in: none, and one of the user's own
NAMED = 100  # local graphs of the data, the commonest, that a table's source names


@dataclass(frozen=True, eq=False)
class Provenance:
    """What is noted about rows. Numbers mean the same in every table, so tables can be joined.

    recipe         0: recorded; from 1 for "emp" to 7 for "mocoda-p", in the order of RECIPES; -1: one of your own
    disagreement   `disagreement` of the model that predicted the next state, in units of `scale`; 0 where no model
                   did, or one whose members cannot disagree
    neighbourhood  the number of the row's local graph, see `neighbourhood`; only if a graph is known
    support        `Support.score` of the row, from 0, beyond all that was recorded, to 1; only if a graph is known
    donor_F        for every factor F, the index, among the rows given, of the recorded row that its values were taken
                   from; -1 where a density, a model or a recipe of your own made them. Rows given are their own
                   donors. Only if a graph is known
    """

    graph: LocalGraph | None
    support: Support | None
    model: Ensemble | None
    scale: Tensor  # (S,)

    def of(self, drawn: Draw, recipe: int, predicted: bool) -> dict[str, Tensor]:
        """Notes (N,) on N rows, whose next states the model predicted, or not."""
        rows = drawn.rows
        notes = {"recipe": torch.full((len(rows),), recipe, device=rows.device)}
        if self.model is not None and predicted:
            notes["disagreement"] = disagreement(self.model, rows, self.scale)
        else:
            notes["disagreement"] = torch.zeros(len(rows), device=rows.device)
        if self.graph is not None and self.support is not None:
            notes |= {"neighbourhood": neighbourhood(self.graph, rows), "support": self.support.score(rows)}
            for name, columns in zip(donor_columns(self.graph), self.graph.factors.values(), strict=True):
                donors = drawn.donors[:, list(columns)].int()
                notes[name] = torch.where((donors == donors[:, :1]).all(1), donors[:, 0], -1)
        return notes

    def of_recorded(self, data: Transitions) -> dict[str, Tensor]:
        """The same for recorded rows; notes from an earlier augmentation stay."""
        own = torch.arange(len(data), device=data.device)[:, None].expand(data.rows.shape)
        notes = self.of(Draw(data.rows, own), RECORDED, predicted=False)
        earlier = data.provenance
        for name, note in earlier.items():
            # Tables of episodes note a donor's episode and step instead of its row.
            by_step = name.startswith("donor_") and name.replace("donor_", "donor_step_", 1) in earlier
            if name in notes and not by_step:
                notes[name] = note
        return notes


def recipe_number(name: str) -> int:
    return 1 + BUILT_IN.index(name) if name in BUILT_IN else OWN


def donor_columns(graph: LocalGraph) -> list[str]:
    """What the donors of each factor are called in a table's provenance: donor_F, with _ for what no name may have."""
    plain = [re.sub(r"\W", "_", name) for name in graph.parents]
    plain = plain if len(set(plain)) == len(plain) else [str(number) for number in range(len(plain))]
    return [f"donor_{name}" for name in plain]


def local_graphs(graph: LocalGraph, rows: Tensor) -> dict[str, Any]:
    """What the numbers of `neighbourhood` stand for at these rows, as JSON values; of many, the commonest."""
    masks, counts = torch.unique(graph.mask(rows), dim=0, return_counts=True)
    order = counts.argsort(descending=True, stable=True)[:NAMED]
    numbers = number_of(graph, masks[order]).tolist()
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
