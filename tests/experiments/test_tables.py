"""Tables 1 to 3 and what is made of their data: every number against one that was computed again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from approved import refused
from experiment_contract import StopError, results_of
from tiny_experiments import TINY

import experiments.stages
import mocoda
from experiments import published_code, scarcity, table1, table2, table3
from experiments.columns import column_recipe, published
from experiments.experiment import by_place
from experiments.scarcity import Scarcity
from experiments.stages import paper_agent
from experiments.table1 import Table1
from experiments.table2 import Table2
from experiments.table3 import Table3
from mocoda import Dynamics, DynamicsConfig, Policies, Transitions, fit_dynamics, fit_parents, train_agents
from mocoda.agents import CQL
from mocoda.agents.agent import AGENTS
from mocoda.agents.evaluation import Played
from mocoda.engine.randomness import Stream
from mocoda.engine.statistics import bootstrap_interval, interquartile_mean, probability_of_improvement
from mocoda.tasks.hooksweep import HookSweep2
from mocoda.tasks.navigation import Navigation

FIRST: Table1 = TINY["table1"]
SECOND: Table2 = TINY["table2"]
THIRD: Table3 = TINY["table3"]
SCARCE: Scarcity = TINY["scarcity"]


class Trained(NamedTuple):
    """Results, where they were measured, and the data sets that each agent was given."""

    results: dict[str, Any]
    folder: Path
    datasets: dict[str, Mapping[str, list[Transitions]]]


def trained(experiment: Any, folder: Path) -> Trained:
    datasets: dict[str, Mapping[str, list[Transitions]]] = {}

    def keep(given: Mapping[str, list[Transitions]], agent: mocoda.Agent, **options: Any) -> Policies:
        datasets[agent.name] = given
        return train_agents(given, agent, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiments.stages, "train_agents", keep)
        return Trained(results_of(experiment, folder), folder, datasets)


def same_rows(one: Transitions, other: Transitions) -> bool:
    names = ("state", "action", "next_state", "reward", "terminal")
    return all(getattr(one, name).equal(getattr(other, name)) for name in names)


# Table 1


def true_step(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The paper's 2D Navigation, written again."""
    x, y, dx, dy = rows.T
    both = (x > 0.5) & (y > 0.5)
    return np.stack([x + 0.05 * dx - 0.02 * dy * both, y + 0.05 * dy - 0.02 * dx * both], 1)


def test_a_cell_of_table_1_is_the_mean_distance_of_a_draw_from_the_true_next_state(tmp_path: Path) -> None:
    found, task = by_place(results_of(FIRST, tmp_path)), Navigation()
    for seed in range(2):
        data = task.collect(FIRST.rows, seed=seed)
        models = {
            row: Dynamics.load(tmp_path / f"dynamics-{row}-{seed}.safetensors", task.graph) for row in table1.PAPER
        }
        alone = fit_dynamics(data, task.graph, "local", seed=seed, config=FIRST.dynamics)
        assert all(weight.equal(models["local"].weights[name]) for name, weight in alone.weights.items())
        for column in table1.COLUMNS:
            recipe = column_recipe(column, components=FIRST.components)
            parents = fit_parents(data, task.graph, recipe, seed=seed, task=task, model=models["full"])
            rows = table1.draw_test_rows(task, column, parents, FIRST.test_rows, seed, "cpu")
            for row, model in models.items():
                drawn = model.sample(rows, seed=Stream(seed, "table1-draw", column)).double().numpy()
                distance = np.sqrt(((drawn - true_step(rows.double().numpy())) ** 2).sum(1))
                cell = found[row, column]
                assert cell["values"][seed] == pytest.approx(100 * distance.mean(), rel=1e-4)
                assert cell["squared"][seed] == pytest.approx(100 * (distance**2).mean(), rel=1e-4)
                assert (cell["paper_mean"], cell["paper_std"]) == table1.PAPER[row][table1.COLUMNS.index(column)]


