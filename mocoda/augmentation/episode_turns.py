"""Recipe "coda" for episodes in turns: what was handled in one recorded episode, then what in another, in a new one.

While a thing is handled after one of the two, what the other one handles rests; then it is the other's turn. Nothing is
asked of a model: every row is one of "coda". What the actions move directly, such as a robot, is not quite in the same
place in both where the turn changes, and the steps in which it would get there are missing: the second episode is one
that comes near to where the first one waits.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mocoda.augmentation.episode_exchange import CUTS, Exchanges, as_rows, hindrance, reach
from mocoda.augmentation.episode_handovers import RESTS, Rests, Robot, describe
from mocoda.augmentation.episode_walks import ATTEMPTS, ENDED, GOES_ON, LONG, TURNED, Made, Walks, reasons
from mocoda.engine.errors import InputError
from mocoda.engine.progress import Progress
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph

FEWEST, MOST = 256, 4_096  # recorded episodes of a batch, for each of which another one is sought
HOPELESS = 100  # batches without an episode, after which no more are tried


def take_turns(
    walks: Walks,
    graph: LocalGraph,
    resting: Tensor,
    n: int,
    length: int | None,
    stream: Stream,
    progress: Progress,
) -> Made:
    """n episodes, each made of two recorded ones: of one until it waits, and then of the other.

    resting  (N, parents), what rests in each row of the walks, and so in other episodes too
    """
    things = _things(graph)
    breaks = _Breaks.of(walks, graph, resting, things)
    robot = Robot.of(walks, graph, things)
    rests = breaks.rests(walks)
    found: list[_Pairs] = []
    have = 0
    for attempt in range(ATTEMPTS):
        part = stream.child("turns", attempt)
        first = _draw(walks, breaks, len(things), min(MOST, max(FEWEST, 3 * (n - have))), length, part)
        found.append(_matched(walks, graph, breaks, rests, robot, things, first, part))
        have += len(found[-1].wait)
        progress("episodes", min(have, n), n)
        if have >= n or (attempt >= HOPELESS and not have):
            break
    if have < n:
        raise InputError(
            f"recipe 'coda' found {have} of {n} episodes in turns in {attempt + 1:,} attempts. They take two recorded "
            "episodes in which different things are handled, and come to rest in between; raise `resting` if what lies "
            "still moves in its last digits."
        )
    pairs = _Pairs(*(torch.cat(arrays)[:n] for arrays in zip(*found, strict=True)))
    legs, number = _legs(walks, graph, breaks, things, pairs, length)
    handed_over = torch.arange(2, device=number.device).repeat(n)
    made = as_rows(walks, graph, legs, number, handed_over)
    told = {
        "cut": reasons(legs.cut[::2], CUTS | {TURNED: "both have had their turn"}),
        "handovers": describe(robot.gap(pairs.wait, pairs.other)),
    }
    return made._replace(source=made.source | told)


def _things(graph: LocalGraph) -> list[int]:
    """The children that actions do not move directly: which depend on none in the sparsest graph."""
    things = [i for i, child in enumerate(graph.children) if not set(graph.edges[child]) & set(graph.action)]
    if len(things) < 2:
        names = ", ".join(graph.children[thing] for thing in things) or "none"
        raise InputError(
            "episodes in turns need two or more factors that depend on no action in the sparsest graph, such as the "
            f"objects that a robot handles; this graph has {names}."
        )
    return things


class _Breaks(NamedTuple):
    """Where one episode can wait for another: its things rest, and touch nothing.

    By side, thing and row, (2, T, N). Side 0 has all things but the one, side 1 the one alone.

    free  the first row from here on in which the side's things are at rest; N where there is none
    busy  the first in which one of them is not
    """

    free: Tensor
    busy: Tensor

    @staticmethod
    def of(walks: Walks, graph: LocalGraph, resting: Tensor, things: list[int]) -> _Breaks:
        mask = graph.mask(walks.rows)
        at_rest = []
        for thing in things:
            others = [i for i in range(len(graph.parents)) if i != thing]
            children = [i for i in others if i < len(graph.children)]
            touched = mask[:, thing, children].any(1) | mask[:, others, thing].any(1)
            at_rest.append(resting[:, thing] & ~touched)
        one = torch.stack(at_rest)  # (T, N)
        rest = torch.stack([torch.cat([one[:i], one[i + 1 :]]).all(0) for i in range(len(things))])
        both = torch.stack([rest, one])
        return _Breaks(_first_from_here(both), _first_from_here(~both))

    def rest(self, walks: Walks, side: Tensor, thing: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        """The rows in which an episode that goes on from a row (E,) can wait again, having handled something.

        The first of them, (E,), and how many they are; 0: it never can.
        """
        last = row + walks.after[row]
        busy = self.busy[side, thing, row]
        begin = self.free[side, thing, busy.minimum(last)]
        found = (busy <= last) & (begin <= last)
        begin = torch.where(found, begin, row)
        end = self.busy[side, thing, begin].minimum(last + 1)
        return begin, torch.where(found, end - begin, 0)

    def rests(self, walks: Walks) -> list[list[Rests]]:
        """By side and thing, where an episode can wait that goes on to handle something and can wait again."""
        every, found = torch.arange(len(walks.rows), device=self.free.device), []
        for side in range(2):
            of_side = []
            for thing in range(self.free.shape[1]):
                rows = every[self.free[side, thing] == every]
                sides, numbers = torch.full_like(rows, side), torch.full_like(rows, thing)
                rows = rows[self.rest(walks, sides, numbers, rows)[1] > 0]
                number = self.busy[side, thing, rows].unique_consecutive(return_inverse=True)[1]
                first = torch.searchsorted(number, number.unique())
                of_side.append(Rests(rows, number, walks.episode[rows[first]]))
            found.append(of_side)
        return found


def _first_from_here(flag: Tensor) -> Tensor:
    """The first row of bool (..., N) from each on that has the flag; N: none has."""
    rows = flag.shape[-1]
    number = torch.where(flag, torch.arange(rows, device=flag.device), rows)
    return number.flip(-1).cummin(-1).values.flip(-1)


class _Firsts(NamedTuple):
    """Recorded episodes, each of which goes on from a row in which its things rest, handles one and waits.

    row          (E,)
    thing        (E,), what side 1 handles
    turn         (E,), the side that the episode is of
    begin, room  (E,), the first row in which it can wait, and how many there are
    look         (E,), one of them
    """

    row: Tensor
    thing: Tensor
    turn: Tensor
    begin: Tensor
    room: Tensor
    look: Tensor

    def select(self, index: Tensor) -> _Firsts:
        return _Firsts(*(array[index] for array in self))


def _draw(walks: Walks, breaks: _Breaks, things: int, n: int, length: int | None, stream: Stream) -> _Firsts:
    """At most n, from random rows on; if a new episode has so many steps, with at most half of them in the first."""
    row, thing, turn = stream.integers(len(walks.rows), n), stream.integers(things, n), stream.integers(2, n)
    row, chance = breaks.free[turn, thing, row], stream.uniform(n)
    sound = row < len(walks.rows)
    row, thing, turn, chance = row[sound], thing[sound], turn[sound], chance[sound]
    begin, room = breaks.rest(walks, turn, thing, row)
    if length is not None:
        room = room.clamp(max=length // 2)
        row = row.maximum(begin + room - 1 - length // 2)
    look = begin + (room * chance).long().minimum(room - 1)
    return _Firsts(row, thing, turn, begin, room, look).select(room > 0)


class _Pairs(NamedTuple):
    """Two recorded episodes each: the first from `row` (E,) to before `wait` (E,), the second from `other` (E,) on."""

    row: Tensor
    thing: Tensor
    turn: Tensor
    wait: Tensor
    other: Tensor


def _matched(
    walks: Walks,
    graph: LocalGraph,
    breaks: _Breaks,
    rests: list[list[Rests]],
    robot: Robot,
    things: list[int],
    first: _Firsts,
    stream: Stream,
) -> _Pairs:
    """With each, of the other episodes whose robot is near where it waits, the nearest that lets both have their turn.

    The very nearest often has its thing in the way. Where none of the nearest few fits, there is no pair.
    """
    near = first.row.new_full((len(first.row), RESTS), -1)
    for side in range(2):
        for number, able in enumerate(rests[side]):
            asks = (first.turn != side) & (first.thing == number)
            near[asks] = robot.nearest_of_others(first.look[asks], able, stream.child("near", side, number))
    other, waits = torch.full_like(first.row, -1), first.look.clone()
    for rank in range(RESTS):
        tried = ((other < 0) & (near[:, rank] >= 0)).nonzero()[:, 0]
        own, there = first.select(tried), near[tried, rank]
        wait = robot.nearest_of(own.begin, own.room, there, stream.child("wait", rank))
        handled = breaks.rest(walks, 1 - own.turn, own.thing, there)[0]
        fits = _goes_through(walks, graph, own.row, there, _taken(graph, things, own.thing, own.turn), wait)
        left = fits.nonzero()[:, 0]
        of_other = _taken(graph, things, own.thing[left], 1 - own.turn[left])
        fits[left] = _goes_through(walks, graph, there[left], wait[left], of_other, handled[left])
        other[tried[fits]], waits[tried[fits]] = there[fits], wait[fits]
    found = other >= 0
    return _Pairs(*(array[found] for array in (first.row, first.thing, first.turn, waits, other)))


def _goes_through(walks: Walks, graph: LocalGraph, base: Tensor, donor: Tensor, taken: Tensor, end: Tensor) -> Tensor:
    """Whether nothing hinders an exchange from its first row (E,) to before another one (E,)."""
    return _unhindered(walks, graph, _leg(base, donor, taken), end - base)[0] == end - base


def _taken(graph: LocalGraph, things: list[int], thing: Tensor, turn: Tensor) -> Tensor:
    """The factors (E, parents) that rest while it is a side's turn (E,): what the other one handles."""
    one = torch.zeros(len(things), len(graph.parents), dtype=torch.bool, device=thing.device)
    one[range(len(things)), things] = True
    return torch.where(turn[:, None] == 0, one[thing], one.any(0) & ~one[thing])


