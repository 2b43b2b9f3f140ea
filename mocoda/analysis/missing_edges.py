"""Missing edges: tests a graph on recombined rows, where a missing edge makes wrong next states.

A dense model, which sees every factor, learns the error of the factored model, which sees a child's parents only. Then
a factor outside the parents is exchanged between rows with similar parents, while recorded next values stay. If the
graph is right, such rows are as true as recorded ones, and the dense model predicts both equally well. If it predicts
the recorded rows better, the edge is missing. The search goes forward: once an edge is found, its factor counts as a
parent, so that a factor which only accompanies the true parent is not blamed. Finally the factor is exchanged freely,
as recipes do, to see how many next states would be wrong.

Axes: N rows, K directions of a child's error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph

FOLDS = 3  # of cross-validation
# A fixed number of iterations: regressions that stop early differ by luck.
BOOSTING = {"max_iter": 40, "learning_rate": 0.2, "max_leaf_nodes": 15, "early_stopping": False, "random_state": 0}
MAX_ROWS = 20_000  # that regressions see
MAX_TARGETS, TARGET_SHARE = 3, 0.95  # principal directions of a child's error that are regressed
GROUP_ROWS = 16  # rows, at most, among which values are exchanged
MIN_ROWS, MIN_BLOCKS = 100, 10  # to judge by
MIN_T = 4.0  # standard errors, over blocks of rows, that a loss must be above 0
MIN_SHARE = 0.05  # of the first edge's loss: further edges show when the first one is in the graph
TOLERANCE = 0.1  # of a child's step: a next state that is further off is wrong, as in an audit
MIN_FALSE = 0.01  # share of recombined rows that an edge must make wrong
NAMED_ROWS = 5


@dataclass(frozen=True)
class MissingEdge:
    """A factor that a child depends on, though the graph says it does not.

    false_rows  share of recombined rows whose next state would be wrong, by more than a tenth of the child's step
    rows        recorded rows in which the factor matters most
    """

    parent: str
    child: str
    false_rows: float
    rows: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.parent} -> {self.child}"


def find_missing_edges(
    graph: LocalGraph,
    rows: Tensor,
    error: Tensor,
    step: Tensor,
    block: Tensor,
    *,
    seed: Stream,
    progress: Progress = silent,
) -> tuple[MissingEdge, ...]:
    """Searches for edges that the graph lacks.

    rows   (N, S + A)
    error  (N, S) of the factored model there
    step   (S,), the standard deviation of each column's steps; 0 where nothing changes
    block  (N,), the number of each row's block: rows of a block were recorded together, and are held out together
    """
    every = -(-len(rows) // MAX_ROWS)
    rows, error, block, step = rows[::every].cpu(), error[::every].cpu(), block[::every].cpu(), step.cpu()
    middle, spread = rows.mean(0), rows.std(0, correction=0).clamp(min=1e-8)
    scaled = (rows - middle) / spread
    mask, found = graph.mask(rows), list[MissingEdge]()
    for number, name in enumerate(graph.children):
        part, columns = seed.child(name), [column for column in graph.factors[name] if step[column] > 0]
        lacks = [i for i in range(len(graph.parents)) if int((~mask[:, i, number]).sum()) >= MIN_ROWS]
        fold = part.permutation(int(block.max()) + 1)[block] % FOLDS
        if columns and lacks and bool(error[:, columns].any()):
            pairs = _comparable(graph, name, middle, spread)
            dense = _Dense.fit(scaled, mask[:, :, number], graph, pairs, error[:, columns], step[columns], fold)
            found += _missing(dense, number, rows, block, lacks, part)
        progress("edges", number + 1, len(graph.children))
    return tuple(replace(edge, rows=tuple(i * every for i in edge.rows)) for edge in found)


class Pairs(NamedTuple):
    """Pairs of columns, and what turns standardised ones into their difference."""

    one: Tensor
    other: Tensor
    middle: Tensor
    spread_one: Tensor
    spread_other: Tensor


@dataclass(frozen=True, eq=False)
class _Dense:
    """A model of one child's error that sees every factor; each row is predicted by models of other folds.

    units  (K, columns), directions of the error -> columns, as shares of the length of the child's step
    """

    graph: LocalGraph
    edges: Tensor  # bool (N, parents), those into the child
    pairs: Pairs
    scaled: Tensor  # (N, S + A), standardised rows
    fold: Tensor  # (N,)
    error: Tensor  # (N, K), that the parents do not explain
    units: Tensor
    models: list[list[object]]  # by fold and direction

    @staticmethod
    def fit(
        scaled: Tensor, edges: Tensor, graph: LocalGraph, pairs: Pairs, error: Tensor, step: Tensor, fold: Tensor
    ) -> _Dense:
        errors, directions = _principal(error / step)
        units = directions.T * step / step.norm()
        seen = edges[:, graph.owner]
        # Whatever the parents explain is taken out first, or factors that go with them would seem to explain it.
        known = torch.cat([scaled * seen, _differences(scaled, pairs, seen), edges.float()], 1).numpy()
        errors = errors - _predicted(_fitted(known, errors, fold), known, fold)
        dense = _Dense(graph, edges, pairs, scaled, fold, errors, units, [])
        dense.models.extend(_fitted(dense.inputs(scaled), errors, fold))
        return dense

    def inputs(self, scaled: Tensor) -> NDArray[np.float32]:
        seen = self.edges[:, self.graph.owner]
        differences = _differences(scaled, self.pairs, torch.ones_like(seen))
        inputs: NDArray[np.float32] = torch.cat(
            [scaled * seen, scaled * ~seen, differences, self.edges.float()], 1
        ).numpy()
        return inputs

    def __call__(self, scaled: Tensor) -> Tensor:
        """The errors (N, K) that are expected at standardised rows (N, S + A) with these edges."""
        return _predicted(self.models, self.inputs(scaled), self.fold)


def _comparable(graph: LocalGraph, child: str, middle: Tensor, spread: Tensor) -> Pairs:
    """Columns of a child beside columns of other factors of the same kind, such as places: distances may matter."""
    own = torch.zeros(len(middle), dtype=torch.bool)
    own[list(graph.factors[child])] = True
    apart, widest = (middle[:, None] - middle).abs(), torch.maximum(spread[:, None], spread)
    alike = (widest < 2 * torch.minimum(spread[:, None], spread)) & (apart < 2 * widest)
    one, other = (alike & own[:, None] & ~own).nonzero().T
    return Pairs(one, other, middle[one] - middle[other], spread[one], spread[other])


def _differences(scaled: Tensor, pairs: Pairs, seen: Tensor) -> Tensor:
    one, other, middle, spread_one, spread_other = pairs
    found: Tensor = middle + spread_one * scaled[:, one] - spread_other * scaled[:, other]
    return found * (seen[:, one] & seen[:, other])


def _fitted(inputs: NDArray[np.float32], targets: Tensor, fold: Tensor) -> list[list[object]]:
    """Regressions of targets (N, K) on inputs (N, columns), trained without each fold."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    trains = [(fold != number).numpy() for number in range(FOLDS)]
    return [
        [HistGradientBoostingRegressor(**BOOSTING).fit(inputs[train], target[train]) for target in targets.T.numpy()]
        for train in trains
    ]


