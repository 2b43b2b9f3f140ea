"""How true models, generated rows and masks are: every number against one that was computed by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from experiments import sweeping_truth as truth
from experiments.sweeping_truth import (
    CONFIRMED,
    MOVED,
    as_transitions,
    confirmation,
    contact_mask,
    mask_mistakes,
    model_errors,
    played_by_expert,
    successes,
)
from mocoda import Dynamics, Transitions
from mocoda.tasks.hooksweep import GRAPH, HookSweep2
from mocoda.tasks.hooksweep_env import GOAL, TOLERANCE, TOUCHES
from mocoda.tasks.hooksweep_expert import Episode

STEPS = 4  # of an episode that is made up


def episode(number: int = 0, **changes: Any) -> Episode:
    """A short episode whose every number is its own; the boxes are far apart."""
    states = 1e3 * number + np.arange((STEPS + 1) * 16.0).reshape(STEPS + 1, 16)
    made = Episode(states, number + np.zeros((STEPS, 4)), np.zeros((STEPS, 3), bool), GOAL.ravel().copy())
    return made._replace(**changes)


# --- episodes


def ended(*away: float) -> Episode:
    """An episode that was to sweep box 2, whose boxes end this far from their goals."""
    goal = GOAL + np.array([[0, 0, 0], [0.31, 0, 0]])
    states = np.zeros((STEPS + 1, 16))
    for box, distance in enumerate(away):
        states[-1, 6 + 5 * box : 9 + 5 * box] = goal[box] + np.array([0, distance, 0])
    return episode(states=states, goal=goal.ravel())


def test_successes_are_shares_of_the_episodes_by_which_box_was_to_be_swept() -> None:
    near, far = TOLERANCE - 1e-6, TOLERANCE + 1e-6
    found = successes([ended(near, near), ended(far, near), ended(far, near), ended(far, far), ended(near, far)])
    assert found == pytest.approx({"swept": 60, "left": 40, "both": 20})
    assert all(type(share) is float for share in found.values())  # JSON's
    assert successes([ended(near, near)]) == {"swept": 100, "left": 100, "both": 100}


def made_up_rows() -> Transitions:
    """Four rows: box 1 moves by 3 cm in the first two, the gripper in all of them, and box 2 in the last."""
    state, following = torch.zeros(4, 16), torch.zeros(4, 16)
    following[:, 0] = 0.02
    following[:2, 6] = 0.03
    following[3, 12] = -0.04
    following[2, 6] = MOVED / 2  # not enough to be called a move
    return Transitions(state, torch.zeros(4, 4), following)


def off_by(rows: Transitions, *offsets: tuple[int, float]) -> Dynamics:
    """A model of two members, whose mean is right but for these columns; its members are wrong by far."""
    mean = rows.next_state.clone()
    for column, offset in offsets:
        mean[:, column] += offset
    members = torch.stack([mean - 5, mean + 5])
    return cast(Dynamics, SimpleNamespace(predict=lambda given: SimpleNamespace(mean=members)))


def test_errors_are_millimetres_of_the_mean_over_the_rows_in_which_a_factor_moved() -> None:
    rows = made_up_rows()
    models = {
        "local": [off_by(rows, (6, 0.003), (7, 0.004)), off_by(rows, (6, 0.001))],
        "full": [off_by(rows, (2, 0.002), (3, 9.0), (12, -0.006), (13, 9.0)), off_by(rows)],
    }
    found = model_errors(models, {"made up": rows})
    places = [(cell["data"], cell["architecture"], cell["factor"]) for cell in found]
    factors = ("gripper", "box1", "box2")
    assert places == [("made up", model, factor) for model in ("local", "full") for factor in factors]
    cells = {place[1:]: cell for place, cell in zip(places, found, strict=True)}
    expected = {
        ("local", "gripper"): [0, 0],
        ("local", "box1"): [5, 1],
        ("local", "box2"): [0, 0],
        ("full", "gripper"): [2, 0],
        ("full", "box1"): [0, 0],
        ("full", "box2"): [6, 0],
    }
    for place, values in expected.items():
        assert cells[place]["values"] == pytest.approx(values, abs=1e-3), place
        assert cells[place]["mean"] == pytest.approx(sum(values) / 2, abs=1e-3)
        assert cells[place]["std"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5, abs=1e-3)
    assert {factor: cells["local", factor]["step"] for factor in factors} == pytest.approx(
        {"gripper": 20, "box1": 30, "box2": 40}, rel=1e-4
    )


def with_boxes(apart: list[float], touched: list[tuple[int, int, int]]) -> Episode:
    """Steps before which the boxes are this far from each other, and what touches what during each."""
    states = np.zeros((len(apart) + 1, 16))
    states[:-1, 12] = apart
    return Episode(states, np.zeros((len(apart), 4)), np.array(touched, bool), GOAL.ravel())


def test_the_mask_s_mistakes_are_counted_edge_by_edge() -> None:
    """The boxes' edge is there where they are within 5 cm; those from the gripper always are."""
    one = with_boxes([0.2, 0.2, 0.04, 0.04], [(0, 0, 0), (1, 0, 1), (0, 1, 1), (1, 0, 0)])
    other = with_boxes([0.2, 0.04], [(0, 0, 1), (0, 0, 0)])
    found = mask_mistakes(GRAPH, [one, other])
    assert found["rows"] == 6
    names = ("edge", "touch", "touched", "edges", "false_positives", "false_negatives")
    assert [tuple(edge[name] for name in names) for edge in found["edges"]] == [
        ("gripper -> box1", "hook-box1", 2, 6, 4, 0),
        ("gripper -> box2", "hook-box2", 1, 6, 5, 0),
        ("box1 -> box2", "box1-box2", 3, 3, 2, 2),
    ]
    assert [edge["touch"] for edge in found["edges"]] == list(TOUCHES)


