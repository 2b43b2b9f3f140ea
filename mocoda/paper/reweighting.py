"""a preset -> Section 4.1, measured: imbalances compound, rejection pays for them exponentially, reweighting does not.

k independent factors, each with a common and a rare interval of the same length. Uniform over the support, all 2^k
combinations of intervals are equally frequent. Rejection comes in two kinds: *exact*, by the mixtures' own density,
which keeps as few as flatness demands, and the recipe's, by a kernel density, which is asked to keep a tenth of them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rich.table
import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.files import write_json
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.paper.experiment import heading
from mocoda.paper.parents_figure import draw_reweighting
from mocoda.parents.flattening import Flattened
from mocoda.parents.mocoda import Mocoda
from mocoda.parents.recipes import Parents, fit_parents

COMMON, RARE, LENGTH = 0.1, 0.7, 0.2  # where the intervals start, and how long they are
HOPELESS = 1e6  # proposals a row
QUANTILE = 0.01  # exact rejection leaves what is rarer than this as rare as it is
SPLIT = 65_536  # proposals at a time
WEIGHED = 100_000  # rows that tell the acceptance
METRIC = (
    "proposals: how many a row costs. covered: share of the 2^k combinations that occur among the rows, in percent. "
    "rare: share of factors in their rare interval, in percent (50 is uniform). milliseconds: for 1,000 rows"
)
OUTPUTS = ("reweighting.json", "reweighting.png")


@dataclass(frozen=True)
class Reweighting:
    """Settings of the comparison."""

    preset: str
    seeds: int
    factors: tuple[int, ...] = tuple(range(1, 11))
    rare: float = 0.05  # share of the rare interval
    rows: int = 20_000  # recorded
    test_rows: int = 20_000
    budget: int = 20_000_000  # proposals of exact rejection
    components: int = 8

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise InputError(f"seeds must be at least 1, got {self.seeds}.")
        if not 0 < self.rare < 1:
            raise InputError(f"rare must be a share above 0 and below 1, got {self.rare}.")
        if not self.factors or min(self.factors) < 1:
            raise InputError(f"factors must name numbers of factors, each 1 or more, got {self.factors}.")


PRESETS = {
    "paper": Reweighting("paper", seeds=5),
    "quick": Reweighting("quick", seeds=1, test_rows=5_000, budget=400_000),
}


def imbalanced(factors: int, rare: float, rows: int, seed: int | Stream) -> Transitions:
    """Rows of independent factors, each rarely in its rare interval; the action is no one's parent."""
    stream = as_stream(seed, "imbalanced", device="cpu")
    start = torch.where(stream.uniform(rows, factors) < rare, RARE, COMMON)
    state = start + LENGTH * stream.uniform(rows, factors)
    return Transitions(state, stream.uniform(rows, 1), state)


def graph_of(factors: int) -> LocalGraph:
    names = [f"factor{i}" for i in range(factors)]
    return LocalGraph(
        state={name: i for i, name in enumerate(names)}, action={"action": 0}, edges={name: [name] for name in names}
    )


def reweighting(settings: Reweighting, *, device: str, progress: Progress = silent) -> dict[str, Any]:
    """Measures the cost and the coverage of every way to draw, for every number of factors."""
    started = time.monotonic()
    points = []
    for done, factors in enumerate(settings.factors):
        seeds = [_measured(factors, settings, seed, device) for seed in range(settings.seeds)]
        points += [
            {"factors": factors, "column": column, **_means([seed[column] for seed in seeds])} for column in seeds[0]
        ]
        progress("factors", done + 1, len(settings.factors))
    exact = [point for point in points if point["column"] == "exact rejection"]
    hopeless = next((point["factors"] for point in exact if point["proposals"] >= HOPELESS), None)
    return {
        **heading("reweighting", settings, METRIC, device, time.monotonic() - started),
        "hopeless": hopeless,  # the fewest factors with which a row costs exact rejection a million proposals
        "points": points,
    }


