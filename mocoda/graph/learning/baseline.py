"""The recorded rows as networks learn from them, and what the baseline parents of each child explain in most rows.

Axes: R runs, C children, P parents, N rows, B rows of a batch, W columns of a row, K columns of the widest child.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from mocoda.data.transitions import Transitions
from mocoda.engine.networks import Weights, input_scaling, linear, linear_weights, mlp, mlp_weights, moments, varies
from mocoda.engine.optimise import Adam, Captured, in_turn
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream
from mocoda.graph.learning.gate_networks import Layout
from mocoda.graph.local_graph import LocalGraph

if TYPE_CHECKING:
    from mocoda.graph.learning.gates import GateLearner

CHUNK_UPDATES = 10  # updates that a GPU runs as one program
Draw = Callable[[int, int], dict[str, Tensor]]  # first update, number U of updates -> tensors (U, ...)
HELD_OUT_SHARE, MAX_HELD_OUT_ROWS = 0.125, 4_000  # of the rows, which no network is trained on
DEGREES_OF_FREEDOM = 2.0  # of Student's t, the distribution of the errors: unexplained rows count, but not too much
FIRST_ROUNDING, LAST_ROUNDING = 3.0, 0.02  # standard deviations below which errors count by their squares
REWEIGHTINGS = 8  # how often sampling weights are refreshed during a training
LOG_SCALES = (-7.0, 3.0)  # range of the log scales that are predicted


@dataclass(frozen=True, eq=False)
class Table:
    """The recorded rows as networks learn from them: standardised, and split into training and held-out rows."""

    graph: LocalGraph
    stream: Stream
    rows: Tensor  # (N, W)
    target: Tensor  # (C, N, K), each child's change, standardised; 0 where a child has fewer columns
    scaling: dict[str, Tensor]
    train: Tensor  # numbers of the training rows
    held_out: Tensor  # numbers of the held-out rows

    @staticmethod
    def of(data: Transitions, graph: LocalGraph, stream: Stream) -> Table:
        rows, layout = data.rows, Layout(graph, data.device)
        shift, scale = input_scaling(rows)
        some = rows[stream.child("spread").permutation(len(rows))[:8_192]]
        scaling = {"shift": shift, "scale": scale, "apart": _spread_of_differences(some, layout)}
        change = data.next_state - rows[:, : graph.state_width]
        mean, deviation = moments(change, torch.maximum(data.state.abs(), data.next_state.abs()).amax(0))
        standard = torch.where(deviation > 0, (change - mean.float()) / deviation.float(), 0.0)
        padded = pad(standard, (0, graph.width - graph.state_width + 1))
        order = stream.child("split").permutation(len(rows))
        held_out = min(MAX_HELD_OUT_ROWS, round(HELD_OUT_SHARE * len(rows)))
        target = padded[:, layout.children].movedim(0, 1).contiguous()
        return Table(graph, stream, rows, target, scaling, order[held_out:], order[:held_out])

    @cached_property
    def layout(self) -> Layout:
        return Layout(self.graph, self.rows.device)

    @cached_property
    def counted(self) -> Tensor:
        """Which columns a child has, float (C, 1, K)."""
        return (self.layout.children < self.graph.width)[:, None].float()

    @cached_property
    def inputs(self) -> Tensor:
        """The rows, standardised."""
        return (self.rows - self.scaling["shift"]) / self.scaling["scale"]

    @cached_property
    def itself(self) -> Tensor:
        """Each child's own past among the parents, bool (C, P)."""
        return torch.eye(len(self.graph.children), len(self.graph.parents), dtype=torch.bool, device=self.rows.device)

    def per_column(self, values: Tensor) -> Tensor:
        """Sums (..., C, B) over the columns of each child of values (..., C, B, K)."""
        return (values * self.counted).sum(-1)

    def pairs(self, index: Tensor) -> Tensor:
        """Features of each child and parent (R, C, P, B, features) in rows numbered (R, C, B)."""
        return self.layout.pairs(self.rows[index], self.scaling)

    def targets(self, index: Tensor) -> Tensor:
        """Each child's targets (R, C, B, K) in rows numbered (R, C, B)."""
        return self.target[torch.arange(len(self.target), device=index.device)[:, None], index]


def _spread_of_differences(rows: Tensor, layout: Layout) -> Tensor:
    """The standard deviation (C, P, K) of each child's columns less the parent's; of constant ones, their size."""
    differences, size = layout.differences(rows[None]).double(), pad(rows.abs().amax(0), (0, 1))
    largest = torch.maximum(size[layout.children][:, None], size[layout.parents][:, : layout.children.shape[1]])
    constant = ~varies(differences.movedim(-2, 0), largest)
    return torch.where(constant, largest.clamp(min=1.0), differences.std(-2)).float()


def surprise_of(error: Tensor, log_scale: Tensor) -> Tensor:
    """Negative log likelihood of errors by Student's t, less a constant."""
    return log_scale + (DEGREES_OF_FREEDOM + 1) / 2 * torch.log1p(
        error.square() * torch.exp(-2 * log_scale) / DEGREES_OF_FREEDOM
    )


