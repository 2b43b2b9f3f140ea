"""The table of OGBench's cubes: what its data sets are made of, and the whole of it at the smallest size."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.cubes import CubesTable, permuted, rolled_by
from mocoda import InputError, Transitions, add_objects, audit, fit_dynamics, make_agent
from mocoda.dynamics import DynamicsConfig
from mocoda.tasks.cubes import CubePlaces, Cubes, places

pytestmark = pytest.mark.skipif(find_spec("ogbench") is None, reason="ogbench is not installed")
TASK = Cubes(2)
TINY = replace(
    CubesTable.presets["quick"],
    preset="tiny",
    dynamics=DynamicsConfig(members=2, hidden=(16,), features=8, epochs=2, epoch_rows=200, batch=64, window=1),
    agent=make_agent("gciql", hidden=(16,), batch=16),
    updates=20,
    rows=240,
    total=400,
)


@cache
def recorded() -> Transitions:
    return TASK.collect(240, seed=0, variety="one-cube", length=60)


def test_permuted_cubes_change_places_in_states_goals_and_graphs() -> None:
    data = recorded()
    turned = permuted(data, (1, 0))
    assert data.goal is not None and turned.goal is not None
    for one, other in ((data.state, turned.state), (data.next_state, turned.next_state), (data.goal, turned.goal)):
        assert places(other).equal(places(one).flip(1)) and other[:, :19].equal(one[:, :19])
    masks, order = TASK.graph.mask(data.rows), [0, 2, 1, 3]
    assert TASK.graph.mask(turned.rows).equal(masks[:, order][:, :, order[:3]])
    assert permuted(turned, (1, 0)).state.equal(data.state)


def test_goals_that_are_places_are_permuted_alike() -> None:
    data, task = recorded(), CubePlaces(2)
    assert data.goal is not None
    turned = permuted(replace(data, goal=task.achieved(data.goal)), (1, 0))
    whole = permuted(data, (1, 0)).goal
    assert turned.goal is not None and whole is not None and turned.goal.equal(task.achieved(whole))


@pytest.mark.parametrize("arm", ["permuted", "coda"])
def test_arms_have_as_many_rows_as_asked_for_after_the_recorded_ones(arm: str) -> None:
    data = recorded()
    made = TINY.dataset(arm, TASK, data, {})
    assert len(made) == TINY.total and made.state[: len(data)].equal(data.state)
    assert made.episode is not None and data.episode is not None
    assert int(made.episode[len(data) :].min()) > int(data.episode.max())
    assert not made.state[len(data) :].equal(data.state[: TINY.total - len(data)])


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
    class Nowhere(Cubes):
        def region(self, rows: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(rows), dtype=torch.bool)

    monkeypatch.setattr("experiments.cubes.MOST_EPISODES", 60)
    with pytest.raises(InputError, match=r"in none of 1[0-9]{2} new episodes are all cubes in play; record more rows"):
        TINY.dataset("coda", Nowhere(2), recorded(), {})


def test_an_unfactored_model_goes_on_from_the_same_starts_with_the_same_actions() -> None:
    data = recorded()
    config = DynamicsConfig(members=2, hidden=(8,), features=4, epochs=1, epoch_rows=100, batch=50, window=1)
    model = fit_dynamics(data, TASK.graph, dynamics="full", config=config, seed=0)
    again = rolled_by(model, data, TASK)
    assert data.episode is not None
    first = torch.ones(len(data), dtype=torch.bool)
    first[1:] = data.episode.diff() != 0
    assert again.action.equal(data.action) and again.state[first].equal(data.state[first])
    assert again.state[~first].equal(again.next_state[:-1][~first[1:]]) and not again.state.equal(data.state)
    expected = model.predict(again.rows[first]).mean.mean(0).clamp(data.state.amin(0), data.state.amax(0))
    torch.testing.assert_close(again.next_state[first], expected)


def test_recorded_states_never_have_two_cubes_in_play() -> None:
    assert not bool(TASK.region(recorded().rows).any())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"kind": "cubes"},
            "there is no kind 'cubes'; there are: cube-single, cube-single-places, cube-double, cube-double-places, "
            "cube-triple, cube-triple-places. Did you mean 'cube-single'?",
        ),
        ({"kind": "cube-single"}, "cube-single has no second cube: its only arm is play; pass --arms play."),
        (
            {"kind": "cube-triple"},
            "of three cubes an exchange never has all in play: leave out coda, as in --arms recorded permuted turns "
            "mocoda unfactored play added.",
        ),
        ({"total": 100}, "total must be at least the number of recorded rows, got 100 and 240."),
        ({"updates": 0}, "updates must be at least 1, got 0."),
    ],
)
def test_settings_that_cannot_be_are_refused_in_full(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        replace(TINY, **change)
    assert str(caught.value) == message


@pytest.mark.long
def test_the_table_has_a_cell_for_every_arm_and_official_task_and_can_be_resumed(tmp_path: Path) -> None:
    settings = replace(TINY, arms=("recorded", "mocoda", "added"), rows=6_000, total=6_400)
    measured = settings.run(device="cpu", folder=tmp_path, workers=2)
    settings.write(measured, tmp_path)
    results = json.loads((tmp_path / "cubes.json").read_text("utf-8"))
    found = {(cell["row"], cell["column"]) for cell in results["cells"]}
    assert found == {(arm, task) for arm in settings.arms for task in ("1", "2", "3", "4", "5", "all")}
    assert (
        results["data"]["mocoda"]["rows"] == results["data"]["added"]["rows"] == 6_400
        and results["data"]["recorded"]["in_play"] == 0
    )
    again = settings.run(device="cpu", folder=tmp_path, workers=2)
    assert again.results["cells"] == measured.results["cells"]
