"""The networks of all families against slow twins, and Masked Composers that are shared."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from approved import refused
from dynamics_world import GRAPH, TINY, model, same, some_rows, world
from torch import Tensor

from mocoda import Dynamics, DynamicsConfig, LocalGraph, Transitions, fit_dynamics, fit_dynamics_runs
from mocoda.dynamics.fit import VARIANCE_FLOOR, Mechanisms
from mocoda.engine.randomness import Stream
from mocoda.tasks.objects import Objects

SHARED = replace(TINY, shared=True)
BALLS = ("p", "q", "r")
ALIKE = replace(SHARED, alike=(BALLS,))


def row_mask(rows: Tensor) -> Tensor:
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


def box_world(n: int = 200, seed: int = 0) -> Transitions:
    rows = Stream(seed, "test-composer").normal(n, BOX.width)
    following = 0.9 * rows[:, :7] + 0.3 * torch.cat([rows[:, 7:].repeat(1, 3), rows[:, :1]], 1)
    return Transitions(rows[:, :7], rows[:, 7:], following)


either = pytest.mark.parametrize(("graph", "data", "config"), [(GRAPH, world, SHARED), (BOX, box_world, ALIKE)])


def slow_twin(made: Dynamics, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Appendix B.3 member by member, row by row, child by child, parent by parent, in double precision."""
    graph, config = made.graph, made.config
    assert isinstance(config, DynamicsConfig)
    weights = {name: weight.double() for name, weight in made.weights.items()}
    scaling = {name: values.double() for name, values in made.scaling.items()}
    kind = {name: next((group[0] for group in config.alike if name in group), name) for name in graph.factors}
    masks = graph.mask(rows) if made.architecture == "local" else graph.sparsest.expand(len(rows), -1, -1)
    mean = torch.full((config.members, len(rows), graph.state_width), math.nan, dtype=torch.float64)
    variance, layers, rows = mean.clone(), len(config.hidden) + 1, rows.double()
    everything = ("everything",)
    for member in range(config.members):

        def layer(name: str, x: Tensor, *index: int, member: int = member) -> Tensor:
            return x @ weights[f"{name}.weight"][(member, *index)] + weights[f"{name}.bias"][(member, *index)][0]

        for n, row in enumerate(rows):
            seen = (row - scaling["input_shift"]) / scaling["input_scale"]
            for c, child in enumerate(everything if made.architecture == "full" else graph.children):
                parents = [(p, name) for p, name in enumerate(graph.parents) if child in everything or masks[n, p, c]]
                if config.shared:
                    x = weights[f"child.{kind[child]}"][member, 0]
                    for _, parent in parents:
                        role = "own" if parent == child else "embed"
                        x = x + layer(f"{role}.{kind[parent]}", seen[list(graph.factors[parent])]).clamp(min=0)
                    for number in range(layers - 1):
                        x = layer(f"trunk.{number}", x).clamp(min=0)
                    output = layer(f"head.{kind[child]}", x.clamp(min=0))
                else:
                    x = torch.zeros(config.features if made.architecture == "local" else len(row), dtype=torch.float64)
                    for _, parent in parents:
                        columns = list(graph.factors[parent])
                        if made.architecture == "local":
                            x = x + layer(f"embed.{parent}", seen[columns], c).clamp(min=0)
                        else:
                            x[columns] = seen[columns]
                    for number in range(layers):
                        x = layer(f"mlp.{number}", x, c)
                        x = x.clamp(min=0) if number < layers - 1 else x
                    output = x
                half = len(output) // 2  # narrower children leave the rest of their outputs unused
                columns = list(range(graph.state_width)) if child in everything else list(graph.factors[child])
                for i, column in enumerate(columns):
                    scale = scaling["target_scale"][column]
                    mean[member, n, column] = output[i] * scale + scaling["target_shift"][column]
                    if config.predict_change and (child in everything or masks[n, c, c]):
                        mean[member, n, column] += row[column]
                    spread = math.log1p(math.exp(float(output[half + i]))) + VARIANCE_FLOOR
                    variance[member, n, column] = spread * scale**2
    return mean, variance.sqrt()


@pytest.mark.parametrize("hidden", [(), (16,), (16, 12, 20)])
@pytest.mark.parametrize("predict_change", [True, False])
@pytest.mark.parametrize(
    ("family", "graph", "config"),
    [
        ("full", GRAPH, TINY),
        ("global", GRAPH, TINY),
        ("local", GRAPH, TINY),
        ("local", GRAPH, SHARED),
        ("local", BOX, ALIKE),
    ],
)
def test_predictions_equal_those_of_loops(
    family: str, graph: LocalGraph, config: DynamicsConfig, predict_change: bool, hidden: tuple[int, ...]
) -> None:
    made, rows = model(family, replace(config, hidden=hidden, predict_change=predict_change), graph), some_rows(16)
    assert 0 < int((rows[:, 0] > 0).sum()) < 16  # both of the local graphs occur
    mean, scale = slow_twin(made, rows)
    found = made.predict(rows)
    torch.testing.assert_close(found.mean.double(), mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.scale.double(), scale, rtol=1e-5, atol=1e-5)


