"""Table 2 as a program, at a size that takes no time, and the numbers that are committed."""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import rich.console
import torch
from committed_results import RESULTS, committed
from torch import Tensor

import mocoda.agents.train
import mocoda.dynamics.fit
import mocoda.paper.table1
import mocoda.paper.table2
from mocoda import (
    Dynamics,
    DynamicsConfig,
    InputError,
    Policies,
    Transitions,
    augment,
    fit_dynamics,
    fit_parents,
    make_agent,
)
from mocoda.agents.policy import agent_settings
from mocoda.engine.checkpoint import Checkpoint
from mocoda.engine.files import versions
from mocoda.engine.optimise import device_name
from mocoda.engine.statistics import bootstrap_interval, interquartile_mean, probability_of_improvement
from mocoda.paper.experiment import preset
from mocoda.paper.table2 import METRIC, OUTPUTS, PAPER, PRESETS, Measured2, Table2, paths, table2, write
from mocoda.tasks.navigation import Navigation

KEYS = {
    *("table", "preset", "metric", "device", "seconds", "seconds_by_stage", "resumed", "versions", "config", "cells"),
}
OPTIMUM_KEYS = {"row", "column", "values", "mean", "std", "paper_mean", "paper_std"}
CELL_KEYS = OPTIMUM_KEYS | {"iqm", "interval", "better_than_emp", "success"}
ROWS = ("td3-bc", "bcq", "cql", "sac")
COLUMNS = ("emp", "dyna", "rand", "mocoda", "mocoda-u", "coda")
HORIZON = 70
SMALL: dict[str, Any] = {"hidden": (16,), "batch": 32, "learning_rate": 0.01, "polyak": 0.1}
SAMPLERS: dict[str, Any] = {"samplers": 2, "components": 2, "proposals": 3}
TINY = Table2(
    "tiny",
    seeds=2,
    dynamics=DynamicsConfig(members=2, hidden=(16, 16), features=8, epochs=2, batch=128, window=1),
    agents=(
        make_agent("td3-bc", **SMALL),
        make_agent("bcq", **SMALL, **SAMPLERS, sampler_hidden=(8,), sampler_updates=20, sampler_batch=32),
        make_agent("cql", **SMALL),
        make_agent("sac", **SMALL),
    ),
    rows=1_500,
    total=3_000,
    updates=200,
    evaluate_every=100,
    episodes=3,
    last=1,
    components=4,
)


@pytest.fixture(scope="module", autouse=True)
def optimum_once() -> Iterator[None]:
    """The least steps from a million starts take seconds, and are the same for every table."""
    counted: list[Tensor] = []
    real = Navigation.least_steps

    def least_steps(self: Navigation, start: Tensor) -> Tensor:
        if not counted:
            counted.append(real(self, start))
        assert len(start) == len(counted[0])
        return counted[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Navigation, "least_steps", least_steps)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("table2")


@pytest.fixture(scope="module")
def measured(folder: Path) -> Measured2:
    return table2(TINY, device="cpu", folder=folder)


@pytest.fixture(scope="module")
def models(measured: Measured2, folder: Path) -> list[Dynamics]:
    graph = measured.task.graph
    return [Dynamics.load(folder / f"dynamics-local-{seed}.safetensors", graph) for seed in range(TINY.seeds)]


def cells(results: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(cell["row"], cell["column"]): cell for cell in results["cells"]}


