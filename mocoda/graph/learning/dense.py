"""A dense model of every child, which says which parents matter, and whether the learned edges suffice.

It predicts each child from all factors. A parent matters in a row if the prediction moves once the parent is redrawn.
To test edges, held-out rows are recombined by them, as CoDA does: where an edge is missing, the model predicts the
recorded next values of such rows worse than those of recorded rows.

Axes: R runs, C children, P parents, N rows, B rows of a batch, W columns of a row, K columns of the widest child.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from mocoda.engine.networks import Weights
from mocoda.engine.progress import Progress
from mocoda.graph.learning.baseline import Table, absolute, descend, roundings
from mocoda.graph.learning.gate_networks import block_of, embedded, pair_weights, summed

if TYPE_CHECKING:
    from mocoda.graph.learning.gates import GateLearner

# Standard deviations of a column's changes.
LEAST_EFFECT = 0.05  # a parent that moves the prediction less does not matter
FALSE = 0.1  # a next value that is further off is false, as in an audit
BASELINE_SHARE = 0.7  # of the rows and redraws in which a baseline parent moves the prediction
MAX_FALSE = 0.02  # share of recombined rows in which a child's next value may be false
REDRAWS, MIN_MOVED = 8, 6  # a parent acts in a row if this many of its redraws move the prediction: some act too
MAX_ROWS = 8_192  # in which parents are redrawn, and from which distances are measured
NEAR_QUANTILE, MIN_NEAR = 0.95, 1 / 3  # of the distances of held-out rows; of recombined rows, to speak for the others


class Redrawn(NamedTuple):
    """In how many redraws of a parent the prediction of a child moves."""

    rows: Tensor  # numbers of training rows, (N,)
    moved: Tensor  # (C, N, P)


@dataclass(frozen=True, eq=False)
class DenseModel:
    """Networks that predict the changes of each child from all parents."""

    table: Table
    weights: Weights

    @staticmethod
    def fit(table: Table, learner: GateLearner, progress: Progress) -> DenseModel:
        stream, children, columns = table.stream.child("dense"), len(table.itself), table.target.shape[-1]
        weights = pair_weights(table.layout, learner.runs, learner.hidden, columns, 0, stream.child("weights"))
        shape = (learner.runs, children, learner.batch)

        def draw(start: int, updates: int) -> dict[str, Tensor]:
            index = table.train[stream.integers(len(table.train), updates, *shape)]
            return {"rows": index, "rounding": roundings(start, updates, learner.steps, index.device)}

        def loss(given: Mapping[str, Tensor]) -> Tensor:
            predicted = summed(weights, embedded(weights, table.pairs(given["rows"])).sum(-3))
            error = absolute(predicted - table.targets(given["rows"]), given["rounding"])
            return table.per_column(error).mean(-1).sum()

        rate = 5 / 3 * learner.learning_rate
        trained = descend(
            weights, loss, draw, rate=rate, steps=learner.steps, decay=1e-6, progress=progress, stage="dense model"
        )
        return DenseModel(table, trained)

    @torch.no_grad()
    def redrawn(self) -> Redrawn:
        """Redraws each parent of training rows from other rows."""
        table, stream, found = self.table, self.table.stream.child("redraws"), list[Tensor]()
        index = table.train[:MAX_ROWS]
        for part in index.split(self._block):
            rows = table.rows[part]
            messages = embedded(self.weights, table.layout.pairs(rows[None], table.scaling))
            total, count = messages.sum(-3), torch.zeros(*table.itself.shape, len(rows), device=rows.device)
            before = summed(self.weights, total)
            for _ in range(REDRAWS):
                other = table.rows[index[stream.integers(len(index), len(rows))]]
                shift = embedded(self.weights, table.layout.pairs(rows[None], table.scaling, other[None])) - messages
                for parent in range(count.shape[1]):
                    moved = summed(self.weights, total + shift[..., parent, :, :]) - before
                    count[:, parent] += self._size(moved).amin(0) > LEAST_EFFECT
            found.append(count.transpose(1, 2))
        return Redrawn(index, torch.cat(found, 1))

    @torch.no_grad()
    def false_share(self, mask: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """The share (C,) of held-out rows that recombination makes false beyond usual errors; whether that is a guess.

        All but the parents of a child become another row's. If the child's edges stay as they were, so should its next
        value. The model guesses in rows farther from recorded ones than these are from each other, which do not count
        unless most rows are: recipes draw them.

        mask  rows (N, W) -> edges (N, P, C)
        """
        table, false, guessed = self.table, list[Tensor](), list[bool]()
        rows, target = table.rows[table.held_out], table.target[:, table.held_out]
        edges, recorded = mask(rows), self._false(rows, target)
        far = self._distance(rows).quantile(NEAR_QUANTILE)
        for child, own in enumerate(edges.unbind(2)):
            new = torch.where((own.float() @ table.layout.owned).bool(), rows, rows.roll(1, 0))
            same = (mask(new)[:, :, child] == own).all(1) & ~own.all(1)
            near = same & (self._distance(new) <= far)
            guessed.append(int(near.sum()) < MIN_NEAR * int(same.sum()))
            judged = same if guessed[-1] else near
            worse = (self._false(new, target) - recorded)[child, judged].sum() / judged.sum().clamp(min=1)
            # Where the model errs in many recorded rows, it also errs more often in new ones.
            false.append(worse - recorded[child].mean() / 2)
        return torch.stack(false), torch.tensor(guessed, device=rows.device)

    def _distance(self, rows: Tensor) -> Tensor:
        """The distance of rows (N, W) from the nearest training row, in standard deviations, (N,)."""
        scaled = (rows - self.table.scaling["shift"]) / self.table.scaling["scale"]
        known = self.table.inputs[self.table.train[:MAX_ROWS]]
        return torch.cat([torch.cdist(part, known).amin(1) for part in scaled.split(512)])

    def _false(self, rows: Tensor, target: Tensor) -> Tensor:
        """Whether the prediction at rows (N, W) is far from the target (C, N, K), as a share of the runs: (C, N)."""
        found = []
        for part, wanted in zip(rows.split(self._block), target.split(self._block, 1), strict=True):
            messages = embedded(self.weights, self.table.layout.pairs(part[None], self.table.scaling))
            found.append((self._size(summed(self.weights, messages.sum(-3)) - wanted) > FALSE).float().mean(0))
        return torch.cat(found, 1)

    def _size(self, values: Tensor) -> Tensor:
        """The largest of a child's columns, (R, C, B), of values (R, C, B, K)."""
        return (values.abs() * self.table.counted).amax(-1)

    @property
    def _block(self) -> int:
        return block_of(self.table.rows.device, len(self.weights["skip.bias"]) * self.table.itself.numel(), 512)
