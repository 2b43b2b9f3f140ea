"""Rewards of other signs and sizes: the forms are what they say, and those that are one problem are learned as one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from experiment_contract import by_place, check_experiment

from experiments.rewards import FORMS, Rewards, _rewarded
from mocoda import InputError, make_task

QUICK = Rewards.presets["quick"]
SMALL = replace(
    QUICK,
    rows=400,
    total=600,
    updates=30,
    evaluate_every=10,
    episodes=3,
    last=2,
    agents=tuple(replace(agent, hidden=(8,), batch=16) for agent in QUICK.agents),
)


def test_the_results_keep_the_contract_and_equivalent_rewards_give_equal_cells(tmp_path: Path) -> None:
    measured = SMALL.run(device="cpu", folder=tmp_path)
    printed = check_experiment(SMALL, measured, tmp_path / "out")
    assert all(form.split(",")[0] in printed for form in FORMS)
    cells = by_place(measured.results)
    assert set(cells) == {(row, form) for row in ("td3-bc", "td3-bc, as they are") for form in FORMS}
    for form in ("0/1", "-10/0"):
        assert cells["td3-bc", form]["steps"] == pytest.approx(cells["td3-bc", "-1/0"]["steps"])


@pytest.mark.parametrize(
    ("form", "rewards", "ends"),
    [
        ("-1/0", {-1.0, 0.0}, True),
        ("0/1", {0.0, 1.0}, True),
        ("-10/0", {-10.0, 0.0}, True),
        ("-1/0, nothing ends", {-1.0, 0.0}, False),
        ("+1/+2, nothing ends", {1.0, 2.0}, False),
    ],
)
def test_a_form_has_the_rewards_that_it_is_called_by(form: str, rewards: set[float], ends: bool) -> None:
    data = _rewarded(make_task("navigation").collect(2_000, seed=0), form)
    assert data.reward is not None
    assert set(torch.unique(data.reward).tolist()) == rewards
    assert bool(data.terminal.any()) == ends


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(InputError, match="there is no column '1/2'"):
        replace(QUICK, forms=("1/2",))
