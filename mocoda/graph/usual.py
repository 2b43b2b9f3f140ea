"""What a learned graph begins with: the data as a table to learn from, and the parents that a child needs in most rows.

Axes: R runs, C children, P parents, N rows, B rows of a batch, W columns of a row, K columns of the widest child.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.networks import input_scaling, linear, linear_weights, mlp, mlp_weights, moments, varies
from mocoda.engine.progress import Progress
from mocoda.engine.randomness import Stream
from mocoda.graph.descent import CHUNK, descend, drawn_rows
from mocoda.graph.gates import Layout
from mocoda.graph.local_graph import LocalGraph

HELD_OUT, MOST_HELD_OUT = 0.125, 4_000  # share and number of rows that nothing is trained on
TAIL = 2.0  # degrees of freedom of the errors' distribution: a row that cannot be explained counts, but not for all
USUAL, RARELY = 1.0, 0.25  # a usual parent gains a child more nats than the first in all but this share of the rows
COARSE, ROUNDING = 3.0, 0.02  # standard deviations below which errors count by their squares, at first and at last
FEW = 6  # parents for which GraphConfig.usual_steps suffice; so many more take twice as long to be told apart
LOOKS = 8  # how often it is looked at what is not yet learned
SCALES = (-7.0, 3.0)  # of log scales that are predicted


@dataclass(frozen=True)
class GraphConfig:
    """How the networks that learn a graph are built and trained."""

    runs: int = 2  # networks of a kind, trained as one program, whose probabilities are averaged
    hidden: int = 64
    usual_steps: int = 600  # to find the usual parents, of six; four times as many to learn what they explain
    steps: int = 2_000  # to find the others
    batch: int = 256
    learning_rate: float = 3e-3

    def __post_init__(self) -> None:
        for name in ("runs", "hidden", "usual_steps", "steps", "batch"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if not self.learning_rate > 0:
            raise InputError(f"learning_rate must be positive, got {self.learning_rate}.")

    @staticmethod
    def quick() -> GraphConfig:
        """Less time and a coarser graph."""
        return GraphConfig(runs=1, hidden=32, usual_steps=400, steps=400)


@dataclass(frozen=True, eq=False)
class Table:
    """The data, ready to learn from."""

    graph: LocalGraph
    stream: Stream
    rows: Tensor  # (N, W)
    target: Tensor  # (C, N, K), each child's change, standardised; 0 where a child has fewer columns
    scaling: dict[str, Tensor]
    train: Tensor  # numbers of the rows to train on
    held_out: Tensor  # and of others

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
        held_out = min(MOST_HELD_OUT, round(HELD_OUT * len(rows)))
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
        """What is said of each child and parent, (R, C, P, B, features), in rows numbered (R, C, B)."""
        return self.layout.pairs(self.rows[index], self.scaling)

    def targets(self, index: Tensor) -> Tensor:
        """(R, C, B, K) of rows numbered (R, C, B)."""
        return self.target[torch.arange(len(self.target), device=index.device)[:, None], index]


def _spread_of_differences(rows: Tensor, layout: Layout) -> Tensor:
    """The standard deviation (C, P, K) of each child's columns less the parent's; of constant ones, their size."""
    differences, size = layout.differences(rows[None]).double(), pad(rows.abs().amax(0), (0, 1))
    largest = torch.maximum(size[layout.children][:, None], size[layout.parents][:, : layout.children.shape[1]])
    constant = ~varies(differences.movedim(-2, 0), largest)
    return torch.where(constant, largest.clamp(min=1.0), differences.std(-2)).float()


def surprise_of(error: Tensor, log_scale: Tensor) -> Tensor:
    """Negative log likelihood of errors by Student's t, less a constant."""
    return log_scale + (TAIL + 1) / 2 * torch.log1p(error.square() * torch.exp(-2 * log_scale) / TAIL)


def absolute(error: Tensor, rounding: float | Tensor = ROUNDING) -> Tensor:
    """Errors by their size; those much smaller than `rounding` by their squares."""
    return (error.square() + rounding**2).sqrt() - rounding


def forgiving(error: Tensor, rounding: Tensor) -> Tensor:
    """Errors by their squares up to about `rounding`, and hardly more beyond: what fits many rows exactly beats a
    compromise between these and others."""
    return rounding * torch.log1p((error / rounding).square())


def roundings(start: int, updates: int, steps: int, device: torch.device) -> Tensor:
    """What errors are rounded by in updates from `start` on, (U,).

    Large errors count by their squares at first, so that all is learned, and later by their size, so that what most
    rows do is learned exactly.
    """
    share = (torch.arange(start, start + updates, device=device) / (0.7 * steps)).clamp(max=1)
    return COARSE * (share * math.log(ROUNDING / COARSE)).exp()


