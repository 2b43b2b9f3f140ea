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
    reasons,
)
from mocoda.augmentation.provenance import RECORDED, recipe_number, set_number
from mocoda.data.transitions import Transitions, count_steps
from mocoda.engine.errors import InputError
from mocoda.engine.progress import Progress
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph, connected_components

FEWEST, MOST = 64, 1_024  # exchanges of a batch
SPAN = 32  # steps of each that are looked at together
CUTS = {
    ENDED: "one of the two recorded episodes ends, or lacks the next step",
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
    made: Exchanges,
    number: Tensor,
    skipped: Tensor | None = None,
) -> Made:
    """The rows of exchanges, one after the other.

    number   (E,) the episode that each is of; several of one follow one another in it
    skipped  (E,) steps that are missing before an exchange; none unless given
    """
    which = torch.arange(len(number), device=number.device).repeat_interleave(made.steps)
    place = count_steps(which)
    base, donor = made.base[which] + place, made.donor[which] + place * made.moves[which]
    step = count_steps(number[which])
    if skipped is not None:
        missing = skipped.cumsum(0)
        first = torch.searchsorted(number, number)  # of its episode
        step += (missing - (missing - skipped)[first])[which]
    notes = {
        "recipe": torch.full_like(which, recipe_number("coda")),
        "base": walks.episode[base],
        "base_step": walks.step[base],
        "donor": walks.episode[donor],
        "donor_step": walks.step[donor],
        "exchanged": set_number(made.taken)[which],
        "cut": made.cut[which],
    }
    given, states, taken = walks.rows[donor], walks.next_state.shape[1], made.taken[which]
    given_next = torch.where(made.moves[which, None] == 0, given[:, :states], walks.next_state[donor])
    ends = made.cut[torch.searchsorted(number, number.unique())]  # all exchanges of an episode say the same
    return Made(
        _combined(walks.rows[base], given, graph, taken),
        _combined(walks.next_state[base], given_next, graph, taken),
        number[which],
        step,
        notes,
        _recorded,
        {"exchanged": _sets(graph, made.taken), "cut": reasons(ends, CUTS)},
    )


def _recorded(data: Transitions) -> dict[str, Tensor]:
    assert data.episode is not None and data.step is not None
    none, zero = torch.full_like(data.step, -1), torch.zeros_like(data.step)
    same = {"donor": none, "donor_step": none, "exchanged": zero, "cut": torch.full_like(zero, ENDED)}
    return {"recipe": torch.full_like(zero, RECORDED), "base": data.episode, "base_step": data.step, **same}


class Exchanges(NamedTuple):
    """E stretches of new episodes, each made of two recorded ones.

    base   (E,) the first row of the one that goes on, among those of the walks
    donor  (E,) the first row of the other one
    taken  (E, parents), the factors that come from the donor
    moves  (E,) by how many rows the donor goes on with every step: 1, or 0 where these factors rest
    steps  (E,)
    cut    (E,) why its episode goes no further
    """

    base: Tensor
    donor: Tensor
    taken: Tensor
    moves: Tensor
    steps: Tensor
    cut: Tensor

    def select(self, index: Any) -> Exchanges:
        return Exchanges(*(array[index] for array in self))


def _exchanges(
    walks: Walks,
    graph: LocalGraph,
    resting: Tensor,
    n: int,
    length: int | None,
    stream: Stream,
    progress: Progress,
) -> Exchanges:
    found: list[Exchanges] = []
    have = 0
    for attempt in range(ATTEMPTS):
        count, own = min(MOST, max(FEWEST, n - have)), stream.child("exchange", attempt)
        new = _try(walks, graph, resting, count, length, own)
        found.append(new)
        have += len(new.steps)
        progress("episodes", min(have, n), n)
        if have >= n:
            joined = Exchanges(*(torch.cat(arrays) for arrays in zip(*found, strict=True)))
            return joined.select(slice(n))
    raise InputError(
        f"recipe 'coda' found {have} of {n} episodes in {ATTEMPTS:,} attempts: in these episodes the local graphs "
        f"connect everything, or leave nothing unconnected for {SHORTEST} steps."
    )