def test_hardly_a_touch_is_missed_by_the_mask_of_what_can_touch() -> None:
    episodes = played_by_expert("two", "plain", 4, seed=3, workers=0)
    edges = mask_mistakes(truth.CONTACT, episodes)["edges"]
    assert sum(edge["false_negatives"] for edge in edges) <= 2 < 20 < sum(edge["touched"] for edge in edges)
    mask = contact_mask(as_transitions(episodes).rows)
    assert mask[:, :3].equal(mask[:, :3].transpose(1, 2)) and not mask[:, 1:3, 0].all()


# --- what the simulator confirms


def test_the_simulator_confirms_most_recorded_rows_and_none_whose_next_state_is_nonsense() -> None:
    data = as_transitions(played_by_expert("one", "plain", 2, seed=0, workers=0))[::4]
    candidates = {
        "recorded": data,
        "nonsense": Transitions(data.state, data.action, data.next_state + 1),
    }
    cells = {name: confirmation(name, rows, 0) for name, rows in candidates.items()}
    assert cells["recorded"]["confirmed"] > 80 and cells["recorded"]["confirmed_moving"] > 40
    assert max(cells["recorded"]["median_mm"]) < 1e3 * CONFIRMED
    assert cells["nonsense"]["confirmed"] == cells["nonsense"]["confirmed_moving"] == 0
    assert cells["nonsense"]["median_mm"] == pytest.approx([1_732, 1_414, 1_414], rel=0.02)


def test_the_share_is_that_of_rows_in_which_the_gripper_and_both_boxes_are_within_the_tolerance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The simulator moves box 1 in half of the rows, and the model is wrong in one row of each kind."""
    state = torch.zeros(4, 16)
    moved = state.clone()
    moved[:2, 6] = 2 * MOVED
    monkeypatch.setattr(HookSweep2, "step", lambda task, rows: moved[rows[:, 16].long()])
    offset = torch.zeros(4, 16)
    offset[1, 0], offset[2, 12] = 1.1 * CONFIRMED, 1.1 * CONFIRMED
    action = torch.arange(4.0)[:, None].expand(4, 4)  # by which the rows are known
    found = confirmation("made up", Transitions(state, action, moved + offset), 0)
    assert (found["confirmed"], found["confirmed_moving"]) == (50, 50)
    assert found["median_mm"] == pytest.approx([0, 0, 0], abs=1e-3)  # of four numbers, the second least
