"""Provenance and support of rows: their recipe, local graph and donors, and how far their next states can be trusted.

Support and disagreement are unit-free. Support is a share of the recorded rows: how many are as rare as this one.
Disagreement is how far the members of an ensemble differ, in standard deviations of a step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.dynamics import Ensemble
from mocoda.engine.errors import InputError
from mocoda.engine.networks import moments
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents import BUILT_IN, Model
from mocoda.parents.groups import BLOCK, Groups, factors_of, graph_at, neighbourhood, number_of
from mocoda.parents.mocoda import MixtureParents, fewer_components
from mocoda.parents.recipe import Draw

FITTED_ROWS = 50_000  # recorded rows that the mixtures are fitted to, at most
REFERENCE = 10_000  # recorded rows whose densities tell what is rare, at most
RECORDED, OWN = 0, -1  # numbers of recipes that are not built in: none, and one of the user's own
MAX_NAMED = 100  # local graphs of the data, the commonest, that a table's source names
# Limits of support.
MIN_GROUP_ROWS = 50  # rows of a group that a density is fitted to, and as many that tell what is rare
RARE_SHARE, DISPUTED_SHARE = 0.001, 0.1  # of recorded rows that are beyond the limits: too rare, or too much disagreed
SUPPORTED, UNSEEN, RARE, DISPUTED = -1, 4, 5, 6  # verdicts on a row


# --- provenance


@dataclass(frozen=True, eq=False)
class Provenance:
    """Notes the origin of rows. Numbers mean the same in every table, so that tables can be joined.

    recipe         0: recorded; from 1 for "emp" to 7 for "mocoda-p", in the order of RECIPES; -1: one of your own
    predicted      share of the row's factors whose next values a model predicted; the others' are recorded ones
    disagreement   `disagreement` of the model about these, in standard deviations of a step; 0 where it predicted none,
                   or its members cannot disagree
    neighbourhood  the number of the row's local graph (see mocoda.parents.groups.neighbourhood)
    support        `Support.score` of the row, from 0, rarer than everything recorded, to 1
    donor_F        for every factor F, the index, among the rows given, of the recorded row that its values were taken
                   from; -1 where a density, a model or a recipe of your own made them. Rows given are their own donors

    The last three are noted only if a graph is known.
    """

    graph: LocalGraph | None
    support: Support | None

    def of(
        self, drawn: Draw, recipe: int, predicted: Tensor | None = None, apart: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Notes (N,) on N rows.

        predicted  (N, S), which next values a model predicted; None: none
        apart      (N, children), how far its members disagree about them; None: not at all
        """
        rows = drawn.rows
        nothing = torch.zeros(len(rows), device=rows.device)
        notes = {
            "recipe": torch.full((len(rows),), recipe, device=rows.device),
            "disagreement": nothing if apart is None else apart.amax(1),
            "predicted": nothing if predicted is None else self._share(predicted),
        }
        if self.graph is not None and self.support is not None:
            notes |= {"neighbourhood": neighbourhood(self.graph, rows), "support": self.support.score(rows)}
            for name, columns in zip(donor_columns(self.graph), self.graph.factors.values(), strict=True):
                donors = drawn.donors[:, list(columns)].int()
                notes[name] = torch.where((donors == donors[:, :1]).all(1), donors[:, 0], -1)
        return notes

    def of_recorded(self, data: Transitions) -> dict[str, Tensor]:
        """Notes on the rows given; those from an earlier augmentation stay."""
        own = torch.arange(len(data), device=data.device)[:, None].expand(data.rows.shape)
        notes = self.of(Draw(data.rows, own), RECORDED)
        earlier = data.provenance
        for name, note in earlier.items():
            # Tables of episodes note a donor's episode and step instead of its row.
            by_step = name.startswith("donor_") and name.replace("donor_", "donor_step_", 1) in earlier
            if name in notes and not by_step:
                notes[name] = note
        return notes

    def _share(self, predicted: Tensor) -> Tensor:
        """The share of the factors, or of the columns if no graph is known, that were predicted: (N,)."""
        if self.graph is not None:
            columns = [list(self.graph.factors[child]) for child in self.graph.children]
            predicted = torch.stack([predicted[:, own].any(1) for own in columns], 1)
        return predicted.float().mean(1)


def recipe_number(name: str) -> int:
    """The number of a recipe in the provenance of tables."""
    return 1 + BUILT_IN.index(name) if name in BUILT_IN else OWN


def donor_columns(graph: LocalGraph) -> list[str]:
    """The provenance columns with the donors of each factor F: donor_F, with _ for what no name may have."""
    plain = [re.sub(r"\W", "_", name) for name in graph.parents]
    plain = plain if len(set(plain)) == len(plain) else [str(number) for number in range(len(plain))]
    return [f"donor_{name}" for name in plain]


