"""Graphs: columns of factors, groups of parents, masks and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from approved import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csgraph
from torch import Tensor

from mocoda.graph.local_graph import LocalGraph, connected_components


def graph(**replaced: Any) -> LocalGraph:
    """Two arms and an object, that both arms' actions reach."""
    parts: dict[str, Any] = {
        "state": {"left": slice(0, 2), "right": [2, 3], "thing": 4},
        "action": {"pull": 0, "push": slice(1, 3)},
        "edges": {"left": ["left", "pull"], "right": ["right", "push"], "thing": ["thing"]},
    }
    return LocalGraph(**(parts | replaced))


ROWS = torch.arange(24.0).reshape(3, 8)


# --- columns


def test_factors_are_columns_of_a_row_with_the_action_after_the_state() -> None:
    made = graph()
    assert made.factors == {"left": (0, 1), "right": (2, 3), "thing": (4,), "pull": (5,), "push": (6, 7)}
    assert (made.state_width, made.width) == (5, 8)
    assert made.parents == ("left", "right", "thing", "pull", "push")
    assert made.children == ("left", "right", "thing")


def test_factors_may_be_interleaved_and_in_any_order() -> None:
    made = graph(state={"left": slice(4, 0, -2), "right": [3, 1], "thing": slice(1)})
    assert made.factors["left"] == (4, 2)
    assert made.factors["right"] == (3, 1)
    assert made.factors["thing"] == (0,)


@pytest.mark.parametrize(
    "replaced",
    [
        {"state": {"left": [0, 1], "right": [1, 2], "thing": 3}},
        {"action": {"pull": slice(0, 2), "push": 1}},
        {"state": {"left": 0, "right": 2, "thing": 5}},
        {"state": {"left": slice(0, None), "right": 1, "thing": 2}},
        {"state": {"left": -1, "right": 0, "thing": 1}},
        {"state": {"left": 0, "right": [], "thing": 1}},
        {"state": {"left": 0, "right": 1, "thing": slice(2, -1)}},
        {"action": {"left": 0, "push": 1, "thing": 2}},
        {"edges": {"left": ["left"], "right": [], "thing": ["thing"]}},
        {"edges": {"left": ["left"], "right": ["right"]}},
        {"edges": {"left": ["left"], "right": ["zzz"], "thing": ["thing"]}},
        {"edges": {"left": ["left"], "rihgt": ["right"], "thing": ["thing"]}},
        {"edges": {"left": ["left"], "right": ["right"], "thing": ["thing"], "pull": ["thing"]}},
        {"given_parent_sets": [["left", "pul"]]},
        {"relative": {8: 0}},
        {"relative": {0: -1}},
        {"relative": {"thing": 0}},
        {"relative": {2: 1, 1: 0}},
    ],
)
def test_a_graph_that_cannot_be_is_refused(replaced: dict[str, Any]) -> None:
    with refused():
        graph(**replaced)


def test_models_do_not_depend_on_what_is_relative() -> None:
    one, moved = graph(), graph(relative={1: 0})
    assert one.relative == {} and moved.relative == {1: 0}
    assert moved.structure == one.structure and moved.fingerprint(ROWS) == one.fingerprint(ROWS)


# --- parent sets


@pytest.mark.parametrize(
    ("replaced", "expected"),
    [
        ({}, "left pull, right push, thing"),
        # Equal sets count once, and one within another is absorbed; others may overlap.
        (
            {"edges": {"left": ["pull", "left"], "right": ["left", "pull"], "thing": ["right", "pull"]}},
            "left pull, right pull, thing, push",
        ),
        # A factor that no child depends on is a set of its own.
        ({"edges": {"left": ["left"], "right": ["left"], "thing": ["thing"]}}, "left, thing, right, pull, push"),
        ({"given_parent_sets": [["push", "thing"], ["left", "right"], ["left"]]}, "thing push, left right, pull"),
        ({"given_parent_sets": []}, "left, right, thing, pull, push"),
    ],
)
def test_parent_sets_are_those_of_the_children_or_given(replaced: dict[str, Any], expected: str) -> None:
    assert ", ".join(map(" ".join, graph(**replaced).parent_sets)) == expected


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sets(st.sampled_from(range(6)), min_size=1), min_size=3, max_size=3))
def test_parent_sets_cover_every_factor_and_none_lies_within_another(chosen: list[set[int]]) -> None:
    names = ["a", "b", "c", "d", "e", "f"]
    edges = {child: [names[i] for i in parents] for child, parents in zip("abc", chosen, strict=True)}
    made = LocalGraph(state={"a": 0, "b": 1, "c": 2}, action={"d": 0, "e": 1, "f": 2}, edges=edges)
    groups = [set(group) for group in made.parent_sets]
    assert set().union(*groups) == set(names)
    assert all(not one <= other for one in groups for other in groups if one is not other)
    assert all(any(set(parents) <= group for group in groups) for parents in edges.values())
    for group in groups:
        assert group in [set(parents) for parents in edges.values()] or len(group) == 1