def _try(walks: Walks, graph: LocalGraph, resting: Tensor, n: int, length: int | None, stream: Stream) -> Exchanges:
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
    sound &= hindrance(walks, graph, base, donor, taken) == GOES_ON
    drawn = Exchanges(base, donor, taken, moves, base, base).select(sound)
    most = None if length is None else torch.full_like(drawn.base, length - 1)
    back, _ = reach(walks, graph, drawn, -1, most)
    ahead, cut = reach(walks, graph, drawn, 1, most)
    steps, skipped = back + ahead + 1, torch.zeros_like(back)
    if length is not None:
        room = (steps - length).clamp(min=0)
        skipped = (stream.child("window").uniform(len(room)) * (room + 1)).long().minimum(room)
        cut = torch.where(skipped < room, LONG, cut)
        steps = steps.clamp(max=length)
    first = skipped - back
    made = drawn._replace(base=drawn.base + first, donor=drawn.donor + first * drawn.moves, steps=steps, cut=cut)
    return made.select(steps >= SHORTEST)


def reach(walks: Walks, graph: LocalGraph, drawn: Exchanges, way: int, most: Tensor | None) -> tuple[Tensor, Tensor]:
    """How many steps (E,) an exchange reaches, ahead (way 1) or back (-1), at most so many (E,), and why no further."""
    run = walks.after if way > 0 else walks.before
    room = torch.where(drawn.moves == 0, run[drawn.base], run[drawn.base].minimum(run[drawn.donor]))
    if most is not None:
        room = room.minimum(most + 1)
    steps, cut = torch.zeros_like(drawn.base), torch.full_like(drawn.base, ENDED)
    active = (room > 0).nonzero()[:, 0]
    while len(active):
        # Many steps at a time: the first that is hindered ends the exchange.
        span = (room[active] - steps[active]).clamp(max=SPAN)
        place = torch.arange(len(active), device=active.device).repeat_interleave(span)
        which, first = active[place], (span.cumsum(0) - span)[place]
        step = steps[which] + 1 + torch.arange(len(place), device=place.device) - first
        there = drawn.base[which] + way * step, drawn.donor[which] + way * step * drawn.moves[which]
        why = hindrance(walks, graph, *there, drawn.taken[which])
        if most is not None:
            why[(step > most[which]) & (why == GOES_ON)] = LONG
        stops = (why != GOES_ON).nonzero()[:, 0]
        end = torch.full_like(active, len(place)).scatter_reduce(0, place[stops], stops, "amin")
        stopped = end < len(place)
        steps[active] = torch.where(stopped, step[end.clamp(max=len(place) - 1)] - 1, steps[active] + span)
        cut[active[stopped]] = why[end[stopped]]
        active = active[~stopped & (steps[active] < room[active])]
    return steps, cut


def hindrance(walks: Walks, graph: LocalGraph, base: Tensor, donor: Tensor, taken: Tensor) -> Tensor:
    """Why a row (M,) cannot take factors (M, parents) over from another one (M,): LINKED, MET, or GOES_ON if it can."""
    if len(base) == 0:
        return base
    one, other = graph.mask(walks.rows[base]), graph.mask(walks.rows[donor])
    child = taken[:, None, : len(graph.children)]
    linked = ((one | other) & (taken[:, :, None] != child)).any((1, 2))
    # Every child must depend in the new row on what it depended on where it comes from.
    new = graph.mask(_combined(walks.rows[base], walks.rows[donor], graph, taken))
    met = (new != torch.where(child, other, one)).any((1, 2))
    return torch.where(linked, LINKED, torch.where(met, MET, GOES_ON))


def _combined(values: Tensor, given: Tensor, graph: LocalGraph, taken: Tensor) -> Tensor:
    """Rows, or next states, (M, C) in which some factors (M, parents) are as given (M, C)."""
    owner = {column: number for number, name in enumerate(graph.parents) for column in graph.factors[name]}
    of_column = torch.tensor([owner[column] for column in range(values.shape[1])], device=values.device)
    return torch.where(taken[:, of_column], given, values)


def _sets(graph: LocalGraph, taken: Tensor) -> dict[str, Any]:
    """What the numbers in `exchanged` stand for, and how many episodes have each."""
    kinds, counts = taken.unique(dim=0, return_counts=True)
    described = {}
    for number, kind, count in zip(set_number(kinds).tolist(), kinds.tolist(), counts.tolist(), strict=True):
        factors = [name for name, inside in zip(graph.parents, kind, strict=True) if inside]
        described[str(number)] = {"factors": factors, "episodes": count}
    return described
