"""Statistics over seeds: against scipy, and laws that hold for all values."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from mocoda.engine.randomness import Stream
from mocoda.engine.statistics import (
    bootstrap_interval,
    interquartile_mean,
    probability_of_improvement,
    summarise,
)

LAW = settings(deadline=None, max_examples=60, derandomize=True)
values = st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=12)
# Whole numbers tie often, and stay apart when they are shifted and scaled.
whole = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=12)


def drawn(n: int, label: str = "values") -> list[float]:
    numbers: list[float] = Stream(0, "test-statistics", label, n).normal(n).double().tolist()
    return numbers


# Against scipy


@given(values)
@LAW
def test_the_interquartile_mean_is_scipys_trimmed_mean(some: list[float]) -> None:
    assert interquartile_mean(some) == pytest.approx(scipy.stats.trim_mean(some, 0.25), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("n", [5, 10, 40])
def test_the_interval_is_nearly_scipys(n: int) -> None:
    some = drawn(n)
    low, high = bootstrap_interval(some)
    found = scipy.stats.bootstrap(
        (some,), np.mean, n_resamples=20_000, method="percentile", confidence_level=0.95, rng=np.random.default_rng(0)
    ).confidence_interval
    assert (low, high) == pytest.approx((found.low, found.high), abs=0.05 * float(np.std(some)))


@given(whole, whole)
@LAW
def test_the_probability_of_improvement_is_mann_and_whitneys(ours: list[float], theirs: list[float]) -> None:
    pairs = len(ours) * len(theirs)
    found = probability_of_improvement(ours, theirs, lower_is_better=False)
    assert probability_of_improvement(ours, theirs, lower_is_better=True) == pytest.approx(1 - found)
    assert found == pytest.approx(scipy.stats.mannwhitneyu(ours, theirs, method="exact").statistic / pairs)


# Laws


@given(values)
@LAW
def test_a_summary_lies_between_the_lowest_and_the_highest_value(some: list[float]) -> None:
    summary = summarise(some)
    slack = 1e-9 * (1 + max(map(abs, some)))
    lowest, highest = min(some) - slack, max(some) + slack
    assert lowest <= summary.low <= summary.high <= highest
    assert lowest <= summary.mean <= highest and lowest <= summary.iqm <= highest
    assert 0 <= summary.std <= highest - lowest + slack
