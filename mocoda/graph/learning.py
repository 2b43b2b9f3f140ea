"""Learns a local graph from data: which factors each factor needs, and in which rows.

For every child, networks learn its next value from all factors, from its *usual* parents only (those that it needs in
nearly all rows), and from all but one. What happens rarely must not be averaged away, so networks with fewer parents
leave aside the rows that they cannot explain, and such rows are drawn more often. In a row in which the usual parents
predict as well as all factors, the child has no other parents. Where they do not, it has an edge from every parent
without which it cannot be predicted as well. Small networks learn where that is so from the rows' likelihood ratios:
what a single row says is noise, what all rows like it say is not.

Axes: R runs, C children, P parents, N rows, B rows of a batch, W columns of a row, K columns of the widest child.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from mocoda.data.transitions import Transitions
from mocoda.engine.checkpoint import fingerprint
from mocoda.engine.errors import InputError
from mocoda.engine.networks import Weights
from mocoda.engine.optimise import Adam
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.columns import ColumnNames, as_factors, guessed_factors
from mocoda.graph.gates import Gates, combined, embedded, pair_weights, summed
from mocoda.graph.learned import LearnedGraph, cut
from mocoda.graph.local_graph import LocalGraph
from mocoda.graph.usual import ROUNDING, GraphConfig, Table, absolute, cosine, surprise_of, usual_parents

LEAST_ROWS = 1_000  # fewer hold too few of the rare rows that are to be learned from
UNSEEN = ("linked", "apart")
PRICE = 1.0  # of an edge in a row, in nats: the likelihood ratio that speaks for it must be larger
FLOOR = 0.05  # the weight of rows that a network with fewer parents seems unable to explain: it may learn to
SLOPES, OFFSETS = (0.5, 0.7, 1.0, 1.4, 2.0), (-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0)  # of log odds, tried
SURE = 2.0  # log odds that other rows may give an edge before the row itself is asked


def learn_graph(
    data: Transitions,
    state: Mapping[str, Any] | None = None,
    action: Mapping[str, Any] | None = None,
    *,
    seed: int | Stream = 0,
    caution: float = 0.2,
    unseen: str | None = None,
    config: GraphConfig | None = None,
    progress: Progress = silent,
) -> LearnedGraph:
    """Learns which factors depend on which, and in which rows, on the device of the data.

    state, action  factor name -> its columns, as in a graph file; without them, by the names of the columns: box.x and
                   box_x belong to box
    caution        an edge is there where it is likelier than this. A missing edge makes false rows, a superfluous one
                   only fewer: so well below one half
    unseen         what to make of two state factors that never come near each other in the data, of which nothing can
                   be learned: "linked" (they depend on each other) or "apart"; without it, such pairs are refused

    A factor's own past always counts among its parents.
    """
    config, names = config or GraphConfig(), ColumnNames.of(data)
    graph = _dense_graph(state, action, names)
    if not 0 < caution < 1:
        raise InputError(f"caution must be a probability between 0 and 1, got {caution}.")
    if unseen not in (None, *UNSEEN):
        raise InputError(f"unseen must be 'linked' or 'apart', got {unseen!r}.")
    _check_data(data, graph)
    table = Table.of(data, graph, as_stream(seed, "learn-graph", device=data.device))
    strangers = table.strangers()
    if unseen is None and bool(strangers.any()):
        raise _unseen_error(graph, strangers)
    usual, left = usual_parents(table, config, progress)
    gates = _fit_gates(table, usual, left, config, progress)
    # Of factors that never met, the gates only guess.
    always = gates.always | (strangers if unseen == "linked" else torch.zeros_like(strangers))
    gates = Gates(graph, gates.weights, gates.scaling, gates.calibration, always, strangers & ~always)
    learned = LearnedGraph(
        graph.state,
        graph.action,
        graph.edges,
        gates=gates.to(torch.device("cpu")),
        caution=caution,
        names=names,
        row_shares=torch.ones(gates.always.shape, dtype=torch.float64),
        settings={**asdict(config), "unseen": unseen, "rows": len(data)},
        fingerprints={"data": fingerprint(data.rows, data.next_state)},
    )
    return cut(learned, caution, data.rows)


def _dense_graph(state: object, action: object, names: ColumnNames) -> LocalGraph:
    """The factors, all of which depend on all."""
    factors = [
        guessed_factors(kind, getattr(names, kind)) if given is None else as_factors(kind, given, names)
        for kind, given in (("state", state), ("action", action))
    ]
    everyone = tuple(name for part in factors for name in part)
    return LocalGraph(factors[0], factors[1], dict.fromkeys(factors[0], everyone))


def _check_data(data: Transitions, graph: LocalGraph) -> None:
    if len(data) < LEAST_ROWS:
        raise InputError(
            f"a graph is learned from at least {LEAST_ROWS:,} rows, and far more where interactions are rare; the data "
            f"has {len(data):,}. Record more, or write the graph in a file."
        )
    still = (data.rows == data.rows[0]).all(0)
    for name, columns in graph.factors.items():
        if bool(still[list(columns)].all()):
            raise InputError(
                f"the factor {name!r} has the same value in all rows, so nothing can be learned of what depends on it. "
                "Remove its columns, or make them part of another factor."
            )


def _unseen_error(graph: LocalGraph, strangers: Tensor) -> InputError:
    pairs = [
        f"{graph.parents[p]} and {graph.children[c]}" for p, c in strangers.nonzero().tolist() if p < c
    ]  # fmt: skip
    shown = ", ".join(pairs[:6]) + (f" and {len(pairs) - 6} more pairs" if pairs[6:] else "")
    return InputError(
        f"these factors never come near each other in the data, so nothing can be learned of what happens if they do: "
        f"{shown}. Say whether they depend on each other (unseen='linked') or not (unseen='apart')."
    )


def _fit_gates(table: Table, usual: Tensor, left: Tensor, config: GraphConfig, progress: Progress) -> Gates:
    """Networks that explain what the usual parents leave, and gates that say where they need whom."""
    stream = table.stream.child("gates")
    children, parents = usual.shape
    shape, columns = (config.runs, children, config.batch), table.target.shape[-1]
    sizes = (table.layout, config.runs, config.hidden)
    weights = pair_weights(*sizes, 2 * columns, parents, stream.child("weights"))
    gates = pair_weights(*sizes, parents + 1, 0, stream.child("gate weights"))
    for name in ("sum.2.weight", "sum.2.bias", "skip.weight", "skip.bias"):
        weights[name].zero_()  # at first, the usual parents explain all
    gates["sum.2.bias"] -= 1.0
    adam = Adam([weight.requires_grad_() for weight in weights.values()], config.learning_rate, 1e-5)
    gate_adam = Adam([weight.requires_grad_() for weight in gates.values()], config.learning_rate / 3, 1e-5)
    runs = torch.arange(config.runs, device=usual.device)[:, None, None]
    each = torch.arange(children, device=usual.device)[:, None]
    everyone, usual_only = (kept[:, None].float().expand(*shape, parents) for kept in (usual | True, usual))
    one = torch.eye(parents, device=usual.device)
    # Rows that the usual parents do not explain are few, and what there is to learn is in them.
    unexplained = table.per_column(left[:, :, table.train].abs()).mean(0)
    weight = 0.5 + (unexplained / unexplained.mean(-1, keepdim=True).clamp(min=1e-12)).clamp(max=8)  # (C, train)
    usually = left.abs().median(2, keepdim=True).values.clamp(min=ROUNDING / 2)  # (R, C, 1, K)
    batches = stream.child("batches")
    first, then = config.steps // 3, config.steps // 2  # steps at which the gates begin to learn, and to be asked

    for step in range(config.steps):
        adam.learning_rate.fill_(config.learning_rate * cosine(step, config.steps))
        gate_adam.learning_rate.fill_(config.learning_rate / 3 * cosine(step, config.steps))
        drawn = [batches.categories(own, config.runs * config.batch) for own in weight]
        chosen = torch.stack([own.view(config.runs, -1) for own in drawn], 1)
        index = table.train[chosen]
        rarity = 1 / weight[each, chosen]  # by which rows that were drawn more often count less
        parent = batches.integers(parents, *shape)
        pairs = table.layout.pairs(table.rows[index], table.scaling)
        target = left[runs, each, index]
        messages = embedded(weights, pairs)
        mean, log_scale = _explained(weights, messages, everyone)
        errors = [mean - target]
        errors += [_explained(weights, messages, keep)[0] - target for keep in (usual_only, 1 - one[parent])]
        scale = log_scale.detach()
        whole, by_usual, without = (table.per_column(surprise_of(error.detach(), scale)) for error in errors)
        logits = summed(gates, embedded(gates, pairs).sum(-3))
        logit = torch.stack([logits.gather(-1, parent[..., None])[..., 0], logits[..., -1]], -1)
        with torch.no_grad():
            departs = (by_usual - whole - PRICE).sigmoid()
            edge = departs if step < then else logit[..., 1].sigmoid() * logit[..., 0].sigmoid()
            ratios = torch.stack([without - whole, by_usual - whole], -1).clamp(-10, 10)
            posterior = (logit.clamp(-SURE, SURE) + ratios - PRICE).sigmoid()
        losses = [table.per_column(absolute(error)) for error in errors]
        losses[1] = table.per_column(surprise_of(errors[1], usually.log()) * usually)  # what fits most rows
        noise = table.per_column(log_scale + errors[0].detach().abs() * torch.exp(-log_scale))
        loss = losses[0] + 0.1 * noise + losses[1] * rarity + losses[2] * (1 - edge + FLOOR * rarity)
        adam.step(loss.mean(-1).sum())
        # Whom a child needs is asked of the rows in which it departs.
        asked = torch.stack([posterior[..., 1] + FLOOR, torch.ones_like(departs)], -1) * rarity[..., None]
        entropy = binary_cross_entropy_with_logits(logit, posterior, reduction="none")
        if step >= first:
            gate_adam.step((entropy * asked / rarity.mean()).sum(-1).mean(-1).sum())
        progress("edges", step + 1, config.steps)
    fixed = usual.T.contiguous()
    trained = {name: weight.detach() for name, weight in gates.items()}
    calibration = _calibration(table, usual, left, weights, trained)
    return Gates(table.graph, trained, table.scaling, calibration, fixed, torch.zeros_like(fixed))


@torch.no_grad()
def _calibration(table: Table, usual: Tensor, left: Tensor, weights: Weights, gates: Weights) -> Tensor:
    """Slope and offset (2,) of the log odds by which the gates explain held-out rows best.

    There is no truth to compare with, but the likelihood of a row with an edge and without: that of a mixture of both,
    with the probability of the edge as the share, is largest where the probabilities are right.
    """
    found: list[tuple[Tensor, Tensor]] = []
    children, parents = usual.shape
    for block in table.held_out.split(512):
        index = block.expand(len(left), children, -1)
        pairs = table.layout.pairs(table.rows[index], table.scaling)
        target, messages = left[:, :, block], embedded(weights, pairs)
        keep = torch.ones(*index.shape, parents, device=usual.device)
        mean, log_scale = _explained(weights, messages, keep)
        whole = table.per_column(surprise_of(mean - target, log_scale))
        ratios = []
        for parent in range(parents):
            without = keep.clone()
            without[..., parent] = 0
            error = _explained(weights, messages, without)[0] - target
            ratios.append((table.per_column(surprise_of(error, log_scale)) - whole).mean(0))
        chance = combined(summed(gates, embedded(gates, pairs).sum(-3)).sigmoid(), usual[:, None]).mean(0)
        asked = ~usual[:, None].expand_as(chance)
        found.append((chance[asked], (torch.stack(ratios, -1)[asked] - PRICE).clamp(-10, 10)))
    chance, ratio = (torch.cat(part) for part in zip(*found, strict=True))
    if not len(chance):
        return torch.tensor([1.0, 0.0], device=usual.device)
    odds, best = chance.clamp(1e-6, 1 - 1e-6).logit(), (-math.inf, 1.0, 0.0)
    for slope in SLOPES:
        for offset in OFFSETS:
            share = (slope * odds + offset).sigmoid()
            best = max(best, (float(torch.log1p(share * ratio.expm1()).mean()), slope, offset))
    return torch.tensor(best[1:], device=usual.device)


def _explained(weights: Weights, messages: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and log scale (R, C, B, K) of what is left, from the parents that are kept (R, C, B, P)."""
    total = (messages * keep.movedim(-1, -2)[..., None]).sum(-3)
    mean, log_scale = summed(weights, total, keep).chunk(2, -1)
    return mean, log_scale.clamp(-7, 3)
