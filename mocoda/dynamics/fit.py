"""Fits an ensemble of Gaussian networks by negative log likelihood.

Axes: R runs, E ensemble members, B rows of a batch. All runs of a call train as one program.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.dynamics.mechanisms import ARCHITECTURES, Mechanisms
from mocoda.dynamics.model import SCALING, Dynamics, DynamicsConfig, mechanisms_of, settings_of
from mocoda.engine.checkpoint import Checkpoint, copy_tensors, fingerprint
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.networks import Weights, input_scaling, moments
from mocoda.engine.optimise import Adam, Captured, fast_products, in_turn
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.graph.probes import probe_rows


def fit_dynamics(
    data: Transitions,
    graph: LocalGraph,
    architecture: str = "local",
    *,
    seed: int = 0,
    config: DynamicsConfig | None = None,
    progress: Progress = silent,
    checkpoint: str | Path | None = None,
) -> Dynamics:
    """Trains an ensemble on the recorded rows by negative log likelihood, on the device they are on.

    checkpoint  a file to continue from if it exists, and to save progress to; the result is the same either way
    """
    return fit_dynamics_runs(
        [data], graph, architecture, seeds=[seed], config=config, progress=progress, checkpoint=checkpoint
    )[0]


def fit_dynamics_runs(
    datasets: Sequence[Transitions],
    graph: LocalGraph,
    architecture: str = "local",
    *,
    seeds: Sequence[int],
    config: DynamicsConfig | None = None,
    progress: Progress = silent,
    checkpoint: str | Path | None = None,
) -> list[Dynamics]:
    """One model per data set and seed, all trained as one program; each is what it would be if trained alone.

    With `config.epoch_rows`, data sets may differ in length.
    """
    if architecture not in ARCHITECTURES:
        raise unknown_name("architecture", architecture, ARCHITECTURES)
    config = config or DynamicsConfig()
    _check_datasets(datasets, seeds, graph, config)
    device = datasets[0].device
    streams = [Stream(seed, "dynamics", architecture, device=device) for seed in seeds]
    mechanisms = mechanisms_of(graph, architecture, config, device)
    table = _Table.of(datasets, mechanisms, config, streams)
    fresh = [mechanisms.initial_weights(stream.child("weights")) for stream in streams]
    weights = {name: torch.stack([w[name] for w in fresh]).requires_grad_() for name in fresh[0]}
    adam = Adam(list(weights.values()), config.learning_rate, config.weight_decay)

    def update(part: Weights, number: int) -> Tensor:
        with fast_products(device) if config.tf32 else nullcontext():
            loss = _loss(table, weights, table.rows[part["index"]])
            adam.step(loss.sum())
        return loss.detach()

    best = _Best.of(weights, len(seeds), config.members)
    probes = [probe_rows(graph, data.rows) for data in datasets]
    rules = [graph.fingerprint(rows) for rows in probes]
    identity = {**settings_of(graph, architecture, config), "seeds": list(seeds), "device": device.type}
    if checkpoint is not None:
        identity["data"] = fingerprint(table.rows, *table.held_out)
        identity["rules"] = rules
    saved = Checkpoint(checkpoint, identity)

    def restore(tensors: Weights) -> None:
        copy_tensors(tensors, {**weights, **best.tensors()})
        adam.restore(tensors)

    done = saved.resume(restore)
    chunk = Captured(in_turn(update), device)
    for epoch in range(done, config.epochs):
        if config.decay:
            adam.learning_rate.fill_(config.learning_rate * 0.5 * (1 + math.cos(math.pi * epoch / config.epochs)))
        losses = chunk({"index": table.batches([stream.child("epoch", epoch) for stream in streams])})
        if epoch >= config.epochs - config.window:
            best.offer(weights, _held_out_loss(table, weights))
        last = epoch == config.epochs - 1  # whose last update no training loss has seen
        if not bool(torch.isfinite(losses).all()) or (last and not bool(torch.isfinite(best.loss).all())):
            raise InputError(
                f"the loss of the {architecture!r} dynamics became NaN or inf in epoch {epoch}. "
                "Lower the learning rate, or look for extreme values in the data."
            )
        progress(f"dynamics {architecture}", epoch + 1, config.epochs)
        saved.offer(epoch + 1, lambda: {**weights, **best.tensors(), **adam.state()})
    fitted = []
    for run, (data, scaling) in enumerate(zip(datasets, table.scaling, strict=True)):
        own = {name: weight[run] for name, weight in best.weights.items()}
        source = {"data": fingerprint(*data.arrays(episodes=False).values()), "graph": rules[run]}
        fitted.append(Dynamics(graph, architecture, config, own, scaling, probes[run], source))
    return fitted


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


def _loss(table: _Table, weights: Weights, batch: Tensor) -> Tensor:
    """Gaussian negative log likelihood of batches (*L, B, columns): (*L,)."""
    rows, target, mask = table.parts(batch)
    mean, variance = table.mechanisms(weights, rows, mask)
    return (0.5 * (variance.log() + (target - mean).square() / variance)).sum(-1).mean(-1)


@torch.no_grad()
def _held_out_loss(table: _Table, weights: Weights) -> Tensor:
    """The loss over all held-out rows, (R, E): by run, for they may differ in number, in blocks that fit memory."""
    losses: list[Tensor] = []
    for run, rows in enumerate(table.held_out):
        own = {name: weight[run] for name, weight in weights.items()}
        blocks = rows.expand(table.mechanisms.members, -1, -1).split(8_192, dim=1)
        parts = [_loss(table, own, block) * (block.shape[1] / len(rows)) for block in blocks]
        losses.append(torch.stack(parts).sum(0))
    return torch.stack(losses)


@dataclass(frozen=True, eq=False)
class _Table:
    """The training rows of all runs as one table, so that a batch of all runs and members is one gather.

    Columns: standardised state and action, standardised target, and the mask where the architecture wants it.
    """

    mechanisms: Mechanisms
    config: DynamicsConfig
    rows: Tensor  # (N, columns), run after run
    lengths: list[int]  # rows of each run
    held_out: list[Tensor]  # (V, columns) of each run
    scaling: list[dict[str, Tensor]]  # of each run

    @staticmethod
    def of(
        datasets: Sequence[Transitions], mechanisms: Mechanisms, config: DynamicsConfig, streams: Sequence[Stream]
    ) -> _Table:
        rows, held_out, scaling = [], [], []
        for data, stream in zip(datasets, streams, strict=True):
            columns, own_scaling = _columns(data, mechanisms, config)
            n, wanted = len(data), config.validation
            split = wanted if isinstance(wanted, int) else min(n - 1, max(1, round(wanted * n)))
            order = stream.child("split").permutation(n)
            held_out.append(columns[order[:split]])
            rows.append(columns[order[split:]])
            scaling.append(own_scaling)
        return _Table(mechanisms, config, torch.cat(rows), list(map(len, rows)), held_out, scaling)

    def batches(self, streams: Sequence[Stream]) -> Tensor:
        """One epoch's row numbers (updates, R, E, B): whole batches, every member's its own."""
        begins = itertools.accumulate(self.lengths[:-1], initial=0)
        runs = zip(begins, self.lengths, streams, strict=True)
        drawn = torch.stack([begin + self._epoch(length, stream) for begin, length, stream in runs])
        batch = min(self.config.batch, drawn.shape[-1])
        updates = drawn.shape[-1] // batch
        batches: Tensor = drawn[..., : updates * batch].unflatten(-1, (updates, batch))
        return batches.movedim(2, 0).contiguous()

    def parts(self, batch: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Rows, targets and, for those who want them, masks."""
        graph, local = self.mechanisms.graph, self.mechanisms.architecture == "local"
        rows, target, mask = batch.tensor_split([graph.width, graph.width + graph.state_width], -1)
        return rows, target, mask.unflatten(-1, tuple(graph.sparsest.shape)) > 0.5 if local else None

    def _epoch(self, length: int, stream: Stream) -> Tensor:
        """The numbers, among a run's own, of the rows that its members see in an epoch, (E, rows)."""
        if self.config.epoch_rows is None:
            return stream.uniform(self.mechanisms.members, length).argsort(-1)
        return stream.integers(length, self.mechanisms.members, self.config.epoch_rows)


