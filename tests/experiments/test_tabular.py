"""Worlds that are known exactly, and models that count: against definitions written again, entry by entry."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from approved import refused
from torch import Tensor

from experiments.theory.tabular import STRUCTURES, Counts, TabularMDP, l1_distances, random_mdp, shares
from mocoda.engine.randomness import Stream, generator

WORLDS: list[dict[str, Any]] = [
    {"factors": 1},
    {"factors": 2, "values": 3},
    {"factors": 3},
    {"factors": 3, "overlap": 2, "seed": 4},
    {"factors": 3, "overlap": 1, "switches": 0},
    {"factors": 4, "overlap": 1, "switches": 2},
]
every_world = pytest.mark.parametrize("wanted", WORLDS, ids=str)
every_structure = pytest.mark.parametrize("name", STRUCTURES)


def listed(world: TabularMDP) -> list[tuple[int, ...]]:
    """The factors' values at each state-action, in the order of their numbers."""
    return list(itertools.product(range(world.values), repeat=2 * world.factors))


def next_states(world: TabularMDP) -> list[tuple[int, ...]]:
    return list(itertools.product(range(world.values), repeat=world.factors))


def seen_by(world: TabularMDP, name: str, child: int) -> list[tuple[int, ...]]:
    """What a mechanism of the structure sees at each state-action, from the definition."""
    rows = listed(world)
    if name == "full":
        return rows
    sees = []
    for row, place in zip(rows, world.neighbourhood.tolist(), strict=True):
        if name == "local":
            parents = [p for p in range(2 * world.factors) if world.edges[place, p, child]]
            sees.append((place, *(row[p] for p in parents)))
        else:
            decides = range(world.factors) if world.neighbourhoods > 1 else ()
            anywhere = [p for p in range(2 * world.factors) if world.edges[:, p, child].any() or p in decides]
            sees.append(tuple(row[p] for p in anywhere))
    return sees


def data_of(world: TabularMDP, samples: int = 200) -> Counts:
    return world.draw(samples, generator(7, samples))


# The world


@every_world
def test_children_are_independent_and_depend_on_their_local_parents_alone(wanted: dict[str, Any]) -> None:
    world = random_mdp(**wanted)
    assert torch.allclose(world.transitions.sum(1), torch.ones(world.pairs, dtype=torch.float64), atol=1e-12)
    following = next_states(world)
    marginals = torch.zeros(world.factors, world.pairs, world.values, dtype=torch.float64)
    for number, values in enumerate(following):
        for child, value in enumerate(values):
            marginals[child, :, value] += world.transitions[:, number]
    for number, values in enumerate(following):
        product = torch.stack([marginals[child, :, value] for child, value in enumerate(values)]).prod(0)
        assert torch.allclose(product, world.transitions[:, number], atol=1e-12)
    for child in range(world.factors):
        known: dict[tuple[int, ...], Tensor] = {}
        for sees, marginal in zip(seen_by(world, "local", child), marginals[child], strict=True):
            assert torch.allclose(marginal, known.setdefault(sees, marginal), atol=1e-12)
        assert len({tuple(m.tolist()) for m in known.values()}) > 1  # and they do depend on them


@every_world
def test_a_child_has_one_action_and_one_more_state_factor_than_the_overlap(wanted: dict[str, Any]) -> None:
    world, overlap = random_mdp(**wanted), wanted.get("overlap", 0)
    state, action = world.edges.split(world.factors, 1)
    assert bool((state.sum(1) == overlap + 1).all()) and bool((state.sum(2) == overlap + 1).all())
    assert bool((action.sum(1) == 1).all()) and bool((action.sum(2) == 1).all())


