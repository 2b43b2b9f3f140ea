"""Table 2 as a program, at a size that takes no time."""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from experiment_contract import StopAt, StopError, by_place, check_experiment, files_in
from experiments.agents import paper_agent
from torch import Tensor

import experiments.stages
import mocoda.agents.train
import mocoda.dynamics.fit
from experiments import table2
from experiments.columns import column_recipe
from experiments.published_code import published
from experiments.table1 import Table1
from experiments.table2 import PAPER, Measured2, Table2, walk
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
from mocoda.engine.checkpoint import Checkpoint
from mocoda.engine.statistics import bootstrap_interval, interquartile_mean, probability_of_improvement
from mocoda.tasks.navigation import Navigation

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
    return TINY.run(device="cpu", folder=folder)


@pytest.fixture(scope="module")
def models(measured: Measured2, folder: Path) -> list[Dynamics]:
    graph = measured.task.graph
    return [Dynamics.load(folder / f"dynamics-local-{seed}.safetensors", graph) for seed in range(TINY.seeds)]


# Measuring


def test_the_results_keep_the_contract_and_have_every_cell_beside_the_paper_s(
    measured: Measured2, tmp_path: Path
) -> None:
    printed = check_experiment(TINY, measured, tmp_path)
    assert files_in(tmp_path) == sorted(TINY.outputs)
    results = measured.results
    assert results["resumed"] is False and set(results["seconds_by_stage"]) == {"data", *ROWS}
    found = by_place(results)
    assert list(found) == [(row, column) for row in (*ROWS, "optimum") for column in COLUMNS]
    for (row, column), cell in found.items():
        if row == "optimum":
            assert cell["mean"] == pytest.approx(18.5, abs=0.01) and cell["values"] == [cell["mean"]]
            assert (cell["std"], cell["paper_mean"], cell["paper_std"]) == (0, None, None)
            continue
        assert len(cell["values"]) == len(cell["success"]) == 2
        assert cell["iqm"] == pytest.approx(interquartile_mean(cell["values"]), rel=1e-9)
        assert cell["interval"] == pytest.approx(bootstrap_interval(cell["values"]), rel=1e-9)
        assert (cell["paper_mean"], cell["paper_std"]) == (PAPER[row][COLUMNS.index(column)] or (None, None))
        better = probability_of_improvement(cell["values"], found[row, "emp"]["values"], lower_is_better=True)
        assert cell["better_than_emp"] == pytest.approx(better)
        beside = "" if cell["paper_mean"] is None else f" ({cell['paper_mean']:.1f})"
        assert f"{cell['mean']:.1f} ± {cell['std']:.1f}{beside}" in printed
    curves = json.loads((tmp_path / "table2-curves.json").read_text())["agents"]
    for name, policies in measured.policies.items():
        assert curves[name]["updates"] == [100, 200] and tuple(curves[name]["steps"]) == COLUMNS
        for place, (column, seed) in enumerate(policies):
            curve = policies.curves["steps"][place].tolist()
            assert curves[name]["steps"][column][seed] == pytest.approx(curve, abs=0.005)


def test_a_cell_is_the_mean_of_a_seed_s_last_evaluations(measured: Measured2) -> None:
    """Agents that learn next to nothing have curves next to constant; here every number is another."""
    steps = torch.arange(1.0, 49.0).reshape(12, 4)
    curves = {"updates": torch.arange(1, 5), "steps": steps, "success": steps / 100, "return": -steps}
    policies = Policies(measured.policies["cql"], curves)
    for last in (1, 3, 4):
        cells = replace(TINY, updates=400, last=last).cells("cql", policies)
        for number, cell in enumerate(cells):
            ours, recorded = (
                [statistics.fmean(range(5 + 4 * run - last, 5 + 4 * run)) for run in runs]
                for runs in ((2 * number, 2 * number + 1), (0, 1))
            )
            assert cell["values"] == pytest.approx(ours)
            assert cell["success"] == pytest.approx([value / 100 for value in ours], rel=1e-6)
            assert cell["better_than_emp"] == (0.5 if ours == recorded else 0.0)


def same_agents(one: Measured2, other: Measured2) -> bool:
    """Whether the agents that both have are the same to the bit."""
    return all(
        weight.equal(other.policies[name][key].weights[part])
        for name, policies in one.policies.items()
        for key, policy in policies.items()
        for part, weight in policy.weights.items()
    )


