"""Recorded episodes, step by step, and what new ones are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from mocoda.augmentation.support import RECORDED, SUPPORTED, donor_columns
from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.graph.local_graph import LocalGraph

ATTEMPTS = 1_000  # batches of episodes to try
SHORTEST = 2  # steps of an episode, at least
# Why an episode goes no further.
ENDED, LINKED, MET, LONG, GOES_ON = 0, 1, 2, 3, SUPPORTED


Columns = TypeVar("Columns", bound=tuple[Any, ...])


def select(columns: Columns, index: Tensor | slice) -> Columns:
    """The chosen rows of a named tuple of arrays (N, ...)."""
    return type(columns)(*(array[index] for array in columns))


def join(parts: Sequence[Columns]) -> Columns:
    """The rows of all parts, in order."""
    return type(parts[0])(*map(torch.cat, zip(*parts, strict=True)))


class Made(NamedTuple):
    """New episodes, one after the other: N rows.

    rows        (N, S + A)
    next_state  (N, S)
    episode     (N,), counted from 0
    step        (N,), with gaps where steps are missing
    notes       provenance, (N,) each
    recorded    makes the same notes on recorded rows
    source      what the table's source says of them, as JSON values
    """

    rows: Tensor
    next_state: Tensor
    episode: Tensor
    step: Tensor
    notes: dict[str, Tensor]
    recorded: Callable[[], dict[str, Tensor]]
    source: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Walks:
    """The recorded rows that are of episodes, by episode and step.

    goes_on  (N,) whether a row's next step is the row after it
    resting  share of a column's largest number: what changes by no more is at rest
    """

    graph: LocalGraph
    rows: Tensor
    next_state: Tensor
    episode: Tensor
    step: Tensor
    goes_on: Tensor
    resting: float = 0.0

    @staticmethod
    def of(data: Transitions, graph: LocalGraph, resting: float = 0.0) -> Walks:
        check_resting(resting)
        graph.check_data(data)
        if data.episode is None or data.step is None:
            raise InputError(
                "nobody knows which episodes these rows are of. Read them from a file that marks the ends of episodes, "
                "or pass Transitions(..., episode=)."
            )
        order = data.step.argsort(stable=True)
        order = order[data.episode[order].argsort(stable=True)]
        order = order[data.episode[order] >= 0]
        episode, step = data.episode[order], data.step[order]
        if len(episode) == 0 or bool((episode == episode[0]).all()):
            raise InputError("new episodes are made of two recorded ones or more, and these rows are of fewer.")
        state, next_state = data.state[order], data.next_state[order]
        goes_on = torch.zeros(len(order), dtype=torch.bool, device=data.device)
        goes_on[:-1] = (episode[1:] == episode[:-1]) & (step[1:] == step[:-1] + 1)
        goes_on[:-1] &= (next_state[:-1].view(torch.int32) == state[1:].view(torch.int32)).all(1)
        if not bool(goes_on.any()):
            raise InputError(
                "in no episode is a row's next state the state of the next step, to the bit, so that no two steps "
                "follow one another. Are steps missing, or are next states recorded apart?"
            )
        return Walks(graph, data.rows[order], next_state, episode, step, goes_on, resting)

    @cached_property
    def after(self) -> Tensor:
        """How many steps (N,) follow a row in its episode, without a gap."""
        last = (~self.goes_on).nonzero()[:, 0]
        here = torch.arange(len(self.rows), device=last.device)
        return last[torch.searchsorted(last, here)] - here

    @cached_property
    def rests(self) -> Tensor:
        """Which factors of a row stay where they are in this step and the next, (N, parents); actions never do."""
        state = self.rows[:, : self.next_state.shape[1]]
        still = (self.next_state - state).abs() <= self.resting * state.abs().amax(0)
        found = torch.zeros(len(self.rows), len(self.graph.parents), dtype=torch.bool, device=self.rows.device)
        for number, name in enumerate(self.graph.children):
            found[:, number] = still[:, self.graph.factors[name]].all(1)
        # Where a state lacks speeds, what turns around is still for one step, and not for two.
        found[:-1] &= found[1:].clone()
        return found & self.goes_on[:, None]

    @cached_property
    def mask(self) -> Tensor:
        """The edges at each row, bool (N, parents, children)."""
        return self.graph.mask(self.rows)

    @cached_property
    def owner(self) -> Tensor:
        """The factor of each column, (S + A,)."""
        return self.graph.owner.to(self.rows.device)

    def gathered(self, values: Tensor, source: Tensor) -> Tensor:
        """Values (M, C) whose factors are those of rows (M, parents), of `rows` or `next_state` (N, C)."""
        columns = torch.arange(values.shape[1], device=values.device)
        return values[source[:, self.owner[: len(columns)]], columns]

    @cached_property
    def before(self) -> Tensor:
        """How many steps (N,) precede it."""
        first = torch.ones_like(self.goes_on)
        first[1:] = ~self.goes_on[:-1]
        here = torch.arange(len(self.rows), device=first.device)
        begins = here[first]
        return here - begins[first.cumsum(0) - 1]


def alone(mask: Tensor, component: Sequence[int]) -> Tensor:
    """Where nothing links factors to others, by masks (N, parents, children): (N,)."""
    _, parents, children = mask.shape
    inside = torch.zeros(parents, dtype=torch.bool, device=mask.device)
    inside[list(component)] = True
    return ~(mask & (inside[:, None] != inside[:children])).any(2).any(1)


def check_resting(resting: float) -> None:
    """Refuses a tolerance that no data can have."""
    if not 0 <= resting < 1:
        raise InputError(f"resting must be 0 or a small share of a column's largest number, got {resting}.")


def first_from_here(flag: Tensor) -> Tensor:
    """The first row of bool (..., N) from each on that has the flag; N: none has."""
    rows = flag.shape[-1]
    number = torch.where(flag, torch.arange(rows, device=flag.device), rows)
    return number.flip(-1).cummin(-1).values.flip(-1)


def donor_notes(source: Tensor, walks: Walks, graph: LocalGraph) -> dict[str, Tensor]:
    """Which recorded episode and step each factor is of: (N,) each, given its row of the walks (N, parents) or -1."""
    notes = {}
    for row, (name, at) in zip(source.T, donor_names(graph), strict=True):
        notes[name], notes[at] = (torch.where(row < 0, -1, values[row]) for values in (walks.episode, walks.step))
    return notes


def own_notes(data: Transitions, graph: LocalGraph) -> dict[str, Tensor]:
    """Notes on recorded rows, which are their own donors."""
    assert data.episode is not None and data.step is not None
    notes = {"recipe": torch.full_like(data.step, RECORDED), "cut": torch.full_like(data.step, ENDED)}
    for name, at in donor_names(graph):
        notes[name], notes[at] = data.episode, data.step
    return notes


def donor_names(graph: LocalGraph) -> list[tuple[str, str]]:
    """The notes on where each factor comes from: the recorded episode and its step."""
    return [(name, name.replace("donor_", "donor_step_", 1)) for name in donor_columns(graph)]


def reasons(cut: Tensor, said: dict[int, str]) -> dict[str, Any]:
    """Why episodes (E,) go no further, and how many do not for each reason."""
    return {str(why): {"why": words, "episodes": int((cut == why).sum())} for why, words in said.items()}
