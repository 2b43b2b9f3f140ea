"""Whether what touches belongs together: a held cube is where the hand is; other things touch and are anywhere."""

from __future__ import annotations

import torch
from torch import Tensor

from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents.linked import LEAST_ROWS, Groups
from mocoda.parents.metric import moments

MOST_ROWS, MOST_GROUPS = 4_000, 8  # that are looked at: rows of a group, and groups, the commonest
FEATURES = 64  # random waves over a part
RIDGE = 1e-3  # of the rows, added to the normal equations
# Share of a column's variance that another part explains: more, and they belong together. It is 0.99 and more for held
# cubes and carried objects, and at most 0.2 in 2D Navigation, whose axes meet wherever they are.
EXPLAINED = 0.5


def belong_together(rows: Tensor, graph: LocalGraph, stream: Stream) -> bool:
    """Whether parts that a local graph links depend on each other in recorded rows (N, S + A).

    Parts are what even the sparsest graph connects. Where several are linked, one of them is predicted from the others
    by a regression on random features, and judged on rows that it was not fitted to. If it explains nothing of any
    part, then being linked does not tell where a part is: it may be there by itself.
    """
    groups = Groups.of(graph, rows)
    part = graph.parts.to(rows.device)
    pool = groups.pool[groups.kind]  # (N, parents), of first factors the number of their group
    is_first = groups.is_first[groups.kind]
    count = pool[is_first].bincount()
    commonest = count.argsort(descending=True, stable=True)
    looked = 0
    for number in commonest[count[commonest] >= LEAST_ROWS].tolist():
        place, first = ((pool == number) & is_first).nonzero(as_tuple=True)
        members = groups.first[groups.kind[place[0]]] == first[0]
        if len(part[members].unique()) < 2:
            continue
        own = rows[place[stream.child("rows", number).permutation(len(place))[:MOST_ROWS]]]
        if _depend(own, graph, part, members, stream.child("group", number)):
            return True
        looked += 1
        if looked == MOST_GROUPS:
            break
    return looked == 0  # of what is hardly ever linked nothing is known


def _depend(rows: Tensor, graph: LocalGraph, part: Tensor, members: Tensor, stream: Stream) -> bool:
    """Whether any part of a group, given as bool (parents,), is explained by its other parts in rows (M, S + A)."""
    numbers = part[members].unique().tolist()
    columns = {
        number: [
            column
            for name, inside in zip(graph.parents, (members & (part == number)).tolist(), strict=True)
            if inside
            for column in graph.factors[name]
        ]
        for number in numbers
    }
    for number in numbers:
        others = [column for other in numbers if other != number for column in columns[other]]
        known = _waves(rows[:, others], stream.child("waves", number))
        if _explained(known, _standard(rows[:, columns[number]])) > EXPLAINED:
            return True
    return False


def _standard(values: Tensor) -> Tensor:
    mean, scale = moments(values)
    return ((values - mean) / scale).double()


def _waves(values: Tensor, stream: Stream) -> Tensor:
    """The columns (M, C), and random waves over all of them: (M, 1 + C + FEATURES)."""
    standard = _standard(values)
    slopes = stream.child("slopes").normal(standard.shape[1], FEATURES).double() / standard.shape[1] ** 0.5
    shifts = 2 * torch.pi * stream.child("shifts").uniform(FEATURES).double()
    return torch.cat([torch.ones_like(standard[:, :1]), standard, (standard @ slopes + shifts).cos()], 1)


def _explained(known: Tensor, wanted: Tensor) -> float:
    """The largest share of a column's variance (M, C) that what is known (M, F) explains in the other half of rows."""
    half = len(known) // 2
    gram = known[:half].T @ known[:half]
    gram.diagonal().add_(RIDGE * half)
    weights = torch.linalg.solve(gram, known[:half].T @ wanted[:half])
    left = (wanted[half:] - known[half:] @ weights).square().mean(0)
    usual = wanted[half:].var(0, correction=0)
    return float(torch.where(usual > 1e-12, 1 - left / usual, 0.0).max())