def check_schema(results: dict[str, Any], seeds: int) -> None:
    assert set(results) == KEYS
    assert results["table"] == "table2" and results["metric"] == METRIC
    agents, columns = list(results["config"]["agents"]), list(results["config"]["columns"])
    assert set(results["seconds_by_stage"]) == {"data", *agents}
    assert 0 < sum(results["seconds_by_stage"].values()) <= results["seconds"] + 0.05 * (2 + len(agents))  # rounded
    expected = [(row, column) for row in (*agents, "optimum") for column in columns]
    assert [(cell["row"], cell["column"]) for cell in results["cells"]] == expected
    found = cells(results)
    for (row, column), cell in found.items():
        if row == "optimum":
            assert set(cell) == OPTIMUM_KEYS
            assert cell["mean"] == pytest.approx(18.5, abs=0.01) and cell["values"] == [cell["mean"]]
            assert (cell["std"], cell["paper_mean"], cell["paper_std"]) == (0, None, None)
            continue
        assert set(cell) == CELL_KEYS
        assert len(cell["values"]) == len(cell["success"]) == seeds
        assert all(1 <= value <= HORIZON for value in cell["values"])
        assert all(0 <= value <= 1 for value in cell["success"])
        assert cell["mean"] == pytest.approx(statistics.fmean(cell["values"]), rel=1e-9)
        assert cell["std"] == pytest.approx(statistics.stdev(cell["values"]) if seeds > 1 else 0.0, rel=1e-9)
        assert cell["iqm"] == pytest.approx(interquartile_mean(cell["values"]), rel=1e-9)
        assert cell["interval"] == pytest.approx(bootstrap_interval(cell["values"]), rel=1e-9)
        assert (cell["paper_mean"], cell["paper_std"]) == (PAPER[row][COLUMNS.index(column)] or (None, None))
        if "emp" in columns:
            recorded = found[row, "emp"]["values"]
            better = probability_of_improvement(cell["values"], recorded, lower_is_better=True)
            assert cell["better_than_emp"] == pytest.approx(better)
        else:
            assert cell["better_than_emp"] is None


# Measuring


def test_the_results_have_their_schema_and_can_be_written(measured: Measured2) -> None:
    results = measured.results
    check_schema(results, seeds=2)
    assert {(cell["row"], cell["column"]) for cell in results["cells"]} == {
        (row, column) for row in (*ROWS, "optimum") for column in COLUMNS
    }
    written = json.loads(json.dumps(results))
    assert written["cells"] == results["cells"]
    assert written["config"] == json.loads(json.dumps(TINY.config()))
    assert results["preset"] == "tiny" and results["resumed"] is False
    assert results["versions"] == versions() and results["device"] == device_name("cpu")
    assert 0 < results["seconds"] < 120


def test_what_was_trained_comes_along(measured: Measured2) -> None:
    assert tuple(measured.policies) == ROWS
    for agent, policies in zip(TINY.agents, measured.policies.values(), strict=True):
        assert list(policies) == [(column, seed) for column in COLUMNS for seed in (0, 1)]
        assert {policy.agent for policy in policies.values()} == {agent}
        assert policies.curves["updates"].tolist() == [100, 200]
        assert policies.curves["steps"].shape == policies.curves["success"].shape == (12, 2)


def test_a_cell_is_the_mean_of_a_seed_s_last_evaluations(measured: Measured2) -> None:
    for row, policies in measured.policies.items():
        for place, (column, seed) in enumerate(policies):
            cell = cells(measured.results)[row, column]
            assert cell["values"][seed] == pytest.approx(float(policies.curves["steps"][place, -1]), rel=1e-6)
            assert cell["success"][seed] == pytest.approx(float(policies.curves["success"][place, -1]), rel=1e-6)


def test_that_holds_for_curves_that_move_too(measured: Measured2) -> None:
    """Agents that learn next to nothing have curves next to constant; here every number is another."""
    steps = torch.arange(1.0, 49.0).reshape(12, 4)
    curves = {"updates": torch.arange(1, 5), "steps": steps, "success": steps / 100, "return": -steps}
    policies = Policies(measured.policies["cql"], curves)
    for last in (1, 3, 4):
        for number, column in enumerate(COLUMNS):
            cell = mocoda.paper.table2._cell(policies, "cql", column, replace(TINY, updates=400, last=last))
            ours, recorded = (
                [statistics.fmean(range(5 + 4 * run - min(last, 4), 5 + 4 * run)) for run in runs]
                for runs in ((2 * number, 2 * number + 1), (0, 1))
            )
            assert cell["values"] == pytest.approx(ours)
            assert cell["success"] == pytest.approx([value / 100 for value in ours], rel=1e-6)
            assert (cell["mean"], cell["std"]) == pytest.approx((statistics.fmean(ours), statistics.stdev(ours)))
            assert cell["better_than_emp"] == (0.5 if ours == recorded else 0.0)


