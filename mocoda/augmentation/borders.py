"""Where support ends: what recorded rows show of all that a local graph links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mocoda.augmentation.episode_walks import DISPUTED, GOES_ON, RARE, UNSEEN
from mocoda.augmentation.provenance import neighbourhood
from mocoda.augmentation.support import REFERENCE, Support, fit_support, spread, step_scale
from mocoda.data.transitions import Transitions
from mocoda.dynamics import Ensemble
from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents import Model
from mocoda.parents.groups import Groups, graph_at

FEWEST = 50  # rows of a group that a density is fitted to, and that judge it, each
# The shares of recorded rows that are themselves beyond the borders: by their rarity, and by the model's disagreement.
BEYOND, DISPUTABLE = 0.001, 0.1
BLOCK = 65_536  # rows at a time


class Judged(NamedTuple):
    """What is known of rows: (N,) each. `why` is UNSEEN, RARE or DISPUTED beyond the borders, GOES_ON within."""

    support: Tensor
    disagreement: Tensor
    neighbourhood: Tensor
    why: Tensor

    def select(self, index: Tensor) -> Judged:
        return Judged(*(array[index] for array in self))

    @property
    def notes(self) -> dict[str, Tensor]:
        """As provenance."""
        return {name: getattr(self, name) for name in ("disagreement", "neighbourhood", "support")}


@dataclass(frozen=True, eq=False)
class Borders:
    """Tells rows that recorded ones support from others, group by group.

    A group is what a row's local graph links, and a row is supported if each of its groups is, by the recorded rows
    that have this group, whatever else is in them: a cube in the air is common where a hand holds it, and nowhere else;
    a cube that lies may lie wherever it lay, also if a hand holds another one. Support is that of `fit_support`, with
    the group's parent sets and mixtures of the rows that have it. What is rare is said by rows of other episodes than
    those that the mixtures were fitted to.

    names     (K,) the groups that were recorded often enough, as `Groups` names them, ascending
    supports  of each
    most      (K, children) the most disagreement about each of its children, infinite for others
    """

    graph: LocalGraph
    model: Ensemble | None
    scale: Tensor
    names: Tensor
    supports: tuple[Support, ...]
    most: Tensor

    @staticmethod
    def fit(data: Transitions, graph: LocalGraph, model: Model, stream: Stream) -> Borders:
        """From rows of two episodes or more."""
        assert data.episode is not None
        episodes, number = data.episode.unique(return_inverse=True)
        held_out = (stream.permutation(len(episodes)) < len(episodes) // 2)[number]
        groups = Groups.of(graph, data.rows)
        ensemble, scale = model if isinstance(model, Ensemble) else None, step_scale(data)
        known, supports, most = [], [], []
        for pool, name in enumerate(groups.names.tolist()):
            own = groups.is_first & (groups.pool == pool)  # (local graphs, parents)
            if not bool(own.any()):
                continue
            here = own.any(1)[groups.kind]
            rows, judges = (here & which for which in (~held_out, held_out))
            if min(int(rows.sum()), int(judges.sum())) < FEWEST:
                continue
            part, (kind, first) = stream.child("support", name), own.nonzero()[0].tolist()
            judging = data.rows[judges]
            judging = judging[part.permutation(len(judging))[:REFERENCE]]
            members = {graph.parents[i] for i in (groups.first[kind] == first).nonzero()[:, 0].tolist()}
            local = graph_at(graph, groups.masks[kind])
            sets = [one for one in local.parent_sets if members.issuperset(one)]
            known.append(name)
            supports.append(fit_support(data[rows], local, seed=part, reference=judging, parent_sets=sets))
            apart = torch.zeros(1, len(graph.children), device=scale.device)
            if ensemble is not None:
                apart = spread(ensemble.predict(judging).mean, graph, scale)
            inside = torch.tensor([child in members for child in graph.children], device=scale.device)
            most.append(torch.where(inside, apart.quantile(1 - DISPUTABLE, 0), torch.inf))
        if not known:
            raise InputError(
                f"nothing that a local graph links is in {FEWEST} rows of each half of the episodes, so that nothing "
                "tells where support ends; record more."
            )
        return Borders(
            graph, ensemble, scale, torch.tensor(known, device=scale.device), tuple(supports), torch.stack(most)
        )

    def judge(self, rows: Tensor, apart: Tensor) -> Judged:
        """Which rows (N, S + A) are within the borders, if members disagree so much about each child (N, children)."""
        groups = Groups.of(self.graph, rows)
        name = groups.names[groups.pool]  # (local graphs, parents)
        place = torch.searchsorted(self.names, name).clamp(max=len(self.names) - 1)
        seen = (self.names[place] == name) | ~groups.is_first
        support = torch.ones(len(rows), device=rows.device)
        most = torch.full((len(name), len(self.graph.children)), torch.inf, device=rows.device)
        for one, (known, borders) in enumerate(zip(self.supports, self.most, strict=True)):
            has = (groups.is_first & seen & (place == one)).any(1)
            most[has] = most[has].minimum(borders)
            here = has[groups.kind].nonzero()[:, 0]
            if len(here):
                support[here] = support[here].minimum(known.score(rows[here]))
        all_seen = seen.all(1)[groups.kind]
        support = torch.where(all_seen, support, 0.0)
        number = neighbourhood(self.graph, rows)
        why = torch.full_like(number, GOES_ON)
        why[~(apart <= most[groups.kind]).all(1)] = DISPUTED
        why[~(support >= BEYOND)] = RARE
        why[~all_seen] = UNSEEN
        return Judged(support, apart.amax(1), number, why)

    def agreed(self, rows: Tensor) -> Tensor:
        """No disagreement about any child (N, children)."""
        return torch.zeros(len(rows), len(self.graph.children), device=rows.device)

    def notes(self, rows: Tensor) -> dict[str, Tensor]:
        """What provenance says of rows (N, S + A) that no model predicted."""
        parts = [self.judge(block, self.agreed(block)).notes for block in rows.split(BLOCK)]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