def _predicted(models: list[list[object]], inputs: NDArray[np.float32], fold: Tensor) -> Tensor:
    found = torch.empty(len(inputs), len(models[0]))
    for number, own in enumerate(models):
        test = (fold == number).numpy()
        for target, model in enumerate(own):
            found[test, target] = torch.from_numpy(model.predict(inputs[test])).float()  # type: ignore[attr-defined]
    return found


def _principal(error: Tensor) -> tuple[Tensor, Tensor]:
    """The error (N, columns) in the directions (columns, K) that hold most of it: (N, K)."""
    strength, directions = torch.linalg.eigh(error.double().T @ error.double())
    held = strength.flip(0).clamp(min=0).cumsum(0)
    count = min(MAX_TARGETS, 1 + int((held < TARGET_SHARE * held[-1]).sum()))
    main = directions.flip(1)[:, :count].float()
    return error @ main, main


def _missing(
    dense: _Dense, child: int, rows: Tensor, block: Tensor, lacks: Sequence[int], stream: Stream
) -> Iterator[MissingEdge]:
    """The missing parents of a child among factors that some rows lack as parents."""
    graph, now, known, first = dense.graph, dense(dense.scaled), dense.edges.clone(), 0.0
    while True:
        seen = known[:, graph.owner]
        parents = torch.cat([dense.scaled * seen, known.float()], 1)
        exchanged = stand_ins_for(parents, dense.scaled, block, [dense.fold == number for number in range(FOLDS)])
        best: tuple[float, int, Tensor, Tensor] | None = None
        for factor in lacks:
            chosen = (graph.owner == factor) & ~seen
            instead = dense(torch.where(chosen, exchanged, dense.scaled))
            loss = (dense.error - instead).square().sum(1) - (dense.error - now).square().sum(1)
            if _is_sure(loss[chosen.any(1)], block[chosen.any(1)]) and (best is None or float(loss.mean()) > best[0]):
                best = float(loss.mean()), factor, loss, instead
        if best is None or best[0] < MIN_SHARE * first:
            return
        gain, factor, loss, instead = best
        # The part of the model's claims that the recorded rows confirm.
        claim = now - instead
        confirmed = float(((dense.error - instead) * claim).sum() / claim.square().sum().clamp(min=1e-30))
        false_rows = _false_rows(dense, child, rows, factor, min(1.0, confirmed), now, stream.child("free", factor))
        if false_rows >= MIN_FALSE:
            worst = loss.argsort(descending=True, stable=True)[:NAMED_ROWS].tolist()
            yield MissingEdge(graph.parents[factor], graph.children[child], false_rows, tuple(worst))
        first = first or gain
        known[:, factor] = True


def _is_sure(loss: Tensor, block: Tensor) -> bool:
    """Whether losses (M,) are above 0 beyond doubt, given that rows of a block (M,) vary together."""
    if len(loss) < MIN_ROWS:
        return False
    number = torch.unique(block, return_inverse=True)[1]
    sums = torch.zeros(int(number.max()) + 1, dtype=loss.dtype).index_add_(0, number, loss)
    return len(sums) >= MIN_BLOCKS and float(sums.mean()) > MIN_T * float(sums.std()) / math.sqrt(len(sums))


def _false_rows(
    dense: _Dense, child: int, rows: Tensor, factor: int, confirmed: float, now: Tensor, stream: Stream
) -> float:
    """The share of rows whose next state is wrong if a factor comes from any other row that leaves the edges alone."""
    graph, other = dense.graph, stream.permutation(len(rows))
    columns = graph.owner == factor
    same = (graph.mask(torch.where(columns, rows[other], rows))[:, :, child] == dense.edges).all(1)
    same &= ~dense.edges[:, factor]
    if not bool(same.any()):
        return 0.0
    shift = confirmed * (dense(torch.where(columns, dense.scaled[other], dense.scaled)) - now) @ dense.units
    return float((shift.norm(dim=1) > TOLERANCE)[same].double().mean())


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