def same_agents(one: Measured2, other: Measured2) -> bool:
    """Whether the agents that both have are the same to the bit."""
    return all(
        weight.equal(other.policies[name][key].weights[part])
        for name, policies in one.policies.items()
        for key, policy in policies.items()
        for part, weight in policy.weights.items()
    )


def test_a_seed_s_agents_do_not_depend_on_how_many_there_are_and_progress_tells_every_stage(
    measured: Measured2,
) -> None:
    told: list[tuple[str, int, int]] = []
    one = replace(TINY, seeds=1, agents=TINY.agents[:2], columns=("mocoda", "emp"))
    alone = table2(one, device="cpu", progress=lambda *step: told.append(step))
    check_schema(alone.results, seeds=1)
    for cell in alone.results["cells"]:
        both = cells(measured.results)[cell["row"], cell["column"]]
        assert cell["values"] == both["values"][:1]
    assert same_agents(alone, measured)
    assert told == [
        *(("dynamics local", epoch, 2) for epoch in (1, 2)),
        *(("data sets", done, 2) for done in (1, 2)),
        *(("agents td3-bc", done, 200) for done in (100, 200)),
        *(("agents bcq", done, 220) for done in (20, 120, 220)),
    ]


def test_without_the_recorded_data_nothing_is_compared_with_it(models: list[Dynamics]) -> None:
    settings = replace(TINY, agents=TINY.agents[:1], columns=("coda",), updates=100)
    results = table2(settings, device="cpu", models=models).results
    check_schema(results, seeds=2)
    assert [cell.get("better_than_emp") for cell in results["cells"]] == [None, None]


# The data


class StopError(Exception):
    """What stops a run halfway."""


def handed_over(settings: Table2, models: list[Dynamics] | None) -> dict[str, list[Transitions]]:
    """The data sets that the agents would train on."""
    handed: list[dict[str, list[Transitions]]] = []

    def noted(datasets: dict[str, list[Transitions]], *given: object, **named: object) -> Policies:
        handed.append(datasets)
        raise StopError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mocoda.paper.table2, "train_agents", noted)
        with pytest.raises(StopError):
            table2(settings, device="cpu", models=models)
    return handed[0]


@pytest.fixture(scope="module")
def datasets(models: list[Dynamics]) -> dict[str, list[Transitions]]:
    return handed_over(TINY, models)


def assert_same_rows(one: Transitions, other: Transitions) -> None:
    for name in ("state", "action", "next_state", "reward", "terminal"):
        assert getattr(one, name).equal(getattr(other, name)), name


def test_data_sets_are_as_large_as_asked_for_and_start_with_what_was_recorded(
    datasets: dict[str, list[Transitions]],
) -> None:
    assert tuple(datasets) == COLUMNS
    for column, tables in datasets.items():
        for seed, data in enumerate(tables):
            assert len(data) == 3_000
            recorded = Navigation().collect(1_500, seed=seed)
            assert_same_rows(data[:1_500], recorded)
            assert data.rows[1_500:].equal(recorded.rows) == (column == "emp")


def test_the_recorded_data_is_repeated_until_it_is_as_large(
    datasets: dict[str, list[Transitions]], models: list[Dynamics]
) -> None:
    thrice = handed_over(replace(TINY, columns=("emp",), total=4_500), models)
    for seed in (0, 1):
        recorded = Navigation().collect(1_500, seed=seed)
        assert_same_rows(datasets["emp"][seed][1_500:], recorded)
        assert len(thrice["emp"][seed]) == 4_500
        assert_same_rows(thrice["emp"][seed][3_000:], recorded)


