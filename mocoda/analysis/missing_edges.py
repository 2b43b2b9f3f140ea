"""Missing edges: whether factors outside a child's parents explain the held-out errors of a factored model.

If the graph is right, nothing outside a child's parents is informative about the error of the factored model. So that
error is regressed (gradient boosting, cross-validated) twice: on the parents and the factors outside, and on the
parents and stand-ins, which are the same factors exchanged between rows with similar parents. Stand-ins cost a
regression as much, and help as much by accident or by their correlation with the parents, so an advantage over them is
real. Which factors are responsible is then searched forward, one at a time, each given those found before: a factor
that is merely correlated with the true parent explains nothing once that parent is known.

Axes: N rows, K columns of a child.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph

FOLDS = 3  # of cross-validation
# A fixed number of iterations: regressions that stop early differ by luck.
BOOSTING = {"max_iter": 40, "learning_rate": 0.2, "max_leaf_nodes": 15, "early_stopping": False}
MAX_ROWS = 20_000  # that regressions see
MAX_TARGETS, TARGET_SHARE = 3, 0.95  # principal directions of a child's error that are regressed
GROUP_ROWS = 16  # rows, at most, that stand in for each other
MIN_ROWS, MIN_BLOCKS = 100, 10  # to judge by
MIN_SHARE, MIN_TOTAL = 0.05, 0.01  # shares of the error left, and of the whole error, that an edge must explain
MIN_VARIANCE = 1e-4  # of the child's change that an edge must explain: less may be imprecise regression
MIN_T = 4.0  # standard errors, over blocks of rows, that an advantage must be above 0


@dataclass(frozen=True)
class MissingEdge:
    """A factor that a child depends on, though the graph says it does not."""

    parent: str
    child: str
    explains: float  # the share of the child's error that vanishes once the parent is known

    def __str__(self) -> str:
        return f"missing edge: {self.parent} -> {self.child} (explains {100 * self.explains:.0f}% of its error)"


@dataclass(frozen=True)
class Child:
    """What the error of the factored model says about one child's parents.

    error     root mean square error of the factored model on held-out rows, in standard deviations of a step
    judged    rows on which a missing edge would show; 0 where all factors are parents everywhere, or too few are left
    outside   the share of the error that the factors outside the parents explain together; 0 if by chance
    missing   the factors that explain it alone; empty although `outside` is not where only several together do
    """

    name: str
    error: float
    judged: int
    outside: float
    missing: tuple[MissingEdge, ...]


def missing_edges(
    graph: LocalGraph,
    rows: Tensor,
    error: Tensor,
    block: Tensor,
    held_out: Tensor,
    *,
    seed: Stream,
    progress: Progress = silent,
) -> tuple[Child, ...]:
    """Searches for edges into each child that the graph lacks.

    rows      (N, S + A)
    error     (N, S) of the model there, in standard deviations of the column's steps
    block     (N,), the number of each row's block: rows of a block were recorded together, and are held out together
    held_out  bool (N,), the rows that the model was not trained on, by which edges are judged
    """
    every = -(-len(rows) // MAX_ROWS)
    rows, error, block, held_out = (values[::every].cpu() for values in (rows, error, block, held_out))
    scaled = (rows - rows.mean(0)) / rows.std(0, correction=0).clamp(min=1e-8)
    mask, children = graph.mask(rows), []
    for number, name in enumerate(graph.children):
        own = error[:, list(graph.factors[name])]
        search = _Search(graph, scaled, mask[:, :, number], _principal(own), block, held_out)
        size, found = float(own[held_out].square().mean().sqrt()), search.child(name, seed.child(name))
        if found.outside > 0:  # a regression may be lucky: another one, with other folds, must agree
            again = search.child(name, seed.child(name, "again"))
            both = {edge.parent for edge in again.missing}
            missing = tuple(edge for edge in found.missing if edge.parent in both)
            found = replace(found, outside=min(found.outside, again.outside), missing=missing)
        children.append(replace(found, error=size))
        progress("edges", number + 1, len(graph.children))
    return tuple(children)


def _principal(error: Tensor) -> Tensor:
    """The error (N, K) in the principal directions that hold most of it: (N, at most MAX_TARGETS).

    The sum of their squares is about the mean of the columns' squares.
    """
    strength, directions = torch.linalg.eigh(error.double().T @ error.double())
    held = strength.flip(0).clamp(min=0).cumsum(0)
    count = min(MAX_TARGETS, 1 + int((held < TARGET_SHARE * held[-1]).sum()))
    main: Tensor = error @ directions.flip(1)[:, :count].float()
    return main / math.sqrt(error.shape[1])


@dataclass(frozen=True, eq=False)
class _Search:
    """The search for the missing parents of one child."""

    graph: LocalGraph
    rows: Tensor  # (N, S + A), standardised
    edges: Tensor  # bool (N, parents)
    error: Tensor  # (N, K)
    block: Tensor  # (N,)
    held_out: Tensor  # bool (N,)

    def child(self, name: str, stream: Stream) -> Child:
        """The missing parents that cross-validation with folds from this stream finds."""
        blocks = stream.permutation(int(self.block.max()) + 1)
        cross = _CrossValidation(self, blocks[self.block] % FOLDS)
        lacks = {factor: ~self.edges[:, i] & self.held_out for i, factor in enumerate(self.graph.parents)}
        candidates = [factor for factor, rows in lacks.items() if int(rows.sum()) >= MIN_ROWS]
        if not candidates or not bool(self.error.any()):
            return Child(name, 0.0, 0, 0.0, ())
        lacking = torch.stack([lacks[factor] for factor in candidates]).any(0)
        gain, whole = cross.gain(candidates, (), lacking, lacking)
        gains: dict[str, float] = {}  # of the factors found so far
        while gain > 0 and len(gains) < len(candidates):
            rest = [factor for factor in candidates if factor not in gains]
            now = {factor: cross.gain([factor], tuple(gains), lacks[factor], lacking, whole)[0] for factor in rest}
            best = max(now, key=now.__getitem__)
            if now[best] == 0:
                break
            gains[best] = now[best]
        for factor in list(gains)[:-1]:  # an early one may only have stood in for later ones
            others = tuple(other for other in gains if other != factor)
            if cross.gain([factor], others, lacks[factor], lacking, whole)[0] == 0:
                del gains[factor]
        missing = tuple(MissingEdge(factor, name, min(1.0, gain / whole)) for factor, gain in gains.items())
        return Child(name, 0.0, int(lacking.sum()), gain / max(whole, 1e-30), missing)


@dataclass(frozen=True, eq=False)
class _CrossValidation:
    """Regressions of one child's error, cross-validated over folds of blocks."""

    of: _Search
    fold: Tensor  # (N,)

    def gain(
        self, factors: Sequence[str], known: Sequence[str], judged: Tensor, lacking: Tensor, whole: float = 0.0
    ) -> tuple[float, float]:
        """How much of the squared error `factors` explain beyond their stand-ins, 0 if that may be chance.

        Also the error with stand-ins. `known` factors count as parents. The gain is judged on the rows that lack the
        edges (`judged`), and averaged over all rows that lack any edge (`lacking`).
        """
        with_, without = self.squared_errors(factors, known)
        advantage, left = (without - with_)[judged], float(without[judged].mean())
        gain, whole = float(advantage.mean()), whole or left
        counted = gain * float(judged.sum() / lacking.sum())
        if gain < MIN_SHARE * left or counted < max(MIN_VARIANCE, MIN_TOTAL * whole):
            return 0.0, left
        if any(float(advantage[self.fold[judged] == number].mean()) <= 0 for number in range(FOLDS)):
            return 0.0, left
        return (counted if _is_sure(advantage, self.of.block[judged]) else 0.0), left

    def squared_errors(self, factors: Sequence[str], known: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Squared errors (N,) that regressions leave which see `factors`, and which see their stand-ins."""
        owner = torch.empty(self.of.graph.width, dtype=torch.long)  # the factor of each column
        for number, columns in enumerate(self.of.graph.factors.values()):
            owner[list(columns)] = number
        more = torch.tensor([factor in known for factor in self.of.graph.parents])
        seen = (self.of.edges | more)[:, owner]
        parents = torch.cat([self.of.rows * seen, (self.of.edges | more).float()], 1)
        own = torch.tensor([self.of.graph.parents[i] in factors for i in owner.tolist()])
        stand_ins = stand_ins_for(parents, self.of.rows, self.of.block, [self.fold == i for i in range(FOLDS)])
        inputs = [torch.cat([parents, (values * ~seen)[:, own]], 1) for values in (self.of.rows, stand_ins)]
        with_, without = (self.left(columns[:, columns.std(0) > 0].numpy()) for columns in inputs)
        return with_, without

    def left(self, inputs: NDArray[np.float32]) -> Tensor:
        """The squared error (N,) that cross-validated regressions on inputs (N, columns) leave, summed over (K,)."""
        from sklearn.ensemble import HistGradientBoostingRegressor
        from sklearn.model_selection import PredefinedSplit, cross_val_predict

        regression = HistGradientBoostingRegressor(random_state=0, **BOOSTING)
        folds = PredefinedSplit(self.fold.numpy())
        left = [
            target - torch.from_numpy(cross_val_predict(regression, inputs, target.numpy(), cv=folds)).float()
            for target in self.of.error.T
        ]
        return torch.stack(left).square().sum(0)


def _is_sure(advantage: Tensor, block: Tensor) -> bool:
    """Whether an advantage (N,) is above 0 beyond doubt, given that rows of a block (N,) vary together."""
    number = torch.unique(block, return_inverse=True)[1]
    sums = torch.zeros(int(number.max()) + 1, dtype=advantage.dtype).index_add_(0, number, advantage)
    error = float(sums.std()) / math.sqrt(len(sums))
    return len(sums) >= MIN_BLOCKS and float(sums.mean()) > MIN_T * error


def stand_ins_for(known: Tensor, rows: Tensor, block: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """Rows (N, W) as they might be, given the known columns (N, D) and nothing else: values of other, similar rows.

    Rows of a part, bool (N,), that are alike in the known columns pass their values on to each other, to another block
    if possible. Each value is used once, as in the data. Values are shifted by a linear regression on the distance that
    remains, so that the stand-in of a column that nearly repeats a known one nearly repeats it too.
    """
    other = torch.arange(len(rows), device=rows.device)
    for part in parts:
        for alike in _groups(known, part.nonzero()[:, 0]):
            alike = alike[block[alike].argsort(stable=True)]
            other[alike] = alike.roll(len(alike) // 2)
    centred = (known - known.mean(0)).double()
    ridge = 1e-6 * len(rows) * torch.eye(known.shape[1], dtype=centred.dtype, device=known.device)
    slope = torch.linalg.solve(centred.T @ centred + ridge, centred.T @ (rows - rows.mean(0)).double())
    shift: Tensor = (known - known[other]).double() @ slope
    return rows[other] + shift.float()


def _groups(known: Tensor, index: Tensor) -> Iterator[Tensor]:
    """The row numbers in groups of similar rows: halved by the column that varies most, down to GROUP_ROWS."""
    if len(index) <= GROUP_ROWS:
        yield index
        return
    points = known[index]
    order = points[:, points.std(0).argmax()].argsort(stable=True)
    middle = len(index) // 2
    yield from _groups(known, index[order[:middle]])
    yield from _groups(known, index[order[middle:]])
