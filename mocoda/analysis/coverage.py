"""Coverage: how much of the space the data fills, and how much recombining its parent sets could fill."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents import GaussianMixture
from mocoda.parents.mocoda import MixtureParents

CELLS, WALKS = 10, 10_000  # cells per column; draws behind an estimate of the cells that overlapping sets can reach
Part = tuple[list[int], Tensor]  # columns, and the cells (M, columns) that they fill


@dataclass(frozen=True)
class ParentSet:
    """Factors that are modelled together.

    cells              cells of the data's grid that their columns fill
    even_cells         the effective number of cells: exp of the entropy
    components         the effective number of components of the mixture, by their weights
    mixture, gaussian  mean log densities of held-out rows, in nats: of the mixture, and of one Gaussian
    """

    factors: tuple[str, ...]
    cells: int
    even_cells: float
    components: float
    mixture: float
    gaussian: float


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
    """Counts cells of all the data; densities are those of mixtures fitted to the rows `shown`, at the rows held out.

    A column has CELLS cells between the quantiles 0.5% and 99.5% of the rows shown; the outermost cells hold what lies
    beyond.
    """
    place = cells_of(shown.rows, [data.rows])[0]
    code = seed.child("cells").integers(2**62, graph.width)
    parts: list[Part] = []
    sets = []
    for names, (columns, mixture) in zip(graph.parent_sets, mixtures.sets, strict=True):
        key = coded(place[:, columns], code[list(columns)])
        _, number, rows = torch.unique(key, return_inverse=True, return_counts=True)
        example = torch.empty(len(rows), dtype=torch.long, device=key.device)
        example[number] = torch.arange(len(key), device=key.device)
        parts.append((list(columns), place[example][:, columns]))
        even, components = (_effective(weights) for weights in (rows / len(key), mixture.weights))
        densities = _densities(mixture, shown.rows[:, columns], held_out.rows[:, columns], seed)
        sets.append(ParentSet(names, len(rows), even, components, *densities))
    order = mixtures.order()
    reachable = joined([parts[i] for i in order], graph.width, code, seed.child("walks"))
    return Coverage(len(torch.unique(coded(place, code))), reachable, tuple(sets))


def cells_of(reference: Tensor, tables: list[Tensor]) -> list[Tensor]:
    """The cells of rows (N, D) of several tables: uint8 (N, D), on a grid over the reference rows (M, D)."""
    some = reference[:: -(-len(reference) // 1_000_000)]  # torch takes no quantiles of many more
    low, high = torch.quantile(some, some.new_tensor([0.005, 0.995]), dim=0)
    width = torch.where(high > low, high - low, 1.0)
    return [((rows - low) / width * CELLS).clamp_(0, CELLS - 1).to(torch.uint8) for rows in tables]


def _effective(shares: Tensor) -> float:
    """The effective number of shares: the exponential of their entropy."""
    exact = shares.double()
    return math.exp(-float(torch.xlogy(exact, exact).sum()))


def _densities(mixture: GaussianMixture, shown: Tensor, held_out: Tensor, stream: Stream) -> tuple[float, float]:
    """Mean log densities of rows held out, of a mixture and of one Gaussian; constant columns have none."""
    low, high = torch.cat([shown, held_out]).aminmax(dim=0)
    own = (high > low).nonzero()[:, 0].tolist()
    if not own:
        return 0.0, 0.0
    single = GaussianMixture.fit(shown[:, own], 1, seed=stream)
    densities = (one.log_prob(held_out[:, own]).mean() for one in (mixture.marginal(own), single))
    return float(next(densities)), float(next(densities))


def joined(tables: list[Part], width: int, code: Tensor, stream: Stream) -> float:
    """How many rows of cells agree with every table of parts: exact where no two share a column, else an estimate.

    A random walk takes a part of each table that agrees with those before. The product of the numbers of parts that it
    chose from is, on average over walks, the number of rows.
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
    """The cells (N, D) of each row as one number, (N,), given random numbers (D,)."""
    coded = torch.zeros(len(place), dtype=torch.long, device=place.device)
    for column, factor in zip(place.T, code, strict=True):
        coded += column.long() * factor
    return coded