@pytest.mark.parametrize(
    ("column", "change"),
    [
        *((column, {}) for column in COLUMNS[1:]),
        *((column, {"published_code": True}) for column in ("mocoda", "coda")),
        *((column, {"stratified": True}) for column in ("mocoda", "mocoda-u")),
    ],
)
def test_new_rows_are_augmented_by_the_models_that_are_given(
    column: str, change: dict[str, Any], models: list[Dynamics], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mocoda.paper.table1, "fit_dynamics_runs", lambda *given, **named: pytest.fail("trained"))
    task = Navigation()
    other = DynamicsConfig(members=1, hidden=(4,), features=4, epochs=1, batch=512, window=1)
    given = [*models[:1], fit_dynamics(task.collect(500, seed=9), task.graph, seed=9, config=other)]
    made = handed_over(replace(TINY, columns=(column,), **change), given)
    for seed, model in enumerate(given):
        recorded = task.collect(1_500, seed=seed)
        parents = fit_parents(
            recorded,
            task.graph,
            column,
            seed=seed,
            task=task,
            model=model,
            components=4,
            covariance="full",
            **change,
        )
        assert_same_rows(made[column][seed], augment(recorded, parents, model, rows=1_500, task=task, seed=seed))


def test_agents_learn_from_the_models_that_are_given(measured: Measured2, models: list[Dynamics]) -> None:
    settings = replace(TINY, agents=TINY.agents[:1], columns=("rand",))
    ours, swapped = (table2(settings, device="cpu", models=given) for given in (models, models[::-1]))
    assert same_agents(ours, measured) and not same_agents(swapped, measured)


# Continuing


def stop_at(stage: str, when: int) -> Callable[[str, int, int], None]:
    def progress(name: str, done: int, total: int) -> None:
        if (name, done) == (stage, when):
            raise StopError

    return progress


