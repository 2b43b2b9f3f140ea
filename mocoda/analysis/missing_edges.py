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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph

FOLDS = 2  # of cross-validation
# A fixed number of iterations: regressions that stop early differ by luck.
BOOSTING = {"max_iter": 40, "learning_rate": 0.2, "max_leaf_nodes": 15, "early_stopping": False, "random_state": 0}
MAX_ROWS = 20_000  # that regressions see
MAX_TARGETS, TARGET_SHARE = 3, 0.95  # principal directions of a child's error that are regressed
GROUP_ROWS = 16  # rows, at most, among which values are exchanged
MIN_ROWS, MIN_BLOCKS = 100, 10  # to judge by
FALSE_ALARM = 0.01  # probability that a right graph is accused, shared among the edges that are tested (Bonferroni)
MIN_SHARE = 0.05  # of the first edge's gain: further edges show when the first one is in the graph
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
    mask, found = graph.mask(rows), list[MissingEdge]()
    tested = (~mask).sum(0) >= MIN_ROWS  # (parents, children)
    level = FALSE_ALARM / max(1, int(tested.sum()))
    for number, name in enumerate(graph.children):
        part, columns = seed.child(name), [column for column in graph.factors[name] if step[column] > 0]
        lacks = tested[:, number].nonzero()[:, 0].tolist()
        fold = part.permutation(int(block.max()) + 1)[block] % FOLDS
        if columns and lacks and bool(error[:, columns].any()):
            dense = _Dense.fit(graph, number, rows, mask[:, :, number], error[:, columns], step[columns], fold)
            found += _missing(dense, block, lacks, level, part)
        progress("edges", number + 1, len(graph.children))
    return tuple(replace(edge, rows=tuple(i * every for i in edge.rows)) for edge in found)


@dataclass(frozen=True, eq=False)
class _Dense:
    """A model of one child's error that sees every factor; each row is predicted by models of other folds.

    units  (K, columns), directions of the error -> columns, as shares of the length of the child's step
    """

    graph: LocalGraph
    child: int
    rows: Tensor  # (N, S + A)
    edges: Tensor  # bool (N, parents), those into the child
    pairs: Tensor  # (2, P), columns whose differences the models see
    fold: Tensor  # (N,)
    error: Tensor  # (N, K), that the parents do not explain
    units: Tensor
    models: list[list[object]]  # by fold and direction

    @staticmethod
    def fit(
        graph: LocalGraph, child: int, rows: Tensor, edges: Tensor, error: Tensor, step: Tensor, fold: Tensor
    ) -> _Dense:
        errors, directions = _principal(error / step)
        units = directions.T * step / step.norm()
        pairs, seen = _comparable(graph, child, rows), edges[:, graph.owner]
        # Whatever the parents explain is taken out first, or factors that go with them would seem to explain it.
        known = _inputs(rows, edges, pairs, seen)
        errors = errors - _predicted(_fitted(known, errors, fold), known, fold)
        models = _fitted(_inputs(rows, edges, pairs, torch.ones_like(seen)), errors, fold)
        return _Dense(graph, child, rows, edges, pairs, fold, errors, units, models)

    def __call__(self, rows: Tensor) -> Tensor:
        """The errors (N, K) that are expected at rows (N, S + A) with these edges."""
        everything = torch.ones_like(rows, dtype=torch.bool)
        return _predicted(self.models, _inputs(rows, self.edges, self.pairs, everything), self.fold)


def _inputs(rows: Tensor, edges: Tensor, pairs: Tensor, seen: Tensor) -> NDArray[np.float32]:
    """What regressions see of rows (N, S + A): their seen columns, differences of those, and the edges."""
    one, other = pairs
    differences = (rows[:, one] - rows[:, other]) * (seen[:, one] & seen[:, other])
    inputs: NDArray[np.float32] = torch.cat([rows * seen, differences, edges.float()], 1).numpy()
    return inputs


