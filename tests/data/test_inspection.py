"""What `inspect` sees in good data and in bad."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from approved import assert_approved
from command_line import done
from transition_tables import numbers

import mocoda
from mocoda import Inspection, Transitions


def walk(episodes: int = 4, steps: int = 25, **more: Any) -> dict[str, Any]:
    """Episodes of a slow walk, each from another place far away, with next states."""
    moves = np.random.default_rng(0).normal(scale=0.01, size=(episodes, steps + 1, 2)).cumsum(1)
    places = moves + np.random.default_rng(1).normal(size=(episodes, 1, 2))
    state, following = places[:, :-1].reshape(-1, 2), places[:, 1:].reshape(-1, 2)
    made = {"state": state, "action": following - state, "next_state": following, "reward": state[:, 0]}
    return {name: np.array(array, np.float32) for name, array in made.items()} | more


def only(found: Inspection, name: str) -> Any:
    return next(column for column in found.columns if column.name == name)


def test_episodes_and_their_lengths_are_found_by_next_states() -> None:
    found = mocoda.inspect(walk(4, 25))
    assert (found.rows, found.episodes, found.steps) == (100, 4, (25, 25.0, 25))
    assert found.continuing == 96 / 99
    assert (found.jumps, found.bad_rows, found.duplicates, found.terminals, found.goals) == (0, 0, 0, 0, None)
    assert found.warnings == ()


def test_columns_are_described_as_numpy_does() -> None:
    data = mocoda.read(walk(), columns=["x", "y", "dx", "dy"])
    found = mocoda.inspect(data)
    assert [(column.part, column.name) for column in found.columns] == [
        *(("state", "x"), ("state", "y"), ("action", "dx"), ("action", "dy"), ("reward", "reward"))
    ]
    y = data.state[:, 1].double().numpy()
    described = only(found, "y")
    assert (described.minimum, described.maximum) == (y.min(), y.max())
    assert (described.mean, described.std) == pytest.approx((y.mean(), y.std()))
    assert described.kind == "number" and described.bad == 0


def ogbench_like(episodes: int = 20, steps: int = 100) -> dict[str, Any]:
    """An arm that pushes a cube now and then: joints, their velocities, a cube that mostly rests, a wrapped angle."""
    random = np.random.default_rng(0)
    velocity = random.normal(scale=0.05, size=(episodes, steps, 3))
    joints = velocity.cumsum(1) + random.normal(size=(episodes, 1, 3))
    pushed = np.repeat(random.random((episodes, steps // 10)) < 0.1, 10, 1)[..., None]
    cube_velocity = pushed * random.normal(scale=0.2, size=(episodes, steps, 2))
    cube = cube_velocity.cumsum(1) + random.normal(size=(episodes, 1, 2))
    angle = (np.arange(steps) * 0.1 + random.uniform(-3, 3, size=(episodes, 1)) + np.pi) % (2 * np.pi) - np.pi
    seen = np.concatenate([joints, velocity, cube, cube_velocity, angle[..., None]], 2).reshape(-1, 11)
    ends = np.tile(np.arange(steps) == steps - 1, episodes)
    return {"observations": seen, "actions": velocity.reshape(-1, 3), "terminals": ends}


def recording(name: str, folder: Path) -> Transitions:
    if name == "ogbench":
        np.savez(folder / "cube.npz", **ogbench_like())
        return mocoda.read(folder / "cube.npz")
    if name == "hooksweep2":
        pytest.importorskip("mujoco")
    made: Transitions = mocoda.make_task(name).collect(600, seed=0)
    return made


WORLDS = ["navigation", "objects:1", "objects:4", "hooksweep2", "ogbench"]


@pytest.mark.parametrize("world", WORLDS)
def test_sound_data_raises_no_alarm_and_resets_within_episodes_are_named(world: str, tmp_path: Path) -> None:
    data = recording(world, tmp_path)
    found = mocoda.inspect(data)
    assert (found.jumps, found.first_jump) == (0, None)
    assert [warning for warning in found.warnings if "rewards" not in warning and "wraps around" not in warning] == []
    ends = np.flatnonzero((data.next_state[:-1] != data.state[1:]).any(1))
    next_state = data.next_state.clone()
    next_state[ends] = data.state[ends + 1]  # as if the episodes were one
    joined = mocoda.inspect(Transitions(data.state, data.action, next_state, data.reward, columns=data.columns))
    assert joined.first_jump is not None
    row, column = joined.first_jump
    assert row in ends and column in data.columns
    assert 0.25 * len(ends) < joined.jumps <= len(ends)
    assert any(f"{joined.jumps} rows move much farther than the others" in warning for warning in joined.warnings)


@pytest.mark.parametrize("provenance", [True, False])
@pytest.mark.parametrize("kept", [True, False])
def test_rows_that_augment_made_raise_no_alarm(provenance: bool, kept: bool) -> None:
    task = mocoda.make_task("navigation")
    data = task.collect(1_000, seed=0)
    parents = mocoda.fit_parents(data, task.graph, "coda", seed=0)
    made = mocoda.augment(data, parents, None, rows=1_000, task=task, keep_recorded=kept, provenance=provenance, seed=0)
    found = mocoda.inspect(made)
    assert (found.rows, found.generated) == (2_000 if kept else 1_000, 1_000)
    assert found.warnings == ()
    if kept:
        assert found.episodes == mocoda.inspect(data).episodes
        assert "1,000 rows are generated; only the table above includes them" in str(found)


def test_numbered_episodes_are_counted_as_they_are_numbered() -> None:
    data = mocoda.make_task("navigation").collect(300, seed=0)
    found = mocoda.inspect(data)
    assert data.episode is not None and found.numbered
    _, steps = data.episode.unique(return_counts=True)
    assert (found.episodes, found.steps[0], found.steps[2]) == (len(steps), int(steps.min()), int(steps.max()))
    shuffled = mocoda.inspect(data[torch.arange(299, -1, -1)])
    assert (shuffled.episodes, shuffled.steps, shuffled.continuing) == (found.episodes, found.steps, 0.0)
    assert "as the data numbers them" in str(shuffled)
    alone = mocoda.inspect(Transitions(data.state, data.action, data.next_state, terminal=data.terminal))
    assert not alone.numbered and "runs of rows" in str(alone)


def test_a_column_whose_next_value_is_another_moment_s_is_named() -> None:
    made = walk()
    made |= {"state": np.hstack([made["state"], numbers(100, 2)]), "action": made["action"]}
    made["next_state"] = np.hstack([made["next_state"], np.roll(made["state"][:, 2:], -1, 0)])
    made["next_state"][:, 3] += 1
    found = mocoda.inspect(made)
    assert [column.breaks for column in found.columns[:4]] == [0, 0, 0, 96 + 0]
    assert found.continuing == 0
    assert_approved(next(warning for warning in found.warnings if "state3" in warning))


def test_nan_and_infinite_numbers_are_counted_and_the_way_out_works(tmp_path: Path) -> None:
    made = walk()
    made["state"][3, 1], made["next_state"][2, 1], made["reward"][7] = np.nan, np.nan, np.inf
    with h5py.File(tmp_path / "broken.hdf5", "w") as file:
        for ours, theirs in {"state": "observations", "action": "actions", "next_state": "next_observations"}.items():
            file[theirs] = made[ours]
        file["rewards"] = made["reward"]
    found = mocoda.inspect(tmp_path / "broken.hdf5")
    assert (found.kind, found.bad_rows, found.first_bad) == ("D4RL-style HDF5", 3, 2)
    assert [only(found, name).bad for name in ("state0", "state1", "reward")] == [0, 2, 1]
    assert only(found, "state1").mean == pytest.approx(np.nanmean(made["state"][:, 1]), rel=1e-5)
    assert_approved(found.warnings[0])
    out = done("export", tmp_path / "broken.hdf5", "--to", tmp_path / "whole.hdf5", "--skip-bad-rows")
    assert out == f"{tmp_path / 'whole.hdf5'}: 97 transitions\n"
    assert mocoda.inspect(tmp_path / "whole.hdf5").bad_rows == 0


def test_constants_duplicates_and_missing_rewards_are_said() -> None:
    made = walk()
    del made["reward"]
    made = {name: np.concatenate([array, array[:10]]) for name, array in made.items()}
    made["action"][:, 1] = 0.5
    found = mocoda.inspect(made)
    assert (only(found, "action1").kind, only(found, "action0").kind) == ("constant", "number")
    assert found.duplicates == 10
    assert_approved("\n".join(found.warnings))


def test_duplicates_are_counted_as_sets_do() -> None:
    rows = np.random.default_rng(0).integers(0, 3, size=(500, 4)).astype(np.float32)
    rows[rows == 0] *= np.where(np.arange((rows == 0).sum()) % 2, -1, 1)  # -0 is 0
    found = mocoda.inspect({"state": rows[:, :2], "action": rows[:, 2:], "next_state": rows[:, :2]})
    assert found.duplicates == 500 - len({tuple(row) for row in (rows + 0).tolist()})


def test_goals_are_counted_and_shuffled_rows_said_to_be() -> None:
    made = walk(goal=np.repeat(numbers(4, 2), 25, 0))
    assert mocoda.inspect(made).goals == 4
    order = np.random.default_rng(0).permutation(100)
    shuffled = mocoda.inspect({name: array[order[::2]] for name, array in made.items()})
    assert shuffled.episodes >= 40
    alone = mocoda.inspect({name: array[::2] for name, array in made.items()})
    assert_approved("\n".join(alone.warnings))


def test_what_reading_left_out_is_told_and_so_is_done() -> None:
    made = walk(4, 25)
    ends = np.arange(100) % 25 == 24
    parts = {"obs": made["state"], "act": made["action"], "rew": made["reward"]}
    for marks in ({"terminals": ends, "dones": ends}, {"done": ends}):
        assert_approved("\n".join(mocoda.inspect(parts | marks).warnings))


def test_the_verb_prints_and_writes_json(tmp_path: Path) -> None:
    mocoda.read(walk(), columns=["[red]x", "y", "dx", "dy"]).save(tmp_path / "data.hdf5")
    said = done("inspect", tmp_path / "data.hdf5", "--json", tmp_path / "found.json")
    assert "mocoda HDF5: 100 rows" in said and "[red]x" in said  # which is no markup
    written = json.loads((tmp_path / "found.json").read_text("utf-8"))
    assert written == json.loads(json.dumps(mocoda.inspect(tmp_path / "data.hdf5").to_json()))
    assert (written["episodes"], len(written["columns"])) == (4, 5)


def test_numbers_that_float32_rounds_away_are_reported(tmp_path: Path) -> None:
    made = {name: array.astype(np.float64) for name, array in walk().items()}
    for name in ("state", "next_state"):
        made[name][:, 1] += 1e7
    found = mocoda.inspect(made, columns=["x", "y", "u", "v"])
    assert_approved(found.warnings[0])
    with pytest.warns(UserWarning, match="^y: the numbers are so large"):
        mocoda.read(made, columns=["x", "y", "u", "v"])
    rounded = {name: array.astype(np.float32).astype(np.float64) for name, array in made.items()}
    assert not any("float32" in warning for warning in mocoda.inspect(rounded).warnings)  # nothing is lost
