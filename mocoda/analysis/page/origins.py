"""Where the parts of generated rows come from: the recorded rows that hold the same values, or else the nearest."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mocoda.augmentation.episode_rollout import equal_rows, nearest_rows
from mocoda.augmentation.episode_walks import donor_names
from mocoda.data.transitions import Transitions
from mocoda.graph.local_graph import LocalGraph, connected_components

SEARCHED = 50_000  # recorded rows among which the nearest is looked for, at most


class Origins(NamedTuple):
    """The recorded row of each part of M rows.

    donor  (M, parents), a row of the recorded table
    exact  (M, parents), whether the part is as in that row, to the bit; else that row is merely the nearest
    """

    donor: Tensor
    exact: Tensor


def origins(known: Transitions, made: Transitions, graph: LocalGraph) -> Origins:
    """The donors of every part of the rows in `made`, as their provenance tells them, or else by comparison."""
    donor, exact = _compared(known.rows, made.rows, graph)
    noted = _noted(known, made, graph)
    if noted is not None:
        told = noted >= 0
        donor = torch.where(told, noted, donor)
        for factor, name in enumerate(graph.parents):
            columns = list(graph.factors[name])
            same = (made.rows[:, columns] == known.rows[donor[:, factor]][:, columns]).all(1)
            exact[:, factor] = torch.where(told[:, factor], same, exact[:, factor])
    return Origins(donor, exact)


def main_donors(found: Origins) -> Tensor:
    """The recorded row (M,) that gives most parts of each row; of several the one that gives the first part."""
    votes = (found.donor[:, :, None] == found.donor[:, None]).sum(2)  # (M, parents)
    return found.donor.gather(1, votes.argmax(1, keepdim=True))[:, 0]


def _compared(recorded: Tensor, rows: Tensor, graph: LocalGraph) -> tuple[Tensor, Tensor]:
    """What the local graph links is looked for as a whole, then part by part; what is nowhere gets its nearest."""
    parents = len(graph.parents)
    kinds, kind = torch.unique(graph.mask(rows), dim=0, return_inverse=True)
    own = torch.eye(parents, len(graph.children), dtype=torch.bool, device=rows.device)
    labels = connected_components(kinds | own)[:, :parents][kind]  # (M, parents)
    donor = torch.full_like(labels, -1)
    for component in {
        tuple((label == one).nonzero()[:, 0].tolist()) for label in labels.unique(dim=0) for one in label
    }:
        inside = torch.zeros(parents, dtype=torch.bool, device=rows.device)
        inside[list(component)] = True
        here = ((labels == labels[:, component[:1]]) == inside).all(1).nonzero()[:, 0]
        columns = list(graph.columns([graph.parents[factor] for factor in component]))
        found = equal_rows(rows[here][:, columns], recorded[:, columns])
        donor[here[:, None], inside.nonzero()[:, 0]] = found[:, None]
    for factor, name in enumerate(graph.parents):
        lost, columns = (donor[:, factor] < 0).nonzero()[:, 0], list(graph.factors[name])
        donor[lost, factor] = equal_rows(rows[lost][:, columns], recorded[:, columns])
    exact, every = donor >= 0, -(-len(recorded) // SEARCHED)
    for factor, name in enumerate(graph.parents):
        lost, columns = (~exact[:, factor]).nonzero()[:, 0], list(graph.factors[name])
        if len(lost):
            donor[lost, factor] = nearest_rows(rows[lost][:, columns], recorded[::every, columns]) * every
    return _fewest(recorded, rows, graph, donor), exact


def _fewest(recorded: Tensor, rows: Tensor, graph: LocalGraph, donor: Tensor) -> Tensor:
    """Takes a part from the row's main donor, if it is the same there: what rests is in many recorded rows."""
    main = main_donors(Origins(donor, donor >= 0))
    same = rows == recorded[main]  # (M, S + A)
    columns = [same[:, list(graph.factors[name])].all(1) for name in graph.parents]
    return torch.where(torch.stack(columns, 1), main[:, None], donor)


def _noted(known: Transitions, made: Transitions, graph: LocalGraph) -> Tensor | None:
    """The donors (M, parents) that provenance names by episode and step, -1 for what has none; None: it names none."""
    if known.episode is None or known.step is None or made.episode is None:
        return None
    notes = made.provenance
    steps = int(known.step.max()) + 1
    place, order = (known.episode * steps + known.step).sort()

    def row_of(episode: Tensor, step: Tensor) -> Tensor:
        wanted = episode * steps + step
        found = torch.searchsorted(place, wanted).clamp(max=len(place) - 1)
        there = (place[found] == wanted) & (episode >= 0) & (step >= 0) & (step < steps)
        return torch.where(there, order[found], -1)

    names = donor_names(graph)
    if not all(name in notes and at in notes for name, at in names):
        return None
    return torch.stack([row_of(notes[name], notes[at]) for name, at in names], 1)
