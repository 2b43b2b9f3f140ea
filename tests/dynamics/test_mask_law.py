"""The law that the factored architectures exist for: what the graph masks out cannot reach a child, not by one bit."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mocoda.dynamics import Dynamics, make_dynamics
from mocoda.dynamics.model import kept_state
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph

ROWS = 8
FACTORED = ("global", "local", "deterministic")
SIZES: dict[str, Any] = {"members": 2, "hidden": (8, 8)}
ANYTHING = (0.0, 1.0, -3.5, 1e-30, 1e30, -1e30, 3.4e38, -3.4e38, math.inf, -math.inf, math.nan)


@dataclass(frozen=True)
class World:
    """A graph with random factors, columns and masks, random rows, and random weights for every architecture."""

    graph: LocalGraph
    local: Tensor  # (ROWS, P, C), the mask at each row, whatever stands in it
    rows: Tensor
    stream: Stream

    def model(self, family: str, predict_change: bool = True) -> Dynamics:
        drawn, states = self.stream.child("scaling"), self.graph.state_width
        scaling = {
            "input_shift": drawn.normal(self.graph.width),
            "input_scale": drawn.uniform(self.graph.width, low=0.5, high=2.0),
            "target_shift": drawn.normal(states),
            "target_scale": drawn.uniform(states, low=0.5, high=2.0),
        }
        config = replace(make_dynamics(family, **SIZES), predict_change=predict_change)
        networks = config.networks(self.graph, torch.device("cpu"))
        return Dynamics(self.graph, config, networks.initial_weights(self.stream.child("weights")), scaling)

    def edges(self, architecture: str) -> Tensor:
        """Who may reach whom, bool (ROWS, P, C)."""
        if architecture == "full":
            return torch.ones_like(self.local)
        return self.graph.sparsest.expand_as(self.local) if architecture == "global" else self.local

    def with_parent(self, parent: str, values: Tensor | float) -> Tensor:
        changed = self.rows.clone()
        changed[:, list(self.graph.factors[parent])] = values
        return changed

    def child(self, child: str, prediction: Tensor) -> Tensor:
        return prediction[..., list(self.graph.factors[child])]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    stream = Stream(draw(st.integers(0, 2**32)), "world")
    state, action = (
        columns_of(kind, draw(st.lists(st.integers(1, widest), min_size=least, max_size=most)), stream.child(kind))
        for kind, least, most, widest in (("s", 2, 4, 3), ("a", 1, 2, 2))
    )
    parents, children = [*state, *action], list(state)
    share = draw(st.sampled_from([0.1, 0.3, 0.5, 0.8]))
    masks = stream.child("masks").uniform(ROWS + 1, len(parents), len(children)) < share
    kept = stream.child("kept").integers(len(parents), ROWS + 1, 1, len(children))
    masks.scatter_(1, kept, torch.ones_like(kept, dtype=torch.bool))  # nobody is without parents
    sparsest, local = masks[0], masks[1:]
    edges = {c: [p for i, p in enumerate(parents) if sparsest[i, j]] for j, c in enumerate(children)}
    graph = LocalGraph(state=state, action=action, edges=edges, local=lambda rows: local)
    return World(graph, local, 3 * stream.child("rows").normal(ROWS, graph.width), stream)


def columns_of(kind: str, widths: list[int], stream: Stream) -> dict[str, list[int]]:
    """Factors of these widths, their columns strewn over all."""
    numbers: list[int] = stream.permutation(sum(widths)).tolist()
    return {f"{kind}{i}": [numbers.pop() for _ in range(width)] for i, width in enumerate(widths)}


@pytest.mark.parametrize("predict_change", [True, False])
@pytest.mark.parametrize("architecture", FACTORED)
@given(world=worlds(), value=st.sampled_from(ANYTHING))
@settings(max_examples=40, deadline=None)
def test_a_masked_out_parent_cannot_change_its_child_by_one_bit(
    architecture: str, predict_change: bool, world: World, value: float
) -> None:
    model, edges = world.model(architecture, predict_change), world.edges(architecture)
    before = model.predict(world.rows)
    assert all(bool(part.isfinite().all()) for part in before)
    for p, parent in enumerate(world.graph.parents):
        after = model.predict(world.with_parent(parent, value))
        for c, child in enumerate(world.graph.children):
            deaf = ~edges[:, p, c]
            for one, other in zip(before, after, strict=True):
                assert world.child(child, one)[:, deaf].equal(world.child(child, other)[:, deaf])


@pytest.mark.parametrize("architecture", FACTORED)
@given(world=worlds())
@settings(max_examples=25, deadline=None)
def test_the_gradient_of_a_child_with_respect_to_a_masked_out_parent_is_exactly_zero(
    architecture: str, world: World
) -> None:
    family, edges = make_dynamics(architecture, **SIZES), world.edges(architecture)
    networks = family.networks(world.graph, torch.device("cpu"))
    rows = world.rows.clone().requires_grad_()
    mask = None if architecture == "global" else world.local
    mean, variance = networks(networks.initial_weights(world.stream.child("weights")), rows, mask)
    kept = kept_state(world.graph, family.architecture, rows, mask)
    for c, child in enumerate(world.graph.children):
        for output in (mean, variance, kept):
            (slope,) = torch.autograd.grad(world.child(child, output).sum() + 0 * rows.sum(), rows, retain_graph=True)
            for p, parent in enumerate(world.graph.parents):
                assert world.child(parent, slope)[~edges[:, p, c]].eq(0.0).all()


@pytest.mark.parametrize("predict_change", [True, False])
@pytest.mark.parametrize("architecture", ["full", *FACTORED])
@given(world=worlds())
@settings(max_examples=25, deadline=None, derandomize=True)
def test_every_other_parent_does_reach_its_child(architecture: str, predict_change: bool, world: World) -> None:
    model, edges = world.model(architecture, predict_change), world.edges(architecture)
    before, outputs = model.predict(world.rows), 1 if architecture == "deterministic" else 2
    for p, parent in enumerate(world.graph.parents):
        width = len(world.graph.factors[parent])
        after = model.predict(world.with_parent(parent, 30 * world.stream.child(parent).normal(ROWS, width)))
        for c, child in enumerate(world.graph.children):
            heard = edges[:, p, c]
            for one, other in zip(before[:outputs], after[:outputs], strict=True):
                same = world.child(child, one)[:, heard].eq(world.child(child, other)[:, heard])
                assert not bool(heard.any()) or not bool(same.all())


@pytest.mark.parametrize("architecture", ["full", *FACTORED])
@given(world=worlds())
@settings(max_examples=15, deadline=None)
def test_a_predicted_change_is_added_to_the_state_only_where_the_child_listens_to_its_own_past(
    architecture: str, world: World
) -> None:
    change = world.model(architecture, False).predict(world.rows)
    whole = world.model(architecture, True).predict(world.rows)
    edges = world.edges(architecture)
    for c, child in enumerate(world.graph.children):
        own = edges[:, c, c, None]
        expected = world.child(child, change.mean) + torch.where(own, world.child(child, world.rows), 0.0)
        assert world.child(child, whole.mean).equal(expected)
    assert whole.scale.equal(change.scale)
