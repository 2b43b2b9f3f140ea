"""Finds recorded rows that match: a learned metric says which columns count, and a search finds the nearest row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from mocoda.engine.networks import moments
from mocoda.engine.randomness import Stream
from mocoda.engine.workers import in_threads, one_thread

# Fitting the metric.
FITTED_ROWS, PROBES = 20_000, 1_000  # rows that the regressor learns from, and at which its derivatives are taken
HIDDEN, BATCH, UPDATES, LEARNING_RATE = 64, 512, 600, 3e-3
CHECK, PATIENCE = 25, 4  # updates between looks at held-out rows, and looks without gain before it stops
FLOOR = 0.02  # least squared weight of every direction, as a share of the mean over the columns
OUTLIER = 5.0  # values further from the mean, in standard deviations, are clipped

# Searching. Candidates are a tenth of the recorded rows: enough to be near, and few of them are neighbours in time of
# the row that a match is sought for, which have nearly the same values in all columns and would make nothing new.
# Each is one of every STRIDE consecutive rows, so that an episode's rows are spread as widely as possible.
STRIDE = 10
MIN_CANDIDATES = 100  # with fewer rows than STRIDE times this, a larger share of them are candidates
MAX_CANDIDATES = {"cpu": 5_000, "cuda": 100_000}  # by device
SCORED_TOGETHER = 32  # candidates that are compared as one before the best of them is found
TIE = 1e-4  # squared distance (of 1: a standard deviation of the rest) within which a match is drawn at random


@dataclass(frozen=True, eq=False)
class Match:
    """Completes a parent set of which some columns are known, from the nearest recorded row.

    known   columns of a row that the set shares with columns drawn before
    rest    its other columns
    moves   pairs (column of the rest, known column): the first is copied relative to the second
    """

    known: tuple[int, ...]
    rest: tuple[int, ...]
    moves: tuple[tuple[int, int], ...]
    metric: Metric
    search: Nearest

    @staticmethod
    def fit(rows: Tensor, known: Sequence[int], rest: Sequence[int], moves: Mapping[int, int], stream: Stream) -> Match:
        along = tuple((column, moves[column]) for column in rest if moves.get(column) in known)
        taken = rows[:, list(rest)].double()
        for column, origin in along:
            taken[:, list(rest).index(column)] -= rows[:, origin]
        metric = Metric.fit(rows[:, list(known)], taken, stream)
        return Match(tuple(known), tuple(rest), along, metric, Nearest.among(metric(rows[:, list(known)])))

    def complete(self, rows: Tensor, sources: Tensor, recorded: Tensor, stream: Stream) -> tuple[Tensor, Tensor]:
        """Fills in the rest of rows (n, S + A) in place, never from one of a row's `sources` (n, K).

        Returns the recorded row (n,) that each was completed from, and its distance (n,).
        """
        source, distance = self.search.find(self.metric(rows[:, list(self.known)]), sources, stream)
        rows[:, list(self.rest)] = recorded[source][:, list(self.rest)]
        for column, origin in self.moves:
            rows[:, column] += rows[:, origin] - recorded[source, origin]
        return source, distance

    def another(self, rows: Tensor, stream: Stream) -> tuple[Tensor, Tensor]:
        """The recorded row (n,) nearest to each of these, given by their indices (n,), and its distance (n,)."""
        return self.search.find(self.search.points[rows, :-1], rows[:, None], stream)


@dataclass(frozen=True, eq=False)
class Metric:
    """Measures how different two rows are by how differently they predict other columns.

    It is a linear map: the distance of two mapped rows is the difference of what they predict.

    centre, scale  (D,), of the columns that are compared
    map            (D, D)
    """

    centre: Tensor
    scale: Tensor
    map: Tensor

    @staticmethod
    def fit(shared: Tensor, rest: Tensor, stream: Stream) -> Metric:
        """Learns how much each of the `shared` columns (N, D) helps to predict the `rest` (N, R).

        A small network predicts the rest and its squares, so that a column which changes only the spread counts too,
        all in standard deviations. The metric is its mean JᵀJ, where J are the derivatives: the length of a short step
        is the change of the prediction. The network is fitted on the CPU, whatever the device.
        """
        centre, scale = scaling(shared)
        stream = Stream(stream.seed, *stream.labels, "metric")
        chosen = stream.permutation(len(shared))[:FITTED_ROWS].to(shared.device)
        inputs = ((shared[chosen].double() - centre) / scale).float().cpu()
        target = standardised(rest[chosen].double().cpu()).clamp(-OUTLIER, OUTLIER)
        target = torch.cat([target, standardised(target.square()).clamp(-OUTLIER, OUTLIER)], 1).float()
        with one_thread():
            slopes = _slopes(inputs.clamp(-OUTLIER, OUTLIER), target, stream)
        columns = inputs.shape[1]
        product = torch.einsum("noi,noj->ij", slopes, slopes).double() / (len(slopes) * target.shape[1])
        # With few rows the derivatives are uncertain, so that all directions count more alike.
        floor = (FLOOR + 2 * columns / len(inputs)) * product.trace() / columns
        values, vectors = torch.linalg.eigh(product + (floor + 1e-4) * torch.eye(columns, dtype=torch.float64))
        root = vectors * values.clamp(min=0).sqrt()
        return Metric(centre, scale, root.to(centre))

    def __call__(self, shared: Tensor) -> Tensor:
        """Maps rows (N, D) to points (N, D) float32 whose Euclidean distance is the metric's."""
        return (((shared.double() - self.centre) / self.scale) @ self.map).float()


