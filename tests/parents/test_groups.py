"""What touches is copied jointly, in a world where nothing else is possible."""

from __future__ import annotations

from collections import Counter
from typing import Any

import holding_world as world
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from experiments.columns import PUBLISHED
from mocoda import DynamicsConfig, LocalGraph, Transitions, fit_dynamics, fit_parents, make_task
from mocoda.engine.randomness import Stream
from mocoda.parents import Mocoda
from mocoda.parents.groups import belong_together, neighbourhood, parent_sets_at
from mocoda.parents.mixture import Manifold
from mocoda.parents.recombination import GroupedParents, MatchedParents
from mocoda.tasks.objects import Objects

DATA = world.collect(6_000, seed=0)
GRAPH = world.GRAPH


def grouped(data: Transitions = DATA, graph: LocalGraph = GRAPH, **options: Any) -> GroupedParents:
    parents = fit_parents(data, graph, Mocoda(**options))
    assert isinstance(parents, GroupedParents)
    return parents


@pytest.fixture(scope="module")
def rows() -> Tensor:
    return grouped().sample(12_000, seed=0)


def shares(graph: LocalGraph, rows: Tensor) -> dict[int, float]:
    return {code: count / len(rows) for code, count in Counter(neighbourhood(graph, rows).tolist()).items()}


# The law


def test_rows_are_as_possible_as_recorded_ones(rows: Tensor) -> None:
    recorded = float(world.impossible(DATA.rows).float().mean())
    assert float(world.impossible(rows).float().mean()) <= recorded + 0.005
    flat = fit_parents(DATA, GRAPH, Mocoda(stratified=False)).sample(2_000, seed=0)
    assert float(world.impossible(flat).float().mean()) > 0.5  # so much touches


def test_every_factor_does_what_it_was_recorded_to_do(rows: Tensor) -> None:
    """The simulator's next value of each factor is one that was recorded after the same value of that factor."""
    after = world.step(rows[:2_000])
    for name in GRAPH.children:
        columns = list(GRAPH.factors[name])
        known = {tuple(row) for row in torch.cat([DATA.rows[:, columns], after_of(columns)], 1).tolist()}
        found = torch.cat([rows[:2_000][:, columns], (after[:, columns] * 1e3).round()], 1).tolist()
        assert sum(tuple(row) in known for row in found) > 0.99 * len(found)


def after_of(columns: list[int]) -> Tensor:
    return (world.step(DATA.rows)[:, columns] * 1e3).round()


def test_local_graphs_are_drawn_as_often_as_recorded(rows: Tensor) -> None:
    recorded, drawn = shares(GRAPH, DATA.rows), shares(GRAPH, rows)
    assert drawn.keys() == recorded.keys()
    for code, share in recorded.items():
        assert drawn[code] == pytest.approx(share, abs=1e-6)  # two passes over all rows


def test_what_does_not_touch_becomes_independent(rows: Tensor) -> None:
    known = {tuple(row) for row in DATA.rows.tolist()}
    assert sum(tuple(row) in known for row in rows[:2_000].tolist()) < 0.35 * 2_000  # those that touch both
    alone = (
        neighbourhood(GRAPH, rows) == neighbourhood(GRAPH, rows[~GRAPH.mask(rows)[:, 0, 1:].any(1)][:1])
    ).nonzero()[:, 0]
    one, other = rows[alone][:, 12], rows[alone][:, 17]  # the cosines of both
    assert len(alone) > 500 and abs(float(np.corrcoef(one, other)[0, 1])) < 0.1


def test_a_group_comes_from_all_rows_that_have_it_whatever_else_they_connect() -> None:
    """Object 2 rests at the left while object 1 is held, and at the right only while nothing is."""
    state, action = DATA.state.clone(), DATA.action
    near = GRAPH.mask(DATA.rows)[:, 0, 1:]
    state[:, 14] = torch.where(near[:, 0], -5.0, 5.0)
    moved = Transitions(state, action, DATA.next_state)[~near[:, 1]]
    drawn = grouped(moved).sample(4_000, seed=0)
    holding = GRAPH.mask(drawn)[:, 0, 1]
    assert 0.3 < float((drawn[holding][:, 14] > 0).float().mean()) < 0.9


