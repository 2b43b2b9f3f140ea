"""Coverage: how much of the space the data fills, and how much recombining its parent sets could fill."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mocoda.analysis.advice import ParentSet
from mocoda.data.transitions import Transitions
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents import GaussianMixture
from mocoda.parents.mocoda import MixtureParents

CELLS, WALKS = 10, 10_000  # cells per column; draws behind an estimate of the cells that overlapping sets can reach
SINGLE = 8  # components of a column by itself
Part = tuple[list[int], Tensor]  # columns, and the cells (M, columns) that they fill


@dataclass(frozen=True)
class Coverage:
    """Cells of a grid that whole rows fill, cells that recombined rows can fill, and the parent sets one by one."""

    recorded: int
    reachable: float
    sets: tuple[ParentSet, ...]


def coverage(
    data: Transitions,
    shown: Transitions,
    held_out: Transitions,
    graph: LocalGraph,
    mixtures: MixtureParents,
    *,
    seed: Stream,
) -> Coverage:
    """Cells of all the data; densities fitted to the rows `shown`, as the mixtures are, and evaluated on others.

    A column has CELLS cells between the quantiles 0.5% and 99.5% of the rows shown; what is beyond is in the outermost.
    """
    low, high = torch.quantile(shown.rows, torch.tensor([0.005, 0.995], device=data.device), dim=0)
    width = torch.where(high > low, high - low, 1.0)
    place = ((data.rows - low) / width * CELLS).clamp_(0, CELLS - 1).to(torch.uint8)
    code = seed.child("cells").integers(2**62, graph.width)  # makes one number of a row's cells
    parts: list[Part] = []
    sets = []
    densities = _densities(shown.rows, held_out.rows, mixtures, seed)
    for names, (columns, mixture), density in zip(graph.parent_sets, mixtures.sets, densities, strict=True):
        key = coded(place[:, columns], code[list(columns)])
        _, number, rows = torch.unique(key, return_inverse=True, return_counts=True)
        example = torch.empty(len(rows), dtype=torch.long, device=key.device)
        example[number] = torch.arange(len(key), device=key.device)
        parts.append((list(columns), place[example][:, columns]))
        even, components = (_effective(weights) for weights in (rows / len(key), mixture.weights))
        sets.append(ParentSet(names, len(data), len(rows), even, components, *density))
    order = mixtures.order()
    reachable = joined([parts[i] for i in order], graph.width, code, seed.child("walks"))
    return Coverage(len(torch.unique(coded(place, code))), reachable, tuple(sets))


def _effective(shares: Tensor) -> float:
    """The effective number of shares: the exponential of their entropy."""
    exact = shares.double()
    return math.exp(-float(torch.xlogy(exact, exact).sum()))


def _densities(
    rows: Tensor, held_out: Tensor, mixtures: MixtureParents, stream: Stream
) -> list[tuple[float, float, float, float]]:
    """Mean log densities of each parent set: of its mixture, one Gaussian, independent columns, and the data's box.

    A constant column has no density, and is left out of all of them.
    """
    low, high = torch.cat([rows, held_out]).double().aminmax(dim=0)
    alone = {
        column: GaussianMixture.fit(rows[:, [column]], SINGLE, seed=stream.child("column", column))
        for column in (high > low).nonzero()[:, 0].tolist()
    }
    densities = []
    for columns, mixture in mixtures.sets:
        places = [i for i, column in enumerate(columns) if column in alone]
        own = [columns[i] for i in places]
        if not own:
            densities.append((0.0, 0.0, 0.0, 0.0))
            continue
        single = GaussianMixture.fit(rows[:, own], 1, seed=stream)
        densities.append(
            (
                float(mixture.marginal(places).log_prob(held_out[:, own]).mean()),
                float(single.log_prob(held_out[:, own]).mean()),
                sum(float(alone[column].log_prob(held_out[:, [column]]).mean()) for column in own),
                -float((high - low)[own].log().sum()),
            )
        )
    return densities


def joined(tables: list[Part], width: int, code: Tensor, stream: Stream) -> float:
    """How many rows of cells agree with every table of parts: exact where no two share a column, else an estimate.

    A random walk takes a part of each table that agrees with those before. The product of how many there were to choose
    from is, on average over walks, the number of rows.
    """
    row = torch.zeros(WALKS, width, dtype=torch.uint8, device=code.device)
    ways = torch.ones(WALKS, dtype=torch.float64, device=code.device)
    drawn: set[int] = set()
    for columns, parts in tables:
        shared = [i for i, column in enumerate(columns) if column in drawn]
        where = [columns[i] for i in shared]
        key, order = coded(parts[:, shared], code[where]).sort()
        wanted = coded(row[:, where], code[where])
        begin, end = torch.searchsorted(key, wanted), torch.searchsorted(key, wanted, right=True)
        ways *= end - begin
        chosen = begin + (stream.uniform(WALKS, dtype=torch.float64) * (end - begin)).long()
        row[:, columns] = parts[order[chosen.clamp(max=len(key) - 1)]]
        drawn.update(columns)
    return min(float(ways.mean()), 1e300)


def coded(place: Tensor, code: Tensor) -> Tensor:
    """The cells (N, D) of each row as one number, (N,)."""
    coded = torch.zeros(len(place), dtype=torch.long, device=place.device)
    for column, factor in zip(place.T, code, strict=True):
        coded += column.long() * factor
    return coded
