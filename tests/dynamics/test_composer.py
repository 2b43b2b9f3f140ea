"""One Masked Composer and one network for all children, and factors that are alike."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from dynamics_world import GRAPH, TINY, model, same, some_rows, world
from torch import Tensor

from mocoda import Dynamics, DynamicsConfig, InputError, LocalGraph, Transitions, fit_dynamics, fit_dynamics_runs
from mocoda.dynamics.mechanisms import VARIANCE_FLOOR, Mechanisms
from mocoda.engine.checkpoint import Checkpoint
from mocoda.engine.randomness import Stream
from mocoda.tasks.objects import Objects

SHARED = replace(TINY, shared=True)
BALLS = ("p", "q", "r")
ALIKE = replace(SHARED, alike=(BALLS,))


def row_mask(rows: Tensor) -> Tensor:
    """A ball listens to itself, to the hand, and to the push that follows where the first column is positive."""
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


# The networks


def slow_twin(made: Dynamics, rows: Tensor) -> tuple[Tensor, Tensor]:
    """One composer and one network, member by member, row by row, child by child, parent by parent, in doubles."""
    graph, config = made.graph, made.config
    weights = {name: weight.double() for name, weight in made.weights.items()}
    kind = {name: next((g[0] for g in config.alike if name in g), name) for name in graph.factors}
    masks, states = graph.mask(rows), graph.state_width
    mean = torch.full((config.members, len(rows), states), math.nan, dtype=torch.float64)
    variance = mean.clone()
    for member in range(config.members):

        def layer(name: str, x: Tensor, member: int = member) -> Tensor:
            return x @ weights[f"{name}.weight"][member] + weights[f"{name}.bias"][member, 0]

        for n, row in enumerate(rows.double()):
            seen = (row - made.scaling["input_shift"]) / made.scaling["input_scale"]
            for c, child in enumerate(graph.children):
                x = weights[f"child.{kind[child]}"][member, 0]
                for p, parent in enumerate(graph.parents):
                    if masks[n, p, c]:
                        role = "own" if parent == child else "embed"
                        x = x + layer(f"{role}.{kind[parent]}", seen[list(graph.factors[parent])]).clamp(min=0)
                for number in range(len(config.hidden)):
                    x = layer(f"trunk.{number}", x).clamp(min=0)
                output = layer(f"head.{kind[child]}", x.clamp(min=0))
                half = len(output) // 2
                for i, column in enumerate(graph.factors[child]):
                    scale = made.scaling["target_scale"][column].double()
                    mean[member, n, column] = output[i] * scale + made.scaling["target_shift"][column]
                    if masks[n, c, c]:
                        mean[member, n, column] += row[column]
                    spread = math.log1p(math.exp(float(output[half + i]))) + VARIANCE_FLOOR
                    variance[member, n, column] = spread * scale**2
    return mean, variance.sqrt()


def untrained(graph: LocalGraph, config: DynamicsConfig) -> Dynamics:
    plain = model("local", replace(config, shared=False, alike=()), graph)
    shape = (config.members, config.hidden, config.features, torch.device("cpu"))
    mechanisms = Mechanisms(graph, "local", *shape, True, config.alike)
    return replace(plain, config=config, weights=mechanisms.initial_weights(Stream(3, "weights")))


@pytest.mark.parametrize("hidden", [(), (16,), (16, 12, 20)])
@either
def test_predictions_equal_those_of_loops(
    graph: LocalGraph, data: Any, config: DynamicsConfig, hidden: tuple[int, ...]
) -> None:
    made = untrained(graph, replace(config, hidden=hidden))
    rows = some_rows(24)
    mean, scale = slow_twin(made, rows)
    found = made.predict(rows)
    torch.testing.assert_close(found.mean.double(), mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.scale.double(), scale, rtol=1e-5, atol=1e-5)


def test_all_children_have_the_same_network_and_those_alike_the_same_ends() -> None:
    shapes = {name: tuple(weight.shape) for name, weight in untrained(BOX, ALIKE).weights.items()}
    expected = {"trunk.0.weight": (2, 8, 16), "trunk.1.weight": (2, 16, 16), "embed.push.weight": (2, 2, 8)}
    expected |= {"trunk.0.bias": (2, 1, 16), "trunk.1.bias": (2, 1, 16), "embed.push.bias": (2, 1, 8)}
    for kind, width in {"p": 2, "hand": 1}.items():
        expected |= {f"{role}.{kind}.weight": (2, width, 8) for role in ("embed", "own")}
        expected |= {f"{role}.{kind}.bias": (2, 1, 8) for role in ("embed", "own", "child")}
        expected |= {f"head.{kind}.weight": (2, 16, 4), f"head.{kind}.bias": (2, 1, 4)}
        expected[f"child.{kind}"] = expected.pop(f"child.{kind}.bias")
    assert shapes == expected


def test_factors_that_are_alike_can_change_places() -> None:
    mechanisms = Mechanisms(BOX, "local", 2, (16, 16), 8, torch.device("cpu"), True, (BALLS,))
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
        return sum(
            w.numel() for w in untrained(graph, replace(SHARED, alike=(names,) if alike else ())).weights.values()
        )

    assert size(2, True) == size(8, True) < size(2, False) < size(8, False)


# Training


@either
def test_a_run_is_the_same_alone_and_in_company_to_the_bit(
    graph: LocalGraph, data: Any, config: DynamicsConfig
) -> None:
    odd = replace(config, members=3, hidden=(13, 7), features=7, batch=37, epoch_rows=150)
    for own, lengths in ((config, (200, 200, 200)), (odd, (31, 200, 97))):
        datasets = [data(rows, seed) for seed, rows in enumerate(lengths)]
        together = fit_dynamics_runs(datasets, graph, seeds=[5, 6, 7], config=own)
        for one, seed, found in zip(datasets, (5, 6, 7), together, strict=True):
            assert same(found, fit_dynamics(one, graph, seed=seed, config=own))
        assert not same(together[0], together[1])


class InterruptedTrainingError(Exception):
    pass


@either
def test_an_interrupted_training_goes_on_to_the_same_bytes_and_its_file_too(
    graph: LocalGraph, data: Any, config: DynamicsConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(stage: str, done: int, total: int) -> None:
        if done == 3:
            raise InterruptedTrainingError

    monkeypatch.setattr("mocoda.dynamics.fit.Checkpoint", functools.partial(Checkpoint, interval=0.0))
    longer, told = replace(config, epochs=6, window=3), []
    fit = functools.partial(fit_dynamics, data(), graph, config=longer, checkpoint=tmp_path / "checkpoint")
    with pytest.raises(InterruptedTrainingError):
        fit(progress=interrupt)
    resumed = fit(progress=lambda stage, done, total: told.append(done))
    assert told == [3, 4, 5, 6]
    assert same(resumed, fit_dynamics(data(), graph, config=longer))
    resumed.save(tmp_path / "model")
    loaded = Dynamics.load(tmp_path / "model", graph)
    assert same(loaded, resumed) and loaded.config == longer
    assert loaded.predict(some_rows()).mean.equal(resumed.predict(some_rows()).mean)


def test_factors_that_are_alike_are_standardised_by_one_rule() -> None:
    data = box_world()
    scaling = fit_dynamics(data, BOX, config=replace(ALIKE, epochs=1)).scaling
    for first, second, third in ((0, 1, 4), (3, 2, 5)):  # the first columns of p, q and r, and the second ones
        pooled = data.state[:, [first, second, third]]
        for name, expected in (("input_shift", pooled.mean()), ("input_scale", pooled.std(correction=0))):
            torch.testing.assert_close(scaling[name][[first, second, third]], expected.expand(3))
    torch.testing.assert_close(scaling["input_shift"][6:], data.rows[:, 6:].mean(0))


def test_what_one_was_seen_to_do_is_known_of_all_that_are_alike() -> None:
    graph = LocalGraph(state={"p": 0, "q": 1}, action={"a": 0}, edges={"p": ["p"], "q": ["q"]})
    rows = Stream(0, "test-composer").uniform(2_000, 3, low=-1.0)
    rows[:, 1] = rows[:, 1].abs()  # q was never below 0, where it would not move
    known = Transitions(rows[:, :2], rows[:, 2:], 1.5 * rows[:, :2].clamp(min=0) + rows[:, :2].clamp(max=0))
    config = DynamicsConfig(members=1, hidden=(32,), features=32, epochs=15, batch=64, learning_rate=1e-2, shared=True)
    below = torch.tensor([[0.5, -0.8, 0.0], [0.5, -0.4, 0.0]])
    told, not_told = (
        fit_dynamics(known, graph, config=replace(config, alike=alike)).predict(below).mean[0, :, 1]
        for alike in ((("p", "q"),), ())
    )
    assert (told - below[:, 1]).abs().max() < 0.05 < (not_told - below[:, 1]).abs().max()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"alike": [("a", "b"), ("b",)], "shared": True},
            "alike must be groups of factors, none of them named twice, and needs shared=True, got "
            "(('a', 'b'), ('b',)) with shared=True.",
        ),
        (
            {"alike": [("a", "b")]},
            "alike must be groups of factors, none of them named twice, and needs shared=True, got "
            "(('a', 'b'),) with shared=False.",
        ),
        (
            {"alike": [()], "shared": True},
            "alike must be groups of factors, none of them named twice, and needs shared=True, got "
            "((),) with shared=True.",
        ),
    ],
)
def test_groups_that_make_no_sense_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        DynamicsConfig(**change)
    assert str(caught.value) == message


@pytest.mark.parametrize("group", [("a", "c"), ("a", "u")], ids=["other width", "state and action"])
def test_factors_that_cannot_be_alike_are_refused(group: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as caught:
        fit_dynamics(world(), GRAPH, config=replace(SHARED, alike=(group,)))
    assert str(caught.value) == (
        "factors that are alike must all be of the state or all of the action and as wide as each other, got "
        f"{', '.join(group)}."
    )


def test_factors_that_there_are_not_and_networks_without_a_composer_are_refused() -> None:
    with pytest.raises(InputError, match="there is no factor 'aa'"):
        fit_dynamics(world(), GRAPH, config=replace(SHARED, alike=(("a", "aa"),)))
    with pytest.raises(InputError) as caught:
        fit_dynamics(world(), GRAPH, "global", config=SHARED)
    assert str(caught.value) == (
        "shared=True needs the Masked Composer of the architecture 'local', got 'global'. Remove it."
    )
