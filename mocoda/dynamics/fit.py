"""Fits dynamics models: ensembles of networks, trained by gradient descent.

The paper's three families (Appendix B.3) differ in what the networks see:

    full    one network that sees everything
    global  one network per child, which sees its parents in the sparsest graph
    local   one network per child behind a Masked Composer, which sees its parents at that very row

Axes: R runs, E ensemble members, B rows of a batch, *L any leading axes (runs, members), C networks (one per child, or
one), P parents, F features. All runs of a call train as one program.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.dynamics.model import DYNAMICS, Dynamics, DynamicsFamily, Networks, settings_of, standardised
from mocoda.engine.checkpoint import Checkpoint, copy_tensors, fingerprint
from mocoda.engine.errors import InputError
from mocoda.engine.networks import Weights, linear, linear_weights, mlp, mlp_weights, softplus
from mocoda.engine.optimise import Adam, Captured, fast_products, in_turn
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph, probe_rows

ARCHITECTURES = ("full", "global", "local")
VARIANCE_FLOOR = 1e-6


def fit_dynamics(
    data: Transitions,
    graph: LocalGraph,
    dynamics: str | DynamicsFamily = "local",
    *,
    seed: int = 0,
    config: DynamicsFamily | None = None,
    progress: Progress = silent,
    checkpoint: str | Path | None = None,
) -> Dynamics:
    """Fits a dynamics model to recorded rows, on the device they are on.

    dynamics    a family by name, or one with settings, such as make_dynamics("deterministic", members=3)
    config      the settings of the family named by `dynamics`, such as DynamicsConfig(epochs=50)
    checkpoint  a file to continue from if it exists, and to save progress to; the result is the same either way
    """
    return fit_dynamics_runs(
        [data], graph, dynamics, seeds=[seed], config=config, progress=progress, checkpoint=checkpoint
    )[0]


def fit_dynamics_runs(
    datasets: Sequence[Transitions],
    graph: LocalGraph,
    dynamics: str | DynamicsFamily = "local",
    *,
    seeds: Sequence[int],
    config: DynamicsFamily | None = None,
    progress: Progress = silent,
    checkpoint: str | Path | None = None,
) -> list[Dynamics]:
    """One model per data set and seed, all trained as one program; each is the same as if it were trained alone.

    With `epoch_rows` in the family's settings, data sets may differ in length.
    """
    if isinstance(dynamics, DynamicsFamily):
        family = dynamics
    else:
        family = DYNAMICS.make(dynamics, **({} if config is None else vars(config)))
    if not datasets or len(datasets) != len(seeds):
        raise InputError(f"expected one seed per data set and at least one, got {len(datasets)} and {len(seeds)}.")
    for data in datasets:
        graph.check_data(data)
    return family.fit(datasets, graph, seeds=seeds, progress=progress, checkpoint=checkpoint)


@dataclass(frozen=True)
class TrainedFamily(DynamicsFamily):
    """A family whose networks are trained by gradient descent: a subclass defines `networks` and `loss`."""

    hidden: tuple[int, ...] = (256, 256)  # widths of the hidden layers
    epochs: int = 30  # passes over the data
    epoch_rows: int | None = None  # rows of an epoch, drawn afresh for every member; None: all of them once
    batch: int = 512  # rows of each update
    learning_rate: float = 1e-3  # step size of Adam
    decay: bool = True  # lower the learning rate to zero along a cosine
    weight_decay: float = 5e-5  # how strongly Adam pulls weights towards zero
    validation: float | int = 0.125  # share, or number if whole, of the rows held out to choose when to stop
    window: int = 5  # every member keeps its best weights of this many last epochs
    tf32: bool = False  # let a GPU multiply in TF32 while training: faster, and less precise

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "hidden", tuple(self.hidden))
        self._check_counts("members", "epochs", "epoch_rows", "batch", "window")
        if min(self.hidden, default=1) < 1:
            raise InputError(f"hidden must name layers of at least 1 unit, got {self.hidden}.")
        if not self.learning_rate > 0 or self.weight_decay < 0:
            raise InputError(
                f"learning_rate must be positive and weight_decay not negative, got {self.learning_rate} and "
                f"{self.weight_decay}."
            )
        if not (0 < self.validation < 1 or (isinstance(self.validation, int) and self.validation >= 1)):
            raise InputError(
                "validation must be a share of the rows between 0 and 1 or a whole number of them, "
                f"got {self.validation}."
            )

    def loss(self, mean: Tensor, variance: Tensor, target: Tensor) -> Tensor:
        """What training minimises, for every row and column (*L, B, S), from the networks' output and the target."""
        raise NotImplementedError

    def fit(
        self,
        datasets: Sequence[Transitions],
        graph: LocalGraph,
        *,
        seeds: Sequence[int],
        progress: Progress,
        checkpoint: str | Path | None,
    ) -> list[Dynamics]:
        self._check_rows([len(data) for data in datasets])
        device = datasets[0].device
        streams = [Stream(seed, "dynamics", self.name, device=device) for seed in seeds]
        networks = self.networks(graph, device)
        table = _Table.of(datasets, graph, self, networks, streams)
        fresh = [networks.initial_weights(stream.child("weights")) for stream in streams]
        weights = {name: torch.stack([w[name] for w in fresh]).requires_grad_() for name in fresh[0]}
        adam = Adam(list(weights.values()), self.learning_rate, self.weight_decay)

        def update(part: Weights, number: int) -> Tensor:
            with fast_products(device) if self.tf32 else nullcontext():
                loss = table.loss(weights, table.rows[part["index"]])
                adam.step(loss.sum())
            return loss.detach()

        best = _Best.of(weights, len(seeds), self.members)
        probes = [probe_rows(graph, data.rows) for data in datasets]
        rules = [graph.fingerprint(rows) for rows in probes]
        identity = {**settings_of(self, graph), "seeds": list(seeds), "device": device.type}
        if checkpoint is not None:
            identity["data"] = fingerprint(table.rows, *table.held_out)
            identity["rules"] = rules
        saved = Checkpoint(checkpoint, identity)

        def restore(tensors: Weights) -> None:
            copy_tensors(tensors, {**weights, **best.tensors()})
            adam.restore(tensors)

        done = saved.resume(restore)
        chunk = Captured(in_turn(update), device)
        for epoch in range(done, self.epochs):
            if self.decay:
                adam.learning_rate.fill_(self.learning_rate * 0.5 * (1 + math.cos(math.pi * epoch / self.epochs)))
            losses = chunk({"index": table.batches([stream.child("epoch", epoch) for stream in streams])})
            if epoch >= self.epochs - self.window:
                best.offer(weights, table.held_out_loss(weights))
            last = epoch == self.epochs - 1  # no training loss comes after its last update
            if not bool(torch.isfinite(losses).all()) or (last and not bool(torch.isfinite(best.loss).all())):
                raise InputError(
                    f"the loss of the {self.name!r} dynamics became NaN or inf in epoch {epoch}. "
                    "Lower the learning rate, or look for extreme values in the data."
                )
            progress(f"dynamics {self.name}", epoch + 1, self.epochs)
            saved.offer(epoch + 1, lambda: {**weights, **best.tensors(), **adam.state()})
        fitted = []
        for run, (data, scaling) in enumerate(zip(datasets, table.scaling, strict=True)):
            own = {name: weight[run] for name, weight in best.weights.items()}
            source = {"data": fingerprint(*data.arrays(episodes=False).values()), "graph": rules[run]}
            model = Dynamics(graph, self, own, scaling, probes[run], source)
            fitted.append(replace(model, noisy=noisy_columns(model, data[table.held_out_rows[run]], data)))
        return fitted

    def _check_counts(self, *names: str) -> None:
        for name in names:
            number = getattr(self, name)
            if number is not None and number < 1:
                raise InputError(f"{name} must be at least 1, got {number}.")

    def _check_rows(self, lengths: Sequence[int]) -> None:
        for length in lengths:
            if length < 2:
                raise InputError("a dynamics model needs at least 2 rows, one of them to hold out, got 1.")
            if length <= self.validation:
                raise InputError(f"validation holds out {self.validation} rows, and the data has only {length}.")
        if len(set(lengths)) > 1 and self.epoch_rows is None:
            raise InputError(
                f"runs that train together need the same number of rows, got {sorted(set(lengths))}. "
                "Set epoch_rows, or call fit_dynamics for each."
            )


