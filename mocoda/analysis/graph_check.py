"""Transitions, LocalGraph -> Advice: does the data bear this graph, and what can be made of it?

Nothing here needs an environment. Long data is looked at in even steps; what that leaves is cut into blocks of rows
recorded together, and models are fitted to some blocks and judged on the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mocoda.analysis.advice import Advice, ChildErrors, Filtered, RecipeSamples
from mocoda.analysis.coverage import coverage
from mocoda.analysis.edges import Child, missing_edges, owners
from mocoda.analysis.verdict import judged
from mocoda.augmentation.support import Support, disagreement, fit_support, step_scale
from mocoda.data.transitions import Transitions
from mocoda.dynamics.fit import fit_dynamics
from mocoda.dynamics.model import Dynamics, DynamicsConfig
from mocoda.engine.errors import InputError
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph, connected_components
from mocoda.parents.flattening import Reweighted, by_volume
from mocoda.parents.recipes import Parents, ParentsWithChildren, fit_parents

USED = 40_000  # rows that are looked at, at most
FEWEST = 100  # rows that can be looked at at all
BLOCKS, SHOWN = 200, 120  # blocks of neighbouring rows, and how many of them models are shown
FITTED, CHOSEN = 140, 160  # blocks that the search for edges is fitted to, and those and the ones that it chooses by
SAMPLES = 4_000  # rows of every recipe
BATCH, EPOCHS, FEWEST_UPDATES = 256, 15, 600
KNOWN_GRAPH = 50  # rows looked at that a local graph needs, not to be strange
KEPT = (1.0, 0.9, 0.75, 0.5, 0.25)  # shares of rows that filters leave
RECIPES = ("emp", "coda", "dyna", "rand", "mocoda", "mocoda-u")


def check(
    data: Transitions, graph: LocalGraph, *, task: Any = None, seed: int | Stream = 0, progress: Progress = silent
) -> Advice:
    """What the data says of the graph, and which recipe is worth trying, on the device of the data.

    task  if it knows the true `step(rows)`, errors are also measured against that; its `box`, if it has one, is that of
          recipes "rand" and "dyna", which is else the data's range
    """
    graph.check_data(data)
    if len(data) < FEWEST:
        raise InputError(f"check needs at least {FEWEST} rows, to fit models and to judge them, got {len(data)}.")
    stream = as_stream(seed, "check", device=data.device)
    seen = data[:: -(-len(data) // USED)]
    block = torch.arange(len(seen), device=data.device) * BLOCKS // len(seen)
    place = stream.child("blocks").permutation(BLOCKS)[block]
    shown, held_out = seen[place < SHOWN], seen[place >= SHOWN]
    progress("check: densities", 0, 1)
    support = fit_support(shown, graph, seed=stream)
    progress("check: densities", 1, 1)
    factored = _model(shown, graph, "global" if graph.local is None else "local", stream, progress)
    full = _model(shown, graph, "full", stream, progress)
    scale = step_scale(seen)
    error = _mean(factored, seen.rows, scale) - seen.next_state / scale
    fit, choose, judge = place < FITTED, (place >= FITTED) & (place < CHOSEN), place >= CHOSEN
    parts = fit.nonzero()[:, 0], choose.nonzero()[:, 0], judge.nonzero()[:, 0]
    found = missing_edges(graph, seen.rows, error, block, parts, seed=stream.child("edges"), progress=progress)
    children = _children(found, held_out, graph, factored, full, scale, stream)
    usual = float(disagreement(factored, held_out.rows, scale).mean())
    drawn = {name: _drawn(name, shown, graph, support, factored, task, stream) for name in RECIPES}
    recipes = [_recipe(name, rows, graph, support, factored, scale, usual, seen, task) for name, rows in drawn.items()]
    covered = coverage(data, shown, held_out, graph, support.mixtures, seed=stream.child("coverage"))
    advice = Advice(
        rows=len(data),
        used=len(seen),
        held_out=len(held_out),
        disagreement=usual,
        recorded_cells=covered.recorded,
        reachable_cells=covered.reachable,
        sets=covered.sets,
        children=children,
        recipes=tuple(recipes),
        filters=_filters(drawn["mocoda"], support, factored, scale, task),
    )
    recipe, verdict = judged(advice)
    return replace(advice, recipe=recipe, verdict=verdict)


def _model(data: Transitions, graph: LocalGraph, architecture: str, stream: Stream, progress: Progress) -> Dynamics:
    """A small ensemble: enough to compare with, in seconds."""
    updates = max(1, round(0.875 * len(data)) // BATCH)
    epochs = max(EPOCHS, -(-FEWEST_UPDATES // updates))
    config = DynamicsConfig(
        members=3, hidden=(64, 64), features=64, epochs=epochs, batch=BATCH, learning_rate=2e-3, window=5
    )
    return fit_dynamics(data, graph, architecture, seed=stream.seed, config=config, progress=progress)


# --- children


def _children(
    found: Sequence[Child],
    held_out: Transitions,
    graph: LocalGraph,
    factored: Dynamics,
    full: Dynamics,
    scale: Tensor,
    stream: Stream,
) -> tuple[ChildErrors, ...]:
    rows, truth = held_out.rows, held_out.next_state / scale
    errors = [_mean(model, rows, scale) - truth for model in (factored, full)]
    children = []
    for child in found:
        columns = list(graph.factors[child.name])
        recombined, kept = _recombined(rows, graph, child.name, stream.child("recombined", child.name))
        again = [
            _size((_mean(model, recombined, scale) - truth[kept])[:, columns]) if len(recombined) else None
            for model in (factored, full)
        ]
        children.append(
            ChildErrors(
                name=child.name,
                heldout_factored=_size(errors[0][:, columns]),
                heldout_full=_size(errors[1][:, columns]),
                recombined_factored=again[0],
                recombined_full=again[1],
                judged=child.rows,
                outside=child.outside,
                missing=child.missing,
            )
        )
    return tuple(children)


def _recombined(rows: Tensor, graph: LocalGraph, child: str, stream: Stream) -> tuple[Tensor, Tensor]:
    """Rows (M, S + A) that keep the child's parents and take all else from other rows, and the numbers of those (M,).

    Only those under which the child still listens to the same factors; none, if it listens to everything.
    """
    number = graph.children.index(child)
    edges = graph.mask(rows)[:, :, number]
    if bool(edges.all()):
        return rows[:0], torch.zeros(0, dtype=torch.long, device=rows.device)
    keeps = edges[:, owners(graph, rows.device)]
    made = torch.where(keeps, rows, rows[stream.permutation(len(rows))])
    same = (graph.mask(made)[:, :, number] == edges).all(1) & ~edges.all(1)
    return made[same], same.nonzero()[:, 0]


def _mean(model: Dynamics, rows: Tensor, scale: Tensor) -> Tensor:
    return model.predict(rows).mean.mean(0) / scale


def _size(error: Tensor) -> float:
    return float(error.square().mean().sqrt())


# --- recipes


def _drawn(
    name: str, data: Transitions, graph: LocalGraph, support: Support, model: Dynamics, task: Any, stream: Stream
) -> tuple[Tensor, Tensor | None] | str:
    """Rows of a recipe, and their next states if it brings them along; or why there are none."""
    parents: Parents
    if name == "coda" and int(connected_components(graph.sparsest[None]).max()) == 0:
        return "the graph links everything"
    if name == "mocoda":
        parents = support.mixtures
    elif name == "mocoda-u":
        parents = Reweighted(support.mixtures.changed(by_volume))
    else:
        hints = task if getattr(task, "box", None) is not None else None
        parents = fit_parents(data, graph, name, task=hints, model=model, seed=stream)
    part = stream.child("recipe", name)
    if not isinstance(parents, ParentsWithChildren):
        return parents.sample(SAMPLES, seed=part), None
    try:
        return parents.sample_with_children(SAMPLES, seed=part)
    except InputError:
        return "local graphs link everything"


def _recipe(
    name: str,
    drawn: tuple[Tensor, Tensor | None] | str,
    graph: LocalGraph,
    support: Support,
    model: Dynamics,
    scale: Tensor,
    usual: float,
    seen: Transitions,
    task: Any,
) -> RecipeSamples:
    if isinstance(drawn, str):
        return RecipeSamples(name, drawn)
    rows, children = drawn
    apart, score = float(disagreement(model, rows, scale).mean()), support.score(rows)
    masks, number = torch.unique(
        torch.cat([graph.mask(rows), graph.mask(seen.rows)]).flatten(1), dim=0, return_inverse=True
    )
    recorded = torch.bincount(number[len(rows) :], minlength=len(masks))
    strange = float((recorded[number[: len(rows)]] < KNOWN_GRAPH).float().mean())
    true_error = None
    if hasattr(task, "step"):
        given = _mean(model, rows, scale) if children is None else children / scale
        true_error = _size(given - task.step(rows) / scale)
    return RecipeSamples(
        name=name,
        disagreement=apart,
        relative=apart / max(usual, 1e-12),
        support=float(score.median()),
        unsupported=float((score < 0.01).float().mean()),
        strange=strange,
        true_error=true_error,
    )


def _filters(
    drawn: tuple[Tensor, Tensor | None] | str, support: Support, model: Dynamics, scale: Tensor, task: Any
) -> tuple[Filtered, ...]:
    if not hasattr(task, "step") or isinstance(drawn, str):
        return ()
    rows = drawn[0]
    error = (_mean(model, rows, scale) - task.step(rows) / scale).square().mean(1)
    filtered = []
    for by, badness in (("disagreement", disagreement(model, rows, scale)), ("support", -support.score(rows))):
        order = badness.argsort()
        for share in KEPT:
            kept = order[: max(1, round(share * len(rows)))]
            threshold = abs(float(badness[kept[-1]]))
            filtered.append(Filtered(by, threshold, share, float(error[kept].mean().sqrt())))
    return tuple(filtered)
