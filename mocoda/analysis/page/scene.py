"""What can be drawn of a state: bodies on a plane, known by the names of their columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from mocoda.data.transitions import Transitions
from mocoda.graph.local_graph import LocalGraph

PLACE = re.compile(r"(?P<body>.*[\W_]|)(?P<axis>[xy])(?P<number>\d*)")  # box1_x, agent.x, x, x2
BOXES = re.compile(r"box|cube|block", re.IGNORECASE)


def scene_of(data: Transitions, graph: LocalGraph, task: object = None) -> dict[str, Any] | None:
    """Bodies with the columns of their x and y, seen from above, and the part of the plane that they are in.

    A body is a pair of the state's columns whose names end in x and y, such as box1_x and box1_y. Where what a goal
    says are columns of the state, as a task's `achieved` tells, goals are drawn, too. None: nothing has a place.
    """
    states = data.columns[: data.state.shape[1]]
    owner = {column: number for number, name in enumerate(graph.parents) for column in graph.factors[name]}
    goal = _goal_columns(data, task)
    bodies = []
    for column, name in enumerate(states):
        found = PLACE.fullmatch(name)
        if found is None or found["axis"] != "x":
            continue
        partner = f"{found['body']}y{found['number']}"
        if partner not in states:
            continue
        other = states.index(partner)
        label = f"{found['body']}{found['number']}".strip("_. -")
        placed = [goal.index(one) if one in goal else -1 for one in (column, other)]
        bodies.append(
            {
                "label": label or f"{name}, {partner}",
                "x": column,
                "y": other,
                "owners": [owner[column], owner[other]],
                "square": BOXES.search(label) is not None,
                "goal": placed if min(placed) >= 0 else None,
            }
        )
    if not bodies:
        return None
    low, high = [], []
    for axis in ("x", "y"):
        columns = [int(body[axis]) for body in bodies]  # type: ignore[call-overload]
        values = torch.cat([data.state[:, columns], data.next_state[:, columns]])
        if len(values) > 1_000_000:  # what torch takes quantiles of
            values = values[:: len(values) // 500_000]
        ends = torch.quantile(values, torch.tensor([0.001, 0.999], device=values.device), dim=0)
        low.append(float(ends[0].min()))
        high.append(float(ends[1].max()))
    room = 0.06 * max(high[0] - low[0], high[1] - low[1], 1e-6)
    box = [low[0] - room, low[1] - room, high[0] + room, high[1] + room]
    return {"bodies": bodies, "box": box}


def _goal_columns(data: Transitions, task: object) -> Sequence[int]:
    """The columns of the state that a goal is about, in its order; () where goals are something else."""
    achieved, states = getattr(task, "achieved", None), data.state.shape[1]
    if achieved is None or data.goal is None:
        return ()
    numbers = torch.arange(states, dtype=torch.float32, device=data.device)[None]
    try:
        first, second = achieved(numbers)[0], achieved(2 * numbers + 1)[0]
    except Exception:  # of the user's own function, which need not like such states
        return ()
    if len(first) != data.goal.shape[1] or not torch.equal(second, 2 * first + 1):
        return ()
    return [int(column) for column in first.tolist()]