def absolute(error: Tensor, rounding: float | Tensor = LAST_ROUNDING) -> Tensor:
    """The absolute error, rounded off below `rounding`, where it becomes quadratic."""
    return (error.square() + rounding**2).sqrt() - rounding


def forgiving(error: Tensor, rounding: Tensor) -> Tensor:
    """A loss that is quadratic up to about `rounding` and grows slowly beyond: fitting many rows exactly beats a
    compromise between these and others."""
    return rounding * torch.log1p((error / rounding).square())


def roundings(start: int, updates: int, steps: int, device: torch.device) -> Tensor:
    """The rounding of errors in each update from `start` on, (U,): large at first, so that every row is learned, and
    small later, so that most rows are learned exactly."""
    share = (torch.arange(start, start + updates, device=device) / (0.7 * steps)).clamp(max=1)
    return FIRST_ROUNDING * (share * math.log(LAST_ROUNDING / FIRST_ROUNDING)).exp()


def residuals_of(
    baseline: Tensor, table: Table, counts: Tensor, learner: GateLearner, stream: Stream, progress: Progress
) -> Tensor:
    """What the baseline parents do not explain (R, C, N, K): standardised changes less the prediction for most rows.

    baseline  the baseline parents, bool (C, P)
    counts    the weight of each row, float (C, N)
    """
    children, columns, wide = len(baseline), table.target.shape[-1], table.graph.width
    leading, sizes = (learner.runs, children), (wide, learner.hidden, learner.hidden, columns)
    weights = mlp_weights("mlp", leading, sizes, stream.child("weights"))
    weights |= linear_weights("skip", leading, wide, columns, stream.child("skip"))
    rate, steps = 10 / 3 * learner.learning_rate, 4 * learner.baseline_steps
    seen = baseline.float()[:, None] @ table.layout.owned  # (C, 1, W)
    each = torch.arange(children, device=baseline.device)[:, None]

    def predict(index: Tensor) -> Tensor:
        inputs = table.inputs[index] * seen
        return mlp(weights, "mlp", inputs) + linear(weights, "skip", inputs)

    @torch.no_grad()
    def residuals() -> Tensor:
        blocks = torch.arange(len(table.rows), device=baseline.device).split(8_192)
        return torch.cat([table.target[:, block] - predict(block.expand(*leading, -1)) for block in blocks], 2)

    often = torch.ones(children, len(table.train), device=baseline.device)
    every = max(CHUNK_UPDATES, steps // REWEIGHTINGS // CHUNK_UPDATES * CHUNK_UPDATES)

    def draw(start: int, updates: int) -> dict[str, Tensor]:
        nonlocal often
        if start and start % every == 0:  # rows that are not yet learned are sampled more often
            size = (table.per_column(absolute(residuals())).mean(0) * counts)[:, table.train]
            often = 1 + (size / size.mean(-1, keepdim=True).clamp(min=1e-12)).clamp(max=2)
        index = table.train[drawn_rows(often, (*leading, learner.batch), updates, stream)]
        return {"rows": index, "rounding": roundings(start, updates, steps, baseline.device)}

    def loss(given: Mapping[str, Tensor]) -> Tensor:
        index = given["rows"]
        error = predict(index) - table.targets(index)
        return (table.per_column(forgiving(error, given["rounding"])) * counts[each, index]).mean(-1).sum()

    descend(weights, loss, draw, rate=rate, steps=steps, progress=progress, stage="baseline behaviour")
    return residuals()


def descend(
    weights: Weights,
    loss: Callable[[Mapping[str, Tensor]], Tensor],
    draw: Draw,
    *,
    rate: float,
    steps: int,
    decay: float = 0.0,
    progress: Progress = silent,
    stage: str = "",
) -> dict[str, Tensor]:
    """Adam with a learning rate that falls along a cosine; returns the trained weights.

    loss  of what `draw` gives for one update; all random numbers must be drawn there
    """
    adam = Adam([weight.requires_grad_() for weight in weights.values()], rate, decay)

    def update(given: Mapping[str, Tensor], phase: int) -> Tensor:
        value = loss(given)
        adam.step(value)
        return value.detach()

    chunk = Captured(in_turn(update), next(iter(weights.values())).device)
    for start in range(0, steps, CHUNK_UPDATES):
        updates = min(CHUNK_UPDATES, steps - start)
        adam.learning_rate.fill_(rate * 0.5 * (1 + math.cos(math.pi * start / steps)))
        chunk(draw(start, updates))
        progress(stage, start + updates, steps)
    return {name: weight.detach() for name, weight in weights.items()}


def drawn_rows(often: Tensor, shape: tuple[int, int, int], updates: int, stream: Stream) -> Tensor:
    """Row numbers (U, R, C, B), drawn for each child in proportion to `often` (C, M)."""
    runs, _, batch = shape
    drawn = [stream.categories(own, updates * runs * batch) for own in often]
    return torch.stack([own.view(updates, runs, batch) for own in drawn], 2)
