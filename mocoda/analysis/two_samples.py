"""Two-sample tests: how well a classifier separates rows that a recipe draws from recorded ones, for each parent set.

Recipe "mocoda" promises that every parent set keeps its recorded distribution. If it does, no classifier can separate
its rows from recorded rows that the recipe has not seen: the area under its ROC curve (AUC) is 0.5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mocoda.data.transitions import Array, as_tensor
from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Stream, as_stream
from mocoda.engine.statistics import Z95, share_below
from mocoda.graph.local_graph import LocalGraph

MIN_ROWS = 40  # of each kind
FOLDS, STRETCHES, BLOCKS = 5, 20, 40  # stretches of recorded rows are dealt to folds; blocks of them vary together
BOOSTING = {"max_iter": 60, "learning_rate": 0.15, "max_leaf_nodes": 15, "early_stopping": False}
RESOLUTION = 1e-3  # standard deviations: values that are closer count as equal
FREQUENT = 0.01  # share of the drawn rows above which a repeated value is part of the distribution


Values = NDArray[Any]


@dataclass(frozen=True, eq=False)
class TwoSample:
    """How well a classifier separates drawn rows of a parent set from recorded ones, on rows it was not trained on.

    auc       how often the classifier ranks a drawn row above a recorded one: 0.5 is perfect, 1 is the worst
    interval  its 95% confidence interval
    """

    auc: float
    interval: tuple[float, float]
    _columns: _Columns
    _classifiers: tuple[_Classifier, ...]  # one per fold

    def log_odds(self, rows: Array) -> Tensor:
        """The log odds that rows (N, S + A) are drawn rather than recorded: (N,).

        This is the mean over the classifiers of all folds. It is held-out for rows that none of them was trained on.
        """
        rows = as_tensor(rows)
        if rows.ndim != 2 or rows.shape[1] != len(self._columns.mean):
            raise InputError(f"rows must have shape (N, {len(self._columns.mean)}), got {tuple(rows.shape)}.")
        seen = self._columns.of(rows.cpu())
        odds = [one(seen) for one in self._classifiers] if len(rows) else []
        mean = np.mean(odds, 0) if odds else np.zeros(len(rows))
        return torch.from_numpy(mean).float().to(rows.device)


def two_sample(
    recorded_rows: Array,
    drawn_rows: Array,
    graph: LocalGraph,
    *,
    folds: tuple[Array, Array] | None = None,
    seed: int | Stream = 0,
) -> dict[tuple[str, ...], TwoSample]:
    """Measures how well a classifier separates rows (M, S + A) that a recipe draws from recorded rows (N, S + A).

    The answer has one entry per parent set. Compare with recorded rows that the recipe was NOT fitted on: it may copy
    the rows that it was fitted on, and copies say nothing about the distribution. Keep recorded rows in the order of
    their recording: neighbours are alike, so that stretches of them are held out together, and the interval allows for
    it. Columns that never vary in the recorded rows are left out.

    folds   the fold of each recorded and of each drawn row, numbered 0 to K - 1; the classifier that judges a fold was
            trained on others. Pass them if draws copy recorded rows (emp, coda, dyna, and mocoda with
            density="matched"): copies of one episode must not be in two folds, so let the rows of each fold come
            from a recipe fitted to the recorded rows of that fold alone. None: five folds, in which equal drawn rows
            stay together

    >>> rows = Stream(0, "recorded").normal(500, 2)
    >>> graph = LocalGraph(state={"x": 0}, action={"dx": 0}, edges={"x": ["x", "dx"]})
    >>> found = two_sample(rows, Stream(1, "drawn").normal(500, 2) + 1, graph)
    >>> found["x", "dx"].auc > 0.8
    True
    """
    recorded = _checked("recorded_rows", recorded_rows, graph)
    drawn = _checked("drawn_rows", drawn_rows, graph)
    if min(len(recorded), len(drawn)) < MIN_ROWS:
        raise InputError(
            f"two_sample needs at least {MIN_ROWS} rows of each kind, to train classifiers and to test them, got "
            f"{len(recorded)} recorded and {len(drawn)} drawn rows."
        )
    stream = as_stream(seed, "two sample", device="cpu")
    given = None if folds is None else _checked_folds(folds, recorded, drawn)
    block = np.arange(len(recorded)) * BLOCKS // len(recorded)
    found = {}
    for names in graph.parent_sets:
        columns, part = _Columns.varying(recorded, graph.columns(names)), stream.child(*names)
        seen = columns.of(torch.cat([recorded, drawn]))
        fold = _folds(seen, len(recorded), part) if given is None else given
        found[names] = _separate(seen, fold, block, columns, part, copies=given is not None)
    return found


@dataclass(frozen=True, eq=False)
class _Columns:
    """The columns of a parent set as classifiers see them: standardised and rounded."""

    chosen: list[int]  # those that vary in the recorded rows
    mean: Tensor  # (S + A,)
    std: Tensor

    @staticmethod
    def varying(recorded: Tensor, columns: Sequence[int]) -> _Columns:
        low, high = recorded.aminmax(dim=0)
        exact = recorded.double()
        return _Columns([i for i in columns if high[i] > low[i]], exact.mean(0), exact.std(0, correction=0))

    def of(self, rows: Tensor) -> Values:
        """(N, columns) in units of RESOLUTION; a single 0 where no column varies."""
        if not self.chosen:
            return np.zeros((len(rows), 1))
        scaled = (rows.double() - self.mean) / self.std / RESOLUTION
        return scaled[:, self.chosen].round().numpy()


def _folds(seen: Values, recorded: int, stream: Stream) -> Values:
    """The fold of each row (N + M,): stretches of recorded rows together, and drawn rows that are equal.

    A classifier would otherwise memorise drawn rows. Values that recorded rows have too, or that many drawn rows have,
    are part of the distribution: they are spread over the folds.
    """
    stretch = np.arange(recorded) * STRETCHES // recorded
    of_recorded = stream.child("stretches").permutation(STRETCHES).numpy()[stretch] % FOLDS
    shuffled = stream.child("drawn").permutation(len(seen) - recorded).numpy() % FOLDS
    number = np.unique(seen.astype(np.int64), axis=0, return_inverse=True)[1].ravel()
    own = number[recorded:]
    shared = np.isin(own, number[:recorded]) | (np.bincount(own)[own] > FREQUENT * len(own))
    example = np.zeros(number.max() + 1, np.int64)
    example[own] = np.arange(len(own))
    return np.concatenate([of_recorded, np.where(shared, shuffled, shuffled[example[own]])])


@dataclass(frozen=True, eq=False)
class _Classifier:
    """A boosted classifier that is stopped where it is best on rows that it was not trained on."""

    boosting: Any  # HistGradientBoostingClassifier
    stage: int  # the best number of iterations, less one
    prior: float  # log odds in the training rows: the two kinds need not be equally many

    @staticmethod
    def fit(seen: Values, is_drawn: Values, train: Values, validate: Values, stream: Stream) -> _Classifier:
        from sklearn.ensemble import HistGradientBoostingClassifier

        boosting = HistGradientBoostingClassifier(random_state=int(stream.integers(2**31, 1)), **BOOSTING)
        boosting.fit(seen[train], is_drawn[train])
        sign = np.where(is_drawn[validate], -1, 1)
        losses = [np.logaddexp(0, sign * odds).mean() for odds in boosting.staged_decision_function(seen[validate])]
        prior = math.log(is_drawn[train].sum() / (~is_drawn[train]).sum())
        return _Classifier(boosting, int(np.argmin(losses)), prior)

    def __call__(self, seen: Values) -> Values:
        """The log odds that rows (N, columns) are drawn, were both kinds equally many: (N,)."""
        odds: Values = next(islice(self.boosting.staged_decision_function(seen), self.stage, None))
        return odds - self.prior


def _separate(
    seen: Values, fold: Values, block: Values, columns: _Columns, stream: Stream, *, copies: bool
) -> TwoSample:
    """Trains one classifier per fold, which is stopped by the next fold and tested on its own."""
    is_drawn = np.arange(len(seen)) >= len(block)
    scores, classifiers = np.zeros(len(seen)), []
    for number in range(folds := fold.max() + 1):
        validate, test = fold == (number + 1) % folds, fold == number
        part = stream.child("classifier", number)
        classifiers.append(_Classifier.fit(seen, is_drawn, ~validate & ~test, validate, part))
        scores[test] = classifiers[-1](seen[test])
    auc, error = _auc(scores, fold, is_drawn, block, copies=copies)
    interval = max(0.0, auc - Z95 * error), min(1.0, auc + Z95 * error)
    return TwoSample(auc, interval, columns, tuple(classifiers))


def _auc(scores: Values, fold: Values, is_drawn: Values, block: Values, *, copies: bool) -> tuple[float, float]:
    """The AUC of scores (N + M,), compared within folds only, and its standard error (DeLong's, by blocks of rows).

    Folds are not independent: where there is nothing to find, a fold scores high with a classifier trained on another
    as far as the two are alike by chance, and the other scores high for the same reason. Each pair of folds is tested
    both ways, so that the variance is at worst twice that of independent folds.
    """
    aucs, variances, pairs = [], [], []
    for number in range(fold.max() + 1):
        recorded, drawn = (torch.from_numpy(scores[(fold == number) & kind]) for kind in (~is_drawn, is_drawn))
        below, above = share_below(drawn, recorded), 1 - share_below(recorded, drawn)
        auc = below.mean()
        own = torch.from_numpy(block[fold[: len(block)] == number]).unique(return_inverse=True)[1]
        sums = torch.zeros(int(own.max()) + 1, dtype=above.dtype).index_add_(0, own, above - auc)
        variance = sums.square().sum() / len(above) ** 2 * len(sums) / max(1, len(sums) - 1)
        of_drawn = (below - auc).square().sum() / (len(below) * max(1, len(below) - 1))
        aucs.append(auc)
        variances.append(variance + (torch.maximum(of_drawn, variance) if copies else of_drawn))
        pairs.append(len(recorded) * len(drawn))
    weight = torch.tensor(pairs, dtype=torch.float64) / sum(pairs)
    variance = 2 * (weight.square() * torch.stack(variances)).sum()
    return float((weight * torch.stack(aucs)).sum()), float(variance.sqrt())


def _checked(name: str, rows: Array, graph: LocalGraph) -> Tensor:
    tensor = as_tensor(rows).detach().float().cpu()
    graph.check_rows(tensor)
    bad = ~torch.isfinite(tensor).all(1)
    if bool(bad.any()):
        raise InputError(
            f"{name} has NaN or inf in {int(bad.sum())} of {len(bad)} rows, first in row {int(bad.nonzero()[0])}. "
            "Drop or repair those rows."
        )
    return tensor


def _checked_folds(folds: tuple[Array, Array], recorded: Tensor, drawn: Tensor) -> Values:
    checked = []
    for name, given, rows in zip(("recorded", "drawn"), folds, (recorded, drawn), strict=True):
        fold = as_tensor(given).cpu()
        if fold.shape != (len(rows),) or fold.is_floating_point() or bool((fold < 0).any()):
            raise InputError(
                f"the folds of {name} rows must be {len(rows)} whole numbers from 0 on, one per row, got "
                f"{tuple(fold.shape)} of {fold.dtype}."
            )
        checked.append(fold.long())
    counts = [fold.bincount(minlength=3) for fold in checked]
    if len(counts[0]) != len(counts[1]) or bool((torch.cat(counts) < 2).any()):
        raise InputError(
            "there must be at least three folds, each with at least two recorded and two drawn rows, got "
            f"{counts[0].tolist()} recorded and {counts[1].tolist()} drawn rows by fold."
        )
    return torch.cat(checked).numpy()
