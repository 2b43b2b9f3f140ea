"""A scripted expert that sweeps boxes, and the styles in which it does.

A script is a generator that receives states (16,) and yields targets of the gripper, so that it reads like a plan.
It sees only what an agent sees.

Lengths in metres. The hook's shaft runs along x from the gripper to its head, and the head points to low y: a box is
swept by the head if it lies `offset` below the shaft's y, between about 0 (or beside the shaft, when pulling) and 0.18.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mocoda.engine.randomness import Random
from mocoda.tasks.hooksweep_env import CENTRE, HOME, HORIZON, Floats, Simulator, boxes_of, draw_boxes, draw_goal

HEAD = 0.65  # from the gripper to the middle of the head
CONTACT = 0.04  # from the middle of the head to a box that touches it
BESIDE = 0.045  # from the shaft to a box that lies beside it
TIP = 0.185  # from the shaft to the end of the head
MARGIN = 0.015  # distance to keep from a box that should stay
HIGH, LOW = 0.53, 0.437  # heights of the gripper: over the boxes, and just over the table
GAIN = 25.0

Indices = NDArray[np.int64]
Script = Generator[Floats, Floats, Floats]  # sent states, yields targets of the gripper, returns the last state


@dataclass(frozen=True)
class Style:
    """How one episode is swept.

    speed    speed of the sweep, as a share of the maximum
    strokes  per stroke, the share of the way that it takes the box, and the position of the box along the head, from 0
             (nearest to the shaft) to 1 (at the tip)
    room     push the boxes apart first if the box cannot be taken at exactly this position (otherwise only if it
             cannot be taken at all)
    detour   places to pass before the sweep, (N, 3)
    nudges   pushes after the sweep: distance beyond the goal, and position of the box along the head
    after    places to pass at the end, (N, 3); without any, the gripper stays
    noise    standard deviation of the action's noise
    """

    speed: float = 1.0
    strokes: tuple[tuple[float, float], ...] = ((1.0, 0.5),)
    room: bool = False
    detour: tuple[Floats, ...] = ()
    nudges: tuple[tuple[float, float], ...] = ()
    after: tuple[Floats, ...] = ()
    noise: float = 0.2


def plain(random: Random) -> Style:
    """The same style for every episode; only the noise varies."""
    return Style(noise=random.uniform(0.1, 0.5))


def varied(random: Random) -> Style:
    """A style drawn at random, as a learned, noisy expert's would vary."""
    halfway = ((random.uniform(0.2, 0.7), random.random()),) if random.random() < 0.4 else ()
    return Style(
        speed=random.uniform(0.5, 1.0),
        strokes=(*halfway, (1.0, random.random())),
        room=random.random() < 0.7,
        detour=(_anywhere(random),) if random.random() < 0.2 else (),
        nudges=((random.uniform(-0.08, 0.08), random.random()),) if random.random() < 0.3 else (),
        after=tuple(_anywhere(random) for _ in range(5)) if random.random() < 0.5 else (),
        noise=random.uniform(0.1, 0.5),
    )


STYLES = {"plain": plain, "varied": varied}


class Episode(NamedTuple):
    """An episode of 75 steps."""

    states: Floats  # (76, 16)
    actions: Floats  # (75, 4)
    touched: NDArray[np.bool_]  # (75, 3), of `TOUCHES`
    goal: Floats  # (6,)

    def distances(self) -> Floats:
        """Returns the final distances from the goals (2,), of the box that should be swept first."""
        goals = self.goal.reshape(2, 3)
        distances: Floats = np.linalg.norm(boxes_of(self.states[-1]).reshape(2, 3) - goals, axis=1)
        return distances[np.argsort(-np.abs(goals[:, 0] - CENTRE[0]))]


def play(simulator: Simulator, random: Random, mode: str, variety: str, noise: float | None = None) -> Episode:
    """Plays an episode of the expert; `random` draws its start, style and noise.

    noise  standard deviation of the action noise; None: that of the style
    """
    goal = draw_goal(random, mode)
    simulator.reset(draw_boxes(random))
    style = STYLES[variety](random)
    deviation = style.noise if noise is None else noise
    expert = Expert(goal, style)
    states, actions, touched = [simulator.state()], [], []
    for _ in range(HORIZON):
        action = np.clip(expert.act(states[-1]) + deviation * random.normal(size=4), -1, 1)
        touched.append(simulator.step(action))
        states.append(simulator.state())
        actions.append(action)
    return Episode(np.array(states), np.array(actions), np.array(touched), goal)


class Expert:
    """Sweeps one box, or both, to their goals (6,)."""

    def __init__(self, goal: Floats, style: Style | None = None) -> None:
        self.style = style or Style()
        self._script = _script(goal.reshape(2, 3), self.style)
        next(self._script)

    def act(self, state: Floats) -> Floats:
        """The action (4,) without noise."""
        target = self._script.send(state)
        return np.append(np.clip(GAIN * (target - state[:3]), -1, 1), 0.0)


def _script(goal: Floats, style: Style) -> Script:
    state = yield HOME
    for place in style.detour:
        state = yield from _go(state, place, near=0.05)
    moved = np.abs(goal[:, 0] - CENTRE[0]) > 0.15
    wanted = np.flatnonzero(moved)
    sign = np.sign(goal[wanted[0], 0] - CENTRE[0])
    if len(wanted) == 1:
        state = yield from _part(state, goal, wanted[0], sign, style.strokes[0][1] if style.room else None)
    start = _boxes(state)
    for share, along in style.strokes:
        left = wanted
        while len(left):
            aim = start + share * (goal - start)
            state = yield from _sweep(state, aim, left, sign, style.speed, along)
            # Sweep again if a box has slipped off the head.
            left = np.flatnonzero(moved & (sign * (aim - _boxes(state))[:, 0] > 0.06))
    for beyond, along in style.nudges:
        aim = goal + np.array([beyond, 0, 0])
        way = float(np.sign((aim - _boxes(state))[wanted[0], 0]))
        state = yield from _sweep(state, aim, wanted, way, style.speed, along)
    for place in style.after:
        state = yield from _go(state, np.array([*state[:2], HIGH]))
        state = yield from _go(state, place, near=0.05)
    rest = state[:3].copy()
    while True:
        state = yield rest


