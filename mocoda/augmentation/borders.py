"""Where support ends: what recorded rows show, local graph by local graph."""

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
from mocoda.parents.stratified import graph_at

FEWEST = 50  # rows of a local graph that a density is fitted to, and that judge it, each
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
    """Tells rows that recorded ones support from others, by the recorded rows with the same local graph.

    Support is that of `fit_support`, with the parent sets of the row's own local graph and mixtures of the rows that
    have it: a cube in the air is common where a hand holds it, and nowhere else. What is rare is said by rows of other
    episodes than those that the mixtures were fitted to.

    numbers   (K,) the local graphs that were recorded often enough, as `neighbourhood` numbers them, ascending
    supports  of each
    most      (K, children) the most disagreement about each child
    """

    graph: LocalGraph
    model: Ensemble | None
    scale: Tensor
    numbers: Tensor
    supports: tuple[Support, ...]
    most: Tensor

    @staticmethod
    def fit(data: Transitions, graph: LocalGraph, model: Model, stream: Stream) -> Borders:
        """From rows of two episodes or more."""
        assert data.episode is not None
        episodes, number = data.episode.unique(return_inverse=True)
        held_out = (stream.permutation(len(episodes)) < len(episodes) // 2)[number]
        kind = torch.cat([neighbourhood(graph, block) for block in data.rows.split(BLOCK)])
        ensemble, scale = model if isinstance(model, Ensemble) else None, step_scale(data)
        numbers, supports, most = [], [], []
        for one in kind.unique().tolist():
            rows, judges = ((kind == one) & which for which in (~held_out, held_out))
            if min(int(rows.sum()), int(judges.sum())) < FEWEST:
                continue
            own = stream.child("support", one)
            judging = data.rows[judges]
            judging = judging[own.permutation(len(judging))[:REFERENCE]]
            local = graph_at(graph, graph.mask(judging[:1])[0])
            numbers.append(one)
            supports.append(fit_support(data[rows], local, seed=own, reference=judging))
            apart = torch.zeros(1, len(graph.children), device=scale.device)
            if ensemble is not None:
                apart = spread(ensemble.predict(judging).mean, graph, scale)
            most.append(apart.quantile(1 - DISPUTABLE, 0))
        if not numbers:
            raise InputError(
                f"no local graph holds in {FEWEST} rows of each half of the episodes, so that nothing tells where "
                "support ends; record more."
            )
        known = torch.tensor(numbers, device=scale.device)
        return Borders(graph, ensemble, scale, known, tuple(supports), torch.stack(most))

    def judge(self, rows: Tensor, apart: Tensor) -> Judged:
        """Which rows (N, S + A) are within the borders, if members disagree so much about each child (N, children)."""
        number = neighbourhood(self.graph, rows)
        place = torch.searchsorted(self.numbers, number).clamp(max=len(self.numbers) - 1)
        seen = self.numbers[place] == number
        support = torch.zeros(len(rows), device=rows.device)
        for kind, one in enumerate(self.supports):
            here = (seen & (place == kind)).nonzero()[:, 0]
            if len(here):
                support[here] = one.score(rows[here])
        why = torch.full_like(number, GOES_ON)
        why[~(apart <= self.most[place]).all(1)] = DISPUTED
        why[~(support >= BEYOND)] = RARE
        why[~seen] = UNSEEN
        return Judged(support, apart.amax(1), number, why)

    def agreed(self, rows: Tensor) -> Tensor:
        """No disagreement about any child (N, children)."""
        return torch.zeros(len(rows), len(self.graph.children), device=rows.device)

    def notes(self, rows: Tensor) -> dict[str, Tensor]:
        """What provenance says of rows (N, S + A) that no model predicted."""
        parts = [self.judge(block, self.agreed(block)).notes for block in rows.split(BLOCK)]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
