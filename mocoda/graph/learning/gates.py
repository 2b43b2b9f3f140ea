"""The default learner: networks find where a child departs from its baseline, and which parents it then needs.

A dense model says which *baseline* parents a child needs in nearly all rows, and another network predicts its change
from those, as most rows behave. Where that error is unusually large, the child *departs*: another parent acts on it.
Networks that see all parents, and all but one, measure which one it needs. A single row is weak evidence, so gates
generalise from all similar rows: where a child departs, at least one of its other edges is present, and an edge is
present where the child cannot be predicted without that parent. In the end, the dense model tests the edges on
recombined rows.

Axes: R runs, C children, P parents, N rows, B rows of a batch, K columns of the widest child.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.networks import Weights, softplus
from mocoda.engine.progress import Progress
from mocoda.engine.randomness import Shapes, Stream
from mocoda.graph.learned import GraphLearner
from mocoda.graph.learning.baseline import (
    LOG_SCALES,
    Table,
    absolute,
    descend,
    drawn_rows,
    residuals_of,
    roundings,
    surprise_of,
)
from mocoda.graph.learning.dense import BASELINE_SHARE, MAX_FALSE, MIN_MOVED, REDRAWS, DenseModel, Redrawn
from mocoda.graph.learning.gate_networks import (
    MIN_EDGE_SHARE,
    Layout,
    block_of,
    embedded,
    empty_scaling,
    gate_logits,
    gate_probabilities,
    gate_weights,
    pair_weights,
    summed,
)
from mocoda.graph.local_graph import LocalGraph

# Log likelihood ratios, in nats.
MAX_NATS = 10.0  # cap on the evidence of a single row
EDGE_PRIOR = 2.0  # evidence for an edge in a row must exceed this
DEPARTURE_PRIOR = 1.0  # evidence for a departure from the baseline must exceed this
MIN_EVIDENCE = -3.0  # floor on the evidence against an edge: lack of evidence does not rule an edge out
MIN_ADVANTAGE = 0.002  # nats per row by which a gate may predict worse than a constant before it is retrained
MAX_PRIOR_LOG_ODDS = 2.0  # cap on what similar rows say about a departure before the row's own evidence counts

MAX_OVERSAMPLING = 8.0  # cap on oversampling of unexplained rows
MIN_ERROR_SCALE = 0.001  # standard deviations: smaller errors are all treated as this one
T_SCALE_PER_MEDIAN = 1.2  # the scale of Student's t, relative to the median of absolute errors
DEPARTURE_QUANTILE = 0.95  # of the errors: the scale of a typical departure
REFITS = 1  # how often the baseline is refitted to the rows that do not seem to depart
DEPARTED_ROW_WEIGHT = 0.1  # of rows that seem to depart, when the baseline is refitted: all of a kind may
MIN_ROW_WEIGHT = 0.05  # of rows that do not seem to depart, when edges are learned: they might
SLOPES, OFFSETS = (0.5, 0.7, 1.0, 1.4, 2.0), (-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0)  # calibrations to try
RETRY_PACES = (0.3, 0.1)  # learning rates, relative to the usual, of gates that are retrained
SHIFTS = (-2.0, 0.5, 0.5, 0.5, 0.5)  # added one after another to the log odds of gates that are learned again
CONSTANT_SHARES = (0.003, 0.01, 0.03, 0.1, 0.3)  # of rows with an edge: constants that a gate is compared with


@dataclass(frozen=True)
class GateLearner(GraphLearner):
    """For every edge, learns a small network that says in which rows the edge is present."""

    name = "gates"
    caution = MIN_EDGE_SHARE  # the probability of an edge without evidence, so that any evidence keeps it

    runs: int = 2  # Networks of each kind, trained as one program, whose probabilities are averaged.
    hidden: int = 64  # Width of their hidden layers.
    baseline_steps: int = 600  # A quarter of the updates to fit the behaviour in most rows.
    steps: int = 2_000  # Updates of the dense model, and of each network that finds edges.
    batch: int = 256  # Rows of each update.
    learning_rate: float = 3e-3  # Step size of Adam.

    def __post_init__(self) -> None:
        for name in ("runs", "hidden", "baseline_steps", "steps", "batch"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if not self.learning_rate > 0:
            raise InputError(f"learning_rate must be positive, got {self.learning_rate}.")

    @staticmethod
    def quick() -> GateLearner:
        return GateLearner(runs=1, hidden=32, baseline_steps=400, steps=400)

    def learn(
        self, data: Transitions, graph: LocalGraph, always: Tensor, never: Tensor, stream: Stream, progress: Progress
    ) -> dict[str, Tensor]:
        table = Table.of(data, graph, stream)
        dense = DenseModel.fit(table, self, progress)
        redrawn = dense.redrawn()
        baseline = table.itself | (redrawn.moved.mean(1) > BASELINE_SHARE * REDRAWS)
        counts = torch.ones(len(baseline), len(data), device=data.device)
        residuals = residuals_of(baseline, table, counts, self, stream.child("left"), progress)
        for again in range(REFITS):  # without the departing rows, the baseline parents explain the others better
            departing = _departing(table, baseline, residuals, self, stream.child("again", again))
            counts = DEPARTED_ROW_WEIGHT + (1 - DEPARTED_ROW_WEIGHT) * (1 - departing)
            residuals = residuals_of(baseline, table, counts, self, stream.child("left", again), progress)
        evidence = find_evidence(table, baseline, residuals, self, progress)
        weights = _fit_gates(table, evidence, baseline, self, progress)
        calibration = _calibration(table, evidence, baseline, weights)
        always = always | baseline.T
        fixed = {"calibration": calibration, "always": always, "never": never & ~always}
        made = {**table.scaling, **fixed, **{f"gates.{name}": weight for name, weight in weights.items()}}
        return _repaired(made, dense, redrawn, self, progress)

    def probability(self, tensors: Weights, graph: LocalGraph, rows: Tensor) -> Tensor:
        return gate_probabilities(Layout(graph, rows.device), tensors, rows)

    def expected(self, graph: LocalGraph) -> dict[str, Tensor]:
        layout = Layout(graph, torch.device("cpu"))
        weights = gate_weights(layout, self.runs, self.hidden, Shapes())
        own = {f"gates.{name}": weight for name, weight in weights.items()}
        return {**super().expected(graph), **empty_scaling(layout), "calibration": torch.empty(2), **own}


class Evidence(NamedTuple):
    """Log likelihood ratios of the recorded changes, averaged over runs."""

    departs: Tensor  # (C, N), a departure from the baseline against none
    needs: Tensor  # (C, N, P), all parents against all but one


def departures(table: Table, residuals: Tensor) -> Tensor:
    """The log likelihood ratio (C, N) of residuals (R, C, N, K) as departures against as the baseline's errors."""
    size = residuals.abs()
    quiet = (T_SCALE_PER_MEDIAN * size.median(2, keepdim=True).values).clamp(min=MIN_ERROR_SCALE)
    some = size[:, :, table.held_out]  # torch's quantiles take a few million numbers at most
    loud = torch.maximum(some.quantile(DEPARTURE_QUANTILE, 2, keepdim=True), 4 * quiet)
    ratio = surprise_of(residuals, quiet.log()) - surprise_of(residuals, loud.log())
    return table.per_column(ratio).mean(0).clamp(-MAX_NATS, MAX_NATS)