def test_a_seed_s_agents_do_not_depend_on_how_many_there_are_and_progress_names_every_stage(
    measured: Measured2, tmp_path: Path
) -> None:
    progress = StopAt()
    one = replace(TINY, seeds=1, agents=TINY.agents[:2], columns=("mocoda", "emp"))
    alone = one.run(device="cpu", folder=tmp_path, progress=progress)
    for cell in alone.results["cells"]:
        both = by_place(measured.results)[cell["row"], cell["column"]]
        assert cell["values"] == both["values"][:1]
    assert same_agents(alone, measured)
    assert progress.steps == [
        *(("dynamics local", epoch, 2) for epoch in (1, 2)),
        *(("data sets", done, 2) for done in (1, 2)),
        *(("agents td3-bc", done, 200) for done in (100, 200)),
        *(("agents bcq", done, 220) for done in (20, 120, 220)),
    ]


def test_agents_learn_from_the_models_that_are_given_and_nothing_is_compared_without_emp(
    measured: Measured2, models: list[Dynamics], tmp_path: Path
) -> None:
    settings = replace(TINY, agents=TINY.agents[:1], columns=("rand",))
    ours, swapped = (
        settings.run(device="cpu", folder=tmp_path / name, models=given)
        for name, given in (("ours", models), ("swapped", models[::-1]))
    )
    assert same_agents(ours, measured) and not same_agents(swapped, measured)
    assert [cell.get("better_than_emp") for cell in ours.results["cells"]] == [None, None]


# The data


def handed_over(settings: Table2, models: list[Dynamics], folder: Path) -> dict[str, list[Transitions]]:
    """The data sets that the agents would train on."""
    handed: list[dict[str, list[Transitions]]] = []

    def keep(datasets: dict[str, list[Transitions]], *given: object, **named: object) -> Policies:
        handed.append(datasets)
        raise StopError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiments.stages, "train_agents", keep)
        with pytest.raises(StopError):
            settings.run(device="cpu", folder=folder, models=models)
    return handed[0]


@pytest.fixture(scope="module")
def datasets(models: list[Dynamics], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Transitions]]:
    return handed_over(TINY, models, tmp_path_factory.mktemp("data"))


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


def test_the_recorded_data_is_repeated_until_it_is_as_large(models: list[Dynamics], tmp_path: Path) -> None:
    thrice = handed_over(replace(TINY, columns=("emp",), total=4_500), models, tmp_path)
    for seed in (0, 1):
        recorded = Navigation().collect(1_500, seed=seed)
        assert len(thrice["emp"][seed]) == 4_500
        for start in (0, 1_500, 3_000):
            assert_same_rows(thrice["emp"][seed][start : start + 1_500], recorded)


@pytest.mark.parametrize(
    ("column", "change"),
    [
        *((column, {}) for column in COLUMNS[1:]),
        *((column, {"published_code": True}) for column in ("mocoda", "coda")),
        ("mocoda", {"stratified": True}),
    ],
)
def test_new_rows_are_augmented_by_the_models_that_are_given(
    column: str, change: dict[str, Any], models: list[Dynamics], tmp_path: Path
) -> None:
    task = Navigation()
    other = DynamicsConfig(members=1, hidden=(4,), features=4, epochs=1, batch=512, window=1)
    model = fit_dynamics(task.collect(500, seed=9), task.graph, seed=9, config=other)
    made = handed_over(replace(TINY, seeds=1, columns=(column,), **change), [model], tmp_path)
    recorded = task.collect(1_500, seed=0)
    recipe = column_recipe(column, components=4, stratified="stratified" in change)
    recipe = published(recipe) if "published_code" in change else recipe
    parents = fit_parents(recorded, task.graph, recipe, seed=0, task=task, model=model)
    assert_same_rows(made[column][0], augment(recorded, parents, model, rows=1_500, task=task, seed=0))


# Continuing


MODELS = [f"dynamics-local-{seed}.safetensors" for seed in (0, 1)]


def agents_files(name: str) -> list[str]:
    policies = [f"agents-{name}/policy-{column}-{seed}.safetensors" for column in COLUMNS for seed in (0, 1)]
    return [f"agents-{name}/agents.json", *policies]