def _leg(base: Tensor, donor: Tensor, taken: Tensor) -> Exchanges:
    """Stretches (E,) in which what is taken rests; their steps, and why they end, are yet to find."""
    return Exchanges(base, donor, taken, torch.zeros_like(base), base, base)


def _legs(
    walks: Walks, graph: LocalGraph, breaks: _Breaks, things: list[int], pairs: _Pairs, length: int | None
) -> tuple[Exchanges, Tensor]:
    """Both stretches of every pair, one after the other, and the episode (2 E,) that each is of.

    The second handles its thing twice, if it can: with more of it, the steps around the handover would be rarer.
    """
    row, thing, turn, wait, other = pairs
    one = _leg(row, other, _taken(graph, things, thing, turn))._replace(steps=wait - row)
    begin, count = breaks.rest(walks, 1 - turn, thing, other)
    again, more = breaks.rest(walks, 1 - turn, thing, begin + count - 1)
    end = torch.where(more > 0, again + more, other + walks.after[other] + 1)
    wanted = end - other
    long = torch.zeros_like(wanted, dtype=torch.bool)
    if length is not None:
        long, wanted = wanted > length - one.steps, wanted.minimum(length - one.steps)
    two = _leg(other, wait, _taken(graph, things, thing, 1 - turn))
    made, why = _unhindered(walks, graph, two, wanted)
    cut = torch.where(made == wanted, torch.where(long, LONG, TURNED), why)
    both = zip(one._replace(cut=cut), two._replace(steps=made, cut=cut), strict=True)
    legs = Exchanges(*(torch.stack(arrays, 1).flatten(0, 1) for arrays in both))
    return legs, torch.arange(len(row), device=row.device).repeat_interleave(2)


def _unhindered(walks: Walks, graph: LocalGraph, drawn: Exchanges, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """How many of the wanted steps (E,) an exchange makes from its first row on, and why it makes no more (E,)."""
    why = torch.where(wanted > 0, hindrance(walks, graph, drawn.base, drawn.donor, drawn.taken), ENDED)
    begins = why == GOES_ON
    made = torch.zeros_like(wanted)
    ahead, why[begins] = reach(walks, graph, drawn.select(begins), 1, wanted[begins] - 1)
    made[begins] = 1 + ahead
    return made, why
