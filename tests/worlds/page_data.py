"""Small tables of which it is known what a page has to say about them."""

from __future__ import annotations

from dataclasses import replace

import torch

from mocoda import LocalGraph, Transitions, make_task
from mocoda.engine.randomness import Stream

MOCODA = 5  # the recipe's number
RECORDED, MADE = 60, 90
ODD = "</script><img src=x onerror=alert(1)>"  # a name that a careless page would run


def near(rows: torch.Tensor) -> torch.Tensor:
    """The box depends on the hand, too, where the hand's x is positive."""
    mask = torch.tensor([[1, 0], [0, 1], [1, 0]], dtype=torch.bool).repeat(len(rows), 1, 1)
    mask[:, 0, 1] = rows[:, 0] > 0
    return mask


GRAPH = LocalGraph(
    state={"hand": [0, 1], "box": [2, 3]},
    action={"push": 0},
    edges={"hand": ["hand", "push"], "box": ["box"]},
    local=near,
)
COLUMNS = ("hand_x", "hand_y", "box_x", "box_y", "push")


def table(columns: tuple[str, ...] = COLUMNS) -> Transitions:
    """Recorded rows, then counterfactual ones: row 60 + i has the hand and push of row i % 60, the box of row 7.

    Support goes from 0 to 1 over the counterfactual rows, disagreement from 1 to 0. The hand's x is negative in all.
    """
    stream = Stream(0, "page data")
    state, action = stream.normal(RECORDED, 4), stream.child("action").normal(RECORDED, 1)
    state[:, 0] = -state[:, 0].abs()
    hand = torch.arange(MADE) % RECORDED
    rows = torch.cat(
        [torch.cat([state, action], 1), torch.cat([state[hand, :2], state[[7] * MADE, 2:], action[hand]], 1)]
    )
    rising = torch.linspace(0, 1, MADE)
    notes = {
        "recipe": torch.cat([torch.zeros(RECORDED), torch.full((MADE,), MOCODA)]).long(),
        "support": torch.cat([torch.linspace(0, 1, RECORDED), rising]),
        "disagreement": torch.cat([torch.zeros(RECORDED), 1 - rising]),
        "confirmed": torch.cat([torch.full((RECORDED,), -1), (rising > 0.5).long()]),
    }
    own = torch.arange(RECORDED)
    for name, donor in (("hand", hand), ("box", torch.full((MADE,), 7)), ("push", hand)):
        notes[f"donor_{name}"] = torch.cat([own, donor]).int()
    return Transitions(
        rows[:, :4], rows[:, 4:], rows[:, :4] + 0.1, reward=torch.ones(len(rows)), columns=columns, provenance=notes
    )


def exchanged() -> tuple[Transitions, LocalGraph]:
    """Episodes of the world of objects, and new ones in which they are exchanged."""
    from mocoda import augment_episodes

    task = make_task("objects:2")
    made = augment_episodes(task.collect(rows=600, seed=0), task.graph, recipe="coda", episodes=5, seed=0)
    return replace(made, reward=None), task.graph
