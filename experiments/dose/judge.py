"""Judges of generated rows: what can be said before an agent is trained, and what the true step says afterwards.

They are asked in other processes, while agents train.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.truth import CONFIRMED, FACTORS
from mocoda.analysis.law import Draws, examine
from mocoda.augmentation.support import disagreement
from mocoda.data.transitions import Transitions
from mocoda.dynamics import Dynamics
from mocoda.engine.errors import InputError
from mocoda.engine.progress import silent
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents import Parents, fit_parents
from mocoda.parents.mocoda import Mocoda, fewer_components
from mocoda.tasks import make_task

# What is larger where rows are worse: by a classifier and by the ensemble, and by the true step.
BEFORE, AFTER = ("auc", "disagreement", "relative"), ("error", "refuted")
# The columns of what has its place, and how far off each may be: a twentieth of the longest step, and as in Table 3.
PLACES = {"navigation": {"agent": [0, 1]}, "hooksweep2": FACTORS}
TOLERANCE = {"navigation": 0.0025, "hooksweep2": CONFIRMED}
USED = 20_000  # recorded rows that parents are fitted to and compared with when they are judged, at most
BLOCKS = 200  # of rows recorded together, every other of which is held out
UPDATES = 120  # of the classifiers, as `mocoda.check` makes them


class Case(NamedTuple):
    """Rows to be judged."""

    task: str
    recorded: Transitions  # in the order of their recording
    recipe: Mocoda
    rows: NDArray[np.float32]  # (N, S + A), drawn
    next_state: NDArray[np.float32]  # (N, S), by the model
    seed: int


def make_case(
    task: str, recorded: Transitions, recipe: Mocoda, parents: Parents, model: Dynamics, rows: int, seed: int
) -> tuple[Case, dict[str, float]]:
    """Rows of the parents with the model's next states, and how far the ensemble disagrees about them.

    disagreement  in standard deviations of a step
    relative      how many times that on recorded rows
    """
    stream = Stream(seed, "dose", task, len(recorded), recipe.density, device=recorded.device)
    drawn = parents.sample(rows, seed=stream.child("parents"))
    next_state = model.sample(drawn, seed=stream.child("model"))
    apart, usual = (float(disagreement(model, of).mean()) for of in (drawn, recorded.rows))
    used = recorded[:: -(-len(recorded) // USED)].to("cpu")
    case = Case(task, used, recipe, drawn.cpu().numpy(), next_state.cpu().numpy(), seed)
    return case, {"disagreement": apart, "relative": apart / max(usual, 1e-12)}


def judge(case: Case) -> dict[str, float]:
    """What a classifier and the true step say.

    auc      of the parent set that is told apart best, by a classifier of draws and of recorded rows that were held out
    error    how far the factor is off that is farthest from its true place, mean over rows, in the task's units
    refuted  the share of rows in which one is farther off than it may be
    """
    task: Any = make_task(case.task)
    rows, next_state = torch.from_numpy(case.rows), torch.from_numpy(case.next_state)
    off = _off(next_state - task.step(rows), case.task)
    return {
        "auc": _auc(case, task.graph, len(rows)),
        "error": float(off.mean()),
        "refuted": float((off > TOLERANCE[case.task]).double().mean()),
    }


def _auc(case: Case, graph: LocalGraph, rows: int) -> float:
    """As `mocoda.check` finds it: parents are fitted to some of the recorded rows and compared with the others."""
    used = case.recorded
    is_shown = torch.arange(len(used)) * BLOCKS // len(used) % 2 == 0
    shown = used[is_shown]
    recipe = replace(case.recipe, components=fewer_components(case.recipe.components, len(shown), graph))

    def fit(_: str, data: Transitions) -> Parents:
        return fit_parents(data, graph, recipe, seed=case.seed)

    parents, stream = fit("", shown), Stream(case.seed, "dose-law")
    name = "mocoda, matched" if recipe.density == "matched" else recipe.name
    draws = Draws(name, parents, parents.sample(rows, seed=stream.child("rows")), fit)
    laws = examine([draws], used, is_shown, graph, UPDATES, stream, silent)
    if not laws:
        raise InputError(f"the law needs more than {len(used)} recorded rows to be judged by. Record more.")
    return max(law.auc for law in laws)


def _off(error: Tensor, task: str) -> Tensor:
    """(N,), of errors (N, S)."""
    return torch.stack([error[:, columns].double().norm(dim=1) for columns in PLACES[task].values()], 1).amax(1)