def _columns(data: Transitions, mechanisms: Mechanisms, config: DynamicsConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """A data set's rows with the columns of `_Table`, and the scaling that standardised them."""
    inputs, target = data.rows, data.next_state
    mask = mechanisms.graph.mask(inputs) if mechanisms.architecture == "local" else None
    largest = target.abs().amax(0)
    if config.predict_change:
        kept = mechanisms.kept_state(inputs, mask)
        target, largest = target - kept, torch.maximum(largest, kept.abs().amax(0))
    scaling = [*_input_scaling(inputs, mechanisms, config), *_target_scaling(target, largest, mechanisms, config)]
    constant = scaling[3] == 0
    columns = [(inputs - scaling[0]) / scaling[1], torch.where(constant, 0.0, (target - scaling[2]) / scaling[3])]
    if mask is not None:
        columns.append(mask.flatten(-2).float())
    return torch.cat(columns, -1), dict(zip(SCALING, scaling, strict=True))


def _input_scaling(rows: Tensor, mechanisms: Mechanisms, config: DynamicsConfig) -> tuple[Tensor, Tensor]:
    """Shift and scale (S + A,) of the networks' inputs; factors that are alike have the same."""
    if not config.standardise:
        return torch.zeros_like(rows[0]), torch.ones_like(rows[0])
    shift, scale = input_scaling(rows)
    for columns in mechanisms.alike_columns:  # (factors, width)
        shift[columns], scale[columns] = input_scaling(rows[:, columns].flatten(0, 1))
    return shift, scale


def _target_scaling(
    target: Tensor, largest: Tensor, mechanisms: Mechanisms, config: DynamicsConfig
) -> tuple[Tensor, Tensor]:
    """Shift and scale (S,) of the networks' targets; factors that are alike have the same.

    The scale of a constant column is 0: whatever the networks say, exactly that constant is predicted.

    largest  (S,) the largest absolute numbers that the targets were computed from
    """
    shift, scale = moments(target, largest)
    for columns in mechanisms.alike_columns:
        if int(columns.max()) < len(shift):  # actions have no targets
            pooled = target[:, columns].flatten(0, 1)
            shift[columns], scale[columns] = moments(pooled, largest[columns].amax(0))
    shift, scale = shift.float(), scale.float()
    if not config.standardise:
        varies = scale > 0
        shift, scale = torch.where(varies, 0.0, shift), varies.float()
    return shift, scale


def _check_datasets(
    datasets: Sequence[Transitions], seeds: Sequence[int], graph: LocalGraph, config: DynamicsConfig
) -> None:
    if not datasets or len(datasets) != len(seeds):
        raise InputError(f"expected one seed per data set and at least one, got {len(datasets)} and {len(seeds)}.")
    for data in datasets:
        graph.check_data(data)
        if len(data) < 2:
            raise InputError("a dynamics model needs at least 2 rows, one of them to hold out, got 1.")
        if len(data) <= config.validation:
            raise InputError(f"validation holds out {config.validation} rows, and the data has only {len(data)}.")
    lengths = sorted({len(data) for data in datasets})
    if len(lengths) > 1 and config.epoch_rows is None:
        raise InputError(
            f"runs that train together need the same number of rows, got {lengths}. "
            "Set epoch_rows, or call fit_dynamics for each."
        )
