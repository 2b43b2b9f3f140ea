"""What a perfect critic does with so many proposals, at a size that takes no time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from experiment_contract import by_place, check_experiment

from experiments import proposals
from experiments.proposals import HIGH, LOW, TICKS, Proposals, interpolated, lattice, true_values
from mocoda.tasks.navigation import Navigation

TINY = Proposals("tiny", seeds=1, numbers=(2, 20), rows=2_000, episodes=20, components=4)


def test_more_proposals_are_walked_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposals, "DRAWN", 64)
    measured = TINY.run(device="cpu", folder=tmp_path)
    check_experiment(TINY, measured, tmp_path / "written")
    found = by_place(measured.results)
    assert list(found) == [(draws, number) for draws in ("mixture", "published") for number in ("2", "20")]
    for draws in ("mixture", "published"):
        assert 18 < found[draws, "20"]["mean"] < found[draws, "2"]["mean"] <= 70


def test_with_one_and_the_same_action_everywhere_the_values_are_its_steps() -> None:
    task = Navigation()
    diagonal = torch.full((TICKS**2, 4, 2), 1.0)  # all proposals are alike, so their number is all the same
    values = true_values(task, diagonal, number=20)
    torch.testing.assert_close(values, true_values(task, diagonal, number=1))
    start = torch.tensor([[0.7, 0.7], [0.62, 0.62], [0.86, 0.7]])
    steps = interpolated(values, start)
    assert float(steps[0]) == pytest.approx(4, abs=0.6)  # 0.03 a step in the quadrant, to beyond 0.8
    assert float(steps[1]) == pytest.approx(7, abs=1.5)  # interpolation near the goal costs about a step
    assert float(steps[2]) == pytest.approx(70, abs=1)  # it passes the goal by


def test_values_between_the_lattice_s_states_are_interpolated() -> None:
    values = (lattice() @ torch.tensor([2.0, -3.0])) + 1
    state = torch.tensor([[0.0, 0.0], [0.123, 0.777], [LOW, HIGH]])
    torch.testing.assert_close(
        interpolated(values, state), state @ torch.tensor([2.0, -3.0]) + 1, rtol=0, atol=1e-3 * (HIGH - LOW)
    )
