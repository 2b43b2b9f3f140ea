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
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, pad

from mocoda.data.transitions import Transitions
from mocoda.engine.checkpoint import fingerprint
from mocoda.engine.errors import InputError
from mocoda.engine.networks import Weights, mlp, mlp_weights
from mocoda.engine.optimise import Adam
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.columns import ColumnNames, as_factors, guessed_factors
from mocoda.graph.gates import WIDTHS, Gates, Layout, combined, embedded, pair_weights, summed
from mocoda.graph.learned import LearnedGraph, cut
from mocoda.graph.local_graph import LocalGraph

LEAST_ROWS = 1_000  # fewer hold too few of the rare rows that are to be learned from
HELD_OUT, MOST_HELD_OUT = 0.125, 4_000  # share and number of rows that nothing is trained on
UNSEEN = ("linked", "apart")
MEETINGS = 10  # rows in which two factors are near each other, of which something can be learned
TAIL = 2.0  # degrees of freedom of the errors' distribution: a row that cannot be explained counts, but not for all
PRICE = 1.0  # of an edge in a row, in nats: the likelihood ratio that speaks for it must be larger
USUAL, RARELY = 1.0, 0.25  # a usual parent gains a child more nats than the first in all but this share of the rows
ROUNDING = 0.02  # standard deviations below which errors count by their squares
FLOOR = 0.05  # the weight of rows that a network with fewer parents seems unable to explain: it may learn to
SLOPES, OFFSETS = (0.5, 0.7, 1.0, 1.4, 2.0), (-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0)  # of log odds, tried
SURE = 2.0  # log odds that other rows may give an edge before the row itself is asked


@dataclass(frozen=True)
class GraphConfig:
    """How the networks that learn a graph are built and trained."""

    runs: int = 2  # networks of a kind, trained as one program, whose probabilities are averaged
    hidden: int = 64
    usual_steps: int = 800  # to find the usual parents
    steps: int = 2_500  # to find the others
    batch: int = 256
    learning_rate: float = 1e-2

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
    table = _Table.of(data, graph, as_stream(seed, "learn-graph", device=data.device))
    strangers = table.strangers()
    if unseen is None and bool(strangers.any()):
        raise _unseen_error(graph, strangers)
    usual, left = _usual_parents(table, config, progress)
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


@dataclass(frozen=True, eq=False)
class _Table:
    """The data, ready to learn from."""

    graph: LocalGraph
    stream: Stream
    rows: Tensor  # (N, W)
    target: Tensor  # (C, N, K), each child's change, standardised; 0 where a child has fewer columns
    scaling: dict[str, Tensor]
    train: Tensor  # numbers of the rows to train on
    held_out: Tensor  # and of others

    @staticmethod
    def of(data: Transitions, graph: LocalGraph, stream: Stream) -> _Table:
        rows, layout = data.rows, Layout(graph, data.device)
        shift, scale = _standard(rows)
        some = rows[stream.child("spread").permutation(len(rows))[:8_192]]
        apart = layout.differences(some[None]).double().std(-2).float()
        scaling = {"shift": shift, "scale": scale, "apart": torch.where(apart > 1e-8, apart, 1.0)}
        change = data.next_state - rows[:, : graph.state_width]
        shift, scale = _standard(change)
        padded = pad((change - shift) / scale, (0, graph.width - graph.state_width + 1))
        order = stream.child("split").permutation(len(rows))
        held_out = min(MOST_HELD_OUT, round(HELD_OUT * len(rows)))
        target = padded[:, layout.children].movedim(0, 1).contiguous()
        return _Table(graph, stream, rows, target, scaling, order[held_out:], order[:held_out])

    @cached_property
    def layout(self) -> Layout:
        return Layout(self.graph, self.rows.device)

    @cached_property
    def counted(self) -> Tensor:
        """Which columns a child has, float (C, 1, K)."""
        return (self.layout.children < self.graph.width)[:, None].float()

    @cached_property
    def itself(self) -> Tensor:
        """Each child's own past among the parents, bool (C, P)."""
        return torch.eye(len(self.graph.children), len(self.graph.parents), dtype=torch.bool, device=self.rows.device)

    def per_column(self, values: Tensor) -> Tensor:
        """Sums (..., C, B) over the columns of each child of values (..., C, B, K)."""
        return (values * self.counted).sum(-1)

    def targets(self, index: Tensor) -> Tensor:
        """(R, C, B, K) of rows numbered (R, C, B)."""
        return self.target[torch.arange(len(self.target), device=index.device)[:, None], index]

    def strangers(self) -> Tensor:
        """State factors that are never near each other in two columns, or in the only one: bool (P, C)."""
        children, parents = len(self.graph.children), len(self.graph.parents)
        rows_near = torch.zeros(children, parents, dtype=torch.long, device=self.rows.device)
        for block in self.rows.split(8_192):
            apart = self.layout.differences(block[None]) / self.scaling["apart"][:, :, None]
            near = ((apart.abs() < WIDTHS[-1]) & (self.layout.alike > 0)).sum(-1)
            rows_near += (near >= self.layout.alike.sum(-1).clamp(1, 2)).sum(-1)
        strange = (rows_near < MEETINGS).T
        strange[children:] = False  # actions are taken, not met
        return strange | strange[:children].T.new_zeros(strange.shape).index_copy(
            0, torch.arange(children, device=strange.device), strange[:children].T
        )