def test_the_empirical_column_is_recorded_alike_but_held_out() -> None:
    task, parents = Navigation(), fit_parents(Navigation().collect(500, seed=0), Navigation().graph, "emp")
    rows = table1.draw_test_rows(task, "emp", parents, 300, 0, "cpu")
    known = {tuple(row) for row in task.collect(1_000, seed=0).rows.tolist()}
    assert not known & {tuple(row) for row in rows.tolist()}


def test_the_paper_s_preset_is_the_paper_s_setting_but_for_predicting_the_change() -> None:
    preset = Table1.presets["paper"]
    assert replace(preset.dynamics, predict_change=False) == DynamicsConfig.paper() and preset.dynamics.predict_change
    assert (preset.seeds, preset.rows, preset.components) == (5, 40_000, 32)
    second = Table2.presets["paper"].dynamics
    assert second.standardise and replace(second, standardise=False) == preset.dynamics


# Table 2


def test_a_cell_of_an_agent_is_the_mean_of_a_seed_s_last_evaluations(tmp_path: Path) -> None:
    """Agents that learn next to nothing have curves next to constant; here every number is another."""
    runs = {(column, seed): None for column in SECOND.columns for seed in (0, 1)}
    steps = torch.arange(1.0, 49.0).reshape(12, 4)
    policies: Any = Policies(runs, {"steps": steps, "success": steps / 100})  # type: ignore[arg-type]
    for last in (1, 3, 4):
        cells = replace(SECOND, updates=400, last=last).cells("cql", policies)
        for number, cell in enumerate(cells):
            ours, recorded = (steps[first : first + 2, -last:].mean(1).tolist() for first in (2 * number, 0))
            assert cell["values"] == pytest.approx(ours)
            assert cell["success"] == pytest.approx([value / 100 for value in ours], rel=1e-6)
            assert cell["iqm"] == pytest.approx(interquartile_mean(ours))
            assert cell["interval"] == pytest.approx(bootstrap_interval(ours))
            better = probability_of_improvement(ours, recorded, lower_is_better=True)
            assert cell["better_than_emp"] == better == (0.0 if number else 0.5)


def handed_over(settings: Table2, folder: Path) -> dict[str, list[Transitions]]:
    """The data sets that the agents would train on."""
    handed: list[dict[str, list[Transitions]]] = []

    def keep(datasets: dict[str, list[Transitions]], *given: object, **named: object) -> Policies:
        handed.append(datasets)
        raise StopError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiments.stages, "train_agents", keep)
        with pytest.raises(StopError):
            results_of(settings, folder)
    return handed[0]


def test_data_sets_start_with_what_was_recorded_and_go_on_by_the_column_s_recipe_and_model(tmp_path: Path) -> None:
    task, made = Navigation(), handed_over(SECOND, tmp_path)
    assert tuple(made) == table2.COLUMNS
    for seed in (0, 1):
        recorded = task.collect(SECOND.rows, seed=seed)
        model = Dynamics.load(tmp_path / f"dynamics-local-{seed}.safetensors", task.graph)
        for column, tables in made.items():
            data = tables[seed]
            assert len(data) == SECOND.total and same_rows(data[: SECOND.rows], recorded)
            if column == "emp":  # repeated until it is as large
                assert same_rows(data[SECOND.rows :], recorded)
                continue
            recipe = column_recipe(column, components=4, stratified=False)
            parents = fit_parents(recorded, task.graph, recipe, seed=seed, task=task, model=model)
            assert same_rows(data, mocoda.augment(recorded, parents, model, rows=1_500, task=task, seed=seed))


@pytest.mark.parametrize(
    ("column", "change"),
    [("mocoda", {"published_code": True}), ("coda", {"published_code": True}), ("mocoda", {"stratified": True})],
)
def test_variants_draw_from_other_parents(column: str, change: dict[str, Any], tmp_path: Path) -> None:
    task, recorded = Navigation(), Navigation().collect(SECOND.rows, seed=0)
    model = fit_dynamics(recorded[:200], task.graph, seed=9, config=replace(SECOND.dynamics, epochs=1))
    made = replace(SECOND, **change).dataset(task, column, recorded, model, 0)
    recipe = column_recipe(column, components=4, stratified="stratified" in change)
    recipe = published(recipe) if "published_code" in change else recipe
    parents = fit_parents(recorded, task.graph, recipe, seed=0, task=task, model=model)
    assert same_rows(made, mocoda.augment(recorded, parents, model, rows=1_500, task=task, seed=0))
    assert not same_rows(made, SECOND.dataset(task, column, recorded, model, 0))


