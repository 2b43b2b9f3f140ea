"""Recordings of OGBench's scripted oracles, which keep picking up and placing cubes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mocoda.engine.randomness import Random, generator, numpy_seed
from mocoda.tasks.cubes_env import CENTRE, CUBE, ROBOT, SCALE, Floats, make_world
from mocoda.tasks.recording import Recording

LENGTH = 1_000  # steps of an episode, as in the benchmark's data
STACKED = {1: (0.0, 0.0), 2: (0.0, 0.25), 3: (0.05, 0.35)}  # cubes -> range of an episode's share of stacked targets
RANDOM_ACTIONS, NOISE = 0.1, np.array([1, 1, 1, 3, 10]) * 0.1  # of "noisy": share of random actions, maximum noise
# In metres. Cubes are placed on FIELD, of which official tasks use x from 0.34 to 0.51 and y from -0.21 to 0.21. Parked
# cubes rest in STRIP, between these places and the invisible wall at y = 0.38 that keeps cubes on the table.
FIELD = np.array([[0.3, -0.3], [0.55, 0.3]])
STRIP = np.array([[0.27, 0.32], [0.58, 0.345]])
CLEARANCE = 0.12  # distance from parked cubes at which the handled one is picked up or placed
PARKED_APART = 0.08
REST = 0.02  # height of a cube on the table
BRUSHED = 0.001  # a parked cube that moves farther has been brushed
VARIETIES = ("play", "one-cube", "noisy")
COUNTS = ("episodes", "dropped")


class Job(NamedTuple):
    """One episode to record."""

    cubes: int
    variety: str
    length: int
    seed: int


def record(job: Job) -> Recording:
    """Plays an episode of an oracle; it has no rows if it is dropped."""
    random = generator(job.seed)
    handled = int(random.integers(job.cubes)) if job.variety == "one-cube" else None
    with numpy_seed(random):  # OGBench's oracles draw from numpy's global generator
        steps = list(_play(job, handled, random))
    states = np.array([state for state, _ in steps], np.float32)
    actions = np.array([action for _, action in steps[:-1]], np.float32)
    kept = handled is None or not brushed(states, handled)
    rows = slice(len(actions) if kept else 0)
    return Recording(states[:-1][rows], actions[rows], states[1:][rows], np.array([[1, int(not kept)]]))


def brushed(states: NDArray[np.float32], handled: int) -> bool:
    """Returns whether any cube but the handled one moves in an episode's states (T, S)."""
    parked = np.delete(states[:, ROBOT:].reshape(len(states), -1, CUBE)[..., :3], handled, 1) / SCALE
    return bool((np.linalg.norm(parked - parked[0], axis=2) > BRUSHED).any())


def _play(job: Job, handled: int | None, random: Random) -> Iterator[tuple[Floats, Floats]]:
    """Yields the states and actions of an episode; the last state's action is not played."""
    world = make_world(job.cubes, "data_collection")
    state, info = world.reset(seed=int(random.integers(2**31)))
    stacked = random.uniform(*STACKED[job.cubes])
    if handled is not None:
        stacked = 0.0
        _park(world, handled, random)
        state, info = _new_target(world, handled, stacked)
    noise = NOISE * random.uniform() if job.variety == "noisy" else None
    oracle = _oracle(world, job.variety)
    oracle.reset(state, info)
    for _ in range(job.length):
        action = oracle.select_action(state, info)
        if noise is not None:
            anything = random.random() < RANDOM_ACTIONS
            action = random.uniform(-1, 1, len(noise)) if anything else action + noise * random.normal(size=len(noise))
        action = np.clip(action, -1, 1)
        yield state, action
        state, _, _, _, info = world.step(action)
        if oracle.done:
            oracle.reset(*_new_target(world, handled, stacked))
    yield state, action


def _oracle(world: Any, variety: str) -> Any:
    """Makes the benchmark's oracle: a plan with correlated noise, or for "noisy" one that reacts to each state."""
    if variety == "noisy":
        from ogbench.manipspace.oracles.markov.cube_markov import CubeMarkovOracle

        return CubeMarkovOracle(env=world, min_norm=0.4)
    from ogbench.manipspace.oracles.plan.cube_plan import CubePlanOracle

    return CubePlanOracle(env=world, noise=0.1, noise_smoothing=0.5)


def _new_target(world: Any, handled: int | None, stacked: float) -> tuple[Floats, dict[str, Any]]:
    """Draws a cube and its next target; if one cube is handled, until it is this one, clear of the parked cubes."""
    while True:
        state, info = world.set_new_target(p_stack=stacked)
        if handled is None:
            break
        parked = np.delete(state[ROBOT:].reshape(-1, CUBE)[:, :2], handled, 0) / SCALE + CENTRE[:2]
        if info["privileged/target_block"] == handled and _clear(info["privileged/target_block_pos"][:2], parked):
            break
    return state, info


def _park(world: Any, handled: int, random: Random) -> None:
    """Puts all cubes but one in the strip, and that one on the field, clear of them."""
    while True:
        places = random.uniform(STRIP[0], STRIP[1], (world._num_cubes, 2))
        places[handled] = random.uniform(FIELD[0], FIELD[1])
        parked = np.delete(places, handled, 0)
        gaps = [np.linalg.norm(one - other) for i, one in enumerate(parked) for other in parked[:i]]
        if _clear(places[handled], parked) and all(gap > PARKED_APART for gap in gaps):
            break
    for number, place in enumerate(places):
        world._data.joint(f"object_joint_{number}").qpos[:3] = [*place, REST]


def _clear(place: Floats, parked: Floats) -> bool:
    return bool((np.linalg.norm(parked - place, axis=1) > CLEARANCE).all())
