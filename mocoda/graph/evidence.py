"""What each row says about edges: how much likelier what happened is with a parent than without.

Axes: R runs, C children, P parents, N rows, B rows of a batch, W columns of a row, K columns of the widest child.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from mocoda.engine.networks import Weights
from mocoda.engine.progress import Progress
from mocoda.graph.descent import descend, drawn_rows
from mocoda.graph.gates import block_of, embedded, pair_weights, summed
from mocoda.graph.usual import (
    SCALES,
    GraphConfig,
    Table,
    absolute,
    roundings,
    surprise_of,
)

MOST = 10.0  # nats that a single row may say
OFTEN = 8.0  # at most so many times as often as others, rows that are not explained are drawn
SHARPEST = 0.001  # standard deviations below which nothing is told apart
TYPICAL = 1.2  # the scale of Student's t, by the median of absolute errors
UNUSUAL = 0.95  # the share of the errors that is smaller than what departs usually is


class Evidence(NamedTuple):
    """Log likelihood ratios of what happened, averaged over runs."""

    departs: Tensor  # (C, N), of something that the usual parents do not explain
    needs: Tensor  # (C, N, P), with all parents, against all but one


def departures(table: Table, left: Tensor) -> Tensor:
    """How much likelier what is left (R, C, N, K) is among what is unusual than among what is usual: (C, N)."""
    size = left.abs()
    quiet = (TYPICAL * size.median(2, keepdim=True).values).clamp(min=SHARPEST)
    some = size[:, :, table.held_out]  # torch's quantiles take a few million numbers at most
    loud = torch.maximum(some.quantile(UNUSUAL, 2, keepdim=True), 4 * quiet)
    ratio = surprise_of(left, quiet.log()) - surprise_of(left, loud.log())
    return table.per_column(ratio).mean(0).clamp(-MOST, MOST)


def oftener(ratio: Tensor) -> Tensor:
    """How often rows are to be drawn by what they say (C, N): those that depart more often, as they are few."""
    found = ratio.sigmoid()
    return 0.5 + (0.5 * found / found.mean(-1, keepdim=True).clamp(min=1e-6)).clamp(max=OFTEN)


def find_evidence(table: Table, usual: Tensor, left: Tensor, config: GraphConfig, progress: Progress) -> Evidence:
    """Trains networks that explain what the usual parents leave, (R, C, N, K), from all parents and from fewer."""
    stream = table.stream.child("evidence")
    departs = departures(table, left)
    (children, parents), columns = usual.shape, left.shape[-1]
    weights = pair_weights(table.layout, config.runs, config.hidden, 2 * columns, parents, stream.child("weights"))
    for name in ("sum.2.weight", "sum.2.bias", "skip.weight", "skip.bias"):
        weights[name].zero_()  # at first, the usual parents explain all
    shape = (config.runs, children, config.batch)
    runs = torch.arange(config.runs, device=usual.device)[:, None, None]
    each = torch.arange(children, device=usual.device)[:, None]
    one, often = torch.eye(parents, device=usual.device), oftener(departs[:, table.train])

    def draw(start: int, updates: int) -> dict[str, Tensor]:
        return {
            "rows": drawn_rows(often, shape, updates, stream),
            "hidden": stream.integers(parents, updates, *shape),
            "rounding": roundings(start, updates, config.steps, usual.device),
        }

    def loss(given: Mapping[str, Tensor]) -> Tensor:
        index, rarity = table.train[given["rows"]], 1 / often[each, given["rows"]]
        target, messages = left[runs, each, index], embedded(weights, table.pairs(index))
        hidden = one[given["hidden"]] * (~usual[:, None]).float()
        keeps = (torch.ones_like(hidden), usual[:, None].float().expand_as(hidden), 1 - hidden)
        total = torch.zeros_like(rarity)
        for keep, weight in zip(keeps, (torch.ones_like(rarity), rarity, rarity.sqrt()), strict=True):
            mean, log_scale = _explained(weights, messages, keep)
            error = mean - target
            fit = table.per_column(absolute(error, given["rounding"]))
            total = total + fit * weight + 0.1 * table.per_column(surprise_of(error.detach(), log_scale)) * rarity
        return total.mean(-1).sum()

    weights = descend(
        weights,
        loss,
        draw,
        rate=5 / 3 * config.learning_rate,
        steps=config.steps,
        decay=1e-6,
        progress=progress,
        stage="evidence",
    )
    return Evidence(departs, _needs(table, left, weights))


@torch.no_grad()
def _needs(table: Table, left: Tensor, weights: Weights) -> Tensor:
    runs, children = left.shape[:2]
    found, most = [], block_of(left.device, runs * table.itself.numel(), 512)
    for block in torch.arange(len(table.rows), device=left.device).split(most):
        messages = embedded(weights, table.pairs(block.expand(runs, children, -1)))
        target = left[:, :, block]

        def surprise(keep: Tensor, messages: Tensor = messages, target: Tensor = target) -> Tensor:
            mean, log_scale = _explained(weights, messages, keep)
            return table.per_column(surprise_of(mean - target, log_scale))

        keep = torch.ones(*target.shape[:3], messages.shape[2], device=left.device)
        whole, ratios = surprise(keep), []
        for parent in range(keep.shape[-1]):
            keep[..., parent] = 0
            ratios.append((surprise(keep) - whole).mean(0))
            keep[..., parent] = 1
        found.append(torch.stack(ratios, -1))
    return torch.cat(found, 1).clamp(-MOST, MOST)


def _explained(weights: Weights, messages: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and log scale (R, C, B, K) of what is left, from the parents that are kept (R, C, B, P)."""
    total = (messages * keep.movedim(-1, -2)[..., None]).sum(-3)
    mean, log_scale = summed(weights, total, keep).chunk(2, -1)
    return mean, log_scale.clamp(*SCALES)
