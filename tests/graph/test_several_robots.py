"""Several robots of the same kind, with an action of their own each: their parts and actions recombine one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import mocoda
from mocoda import Transitions

GRAPH = """
[action]
push1 = ["push1"]
push2 = ["push2"]
[edges]
robot1 = ["robot1", "push1"]
robot2 = ["robot2", "push2"]
[[near]]
between = ["robot1", "robot2"]
within = 0.5
"""


def step(rows: Tensor) -> Tensor:
    """Robots move as they are pushed, and away from each other where they are near."""
    place, push = rows[:, :2], rows[:, 2:]
    apart = (place[:, 0] - place[:, 1])[:, None] * torch.tensor([1.0, -1.0])
    return place + 0.1 * push + torch.where(apart.abs() < 0.5, 0.2 * apart.sign(), 0.0)


@pytest.mark.parametrize("recipe", ["coda", "mocoda"])
def test_pushes_that_were_recorded_one_at_a_time_are_combined_and_the_rows_are_true(
    recipe: str, tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    push = random.uniform(0.5, 1, (1_000, 2)) * np.eye(2)[random.integers(2, size=1_000)]  # only one is ever pushed
    rows = torch.tensor(np.hstack([random.normal(size=(1_000, 2)), push])).float()
    columns = ["robot1.x", "robot2.x", "push1", "push2"]
    data = Transitions(rows[:, :2], rows[:, 2:], step(rows), columns=columns)
    (tmp_path / "graph.toml").write_text(GRAPH)
    graph = mocoda.load_graph(tmp_path / "graph.toml", data)
    made = mocoda.fit_parents(data, graph, recipe, seed=0)
    drawn = mocoda.augment(data, made, _Truth(), rows=1_000, keep_recorded=False, graph=graph, seed=0)
    both = (drawn.action > 0).all(1)
    assert 0.15 < float(both.float().mean()) < 0.4
    assert torch.allclose(drawn.next_state, step(drawn.rows), atol=1e-6)
    near = (drawn.state[:, 0] - drawn.state[:, 1]).abs() < 0.5
    recorded = {tuple(row) for row in data.rows.tolist()}
    assert all(tuple(row) in recorded for row in drawn.rows[near].tolist())  # as they were


class _Truth:
    """A model that is right."""

    def sample(self, rows: Tensor, *, seed: object) -> Tensor:
        return step(rows)