@dataclass(frozen=True)
class DynamicsConfig(TrainedFamily):
    """Gaussian networks that see a child's parents in each row, through the paper's Masked Composer."""

    name = "local"

    features: int = 128  # width of the Masked Composer's embeddings
    # Where next_state is "noisy", standard deviations are divided by this (Appendix B.4); 1 samples as predicted.
    sharpen: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_counts("features")
        if not 0 < self.sharpen < math.inf:
            raise InputError(f"sharpen must be a positive number, got {self.sharpen}.")

    @staticmethod
    def paper() -> DynamicsConfig:
        """The paper's setting."""
        return DynamicsConfig(
            epochs=600,
            learning_rate=1e-4,
            decay=False,
            window=50,
            predict_change=False,
            standardise=False,
            next_state="noisy",
        )

    @property
    def noise_divisor(self) -> float:
        return self.sharpen

    def networks(self, graph: LocalGraph, device: torch.device) -> Mechanisms:
        return Mechanisms(graph, self, device)

    def loss(self, mean: Tensor, variance: Tensor, target: Tensor) -> Tensor:
        """Gaussian negative log likelihood, less a constant."""
        return 0.5 * (variance.log() + (target - mean).square() / variance)


@dataclass(frozen=True)
class GlobalDynamics(DynamicsConfig):
    """Gaussian networks that see a child's parents in the sparsest graph."""

    name = "global"
    architecture = "global"


