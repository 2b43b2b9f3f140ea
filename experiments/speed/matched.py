"""A made-up world to time matched parents in: ten columns are shared by two parent sets."""

from __future__ import annotations

import torch

from mocoda.data.transitions import Transitions
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents import Parents, fit_parents, make_recipe

SHARED, REST = 10, 5


def matched_parents(recorded: int, device: str) -> Parents:
    """Parents matched on SHARED columns, from so many recorded rows; all columns are Gaussian, the worst case."""
    stream = Stream(0, "bench-matched", device=device)
    shared, noise = stream.normal(recorded, SHARED), stream.normal(recorded, 2 * REST)
    rest = shared.repeat(1, 2)[:, : 2 * REST].sin() + 0.3 * noise
    state = torch.cat([shared, rest], 1)
    graph = LocalGraph(
        state={"hand": slice(0, SHARED), "a": slice(SHARED, SHARED + REST), "b": slice(SHARED + REST, len(state[0]))},
        action={"push": 0},
        edges={"hand": ["hand"], "a": ["hand", "a"], "b": ["hand", "b"]},
    )
    return fit_parents(Transitions(state, noise[:, :1], state), graph, make_recipe("mocoda", density="matched"))