def local_graphs(graph: LocalGraph, rows: Tensor) -> dict[str, Any]:
    """The edges behind the `neighbourhood` numbers of these rows, as JSON values; of many, the commonest."""
    masks, counts = torch.unique(graph.mask(rows), dim=0, return_counts=True)
    order = counts.argsort(descending=True, stable=True)[:MAX_NAMED]
    numbers = number_of(graph, masks[order]).tolist()
    described = {}
    for number, mask, count in zip(numbers, masks[order].tolist(), counts[order].tolist(), strict=True):
        edges = [
            f"{parent} -> {child}"
            for parent, row in zip(graph.parents, mask, strict=True)
            for child, edge in zip(graph.children, row, strict=True)
            if edge
        ]
        described[str(number)] = {"rows": count, "edges": edges}
    return described


# --- support


@dataclass(frozen=True, eq=False)
class Support:
    """Scores how common the rarest part of a row is in the recorded data.

    known  (sets, M), each parent set's log densities at the reference rows, ascending
    least  (M,), the same rows' rarest set's share, ascending
    """

    mixtures: MixtureParents
    known: Tensor
    least: Tensor

    def score(self, rows: Tensor) -> Tensor:
        """The share of recorded rows, (N,) float32, whose rarest parent set is as rare as that of rows (N, S + A).

        Over the recorded rows themselves the score is uniform: 5% of them have 0.05 or less. A row that is rarer than
        everything recorded has 0.
        """
        return share(self.least, ranks(self.mixtures, rows, self.known).amin(1))


def fit_support(
    data: Transitions,
    graph: LocalGraph,
    *,
    components: int = 32,
    seed: int | Stream = 0,
    reference: Tensor | None = None,
    parent_sets: Sequence[Sequence[str]] | None = None,
) -> Support:
    """Learns how common recorded rows are, so that the rows of any recipe can be scored by it.

    reference    rows (M, S + A) whose densities tell what is rare; of those that the mixtures are fitted to unless
                 given
    parent_sets  those that count; all of the graph unless given
    """
    graph.check_data(data)
    stream = as_stream(seed, "support", device=data.device)
    chosen = data[stream.permutation(len(data))[:FITTED_ROWS]]
    fewer = fewer_components(components, len(chosen), graph)
    mixtures = MixtureParents.fit(chosen, graph, fewer, stream, parent_sets=parent_sets)
    reference = (chosen.rows if reference is None else reference)[:REFERENCE]
    known = densities(mixtures, reference)
    return Support(mixtures, known, ranks(mixtures, reference, known).amin(1).sort().values)


def densities(mixtures: MixtureParents, reference: Tensor) -> Tensor:
    """Each parent set's log densities at the reference rows (M, S + A), ascending: (sets, M)."""
    return mixtures.log_prob(reference).T.contiguous().sort().values


def ranks(mixtures: MixtureParents, rows: Tensor, known: Tensor) -> Tensor:
    """For every row (N, S + A) and parent set, the share of what is `known` (sets, M) that is as rare: (N, sets)."""
    return share(known, mixtures.log_prob(rows).T.contiguous()).T


def share(known: Tensor, values: Tensor) -> Tensor:
    """The share of ascending numbers (*L, M) that are no greater than each value (*L, N): (*L, N) float32."""
    return torch.searchsorted(known, values, right=True) / max(1, known.shape[-1])


# --- disagreement


def step_scale(data: Transitions) -> Tensor:
    """The standard deviation of next state minus state over the data, (S,); 1 where nothing ever changes."""
    largest = torch.maximum(data.state.abs(), data.next_state.abs()).amax(0)
    scale = moments(data.next_state.double() - data.state.double(), largest)[1].float()
    return torch.where(scale > 0, scale, 1.0)


def disagreement(model: Ensemble, rows: Tensor, scale: Tensor | None = None) -> Tensor:
    """How far the members' means lie apart at rows (N, S + A): (N,) float32, the largest over the children.

    A child's is the root mean square distance of the members' means from their middle, over members and its columns, in
    units of `scale` (S,), as from `step_scale(data)`. Unless given, that is the scale of what the model was trained to
    predict: the same, unless its configuration says otherwise. At 1, members differ as much as recorded steps do.
    """
    if scale is None:
        scale = getattr(model, "scaling", {}).get("target_scale")
    if scale is None:
        raise InputError(
            "this model does not know how long a step is; pass scale=mocoda.augmentation.support.step_scale(data)."
        )
    scale = torch.where(scale > 0, scale, 1.0)  # about a column that never changes, the members agree exactly
    return spread(model.predict(rows).mean, model.graph, scale).amax(1)


def spread(mean: Tensor, graph: LocalGraph, scale: Tensor) -> Tensor:
    """How far members that expect `mean` (E, N, S) disagree about each child: (N, children)."""
    apart = (mean / scale).var(0, correction=0)  # (N, S)
    children = [apart[:, list(graph.factors[child])].mean(1) for child in graph.children]
    return torch.stack(children, 1).sqrt()


# --- limits of support, for rollouts


