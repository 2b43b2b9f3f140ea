"""A fitted dynamics model: an ensemble of Gaussian networks that predicts the next state.

Axes: E ensemble members, N rows, S and A columns of state and action.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from mocoda.data.transitions import Array, as_tensor
from mocoda.dynamics.mechanisms import ARCHITECTURES, Mechanisms
from mocoda.engine.checkpoint import check_tensors, from_settings, load_trained, reading, save_trained
from mocoda.engine.errors import InputError, differing_keys, unknown_name
from mocoda.engine.networks import Weights
from mocoda.engine.randomness import Shapes, Stream, as_stream
from mocoda.graph.local_graph import LocalGraph

SCALING = ("input_shift", "input_scale", "target_shift", "target_scale")
PROBES = ("probe.rows", "probe.mask")


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
    # Standard deviations are divided by this when sampling (Appendix B.4); 1 samples as predicted: stochastic worlds.
    sharpen: float = 3.0

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
        if not 0 < self.sharpen < math.inf:
            raise InputError(f"sharpen must be a positive number, got {self.sharpen}.")
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


@runtime_checkable
class Ensemble(Protocol):
    """What is asked of a dynamics model whose members can disagree."""

    @property
    def graph(self) -> LocalGraph:
        """Which columns belong to which child."""

    def predict(self, rows: Any) -> Prediction:
        """What every member expects after rows (N, S + A)."""

    def sample(self, rows: Any, *, seed: int | Stream) -> Tensor:
        """Next states (N, S) of rows (N, S + A)."""


@dataclass(frozen=True, eq=False)
class Dynamics:
    """A fitted ensemble: rows in, next states out."""

    graph: LocalGraph
    architecture: str
    config: DynamicsConfig
    weights: Weights  # (E, ...) each
    scaling: Weights  # input_shift, input_scale (S + A,), target_shift, target_scale (S,)
    probes: Tensor | None = None  # (P, S + A), rows that tell the graph's local rule from others
    fingerprints: Mapping[str, str] = field(default_factory=dict)  # of the data and the graph

    def __repr__(self) -> str:
        return f"Dynamics({self.architecture!r}, members={self.config.members}, children={list(self.graph.children)})"

    @property
    def device(self) -> torch.device:
        return self.scaling["input_shift"].device

    @property
    def settings(self) -> dict[str, Any]:
        """Architecture, configuration and graph as JSON values."""
        return settings_of(self.graph, self.architecture, self.config)

    def predict(self, rows: Array) -> Prediction:
        """What every member expects after rows (N, S + A)."""
        blocks = [self._predict(self.weights, block) for block in self._rows(rows).split(self._block)]
        return Prediction(*(torch.cat(part, 1) for part in zip(*blocks, strict=True)))

    def sample(self, rows: Array, *, seed: int | Stream) -> Tensor:
        """A next state (N, S) for each row, by a random member, its standard deviation divided by `config.sharpen`."""
        rows = self._rows(rows)
        stream = as_stream(seed, "dynamics-sample", device=self.device)
        member = stream.integers(self.config.members, len(rows))
        noise = stream.normal(len(rows), self.graph.state_width) / self.config.sharpen
        order = member.argsort(stable=True)
        counts = torch.bincount(member, minlength=self.config.members).tolist()
        next_state = torch.empty_like(noise)
        for number, mine in enumerate(order.split(counts)):
            weights = {name: weight[number : number + 1] for name, weight in self.weights.items()}
            for block in mine.split(self._block):
                mean, scale = self._predict(weights, rows[block])
                next_state[block] = mean[0] + scale[0] * noise[block]
        return next_state

    def to(self, device: torch.device | str) -> Dynamics:
        weights, scaling = ({n: t.to(device) for n, t in part.items()} for part in (self.weights, self.scaling))
        probes = None if self.probes is None else self.probes.to(device)
        return replace(self, weights=weights, scaling=scaling, probes=probes)

    def save(self, path: str | Path) -> None:
        """Writes the model to a safetensors file. The graph is code and stays out; its masks at some rows are kept."""
        tensors = {**self.weights, **self.scaling}
        if self.probes is not None:
            probes = self.probes.cpu()  # where `load` asks again: a learned rule rounds differently on a GPU
            tensors |= dict(zip(PROBES, (probes, self.graph.mask(probes)), strict=True))
        save_trained(path, "dynamics", tensors, {"settings": self.settings, "fingerprints": self.fingerprints})

    @staticmethod
    def load(path: str | Path, graph: LocalGraph) -> Dynamics:
        """Reads what `save` wrote, for the graph that the model was fitted to."""
        tensors, header = load_trained(path, "dynamics")
        with reading(path, "dynamics"):
            config = from_settings(DynamicsConfig, header["settings"].get("config"))
            architecture, structure = header["settings"].get("architecture"), header["settings"].get("graph")
            if architecture not in ARCHITECTURES:
                raise unknown_name("architecture", architecture, ARCHITECTURES)
            if not isinstance(structure, dict):
                raise InputError("it does not say which graph it was fitted to")
        if structure != graph.structure:
            raise _other_graph(path, graph, f"they differ in {differing_keys(structure, graph.structure)}")
        with reading(path, "dynamics"):
            expected = mechanisms_of(graph, architecture, config, torch.device("cpu")).initial_weights(Shapes())
            widths = (graph.width, graph.width, graph.state_width, graph.state_width)
            expected |= {name: torch.empty(width) for name, width in zip(SCALING, widths, strict=True)}
            if PROBES[0] in tensors:
                rows = len(tensors[PROBES[0]])
                edges = torch.empty(rows, *graph.sparsest.shape, dtype=torch.bool)
                expected |= dict(zip(PROBES, (torch.empty(rows, graph.width), edges), strict=True))
            check_tensors(tensors, expected)
        probes, mask = (tensors.pop(name, None) for name in PROBES)
        if probes is not None and mask is not None:
            changed = int((graph.mask(probes) != mask).flatten(1).any(1).sum())
            if changed:
                where = f"{changed} of the {len(probes)} rows kept in the file"
                raise _other_graph(path, graph, f"the local rules give other edges at {where}")
        scaling = {name: tensors.pop(name) for name in SCALING}
        return Dynamics(graph, architecture, config, tensors, scaling, probes, header["fingerprints"])

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


def _other_graph(path: str | Path, graph: LocalGraph, difference: str) -> InputError:
    return InputError(
        f"{str(path)!r} was fitted to another graph than {graph!r}: {difference}. Load it with the graph it was fitted "
        "to, or fit again."
    )


def settings_of(graph: LocalGraph, architecture: str, config: DynamicsConfig) -> dict[str, Any]:
    """Architecture, configuration and graph as JSON values."""
    return {
        "architecture": architecture,
        "config": json.loads(json.dumps(asdict(config))),
        "graph": graph.structure,
    }
