"""Handovers of episodes in turns: the hand goes on from nearly where it is, and things are not in its way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from holding_world import GRAPH, OBJECTS
from holding_world import collect as collect_holding
from sorting_world import HAND, collect, graph_of, near, place, step
from test_episodes_in_turns import DATA as HOLDING
from torch import Tensor
from walks import walks

from mocoda import LocalGraph, Transitions
from mocoda.augmentation import augment_episodes
from mocoda.engine.randomness import Stream

STEPS, EPISODES = 120, 40
DATA = collect(2, EPISODES, STEPS, seed=0)
UNIT = (DATA.next_state - DATA.state)[:, HAND].double().square().mean(0).sqrt()  # what a step changes


def made_of(data: Transitions = DATA, graph: LocalGraph | None = None, **options: Any) -> Transitions:
    standard = {"episodes": 30, "keep_recorded": False, "turns": True}
    return augment_episodes(data, graph or graph_of(2), **(standard | options))


class Handover(NamedTuple):
    """Recorded rows: the one in which an episode waits, and the one in which the other takes over."""

    wait: int
    row: int


def handovers(made: Transitions) -> list[list[Handover]]:
    """Of every episode."""
    found = []
    for rows in walks(made).values():
        base, place = made.provenance["base"][rows], made.provenance["base_step"][rows]
        row = base * STEPS + place
        changes = (base.diff() != 0).nonzero()[:, 0].tolist()
        found.append([Handover(int(row[i]) + 1, int(row[i + 1])) for i in changes])
    return found


def steps_between(one: int | Tensor, other: int | Tensor) -> Tensor:
    hand = DATA.state[:, HAND].double()
    return ((hand[one] - hand[other]) / UNIT).square().mean(-1).sqrt()


def at_rest() -> Tensor:
    """Whether the thing that an episode handles lies still and nothing is near, by episode and step."""
    flags = torch.zeros(len(DATA), dtype=torch.bool)
    for thing in range(2):
        own = (torch.arange(len(DATA)) // STEPS) % 2 == thing
        still = (DATA.state == DATA.next_state)[:, place(thing)].all(1)
        still = still & still.roll(-1) & (torch.arange(len(DATA)) % STEPS < STEPS - 1)
        flags |= own & still & ~near(DATA.state, thing)
    return flags.view(EPISODES, STEPS)


def can_take_over() -> Tensor:
    """Whether a thing rests in a row (N,), is handled later, and rests again: one row after the other."""
    rest = at_rest()
    able = torch.zeros_like(rest)
    for episode in range(EPISODES):
        for row in range(STEPS):
            later = rest[episode, row:].tolist()
            able[episode, row] = later[0] and False in later and True in later[later.index(False) :]
    return able.flatten()


def test_the_second_episode_is_the_one_whose_hand_is_nearest_to_where_the_first_one_waits() -> None:
    able, episode = can_take_over(), torch.arange(len(DATA)) // STEPS
    firsts = [found[0] for found in handovers(made_of(episodes=50))]
    for wait, row in firsts:
        candidates = (able & (episode % 2 != episode[wait] % 2)).nonzero()[:, 0]
        assert row in candidates
        assert steps_between(row, wait) <= steps_between(candidates, wait).min() + 1e-3
    assert len({row for _, row in firsts}) > 25


def test_later_each_waits_where_its_hand_is_nearest_to_the_other_one() -> None:
    rest, compared = at_rest(), 0
    for found in handovers(made_of(episodes=50)):
        for wait, row in found[1:]:
            episode, begin = divmod(wait, STEPS)
            end = begin
            while begin > 0 and rest[episode, begin - 1]:
                begin -= 1
            while end < STEPS and rest[episode, end]:
                end += 1
            if end - begin <= 32:  # all of a longer rest are not looked at
                there = episode * STEPS + torch.arange(begin, end)
                assert steps_between(wait, row) <= steps_between(there, row).min() + 1e-3
                compared += 1
    assert compared > 50


def test_the_source_tells_how_many_steps_lie_between_far_fewer_than_of_rows_at_random() -> None:
    made = made_of(episodes=100)
    found = handovers(made)
    groups = {"first": [one[0] for one in found], "later": [each for one in found for each in one[1:]]}
    assert set(made.source["handovers"]) == set(groups)
    for name, group in groups.items():
        middle = float(torch.stack([steps_between(*each) for each in group]).median())
        expected = {"handovers": len(group), "median_steps": pytest.approx(middle)}
        assert made.source["handovers"][name] == expected
    able = can_take_over().nonzero()[:, 0]
    order = able[Stream(0, "order").permutation(len(able))]
    at_random = float(steps_between(able, order).median())
    said = {name: each["median_steps"] for name, each in made.source["handovers"].items()}
    assert said["first"] < 0.4 * at_random and said["first"] < said["later"] < at_random


@pytest.mark.parametrize("things", [2, 3])
@pytest.mark.parametrize("length", [None, 30])
def test_every_row_is_true_and_things_never_jump(things: int, length: int | None) -> None:
    data = collect(things, EPISODES, STEPS, seed=1)
    made = made_of(data, graph_of(things), length=length)
    assert made.step is not None and step(made.rows, things).equal(made.next_state)
    for rows in walks(made).values():
        one = made[rows]
        assert one.step is not None and 2 <= len(one) <= (length or len(one))
        assert one.state[1:, 4:].equal(one.next_state[:-1, 4:])
        follows = (one.state[1:] == one.next_state[:-1]).all(1)
        assert follows.equal(one.step.diff() == 1) and set(one.step.diff().tolist()) <= {1, 2}


def test_the_same_seed_gives_the_same_bytes_and_another_one_other_episodes() -> None:
    one, same, other = (made_of(seed=seed) for seed in (3, 3, 4))
    assert one.rows.equal(same.rows) and one.next_state.equal(same.next_state) and one.source == same.source
    assert set(map(tuple, one.rows[:5].tolist())).isdisjoint(map(tuple, other.rows.tolist()))


def test_a_second_episode_whose_thing_is_in_the_way_is_passed_over_for_the_next_nearest() -> None:
    made = made_of(HOLDING, GRAPH, episodes=100)
    assert made.source["handovers"]["first"]["handovers"] >= 65
    handled = 0
    for rows in walks(made).values():
        one = made[rows]
        handled += all(not one.state[:1, which].equal(one.next_state[-1:, which]) for which in OBJECTS)
    assert handled >= 65  # with the nearest alone, 43


def test_hands_that_are_equally_near_are_chosen_among_by_chance() -> None:
    """All episodes have the hand in the same place at the same step."""
    state, next_state = (part.clone() for part in (DATA.state, DATA.next_state))
    state[:, HAND] = next_state[:, HAND] = 0.0
    made = made_of(Transitions(state, DATA.action, next_state, episode=DATA.episode), episodes=60)
    seconds = [int(made.provenance["base"][rows].unique_consecutive()[1]) for rows in walks(made).values()]
    assert len(set(seconds)) > 20


def test_without_a_robot_chance_decides() -> None:
    """Actions say themselves which of two things they move."""
    episodes, steps = 20, 30
    which = (torch.arange(episodes) % 2).repeat_interleave(steps)
    chance, push = Stream(0, "pushes").uniform(2, episodes * steps)
    push = (10 * push * (chance < 0.3)).round()  # whole numbers, whose sums are exact
    action = torch.stack([push * (which == 0), push * (which == 1)], 1)
    total = action.view(episodes, steps, 2).cumsum(1)
    state = torch.cat([torch.zeros(episodes, 1, 2), total[:, :-1]], 1).flatten(0, 1)

    def local(rows: Tensor) -> Tensor:
        mask = torch.eye(3, 2, dtype=torch.bool).repeat(len(rows), 1, 1)
        mask[:, 2] = rows[:, 2:] > 0
        return mask

    graph = LocalGraph({"a": [0], "b": [1]}, {"push": [0, 1]}, {"a": ["a"], "b": ["b"]}, local)
    next_state = total.flatten(0, 1)
    data = Transitions(state, action, next_state, episode=torch.arange(episodes).repeat_interleave(steps))
    made = made_of(data, graph)
    assert (made.state + made.action).equal(made.next_state)
    assert made.source["handovers"]["first"]["median_steps"] is None
    seconds = [int(made.provenance["base"][rows].unique_consecutive()[1]) for rows in walks(made).values()]
    assert len(set(seconds)) > 8


def test_an_episode_takes_no_turns_with_itself() -> None:
    """Here each handles both things, and nothing is nearer to a row than the row itself."""
    recorded = collect_holding(6_000, seed=0, steps=200)
    made = made_of(replace(recorded, episode=torch.arange(6_000) // 200), GRAPH)
    assert bool((made.provenance["base"] != made.provenance["donor"]).all())
