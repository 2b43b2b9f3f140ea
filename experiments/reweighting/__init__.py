"""Section 4.1: imbalances compound, rejection pays for them exponentially, reweighting does not.

k independent factors, each with a common and a rare interval of the same length. Uniform over the support, all 2^k
combinations of intervals are equally frequent. Rejection comes in two kinds: *exact*, by the mixtures' own density,
which keeps as few as flatness demands, and the recipe's, by a kernel density, which is asked to keep a tenth of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from matplotlib.figure import Figure
from torch import Tensor

from experiments.columns import PUBLISHED
from experiments.experiment import Experiment, Run, markdown_table, unique
from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.figure_style import BLUE, GREY, INK, ORANGE, RED, bare, legend_below, save, title_left
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents import GaussianMixture, Mocoda, Parents, fit_parents, make_recipe
from mocoda.parents.flattening import FlattenedParents
from mocoda.parents.mocoda import MixtureParents

COMMON, RARE, LENGTH = 0.1, 0.7, 0.2  # where the intervals start, and how long they are
HOPELESS = 1e6  # proposals a row
QUANTILE = 0.01  # exact rejection leaves what is rarer than this as rare as it is
SPLIT = 65_536  # proposals at a time
WEIGHED = 100_000  # rows from which the acceptance is computed


@dataclass(frozen=True)
class ReweightedMocoda(Mocoda):
    """MoCoDA-U at the cost of a plain draw: the components of every mixture are drawn by volume, not by weight."""

    name: ClassVar[str] = "mocoda-u"

    def fit(self, data: Transitions, graph: LocalGraph, **given: Any) -> Parents:
        fitted = super().fit(data, graph, **given)
        assert isinstance(fitted, MixtureParents)
        return replace(fitted, sets=tuple((columns, by_volume(mixture)) for columns, mixture in fitted.sets))


def by_volume(mixture: GaussianMixture) -> GaussianMixture:
    """The same components weighted by their volume √|Σ|: all peaks are equally high, and the mixture is near flat.

    Splitting a cluster into two components does not change its weight, nor does the number of rows in it.
    """
    log_volume: Tensor = torch.linalg.cholesky(mixture.covariances).diagonal(dim1=1, dim2=2).log().sum(1)
    return replace(mixture, weights=log_volume.softmax(0))


@dataclass(frozen=True)
class Reweighting(Experiment):
    """MoCoDA-U by reweighting components, against rejection (Section 4.1)."""

    name = "reweighting"
    metric = (
        "proposals: how many a row costs. covered: share of the 2^k combinations that occur among the rows, in percent"
    )
    outputs = ("reweighting.json", "reweighting.png")

    factors: tuple[int, ...] = tuple(range(1, 11))
    rare: float = 0.05  # share of the rare interval
    rows: int = 20_000  # recorded
    test_rows: int = 20_000
    budget: int = 20_000_000  # proposals of exact rejection
    components: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.rare < 1:
            raise InputError(f"rare must be a share above 0 and below 1, got {self.rare}.")
        if not self.factors or min(self.factors) < 1:
            raise InputError(f"factors must be numbers of factors, each 1 or more, got {self.factors}.")

    def measure(self, run: Run) -> dict[str, Any]:
        """Measures the cost and the coverage of every way to draw, for every number of factors."""
        points = []
        for done, factors in enumerate(self.factors):
            seeds = [self._measure(factors, seed, run.device) for seed in range(self.seeds)]
            points += [
                {"factors": factors, "column": column, **_means([seed[column] for seed in seeds])}
                for column in seeds[0]
            ]
            run.progress("factors", done + 1, len(self.factors))
        exact = [point for point in points if point["column"] == "exact rejection"]
        # The fewest factors with which a row costs exact rejection a million proposals.
        hopeless = next((point["factors"] for point in exact if point["proposals"] >= HOPELESS), None)
        return {"hopeless": hopeless, "points": points}

    def _measure(self, factors: int, seed: int, device: str) -> dict[str, dict[str, float]]:
        """Column -> its measures."""
        stream = Stream(seed, "reweighting", factors, device=device)
        data = imbalanced(factors, self.rare, self.rows, stream).to(device)
        graph = graph_of(factors)

        def fitted(recipe: str) -> Parents:
            return fit_parents(data, graph, make_recipe(recipe, components=self.components, **PUBLISHED), seed=seed)

        plain, thinned = fitted("mocoda"), fitted("mocoda-u")
        flat = fit_parents(data, graph, ReweightedMocoda(components=self.components, **PUBLISHED), seed=seed)
        assert isinstance(plain, MixtureParents) and isinstance(thinned, FlattenedParents)
        chances = thinned.weights(plain.sample(10_000, seed=stream.child("weights"))).clamp(max=1)
        proposals = {"mocoda": 1.0, "reweighting": 1.0, "rejection": 1 / float(chances.mean())}
        measures = {}
        for column, parents in (("mocoda", plain), ("reweighting", flat), ("rejection", thinned)):
            rows = parents.sample(self.test_rows, seed=stream.child(column))
            measures[column] = {"covered": _covered(rows), "proposals": proposals[column]}
        # As flat as can be: what is rarer than `least` is always kept, all else in proportion to its rarity.
        least = _log_density(plain, data.rows).quantile(QUANTILE, dim=0)
        rows = _rejected(plain, least, self, stream.child("exact"))
        # Too few are kept to count them, but factors are independent: the share kept is the product of their shares.
        at = plain.sample(WEIGHED, seed=stream.child("acceptance"))
        acceptance = float(_chances(plain, least, at).mean(0).prod())
        measures["exact rejection"] = {"covered": _covered(rows), "proposals": 1 / acceptance, "rows": len(rows)}
        return measures

    def draw(self, results: Mapping[str, Any], folder: Path) -> None:
        """Draws what a row costs, and which combinations there are among the rows, by the number of factors."""
        figure = Figure(figsize=(10, 4.2), layout="constrained")
        cost, covered = figure.subplots(1, 2)
        titles = {
            "exact rejection": (f"rejection, as flat as can be (right: of {self.budget:,} proposals)", RED),
            "rejection": ("rejection by kernel density (recipe mocoda-u)", ORANGE),
            "mocoda": ("MoCoDA, not flattened", GREY),
            "reweighting": ("reweighted components", BLUE),
        }
        for column, (label, colour) in titles.items():
            own = [point for point in results["points"] if point["column"] == column]
            factors = [point["factors"] for point in own]
            style: dict[str, Any] = {"color": colour, "marker": "o", "ms": 4, "lw": 1.8, "label": label}
            if column != "mocoda":  # which costs what reweighting does
                cost.plot(factors, [point["proposals"] for point in own], **style)
            covered.plot(factors, [point["covered"] for point in own], clip_on=False, **style)
        cost.set(yscale="log", ylabel="proposals for one row (log scale)", xlabel="independent factors")
        covered.set(ylim=(0, 100), ylabel="combinations of intervals that occur (%)", xlabel="independent factors")
        if results["hopeless"] is not None:
            cost.axvline(results["hopeless"], color=INK, lw=1, ls=":", label="over a million proposals")
        title_left(cost, f"Evening out intervals that hold {100 * self.rare:.0f}%", fontsize=10)
        title_left(covered, f"What {self.test_rows:,} rows then cover", fontsize=10)
        for axes in (cost, covered):
            axes.set_xticks(self.factors)
            bare(axes)
        legend_below(figure, ncols=2)
        save(figure, folder / self.outputs[1])

    @staticmethod
    def table(results: Mapping[str, Any]) -> str:
        points = results["points"]
        rows = []
        for factors in unique(points, "factors"):
            own = [point for point in points if point["factors"] == factors]
            rows.append([str(factors), *(f"{point['covered']:.1f} ({point['proposals']:.3g})" for point in own)])
        return markdown_table(["k", *unique(points, "column")], rows)

    @staticmethod
    def answer(results: Mapping[str, Any]) -> str:
        most = max(unique(results["points"], "factors"))
        last = {point["column"]: point for point in results["points"] if point["factors"] == most}
        return (
            f"Yes: with {most} factors, reweighting covers {last['reweighting']['covered']:.0f}% of the combinations "
            f"at one proposal per row; exact rejection would take {last['exact rejection']['proposals']:.0e} proposals."
        )


Reweighting.presets = {
    "paper": Reweighting("paper", seeds=5),
    "quick": Reweighting("quick", seeds=1, test_rows=5_000, budget=400_000),
}


def imbalanced(factors: int, rare: float, rows: int, seed: int | Stream) -> Transitions:
    """Rows of independent factors, each rarely in its rare interval; nothing depends on the action."""
    stream = as_stream(seed, "imbalanced", device="cpu")
    start = torch.where(stream.uniform(rows, factors) < rare, RARE, COMMON)
    state = start + LENGTH * stream.uniform(rows, factors)
    return Transitions(state, stream.uniform(rows, 1), state)


def graph_of(factors: int) -> LocalGraph:
    names = [f"factor{i}" for i in range(factors)]
    return LocalGraph(
        state={name: i for i, name in enumerate(names)}, action={"action": 0}, edges={name: [name] for name in names}
    )


def _rejected(plain: MixtureParents, least: Tensor, settings: Reweighting, stream: Stream) -> Tensor:
    """The test rows that exact rejection keeps, or fewer where the budget of proposals ends before."""
    kept = [plain.sample(0, seed=stream)]
    for batch in range(-(-settings.budget // SPLIT)):
        proposed = plain.sample(SPLIT, seed=stream.child(batch))
        kept.append(proposed[stream.uniform(SPLIT) < _chances(plain, least, proposed).prod(1)])
        if sum(map(len, kept)) >= settings.test_rows:
            break
    return torch.cat(kept)[: settings.test_rows]


def _chances(plain: MixtureParents, least: Tensor, rows: Tensor) -> Tensor:
    """How likely each factor of each row is kept, (N, k)."""
    return (least - _log_density(plain, rows)).clamp(max=0).exp()


def _log_density(plain: MixtureParents, rows: Tensor) -> Tensor:
    """Of every factor, (N, k): the last set is the action's."""
    return plain.log_prob(rows)[:, :-1]


def _covered(rows: Tensor) -> float:
    """The share of the combinations of intervals that occur, in percent."""
    rare = rows[:, :-1] > (COMMON + LENGTH + RARE) / 2
    combination = (rare * 2 ** torch.arange(rare.shape[1], device=rows.device)).sum(1)
    return 100 * len(combination.unique()) / int(2 ** rare.shape[1])


def _means(seeds: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Every measure's mean over seeds; the values of the coverage besides."""
    means: dict[str, Any] = {name: sum(seed[name] for seed in seeds) / len(seeds) for name in seeds[0]}
    return means | {"values": [seed["covered"] for seed in seeds]}