def _standard(values: Tensor) -> tuple[Tensor, Tensor]:
    exact = values.double()
    scale = exact.std(0, correction=0).float()
    return exact.mean(0).float(), torch.where(scale > 1e-8, scale, 1.0)


def _surprise(error: Tensor, log_scale: Tensor) -> Tensor:
    """Negative log likelihood of errors by Student's t, less a constant."""
    return log_scale + (TAIL + 1) / 2 * torch.log1p(error.square() * torch.exp(-2 * log_scale) / TAIL)


def _absolute(error: Tensor) -> Tensor:
    return (error.square() + ROUNDING**2).sqrt() - ROUNDING


def _cosine(step: int, steps: int) -> float:
    return 0.5 * (1 + math.cos(math.pi * step / steps))


def _usual_parents(table: _Table, config: GraphConfig, progress: Progress) -> tuple[Tensor, Tensor]:
    """The parents that each child needs in nearly all rows, bool (C, P), and what they leave to be explained.

    The latter (R, C, N, K) is a child's standardised change less what its usual parents predict in most rows.
    """
    stream = table.stream.child("usual")
    children, parents = table.itself.shape
    shape = (config.runs, children, config.batch)
    columns = table.target.shape[-1]
    sizes = (table.graph.width + parents, config.hidden, config.hidden, 2 * columns)
    weights = mlp_weights("mlp", (config.runs, children), sizes, stream.child("weights"))
    adam = Adam([weight.requires_grad_() for weight in weights.values()], config.learning_rate / 3, 1e-5)
    inputs = (table.rows - table.scaling["shift"]) / table.scaling["scale"]

    def predict(index: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        seen = torch.cat([inputs[index] * (keep @ table.layout.owned), keep], -1)
        mean, log_scale = mlp(weights, "mlp", seen).chunk(2, -1)
        return mean, log_scale.clamp(-7, 3)

    usual: Tensor | None = None

    def surprise(index: Tensor, keep: Tensor) -> Tensor:
        mean, log_scale = predict(index, keep)
        if usual is not None:  # one scale for all rows: what fits most of them exactly beats a compromise
            log_scale = log_scale.mean(-2, keepdim=True).expand_as(log_scale)
        return table.per_column(_surprise(mean - table.targets(index), log_scale))

    for step in range(config.usual_steps):
        adam.learning_rate.fill_(config.learning_rate / 3 * _cosine(step, config.usual_steps))
        index = table.train[stream.integers(len(table.train), *shape)]
        if step < config.usual_steps // 2:  # any parents may be left out, mostly few
            drawn = stream.uniform(*shape, parents) > stream.uniform(*shape, 1).square()
            keep = (drawn | table.itself[:, None]).float()
        else:
            usual = _needed(table, surprise, config.runs) if usual is None else usual
            keep = usual[:, None].float().expand(*shape, parents)
        adam.step(surprise(index, keep).mean(-1).sum())
        progress("usual parents", step + 1, config.usual_steps)
    usual = _needed(table, surprise, config.runs) if usual is None else usual
    blocks = []
    with torch.no_grad():
        for block in torch.arange(len(table.rows), device=table.rows.device).split(8_192):
            index = block.expand(config.runs, children, -1)
            mean, _ = predict(index, usual[:, None].float().expand(*index.shape, parents))
            blocks.append(table.targets(index) - mean)
    return usual, torch.cat(blocks, 2)


@torch.no_grad()
def _needed(table: _Table, surprise: Callable[[Tensor, Tensor], Tensor], runs: int) -> Tensor:
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
        least = torch.nn.functional.one_hot(cost.argmin(1), parents).bool() & (cost < USUAL)
        if not bool(least.any()):
            break
        kept = kept & ~least
    return kept


def _fit_gates(table: _Table, usual: Tensor, left: Tensor, config: GraphConfig, progress: Progress) -> Gates:
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
        adam.learning_rate.fill_(config.learning_rate * _cosine(step, config.steps))
        gate_adam.learning_rate.fill_(config.learning_rate / 3 * _cosine(step, config.steps))
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
        whole, by_usual, without = (table.per_column(_surprise(error.detach(), scale)) for error in errors)
        logits = summed(gates, embedded(gates, pairs).sum(-3))
        logit = torch.stack([logits.gather(-1, parent[..., None])[..., 0], logits[..., -1]], -1)
        with torch.no_grad():
            departs = (by_usual - whole - PRICE).sigmoid()
            edge = departs if step < then else logit[..., 1].sigmoid() * logit[..., 0].sigmoid()
            ratios = torch.stack([without - whole, by_usual - whole], -1).clamp(-10, 10)
            posterior = (logit.clamp(-SURE, SURE) + ratios - PRICE).sigmoid()
        losses = [table.per_column(_absolute(error)) for error in errors]
        losses[1] = table.per_column(_surprise(errors[1], usually.log()) * usually)  # what fits most rows
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
def _calibration(table: _Table, usual: Tensor, left: Tensor, weights: Weights, gates: Weights) -> Tensor:
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
        whole = table.per_column(_surprise(mean - target, log_scale))
        ratios = []
        for parent in range(parents):
            without = keep.clone()
            without[..., parent] = 0
            error = _explained(weights, messages, without)[0] - target
            ratios.append((table.per_column(_surprise(error, log_scale)) - whole).mean(0))
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
