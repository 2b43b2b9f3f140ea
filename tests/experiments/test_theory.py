"""Theorem 1 as a program, at a size that takes no time: against exact probabilities and the lemmas of its proof."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import scipy.stats
import torch
from experiment_contract import results_of
from tiny_experiments import TINY as ALL

from experiments.theory import (
    Needed,
    Theory,
    corollary,
    falls_short,
    needed,
    suffices,
    theorem,
    trial_at_each,
)
from experiments.theory.tabular import l1_distances, random_mdp, shares
from mocoda.engine.randomness import Stream

TINY: Theory = ALL["theory"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return results_of(TINY, tmp_path_factory.mktemp("theory"))


# Confidence by repetition


@pytest.mark.parametrize(("trials", "delta"), [(40, 0.1), (60, 0.1), (100, 0.05), (20, 0.3)])
def test_sure_is_what_clopper_and_pearsons_interval_says(trials: int, delta: float) -> None:
    for failures in range(trials + 1):
        interval = scipy.stats.binomtest(failures, trials).proportion_ci(0.95, method="exact")
        assert suffices(failures, trials, delta) == (interval.high <= delta)
        assert falls_short(failures, trials, delta) == (interval.low >= delta)


@pytest.mark.parametrize("threshold", [1, 2, 3, 17, 100, 1_000])
@pytest.mark.parametrize("start", [1, 5])
def test_a_sharp_threshold_is_found_to_the_resolution(threshold: int, start: int) -> None:
    found = needed(lambda samples, _: samples >= threshold, start, TINY)
    assert found.low < threshold <= found.samples == found.high
    assert found.samples <= max(threshold + 1, threshold * 2 ** (1 / TINY.resolution) + 1)
    if threshold == 1:
        assert found == Needed(1, 0, 1)


@pytest.mark.parametrize("seed", range(4))
def test_the_interval_contains_the_exact_answer_where_counts_are_binomial(seed: int) -> None:
    """A world of one factor with two values: four coins, each within ε / 2 of its probability, independently."""
    settings = replace(TINY, repetitions=100, resolution=8)
    world = random_mdp(1, seed=seed)

    def probability(samples: int) -> float:
        coins = world.tables[0][:, 0].tolist()
        heads = range(samples + 1)
        chances = (
            sum(scipy.stats.binom.pmf(h, samples, p) for h in heads if 2 * abs(h / samples - p) <= settings.epsilon)
            for p in coins
        )
        return float(math.prod(chances))

    succeeds = trial_at_each(world, seed, settings)
    found = needed(succeeds, 1, settings)
    assert probability(found.high) > 1 - settings.delta - 0.02
    assert found.low == 0 or probability(found.low) < 1 - settings.delta + 0.02
    share = sum(succeeds(found.samples, 1_000 + repetition) for repetition in range(400)) / 400
    assert share == pytest.approx(probability(found.samples), abs=0.05)


# Bounds


def test_the_corollary_is_the_theorem_counted_in_all_where_its_assumptions_hold() -> None:
    world = random_mdp(3, switches=0)  # no overlap, one neighbourhood
    local = world.structure("local")
    each = theorem(world.factors, world.values, world.pairs, 0.5, 0.1)
    assert corollary(world, 0.5, 0.1) == pytest.approx(each * max(local.sizes))


@pytest.mark.parametrize("delta", [0.01, 0.1, 0.3])
@pytest.mark.parametrize(("mechanisms", "pairs"), [(1, 1), (1, 4), (2, 16), (5, 1_024), (9, 4**9)])
def test_the_constant_covers_the_proof(mechanisms: int, pairs: int, delta: float) -> None:
    """Lemma 1 with δ / (k|S||A|) for each mechanism, and Lemma 2: n ≥ k²|c|(1 + √log(k|S||A|/δ))²/ε²."""
    proved = mechanisms**2 * 2 * (1 + math.sqrt(math.log(mechanisms * pairs / delta))) ** 2 / 0.5**2
    assert proved <= theorem(mechanisms, 2, pairs, 0.5, delta) * (1 + 1e-12)


def test_lemma_2_errors_of_mechanisms_add_up_at_most() -> None:
    world = random_mdp(4, overlap=1)
    local = world.structure("local")
    guessed = tuple(shares(Stream(0, "guess", i).uniform(*table.shape)) for i, table in enumerate(world.tables))
    errors = [
        l1_distances(truth, guess)[configuration]
        for truth, guess, configuration in zip(world.tables, guessed, local.configurations, strict=True)
    ]
    joint = l1_distances(world.transitions, local.transitions(guessed))
    assert bool((joint <= torch.stack(errors).sum(0) + 1e-12).all())
    assert bool((joint >= torch.stack(errors).amax(0) - 1e-12).all())


# Measuring


def test_nothing_needs_more_than_the_theorem_asks_for(results: dict[str, Any]) -> None:
    for cell in results["totals"]:
        assert all(high <= bound for (_, high), bound in zip(cell["intervals"], cell["bounds"], strict=True))
    for visit in results["visits"]:
        assert visit["violations"] == 0
        assert all(high <= visit["bound"] for _, high in visit["intervals"])


def test_full_counting_knows_nothing_of_the_unseen_and_local_counting_what_its_parents_tell(
    results: dict[str, Any],
) -> None:
    cells = {(cell["share"], cell["row"]): cell for cell in results["unseen"]}
    assert cells[1 / 64, "local"]["errors"] == [None, None]  # one state-action: nothing else has its parents
    for seed in range(2):
        world = TINY.world(3, seed)
        visited = Stream(seed, "theory-seen").permutation(64)[:32]
        never = [pair for pair in range(64) if pair not in visited.tolist()]
        asked = [pair for pair in never if bool(world.structure("local").supported(visited)[pair])]
        uniform = l1_distances(world.transitions, torch.full((64, 8), 1 / 8, dtype=torch.float64))
        assert cells[1 / 2, "full"]["errors"][seed] == pytest.approx(float(uniform[asked].mean()))
        assert cells[1 / 2, "full"]["supported"][seed] == 0
        assert cells[1 / 2, "local"]["supported"][seed] == pytest.approx(len(asked) / len(never))
        assert cells[1 / 2, "local"]["errors"][seed] < 0.3 < cells[1 / 2, "full"]["errors"][seed]
