"""Episodes of recipe "mocoda" in which a hand comes for a thing that has rested since the start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import holding_world
import pytest
import torch
from sorting_world import collect, graph_of, near, place, step
from torch import Tensor
from transition_tables import walks

from mocoda import LocalGraph, Transitions, augment_episodes
from mocoda.augmentation.episode_walks import ENDED
from mocoda.engine.randomness import Stream

STEPS = 120


class Wrong:
    """A model whose every answer is off."""

    def sample(self, rows: Tensor, *, seed: int | Stream) -> Tensor:
        return rows[:, :-3] + 0.01


def made_of(data: Transitions, graph: LocalGraph, **options: Any) -> Transitions:
    usual: dict[str, Any] = {"recipe": "mocoda", "model": Wrong(), "episodes": 60, "keep_recorded": False}
    return augment_episodes(data, graph, **(usual | options))


@pytest.mark.parametrize("things", [2, 3])
def test_a_hand_finds_the_thing_that_it_was_recorded_to_handle(things: int) -> None:
    """Nothing meets that did not when it was recorded: no model is asked, and every step is the simulator's."""
    made = made_of(collect(things, 40, STEPS, seed=0), graph_of(things))
    assert step(made.rows, things).equal(made.next_state)
    through = 0
    for rows in walks(made).values():
        one = made[rows]
        assert one.state[1:].equal(one.next_state[:-1])
        through += int(one.provenance["donor_step_action"][-1]) == STEPS - 1
        assert all(bool((one.provenance[f"donor_{name}"] >= 0).all()) for name in ("hand", "thing0", "thing1"))
    assert through == made.source["cut"][str(ENDED)]["episodes"] >= 54  # others have a part that is rare
    handled = [bool((near(made.rows, thing) & (made.rows[:, -1] > 0)).any()) for thing in range(things)]
    assert all(handled)


def test_the_other_thing_lies_where_another_episode_had_it() -> None:
    made = made_of(collect(2, 40, STEPS, seed=0), graph_of(2))
    elsewhere = 0
    for rows in walks(made).values():
        one = made[rows]
        hand = int(one.provenance["donor_hand"][0])
        other = f"donor_thing{1 - hand % 2}"
        if bool(near(one.rows, hand % 2).any()):  # else it is not handled before the end
            assert bool((one.provenance[f"donor_thing{hand % 2}"] == hand).all())
        assert one.state[:, place(1 - hand % 2)].unique(dim=0).shape[0] == 1
        elsewhere += int(one.provenance[other][0]) != hand
    assert elsewhere > 50


def test_a_thing_that_was_moved_meanwhile_is_not_taken_for_one_that_rests() -> None:
    """A few episodes that handle both things: a hand is often of the same one as a thing, and of a later step."""
    steps = 500
    recorded = replace(holding_world.collect(2_000, seed=0, steps=steps), episode=torch.arange(2_000) // steps)
    graph, model = holding_world.GRAPH, Steps()
    made = made_of(recorded, graph, model=model, episodes=100)
    for name in graph.parents:
        donor, at = made.provenance[f"donor_{name}"], made.provenance[f"donor_step_{name}"]
        known, own = donor >= 0, list(graph.factors[name])
        assert made.rows[known][:, own].equal(recorded.rows[donor[known] * steps + at[known]][:, own])


class Steps:
    """The true model of the world in which things are held."""

    def sample(self, rows: Tensor, *, seed: int | Stream) -> Tensor:
        return holding_world.step(rows)
