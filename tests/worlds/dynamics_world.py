"""A small world with a local graph, and untrained models of it, for the tests of the dynamics."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mocoda import Dynamics, DynamicsConfig, LocalGraph, Transitions
from mocoda.dynamics import ARCHITECTURES, DYNAMICS, DynamicsFamily, make_dynamics
from mocoda.engine.randomness import Stream
from mocoda.engine.registry import settings_of

TINY = DynamicsConfig(members=2, hidden=(16, 16), features=8, epochs=3, batch=64, window=2)

each_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)


def row_mask(rows: Tensor) -> Tensor:
    """b' listens to c only where the first column is positive, and a' then no longer to its own past."""
    mask = torch.zeros(len(rows), 5, 3, dtype=torch.bool)  # a b c u v -> a b c
    mask[:, 0, 0] = rows[:, 0] <= 0
    mask[:, 3, 0] = True
    mask[:, 1, 1] = True
    mask[:, 2, 1] = rows[:, 0] > 0
    mask[:, 4, 2] = True
    return mask


# Columns of a factor need not lie side by side, factors need not come in their columns' order.
GRAPH = LocalGraph(
    state={"a": [0, 2], "b": 1, "c": [5, 3, 4]},
    action={"u": [2, 0], "v": 1},
    edges={"a": ["a", "u"], "b": ["b"], "c": ["v"]},
    local=row_mask,
)
S, A = 6, 3


def stream(*labels: str | int) -> Stream:
    return Stream(0, "test-dynamics", *labels)


def some_rows(n: int = 50) -> Tensor:
    return stream("rows").normal(n, S + A)


def step(rows: Tensor) -> Tensor:
    """A world in which every child does what GRAPH allows."""
    s, a = rows[:, :S], rows[:, S:]
    far = s[:, 0] > 0
    following = torch.empty_like(s)
    own = torch.where(far[:, None], 0.0, s[:, [0, 2]])
    following[:, [0, 2]] = own + 0.5 * a[:, [2, 0]]
    following[:, 1] = 0.9 * s[:, 1] + torch.where(far, s[:, 3] - 0.5 * s[:, 5], 0.0)
    following[:, 3:] = a[:, 1:2] * torch.tensor([1.0, -2.0, 0.3])
    return following


def world(n: int = 200, seed: int = 0, noise: float = 0.05) -> Transitions:
    drawn = Stream(seed, "test-dynamics", "world")
    rows = drawn.normal(n, S + A)
    return Transitions(rows[:, :S], rows[:, S:], step(rows) + noise * drawn.normal(n, S))


def family_of(name: str, config: DynamicsConfig) -> DynamicsFamily:
    """The family with as many of these settings as it has."""
    known = settings_of(DYNAMICS[name])
    return make_dynamics(name, **{setting: value for setting, value in vars(config).items() if setting in known})


def model(
    architecture: str = "local", config: DynamicsConfig = TINY, graph: LocalGraph = GRAPH, seed: int = 0
) -> Dynamics:
    """A model with fresh random weights and scaling: nothing of it was fitted."""
    drawn = Stream(seed, "test-dynamics", "model")
    family = family_of(architecture, config)
    weights = family.networks(graph, torch.device("cpu")).initial_weights(drawn.child("weights"))
    scaling = {
        "input_shift": drawn.normal(graph.width),
        "input_scale": drawn.uniform(graph.width, low=0.5, high=2.0),
        "target_shift": drawn.normal(graph.state_width),
        "target_scale": drawn.uniform(graph.state_width, low=0.5, high=2.0),
    }
    return Dynamics(graph, family, weights, scaling)


def same(one: Dynamics, other: Dynamics) -> bool:
    """Whether two models have the same numbers, to the bit."""
    pairs = [(one.weights, other.weights), (one.scaling, other.scaling)]
    return all(a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a) for a, b in pairs)
