"""Missing edges: whether factors outside a child's parents explain the held-out errors of a factored model.

If the graph is right, nothing outside a child's parents is informative about the error of the factored model.
So small networks learn that error, once from the parents and the factors outside, and once from the parents and
stand-ins: the same factors, exchanged between rows with similar parents. Both are judged on rows that none of them
has seen, and only on those whose local graph lacks an edge. Stand-ins cost the networks as much and help as much by
accident, so what is better than they are is real. Whether it is *one* factor, and which, is then searched forward, one
at a time, each given those found before: what only goes along with the true parent explains nothing once that is there.

Axes: N rows, I input columns, M networks side by side, K columns of a child.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mocoda.engine.networks import mlp, mlp_weights
from mocoda.engine.optimise import Adam
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph

REPEATS, PAIR = 3, 2  # networks of a kind, which differ by their first weights: of all factors, of a single one
HIDDEN, BATCH, LEARNING_RATE, LOOKS = 64, 512, 3e-3, 8
EPOCHS, FEWEST_STEPS, MOST_STEPS = 25, 300, 1_000
GROUP = 16  # rows, at most, that stand in for each other
LEAST_ROWS, LEAST_BLOCKS = 100, 10  # to judge by
LEAST_SHARE, LEAST_WHOLE = 0.05, 0.01  # of the error that is left, and of the whole, that an edge must explain
LEAST_VARIANCE = 1e-4  # of the child's change that it must explain: less is the networks' own imprecision
LEAST_T, LEAST_T_BLOCKS = 4.0, 3.0  # standard errors away from 0: over networks, and over blocks of rows


Parts = tuple[Tensor, Tensor, Tensor]  # numbers of the rows to fit to, to choose by, to judge by


@dataclass(frozen=True)
class MissingEdge:
    """A factor that a child depends on, though the graph says it does not."""

    parent: str
    child: str
    explains: float  # the share of the child's error that goes once the parent is seen

    def __str__(self) -> str:
        return f"missing edge: {self.parent} -> {self.child} (explains {100 * self.explains:.0f}% of its error)"


@dataclass(frozen=True)
class Child:
    """What the error of the factored model says about one child's parents.

    rows      rows that were evaluated: 0 where all factors are parents everywhere, or too few rows are left
    outside   the share of the error that the factors outside the parents explain together; 0 if by chance
    missing   the factors that explain it alone; may be empty where `outside` is not: then only several together do
    """

    name: str
    rows: int
    outside: float
    missing: tuple[MissingEdge, ...]


def missing_edges(
    graph: LocalGraph,
    rows: Tensor,
    error: Tensor,
    block: Tensor,
    parts: Parts,
    *,
    seed: Stream,
    progress: Progress = silent,
) -> tuple[Child, ...]:
    """What the errors say about every child.

    rows   (N, S + A)
    error  (N, S) of the model there, in standard deviations of the column's steps
    block  (N,), the number of each row's block: rows of a block were recorded together, and are judged together
    parts  which rows to fit to, to choose by and to judge by; the model must not have been trained on the last two
    """
    scaled = (rows - rows.mean(0)) / rows.std(0, correction=0).clamp(min=1e-8)
    mask, children = graph.mask(rows), []
    for number, name in enumerate(graph.children):
        own = error[:, list(graph.factors[name])]
        children.append(_child(graph, name, scaled, mask[:, :, number], own, block, parts, seed.child(name)))
        progress("edges", number + 1, len(graph.children))
    return tuple(children)


def _child(
    graph: LocalGraph,
    name: str,
    rows: Tensor,
    edges: Tensor,
    error: Tensor,
    block: Tensor,
    parts: Parts,
    stream: Stream,
) -> Child:
    """What the errors (N, K) say about a child with these edges, bool (N, parents)."""
    lacks = dict(zip(graph.parents, ~edges[parts[2]].T, strict=True))
    candidates = [factor for factor, rows_without in lacks.items() if int(rows_without.sum()) >= LEAST_ROWS]
    if not candidates or not bool(error.any()):
        return Child(name, 0, 0.0, ())
    lacking = torch.stack([lacks[factor] for factor in candidates]).any(0)

    def test(known: Sequence[str], label: str) -> _Test:
        """The child's, were these factors among its parents."""
        more = torch.tensor([factor in known for factor in graph.parents], device=edges.device)
        return _Test.of(graph, rows, edges | more, error, block, parts, lacking, stream.child(label, *known))

    def together(label: str) -> tuple[float, float]:
        """What all candidates explain, and the error that they explain it of."""
        everything = test([], label)
        seen, stand_ins = everything.errors([candidates] * REPEATS)
        whole = float(stand_ins[:, lacking].mean())
        return everything.gain(seen, stand_ins, lacking, whole), whole

    gain, whole = together("together")
    outside = gain / max(whole, 1e-30)
    gains_of: dict[str, float] = {}  # of the factors named so far
    while outside > 0 and len(gains_of) < len(candidates):
        # One factor at a time; the best becomes a parent, and the others are tried again given that.
        rest, alone = [factor for factor in candidates if factor not in gains_of], test(list(gains_of), "alone")
        seen, stand_ins = alone.errors([[factor] for factor in rest for _ in range(PAIR)])
        gains = {
            factor: alone.gain(own, stand_ins, lacks[factor], whole)
            for factor, own in zip(rest, seen.split(PAIR), strict=True)
        }
        best = max(gains, key=gains.__getitem__)
        if gains[best] == 0:
            break
        gains_of[best] = gains[best]
    for factor in list(gains_of)[:-1]:  # the first may have stood in for later ones
        others = test([other for other in gains_of if other != factor], "still")
        if others.gain(*others.errors([[factor]] * REPEATS), lacks[factor], whole) == 0:
            del gains_of[factor]
    if outside > 0 and not gains_of and together("again")[0] == 0:  # no factor named: other networks must agree
        outside = 0.0
    missing = tuple(MissingEdge(factor, name, min(1.0, gain / whole)) for factor, gain in gains_of.items())
    return Child(name, int(lacking.sum()), outside, missing)


