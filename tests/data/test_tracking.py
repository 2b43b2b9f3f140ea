"""Objects that exchange places are found, followed through their episode, or said to be impossible to follow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from approved import assert_approved, refused
from command_line import done
from numpy.typing import NDArray

import mocoda
from mocoda import Transitions

EPISODES, STEPS, CARS = 12, 40, 4


def paths(cars: int = CARS, seed: int = 0) -> NDArray[np.float64]:
    """The true paths of cars that drift: (episodes, steps + 1, cars, x y vx vy)."""
    random = np.random.default_rng(seed)
    speed = 0.05 * random.normal(size=(EPISODES, 1, cars, 2)) + 0.01 * random.normal(
        size=(EPISODES, STEPS + 1, cars, 2)
    ).cumsum(1)
    place = 2 * random.normal(size=(EPISODES, 1, cars, 2)) + speed.cumsum(1)
    return np.concatenate([place, speed], 3)


def listed(true: NDArray[np.float64], sort: bool = True, nearest: int | None = None) -> Transitions:
    """What is observed of them: the cars in the order of their distance, or only the nearest of them."""
    order = (
        np.linalg.norm(true[..., :2], axis=3).argsort(2)
        if sort
        else np.tile(np.arange(true.shape[2]), (*true.shape[:2], 1))
    )
    seen = np.take_along_axis(true, order[..., None], 2)[:, :, :nearest]
    names = [f"car{car}.{end}" for car in range(seen.shape[2]) for end in ("x", "y", "vx", "vy")]
    seen = seen.reshape(EPISODES, STEPS + 1, -1)
    state, next_state = seen[:, :-1].reshape(-1, len(names)), seen[:, 1:].reshape(-1, len(names))
    episode = np.repeat(np.arange(EPISODES), STEPS)
    return Transitions(state, np.zeros((len(state), 1)), next_state, columns=[*names, "a"], episode=episode)


def exchanges(true: NDArray[np.float64]) -> int:
    """The number of steps in which the order of the distances changes."""
    order = np.linalg.norm(true[..., :2], axis=3).argsort(2)
    return int((order[:, 1:] != order[:, :-1]).any(2).sum())


def assert_followed(data: Transitions, true: NDArray[np.float64]) -> None:
    """Every car's columns hold one true path throughout each episode, and different cars different ones."""
    state, next_state = (part.numpy().reshape(EPISODES, STEPS, -1, 4) for part in (data.state, data.next_state))
    for episode in range(EPISODES):
        found = [
            [
                car
                for car in range(true.shape[2])
                if np.allclose(true[episode, :-1, car], state[episode, :, place], atol=1e-5)
            ]
            for place in range(state.shape[2])
        ]
        assert sorted(car for cars in found for car in cars) == list(range(true.shape[2]))
        for place, [car] in enumerate(found):
            assert np.allclose(true[episode, 1:, car], next_state[episode, :, place], atol=1e-5)


def test_cars_that_are_listed_by_distance_are_followed() -> None:
    true = paths()
    data = listed(true)
    assert_approved(mocoda.inspect(data).warnings[-1])
    tracked = mocoda.track(data)
    assert_followed(tracked, true)
    assert tracked.source["tracked"] == {"car0, car1, car2, car3": exchanges(true)}
    assert mocoda.inspect(tracked).warnings == mocoda.inspect(listed(true, sort=False)).warnings
    shuffled = data[torch.from_numpy(np.random.default_rng(0).permutation(len(data)))]
    assert mocoda.track(shuffled, ["car0", "car1", "car2", "car3"]).state.equal(tracked.state[_order(shuffled)])


def _order(shuffled: Transitions) -> torch.Tensor:
    """The places of episodes in the order in which they come first."""
    assert shuffled.episode is not None
    first = list(dict.fromkeys(shuffled.episode.tolist()))
    return torch.cat([torch.arange(STEPS) + STEPS * episode for episode in first])


def test_cars_with_columns_of_their_own_are_left_alone() -> None:
    data = listed(paths(), sort=False)
    assert not any("exchange" in warning for warning in mocoda.inspect(data).warnings)
    with refused():
        mocoda.track(data)


def test_cars_that_come_and_go_are_named_and_not_followed() -> None:
    data = listed(paths(12), nearest=3)
    assert_approved(mocoda.inspect(data).warnings[-1])
    with refused():
        mocoda.track(data)


def test_absent_cars_may_come_and_go() -> None:
    true = paths(3)
    true[:, STEPS // 2 :, 2] = 0  # the third car leaves half way
    seen = listed(true)
    order = np.linalg.norm(np.where(true[..., :2].any(3, keepdims=True), true[..., :2], 99), axis=3).argsort(2)
    there = np.take_along_axis(true, order[..., None], 2).reshape(EPISODES, STEPS + 1, -1)
    state, next_state = (part.reshape(-1, 12).astype(np.float32) for part in (there[:, :-1], there[:, 1:]))
    tracked = mocoda.track(replace(seen, state=torch.tensor(state), next_state=torch.tensor(next_state)))
    assert_followed(tracked, true)


@pytest.mark.parametrize("objects", [["car0", "truck"], ["car0", "hand"]], ids=str)
def test_objects_that_cannot_be_alike_are_refused(objects: list[str]) -> None:
    data = listed(paths())
    columns = [name.replace("car3.x", "hand.x").replace("car3.y", "hand.z") for name in data.columns]
    with refused():
        mocoda.track(replace(data, columns=tuple(columns)), objects)


def test_the_verb_writes_what_is_tracked(tmp_path: Path) -> None:
    true = paths()
    listed(true).save(tmp_path / "cars.hdf5")
    said = done("track", tmp_path / "cars.hdf5", "--out", tmp_path / "tracked.hdf5")
    assert said.endswith(f"480 transitions; car0, car1, car2, car3 had changed places in {exchanges(true)}\n")
    assert_followed(mocoda.read(tmp_path / "tracked.hdf5"), true)