class Judged(NamedTuple):
    """Verdicts on N rows, (N,) each. `why` is SUPPORTED, or else UNSEEN, RARE or DISPUTED."""

    support: Tensor
    disagreement: Tensor
    neighbourhood: Tensor
    why: Tensor

    @property
    def notes(self) -> dict[str, Tensor]:
        """As provenance."""
        return {name: getattr(self, name) for name in ("disagreement", "neighbourhood", "support")}


@dataclass(frozen=True, eq=False)
class SupportLimits:
    """Tells rows that recorded ones support from others, group by group.

    A row is supported if each of its groups (see mocoda.parents.groups) is, by the recorded rows that have this group,
    whatever else is in them: a cube in the air is common where a hand holds it, and nowhere else; a cube that lies may
    lie wherever it lay, even while a hand holds another one. Support is that of `fit_support`, with the group's parent
    sets and mixtures of the rows that have it. What is rare is measured on rows of other episodes than those that the
    mixtures were fitted to.

    names     (K,) the groups that were recorded often enough, as `Groups` names them, ascending
    supports  of each
    most      (K, children) the largest disagreement allowed about each of its children, infinite for others
    """

    graph: LocalGraph
    model: Ensemble | None
    scale: Tensor
    names: Tensor
    supports: tuple[Support, ...]
    most: Tensor

    @staticmethod
    def fit(data: Transitions, graph: LocalGraph, model: Model | None, stream: Stream) -> SupportLimits:
        """From rows of two episodes or more."""
        assert data.episode is not None
        episodes, number = data.episode.unique(return_inverse=True)
        held_out = (stream.permutation(len(episodes)) < len(episodes) // 2)[number]
        groups = Groups.of(graph, data.rows)
        ensemble, scale = model if isinstance(model, Ensemble) else None, step_scale(data)
        known, supports, most = [], [], []
        for pool, name in enumerate(groups.names.tolist()):
            having = groups.rows_with(pool)
            rows, judges = having[~held_out[having]], having[held_out[having]]
            if min(len(rows), len(judges)) < MIN_GROUP_ROWS:
                continue
            part, (is_member, mask) = stream.child("support", name), groups.members(pool)
            judging = data.rows[judges[part.permutation(len(judges))[:REFERENCE]]]
            members, local = set(factors_of(graph, is_member)), graph_at(graph, mask)
            sets = [one for one in local.parent_sets if members.issuperset(one)]
            known.append(name)
            supports.append(fit_support(data[rows], local, seed=part, reference=judging, parent_sets=sets))
            apart = torch.zeros(1, len(graph.children), device=scale.device)
            if ensemble is not None:
                apart = spread(ensemble.predict(judging).mean, graph, scale)
            inside = torch.tensor([child in members for child in graph.children], device=scale.device)
            most.append(torch.where(inside, apart.quantile(1 - DISPUTED_SHARE, 0), torch.inf))
        if not known:
            raise InputError(
                f"every group of connected factors has fewer than {MIN_GROUP_ROWS} rows in one half of the episodes, "
                "so that nothing tells where support ends; record more."
            )
        names = torch.tensor(known, device=scale.device)
        return SupportLimits(graph, ensemble, scale, names, tuple(supports), torch.stack(most))

    def judge(self, rows: Tensor, apart: Tensor) -> Judged:
        """Judges rows (N, S + A), given how far members disagree about each child (N, children)."""
        groups = Groups.of(self.graph, rows)
        name = groups.names[groups.pool]  # (local graphs, parents)
        place = torch.searchsorted(self.names, name).clamp(max=len(self.names) - 1)
        seen = (self.names[place] == name) | ~groups.is_first
        support = torch.ones(len(rows), device=rows.device)
        most = torch.full((len(name), len(self.graph.children)), torch.inf, device=rows.device)
        for one, (known, limit) in enumerate(zip(self.supports, self.most, strict=True)):
            has = (groups.is_first & seen & (place == one)).any(1)
            most[has] = most[has].minimum(limit)
            here = has[groups.kind].nonzero()[:, 0]
            if len(here):
                support[here] = support[here].minimum(known.score(rows[here]))
        all_seen = seen.all(1)[groups.kind]
        support = torch.where(all_seen, support, 0.0)
        number = groups.numbers[groups.kind]
        why = torch.full_like(number, SUPPORTED)
        why[~(apart <= most[groups.kind]).all(1)] = DISPUTED
        why[~(support >= RARE_SHARE)] = RARE
        why[~all_seen] = UNSEEN
        return Judged(support, apart.amax(1), number, why)

    def agreed(self, rows: Tensor) -> Tensor:
        """No disagreement about any child (N, children)."""
        return torch.zeros(len(rows), len(self.graph.children), device=rows.device)

    def notes(self, rows: Tensor) -> dict[str, Tensor]:
        """Provenance of rows (N, S + A) that no model predicted."""
        parts = [self.judge(block, self.agreed(block)).notes for block in rows.split(BLOCK)]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
