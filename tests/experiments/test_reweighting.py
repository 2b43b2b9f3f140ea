"""MoCoDA-U by reweighting: the weights it gives, what that does to samples, and the comparison with rejection."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from experiment_contract import results_of
from tiny_experiments import TINY as ALL

from experiments.columns import PUBLISHED
from experiments.reweighting import ReweightedMocoda, Reweighting, by_volume, graph_of, imbalanced
from mocoda.parents import GaussianMixture, fit_parents

TINY: Reweighting = ALL["reweighting"]


# The weights


def test_components_weigh_their_volume() -> None:
    covariances = torch.stack(
        [torch.diag(torch.tensor([1.0, 4.0])), torch.eye(2), torch.tensor([[2.0, 1.0], [1.0, 5.0]])]
    )
    mixture = GaussianMixture(
        torch.tensor([0.01, 0.98, 0.01]).double(), torch.zeros(3, 2).double(), covariances.double()
    )
    flat = by_volume(mixture)
    torch.testing.assert_close(flat.weights, torch.tensor([2.0, 1.0, 3.0]).double() / 6)
    assert flat.means is mixture.means and flat.covariances is mixture.covariances
    # Then every component's peak is as high.
    peaks = flat.weights / (2 * math.pi * flat.covariances.det().sqrt())
    torch.testing.assert_close(peaks, peaks[:1].expand(3))


# The recipe


def test_two_intervals_of_one_length_are_drawn_alike() -> None:
    data = imbalanced(3, 0.05, 20_000, seed=0)
    flat = fit_parents(data, graph_of(3), ReweightedMocoda(components=8, **PUBLISHED)).sample(20_000, seed=0)
    recorded, drawn = ((rows[:, :3] > 0.5).float().mean(0) for rows in (data.rows, flat))
    assert recorded == pytest.approx([0.05] * 3, abs=0.01)
    assert drawn == pytest.approx([0.5] * 3, abs=0.06)


# The comparison


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return results_of(TINY, tmp_path_factory.mktemp("reweighting"))


def point(results: dict[str, Any], factors: int, column: str) -> dict[str, Any]:
    (found,) = [p for p in results["points"] if (p["factors"], p["column"]) == (factors, column)]
    return dict(found)


def test_exact_rejection_pays_tenfold_for_every_factor(results: dict[str, Any]) -> None:
    # Uniform is half in the rare interval, which holds 5%: at best one of 10 proposals is kept for every factor.
    assert 8 < point(results, 1, "exact rejection")["proposals"] < 20
    assert 500 < point(results, 3, "exact rejection")["proposals"] < 8_000


def test_the_acceptance_that_is_computed_is_the_one_that_is_counted(tmp_path: Path) -> None:
    settings = replace(TINY, factors=(2,), seeds=1, test_rows=5_000, budget=60_000)
    found = point(results_of(settings, tmp_path), 2, "exact rejection")
    proposed = 65_536  # all of the budget, in whole batches
    assert found["rows"] < 5_000
    assert proposed / found["rows"] == pytest.approx(found["proposals"], rel=0.15)
