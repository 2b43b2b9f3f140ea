"""Checks a graph against the data: which edges are missing, and which recipe is worth trying.

No environment is needed. Long data is thinned out first. It is then cut into blocks of rows recorded together; models
and recipes are fitted to some blocks and evaluated on the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mocoda.analysis.advice import LOCAL_MIXTURE, MIXTURE, UNSTRATIFIED, Advice, RecipeSamples
from mocoda.analysis.coverage import coverage
from mocoda.analysis.missing_edges import missing_edges
from mocoda.analysis.rarity import Rarity, local_shares, recorded_share, worst_columns
from mocoda.analysis.recommendation import choose_settings, recommend
from mocoda.analysis.two_samples import Draws, compare_recipes
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

MIN_ROWS = 100  # that can be checked at all
BLOCKS, SHOWN = 200, 120  # blocks of neighbouring rows, and the number of them that models are trained on
BATCH, EPOCHS = 256, 15
KNOWN_GRAPH_ROWS = 50  # rows under a local graph above which it counts as known
FILTERS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)  # of support that are tried
RARE = 0.01  # share of recorded parts that are as rare, below which a part is beyond the data
MAX_LOCAL_GRAPHS = 20  # above which a set of mixtures for each takes long
VARIANT_SETTINGS: dict[str, dict[str, Any]] = {
    UNSTRATIFIED: {"stratified": False},
    LOCAL_MIXTURE: {"density": "mixture"},
    MIXTURE: {"density": "mixture", "stratified": False, "project": False},
}


@dataclass(frozen=True)
class Effort:
    """The largest number of rows used, the least number of updates of the model, and the rows drawn of each recipe."""

    rows: int
    updates: int
    samples: int


FULL = Effort(rows=40_000, updates=600, samples=4_000)
QUICK = Effort(rows=6_000, updates=200, samples=2_000)


def check(
    data: Transitions,
    graph: LocalGraph,
    *,
    task: Any = None,
    seed: int | Stream = 0,
    quick: bool = False,
    progress: Progress = silent,
) -> Advice:
    """Checks whether the data supports the graph, and recommends a recipe.

    task   recipes "rand" and "dyna" draw from its `box`, if it has one, and else from the recorded range
    quick  use at most 6,000 rows instead of 40,000, train the model for fewer updates, and draw fewer rows. Weak edges
           may then go unnoticed
    """
    graph.check_data(data)
    if len(data) < MIN_ROWS:
        raise InputError(f"check needs at least {MIN_ROWS} rows, to fit models and to evaluate them, got {len(data)}.")
    effort = QUICK if quick else FULL
    stream = as_stream(seed, "check", device=data.device)
    used = data[:: -(-len(data) // effort.rows)]
    block = torch.arange(len(used), device=data.device) * BLOCKS // len(used)
    place = stream.child("blocks").permutation(BLOCKS)[block]
    shown, held_out = used[place < SHOWN], used[place >= SHOWN]
    progress("check: densities", 0, 1)
    support = fit_support(shown, graph, seed=stream)
    progress("check: densities", 1, 1)
    model = _model(shown, graph, effort.updates, stream, progress)
    scale = step_scale(used)
    error = (model.predict(used.rows).mean.mean(0) - used.next_state) / scale
    edges = stream.child("edges")
    children = missing_edges(graph, used.rows, error, block, place >= SHOWN, seed=edges, progress=progress)

    def fit(name: str, data: Transitions) -> Parents:
        recipe = make_recipe("mocoda", **VARIANT_SETTINGS[name]) if name in VARIANT_SETTINGS else name
        return fit_parents(data, graph, recipe, task=task, model=model, seed=stream)

    together = graph.local is not None and belong_together(shown.rows, graph, stream.child("together"))
    fitted = {name: _fitted(name, shown, graph, fit) for name in _compared(together)}
    drawn = {name: _draw(name, effort.samples, one, stream) for name, one in fitted.items()}
    half = place[place >= SHOWN] % 2 == 0
    # Parts that need not stay together are common or rare on their own, whatever they are linked to.
    rarity = Rarity.fit(held_out, half, graph if together else replace(graph, local=None), stream.child("judge"))
    usual = float(disagreement(model, held_out.rows, scale).mean())
    view = _View(graph, rarity, Manifold.of(used.rows, graph), model, scale, usual)
    rows = {name: one for name, one in drawn.items() if not isinstance(one, str)}
    draws = [
        Draws(name, parents, rows[name], fit)
        for name, parents in fitted.items()
        if name in rows and not isinstance(parents, str) and name != "mocoda-u"  # which differs on purpose
    ]
    covered = coverage(data, shown, held_out, graph, support.mixtures, seed=stream.child("coverage"))
    advice = Advice(
        rows=len(data),
        used=len(used),
        held_out=len(held_out),
        disagreement=usual,
        recorded_cells=covered.recorded,
        reachable_cells=covered.reachable,
        sets=covered.sets,
        children=children,
        recipes=tuple(view.samples(name, one, used) for name, one in drawn.items()),
        laws=compare_recipes(draws, used, place < SHOWN, graph, stream.child("law"), progress),
        local_graphs=local_shares(graph, used.rows, rows),
    )
    chosen = choose_settings(advice)[0]
    if chosen is not None:
        settings = VARIANT_SETTINGS.get(chosen, {})
        advice = replace(
            advice,
            density=settings.get("density", "matched"),
            stratified=settings.get("stratified", True),
            min_support=_filter(rows[chosen], support, rarity, advice.recipes[0].unsupported or 0.0),
        )
    recipe, recommendation, details = recommend(advice)
    return replace(advice, recipe=recipe, recommendation=recommendation, details=details)


def _model(data: Transitions, graph: LocalGraph, least: int, stream: Stream, progress: Progress) -> Dynamics:
    """A small ensemble, which takes seconds to train."""
    updates = max(1, round(0.875 * len(data)) // BATCH)
    epochs = max(EPOCHS, -(-least // updates))
    config = DynamicsConfig(
        members=3, hidden=(64, 64), features=64, epochs=epochs, batch=BATCH, learning_rate=2e-3, window=5
    )
    architecture = "global" if graph.local is None else "local"
    return fit_dynamics(data, graph, architecture, seed=stream.seed, config=config, progress=progress)


# --- recipes


def _compared(together: bool) -> list[str]:
    """The recipes that are compared, with the variants of mocoda; mocoda-p is about a task rather than the data."""
    names = [name for name in RECIPES if name != "mocoda-p"]
    after = names.index("mocoda") + 1
    names[after:after] = [UNSTRATIFIED, LOCAL_MIXTURE, MIXTURE] if together else [MIXTURE]
    return names


def _fitted(
    name: str, data: Transitions, graph: LocalGraph, fit: Callable[[str, Transitions], Parents]
) -> Parents | str:
    """The fitted recipe, or why it cannot be used."""
    if name == "coda" and int(connected_components(graph.sparsest[None]).max()) == 0:
        return "the graph connects everything"
    if name == LOCAL_MIXTURE and len(graph_codes := neighbourhood(graph, data.rows).unique()) > MAX_LOCAL_GRAPHS:
        return f"there are {len(graph_codes):,} local graphs; one set of mixtures each takes long"
    try:
        return fit(name, data)
    except InputError as error:
        return str(error)


def _draw(name: str, n: int, parents: Parents | str, stream: Stream) -> Tensor | str:
    """Rows (n, S + A) of a recipe, or why there are none."""
    if isinstance(parents, str):
        return parents
    part = stream.child("recipe", name)
    try:
        if isinstance(parents, ParentsWithChildren):
            return parents.sample_with_children(n, seed=part)[0]
        return parents.sample(n, seed=part)
    except InputError as error:
        return "local graphs connect everything" if name == "coda" else str(error)


@dataclass(frozen=True, eq=False)
class _View:
    """Measures drawn rows by a model, and by densities that know none of the rows they were drawn from."""

    graph: LocalGraph
    rarity: Rarity
    manifold: Manifold
    model: Dynamics
    scale: Tensor  # (S,), of a step
    usual: float  # disagreement on held-out rows

    def samples(self, name: str, rows: Tensor | str, used: Transitions) -> RecipeSamples:
        if isinstance(rows, str):
            return RecipeSamples(name, rows)
        apart, outside = float(disagreement(self.model, rows, self.scale).mean()), self.manifold.outside(rows)
        broken = [(", ".join(used.columns[i] for i in unit), one) for unit, one in self.manifold.broken(rows)]
        recorded, counts = neighbourhood(self.graph, used.rows).unique(return_counts=True)
        strange = ~torch.isin(neighbourhood(self.graph, rows), recorded[counts >= KNOWN_GRAPH_ROWS])
        return RecipeSamples(
            name=name,
            disagreement=apart,
            relative=apart / max(self.usual, 1e-12),
            support=float(self.rarity.score(rows).median()),
            unsupported=float((self.rarity.rarest(rows) < RARE).double().mean()),
            strange=float(strange.double().mean()),
            as_recorded=recorded_share(rows, used.rows),
            outside=float(outside.any(1).double().mean()),
            broken=max((share for _, share in broken), default=0.0),
            columns=worst_columns(used.columns, outside.double().mean(0)),
            vectors=tuple((names, share) for names, share in broken if share > 0),
        )


def _filter(rows: Tensor, support: Support, rarity: Rarity, usual: float) -> float | None:
    """The least support that halves the share of rows that are beyond the data, if at least a quarter passes.

    usual  the share of recorded rows that are
    """
    beyond, score = rarity.rarest(rows) < RARE, support.score(rows)
    share = float(beyond.double().mean())
    for limit in FILTERS if share > max(0.05, 2 * usual) else ():
        passing = score >= limit
        if float(passing.double().mean()) < 0.25:
            break
        if float(beyond[passing].double().mean()) < 0.5 * share:
            return limit
    return None
