"""Dynamics models: what a fitted model can do, and the contract of a family of models.

A family is a frozen dataclass of settings that derives from `DynamicsFamily`. It says what its networks compute and how
they are fitted; standardising, columns that never change, sampling and files are the same for all. Check your own with
`mocoda.check_dynamics`, and add it with `DYNAMICS.add` to choose it by name.

Axes: E ensemble members, N rows, S and A columns of state and action, P parents, C children.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor

from mocoda.data.transitions import Array, Transitions, as_tensor
from mocoda.engine.checkpoint import check_tensors, from_settings, load_trained, reading, save_trained
from mocoda.engine.errors import InputError, differing_keys, unknown_name
from mocoda.engine.networks import Weights, input_scaling, moments
from mocoda.engine.progress import Progress
from mocoda.engine.randomness import Shapes, Stream, as_stream
from mocoda.engine.registry import Registry
from mocoda.graph.local_graph import LocalGraph

RETIRED = ("shared", "alike")  # settings that files may still have; unless they are set, they mean nothing
PROBES = ("probe.rows", "probe.mask")
NextState = Literal["auto", "mean", "member", "noisy"]


class Scaling(NamedTuple):
    """Shift and scale of inputs, (S + A,) each, and of targets, (S,) each."""

    input_shift: Tensor
    input_scale: Tensor
    target_shift: Tensor
    target_scale: Tensor


class Prediction(NamedTuple):
    """Mean and standard deviation of the next state according to every member, (E, N, S) each."""

    mean: Tensor
    scale: Tensor


@runtime_checkable
class Ensemble(Protocol):
    """Any model whose members can disagree about the next state."""

    @property
    def graph(self) -> LocalGraph:
        """Which columns belong to which child."""

    def predict(self, rows: Any) -> Prediction:
        """What every member expects after rows (N, S + A)."""

    def sample(self, rows: Any, *, seed: int | Stream) -> Tensor:
        """Next states (N, S) of rows (N, S + A)."""


class Networks(Protocol):
    """What a family computes, as a function of weights; any leading axes *L of the weights are free."""

    def initial_weights(self, stream: Stream) -> dict[str, Tensor]:
        """Fresh weights of all members, (E, ...) each; their names and shapes are those of a fitted model's."""

    def __call__(self, weights: Weights, rows: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean and variance (*L, N, S) of standardised targets at standardised rows (*L, N, S + A).

        mask  (*L, N, P, C), the edges at each row, if the family's architecture is "local"
        """


@dataclass(frozen=True)
class DynamicsFamily:
    """The settings that all families of dynamics models share, and what a family must define."""

    name: ClassVar[str]  # what `fit_dynamics` calls it
    # What a child's prediction depends on: "full", everything; "global", its parents in the sparsest graph; "local",
    # its parents in each row. Any other factor cannot change the child by a single bit.
    architecture: ClassVar[str] = "local"

    members: int = 5  # networks of the ensemble
    predict_change: bool = True  # the networks predict next state minus state rather than the next state
    standardise: bool = True  # inputs and targets have mean 0 and variance 1
    # Next states of new rows: mean (of the members), member (a random one), noisy (a random one, with its noise, as in
    # the paper's code), or auto: the mean, with noise in the columns that are noisy in rows held out
    next_state: NextState = "auto"

    def __post_init__(self) -> None:
        if self.next_state not in get_args(NextState):
            raise unknown_name("way to choose next states", self.next_state, get_args(NextState))

    def networks(self, graph: LocalGraph, device: torch.device) -> Networks:
        """The functions that a fitted model evaluates."""
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
        """One model per data set and seed; each is the same as if it were fitted alone.

        checkpoint  a file to continue from if it exists, and to save progress to; families that fit fast ignore it
        """
        raise NotImplementedError

    @property
    def noise_divisor(self) -> float:
        """What standard deviations are divided by where next_state is "noisy"."""
        return 1.0

    def scaling(self, rows: Tensor, target: Tensor, largest: Tensor, graph: LocalGraph) -> Scaling:
        """How rows (N, S + A) and targets (N, S) are standardised. A target of scale 0 is exactly its shift.

        largest  (S,) the largest absolute numbers that the targets were computed from
        """
        shift, scale = input_scaling(rows)
        target_shift, target_scale = (moment.float() for moment in moments(target, largest))
        if not self.standardise:
            shift, scale = torch.zeros_like(shift), torch.ones_like(scale)
            varies = target_scale > 0
            target_shift, target_scale = torch.where(varies, 0.0, target_shift), varies.float()
        return Scaling(shift, scale, target_shift, target_scale)

    def mask(self, graph: LocalGraph, rows: Tensor) -> Tensor | None:
        """The edges (N, P, C) at rows (N, S + A), if a prediction depends on them."""
        return graph.mask(rows) if self.architecture == "local" else None


DYNAMICS: Registry[type[DynamicsFamily]] = Registry("dynamics family")


def make_dynamics(name: str, **settings: Any) -> DynamicsFamily:
    """The family of dynamics models called `name`, with its default settings except for those given."""
    family: DynamicsFamily = DYNAMICS.make(name, **settings)
    return family


@dataclass(frozen=True, eq=False)
class Dynamics:
    """A fitted ensemble: rows in, next states out."""

    graph: LocalGraph
    config: DynamicsFamily
    weights: Weights  # (E, ...) each
    scaling: Weights  # input_shift, input_scale (S + A,), target_shift, target_scale (S,)
    probes: Tensor | None = None  # (P, S + A), rows whose masks distinguish the graph's local rule from others
    fingerprints: Mapping[str, str] = field(default_factory=dict)  # of the data and the graph
    noisy: tuple[int, ...] = ()  # state columns that are noisy in rows held out (see mocoda.dynamics.fit)

    def __repr__(self) -> str:
        sizes = f"members={self.config.members}, children={list(self.graph.children)}"
        return f"Dynamics({self.config.name!r}, {sizes}, next_state={self.next_state!r})"

    @property
    def next_state(self) -> str:
        """How next states are chosen, and why, in words."""
        if self.config.next_state != "auto":
            return self.config.next_state
        factors = [name for name in self.graph.children if not set(self.graph.factors[name]).isdisjoint(self.noisy)]
        if not factors:
            return "mean, as rows held out show no noise"
        return f"mean, with noise in {', '.join(factors)}, as in rows held out"

    @property
    def architecture(self) -> str:
        """What a prediction depends on: "full" (everything), "global" or "local" (a child's parents)."""
        return self.config.architecture

    @property
    def device(self) -> torch.device:
        return self.scaling["input_shift"].device

    @property
    def settings(self) -> dict[str, Any]:
        """Family, its settings, graph and noisy columns as JSON values."""
        return {**settings_of(self.config, self.graph), "noisy_columns": list(self.noisy)}

    def predict(self, rows: Array) -> Prediction:
        """What every member expects after rows (N, S + A)."""
        blocks = [self._predict(self.weights, block) for block in self._rows(rows).split(self._block)]
        return Prediction(*(torch.cat(part, 1) for part in zip(*blocks, strict=True)))

    def sample(self, rows: Array, *, seed: int | Stream) -> Tensor:
        """A next state (N, S) for each row (N, S + A), chosen as the setting `next_state` says."""
        rows = self._rows(rows)
        stream = as_stream(seed, "dynamics-sample", device=self.device)
        if not self.says_mean:
            return self._by_random_members(rows, stream)
        blocks = zip(rows.split(self._block), self.noise(len(rows), seed).split(self._block), strict=True)
        return torch.cat([self.likely(self.predict(block), noise) for block, noise in blocks])

    @property
    def says_mean(self) -> bool:
        """Whether `sample` gives the mean of the members, with noise or without, rather than what one of them says."""
        return self.config.next_state in ("auto", "mean")

    def noise(self, n: int, seed: int | Stream) -> Tensor:
        """Standard normal numbers (n, columns) for `likely`: for no column unless the setting is "auto"."""
        stream = as_stream(seed, "dynamics-sample", device=self.device)
        return stream.normal(n, len(self.noisy) if self.config.next_state == "auto" else 0)

    def likely(self, predicted: Prediction, noise: Tensor) -> Tensor:
        """The next states (N, S) of N rows by all members: their mean, with noise in noisy columns.

        Of three members or more, the lowest and the highest value of each column are left out: where the data is
        sparse, a single member may be far off.
        """
        said = predicted.mean.sort(0).values
        said = said[1:-1] if len(said) > 2 else said
        next_state = said[0] + (said - said[0]).mean(0)  # where all say the same, that is it, to the bit
        columns = list(self.noisy[: noise.shape[1]])
        next_state[:, columns] += predicted.scale[..., columns].square().mean(0).sqrt() * noise
        return next_state

    def _by_random_members(self, rows: Tensor, stream: Stream) -> Tensor:
        """Each row's next state by a random member, which alone is evaluated, with its noise if that is wanted."""
        member = stream.integers(self.config.members, len(rows))
        noise = stream.normal(len(rows), self.graph.state_width) / self.config.noise_divisor
        noise *= self.config.next_state == "noisy"
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
            # `load` evaluates the rule on the CPU too: a learned rule rounds differently on a GPU.
            probes = self.probes.cpu()
            tensors |= dict(zip(PROBES, (probes, self.graph.mask(probes)), strict=True))
        save_trained(path, "dynamics", tensors, {"settings": self.settings, "fingerprints": self.fingerprints})

    @staticmethod
    def load(path: str | Path, graph: LocalGraph) -> Dynamics:
        """Reads what `save` wrote, for the graph that the model was fitted to."""
        tensors, header = load_trained(path, "dynamics")
        with reading(path, "dynamics"):
            settings = header["settings"]
            family = DYNAMICS[settings.get("family", settings.get("architecture"))]  # as it was called at first
            stored, structure = settings.get("config"), settings.get("graph")
            for name in RETIRED if isinstance(stored, dict) else ():
                if not stored.get(name, True):
                    del stored[name]
            if isinstance(stored, dict):
                stored.setdefault("next_state", "noisy")  # as all models were before there was a choice
            config = from_settings(family, stored)
            if not isinstance(structure, dict):
                raise InputError("it does not say which graph it was fitted to")
            noisy = tuple(settings.get("noisy_columns", ()))
            if not all(type(column) is int and 0 <= column < graph.state_width for column in noisy):
                raise InputError("its noisy columns are not columns of the state")
        if structure != graph.structure:
            raise _other_graph(path, graph, f"they differ in {differing_keys(structure, graph.structure)}")
        with reading(path, "dynamics"):
            expected = config.networks(graph, torch.device("cpu")).initial_weights(Shapes())
            widths = (graph.width, graph.width, graph.state_width, graph.state_width)
            expected |= {name: torch.empty(width) for name, width in zip(Scaling._fields, widths, strict=True)}
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
        scaling = {name: tensors.pop(name) for name in Scaling._fields}
        return Dynamics(graph, config, tensors, scaling, probes, header["fingerprints"], noisy)

    @cached_property
    def _networks(self) -> Networks:
        return self.config.networks(self.graph, self.device)

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
        mask = self.config.mask(self.graph, rows)
        inputs = (rows - self.scaling["input_shift"]) / self.scaling["input_scale"]
        mean, variance = self._networks(weights, inputs, mask)
        mean = mean * self.scaling["target_scale"] + self.scaling["target_shift"]
        if self.config.predict_change:
            mean = mean + kept_state(self.graph, self.architecture, rows, mask)
        scale = variance.sqrt() * self.scaling["target_scale"]
        if self.graph.absent:  # what is absent stays so
            state = rows[:, : self.graph.state_width]
            gone = self.graph.absent_at(rows)[:, self.graph.owner[: state.shape[1]].to(rows.device)]
            mean, scale = torch.where(gone, state, mean), scale.masked_fill(gone, 0.0)
        return mean, scale


def kept_state(graph: LocalGraph, architecture: str, rows: Tensor, mask: Tensor | None) -> Tensor:
    """The state (*L, N, S) to which a predicted change is added: 0 where a child does not depend on its own past."""
    state = rows[..., : graph.state_width]
    if architecture == "full":
        return state
    edges = graph.sparsest.to(rows.device) if mask is None else mask
    own = edges.diagonal(dim1=-2, dim2=-1)  # state factors come first among the parents
    return torch.where(own.index_select(-1, graph.owner[: graph.state_width].to(rows.device)), state, 0.0)


def standardised(data: Transitions, graph: LocalGraph, family: DynamicsFamily) -> tuple[Tensor, dict[str, Tensor]]:
    """Recorded rows as columns to learn from (N, columns), and the scaling that standardised them.

    The columns are state and action, the target, and the mask if the family's architecture is "local".
    """
    inputs, target, mask = data.rows, data.next_state, family.mask(graph, data.rows)
    largest = target.abs().amax(0)
    if family.predict_change:
        kept = kept_state(graph, family.architecture, inputs, mask)
        target, largest = target - kept, torch.maximum(largest, kept.abs().amax(0))
    scaling = family.scaling(inputs, target, largest, graph)
    shift, scale = scaling.target_shift, scaling.target_scale
    columns = [
        (inputs - scaling.input_shift) / scaling.input_scale,
        torch.where(scale > 0, (target - shift) / scale, 0.0),
    ]
    columns += [] if mask is None else [mask.flatten(-2).float()]
    return torch.cat(columns, -1), scaling._asdict()


def settings_of(family: DynamicsFamily, graph: LocalGraph) -> dict[str, Any]:
    """A family, its settings and a graph as JSON values."""
    return {"family": family.name, "config": json.loads(json.dumps(asdict(family))), "graph": graph.structure}


def _other_graph(path: str | Path, graph: LocalGraph, difference: str) -> InputError:
    return InputError(
        f"{str(path)!r} was fitted to another graph than {graph!r}: {difference}. Load it with the graph it was fitted "
        "to, or fit again."
    )
