"""Counterfactual episodes: two recorded episodes exchange a component for as long as nothing links it to the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mocoda.augmentation.provenance import RECORDED, recipe_number, set_number
from mocoda.augmentation.rewards import GoalLabels, Labels, labels_of
from mocoda.data.transitions import Transitions, concatenate
from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph, connected_components
from mocoda.parents import Model

ATTEMPTS, FEWEST, MOST = 1_000, 64, 1_024  # batches of exchanges to try, and how many exchanges each has
SHORTEST = 2  # steps of an episode, at least
# Why an episode goes no further.
ENDED, LINKED, MET, LONG, GOES_ON = 0, 1, 2, 3, -1
CUTS = {
    ENDED: "one of the two recorded episodes ends, or lacks the next step",
    LINKED: "an edge links the exchanged factors to others in one of the recorded episodes",
    MET: "an edge links the exchanged factors to others in the new row only",
    LONG: "it has as many steps as asked for",
}


def augment_episodes(
    data: Transitions,
    graph: LocalGraph,
    *,
    recipe: str = "coda",
    model: Model | None = None,
    episodes: int,
    length: int | None = None,
    task: Labels | GoalLabels | None = None,
    keep_recorded: bool = True,
    seed: int | Stream = 0,
) -> Transitions:
    """The recorded rows, followed by those of new episodes that were never recorded, step by step.

    Recipe "coda": a row of one recorded episode takes over a connected component of the local graph from a row of
    another one, as in `fit_parents(data, graph, "coda")`; and so do the rows before and after the two, as long as no
    edge links that component to the rest, in either of them or in the new row. Where the graph is right, every new
    episode is what would have happened.

    recipe         "coda"
    model          not needed for "coda"
    episodes       how many new ones, of 2 steps or more
    length         the most steps of each; None: as many as there are
    task           labels all rows; one with goals draws one for every episode. Without one, no row has a reward and
                   none is terminal
    keep_recorded  False: only the new rows

    Provenance tells of each row `recipe`; the recorded episode and step that it continues, `base` and `base_step`;
    those that the exchanged factors come from, `donor` and `donor_step` (-1 in recorded rows); which these are,
    `exchanged`, whose binary digits are the graph's parents, the first one lowest; and why its episode goes no further,
    `cut`. The table's `source` says what the numbers of `exchanged` and `cut` stand for, and counts them.
    """
    if recipe != "coda":
        raise InputError(f"recipe must be 'coda', the one that exchanges parts of episodes, got {recipe!r}.")
    if episodes < 1:
        raise InputError(f"episodes must be at least 1, the number of episodes to make, got {episodes}.")
    if length is not None and length < SHORTEST:
        raise InputError(f"length must be at least {SHORTEST}, the most steps of an episode, got {length}.")
    graph.check_data(data)
    stream = as_stream(seed, "augment-episodes", device=data.device)
    walks = _Walks.of(data)
    made = _exchanges(walks, graph, episodes, length, stream)
    new = _table(data, walks, graph, made, task, stream)
    source = {
        "recorded": dict(data.source),
        "recorded_rows": len(data) if keep_recorded else 0,
        "generated_rows": len(new),
        "generated_episodes": episodes,
        "recipe": recipe,
        "length": length,
        "task": getattr(task, "name", None),
        "seed": stream.seed,
        **getattr(task, "source", {}),
        "exchanged": _sets(graph, made.taken),
        "cut": {str(why): {"why": said, "episodes": int((made.cut == why).sum())} for why, said in CUTS.items()},
    }
    tables = [_recorded(data, task, stream.child("recorded")), new] if keep_recorded else [new]
    return concatenate(tables, source)


@dataclass(frozen=True, eq=False)
class _Walks:
    """The rows that are of episodes, by episode and step.

    goes_on  (N,) whether a row's next step is the row after it
    """

    rows: Tensor
    next_state: Tensor
    episode: Tensor
    step: Tensor
    goes_on: Tensor

    @staticmethod
    def of(data: Transitions) -> _Walks:
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
            raise InputError("an exchange takes two recorded episodes, and these rows are of fewer.")
        state, next_state = data.state[order], data.next_state[order]
        goes_on = torch.zeros(len(order), dtype=torch.bool, device=data.device)
        goes_on[:-1] = (episode[1:] == episode[:-1]) & (step[1:] == step[:-1] + 1)
        goes_on[:-1] &= (next_state[:-1].view(torch.int32) == state[1:].view(torch.int32)).all(1)
        if not bool(goes_on.any()):
            raise InputError(
                "in no episode is a row's next state the state of the next step, to the bit, so that no two steps "
                "follow one another. Are steps missing, or are next states recorded apart?"
            )
        return _Walks(data.rows[order], next_state, episode, step, goes_on)


class _Exchanges(NamedTuple):
    """E episodes: `base` and `donor` (E,) are the first rows of the two that make each, among those of the walks.

    taken  (E, parents), the factors that come from the donor
    steps  (E,)
    cut    (E,) why it goes no further
    """

    base: Tensor
    donor: Tensor
    taken: Tensor
    steps: Tensor
    cut: Tensor

    def select(self, index: Any) -> _Exchanges:
        return _Exchanges(*(array[index] for array in self))


def _exchanges(walks: _Walks, graph: LocalGraph, n: int, length: int | None, stream: Stream) -> _Exchanges:
    found: list[_Exchanges] = []
    have = 0
    for attempt in range(ATTEMPTS):
        new = _try(walks, graph, min(MOST, max(FEWEST, n - have)), length, stream.child("exchange", attempt))
        found.append(new)
        have += len(new.steps)
        if have >= n:
            joined = _Exchanges(*(torch.cat(arrays) for arrays in zip(*found, strict=True)))
            return joined.select(slice(n))
    raise InputError(
        f"recipe 'coda' found {have} of {n} episodes in {ATTEMPTS:,} attempts: in these episodes the local graphs "
        f"connect everything, or leave nothing unconnected for {SHORTEST} steps."
    )


def _try(walks: _Walks, graph: LocalGraph, n: int, length: int | None, stream: Stream) -> _Exchanges:
    """At most n exchanges: each is drawn as one between two rows, and reaches as far as it can."""
    base, donor = stream.integers(len(walks.rows), 2, n)
    parents = len(graph.parents)
    kinds, kind = torch.unique(graph.mask(walks.rows[base]) | graph.mask(walks.rows[donor]), dim=0, return_inverse=True)
    # A factor goes with its own next value, whether or not an edge links the two.
    own = torch.eye(parents, len(graph.children), dtype=torch.bool, device=kinds.device)
    label = connected_components(kinds | own)[kind][:, :parents]
    taken = label == label.gather(1, stream.integers(parents, n, 1))
    sound = (walks.episode[base] != walks.episode[donor]) & ~taken.all(1)
    sound &= _hindrance(walks, graph, base, donor, taken) == GOES_ON
    drawn = _Exchanges(base, donor, taken, base, base).select(sound)
    most = None if length is None else length - 1
    back, _ = _reach(walks, graph, drawn, -1, most)
    ahead, cut = _reach(walks, graph, drawn, 1, most)
    steps, skipped = back + ahead + 1, torch.zeros_like(back)
    if length is not None:
        room = (steps - length).clamp(min=0)
        skipped = (stream.child("window").uniform(len(room)) * (room + 1)).long().minimum(room)
        cut = torch.where(skipped < room, LONG, cut)
        steps = steps.clamp(max=length)
    first = skipped - back
    made = _Exchanges(drawn.base + first, drawn.donor + first, drawn.taken, steps, cut)
    return made.select(steps >= SHORTEST)


def _reach(walks: _Walks, graph: LocalGraph, drawn: _Exchanges, way: int, most: int | None) -> tuple[Tensor, Tensor]:
    """How many steps (E,) an exchange reaches, ahead (way 1) or back (-1), and why no further (E,)."""
    steps, cut = torch.zeros_like(drawn.base), torch.zeros_like(drawn.base)
    active = torch.arange(len(steps), device=steps.device)
    while len(active):
        base, donor = drawn.base[active] + way * steps[active], drawn.donor[active] + way * steps[active]
        # Whether a step leads there; before the first row is the last one, which leads nowhere.
        earlier = 0 if way > 0 else 1
        recorded = walks.goes_on[base - earlier] & walks.goes_on[donor - earlier]
        why = torch.full_like(active, ENDED)
        there = base[recorded] + way, donor[recorded] + way
        why[recorded] = _hindrance(walks, graph, *there, drawn.taken[active[recorded]])
        if most is not None:
            why[(steps[active] == most) & (why == GOES_ON)] = LONG
        stopped = why != GOES_ON
        cut[active[stopped]] = why[stopped]
        active = active[~stopped]
        steps[active] += 1
    return steps, cut


def _hindrance(walks: _Walks, graph: LocalGraph, base: Tensor, donor: Tensor, taken: Tensor) -> Tensor:
    """Why a row (M,) cannot take factors (M, parents) over from another one (M,): LINKED, MET, or GOES_ON if it can."""
    if len(base) == 0:
        return base
    one, other = graph.mask(walks.rows[base]), graph.mask(walks.rows[donor])
    child = taken[:, None, : len(graph.children)]
    linked = ((one | other) & (taken[:, :, None] != child)).any((1, 2))
    # Every child must depend in the new row on what it depended on where it comes from.
    new = graph.mask(_combined(walks.rows, graph, base, donor, taken))
    met = (new != torch.where(child, other, one)).any((1, 2))
    return torch.where(linked, LINKED, torch.where(met, MET, GOES_ON))


def _combined(values: Tensor, graph: LocalGraph, base: Tensor, donor: Tensor, taken: Tensor) -> Tensor:
    """Rows, or next states, of which the columns of some factors (M, parents) come from the donor."""
    owner = {column: number for number, name in enumerate(graph.parents) for column in graph.factors[name]}
    of_column = torch.tensor([owner[column] for column in range(values.shape[1])], device=values.device)
    return torch.where(taken[:, of_column], values[donor], values[base])


def _table(
    data: Transitions,
    walks: _Walks,
    graph: LocalGraph,
    made: _Exchanges,
    task: Labels | GoalLabels | None,
    stream: Stream,
) -> Transitions:
    number = torch.arange(len(made.steps), device=data.device)
    episode = number.repeat_interleave(made.steps)
    begin = made.steps.cumsum(0) - made.steps
    step = torch.arange(len(episode), device=data.device) - begin[episode]
    base, donor, taken = made.base[episode] + step, made.donor[episode] + step, made.taken[episode]
    rows = _combined(walks.rows, graph, base, donor, taken)
    next_state = _combined(walks.next_state, graph, base, donor, taken)
    notes = {
        "recipe": torch.full_like(episode, recipe_number("coda")),
        "base": walks.episode[base],
        "base_step": walks.step[base],
        "donor": walks.episode[donor],
        "donor_step": walks.step[donor],
        "exchanged": set_number(taken),
        "cut": made.cut[episode],
    }
    state, action = rows.split([data.state.shape[1], data.action.shape[1]], 1)
    labels = _labels(state, action, next_state, episode, task, stream.child("labels"))
    return Transitions(state, action, next_state, *labels, data.columns, provenance=notes, episode=episode, step=step)


def _recorded(data: Transitions, task: Labels | GoalLabels | None, stream: Stream) -> Transitions:
    """The recorded rows, labelled as the new ones are; notes from an earlier augmentation stay."""
    assert data.episode is not None and data.step is not None
    none, zero = torch.full_like(data.step, -1), torch.zeros_like(data.step)
    notes = {
        "recipe": torch.full_like(data.step, RECORDED),
        "base": data.episode,
        "base_step": data.step,
        "donor": none,
        "donor_step": none,
        "exchanged": zero,
        "cut": zero,
    }
    notes |= {name: note for name, note in data.provenance.items() if name in notes}
    labels = _labels(data.state, data.action, data.next_state, data.episode, task, stream)
    return Transitions(
        data.state,
        data.action,
        data.next_state,
        *labels,
        data.columns,
        provenance=notes,
        episode=data.episode,
        step=data.step,
    )


def _labels(
    state: Tensor,
    action: Tensor,
    next_state: Tensor,
    episode: Tensor,
    task: Labels | GoalLabels | None,
    stream: Stream,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Reward, terminal and goal as `labels_of` gives them, but one goal for all rows of an episode."""
    if not isinstance(task, GoalLabels):
        return labels_of(state, action, next_state, task, 0.0, stream)
    alone = episode.max() + 1 + torch.arange(len(episode), device=episode.device)  # rows of no episode
    kinds, kind = torch.where(episode < 0, alone, episode).unique(return_inverse=True)
    goal = task.goals(len(kinds), seed=stream.child("goals"), device=state.device).float()[kind]
    return *task.label(state, action, next_state, goal), goal


def _sets(graph: LocalGraph, taken: Tensor) -> dict[str, Any]:
    """What the numbers in `exchanged` stand for, and how many episodes have each."""
    kinds, counts = taken.unique(dim=0, return_counts=True)
    described = {}
    for number, kind, count in zip(set_number(kinds).tolist(), kinds.tolist(), counts.tolist(), strict=True):
        factors = [name for name, inside in zip(graph.parents, kind, strict=True) if inside]
        described[str(number)] = {"factors": factors, "episodes": count}
    return described
