"""Transitions, LocalGraph -> Dynamics: ensembles of Gaussian networks, trained by negative log likelihood.

Axes: R runs, E ensemble members, B rows of a batch. All runs of a call train as one program.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mocoda.files import InputError, differing_keys, unknown_name
from mocoda.graph import LocalGraph
from mocoda.mechanisms import ARCHITECTURES, Mechanisms
from mocoda.networks import Weights
from mocoda.randomness import Stream, as_stream
from mocoda.training import (
    Adam,
    Captured,
    Checkpoint,
    Progress,
    fast_products,
    fingerprint,
    in_turn,
    load_saved,
    save_tensors,
    silent,
)
from mocoda.transitions import Array, Transitions, as_tensor

SHARPEN = 3.0  # standard deviations are divided by this when sampling (Appendix B.4)
SCALING = ("input_shift", "input_scale", "target_shift", "target_scale")


@dataclass(frozen=True)
class DynamicsConfig:
    """How a dynamics model is built and trained. `DynamicsConfig.paper()` is the paper's setting."""

    members: int = 5
    hidden: tuple[int, ...] = (256, 256)
    features: int = 128  # width of the Masked Composer's embeddings
    shared: bool = False  # "local" only: all children have one Masked Composer and one network of the hidden layers
    alike: tuple[tuple[str, ...], ...] = ()  # if shared: groups of factors of one kind, one as good as another
    epochs: int = 30
    epoch_rows: int | None = None  # rows of an epoch, drawn afresh for every member; None: all of them once
    batch: int = 512
    learning_rate: float = 1e-3
    decay: bool = True  # lower the learning rate to zero along a cosine
    weight_decay: float = 5e-5
    validation: float | int = 0.125  # share, or if whole the number, of rows held out to choose when to stop
    window: int = 5  # every member keeps its best weights of this many last epochs
    predict_change: bool = True  # the network gives next state minus state rather than next state
    standardise: bool = True  # inputs and targets have mean 0 and variance 1
    tf32: bool = False  # let a GPU multiply in TF32 while training: faster, and less precise

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))
        object.__setattr__(self, "alike", tuple(map(tuple, self.alike)))
        for name in ("members", "features", "epochs", "epoch_rows", "batch", "window"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise InputError(f"{name} must be at least 1, got {number}.")
        if min(self.hidden, default=1) < 1:
            raise InputError(f"hidden must name layers of at least 1 unit, got {self.hidden}.")
        named = [name for group in self.alike for name in group]
        if len(set(named)) < len(named) or not all(self.alike) or (named and not self.shared):
            raise InputError(
                f"alike must be groups of factors, none of them named twice, and needs shared=True, got {self.alike} "
                f"with shared={self.shared}."
            )
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

    @staticmethod
    def paper() -> DynamicsConfig:
        return DynamicsConfig(
            epochs=600, learning_rate=1e-4, decay=False, window=50, predict_change=False, standardise=False
        )


class Prediction(NamedTuple):
    """Mean and standard deviation of the next state according to every member, (E, N, S) each."""

    mean: Tensor
    scale: Tensor


@dataclass(frozen=True, eq=False)
class Dynamics:
    """A fitted ensemble: rows in, next states out."""

    graph: LocalGraph
    architecture: str
    config: DynamicsConfig
    weights: Weights  # (E, ...) each
    scaling: Weights  # input_shift, input_scale (S + A,), target_shift, target_scale (S,)

    def __repr__(self) -> str:
        return f"Dynamics({self.architecture!r}, members={self.config.members}, children={list(self.graph.children)})"

    @property
    def device(self) -> torch.device:
        return self.scaling["input_shift"].device

    @property
    def settings(self) -> dict[str, Any]:
        """Architecture, configuration and graph as JSON values."""
        return _metadata(self.graph, self.architecture, self.config)

    def predict(self, rows: Array) -> Prediction:
        """What every member expects after rows (N, S + A)."""
        blocks = [self._predict(self.weights, block) for block in self._rows(rows).split(self._block)]
        return Prediction(*(torch.cat(part, 1) for part in zip(*blocks, strict=True)))

    def sample(self, rows: Array, *, seed: int | Stream) -> Tensor:
        """A next state (N, S) for each row, by one random member each, its standard deviation divided by three."""
        rows = self._rows(rows)
        stream = as_stream(seed, "dynamics-sample", device=self.device)
        member = stream.integers(self.config.members, len(rows))
        noise = stream.normal(len(rows), self.graph.state_width) / SHARPEN
        order = member.argsort(stable=True)
        counts = torch.bincount(member, minlength=self.config.members).tolist()
        following = torch.empty_like(noise)
        for number, mine in enumerate(order.split(counts)):
            weights = {name: weight[number : number + 1] for name, weight in self.weights.items()}
            for block in mine.split(self._block):
                mean, scale = self._predict(weights, rows[block])
                following[block] = mean[0] + scale[0] * noise[block]
        return following

    def to(self, device: torch.device | str) -> Dynamics:
        moved = ({name: tensor.to(device) for name, tensor in part.items()} for part in (self.weights, self.scaling))
        return Dynamics(self.graph, self.architecture, self.config, *moved)

    def save(self, path: str | Path) -> None:
        """Writes weights and settings to a safetensors file; the graph, being code, stays with you."""
        save_tensors(path, {**self.weights, **self.scaling}, self.settings)

    @staticmethod
    def load(path: str | Path, graph: LocalGraph) -> Dynamics:
        """Reads what `save` wrote, for the same graph."""
        tensors, metadata = load_saved(path, "model")
        if "architecture" not in metadata:
            raise InputError(f"{str(path)!r} is not a mocoda dynamics model: it does not say its architecture.")
        config = DynamicsConfig(**metadata["config"])
        if metadata["graph"] != graph.structure:
            keys = differing_keys(metadata["graph"], graph.structure)
            raise InputError(f"{str(path)!r} was fitted to another graph than {graph!r}; they differ in {keys}.")
        scaling = {name: tensors.pop(name) for name in SCALING}
        return Dynamics(graph, metadata["architecture"], config, tensors, scaling)

    @cached_property
    def _mechanisms(self) -> Mechanisms:
        return _mechanisms(self.graph, self.architecture, self.config, self.device)

    @property
    def _block(self) -> int:
        """Rows at a time: their activations fit the cache of a CPU, or keep a GPU busy."""
        return 1_024 if self.device.type == "cpu" else 131_072

    def _rows(self, rows: Array) -> Tensor:
        rows = as_tensor(rows).to(self.device, torch.float32)
        self.graph.check_rows(rows)
        return rows

    @torch.no_grad()
    def _predict(self, weights: Weights, rows: Tensor) -> tuple[Tensor, Tensor]:
        mask = self.graph.mask(rows) if self.architecture == "local" else None
        inputs = (rows - self.scaling["input_shift"]) / self.scaling["input_scale"]
        mean, variance = self._mechanisms(weights, inputs, mask)
        mean = mean * self.scaling["target_scale"] + self.scaling["target_shift"]
        if self.config.predict_change:
            mean = mean + self._mechanisms.kept_state(rows, mask)
        return mean, variance.sqrt() * self.scaling["target_scale"]


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
    mechanisms = _mechanisms(graph, architecture, config, device)
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
    identity = {**_metadata(graph, architecture, config), "seeds": list(seeds), "device": device.type}
    if checkpoint is not None:
        identity["data"] = fingerprint(table.rows, *table.held_out)  # with the masks, where there are any
    saved = Checkpoint(checkpoint, identity)
    done, tensors = saved.load()
    if done:
        best.restore(tensors)
        adam.restore(tensors)
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(tensors[name])
    chunk = Captured(in_turn(update), device)
    for epoch in range(done, config.epochs):
        if config.decay:
            adam.learning_rate.fill_(config.learning_rate * 0.5 * (1 + math.cos(math.pi * epoch / config.epochs)))
        losses = chunk({"index": table.batches([stream.child("epoch", epoch) for stream in streams])})
        if epoch >= config.epochs - config.window:
            best.offer(weights, _held_out_loss(table, weights))
        last = epoch == config.epochs - 1  # whose last update no training loss has seen
        if not bool(torch.isfinite(losses).all()) or (last and not bool(torch.isfinite(best.loss).all())):
            raise FloatingPointError(
                f"the loss of the {architecture!r} dynamics became NaN or inf in epoch {epoch}; "
                "lower the learning rate or standardise the data."
            )
        progress(f"dynamics {architecture}", epoch + 1, config.epochs)
        saved.offer(epoch + 1, lambda: {**weights, **best.tensors(), **adam.state()})
    return [
        Dynamics(graph, architecture, config, {name: w[run] for name, w in best.weights.items()}, scaling)
        for run, scaling in enumerate(table.scaling)
    ]


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

    def restore(self, tensors: Weights) -> None:
        self.loss = tensors["best_loss"].to(self.loss.device)
        self.weights = {name: tensors[f"best.{name}"].to(self.loss.device) for name in self.weights}


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
    if config.predict_change:
        target = target - mechanisms.kept_state(inputs, mask)
    scaling = [*_standard(inputs, mechanisms, config), *_standard(target, mechanisms, config)]
    columns = [(inputs - scaling[0]) / scaling[1], (target - scaling[2]) / scaling[3]]
    if mask is not None:
        columns.append(mask.flatten(-2).float())
    return torch.cat(columns, -1), dict(zip(SCALING, scaling, strict=True))


def _standard(values: Tensor, mechanisms: Mechanisms, config: DynamicsConfig) -> tuple[Tensor, Tensor]:
    """Shift and scale (columns,) that standardise values (N, columns); a constant column is only shifted.

    Factors that are alike are measured by one rule.
    """
    if not config.standardise:
        return torch.zeros_like(values[0]), torch.ones_like(values[0])
    exact = values.double()
    shift, scale = exact.mean(0), exact.std(0, correction=0)
    for columns in mechanisms.alike_columns:  # (factors, width)
        if int(columns.max()) < len(shift):  # of the action are no targets
            pooled = exact[:, columns].flatten(0, 1)
            shift[columns], scale[columns] = pooled.mean(0), pooled.std(0, correction=0)
    scale = scale.float()
    return shift.float(), torch.where(scale > 1e-8, scale, 1.0)


def _mechanisms(graph: LocalGraph, architecture: str, config: DynamicsConfig, device: torch.device) -> Mechanisms:
    return Mechanisms(
        graph, architecture, config.members, config.hidden, config.features, device, config.shared, config.alike
    )


def _metadata(graph: LocalGraph, architecture: str, config: DynamicsConfig) -> dict[str, Any]:
    return {
        "architecture": architecture,
        "config": asdict(config) | {"hidden": list(config.hidden), "alike": list(map(list, config.alike))},
        "graph": graph.structure,
    }


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
