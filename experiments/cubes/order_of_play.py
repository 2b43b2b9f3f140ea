"""What episodes show of the official tasks: cubes put down and taken up again, that change places, that are stacked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from mocoda.agents.goals import GoalShares, sorted_episodes
from mocoda.data.transitions import Transitions
from mocoda.engine.randomness import Stream
from mocoda.tasks.cubes import HAND, HAND_NEAR, WITHIN, places

STILL = 0.01  # 1 mm: a cube that moves less in a step is still
STACKED = (0.3, 0.5)  # the upper cube is 3 to 5 cm higher
GOALS = 1_000_000  # hindsight goals that are drawn
RELATIONS = {
    "one": "task 1: one cube moved",
    "several": "tasks 2 and 3: both moved",
    "taken": "one is where the other was",
    "swapped": "task 4: swapped",
    "stacked": "task 5: stacked",
}


def moving(data: Transitions, least: float) -> Tensor:
    """The rows in which a cube moves by `least` or more, bool (N,)."""
    found: Tensor = ((places(data.next_state) - places(data.state)).norm(dim=-1) >= least).any(1)
    return found


def lying(data: Transitions) -> Tensor:
    """The rows in which all cubes lie still and the hand is away from them, bool (N,)."""
    away = (places(data.state) - data.state[:, None, HAND]).norm(dim=-1) > HAND_NEAR
    found: Tensor = away.all(1) & ~moving(data, STILL)
    return found


def relations(before: Tensor, after: Tensor) -> dict[str, Tensor]:
    """Which of RELATIONS lead from places (N, cubes, 3) to later ones, bool (N,) each."""
    moved = (after - before).norm(dim=-1) > WITHIN
    # Cube i lies where cube j was, which is elsewhere now.
    takes = (torch.cdist(after, before) <= WITHIN) & moved[:, :, None] & moved[:, None]
    takes &= ~torch.eye(takes.shape[1], dtype=torch.bool, device=takes.device)
    return {
        "one": moved.sum(1) == 1,
        "several": moved.sum(1) >= 2,
        "taken": takes.flatten(1).any(1),
        "swapped": (takes & takes.mT).flatten(1).any(1),
        "stacked": _stacked(after) & ~_stacked(before),
    }


def _stacked(cubes: Tensor) -> Tensor:
    apart = cubes[:, :, None] - cubes[:, None]
    higher = (apart[..., 2] > STACKED[0]) & (apart[..., 2] < STACKED[1])
    found: Tensor = (higher & (apart[..., :2].norm(dim=-1) < WITHIN)).flatten(1).any(1)
    return found


def order_of_play(data: Transitions, discount: float) -> dict[str, Any]:
    """The shares of episodes, and of hindsight goals, that show each of RELATIONS between states with lying cubes.

    discount  of goals that are drawn as by the value of GCIQL; those of its actor are uniform
    """
    data, _, last, _ = sorted_episodes(data, "gciql", lambda state: places(state).flatten(1))
    cubes, lies, stream = places(data.state), lying(data), Stream(0, "order-of-play", device=data.device)
    number, puts, again, shown = len(last.unique()), 0, 0, dict.fromkeys(RELATIONS, 0)
    for rows, first, later in _pairs(data, last):
        moves = ((cubes[rows[1:]] - cubes[rows[:-1]]).norm(dim=-1) > WITHIN).sum(0)
        puts, again = puts + int(moves.sum()), again + int((moves > 1).any())
        for name, found in relations(cubes[first], cubes[later]).items():
            shown[name] += int(found.any())
    row, goals = stream.integers(len(data), GOALS), {}
    for name, own in {"uniform": None, "geometric": discount}.items():
        goal = GoalShares(0, 1, own).draw(stream.child(name), row, last[row], len(data))
        made = relations(cubes[row], cubes[goal])
        goals[name] = {kind: float((shows & lies[goal]).double().mean()) for kind, shows in made.items()}
    shares = {name: count / number for name, count in shown.items()}
    return {"episodes": number, "put_down": puts / number, "again": again / number, "shown": shares, "goals": goals}


def changing_places(data: Transitions) -> Transitions | None:
    """The shortest part of each episode from a state to one in which two of its cubes have changed places.

    It goes on while the cubes lie there. The rows of an episode must be neighbours; None if no cubes change places.
    """
    assert data.episode is not None
    cubes, kept = places(data.state), torch.zeros(len(data), dtype=torch.bool, device=data.device)
    for _, first, later in _pairs(data, data.episode):
        found = relations(cubes[first], cubes[later])["swapped"]
        if bool(found.any()):
            first, later = first[found], later[found]
            begin = first[(later - first).argmin()]
            kept[begin : int(later[first == begin].amax()) + 1] = True
    return data[kept] if bool(kept.any()) else None


def _pairs(data: Transitions, episode: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Of each episode the rows that begin or end a stretch in which all cubes lie, and all pairs of them in order."""
    here = lying(data)
    inside = here.clone()
    inside[[0, -1]] = False
    inside[1:-1] &= here[:-2] & here[2:] & (episode[:-2] == episode[2:])
    rows = (here & ~inside).nonzero()[:, 0]
    for own in rows.split(episode[rows].unique_consecutive(return_counts=True)[1].tolist()):
        first, later = torch.triu_indices(len(own), len(own), 1, device=own.device)
        yield own, own[first], own[later]
