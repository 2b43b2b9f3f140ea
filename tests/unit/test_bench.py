from __future__ import annotations

import io
import json
import sys
from functools import cache
from itertools import pairwise
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import rich.console

import mocoda.bench
from mocoda import (
    Dynamics,
    DynamicsConfig,
    InputError,
    Parents,
    Task,
    Transitions,
    fit_dynamics,
    fit_parents,
    make_task,
)
from mocoda.agents import AGENTS, make_agent
from mocoda.augmentation import augment
from mocoda.bench import MEANING, TARGETS, as_table, measure
from mocoda.files import versions
from mocoda.statistics import mean_and_std

ROWS = ("em", "kde", "generate", "growth", "memory", "d3rlpy")


@cache
def small_generator(device: str) -> tuple[Task, Transitions, Parents, Dynamics]:
    task = make_task("navigation")
    data = task.collect(300, seed=0)
    tiny = DynamicsConfig(members=2, hidden=(8,), features=8, epochs=1, window=1, batch=64)
    model = fit_dynamics(data, task.graph, config=tiny)
    return task, data, fit_parents(data, task.graph, components=2), model


def fewer_rows(*given: Any, rows: int, **options: Any) -> Transitions:
    return augment(*given, rows=max(1, rows // 1_000), **options)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks that take no time; what they measure is not the point here."""
    for name, value in {
        "EM_POINTS": 400,
        "EM_COLUMNS": 3,
        "EM_COMPONENTS": 2,
        "EM_ITERATIONS": 3,
        "KDE_POINTS": 100,
        "KDE_PROPOSALS": 200,
        "_generator": small_generator,
        "augment": fewer_rows,
        "_streaming_memory": lambda rows, device: {4_000_000: 20.0}[rows],
        "_td3_bc": lambda repeats: ([0.5] * repeats, [2.0] * repeats),
    }.items():
        monkeypatch.setattr(mocoda.bench, name, value)
    monkeypatch.setitem(sys.modules, "d3rlpy", ModuleType("d3rlpy"))


def by_place(results: dict[str, Any]) -> dict[tuple[str, str], list[float]]:
    return {(cell["row"], cell["column"]): cell["values"] for cell in results["cells"]}


@pytest.mark.usefixtures("small")
def test_results_have_the_schema_of_a_results_file() -> None:
    announced: list[str] = []
    results = measure("cpu", announced.append, repeats=1)
    assert results == json.loads(json.dumps(results))
    assert set(results) == {"table", "preset", "metric", "device", "seconds", "versions", "config", "cells"}
    assert results["table"] == results["preset"] == "bench"
    assert results["device"].startswith("CPU, ") and results["versions"] == versions()
    assert 0 <= results["seconds"] < 60 and results["config"]["repeats"] == 1
    assert announced == [MEANING[row] for row in ROWS] and set(MEANING) == set(TARGETS["cpu"]) == set(ROWS)
    assert set(TARGETS["cuda"]) == set(ROWS) - {"d3rlpy"}  # which is timed on a CPU alone
    for cell in results["cells"]:
        assert set(cell) == {"row", "column", "values", "mean", "std", "paper_mean", "paper_std"}
        assert (cell["mean"], cell["std"]) == mean_and_std(cell["values"])
        assert cell["paper_mean"] is None and cell["paper_std"] is None
        assert all(value > 0 for value in cell["values"])
    columns = {row: [cell["column"] for cell in results["cells"] if cell["row"] == row] for row in ROWS}
    timed, counted = ["ratio", "mocoda", "reference", "target"], ["ratio", "mocoda", "target"]
    assert columns == {row: timed if row in ("em", "kde", "d3rlpy") else counted for row in ROWS}
    assert [cell["mean"] for cell in results["cells"] if cell["column"] == "target"] == list(TARGETS["cpu"].values())


@pytest.mark.usefixtures("small")
def test_ratios_are_those_of_the_measured_seconds() -> None:
    values = by_place(measure("cpu", repeats=2))
    for row in ("em", "kde"):
        (reference,) = values[row, "reference"]
        assert len(values[row, "mocoda"]) == 2
        assert values[row, "ratio"] == [reference / mine for mine in values[row, "mocoda"]]
    assert len(values["generate", "ratio"]) == 2
    assert values["memory", "ratio"] == [4_000_000 * 29 / 2**20 / 20.0] and values["memory", "mocoda"] == [20.0]
    assert values["d3rlpy", "mocoda"] == [0.5] * 2 and values["d3rlpy", "reference"] == [2.0] * 2
    assert values["d3rlpy", "ratio"] == [4.0] * 2


@pytest.mark.usefixtures("small")
def test_rates_and_growth_are_rows_over_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mocoda.bench, "_seconds", lambda work, device: 2.0)
    values = by_place(measure("cpu", repeats=1))
    assert values["em", "ratio"] == values["kde", "ratio"] == [1.0]
    assert values["generate", "ratio"] == [500_000 / 2.0]
    assert values["growth", "mocoda"] == [2.0 / 1_000_000]
    assert values["growth", "ratio"] == pytest.approx([100.0])


def test_work_is_timed_once() -> None:
    calls: list[int] = []
    assert 0 <= mocoda.bench._seconds(lambda: calls.append(1), "cpu") < 1
    assert calls == [1]


@pytest.mark.usefixtures("small")
def test_both_sides_do_the_same_work() -> None:
    ours, theirs = mocoda.bench._kde("cpu")
    assert np.allclose(np.log(np.asarray(ours())), np.asarray(theirs()), atol=1e-3)
    ours, theirs = mocoda.bench._em("cpu")
    fitted, fitted_reference = ours(), theirs()
    means = np.asarray(getattr(fitted, "means"))  # noqa: B009  (`ours` promises no type)
    assert means.shape == np.asarray(getattr(fitted_reference, "means_")).shape == (2, 3)  # noqa: B009


def test_the_table_says_meaning_ratio_and_target() -> None:
    ratios = {"em": 1.25, "kde": 12.5, "generate": 123_456.789, "growth": 0.98, "memory": 2.01, "d3rlpy": 1.5}
    cells = [
        {"row": row, "column": column, "mean": mean}
        for row, ratio in ratios.items()
        for column, mean in (("ratio", ratio), ("mocoda", 77.7), ("target", TARGETS["cpu"][row]))
    ]
    console = rich.console.Console(file=io.StringIO(), width=200)
    console.print(as_table({"device": "CPU, 3 threads", "cells": cells}))
    file = console.file
    assert isinstance(file, io.StringIO)
    lines = file.getvalue().splitlines()
    assert "CPU, 3 threads" in lines[0]
    for row, ratio in ratios.items():
        (line,) = (line for line in lines if MEANING[row] in line)
        assert [text.strip() for text in line.strip("│ ").split("│")][1:] == [
            f"{ratio:,.2f}",
            f"{TARGETS['cpu'][row]:,.0f}",
            "met",
        ]


def test_the_table_tells_agents_by_their_number_beside_the_least_they_could_take() -> None:
    cells = [
        {"row": row, "column": column, "mean": mean}
        for row, column, mean in (
            ("sac × 5", "agent", 0.12345),
            ("sac × 5", "roofline", 0.0125),
            ("sac in bfloat16 × 5", "agent", 0.1),
        )
    ]
    console = rich.console.Console(width=200)
    with console.capture() as said:
        console.print(as_table({"device": "NVIDIA H200", "cells": cells}))
    lines = [[text.strip() for text in line.strip("│ ").split("│")] for line in said.get().splitlines() if "×" in line]
    assert lines == [
        ["sac × 5 at once: ms per agent and update (at least 0.0125)", "0.1235"],
        ["sac in bfloat16 × 5 at once: ms per agent and update", "0.1000"],
    ]


def test_an_update_is_timed_chunk_by_chunk_after_as_many_to_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 50.0, 51.0, 53.0, 57.0])
    monkeypatch.setattr("mocoda.bench.time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    agent, data = make_agent("td3-bc", hidden=(4,), batch=2), make_task("navigation").collect(50, seed=0)
    assert mocoda.bench._update_seconds(agent, data, 2, 400) == [2.0 / 100, 4.0 / 100]


def test_every_agent_is_timed_at_every_number_of_runs_and_the_most_in_half_precision_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, int, bool]] = []

    def seconds(agent: mocoda.Agent, data: Transitions, runs: int, updates: int, half: bool) -> list[float]:
        asked.append((agent.name, runs, half))
        return [0.004, 0.008]

    monkeypatch.setattr(mocoda.bench, "_update_seconds", seconds)
    monkeypatch.setattr(mocoda.bench, "work", lambda agent, state, action: mocoda.roofline.Work(1e9, 1e6))
    monkeypatch.setattr(mocoda.bench, "device_name", lambda device: "NVIDIA H200")
    announced: list[str] = []
    cells = mocoda.bench._agents("cpu", announced.append)
    kinds = [*((runs, False) for runs in mocoda.bench.RUNS), (mocoda.bench.RUNS[-1], True)]
    assert asked == [(name, runs, half) for name in AGENTS for runs, half in kinds]
    assert announced == [f"{name}{' in bfloat16' * half} × {runs}" for name, runs, half in asked]
    found = by_place({"cells": cells})
    assert set(found) == {
        (row, column) for row in announced for column in ("agent", "roofline") if column == "agent" or "16 ×" not in row
    }
    assert found["sac × 5", "agent"] == pytest.approx([0.8, 1.6])
    assert found["sac × 5", "roofline"] == pytest.approx([1e3 * 1e9 / 494e12])  # an agent's share