@every_world
def test_neighbourhoods_are_equally_large_and_the_deciding_factors_tell_them_apart(wanted: dict[str, Any]) -> None:
    world = random_mdp(**wanted)
    assert world.neighbourhoods == world.values ** wanted.get("switches", 1)
    assert world.neighbourhood.bincount().tolist() == [world.pairs // world.neighbourhoods] * world.neighbourhoods
    places: dict[tuple[int, ...], int] = {}
    for row, place in zip(listed(world), world.neighbourhood.tolist(), strict=True):
        assert places.setdefault(row[: world.factors], place) == place
    if world.neighbourhoods > 1:
        for factor in range(world.factors):  # each of them matters
            assert len({places[key] for key in places if sum(key) == key[factor]}) > 1


# Counting


@every_world
@every_structure
def test_infinitely_many_samples_give_the_truth(wanted: dict[str, Any], name: str) -> None:
    world = random_mdp(**wanted)
    endless = Counts(torch.arange(world.pairs), world.transitions)  # counts in proportion to the probabilities
    assert float(l1_distances(world.transitions, world.structure(name).fitted(endless)).max()) < 1e-12


@every_world
@every_structure
def test_a_model_is_the_share_of_what_was_counted(wanted: dict[str, Any], name: str) -> None:
    world = random_mdp(**wanted)
    counts = data_of(world, 40)
    fitted = world.structure(name).fitted(counts)
    following = next_states(world)
    children: list[list[Any]] = [[values[i] for values in following] for i in range(world.factors)]
    if name == "full":
        children = [list(following)]
    expected = torch.ones_like(fitted)
    for child, values in enumerate(children):
        sees = seen_by(world, name, child)
        counted: dict[Any, dict[Any, int]] = {}
        for pair, outcomes in zip(counts.visited.tolist(), counts.outcomes.tolist(), strict=True):
            for value, times in zip(values, outcomes, strict=True):
                own = counted.setdefault(sees[pair], {})
                own[value] = own.get(value, 0) + times
        for pair, number in itertools.product(range(world.pairs), range(world.states)):
            own = counted.get(sees[pair], dict.fromkeys(values, 1))  # uniform where nothing was counted
            expected[pair, number] *= own[values[number]] / sum(own.values())
    assert torch.allclose(fitted, expected, atol=1e-12)


@every_world
@every_structure
def test_supported_is_where_all_parents_were_seen(wanted: dict[str, Any], name: str) -> None:
    world = random_mdp(**wanted)
    visited = Stream(0, "visited").permutation(world.pairs)[: max(1, world.pairs // 6)]
    expected = torch.ones(world.pairs, dtype=torch.bool)
    for child in range(1 if name == "full" else world.factors):
        sees = seen_by(world, name, child)
        seen = {sees[pair] for pair in visited.tolist()}
        expected &= torch.tensor([one in seen for one in sees])
    assert world.structure(name).supported(visited).equal(expected)
    assert bool(expected[visited].all())


# Drawing and measuring


def test_draws_are_as_many_as_asked_for_and_follow_the_transitions() -> None:
    world = random_mdp(2, seed=3)
    counts = world.draw(400_000, generator(0))
    assert int(counts.outcomes.sum()) == 400_000 and counts.visited.tolist() == list(range(16))
    visits = counts.outcomes.sum(1)
    assert float((visits / 25_000 - 1).abs().max()) < 0.03
    assert float(l1_distances(world.transitions, shares(counts.outcomes)).max()) < 0.03
    few = world.draw(3, generator(0))
    assert int(few.outcomes.sum()) == 3 and len(few.visited) == len(few.outcomes) <= 3
    at = world.draw_at(torch.tensor([5, 2]), torch.tensor([7, 0]), generator(0))
    assert at.outcomes.sum(1).tolist() == [7, 0] and at.visited.tolist() == [5, 2]


@pytest.mark.parametrize(
    "wanted", [{"factors": 0}, {"factors": 2, "overlap": 2}, {"factors": 3, "switches": 4}], ids=str
)
def test_worlds_that_cannot_be(wanted: dict[str, int]) -> None:
    with refused():
        random_mdp(**wanted)