@dataclass(frozen=True)
class FullDynamics(DynamicsConfig):
    """One Gaussian network that sees everything and ignores the graph."""

    name = "full"
    architecture = "full"


@dataclass(frozen=True)
class Mechanisms:
    """The networks of `DynamicsConfig`, as functions of weights whose leading axes are free.

    Index tensors are made once and kept on the device: a captured graph may not copy them there.
    """

    graph: LocalGraph
    config: DynamicsConfig
    device: torch.device

    def initial_weights(self, stream: Stream) -> dict[str, Tensor]:
        """Fresh weights of all members, (E, C, in, out) each."""
        leading = (self.config.members, len(self.outputs))
        weights: dict[str, Tensor] = {}
        inputs = self.graph.width
        if self.config.architecture == "local":
            inputs = self.config.features
            for name, columns in self.graph.factors.items():
                weights |= linear_weights(f"embed.{name}", leading, len(columns), inputs, stream)
        width = max(map(len, self.outputs))
        return weights | mlp_weights("mlp", leading, (inputs, *self.config.hidden, 2 * width), stream)

    def __call__(self, weights: Weights, rows: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean and variance (*L, B, S) for standardised rows (*L, B, S + A) with masks (*L, B, P, C)."""
        if self.config.architecture == "local":
            assert mask is not None
            hidden = self._composed(weights, rows, mask)
        else:
            hidden = torch.where(self._gates, rows[..., None, :, :], 0.0)
        return self._assembled(mlp(weights, "mlp", hidden))

    @cached_property
    def outputs(self) -> tuple[tuple[int, ...], ...]:
        """The state columns that each mechanism gives."""
        if self.config.architecture == "full":
            return (tuple(range(self.graph.state_width)),)
        return tuple(self.graph.factors[child] for child in self.graph.children)

    @cached_property
    def _factor_columns(self) -> dict[str, Tensor]:
        return {name: torch.tensor(columns, device=self.device) for name, columns in self.graph.factors.items()}

    @cached_property
    def _gates(self) -> Tensor:
        """Which columns each mechanism sees, bool (C, 1, S + A)."""
        gates = torch.zeros(len(self.outputs), 1, self.graph.width, dtype=torch.bool)
        if self.config.architecture == "full":
            return torch.ones_like(gates, device=self.device)
        for number, child in enumerate(self.graph.children):
            gates[number, 0, list(self.graph.columns(self.graph.edges[child]))] = True
        return gates.to(self.device)

    @cached_property
    def _slots(self) -> Tensor:
        """Where the state columns' means, and then their raw variances, stand among the mechanisms' outputs, (2 S,).

        Every mechanism gives both for as many columns as the widest.
        """
        width = max(map(len, self.outputs))
        slots = {column: 2 * c * width + i for c, own in enumerate(self.outputs) for i, column in enumerate(own)}
        means = [slots[column] for column in range(self.graph.state_width)]
        return torch.tensor([*means, *(slot + width for slot in means)], device=self.device)

    def _composed(self, weights: Weights, rows: Tensor, mask: Tensor) -> Tensor:
        """The Masked Composer: Σ over parents of mask · relu(embedding), (*L, C, B, features).

        A masked-out embedding is replaced by zero, so its parent cannot reach the child, not even by a bit.
        """
        total: Tensor | None = None
        for number, (name, columns) in enumerate(self._factor_columns.items()):
            seen = mask[..., number, :].transpose(-1, -2)[..., None]  # (*L, C, B, 1)
            own = rows.index_select(-1, columns)[..., None, :, :]
            embedded = linear(weights, f"embed.{name}", own).relu()
            part = torch.where(seen, embedded, 0.0)
            total = part if total is None else total + part
        assert total is not None
        return total

    def _assembled(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Mechanisms' outputs (*L, C, B, 2 W) as mean and variance of the state columns, (*L, B, S) each."""
        mean, raw = output.transpose(-3, -2).flatten(-2).index_select(-1, self._slots).chunk(2, -1)
        return mean, softplus(raw) + VARIANCE_FLOOR


@dataclass(eq=False)
class _Best:
    """Every member's weights at its least held-out loss so far: validation-based stopping, one member at a time."""

    weights: dict[str, Tensor]  # (R, E, ...) each
    loss: Tensor  # (R, E)

    @staticmethod
    def of(weights: Weights, runs: int, members: int) -> _Best:
        fresh = {name: weight.detach().clone() for name, weight in weights.items()}
        device = next(iter(fresh.values())).device
        return _Best(fresh, torch.full((runs, members), math.inf, device=device))

    @torch.no_grad()
    def offer(self, weights: Weights, loss: Tensor) -> None:
        better = loss < self.loss
        self.loss = torch.where(better, loss, self.loss)
        for name, weight in weights.items():
            chosen = better.reshape(*better.shape, *[1] * (weight.ndim - 2))
            self.weights[name] = torch.where(chosen, weight, self.weights[name])

    def tensors(self) -> dict[str, Tensor]:
        return {"best_loss": self.loss, **{f"best.{name}": weight for name, weight in self.weights.items()}}


@dataclass(frozen=True, eq=False)
class _Table:
    """The training rows of all runs as one table, so that a batch of all runs and members is one gather.

    Columns: standardised state and action, standardised target, and the mask if the architecture is "local".
    """

    graph: LocalGraph
    family: TrainedFamily
    networks: Networks
    rows: Tensor  # (N, columns), run after run
    lengths: list[int]  # rows of each run
    held_out: list[Tensor]  # (V, columns) of each run
    held_out_rows: list[Tensor]  # which these are, (V,)
    scaling: list[dict[str, Tensor]]  # of each run

    @staticmethod
    def of(
        datasets: Sequence[Transitions],
        graph: LocalGraph,
        family: TrainedFamily,
        networks: Networks,
        streams: Sequence[Stream],
    ) -> _Table:
        rows, held_out, held_out_rows, scaling = [], [], [], []
        for data, stream in zip(datasets, streams, strict=True):
            columns, own_scaling = standardised(data, graph, family)
            n, wanted = len(data), family.validation
            split = wanted if isinstance(wanted, int) else min(n - 1, max(1, round(wanted * n)))
            order = stream.child("split").permutation(n)
            held_out.append(columns[order[:split]])
            held_out_rows.append(order[:split])
            rows.append(columns[order[split:]])
            scaling.append(own_scaling)
        lengths = list(map(len, rows))
        return _Table(graph, family, networks, torch.cat(rows), lengths, held_out, held_out_rows, scaling)

    def batches(self, streams: Sequence[Stream]) -> Tensor:
        """One epoch's row numbers (updates, R, E, B): whole batches, different ones for every member."""
        begins = itertools.accumulate(self.lengths[:-1], initial=0)
        runs = zip(begins, self.lengths, streams, strict=True)
        drawn = torch.stack([begin + self._epoch(length, stream) for begin, length, stream in runs])
        batch = min(self.family.batch, drawn.shape[-1])
        updates = drawn.shape[-1] // batch
        batches: Tensor = drawn[..., : updates * batch].unflatten(-1, (updates, batch))
        return batches.movedim(2, 0).contiguous()

    def _epoch(self, length: int, stream: Stream) -> Tensor:
        """The row numbers, within a run, that its members see in an epoch, (E, rows)."""
        if self.family.epoch_rows is None:
            return stream.uniform(self.family.members, length).argsort(-1)
        return stream.integers(length, self.family.members, self.family.epoch_rows)

    def loss(self, weights: Weights, batch: Tensor) -> Tensor:
        """The mean loss of batches (*L, B, columns): (*L,)."""
        rows, target, mask = batch.tensor_split([self.graph.width, self.graph.width + self.graph.state_width], -1)
        local = self.family.architecture == "local"
        edges = mask.unflatten(-1, tuple(self.graph.sparsest.shape)) > 0.5 if local else None
        mean, variance = self.networks(weights, rows, edges)
        return self.family.loss(mean, variance, target).sum(-1).mean(-1)

    @torch.no_grad()
    def held_out_loss(self, weights: Weights) -> Tensor:
        """The loss over all held-out rows, (R, E), run by run and in blocks that fit memory."""
        losses: list[Tensor] = []
        for run, rows in enumerate(self.held_out):
            own = {name: weight[run] for name, weight in weights.items()}
            blocks = rows.expand(self.family.members, -1, -1).split(8_192, dim=1)
            parts = [self.loss(own, block) * (block.shape[1] / len(rows)) for block in blocks]
            losses.append(torch.stack(parts).sum(0))
        return torch.stack(losses)


# --- noise
#
# Errors of a model are smooth: rows that are alike have alike residuals. Noise differs from row to row, however alike
# they are. This is the idea of the Gamma test (Stefánsson, Končar and Jones, 1997), here for the residuals of the
# ensemble's mean at rows that it was not trained on.
MAX_ROWS = 5_000  # held-out rows that are compared
MIN_ROWS, MIN_PAIRS = 50, 200  # in which neighbours are looked for, and pairs of them; with fewer, nothing is noisy
UNLIKE = 0.8  # of the residuals' variance, at least, is between nearest neighbours where they are noise
SIZE = 0.05  # of a step's standard deviation; the typical row's noise is larger
EVERYWHERE = 0.5  # of the residuals' standard deviation, likewise; errors at contacts are large in few rows
# Of the residuals' variance, at most, is what members disagree by; else too little was learned to tell.
DISAGREED = 0.25
COMPARED = 1_000  # rows whose neighbours are looked for at a time
TYPICAL = 1.4826  # standard deviations of a Gaussian in its median absolute value


@torch.no_grad()
def noisy_columns(model: Dynamics, held_out: Transitions, data: Transitions) -> tuple[int, ...]:
    """The state columns that are noisy in recorded rows, by those that were held out.

    A column is noisy if its residuals differ between nearest neighbours about as much as between any two rows, if they
    are not small in the typical row, and if members agree better than that. Neighbours are nearest in what the column's
    factor depends on, among rows in which that is the same.
    """
    step, some = (data.next_state - data.state).std(0, correction=0), held_out[:MAX_ROWS]
    mean, scale = model.predict(some.rows)
    residual, apart = (some.next_state - mean.mean(0)).double(), mean.double().var(0, correction=0)
    spread = some.rows.std(0, correction=0)
    inputs, mask = some.rows / torch.where(spread > 0, spread, 1.0), model.graph.mask(some.rows)
    found = []
    for number, child in enumerate(model.graph.children):
        own = list(model.graph.factors[child])
        pairs = _neighbours(inputs, mask[:, :, number], model.graph.owner.to(inputs.device))
        if len(pairs) < MIN_PAIRS:
            continue
        one, other = (residual[rows][:, own] for rows in pairs.T)
        variance = one.square().mean(0)
        unlike = 0.5 * (one - other).square().mean(0) >= UNLIKE * variance
        usual = TYPICAL * one.abs().median(0).values
        everywhere = (usual > SIZE * step[own]) & (usual > EVERYWHERE * variance.sqrt())
        sure = apart[pairs[:, 0]][:, own].mean(0) <= DISAGREED * variance
        foreseen = (scale[..., own] > 0).flatten(0, 1).any(0)  # a model without noise has none to add
        noisy = unlike & everywhere & sure & foreseen
        found += [column for column, is_noisy in zip(own, noisy.tolist(), strict=True) if is_noisy]
    return tuple(sorted(found))


def _neighbours(inputs: Tensor, depends: Tensor, owner: Tensor) -> Tensor:
    """Pairs of rows (pairs, 2): each row and the one that is nearest in what a factor depends on.

    inputs   (N, S + A), in standard deviations
    depends  (N, parents), on which factors it does
    owner    (S + A,), the factor of each column
    """
    pairs = [torch.zeros(0, 2, dtype=torch.long, device=owner.device)]
    kinds, kind = depends.unique(dim=0, return_inverse=True)
    for number, parents in enumerate(kinds):
        rows = (kind == number).nonzero()[:, 0]
        columns = parents[owner].nonzero()[:, 0]
        if len(rows) < MIN_ROWS or not len(columns):
            continue
        points = inputs[rows][:, columns]
        for block in torch.arange(len(rows), device=rows.device).split(COMPARED):
            distance = torch.cdist(points[block], points)
            distance[torch.arange(len(block), device=rows.device), block] = torch.inf
            pairs.append(torch.stack([rows[block], rows[distance.argmin(1)]], 1))
    return torch.cat(pairs)
