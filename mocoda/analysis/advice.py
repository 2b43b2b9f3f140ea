"""Advice: what a check measured, and its verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import rich.console
import rich.table
from rich.text import Text

from mocoda.analysis.edges import MissingEdge

# How recipe mocoda is listed with other settings than its own.
UNSTRATIFIED = "mocoda, unstratified"  # stratified=False
MIXTURE = "mocoda, mixture"  # the paper's: density="mixture", stratified=False, project=False
LOCAL_MIXTURE = "mocoda, mixture by local graph"  # density="mixture"
VARIANTS = ("mocoda", UNSTRATIFIED, LOCAL_MIXTURE, MIXTURE)


@dataclass(frozen=True)
class ParentSet:
    """Factors that are modelled together.

    cells        cells of the data's grid that their columns fill
    even_cells   the effective number of cells: exp of the entropy
    components   the effective number of components of the mixture, by their weights
    mixture, gaussian, independent, box
                 log densities of held-out rows, nats per row: of the mixture, of one Gaussian, of independent columns,
                 and of the box around the data
    """

    factors: tuple[str, ...]
    rows: int
    cells: int
    even_cells: float
    components: float
    mixture: float
    gaussian: float
    independent: float
    box: float

    @property
    def gain(self) -> float:
        """Nats per row by which the mixture is better than the best of the others."""
        return self.mixture - max(self.gaussian, self.independent, self.box)


@dataclass(frozen=True)
class ChildErrors:
    """How well a child is predicted: root mean square errors, in standard deviations of its steps.

    heldout_*     on rows that were not trained on
    recombined_*  on the same rows, with everything that the child does not depend on taken from another row. If the
                  graph is right, the recorded next value still holds there. None: the child depends on everything
    judged        rows on which a missing edge would show; 0: none, so nothing can be said
    outside       the share of the factored model's squared error that factors outside the parents explain
    missing       the factors that do so alone
    """

    name: str
    heldout_factored: float
    heldout_full: float
    recombined_factored: float | None
    recombined_full: float | None
    judged: int
    outside: float
    missing: tuple[MissingEdge, ...]


@dataclass(frozen=True)
class RecipeSamples:
    """What a recipe draws, seen by the ensemble, and by densities of rows that it was not fitted to.

    not_here      why the recipe cannot be used; then all else is None
    disagreement  of the ensemble, in standard deviations of a step: the mean over rows
    relative      how many times that on held-out rows
    support       the median, over rows, of the share of recorded rows that are as rare, each part among those that are
                  linked alike
    unsupported   the share of rows with a part that is rarer than 99% of the recorded parts that are linked alike
    strange       the share of rows under a local graph that hardly any recorded row has
    as_recorded   the share of rows that are recorded ones
    outside       the share of rows with a column outside of its recorded range
    broken        the share of rows with a unit vector of another length
    columns       those that leave their range most often, and in which share of the rows
    vectors       unit vectors that have another length, and in which share of the rows
    true_error    of the recipe's next states, in standard deviations of a step, where the true step is known
    """

    name: str
    not_here: str | None = None
    disagreement: float | None = None
    relative: float | None = None
    support: float | None = None
    unsupported: float | None = None
    strange: float | None = None
    as_recorded: float | None = None
    outside: float | None = None
    broken: float | None = None
    columns: tuple[tuple[str, float], ...] = ()
    vectors: tuple[tuple[str, float], ...] = ()
    true_error: float | None = None


@dataclass(frozen=True)
class LocalShare:
    """The share of rows under a local graph, which is named by what it links: recorded, and drawn by each recipe."""

    links: str
    recorded: float
    drawn: dict[str, float]


@dataclass(frozen=True)
class Law:
    """How well a held-out classifier tells rows that a recipe draws of a parent set from recorded ones.

    auc         0.5: not at all, the recipe keeps the recorded distribution; 1: always
    low, high   its 95% confidence interval
    """

    recipe: str
    factors: tuple[str, ...]
    auc: float
    low: float
    high: float


@dataclass(frozen=True)
class Filtered:
    """What a filter leaves of the rows of "mocoda": at most so much disagreement, or at least so much support."""

    by: str  # "disagreement" or "support"
    threshold: float
    kept: float  # share of the rows
    true_error: float


@dataclass(frozen=True)
class Advice:
    """What `mocoda.check` found; it prints as tables with a verdict under them.

    rows, used, held_out   rows of the data; those that were used; of these, those that no model was trained on
    disagreement           of the ensemble on held-out rows, in standard deviations of a step
    recorded_cells         cells of a grid, ten per column, that the data fills
    reachable_cells        cells that recombining its parent sets can fill, by count (by estimate, where sets overlap)
    laws                   whether recipes keep the recorded distribution of parent sets, which only mocoda promises
    local_graphs           how often the commonest local graphs are recorded, and drawn
    recipe                 the one that is worth trying; None: none is, as things are
    density, stratified    the settings for recipe mocoda; None: no recipe mocoda can be had
    min_support            what to filter recipe mocoda's rows by; None: a filter does not help
    verdict                why, in sentences
    """

    rows: int
    used: int
    held_out: int
    disagreement: float
    recorded_cells: int
    reachable_cells: float
    sets: tuple[ParentSet, ...]
    children: tuple[ChildErrors, ...]
    recipes: tuple[RecipeSamples, ...]
    filters: tuple[Filtered, ...]
    laws: tuple[Law, ...] = ()
    local_graphs: tuple[LocalShare, ...] = ()
    recipe: str | None = None
    density: str | None = None
    stratified: bool | None = None
    min_support: float | None = None
    verdict: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[MissingEdge, ...]:
        return tuple(edge for child in self.children for edge in child.missing)

    @property
    def times_larger(self) -> float:
        """The cells that recombining can reach, over those recorded."""
        return self.reachable_cells / self.recorded_cells

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "times_larger": self.times_larger}

    def __rich__(self) -> rich.console.Group:
        looked = f"{self.rows:,} rows" + (f", of which {self.used:,} were used" if self.used < self.rows else "")
        larger = (
            f"{self.recorded_cells:,} cells of a grid, ten per column, are recorded, {self.reachable_cells:.4g} can be "
            f"reached by recombining: {self.times_larger:.3g} times as many."
        )
        parts: list[Any] = [Text(looked), self._sets(), Text(larger), self._children(), self._recipes()]
        if self.local_graphs:
            parts.append(self._local_graphs())
        if self.laws:
            parts.append(self._laws())
        if self.filters:
            parts.append(self._filters())
        return rich.console.Group(*parts, Text("Verdict", "bold"), *(Text(f"- {reason}") for reason in self.verdict))

    def __str__(self) -> str:
        console = rich.console.Console(width=120, force_terminal=False, color_system=None)
        with console.capture() as text:
            console.print(self)
        return text.get().rstrip()

    def _sets(self) -> rich.table.Table:
        heads = ("rows", "cells", "effective", "components", "mixture", "one Gaussian", "independent", "box")
        table = _table("What is modelled together (log densities of held-out rows, nats per row)", "parent set", heads)
        for one in self.sets:
            densities = (f"{value:.2f}" for value in (one.mixture, one.gaussian, one.independent, one.box))
            counts = (f"{one.rows:,}", f"{one.cells:,}", f"{one.even_cells:,.0f}", f"{one.components:.1f}")
            table.add_row(", ".join(one.factors), *counts, *densities)
        return table

    def _children(self) -> rich.table.Table:
        title = "How well children are predicted (error in % of a step's spread)"
        heads = ("factored", "unfactored", "recombined", "unfactored", "judged rows", "missing parents")
        table = _table(title, "child", heads)
        for child in self.children:
            errors = (child.heldout_factored, child.heldout_full, child.recombined_factored, child.recombined_full)
            missing = ", ".join(f"{edge.parent} ({100 * edge.explains:.0f}%)" for edge in child.missing)
            unknown = f"? ({100 * child.outside:.0f}%)" if child.outside else "none found" if child.judged else "-"
            table.add_row(child.name, *(_percent(e) for e in errors), f"{child.judged:,}", missing or unknown)
        return table

    def _recipes(self) -> rich.table.Table:
        title = "What recipes would draw (disagreement as a multiple of that on held-out rows)"
        heads = ["disagreement", "median support", "rarer than 99%", "strange local graph"]
        heads += ["out of range", "broken norm", "as recorded", "true error"]
        table = _table(title, "recipe", heads)
        for one in self.recipes:
            if one.not_here is not None:
                table.add_row(one.name, f"[dim]{one.not_here}[/dim]")
                continue
            known = (one.support, one.unsupported, one.strange, one.outside, one.broken, one.as_recorded)
            shares = map(_percent, (*known, one.true_error))
            table.add_row(one.name, f"{one.relative:.2f} ×", *shares)
        return table

    def _local_graphs(self) -> rich.table.Table:
        recipes = [name for name in self.local_graphs[0].drawn if name in ("coda", *VARIANTS)]
        heads = ("recorded", *(name.replace("mocoda, ", "") for name in recipes))
        table = _table("What is linked beyond the sparsest graph, in which share of the rows", "local graph", heads)
        for one in self.local_graphs:
            table.add_row(one.links, _percent(one.recorded), *(_percent(one.drawn[name]) for name in recipes))
        return table

    def _laws(self) -> rich.table.Table:
        title = (
            "How well drawn parent sets are told from recorded ones (AUC; 0.5, not at all, is mocoda's promise alone)"
        )
        recipes = list(dict.fromkeys(law.recipe for law in self.laws))
        table = _table(title, "parent set", recipes)
        own = {(law.factors, law.recipe): f"{law.auc:.2f} ± {(law.high - law.low) / 2:.2f}" for law in self.laws}
        for factors in dict.fromkeys(law.factors for law in self.laws):
            table.add_row(", ".join(factors), *(own[factors, recipe] for recipe in recipes))
        return table

    def _filters(self) -> rich.table.Table:
        title = "What filters do to the true error of recipe mocoda (in % of a step's spread)"
        table = _table(title, "rows kept", ("disagreement at most", "true error", "support at least", "true error"))
        for kept in dict.fromkeys(one.kept for one in self.filters):
            own = {one.by: one for one in self.filters if one.kept == kept}
            cells = [(f"{own[by].threshold:.3g}", _percent(own[by].true_error)) for by in ("disagreement", "support")]
            table.add_row(f"{100 * kept:.0f}%", *cells[0], *cells[1])
        return table


def _table(title: str, first: str, heads: Iterable[str]) -> rich.table.Table:
    table = rich.table.Table(title=title, title_justify="left")
    table.add_column(first)
    for head in heads:
        table.add_column(head, justify="right")
    return table


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.3g}%"
