"""Theorem 1 and Corollary 1: how many samples counting needs, and what it knows of the unseen.

The error is the theorem's: the largest l1 distance ‖P(s, a) − P_θ(s, a)‖₁ over all state-actions, computed exactly in
random worlds. That a number of samples suffices with probability 1 − δ is found by repetition, and its interval by the
binomial test. Worlds are the unit of replication, one per seed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator
from scipy.stats import binom

from experiments.experiment import Experiment, Run, average, markdown_table, read_json, spread, unique
from experiments.theory.tabular import STRUCTURES, Structure, TabularMDP, drawn, l1_distances, random_mdp, shares
from mocoda.engine.errors import InputError
from mocoda.engine.figure_style import BLUE, COLOURS, INK, bare, save, title_left
from mocoda.engine.randomness import Stream, generator

# The paper's c, which it leaves open. Its proof with the constants kept needs n ≥ k²|c|(1 + √log(k|S||A|/δ))²/ε², which
# this c covers wherever |S||A|/δ ≥ e and k ≤ |S||A|.
CONSTANT = (1 + sqrt(2)) ** 2
DOUBT = 0.025  # at each end of an interval
NAMES = {"full": "full counting", "global": "globally factored", "local": "locally factored"}


def suffices(failures: int, repetitions: int, delta: float) -> bool:
    """Whether so few failures show that failing is rarer than delta."""
    return bool(binom.cdf(failures, repetitions, delta) <= DOUBT)


def falls_short(failures: int, repetitions: int, delta: float) -> bool:
    """Whether so many failures show that failing is commoner than delta."""
    return bool(binom.sf(failures - 1, repetitions, delta) <= DOUBT)


@dataclass(frozen=True)
class Theory(Experiment):
    """How many samples counting needs, full or factored (Theorem 1 and Corollary 1)."""

    name = "theory"
    metric = "samples until the largest l1 error over all state-actions is at most epsilon with probability 1 - delta"
    outputs = ("theory.json", "theory.png")

    repetitions: int
    factors: tuple[int, ...]  # k of the curves
    full_factors: int  # the largest k of full counting: its samples are |S|²|A| numbers
    fixed_factors: int  # k of the unseen state-actions
    shares: tuple[float, ...]  # of state-actions that are ever seen
    # With s switches, at most k, there are 2^s neighbourhoods, that any state factor can switch between.
    switches: tuple[int, ...] = (1,)
    epsilon: float = 0.5
    delta: float = 0.1
    resolution: int = 8  # numbers of samples tried from one to its double
    unseen_visits: int = 64  # samples per state-action of the world, all of them spent on those that are seen

    def __post_init__(self) -> None:
        self.check_positive("seeds", "repetitions")
        if not 0 < self.epsilon < 2 or not 0 < self.delta < 1:
            raise InputError(
                f"epsilon must be between 0 and 2 and delta between 0 and 1, got {self.epsilon} and {self.delta}."
            )
        if not self.factors or min(self.factors) < 1 or self.fixed_factors < 1:
            raise InputError(
                "factors must be numbers from 1, and at least one, and fixed_factors at least 1, "
                f"got {list(self.factors)} and {self.fixed_factors}."
            )
        if not self.shares or not 0 < min(self.shares) <= max(self.shares) < 1:
            raise InputError(f"shares must be between 0 and 1, and at least one, got {list(self.shares)}.")
        if not suffices(0, self.repetitions, self.delta):
            raise InputError(
                f"{self.repetitions} repetitions without a failure do not show a probability of 1 - {self.delta}; "
                f"expected at least {ceil(log(DOUBT) / log(1 - self.delta))}."
            )

    def world(self, factors: int, seed: int, switches: int = 1) -> TabularMDP:
        return random_mdp(factors, overlap=min(1, factors - 1), switches=switches, seed=seed)

    def measure(self, run: Run) -> dict[str, Any]:
        """Counts, compares with the truth and repeats, in every world; on the CPU, whatever the device."""
        totals, visits = [], []
        sizes = [(k, own) for k, own in itertools.product(self.factors, self.switches) if own <= k]
        for done, (k, switches) in enumerate(sizes):
            worlds = [self.world(k, seed, switches) for seed in range(self.seeds)]
            rows = [row for row in STRUCTURES if row != "full" or k <= self.full_factors]
            totals += [self._total(row, worlds) for row in rows]
            visits.append(self._visits(worlds))
            run.progress("samples needed", done + 1, len(sizes))
        return {"constant": CONSTANT, "totals": totals, "visits": visits, "unseen": self._unseen()}

    def _total(self, row: str, worlds: list[TabularMDP]) -> dict[str, Any]:
        """Samples in all, from state-actions drawn uniformly, that one kind of counting needs in each world."""
        structures = [world.structure(row) for world in worlds]
        sizes = [max(structure.sizes) for structure in structures]
        trials = [trial_in_all(world, structures[seed], seed, self) for seed, world in enumerate(worlds)]
        samples = [needed(trial, size, self) for trial, size in zip(trials, sizes, strict=True)]
        children = structures[0].children
        each = theorem(len(children), children[0], worlds[0].pairs, self.epsilon, self.delta)
        return {
            "row": row,
            **_size(worlds[0]),
            "configurations": sizes,
            **_summary(samples),
            "bounds": [each * size for size in sizes],
            "corollary": corollary(worlds[0], self.epsilon, self.delta) if row == "local" else None,
        }

    def _visits(self, worlds: list[TabularMDP]) -> dict[str, Any]:
        """Theorem 1 itself: samples at each mechanism's configurations, and how often as many as it asks for fail."""
        k, values, pairs = worlds[0].factors, worlds[0].values, worlds[0].pairs
        bound = theorem(k, values, pairs, self.epsilon, self.delta)
        samples, violations = [], 0
        for seed, world in enumerate(worlds):
            succeeds = trial_at_each(world, seed, self)
            samples.append(needed(succeeds, 1, self))
            violations += sum(not succeeds(ceil(bound), repetition) for repetition in range(self.repetitions))
        return {**_size(worlds[0]), **_summary(samples), "bound": bound, "violations": violations}

    def _unseen(self) -> list[dict[str, Any]]:
        """Errors at state-actions never seen though their (local) parents were, by the share that was seen."""
        cells: dict[tuple[float, str], dict[str, Any]] = {}
        for seed in range(self.seeds):
            world = self.world(self.fixed_factors, seed)
            structures = {row: world.structure(row) for row in STRUCTURES}
            order = Stream(seed, "theory-seen").permutation(world.pairs)
            for share in self.shares:
                visited = order[: max(1, round(share * world.pairs))]
                never = torch.ones(world.pairs, dtype=torch.bool).index_fill(0, visited, False)
                asked = never & structures["local"].supported(visited)
                visits = torch.full_like(visited, self.unseen_visits * world.pairs // len(visited))
                counts = world.draw_at(visited, visits, generator(seed, world.factors, len(visited)))
                for row, structure in structures.items():
                    errors = l1_distances(world.transitions, structure.fitted(counts))
                    cell = cells.setdefault((share, row), {"row": row, "share": share, "errors": [], "supported": []})
                    cell["errors"].append(float(errors[asked].mean()) if bool(asked.any()) else None)
                    cell["supported"].append(float(structure.supported(visited)[never].double().mean()))
        return list(cells.values())

    def draw(self, results: Mapping[str, Any], folder: Path) -> None:
        """Draws samples needed by the size of the world, and errors at unseen state-actions."""
        figure = Figure(figsize=(10, 4.4), layout="constrained")
        totals, unseen = figure.subplots(1, 2)
        _draw_totals(totals, results["totals"])
        _draw_unseen(unseen, results["unseen"])
        save(figure, folder / self.outputs[1])

    @staticmethod
    def table(results: Mapping[str, Any]) -> str:
        rows = []
        for visits in results["visits"]:
            k, m = visits["factors"], visits.get("neighbourhoods", 2)
            own = [cell for cell in results["totals"] if (cell["factors"], cell.get("neighbourhoods", 2)) == (k, m)]
            cells = {cell["row"]: cell for cell in own}
            texts = [
                f"{cells[row]['mean']:,.0f} ({average(cells[row]['bounds']):,.0f})" if row in cells else ""
                for row in STRUCTURES
            ]
            ratio = f"{visits['bound'] / visits['mean']:.0f}"
            rows.append([str(k), f"{visits['pairs']:,}", str(m), *texts, ratio, str(visits["violations"])])
        columns = ("k", "state-actions", "neighbourhoods", *NAMES.values(), "the theorem's n over what is needed")
        return markdown_table((*columns, "failures at its n"), rows)

    @staticmethod
    def answer(results: Mapping[str, Any]) -> str:
        needed = {(cell["row"], cell["factors"]): cell for cell in results["totals"]}
        k = max(k for row, k in needed if row == "full")
        full, local = needed["full", k], needed["local", k]
        return (
            f"Yes, by far: in worlds of {full['pairs']:,} state-actions and two neighbourhoods full counting needs "
            f"{full['mean']:,.0f} samples, and local counting {local['mean']:,.0f}."
        )

    @classmethod
    def blocks(cls, folder: Path) -> dict[str, str]:
        rows = []
        for share in unique(cells := cls.results(folder)["unseen"], "share"):
            own = {cell["row"]: cell for cell in cells if cell["share"] == share}
            supported = f"{100 * average(own['local']['supported']):.0f}%"
            errors = ["–" if None in (e := own[row]["errors"]) else f"{average(e):.2f}" for row in STRUCTURES]
            rows.append([f"1/{1 / share:.0f}", supported, *errors])
        columns = ("ever seen", "others whose local parents were seen", *NAMES.values())
        made = {"unseen": markdown_table(columns, rows), "neighbourhoods": cls._by_neighbourhoods(folder)}
        return super().blocks(folder) | made

    @classmethod
    def _by_neighbourhoods(cls, folder: Path) -> str:
        """What local counting needs by the number of neighbourhoods, a line per size of the world."""
        cells = [cell for cell in read_json(folder / "neighbourhoods.json")["totals"] if cell["row"] == "local"]
        full = {cell["factors"]: cell["mean"] for cell in cls.results(folder)["totals"] if cell["row"] == "full"}
        needed = {(cell["factors"], cell["neighbourhoods"]): cell for cell in cells}
        numbers, rows = unique(cells, "neighbourhoods"), []
        for k, pairs in dict.fromkeys((cell["factors"], cell["pairs"]) for cell in cells):
            own = [needed.get((k, m)) for m in numbers]
            texts = [f"{one['mean']:,.0f} ({average(one['bounds']):,.0f})" if one else "" for one in own]
            rows.append([str(k), f"{pairs:,}", *texts, f"{full[k]:,.0f}"])
        return markdown_table(["k", "state-actions", *(f"m = {m}" for m in numbers), NAMES["full"]], rows)


Theory.presets = {
    "paper": Theory(
        "paper",
        seeds=3,
        repetitions=60,
        factors=(1, 2, 3, 4, 5, 6, 7),
        full_factors=6,
        fixed_factors=6,
        shares=(1 / 256, 1 / 128, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2),
    ),
    # More and more neighbourhoods, up to one for each state.
    "neighbourhoods": Theory(
        "neighbourhoods",
        seeds=3,
        repetitions=60,
        factors=(1, 2, 3, 4, 5),
        full_factors=0,
        fixed_factors=1,
        shares=(1 / 2,),
        switches=(0, 1, 2, 3, 4, 5),
    ),
    "quick": Theory(
        "quick",
        seeds=2,
        repetitions=40,
        factors=(1, 2, 3, 4, 5, 6),
        full_factors=6,
        fixed_factors=5,
        shares=(1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2),
    ),
}


Trial = Callable[[int, int], bool]  # samples, number of the repetition -> whether the error was small enough


class Needed(NamedTuple):
    """The least number that sufficed in 1 − δ of the repetitions; `low` surely falls short, `high` surely suffices."""

    samples: int
    low: int
    high: int


def theorem(mechanisms: int, children: int, pairs: int, epsilon: float, delta: float) -> float:
    """Theorem 1: samples at each configuration of each mechanism's parents; full counting is one mechanism."""
    return CONSTANT * mechanisms**2 * children * log(pairs / delta) / epsilon**2


def corollary(world: TabularMDP, epsilon: float, delta: float) -> float:
    """Corollary 1: samples in all, where next states stay in their neighbourhood and parent sets do not overlap."""
    k, m = world.factors, world.neighbourhoods
    each: float = (world.states * world.pairs / m**2) ** (1 / k)
    return CONSTANT * m * k**2 * each * log(world.pairs / delta) / epsilon**2


def needed(succeeds: Trial, start: int, settings: Theory) -> Needed:
    """Doubles the samples from `start` until they surely suffice, then takes some away until they surely fall short."""
    trials, delta = settings.repetitions, settings.delta

    def failures(samples: int) -> int:
        """Ends as soon as it is sure that there are too many."""
        failed = 0
        for repetition in range(trials):
            failed += not succeeds(samples, repetition)
            if falls_short(failed, trials, delta):
                break
        return failed

    high = start
    while not suffices(failures(high), trials, delta):
        high *= 2
    samples = least = high
    passing = sure = True  # with this many samples and, of what was tried, with all more
    while least > 1:
        least = min(least - 1, int(least / 2 ** (1 / settings.resolution)))
        failed = failures(least)
        if falls_short(failed, trials, delta):
            return Needed(samples, least, high)
        passing, sure = passing and failed <= delta * trials, sure and suffices(failed, trials, delta)
        samples, high = least if passing else samples, least if sure else high
    return Needed(samples, 0, high)


def trial_in_all(world: TabularMDP, structure: Structure, seed: int, settings: Theory) -> Trial:
    """Counts so many samples from state-actions that are drawn uniformly."""

    def succeeds(samples: int, repetition: int) -> bool:
        counts = world.draw(samples, generator(seed, world.factors, samples, repetition))
        return _close(world, structure.fitted(counts), settings)

    return succeeds


def trial_at_each(world: TabularMDP, seed: int, settings: Theory) -> Trial:
    """Counts so many samples at every configuration of every local mechanism's parents."""
    local = world.structure("local")

    def succeeds(samples: int, repetition: int) -> bool:
        random = generator(seed, world.factors, samples, repetition)
        estimated = tuple(shares(drawn(table, samples, random)) for table in world.tables)
        return _close(world, local.transitions(estimated), settings)

    return succeeds


def _close(world: TabularMDP, transitions: torch.Tensor, settings: Theory) -> bool:
    return float(l1_distances(world.transitions, transitions).max()) <= settings.epsilon


def _size(world: TabularMDP) -> dict[str, int]:
    size = {"factors": world.factors, "states": world.states, "pairs": world.pairs}
    return size | {"neighbourhoods": world.neighbourhoods}


def _summary(needs: list[Needed]) -> dict[str, Any]:
    return spread([need.samples for need in needs]) | {"intervals": [[need.low, need.high] for need in needs]}


# The figure


def _draw_totals(axes: Axes, cells: Sequence[Mapping[str, Any]]) -> None:
    """Draws a line through the means over worlds, a dot and an interval per world and, dashed, the theorem's bound."""
    for row, name in NAMES.items():
        own, colour = [cell for cell in cells if cell["row"] == row], COLOURS[row]
        pairs = [cell["pairs"] for cell in own]
        axes.plot(pairs, [cell["mean"] for cell in own], color=colour, lw=2.2, label=name)
        axes.plot(pairs, [average(cell["bounds"]) for cell in own], color=colour, lw=1.2, ls="--")
        for cell in own:
            count = len(cell["values"])
            worlds = [cell["pairs"] * 1.04 ** (i - (count - 1) / 2) for i in range(count)]
            axes.vlines(worlds, *zip(*cell["intervals"], strict=True), color=colour, lw=1, alpha=0.7)
            axes.plot(worlds, cell["values"], ".", color=colour, ms=6)
    axes.plot([], [], color=INK, lw=1.2, ls="--", label="Theorem 1 asks for")
    every = sorted({cell["pairs"] for cell in cells})
    axes.fill_between(every, every, 1, color=BLUE, alpha=0.07, lw=0, label="fewer samples than state-actions")
    axes.set(xscale="log", yscale="log", xlabel="state-actions |S||A|", ylabel="samples needed")
    axes.set_ylim(bottom=3)
    title_left(axes, "Two neighbourhoods, worlds of any size")
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    bare(axes)


def _draw_unseen(axes: Axes, cells: Sequence[Mapping[str, Any]]) -> None:
    """Draws means over worlds; a share where no parents were seen has no point."""
    for row, name in NAMES.items():
        own = [cell for cell in cells if cell["row"] == row and None not in cell["errors"]]
        errors = [average(cell["errors"]) for cell in own]
        axes.plot([cell["share"] for cell in own], errors, "o-", color=COLOURS[row], lw=2.2, ms=4, label=name)
    every = sorted({cell["share"] for cell in cells})
    axes.set(xscale="log", xlabel="share of state-actions ever seen", ylabel="mean l1 error at the others")
    axes.set_xticks(every, [f"1/{1 / share:.0f}" for share in every])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(bottom=0)
    title_left(axes, "Never seen, but its parents were")
    axes.legend(frameon=False, fontsize=9, loc="center right", bbox_to_anchor=(1, 0.72))
    bare(axes)
