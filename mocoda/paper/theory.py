"""a preset -> Theorem 1 and Corollary 1, measured: how many samples counting needs, and what it knows of the unseen.

The error is the theorem's: the largest l1 distance ‖P(s, a) − P_θ(s, a)‖₁ over all state-actions, computed exactly in
random worlds. That a number of samples suffices with probability 1 − δ is found by repetition, and its interval by the
binomial test. Worlds are the unit of replication, one a seed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from math import ceil, comb, fsum, log, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import rich.table
import torch

from mocoda.engine.errors import InputError
from mocoda.engine.files import write_json
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream, generator
from mocoda.engine.statistics import mean_and_std
from mocoda.paper.experiment import heading
from mocoda.paper.tabular import STRUCTURES, Structure, TabularMDP, drawn, l1_distances, random_mdp, shares
from mocoda.paper.theory_figure import draw_theory

METRIC = "samples until the largest l1 error over all state-actions is at most epsilon with probability 1 - delta"
OUTPUTS = ("theory.json", "theory.png")
# The paper's c, which it leaves open. Its proof with the constants kept needs n ≥ k²|c|(1 + √log(k|S||A|/δ))²/ε², which
# this c covers wherever |S||A|/δ ≥ e and k ≤ |S||A|.
CONSTANT = (1 + sqrt(2)) ** 2
DOUBT = 0.025  # at each end of an interval
# Worlds that differ in one thing from those of the curves, in which parent sets overlap by one state factor and there
# are two neighbourhoods (one switch) that every state factor decides on.
CHOICES: tuple[dict[str, int], ...] = (
    *({"overlap": 0}, {"overlap": 2}, {"deciding": 1}),
    *({"switches": 0}, {"switches": 2}, {"switches": 3}),
)


def suffices(failures: int, repetitions: int, delta: float) -> bool:
    """Whether so few failures show that failing is rarer than delta."""
    return binomial_tail(repetitions - failures, repetitions, 1 - delta) <= DOUBT


def falls_short(failures: int, repetitions: int, delta: float) -> bool:
    """Whether so many failures show that failing is commoner than delta."""
    return binomial_tail(failures, repetitions, delta) <= DOUBT


@cache
def binomial_tail(successes: int, trials: int, probability: float) -> float:
    """The chance of at least so many successes."""
    p, q = probability, 1 - probability
    return fsum(comb(trials, n) * p**n * q ** (trials - n) for n in range(successes, trials + 1))


@dataclass(frozen=True)
class Theory:
    """Settings of the figure: random worlds, and how surely which error is asked for."""

    preset: str
    seeds: int
    repetitions: int
    factors: tuple[int, ...]  # k of the curves
    full_factors: int  # the largest k of full counting: its samples are |S|²|A| numbers
    fixed_factors: int  # k of everything else; at least 3
    shares: tuple[float, ...]  # of state-actions that are ever seen
    values: int = 2
    actions: int = 2
    overlap: int = 1
    switches: int = 1  # two neighbourhoods, that any state factor can switch between
    epsilon: float = 0.5
    delta: float = 0.1
    resolution: int = 8  # numbers of samples tried from one to its double
    unseen_visits: int = 64  # samples per state-action of the world, all of them spent on those that are seen

    def __post_init__(self) -> None:
        if min(self.seeds, self.repetitions) < 1:
            raise InputError(f"seeds and repetitions must be positive, got {self.seeds} and {self.repetitions}.")
        if not 0 < self.epsilon < 2 or not 0 < self.delta < 1:
            raise InputError(
                f"epsilon must be between 0 and 2 and delta between 0 and 1, got {self.epsilon} and {self.delta}."
            )
        if not self.factors or min(self.factors) < 1 or self.fixed_factors < 3:
            raise InputError(
                "factors must be numbers from 1, and at least one, and fixed_factors at least 3, "
                f"got {list(self.factors)} and {self.fixed_factors}."
            )
        if not self.shares or not 0 < min(self.shares) <= max(self.shares) < 1:
            raise InputError(f"shares must be between 0 and 1, and at least one, got {list(self.shares)}.")
        if not suffices(0, self.repetitions, self.delta):
            raise InputError(
                f"{self.repetitions} repetitions without a failure do not show a probability of 1 - {self.delta}; "
                f"expected at least {ceil(log(DOUBT) / log(1 - self.delta))}."
            )

    def config(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    def world(self, factors: int, seed: int, **choice: int) -> TabularMDP:
        usual = {"overlap": min(self.overlap, factors - 1), "switches": self.switches}
        return random_mdp(factors, values=self.values, actions=self.actions, seed=seed, **(usual | choice))


PRESETS = {
    "paper": Theory(
        "paper",
        seeds=3,
        repetitions=60,
        factors=(1, 2, 3, 4, 5, 6, 7),
        full_factors=6,
        fixed_factors=6,
        shares=(1 / 256, 1 / 128, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2),
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
    """Counts so many samples from state-actions that are drawn evenly."""

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


def theory(settings: Theory, *, progress: Progress = silent) -> dict[str, Any]:
    """Counts, compares with the truth and repeats, in every world."""
    started = time.monotonic()
    totals, visits = [], []
    for done, k in enumerate(settings.factors):
        worlds = [settings.world(k, seed) for seed in range(settings.seeds)]
        for row in STRUCTURES:
            if row != "full" or k <= settings.full_factors:
                totals.append(_total(row, worlds, settings))
        visits.append(_visits(worlds, settings))
        progress("samples needed", done + 1, len(settings.factors))
    choices = []
    for done, choice in enumerate(CHOICES):
        worlds = [settings.world(settings.fixed_factors, seed, **choice) for seed in range(settings.seeds)]
        choices += [{"choice": choice, **_total(row, worlds, settings)} for row in ("global", "local")]
        progress("other worlds", done + 1, len(CHOICES))
    unseen = _unseen(settings)
    progress("unseen state-actions", 1, 1)
    return {
        **heading("theory", settings, METRIC, "cpu", time.monotonic() - started),
        "constant": CONSTANT,
        "totals": totals,
        "visits": visits,
        "choices": choices,
        "unseen": unseen,
    }


def write(results: dict[str, Any], folder: Path) -> rich.table.Table:
    """Writes the numbers and the figure; the table to show."""
    write_json(folder / OUTPUTS[0], results)
    draw_theory(results, folder / OUTPUTS[1])
    config = results["config"]
    title = (
        f"Samples until no state-action is off by more than {config['epsilon']} (l1), {1 - config['delta']:.0%} sure"
    )
    table = rich.table.Table(title=title, caption="mean over worlds (in brackets: what Theorem 1 asks for)")
    for column in ("k", "|S||A|", *STRUCTURES):
        table.add_column(column, justify="right")
    for k in config["factors"]:
        cells = {cell["row"]: cell for cell in results["totals"] if cell["factors"] == k}
        texts = [_text(cells[row]) if row in cells else "" for row in STRUCTURES]
        table.add_row(str(k), f"{cells['local']['pairs']:,}", *texts)
    return table


def _total(row: str, worlds: list[TabularMDP], settings: Theory) -> dict[str, Any]:
    """Samples in all, from state-actions drawn evenly, that one kind of counting needs in each world."""
    structures = [world.structure(row) for world in worlds]
    sizes = [max(structure.sizes) for structure in structures]
    trials = [trial_in_all(world, structures[seed], seed, settings) for seed, world in enumerate(worlds)]
    found = [needed(trial, size, settings) for trial, size in zip(trials, sizes, strict=True)]
    children = structures[0].children
    each = theorem(len(children), children[0], worlds[0].pairs, settings.epsilon, settings.delta)
    return {
        "row": row,
        **_size(worlds[0]),
        "configurations": sizes,
        **_summary(found),
        "bounds": [each * size for size in sizes],
        "corollary": corollary(worlds[0], settings.epsilon, settings.delta) if row == "local" else None,
    }


def _visits(worlds: list[TabularMDP], settings: Theory) -> dict[str, Any]:
    """Theorem 1 itself: samples at each configuration of each mechanism, and how often as many as it asks for fail."""
    k, values, pairs = worlds[0].factors, worlds[0].values, worlds[0].pairs
    bound = theorem(k, values, pairs, settings.epsilon, settings.delta)
    found, violations = [], 0
    for seed, world in enumerate(worlds):
        succeeds = trial_at_each(world, seed, settings)
        found.append(needed(succeeds, 1, settings))
        violations += sum(not succeeds(ceil(bound), repetition) for repetition in range(settings.repetitions))
    return {**_size(worlds[0]), **_summary(found), "bound": bound, "violations": violations}


def _close(world: TabularMDP, transitions: torch.Tensor, settings: Theory) -> bool:
    return float(l1_distances(world.transitions, transitions).max()) <= settings.epsilon


def _unseen(settings: Theory) -> list[dict[str, Any]]:
    """Errors at state-actions that were never seen though their (local) parents were, by the share that was seen."""
    cells: dict[tuple[float, str], dict[str, Any]] = {}
    for seed in range(settings.seeds):
        world = settings.world(settings.fixed_factors, seed)
        structures = {row: world.structure(row) for row in STRUCTURES}
        order = Stream(seed, "theory-seen").permutation(world.pairs)
        for share in settings.shares:
            visited = order[: max(1, round(share * world.pairs))]
            never = torch.ones(world.pairs, dtype=torch.bool).index_fill(0, visited, False)
            asked = never & structures["local"].supported(visited)
            visits = torch.full_like(visited, settings.unseen_visits * world.pairs // len(visited))
            counts = world.draw_at(visited, visits, generator(seed, world.factors, len(visited)))
            for row, structure in structures.items():
                errors = l1_distances(world.transitions, structure.fitted(counts))
                cell = cells.setdefault(
                    (share, row), {"row": row, "share": share, "errors": [], "worst": [], "supported": []}
                )
                cell["errors"].append(float(errors[asked].mean()) if bool(asked.any()) else None)
                cell["worst"].append(float(errors[asked].max()) if bool(asked.any()) else None)
                cell["supported"].append(float(structure.supported(visited)[never].double().mean()))
    return list(cells.values())


def _size(world: TabularMDP) -> dict[str, int]:
    return {"factors": world.factors, "states": world.states, "pairs": world.pairs}


def _summary(found: list[Needed]) -> dict[str, Any]:
    mean, std = mean_and_std([one.samples for one in found])
    return {
        "values": [one.samples for one in found],
        "intervals": [[one.low, one.high] for one in found],
        "mean": mean,
        "std": std,
    }


def _text(cell: dict[str, Any]) -> str:
    return f"{cell['mean']:,.0f} [dim]({_mean(cell['bounds']):,.0f})[/dim]"


def _mean(values: list[float]) -> float:
    return mean_and_std(values)[0]
