"""The shared Masked Composer of experiment "composer" against a slow twin; factors that are alike."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from approved import refused
from dynamics_world import GRAPH, some_rows, world

from experiments.composer.shared import SharedDynamics, SharedMechanisms
from mocoda import LocalGraph, fit_dynamics
from mocoda.dynamics.fit import VARIANCE_FLOOR
from mocoda.engine.randomness import Stream

SHARED = SharedDynamics(members=2, hidden=(16, 16), features=8, epochs=3, batch=64, window=2)
BALLS = ("p", "q", "r")
ALIKE = replace(SHARED, alike=(BALLS,))


def row_mask(rows: torch.Tensor) -> torch.Tensor:
    """A ball depends on itself, the hand, and the push; p and q on each other where the first column is positive."""
    mask = torch.eye(5, 4, dtype=torch.bool).repeat(len(rows), 1, 1)
    mask[:, 3:, :3] = True
    mask[:, 1, 0] = mask[:, 0, 1] = rows[:, 0] > 0
    return mask


BOX = LocalGraph(
    state={"p": [0, 3], "q": [1, 2], "r": [4, 5], "hand": 6},
    action={"push": [0, 1]},
    edges={**{name: [name, "hand", "push"] for name in BALLS}, "hand": ["hand"]},
    local=row_mask,
)


@pytest.mark.parametrize(("graph", "config"), [(GRAPH, SHARED), (BOX, ALIKE)])
def test_shared_networks_compute_what_loops_do(graph: LocalGraph, config: SharedDynamics) -> None:
    networks, rows = SharedMechanisms(graph, config, torch.device("cpu")), some_rows(16)
    weights = networks.initial_weights(Stream(0, "weights"))
    masks = graph.mask(rows)
    found = networks(weights, rows, masks)
    kind = {name: next((group[0] for group in config.alike if name in group), name) for name in graph.factors}
    for member in range(config.members):

        def layer(name: str, x: torch.Tensor, member: int = member) -> torch.Tensor:
            return x @ weights[f"{name}.weight"][member].double() + weights[f"{name}.bias"][member, 0].double()

        for n, row in enumerate(rows.double()):
            for c, child in enumerate(graph.children):
                x = weights[f"child.{kind[child]}"][member, 0].double()
                for p, parent in enumerate(graph.parents):
                    if masks[n, p, c]:
                        role = "own" if parent == child else "embed"
                        x = x + layer(f"{role}.{kind[parent]}", row[list(graph.factors[parent])]).clamp(min=0)
                for number in range(3):
                    x = layer(f"trunk.{number}", x).clamp(min=0) if number < 2 else layer(f"head.{kind[child]}", x)
                half = len(x) // 2
                for i, column in enumerate(graph.factors[child]):
                    variance = math.log1p(math.exp(float(x[half + i]))) + VARIANCE_FLOOR
                    assert float(found[0][member, n, column]) == pytest.approx(float(x[i]), abs=1e-5)
                    assert float(found[1][member, n, column]) == pytest.approx(variance, abs=1e-5)


def test_factors_that_are_alike_can_change_places_and_are_standardised_by_one_rule() -> None:
    mechanisms = SharedMechanisms(BOX, ALIKE, torch.device("cpu"))
    weights = mechanisms.initial_weights(Stream(0, "weights"))
    rows = some_rows(20)
    mask = Stream(0, "mask").uniform(20, 5, 4) < 0.6
    order, parents = [1, 4, 5, 2, 0, 3, 6], [1, 2, 0, 3, 4]  # p gets q's place, q r's, r p's
    turned = mask[:, parents][:, :, parents[:4]]
    before, after = mechanisms(weights, rows, mask), mechanisms(weights, rows[:, [*order, 7, 8]], turned)
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one[..., order], other)
        assert not torch.allclose(one, other)
    target = rows[:, :7].square()
    scaling = ALIKE.scaling(rows, target, target.amax(0), BOX)
    for columns in ([0, 1, 4], [3, 2, 5]):  # the first columns of p, q and r, and the second ones
        torch.testing.assert_close(scaling.input_shift[columns], rows[:, columns].mean().expand(3))
        torch.testing.assert_close(scaling.target_scale[columns], target[:, columns].std(correction=0).expand(3))


@pytest.mark.parametrize("alike", [[("a", "b"), ("b",)], [()], [("a", "c")], [("a", "u")], [("a", "aa")]], ids=str)
def test_groups_that_make_no_sense_are_refused(alike: Any) -> None:
    with refused():
        fit_dynamics(world(), GRAPH, replace(SHARED, alike=alike))


def test_the_size_does_not_grow_with_objects_that_are_alike() -> None:
    sizes = [
        sum(
            weight.numel()
            for weight in SharedMechanisms(BOX, config, torch.device("cpu")).initial_weights(Stream(0)).values()
        )
        for config in (ALIKE, SHARED)
    ]
    assert sizes[0] < sizes[1]
