"""Checks a graph against the data, and recommends a recipe.

No environment is needed. Long data is thinned out first. It is then cut into blocks of rows recorded together; a small
model and the recipes are fitted to some blocks, and what they make is judged by the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import rich.console
import torch
from torch import Tensor

from mocoda.analysis.missing_edges import MissingEdge, find_missing_edges
from mocoda.analysis.scores import RowScorer, generated
from mocoda.data.transitions import Transitions
from mocoda.dynamics import Dynamics, DynamicsConfig, fit_dynamics
from mocoda.engine.errors import InputError
from mocoda.engine.networks import moments
from mocoda.engine.printed import Printed, Table, percent, rich_tables
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.learned import LearnedGraph
from mocoda.graph.local_graph import LocalGraph, connected_components
from mocoda.parents import fit_parents
from mocoda.parents.recipe import draw_from

MIN_ROWS = 100  # that can be checked at all
MAX_ROWS, QUICK_ROWS = 40_000, 6_000  # that are used
BLOCKS, SHOWN = 200, 120  # blocks of neighbouring rows, and the number of them that models are trained on
DRAWN = 4_000  # rows of each recipe that are judged
UPDATES, QUICK_UPDATES, EPOCHS, BATCH = 600, 200, 15, 256  # of the model, at least
# Limits of the recommendation.
CERTAIN_ROWS = 1_000  # with fewer, nothing is certain
WORSE, FAR = 0.1, 0.5  # shares of the rows by which a recipe falls behind recorded ones: enough to filter; too many
LITTLE_GAIN = 0.02  # share of new rows beyond that of held-out rows: not worth augmenting for
TORN = 0.01  # share of a recipe's rows in which a tie must be broken to be mentioned
DENSE = 0.5  # standard deviations between recorded rows, below which those that are not new add nothing
BADLY_PREDICTED = 0.3  # of a step: recorded next states are better than a model's
ASPECTS = ("valid", "supported", "agreed", "new", "new_and_supported")
DOSE = 4  # generated rows per recorded one, as measured in the experiment `dose`


@dataclass(frozen=True)
class RecipeCheck:
    """The shares of the rows that a recipe draws which are valid, supported and so on; `recorded` are held-out rows.

    See `Scores` for what these mean. Other fields are

    new_and_supported  the share of rows that are both
    unusable           why the recipe cannot be used; then all shares are 0
    torn               ties that hold in all recorded rows (see `find_ties`) and are broken in over 1% of its rows
    """

    name: str
    valid: float = 0.0
    supported: float = 0.0
    agreed: float = 0.0
    new: float = 0.0
    new_and_supported: float = 0.0
    unusable: str | None = None
    torn: tuple[str, ...] = ()

    @staticmethod
    def of(name: str, scores: Mapping[str, Tensor]) -> RecipeCheck:
        """From the scores of its rows (N,) by aspect."""
        flags = {aspect: score > 0.5 for aspect, score in scores.items()}
        flags["new_and_supported"] = flags["new"] & flags["supported"]
        shares: dict[str, Any] = {aspect: float(flag.double().mean()) for aspect, flag in flags.items()}
        return RecipeCheck(name, **shares)


@dataclass(frozen=True)
class Advice(Printed):
    """What `mocoda.check` found; prints as a recommendation, with `details` as tables.

    rows, used        rows of the data; rows that were used
    errors            the error of a small model on held-out rows by state factor, as a share of the factor's step
    missing           edges that the data shows and the graph lacks
    recipes           recorded rows, coda and mocoda; none if edges are missing
    recipe            the one that is worth trying; None: none yet
    max_disagreement  the filter for its rows; None: it needs none
    recommendation    at most three sentences: on the graph, the recipe, and the number of rows; or on missing edges
    """

    rows: int
    used: int
    errors: Mapping[str, float]
    missing: tuple[MissingEdge, ...]
    recipes: tuple[RecipeCheck, ...]
    recipe: str | None = None
    max_disagreement: float | None = None
    recommendation: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def details(self) -> rich.console.Group:
        """The numbers behind the recommendation."""
        return rich_tables(tables(self.to_json()))

    def __str__(self) -> str:
        return "\n".join(self.recommendation)

    def __rich__(self) -> rich.console.Group:
        return rich.console.Group(super().__rich__(), self.details)


def tables(found: Mapping[str, Any]) -> list[Table]:
    """The tables of a check, given as JSON values."""
    missing = found["missing"]
    children = [
        [
            str(name),
            percent(error),
            ", ".join(str(edge["parent"]) for edge in missing if edge["child"] == name) or "none found",
            ", ".join(percent(edge["false_rows"]) for edge in missing if edge["child"] == name),
        ]
        for name, error in found["errors"].items()
    ]
    recipes = [
        [str(one["name"]), *(percent(one[aspect]) if aspect in one else "" for aspect in ASPECTS)]
        if one["unusable"] is None
        else [str(one["name"]), str(one["unusable"]), *[""] * (len(ASPECTS) - 1)]
        for one in found["recipes"]
    ]
    heads = ["next state of", "error of a small model, of a step", "missing parents", "recombined rows they make false"]
    told = [Table(f"The graph, by {found['used']:,} of {found['rows']:,} rows", heads, children)]
    if recipes:
        heads = ["rows", *(aspect.replace("_", " ") for aspect in ASPECTS)]
        told.append(Table("Rows that recipes draw, beside recorded ones", heads, recipes))
    return told


def check(
    data: Transitions,
    graph: LocalGraph,
    *,
    seed: int | Stream = 0,
    quick: bool = False,
    progress: Progress = silent,
) -> Advice:
    """Checks whether the recorded data supports the graph, and recommends a recipe; generated rows do not count.

    quick  use at most 6,000 rows instead of 40,000, and train the model for fewer updates. Weak edges may then go
           unnoticed
    """
    graph.check_data(data)
    made = generated(data)
    numbers = (~made | made.all()).nonzero()[:, 0]  # of the recorded rows; of all, if none is known to be recorded
    data = data[numbers]
    if len(data) < MIN_ROWS:
        raise InputError(f"check needs at least {MIN_ROWS} rows, to fit models and to evaluate them, got {len(data)}.")
    stream = as_stream(seed, "check", device=data.device)
    every = -(-len(data) // (QUICK_ROWS if quick else MAX_ROWS))
    used = data[::every]
    block = torch.arange(len(used), device=data.device) * BLOCKS // len(used)
    place = stream.child("blocks").permutation(BLOCKS)[block]
    shown, held_out = used[place < SHOWN], used[place >= SHOWN]
    model = _model(shown, graph, QUICK_UPDATES if quick else UPDATES, stream, progress)
    error, step = model.predict(used.rows).mean.mean(0) - used.next_state, _step(used)
    edges = stream.child("edges")
    missing = find_missing_edges(graph, used.rows, error, step, block, seed=edges, progress=progress)
    missing = tuple(replace(edge, rows=tuple(numbers[[every * row for row in edge.rows]].tolist())) for edge in missing)
    advice = Advice(len(data), len(used), _errors(error[place >= SHOWN], step, graph), missing, recipes=())
    if missing:
        return replace(advice, recommendation=_on_missing(missing, graph))
    scorer = RowScorer.fit(replace(used, episode=block, step=None), graph, model=model, seed=stream)
    apart = scorer.near.part[place >= SHOWN]
    recorded = RecipeCheck.of("recorded", scorer(held_out.rows, held_out.next_state, part=apart))
    recipes = (recorded, *(_judged(name, shown, graph, model, scorer, stream) for name in ("coda", "mocoda")))
    progress("check: recipes", 1, 1)
    return recommend(replace(advice, recipes=recipes), graph, scorer.disputed, scorer.near.limit < DENSE)


def _judged(
    name: str, shown: Transitions, graph: LocalGraph, model: Dynamics, scorer: RowScorer, stream: Stream
) -> RecipeCheck:
    """What the rows are like that a recipe draws."""
    if name == "coda" and int(connected_components(graph.sparsest[None]).max()) == 0:
        return RecipeCheck(name, unusable="The graph connects everything.")
    try:
        parents = fit_parents(shown, graph, name, model=model, seed=stream)
        drawn = draw_from(parents, DRAWN, seed=stream.child("recipe", name))
    except InputError as error:
        return RecipeCheck(name, unusable=str(error))
    drawn = drawn.at(graph.obeyed(drawn.rows, drawn.next_state))  # as `augment` does
    if len(drawn.rows) == 0:
        return RecipeCheck(name, unusable="All rows that it draws break a constraint of the graph.")
    torn = [tie.text for tie in scorer.valid.ties if float((~tie(drawn.rows)).double().mean()) > TORN]
    return replace(RecipeCheck.of(name, scorer(drawn.rows, drawn.next_state)), torn=tuple(torn))


def _model(data: Transitions, graph: LocalGraph, least: int, stream: Stream, progress: Progress) -> Dynamics:
    """A small ensemble, which takes seconds to train."""
    updates = max(1, round(0.875 * len(data)) // BATCH)
    config = DynamicsConfig(
        members=3,
        hidden=(64, 64),
        features=64,
        epochs=max(EPOCHS, -(-least // updates)),
        batch=BATCH,
        learning_rate=2e-3,
        window=5,
    )
    architecture = "local" if graph.varies else "global"
    return fit_dynamics(data, graph, architecture, seed=stream.seed, config=config, progress=progress)


def _step(data: Transitions) -> Tensor:
    """The standard deviation of each column's steps, (S,); 0 where they are no more than rounding."""
    largest = torch.maximum(data.state.abs(), data.next_state.abs()).amax(0)
    return moments(data.next_state.double() - data.state.double(), largest)[1].float()