def left(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


MODELS = [f"dynamics-local-{seed}.safetensors" for seed in (0, 1)]


def agents_files(name: str) -> list[str]:
    policies = [f"agents-{name}/policy-{column}-{seed}.safetensors" for column in COLUMNS for seed in (0, 1)]
    return [f"agents-{name}/agents.json", *policies]


def test_an_interrupted_run_goes_on_where_it_was_and_measures_the_same(
    measured: Measured2, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (mocoda.dynamics.model, mocoda.agents.train):
        monkeypatch.setattr(module, "Checkpoint", functools.partial(Checkpoint, interval=0.0))
    with pytest.raises(StopError):
        table2(TINY, device="cpu", folder=tmp_path, progress=stop_at("dynamics local", 2))
    assert left(tmp_path) == ["checkpoint-local.safetensors"]
    with pytest.raises(StopError):
        table2(TINY, device="cpu", folder=tmp_path, progress=stop_at("agents bcq", 220))
    assert left(tmp_path) == sorted([*agents_files("td3-bc"), "checkpoint-bcq.safetensors", *MODELS])
    told: list[tuple[str, int]] = []
    again = table2(TINY, device="cpu", folder=tmp_path, progress=lambda name, done, total: told.append((name, done)))
    # The models and TD3-BC were finished, and BCQ had but one chunk before it.
    assert told == [
        *(("data sets", done) for done in range(1, 7)),
        ("agents bcq", 220),
        *((f"agents {name}", done) for name in ("cql", "sac") for done in (100, 200)),
    ]
    assert again.results["cells"] == measured.results["cells"] and again.results["resumed"] is True
    assert same_agents(again, measured)
    assert left(tmp_path) == sorted([*MODELS, *(file for name in ROWS for file in agents_files(name))])


def test_the_same_call_measures_the_same_and_trains_nothing_again(
    measured: Measured2, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mocoda.paper.table1, "fit_dynamics_runs", lambda *given, **named: pytest.fail("trained again"))
    monkeypatch.setattr(mocoda.paper.table2, "train_agents", lambda *given, **named: pytest.fail("trained again"))
    again = table2(TINY, device="cpu", folder=folder)
    assert again.results["resumed"] is True
    assert again.results["cells"] == measured.results["cells"]
    assert same_agents(again, measured)
    for name, policies in measured.policies.items():
        for measure, curve in policies.curves.items():
            assert again.policies[name].curves[measure].equal(curve)


# Writing


def test_what_is_measured_is_written_as_cells_curves_and_figures_and_told_as_a_table(
    measured: Measured2, tmp_path: Path
) -> None:
    table = write(measured, tmp_path)
    assert OUTPUTS == ("table2.json", "table2-curves.json", "table2-curves.png", "table2-policies.png")
    assert left(tmp_path) == sorted(OUTPUTS)
    assert json.loads((tmp_path / "table2.json").read_text()) == json.loads(json.dumps(measured.results))
    for name in OUTPUTS[2:]:
        assert (tmp_path / name).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    console = rich.console.Console(width=200)
    with console.capture() as said:
        console.print(table)
    for row in ROWS:
        cell = cells(measured.results)[row, "rand"]
        assert f"{cell['mean']:.1f} ± {cell['std']:.1f} ({cell['paper_mean']:.1f})" in said.get()
    assert "18.5" in said.get()


def test_the_curves_are_written_by_agent_data_and_seed(
    measured: Measured2, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(mocoda.paper.table2, "draw_curves", lambda *given: drawn.append(given))
    monkeypatch.setattr(mocoda.paper.table2, "draw_paths", lambda *given: None)
    write(measured, tmp_path)
    written = json.loads((tmp_path / "table2-curves.json").read_text())
    ((shown, optimum, path),) = drawn
    assert shown == written["agents"] and path == tmp_path / "table2-curves.png"
    assert optimum == cells(measured.results)["optimum", "emp"]["mean"]
    assert tuple(written["agents"]) == ROWS
    for name, policies in measured.policies.items():
        curves = written["agents"][name]
        assert curves["updates"] == [100, 200] and tuple(curves["steps"]) == COLUMNS
        for place, (column, seed) in enumerate(policies):
            assert curves["steps"][column][seed] == pytest.approx(policies.curves["steps"][place].tolist(), abs=0.005)


def test_paths_are_those_of_the_first_seed_s_agents_from_the_same_starts(measured: Measured2) -> None:
    walked = paths(measured, ["coda", "emp"], episodes=5)
    assert tuple(walked) == ROWS and all(list(by_data) == ["coda", "emp"] for by_data in walked.values())
    starts = walked["sac"]["emp"][0]
    for name, by_data in walked.items():
        for column, path in by_data.items():
            assert path.shape[1:] == (5, 2) and 1 < len(path) <= HORIZON + 1
            assert path[0].equal(starts)
            if name != "bcq":  # which draws its proposals
                action = torch.as_tensor(measured.policies[name][column, 0].act(starts))
                torch.testing.assert_close(path[1], measured.task.step(torch.cat([starts, action], 1)))


# Refusing


@pytest.mark.parametrize("seeds", [0, -1])
def test_less_than_one_seed_is_refused_in_full(seeds: int) -> None:
    with pytest.raises(InputError) as caught:
        replace(TINY, seeds=seeds)
    assert str(caught.value) == f"seeds must be at least 1, got {seeds}."


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            ("emp", "mocoda_u"),
            "there is no column 'mocoda_u'; there are: emp, dyna, rand, mocoda, mocoda-u, coda. "
            "Did you mean 'mocoda-u'?",
        ),
        (("x",), "there is no column 'x'; there are: emp, dyna, rand, mocoda, mocoda-u, coda."),
        (("emp", "rand", "emp"), "columns must name each data set once, and at least one, got ['emp', 'rand', 'emp']."),
        ((), "columns must name each data set once, and at least one, got []."),
    ],
    ids=["unknown", "unlike any", "repeated", "none"],
)
def test_columns_that_cannot_be_are_refused_in_full(columns: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError) as caught:
        replace(TINY, columns=columns)
    assert str(caught.value) == message


def test_an_unknown_preset_is_refused_in_full() -> None:
    with pytest.raises(InputError) as caught:
        preset(PRESETS, "papper")
    assert str(caught.value) == "there is no preset 'papper'; there are: paper, quick. Did you mean 'paper'?"
    assert all(PRESETS[name].preset == name for name in ("paper", "quick"))


# The paper


