"""How true models and masks of HookSweep2 are: errors, what the simulator confirms, and the mask's mistakes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from experiments.experiment import spread
from mocoda.analysis.replay import replay
from mocoda.data.transitions import Transitions
from mocoda.dynamics import Dynamics
from mocoda.engine.randomness import generator
from mocoda.engine.workers import Workers
from mocoda.graph.local_graph import LocalGraph
from mocoda.tasks.hooksweep import COLUMNS, GRAPH, HookSweep2
from mocoda.tasks.hooksweep_env import TOLERANCE, TOUCHES, Simulator
from mocoda.tasks.hooksweep_expert import HEAD, TIP, Episode, play

EPISODES = 20  # of a job
NOISE = 0.2  # of the expert when it is judged
MOVED = 0.005  # metres in a step from which a box is said to move
CONFIRMED = HookSweep2.tolerance  # metres by which a gripper and both boxes may be off
HOOK_REACH, BOX_REACH = 0.11, 0.11  # metres from a box's middle within which it can be touched during a step
FACTORS = {"gripper": [0, 1, 2], "box1": [6, 7], "box2": [11, 12]}  # the columns that say where each is


class Plays(NamedTuple):
    """Episodes that the expert is to play."""

    mode: str
    variety: str
    noise: float | None
    seed: int
    first: int
    episodes: int


def played_by_expert(
    mode: str, variety: str, episodes: int, *, seed: int, workers: int | None, noise: float | None = NOISE
) -> list[Episode]:
    """Episodes of the scripted expert, the same for any number of workers."""
    starts = range(0, episodes, EPISODES)
    jobs = [Plays(mode, variety, noise, seed, first, min(EPISODES, episodes - first)) for first in starts]
    with Workers(play_part, workers) as processes:
        return [episode for part in processes.map(jobs) for episode in part]


def play_part(job: Plays) -> list[Episode]:
    simulator = Simulator()
    randoms = (generator(job.seed, job.first + number) for number in range(job.episodes))
    return [play(simulator, random, job.mode, job.variety, job.noise) for random in randoms]


def successes(episodes: Sequence[Episode]) -> dict[str, float]:
    """Shares of the episodes, in percent: the box (or boxes) swept home, the other one left in place, both of these."""
    ends = np.array([episode.distances() <= TOLERANCE for episode in episodes])
    swept, left = 100 * ends.mean(0)
    return {"swept": float(swept), "left": float(left), "both": float(100 * ends.all(1).mean())}


def as_transitions(episodes: Sequence[Episode]) -> Transitions:
    """All steps of the episodes, none of which leads from one episode to the next."""
    state = np.concatenate([episode.states[:-1] for episode in episodes])
    next_state = np.concatenate([episode.states[1:] for episode in episodes])
    return Transitions(state, np.concatenate([episode.actions for episode in episodes]), next_state, columns=COLUMNS)


def model_errors(models: Mapping[str, Sequence[Dynamics]], data: Mapping[str, Transitions]) -> list[dict[str, Any]]:
    """Millimetres between where an ensemble's mean puts each factor and where it went, over the rows in which it moved.

    models  by architecture, one per seed
    data    by name
    """
    cells = []
    for name, rows in data.items():
        moves = {factor: (rows.next_state - rows.state)[:, columns] for factor, columns in FACTORS.items()}
        for architecture, seeds in models.items():
            means = [model.predict(rows.rows).mean.mean(0) for model in seeds]
            for factor, columns in FACTORS.items():
                moving = moves[factor].norm(dim=1) > MOVED
                if not bool(moving.any()):
                    continue
                values = [1e3 * _distance(mean, rows.next_state, columns)[moving].mean().item() for mean in means]
                labels = {"data": name, "architecture": architecture, "factor": factor}
                step = 1e3 * moves[factor][moving].norm(dim=1).mean().item()
                cells.append(labels | spread(values) | {"step": step})
    return cells


def confirmation(name: str, rows: Transitions, workers: int | None) -> dict[str, Any]:
    """The share of rows that the simulator confirms when it is put in their state and given their action.

    Recorded rows fall short of 100% because of what a state does not say (how the hook is turned).
    """
    rows = rows.to("cpu")
    truth = replay(rows.rows, HookSweep2().step, 16, workers=workers)
    off = torch.stack([_distance(rows.next_state, truth, columns) for columns in FACTORS.values()], 1)
    moving = torch.stack([_distance(rows.state, truth, FACTORS[box]) > MOVED for box in ("box1", "box2")], 1)
    agreed = (off < CONFIRMED).all(1).float()
    pushed = agreed[moving.any(1)]
    return {
        "data": name,
        "rows": len(off),
        "confirmed": 100 * agreed.mean().item(),
        "confirmed_moving": 100 * pushed.mean().item() if len(pushed) else None,
        "median_mm": (1e3 * off.median(0).values).tolist(),
    }


def contact_mask(rows: Tensor) -> Tensor:
    """A mask of what can touch within a step, by the shape of the hook: a shaft along x, and a head at its end.

    The gripper and a box depend on each other where the box is near the hook, boxes where they are near each other.
    """
    hand, boxes = rows[:, :2], torch.stack([rows[:, 6:8], rows[:, 11:13]], 1)
    ahead, aside = (boxes - hand[:, None]).unbind(2)
    shaft = torch.stack([ahead - ahead.clamp(-0.05, HEAD), aside], 2).norm(dim=2)
    head = torch.stack([ahead - HEAD, aside - aside.clamp(-TIP, 0.0)], 2).norm(dim=2)
    touch = torch.minimum(shaft, head) < HOOK_REACH
    mask = torch.eye(4, 3, dtype=torch.bool, device=rows.device).repeat(len(rows), 1, 1)
    mask[:, 3] = mask[:, 0] = torch.cat([torch.ones_like(touch[:, :1]), touch], 1)
    mask[:, 1:3, 0] = touch
    mask[:, 1, 2] = mask[:, 2, 1] = (boxes[:, 0] - boxes[:, 1]).norm(dim=1) < BOX_REACH
    return mask


# HookSweep2's factors, depending on each other where they can touch.
CONTACT = LocalGraph(
    state=GRAPH.state,
    action=GRAPH.action,
    edges={"gripper": ["gripper", "action"], "box1": ["box1"], "box2": ["box2"]},
    local=contact_mask,
)


def mask_mistakes(graph: LocalGraph, episodes: Sequence[Episode]) -> dict[str, Any]:
    """A mask beside what touched what: how often each pair touched, and how often an edge said it may."""
    rows = as_transitions(episodes).rows
    mask = graph.mask(rows)
    touched = torch.from_numpy(np.concatenate([episode.touched for episode in episodes]))
    parents, children = list(graph.parents), list(graph.children)
    edges = (("gripper", "box1"), ("gripper", "box2"), ("box1", "box2"))
    table = []
    for number, (parent, child) in enumerate(edges):
        edge, touch = mask[:, parents.index(parent), children.index(child)], touched[:, number]
        table.append(
            {
                "edge": f"{parent} -> {child}",
                "touch": TOUCHES[number],
                "touched": int(touch.sum()),
                "edges": int(edge.sum()),
                "false_positives": int((edge & ~touch).sum()),
                "false_negatives": int((~edge & touch).sum()),
            }
        )
    return {"rows": len(rows), "edges": table}


def _distance(one: Tensor, other: Tensor, columns: list[int]) -> Tensor:
    distance: Tensor = (one - other)[:, columns].norm(dim=1)
    return distance
