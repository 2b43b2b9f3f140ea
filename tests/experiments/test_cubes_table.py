"""The table of OGBench's cubes: what its data sets are made of, and the whole of it at the smallest size."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import pytest

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