# Small and many local graphs


@settings(deadline=None, max_examples=20, derandomize=True)
@given(st.integers(1, 40), st.integers(0, 100), st.integers(0, 60))
def test_any_rows_will_do(rows: int, seed: int, n: int) -> None:
    data = DATA[Stream(seed, "test-groups").permutation(len(DATA))[:rows]]
    drawn = grouped(data).sample(n, seed=seed)
    assert drawn.shape == (n, 24) and set(shares(GRAPH, drawn)) <= set(shares(GRAPH, data.rows))
    for columns in ([0, 1, 2, 3], [9, 10, 11], [14, 15, 16]):
        assert set(map(tuple, drawn[:, columns].tolist())) <= set(map(tuple, data.rows[:, columns].tolist()))


def test_thousands_of_local_graphs_all_come_again() -> None:
    task = Objects(8)
    data = task.collect(4_000, seed=0)
    parents = grouped(data, task.graph)
    drawn = parents.sample(4_000, seed=0)
    assert len(parents.groups.numbers) > 500
    assert shares(task.graph, drawn) == shares(task.graph, data.rows)
    known = {tuple(row) for row in data.rows.tolist()}
    assert sum(tuple(row) in known for row in drawn.tolist()) < 0.05 * len(drawn)
    assert parents.source["neighbourhoods"]["skipped"] == [] and len(parents.source["neighbourhoods"]["rows"]) == 100


# Parent sets that overlap

SHARED = LocalGraph(
    state={"g": 0, "a": 1, "b": 2},
    action={"u": 0},
    edges={"g": ["g", "u"], "a": ["g", "a"], "b": ["g", "b"]},
    local=lambda rows: _touching(rows),
)


def _touching(rows: Tensor) -> Tensor:
    mask = SHARED.sparsest.repeat(len(rows), 1, 1)
    mask[:, 1, 2] = mask[:, 2, 1] = rows[:, 0] > 1
    return mask


def test_sets_that_overlap_anyway_are_matched_and_those_that_touch_are_not() -> None:
    rng = np.random.default_rng(0)
    g = rng.normal(size=6_000)
    noise = rng.normal(size=(6_000, 2))
    table = torch.tensor(np.stack([g, g + 0.3 * noise[:, 0], -g + 0.3 * noise[:, 0], noise[:, 1]], 1)).float()
    drawn = grouped(Transitions(table[:, :3], table[:, 3:], table[:, :3]), SHARED).sample(6_000, seed=0)
    a, b = (drawn[:, 1] - drawn[:, 0]).numpy(), (drawn[:, 2] + drawn[:, 0]).numpy()
    touching = (drawn[:, 0] > 1).numpy()
    assert a.std() == pytest.approx(0.3, rel=0.1) and b.std() == pytest.approx(0.3, rel=0.1)
    assert abs(np.corrcoef(a[~touching], b[~touching])[0, 1]) < 0.1  # matched, and independent given g
    assert np.corrcoef(a[touching], b[touching])[0, 1] > 0.99  # as recorded together


def test_sets_that_touch_and_overlap_are_one() -> None:
    both = GRAPH.sparsest.clone()
    both[0, 1:] = both[3, 1:] = True
    assert parent_sets_at(GRAPH, both) == [("hand", "object1", "object2", "action")]
    one = GRAPH.sparsest.clone()
    one[0, 1] = one[3, 1] = one[1, 0] = True
    assert parent_sets_at(GRAPH, one) == [("object2",), ("hand", "object1", "action")]
    assert parent_sets_at(GRAPH, GRAPH.sparsest) == [("hand", "action"), ("object1",), ("object2",)]


# Mixtures