def test_a_deterministic_prediction_equals_that_of_loops() -> None:
    made, rows = model("deterministic", TINY), some_rows(16)
    found, masks = made.predict(rows), GRAPH.mask(rows)
    weights = {name: weight.double() for name, weight in made.weights.items()}
    for member in range(2):
        for n, row in enumerate(rows.double()):
            for c, child in enumerate(GRAPH.children):
                x = torch.cat([(row - made.scaling["input_shift"]) / made.scaling["input_scale"], masks[n, :, c]])
                for p, parent in enumerate(GRAPH.parents):
                    x[list(GRAPH.factors[parent])] *= masks[n, p, c]
                for number in range(3):
                    x = x @ weights[f"mlp.{number}.weight"][member, c] + weights[f"mlp.{number}.bias"][member, c, 0]
                    x = x.clamp(min=0) if number < 2 else x
                for i, column in enumerate(GRAPH.factors[child]):
                    change = x[i] * made.scaling["target_scale"][column] + made.scaling["target_shift"][column]
                    expected = float(change + row[column] * masks[n, c, c])
                    assert float(found.mean[member, n, column]) == pytest.approx(expected, abs=1e-5)
    assert bool(found.scale.eq(0).all())


def test_factors_that_are_alike_can_change_places() -> None:
    mechanisms = Mechanisms(BOX, ALIKE, torch.device("cpu"))
    weights = mechanisms.initial_weights(Stream(0, "weights"))
    rows = some_rows(20)
    mask = Stream(0, "mask").uniform(20, 5, 4) < 0.6
    order, parents = [1, 4, 5, 2, 0, 3, 6], [1, 2, 0, 3, 4]  # p gets q's place, q r's, r p's
    assert [order[i] for i in BOX.columns(BALLS)] == list(BOX.columns(("q", "r", "p")))
    turned = mask[:, parents][:, :, parents[:4]]
    before, after = mechanisms(weights, rows, mask), mechanisms(weights, rows[:, [*order, 7, 8]], turned)
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one[..., order], other)
        assert not torch.allclose(one, other)


def test_the_size_does_not_grow_with_objects_that_are_alike() -> None:
    def size(k: int, alike: bool) -> int:
        graph = Objects(k).graph
        names = tuple(name for name in graph.children if name != "agent")
        config = replace(SHARED, alike=(names,) if alike else ())
        return sum(weight.numel() for weight in model("local", config, graph).weights.values())

    assert size(2, True) == size(8, True) < size(2, False) < size(8, False)


@either
def test_runs_of_shared_networks_are_the_same_alone_and_together_to_the_bit(
    graph: LocalGraph, data: Any, config: DynamicsConfig
) -> None:
    odd = replace(config, members=3, hidden=(13, 7), features=7, batch=37, epoch_rows=150)
    for own, lengths in ((config, (200, 200, 200)), (odd, (31, 200, 97))):
        datasets = [data(rows, seed) for seed, rows in enumerate(lengths)]
        together = fit_dynamics_runs(datasets, graph, seeds=[5, 6, 7], config=own)
        for one, seed, found in zip(datasets, (5, 6, 7), together, strict=True):
            assert same(found, fit_dynamics(one, graph, seed=seed, config=own))
        assert not same(together[0], together[1])


def test_factors_that_are_alike_are_standardised_by_one_rule() -> None:
    data = box_world()
    scaling = fit_dynamics(data, BOX, config=replace(ALIKE, epochs=1)).scaling
    for first, second, third in ((0, 1, 4), (3, 2, 5)):  # the first columns of p, q and r, and the second ones
        pooled = data.state[:, [first, second, third]]
        for name, expected in (("input_shift", pooled.mean()), ("input_scale", pooled.std(correction=0))):
            torch.testing.assert_close(scaling[name][[first, second, third]], expected.expand(3))
    torch.testing.assert_close(scaling["input_shift"][6:], data.rows[:, 6:].mean(0))


def test_what_one_factor_shows_is_known_of_all_that_are_alike() -> None:
    graph = LocalGraph(state={"p": 0, "q": 1}, action={"a": 0}, edges={"p": ["p"], "q": ["q"]})
    rows = Stream(0, "test-composer").uniform(2_000, 3, low=-1.0)
    rows[:, 1] = rows[:, 1].abs()  # q was never below 0, where it would not move
    known = Transitions(rows[:, :2], rows[:, 2:], 1.5 * rows[:, :2].clamp(min=0) + rows[:, :2].clamp(max=0))
    config = DynamicsConfig(members=1, hidden=(32,), features=32, epochs=15, batch=64, learning_rate=1e-2, shared=True)
    below = torch.tensor([[0.5, -0.8, 0.0], [0.5, -0.4, 0.0]])
    alike, apart = (
        fit_dynamics(known, graph, config=replace(config, alike=alike)).predict(below).mean[0, :, 1]
        for alike in ((("p", "q"),), ())
    )
    assert (alike - below[:, 1]).abs().max() < 0.05 < (apart - below[:, 1]).abs().max()


@pytest.mark.parametrize(
    "change",
    [{"alike": [("a", "b"), ("b",)], "shared": True}, {"alike": [("a", "b")]}, {"alike": [()], "shared": True}],
)
def test_groups_that_make_no_sense_are_refused(change: dict[str, Any]) -> None:
    with refused():
        DynamicsConfig(**change)


@pytest.mark.parametrize("group", [("a", "c"), ("a", "u"), ("a", "aa")], ids=["width", "state and action", "unknown"])
def test_factors_that_cannot_be_alike_are_refused(group: tuple[str, ...]) -> None:
    with refused():
        fit_dynamics(world(), GRAPH, config=replace(SHARED, alike=(group,)))


def test_shared_networks_need_a_composer() -> None:
    with refused():
        fit_dynamics(world(), GRAPH, "global", config=SHARED)


def test_a_family_refuses_settings_that_it_does_not_have() -> None:
    with refused():
        functools.partial(fit_dynamics, world(), GRAPH, "deterministic")(config=SHARED)
