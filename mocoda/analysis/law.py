"""The law of a check: whether what recipes draw keeps the recorded distribution of every parent set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mocoda.analysis.advice import Law
from mocoda.analysis.classifier import FEWEST, FOLDS, STRETCHES, two_sample
from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.progress import Progress
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents import Parents
from mocoda.parents.baselines import UniformParents
from mocoda.parents.mocoda import MixtureParents, StratifiedParents
from mocoda.parents.recipe import RecombinedParents

# These draw from densities; of others, rows may be recorded ones, or of recorded parts.
SMOOTH = (MixtureParents, StratifiedParents, UniformParents)
Fit = Callable[[str, Transitions], Parents]


@dataclass(frozen=True, eq=False)
class Draws:
    """A recipe fitted to the rows shown, rows (M, S + A) that it drew, and how to fit it to others."""

    name: str
    parents: Parents
    rows: Tensor
    fit: Fit


def examine(
    draws: Sequence[Draws],
    used: Transitions,
    is_shown: Tensor,
    graph: LocalGraph,
    updates: int,
    stream: Stream,
    progress: Progress,
) -> tuple[Law, ...]:
    """How well what recipes draw, which were shown some of the rows, is told from the rows held out.

    The data is cut into stretches of rows recorded together, which are dealt to folds, shown and held-out rows alike.
    Recipes that copy recorded rows are fitted to each fold by itself: else a classifier would know the episodes.
    """
    stretch = torch.arange(len(used), device=used.device) * STRETCHES // len(used)
    fold = stream.child("folds").permutation(STRETCHES)[stretch] % FOLDS
    recorded, of_recorded = used.rows[~is_shown], fold[~is_shown]
    shown, of_shown = used[is_shown], fold[is_shown]
    if min(int(folds.bincount(minlength=FOLDS).min()) for folds in (of_recorded, of_shown)) < FEWEST // FOLDS:
        return ()  # too few to say
    laws = []
    for number, one in enumerate(draws):
        progress("check: law", number, len(draws))
        part, folds, rows = stream.child(one.name), None, one.rows
        if not isinstance(one.parents, SMOOTH):
            try:
                rows, of_rows = _drawn_by_fold(one, shown, of_shown, part)
            except InputError:  # what can be fitted to all rows may not be to those of a fold
                continue
            folds = of_recorded, of_rows
        for factors, found in two_sample(recorded, rows, graph, folds=folds, updates=updates, seed=part).items():
            laws.append(Law(one.name, factors, found.auc, *found.interval))
    progress("check: law", len(draws), len(draws))
    return tuple(laws)


def _drawn_by_fold(one: Draws, shown: Transitions, fold: Tensor, stream: Stream) -> tuple[Tensor, Tensor]:
    """Rows (M, S + A) of a recipe fitted to each fold by itself, and their folds (M,)."""
    rows = []
    for number in range(FOLDS):
        own = shown[fold == number]
        if isinstance(
            one.parents, RecombinedParents
        ):  # which columns count is known already, and takes longest to find
            parents: Parents = one.parents.among(own.rows)
        else:
            parents = one.fit(one.name, own)
        rows.append(parents.sample(len(one.rows) // FOLDS, seed=stream.child("fold", number)))
    of_rows = torch.arange(FOLDS, device=fold.device).repeat_interleave(len(rows[0]))
    return torch.cat(rows), of_rows
