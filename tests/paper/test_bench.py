from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from functools import cache
from itertools import pairwise
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import rich.console

import mocoda.paper.bench
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
from mocoda.agents.agent import AGENTS, make_agent
from mocoda.augmentation.generation import augment
from mocoda.engine.files import versions
from mocoda.engine.statistics import mean_and_std
from mocoda.paper import table3
from mocoda.paper.bench import MEANING, TARGETS, as_table, measure
from mocoda.tasks.hooksweep import HookSweep2

ROWS = ("em", "kde", "generate", "growth", "memory", "d3rlpy", "record")
CPU_ONLY, SWEEPS = {"d3rlpy", "record"}, ("sweep-dynamics", "sweep-rows", "sweep-agents")


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
        "_recorded_rows": lambda: 1_300.0,
    }.items():
        monkeypatch.setattr(mocoda.paper.bench, name, value)
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
    assert announced == [MEANING[row] for row in ROWS] and tuple(TARGETS["cpu"]) == ROWS
    assert set(TARGETS["cuda"]) == set(ROWS) - CPU_ONLY | set(SWEEPS) == set(MEANING) - CPU_ONLY
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
    assert values["record", "ratio"] == values["record", "mocoda"] == [1_300.0]


@pytest.mark.usefixtures("small")
def test_rates_and_growth_are_rows_over_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mocoda.paper.bench, "_seconds", lambda work, device: 2.0)
    values = by_place(measure("cpu", repeats=1))
    assert values["em", "ratio"] == values["kde", "ratio"] == [1.0]
    assert values["generate", "ratio"] == [500_000 / 2.0]
    assert values["growth", "mocoda"] == [2.0 / 1_000_000]
    assert values["growth", "ratio"] == pytest.approx([100.0])


def test_work_is_timed_once() -> None:
    calls: list[int] = []
    assert 0 <= mocoda.paper.bench._seconds(lambda: calls.append(1), "cpu") < 1
    assert calls == [1]


@pytest.mark.usefixtures("small")
def test_both_sides_do_the_same_work() -> None:
    ours, theirs = mocoda.paper.bench._kde("cpu")
    assert np.allclose(np.log(np.asarray(ours())), np.asarray(theirs()), atol=1e-3)
    ours, theirs = mocoda.paper.bench._em("cpu")
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
    monkeypatch.setattr("mocoda.paper.bench.time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    agent, data = make_agent("td3-bc", hidden=(4,), batch=2), make_task("navigation").collect(50, seed=0)
    assert mocoda.paper.bench._update_seconds(agent, data, 2, 400) == [2.0 / 100, 4.0 / 100]


def test_every_agent_is_timed_at_every_number_of_runs_and_the_most_in_half_precision_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, int, bool]] = []

    def seconds(agent: mocoda.Agent, data: Transitions, runs: int, updates: int, half: bool) -> list[float]:
        asked.append((agent.name, runs, half))
        return [0.004, 0.008]

    monkeypatch.setattr(mocoda.paper.bench, "_update_seconds", seconds)
    monkeypatch.setattr(mocoda.paper.bench, "work", lambda agent, state, action: mocoda.paper.roofline.Work(1e9, 1e6))
    monkeypatch.setattr(mocoda.paper.bench, "device_name", lambda device: "NVIDIA H200")
    announced: list[str] = []
    cells = mocoda.paper.bench._agents("cpu", announced.append)
    kinds = [*((runs, False) for runs in mocoda.paper.bench.RUNS), (mocoda.paper.bench.RUNS[-1], True)]
    assert asked == [(name, runs, half) for name in AGENTS for runs, half in kinds]
    assert announced == [f"{name}{' in bfloat16' * half} × {runs}" for name, runs, half in asked]
    found = by_place({"cells": cells})
    assert set(found) == {
        (row, column) for row in announced for column in ("agent", "roofline") if column == "agent" or "16 ×" not in row
    }
    assert found["sac × 5", "agent"] == pytest.approx([0.8, 1.6])
    assert found["sac × 5", "roofline"] == pytest.approx([1e3 * 1e9 / 494e12])  # an agent's share


# HookSweep2


