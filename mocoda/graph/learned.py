"""Graphs that were learned from data: their masks are cut from networks, and they are saved without code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mocoda.data.transitions import Array, as_tensor
from mocoda.engine.checkpoint import check_tensors, load_trained, reading, save_trained
from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Shapes
from mocoda.graph.columns import ColumnNames
from mocoda.graph.gates import Gates, Layout, empty_scaling, gate_weights, of_tensors
from mocoda.graph.local_graph import LocalGraph


@dataclass(frozen=True, eq=False, repr=False)
class LearnedGraph(LocalGraph):
    """A graph that `learn_graph` made: a LocalGraph that also says how likely each edge is.

    gates         the networks that say so
    caution       an edge is there where its probability is above this number
    names         the names of the data's columns
    row_shares    the share of the data's rows that have each edge, float (parents, children)
    settings      how it was learned, as JSON values
    fingerprints  of the data
    """

    gates: Gates = field(kw_only=True)
    caution: float = field(kw_only=True)
    names: ColumnNames = field(kw_only=True)
    row_shares: Tensor = field(kw_only=True)
    settings: Mapping[str, Any] = field(kw_only=True, default_factory=dict)
    fingerprints: Mapping[str, str] = field(kw_only=True, default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "local", self._local)

    def __str__(self) -> str:
        lines = [repr(self)]
        for child, column in zip(self.children, self.row_shares.T.tolist(), strict=True):
            some = [
                f"{parent} ({100 * share:.2g}% of the rows)"
                for parent, share in zip(self.parents, column, strict=True)
                if share > 0 and parent not in self.edges[child]
            ]
            also = f", and in some rows on {', '.join(some)}" if some else ""
            lines.append(f"  {child} depends on {', '.join(self.edges[child])}{also}")
        return "\n".join(lines)

    def edge_probability(self, rows: Array) -> Tensor:
        """How likely each edge is at rows (N, S + A): float (N, parents, children)."""
        rows = as_tensor(rows).float()
        self.check_rows(rows)
        return self._on(rows.device).probability(rows)

    def doubts(self, rows: Array) -> dict[str, float]:
        """The share of the rows (N, S + A) in which it is unsure of an edge, between 10 and 90%, largest first."""
        rows = as_tensor(rows).float()
        unsure = [((found > 0.1) & (found < 0.9)).sum(0) for found in map(self.edge_probability, rows.split(65_536))]
        shares = torch.stack(unsure).sum(0).double() / max(1, len(rows))
        named = {
            f"{parent} -> {child}": float(shares[p, c])
            for p, parent in enumerate(self.parents)
            for c, child in enumerate(self.children)
            if shares[p, c] > 0
        }
        return dict(sorted(named.items(), key=lambda item: -item[1]))

    def save(self, path: str | Path) -> None:
        """Writes the graph to a safetensors file, by custom called *.graph, which `load_graph` reads."""
        # Lists, as a file's mappings are sorted by name and the gates are in the order of the factors.
        factors = {kind: [[name, list(self.own_columns(name))] for name in getattr(self, kind)] for kind in KINDS}
        settings = {
            **factors,
            "edges": [[child, list(parents)] for child, parents in self.edges.items()],
            "columns": {kind: list(getattr(self.names, kind)) for kind in KINDS},
            "caution": self.caution,
            "learning": dict(self.settings),
        }
        tensors = {"row_shares": self.row_shares, **self.gates.tensors()}
        save_trained(path, "graph", tensors, {"settings": settings, "fingerprints": dict(self.fingerprints)})

    def with_caution(self, caution: float, rows: Array) -> LearnedGraph:
        """The same graph cut at another probability; its shares are those of the rows (N, S + A)."""
        return cut(self, caution, as_tensor(rows).float())

    def own_columns(self, name: str) -> tuple[int, ...]:
        """The columns of a factor, counted within the state or the action."""
        offset = 0 if name in self.state else self.state_width
        return tuple(column - offset for column in self.factors[name])

    def _local(self, rows: Tensor) -> Tensor:
        return self.sparsest.to(rows.device) | (self.edge_probability(rows) > self.caution)

    def _on(self, device: torch.device) -> Gates:
        if device not in self._gates:
            self._gates[device] = self.gates.to(device)
        return self._gates[device]

    @cached_property
    def _gates(self) -> dict[torch.device, Gates]:
        return {}


KINDS = ("state", "action")
CAUTION = 0.02  # the usual one: what an edge has of which nothing is known (gates.THIN), so that any evidence keeps it
NEARLY_ALL = 0.99  # of the rows: an edge that so many have is one of the sparsest graph


def check_caution(caution: float) -> None:
    if not 0 < caution < 1:
        raise InputError(f"caution must be a probability between 0 and 1, got {caution}.")


@torch.no_grad()
def cut(graph: LearnedGraph, caution: float, rows: Tensor) -> LearnedGraph:
    """The graph with edges where they are likelier than `caution`; those of nearly all rows are its sparsest edges."""
    check_caution(caution)
    counts = [(graph.edge_probability(block) > caution).sum(0) for block in rows.split(65_536)]
    shares = torch.stack(counts).sum(0).double().cpu() / max(1, len(rows))
    always = (shares >= NEARLY_ALL) | graph.gates.always.cpu()
    edges = {
        child: tuple(parent for parent, there in zip(graph.parents, column, strict=True) if there)
        for child, column in zip(graph.children, always.T.tolist(), strict=True)
    }
    return replace(graph, edges=edges, caution=caution, row_shares=torch.where(always, 1.0, shares))


def load_learned(path: str | Path, names: ColumnNames | None = None) -> LearnedGraph:
    """Reads what `LearnedGraph.save` wrote, for data whose columns have these names."""
    tensors, header = load_trained(path, "graph")
    with reading(path, "graph"):
        settings = header["settings"]
        columns = ColumnNames(*(tuple(map(str, settings["columns"][kind])) for kind in KINDS))
        factors = [{str(name): [int(i) for i in own] for name, own in settings[kind]} for kind in KINDS]
        edges = {str(child): tuple(parents) for child, parents in settings["edges"]}
        shape = LocalGraph(state=factors[0], action=factors[1], edges=edges)
        if (shape.state_width, shape.width) != (len(columns.state), len(columns.state) + len(columns.action)):
            raise InputError("its factors and its column names disagree")
        caution, learning = float(settings["caution"]), settings["learning"]
        check_tensors(tensors, _expected(shape, int(learning["runs"]), int(learning["hidden"])))
        shares = tensors.pop("row_shares")
        graph = LearnedGraph(
            shape.state,
            shape.action,
            shape.edges,
            gates=of_tensors(shape, tensors),
            caution=caution,
            names=columns,
            row_shares=shares,
            settings=learning,
            fingerprints=header["fingerprints"],
        )
    if names is not None and names != columns:
        kind = "action" if names.state == columns.state else "state"
        own, given = getattr(columns, kind), getattr(names, kind)
        raise InputError(
            f"{str(path)!r} was learned from data with the {kind} columns {', '.join(own)}; this data has "
            f"{', '.join(given)}. Learn a graph from this data, or give the columns the same names in the same order."
        )
    return graph


def _expected(graph: LocalGraph, runs: int, hidden: int) -> dict[str, Tensor]:
    """Tensors with the names, shapes and types of those in a file."""
    layout = Layout(graph, torch.device("cpu"))
    edges = torch.empty(len(graph.parents), len(graph.children))
    weights = gate_weights(layout, runs, hidden, Shapes())
    gates = Gates(graph, weights, empty_scaling(layout), torch.empty(2), edges.bool(), edges.bool())
    return {"row_shares": edges.double(), **gates.tensors()}