def scaling(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column (N, D), float64 (D,); a constant column gets a deviation of 1."""
    centre, scale = moments(values)
    return centre, torch.where(scale > 0, scale, 1.0)


def standardised(values: Tensor) -> Tensor:
    """Columns (N, D) with mean 0 and standard deviation 1, float64."""
    centre, scale = scaling(values)
    return (values - centre) / scale


def _slopes(inputs: Tensor, target: Tensor, stream: Stream) -> Tensor:
    """The derivatives (n, O, D), at some rows, of a network trained to predict `target` (N, O) from `inputs` (N, D)."""
    sizes = (inputs.shape[1], HIDDEN, HIDDEN, target.shape[1])
    weights: list[Tensor] = []
    for before, after in pairwise(sizes):
        weights += [stream.normal(after, before) / before**0.5, torch.zeros(after)]
    held_out = max(1, len(inputs) // 5)
    known, answers = inputs[held_out:], target[held_out:]
    if not len(known):
        return torch.zeros(1, target.shape[1], inputs.shape[1])
    for weight in weights:
        weight.requires_grad_()
    optimiser = torch.optim.Adam(weights, LEARNING_RATE)
    least, best, found_at = torch.inf, weights, 0
    for update in range(UPDATES + 1):
        if update % CHECK == 0:  # keep the weights that predict held-out rows best
            with torch.no_grad():
                error = float((_predict(weights, inputs[:held_out]) - target[:held_out]).square().mean())
            if error < least:
                least, best, found_at = error, [weight.detach().clone() for weight in weights], update
            if update - found_at >= PATIENCE * CHECK:
                break
        batch = stream.integers(len(known), BATCH)
        loss = (_predict(weights, known[batch]) - answers[batch]).square().mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    slopes: Tensor = torch.func.vmap(torch.func.jacrev(partial(_predict, best)))(inputs[:PROBES])
    return slopes


def _predict(weights: list[Tensor], inputs: Tensor) -> Tensor:
    first, first_bias, second, second_bias, last, last_bias = weights
    hidden = nn.functional.silu(nn.functional.linear(inputs, first, first_bias))
    hidden = nn.functional.silu(nn.functional.linear(hidden, second, second_bias))
    return nn.functional.linear(hidden, last, last_bias)


@dataclass(frozen=True, eq=False)
class Nearest:
    """Finds the nearest of a random part of the recorded rows, by blocks of matrix products.

    points  (N, D + 1) float32: the points, and minus half their squared length as a last column
    """

    points: Tensor

    @staticmethod
    def among(points: Tensor) -> Nearest:
        """A search among points (N, D)."""
        return Nearest(torch.cat([points, -0.5 * points.square().sum(1, keepdim=True)], 1))

    def find(self, queries: Tensor, never: Tensor, stream: Stream) -> tuple[Tensor, Tensor]:
        """The row (Q,) nearest to each query (Q, D), and its distance (Q,); each block of queries has other candidates.

        never  (Q, K), rows that must not be found
        """
        rows = len(self.points)
        on_cpu = queries.device.type == "cpu"
        stride = max(min(STRIDE, rows // MIN_CANDIDATES), -(-rows // MAX_CANDIDATES["cpu" if on_cpu else "cuda"]), 1)
        block = 1_024 if on_cpu else max(1, 2**28 // (rows // stride))
        pairs = zip(queries.split(block), never.split(block), strict=True)
        jobs = [
            partial(self._find_block, own, avoid, stride, stream.child("block", number) if on_cpu else stream)
            for number, (own, avoid) in enumerate(pairs)
            if len(own)
        ]
        found = in_threads(jobs) if on_cpu else [job() for job in jobs]
        row = torch.cat([row for row, _ in found]) if found else never.new_zeros(0)
        distance = torch.cat([distance for _, distance in found]) if found else queries.new_zeros(0)
        return row, distance

    def _find_block(self, queries: Tensor, never: Tensor, stride: int, stream: Stream) -> tuple[Tensor, Tensor]:
        rows, count, device = len(self.points), len(queries), queries.device
        size = max(1, min(SCORED_TOGETHER, rows // stride // (4 * SCORED_TOGETHER)))
        groups = rows // stride // size
        # Candidate c is one of the rows c * stride to (c + 1) * stride - 1, counted from a random first row. It is
        # member c // groups of group c % groups, so that a group has rows of all times.
        numbers = torch.arange(groups * size, device=device)
        first = stream.integers(rows, 1)
        row = (numbers * stride + stream.integers(stride, groups * size) + first) % rows
        row = row.view(size, groups).T.reshape(-1)
        points = self.points[row]
        asked = torch.cat([queries, torch.ones_like(queries[:, :1])], 1)
        avoided = ((never - first) % rows) // stride
        avoided = (avoided % groups * size + avoided // groups).clamp(max=groups * size - 1)  # (Q, K) places
        is_avoided = row[avoided] == never
        best = torch.empty(groups, count, device=device)
        part = max(1, (2**18 if device.type == "cpu" else 2**28) // (size * count))  # scores stay in the cache
        column = torch.arange(count, device=device)
        for start in range(0, groups, part):
            # -|q - c|² / 2 = q·c - |c|² / 2 - |q|² / 2, of which the last is the same for all candidates.
            score = points[start * size : (start + part) * size] @ asked.T
            for places, is_it in zip((avoided - start * size).T, is_avoided.T, strict=True):
                here, place = is_it & (places >= 0) & (places < len(score)), places.clamp(0, len(score) - 1)
                score[place, column] = torch.where(here, -torch.inf, score[place, column])
            best[start : start + part] = score.view(-1, size, count).amax(1)
        group = best.add_(stream.uniform(groups, count), alpha=0.5 * TIE).argmax(0)
        members = group[:, None] * size + torch.arange(size, device=device)  # (Q, size)
        squared = (points[members, :-1] - queries[:, None]).square().sum(2)
        squared = squared.masked_fill((row[members][:, :, None] == never[:, None]).any(2), torch.inf)
        member = (squared + TIE * stream.uniform(count, size)).argmin(1, keepdim=True)
        return row[members.gather(1, member)][:, 0], squared.gather(1, member)[:, 0].sqrt()


def drawing_order(sets: Sequence[Sequence[int]], first: int = 0) -> list[int]:
    """The order in which to draw sets of columns, along a tree that begins with the `first`.

    The next set is always the one that shares the most columns with a single set already drawn.
    """
    columns = [set(one) for one in sets]
    order, rest = [first], [number for number in range(len(sets)) if number != first]
    while rest:
        nearest = max(rest, key=lambda new: max(len(columns[new] & columns[old]) for old in order))
        rest.remove(nearest)
        order.append(nearest)
    return order