def write(results: dict[str, Any], folder: Path) -> rich.table.Table:
    """Writes the points and the figure; the table to show."""
    write_json(folder / OUTPUTS[0], results)
    draw_reweighting(results, folder / OUTPUTS[1])
    table = rich.table.Table(
        title="Combinations covered (%), and proposals a row", caption=f"hopeless from k = {results['hopeless']}"
    )
    columns = list(dict.fromkeys(point["column"] for point in results["points"]))
    for title in ("k", *columns):
        table.add_column(title, justify="right")
    for factors in dict.fromkeys(point["factors"] for point in results["points"]):
        own = [point for point in results["points"] if point["factors"] == factors]
        table.add_row(str(factors), *(f"{point['covered']:.1f}  ({point['proposals']:.3g})" for point in own))
    return table


def _measured(factors: int, settings: Reweighting, seed: int, device: str) -> dict[str, dict[str, float]]:
    """Column -> its measures."""
    stream = Stream(seed, "reweighting", factors, device=device)
    data = imbalanced(factors, settings.rare, settings.rows, stream).to(device)
    graph = graph_of(factors)

    def fitted(recipe: str, **options: Any) -> Parents:
        return fit_parents(data, graph, recipe, seed=seed, components=settings.components, **options)

    plain, flat = fitted("mocoda"), fitted("mocoda-u", flatten="reweighting")
    thinned = fitted("mocoda-u")
    assert isinstance(plain, Mocoda) and isinstance(thinned, Flattened)
    chances = thinned.weights(plain.sample(10_000, seed=stream.child("weights"))).clamp(max=1)
    proposals = {"mocoda": 1.0, "reweighting": 1.0, "rejection": 1 / float(chances.mean())}
    found = {}
    for column, parents in (("mocoda", plain), ("reweighting", flat), ("rejection", thinned)):
        begun = time.monotonic()
        rows = parents.sample(settings.test_rows, seed=stream.child(column))
        milliseconds = 1e6 * (time.monotonic() - begun) / settings.test_rows
        found[column] = _coverage(rows) | {"proposals": proposals[column], "milliseconds": milliseconds}
    # Every factor as flat as can be: what is rarer than `least` is always kept, all else in proportion to its rarity.
    least = _log_density(plain, data.rows).quantile(QUANTILE, dim=0)
    begun = time.monotonic()
    rows = _rejected(plain, least, settings, stream.child("exact"))
    spent = time.monotonic() - begun
    # Too few are kept to count them, but factors are independent: the share kept is the product of their shares.
    at = plain.sample(WEIGHED, seed=stream.child("acceptance"))
    acceptance = float(_chances(plain, least, at).mean(0).prod())
    found["exact rejection"] = _coverage(rows) | {
        "proposals": 1 / acceptance,
        "milliseconds": 1e6 * spent / max(len(rows), 1),
    }
    return found


def _rejected(plain: Mocoda, least: Tensor, settings: Reweighting, stream: Stream) -> Tensor:
    """The test rows that exact rejection keeps, or fewer where the budget of proposals ends before."""
    kept = [plain.sample(0, seed=stream)]
    for batch in range(-(-settings.budget // SPLIT)):
        proposed = plain.sample(SPLIT, seed=stream.child(batch))
        kept.append(proposed[stream.uniform(SPLIT) < _chances(plain, least, proposed).prod(1)])
        if sum(map(len, kept)) >= settings.test_rows:
            break
    return torch.cat(kept)[: settings.test_rows]


def _chances(plain: Mocoda, least: Tensor, rows: Tensor) -> Tensor:
    """How likely each factor of each row is kept, (N, k)."""
    return (least - _log_density(plain, rows)).clamp(max=0).exp()


def _log_density(plain: Mocoda, rows: Tensor) -> Tensor:
    """Of every factor, (N, k): the last set is the action's."""
    return plain.log_prob(rows)[:, :-1]


def _coverage(rows: Tensor) -> dict[str, float]:
    rare = rows[:, :-1] > (COMMON + LENGTH + RARE) / 2
    combination = (rare * 2 ** torch.arange(rare.shape[1], device=rows.device)).sum(1)
    return {
        "rows": len(rows),
        "covered": 100 * len(combination.unique()) / 2 ** rare.shape[1],
        "rare": 100 * float(rare.double().mean()) if len(rows) else 0.0,
    }


def _means(seeds: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Every measure's mean over seeds; the values of the coverage besides."""
    means: dict[str, Any] = {name: sum(seed[name] for seed in seeds) / len(seeds) for name in seeds[0]}
    return means | {"values": [seed["covered"] for seed in seeds]}
