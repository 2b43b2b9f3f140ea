"""Checks a graph against the data: which edges are missing, and which recipe is worth trying.

Nothing here needs an environment. Of long data, only every so many rows are used. These are cut into blocks of rows
recorded together, and models and recipes are fitted to some blocks and evaluated on, and by, the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mocoda.analysis.advice import LOCAL_MIXTURE, MIXTURE, UNSTRATIFIED, Advice, ChildErrors, Filtered, RecipeSamples
from mocoda.analysis.coverage import coverage
from mocoda.analysis.edges import Child, missing_edges, owners
from mocoda.analysis.judge import Judge, leaving, local_shares, recorded_share
from mocoda.analysis.law import Draws, examine
from mocoda.analysis.verdict import choose_settings, judge
from mocoda.augmentation.support import Support, disagreement, fit_support, step_scale
from mocoda.data.transitions import Transitions
from mocoda.dynamics import Dynamics, DynamicsConfig, fit_dynamics
from mocoda.engine.errors import InputError
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph, connected_components
from mocoda.parents import RECIPES, Parents, ParentsWithChildren, fit_parents, make_recipe
from mocoda.parents.groups import belong_together, neighbourhood
from mocoda.parents.mixture import Manifold

FEWEST = 100  # rows that can be checked at all
BLOCKS, SHOWN = 200, 120  # blocks of neighbouring rows, and how many of them models are trained on
FITTED, CHOSEN = 140, 160  # blocks that the search for edges is fitted to, and those and the ones that it chooses by
BATCH, EPOCHS = 256, 15
KNOWN_GRAPH = 50  # rows under a local graph from which on it counts as known
KEPT = (1.0, 0.9, 0.75, 0.5, 0.25)  # shares of rows that filters leave
FILTERS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)  # of support that are tried
RARE = 0.01  # of recorded parts that are as rare: with less, a part is beyond the data
MANY = 20  # local graphs, from which on one set of mixtures each takes long
VARIANT_SETTINGS: dict[str, dict[str, Any]] = {
    UNSTRATIFIED: {"stratified": False},
    LOCAL_MIXTURE: {"density": "mixture"},
    MIXTURE: {"density": "mixture", "stratified": False, "project": False},
}


@dataclass(frozen=True)
class Effort:
    """How much is computed: rows used at most, updates of each model at least, and rows drawn of each recipe."""

    rows: int
    updates: int
    samples: int
    classifier_updates: int


FULL = Effort(rows=40_000, updates=600, samples=4_000, classifier_updates=120)
QUICK = Effort(rows=6_000, updates=200, samples=2_000, classifier_updates=80)


def check(
    data: Transitions,
    graph: LocalGraph,
    *,
    task: Any = None,
    seed: int | Stream = 0,
    quick: bool = False,
    progress: Progress = silent,
) -> Advice:
    """What the data says about the graph, and which recipe is worth trying, on the device of the data.

    task   if it knows the true `step(rows)`, errors are also measured against that; recipes "rand" and "dyna" draw from
           its `box`, if it has one, and else from the recorded range
    quick  use at most 6,000 rows instead of 40,000, train models for fewer updates, and draw fewer rows. Weak edges may
           then go unnoticed
    """
    graph.check_data(data)
    if len(data) < FEWEST:
        raise InputError(f"check needs at least {FEWEST} rows, to fit models and to evaluate them, got {len(data)}.")
    effort = QUICK if quick else FULL
    stream = as_stream(seed, "check", device=data.device)
    used = data[:: -(-len(data) // effort.rows)]
    block = torch.arange(len(used), device=data.device) * BLOCKS // len(used)
    place = stream.child("blocks").permutation(BLOCKS)[block]
    shown, held_out = used[place < SHOWN], used[place >= SHOWN]
    progress("check: densities", 0, 1)
    support = fit_support(shown, graph, seed=stream)
    progress("check: densities", 1, 1)
    architectures = ("global" if graph.local is None else "local", "full")
    factored, full = (_model(shown, graph, one, effort.updates, stream, progress) for one in architectures)
    scale = step_scale(used)
    error = _mean(factored, used.rows, scale) - used.next_state / scale
    kinds = place < FITTED, (place >= FITTED) & (place < CHOSEN), place >= CHOSEN
    parts = kinds[0].nonzero()[:, 0], kinds[1].nonzero()[:, 0], kinds[2].nonzero()[:, 0]
    edges = missing_edges(graph, used.rows, error, block, parts, seed=stream.child("edges"), progress=progress)
    usual = float(disagreement(factored, held_out.rows, scale).mean())
    names = [name for name in RECIPES if name != "mocoda-p"]  # which is about a task, not about the data
    together = graph.local is not None and belong_together(shown.rows, graph, stream.child("together"))
    variants = [UNSTRATIFIED, LOCAL_MIXTURE, MIXTURE] if together else [MIXTURE]
    after = names.index("mocoda") + 1
    names[after:after] = variants

    def fit(name: str, data: Transitions) -> Parents:
        recipe = make_recipe("mocoda", **VARIANT_SETTINGS[name]) if name in VARIANT_SETTINGS else name
        return fit_parents(data, graph, recipe, task=task, model=factored, seed=stream)

    fitted = {name: _fitted(name, shown, graph, fit) for name in names}
    rows = {name: _draw(name, effort.samples, one, stream) for name, one in fitted.items()}
    half = place[place >= SHOWN] % 2 == 0
    # Parts that need not stay together are common or rare by themselves, whatever they are linked to.
    judged = Judge.fit(held_out, half, graph if together else replace(graph, local=None), stream.child("judge"))
    view = _View(graph, judged, Manifold.of(used.rows, graph), factored, scale)
    recipes = [_recipe(name, drawn, view, usual, used, task) for name, drawn in rows.items()]
    drawn_rows = {name: drawn[0] for name, drawn in rows.items() if not isinstance(drawn, str)}
    draws = [
        Draws(name, one, drawn[0], fit)
        for (name, one), drawn in zip(fitted.items(), rows.values(), strict=True)
        if not isinstance(one, str) and not isinstance(drawn, str) and name != "mocoda-u"  # which means to differ
    ]
    laws = examine(draws, used, place < SHOWN, graph, effort.classifier_updates, stream.child("law"), progress)
    covered = coverage(data, shown, held_out, graph, support.mixtures, seed=stream.child("coverage"))
    advice = Advice(
        rows=len(data),
        used=len(used),
        held_out=len(held_out),
        disagreement=usual,
        recorded_cells=covered.recorded,
        reachable_cells=covered.reachable,
        sets=covered.sets,
        children=_children(edges, held_out, graph, factored, full, scale, stream),
        recipes=tuple(recipes),
        filters=_filters(rows["mocoda"], support, factored, scale, task),
        laws=laws,
        local_graphs=local_shares(graph, used.rows, drawn_rows),
    )
    chosen = choose_settings(advice)[0]
    if chosen is not None:
        options = VARIANT_SETTINGS.get(chosen, {})
        advice = replace(
            advice,
            density=options.get("density", "matched"),
            stratified=options.get("stratified", True),
            min_support=_filter(drawn_rows[chosen], support, view.judge, recipes[0].unsupported or 0.0),
        )
    recipe, verdict = judge(advice)
    return replace(advice, recipe=recipe, verdict=verdict)


def _model(
    data: Transitions, graph: LocalGraph, architecture: str, least: int, stream: Stream, progress: Progress
) -> Dynamics:
    """A small ensemble: enough to compare with, in seconds."""
    updates = max(1, round(0.875 * len(data)) // BATCH)
    epochs = max(EPOCHS, -(-least // updates))
    config = DynamicsConfig(
        members=3, hidden=(64, 64), features=64, epochs=epochs, batch=BATCH, learning_rate=2e-3, window=5
    )
    return fit_dynamics(data, graph, architecture, seed=stream.seed, config=config, progress=progress)


# --- children


def _children(
    edges: Sequence[Child],
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
    for child in edges:
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
    """Rows (M, S + A) that keep the child's parents and take all else from other rows, and which rows these are (M,).

    Only those under which the child still depends on the same factors; none, if it depends on everything.
    """
    number = graph.children.index(child)
    edges = graph.mask(rows)[:, :, number]
    if bool(edges.all()):
        return rows[:0], torch.zeros(0, dtype=torch.long, device=rows.device)
    keeps = edges[:, owners(graph, rows.device)]
    recombined = torch.where(keeps, rows, rows[stream.permutation(len(rows))])
    same = (graph.mask(recombined)[:, :, number] == edges).all(1) & ~edges.all(1)
    return recombined[same], same.nonzero()[:, 0]


def _mean(model: Dynamics, rows: Tensor, scale: Tensor) -> Tensor:
    return model.predict(rows).mean.mean(0) / scale


def _size(error: Tensor) -> float:
    return float(error.square().mean().sqrt())


# --- recipes


@dataclass(frozen=True, eq=False)
class _View:
    """What drawn rows are seen by; the judge knows none of the rows that they were drawn from."""

    graph: LocalGraph
    judge: Judge
    manifold: Manifold
    model: Dynamics
    scale: Tensor  # (S,), of a step


def _fitted(
    name: str, data: Transitions, graph: LocalGraph, fit: Callable[[str, Transitions], Parents]
) -> Parents | str:
    """What a recipe draws from; or why it cannot be used here."""
    if name == "coda" and int(connected_components(graph.sparsest[None]).max()) == 0:
        return "the graph connects everything"
    if name == LOCAL_MIXTURE and len(graph_codes := neighbourhood(graph, data.rows).unique()) > MANY:
        return f"there are {len(graph_codes):,} local graphs; one set of mixtures each takes long"
    try:
        return fit(name, data)
    except InputError as error:
        return str(error)


def _draw(name: str, n: int, parents: Parents | str, stream: Stream) -> tuple[Tensor, Tensor | None] | str:
    """Rows of a recipe, and their next states if it brings them along; or why there are none."""
    if isinstance(parents, str):
        return parents
    part = stream.child("recipe", name)
    try:
        if isinstance(parents, ParentsWithChildren):
            return parents.sample_with_children(n, seed=part)
        return parents.sample(n, seed=part), None
    except InputError as error:
        return "local graphs connect everything" if name == "coda" else str(error)


def _recipe(
    name: str, drawn: tuple[Tensor, Tensor | None] | str, view: _View, usual: float, used: Transitions, task: Any
) -> RecipeSamples:
    if isinstance(drawn, str):
        return RecipeSamples(name, drawn)
    rows, children = drawn
    graph, manifold, model, scale = view.graph, view.manifold, view.model, view.scale
    apart, score = float(disagreement(model, rows, scale).mean()), view.judge.score(rows)
    broken = [(", ".join(used.columns[i] for i in unit), one) for unit, one in manifold.broken(rows)]
    masks, number = torch.unique(
        torch.cat([graph.mask(rows), graph.mask(used.rows)]).flatten(1), dim=0, return_inverse=True
    )
    recorded = torch.bincount(number[len(rows) :], minlength=len(masks))
    strange = float((recorded[number[: len(rows)]] < KNOWN_GRAPH).float().mean())
    true_error = None
    if getattr(task, "step", None) is not None:
        next_state = _mean(model, rows, scale) if children is None else children / scale
        true_error = _size(next_state - task.step(rows) / scale)
    return RecipeSamples(
        name=name,
        disagreement=apart,
        relative=apart / max(usual, 1e-12),
        support=float(score.median()),
        unsupported=float((view.judge.rarest(rows) < RARE).double().mean()),
        strange=strange,
        as_recorded=recorded_share(rows, used.rows),
        outside=float(manifold.outside(rows).any(1).double().mean()),
        broken=max((share for _, share in broken), default=0.0),
        columns=leaving(used.columns, manifold.outside(rows).double().mean(0)),
        vectors=tuple((names, share) for names, share in broken if share > 0),
        true_error=true_error,
    )


def _filter(rows: Tensor, support: Support, judge: Judge, usual: float) -> float | None:
    """The least support that halves the share of rows that are beyond the data, if at least a quarter passes.

    usual  the share of recorded rows that are
    """
    beyond, score = judge.rarest(rows) < RARE, support.score(rows)
    share = float(beyond.double().mean())
    for limit in FILTERS if share > max(0.05, 2 * usual) else ():
        passing = score >= limit
        if float(passing.double().mean()) < 0.25:
            break
        if float(beyond[passing].double().mean()) < 0.5 * share:
            return limit
    return None


def _filters(
    drawn: tuple[Tensor, Tensor | None] | str, support: Support, model: Dynamics, scale: Tensor, task: Any
) -> tuple[Filtered, ...]:
    if getattr(task, "step", None) is None or isinstance(drawn, str):
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
