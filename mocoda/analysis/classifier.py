"""Two-sample classifiers: how well drawn rows can be told from recorded ones, parent set by parent set.

MoCoDA promises that every parent set keeps its recorded distribution. If it does, no classifier can tell its rows from
recorded ones that it has not seen: of a drawn and a recorded row, it finds the drawn one half of the time (AUC 0.5).

Columns are given to a small network as they are and by the quantile of all rows that they fall in. The latter
makes values that return exactly (a box at rest, a clipped action) stand out, which smooth densities cannot draw.

Axes: S parent sets, K folds, N rows, D columns of the widest set, B quantiles. Networks are (S, K).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mocoda.analysis.coverage import coded
from mocoda.data.transitions import Array, as_tensor
from mocoda.engine.errors import InputError
from mocoda.engine.networks import mlp, mlp_weights, softplus
from mocoda.engine.optimise import Adam
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph

FEWEST = 40  # rows of each kind
FOLDS, STRETCHES, BLOCKS = 5, 20, 40  # stretches of recorded rows are dealt to folds; blocks of them vary together
BINS, HIDDEN, BATCH, LEARNING_RATE, LOOKS = 16, (48, 48), 256, 5e-3, 5
SAME = 1e-3  # standard deviations: values that are closer are the same
OFTEN = 0.01  # share of the drawn rows from which on a row that returns is part of the law
Z95 = 1.959964


@dataclass(frozen=True, eq=False)
class TwoSample:
    """How well a held-out classifier tells drawn rows of a parent set from recorded ones.

    auc       how often, of a drawn and a recorded row, the classifier finds the drawn one: 0.5 is perfect, 1 the worst
    interval  its 95% confidence interval
    """

    auc: float
    interval: tuple[float, float]
    _encoder: _Encoder
    _weights: dict[str, Tensor]  # of the networks (K,)

    def log_odds(self, rows: Array) -> Tensor:
        """How much more likely rows (N, S + A) are drawn than recorded, as the log of the odds: (N,).

        The mean over the classifiers of all folds; for rows that none of them was trained on, it is held-out.
        """
        rows = as_tensor(rows).to(self._encoder.mean.device)
        if rows.ndim != 2 or rows.shape[1] != self._encoder.width:
            raise InputError(f"rows must have shape (N, {self._encoder.width}), got {tuple(rows.shape)}.")
        with torch.no_grad():
            parts = [mlp(self._weights, "mlp", self._encoder(part)).mean(0)[:, 0] for part in rows.split(65_536)]
        return torch.cat(parts) if parts else rows.new_zeros(0)


def two_sample(
    recorded_rows: Array,
    drawn_rows: Array,
    graph: LocalGraph,
    *,
    folds: tuple[Array, Array] | None = None,
    updates: int = 300,
    seed: int | Stream = 0,
) -> dict[tuple[str, ...], TwoSample]:
    """How well rows (M, S + A) that a recipe draws can be told from recorded rows (N, S + A), for every parent set.

    Compare with recorded rows that the recipe was NOT fitted on: of those it may draw copies, which say nothing about
    the law and bring the AUC below 0.5. Keep recorded rows in the order of their recording, as neighbours are alike:
    stretches of them are held out together, and the interval allows for it. Columns that never vary in the recorded
    rows are left out.

    folds    the number, 0 to K - 1, of the fold of each recorded and of each drawn row; a classifier is judged on a
             fold that it was not trained on. Give them if draws copy recorded rows (emp, coda, dyna, and mocoda with
             density="matched"): copies of one episode must not be in two folds, so let the rows of each fold come
             from a recipe fitted to recorded rows of that fold alone. They count as dependent as recorded rows.
             None: five folds; drawn rows that are the same are in one
    updates  of the classifiers. More may see finer differences, if there are rows enough

    >>> rows = Stream(0, "recorded").normal(500, 2)
    >>> graph = LocalGraph(state={"x": 0}, action={"dx": 0}, edges={"x": ["x", "dx"]})
    >>> found = two_sample(rows, Stream(1, "drawn").normal(500, 2) + 1, graph)
    >>> found["x", "dx"].auc > 0.8
    True
    """
    recorded, drawn = _checked("recorded_rows", recorded_rows, graph), _checked("drawn_rows", drawn_rows, graph)
    drawn = drawn.to(recorded.device)
    if min(len(recorded), len(drawn)) < FEWEST:
        raise InputError(
            f"two_sample needs at least {FEWEST} rows of each kind, to train classifiers and to judge them, got "
            f"{len(recorded)} recorded and {len(drawn)} drawn rows."
        )
    stream = as_stream(seed, "two sample", device=recorded.device)
    encoders = [_Encoder.of(recorded, drawn, graph.columns(names)) for names in graph.parent_sets]
    width = max(1, *(len(one.columns) for one in encoders))
    encoders = [replace(one, more=width - len(one.columns)) for one in encoders]
    if folds is None:
        of_recorded, of_drawn = _folds(recorded, drawn, encoders, stream)
    else:
        of_recorded, of_drawn = _checked_folds(folds, recorded, drawn)
        of_drawn = of_drawn.expand(len(encoders), -1)
    inputs = torch.stack([one(torch.cat([recorded, drawn])) for one in encoders])
    fold = torch.cat([of_recorded.expand(len(encoders), -1), of_drawn], 1)  # (S, N + M)
    is_drawn = torch.arange(inputs.shape[1], device=inputs.device) >= len(recorded)
    weights = _train(inputs, fold, is_drawn, updates, stream)
    block = torch.arange(len(recorded), device=inputs.device) * BLOCKS // len(recorded)
    results = {}
    for number, names in enumerate(graph.parent_sets):
        own = {name: weight[number] for name, weight in weights.items()}
        with torch.no_grad():
            scores = mlp(own, "mlp", inputs[number].float())[..., 0].gather(0, fold[number][None])[0]
        auc, error = _auc(scores, fold[number], is_drawn, block, copies=folds is not None)
        interval = max(0.0, auc - Z95 * error), min(1.0, auc + Z95 * error)
        results[names] = TwoSample(auc, interval, encoders[number], own)
    return results


@dataclass(frozen=True, eq=False)
class _Encoder:
    """What the networks see of rows: the columns of one parent set, standardised, and which quantile each is in."""

    columns: tuple[int, ...]  # those that vary
    width: int  # columns of a row, S + A
    mean: Tensor  # (columns,)
    std: Tensor
    ordered: Tensor  # (columns, N + M): the values of all rows, standardised and rounded, in order
    more: int = 0  # columns of zeros, so that all sets are equally wide

    @staticmethod
    def of(recorded: Tensor, drawn: Tensor, columns: Sequence[int]) -> _Encoder:
        low, high = recorded.aminmax(dim=0)
        own = tuple(column for column in columns if high[column] > low[column])
        exact = recorded[:, own].double()
        mean = exact.mean(0)
        encoder = _Encoder(own, recorded.shape[1], mean, (exact - mean).square().mean(0).sqrt(), exact.T)
        # Quantiles of recorded rows alone would leak: what is frequent in some folds would be rare in the others.
        both = encoder.rounded(torch.cat([recorded, drawn]))
        return replace(encoder, ordered=both.T.contiguous().sort(1).values)

    def rounded(self, rows: Tensor) -> Tensor:
        """The columns (N, columns) in standard deviations of the recorded ones, a thousandth of one being nothing."""
        return ((rows[:, self.columns].double() - self.mean) / self.std / SAME).round()

    def __call__(self, rows: Tensor) -> Tensor:
        """(N, D * (1 + B))."""
        rounded = self.rounded(rows)
        value, count = rounded.T.contiguous(), max(1, self.ordered.shape[1])
        # Halfway up the step of the distribution function there: a value that returns has a bin of its own.
        below, upto = (torch.searchsorted(self.ordered, value, right=right) for right in (False, True))
        place = ((below + upto) * BINS // (2 * count)).clamp(max=BINS - 1).T
        bins = torch.nn.functional.one_hot(place, BINS).flatten(1)
        seen = torch.cat([(rounded * SAME).clamp(-5, 5), bins], 1).float()
        return torch.nn.functional.pad(seen, (0, self.more * (1 + BINS)))


def _folds(recorded: Tensor, drawn: Tensor, encoders: Sequence[_Encoder], stream: Stream) -> tuple[Tensor, Tensor]:
    """Folds of recorded rows (N,), by stretches, and of drawn rows (S, M).

    Drawn rows of a set that are the same share a fold, or a network would know them by heart. Except if a recorded row
    is the same too, or if they are many: then the law itself has such values.
    """
    stretch = torch.arange(len(recorded), device=recorded.device) * STRETCHES // len(recorded)
    of_recorded = stream.child("stretches").permutation(STRETCHES)[stretch] % FOLDS
    shuffled = stream.child("drawn").permutation(len(drawn)) % FOLDS
    code, of_drawn = stream.child("code").integers(2**62, recorded.shape[1]), []
    for one in encoders:
        key = coded(one.rounded(torch.cat([recorded, drawn])).long(), code[list(one.columns)])
        distinct, number = key.unique(return_inverse=True)
        known = torch.zeros(len(distinct), dtype=torch.bool, device=key.device)
        known[number[: len(recorded)]] = True
        number = number[len(recorded) :]
        known |= number.bincount(minlength=len(distinct)) > OFTEN * len(drawn)
        example = torch.zeros_like(distinct)
        example[number] = torch.arange(len(drawn), device=key.device)
        of_drawn.append(torch.where(known[number], shuffled, shuffled[example[number]]))
    return of_recorded, torch.stack(of_drawn)


def _train(inputs: Tensor, fold: Tensor, is_drawn: Tensor, updates: int, stream: Stream) -> dict[str, Tensor]:
    """Weights (S, K, ...) of networks that see inputs (S, N, I), each as it was best on rows to choose by.

    Network k is trained without fold k, on which it will be judged, and without the next, by which it is chosen.
    """
    sets, folds = len(inputs), int(fold.max()) + 1
    judged = torch.arange(folds, device=fold.device)[:, None]
    chosen_by = fold[:, None] == (judged + 1) % folds  # (S, K, N)
    trained_on = ~chosen_by & (fold[:, None] != judged)
    kinds = (~is_drawn, is_drawn)
    train = [_listed(trained_on & kind) for kind in kinds]
    choose = [_listed(chosen_by & kind) for kind in kinds]
    every_set = torch.arange(sets, device=fold.device)[:, None, None]
    weights = mlp_weights("mlp", (sets, folds), (inputs.shape[2], *HIDDEN, 1), stream.child("weights"))
    for last in (f"mlp.{len(HIDDEN)}.weight", f"mlp.{len(HIDDEN)}.bias"):
        weights[last].zero_()
    adam = Adam([weight.requires_grad_() for weight in weights.values()], LEARNING_RATE, 1e-4)

    def loss(rows: Sequence[Tensor], shares: Sequence[Tensor]) -> Tensor:
        """Cross-entropy (S, K) of recorded and drawn rows (S, K, batch), both kinds counting the same."""
        scores = mlp(weights, "mlp", inputs[every_set, torch.cat(list(rows), 2)])[..., 0]
        recorded, drawn = scores.split([one.shape[2] for one in rows], 2)
        return (softplus(recorded) * shares[0]).sum(2) + (softplus(-drawn) * shares[1]).sum(2)

    @torch.no_grad()
    def validation() -> Tensor:
        valid = [torch.arange(one.shape[2], device=one.device) < count for one, count in choose]
        return loss([one for one, _ in choose], [v / count for v, (_, count) in zip(valid, choose, strict=True)])

    looks = {max(0, updates // 2**look - 1) for look in range(LOOKS)}
    half = inputs.new_full((1,), 2 / BATCH)
    picks = stream.child("batches")
    best: dict[str, Tensor] = {}
    least = torch.full((sets, folds), torch.inf, device=inputs.device)
    for update in range(updates):
        adam.learning_rate.fill_(LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * update / updates)))
        batch = [
            order.gather(2, (picks.uniform(sets, folds, BATCH // 2) * count).long().clamp(max=order.shape[2] - 1))
            for order, count in train
        ]
        adam.step(loss(batch, (half, half)).sum())
        if update in looks:
            now = validation()
            better = now < least
            for name, weight in weights.items():
                old = best.get(name, weight)
                best[name] = torch.where(better[..., None, None], weight, old).detach()
            least = torch.minimum(now, least)
    return best


def _listed(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers of the rows that are True in (S, K, N), first in (S, K, most), and how many they are, (S, K, 1)."""
    count = rows.sum(2, keepdim=True)
    return rows.byte().argsort(dim=2, descending=True, stable=True)[..., : int(count.max())], count


