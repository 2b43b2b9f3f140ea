"""Rows that show what a graph's local rule does, so that another rule can be told from it.

A rule is code and cannot be compared. Its masks can: a fitted model keeps some rows with the masks there, and a graph
that gives other masks is not the one that the model was fitted to.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mocoda.graph.local_graph import LocalGraph

CANDIDATES = 2_048  # recorded rows that are looked at, at most, and
SPREADS = (1.0, 1.25, 1.5)  # as many again for each, whose columns come from different rows, so much further apart
RECORDED = 32  # of which so many are kept, and
PAIRS = 64  # so many pairs of rows on either side of where an edge begins, one pair per edge at least
HALVINGS = 12  # how near the rows of a pair are to each other: apart by one part in 2^12 of what they were


def probe_rows(graph: LocalGraph, rows: Tensor) -> Tensor:
    """Up to a few hundred of the rows (N, S + A), and others between them; none where the graph has no local rule."""
    if graph.local is None:
        return rows[:0]
    recorded = rows[_spread(len(rows), CANDIDATES, rows.device)]
    kept = recorded[_spread(len(recorded), RECORDED, rows.device)]
    try:
        return torch.cat([kept, _boundary(graph, torch.cat([recorded, *_recombined(recorded)]))])
    except Exception:  # a rule may fail, in any way, at rows that were never recorded
        return kept


def _boundary(graph: LocalGraph, candidates: Tensor) -> Tensor:
    """Pairs of rows that are nearly the same, with an edge in one and not in the other."""
    there = graph.mask(candidates).flatten(1)
    edges = (there.any(0) & ~there.all(0)).nonzero()[:, 0].tolist()
    if not edges:
        return candidates[:0]
    ones: list[Tensor] = []
    others: list[Tensor] = []
    of: list[int] = []
    for edge in edges:
        with_edge, without = (which.nonzero()[:, 0] for which in (there[:, edge], ~there[:, edge]))
        count = min(len(with_edge), len(without), max(1, PAIRS // len(edges)))
        ones.append(with_edge[_spread(len(with_edge), count, there.device)])
        others.append(without[_spread(len(without), count, there.device)].flip(0))
        of += [edge] * count
    inside, outside = candidates[torch.cat(ones)], candidates[torch.cat(others)]
    for _ in range(HALVINGS):
        middle = (inside + outside) / 2
        held = graph.mask(middle).flatten(1)[range(len(of)), of][:, None]
        inside, outside = torch.where(held, middle, inside), torch.where(held, outside, middle)
    return torch.cat([inside, outside])


def _recombined(rows: Tensor) -> Iterator[Tensor]:
    """Rows whose columns come from different ones: in generated data, what was recorded apart may meet."""
    middle = rows.mean(0)
    for number, spread in enumerate(SPREADS, 1):
        mixed = torch.stack([column.roll(997 * number * i) for i, column in enumerate(rows.T)], 1)
        yield middle + spread * (mixed - middle)


def _spread(n: int, count: int, device: torch.device) -> Tensor:
    """`count` of the numbers from 0 to n - 1, or all of them, evenly spread."""
    return torch.arange(min(n, count), device=device) * n // max(1, min(n, count))
