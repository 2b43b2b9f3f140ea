"""Recipe "coda" for episodes: two recorded ones exchange a component for as long as nothing links it to the rest.

What rests in its own episode rests in another one too, until something touches it: it is taken over from one row, and
the new episode is as long as the other recorded one allows.
"""

from __future__ import annotations

from typing import NamedTuple

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
    join,
    own_notes,
    reasons,
    select,
)
from mocoda.augmentation.support import recipe_number
from mocoda.data.transitions import Transitions, count_steps
from mocoda.engine.errors import InputError
from mocoda.engine.progress import Progress
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import connected_components

FEWEST, MOST = 64, 1_024  # exchanges of a batch
SPAN = 32  # steps of each that are looked at together
CUTS = {
    ENDED: "one of the recorded episodes ends, or lacks the next step",
    LINKED: "an edge links the exchanged factors to others in one of the recorded episodes",
    MET: "an edge links the exchanged factors to others in the new row only",
    LONG: "it has as many steps as asked for",
}


def exchange(data: Transitions, walks: Walks, n: int, length: int | None, stream: Stream, progress: Progress) -> Made:
    """n episodes, each made of two recorded ones."""
    found: list[Stretches] = []
    have = 0
    for attempt in range(ATTEMPTS):
        found.append(_try(walks, min(MOST, max(FEWEST, n - have)), length, stream.child("exchange", attempt)))
        have += len(found[-1].steps)
        progress("episodes", min(have, n), n)
        if have >= n:
            return as_rows(data, walks, select(join(found), slice(n)), torch.arange(n, device=data.device))
    raise InputError(
        f"recipe 'coda' found {have} of {n} episodes in {ATTEMPTS:,} attempts: in these episodes the local graphs "
        f"connect everything, or leave nothing unconnected for {SHORTEST} steps."
    )


def as_rows(data: Transitions, walks: Walks, made: Stretches, number: Tensor, skipped: Tensor | None = None) -> Made:
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
    rows, still = walks.gathered(walks.rows, source), still[:, walks.owner[:states]]
    notes = {"recipe": torch.full_like(which, recipe_number("coda")), "cut": made.cut[which]}
    ends = made.cut[torch.searchsorted(number, number.unique())]  # all stretches of an episode say the same
    return Made(
        rows,
        torch.where(still, rows[:, :states], walks.gathered(walks.next_state, source)),
        number[which],
        step,
        notes | donor_notes(source, walks, walks.graph),
        lambda: own_notes(data, walks.graph),
        {"cut": reasons(ends, CUTS)},
    )


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


def _try(walks: Walks, n: int, length: int | None, stream: Stream) -> Stretches:
    """At most n exchanges: each is drawn as one between two rows, and reaches as far as it can."""
    base, donor = stream.integers(len(walks.rows), 2, n)
    parents = len(walks.graph.parents)
    kinds, kind = torch.unique(walks.mask[base] | walks.mask[donor], dim=0, return_inverse=True)
    # A factor goes with its own next value, whether or not an edge links the two.
    own = torch.eye(parents, len(walks.graph.children), dtype=torch.bool, device=kinds.device)
    label = connected_components(kinds | own)[kind][:, :parents]
    taken = label == label.gather(1, stream.integers(parents, n, 1))
    sound = (walks.episode[base] != walks.episode[donor]) & ~taken.all(1)
    # What rests in one of the two rows is given to the other one, which goes on: what nothing touches goes on resting.
    turned = (walks.rests[base] | taken).all(1) & ~(walks.rests[donor] | ~taken).all(1)
    base, donor = torch.where(turned, donor, base), torch.where(turned, base, donor)
    taken = taken ^ turned[:, None]
    moves = (~(walks.rests[donor] | ~taken).all(1)).long()
    rows, whose = torch.stack([base, donor], 1), taken.long()
    sound &= hindrance(walks, rows, whose) == GOES_ON
    drawn = select(Stretches(rows, whose, torch.stack([torch.ones_like(moves), moves], 1), base, base), sound)
    most = None if length is None else torch.full_like(drawn.steps, length - 1)
    back, _ = reach(walks, drawn, -1, most)
    ahead, cut = reach(walks, drawn, 1, most)
    steps, skipped = back + ahead + 1, torch.zeros_like(back)
    if length is not None:
        room = (steps - length).clamp(min=0)
        skipped = (stream.child("window").uniform(len(room)) * (room + 1)).long().minimum(room)
        cut = torch.where(skipped < room, LONG, cut)
        steps = steps.clamp(max=length)
    first = (skipped - back)[:, None] * drawn.moves
    return select(drawn._replace(rows=drawn.rows + first, steps=steps, cut=cut), steps >= SHORTEST)


def reach(walks: Walks, drawn: Stretches, way: int, most: Tensor | None) -> tuple[Tensor, Tensor]:
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
        why = hindrance(walks, there, drawn.whose[which])
        if most is not None:
            why[(step > most[which]) & (why == GOES_ON)] = LONG
        stops = (why != GOES_ON).nonzero()[:, 0]
        end = torch.full_like(active, len(place)).scatter_reduce(0, place[stops], stops, "amin")
        stopped = end < len(place)
        steps[active] = torch.where(stopped, step[end.clamp(max=len(place) - 1)] - 1, steps[active] + span)
        cut[active[stopped]] = why[end[stopped]]
        active = active[~stopped & (steps[active] < room[active])]
    return steps, cut


def hindrance(walks: Walks, rows: Tensor, whose: Tensor) -> Tensor:
    """Why rows (M, K) cannot make one, with factors (M, parents) of each: (M,) LINKED, MET, or GOES_ON if they can."""
    if len(rows) == 0:
        return rows[:, 0]
    graph = walks.graph
    parent, child = whose[:, :, None], whose[:, None, : len(graph.children)]
    edges = torch.zeros(len(rows), len(graph.parents), len(graph.children), dtype=torch.bool, device=rows.device)
    linked = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
    for number in range(rows.shape[1]):
        mask = walks.mask[rows[:, number]]
        linked |= (mask & ((parent == number) != (child == number))).any((1, 2))
        edges |= mask & (child == number)
    # Every child must depend in the new row on what it depended on where it comes from.
    met = (graph.mask(walks.gathered(walks.rows, rows.gather(1, whose))) != edges).any((1, 2))
    return torch.where(linked, LINKED, torch.where(met, MET, GOES_ON))