def _auc(scores: Tensor, fold: Tensor, is_drawn: Tensor, block: Tensor, *, copies: bool) -> tuple[float, float]:
    """The AUC of scores (N,), only compared within a fold, and its standard error (DeLong's, by blocks of rows).

    Folds are not independent: where there is nothing to find, a fold scores high with networks trained on another as
    far as the two are alike by chance, and the other scores high for the same reason. Of K folds, K pairs are judged
    one way (the other way, a fold is what is chosen by) and K (K - 3) / 2 both ways, which count 4 instead of 2: at
    worst, the variance is (2 K - 5) / (K - 2) times that of independent folds.
    """
    aucs, variances, pairs = [], [], []
    for number in range(int(fold.max()) + 1):
        recorded, drawn = (scores[(fold == number) & kind].double() for kind in (~is_drawn, is_drawn))
        below, above = _share_below(recorded, drawn), 1 - _share_below(drawn, recorded)
        auc = below.mean()
        own = block[fold[: len(block)] == number].unique(return_inverse=True)[1]
        sums = torch.zeros(int(own.max()) + 1, dtype=above.dtype, device=above.device).index_add_(0, own, above - auc)
        variance = sums.square().sum() / len(above) ** 2 * len(sums) / max(1, len(sums) - 1)
        of_drawn = (below - auc).square().sum() / (len(below) * max(1, len(below) - 1))
        aucs.append(auc)
        variances.append(variance + (torch.maximum(of_drawn, variance) if copies else of_drawn))
        pairs.append(len(recorded) * len(drawn))
    share = torch.tensor(pairs, dtype=torch.float64, device=scores.device)
    share /= share.sum()
    together = (2 * len(pairs) - 5) / (len(pairs) - 2)
    variance = together * (share.square() * torch.stack(variances)).sum()
    return float((share * torch.stack(aucs)).sum()), float(variance.sqrt())


