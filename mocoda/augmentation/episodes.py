"""Counterfactual episodes: whole ones that were never recorded, after those that were."""

from __future__ import annotations

import torch
from torch import Tensor

from mocoda.augmentation.episode_exchange import exchange
from mocoda.augmentation.episode_rollout import roll_out
from mocoda.augmentation.episode_turns import take_turns
from mocoda.augmentation.episode_walks import SHORTEST, Walks, check_resting
from mocoda.augmentation.generation import GoalLabels, Labelled, Labels, labels_of
from mocoda.data.transitions import Transitions, concatenate
from mocoda.engine.errors import InputError
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents import Coda, Model, Recipe, make_recipe


def augment_episodes(
    data: Transitions,
    graph: LocalGraph,
    *,
    recipe: str | Recipe = "coda",
    model: Model | None = None,
    episodes: int,
    length: int | None = None,
    resting: float = 0.0,
    turns: bool = False,
    task: Labels | GoalLabels | None = None,
    keep_recorded: bool = True,
    seed: int | Stream = 0,
    progress: Progress = silent,
) -> Transitions:
    """The recorded rows, followed by those of new episodes that were never recorded, step by step.

    Recipe "coda": a row of one recorded episode takes over a connected component of the local graph from a row of
    another one, as in `fit_parents(data, graph, "coda")`; and so do the rows before and after the two, as long as no
    edge links that component to the rest, in either of them or in the new row. A component that rests in its own
    episode goes on resting in the new one, until something links to it. Where the graph is right, every new episode is
    what would have happened.

    Recipe "mocoda", and any other that needs a model: an episode starts in a state of `fit_parents(data, graph,
    recipe)` and takes the actions of recorded episodes: of the one whose own state and action are nearest to the
    start's, in the connected component that the action is of. What these act on next is where it was recorded, so that
    a hand finds the cube that it reaches for. Where all that a factor depends on is of one recorded
    row, with the same edges, its next value is the recorded one; the model says the rest. The episode ends before the
    first row with a part, of factors that its local graph links, that was recorded too seldom; that is rarer than all
    but a thousandth of the recorded ones; or about which the members of the model disagree more than about all but a
    tenth of them.

    recipe         a name, for its default settings, or a recipe such as make_recipe("mocoda", density="matched")
    model          says what is next: the mean of an ensemble's members, with noise where the model has found the world
                   noisy, or what any other model's `sample` gives. "coda" needs none
    episodes       how many new ones, of 2 steps or more
    length         the most steps of each; None: as many as there are
    resting        what changes in two steps by no more than this share of its column's largest number is at rest. 0:
                   by nothing at all, so that new episodes are exact. Simulators that leave the last digits of what lies
                   on a table in motion need a little, such as 1e-5
    turns          "coda" only: everything that actions do not move directly is handled after a recorded episode of its
                   own, in turns, in one new episode. The others rest meanwhile. Where the turn changes, what the
                   actions do move directly, such as a robot, is somewhere else all at once, and a number of `step` is
                   left out: all rows are true, but not that one follows the other. For learners whose goals come from
                   the rest of an episode
    task           labels all rows; one with goals draws one for every episode. Without one, no row has a reward and
                   none is terminal
    keep_recorded  False: only the new rows

    Provenance tells of each row `recipe`; why its episode goes no further, `cut`; and for every factor F the recorded
    episode and step that its value is of, `donor_F` and `donor_step_F`, -1 where the model or a density gave it. Of all
    but "coda" also `support`, `disagreement` and `neighbourhood`, as `augment` has them but support among recorded rows
    with the same links. The table's `source` says what the numbers of `neighbourhood` and `cut` stand for, and counts
    them.
    """
    chosen = make_recipe(recipe) if isinstance(recipe, str) else recipe
    check_episodes(chosen, episodes, length, resting, turns)
    if chosen.needs_model and model is None:
        raise InputError(
            f"recipe {chosen.name!r} asks a model what is next; pass model=mocoda.fit_dynamics(data, graph), or use "
            "recipe 'coda', which needs none."
        )
    stream = as_stream(seed, "augment-episodes", device=data.device)
    walks = Walks.of(data, graph, resting)
    if model is None or not chosen.needs_model:
        made = (take_turns if turns else exchange)(data, walks, episodes, length, stream, progress)
    else:
        made = roll_out(data, walks, chosen, model, task, episodes, length, stream, progress)
    state, action = made.rows.split([data.state.shape[1], data.action.shape[1]], 1)
    new = Transitions(state, action, made.next_state, episode=made.episode, step=made.step, columns=data.columns)
    new = _labelled(new, made.notes, task, stream.child("labels"))
    source = {
        "recorded": dict(data.source),
        "recorded_rows": len(data) if keep_recorded else 0,
        "generated_rows": len(new),
        "generated_episodes": episodes,
        "recipe": chosen.name,
        "length": length,
        "resting": resting,
        **({"turns": True} if turns else {}),
        "task": getattr(task, "name", None),
        "seed": stream.seed,
        **({"model": getattr(model, "settings", type(model).__name__)} if chosen.needs_model else {}),
        **getattr(task, "source", {}),
        **made.source,
    }
    if not keep_recorded:
        return concatenate([new], source)
    # Notes from an earlier augmentation stay.
    notes = made.recorded()
    notes |= {name: note for name, note in data.provenance.items() if name in notes}
    return concatenate([_labelled(data, notes, task, stream.child("recorded")), new], source)


def check_episodes(recipe: Recipe, episodes: int, length: int | None, resting: float, turns: bool = False) -> None:
    """Refuses what no data could satisfy."""
    if turns and not isinstance(recipe, Coda):
        raise InputError(f"recorded episodes take turns in recipe 'coda' alone, not in {recipe.name!r}; remove turns.")
    if not recipe.needs_model and not isinstance(recipe, Coda):
        raise InputError(
            f"recipe {recipe.name!r} makes rows and no episodes; use 'coda', which exchanges parts of episodes, or one "
            "that needs a model, such as 'mocoda'."
        )
    if episodes < 1:
        raise InputError(f"episodes must be at least 1, the number of episodes to make, got {episodes}.")
    if length is not None and length < SHORTEST:
        raise InputError(f"length must be at least {SHORTEST}, the most steps of an episode, got {length}.")
    check_resting(resting)


def _labelled(
    rows: Transitions, notes: dict[str, Tensor], task: Labels | GoalLabels | None, stream: Stream
) -> Transitions:
    """Rows with these notes, labelled as by `labels_of` but with one goal for all rows of an episode."""
    assert rows.episode is not None
    transitions = (rows.state, rows.action, rows.next_state)
    if isinstance(task, GoalLabels):
        alone = rows.episode.max() + 1 + torch.arange(len(rows), device=rows.device)  # rows of no episode
        kinds, kind = torch.where(rows.episode < 0, alone, rows.episode).unique(return_inverse=True)
        goal = task.goals(len(kinds), seed=stream.child("goals"), device=rows.device).float()[kind]
        labels: Labelled = (*task.label(*transitions, goal), goal)
    else:
        labels = labels_of(*transitions, task, 0.0, stream)
    return Transitions(*transitions, *labels, rows.columns, None, notes, rows.episode, rows.step)
