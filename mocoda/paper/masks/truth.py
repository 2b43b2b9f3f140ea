"""The true edges of rows: a task's exact masks, or what its simulator does once a parent is another one.

By replay, there is an edge where the child's next value changes in most of a few steps from the same row, each with the
parent as it is in another recorded row. An interaction is rare, so that elsewhere is away from it: a parent that
acts on the child mostly stops to, and one that does not mostly still does not.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from mocoda.analysis.replay import Step, replay
from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.tasks import Task
from mocoda.tasks.navigation import Navigation
from mocoda.tasks.objects import Objects
from mocoda.tasks.random_dag import RandomDag

REDRAWS = 3  # of each parent
SMALL = 0.01  # of the standard deviation of a column's recorded changes: less is no change


def is_exact(task: Task) -> bool:
    """Whether the task's mask is the truth, rather than what its authors took for it."""
    return isinstance(task, Navigation | Objects | RandomDag)


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
    seed: int | Stream = 0,
    workers: int | None = 0,
    checkpoint: Path | None = None,
    progress: Progress = silent,
) -> Tensor:
    """The edges at each row by replay, bool (N, P, C).

    A change counts from 1% of the standard deviation of the column's recorded changes on and beyond twice the
    simulator's own noise, which is how much two replays of the same row differ. A redrawn parent that is as it
    was says nothing.
    """
    rows, factors = data.rows, list(graph.factors.values())
    stream = as_stream(seed, "redrawn parents", device="cpu")
    asked, differs = [rows, rows], []
    for parent, columns in enumerate(factors):
        for number in range(redraws):
            others = rows[stream.child(parent, number).integers(len(rows), len(rows)).to(rows.device)]
            changed = rows.clone()
            changed[:, list(columns)] = others[:, list(columns)]
            asked.append(changed)
            differs.append((changed != rows).any(1))
    found = replay(
        torch.cat(asked), step, graph.state_width, workers=workers, checkpoint=checkpoint, progress=progress
    ).unflatten(0, (len(asked), len(rows)))
    before, again, after = found[0], found[1], found[2:].unflatten(0, (len(factors), redraws))
    noise = (again - before).abs().amax(0)
    least = torch.maximum(SMALL * (data.next_state - data.state).std(0, correction=0), 2 * noise).clamp(min=1e-6)
    moved = (after - before).abs() > least  # (P, R, N, S)
    told = torch.stack(differs).unflatten(0, (len(factors), redraws))[..., None]
    votes = torch.stack([moved[..., list(graph.factors[child])].any(3) for child in graph.children], 3) & told
    most: Tensor = 2 * votes.sum(1) > told.sum(1)
    return most.transpose(0, 1)


def disagreement(exact: Tensor, other: Tensor, graph: LocalGraph) -> dict[str, dict[str, float]]:
    """For every edge on which two masks (N, P, C) differ: shares of the rows that have it in each, and in one alone."""
    found = {}
    for p, parent in enumerate(graph.parents):
        for c, child in enumerate(graph.children):
            one, two = exact[:, p, c], other[:, p, c]
            if bool((one != two).any()):
                shares = {"exact": one, "other": two, "only_exact": one & ~two, "only_other": two & ~one}
                found[f"{parent} -> {child}"] = {name: float(share.double().mean()) for name, share in shares.items()}
    return found