def _part(state: Floats, goal: Floats, wanted: int, sign: float, place: float | None) -> Script:
    """Makes room between the boxes: lowers the shaft beside one of them and pushes it away from the other."""
    boxes = _boxes(state)
    low, high = _offsets(boxes, wanted, sign)
    lacking = max(low - high, 0.0)
    if place is not None:
        offset = _offset(sign, place)
        lacking = max(lacking, low - offset, offset - high)
    if abs(boxes[0, 0] - boxes[1, 0]) > 0.085:  # the head fits between them: the nearer one
        pushed, x = int(boxes[:, 0].argmin()), boxes[:, 0].mean() - HEAD
    else:  # the shaft fits between them: the one that is to stay
        pushed, x = 1 - wanted, boxes[:, 0].max() + CONTACT + 0.02 - HEAD
        if boxes[1, 1] - boxes[0, 1] < 2 * BESIDE + MARGIN:
            return state
    aside = 1 if pushed == 1 else -1  # box 2 to high y, box 1 to low y
    end = boxes[pushed, 1] + aside * lacking
    end = np.clip(end, goal[pushed, 1] - 0.1, goal[pushed, 1] + 0.1)  # not too far from its place
    if aside * (end - boxes[pushed, 1]) < 0.01:
        return state
    y = boxes[pushed, 1] - aside * (BESIDE + 0.01)
    state = yield from _go(state, np.array([*state[:2], HIGH]))
    state = yield from _go(state, np.array([x, y, HIGH]))
    state = yield from _go(state, np.array([x, y, LOW]), near=0.012, patience=8)
    for _ in range(12):
        left = end - _boxes(state)[pushed, 1]
        if aside * left < 0.003:
            break
        state = yield np.array([x, state[1] + 0.5 * left + aside * 0.005, LOW])
    state = yield from _go(state, np.array([x, state[1] - aside * 0.015, HIGH]))
    return state


def _sweep(state: Floats, goal: Floats, wanted: Indices, sign: float, speed: float, place: float) -> Script:
    """Goes behind the boxes, down, and along until they are at their goals."""
    boxes = _boxes(state)
    if len(wanted) == 1:
        low, high = _offsets(boxes, wanted[0], sign)
        offset = max(low, min(high, _offset(sign, place)))
    else:  # of the upper one, so that the head takes the lower one too
        low, high = _offset(sign, 0), TIP - 0.01 - (boxes[1, 1] - boxes[0, 1])
        offset = low + max(high - low, 0.0) * place
    first = boxes[wanted, 0].min() if sign > 0 else boxes[wanted, 0].max()
    start = np.array([first - HEAD - sign * (CONTACT + 0.02), boxes[wanted, 1].max() + offset])
    state = yield from _go(state, np.array([*state[:2], HIGH]))
    state = yield from _go(state, np.array([*start, HIGH]))
    state = yield from _go(state, np.array([*start, LOW]), near=0.012, patience=10)
    for _ in range(60):
        boxes = _boxes(state)[wanted]
        left = (goal[wanted] - boxes).mean(0)
        slipped = sign * (boxes[:, 0] - state[0] - HEAD) < 0
        if sign * left[0] < 0.005 or slipped.any():
            break
        ahead = sign * min(0.04, max(abs(left[0]), 0.015)) * speed
        sideways = np.clip(0.1 * left[1], -0.3 * abs(ahead), 0.3 * abs(ahead))
        state = yield np.array([state[0] + ahead, state[1] + sideways, LOW])
    return state


def _offsets(boxes: Floats, wanted: int, sign: float) -> tuple[float, float]:
    """Returns the range of offsets below the shaft at which the head takes the wanted box and leaves the other."""
    low, high = _offset(sign, 0), _offset(sign, 1)
    other = 1 - wanted
    apart = boxes[1, 1] - boxes[0, 1]
    ahead = sign * (boxes[wanted, 0] - boxes[other, 0])
    if ahead > 2 * CONTACT + 0.005:  # the head fits between the two
        if wanted == 0 and sign > 0:  # but the shaft must not come down on the other
            room = apart - BESIDE - MARGIN
            return (low, min(high, room)) if room > low else (apart + BESIDE + MARGIN, high)
        return low, high
    if wanted == 0:
        return low, min(high, apart - BESIDE - MARGIN)
    return max(low, TIP + 0.025 + MARGIN - apart), high


def _offset(sign: float, place: float) -> float:
    """Returns how far below the shaft a box lies, from 0, nearest to the shaft (or beside it), to 1, at the tip."""
    low, high = (0.0 if sign > 0 else BESIDE), TIP - 0.015
    return low + (high - low) * place


def _boxes(state: Floats) -> Floats:
    """Returns the positions of the boxes, (2, 3)."""
    return state[6:].reshape(2, 5)[:, :3]


def _go(state: Floats, place: Floats, near: float = 0.02, patience: int = 25) -> Script:
    for _ in range(patience):
        if np.abs(place - state[:3]).max() < near:
            break
        state = yield place
    return state


def _anywhere(random: Random) -> Floats:
    """Draws a place over the table, high enough for the hook to pass over the boxes despite the noise."""
    return random.uniform([1.08, 0.6, 0.5], [1.5, 1.0, 0.58])
