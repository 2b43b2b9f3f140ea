"""A hand that moves one of several things about in its corner, goes about in the middle, and moves it again.

Every corner has a thing of its own, and an episode moves the same one again and again. No way leads past another's
corner, so that episodes that take turns are never in each other's way.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mocoda import LocalGraph, Transitions
from mocoda.engine.randomness import Stream

NEAR, FAR, SPEED = 0.3, 2.5, 0.3
GRASP, CARRY = 3, 4  # stages, after three ways in the middle
HAND = slice(0, 4)  # x, y and what they changed by


def place(thing: int) -> slice:
    return slice(4 + 2 * thing, 6 + 2 * thing)


def near(rows: Tensor, thing: int) -> Tensor:
    """Where the hand is near a thing, bool (N,)."""
    close: Tensor = (rows[:, :2] - rows[:, place(thing)]).norm(dim=1) < NEAR
    return close


def step(rows: Tensor, things: int) -> Tensor:
    """The next states (N, 4 + 2 things) of rows (N, 7 + 2 things): a thing goes with a hand that is near and grips."""
    state, moved, grips = rows[:, :-3], SPEED * rows[:, -3:-1], rows[:, -1:] > 0
    after = torch.cat([state[:, :2] + moved, moved, state[:, 4:]], 1)
    for thing in range(things):
        taken = near(rows, thing)[:, None] & grips
        after[:, place(thing)] = torch.where(taken, state[:, place(thing)] + moved, state[:, place(thing)])
    return after


def graph_of(things: int) -> LocalGraph:
    def local(rows: Tensor) -> Tensor:
        mask = torch.eye(things + 2, things + 1, dtype=torch.bool, device=rows.device).repeat(len(rows), 1, 1)
        mask[:, -1, 0] = True
        for thing in range(things):
            mask[:, 0, 1 + thing] = mask[:, -1, 1 + thing] = near(rows, thing)
        return mask

    names = [f"thing{thing}" for thing in range(things)]
    return LocalGraph(
        state={"hand": HAND, **{name: place(thing) for thing, name in enumerate(names)}},
        action={"action": slice(0, 3)},
        edges={"hand": ["hand", "action"], **{name: [name] for name in names}},
        local=local,
    )


def collect(things: int, episodes: int, steps: int, seed: int) -> Transitions:
    """Episode e moves thing e % things."""
    stream, every = Stream(seed, "sorting world"), torch.arange(episodes)
    own = every % things
    angle = 2 * math.pi * torch.arange(things) / things
    corner = FAR * torch.stack([angle.cos(), angle.sin()], 1)

    def somewhere(around: Tensor) -> Tensor:
        wide = torch.where(around.norm(dim=1, keepdim=True) > 0, 0.4, 0.8)
        return around + wide * stream.uniform(episodes, 2, low=-1)

    lying = torch.cat([somewhere(corner[thing].expand(episodes, 2)) for thing in range(things)], 1)
    middle = torch.zeros(episodes, 2)
    state = torch.cat([somewhere(middle), middle, lying], 1)
    stage, target, parts = torch.zeros(episodes, dtype=torch.long), somewhere(middle), []
    for _ in range(steps):
        thing = state[:, 4:].unflatten(1, (things, 2))[every, own]
        goal = torch.where((stage == GRASP)[:, None], thing, target)
        away = goal - state[:, :2]
        pace = stream.uniform(episodes, 1, low=0.5)
        action = torch.cat([(away / SPEED).clamp(-1, 1) * pace, torch.where(stage == CARRY, 1.0, -1.0)[:, None]], 1)
        after = step(torch.cat([state, action], 1), things)
        parts.append((state, action, after))
        stage = torch.where(away.norm(dim=1) < 0.05, (stage + 1) % 5, stage)
        begins = (away.norm(dim=1) < 0.05)[:, None]
        target = torch.where(begins, somewhere(torch.where((stage == CARRY)[:, None], corner[own], middle)), target)
        state = after
    before, done, after = (torch.stack(part, 1).flatten(0, 1) for part in zip(*parts, strict=True))
    return Transitions(before, done, after, episode=every.repeat_interleave(steps))
