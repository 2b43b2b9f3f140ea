"""Mixtures per neighbourhood against one set of them, at a size that takes no time, and the world of bodies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from experiment_contract import check_experiment, files_in

from experiments.columns import PUBLISHED
from experiments.neighbourhoods import COLUMNS, Judge, MeasuredNeighbourhoods, Neighbourhoods
from experiments.worlds import Bodies
from mocoda.dynamics import DynamicsConfig
from mocoda.parents import Mocoda, fit_parents
from mocoda.tasks.navigation import Navigation, coupled

TINY = Neighbourhoods(
    "tiny",
    seeds=1,
    dynamics=DynamicsConfig(members=2, hidden=(32,), features=16, epochs=4, batch=256, learning_rate=3e-3),
    bodies=(2,),
    rows=4_000,
    test_rows=600,
    judge_rows=8_000,
    components=6,
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> MeasuredNeighbourhoods:
    return TINY.run(device="cpu", folder=tmp_path_factory.mktemp("neighbourhoods"))


def cell(measured: MeasuredNeighbourhoods, world: str, column: str) -> dict[str, Any]:
    (found,) = [c for c in measured.results["cells"] if (c["world"], c["column"]) == (world, column)]
    return dict(found)


# Bodies


@pytest.mark.parametrize("bodies", [1, 2, 4])
def test_a_masked_out_parent_never_moves_its_child(bodies: int) -> None:
    world = Bodies(bodies)
    rows = world.collect(400, seed=0).rows
    mask, truth = world.graph.mask(rows), world.step(rows)
    for p, parent in enumerate(world.graph.parents):
        other = rows.clone()
        other[:, world.graph.columns([parent])] += 0.01
        same = (world.graph.mask(other) == mask).all(2).all(1)
        moved = (world.step(other) - truth).abs().reshape(len(rows), bodies, 2).amax(2) > 1e-6
        assert not (moved & ~mask[:, p])[same].any()
        if bodies > 1:
            assert (moved & mask[:, p])[same].any()


def test_bodies_that_are_near_share_the_push_and_recorded_pushes_are_gentle_then() -> None:
    world = Bodies(2)
    apart = torch.tensor([[0.2, 0.5, 0.8, 0.5, 1.0, 0.0], [0.2, 0.5, 0.8, 0.5, 0.0, 0.0]])
    moved = world.step(apart)
    torch.testing.assert_close(moved[0] - moved[1], torch.tensor([0.05, 0.0, 0.0, 0.0]))
    near = torch.tensor([[0.5, 0.5, 0.575, 0.5, 1.0, 0.0], [0.5, 0.5, 0.575, 0.5, 0.0, 0.0]])
    moved = world.step(near)
    torch.testing.assert_close(moved[0] - moved[1], torch.tensor([0.025, 0.0, 0.025, 0.0]))
    rows = world.collect(5_000, seed=0).rows
    touching = world.graph.mask(rows)[:, 1, 0]
    assert 0.02 < touching.float().mean() < 0.5
    assert rows[touching, -2:].abs().max() <= 0.25 and rows[~touching, -2:].abs().max() > 0.9


# The judge


def test_the_judge_finds_one_recorded_row_in_a_hundred_and_all_that_was_never_seen() -> None:
    task = Navigation()
    judge = Judge.of(task, TINY, 0, "cpu")
    recorded = task.collect(10_000, seed=5).rows
    assert judge.unsupported(recorded).float().mean() < 0.04
    right = recorded[coupled(recorded)].clone()
    right[:, 2] = 0.6
    assert judge.unsupported(right).all()
    drawn = fit_parents(task.collect(4_000, seed=0), task.graph, Mocoda(components=6, **PUBLISHED)).sample(
        2_000, seed=0
    )
    moving = coupled(drawn) & (drawn[:, 2] > 0.2)
    assert moving.any() and judge.unsupported(drawn)[moving].all()


# The comparison


def test_mixtures_per_neighbourhood_draw_less_that_is_unsupported(measured: MeasuredNeighbourhoods) -> None:
    for world in ("navigation", "2 bodies"):
        share = {name: cell(measured, world, name)["unsupported_mean"] for name in ("recorded", *COLUMNS)}
        assert share["recorded"] < share["mocoda, stratified"] < share["mocoda"]
    assert cell(measured, "navigation", "mocoda, stratified")["mean"] < cell(measured, "navigation", "mocoda")["mean"]


def test_the_results_keep_the_contract_and_have_every_cell(measured: MeasuredNeighbourhoods, tmp_path: Path) -> None:
    printed = check_experiment(TINY, measured, tmp_path)
    assert files_in(tmp_path) == sorted(TINY.outputs)
    cells = measured.results["cells"]
    assert [(c["world"], c["column"]) for c in cells] == [
        (world, column) for world in ("navigation", "2 bodies") for column in ("recorded", *COLUMNS)
    ]
    for one in cells:
        assert len(one["values"]) == len(one["unsupported"]) == TINY.seeds
        assert f"{one['mean']:.3f}" in printed
        assert (one["fitted"] is not None) == ("stratified" in one["column"])
        if one["fitted"] is not None:
            assert sum(one["fitted"]) + sum(one["skipped"]) == TINY.rows