def test_the_paper_s_preset_is_the_paper_s_setting() -> None:
    preset = PRESETS["paper"]
    assert preset.agents == tuple(make_agent(name) for name in ROWS)
    assert (preset.seeds, preset.rows, preset.total, preset.columns) == (5, 40_000, 200_000, COLUMNS)
    assert (preset.updates, preset.evaluate_every, preset.episodes, preset.last) == (25_000, 100, 10, 50)
    assert (preset.components, preset.covariance) == (32, "full")
    assert not preset.published_code and not preset.stratified
    # Its dynamics are Table 1's, standardised.
    first = mocoda.paper.table1.PRESETS["paper"].dynamics
    assert preset.dynamics.standardise and replace(preset.dynamics, standardise=False) == first


def test_a_config_holds_every_agent_s_settings_by_name() -> None:
    config = PRESETS["paper"].config()
    assert tuple(config["agents"]) == ROWS
    for name in ROWS:
        assert config["agents"][name] == agent_settings(make_agent(name))


def test_the_paper_s_cells_are_those_of_its_table() -> None:
    assert mocoda.paper.table2.COLUMNS == COLUMNS and tuple(PAPER) == ROWS
    printed = {  # Emp, Rand, MoCoDA, MoCoDA-U and CoDA; the table has no Dyna
        "sac": "53.1 ± 9.8, 27.6 ± 1.1, 38.8 ± 18.3, 41.3 ± 17.7, 35.1 ± 18.1",
        "bcq": "58.5 ± 10.1, 31.7 ± 2.4, 22.8 ± 0.4, 24.8 ± 4.2, 25.0 ± 0.4",
        "cql": "45.8 ± 4.0, 27.6 ± 1.3, 22.8 ± 0.2, 22.7 ± 0.3, 23.6 ± 0.5",
        "td3-bc": "40.0 ± 16.1, 26.1 ± 0.8, 21.0 ± 0.7, 20.7 ± 0.8, 21.4 ± 0.6",
    }
    for row, line in printed.items():
        pairs = [tuple(float(part) for part in cell.split(" ± ")) for cell in line.split(", ")]
        assert PAPER[row] == (pairs[0], None, *pairs[1:])


# What is committed


@pytest.mark.parametrize(
    "name",
    ["table2.json", *(f"ablations/table2-{name}.json" for name in ("tuned", "coda", "stratified", "standardised"))],
)
def test_committed_tables_have_the_schema(name: str) -> None:
    results = committed(name)
    check_schema(results, seeds=5)
    assert "H200" in results["device"] and results["resumed"] is False


def test_the_committed_table_is_of_the_paper_s_preset_as_the_code_has_it() -> None:
    results = committed("table2.json")
    assert results["preset"] == "paper"
    assert results["config"] == json.loads(json.dumps(PRESETS["paper"].config()))
    assert {(cell["row"], cell["column"]) for cell in results["cells"]} == {
        (row, column) for row in (*ROWS, "optimum") for column in COLUMNS
    }


def test_the_committed_table_took_under_six_minutes_of_an_h200_in_one_go() -> None:
    results = committed("table2.json")
    assert results["device"] == "NVIDIA H200" and 0 < results["seconds"] < 360 and results["resumed"] is False


@pytest.mark.parametrize("row", ["td3-bc", "bcq", "cql"])
@pytest.mark.parametrize("column", ["mocoda", "mocoda-u"])
def test_the_committed_agents_are_faster_on_mocoda_s_data_than_on_the_recorded(row: str, column: str) -> None:
    found = cells(committed("table2.json"))
    ours, recorded = found[row, column], found[row, "emp"]
    assert recorded["mean"] - ours["mean"] > max(ours["std"], recorded["std"])
    assert ours["better_than_emp"] == 1


def test_the_committed_curves_are_those_of_the_committed_cells() -> None:
    curves, results = committed("table2-curves.json")["agents"], committed("table2.json")
    assert tuple(curves) == ROWS
    for row, of_agent in curves.items():
        assert of_agent["updates"] == list(range(100, 25_001, 100)) and tuple(of_agent["steps"]) == COLUMNS
        for column, seeds in of_agent["steps"].items():
            assert [len(curve) for curve in seeds] == [250] * 5
            last = [statistics.fmean(curve[-50:]) for curve in seeds]
            assert cells(results)[row, column]["values"] == pytest.approx(last, rel=0, abs=0.01)


