"""The table of OGBench's cubes: what its data sets are made of, and the whole of it at the smallest size."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from experiment_contract import results_of

from experiments.cubes import CubesData, CubesTable
from experiments.cubes.order_of_play import changing_places, order_of_play, relations
from mocoda import Transitions, add_objects, audit
from mocoda.tasks.cubes import Cubes, places

pytestmark = pytest.mark.skipif(find_spec("ogbench") is None, reason="ogbench is not installed")
TASK = Cubes(2)


@cache
def recorded() -> Transitions:
    return TASK.collect(240, seed=0, variety="one-cube", length=60)


def test_a_cube_that_was_never_recorded_is_added_and_the_simulator_has_it_so() -> None:
    single = Cubes(1)
    data = single.collect(360, seed=0, variety="play", length=120)
    made = add_objects(data, single.graph, TASK.graph, ["cube1", "cube2"], resting=1e-5)
    assert len(made) > 200 and made.columns == TASK.columns
    both = (places(made.state)[:, 0] - places(made.state)[:, 1]).norm(dim=1)
    assert float(both.min()) > 0.7  # 7 cm
    found = audit(made, TASK.step, TASK.graph, tolerance=TASK.tolerance, columns=TASK.compared, rows=100)
    assert found.confirmed >= 0.97


def test_recorded_states_never_have_two_cubes_in_play() -> None:
    assert not bool(TASK.region(recorded().rows).any())


P, Q, R, ON_Q = (0.0, -1.0, 0.2), (0.0, 1.0, 0.2), (1.0, 0.0, 0.2), (0.0, 1.0, 0.6)


def test_places_are_compared_as_official_tasks_do() -> None:
    after = torch.tensor([(P, Q), (R, Q), (ON_Q, Q), (Q, R), (Q, P)])
    found = relations(torch.tensor([(P, Q)]).expand_as(after), after)
    assert {name: shows.int().tolist() for name, shows in found.items()} == {
        "one": [0, 1, 1, 0, 0],
        "several": [0, 0, 0, 1, 1],
        "taken": [0, 0, 0, 1, 1],
        "swapped": [0, 0, 0, 0, 1],
        "stacked": [0, 0, 1, 0, 0],
    }


def test_what_episodes_show_is_counted_and_the_part_that_swaps_cubes_is_kept() -> None:
    swaps = [(P, Q)] * 4 + [(R, Q)] * 3 + [(R, P)] * 3 + [(Q, P)] * 4 + [(R, P)] * 3
    moves = [(P, Q)] * 9 + [(ON_Q, Q)] * 8
    state = torch.zeros(34, 37)
    state[:, 14] = 3  # the hand is high above
    state[:, 19:22], state[:, 28:31] = torch.tensor(swaps + moves).unbind(1)
    episode = torch.arange(34) // 17
    next_state = torch.where((episode.diff(append=episode[-1:]) == 0)[:, None], state.roll(-1, 0), state)
    next_state[-1] = state[-1]
    data = Transitions(state, torch.zeros(34, 5), next_state, episode=episode)
    found = order_of_play(data, discount=0.9)
    assert (found["episodes"], found["put_down"], found["again"]) == (2, 2.5, 0.5)
    assert found["shown"] == {"one": 1, "several": 0.5, "taken": 0.5, "swapped": 0.5, "stacked": 0.5}
    # Rows 0 to 3 have later states in which the cubes are swapped and lie: rows 10 to 12 of 17.
    assert found["goals"]["uniform"]["swapped"] == pytest.approx(sum(3 / (17 - row) for row in range(4)) / 34, rel=0.02)
    made = changing_places(data)
    assert made is not None and made.step is not None and made.step.tolist() == list(range(2, 13))
    assert changing_places(data[17:]) is None


@pytest.mark.long
def test_the_simulator_confirms_rows_with_a_cube_that_was_added(tmp_path: Path) -> None:
    preset = CubesTable.presets["data"]
    results = results_of(replace(preset, rows=6_000, total=6_400, audited=20, arms=("added",)), tmp_path, workers=2)
    assert list(results["data"]) == ["alone", "added"] and results["data"]["added"]["rows"] == 400
    assert min(part["confirmed"] for one in results["data"].values() for part in one["audits"].values()) >= 0.95
    assert CubesData.table(results).count("\n") == 3