def sampling_weights(ratio: Tensor) -> Tensor:
    """How often each row is sampled, given its evidence of a departure (C, N): rare rows are oversampled."""
    found = ratio.sigmoid()
    return 0.5 + (0.5 * found / found.mean(-1, keepdim=True).clamp(min=1e-6)).clamp(max=MAX_OVERSAMPLING)


def find_evidence(
    table: Table, baseline: Tensor, residuals: Tensor, learner: GateLearner, progress: Progress
) -> Evidence:
    """Trains networks that explain the residuals (R, C, N, K) from all parents and from fewer."""
    stream = table.stream.child("evidence")
    departs = departures(table, residuals)
    (children, parents), columns = baseline.shape, residuals.shape[-1]
    weights = pair_weights(table.layout, learner.runs, learner.hidden, 2 * columns, parents, stream.child("weights"))
    for name in ("sum.2.weight", "sum.2.bias", "skip.weight", "skip.bias"):
        weights[name].zero_()  # at first, no other parent explains anything
    shape = (learner.runs, children, learner.batch)
    runs = torch.arange(learner.runs, device=baseline.device)[:, None, None]
    each = torch.arange(children, device=baseline.device)[:, None]
    one, often = torch.eye(parents, device=baseline.device), sampling_weights(departs[:, table.train])

    def draw(start: int, updates: int) -> dict[str, Tensor]:
        return {
            "rows": drawn_rows(often, shape, updates, stream),
            "hidden": stream.integers(parents, updates, *shape),
            "rounding": roundings(start, updates, learner.steps, baseline.device),
        }

    def loss(given: Mapping[str, Tensor]) -> Tensor:
        index, rarity = table.train[given["rows"]], 1 / often[each, given["rows"]]
        target, messages = residuals[runs, each, index], embedded(weights, table.pairs(index))
        hidden = one[given["hidden"]] * (~baseline[:, None]).float()
        keeps = (torch.ones_like(hidden), baseline[:, None].float().expand_as(hidden), 1 - hidden)
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
        rate=5 / 3 * learner.learning_rate,
        steps=learner.steps,
        decay=1e-6,
        progress=progress,
        stage="evidence",
    )
    return Evidence(departs, _needs(table, residuals, weights))