@pytest.mark.parametrize("missing", ["sklearn", "d3rlpy"])
def test_without_what_is_compared_with_the_way_out_is_told_before_anything_runs(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setattr(mocoda.bench, "_em", lambda device: pytest.fail("measured"))
    with pytest.raises(InputError) as caught:
        measure("cpu")
    assert str(caught.value) == "mocoda bench compares with scikit-learn and d3rlpy; pip install 'mocoda[bench]'."


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_both_td3_bcs_are_timed_as_often() -> None:
    ours, theirs = mocoda.bench._td3_bc(2)
    assert len(ours) == len(theirs) == 2 and min(*ours, *theirs) > 0


def test_streaming_needs_no_more_memory_for_more_rows_and_holding_the_rows_would_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mocoda.bench, "_generator", small_generator)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # of the child: quicker on a busy machine
    few, many = (mocoda.bench._streaming_memory(rows, "cpu") for rows in (200_000, 800_000))
    table = 4 * 7 * 800_000 / 2**20  # what the rows themselves weigh
    assert few > 1 and many < few + table / 2


@pytest.mark.timeout(60)
def test_a_streaming_child_that_dies_is_an_error_and_no_endless_wait(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mocoda.bench, "_generator", small_generator)
    monkeypatch.setattr(mocoda.bench, "_stream_to_disk", divmod)  # which fails on what it is given
    with pytest.raises((EOFError, OSError, RuntimeError)):
        mocoda.bench._streaming_memory(1_000, "cpu")


def test_targets_are_positive_and_the_gpu_s_are_no_lower() -> None:
    for row, target in TARGETS["cuda"].items():
        assert 0 < TARGETS["cpu"][row] <= target
    assert all(first != second for first, second in pairwise(MEANING.values()))
