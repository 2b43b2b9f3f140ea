"""Recipe "coda" for episodes in turns: what was handled in one recorded episode, and what in another, in one new one.

While a thing is handled after one of the two, what the other one handles rests; then it is the other's turn. Nothing is
asked of a model: every row is one of "coda". But what the actions move directly, such as a robot, jumps from where one
episode has it to where the other does, and the steps in which it would get there are missing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mocoda.augmentation.episode_exchange import Exchanges, as_rows, hindrance, reach
from mocoda.augmentation.episode_walks import ATTEMPTS, ENDED, GOES_ON, LONG, SHORTEST, Made, Walks, first_from_here
from mocoda.engine.errors import InputError
from mocoda.engine.progress import Progress
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph

FEWEST, MOST = 256, 4_096  # pairs of recorded episodes of a batch
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
    """n episodes, each made of two recorded ones that take turns.

    resting  (N, parents), what rests in each row of the walks, and so in other episodes too
    """
    things = _things(graph)
    breaks = _Breaks.of(walks, graph, resting, things)
    found: list[_Turns] = []
    have = 0
    for attempt in range(ATTEMPTS):
        part = stream.child("turns", attempt)
        found.append(_try(walks, graph, breaks, things, min(MOST, max(FEWEST, 8 * (n - have))), length, part))
        number = have + found[-1].number
        found[-1] = found[-1]._replace(number=number)
        have = int(number[-1]) + 1 if len(number) else have
        progress("episodes", min(have, n), n)
        if have >= n or (attempt >= HOPELESS and not have):
            break
    if have < n:
        raise InputError(
            f"recipe 'coda' found {have} of {n} episodes in turns in {attempt + 1:,} attempts. They take two recorded "
            "episodes in which different things are handled, and come to rest in between; raise `resting` if what lies "
            "still moves in its last digits."
        )
    legs = Exchanges(*(torch.cat(arrays) for arrays in zip(*(one.legs for one in found), strict=True)))
    number, skipped = (torch.cat([getattr(one, name) for one in found]) for name in ("number", "skipped"))
    inside = number < n
    return as_rows(walks, graph, legs.select(inside), number[inside], skipped[inside])


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
        return _Breaks(first_from_here(both), first_from_here(~both))

    def leg(self, walks: Walks, side: Tensor, thing: Tensor, row: Tensor, chance: Tensor) -> Tensor:
        """The row (E,) at which an episode that goes on from a row waits again, having handled something; -1: never."""
        last = row + walks.after[row]
        busy = self.busy[side, thing, row]
        begin = self.free[side, thing, busy.minimum(last)]
        end = torch.where(begin <= last, self.busy[side, thing, begin.minimum(last)], 0).minimum(last + 1)
        wait = begin + ((end - begin) * chance).long().clamp(min=0)
        return torch.where((busy <= last) & (begin <= last), wait.minimum(last), -1)


class _Turns(NamedTuple):
    """Stretches (E,) of new episodes, in order: the episode that each is of, and the steps missing before it."""

    legs: Exchanges
    number: Tensor
    skipped: Tensor


def _try(
    walks: Walks, graph: LocalGraph, breaks: _Breaks, things: list[int], n: int, length: int | None, stream: Stream
) -> _Turns:
    """The episodes that n pairs of recorded rows give: some, or none."""
    row = stream.integers(len(walks.rows), n, 2)
    thing, turn = stream.integers(len(things), n), stream.integers(2, n)
    # Each begins where its things rest, and goes on to handle one.
    sides = torch.arange(2, device=row.device)
    row = breaks.free[sides, thing[:, None], row]
    sound = (row < len(walks.rows)).all(1)
    row = torch.where(sound[:, None], row, 0)
    sound &= walks.episode[row[:, 0]] != walks.episode[row[:, 1]]
    never = torch.zeros(n, device=row.device)
    sound &= breaks.leg(walks, sides[:1].expand(n), thing, row[:, 0], never) >= 0
    sound &= breaks.leg(walks, sides[1:].expand(n), thing, row[:, 1], never) >= 0
    which = sound.nonzero()[:, 0]
    row, thing, turn, chain = row[which], thing[which], turn[which], torch.arange(len(which), device=row.device)
    one = torch.zeros(len(things), len(graph.parents), dtype=torch.bool, device=row.device)
    one[range(len(things)), things] = True
    of_things = one.any(0)
    steps, cut = torch.zeros_like(chain), torch.full_like(chain, ENDED)
    stuck, kept, turns = torch.zeros_like(chain, dtype=torch.bool), [], 0
    while turns == 0 or len(chain):
        base, donor = row.gather(1, turn[:, None])[:, 0], row.gather(1, 1 - turn[:, None])[:, 0]
        wait = breaks.leg(walks, turn, thing, base, stream.child("turn", turns).uniform(n)[which])
        turns += 1
        wanted = wait - base if length is None else (wait - base).minimum(length - steps[chain])
        taken = torch.where(turn[:, None] == 0, one[thing], of_things & ~one[thing])
        drawn = Exchanges(base, donor, taken, torch.zeros_like(base), base, base)
        made, why = _unhindered(walks, graph, drawn, wanted)
        whole = made == wait - base
        long = torch.zeros_like(whole) if length is None else steps[chain] + made == length
        # Where its turn is hindered the other one may go on; an episode ends where neither can.
        ends = ~whole & stuck[chain] | long
        taken_over = (whole | ends) & (made > 0)
        kept.append((chain[taken_over], turn[taken_over], drawn._replace(steps=made).select(taken_over)))
        steps[chain[taken_over]] += made[taken_over]
        cut[chain] = torch.where(long, LONG, why)
        stuck[chain] = ~whole
        row = row.scatter(1, turn[:, None], torch.where(whole, wait, base)[:, None])
        goes_on = ~ends
        chain, row, thing, which = chain[goes_on], row[goes_on], thing[goes_on], which[goes_on]
        turn = 1 - turn[goes_on]
    number, side = torch.cat([part[0] for part in kept]), torch.cat([part[1] for part in kept])
    legs = Exchanges(*(torch.cat(arrays) for arrays in zip(*(part[2] for part in kept), strict=True)))
    order = number.argsort(stable=True)
    order = order[steps[number[order]] >= SHORTEST]
    number, side, legs = number[order], side[order], legs.select(order)
    skipped = torch.zeros(len(number), dtype=torch.long, device=number.device)
    skipped[1:] = (number[1:] == number[:-1]) & (side[1:] != side[:-1])
    return _Turns(legs._replace(cut=cut[number]), number.unique_consecutive(return_inverse=True)[1], skipped)


def _unhindered(walks: Walks, graph: LocalGraph, drawn: Exchanges, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """How many of the wanted steps (E,) an exchange makes from its first row on, and why it makes no more (E,)."""
    why = torch.where(wanted > 0, hindrance(walks, graph, drawn.base, drawn.donor, drawn.taken), ENDED)
    begins = why == GOES_ON
    made = torch.zeros_like(wanted)
    ahead, why[begins] = reach(walks, graph, drawn.select(begins), 1, wanted[begins] - 1)
    made[begins] = 1 + ahead
    return made, why
