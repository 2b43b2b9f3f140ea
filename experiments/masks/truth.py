"""The true edges of rows: a task's exact masks, or what its simulator does once a parent is another one.

By replay, there is an edge where the child's next value changes in each of a few steps from the same row, in which the
parent is as in other recorded rows. A parent that acts on the child does so no longer, or otherwise; one that does not
would have to begin to act in all of them, which is rare as long as interactions are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.random_dag import RandomDag
from experiments.worlds import CoupledWorld
from mocoda.analysis.replay import Step, replay
from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph, connected_components
from mocoda.parents import fit_parents
from mocoda.tasks import Task
from mocoda.tasks.navigation import Navigation
from mocoda.tasks.objects import Objects

REDRAWS = 6  # of each parent
AGAIN = 200  # rows that are replayed twice, for the simulator's own noise
ALIKE = 0.1  # standard deviations of a column: values that are closer are alike
MAX_CONNECTED = 0.98  # share of pairs of rows in which a graph connects everything: CoDA would search for long
SMALL = 0.01  # of the standard deviation of a column's recorded changes: less is no change


def is_exact(task: Task) -> bool:
    """Whether the task's mask is the truth, rather than what its authors took for it."""
    return isinstance(task, Navigation | Objects | RandomDag | CoupledWorld)


def true_edges(
    task: Task,
    data: Transitions,
    *,
    seed: int | Stream = 0,
    workers: int | None = 0,
    checkpoint: Path | None = None,
    progress: Progress = silent,
) -> Tensor:
    """The edges at each row, bool (N, P, C): exact where the task has them, else by replay."""
    if is_exact(task):
        return task.graph.mask(data.rows)
    step = getattr(task, "step", None)
    if step is None:
        raise InputError(f"the task {task.name!r} has no exact mask and no step(rows) to replay: it has no true edges.")
    return replayed_edges(data, task.graph, step, seed=seed, workers=workers, checkpoint=checkpoint, progress=progress)


def replayed_edges(
    data: Transitions,
    graph: LocalGraph,
    step: Step,
    *,
    redraws: int = REDRAWS,
    pool: Tensor | None = None,
    seed: int | Stream = 0,
    workers: int | None = 0,
    checkpoint: Path | None = None,
    progress: Progress = silent,
) -> Tensor:
    """The edges at each row by replay, bool (N, P, C).

    A change counts from 1% of the standard deviation of the column's recorded changes on and beyond twice the
    simulator's own noise, which is how much two replays of the same row differ. A redrawn parent that is much
    as it was, within a tenth of a standard deviation in every column, says nothing.

    pool  recorded rows (M, S + A) that other parents are drawn from; the rows themselves unless given
    """
    rows, factors = data.rows, list(graph.factors.values())
    pool = rows if pool is None else pool.to(rows.device)
    stream = as_stream(seed, "redrawn parents", device="cpu")
    again = rows[:AGAIN]
    apart = ALIKE * rows.std(0, correction=0)
    asked, differs = [rows], []
    for parent, columns in enumerate(factors):
        for number in range(redraws):
            others = pool[stream.child(parent, number).integers(len(pool), len(rows)).to(rows.device)]
            changed = rows.clone()
            changed[:, list(columns)] = others[:, list(columns)]
            asked.append(changed)
            differs.append(((changed - rows).abs() > apart).any(1))
    whole = torch.cat([*asked, again])
    found = replay(whole, step, graph.state_width, workers=workers, checkpoint=checkpoint, progress=progress)
    before, after = found[: len(rows)], found[len(rows) : len(asked) * len(rows)]
    noise = (found[-len(again) :] - before[: len(again)]).abs().amax(0)
    least = torch.maximum(SMALL * (data.next_state - data.state).std(0, correction=0), 2 * noise).clamp(min=1e-6)
    by_draw = after.unflatten(0, (len(factors), redraws, len(rows)))
    moved = (by_draw - before).abs() > least  # (P, R, N, S)
    same = ~torch.stack(differs).unflatten(0, (len(factors), redraws))[..., None]
    changed_child = torch.stack([moved[..., list(graph.factors[child])].any(3) for child in graph.children], 3)
    edges: Tensor = (changed_child | same).all(1) & ~same.all(1)
    return edges.transpose(0, 1)


def true_share(task: Task, data: Transitions, graph: LocalGraph, rows: int, *, seed: int) -> float | None:
    """The share of rows by CoDA that the world itself confirms; None if the graph connects too much to make any."""
    some = graph.mask(data.rows[:1_000])
    parts = connected_components(some | some.roll(1, 0))
    if float((parts == parts[:, :1]).all(1).float().mean()) > MAX_CONNECTED:
        return None
    parents: Any = fit_parents(data, graph, "coda", seed=seed)
    try:
        made, after = parents.sample_with_children(rows, seed=seed)
    except InputError:
        return None
    step: Any = getattr(task, "step", None)
    near = (step(made) - after).abs() <= ALIKE * (data.next_state - data.state).std(0, correction=0) + 1e-6
    return float(near.all(1).double().mean())


def reproduced(data: Transitions, graph: LocalGraph, step: Step, *, workers: int | None = 0) -> Tensor:
    """Whether the simulator does to each child what was recorded, within a tenth of the standard deviation of its
    recorded changes: bool (N, C).

    A state may leave out what matters where things touch, such as how a box is turned. There a replay may miss an
    edge: that a parent changes nothing in it is no proof that it did nothing.
    """
    found = replay(data.rows, step, graph.state_width, workers=workers)
    near = (found - data.next_state).abs() <= ALIKE * (data.next_state - data.state).std(0, correction=0) + 1e-6
    return torch.stack([near[:, list(graph.factors[child])].all(1) for child in graph.children], 1)