def test_a_seed_s_cells_do_not_depend_on_how_many_there_are(tmp_path: Path) -> None:
    both, alone = (
        by_place(
            results_of(
                replace(SECOND, agents=SECOND.agents[:1], columns=("emp", "mocoda"), seeds=seeds), tmp_path / str(seeds)
            )
        )
        for seeds in (2, 1)
    )
    assert all(cell["values"] == both[place]["values"][:1] for place, cell in alone.items())
    assert both["optimum", "emp"]["mean"] == pytest.approx(18.5, abs=0.01)


def test_walks_are_those_of_the_first_seed_s_agents_from_the_same_starts(tmp_path: Path) -> None:
    settings = replace(SECOND, agents=SECOND.agents[:1], columns=("emp", "mocoda"))
    results_of(settings, tmp_path)
    task, policies = Navigation(), Policies.load(tmp_path / "agents-td3-bc")
    walked = table2.walk(policies, task, ("mocoda", "emp"), episodes=5)
    for column, path in walked.items():
        starts = path[0]
        assert starts.equal(walked["emp"][0]) and path.shape[1:] == (5, 2)
        action = torch.as_tensor(policies[column, 0].act(starts))
        torch.testing.assert_close(path[1], task.step(torch.cat([starts, action], 1)))


@pytest.mark.parametrize("name", AGENTS)
def test_the_papers_agents_clip_values_to_its_range_and_learn_rewards_as_they_are(name: str) -> None:
    agent = paper_agent(name)
    assert agent.value_range == ((-40.0, 0.0) if name == "cql" else (-50.0, 0.0)) and not agent.scale_rewards
    assert not isinstance(agent, CQL) or (agent.penalty, agent.weight) == ("l1", 0.1)
    assert paper_agent(name, value_range=None, hidden=(3,)).hidden == (3,)


def test_the_cells_of_the_paper_are_those_of_its_tables() -> None:
    printed = {  # Emp, Rand, MoCoDA, MoCoDA-U and CoDA; the table has no Dyna
        "sac": "53.1 ± 9.8, 27.6 ± 1.1, 38.8 ± 18.3, 41.3 ± 17.7, 35.1 ± 18.1",
        "bcq": "58.5 ± 10.1, 31.7 ± 2.4, 22.8 ± 0.4, 24.8 ± 4.2, 25.0 ± 0.4",
        "cql": "45.8 ± 4.0, 27.6 ± 1.3, 22.8 ± 0.2, 22.7 ± 0.3, 23.6 ± 0.5",
        "td3-bc": "40.0 ± 16.1, 26.1 ± 0.8, 21.0 ± 0.7, 20.7 ± 0.8, 21.4 ± 0.6",
    }
    for row, line in printed.items():
        cells: list[Any] = [tuple(map(float, cell.split(" ± "))) for cell in line.split(", ")]
        assert table2.PAPER[row] == (cells[0], None, *cells[1:])
    printed = {  # Emp, MoCoDA, MoCoDA-P, and the last two again, not factored
        "bcq": "2.0 ± 1.6, 20.7 ± 4.1, 64.7 ± 4.1, 14.0 ± 3.3, 15.3 ± 4.1",
        "td3-bc": "0.7 ± 0.9, 38.7 ± 7.5, 84.0 ± 2.8, 29.3 ± 3.8, 26.0 ± 1.6",
    }
    for row, line in printed.items():
        assert table3.PAPER[row] == tuple(tuple(map(float, cell.split(" ± "))) for cell in line.split(", "))


@pytest.mark.parametrize(
    "change",
    [{"columns": ("emp", "mocoda_u")}, {"columns": ("emp", "emp")}, {"columns": ()}, {"last": 3}, {"total": 10}],
    ids=str,
)
def test_settings_of_tables_that_do_not_fit_are_refused(change: dict[str, Any]) -> None:
    for table in (SECOND, THIRD):
        with refused():
            replace(table, **change)


