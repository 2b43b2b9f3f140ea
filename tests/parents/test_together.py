"""Parts that touch are kept together where the data shows that they belong together, and only there."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mocoda import LocalGraph, fit_parents, make_recipe, make_task
from mocoda.data.transitions import Transitions
from mocoda.engine.randomness import Stream
from mocoda.parents.groups import belong_together
from mocoda.parents.recombination import GroupedParents, MatchedParents


def near(rows: torch.Tensor) -> torch.Tensor:
    """Hand and cube are linked where the first column of both is below 0.5."""
    mask = torch.eye(3, 2, dtype=torch.bool, device=rows.device).repeat(len(rows), 1, 1)
    mask[:, 2, 0] = True
    touching = (rows[:, 0] < 0.5) & (rows[:, 1] < 0.5)
    mask[:, :2, :2] |= touching[:, None, None]
    return mask


GRAPH = LocalGraph({"hand": [0], "cube": [1]}, {"push": [0]}, {"hand": ["hand", "push"], "cube": ["cube"]}, local=near)


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
    assert belong_together(data.rows, GRAPH, Stream(seed, "together")) == carried
    assert isinstance(fit_parents(data, GRAPH, "mocoda", seed=seed), GroupedParents if carried else MatchedParents)


def test_of_what_is_hardly_ever_linked_nothing_is_known_so_it_stays_together() -> None:
    data = rows_where(False, 0)
    apart = data[(data.state > 0.5).any(1)]
    assert belong_together(apart.rows, GRAPH, Stream(0, "together"))


@pytest.mark.parametrize("rows", [1_000, 8_000])
def test_the_corner_of_2d_navigation_is_reached_by_default(rows: int) -> None:
    task = make_task("navigation")
    data = task.collect(rows, seed=0)
    x, y = fit_parents(data, task.graph, "mocoda", seed=0).sample(4_000, seed=0)[:, :2].T
    assert float(((x < 0.5) & (y > 0.5)).float().mean()) > 0.03
    even = fit_parents(data, task.graph, make_recipe("mocoda", neighbourhoods="even"), seed=0)
    assert isinstance(even, GroupedParents)


@pytest.mark.parametrize("objects", [2, 5])
def test_objects_that_are_carried_stay_with_what_carries_them(objects: int) -> None:
    task = make_task(f"objects:{objects}")
    assert isinstance(fit_parents(task.collect(4_000, seed=0), task.graph, "mocoda"), GroupedParents)