def _errors(error: Tensor, step: Tensor, graph: LocalGraph) -> dict[str, float]:
    """The error (N, S) of each state factor, as a share of the length of its step (S,)."""
    squared, found = error.double().square().mean(0), {}
    for name in graph.children:
        columns = list(graph.factors[name])
        found[name] = float(squared[columns].sum().sqrt() / step[columns].norm().clamp(min=1e-30))
    return found


def _on_missing(missing: Sequence[MissingEdge], graph: LocalGraph) -> tuple[str, ...]:
    """What is missing, what it does to recombined rows, and what to do about it."""
    worst = max(missing, key=lambda edge: edge.false_rows)
    instead = ", or learn the graph from more rows or with a lower caution" if isinstance(graph, LearnedGraph) else ""
    return (
        f"The data shows edges that the graph lacks: {', '.join(map(str, missing))}.",
        f"Without {worst}, {percent(worst.false_rows)} of recombined rows get wrong next states; recorded rows that "
        f"show the edge are {', '.join(map(str, worst.rows))}.",
        f"Add what is missing to the graph, in all rows or in its local rule{instead}, and check again.",
    )


def recommend(advice: Advice, graph: LocalGraph, disputed: float, dense: bool = True) -> Advice:
    """The advice with the recipe worth trying, the limit on its rows' disagreement if it needs one, and sentences.

    dense  whether recorded rows lie so close together that only new ones are worth training on
    """

    def say(*sentences: str, recipe: str | None = None, limit: float | None = None) -> Advice:
        return replace(advice, recipe=recipe, max_disagreement=limit, recommendation=sentences)

    if len(graph.parent_sets) == 1:
        said = f"There is nothing to recombine: the next states depend on everything ({', '.join(graph.parents)})."
        return say(said, "If some factors are independent, at least in some rows, say so in the graph.")
    said = "No missing edge was found in the graph"
    said += f", but {advice.rows:,} rows are too few to be certain." if advice.rows < CERTAIN_ROWS else "."
    recorded, coda, mocoda = advice.recipes
    if torn := coda.torn or mocoda.torn:
        worse = 1 - min(one.valid for one in (coda, mocoda) if one.torn)
        words = f"But {worse:.0%} of recombined rows break what holds in all recorded rows."
        return say(
            said, words, f"Unless it holds by chance, add {list(torn)} to the graph's constraints, and check again."
        )
    amount = f"Generate about {DOSE * advice.rows:,} rows, {DOSE} for each recorded one."
    if mocoda.unusable is not None and coda.unusable is not None:
        return say(said, f"No recipe is worth trying yet: {mocoda.unusable}")
    hardest = max(advice.errors, key=lambda name: advice.errors[name])
    doubts = {
        "recipe mocoda cannot be used": mocoda.unusable is not None,
        f"{hardest} is noisy or hard to predict": advice.errors[hardest] > BADLY_PREDICTED,
        "models know too little about the rows of recipe mocoda": mocoda.agreed < recorded.agreed - FAR,
    }
    why = next((doubt for doubt, holds in doubts.items() if holds), None)
    if why is not None and coda.unusable is None:
        return say(said, f"Try recipe coda, which keeps recorded next states, because {why}.", amount, recipe="coda")
    if mocoda.agreed < recorded.agreed - FAR:
        return say(said, f"No recipe is worth trying yet: {why}. Record more rows.")
    gain = mocoda.new_and_supported - recorded.new_and_supported
    if dense and gain <= LITTLE_GAIN:
        return say(said, "Train on the recorded rows: recombining them makes hardly anything new.", recipe="emp")
    limit = disputed if mocoda.agreed < recorded.agreed - WORSE else None
    options = "its default settings" if limit is None else f"--max-disagreement {limit:.2g}"
    made = "recorded rows are far apart, and its rows lie between them"
    if gain > LITTLE_GAIN:
        made = f"{mocoda.new_and_supported:.0%} of its rows are new and supported, and "
        made += f"{recorded.new_and_supported:.0%} of held-out recorded rows"
    return say(said, f"Try recipe mocoda with {options}: {made}.", amount, recipe="mocoda", limit=limit)
