"""A hand that carries two objects, recorded as robots are: redundant columns, unit vectors, a contact sensor.

The hand's place follows from its joint angles, and its contact from everything near it. Objects move only while they
are held, and are in the air only then. Rows that mix recorded parts without regard to what touches are impossible.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mocoda import LocalGraph, Transitions
from mocoda.engine.randomness import Stream

LINK, REACH, NEAR = 0.5, 0.1, 0.25
HAND = ("q1", "q2", "x", "y", "height", "cos", "sin", "grip", "contact")
OBJECT = ("x", "y", "z", "cos", "sin")
ACTION = ("q1", "q2", "lift", "turn", "grip")
COLUMNS = (
    *(f"hand.{name}" for name in HAND),
    *(f"object{i}.{name}" for i in (1, 2) for name in OBJECT),
    *(f"action.{name}" for name in ACTION),
)
OBJECTS = (slice(9, 14), slice(14, 19))
UNITS = ((5, 6), (12, 13), (17, 18))


def place(joints: Tensor) -> Tensor:
    """Where the hand is, (N, 2), by its joint angles (N, 2)."""
    one, both = joints[:, 0], joints.sum(1)
    return LINK * torch.stack([one.cos() + both.cos(), one.sin() + both.sin()], 1)


def joints_at(target: Tensor) -> Tensor:
    """Joint angles (N, 2) that bring the hand to places (N, 2)."""
    length = target.norm(dim=1).clamp(0.1, 0.99)
    elbow = math.pi - 2 * (0.5 * length / LINK).asin()
    return torch.stack([torch.atan2(target[:, 1], target[:, 0]) - 0.5 * elbow, elbow], 1)


def held(state: Tensor, which: slice) -> Tensor:
    """Where an object is held, bool (N,)."""
    own = state[:, which]
    near: Tensor = (place(state[:, :2]) - own[:, :2]).norm(dim=1) < 0.05
    return near & (state[:, 7] > 0.5) & ((state[:, 4] - own[:, 2]).abs() < 0.06)


def contact(state: Tensor) -> Tensor:
    """What the sensor says, (N,)."""
    hand = torch.cat([place(state[:, :2]), state[:, 4:5]], 1)
    away = torch.stack([(hand - state[:, which][:, :3]).norm(dim=1) for which in OBJECTS], 1).amin(1)
    return state[:, 7] * (1 - away / REACH).clamp(0, 1)


def turned(direction: Tensor, angle: Tensor) -> Tensor:
    """Unit vectors (N, 2), turned by angles (N,)."""
    cos, sin = angle.cos(), angle.sin()
    x, y = direction.unbind(1)
    return torch.nn.functional.normalize(torch.stack([cos * x - sin * y, sin * x + cos * y], 1), dim=1)


def step(rows: Tensor) -> Tensor:
    """The next states (N, 19) of rows (N, 24). The hand's place is that of its joints, whatever its columns say."""
    state, action = rows[:, :19], rows[:, 19:].clamp(-1, 1)
    after = state.clone()
    after[:, :2] += 0.05 * action[:, :2]
    after[:, 2:4] = place(after[:, :2])
    after[:, 4] = (state[:, 4] + 0.05 * action[:, 2]).clamp(0, 0.3)
    after[:, 5:7] = turned(state[:, 5:7], 0.2 * action[:, 3])
    after[:, 7] = (state[:, 7] + 0.5 * action[:, 4]).clamp(0, 1)
    moved = after[:, 2:4] - place(state[:, :2])
    for which in OBJECTS:
        own, is_held = state[:, which], held(state, which)[:, None]
        carried = torch.cat([own[:, :2] + moved, after[:, 4:5], turned(own[:, 3:], 0.2 * action[:, 3])], 1)
        resting = torch.cat([own[:, :2], torch.zeros_like(own[:, 2:3]), own[:, 3:]], 1)
        after[:, which] = torch.where(is_held, carried, resting)
    after[:, 8] = contact(after)
    return after


def impossible(rows: Tensor) -> Tensor:
    """Which rows (N, 24) cannot be: columns that contradict each other, or an object in the air without a hand."""
    state = rows[:, :19]
    wrong = (state[:, 2:4] - place(state[:, :2])).abs().amax(1) > 1e-4
    wrong |= (state[:, 8] - contact(state)).abs() > 1e-4
    wrong |= (rows[:, 19:].abs() > 1).any(1)
    for unit in UNITS:
        wrong |= (rows[:, list(unit)].norm(dim=1) - 1).abs() > 1e-3
    for which in OBJECTS:
        wrong |= (state[:, which.start + 2] > 1e-6) & ~held(state, which)
    return wrong


