"""Recipe "coda" for episodes: two recorded ones exchange a component for as long as nothing links it to the rest.

What rests in its own episode rests in another one too, until something touches it: it is taken over from one row, and
the new episode is as long as the other recorded one allows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from mocoda.augmentation.episode_walks import (
    ATTEMPTS,
    ENDED,
    GOES_ON,
    LINKED,
    LONG,
    MET,
    SHORTEST,
    Made,
    Walks,
    donor_notes,
    own_donors,
    reasons,
)
from mocoda.augmentation.support import RECORDED, recipe_number
from mocoda.data.transitions import Transitions, count_steps
from mocoda.engine.errors import InputError
from mocoda.engine.progress import Progress
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph, connected_components

FEWEST, MOST = 64, 1_024  # exchanges of a batch
SPAN = 32  # steps of each that are looked at together
CUTS = {
    ENDED: "one of the recorded episodes ends, or lacks the next step",
    LINKED: "an edge links the exchanged factors to others in one of the recorded episodes",
    MET: "an edge links the exchanged factors to others in the new row only",
    LONG: "it has as many steps as asked for",
}


def exchange(
    walks: Walks,
    graph: LocalGraph,
    resting: Tensor,
    n: int,
    length: int | None,
    stream: Stream,
    progress: Progress,
) -> Made:
    """n episodes, each made of two recorded ones.

    resting  (N, parents), what rests in each row of the walks, and so in other episodes too
    """
    made = _exchanges(walks, graph, resting, n, length, stream, progress)
    return as_rows(walks, graph, made, torch.arange(n, device=made.steps.device))


def as_rows(
    walks: Walks,
    graph: LocalGraph,
    made: Stretches,
    number: Tensor,
    skipped: Tensor | None = None,
) -> Made:
    """The rows of stretches, one after the other.

    number   (E,) the episode that each is of; several of one follow one another in it
    skipped  (E,) steps that are missing before a stretch; none unless given
    """
    which = torch.arange(len(number), device=number.device).repeat_interleave(made.steps)
    step = count_steps(number[which])
    if skipped is not None:
        missing = skipped.cumsum(0)
        first = torch.searchsorted(number, number)  # of its episode
        step += (missing - (missing - skipped)[first])[which]
    whose, moves = made.whose[which], made.moves[which]
    source = (made.rows[which] + count_steps(which)[:, None] * moves).gather(1, whose)  # (N, parents)
    states, still = walks.next_state.shape[1], moves.gather(1, whose) == 0
    rows, still = _gathered(walks.rows, source, graph), still[:, _owners(graph, states, still.device)]
    notes = {"recipe": torch.full_like(which, recipe_number("coda")), "cut": made.cut[which]}
    ends = made.cut[torch.searchsorted(number, number.unique())]  # all stretches of an episode say the same
    return Made(
        rows,
        torch.where(still, rows[:, :states], _gathered(walks.next_state, source, graph)),
        number[which],
        step,
        notes | donor_notes(source, walks, graph),
        lambda data: _recorded(data, graph),
        {"cut": reasons(ends, CUTS)},
    )


def _recorded(data: Transitions, graph: LocalGraph) -> dict[str, Tensor]:
    assert data.step is not None
    zero = torch.zeros_like(data.step)
    return {"recipe": zero + RECORDED, "cut": zero + ENDED, **own_donors(data, graph)}


class Stretches(NamedTuple):
    """E stretches of new episodes, each made of K recorded ones.

    rows   (E, K) the first row of each recorded one, among those of the walks
    whose  (E, parents), which of the K each factor comes from
    moves  (E, K) by how many rows each goes on with every step: 1, or 0 where what comes from it rests
    steps  (E,)
    cut    (E,) why its episode goes no further
    """

    rows: Tensor
    whose: Tensor
    moves: Tensor
    steps: Tensor
    cut: Tensor

    def select(self, index: Any) -> Stretches:
        return Stretches(*(array[index] for array in self))


def _exchanges(
    walks: Walks,
    graph: LocalGraph,
    resting: Tensor,
    n: int,
    length: int | None,
    stream: Stream,
    progress: Progress,
) -> Stretches:
    found: list[Stretches] = []
    have = 0
    for attempt in range(ATTEMPTS):
        count, own = min(MOST, max(FEWEST, n - have)), stream.child("exchange", attempt)
        new = _try(walks, graph, resting, count, length, own)
        found.append(new)
        have += len(new.steps)
        progress("episodes", min(have, n), n)
        if have >= n:
            joined = Stretches(*(torch.cat(arrays) for arrays in zip(*found, strict=True)))
            return joined.select(slice(n))
    raise InputError(
        f"recipe 'coda' found {have} of {n} episodes in {ATTEMPTS:,} attempts: in these episodes the local graphs "
        f"connect everything, or leave nothing unconnected for {SHORTEST} steps."
    )


def _try(walks: Walks, graph: LocalGraph, resting: Tensor, n: int, length: int | None, stream: Stream) -> Stretches:
    """At most n exchanges: each is drawn as one between two rows, and reaches as far as it can."""
    base, donor = stream.integers(len(walks.rows), 2, n)
    parents = len(graph.parents)
    kinds, kind = torch.unique(graph.mask(walks.rows[base]) | graph.mask(walks.rows[donor]), dim=0, return_inverse=True)
    # A factor goes with its own next value, whether or not an edge links the two.
    own = torch.eye(parents, len(graph.children), dtype=torch.bool, device=kinds.device)
    label = connected_components(kinds | own)[kind][:, :parents]
    taken = label == label.gather(1, stream.integers(parents, n, 1))
    sound = (walks.episode[base] != walks.episode[donor]) & ~taken.all(1)
    # What rests in one of the two rows is given to the other one, which goes on: what nothing touches goes on resting.
    turned = (resting[base] | taken).all(1) & ~(resting[donor] | ~taken).all(1)
    base, donor = torch.where(turned, donor, base), torch.where(turned, base, donor)
    taken = taken ^ turned[:, None]
    moves = (~(resting[donor] | ~taken).all(1)).long()
    rows, whose = torch.stack([base, donor], 1), taken.long()
    sound &= hindrance(walks, graph, rows, whose) == GOES_ON
    drawn = Stretches(rows, whose, torch.stack([torch.ones_like(moves), moves], 1), base, base).select(sound)
    most = None if length is None else torch.full_like(drawn.steps, length - 1)
    back, _ = reach(walks, graph, drawn, -1, most)
    ahead, cut = reach(walks, graph, drawn, 1, most)
    steps, skipped = back + ahead + 1, torch.zeros_like(back)
    if length is not None:
        room = (steps - length).clamp(min=0)
        skipped = (stream.child("window").uniform(len(room)) * (room + 1)).long().minimum(room)
        cut = torch.where(skipped < room, LONG, cut)
        steps = steps.clamp(max=length)
    first = (skipped - back)[:, None] * drawn.moves
    made = drawn._replace(rows=drawn.rows + first, steps=steps, cut=cut)
    return made.select(steps >= SHORTEST)


def reach(walks: Walks, graph: LocalGraph, drawn: Stretches, way: int, most: Tensor | None) -> tuple[Tensor, Tensor]:
    """How many steps (E,) a stretch reaches, ahead (way 1) or back (-1), at most so many (E,), and why no further."""
    run = walks.after if way > 0 else walks.before
    room = torch.where(drawn.moves == 0, len(walks.rows), run[drawn.rows]).amin(1)
    if most is not None:
        room = room.minimum(most + 1)
    steps, cut = torch.zeros_like(room), torch.full_like(room, ENDED)
    active = (room > 0).nonzero()[:, 0]
    while len(active):
        # Many steps at a time: the first that is hindered ends the stretch.
        span = (room[active] - steps[active]).clamp(max=SPAN)
        place = torch.arange(len(active), device=active.device).repeat_interleave(span)
        which, first = active[place], (span.cumsum(0) - span)[place]
        step = steps[which] + 1 + torch.arange(len(place), device=place.device) - first
        there = drawn.rows[which] + way * step[:, None] * drawn.moves[which]
        why = hindrance(walks, graph, there, drawn.whose[which])
        if most is not None:
            why[(step > most[which]) & (why == GOES_ON)] = LONG
        stops = (why != GOES_ON).nonzero()[:, 0]
        end = torch.full_like(active, len(place)).scatter_reduce(0, place[stops], stops, "amin")
        stopped = end < len(place)
        steps[active] = torch.where(stopped, step[end.clamp(max=len(place) - 1)] - 1, steps[active] + span)
        cut[active[stopped]] = why[end[stopped]]
        active = active[~stopped & (steps[active] < room[active])]
    return steps, cut


def hindrance(walks: Walks, graph: LocalGraph, rows: Tensor, whose: Tensor) -> Tensor:
    """Why rows (M, K) cannot make one, with factors (M, parents) of each: (M,) LINKED, MET, or GOES_ON if they can."""
    if len(rows) == 0:
        return rows[:, 0]
    parent, child = whose[:, :, None], whose[:, None, : len(graph.children)]
    edges = torch.zeros(len(rows), len(graph.parents), len(graph.children), dtype=torch.bool, device=rows.device)
    linked = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
    for number in range(rows.shape[1]):
        mask = graph.mask(walks.rows[rows[:, number]])
        linked |= (mask & ((parent == number) != (child == number))).any((1, 2))
        edges |= mask & (child == number)
    # Every child must depend in the new row on what it depended on where it comes from.
    met = (graph.mask(_gathered(walks.rows, rows.gather(1, whose), graph)) != edges).any((1, 2))
    return torch.where(linked, LINKED, torch.where(met, MET, GOES_ON))


def _gathered(values: Tensor, source: Tensor, graph: LocalGraph) -> Tensor:
    """Rows, or next states, (M, C) whose factors are those of the rows of the walks (M, parents)."""
    columns = torch.arange(values.shape[1], device=values.device)
    return values[source[:, _owners(graph, len(columns), values.device)], columns]


def _owners(graph: LocalGraph, width: int, device: torch.device) -> Tensor:
    """The factor that each of the first columns is of."""
    owner = {column: number for number, name in enumerate(graph.parents) for column in graph.factors[name]}
    return torch.tensor([owner[column] for column in range(width)], device=device)