def test_rows_are_recorded_by_two_processes_and_timed_with_their_start(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, dict[str, int]]] = []
    ticks = iter([3.0, 13.0])
    monkeypatch.setattr(HookSweep2, "collect", lambda self, rows, **options: asked.append((rows, options)))
    monkeypatch.setattr("mocoda.paper.bench.time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    assert mocoda.paper.bench._recorded_rows() == 1_500.0
    assert asked == [(15_000, {"seed": 0, "workers": 2})]


def test_a_few_rows_are_recorded_in_earnest() -> None:
    assert 0 < mocoda.paper.bench._recorded_rows(10) < 10 / 0.01


def test_made_up_sweeps_look_like_recorded_ones() -> None:
    task, data = HookSweep2(), mocoda.paper.bench._made_up_sweeps(400, "cpu")
    low, high = task.box
    assert len(data) == 400 and bool(((data.rows >= low) & (data.rows <= high)).all())
    assert data.goal is not None and data.reward is not None
    assert data.reward.equal(task.label(data.state, data.action, data.next_state, data.goal)[0])
    assert float((data.next_state - data.state).std()) == pytest.approx(0.01, rel=0.1)
    assert len(data.state[:, 6:8].unique(dim=0)) == 400


SWEEPER = make_agent("td3-bc", hidden=(4,), batch=2)


@pytest.fixture
def small_sweeps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The paper's Table 3 in small; what updates are timed is noted, and every one takes a fifth of its limit."""
    tiny = DynamicsConfig(members=2, hidden=(8,), features=8, epochs=9, epoch_rows=64, batch=64, validation=50)
    settings = replace(table3.PRESETS["quick"], preset="paper", dynamics=tiny, agents=(SWEEPER,), components=2)
    monkeypatch.setitem(table3.PRESETS, "paper", settings)
    made_up, timed = mocoda.paper.bench._made_up_sweeps, list[tuple[Any, ...]]()
    monkeypatch.setattr(mocoda.paper.bench, "_made_up_sweeps", lambda rows, device: made_up(rows // 1_000, device))
    monkeypatch.setattr(mocoda.paper.bench, "augment", fewer_rows)

    def seconds(*given: Any) -> list[float]:
        timed.append(given)
        return [1e-4, 3e-4]

    monkeypatch.setattr(mocoda.paper.bench, "_update_seconds", seconds)
    return timed


def test_the_stages_of_hooksweep2_are_timed_one_after_the_other(small_sweeps: list[tuple[Any, ...]]) -> None:
    announced: list[str] = []
    stages = list(mocoda.paper.bench.sweeping("cpu", announced.append))
    assert tuple(row for row, _, _ in stages) == SWEEPS and announced == [MEANING[row] for row in SWEEPS]
    assert [limit for _, limit, _ in stages] == [480.0, 20.0, 1e-3]
    assert all(took > 0 for *_, took in stages) and stages[2][2] == pytest.approx(2e-4)
    ((agent, data, runs, updates),) = small_sweeps
    assert (agent, len(data), runs, updates) == (SWEEPER, 1_000, 15, 1_000)


def test_dynamics_of_both_architectures_and_three_seeds_are_timed_by_the_epoch_and_rows_when_warm(
    small_sweeps: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted: list[tuple[int, str, list[int], int]] = []

    def spans(work: Any) -> list[float]:
        datasets, _, architecture = work.args
        options = work.keywords
        fitted.append((len(datasets), architecture, list(options["seeds"]), options["config"].epochs))
        return [9.0] * 10 + [0.01 if architecture == "local" else 0.02] * 29 + [9.0]

    made = iter([7.0, 4.0])  # the first is not warm
    monkeypatch.setattr(mocoda.paper.bench, "_spans", spans)
    monkeypatch.setattr(mocoda.paper.bench, "_seconds", lambda work, device: next(made))
    stages = {row: took for row, _, took in mocoda.paper.bench.sweeping("cpu", lambda name: None)}
    assert fitted == [(3, "local", [0, 1, 2], 40), (3, "full", [0, 1, 2], 40)]
    assert stages["sweep-dynamics"] == pytest.approx(4_000 * 0.03)
    assert stages["sweep-rows"] == 4.0


@pytest.mark.usefixtures("small")
def test_on_a_gpu_the_agents_and_the_sweeps_are_measured_beside_their_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = [("sweep-dynamics", 480.0, 240.0), ("sweep-rows", 20.0, 4.0), ("sweep-agents", 1e-3, 2e-3)]
    quick = (lambda: None, lambda: None)
    for name, value in {
        "_em": lambda device: quick,
        "_kde": lambda device: quick,
        "_seconds": lambda work, device: 2.0,
        "_agents": lambda device, announce: [{"row": "sac × 5", "column": "agent", "values": [1.0]}],
        "sweeping": lambda device, announce: iter(stages),
        "device_name": lambda device: "NVIDIA H200",
        "_recorded_rows": lambda: pytest.fail("recorded on a GPU"),
    }.items():
        monkeypatch.setattr(mocoda.paper.bench, name, value)
    results = measure("cuda", repeats=1)
    values = by_place(results)
    assert {row for row, column in values if column == "target"} == set(TARGETS["cuda"])
    assert {row: values[row, "ratio"] for row in SWEEPS} == {
        "sweep-dynamics": [2.0],
        "sweep-rows": [5.0],
        "sweep-agents": [0.5],
    }
    assert values["sweep-rows", "mocoda"] == [4.0] and values["sweep-rows", "target"] == [1.0]
    assert ("sac × 5", "agent") in values


@pytest.mark.parametrize("missing", ["sklearn", "d3rlpy"])
def test_without_what_is_compared_with_the_way_out_is_told_before_anything_runs(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setattr(mocoda.paper.bench, "_em", lambda device: pytest.fail("measured"))
    with pytest.raises(InputError) as caught:
        measure("cpu")
    assert str(caught.value) == "mocoda bench compares with scikit-learn and d3rlpy; pip install 'mocoda[bench]'."


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_both_td3_bcs_are_timed_as_often() -> None:
    ours, theirs = mocoda.paper.bench._td3_bc(2)
    assert len(ours) == len(theirs) == 2 and min(*ours, *theirs) > 0


def test_streaming_needs_no_more_memory_for_more_rows_and_holding_the_rows_would_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mocoda.paper.bench, "_generator", small_generator)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # of the child: quicker on a busy machine
    few, many = (mocoda.paper.bench._streaming_memory(rows, "cpu") for rows in (200_000, 800_000))
    table = 4 * 7 * 800_000 / 2**20  # what the rows themselves weigh
    assert few > 1 and many < few + table / 2


@pytest.mark.timeout(60)
def test_a_streaming_child_that_dies_is_an_error_and_no_endless_wait(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mocoda.paper.bench, "_generator", small_generator)
    monkeypatch.setattr(mocoda.paper.bench, "_stream_to_disk", divmod)  # which fails on what it is given
    with pytest.raises((EOFError, OSError, RuntimeError)):
        mocoda.paper.bench._streaming_memory(1_000, "cpu")


def test_targets_are_positive_and_the_gpu_s_are_no_lower() -> None:
    for row, target in TARGETS["cuda"].items():
        assert 0 < TARGETS["cpu"].get(row, target) <= target
    assert all(target > 0 for target in TARGETS["cpu"].values())
    assert all(first != second for first, second in pairwise(MEANING.values()))
