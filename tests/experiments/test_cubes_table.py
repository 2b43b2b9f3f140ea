"""The table of OGBench's cubes: what its data sets are made of, and the whole of it at the smallest size."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from approved import refused
from tiny_experiments import TINY as ALL

from experiments.cubes import CubesTable
from mocoda import InputError, Transitions, add_objects, audit
from mocoda.tasks.cubes import Cubes, places

pytestmark = pytest.mark.skipif(find_spec("ogbench") is None, reason="ogbench is not installed")
TASK = Cubes(2)
TINY: CubesTable = replace(ALL["cubes"], rows=240, total=400, arms=("recorded", "turns"))


@cache
def recorded() -> Transitions:
    return TASK.collect(240, seed=0, variety="one-cube", length=60)


class Everywhere(Cubes):
    """All cubes are in play in every row, or in none."""

    inside = True

    def region(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.full((len(rows),), self.inside)


def test_data_sets_have_as_many_rows_as_asked_for_after_the_recorded_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    data = recorded()
    monkeypatch.setattr("experiments.cubes.augment_episodes", lambda *given, **named: data[60:])
    made = TINY.with_turns("turns", Everywhere(2), data)
    assert len(made) == TINY.total and made.state[: len(data)].equal(data.state)
    assert made.state[len(data) :].equal(data.state[60 : 60 + TINY.total - len(data)])


def test_a_cube_that_was_never_recorded_is_added_and_the_simulator_has_it_so() -> None:
    single = Cubes(1)
    data = single.collect(360, seed=0, variety="play", length=120)
    made = add_objects(data, single.graph, TASK.graph, ["cube1", "cube2"], resting=1e-5)
    assert len(made) > 200 and made.columns == TASK.columns
    both = (places(made.state)[:, 0] - places(made.state)[:, 1]).norm(dim=1)
    assert float(both.min()) > 0.7  # 7 cm
    found = audit(made, TASK.step, TASK.graph, tolerance=TASK.tolerance, columns=TASK.compared, rows=100)
    assert found.confirmed >= 0.97


def test_episodes_that_never_have_all_cubes_in_play_are_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.cubes.MOST_EPISODES", 60)
    monkeypatch.setattr("experiments.cubes.augment_episodes", lambda *given, **named: recorded())
    monkeypatch.setattr(Everywhere, "inside", False)
    with pytest.raises(InputError, match=r"in none of 1[0-9]{2} new episodes are all cubes in play; record more rows"):
        TINY.with_turns("turns", Everywhere(2), recorded())


def test_recorded_states_never_have_two_cubes_in_play() -> None:
    assert not bool(TASK.region(recorded().rows).any())


@pytest.mark.parametrize("change", [{"kind": "cubes"}, {"kind": "cube-single"}, {"total": 100}], ids=str)
def test_settings_that_cannot_be_are_refused(change: dict[str, Any]) -> None:
    with refused():
        replace(TINY, **change)
