"""The benchmarks run in earnest at a size that takes no time, and their table."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import rich.console

from experiments import bench
from experiments.columns import PUBLISHED
from experiments.speed import MEANING, TARGETS, as_table, measure
from experiments.table3 import Table3
from mocoda import (
    DynamicsConfig,
    InputError,
    Transitions,
    fit_dynamics,
    fit_parents,
    make_agent,
    make_recipe,
    make_task,
)
from mocoda.augmentation.generation import augment
from mocoda.engine.files import versions
from mocoda.engine.statistics import mean_and_std
from mocoda.tasks.hooksweep import HookSweep2

ROWS = ("em", "kde", "generate", "growth", "matched-4", "matched-5", "matched-6", "memory", "d3rlpy", "record")
SHOWN = {"matched-4", "matched-6"}  # without a target on a CPU
SWEEPS = ("sweep-dynamics", "sweep-rows", "sweep-agents")
SMALL = {
    "EM_POINTS": 400,
    "EM_COLUMNS": 3,
    "EM_COMPONENTS": 2,
    "EM_ITERATIONS": 3,
    "KDE_POINTS": 100,
    "KDE_PROPOSALS": 200,
    "MATCHED": {"matched-4": 100, "matched-5": 200, "matched-6": 300},
}


@cache
def small_generator(device: str) -> tuple[Any, ...]:
    task = make_task("navigation")
    data = task.collect(300, seed=0)
    tiny = DynamicsConfig(members=2, hidden=(8,), features=8, epochs=1, window=1, batch=64)
    model = fit_dynamics(data, task.graph, config=tiny)
    return task, data, fit_parents(data, task.graph, make_recipe("mocoda", components=2, **PUBLISHED)), model


def fewer_rows(*given: Any, rows: int, **options: Any) -> Transitions:
    return augment(*given, rows=max(1, rows // 1_000), **options)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that take no time. What stays as it is: the work, and how it is timed."""
    for name, value in SMALL.items():
        monkeypatch.setattr(bench, name, value)
    monkeypatch.setattr(bench, "_generator", small_generator)
    monkeypatch.setattr(bench, "augment", fewer_rows)


@pytest.mark.usefixtures("small")
def test_results_have_the_schema_of_a_results_file_and_ratios_are_those_of_the_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # These three take long, and are run below.
    monkeypatch.setattr(bench, "_streaming_memory", lambda rows, device: {4_000_000: 20.0}[rows])
    monkeypatch.setattr(bench, "_td3_bc", lambda repeats: ([0.5] * repeats, [2.0] * repeats))
    monkeypatch.setattr(bench, "_recorded_rows", lambda: 1_300.0)
    announced: list[str] = []
    results = measure("cpu", announced.append, repeats=2)
    assert results == json.loads(json.dumps(results))
    assert set(results) == {"table", "preset", "metric", "device", "seconds", "versions", "config", "cells"}
    assert results["device"].startswith("CPU, ") and results["versions"] == versions()
    assert announced == [MEANING[row] for row in ROWS] and set(TARGETS["cpu"]) == set(ROWS) - SHOWN
    assert set(TARGETS["cuda"]) == set(ROWS) - {"d3rlpy", "record", "matched-4", "matched-5"} | set(SWEEPS)
    values = {(cell["row"], cell["column"]): cell["values"] for cell in results["cells"]}
    for cell in results["cells"]:
        assert (cell["mean"], cell["std"]) == mean_and_std(cell["values"]) and min(cell["values"]) > 0
    for row in ROWS:
        assert values.get((row, "target")) == (None if row in SHOWN else [TARGETS["cpu"][row]])
        assert ((row, "reference") in values) == (row in ("em", "kde", "d3rlpy"))
    for row in ("em", "kde"):
        (reference,) = values[row, "reference"]
        assert values[row, "ratio"] == [reference / mine for mine in values[row, "mocoda"]]
    assert values["memory", "ratio"] == [4_000_000 * 29 / 2**20 / 20.0]
    assert values["d3rlpy", "ratio"] == [4.0] * 2 and values["record", "ratio"] == [1_300.0]


@pytest.mark.usefixtures("small")
def test_both_sides_do_the_same_work() -> None:
    ours, theirs = bench._kde("cpu")
    assert np.allclose(np.log(np.asarray(ours())), np.asarray(theirs()), atol=1e-3)
    ours, theirs = bench._em("cpu")
    fitted, fitted_reference = ours(), theirs()
    means = np.asarray(getattr(fitted, "means"))  # noqa: B009  (`ours` promises no type)
    assert means.shape == np.asarray(getattr(fitted_reference, "means_")).shape == (2, 3)  # noqa: B009