def usual_parents(table: Table, config: GraphConfig, progress: Progress) -> Tensor:
    """The parents that each child needs in nearly all rows, bool (C, P)."""
    stream = table.stream.child("usual")
    children, parents = table.itself.shape
    shape = (config.runs, children, config.batch)
    sizes = (table.graph.width + parents, config.hidden, config.hidden, 2 * table.target.shape[-1])
    weights = mlp_weights("mlp", (config.runs, children), sizes, stream.child("weights"))

    def surprise(index: Tensor, keep: Tensor) -> Tensor:
        seen = torch.cat([table.inputs[index] * (keep @ table.layout.owned), keep], -1)
        mean, log_scale = mlp(weights, "mlp", seen).chunk(2, -1)
        scale = log_scale.clamp(math.log(ROUNDING), SCALES[1])  # finer errors are the network's own
        return table.per_column(surprise_of(mean - table.targets(index), scale))

    def draw(start: int, updates: int) -> dict[str, Tensor]:
        index = table.train[stream.integers(len(table.train), updates, *shape)]
        # Any parents may be left out, mostly few.
        drawn = stream.uniform(updates, *shape, parents) > stream.uniform(updates, *shape, 1).square()
        return {"rows": index, "keep": (drawn | table.itself[:, None]).float()}

    def loss(given: Mapping[str, Tensor]) -> Tensor:
        return surprise(given["rows"], given["keep"]).mean(-1).sum()

    descend(
        weights,
        loss,
        draw,
        rate=config.learning_rate,
        steps=config.usual_steps * math.ceil(parents / FEW),
        decay=1e-5,
        progress=progress,
        stage="usual parents",
    )
    return _needed(table, surprise, config.runs)


def left_by(
    usual: Tensor, table: Table, counts: Tensor, config: GraphConfig, stream: Stream, progress: Progress
) -> Tensor:
    """What the usual parents leave to be explained (R, C, N, K): standardised changes less what most rows do.

    usual   the usual parents, bool (C, P)
    counts  by how much each row counts, float (C, N)
    """
    children, columns, wide = len(usual), table.target.shape[-1], table.graph.width
    leading, sizes = (config.runs, children), (wide, config.hidden, config.hidden, columns)
    weights = mlp_weights("mlp", leading, sizes, stream.child("weights"))
    weights |= linear_weights("skip", leading, wide, columns, stream.child("skip"))
    rate, steps = 10 / 3 * config.learning_rate, 4 * config.usual_steps
    seen = usual.float()[:, None] @ table.layout.owned  # (C, 1, W)
    each = torch.arange(children, device=usual.device)[:, None]

    def predict(index: Tensor) -> Tensor:
        inputs = table.inputs[index] * seen
        return mlp(weights, "mlp", inputs) + linear(weights, "skip", inputs)

    @torch.no_grad()
    def left() -> Tensor:
        blocks = torch.arange(len(table.rows), device=usual.device).split(8_192)
        return torch.cat([table.target[:, block] - predict(block.expand(*leading, -1)) for block in blocks], 2)

    often = torch.ones(children, len(table.train), device=usual.device)
    every = max(CHUNK, steps // LOOKS // CHUNK * CHUNK)

    def draw(start: int, updates: int) -> dict[str, Tensor]:
        nonlocal often
        if start and start % every == 0:  # what is not yet learned is shown more often
            size = (table.per_column(absolute(left())).mean(0) * counts)[:, table.train]
            often = 1 + (size / size.mean(-1, keepdim=True).clamp(min=1e-12)).clamp(max=2)
        index = table.train[drawn_rows(often, (*leading, config.batch), updates, stream)]
        return {"rows": index, "rounding": roundings(start, updates, steps, usual.device)}

    def loss(given: Mapping[str, Tensor]) -> Tensor:
        index = given["rows"]
        error = predict(index) - table.targets(index)
        return (table.per_column(forgiving(error, given["rounding"])) * counts[each, index]).mean(-1).sum()

    descend(weights, loss, draw, rate=rate, steps=steps, progress=progress, stage="usual behaviour")
    return left()


@torch.no_grad()
def _needed(table: Table, surprise: Callable[[Tensor, Tensor], Tensor], runs: int) -> Tensor:
    """All parents, less, one after the other, those without which held-out rows are predicted as well; bool (C, P)."""
    children, parents = table.itself.shape
    index = table.held_out[:1_000].expand(runs, children, -1)

    def surprises(kept: Tensor) -> Tensor:
        return surprise(index, kept[:, None].float().expand(*index.shape, parents)).mean(0)

    kept = torch.ones_like(table.itself)
    whole = surprises(kept)
    for _ in range(parents - 1):
        cost = torch.full(kept.shape, math.inf, device=kept.device)
        for parent in range(parents):
            without = kept.clone()
            without[:, parent] = False
            cost[:, parent] = (surprises(without) - whole).quantile(RARELY, -1)
        cost = torch.where(kept & ~table.itself, cost, math.inf)
        least = one_hot(cost.argmin(1), parents).bool() & (cost < USUAL)
        if not bool(least.any()):
            break
        kept = kept & ~least
    return kept
