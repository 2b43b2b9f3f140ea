"""What the page says of whole tables, not of samples: edges, ranges, coverage, support and disagreement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mocoda.analysis.coverage import CELLS, coded
from mocoda.data.transitions import Transitions
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph

BINS = 30
KINDS = ("recorded", "counterfactual")
SOME = 1_000_000  # rows that quantiles are taken of, at most
Tables = Sequence[Transitions]  # recorded rows, and generated ones if there are any


def edges(tables: Tables, graph: LocalGraph) -> list[dict[str, Any]]:
    """Every edge of the sparsest graph or of any row, with the share of the rows of each kind that have it."""
    shares = [graph.shares(table.rows) for table in tables]
    return [
        {
            "parent": parent,
            "child": child,
            "places": (p, c),
            "sparsest": bool(graph.sparsest[p, c]),
            "shares": [float(share[p, c]) for share in shares],
        }
        for p, parent in enumerate(graph.parents)
        for c, child in enumerate(graph.children)
        if bool(graph.sparsest[p, c]) or any(float(share[p, c]) > 0 for share in shares)
    ]


def ranges(tables: Tables) -> list[dict[str, Any]]:
    """The figures of each column of state and action, by kind of rows, with a histogram over the range of all rows."""
    states = tables[0].state.shape[1]
    columns = []
    for place, name in enumerate(tables[0].columns):
        values = [table.rows[:, place] for table in tables]
        low, high = min(float(v.min()) for v in values), max(float(v.max()) for v in values)
        known = values[0].aminmax()
        kinds = []
        for kind, own in zip(KINDS, values, strict=False):
            exact, few = own.double(), _some(own)
            inner = torch.quantile(few, torch.tensor([0.05, 0.95], device=few.device)).tolist()
            kinds.append(
                {
                    "kind": kind,
                    "min": float(own.min()),
                    "mean": float(exact.mean()),
                    "max": float(own.max()),
                    "std": float(exact.std(correction=0)),
                    "inner": inner,
                    "outside": float(((own < known.min) | (own > known.max)).double().mean()),
                    "bars": histogram(own, low, high),
                }
            )
        part = "state" if place < states else "action"
        columns.append({"name": name, "part": part, "low": low, "high": high, "kinds": kinds})
    return columns


def histogram(values: Tensor, low: float, high: float) -> list[float]:
    """The shares of the values in BINS bins between two numbers; what is beyond counts in the outermost."""
    width = high - low if high > low else 1.0
    place = ((values.double() - low) / width * BINS).long().clamp_(0, BINS - 1)
    return [count / len(values) for count in place.bincount(minlength=BINS).tolist()]


def notes(tables: Tables, name: str) -> dict[str, Any] | None:
    """How support or disagreement is distributed over the rows of each kind; None where it is not known."""
    kinds = [
        (kind, table.provenance[name])
        for kind, table in zip(KINDS, tables, strict=False)
        if name in table.provenance and (name != "disagreement" or kind != "recorded")  # no model predicted those
    ]
    if not kinds:
        return None
    high = 1.0 if name == "support" else max(float(torch.quantile(_some(values), 0.995)) for _, values in kinds)
    high = high if high > 0 else 1.0
    shown = [{"kind": kind, "bars": histogram(values, 0.0, high)} for kind, values in kinds]
    figures = {
        kind: torch.quantile(_some(values), values.new_tensor([0.05, 0.5, 0.95])).tolist() for kind, values in kinds
    }
    return {"low": 0.0, "high": high, "kinds": shown, "quantiles": figures}


def coverage(tables: Tables, graph: LocalGraph) -> list[dict[str, Any]]:
    """Cells of a grid that rows fill: as wholes, and one parent set at a time.

    A column has CELLS cells between the quantiles 0.5% and 99.5% of the recorded rows; what is beyond is in the
    outermost ones.
    """
    recorded = tables[0].rows
    low, high = torch.quantile(_some(recorded), recorded.new_tensor([0.005, 0.995]), dim=0)
    width = torch.where(high > low, high - low, 1.0)
    code = Stream(0, "cells").integers(2**62, graph.width).to(recorded.device)
    cells = [((table.rows - low) / width * CELLS).clamp_(0, CELLS - 1).to(torch.uint8) for table in tables]
    groups = [("whole rows", list(range(graph.width)))]
    groups += [(", ".join(names), list(graph.columns(names))) for names in graph.parent_sets]
    found = []
    for title, columns in groups:
        keys = [coded(own[:, columns], code[columns]) for own in cells]
        known = keys[0].unique()
        row: dict[str, Any] = {"title": title, "recorded": len(known)}
        if len(keys) > 1:
            filled = keys[1].unique()
            row["counterfactual"] = len(filled)
            row["new"] = len(filled) - int(torch.isin(filled, known).sum())
            row["rows"] = float((~torch.isin(keys[1], known)).double().mean())
        found.append(row)
    return found


def _some(values: Tensor) -> Tensor:
    """The values, or every so many-th: torch takes no quantiles of more than 16 million."""
    return values[:: -(-len(values) // SOME)]
