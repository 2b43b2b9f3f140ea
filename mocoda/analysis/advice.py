"""Advice: what a check measured, and what it recommends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import rich.console
import rich.table
from rich.text import Text

from mocoda.analysis.coverage import ParentSet
from mocoda.analysis.missing_edges import Child, MissingEdge
from mocoda.analysis.rarity import LocalShare
from mocoda.analysis.two_samples import Law

# How recipe mocoda is listed with settings other than its defaults.
UNSTRATIFIED = "mocoda, unstratified"  # stratified=False
MIXTURE = "mocoda, mixture"  # the paper's: density="mixture", stratified=False, project=False
LOCAL_MIXTURE = "mocoda, mixture by local graph"  # density="mixture"
VARIANTS = ("mocoda", UNSTRATIFIED, LOCAL_MIXTURE, MIXTURE)


@dataclass(frozen=True)
class RecipeSamples:
    """Rows that a recipe draws, as an ensemble of models and densities of other recorded rows see them.

    not_here      why the recipe cannot be used; then all else is None
    disagreement  of the ensemble, in standard deviations of a step: the mean over rows
    relative      disagreement, as a multiple of that on held-out rows
    support       median share of recorded rows that are as rare, each part among those that are linked alike
    unsupported   share of rows with a part that is rarer than 99% of the recorded parts that are linked alike
    strange       share of rows under a local graph that hardly any recorded row has
    as_recorded   share of rows that are recorded ones
    outside       share of rows with a column outside its recorded range
    broken        share of rows with a unit vector of another length
    columns       those that leave their range most often, and in which share of the rows
    vectors       unit vectors that have another length, and in which share of the rows
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


@dataclass(frozen=True)
class Advice:
    """What `mocoda.check` found; prints as tables, followed by details and a recommendation.

    rows, used, held_out   rows of the data; rows that were used; rows of these that no model was trained on
    disagreement           of the ensemble on held-out rows, in standard deviations of a step
    recorded_cells         cells of a grid, ten per column, that the data fills
    reachable_cells        cells that recombining its parent sets can fill, by count (by estimate, where sets overlap)
    laws                   whether recipes keep the recorded distribution of parent sets, which only mocoda promises
    local_graphs           how often the commonest local graphs are recorded, and drawn
    recipe                 the one that is worth trying; None: none yet
    density, stratified    the settings for recipe mocoda; None: the recipe cannot be used
    min_support            the filter for recipe mocoda's rows; None: a filter does not help
    recommendation         at most three sentences: on the graph, the recipe, and the number of rows
    details                the reasons, with numbers
    """

    rows: int
    used: int
    held_out: int
    disagreement: float
    recorded_cells: int
    reachable_cells: float
    sets: tuple[ParentSet, ...]
    children: tuple[Child, ...]
    recipes: tuple[RecipeSamples, ...]
    laws: tuple[Law, ...] = ()
    local_graphs: tuple[LocalShare, ...] = ()
    recipe: str | None = None
    density: str | None = None
    stratified: bool | None = None
    min_support: float | None = None
    recommendation: tuple[str, ...] = ()
    details: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[MissingEdge, ...]:
        return tuple(edge for child in self.children for edge in child.missing)

    @property
    def times_larger(self) -> float:
        """The cells that recombining can reach, as a multiple of those recorded."""
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
        parts += [Text("Details", "bold"), *(Text(f"- {detail}") for detail in self.details)]
        return rich.console.Group(*parts, Text("Recommendation", "bold"), Text("\n".join(self.recommendation)))

    def __str__(self) -> str:
        console = rich.console.Console(width=120, force_terminal=False, color_system=None)
        with console.capture() as text:
            console.print(self)
        return text.get().rstrip()

    def _sets(self) -> rich.table.Table:
        heads = ("cells", "effective", "components", "mixture", "one Gaussian")
        table = _table("Parent sets (log densities of held-out rows, in nats)", "parent set", heads)
        for one in self.sets:
            counts = (f"{one.cells:,}", f"{one.even_cells:,.0f}", f"{one.components:.1f}")
            table.add_row(", ".join(one.factors), *counts, f"{one.mixture:.2f}", f"{one.gaussian:.2f}")
        return table

    def _children(self) -> rich.table.Table:
        title = "How well a small model predicts (error in % of a step's standard deviation)"
        table = _table(title, "child", ("error", "judged rows", "missing parents"))
        for child in self.children:
            missing = ", ".join(f"{edge.parent} ({100 * edge.explains:.0f}%)" for edge in child.missing)
            unknown = f"? ({100 * child.outside:.0f}%)" if child.outside else "none found" if child.judged else "-"
            table.add_row(child.name, _percent(child.error), f"{child.judged:,}", missing or unknown)
        return table

    def _recipes(self) -> rich.table.Table:
        title = "What recipes would draw (disagreement as a multiple of that on held-out rows)"
        heads = ["disagreement", "median support", "rarer than 99%", "strange local graph"]
        heads += ["out of range", "broken norm", "as recorded"]
        table = _table(title, "recipe", heads)
        for one in self.recipes:
            if one.not_here is not None:
                table.add_row(one.name, f"[dim]{one.not_here}[/dim]")
                continue
            shares = (one.support, one.unsupported, one.strange, one.outside, one.broken, one.as_recorded)
            table.add_row(one.name, f"{one.relative:.2f} ×", *map(_percent, shares))
        return table

    def _local_graphs(self) -> rich.table.Table:
        recipes = [name for name in self.local_graphs[0].drawn if name in ("coda", *VARIANTS)]
        heads = ("recorded", *(name.replace("mocoda, ", "") for name in recipes))
        table = _table("How often factors are linked that the sparsest graph does not link", "local graph", heads)
        for one in self.local_graphs:
            table.add_row(one.links, _percent(one.recorded), *(_percent(one.drawn[name]) for name in recipes))
        return table

    def _laws(self) -> rich.table.Table:
        title = "How well a classifier separates drawn from recorded parent sets (AUC; mocoda promises 0.5, not at all)"
        recipes = list(dict.fromkeys(law.recipe for law in self.laws))
        table = _table(title, "parent set", recipes)
        own = {(law.factors, law.recipe): f"{law.auc:.2f} ± {(law.high - law.low) / 2:.2f}" for law in self.laws}
        for factors in dict.fromkeys(law.factors for law in self.laws):
            table.add_row(", ".join(factors), *(own[factors, recipe] for recipe in recipes))
        return table


def _table(title: str, first: str, heads: Iterable[str]) -> rich.table.Table:
    table = rich.table.Table(title=title, title_justify="left")
    table.add_column(first)
    for head in heads:
        table.add_column(head, justify="right")
    return table


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.3g}%"
