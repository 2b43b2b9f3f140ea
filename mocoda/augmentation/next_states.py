"""The next states of new rows: the recorded ones where these are known, and elsewhere those that a model predicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mocoda.augmentation.support import spread
from mocoda.data.transitions import Transitions
from mocoda.dynamics import Dynamics, Ensemble
from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents import Model
from mocoda.parents.groups import BLOCK, neighbourhood
from mocoda.parents.recipe import Draw


def recorded_children(mask: Tensor, source: Tensor, edges: Tensor, kind: Tensor) -> tuple[Tensor, Tensor]:
    """Which children of n rows have a known next value, (n, children), and the recorded rows (n, children) it is of.

    It is known where all that a child depends on is of one recorded row, in which it depends on the same.

    mask    (n, parents, children), the edges at the rows
    source  (n, parents), the recorded row that a factor's value is of, or -1
    edges   (K, parents, children), the local graphs of the recorded rows
    kind    (N,), which of these each recorded row has
    """
    needed = torch.where(mask, source[:, :, None], -1).amax(1)
    of_one = (~mask | (source[:, :, None] == needed[:, None])).all(1) & (needed >= 0)
    place = needed.clamp(min=0)
    each = torch.arange(mask.shape[2], device=mask.device)
    same_edges = (edges[kind[place], :, each] == mask.transpose(1, 2)).all(2)
    return of_one & same_edges, place


class Known(NamedTuple):
    """Next states (n, S), and in which columns (n, S) they are known; the others are 0."""

    next_state: Tensor
    given: Tensor


@dataclass(frozen=True, eq=False)
class RecordedNext:
    """Next values of recorded rows (N, S + A), for new rows that are made of their parts.

    edges, kind  as in `recorded_children`
    """

    graph: LocalGraph
    rows: Tensor
    next_state: Tensor
    edges: Tensor
    kind: Tensor

    @staticmethod
    def of(data: Transitions, graph: LocalGraph) -> RecordedNext:
        numbers = neighbourhood(graph, data.rows)
        kinds, kind = numbers.unique(return_inverse=True)
        every = torch.arange(len(kind), device=kind.device)
        one_of = torch.zeros_like(kinds).scatter_reduce(0, kind, every, "amax")
        return RecordedNext(graph, data.rows, data.next_state, graph.mask(data.rows[one_of]), kind)

    def follow(self, drawn: Draw) -> Known:
        """The next states of drawn rows, as far as they are recorded."""
        columns = torch.arange(self.next_state.shape[1], device=self.rows.device)
        owner = self.graph.owner.to(self.rows.device)[columns]
        found = []
        for rows, donors in zip(drawn.rows.split(BLOCK), drawn.donors.split(BLOCK), strict=True):
            source = sources(self.graph, self.rows, rows, donors)
            known, place = recorded_children(self.graph.mask(rows), source, self.edges, self.kind)
            given = known[:, owner]
            found.append((torch.where(given, self.next_state[place[:, owner], columns], 0.0), given))
        return Known(*map(torch.cat, zip(*found, strict=True)))


def sources(graph: LocalGraph, recorded: Tensor, rows: Tensor, donors: Tensor) -> Tensor:
    """The recorded row (n, parents) whose values a factor of rows (n, S + A) has; -1 if those of none, or of several.

    recorded  (N, S + A)
    donors    (n, S + A), the recorded row that each value was taken from, or -1
    """
    place = donors.clamp(min=0, max=len(recorded) - 1)
    copied = (donors == place) & (rows == recorded.gather(0, place))
    found = []
    for columns in map(list, graph.factors.values()):
        whole = copied[:, columns].all(1) & (donors[:, columns] == donors[:, columns[:1]]).all(1)
        found.append(torch.where(whole, donors[:, columns[0]], -1))
    return torch.stack(found, 1)


class Following(NamedTuple):
    """What follows n rows.

    next_state  (n, S)
    predicted   (n, S), whether a model said so
    apart       (n, children), how far the model's members disagree about what they said; None where nobody asked
    """

    next_state: Tensor
    predicted: Tensor
    apart: Tensor | None = None


def nothing_known(rows: Tensor, states: int) -> Known:
    """That of no column it is known what follows rows (n, S + A)."""
    return Known(
        rows.new_zeros(len(rows), states), torch.zeros(len(rows), states, dtype=torch.bool, device=rows.device)
    )


def what_follows(
    model: Model,
    rows: Tensor,
    known: Known,
    seed: int | Stream,
    scale: Tensor | None = None,
    middle: bool = False,
) -> Following:
    """What follows rows (n, S + A): what is known, and elsewhere what a model says.

    scale   (S,), the unit of the disagreement, for which all members of an ensemble are asked; None: do not note it
    middle  with `scale`: an ensemble whose `sample` draws one of its members says the mean of all instead
    """
    next_state, given = known
    asked, apart = (~given.all(1)).nonzero()[:, 0], None
    there, given_there = rows[asked], given[asked]
    if not len(asked):
        return Following(next_state, ~given)
    if scale is not None and isinstance(model, Ensemble):
        found = model.predict(there)
        apart = torch.zeros(len(rows), len(model.graph.children), device=rows.device)
        apart[asked] = spread(torch.where(given_there, next_state[asked], found.mean), model.graph, scale)
        if isinstance(model, Dynamics) and (middle or model.says_mean):
            said = model.likely(found, model.noise(len(there), seed))
        else:
            said = found.mean.mean(0) if middle else model.sample(there, seed=seed)
    else:
        said = model.sample(there, seed=seed)
    check_shape("model.sample", "next states", said, (len(there), next_state.shape[1]))
    next_state[asked] = torch.where(given_there, next_state[asked], said.float())
    return Following(next_state, ~given, apart)


def check_shape(call: str, what: str, array: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(array.shape) != shape:
        raise InputError(f"{call} must return {what} of shape {shape}, got {tuple(array.shape)}.")
