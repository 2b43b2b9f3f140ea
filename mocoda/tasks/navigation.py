"""2D Navigation: cross a square, with data of only its bottom and right side (Section 5, Appendix C.1).

| | |
|---|---|
| observation | position (x, y), float32, starts in the unit square and is not clipped to it |
| action | (dx, dy) in [-1, 1]² |
| dynamics | s' = s + 0.05 a; where x and y are both > 0.5 also s' -= 0.02 (dy, dx): each sub-action moves both |
| start | uniform in [0, 0.15]² |
| goal | both coordinates in (0.8, 0.9) |
| reward | -1 a step, 0 for the step that reaches the goal |
| end | terminated at the goal, truncated after 70 steps |
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import check_counts
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.tasks.task import SimulatedEnv

HORIZON = 70
START_HIGH = 0.15
GOAL_LOW, GOAL_HIGH = 0.8, 0.9
QUADRANT = 0.5  # where both coordinates exceed this, each sub-action moves both


def coupled(rows: Tensor) -> Tensor:
    """Returns whether a row (N, 4) lies in the top right quadrant, where all edges are present: bool (N,)."""
    return (rows[:, :2] > QUADRANT).all(1)


def local_mask(rows: Tensor) -> Tensor:
    """Returns the true graphs: x' depends on x and dx, y' on y and dy; in the top right quadrant, each on all."""
    sparsest = torch.eye(2, dtype=torch.bool, device=rows.device).repeat(2, 1)
    return sparsest | coupled(rows)[:, None, None]


GRAPH = LocalGraph(
    state={"x": 0, "y": 1},
    action={"dx": 0, "dy": 1},
    edges={"x": ["x", "dx"], "y": ["y", "dy"]},
    local=local_mask,
)


class Navigation:
    """Cross the square; the recorded walks go up the right side and right along the bottom, but not across."""

    name = "navigation"
    environment = "mocoda/Navigation2D-v0"
    graph = GRAPH
    horizon = HORIZON

    @property
    def box(self) -> tuple[Tensor, Tensor]:
        return torch.tensor([0.0, 0.0, -1.0, -1.0]), torch.ones(4)

    def step(self, rows: Tensor) -> Tensor:
        action = rows[:, 2:]
        moved = rows[:, :2] + 0.05 * action
        return torch.where(coupled(rows)[:, None], moved - 0.02 * action.flip(1), moved)

    def label(self, state: Tensor, action: Tensor, next_state: Tensor) -> tuple[Tensor, Tensor]:
        reached = ((next_state > GOAL_LOW) & (next_state < GOAL_HIGH)).all(1)
        return reached.float() - 1.0, reached

    def start(self, n: int, *, seed: int | Stream, device: torch.device | str = "cpu") -> Tensor:
        """Draws start states of the target task, (n, 2)."""
        return as_stream(seed, "start", device=device).uniform(n, 2, high=START_HIGH)

    def least_steps(self, start: Tensor) -> Tensor:
        """Returns the fewest steps in which any policy reaches the goal from starts (N, 2) in the lower left, (N,).

        Outside the quadrant each coordinate gains up to 0.05 a step, also in the step that enters it, so the smaller
        coordinate is at most 0.55 after it. Inside, x + y gains up to 0.06 a step or x - y up to 0.14, one at the cost
        of the other, so the rest takes ½ (Δ(x + y) / 0.03 + |Δ(x - y)| / 0.07) steps.
        """
        ahead, behind = start.double().amax(1, keepdim=True), start.double().amin(1, keepdim=True)
        outside = torch.arange(1.0, 40.0, dtype=torch.float64, device=start.device)  # steps, with the one that enters
        x, y = (ahead + 0.05 * outside).clamp(max=GOAL_HIGH), (behind + 0.05 * outside).clamp(max=QUADRANT + 0.05)
        inside = ((2 * GOAL_LOW - x - y) / 0.03 + (x - y) / 0.07) / 2
        total = outside + (inside + 1e-9).floor() + 1  # the border of the goal is not in it
        return torch.where((x > QUADRANT) & (y > QUADRANT), total, torch.inf).amin(1)

    def features(self, rows: Tensor) -> Tensor:
        return rows[:, :2]

    def region(self, rows: Tensor) -> Tensor:
        """Returns the rows in a band around the diagonal, along which the target task is solved fastest."""
        return (rows[:, 0] - rows[:, 1]).abs() < 0.3

    def collect(self, rows: int, *, seed: int | Stream) -> Transitions:
        """Records walks: half of the rows go up the right side, half go right along the bottom.

        Both components of every action are U(-0.05, 0.05), plus U(0.4, 0.9) along the walk. A walk ends beyond 0.9.
        """
        check_counts(rows=rows)
        stream = as_stream(seed, "navigation-collect", device="cpu")
        up, up_place = self._walks(rows // 2, 1, torch.tensor([[0.6, 0.0], [1.0, 0.15]]), stream.child("up"))
        right, right_place = self._walks(
            rows - rows // 2, 0, torch.tensor([[0.0, 0.0], [0.15, 0.4]]), stream.child("right")
        )
        right_place[:, 0] += len(up_place[:, 0].unique())
        walked, place = torch.cat([up, right]), torch.cat([up_place, right_place])
        state, action, next_state = walked[:, :2], walked[:, 2:], self.step(walked)
        return Transitions(
            state,
            action,
            next_state,
            *self.label(state, action, next_state),
            columns=GRAPH.parents,
            source={"task": self.name, "rows": rows, "seed": stream.seed},
            episode=place[:, 0],
            step=place[:, 1],
        )

    def _walks(self, rows: int, axis: int, corners: Tensor, stream: Stream) -> tuple[Tensor, Tensor]:
        """Returns rows (rows, 4) of walks along `axis`, one walk after the other, and their walk and step (rows, 2).

        corners  of the area in which they start, the lowest and the highest place (2, 2)
        """
        walks = rows // 10 + 1  # a walk is never shorter than 10 steps
        state = corners[0] + (corners[1] - corners[0]) * stream.uniform(walks, 2)
        recorded, alive = [], []
        going = torch.ones(walks, dtype=torch.bool)
        while bool(going.any()):
            action = stream.uniform(walks, 2, low=-0.05, high=0.05)
            action[:, axis] += stream.uniform(walks, low=0.4, high=0.9)
            recorded.append(torch.cat([state, action], 1))
            alive.append(going)
            state = self.step(recorded[-1])
            going = going & (state[:, axis] <= 0.9)
        kept = torch.stack(alive, 1)
        return torch.stack(recorded, 1)[kept][:rows], kept.nonzero()[:rows]


class Navigation2D(SimulatedEnv):
    """The target task as a Gymnasium environment; the table above is its specification."""

    def __init__(self) -> None:
        # No step moves a coordinate by more than 0.07, so 70 steps stay inside.
        super().__init__(Navigation(), -5.0, 6.0)

    def draw_start(self) -> Tensor:
        return torch.from_numpy(self.np_random.uniform(0.0, START_HIGH, size=(1, 2)).astype(np.float32))
