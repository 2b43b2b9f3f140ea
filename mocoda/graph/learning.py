"""Learns a local graph from data: which factors each factor needs, and in which rows.

For every child, a network learns its next value from its *usual* parents (those that it needs in nearly all rows), as
most rows have it. Where that fails by more than usual, the child *departs*: something else acts on it. Networks of all
parents, and of all but one, then say whom it needs. A single row says little; gates learn it from all rows like it: if
a child departs, at least one of its other edges is there, and if it cannot be predicted without a parent, that one is.

Axes: R runs, C children, P parents, N rows, B rows of a batch, W columns of a row, K columns of the widest child.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.checkpoint import fingerprint
from mocoda.engine.errors import InputError
from mocoda.engine.networks import Weights, softplus
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.columns import ColumnNames, as_factors, guessed_factors
from mocoda.graph.descent import descend, drawn_rows
from mocoda.graph.evidence import Evidence, departures, find_evidence, oftener
from mocoda.graph.gates import Gates, block_of, gate_logits, gate_weights
from mocoda.graph.learned import CAUTION, LearnedGraph, check_caution, cut
from mocoda.graph.local_graph import LocalGraph
from mocoda.graph.meetings import never_met
from mocoda.graph.usual import GraphConfig, Table, left_by, usual_parents

LEAST_ROWS = 1_000  # fewer hold too few of the rare rows that are to be learned from
UNSEEN = ("linked", "apart")
PRICE = 2.0  # of an edge in a row, in nats: the likelihood ratio that speaks for it must be larger
DOUBT = 1.0  # and of a departure from what is usual
WEAKEST = -3.0  # nats that a row may say against an edge: that a network does not see what a parent does proves little
REST = 0.1  # by how much rows count that seem to depart: all of a kind may
AGAIN = 1  # how often what the usual parents explain is learned again, from the rows in which nothing else seems to act
FLOOR = 0.05  # the weight of rows that a network with fewer parents seems unable to explain: it may learn to
SLOPES, OFFSETS = (0.5, 0.7, 1.0, 1.4, 2.0), (-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0)  # of log odds, tried
SLOWER = (0.3, 0.1)  # of the learning rate, where gates gave up
SHARES, TOLD = (0.003, 0.01, 0.03, 0.1, 0.3), 0.002  # of rows with an edge, tried; nats a row by which they are better
SURE = 2.0  # log odds that other rows may give an edge before the row itself is asked


def learn_graph(
    data: Transitions,
    state: Mapping[str, Any] | None = None,
    action: Mapping[str, Any] | None = None,
    *,
    seed: int | Stream = 0,
    caution: float = CAUTION,
    unseen: str | None = None,
    config: GraphConfig | None = None,
    progress: Progress = silent,
) -> LearnedGraph:
    """Learns which factors depend on which, and in which rows, on the device of the data.

    state, action  factor name -> its columns, as in a graph file; without them, by the names of the columns: box.x and
                   box_x belong to box
    caution        an edge is there where it is likelier than this. A missing edge makes false rows, a superfluous one
                   only fewer: so far below one half
    unseen         what to make of two state factors that never come near each other in the data, of which nothing can
                   be learned: "linked" (they depend on each other) or "apart"; without it, such pairs are refused

    A factor's own past always counts among its parents.
    """
    config, names = config or GraphConfig(), ColumnNames.of(data)
    graph = _dense_graph(state, action, names)
    check_caution(caution)
    if unseen not in (None, *UNSEEN):
        raise InputError(f"unseen must be 'linked' or 'apart', got {unseen!r}.")
    _check_data(data, graph)
    strangers = never_met(data, graph)
    if unseen is None and bool(strangers.any()):
        raise _unseen_error(graph, strangers)
    table = Table.of(data, graph, as_stream(seed, "learn-graph", device=data.device))
    usual = usual_parents(table, config, progress)
    counts = torch.ones(len(usual), len(data), device=data.device)
    left = left_by(usual, table, counts, config, table.stream.child("left"), progress)
    for again in range(AGAIN):  # without the rows that depart, the usual parents explain the others better
        counts = REST + (1 - REST) * (1 - _departing(table, usual, left, config, table.stream.child("again", again)))
        left = left_by(usual, table, counts, config, table.stream.child("left", again), progress)
    evidence = find_evidence(table, usual, left, config, progress)
    weights = _fit_gates(table, evidence, usual, config, progress)
    calibration = _calibration(table, evidence, usual, weights)
    # Of factors that never met, the gates only guess.
    always = usual.T | (strangers if unseen == "linked" else torch.zeros_like(strangers))
    gates = Gates(graph, weights, table.scaling, calibration, always, strangers & ~always)
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
    if state is None and len(names.state) > 1 and all(re.fullmatch(r"state\d+", name) for name in names.state):
        raise InputError(
            f"the data does not name its {len(names.state)} state columns, so nothing says which of them belong to one "
            'object. Say so: state={"cart": slice(0, 2), ...}, or a TOML file with [state] and [action] (--factors).'
        )
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
        f"{shown}. Say whether they depend on each other (unseen='linked', or --unseen linked) or not (unseen='apart')."
    )


def _departing(table: Table, usual: Tensor, left: Tensor, config: GraphConfig, stream: Stream) -> Tensor:
    """How likely each row departs (C, N), by all its parents."""
    ratio, free = departures(table, left), (~usual)[:, None].float()
    children = len(ratio)
    weights = gate_weights(table.layout, 1, config.hidden, stream.child("weights"))
    each = torch.arange(children, device=left.device)[:, None]

    def draw(start: int, updates: int) -> dict[str, Tensor]:
        return {"rows": table.train[stream.integers(len(table.train), updates, 1, children, config.batch)]}

    def loss(given: Mapping[str, Tensor]) -> Tensor:
        logit = anybody(gate_logits(weights, table.pairs(given["rows"])), free)
        return unlikely(logit, ratio[each, given["rows"]] - DOUBT).mean(-1).sum()

    descend(weights, loss, draw, rate=config.learning_rate, steps=max(1, config.steps // 3), decay=1e-5)
    with torch.no_grad():
        blocks = torch.arange(len(table.rows), device=left.device).split(block_of(left.device, usual.numel(), 512))
        logits = [gate_logits(weights, table.pairs(block.expand(1, children, -1))) for block in blocks]
    return torch.cat([anybody(part, free)[0] for part in logits], 1).sigmoid()


def _fit_gates(table: Table, evidence: Evidence, usual: Tensor, config: GraphConfig, progress: Progress) -> Weights:
    """Networks that say where a child departs and whom it needs then, by what rows like it say.

    Rows without an edge are many, and can push a network so far that it no longer feels those with one: it gave up, and
    is trained again, more slowly.
    """
    weights = _descended_gates(table, evidence, usual, config, 1.0, progress)
    lost = _gave_up(table, evidence, usual, weights)
    for pace in SLOWER:
        if not bool(lost.any()):
            break
        slower = _descended_gates(table, evidence, usual, config, pace, progress)
        found = lost & ~_gave_up(table, evidence, usual, slower)
        for name, weight in weights.items():
            weights[name] = torch.where(found.view(*found.shape, *[1] * (weight.ndim - 2)), slower[name], weight)
        lost = lost & ~found
    return weights


def _descended_gates(
    table: Table, evidence: Evidence, usual: Tensor, config: GraphConfig, pace: float, progress: Progress
) -> dict[str, Tensor]:
    stream = table.stream.child("gates")
    weights = gate_weights(table.layout, config.runs, config.hidden, stream.child("weights"))
    weights["sum.2.bias"] -= 1.0
    children = len(usual)
    each = torch.arange(children, device=usual.device)[:, None]
    often, free = oftener(evidence.departs[:, table.train]), (~usual)[:, None].float()

    def draw(start: int, updates: int) -> dict[str, Tensor]:
        return {"rows": drawn_rows(often, (config.runs, children, config.batch), updates, stream)}

    def loss(given: Mapping[str, Tensor]) -> Tensor:
        index, rarity = table.train[given["rows"]], 1 / often[each, given["rows"]]
        logits = gate_logits(weights, table.pairs(index))
        departs = evidence.departs[each, index] - DOUBT
        needs = evidence.needs[each, index].clamp(min=WEAKEST) - PRICE
        any_edge = anybody(logits, free)
        posterior = (any_edge.detach().clamp(-SURE, SURE) + departs).sigmoid()
        # Whom a child needs is asked of the rows in which it departs.
        whom = (unlikely(logits, needs) * free).sum(-1) * (posterior + FLOOR)
        return ((unlikely(any_edge, departs) + whom) * rarity).mean(-1).sum()

    return descend(
        weights,
        loss,
        draw,
        rate=10 / 3 * pace * config.learning_rate,
        steps=config.steps,
        decay=1e-5,
        progress=progress,
        stage="edges",
    )


@torch.no_grad()
def _gave_up(table: Table, evidence: Evidence, usual: Tensor, weights: Weights) -> Tensor:
    """Which networks (R, C) explain where a child departs worse than one probability for all rows would."""
    free, some = (~usual)[:, None].float(), table.train[:8_192]
    runs, children = len(weights["skip.bias"]), len(usual)
    blocks = some.split(block_of(usual.device, runs * usual.numel(), 512))
    logits = [gate_logits(weights, table.pairs(block.expand(runs, children, -1))) for block in blocks]
    departs = evidence.departs[:, some] - DOUBT
    explained = unlikely(torch.cat([anybody(part, free) for part in logits], -1), departs).mean(-1)
    shares = torch.tensor(SHARES, device=usual.device).logit()
    return explained > unlikely(shares[:, None, None], departs).mean(-1).amin(0) + TOLD


def anybody(logits: Tensor, free: Tensor) -> Tensor:
    """Log odds (*L, C, B) that at least one of the edges (*L, C, B, P) that are not always there is."""
    none = (softplus(logits) * free).sum(-1)  # minus the log of the probability that none is
    return none + torch.log(-torch.expm1(-none.clamp(min=1e-6)))


def unlikely(logit: Tensor, ratio: Tensor) -> Tensor:
    """Negative log likelihood of a row that is as likely with an edge as `ratio` says, by the log odds of the edge."""
    return softplus(logit) - softplus(logit + ratio)


@torch.no_grad()
def _calibration(table: Table, evidence: Evidence, usual: Tensor, weights: Weights) -> Tensor:
    """Slope and offset (2,) of the log odds by which the gates explain held-out rows best.

    There is no truth to compare with, but the likelihood of a row with an edge and without: that of a mixture of both,
    with the probability of the edge as the share, is largest where the probabilities are right.
    """
    found: list[tuple[Tensor, Tensor]] = []
    runs, children = len(weights["skip.bias"]), len(usual)
    for block in table.held_out.split(512):
        logits = gate_logits(weights, table.pairs(block.expand(runs, children, -1)))
        chance = logits.sigmoid().mean(0)
        asked = ~usual[:, None].expand_as(chance)
        ratio = torch.minimum(evidence.needs[:, block], evidence.departs[:, block, None]) - DOUBT
        found.append((chance[asked], ratio[asked]))
    chance, ratio = (torch.cat(part) for part in zip(*found, strict=True))
    if not len(chance):
        return torch.tensor([1.0, 0.0], device=usual.device)
    odds, best = chance.clamp(1e-6, 1 - 1e-6).logit(), (-math.inf, 1.0, 0.0)
    for slope in SLOPES:
        for offset in OFFSETS:
            best = max(best, (-float(unlikely(slope * odds + offset, ratio).mean()), slope, offset))
    return torch.tensor(best[1:], device=usual.device)