# --- masks

SPARSEST = [
    [True, False, False],
    [False, True, False],
    [False, False, True],
    [True, False, False],
    [False, True, False],
]


def test_without_a_local_function_the_sparsest_graph_holds_everywhere() -> None:
    made = graph()
    assert made.sparsest.tolist() == SPARSEST
    assert made.mask(ROWS).tolist() == [SPARSEST] * 3
    assert made.mask(ROWS[:0]).shape == (0, 5, 3)


def touching(rows: Tensor) -> Tensor:
    """All edges where the first column is above 5, the sparsest graph elsewhere."""
    return torch.tensor(SPARSEST) | (rows[:, 0] > 5)[:, None, None]


def test_with_a_local_function_each_row_has_its_own_edges() -> None:
    everything = [[True] * 3] * 5
    assert graph(local=touching).mask(ROWS).tolist() == [SPARSEST, everything, everything]
    assert graph(local=touching).sparsest.tolist() == SPARSEST


@pytest.mark.parametrize("local", [None, touching], ids=["sparsest", "local"])
@pytest.mark.parametrize("shape", [(3, 7), (8,), (3, 8, 1)])
def test_rows_of_another_shape_are_refused(shape: tuple[int, ...], local: Any) -> None:
    with refused():
        graph(local=local).mask(torch.zeros(shape))


@pytest.mark.parametrize(
    "mask",
    [
        torch.ones(5, 3).bool(),
        torch.ones(3, 3, 5).bool(),
        torch.ones(3, 5, 3),
        np.ones((3, 5, 3), bool),
        None,
        torch.tensor(SPARSEST) & torch.tensor([True, True, False])[:, None, None],  # a child without parents
    ],
    ids=["one", "turned", "float", "numpy", "nothing", "orphan"],
)
def test_a_mask_that_cannot_be_is_refused(mask: object) -> None:
    made = graph(local=lambda rows: mask)
    with refused():
        made.mask(ROWS)


# --- components


def slow_components(mask: list[list[bool]]) -> list[int]:
    """Labels of one graph, by scipy; relabelled with the smallest node of each component."""
    parents, children = len(mask), len(mask[0])
    adjacency = np.zeros((parents + children, parents + children))
    adjacency[:parents, parents:] = mask
    _, labels = csgraph.connected_components(adjacency, directed=False)
    return [int(np.flatnonzero(labels == label)[0]) for label in labels]


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    parents=st.integers(1, 9),
    children=st.integers(1, 6),
    density=st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.6, 1.0]),
)
def test_components_are_those_that_scipy_finds(seed: int, parents: int, children: int, density: float) -> None:
    mask = np.random.default_rng(seed).random((4, parents, children)) < density
    labels = connected_components(torch.from_numpy(mask))
    assert labels.tolist() == [slow_components(one) for one in mask.tolist()]


@pytest.mark.parametrize("links", [1, 2, 7, 8, 20])
def test_a_long_chain_is_one_component(links: int) -> None:
    """Parent i feeds children i and i + 1: the longest path there can be between the ends."""
    mask = torch.zeros(1, links, links + 1, dtype=torch.bool)
    for i in range(links):
        mask[0, i, i : i + 2] = True
    assert connected_components(mask).tolist() == [[0] * (2 * links + 1)]
