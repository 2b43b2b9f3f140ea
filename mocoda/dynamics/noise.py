"""Tells noise in the data from errors of a model, so that next states have noise only where the world has it.

Errors of a model are smooth: rows that are alike have alike residuals. Noise differs from row to row, however alike
they are. This is the idea of the Gamma test (Stefánsson, Končar & Jones, 1997), here for the residuals of the
ensemble's mean at rows that it was not trained on.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.dynamics.model import Dynamics

MAX_ROWS = 5_000  # held-out rows that are compared
MIN_ROWS, MIN_PAIRS = 50, 200  # in which neighbours are looked for, and pairs of them; with fewer, nothing is noisy
UNLIKE = 0.8  # of the residuals' variance, at least, is between nearest neighbours where they are noise
SIZE = 0.05  # of a step's standard deviation; the typical row's noise is larger
EVERYWHERE = 0.5  # of the residuals' standard deviation, likewise; errors at contacts are large in few rows
DISAGREED = (
    0.25  # of the residuals' variance, at most, is what members disagree by; else too little was learned to tell
)
BLOCK = 1_000  # rows whose neighbours are looked for at a time
TYPICAL = 1.4826  # standard deviations of a Gaussian in its median absolute value


@torch.no_grad()
def noisy_columns(model: Dynamics, held_out: Transitions, data: Transitions) -> tuple[int, ...]:
    """The state columns that are noisy in recorded rows, by those that were held out.

    A column is noisy if its residuals differ between nearest neighbours about as much as between any two rows, if they
    are not small in the typical row, and if members agree better than that. Neighbours are nearest in what the column's
    factor depends on, among rows in which that is the same.
    """
    step, some = (data.next_state - data.state).std(0, correction=0), held_out[:MAX_ROWS]
    mean, scale = model.predict(some.rows)
    residual, apart = (some.next_state - mean.mean(0)).double(), mean.double().var(0, correction=0)
    spread = some.rows.std(0, correction=0)
    inputs, mask = some.rows / torch.where(spread > 0, spread, 1.0), model.graph.mask(some.rows)
    found = []
    for number, child in enumerate(model.graph.children):
        own = list(model.graph.factors[child])
        pairs = _neighbours(inputs, mask[:, :, number], model.graph.owner.to(inputs.device))
        if len(pairs) < MIN_PAIRS:
            continue
        one, other = (residual[rows][:, own] for rows in pairs.T)
        variance = one.square().mean(0)
        unlike = 0.5 * (one - other).square().mean(0) >= UNLIKE * variance
        usual = TYPICAL * one.abs().median(0).values
        everywhere = (usual > SIZE * step[own]) & (usual > EVERYWHERE * variance.sqrt())
        sure = apart[pairs[:, 0]][:, own].mean(0) <= DISAGREED * variance
        foreseen = (scale[..., own] > 0).flatten(0, 1).any(0)  # a model without noise has none to add
        noisy = unlike & everywhere & sure & foreseen
        found += [column for column, is_noisy in zip(own, noisy.tolist(), strict=True) if is_noisy]
    return tuple(sorted(found))


def _neighbours(inputs: Tensor, depends: Tensor, owner: Tensor) -> Tensor:
    """Pairs of rows (pairs, 2): each row and the one that is nearest in what a factor depends on.

    inputs   (N, S + A), in standard deviations
    depends  (N, parents), on which factors it does
    owner    (S + A,), the factor of each column
    """
    pairs = [torch.zeros(0, 2, dtype=torch.long, device=owner.device)]
    kinds, kind = depends.unique(dim=0, return_inverse=True)
    for number, parents in enumerate(kinds):
        rows = (kind == number).nonzero()[:, 0]
        columns = parents[owner].nonzero()[:, 0]
        if len(rows) < MIN_ROWS or not len(columns):
            continue
        points = inputs[rows][:, columns]
        for block in torch.arange(len(rows), device=rows.device).split(BLOCK):
            distance = torch.cdist(points[block], points)
            distance[torch.arange(len(block), device=rows.device), block] = torch.inf
            pairs.append(torch.stack([rows[block], rows[distance.argmin(1)]], 1))
    return torch.cat(pairs)