def test_the_committed_figures_are_there() -> None:
    for name in OUTPUTS[2:]:
        assert (RESULTS / name).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def changes(results: dict[str, Any]) -> dict[str, Any]:
    """Where a config differs from the paper's preset, agents apart."""
    preset = json.loads(json.dumps(PRESETS["paper"].config()))
    config = results["config"]
    assert set(config) == set(preset)
    return {key: value for key, value in config.items() if key != "agents" and value != preset[key]}


def test_the_committed_tuned_agents_are_faster_than_the_paper_s() -> None:
    results = committed("ablations/table2-tuned.json")
    assert changes(results) == {"preset": "tuned", "columns": ["mocoda", "mocoda-u"]}
    tuned = {}
    for name, settings in results["config"]["agents"].items():
        defaults = agent_settings(make_agent(name))
        tuned[name] = {key: value for key, value in settings.items() if value != defaults[key]}
    assert tuned == {"td3-bc": {"imitation": 0.25}, "bcq": {"proposals": 80}, "cql": {"entropy": 0.05}}
    assert cells(results)["td3-bc", "mocoda-u"]["mean"] < 20.7


def test_the_committed_coda_of_the_paper_s_code_differs_in_how_parents_are_drawn() -> None:
    results = committed("ablations/table2-coda.json")
    assert changes(results) == {"columns": ["coda"], "published_code": True}
    assert results["config"]["agents"] == json.loads(json.dumps(PRESETS["paper"].config()["agents"]))


def test_the_committed_standardised_agents_differ_in_that_alone() -> None:
    results = committed("ablations/table2-standardised.json")
    assert changes(results) == {"preset": "standardised", "columns": ["mocoda", "mocoda-u"]}
    for name, settings in results["config"]["agents"].items():
        assert settings == json.loads(json.dumps(agent_settings(make_agent(name, standardise=True))))
    ours, table = cells(results), cells(committed("table2.json"))
    for column in ("mocoda", "mocoda-u"):
        assert all(ours[row, column]["mean"] < table[row, column]["mean"] for row in ("td3-bc", "cql"))
        assert ours["bcq", column]["mean"] > table["bcq", column]["mean"]


def test_the_committed_agents_on_mixtures_per_neighbourhood_are_slower() -> None:
    results = committed("ablations/table2-stratified.json")
    assert changes(results) == {"columns": ["mocoda", "mocoda-u"], "stratified": True}
    assert results["config"]["agents"] == json.loads(json.dumps(PRESETS["paper"].config()["agents"]))
    slower, table = cells(results), cells(committed("table2.json"))
    assert all(slower[cell]["mean"] > table[cell]["mean"] for cell in slower if cell[0] != "optimum")


@pytest.mark.parametrize("runs", [1, 5, 25, 100])
@pytest.mark.parametrize("row", ROWS)
def test_committed_agents_were_timed_and_none_was_faster_than_its_roofline(row: str, runs: int) -> None:
    results = committed("bench-h200.json")
    assert results["device"] == "NVIDIA H200"
    found = cells(results)
    timed, least = found[f"{row} × {runs}", "agent"], found[f"{row} × {runs}", "roofline"]
    assert len(timed["values"]) >= 3
    assert 0 < least["mean"] <= min(timed["values"])


def test_a_committed_update_in_half_precision_takes_at_most_thirty_microseconds() -> None:
    assert 0 < cells(committed("bench-h200.json"))["td3-bc in bfloat16 × 100", "agent"]["mean"] <= 0.03


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"last": 0}, "last must be a number of evaluations, from 1 to 2, got 0."),
        ({"last": 3}, "last must be a number of evaluations, from 1 to 2, got 3."),
        ({"total": 10}, f"total must be at least rows, which are among it, got 10 and {TINY.rows}."),
    ],
)
def test_sizes_that_do_not_fit_are_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(InputError) as caught:
        replace(TINY, **change)  # type: ignore[arg-type]
    assert str(caught.value) == message
