"""What-if questions: what is kept, to the bit, what is asked anew, what is refused, and worlds with one true answer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from approved import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from experiments.columns import PUBLISHED
from mocoda import GaussianMixture, LocalGraph, Transitions, fit_parents
from mocoda.analysis.counterfactual import WIDTH, WhatIf, drawn_given_rest, reached_children, what_if
from mocoda.dynamics import Prediction
from mocoda.engine.randomness import Stream
from mocoda.parents import Mocoda
from mocoda.parents.mocoda import MixtureParents
from mocoda.tasks.navigation import Navigation

TASK = Navigation()
DATA = TASK.collect(4_000, seed=0)
PARENTS = fit_parents(DATA, TASK.graph, Mocoda(components=8, **PUBLISHED))
UP, ALONG = DATA[1_000:1_001], DATA[3_000:3_001]  # a step of a walk up the right side, and of one along the bottom
numbers = st.floats(-1, 2, width=32)


class Moved:
    """An ensemble of two whose members are off the truth by ± `apart`, with standard deviation `scale`."""

    def __init__(self, step: Any = TASK.step, apart: float = 0.0, scale: float = 0.0, shift: float = 0.0) -> None:
        self.step, self.apart, self.scale, self.shift = step, apart, scale, shift
        self.graph = TASK.graph

    def predict(self, rows: Tensor) -> Prediction:
        mean = torch.stack([self.step(rows) - self.apart, self.step(rows) + self.apart]) + self.shift
        return Prediction(mean, torch.full_like(mean, self.scale))

    def sample(self, rows: Tensor, *, seed: int | Stream) -> Tensor:
        following: Tensor = self.step(rows) + self.shift
        return following


def ask(row: Transitions, changes: dict[str, Any], model: Moved | None = None, **options: Any) -> WhatIf:
    asked: dict[str, Any] = {"parents": PARENTS, "graph": TASK.graph, "data": DATA, "least_support": 0.0} | options
    return what_if(row, changes, model=model or Moved(shift=5.0), **asked)


# What is kept


def test_a_change_outside_the_quadrant_keeps_the_other_axis_to_the_bit() -> None:
    answer = ask(ALONG, {"y": 0.3})
    assert answer.resampled.tolist() == [[False, True]]
    assert answer.counterfactual.next_state[0, 0].equal(ALONG.next_state[0, 0])
    assert answer.low[0, 0].equal(ALONG.next_state[0, 0]) and answer.high[0, 0].equal(ALONG.next_state[0, 0])
    assert answer.counterfactual.next_state[0, 1].item() == pytest.approx(5.3 + 0.05 * ALONG.action[0, 1].item())


@settings(max_examples=30, deadline=None)
@given(st.integers(0, len(DATA) - 1), st.sets(st.sampled_from(TASK.graph.parents)))
def test_no_change_is_the_same_transition_to_the_bit(number: int, names: set[str]) -> None:
    row = DATA[number : number + 1]
    same = {name: row.rows[:, list(TASK.graph.factors[name])] for name in names}
    answer = ask(row, same, least_support=0.99)
    assert answer.counterfactual.rows.equal(row.rows) and answer.counterfactual.next_state.equal(row.next_state)
    assert answer.low.equal(row.next_state) and answer.high.equal(row.next_state)
    assert not answer.resampled.any() and answer.support.tolist() == [1.0]


@settings(max_examples=60, deadline=None)
@given(st.lists(numbers, min_size=4, max_size=4), st.dictionaries(st.sampled_from(TASK.graph.parents), numbers))
def test_a_child_changes_only_where_a_change_has_an_edge_to_it(values: list[float], changes: dict[str, float]) -> None:
    rows = torch.tensor([values])
    row = Transitions(rows[:, :2], rows[:, 2:], TASK.step(rows) + 3.0)
    answer = ask(row, changes)
    edges = TASK.graph.mask(rows)[0] | TASK.graph.mask(answer.counterfactual.rows)[0]
    differs = (answer.counterfactual.rows != rows)[0]
    for child in range(2):
        reached = bool((differs & edges[:, child]).any())
        assert bool(answer.resampled[0, child]) == reached
        kept = answer.counterfactual.next_state[0, child].equal(row.next_state[0, child])
        assert kept or reached


def test_a_child_whose_parents_change_is_reached_though_what_changed_them_is_not_among_them() -> None:
    def mask(rows: Tensor) -> Tensor:  # z says whether x' listens to y
        edges = torch.eye(4, 3, dtype=torch.bool).repeat(len(rows), 1, 1)
        edges[:, 1, 0] = rows[:, 2] > 0
        return edges

    names = {"x": 0, "y": 1, "z": 2}
    graph = LocalGraph(state=names, action={"u": 0}, edges={name: [name] for name in names}, local=mask)
    before, after = torch.tensor([[1.0, 2.0, -1.0, 0.0]]), torch.tensor([[1.0, 2.0, 1.0, 0.0]])
    assert reached_children(graph, before, after).tolist() == [[True, False, True]]


def test_several_rows_are_answered_each_for_itself() -> None:
    rows = DATA[::500]
    together = ask(rows, {"y": torch.linspace(0.1, 0.9, len(rows))}, Moved())
    for number, y in enumerate(torch.linspace(0.1, 0.9, len(rows))):
        alone = ask(rows[number : number + 1], {"y": y}, Moved())
        assert alone.counterfactual.next_state[0].equal(together.counterfactual.next_state[number])
        assert alone.resampled[0].equal(together.resampled[number])
        assert alone.support[0] == together.support[number]


# Worlds with one true answer


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1_000))
def test_in_a_deterministic_invertible_world_the_answer_is_the_true_one(seed: int) -> None:
    stream = Stream(seed, "test-whatif")
    linear = stream.normal(3, 3) * torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [0, 1.0, 1.0]]) + 2 * torch.eye(3)

    def step(rows: Tensor) -> Tensor:  # invertible in the state: linear and triangular, then monotone
        moved = (linear * rows[:, None, :3]).sum(2) + rows[:, 3:]
        return moved + 0.5 * moved.tanh()

    graph = LocalGraph(
        state={"a": 0, "b": 1, "c": 2},
        action={"u": 0},
        edges={"a": ["a", "u"], "b": ["b", "u"], "c": ["b", "c", "u"]},
    )
    rows = stream.normal(200, 4)
    data = Transitions(rows[:, :3], rows[:, 3:], step(rows))
    parents = fit_parents(data, graph, Mocoda(components=2, **PUBLISHED))
    value = stream.normal(50, 1)
    options: dict[str, Any] = {"data": data, "parents": parents, "model": Moved(step), "graph": graph}
    answer = what_if(data[:50], {"b": value}, least_support=0, **options)
    true = rows[:50].clone()
    true[:, 1:2] = value
    assert answer.counterfactual.rows.equal(true)
    assert answer.counterfactual.next_state.equal(step(true))
    assert answer.resampled.tolist() == [[False, True, True]] * 50
    assert answer.counterfactual.next_state[:, 0].equal(data.next_state[:50, 0])


# Resampling the unspecified


def test_resampled_parents_are_drawn_given_the_rest_and_the_rest_stays() -> None:
    rows = DATA[torch.full((500,), 3_000)]
    answer = ask(rows, {"y": 0.7}, Moved(), resample=["dy"], draws=2)
    assert answer.counterfactual.rows[:, [0, 2]].equal(rows.rows[:, [0, 2]])
    dy = answer.counterfactual.action[:, 1]
    assert 0.55 < dy.mean() < 0.75 and 0.1 < dy.std() < 0.2  # up there, walks go up: U(0.35, 0.95)
    assert ask(rows, {"y": 0.7}, resample=["dy"], draws=2).counterfactual.rows.equal(answer.counterfactual.rows)
    other = ask(rows, {"y": 0.7}, resample=["dy"], draws=2, seed=1)
    assert not other.counterfactual.rows.equal(answer.counterfactual.rows)


def test_the_interval_covers_the_worlds_of_the_resampled_parents() -> None:
    answer = ask(ALONG, {"y": 0.7}, Moved(), resample=["dy"], draws=400)
    height = 0.5 * (answer.high - answer.low)[0, 1].item() / WIDTH
    assert height == pytest.approx(0.05 * 0.6 / 12**0.5, rel=0.3)


def test_columns_in_the_middle_of_a_chain_of_parent_sets_are_drawn_given_both_ends() -> None:
    r = 0.7 ** (torch.arange(4)[:, None] - torch.arange(4)).abs().double()  # a - u - v - b, a Markov chain
    one, zero = torch.ones(1).double(), torch.zeros(1, 2).double()
    sets = tuple(((i, i + 1), GaussianMixture(one, zero, r[i : i + 2, i : i + 2][None])) for i in range(3))
    rows = torch.tensor([[1.0, 9.0, 9.0, -0.3]]).repeat(4_000, 1)
    drawn = drawn_given_rest(MixtureParents(4, sets), rows, {1, 2}, Stream(0, "test"))
    ends, middle = [0, 3], [1, 2]
    gain = r[middle][:, ends] @ r[ends][:, ends].inverse()
    torch.testing.assert_close(drawn[:, middle].double().mean(0), gain @ rows[0, ends].double(), atol=0.05, rtol=0)
    left = r[middle][:, middle] - gain @ r[ends][:, middle]
    torch.testing.assert_close(drawn[:, middle].double().T.cov(), left, atol=0.04, rtol=0)
    assert drawn[:, ends].equal(rows[:, ends])


# Intervals and support


def test_an_interval_has_the_spread_of_the_members_and_their_own() -> None:
    answer = ask(ALONG, {"y": 0.3}, Moved(apart=0.3, scale=0.4))
    true = TASK.step(answer.counterfactual.rows)[0, 1].item()
    assert answer.low[0, 1].item() == pytest.approx(true - 0.5 * WIDTH)
    assert answer.high[0, 1].item() == pytest.approx(true + 0.5 * WIDTH)


def test_support_is_the_share_of_the_data_that_is_as_rare() -> None:
    answer = ask(ALONG, {"y": 0.3})
    assert isinstance(PARENTS, MixtureParents)
    density = PARENTS.log_prob(answer.counterfactual.rows)[0, 1]  # of y and dy; nothing else changed
    assert answer.support.item() == pytest.approx((PARENTS.log_prob(DATA.rows)[:, 1] <= density).double().mean().item())


def test_a_question_outside_the_support_is_refused_with_the_way_out() -> None:
    with refused():
        ask(ALONG, {"y": 0.7}, least_support=0.01)
    ask(ALONG, {"y": 0.7}, resample=["dy"], least_support=0.01)
    with refused():
        ask(ALONG, {"y": 3.0}, resample=["dy"], least_support=0.01)


def test_stratified_parents_refuse_what_was_never_met_though_every_part_was_seen() -> None:
    walked = DATA.rows
    inside = DATA[(walked[:, :2] > 0.5).all(1) & (walked[:, 0] < 0.8)][
        :1
    ]  # where both axes listen to all, and dx is always small
    moves = {"dx": 0.6}
    assert ask(inside, moves, least_support=0.01).support > 0.1
    stratified = fit_parents(DATA, TASK.graph, Mocoda(components=8, density="mixture"))
    with refused():
        ask(inside, moves, parents=stratified, least_support=0.01)
    assert ask(inside, {"dx": 0.01}, parents=stratified, least_support=0.01).resampled.all()
    with refused():
        ask(inside, {"x": 0.7}, parents=stratified, resample=["dx"])


def test_a_local_graph_that_the_data_does_not_have_is_refused() -> None:
    outside = DATA[~(DATA.rows[:, :2] > 0.5).all(1)]
    stratified = fit_parents(outside, TASK.graph, Mocoda(components=8, density="mixture"))
    with refused():
        ask(UP[:1], {"x": 0.8, "y": 0.8}, parents=stratified, data=outside, least_support=0.01)


# Printing


def test_an_answer_prints_a_line_for_every_column() -> None:
    lines = [line.split() for line in str(ask(ALONG, {"y": 0.3}, Moved())).splitlines()]
    assert [line[1] for line in lines if len(line) > 2 and line[1] in DATA.columns] == ["x", "y", "dx", "dy"]


# Refusing


def test_parents_that_are_no_mixtures_stand_for_mixtures_of_the_data() -> None:
    found = [ask(DATA[:3], {"y": 0.5}, parents=parents) for parents in (fit_parents(DATA, TASK.graph), None)]
    assert found[0].support.equal(found[1].support) and found[0].support.max() > 0


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"z": 1.0}, {}),
        ({"y": 1.0}, {"resample": ["z"]}),
        ({"y": 1.0}, {"resample": "dy"}),
        ({"y": 1.0}, {"resample": ["y"]}),
        ({"y": float("nan")}, {}),
        ({"y": [[1.0, 2.0]]}, {}),
        ({"y": 1.0}, {"draws": 0}),
        ({"y": 1.0}, {"least_support": 1.0}),
    ],
    ids=["factor", "resampled", "text", "both", "nan", "shape", "draws", "support"],
)
def test_questions_that_make_no_sense_are_refused(changes: dict[str, Any], options: dict[str, Any]) -> None:
    with refused():
        ask(ALONG, changes, **options)


# Parents
