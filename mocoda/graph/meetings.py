"""Which factors never meet in the data, so that nothing can be learned of what happens if they do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.graph.columns import column_end
from mocoda.graph.local_graph import LocalGraph

MEETINGS = 10  # rows in which two factors are near each other, of which something can be learned
NEAR = 0.3  # standard deviations of the difference of two columns within which they are near each other
PLACE = ("x", "y", "z")


def never_met(data: Transitions, graph: LocalGraph) -> Tensor:
    """Pairs of state factors that are never near each other, bool (P, C): in two of the columns of one kind that they
    have, or in the only one. Of those that have none, such as a hand and a lock, nothing is said."""
    never = torch.zeros(len(graph.parents), len(graph.children), dtype=torch.bool, device=data.device)
    for (i, one), (j, other) in combinations(enumerate(graph.children), 2):
        couples = same_kind(data.columns, graph, one, other)
        if couples:
            own, others = (list(columns) for columns in zip(*couples, strict=True))
            apart = data.state[:, own] - data.state[:, others]
            near = apart.abs() < NEAR * apart.double().std(0).clamp(min=torch.finfo(torch.float32).tiny)
            met = int((near.sum(1) >= min(2, len(couples))).sum())
            never[i, j] = never[j, i] = met < MEETINGS
    return never


def same_kind(columns: Sequence[str], graph: LocalGraph, one: str, other: str) -> list[tuple[int, int]]:
    """Columns of two factors that can be compared: places (hand.x, cup.x), or else others of the same name; if columns
    have no names but numbers, those at the same places of factors of the same length."""
    ends, others = ({column_end(columns[i], name): i for i in graph.factors[name]} for name in (one, other))
    if all(re.fullmatch(r"(state)?\d+", end) for end in (*ends, *others)):
        alike = len(ends) == len(others)
        return list(zip(graph.factors[one], graph.factors[other], strict=True)) if alike else []
    shared = [end for end in ends if end in others]
    places = [end for end in shared if end in PLACE]
    return [(ends[end], others[end]) for end in places or shared]