def local(rows: Tensor) -> Tensor:
    """Hand, action and an object depend on each other where the hand is near it."""
    mask = torch.zeros(len(rows), 4, 3, dtype=torch.bool, device=rows.device)
    mask[:, :3] |= torch.eye(3, dtype=torch.bool, device=rows.device)
    mask[:, 3, 0] = True
    for number, which in enumerate(OBJECTS, 1):
        near = (rows[:, 2:4] - rows[:, which][:, :2]).norm(dim=1) < NEAR
        mask[:, 0, number] = mask[:, 3, number] = mask[:, number, 0] = near
    return mask


GRAPH = LocalGraph(
    state={"hand": slice(0, 9), "object1": OBJECTS[0], "object2": OBJECTS[1]},
    action={"action": slice(0, 5)},
    edges={"hand": ["hand", "action"], "object1": ["object1"], "object2": ["object2"]},
    local=local,
)


def collect(rows: int, *, seed: int, steps: int = 100, parked: bool = False) -> Transitions:
    """Episodes in which the hand fetches an object, carries it somewhere, lets go, and fetches one again.

    parked: always the same one in an episode, while the other lies out of reach; the hand goes away in between
    """
    stream = Stream(seed, "holding world")
    n = -(-rows // steps)
    state = torch.zeros(n, 19)
    state[:, :2] = joints_at(_places(n, stream))
    state[:, 2:4] = place(state[:, :2])
    state[:, 5:7] = turned(torch.tensor([[1.0, 0.0]]).expand(n, 2), stream.uniform(n, high=2 * math.pi))
    for which in OBJECTS:
        state[:, which.start : which.start + 2] = _places(n, stream)
        state[:, which.start + 3 : which.stop] = turned(
            torch.tensor([[1.0, 0.0]]).expand(n, 2), stream.uniform(n, high=2 * math.pi)
        )
    state[:, 8] = contact(state)
    wanted, target, parts = stream.integers(2, n), _places(n, stream), []
    if parked:
        for number, which in enumerate(OBJECTS):
            state[wanted != number, which.start : which.start + 2] = 2.0
        state[:, 8] = contact(state)
    leaves = torch.zeros(n, dtype=torch.bool)
    for _ in range(steps):
        objects = torch.stack([state[:, which] for which in OBJECTS], 1)
        is_held = torch.stack([held(state, which) for which in OBJECTS], 1)
        own, holds = objects[torch.arange(n), wanted], is_held[torch.arange(n), wanted]
        goal = torch.where((holds | leaves)[:, None], target, own[:, :2])
        away = (place(state[:, :2]) - goal).norm(dim=1)
        drops = holds & (away < 0.05)
        action = torch.zeros(n, 5)
        action[:, :2] = (joints_at(goal) - state[:, :2]) / 0.05
        action[:, 2] = torch.where(holds, 0.2 - state[:, 4], 0.02 - state[:, 4]) / 0.05
        action[:, 3] = stream.normal(n)
        grasps = (away < 0.04) & (state[:, 4] < 0.05) & ~holds & ~leaves
        action[:, 4] = torch.where(grasps | holds & ~drops, 1.0, -1.0)
        action = (action + 0.2 * stream.normal(n, 5)).clamp(-1, 1)
        after = step(torch.cat([state, action], 1))
        parts.append((state, action, after))
        wanted = torch.where(drops & (not parked), stream.integers(2, n), wanted)
        arrived = leaves & (away < 0.05)
        leaves = (leaves | drops & parked) & ~arrived
        target = torch.where((drops | arrived)[:, None], _places(n, stream), target)
        state = after
    before, done, after = (torch.stack(part, 1).flatten(0, 1)[:rows] for part in zip(*parts, strict=True))
    return Transitions(before, done, after, columns=COLUMNS)


def _places(n: int, stream: Stream) -> Tensor:
    length, angle = stream.uniform(n, low=0.3, high=0.95), stream.uniform(n, high=math.pi)
    return length[:, None] * torch.stack([angle.cos(), angle.sin()], 1)
