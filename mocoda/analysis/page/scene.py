"""Rows on a plane: bodies that the page draws from above, by the names of their columns, and the map of all rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mocoda.analysis.page.charts import quantiles
from mocoda.data.transitions import Transitions
from mocoda.engine.networks import moments
from mocoda.graph.local_graph import LocalGraph

PLACE = re.compile(r"(?P<body>.*[\W_]|)(?P<axis>[xy])(?P<number>\d*)")  # box1_x, agent.x, x, x2
BOXES = re.compile(r"box|cube|block", re.IGNORECASE)
CELLS = 64  # of the map, across and up
MAX_MAPPED = 24  # bodies of the map


class Body(NamedTuple):
    """A body with a place: its name, and the columns of its x and y."""

    label: str
    x: int
    y: int


def bodies_of(states: Sequence[str]) -> list[Body]:
    """The bodies among the state's columns: pairs whose names end in x and y, such as box1_x and box1_y."""
    found = []
    for column, name in enumerate(states):
        parts = PLACE.fullmatch(name)
        if parts is not None and parts["axis"] == "x" and (other := f"{parts['body']}y{parts['number']}") in states:
            label = f"{parts['body']}{parts['number']}".strip("_. -")
            found.append(Body(label or f"{name}, {other}", column, states.index(other)))
    return found


def scene_of(data: Transitions, graph: LocalGraph, task: object = None) -> dict[str, Any] | None:
    """Bodies with the columns of their x and y, and the part of the plane that they are in; None without bodies.

    Goals are drawn, too, if they are columns of the state, as a task's `achieved` tells.
    """
    owner = {column: number for number, name in enumerate(graph.parents) for column in graph.factors[name]}
    goal = _goal_columns(data, task)
    bodies: list[dict[str, Any]] = [
        {
            **body._asdict(),
            "owners": [owner[body.x], owner[body.y]],
            "square": BOXES.search(body.label) is not None,
            "goal": [goal.index(body.x), goal.index(body.y)] if {body.x, body.y} <= {*goal} else None,
        }
        for body in bodies_of(data.columns[: data.state.shape[1]])
    ]
    if not bodies:
        return None
    low, high = [], []
    for axis in ("x", "y"):
        columns = [body[axis] for body in bodies]
        values = torch.cat([data.state[:, columns], data.next_state[:, columns]])
        ends = quantiles(values, 0.001, 0.999)
        low.append(float(ends[0].min()))
        high.append(float(ends[1].max()))
    room = 0.06 * max(high[0] - low[0], high[1] - low[1], 1e-6)
    return {"bodies": bodies, "box": [low[0] - room, low[1] - room, high[0] + room, high[1] + room]}


def _goal_columns(data: Transitions, task: object) -> Sequence[int]:
    """The columns of the state that a goal consists of, in its order; () where goals are something else."""
    achieved, states = getattr(task, "achieved", None), data.state.shape[1]
    if achieved is None or data.goal is None:
        return ()
    numbers = torch.arange(states, dtype=torch.float32, device=data.device)[None]
    try:
        first, second = achieved(numbers)[0], achieved(2 * numbers + 1)[0]
    except Exception:  # the user's own function may refuse such states
        return ()
    if len(first) != data.goal.shape[1] or not torch.equal(second, 2 * first + 1):
        return ()
    return [int(column) for column in first.tolist()]


# --- the map


@dataclass(frozen=True, eq=False)
class Projection:
    """The plane in which recorded rows vary most, each column in units of its standard deviation (PCA).

    axes    (S + A, 2)
    shares  of the variance of recorded rows, that each axis has
    """

    mean: Tensor
    axes: Tensor
    shares: tuple[float, float]

    @staticmethod
    def of(recorded: Tensor) -> Projection:
        mean, spread = moments(recorded)
        unit = torch.where(spread > 0, 1 / spread.clamp(min=1e-300), 0.0)
        exact = (recorded - mean) * unit
        values, vectors = torch.linalg.eigh(exact.T @ exact / len(exact))
        axes = vectors.flip(1)[:, :2]
        signs = axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()  # or else they are arbitrary
        first, second = (values.flip(0)[:2].clamp(min=0) / max(float(values.sum()), 1e-300)).tolist()
        return Projection(mean, unit[:, None] * signs * axes, (first, second))

    def __call__(self, rows: Tensor) -> Tensor:
        """The places (N, 2) of rows (N, S + A)."""
        return ((rows - self.mean) @ self.axes).float()


def map_of(tables: Sequence[Transitions], projection: Projection) -> list[dict[str, Any]]:
    """Views of all rows, with the number of rows of each table in each cell of a grid.

    A view is from above, by the x and y of a body, or by the projection, whose axes are called columns S + A and
    S + A + 1. Rows beyond the grid count in its outermost cells.
    """
    width = tables[0].rows.shape[1]
    planes = [(body.label, body.x, body.y) for body in bodies_of(tables[0].columns[: tables[0].state.shape[1]])]
    views = []
    for label, x, y in [*planes[:MAX_MAPPED], ("whole rows (projection)", width, width + 1)]:
        places = [projection(table.rows) if x == width else table.rows[:, [x, y]] for table in tables]
        ends = torch.stack([quantiles(own, 0.001, 0.999) for own in places])
        low, high = ends[:, 0].amin(0), ends[:, 1].amax(0)
        room = (0.04 * (high - low)).clamp(min=1e-6)
        low, high = low - room, high + room
        cells = [((own - low) / (high - low) * CELLS).long().clamp_(0, CELLS - 1) for own in places]
        counts = [(own[:, 1] * CELLS + own[:, 0]).bincount(minlength=CELLS**2).tolist() for own in cells]
        views.append({"label": label, "x": x, "y": y, "low": low.tolist(), "high": high.tolist(), "counts": counts})
    return views