def _share_below(scores: Tensor, values: Tensor) -> Tensor:
    """The share of the scores (N,) below each value (M,), those that are equal counting half."""
    ordered = scores.sort().values
    left, right = (torch.searchsorted(ordered, values, right=side) for side in (False, True))
    return (left + right).double() / (2 * len(scores))


def _checked(name: str, rows: Array, graph: LocalGraph) -> Tensor:
    try:
        tensor = as_tensor(rows).detach().float()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} must be an array of numbers, got {type(rows).__name__} ({error}).") from error
    if tensor.ndim != 2 or tensor.shape[1] != graph.width:
        raise InputError(
            f"{name} must have shape (N, {graph.width}), the graph's {graph.state_width} state and "
            f"{graph.width - graph.state_width} action columns, got {tuple(tensor.shape)}."
        )
    bad = ~torch.isfinite(tensor).all(1)
    if bool(bad.any()):
        raise InputError(
            f"{name} has NaN or inf in {int(bad.sum())} of {len(bad)} rows, first in row {int(bad.nonzero()[0])}. "
            "Drop or repair those rows."
        )
    return tensor


def _checked_folds(folds: tuple[Array, Array], recorded: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
    checked = []
    for name, given, rows in zip(("recorded", "drawn"), folds, (recorded, drawn), strict=True):
        fold = as_tensor(given).to(recorded.device)
        if fold.shape != (len(rows),) or fold.is_floating_point() or bool((fold < 0).any()):
            raise InputError(
                f"the folds of {name} rows must be {len(rows)} whole numbers from 0 on, one a row, got "
                f"{tuple(fold.shape)} of {fold.dtype}."
            )
        checked.append(fold.long())
    counts = [fold.bincount(minlength=3) for fold in checked]
    if len(counts[0]) != len(counts[1]) or bool((torch.cat(counts) < 2).any()):
        raise InputError(
            "folds must be at least three, each with two recorded and two drawn rows or more, got "
            f"{counts[0].tolist()} recorded and {counts[1].tolist()} drawn rows by fold."
        )
    return checked[0], checked[1]