# Published code


def test_true_next_states_follow_the_same_states_and_actions() -> None:
    task = Navigation()
    data = task.collect(300, seed=0)
    wrong = Transitions(data.state, data.action, data.next_state + 1, columns=data.columns)
    truth = published_code.with_true_next_states(task, wrong)
    assert truth.rows.equal(data.rows) and truth.next_state.equal(data.next_state) and truth.reward is not None
    torch.testing.assert_close(truth.reward, task.label(truth.state, truth.action, truth.next_state)[0])


# Table 3


@pytest.fixture(scope="module")
def third(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained(THIRD, tmp_path_factory.mktemp("table3"))


@pytest.fixture(scope="module")
def recorded(third: Trained) -> Transitions:
    return Transitions.load(third.folder / "recorded.hdf5")


def model_of(run: Trained, name: str) -> Dynamics:
    return Dynamics.load(run.folder / f"dynamics-{name}.safetensors", HookSweep2().graph)


@pytest.mark.long
def test_every_data_set_of_table_3_starts_with_what_was_recorded_and_has_goals_of_the_target_task(
    third: Trained, recorded: Transitions
) -> None:
    task, made = HookSweep2(), third.datasets["td3-bc"]
    assert list(made) == list(THIRD.columns) and len(recorded) == THIRD.rows
    assert recorded.rows[:75].equal(task.collect(75, seed=0, variety="varied", workers=0).rows)
    for tables in made.values():
        for data in tables:
            assert len(data) == THIRD.total and data.rows[: THIRD.rows].equal(recorded.rows)
            assert data.goal is not None and data.reward is not None
            assert data.reward.equal(task.label(data.state, data.action, data.next_state, data.goal)[0])
            assert len(data.goal.unique(dim=0)) == len(data)  # no goal is repeated
    for data in made["emp"]:
        whole, times = torch.cat([data.rows, data.next_state], 1).unique(dim=0, return_counts=True)
        assert whole.equal(torch.cat([recorded.rows, recorded.next_state], 1).unique(dim=0))
        assert sorted(times.unique().tolist()) == [2, 3]  # 2,600 rows of 1,100


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
def test_generated_rows_of_table_3_have_the_same_parents_and_the_column_s_own_model(
    third: Trained, recorded: Transitions, seed: int
) -> None:
    task = HookSweep2()
    ours, full = (third.datasets["td3-bc"][column][seed] for column in ("mocoda-p", "mocoda-p-full"))
    assert ours.rows.equal(full.rows) and not ours.next_state[THIRD.rows :].equal(full.next_state[THIRD.rows :])
    parents = THIRD.parent_distributions(task, recorded)["mocoda-p"][seed]
    for data, name in ((ours, "local"), (full, "full")):
        model = model_of(third, f"{name}-{seed}")
        made = mocoda.augment(recorded, parents, model, rows=THIRD.total - THIRD.rows, task=task, seed=seed)
        assert data.rows.equal(made.rows) and data.next_state.equal(made.next_state)


@pytest.mark.long
def test_goals_and_rewards_never_enter_dynamics_and_parents(third: Trained, recorded: Transitions) -> None:
    bare = Transitions(recorded.state, recorded.action, recorded.next_state, columns=recorded.columns)
    alone = fit_dynamics(bare, HookSweep2().graph, "local", seed=1, config=THIRD.dynamics)
    found = model_of(third, "local-1")
    assert all(weight.equal(found.weights[name]) for name, weight in alone.weights.items())
    settings = replace(THIRD, seeds=1, columns=("mocoda",))
    one, other = (settings.parent_distributions(HookSweep2(), data)["mocoda"][0] for data in (recorded, bare))
    assert one.sample(50, seed=3).equal(other.sample(50, seed=3))


@pytest.mark.long
def test_the_truth_of_table_3_is_about_all_models_columns_and_edges(third: Trained) -> None:
    truth = third.results["truth"]
    errors = {(cell["data"], cell["architecture"], cell["factor"]) for cell in truth["model_errors_mm"]}
    assert len(errors) == 2 * 2 * 3 and all(len(cell["values"]) == 2 for cell in truth["model_errors_mm"])
    assert [cell["data"] for cell in truth["confirmed_by_the_simulator"]] == ["recorded", *THIRD.columns[1:]]
    for mask in truth["mask"].values():
        for edge in mask["edges"]:
            assert edge["edges"] - edge["false_positives"] == edge["touched"] - edge["false_negatives"]


def test_a_cell_of_table_3_says_how_far_from_their_goals_boxes_ended() -> None:
    runs = {(column, seed): None for column in THIRD.columns for seed in (0, 1)}
    policies: Any = Policies(runs, {"success": torch.arange(24.0).reshape(6, 4) / 24})  # type: ignore[arg-type]
    success = np.array([[0, 1], [1, 1], [0, 0], [0, 1], [0, 0], [1, 1]], np.float32)
    end = np.zeros((6, 2, 22), np.float32)  # all goals are at 0, and so are the heights that do not count
    end[..., [8, 13]] = 9.0
    end[..., 6], end[..., 7] = 0.3, 0.4  # box 1 is half a metre off
    end[3, 1, 12], end[3, 1, 20] = 0.1, 0.4  # and box 2 in one episode 0.3
    fields: Any = dict.fromkeys(Played._fields) | {"success": success, "last": end}
    played = Played(**fields)
    made = replace(THIRD, evaluations=4, last=1).cells("td3-bc", policies, played)
    values = [value for cell in made for value in cell["values"]]
    assert values == pytest.approx([100 * number / 24 for number in (3, 7, 11, 15, 19, 23)])
    assert [cell["final_success"] for cell in made] == [[50, 100], [0, 50], [0, 100]]
    distances = [metres for cell in made for metres in cell["final_distance"]]
    assert distances == pytest.approx([0.25, 0.25, 0.25, 0.325, 0.25, 0.25])


# Scarcity


@pytest.mark.long
def test_scarce_models_are_fitted_to_the_first_rows_of_one_recording(tmp_path: Path) -> None:
    run = trained(SCARCE, tmp_path)
    recorded = Transitions.load(run.folder / "recorded.hdf5")
    assert len(recorded) == max(SCARCE.sizes)
    for size in SCARCE.sizes:
        alone = fit_dynamics(recorded[:size], HookSweep2().graph, "full", seed=1, config=SCARCE.dynamics)
        together = model_of(run, f"full-{size}-1")
        assert all(weight.equal(together.weights[name]) for name, weight in alone.weights.items())
        ours, full = (run.datasets["td3-bc"][f"{name}-{size}"][0] for name in ("local", "full"))
        assert len(ours) == len(full) == SCARCE.total and ours.rows.equal(full.rows)
        assert ours.rows[:size].equal(recorded.rows[:size])
        assert not ours.next_state[size:].equal(full.next_state[size:])


def test_errors_of_scarce_models_are_the_mean_of_both_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    def errors(models: dict[str, list[Dynamics]], tests: dict[str, Transitions]) -> list[dict[str, Any]]:
        values = {"gripper": [99.0, 99.0], "box1": [1.0, 2.0], "box2": [3.0, 6.0]}
        return [{"data": data, "factor": factor, "values": own} for data in tests for factor, own in values.items()]

    monkeypatch.setattr(scarcity, "model_errors", errors)
    runs = {("full-400", seed): None for seed in (0, 1)}
    policies: Any = Policies(runs, {"success": torch.tensor([[0.0, 1.0], [0.0, 0.5]])})  # type: ignore[arg-type]
    models: Any = dict.fromkeys([(400, 0), (400, 1)])
    point = SCARCE.point(400, "full", models, policies, dict.fromkeys(("one", "two")))  # type: ignore[arg-type]
    assert point["error_one"] == point["error_two"] == [2.0, 4.0] and point["success"] == [100.0, 50.0]


@pytest.mark.parametrize("change", [{"sizes": ()}, {"sizes": (5, 5)}, {"sizes": (5, 0)}, {"total": 1_000}], ids=str)
def test_sizes_that_cannot_be_are_refused(change: dict[str, Any]) -> None:
    with refused():
        replace(SCARCE, **change)
