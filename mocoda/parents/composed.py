"""Things that were handled one at a time, handled at once: parents of recipe "mocoda" with neighbourhoods="composed".

In a row in which a hook is on one box, another box is put into the hook too, as it was in a row in which the hook was
where it is now. So there are local graphs that were never recorded, of links that all were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents.linked import BLOCK, LEAST_ROWS, LinkedParents
from mocoda.parents.matched import Match, MatchedParents
from mocoda.parents.nearest import Nearest

PILOT = 1_000  # recorded rows whose own matches say how near one is
USUAL = 0.9  # of these are as near as a match must be
NONE = -1  # no part, or several


@dataclass(frozen=True, eq=False)
class Joint:
    """How a part is put to another one: as in the recorded row that has this link and is nearest in the other one.

    rows   (M,), the recorded rows in which the part is linked to the other one alone
    match  finds one of them, given the other one
    near   how far a match may be
    """

    rows: Tensor
    match: Match
    near: float

    @staticmethod
    def fit(rows: Tensor, match: Match, stream: Stream) -> Joint:
        some = stream.permutation(len(rows))[:PILOT]
        _, distance = match.search.find(match.search.points[some, :-1], some[:, None], stream.child("near"))
        return Joint(rows, match, float(distance.quantile(USUAL)))


@dataclass(frozen=True, eq=False)
class ComposedParents:
    """Linked parents, with more than one thing at a time put to what a thing can be linked to.

    Rows are drawn as LinkedParents draws them. Then each part that is linked to nothing draws what it is linked to from
    a random recorded row. If that is one part, and something else is linked to that part already, it is put there as in
    the nearest recorded row that has this link. The row stays as it was if none is near, or if more is linked then than
    that: nothing touches that was not recorded touching.

    part    (parents,), the part of each factor: what even the sparsest graph connects is one
    alone   (N, P), the part that each part is linked to in a recorded row; NONE if to none or to several
    joints  (part, other part) -> how the one is put to the other
    """

    name = "mocoda"

    linked: LinkedParents
    part: Tensor
    alone: Tensor
    joints: Mapping[tuple[int, int], Joint]

    @staticmethod
    def fit(linked: LinkedParents, seed: int | Stream) -> ComposedParents:
        stream = as_stream(seed, "composed", device=linked.recorded.device)
        composed = ComposedParents._of(linked)
        joints = {}
        for (own, other), rows in composed._links_alone().items():
            label = stream.child("joint", own, other)
            known, rest = (composed._columns(one) for one in (other, own))
            match = Match.fit(linked.recorded[rows], known, rest, linked.graph.relative, label)
            joints[own, other] = Joint.fit(rows, match, label.child("pilot"))
        return replace(composed, joints=joints)

    @staticmethod
    def _of(linked: LinkedParents) -> ComposedParents:
        graph, recorded = linked.graph, linked.recorded
        part = graph.parts.to(recorded.device).unique(return_inverse=True)[1]
        alone = []
        for rows in recorded.split(BLOCK):
            links = links_of(graph, part, rows)
            alone.append(torch.where(links.sum(2) == 1, links.float().argmax(2), NONE))
        return ComposedParents(linked, part, torch.cat(alone), {})

    def among(self, rows: Tensor) -> ComposedParents:
        """The same among other recorded rows (N, S + A): matched by the same columns, and as near."""
        other = ComposedParents._of(self.linked.among(rows))
        joints = {}
        for key, own in other._links_alone().items():
            if key in self.joints:
                match = self.joints[key].match
                search = Nearest.among(match.metric(rows[own][:, list(match.known)]))
                joints[key] = Joint(own, replace(match, search=search), self.joints[key].near)
        return replace(other, joints=joints)

    @property
    def source(self) -> dict[str, Any]:
        """What a table made of it should say: that of the linked parents, and how it differs."""
        found = self.linked.source
        return {"neighbourhoods": found["neighbourhoods"] | {"drawn": "composed"}}

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        stream = as_stream(seed, "composed", device=self.alone.device)
        rows = self.linked.sample(n, seed=stream.child("linked"))
        parts = self.alone.shape[1]
        for own in range(parts):
            wanted = self.alone[stream.child("wanted", own).integers(len(self.alone), n), own]
            for other in range(parts):
                if (own, other) in self.joints:
                    self._join(rows, own, other, wanted == other, stream.child("joint", own, other))
        return rows

    def _join(self, rows: Tensor, own: int, other: int, wanted: Tensor, stream: Stream) -> None:
        """Puts a part to another one, in those of the rows (n, S + A) where this is wanted (n,) and possible."""
        graph, joint = self.linked.graph, self.joints[own, other]
        here = wanted.nonzero()[:, 0]
        links = links_of(graph, self.part, rows[here])
        possible = ~links[:, own].any(1) & links[:, other].any(1)
        here, links = here[possible], links[possible]
        new, nothing = rows[here], here.new_zeros(len(here), 0)
        _, distance = joint.match.complete(new, nothing, self.linked.recorded[joint.rows], stream)
        links[:, own, other] = links[:, other, own] = True
        fits = (distance <= joint.near) & (links_of(graph, self.part, new) == links).all(2).all(1)
        rows[here[fits]] = new[fits]

    def _links_alone(self) -> dict[tuple[int, int], Tensor]:
        """(part, other part) -> the recorded rows in which the one is linked to the other alone, if they are many."""
        found = {}
        for own, others in enumerate(self.alone.T):
            for other in others.unique().tolist():
                rows = (others == other).nonzero()[:, 0]
                if other != NONE and len(rows) >= LEAST_ROWS:
                    found[own, other] = rows
        return found

    def _columns(self, part: int) -> list[int]:
        graph = self.linked.graph
        inside = zip(graph.parents, (self.part == part).tolist(), strict=True)
        return list(graph.columns([name for name, is_own in inside if is_own]))


def links_of(graph: LocalGraph, part: Tensor, rows: Tensor) -> Tensor:
    """Which parts, of the factors' (parents,), an edge links at each row (N, S + A): bool (N, P, P)."""
    member = torch.nn.functional.one_hot(part).float()
    edges = (member.T @ graph.mask(rows).float() @ member[: len(graph.children)]) > 0
    return (edges | edges.transpose(1, 2)) & ~torch.eye(edges.shape[1], dtype=torch.bool, device=rows.device)


Recombined = MatchedParents | LinkedParents | ComposedParents  # parents that are made of recorded parts
