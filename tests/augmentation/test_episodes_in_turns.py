"""Episodes in turns: true rows, things that never jump, and a hand that does where the turn changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sorting_world
import torch
from holding_world import GRAPH, OBJECTS, collect, step
from hypothesis import given, settings
from hypothesis import strategies as st
from transition_tables import refusal, walks

from mocoda import LocalGraph, Transitions
from mocoda.augmentation import augment_episodes
from mocoda.augmentation.episode_walks import LONG

STEPS = 100
DATA = replace(collect(6_000, seed=0, steps=STEPS, parked=True), episode=torch.arange(6_000) // STEPS)
THINGS = [column for which in OBJECTS for column in range(which.start, which.stop)]


def made_of(data: Transitions = DATA, graph: LocalGraph = GRAPH, **options: Any) -> Transitions:
    return augment_episodes(data, graph, **({"episodes": 20, "keep_recorded": False, "turns": True} | options))


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([None, 2, 30]))
def test_every_row_is_what_the_simulator_does_and_things_are_where_the_last_turn_left_them(
    seed: int, length: int | None
) -> None:
    made = made_of(seed=seed, length=length)
    assert made.step is not None and step(made.rows).equal(made.next_state)
    episodes = walks(made)
    assert len(episodes) == 20
    for rows in episodes.values():
        one = made[rows]
        assert one.step is not None and 2 <= len(one) <= (length or len(one))
        assert one.state[1:, THINGS].equal(one.next_state[:-1, THINGS])
        follows = (one.state[1:] == one.next_state[:-1]).all(1)
        assert follows.equal(one.step.diff() == 1) and set(one.step.diff().tolist()) <= {1, 2}
        assert (int(one.provenance["cut"][0]) == LONG) == (len(one) == length)


def test_both_things_are_handled_in_an_episode_and_each_by_its_own_recorded_one() -> None:
    made = made_of(episodes=100)
    handled = []
    for rows in walks(made).values():
        one = made[rows]
        handled.append([not one.state[:1, which].equal(one.next_state[-1:, which]) for which in OBJECTS])
        (first,), (second,) = (set(one.provenance[f"donor_object{number}"].tolist()) for number in (1, 2))
        hands = one.provenance["donor_hand"]
        assert first != second and set(hands.tolist()) <= {first, second}
        assert hands.equal(one.provenance["donor_action"])
    assert sum(map(all, handled)) >= 20


@pytest.mark.parametrize("things", [3, 8])
def test_of_many_things_each_is_handled_after_an_episode_of_its_own(things: int) -> None:
    graph, data = sorting_world.graph_of(things), sorting_world.collect(things, 5 * things, steps=150, seed=0)
    made = made_of(data, graph, episodes=30)
    assert sorting_world.step(made.rows, things).equal(made.next_state)
    whole = 0
    for rows in walks(made).values():
        one = made[rows]
        donors = [set(one.provenance[f"donor_thing{thing}"].tolist()) for thing in range(things)]
        assert [sorted(episode % things for episode in own) for own in donors] == [[thing] for thing in range(things)]
        assert one.state[1:, 4:].equal(one.next_state[:-1, 4:])
        handled = [
            bool((one.state[:, place] != one.next_state[:, place]).any())
            for place in map(sorting_world.place, range(things))
        ]
        whole += all(handled)
        # Nobody waits for ever: while an episode lasts the turn goes round.
        assert sum(handled) >= min(things, 2)
    assert whole >= 20


def test_a_turn_begins_where_everything_rests() -> None:
    made = made_of(episodes=50)
    assert made.step is not None and made.episode is not None
    begins = torch.ones(len(made), dtype=torch.bool)
    begins[1:] = (made.step.diff() != 1) | (made.episode.diff() != 0)
    links = GRAPH.mask(made.rows[begins])[:, 0, 1:]
    assert not bool(links.any())


def test_what_cannot_take_turns_is_refused() -> None:
    alone = LocalGraph({"hand": [0], "cube": [1]}, {"push": [0]}, {"hand": ["hand", "push"], "cube": ["cube"]})
    data = Transitions(torch.zeros(4, 2), torch.zeros(4, 1), torch.zeros(4, 2), episode=torch.tensor([0, 0, 1, 1]))
    assert refusal(lambda: made_of(data, alone)) == (
        "episodes in turns need two or more factors that depend on no action in the sparsest graph, such as the "
        "objects that a robot handles; this graph has cube."
    )
    assert refusal(lambda: made_of(recipe="mocoda")) == (
        "recorded episodes take turns in recipe 'coda' alone, not in 'mocoda'; remove turns."
    )
    still = DATA[:200]
    state = still.state[:1].expand(200, -1).clone()
    still = replace(still, state=state, next_state=state.clone())
    assert refusal(lambda: made_of(still)) == (
        "recipe 'coda' found 0 of 20 episodes in turns. In none of the recorded ones does object1 rest, then move, and "
        "rest again. They take a recorded episode for every thing, in which it is handled and comes to rest; raise "
        "`resting` if what lies still moves in its last digits."
    )