def test_an_interrupted_run_continues_where_it_was_and_measures_the_same(
    measured: Measured2, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (mocoda.dynamics.fit, mocoda.agents.train):
        monkeypatch.setattr(module, "Checkpoint", functools.partial(Checkpoint, interval=0.0))
    with pytest.raises(StopError):
        TINY.run(device="cpu", folder=tmp_path, progress=StopAt("dynamics local", 2))
    assert files_in(tmp_path) == ["checkpoint-local.safetensors"]
    with pytest.raises(StopError):
        TINY.run(device="cpu", folder=tmp_path, progress=StopAt("agents bcq", 220))
    assert files_in(tmp_path) == sorted([*agents_files("td3-bc"), "checkpoint-agents-bcq.safetensors", *MODELS])
    progress = StopAt()
    again = TINY.run(device="cpu", folder=tmp_path, progress=progress)
    # The models and TD3-BC were finished, and BCQ had but one chunk before it.
    assert [(stage, done) for stage, done, _ in progress.steps] == [
        *(("data sets", done) for done in range(1, 7)),
        ("agents bcq", 220),
        *((f"agents {name}", done) for name in ("cql", "sac") for done in (100, 200)),
    ]
    assert again.results["cells"] == measured.results["cells"] and again.results["resumed"] is True
    assert same_agents(again, measured)
    assert files_in(tmp_path) == sorted([*MODELS, *(file for name in ROWS for file in agents_files(name))])


def test_the_same_call_measures_the_same_and_trains_nothing_again(
    measured: Measured2, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("fit_dynamics_runs", "train_agents"):
        monkeypatch.setattr(experiments.stages, name, lambda *given, **named: pytest.fail("trained again"))
    again = TINY.run(device="cpu", folder=folder)
    assert again.results["resumed"] is True
    assert again.results["cells"] == measured.results["cells"]
    assert same_agents(again, measured)
    for name, policies in measured.policies.items():
        for measure, curve in policies.curves.items():
            assert again.policies[name].curves[measure].equal(curve)


# Walking


def test_paths_are_those_of_the_first_seed_s_agents_from_the_same_starts(measured: Measured2) -> None:
    walked = walk(measured, ("coda", "emp"), episodes=5)
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"columns": ("emp", "mocoda_u")},
            "there is no column 'mocoda_u'; there are: emp, dyna, rand, mocoda, mocoda-u, coda. "
            "Did you mean 'mocoda-u'?",
        ),
        (
            {"columns": ("emp", "rand", "emp")},
            "columns must name each data set once, and at least one, got ['emp', 'rand', 'emp'].",
        ),
        ({"columns": ()}, "columns must name each data set once, and at least one, got []."),
        ({"last": 0}, "last must be a number of evaluations, from 1 to 2, got 0."),
        ({"last": 3}, "last must be a number of evaluations, from 1 to 2, got 3."),
        ({"total": 10}, "total must be at least the number of recorded rows, got 10 and 1500."),
    ],
)
def test_settings_that_do_not_fit_are_refused_in_full(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        replace(TINY, **change)
    assert str(caught.value) == message


# The paper


def test_the_paper_s_preset_is_the_paper_s_setting() -> None:
    preset = Table2.presets["paper"]
    assert preset.agents == tuple(paper_agent(name) for name in ROWS)
    assert (preset.seeds, preset.rows, preset.total, preset.columns) == (5, 40_000, 200_000, COLUMNS)
    assert (preset.updates, preset.evaluate_every, preset.episodes, preset.last) == (25_000, 100, 10, 50)
    assert preset.components == 32
    assert not preset.published_code and not preset.stratified
    # Its dynamics are Table 1's, standardised.
    first = Table1.presets["paper"].dynamics
    assert preset.dynamics.standardise and replace(preset.dynamics, standardise=False) == first


def test_the_paper_s_cells_are_those_of_its_table() -> None:
    assert table2.COLUMNS == COLUMNS and tuple(PAPER) == ROWS
    printed = {  # Emp, Rand, MoCoDA, MoCoDA-U and CoDA; the table has no Dyna
        "sac": "53.1 ± 9.8, 27.6 ± 1.1, 38.8 ± 18.3, 41.3 ± 17.7, 35.1 ± 18.1",
        "bcq": "58.5 ± 10.1, 31.7 ± 2.4, 22.8 ± 0.4, 24.8 ± 4.2, 25.0 ± 0.4",
        "cql": "45.8 ± 4.0, 27.6 ± 1.3, 22.8 ± 0.2, 22.7 ± 0.3, 23.6 ± 0.5",
        "td3-bc": "40.0 ± 16.1, 26.1 ± 0.8, 21.0 ± 0.7, 20.7 ± 0.8, 21.4 ± 0.6",
    }
    for row, line in printed.items():
        pairs = [tuple(float(part) for part in cell.split(" ± ")) for cell in line.split(", ")]
        assert PAPER[row] == (pairs[0], None, *pairs[1:])
