"""Tables 1 to 3 and what is made of their data: every number against one that was computed again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from experiment_contract import results_of
from tiny_experiments import AGENT, TINY

import experiments.stages
import mocoda
from experiments import table1, table2, table3
from experiments.columns import Column, column_data, column_recipe
from experiments.diffusion import DiffusionConfig, fit_diffusion
from experiments.experiment import by_place
from experiments.stages import paper_agent
from experiments.table1 import Table1
from experiments.table2 import Table2
from experiments.table3 import Table3
from mocoda import (
    Dynamics,
    InputError,
    Policies,
    Transitions,
    fit_dynamics,
    fit_parents,
    make_recipe,
    train_agents,
)
from mocoda.agents import CQL
from mocoda.agents.agent import AGENTS
from mocoda.engine.randomness import Stream
from mocoda.parents import RECIPES
from mocoda.tasks.hooksweep import HookSweep2
from mocoda.tasks.navigation import Navigation

FIRST: Table1 = TINY["table1"]
SECOND: Table2 = TINY["table2"]
THIRD: Table3 = TINY["table3"]


class Trained(NamedTuple):
    """Results, where they were measured, and the data sets that each agent was given."""

    results: dict[str, Any]
    folder: Path
    datasets: dict[str, list[Transitions]]  # by column


def trained(experiment: Any, folder: Path) -> Trained:
    datasets: dict[str, list[Transitions]] = {}

    def keep(given: Mapping[str, list[Transitions]], agent: mocoda.Agent, **options: Any) -> Policies:
        datasets.update(given)
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


# Table 2


def curves(columns: Sequence[str], **measured: torch.Tensor) -> Policies:
    runs = {(column, seed): None for column in columns for seed in (0, 1)}
    return Policies(runs, {"updates": torch.arange(100, 500, 100), **measured})  # type: ignore[arg-type]


def test_a_cell_of_an_agent_is_the_mean_of_a_seed_s_last_evaluations() -> None:
    """Agents that learn next to nothing have curves next to constant; here every number is another."""
    steps = torch.arange(1.0, 9.0).reshape(2, 4)
    policies = curves(["mocoda"], steps=steps, success=steps / 100)
    for last in (1, 3, 4):
        made = replace(SECOND, updates=400, last=last).cell("cql", "mocoda", policies)
        ours = steps[:, -last:].mean(1).tolist()
        assert made["values"] == pytest.approx(ours) and made["paper_mean"] == 22.8
        assert made["success"] == pytest.approx([value / 100 for value in ours], rel=1e-6)
        assert made["curve"]["mean"] == [3.0, 4.0, 5.0, 6.0] and made["curve"]["high"] == [5.0, 6.0, 7.0, 8.0]


def test_data_sets_start_with_what_was_recorded_and_go_on_by_the_column_s_recipe_and_model(tmp_path: Path) -> None:
    settings = replace(SECOND, seeds=1, columns=table2.COLUMNS, agents={"td3-bc": AGENT}, updates=100)
    task, made = Navigation(), trained(settings, tmp_path).datasets
    assert tuple(made) == table2.COLUMNS
    recorded = task.collect(SECOND.rows, seed=0)
    for column, (data,) in made.items():
        assert len(data) == SECOND.total and data.reward is not None
        if column != "target":
            assert same_rows(data[: SECOND.rows], recorded)
        if column in ("mopo", "target"):
            continue
        reward, terminal = task.label(data.state, data.action, data.next_state)
        assert data.reward.equal(reward) and data.terminal.equal(terminal)
        if column in RECIPES or column == "mocoda-full":
            kind = Column.of(column).architecture
            model = Dynamics.load(tmp_path / f"dynamics-{kind}-0.safetensors", task.graph)
            recipe = column_recipe(column, components=4)
            parents = fit_parents(recorded, task.graph, recipe, seed=0, task=task, model=model)
            assert same_rows(data, mocoda.augment(recorded, parents, model, rows=1_500, task=task, seed=0))


def test_the_default_column_is_the_recipe_as_it_is_shipped() -> None:
    assert column_recipe("default", components=3, acceptance=0.5) == make_recipe("mocoda")
    assert {"default", "diffusion", "noise", "mopo", "target", "dyna", "rand"} <= {*table2.COLUMNS} & {*table3.COLUMNS}


def test_noise_moves_states_a_little_and_mopo_s_penalty_only_lowers_rewards(tmp_path: Path) -> None:
    task, recorded = Navigation(), Navigation().collect(SECOND.rows, seed=0)
    model = fit_dynamics(recorded, task.graph, "full", seed=0, config=SECOND.dynamics)
    plain, mopo, noisy = (
        column_data(column, recorded, task, model, rows=500, seed=0) for column in ("dyna", "mopo", "noise")
    )
    assert plain.reward is not None and mopo.reward is not None and plain.rows.equal(mopo.rows)
    assert mopo.reward[:1_500].equal(plain.reward[:1_500]) and (mopo.reward < plain.reward)[1_500:].all()
    near = torch.cdist(noisy.rows[1_500:].double(), recorded.rows.double()).amin(1)
    assert float(near.min()) > 0 and float(near.max()) < 0.05


def test_only_what_is_asked_for_is_measured_and_the_rest_later(tmp_path: Path) -> None:
    settings = replace(SECOND, agents={"td3-bc": AGENT}, columns=("emp", "coda", "noise"))
    first = results_of(settings, tmp_path, only=("td3-bc", "coda"))
    assert [cell["column"] for cell in first["cells"] if cell["row"] != "optimum"] == ["coda"]
    whole, alone = results_of(settings, tmp_path), results_of(settings, tmp_path / "alone")
    assert [cell["column"] for cell in whole["cells"] if cell["row"] != "optimum"] == ["emp", "coda", "noise"]
    assert [cell["values"] for cell in whole["cells"]] == [cell["values"] for cell in alone["cells"]]


def test_walks_of_the_target_task_end_in_its_goal() -> None:
    task, data = Navigation(), table2.walked_to_the_goal(Navigation(), 2_000, seed=3)
    assert len(data) == 2_000 and data.next_state.equal(task.step(data.rows)) and data.terminal.sum() > 20
    follows = (data.next_state[:-1] == data.state[1:]).all(1)
    assert (follows | data.terminal[:-1]).float().mean() > 0.98


# The diffusion model


def test_samples_of_the_diffusion_model_have_the_data_s_moments_and_its_dynamics() -> None:
    """Two blobs of states, of which the action moves only one: a model of the mean would put rows in between."""
    stream = Stream(0, "diffusion-test")
    left = stream.uniform(4_000) < 0.3
    state = torch.where(left, -2.0, 1.0) + 0.1 * stream.normal(4_000)
    action = stream.normal(4_000)
    data = Transitions(state[:, None], action[:, None], (state + action * left)[:, None])
    config = DiffusionConfig(hidden=(64, 64), updates=600, batch=256, learning_rate=3e-3, average=0.98, steps=20)
    (parents,) = fit_diffusion([data], [0], config)
    rows, next_state = parents.sample_with_children(4_000, seed=1)
    there = rows[:, 0] < -0.5
    assert float(there.float().mean()) == pytest.approx(0.3, abs=0.08)
    assert float((rows[:, 0] - torch.where(there, -2.0, 1.0)).abs().median()) < 0.25
    moved = (next_state - rows[:, :1])[:, 0]
    assert float((moved - rows[:, 1] * there).abs().median()) < 0.2
    assert parents.sample(10, seed=1).shape == (10, 2)


def test_a_seed_s_cells_do_not_depend_on_how_many_there_are(tmp_path: Path) -> None:
    both, alone = (
        by_place(
            results_of(
                replace(SECOND, agents={"td3-bc": AGENT}, columns=("emp", "mocoda"), seeds=seeds), tmp_path / str(seeds)
            )
        )
        for seeds in (2, 1)
    )
    assert all(cell["values"] == both[place]["values"][:1] for place, cell in alone.items())
    assert both["optimum", "emp"]["mean"] == pytest.approx(18.5, abs=0.01)


@pytest.mark.parametrize("name", AGENTS)
def test_the_papers_agents_clip_values_to_its_range_and_learn_rewards_as_they_are(name: str) -> None:
    agent = paper_agent(name)
    assert agent.value_range == ((-40.0, 0.0) if name == "cql" else (-50.0, 0.0)) and not agent.scale_rewards
    assert not isinstance(agent, CQL) or (agent.penalty, agent.weight) == ("l1", 0.1)
    assert paper_agent(name, value_range=None, hidden=(3,)).hidden == (3,)


# Table 3


@pytest.fixture(scope="module")
def third(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained(THIRD, tmp_path_factory.mktemp("table3"))


@pytest.fixture(scope="module")
def recorded(third: Trained) -> Transitions:
    return Transitions.load(third.folder / "recorded-0.hdf5")


@pytest.mark.long
def test_every_data_set_of_table_3_starts_with_what_was_recorded_and_has_goals_of_the_target_task(
    third: Trained, recorded: Transitions
) -> None:
    task, made = HookSweep2(), third.datasets
    assert list(made) == list(THIRD.columns) and len(recorded) == THIRD.rows
    assert recorded.rows[:75].equal(task.collect(75, seed=0, variety="varied", workers=0).rows)
    for sets in made.values():
        for data in sets:
            assert len(data) == THIRD.total and data.rows[: THIRD.rows].equal(recorded.rows)
            assert data.goal is not None and data.reward is not None
            assert data.reward.equal(task.label(data.state, data.action, data.next_state, data.goal)[0])
            assert len(data.goal.unique(dim=0)) == len(data)  # no goal is repeated
    for data in made["emp"]:
        whole, times = torch.cat([data.rows, data.next_state], 1).unique(dim=0, return_counts=True)
        assert whole.equal(torch.cat([recorded.rows, recorded.next_state], 1).unique(dim=0))
        assert sorted(times.unique().tolist()) == [2, 3]  # 2,600 rows of 1,100
    ours, full = (made[column][1] for column in ("mocoda-p", "mocoda-p-full"))
    assert ours.rows.equal(full.rows) and not ours.next_state[THIRD.rows :].equal(full.next_state[THIRD.rows :])


@pytest.mark.long
def test_other_columns_of_table_3_are_made_as_well(tmp_path: Path) -> None:
    """CoDA with the mask of what can touch finds boxes to exchange; with the paper's mask there is nothing."""
    settings = replace(THIRD, columns=("coda", "diffusion", "mopo", "target"), recordings=2)
    made, task = trained(settings, tmp_path).datasets, HookSweep2()
    recorded = [Transitions.load(tmp_path / f"recorded-{seed}.hdf5") for seed in (0, 1)]
    assert not recorded[0].rows.equal(recorded[1].rows)
    for column, sets in made.items():
        for own, data in zip(recorded, sets, strict=True):
            assert len(data) == THIRD.total and data.rows[: THIRD.rows].equal(own.rows) == (column != "target")
    new = made["coda"][0][THIRD.rows :]
    old = recorded[0].rows[:, 6:11].unique(dim=0)
    assert len(torch.cat([old, new.rows[:, 6:11]]).unique(dim=0)) == len(old)  # boxes are recorded ones
    with pytest.raises(InputError, match="found 0 of"):
        fit_parents(recorded[0], task.graph, "coda").sample(10, seed=0)


@pytest.mark.long
def test_the_truth_of_table_3_is_about_all_models_columns_and_edges(third: Trained) -> None:
    truth = third.results["truth"]
    errors = {(cell["data"], cell["architecture"], cell["factor"]) for cell in truth["model_errors_mm"]}
    assert len(errors) == 2 * 2 * 3 and all(len(cell["values"]) == 2 for cell in truth["model_errors_mm"])
    assert [cell["data"] for cell in truth["confirmed_by_the_simulator"]] == list(THIRD.columns)
    for mask in (*truth["mask"].values(), *truth["contact_mask"].values()):
        for edge in mask["edges"]:
            assert edge["edges"] - edge["false_positives"] == edge["touched"] - edge["false_negatives"]
