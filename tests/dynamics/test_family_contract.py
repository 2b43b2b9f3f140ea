"""The contract of a family of dynamics models: those of the package keep it, and broken ones are found out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from approved import refused
from torch import Tensor

from mocoda import DynamicsConfig, Transitions, check_dynamics, fit_dynamics, make_dynamics
from mocoda.dynamics import DYNAMICS, DeterministicDynamics, Dynamics, DynamicsFamily
from mocoda.dynamics.check_dynamics import GRAPH
from mocoda.dynamics.model import standardised
from mocoda.engine.networks import Weights
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph

SMALL: dict[str, Any] = {"members": 2, "hidden": (8,), "epochs": 2, "batch": 64}


@pytest.mark.parametrize("name", list(DYNAMICS))
def test_the_families_of_the_package_keep_the_contract(name: str) -> None:
    check_dynamics(make_dynamics(name, **SMALL))
    check_dynamics(make_dynamics(name, **SMALL, predict_change=False, standardise=False))


class LinearMaps:
    """A linear map of everything to everything."""

    def __init__(self, graph: LocalGraph, members: int) -> None:
        self.shape = (members, graph.width + 1, graph.state_width)

    def initial_weights(self, stream: Stream) -> dict[str, Tensor]:
        return {"map": stream.normal(*self.shape)}

    def __call__(self, weights: Weights, rows: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        mean = torch.cat([rows, torch.ones_like(rows[..., :1])], -1) @ weights["map"]
        return mean, torch.zeros_like(mean)


@dataclass(frozen=True)
class Linear(DynamicsFamily):
    """Least squares on parts of the rows: a family that no gradient trains."""

    name = "linear"
    architecture = "full"

    members: int = 2

    def networks(self, graph: LocalGraph, device: torch.device) -> LinearMaps:
        return LinearMaps(graph, self.members)

    def fit(
        self, datasets: Sequence[Transitions], graph: LocalGraph, *, seeds: Sequence[int], **options: Any
    ) -> list[Dynamics]:
        return [self.fit_one(data, graph, seed) for data, seed in zip(datasets, seeds, strict=True)]

    def fit_one(self, data: Transitions, graph: LocalGraph, seed: int) -> Dynamics:
        columns, scaling = standardised(data, graph, self)
        rows, target, _ = columns.tensor_split([graph.width, graph.width + graph.state_width], 1)
        rows = torch.cat([rows, torch.ones_like(rows[:, :1])], 1)
        parts = Stream(seed, "linear").permutation(len(rows)).tensor_split(self.members)
        maps = torch.stack([self.solved(rows[part].double(), target[part].double()) for part in parts])
        return Dynamics(graph, self, {"map": maps.float()}, scaling)

    def solved(self, rows: Tensor, target: Tensor) -> Tensor:
        solution: Tensor = torch.linalg.solve(rows.T @ rows + 1e-6 * torch.eye(rows.shape[1]), rows.T @ target)
        return solution


def test_a_family_of_the_users_own_is_one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    check_dynamics(Linear())
    monkeypatch.setattr(DYNAMICS, "data", dict(DYNAMICS))
    DYNAMICS.add(Linear)
    check_dynamics(make_dynamics("linear", members=3))
    rows = Stream(0, "rows").normal(300, GRAPH.width)
    data = Transitions(rows[:, :4], rows[:, 4:], rows[:, :4] + 0.3 * rows[:, 2:])
    error = fit_dynamics(data, GRAPH, "linear").predict(rows).mean - data.next_state
    assert float(error.abs().max()) < 1e-4


class Deaf(Linear):
    architecture = "local"


class Forgetful(Linear):
    fits: ClassVar[Iterator[int]] = itertools.count()

    def fit_one(self, data: Transitions, graph: LocalGraph, seed: int) -> Dynamics:
        return super().fit_one(data, graph, next(self.fits))


class Greedy(Linear):
    def fit_one(self, data: Transitions, graph: LocalGraph, seed: int) -> Dynamics:
        data.next_state[:, 0] += 1
        return super().fit_one(data, graph, seed)


class Restless(Linear):
    def fit_one(self, data: Transitions, graph: LocalGraph, seed: int) -> Dynamics:
        made = super().fit_one(data, graph, seed)
        moving = {**made.scaling, "target_scale": torch.ones(4)}
        return replace(made, scaling=moving, weights={"map": 1e-3 + made.weights["map"]})


class Same(Linear):
    def fit_one(self, data: Transitions, graph: LocalGraph, seed: int) -> Dynamics:
        made, still = super().fit_one(data, graph, seed), torch.zeros(4)
        return replace(made, scaling={**made.scaling, "target_scale": still, "target_shift": still})


class Borrowed(DeterministicDynamics):
    name = "local"


class Nameless(DynamicsConfig):
    name = None  # type: ignore[assignment]


class ThreeMaps(LinearMaps):
    def __call__(self, weights: Weights, rows: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        mean, variance = super().__call__(weights, rows, mask)
        return torch.cat([mean, mean[:1]]), torch.cat([variance, variance[:1]])


class Wide(Linear):
    def networks(self, graph: LocalGraph, device: torch.device) -> LinearMaps:
        return ThreeMaps(graph, self.members)


BROKEN = (Deaf, Forgetful, Greedy, Restless, Same, Borrowed, Nameless, Wide)


@pytest.mark.parametrize("family", BROKEN, ids=lambda family: family.__name__)
def test_a_broken_family_is_told_what_it_breaks(family: type[DynamicsFamily]) -> None:
    with refused():
        check_dynamics(family())