def test_mixtures_are_projected_unless_they_are_the_paper_s() -> None:
    manifold = Manifold.of(DATA.rows, GRAPH)
    projected = fit_parents(DATA, GRAPH, Mocoda(density="mixture", stratified=False, components=4))
    drawn = projected.sample(1_000, seed=0)
    assert manifold.holds(drawn).all() and manifold.holds(DATA.rows).all()
    assert projected.source == {"projected": {"unit_vectors": [[5, 6], [12, 13], [17, 18]]}}  # type: ignore[attr-defined]
    published = fit_parents(DATA, GRAPH, Mocoda(components=4, **PUBLISHED)).sample(1_000, seed=0)
    assert float(manifold.holds(published).float().mean()) < 0.5
    for column, value in ((0, 10.0), (5, 2.0)):  # a joint far out of its range, and a direction of the wrong length
        wrong = DATA.rows.clone()
        wrong[:, column] = value
        assert not manifold.holds(wrong).any()


@pytest.mark.long
def test_with_a_model_rows_are_confirmed_as_often_as_recorded_ones() -> None:
    data = world.collect(20_000, seed=0)
    config = DynamicsConfig(members=2, hidden=(128, 128), epochs=25)
    model = fit_dynamics(data, GRAPH, seed=0, config=config)
    places = [2, 3, 9, 10, 11, 14, 15, 16]

    def confirmed(rows: Tensor) -> float:
        off = (model.sample(rows, seed=0) - world.step(rows))[:, places].abs().amax(1)
        return float((off < 0.02).float().mean())

    recorded, mixture = data.rows[::10], fit_parents(data, GRAPH, Mocoda(**PUBLISHED))
    assert confirmed(grouped(data).sample(2_000, seed=1)) > 0.95 * confirmed(recorded)
    assert confirmed(mixture.sample(2_000, seed=1)) < 0.2 * confirmed(recorded)


# Whether parts depend on each other


def touching(rows: Tensor) -> Tensor:
    """Hand and cube are connected where the first column of both is below 0.5."""
    mask = torch.eye(3, 2, dtype=torch.bool, device=rows.device).repeat(len(rows), 1, 1)
    mask[:, 2, 0] = True
    near = (rows[:, 0] < 0.5) & (rows[:, 1] < 0.5)
    mask[:, :2, :2] |= near[:, None, None]
    return mask


CUBE = LocalGraph(
    {"hand": [0], "cube": [1]}, {"push": [0]}, {"hand": ["hand", "push"], "cube": ["cube"]}, local=touching
)


def rows_where(carried: bool, seed: int, n: int = 3_000) -> Transitions:
    """Hands and cubes anywhere or, where a cube is carried, the cube where the hand is."""
    stream = Stream(seed, "touching")
    hand, cube, push = stream.uniform(3, n)
    if carried:
        cube = torch.where((hand < 0.5) & (cube < 0.5), hand + 0.01 * stream.normal(n), cube)
    state = torch.stack([hand, cube], 1)
    return Transitions(state, push[:, None], state + push[:, None] * torch.tensor([1.0, 0.0]))


@settings(max_examples=10, deadline=None)
@given(st.booleans(), st.integers(0, 1_000))
def test_parts_belong_together_if_one_tells_where_the_other_is(carried: bool, seed: int) -> None:
    data = rows_where(carried, seed)
    assert belong_together(data.rows, CUBE, Stream(seed, "together")) == carried
    assert isinstance(fit_parents(data, CUBE, "mocoda", seed=seed), GroupedParents if carried else MatchedParents)


@pytest.mark.parametrize("rows", [1_000, 8_000])
def test_the_corner_of_2d_navigation_is_reached_by_default(rows: int) -> None:
    task = make_task("navigation")
    data = task.collect(rows, seed=0)
    x, y = fit_parents(data, task.graph, "mocoda", seed=0).sample(4_000, seed=0)[:, :2].T
    assert float(((x < 0.5) & (y > 0.5)).float().mean()) > 0.03


@pytest.mark.parametrize("objects", [2, 5])
def test_objects_that_are_carried_stay_with_what_carries_them(objects: int) -> None:
    task = make_task(f"objects:{objects}")
    assert isinstance(fit_parents(task.collect(4_000, seed=0), task.graph, "mocoda"), GroupedParents)
