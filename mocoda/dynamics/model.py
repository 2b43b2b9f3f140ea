"""Transitions, LocalGraph -> Dynamics: ensembles of Gaussian networks, trained by negative log likelihood.

Axes: R runs, E ensemble members, B rows of a batch. All runs of a call train as one program.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mocoda.data.transitions import Array, as_tensor
from mocoda.dynamics.mechanisms import Mechanisms
from mocoda.engine.checkpoint import load_saved, save_tensors
from mocoda.engine.errors import InputError, differing_keys
from mocoda.engine.networks import Weights
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph

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
        return metadata(self.graph, self.architecture, self.config)

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
        return mechanisms_of(self.graph, self.architecture, self.config, self.device)

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


def mechanisms_of(graph: LocalGraph, architecture: str, config: DynamicsConfig, device: torch.device) -> Mechanisms:
    return Mechanisms(
        graph, architecture, config.members, config.hidden, config.features, device, config.shared, config.alike
    )


def metadata(graph: LocalGraph, architecture: str, config: DynamicsConfig) -> dict[str, Any]:
    return {
        "architecture": architecture,
        "config": asdict(config) | {"hidden": list(config.hidden), "alike": list(map(list, config.alike))},
        "graph": graph.structure,
    }
