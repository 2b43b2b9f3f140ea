"""Recipe "mocoda" for episodes: drawn parents, from which the model goes on with recorded actions."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from mocoda.augmentation.episode_walks import (
    ATTEMPTS,
    ENDED,
    GOES_ON,
    LONG,
    SHORTEST,
    Made,
    Walks,
    alone,
    donor_notes,
    first_from_here,
    join,
    own_notes,
    reasons,
    select,
)
from mocoda.augmentation.generation import Known, check_shape, recorded_children, sources, what_follows
from mocoda.augmentation.support import (
    DISPUTED,
    RARE,
    UNSEEN,
    Judged,
    SupportLimits,
    local_graphs,
    recipe_number,
)
from mocoda.data.transitions import Transitions, count_steps
from mocoda.engine.errors import InputError
from mocoda.engine.progress import Progress
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import connected_components
from mocoda.parents import Model, Recipe, fit_parents

FEWEST, MOST = 256, {"cpu": 4_096, "cuda": 65_536}  # starts of a batch
HOPELESS, JUDGED = 0.001, 20_000  # the share of starts that make episodes below which the search is given up
MIXING = 6_364_136_223_846_793_005  # makes one number of the bits of a row
NEAREST, DISTANCES = 8, 2**24  # recorded rows that are compared exactly, and distances at a time
CUTS = {
    ENDED: "the recorded actions end",
    LONG: "it has as many steps as asked for",
    UNSEEN: "something is linked in the next row that was too seldom, or never, in recorded ones",
    RARE: "a part of the next row is rarer than all but a thousandth of those recorded with these links",
    DISPUTED: "the model disagrees more about a part of the next row than about nine in ten recorded with these links",
}


class _Rolled(NamedTuple):
    """Some episodes, one after the other; `source` (N, parents) are the rows of the walks that values are of, or -1."""

    rows: Tensor
    next_state: Tensor
    source: Tensor
    judged: Judged
    steps: Tensor
    cut: Tensor


def roll_out(
    data: Transitions,
    walks: Walks,
    recipe: Recipe,
    model: Model,
    task: Any,
    n: int,
    length: int | None,
    stream: Stream,
    progress: Progress,
) -> Made:
    """n episodes that start where the recipe draws and end where support does."""
    graph = walks.graph
    parents = fit_parents(data, graph, recipe, task=task, model=model, seed=stream.child("parents"))
    assert data.episode is not None
    limits = SupportLimits.fit(data[data.episode >= 0], graph, model, stream.child("borders"))
    ahead = _ahead(walks)
    found: list[_Rolled] = []
    have = drawn = 0
    for attempt in range(ATTEMPTS):
        part = stream.child("rollout", attempt)
        share = max(have, 1) / drawn if drawn else 1.0
        size = min(MOST.get(data.device.type, FEWEST), max(FEWEST, round(1.1 * (n - have) / share)))
        starts = parents.sample(size, seed=part.child("parents"))
        check_shape(f"parents.sample({size})", "rows", starts, (size, graph.width))
        starts = starts.float()
        donor = _donors(starts, walks)
        _keep_next(starts, donor, ahead, walks)
        supported = limits.judge(starts, limits.agreed(starts)).why == GOES_ON  # the model may not be asked at all
        starts, donor, drawn = starts[supported], donor[supported], drawn + size
        if len(starts):
            found.append(_roll(starts, donor, walks, model, limits, length, part))
            have += len(found[-1].steps)
        progress("episodes", min(have, n), n)
        if have >= n:
            return _made(data, found, n, walks, limits, recipe, drawn)
        if drawn >= JUDGED and have < HOPELESS * drawn:
            break
    raise InputError(
        f"recipe {recipe.name!r} found {have} of {n} episodes in {drawn:,} starts: nearly all leave what was recorded "
        f"within {SHORTEST} steps. Does `mocoda check` find that the model and the graph fit the data?"
    )


def _roll(
    starts: Tensor,
    donor: Tensor,
    walks: Walks,
    model: Model,
    limits: SupportLimits,
    length: int | None,
    stream: Stream,
) -> _Rolled:
    """The episodes of SHORTEST steps and more that begin at the states of starts (n, S + A), n > 0.

    donor  (n, parents), the rows of the walks that they take after
    """
    graph = walks.graph
    acting = range(len(graph.children), len(graph.parents))
    left = 1 + walks.after[donor[:, list(acting)]].amin(1)
    active = torch.arange(len(starts), device=starts.device)
    steps, cut = torch.zeros_like(active), torch.full_like(active, ENDED)
    rows, source, step, kept = starts.clone(), sources(graph, walks.rows, starts, donor[:, walks.owner]), 0, []
    moves = first_from_here(~walks.rests[:, : len(graph.children)].T)
    while len(active):
        for factor in acting:
            source[:, factor] = donor[active, factor] + step
            columns = list(graph.factors[graph.parents[factor]])
            rows[:, columns] = walks.rows[source[:, factor]][:, columns]
            _catch_up(source, factor, moves, walks)
        part = stream.child("model", step)
        next_state, following, apart = _next(rows, source, walks, model, limits, part)
        judged = limits.judge(rows, apart)
        cut[active] = torch.where((judged.why == GOES_ON) & (step == length), LONG, judged.why)
        finite = next_state.isfinite().all(1)
        cut[active[~finite]] = RARE
        going = cut[active] == GOES_ON
        step += 1
        steps[active[going]] = step
        kept.append((active[going], rows[going], next_state[going], source[going], *select(judged, going)))
        cut[active[going]] = ENDED
        going &= left[active] > step
        active, rows, source = active[going], rows[going], following[going]
        rows[:, : graph.state_width] = next_state[going]
    long = steps >= SHORTEST
    number, rows, next_state, source, *notes = (torch.cat(part) for part in zip(*kept, strict=True))
    order = number.argsort(stable=True)
    order = order[long[number[order]]]
    return _Rolled(rows[order], next_state[order], source[order], select(Judged(*notes), order), steps[long], cut[long])


def _catch_up(source: Tensor, action: int, moves: Tensor, walks: Walks) -> None:
    """Has what rests since a row of the walk that an action is of be of the same row as the action.

    It is still there when the hand that was recorded with it comes for it: together they are of one recorded row.

    source  (n, parents), which is changed
    moves   (children, N), the first row of the walks from here on in which a child does not rest
    """
    now = source[:, action]
    for child in range(len(moves)):
        since = source[:, child]
        place = since.clamp(min=0)
        follows = (since >= 0) & (since <= now) & (now - place <= walks.after[place])
        source[:, child] = torch.where(follows & (moves[child, place] >= now), now, since)


def _next(
    rows: Tensor, source: Tensor, walks: Walks, model: Model, limits: SupportLimits, stream: Stream
) -> tuple[Tensor, Tensor, Tensor]:
    """Next states (n, S) of rows (n, S + A), the rows of the walks that these are of, and the disagreement about each
    child (n, children).

    Where all that a child depends on is of one recorded row, which has the same edges to it, what happened next is
    known: if it and they rested, it rests. The model says all else, an ensemble by the middle of its members, which is
    nearer to the truth than any; one that ignores the graph says everything.

    source  (n, parents), the row of the walks that a factor's value is of, or -1
    """
    graph, each = walks.graph, torch.arange(len(walks.graph.children), device=rows.device)
    mask = graph.mask(rows)
    known, place = recorded_children(mask, source, walks.mask, torch.arange(len(walks.rows), device=rows.device))
    known &= getattr(model, "architecture", None) != "full"
    still = walks.rests[place]  # (n, children, parents)
    rests = known & still[:, each, each] & (still | ~mask.transpose(1, 2)).all(2)
    of_column = walks.owner[: graph.state_width]
    given = known[:, of_column]
    next_state = torch.where(given, walks.gathered(walks.next_state, place), 0.0)
    next_state = torch.where(rests[:, of_column], rows[:, : graph.state_width], next_state)
    next_state, _, apart = what_follows(model, rows, Known(next_state, given), stream, limits.scale, middle=True)
    apart = limits.agreed(rows) if apart is None else apart
    following = torch.full_like(source, -1)
    following[:, : len(each)] = torch.where(known & walks.goes_on[place], place + 1, -1)
    following[:, : len(each)] = torch.where(rests, place, following[:, : len(each)])
    return next_state, following, apart


def _donors(starts: Tensor, walks: Walks) -> Tensor:
    """For every factor of a start (n, S + A), the recorded row (n, parents) that its component is of; -1: of none.

    A component with actions, unless it is that of a row which goes on, takes the nearest of these: what follows in its
    episode are actions that suit the component.
    """
    graph, parents = walks.graph, len(walks.graph.parents)
    kinds, kind = torch.unique(graph.mask(starts), dim=0, return_inverse=True)
    own = torch.eye(parents, len(graph.children), dtype=torch.bool, device=starts.device)
    components: dict[tuple[int, ...], list[int]] = {}
    for number, labels in enumerate(connected_components(kinds | own)[:, :parents].tolist()):
        for label in set(labels):
            component = tuple(factor for factor in range(parents) if labels[factor] == label)
            components.setdefault(component, []).append(number)
    donor = torch.empty(len(starts), parents, dtype=torch.long, device=starts.device)
    for component, numbers in sorted(components.items()):
        here = torch.isin(kind, torch.tensor(numbers, device=kind.device)).nonzero()[:, 0]
        columns = list(graph.columns([graph.parents[factor] for factor in component]))
        acts = component[-1] >= len(graph.children)
        able = walks.goes_on if acts else torch.ones_like(walks.goes_on)
        wanted, row = starts[here][:, columns], torch.full_like(here, -1)
        # What rests has the same value in rows that link it to others, which are taken only if no other row has it.
        for which in (able & alone(walks.mask, component), able):
            candidates, unknown = which.nonzero()[:, 0], (row < 0).nonzero()[:, 0]
            if len(candidates):
                found = equal_rows(wanted[unknown], walks.rows[candidates][:, columns])
                row[unknown] = torch.where(found < 0, -1, candidates[found])
        unknown = (row < 0).nonzero()[:, 0]
        if acts and len(unknown):
            row[unknown] = candidates[nearest_rows(wanted[unknown], walks.rows[candidates][:, columns])]
        donor[here[:, None], torch.tensor(component, device=here.device)] = row[:, None]
    return donor


def _ahead(walks: Walks) -> Tensor:
    """What each action acts on next, in its recorded episode: (N, actions, children).

    That is what the first row from here on links to the action's part, the factors that even the sparsest graph
    connects to it, unless it has an action of its own; nothing where none does.
    """
    graph = walks.graph
    parents, children = len(graph.parents), len(graph.children)
    part = graph.parts.to(walks.rows.device)
    things = ~torch.isin(part[:children], part[children:])
    mask, every = walks.mask, torch.arange(len(walks.rows), device=walks.rows.device)
    found = []
    for action in range(children, parents):
        own = part == part[action]
        touches = (mask[:, own].any(1) | mask[:, :, own[:children]].any(2)[:, :children]) & things
        first = first_from_here(touches.any(1))
        inside = first <= every + walks.after
        found.append(touches[first.clamp(max=len(every) - 1)] & inside[:, None])
    return torch.stack(found, 1)


def _keep_next(starts: Tensor, donor: Tensor, ahead: Tensor, walks: Walks) -> None:
    """Has starts (n, S + A), and their donors (n, parents), keep what their actions act on next as it was recorded.

    Else a hand would reach for a cube that is not there.
    """
    graph, children = walks.graph, len(walks.graph.children)
    for action in range(children, len(graph.parents)):
        row = donor[:, action]
        for child in range(children):
            kept = ahead[row, action - children, child].nonzero()[:, 0]
            columns = torch.tensor(graph.factors[graph.children[child]], device=starts.device)
            starts[kept[:, None], columns] = walks.rows[row[kept]][:, columns]
            donor[kept, child] = row[kept]


def equal_rows(wanted: Tensor, recorded: Tensor) -> Tensor:
    """The number (n,) of a recorded row (M, C) that equals each (n, C) to the bit; -1: none."""
    weights = torch.tensor(
        [pow(MIXING, power + 1, 2**61 - 1) for power in range(wanted.shape[1])], device=wanted.device
    )
    keys, wanted_keys = ((rows.contiguous().view(torch.int32) * weights).sum(1) for rows in (recorded, wanted))
    keys, order = keys.sort(stable=True)
    found = order[torch.searchsorted(keys, wanted_keys).clamp(max=len(keys) - 1)]
    return torch.where((wanted == recorded[found]).all(1), found, -1)


def nearest_rows(wanted: Tensor, recorded: Tensor) -> Tensor:
    """The number (n,) of the recorded row (M, C) that is nearest to each (n, C), in standard deviations of a column."""
    scale = recorded.double().std(0, correction=0).float()
    scale = torch.where(scale > 0, scale, 1.0)
    wanted, recorded = wanted / scale, recorded / scale
    found = []
    for block in wanted.split(max(1, DISTANCES // len(recorded))):
        # By matrix products, which are not exact; then exactly among the nearest.
        few = torch.cdist(block, recorded).topk(min(NEAREST, len(recorded)), largest=False).indices.sort().values
        exact = (block[:, None] - recorded[few]).square().sum(2)
        found.append(few.gather(1, exact.min(1, keepdim=True).indices)[:, 0])
    return torch.cat(found)


def _made(
    data: Transitions, found: list[_Rolled], n: int, walks: Walks, limits: SupportLimits, recipe: Recipe, drawn: int
) -> Made:
    """The first n episodes, with notes."""
    steps, cut = (torch.cat([getattr(one, name) for one in found])[:n] for name in ("steps", "cut"))
    episode = torch.arange(n, device=steps.device).repeat_interleave(steps)
    here = slice(len(episode))
    rows, next_state, source = (
        torch.cat([getattr(one, name) for one in found])[here] for name in ("rows", "next_state", "source")
    )
    judged = select(join([one.judged for one in found]), here)
    notes = {"recipe": torch.full_like(episode, recipe_number(recipe.name)), **judged.notes, "cut": cut[episode]}
    return Made(
        rows,
        next_state,
        episode,
        count_steps(episode),
        notes | donor_notes(source, walks, walks.graph),
        lambda: limits.notes(data.rows) | own_notes(data, walks.graph),
        {"cut": reasons(cut, CUTS), "starts": drawn, "local_graphs": local_graphs(walks.graph, walks.rows)},
    )