@torch.no_grad()
def _needs(table: Table, residuals: Tensor, weights: Weights) -> Tensor:
    runs, children = residuals.shape[:2]
    found, most = [], block_of(residuals.device, runs * table.itself.numel(), 512)
    for block in torch.arange(len(table.rows), device=residuals.device).split(most):
        messages = embedded(weights, table.pairs(block.expand(runs, children, -1)))
        target = residuals[:, :, block]

        def surprise(keep: Tensor, messages: Tensor = messages, target: Tensor = target) -> Tensor:
            mean, log_scale = _explained(weights, messages, keep)
            return table.per_column(surprise_of(mean - target, log_scale))

        keep = torch.ones(*target.shape[:3], messages.shape[2], device=residuals.device)
        whole, ratios = surprise(keep), []
        for parent in range(keep.shape[-1]):
            keep[..., parent] = 0
            ratios.append((surprise(keep) - whole).mean(0))
            keep[..., parent] = 1
        found.append(torch.stack(ratios, -1))
    return torch.cat(found, 1).clamp(-MAX_NATS, MAX_NATS)


def _explained(weights: Weights, messages: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and log scale (R, C, B, K) of the residuals, predicted from the parents that are kept (R, C, B, P)."""
    total = (messages * keep.movedim(-1, -2)[..., None]).sum(-3)
    mean, log_scale = summed(weights, total, keep).chunk(2, -1)
    return mean, log_scale.clamp(*LOG_SCALES)


def _departing(table: Table, baseline: Tensor, residuals: Tensor, learner: GateLearner, stream: Stream) -> Tensor:
    """The probability that each child departs from its baseline in each row (C, N), given all its parents."""
    ratio, free = departures(table, residuals), (~baseline)[:, None].float()
    children = len(ratio)
    weights = gate_weights(table.layout, 1, learner.hidden, stream.child("weights"))
    each = torch.arange(children, device=residuals.device)[:, None]

    def draw(start: int, updates: int) -> dict[str, Tensor]:
        return {"rows": table.train[stream.integers(len(table.train), updates, 1, children, learner.batch)]}

    def loss(given: Mapping[str, Tensor]) -> Tensor:
        logit = any_edge_logit(gate_logits(weights, table.pairs(given["rows"])), free)
        return mixture_loss(logit, ratio[each, given["rows"]] - DEPARTURE_PRIOR).mean(-1).sum()

    descend(weights, loss, draw, rate=learner.learning_rate, steps=max(1, learner.steps // 3), decay=1e-5)
    with torch.no_grad():
        blocks = torch.arange(len(table.rows), device=residuals.device).split(
            block_of(residuals.device, baseline.numel(), 512)
        )
        logits = [gate_logits(weights, table.pairs(block.expand(1, children, -1))) for block in blocks]
    return torch.cat([any_edge_logit(part, free)[0] for part in logits], 1).sigmoid()


def _fit_gates(table: Table, evidence: Evidence, baseline: Tensor, learner: GateLearner, progress: Progress) -> Weights:
    """Trains the gates, whose probabilities generalise from the evidence of similar rows.

    Most rows have no edge, and can push a gate so far that it ignores those that have one. A gate that predicts worse
    than a constant is retrained with a lower learning rate.
    """
    weights = _descended_gates(table, evidence, baseline, learner, 1.0, progress)
    lost = _gave_up(table, evidence, baseline, weights)
    for pace in RETRY_PACES:
        if not bool(lost.any()):
            break
        slower = _descended_gates(table, evidence, baseline, learner, pace, progress)
        found = lost & ~_gave_up(table, evidence, baseline, slower)
        for name, weight in weights.items():
            weights[name] = torch.where(found.view(*found.shape, *[1] * (weight.ndim - 2)), slower[name], weight)
        lost = lost & ~found
    return weights


def _descended_gates(
    table: Table, evidence: Evidence, baseline: Tensor, learner: GateLearner, pace: float, progress: Progress
) -> dict[str, Tensor]:
    stream = table.stream.child("gates")
    weights = gate_weights(table.layout, learner.runs, learner.hidden, stream.child("weights"))
    weights["sum.2.bias"] -= 1.0
    children = len(baseline)
    each = torch.arange(children, device=baseline.device)[:, None]
    often, free = sampling_weights(evidence.departs[:, table.train]), (~baseline)[:, None].float()

    def draw(start: int, updates: int) -> dict[str, Tensor]:
        return {"rows": drawn_rows(often, (learner.runs, children, learner.batch), updates, stream)}

    def loss(given: Mapping[str, Tensor]) -> Tensor:
        index, rarity = table.train[given["rows"]], 1 / often[each, given["rows"]]
        logits = gate_logits(weights, table.pairs(index))
        departs = evidence.departs[each, index] - DEPARTURE_PRIOR
        needs = evidence.needs[each, index].clamp(min=MIN_EVIDENCE) - EDGE_PRIOR
        any_edge = any_edge_logit(logits, free)
        posterior = (any_edge.detach().clamp(-MAX_PRIOR_LOG_ODDS, MAX_PRIOR_LOG_ODDS) + departs).sigmoid()
        # Which parent a child needs is learned from the rows in which it departs.
        whom = (mixture_loss(logits, needs) * free).sum(-1) * (posterior + MIN_ROW_WEIGHT)
        return ((mixture_loss(any_edge, departs) + whom) * rarity).mean(-1).sum()

    return descend(
        weights,
        loss,
        draw,
        rate=10 / 3 * pace * learner.learning_rate,
        steps=learner.steps,
        decay=1e-5,
        progress=progress,
        stage="edges",
    )


def _repaired(
    made: dict[str, Tensor], dense: DenseModel, redrawn: Redrawn, learner: GateLearner, progress: Progress
) -> dict[str, Tensor]:
    """Tensors whose edges recombine rows into true ones, as far as the dense model can tell.

    Where a child's edges make false rows, its gates learn anew where parents act by the dense model, and are cut as low
    as it takes. Where that does not help either, or the model would have to guess, the child keeps all edges.
    """
    graph = dense.table.graph

    def lacking() -> tuple[Tensor, Tensor]:
        """Which children (C,) have too few edges, and for which of them the model guesses."""

        def mask(rows: Tensor) -> Tensor:
            parts = rows.split(block_of(rows.device, learner.runs * made["always"].numel(), 512))
            likely = torch.cat([learner.probability(made, graph, part) for part in parts]) > learner.caution
            return (likely | made["always"]) & ~made["never"]

        share, guessed = dense.false_share(mask)
        return share > MAX_FALSE, guessed

    lacks, guessed = lacking()
    chosen = lacks & ~guessed
    if bool(chosen.any()):
        for name, weight in _fit_again(dense.table, redrawn, made["calibration"], learner, progress).items():
            gate = made[f"gates.{name}"]
            made[f"gates.{name}"] = torch.where(chosen.view(1, -1, *[1] * (gate.ndim - 2)), weight, gate)
    for shift in SHIFTS:
        if not bool(chosen.any()):
            break
        made["gates.sum.2.bias"][:, chosen] += shift / made["calibration"][0]
        chosen = chosen & lacking()[0]
    return made | {"always": made["always"] | (((lacks & guessed) | chosen) & ~made["never"])}


def _fit_again(
    table: Table, redrawn: Redrawn, calibration: Tensor, learner: GateLearner, progress: Progress
) -> dict[str, Tensor]:
    """Gates that say in which rows a parent acts by the dense model."""
    stream, acts = table.stream.child("gates again"), (redrawn.moved >= MIN_MOVED).float()
    weights = gate_weights(table.layout, learner.runs, learner.hidden, stream.child("weights"))
    each, (slope, offset) = torch.arange(len(acts), device=acts.device)[:, None], calibration

    def draw(start: int, updates: int) -> dict[str, Tensor]:
        return {"rows": stream.integers(len(redrawn.rows), updates, learner.runs, len(acts), learner.batch)}

    def loss(given: Mapping[str, Tensor]) -> Tensor:
        odds = slope * gate_logits(weights, table.pairs(redrawn.rows[given["rows"]])) + offset
        wrong = binary_cross_entropy_with_logits(odds, acts[each, given["rows"]], reduction="none")
        return wrong.mean(2).sum()

    rate, stage = learner.learning_rate, "edges again"
    return descend(weights, loss, draw, rate=rate, steps=learner.steps, decay=1e-5, progress=progress, stage=stage)


@torch.no_grad()
def _gave_up(table: Table, evidence: Evidence, baseline: Tensor, weights: Weights) -> Tensor:
    """Which gates (R, C) predict where a child departs worse than a constant probability would."""
    free, some = (~baseline)[:, None].float(), table.train[:8_192]
    runs, children = len(weights["skip.bias"]), len(baseline)
    blocks = some.split(block_of(baseline.device, runs * baseline.numel(), 512))
    logits = [gate_logits(weights, table.pairs(block.expand(runs, children, -1))) for block in blocks]
    departs = evidence.departs[:, some] - DEPARTURE_PRIOR
    explained = mixture_loss(torch.cat([any_edge_logit(part, free) for part in logits], -1), departs).mean(-1)
    shares = torch.tensor(CONSTANT_SHARES, device=baseline.device).logit()
    return explained > mixture_loss(shares[:, None, None], departs).mean(-1).amin(0) + MIN_ADVANTAGE


def any_edge_logit(logits: Tensor, free: Tensor) -> Tensor:
    """Log odds (*L, C, B) that any of the `free` edges is present, given the log odds (*L, C, B, P) of each."""
    none = (softplus(logits) * free).sum(-1)  # minus the log probability that none is present
    return none + torch.log(-torch.expm1(-none.clamp(min=1e-6)))


def mixture_loss(logit: Tensor, ratio: Tensor) -> Tensor:
    """Negative log likelihood of a row, given the log odds of an edge and the row's log likelihood ratio for it."""
    return softplus(logit) - softplus(logit + ratio)


@torch.no_grad()
def _calibration(table: Table, evidence: Evidence, baseline: Tensor, weights: Weights) -> Tensor:
    """The slope and offset (2,) of the log odds that fit held-out rows best.

    The true edges are unknown, but a row's likelihoods with and without an edge are: the likelihood of their mixture,
    weighted by the probability of the edge, is largest where the probabilities are right.
    """
    found: list[tuple[Tensor, Tensor]] = []
    runs, children = len(weights["skip.bias"]), len(baseline)
    for block in table.held_out.split(512):
        logits = gate_logits(weights, table.pairs(block.expand(runs, children, -1)))
        chance = logits.sigmoid().mean(0)
        asked = ~baseline[:, None].expand_as(chance)
        ratio = torch.minimum(evidence.needs[:, block], evidence.departs[:, block, None]) - DEPARTURE_PRIOR
        found.append((chance[asked], ratio[asked]))
    chance, ratio = (torch.cat(part) for part in zip(*found, strict=True))
    if not len(chance):
        return torch.tensor([1.0, 0.0], device=baseline.device)
    odds, best = chance.clamp(1e-6, 1 - 1e-6).logit(), (-math.inf, 1.0, 0.0)
    for slope in SLOPES:
        for offset in OFFSETS:
            best = max(best, (-float(mixture_loss(slope * odds + offset, ratio).mean()), slope, offset))
    return torch.tensor(best[1:], device=baseline.device)
