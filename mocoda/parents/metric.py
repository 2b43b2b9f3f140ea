"""How much each column counts when rows are compared: as much as it helps to predict other columns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from mocoda.engine.randomness import Stream
from mocoda.engine.threads import one_thread

ROWS, PROBES = 20_000, 1_000  # rows that the regressor learns from, and at which its derivatives are taken
HIDDEN, BATCH, UPDATES, LEARNING_RATE = 64, 512, 600, 3e-3
CHECK, PATIENCE = 25, 4  # updates between looks at held-out rows, and looks without gain before it stops
FLOOR = 0.02  # of a column's usual squared weight, which every direction has at least
OUTLIER = 5.0  # standard deviations from the mean at which a value is taken for one of that size


@dataclass(frozen=True, eq=False)
class Metric:
    """A linear map under which the distance of two rows says how much what they predict differs.

    centre, scale  (D,), of the columns that are compared
    map            (D, D)
    """

    centre: Tensor
    scale: Tensor
    map: Tensor

    @staticmethod
    def fit(shared: Tensor, rest: Tensor, stream: Stream) -> Metric:
        """Fitted to rows of `shared` (N, D) columns and of the `rest` (N, R) that they are to predict.

        A small network predicts the rest and its squares, so that a column which changes only the spread counts too,
        all in units of their standard deviations. The metric is its mean JᵀJ, J being the derivatives: a short step
        has the length by which the prediction changes. The network is fitted on the CPU, whatever the device.
        """
        centre, scale = moments(shared)
        stream = Stream(stream.seed, *stream.labels, "metric")
        chosen = stream.permutation(len(shared))[:ROWS].to(shared.device)
        inputs = ((shared[chosen].double() - centre) / scale).float().cpu()
        target = _standardised(rest[chosen].double().cpu())
        target = torch.cat([target, _standardised(target.square())], 1).float()
        with one_thread():
            slopes = _slopes(inputs.clamp(-OUTLIER, OUTLIER), target, stream)
        columns = inputs.shape[1]
        product = torch.einsum("noi,noj->ij", slopes, slopes).double() / (len(slopes) * target.shape[1])
        # Few rows tell little about directions: what they say counts less, and all directions more alike.
        usual = (FLOOR + 2 * columns / len(inputs)) * product.trace() / columns
        values, vectors = torch.linalg.eigh(product + (usual + 1e-4) * torch.eye(columns, dtype=torch.float64))
        root = vectors * values.clamp(min=0).sqrt()
        return Metric(centre, scale, root.to(centre))

    def __call__(self, shared: Tensor) -> Tensor:
        """Rows (N, D) as points (N, D) float32, whose Euclidean distance is the metric's."""
        return (((shared.double() - self.centre) / self.scale) @ self.map).float()


def moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column, float64 (D,); the deviation of a constant column is taken as 1."""
    centre, spread = values.double().mean(0), values.double().std(0, correction=0)
    return centre, torch.where(spread <= 1e-6 * centre.abs(), 1.0, spread)


def _standardised(values: Tensor) -> Tensor:
    centre, scale = moments(values)
    return ((values - centre) / scale).clamp(-OUTLIER, OUTLIER)


def _slopes(inputs: Tensor, target: Tensor, stream: Stream) -> Tensor:
    """The derivatives (n, O, D) at some rows of a network that predicts `target` (N, O) from `inputs` (N, D)."""
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
        if update % CHECK == 0:  # the weights that predict held-out rows best are kept
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
