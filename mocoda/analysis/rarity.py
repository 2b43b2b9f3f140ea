"""Rarity: how rare drawn rows are among recorded rows that the recipe has not seen.

Parts of a row are compared with recorded ones that are linked in the same way: a cube that lies on its own with other
such cubes, and a hand with its cube with other grasps. So a cube in the air without a hand is as rare as it should be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mocoda.analysis.coverage import coded
from mocoda.augmentation.support import share
from mocoda.data.transitions import Transitions
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents.groups import Groups, neighbourhood, parent_sets_at
from mocoda.parents.mixture import GaussianMixture

MIN_GROUP_ROWS = 40  # in either half of the rows, for a group to be known
MAX_GROUPS, MAX_ROWS, COMPONENTS, ROWS_PER_COLUMN = 40, 4_000, 16, 10
SHOWN = 5  # local graphs, the commonest, whose shares are shown


@dataclass(frozen=True, eq=False)
class Density:
    """A parent set of a group: its columns, their mixture, and its ascending log densities at other rows."""

    columns: tuple[int, ...]
    mixture: GaussianMixture
    known: Tensor


@dataclass(frozen=True, eq=False)
class Rarity:
    """Densities of the parts that local graphs link.

    groups  a group's name (see Groups) -> the densities of its parent sets
    least   `rarest` of recorded rows, ascending
    """

    graph: LocalGraph
    groups: Mapping[int, tuple[Density, ...]]
    least: Tensor

    @staticmethod
    def fit(data: Transitions, is_fitted: Tensor, graph: LocalGraph, stream: Stream) -> Rarity:
        """Fits mixtures to some of the rows, bool (N,), and measures at the others how rare rows usually are."""
        fitted, others = data.rows[is_fitted], data.rows[~is_fitted]
        places = [_places(graph, rows) for rows in (fitted, others)]
        found = {}
        commonest = sorted(places[0], key=lambda name: -len(places[0][name][0]))
        for name in commonest[:MAX_GROUPS]:
            own, mask, members = places[0][name]
            again = places[1].get(name, (own[:0], mask, members))[0]
            if min(len(own), len(again)) < MIN_GROUP_ROWS:
                continue
            parts = []
            for names in (one for one in parent_sets_at(graph, mask) if members.issuperset(one)):
                columns = graph.columns(names)
                points = fitted[own[:: -(-len(own) // MAX_ROWS)]][:, columns]
                components = max(1, min(COMPONENTS, len(points) // (ROWS_PER_COLUMN * len(columns))))
                mixture = GaussianMixture.fit(points, components, seed=stream.child(*names))
                known = mixture.log_prob(others[again][:, columns]).sort().values
                parts.append(Density(columns, mixture, known))
            found[name] = tuple(parts)
        rarity = Rarity(graph, found, fitted.new_zeros(0))
        return replace(rarity, least=rarity.rarest(others).sort().values)

    def score(self, rows: Tensor) -> Tensor:
        """The share of recorded rows, (N,), whose rarest part is as rare as that of rows (N, S + A)."""
        return share(self.least, self.rarest(rows))

    def rarest(self, rows: Tensor) -> Tensor:
        """The share of recorded parts, linked alike, that are as rare as a row's rarest one, (N,); 0: never seen."""
        least = torch.ones(len(rows), device=rows.device)
        for name, (own, _, _) in _places(self.graph, rows).items():
            if name not in self.groups:
                least[own] = 0.0
            for one in self.groups.get(name, ()):
                ranks = share(one.known, one.mixture.log_prob(rows[own][:, one.columns]))
                least[own] = least[own].minimum(ranks.float())
        return least


Place = tuple[Tensor, Tensor, set[str]]  # rows that have a group; the local graph of one of them; the group's factors


def _places(graph: LocalGraph, rows: Tensor) -> dict[int, Place]:
    """The rows (n,) that have each group, by its name."""
    groups = Groups.of(graph, rows)
    found: dict[int, Place] = {}
    for factor in range(len(graph.parents)):
        leads = groups.is_first[groups.kind, factor].nonzero()[:, 0]
        pool = groups.pool[groups.kind[leads], factor]
        order = pool.argsort(stable=True)
        pools, counts = torch.unique(pool[order], return_counts=True)
        for number, own in zip(pools.tolist(), leads[order].split(counts.tolist()), strict=True):
            kind = groups.kind[own[0]]
            members = (groups.first[kind] == factor).nonzero()[:, 0].tolist()
            found[int(groups.names[number])] = own, groups.masks[kind], {graph.parents[i] for i in members}
    return found


@dataclass(frozen=True)
class LocalShare:
    """The share of rows under a local graph, named by the edges it adds: recorded, and drawn by each recipe."""

    links: str
    recorded: float
    drawn: dict[str, float]


def local_shares(graph: LocalGraph, recorded: Tensor, drawn: Mapping[str, Tensor]) -> tuple[LocalShare, ...]:
    """How often the commonest local graphs of recorded rows (N, S + A) are drawn, and all others together."""
    if graph.local is None:
        return ()
    codes = neighbourhood(graph, recorded)
    names, counts = torch.unique(codes, return_counts=True)
    order = counts.argsort(descending=True, stable=True)[:SHOWN]
    own = {recipe: neighbourhood(graph, rows) for recipe, rows in drawn.items()}
    shares = []
    for code in names[order].tolist():
        mask = graph.mask(recorded[(codes == code).nonzero()[:1, 0]])[0]
        found = {recipe: float((them == code).double().mean()) for recipe, them in own.items()}
        shares.append(LocalShare(_named(graph, mask), float((codes == code).double().mean()), found))
    if len(names) <= SHOWN and not any(sum(one.drawn[recipe] for one in shares) < 1 - 1e-9 for recipe in own):
        return tuple(shares)
    rest = {recipe: max(0.0, 1 - sum(one.drawn[recipe] for one in shares)) for recipe in own}
    return (*shares, LocalShare("all others", max(0.0, 1 - sum(one.recorded for one in shares)), rest))


def _named(graph: LocalGraph, mask: Tensor) -> str:
    """The pairs that a local graph links and the sparsest graph does not, such as hand - cube1."""
    more = (mask & ~graph.sparsest.to(mask.device)).nonzero().tolist()
    pairs = [sorted((parent, child)) for parent, child in more]
    linked = dict.fromkeys(f"{graph.parents[one]} - {graph.parents[other]}" for one, other in pairs if one != other)
    return ", ".join(linked) or "the sparsest graph"


def worst_columns(columns: Sequence[str], shares: Tensor) -> tuple[tuple[str, float], ...]:
    """The columns that leave their range in a share of the rows, the worst first, at most three."""
    worst = shares.argsort(descending=True, stable=True)[:3].tolist()
    return tuple((columns[column], float(shares[column])) for column in worst if shares[column] > 0)


def recorded_share(rows: Tensor, recorded: Tensor) -> float:
    """The share of rows (N, D) that equal a recorded one (M, D) to the bit."""
    code = Stream(0, "recorded").integers(2**62, rows.shape[1]).to(rows.device)
    own, theirs = (coded(part.contiguous().float().view(torch.int32), code) for part in (rows, recorded))
    return float(torch.isin(own, theirs).double().mean())