def _comparable(graph: LocalGraph, child: int, rows: Tensor) -> Tensor:
    """Columns of a child, and columns of other factors of the same kind, such as places: distances may matter."""
    middle, spread, own = rows.mean(0), rows.std(0, correction=0).clamp(min=1e-8), graph.owner == child
    apart, widest = (middle[:, None] - middle).abs(), torch.maximum(spread[:, None], spread)
    alike = (widest < 2 * torch.minimum(spread[:, None], spread)) & (apart < 2 * widest)
    # Factors of one width are probably of one kind: x is compared with x, and not with y.
    width, place = torch.empty(2, len(own), dtype=torch.long)
    for columns in graph.factors.values():
        width[list(columns)], place[list(columns)] = len(columns), torch.arange(len(columns))
    alike &= (width[:, None] != width) | (place[:, None] == place)
    return (alike & own[:, None] & ~own).nonzero().T


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


def _missing(dense: _Dense, block: Tensor, lacks: Sequence[int], level: float, stream: Stream) -> Iterator[MissingEdge]:
    """The missing parents of a child among factors that some rows lack as parents."""
    graph, rows, error, now = dense.graph, dense.rows, dense.error, dense(dense.rows)
    scaled = (rows - rows.mean(0)) / rows.std(0, correction=0).clamp(min=1e-8)
    known, parts, first = dense.edges.clone(), [dense.fold == number for number in range(FOLDS)], 0.0
    while True:
        seen = known[:, graph.owner]
        exchanged = stand_ins_for(torch.cat([scaled * seen, known.float()], 1), rows, block, parts)
        best: tuple[float, int, Tensor, Tensor] | None = None
        for factor in lacks:
            changed = torch.where((graph.owner == factor) & ~seen, exchanged, rows)
            instead, tried = dense(changed), ~known[:, factor]
            # How much better the recorded factor agrees with what happened: without an edge, as likely worse.
            gain = (error * (now - instead)).sum(1)
            if _p_value(gain[tried], block[tried]) >= level:
                continue
            # Where other edges come or go, the graph allows another next state.
            tried &= (graph.mask(changed)[:, :, dense.child] == dense.edges).all(1)
            gain, instead = gain * tried, torch.where(tried[:, None], instead, now)
            sure = _p_value(gain[tried], block[tried]) < level
            if sure and (best is None or float(gain.mean()) > best[0]):
                best = float(gain.mean()), factor, gain, instead
        if best is None or best[0] < MIN_SHARE * first:
            return
        most, factor, gain, instead = best
        # The part of the model's claims that the recorded rows confirm.
        claim = now - instead
        confirmed = float(((error - instead) * claim).sum() / claim.square().sum().clamp(min=1e-30))
        false_rows = _false_rows(dense, factor, min(1.0, confirmed), now, stream.child("free", factor))
        if false_rows >= MIN_FALSE:
            worst = gain.argsort(descending=True, stable=True)[:NAMED_ROWS].tolist()
            yield MissingEdge(graph.parents[factor], graph.children[dense.child], false_rows, tuple(worst))
        first = first or most
        known[:, factor] = True


def _p_value(gain: Tensor, block: Tensor) -> float:
    """How probable such large gains (M,) are if their mean is 0, by a t-test: rows of a block (M,) vary together."""
    from scipy.stats import ttest_1samp

    _, number, rows = torch.unique(block, return_inverse=True, return_counts=True)
    sums = torch.zeros(len(rows), dtype=torch.float64).index_add_(0, number, gain.double())
    if len(gain) < MIN_ROWS or len(sums) < MIN_BLOCKS or not bool(sums.any()):
        return 1.0
    return float(ttest_1samp(sums.numpy(), 0.0, alternative="greater").pvalue)


def _false_rows(dense: _Dense, factor: int, confirmed: float, now: Tensor, stream: Stream) -> float:
    """The share of rows whose next state is wrong if a factor comes from any other row that leaves the edges alone."""
    graph, rows = dense.graph, dense.rows
    exchanged = torch.where(graph.owner == factor, rows[stream.permutation(len(rows))], rows)
    same = (graph.mask(exchanged)[:, :, dense.child] == dense.edges).all(1) & ~dense.edges[:, factor]
    if not bool(same.any()):
        return 0.0
    shift = confirmed * (dense(exchanged) - now) @ dense.units
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
