"""Composition: boxes that a hook swept one at a time are swept at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mocoda import LocalGraph, Transitions, fit_parents
from mocoda.engine.randomness import Stream
from mocoda.parents import Mocoda
from mocoda.parents.recombination import ComposedParents

REACH, TOUCH = 0.3, 0.1  # how near a box is to the hook that takes it along, and to another box that it pushes


def _mask(rows: Tensor) -> Tensor:
    hook, one, two = rows[:, 0], rows[:, 2], rows[:, 3]
    mask = GRAPH.sparsest.to(rows.device).repeat(len(rows), 1, 1)
    for number, box in ((1, one), (2, two)):
        swept = (hook - box).abs() < REACH
        mask[:, 0, number] |= swept
        mask[:, 3, number] |= swept
    pushed = (one - two).abs() < TOUCH
    mask[:, 1, 2] |= pushed
    mask[:, 2, 1] |= pushed
    return mask


# Columns: the hook's place and height, which box 1 is swept at, the place of each box, and where the hook goes.
GRAPH = LocalGraph(
    state={"hook": [0, 1], "box1": [2], "box2": [3]},
    action={"move": [0]},
    edges={"hook": ["hook", "move"], "box1": ["box1"], "box2": ["box2"]},
    local=_mask,
    relative={2: 0, 3: 0},
)


def collect(rows: int, seed: int = 0) -> Transitions:
    """Rows in which the hook is on one box, in a third of them each, or on none; never on both."""
    stream = Stream(seed, "test-composed")
    hook, low, move = stream.child("hook").uniform(3, rows)
    where = stream.child("kind").integers(3, rows)
    offset = 0.25 * (2 * stream.child("offset").uniform(2, rows) - 1)
    away = hook + (1 + stream.child("away").uniform(2, rows)) * torch.tensor([[1.0], [-1.0]])
    box = torch.where(where == torch.tensor([[1], [2]]), hook + offset, away)
    state = torch.stack([hook, low, *box], 1)
    return Transitions(state, move[:, None], step(torch.cat([state, move[:, None]], 1)))


def step(rows: Tensor) -> Tensor:
    after = rows[:, :4].clone()
    after[:, 0] += 0.1 * rows[:, 4]
    for column in (2, 3):
        swept = (rows[:, 0] - rows[:, column]).abs() < REACH
        after[:, column] += torch.where(swept, 0.1 * rows[:, 4], 0.0)
    return after


DATA = collect(6_000)


def composed(data: Transitions = DATA, graph: LocalGraph = GRAPH, **options: Any) -> ComposedParents:
    parents = fit_parents(data, graph, Mocoda(composition=True, **options))
    assert isinstance(parents, ComposedParents)
    return parents


@pytest.fixture(scope="module")
def rows() -> Tensor:
    return composed().sample(12_000, seed=0)


def swept(rows: Tensor) -> Tensor:
    return GRAPH.mask(rows)[:, 0, 1:]


def test_boxes_are_swept_at_once_that_never_were(rows: Tensor) -> None:
    assert composed().source["neighbourhoods"]["drawn"] == "composed"
    plain = fit_parents(DATA, GRAPH, Mocoda()).sample(12_000, seed=0)
    assert not swept(DATA.rows).all(1).any() and not swept(plain).all(1).any()
    both = float(swept(rows).all(1).float().mean())
    # Two thirds of the rows sweep one box. The other is wanted in a third of these, and boxes often lie apart.
    assert 0.07 < both < 2 / 9


def test_each_box_is_in_the_hook_as_it_was_recorded_to_be(rows: Tensor) -> None:
    """By how far it is from the hook, and by its place where nothing sweeps it."""
    for number, column in enumerate((2, 3)):
        here, there = swept(rows)[:, number], swept(DATA.rows)[:, number]
        recorded = (DATA.rows[there][:, column] - DATA.rows[there][:, 0]).sort().values
        drawn = rows[here][:, column] - rows[here][:, 0]
        place = torch.searchsorted(recorded, drawn).clamp(1, len(recorded) - 1)
        assert torch.minimum((recorded[place] - drawn).abs(), (recorded[place - 1] - drawn).abs()).amax() < 1e-5
        assert set(rows[~here][:, column].tolist()) <= set(DATA.rows[~there][:, column].tolist())


def test_boxes_that_would_touch_are_not_put_together(rows: Tensor) -> None:
    apart = (rows[:, 2] - rows[:, 3]).abs()
    assert float(apart.min()) >= TOUCH
    ignorant = LocalGraph(GRAPH.state, GRAPH.action, GRAPH.edges, _without_touch, relative=GRAPH.relative)
    drawn = composed(graph=ignorant).sample(12_000, seed=0)
    assert float((drawn[:, 2] - drawn[:, 3]).abs().min()) < TOUCH


def _without_touch(rows: Tensor) -> Tensor:
    mask = _mask(rows)
    mask[:, 1, 2] = mask[:, 2, 1] = False
    return mask


def test_all_else_is_as_frequent_as_recorded(rows: Tensor) -> None:
    nothing = (~swept(rows).any(1)).float().mean()
    assert float(nothing) == pytest.approx(float((~swept(DATA.rows).any(1)).float().mean()), abs=1e-6)
    for number in (0, 1):
        share = float(swept(rows)[:, number].float().mean())
        assert 1 / 3 < share < 1 / 3 + 0.12


def test_the_hook_is_where_that_box_was_swept() -> None:
    """Box 1 is swept with a low hook only, and the other with any: then both are with a low one."""
    low = DATA.state[:, 1] < 0.3
    data = DATA[low | ~swept(DATA.rows)[:, 0]]
    drawn = composed(data).sample(12_000, seed=0)
    both = swept(drawn).all(1)
    assert int(both.sum()) > 100 and float((drawn[both][:, 1] < 0.35).float().mean()) > 0.98
    assert float((drawn[swept(drawn)[:, 1]][:, 1] > 0.5).float().mean()) > 0.3


def test_a_box_that_is_hardly_ever_swept_is_not_put_anywhere() -> None:
    """Box 1 is swept in 150 rows: it stays in the hook as it was, and the other box may be put to it."""
    is_swept = swept(DATA.rows)[:, 0]
    data = DATA[torch.cat([is_swept.nonzero()[:150, 0], (~is_swept).nonzero()[:, 0]])]
    drawn = composed(data).sample(8_000, seed=0)
    both = drawn[swept(drawn).all(1)]
    assert len(both) > 20
    assert set(map(tuple, both[:, [0, 1, 2]].tolist())) <= set(map(tuple, data.rows[:, [0, 1, 2]].tolist()))
