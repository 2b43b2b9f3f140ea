"""Recipe "coda" for episodes in turns: every thing as it was handled in a recorded episode of its own, in one new one.

While a thing is handled after its episode, the others rest; then it is another's turn. Nothing is asked of a model:
every row is one of "coda". But what the actions move directly, such as a robot, jumps from where one episode has it to
where the next one does, and the steps in which it would get there are missing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mocoda.augmentation.episode_exchange import Stretches, as_rows, hindrance, reach
from mocoda.augmentation.episode_walks import (
    ATTEMPTS,
    ENDED,
    GOES_ON,
    LONG,
    SHORTEST,
    Made,
    Walks,
    alone,
    first_from_here,
    join,
    select,
)
from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.progress import Progress
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph

FEWEST, MOST = 256, 4_096  # episodes to try at a time
HOPELESS = 100  # batches without an episode, after which no more are tried


def take_turns(data: Transitions, walks: Walks, n: int, length: int | None, stream: Stream, progress: Progress) -> Made:
    """n episodes, each made of as many recorded ones as there are things, which take turns."""
    graph = walks.graph
    things = _things(graph)
    breaks = _Breaks.of(walks, things)
    found: list[_Turns] = []
    have, attempt = 0, -1
    while have < n and attempt < (ATTEMPTS if have else HOPELESS) and all(map(len, breaks.begins)):
        attempt += 1
        size = min(MOST, max(FEWEST, 2 * (n - have)))
        found.append(_try(walks, breaks, things, size, length, stream.child("turns", attempt)))
        number = have + found[-1].number
        found[-1] = found[-1]._replace(number=number)
        have = int(number[-1]) + 1 if len(number) else have
        progress("episodes", min(have, n), n)
    if have < n:
        never = [graph.children[thing] for thing, rows in zip(things, breaks.begins, strict=True) if not len(rows)]
        why = f" In none of the recorded ones does {never[0]} rest, then move, and rest again." if never else ""
        raise InputError(
            f"recipe 'coda' found {have} of {n} episodes in turns.{why} They take a recorded episode for every thing, "
            "in which it is handled and comes to rest; raise `resting` if what lies still moves in its last digits."
        )
    stretches = join([one.stretches for one in found])
    number, skipped = (torch.cat([getattr(one, name) for one in found]) for name in ("number", "skipped"))
    inside = number < n
    return as_rows(data, walks, select(stretches, inside), number[inside], skipped[inside])


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
    """Where a thing can wait for others: it rests, and touches nothing. By thing and row, (T, N).

    free    the first row from here on in which it does; N where there is none
    busy    the first in which it does not
    begins  for each thing, the rows from which on it rests, is handled and rests again, in one recorded episode
    """

    free: Tensor
    busy: Tensor
    begins: tuple[Tensor, ...]

    @staticmethod
    def of(walks: Walks, things: list[int]) -> _Breaks:
        rests = torch.stack([walks.rests[:, thing] & alone(walks.mask, [thing]) for thing in things])
        breaks = _Breaks(first_from_here(rests), first_from_here(~rests), ())
        every = torch.arange(len(walks.rows), device=rests.device)
        never = torch.zeros(len(walks.rows), device=rests.device)
        begins = []
        for thing, first in enumerate(breaks.free):
            row = first.clamp(max=len(every) - 1)
            able = (first < len(every)) & (breaks.turn(walks, torch.full_like(row, thing), row, never) >= 0)
            begins.append(row[able])
        return breaks._replace(begins=tuple(begins))

    def turn(self, walks: Walks, thing: Tensor, row: Tensor, chance: Tensor) -> Tensor:
        """The row (E,) at which a thing that goes on from a row waits again, having been handled; -1: never."""
        last = row + walks.after[row]
        busy = self.busy[thing, row]
        begin = self.free[thing, busy.minimum(last)]
        end = torch.where(begin <= last, self.busy[thing, begin.minimum(last)], 0).minimum(last + 1)
        wait = begin + ((end - begin) * chance).long().clamp(min=0)
        return torch.where((busy <= last) & (begin <= last), wait.minimum(last), -1)


class _Turns(NamedTuple):
    """Stretches (E,) of new episodes, in order: the episode that each is of, and the steps missing before it."""

    stretches: Stretches
    number: Tensor
    skipped: Tensor


def _try(walks: Walks, breaks: _Breaks, things: list[int], n: int, length: int | None, stream: Stream) -> _Turns:
    """The episodes that n draws of a recorded row for every thing give: some, or none."""
    count = len(things)
    places = stream.child("begins").uniform(n, count)
    row = torch.stack([rows[(places[:, i] * len(rows)).long()] for i, rows in enumerate(breaks.begins)], 1)
    episodes = walks.episode[row].sort(1).values
    which = (episodes[:, 1:] != episodes[:, :-1]).all(1).nonzero()[:, 0]
    row, turn, chain = row[which], stream.integers(count, n)[which], torch.arange(len(which), device=row.device)
    steps, cut = torch.zeros_like(chain), torch.full_like(chain, ENDED)
    hindered, kept, turns = torch.zeros_like(chain), [], 0
    while turns == 0 or len(chain):
        part = stream.child("turn", turns)
        turns += 1
        base = row.gather(1, turn[:, None])[:, 0]
        wait = breaks.turn(walks, turn, base, part.uniform(n)[which])
        wanted = wait - base if length is None else (wait - base).minimum(length - steps[chain])
        whose = turn[:, None].repeat(1, len(walks.graph.parents))
        whose[:, things] = torch.arange(count, device=row.device)
        moves = torch.zeros_like(row).scatter(1, turn[:, None], 1)
        drawn = Stretches(row, whose, moves, torch.zeros_like(base), base)
        made, why = _unhindered(walks, drawn, wanted)
        whole = made == wait - base
        long = torch.zeros_like(whole) if length is None else steps[chain] + made == length
        # Where its turn is hindered another may go on; an episode ends where as many as there are could not.
        hindered[chain] = torch.where(whole, 0, hindered[chain] + 1)
        ends = (hindered[chain] == count) | long
        taken_over = (whole | ends) & (made > 0)
        kept.append((chain[taken_over], turn[taken_over], select(drawn._replace(steps=made), taken_over)))
        steps[chain[taken_over]] += made[taken_over]
        cut[chain] = torch.where(long, LONG, why)
        row = row.scatter(1, turn[:, None], torch.where(whole, wait, base)[:, None])
        turn = (turn + 1 + part.child("next").integers(count - 1, n)[which]) % count
        chain, row, which, turn = (values[~ends] for values in (chain, row, which, turn))
    number, side = torch.cat([part[0] for part in kept]), torch.cat([part[1] for part in kept])
    stretches = join([part[2] for part in kept])
    order = number.argsort(stable=True)
    order = order[steps[number[order]] >= SHORTEST]
    number, side, stretches = number[order], side[order], select(stretches, order)
    skipped = torch.zeros(len(number), dtype=torch.long, device=number.device)
    skipped[1:] = (number[1:] == number[:-1]) & (side[1:] != side[:-1])
    return _Turns(stretches._replace(cut=cut[number]), number.unique_consecutive(return_inverse=True)[1], skipped)


def _unhindered(walks: Walks, drawn: Stretches, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """How many of the wanted steps (E,) a stretch makes from its first row on, and why it makes no more (E,)."""
    why = torch.where(wanted > 0, hindrance(walks, drawn.rows, drawn.whose), ENDED)
    begins = why == GOES_ON
    made = torch.zeros_like(wanted)
    ahead, why[begins] = reach(walks, select(drawn, begins), 1, wanted[begins] - 1)
    made[begins] = 1 + ahead
    return made, why
