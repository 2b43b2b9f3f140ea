"""Support and disagreement: how common a row is in the data, and how far an ensemble disagrees about it.

Both are unit-free. Support is a share of the recorded rows; disagreement is in standard deviations of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.dynamics import Ensemble
from mocoda.engine.errors import InputError
from mocoda.engine.networks import moments
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents.mocoda import MixtureParents, fewer_components

FITTED = 50_000  # recorded rows that the mixtures are fitted to, at most
REFERENCE = 10_000  # recorded rows whose densities tell what is rare, at most


@dataclass(frozen=True, eq=False)
class Support:
    """How common the rarest parent set of a row is in the data."""

    mixtures: MixtureParents
    known: Tensor  # (sets, M), each parent set's log densities at the reference rows, ascending
    least: Tensor  # (M,), the same rows' rarest set's share, ascending

    def score(self, rows: Tensor) -> Tensor:
        """The share of recorded rows, (N,) float32, whose rarest parent set is as rare as that of rows (N, S + A).

        Over the recorded rows themselves the score is uniform: 5% of them have 0.05 or less. A row outside of all that
        was recorded has 0.
        """
        return share(self.least, ranks(self.mixtures, rows, self.known).amin(1))


def fit_support(
    data: Transitions,
    graph: LocalGraph,
    *,
    components: int = 32,
    seed: int | Stream = 0,
    reference: Tensor | None = None,
    parent_sets: Sequence[Sequence[str]] | None = None,
) -> Support:
    """Mixtures of the parent sets that tell common rows from rare ones, whatever recipe drew them.

    reference    rows (M, S + A) whose densities tell what is rare; of those that the mixtures are fitted to unless
                 given
    parent_sets  those that count; all of the graph unless given
    """
    graph.check_data(data)
    stream = as_stream(seed, "support", device=data.device)
    chosen = data[stream.permutation(len(data))[:FITTED]]
    fewer = fewer_components(components, len(chosen), graph)
    mixtures = MixtureParents.fit(chosen, graph, fewer, stream, parent_sets=parent_sets)
    reference = (chosen.rows if reference is None else reference)[:REFERENCE]
    known = densities(mixtures, reference)
    return Support(mixtures, known, ranks(mixtures, reference, known).amin(1).sort().values)


def densities(mixtures: MixtureParents, reference: Tensor) -> Tensor:
    """Each parent set's log densities at the reference rows (M, S + A), ascending: (sets, M)."""
    return mixtures.log_prob(reference).T.contiguous().sort().values


def ranks(mixtures: MixtureParents, rows: Tensor, known: Tensor) -> Tensor:
    """For every row (N, S + A) and parent set, the share of what is `known` (sets, M) that is as rare: (N, sets)."""
    return share(known, mixtures.log_prob(rows).T.contiguous()).T


def share(known: Tensor, values: Tensor) -> Tensor:
    """The share of ascending numbers (*L, M) that are no greater than each value (*L, N): (*L, N) float32."""
    return torch.searchsorted(known, values, right=True) / max(1, known.shape[-1])


def step_scale(data: Transitions) -> Tensor:
    """The standard deviation of next state minus state over the data, (S,); 1 where nothing ever changes."""
    largest = torch.maximum(data.state.abs(), data.next_state.abs()).amax(0)
    scale = moments(data.next_state.double() - data.state.double(), largest)[1].float()
    return torch.where(scale > 0, scale, 1.0)


def disagreement(model: Ensemble, rows: Tensor, scale: Tensor | None = None) -> Tensor:
    """How far the members' means lie apart at rows (N, S + A): (N,) float32, the largest over the children.

    A child's is the root mean square distance of the members' means from their middle, over members and its columns, in
    units of `scale` (S,), as from `step_scale(data)`. Unless given, that is the scale of what the model was trained to
    predict: the same, unless its configuration says otherwise. At 1, members differ as much as recorded steps do.
    """
    if scale is None:
        scale = getattr(model, "scaling", {}).get("target_scale")
    if scale is None:
        raise InputError(
            "this model does not know how long a step is; pass scale=mocoda.augmentation.support.step_scale(data)."
        )
    scale = torch.where(scale > 0, scale, 1.0)  # about a column that never changes, the members agree exactly
    return spread(model.predict(rows).mean, model.graph, scale).amax(1)


def spread(mean: Tensor, graph: LocalGraph, scale: Tensor) -> Tensor:
    """How far members that expect `mean` (E, N, S) disagree about each child: (N, children)."""
    apart = (mean / scale).var(0, correction=0)  # (N, S)
    children = [apart[:, list(graph.factors[child])].mean(1) for child in graph.children]
    return torch.stack(children, 1).sqrt()
