"""More objects than were recorded: the same episodes with further ones, which were alike elsewhere.

An object that nothing touches does in one episode what it did in another. So it can be in an episode that never had it,
for as long as nothing there would touch it; and objects that are alike can have each other's roles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mocoda.augmentation.episode_walks import SHORTEST, Walks, alone, donor_notes, select
from mocoda.augmentation.support import recipe_number
from mocoda.data.transitions import Transitions, count_steps
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.columns import ColumnNames
from mocoda.graph.local_graph import LocalGraph

DRAWS = 16  # of further objects for an episode, of which the one that fits longest is taken
ROWS = 2**18  # looked at together


def add_objects(
    data: Transitions,
    graph: LocalGraph,
    bigger: LocalGraph,
    alike: Sequence[str],
    *,
    resting: float = 0.0,
    seed: int | Stream = 0,
) -> Transitions:
    """The recorded episodes as data of a bigger world, with objects that they did not have.

    Objects that are alike get each other's roles, in turn. A role that is left is of an object like it in another
    recorded episode, step by step, or from one step if it rests there. The longest part of an episode is kept in which
    nothing links what was added to anything, in either episode and in the new rows, and all else is linked as it was
    recorded; of several draws, that with the longest part. Where the graphs are right, every row is what would have
    happened. Rows have no rewards: see `label`.

    The result is data like any other. `augment_episodes(..., turns=True)` makes episodes of it in which every object is
    handled, and a model that is fitted to it knows each object in every role.

    graph    of the data
    bigger   has the same factors, with as many columns each, and further ones
    alike    names in `bigger` of the objects that behave alike; those that `graph` has too were recorded
    resting  as in `augment_episodes`

    Provenance tells the recorded episode and step of every factor F, `donor_F` and `donor_step_F`.
    """
    _check(graph, bigger, alike)
    stream = as_stream(seed, "add-objects", device=data.device)
    walks = Walks.of(data, graph, resting)
    world = _World.of(walks, bigger, alike)
    candidates = world.unlinked.nonzero()
    if len(candidates) == 0:
        raise InputError(
            f"in no recorded row is one of {', '.join(alike)} linked to nothing else, so that it could be in another "
            "episode too. Does the graph have a local rule?"
        )
    first = (walks.before == 0).nonzero()[:, 0]
    length = walks.after[first] + 1
    # From one episode to the next every object has the next role, so that few episodes show each in all of them.
    order = stream.child("roles").uniform(len(alike)).argsort() + torch.arange(len(first), device=first.device)[:, None]
    order %= len(alike)
    best = _Plan.nothing(len(first), bigger, first.device)
    for draw in range(DRAWS):
        part = stream.child("draw", draw)
        donor = candidates[part.child("donors").integers(len(candidates), len(first), len(alike))]
        for here in _blocks((best.steps < length).nonzero()[:, 0], length):
            plan = world.longest(world.plan(first[here], alike, order[here], donor[here]))
            better = plan.steps > best.steps[here]
            for array, new in zip(best, plan, strict=True):
                array[here[better]] = new[better]
    best = select(best, best.steps >= SHORTEST)
    if len(best.steps) == 0:
        raise InputError(
            f"in no recorded episode could another one of {', '.join(alike)} have been for {SHORTEST} steps without "
            "being linked to anything."
        )
    source = {
        "recorded": dict(data.source),
        "added": [name for name in alike if name not in graph.state],
        "alike": list(alike),
        "resting": resting,
        "seed": stream.seed,
        "recorded_episodes": len(first),
    }
    return world.table(best, _columns(data.columns, graph, bigger, alike), source)


def _check(graph: LocalGraph, bigger: LocalGraph, alike: Sequence[str]) -> None:
    """Refuses graphs that are not of two such worlds."""
    for name in alike:
        if name not in bigger.state:
            raise unknown_name("state factor of the bigger graph", name, bigger.state)
    recorded = _recorded(graph, alike)
    same = (*(name for name in bigger.state if name not in alike or name in graph.state), *bigger.action)
    if set(same) != set(graph.parents) or set(graph.action) != set(bigger.action):
        odd = ", ".join(sorted(set(same) ^ set(graph.parents))) or "actions"
        raise InputError(
            f"the two graphs must have the same factors but for those that are added; they differ in {odd}."
        )
    for name, like in (*((name, name) for name in same), *((name, recorded[0]) for name in alike)):
        widths = len(bigger.factors[name]), len(graph.factors[like])
        if widths[0] != widths[1]:
            raise InputError(
                f"{name!r} has {widths[0]} columns in the bigger graph and {like!r} {widths[1]} in the data's."
            )


def _recorded(graph: LocalGraph, alike: Sequence[str]) -> list[str]:
    """The objects that the data has, of those that are alike."""
    recorded = [name for name in alike if name in graph.state]
    if not recorded or len(recorded) == len(alike) or len(set(alike)) < len(alike):
        raise InputError(
            f"alike must name objects that the data has, and others that only the bigger graph has, each once; got "
            f"{', '.join(alike)}, of which the data has {', '.join(recorded) or 'none'}."
        )
    return recorded


class _Plan(NamedTuple):
    """E new episodes: what each factor of the bigger world is, (E, parents) each, and their length.

    kind   the factor of the recorded world that it is
    row    the first row of the walks that it is of
    moves  by how many rows it goes on with every step: 1, or 0 if it rests
    added  whether it is of another episode
    begin  (E,) the first step that is kept
    steps  (E,) how many are
    """

    kind: Tensor
    row: Tensor
    moves: Tensor
    added: Tensor
    begin: Tensor
    steps: Tensor

    @staticmethod
    def nothing(n: int, bigger: LocalGraph, device: torch.device) -> _Plan:
        wide = torch.zeros(n, len(bigger.parents), dtype=torch.long, device=device)
        narrow = torch.zeros(n, dtype=torch.long, device=device)
        return _Plan(wide, wide.clone(), wide.clone(), wide.bool(), narrow, narrow.clone())


class _World(NamedTuple):
    """The recorded episodes, and the bigger graph.

    unlinked  (N, parents), whether an object that may be added is linked to nothing else
    """

    walks: Walks
    bigger: LocalGraph
    unlinked: Tensor

    @staticmethod
    def of(walks: Walks, bigger: LocalGraph, alike: Sequence[str]) -> _World:
        unlinked = torch.zeros_like(walks.rests)
        for number, name in enumerate(walks.graph.children):
            if name in alike:
                unlinked[:, number] = alone(walks.mask, [number])
        return _World(walks, bigger, unlinked)

    def plan(self, first: Tensor, alike: Sequence[str], order: Tensor, donor: Tensor) -> _Plan:
        """Whole episodes that begin at rows (E,).

        order  (E, alike), the roles in the order in which recorded objects, and then added ones, get them
        donor  (E, alike, 2), the row of the walks and the factor that an added one is
        """
        plan = _Plan.nothing(len(first), self.bigger, first.device)
        every = torch.arange(len(first), device=first.device)
        for number, name in enumerate(self.bigger.parents):
            plan.kind[:, number] = self.walks.graph.parents.index(name) if name in self.walks.graph.factors else 0
        plan.row[:], plan.moves[:] = first[:, None], 1
        recorded = [self.walks.graph.parents.index(name) for name in alike if name in self.walks.graph.state]
        roles = torch.tensor([self.bigger.parents.index(name) for name in alike], device=first.device)[order]
        for place, role in enumerate(roles.T):
            if place < len(recorded):
                plan.kind[every, role] = recorded[place]
            else:
                row, kind = donor[:, place].unbind(1)
                plan.row[every, role], plan.kind[every, role], plan.added[every, role] = row, kind, True
                plan.moves[every, role] = (~self.walks.rests[row, kind]).long()
        return plan

    def longest(self, plan: _Plan) -> _Plan:
        """The longest part of each episode in which what was added could have been there."""
        base = torch.where(plan.added, -1, plan.row).amax(1)
        which = torch.arange(len(base), device=base.device).repeat_interleave(self.walks.after[base] + 1)
        place = count_steps(which)
        added, kind, begin = plan.added[which], plan.kind[which], plan.row[which]
        ahead = place[:, None] * plan.moves[which]
        known = self.walks.episode[begin] != self.walks.episode[base[which], None]
        known &= ahead <= self.walks.after[begin]
        source = begin + torch.where(known | ~added, ahead, 0)
        sound = (~added | known & self.unlinked[source, kind]).all(1)
        # All is linked as it was recorded, and what was added to nothing but itself.
        child = slice(len(self.bigger.children))
        edges = self.walks.mask[source[:, None, child], kind[:, :, None], kind[:, None, child]]
        apart = added[:, :, None] | added[:, None, child]
        edges &= ~apart | torch.eye(*apart.shape[1:], dtype=torch.bool, device=apart.device)
        sound &= (self.bigger.mask(self._gathered(self.walks.rows, source, kind)) == edges).flatten(1).all(1)
        # Unbroken parts of episodes, the longest first.
        breaks = ~sound | (place == 0)
        rows = sound.nonzero()[:, 0]
        _, count = breaks.cumsum(0)[rows].unique_consecutive(return_counts=True)
        first = rows[count.cumsum(0) - count]
        order = count.argsort(descending=True, stable=True)
        order = order[which[first[order]].argsort(stable=True)]
        episode, first, count = which[first[order]], first[order], count[order]
        new = torch.ones_like(episode, dtype=torch.bool)
        new[1:] = episode[1:] != episode[:-1]
        plan.begin[episode[new]], plan.steps[episode[new]] = place[first[new]], count[new]
        return plan

    def table(self, plan: _Plan, columns: Sequence[str], told: dict[str, Any]) -> Transitions:
        """The rows of what is planned."""
        which = torch.arange(len(plan.steps), device=plan.steps.device).repeat_interleave(plan.steps)
        moves, kind, width = plan.moves[which], plan.kind[which], self.bigger.state_width
        source = plan.row[which] + (plan.begin[which] + count_steps(which))[:, None] * moves
        rows = self._gathered(self.walks.rows, source, kind)
        moved = torch.cat([self.walks.next_state, self.walks.rows[:, self.walks.graph.state_width :]], 1)
        next_state = self._gathered(moved, source, kind)[:, :width]
        for number, name in enumerate(self.bigger.children):
            rests, own = (moves[:, number] == 0).nonzero(), torch.tensor(self.bigger.factors[name], device=which.device)
            next_state[rests, own] = rows[rests, own]
        notes = donor_notes(source, self.walks, self.bigger)
        notes["recipe"] = torch.full_like(which, recipe_number("coda"))
        state, action = rows[:, :width], rows[:, width:]
        return Transitions(state, action, next_state, columns=columns, source=told, provenance=notes, episode=which)

    def _gathered(self, values: Tensor, source: Tensor, kind: Tensor) -> Tensor:
        """Rows (M, bigger) whose factors are those of rows (M, parents) of the values (N, S + A), by kind."""
        made = torch.empty(len(source), self.bigger.width, device=values.device)
        for number, name in enumerate(self.bigger.parents):
            for one in kind[:, number].unique().tolist():
                here = (kind[:, number] == one).nonzero()
                own, theirs = (
                    torch.tensor(columns, device=values.device)
                    for columns in (self.bigger.factors[name], self.walks.graph.factors[self.walks.graph.parents[one]])
                )
                made[here, own] = values[source[here, number], theirs]
        return made


def _blocks(episodes: Tensor, length: Tensor) -> Iterator[Tensor]:
    """The episodes (E,) in groups of some rows."""
    number = length[episodes].cumsum(0) // ROWS
    yield from episodes.split(number.bincount().tolist()) if len(episodes) else ()


def names_of(data: Transitions, graph: LocalGraph, alike: Sequence[str]) -> ColumnNames:
    """The columns of a bigger world in which those of added objects come after the data's other states."""
    recorded, known = _recorded(graph, alike), ColumnNames.of(data)
    added = [name for name in alike if name not in recorded]
    more = [name for factor in added for name in _named(data.columns, graph, alike, factor)]
    return ColumnNames((*known.state, *more), known.action)


def _columns(known: Sequence[str], graph: LocalGraph, bigger: LocalGraph, alike: Sequence[str]) -> list[str]:
    """Names of the bigger world's columns, if those of the data are known."""
    names = [""] * (bigger.width if known else 0)
    for factor, columns in bigger.factors.items() if known else ():
        for column, name in zip(columns, _named(known, graph, alike, factor), strict=True):
            names[column] = name
    return names


def _named(known: Sequence[str], graph: LocalGraph, alike: Sequence[str], factor: str) -> list[str]:
    """The names of a factor's columns; an added object's are like those of another."""
    if factor in graph.factors:
        return [known[column] for column in graph.factors[factor]]
    like = next((name for name in alike if name in graph.state), "")
    own = [known[column] for column in graph.factors.get(like, ())]
    return [name.replace(like, factor) if like in name else f"{factor}.{i}" for i, name in enumerate(own)]