def printed(cells: list[dict[str, Any]]) -> list[list[str]]:
    console = rich.console.Console(width=200)
    with console.capture() as said:
        console.print(as_table({"device": "CPU, 3 threads", "cells": cells}))
    lines = said.get().splitlines()
    assert "CPU, 3 threads" in lines[0]
    return [[text.strip() for text in line.strip("│ ").split("│")] for line in lines if "│" in line]


def test_the_table_has_meaning_ratio_and_target_and_agents_beside_the_least_they_could_take() -> None:
    cells = [
        {"row": row, "column": column, "mean": mean}
        for row, column, mean in (
            ("em", "ratio", 1.25),
            ("em", "target", 1.0),
            ("growth", "ratio", 0.98),
            ("growth", "target", 1.0),
            ("generate", "ratio", 99_999.0),
            ("generate", "target", 100_000.0),
            ("matched-4", "ratio", 250_000.0),
            ("sac × 5", "agent", 0.12345),
            ("sac × 5", "roofline", 0.0125),
            ("sac in bfloat16 × 5", "agent", 0.1),
        )
    ]
    assert printed(cells) == [
        [MEANING["em"], "1.25", "1", "met"],
        [MEANING["generate"], "99,999.00", "100,000", "missed"],
        [MEANING["growth"], "0.98", "1", "met"],
        [MEANING["matched-4"], "250,000.00"],
        ["sac × 5 at once: ms per agent and update (at least 0.0125)", "0.1235"],
        ["sac in bfloat16 × 5 at once: ms per agent and update", "0.1000"],
    ]


# HookSweep2


def test_a_few_rows_are_recorded_in_earnest() -> None:
    assert 0 < bench._recorded_rows(10) < 10 / 0.01


def test_made_up_sweeps_look_like_recorded_ones() -> None:
    task, data = HookSweep2(), bench._made_up_sweeps(400, "cpu")
    low, high = task.box
    assert len(data) == 400 and bool(((data.rows >= low) & (data.rows <= high)).all())
    assert data.goal is not None and data.reward is not None
    assert data.reward.equal(task.label(data.state, data.action, data.next_state, data.goal)[0])
    assert float((data.next_state - data.state).std()) == pytest.approx(0.01, rel=0.1)
    assert len(data.state[:, 6:8].unique(dim=0)) == 400


@pytest.mark.long
def test_the_stages_of_hooksweep2_are_timed_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = DynamicsConfig(members=2, hidden=(8,), features=8, epochs=9, epoch_rows=64, batch=64, validation=50)
    agents = (make_agent("td3-bc", hidden=(4,), batch=2),)
    settings = replace(Table3.presets["quick"], preset="paper", dynamics=tiny, agents=agents, components=2)
    monkeypatch.setitem(Table3.presets, "paper", settings)
    made_up = bench._made_up_sweeps
    monkeypatch.setattr(bench, "_made_up_sweeps", lambda rows, device: made_up(rows // 1_000, device))
    monkeypatch.setattr(bench, "augment", fewer_rows)
    announced: list[str] = []
    stages = list(bench.sweeping("cpu", announced.append))
    assert tuple(row for row, _, _ in stages) == SWEEPS and announced == [MEANING[row] for row in SWEEPS]
    assert [limit for _, limit, _ in stages] == [480.0, 20.0, 1e-3]
    assert all(took > 0 for *_, took in stages)


@pytest.mark.parametrize("missing", ["sklearn", "d3rlpy"])
def test_without_what_is_compared_with_the_way_out_is_given(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(InputError) as caught:
        measure("cpu")
    assert str(caught.value) == "mocoda bench compares with scikit-learn and d3rlpy; pip install 'mocoda[bench]'."


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_both_td3_bcs_are_timed_as_often() -> None:
    ours, theirs = bench._td3_bc(2)
    assert len(ours) == len(theirs) == 2 and min(*ours, *theirs) > 0


def test_streaming_needs_no_more_memory_for_more_rows_and_holding_the_rows_would_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench, "_generator", small_generator)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # of the child: quicker on a busy machine
    few, many = (bench._streaming_memory(rows, "cpu") for rows in (100_000, 1_500_000))
    table = 4 * 7 * 1_500_000 / 2**20  # what the rows themselves weigh: 40, where the measure varies by 10
    assert max(few, many) > 1 and many < few + table / 2


@pytest.mark.timeout(60)
def test_a_streaming_child_that_dies_is_an_error_and_no_endless_wait(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "_generator", small_generator)
    monkeypatch.setattr(bench, "_stream_to_disk", divmod)  # which fails on what it is given
    with pytest.raises((EOFError, OSError, RuntimeError)):
        bench._streaming_memory(1_000, "cpu")


def test_targets_are_positive_and_the_gpu_s_are_no_lower() -> None:
    for row, target in TARGETS["cuda"].items():
        assert 0 < TARGETS["cpu"].get(row, target) <= target
    assert all(target > 0 for target in TARGETS["cpu"].values())
    assert all(first != second for first, second in pairwise(MEANING.values()))