@dataclass(frozen=True, eq=False)
class _Test:
    """Networks that learn a child's error: what they see, and which of them are better."""

    inputs: Tensor  # (N, I): what is known, factors outside, and their stand-ins
    always: Tensor  # bool (I,): what is known, seen by every network
    itself: dict[str, Tensor]  # factor -> its own columns of the input, bool (I,)
    stand_in: dict[str, Tensor]  # factor -> its stand-in's
    error: Tensor  # (N, K)
    block: Tensor  # (N,)
    parts: Parts
    lacking: Tensor  # bool (judged,): the rows that lack an edge
    stream: Stream

    @staticmethod
    def of(
        graph: LocalGraph,
        rows: Tensor,
        edges: Tensor,
        error: Tensor,
        block: Tensor,
        parts: Parts,
        lacking: Tensor,
        stream: Stream,
    ) -> _Test:
        owner = owners(graph, rows.device)
        seen = edges[:, owner]
        known = torch.cat([rows * seen, edges.float()], 1)
        alike = _stand_ins(known, rows, block, parts)
        inputs = torch.cat([known, rows * ~seen, alike * ~seen], 1)
        of_known, no_owner = torch.full((known.shape[1],), -1, device=rows.device), torch.full_like(owner, -1)
        itself = torch.cat([of_known, owner, no_owner])
        stand_in = torch.cat([of_known, no_owner, owner])
        return _Test(
            inputs,
            torch.cat([of_known == -1, owner == -1, owner == -1]),
            {name: itself == number for number, name in enumerate(graph.parents)},
            {name: stand_in == number for number, name in enumerate(graph.parents)},
            error,
            block,
            parts,
            lacking,
            stream,
        )

    def errors(self, factors: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Squared errors (networks, judged) of networks that see these factors, and of others with their stand-ins."""
        gates = [
            torch.stack([self.always, *(columns[name] for name in names)]).any(0)
            for columns in (self.itself, self.stand_in)
            for names in factors
        ]
        seen, stand_ins = self._errors(torch.stack(gates)).split(len(factors))
        return seen, stand_ins

    def gain(self, seen: Tensor, stand_ins: Tensor, lacks: Tensor, whole: float) -> float:
        """How much less the mean squared error is with factors than with stand-ins; 0 if that may be chance.

        Judged on the rows that lack these edges, but counted over all that lack any. Networks of the same kind differ
        too: the worst with must beat the best without, and by more than such networks are apart.
        """
        with_, without = seen[:, lacks].mean(1), stand_ins[:, lacks].mean(1)
        gain, error = float(without.mean() - with_.mean()), float(without.mean())
        counted = gain * float(lacks.sum() / self.lacking.sum())
        variances = [one.var() / len(one) for one in (with_, without)]
        apart = gain > LEAST_T * float(torch.stack(variances).sum().sqrt())
        if with_.max() >= without.min() or not apart or gain < LEAST_SHARE * error:
            return 0.0
        if counted < LEAST_VARIANCE or counted < LEAST_WHOLE * whole:
            return 0.0
        difference = (stand_ins.mean(0) - seen.mean(0))[lacks]
        number = torch.unique(self.block[self.parts[2]][lacks], return_inverse=True)[1]
        sums = torch.zeros(int(number.max()) + 1, dtype=difference.dtype, device=number.device)
        sums.index_add_(0, number, difference)
        deviation = float(sums.std()) / math.sqrt(len(sums))  # of the mean
        sure = len(sums) >= LEAST_BLOCKS and float(sums.mean()) > LEAST_T_BLOCKS * deviation
        return counted if sure else 0.0

    def _errors(self, gates: Tensor) -> Tensor:
        """Squared errors (M, judged) of networks that see the gated inputs (M, I), trained side by side.

        Each starts as 0, which is the factored model itself, and is stopped where it is best on the rows to choose by.
        """
        stream, outputs = self.stream.child("networks"), self.error.shape[1]
        fit, choose, judge = self.parts
        used = gates.any(0)
        inputs, gates = self.inputs[:, used], gates[:, used, None].float()
        weights = mlp_weights("mlp", (len(gates),), (inputs.shape[1], HIDDEN, HIDDEN, outputs), stream)
        weights["mlp.0.weight"] *= (inputs.shape[1] / gates.sum(1, keepdim=True)).sqrt()
        for last in ("mlp.2.weight", "mlp.2.bias"):
            weights[last].zero_()
        adam = Adam([weight.requires_grad_() for weight in weights.values()], LEARNING_RATE, 1e-5)

        def left(index: Tensor) -> Tensor:
            gated = {**weights, "mlp.0.weight": weights["mlp.0.weight"] * gates}
            return (self.error[index] - mlp(gated, "mlp", inputs[index])).square().mean(-1)

        @torch.no_grad()
        def evaluate() -> tuple[Tensor, Tensor]:
            return left(choose).mean(1), left(judge)

        least, errors = evaluate()
        steps = min(MOST_STEPS, max(FEWEST_STEPS, EPOCHS * len(fit) // BATCH))
        batches = fit[stream.child("batches").integers(len(fit), steps, BATCH)]
        for step, batch in enumerate(batches):
            adam.learning_rate.fill_(LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * step / steps)))
            adam.step(left(batch).mean(1).sum())
            if (step + 1) % (steps // LOOKS) == 0:
                now, judged = evaluate()
                errors = torch.where((now < least)[:, None], judged, errors)
                least = torch.minimum(now, least)
        return errors


def owners(graph: LocalGraph, device: torch.device) -> Tensor:
    """The number of the factor that each column of a row belongs to, (S + A,)."""
    owner = torch.empty(graph.width, dtype=torch.long, device=device)
    for number, columns in enumerate(graph.factors.values()):
        owner[list(columns)] = number
    return owner


def _stand_ins(known: Tensor, rows: Tensor, block: Tensor, parts: Parts) -> Tensor:
    """Rows (N, W) as they might be given what is known (N, D) and nothing else: those of other, similar rows.

    Rows alike in what is known pass their values on to each other, those of one block to another as far as may be, and
    never from part to part. Each is used once, as in the data: values that came back would be learned by heart sooner.
    They are shifted by what a linear regression makes of the distance that is left, so that the stand-in of a column
    that nearly repeats a known one nearly repeats it too.
    """
    other = torch.arange(len(rows), device=rows.device)
    for part in parts:
        for alike in _groups(known, part):
            alike = alike[block[alike].argsort(stable=True)]
            other[alike] = alike.roll(len(alike) // 2)
    centred = (known - known.mean(0)).double()
    ridge = 1e-6 * len(rows) * torch.eye(known.shape[1], dtype=centred.dtype, device=known.device)
    slope = torch.linalg.solve(centred.T @ centred + ridge, centred.T @ (rows - rows.mean(0)).double())
    shift: Tensor = (known - known[other]).double() @ slope
    return rows[other] + shift.float()


def _groups(known: Tensor, index: Tensor) -> Iterator[Tensor]:
    """The row numbers in groups alike: halved by the column that varies most, until at most GROUP are left."""
    if len(index) <= GROUP:
        yield index
        return
    points = known[index]
    order = points[:, points.std(0).argmax()].argsort(stable=True)
    middle = len(index) // 2
    yield from _groups(known, index[order[:middle]])
    yield from _groups(known, index[order[middle:]])
