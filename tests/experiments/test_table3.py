"""Table 3 as a program, at a size that takes no time."""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from drawn_figures import drawn_figures
from experiment_contract import StopAt, by_place, check_experiment, files_in

import experiments.stages
import mocoda
from experiments import run_experiment, table3
from experiments.stages import begun
from experiments.table3 import IN_PAPER, PAPER, Measured3, Table3
from experiments.table3.figure import draw_figures
from mocoda import Dynamics, DynamicsConfig, InputError, Policies, Transitions, fit_dynamics, make_agent, train_agents
from mocoda.engine.statistics import bootstrap_interval, probability_of_improvement
from mocoda.tasks.hooksweep import HookSweep2
from mocoda.tasks.hooksweep_env import GOAL

SMALL: dict[str, Any] = {"hidden": (16,), "batch": 32, "learning_rate": 0.01, "polyak": 0.1}
TINY = replace(
    Table3.presets["quick"],
    preset="tiny",
    dynamics=DynamicsConfig(
        members=2, hidden=(16, 16), features=8, epochs=2, epoch_rows=512, batch=128, validation=200, window=1
    ),
    agents=(make_agent("td3-bc", **SMALL, decay=True, standardise=True), make_agent("sac", **SMALL)),
    updates={"td3-bc": 40, "sac": 20},
    evaluations=2,
    columns=("emp", "mocoda-p", "mocoda-p-full"),
    rows=1_100,  # of one part of the recording
    total=2_600,
    episodes=1,
    last=1,
    final_episodes=2,
    expert_episodes=6,  # of which one sweeps box 1
    confirmed_rows=40,
    components=4,
)
ROWS = ("td3-bc", "sac")


class Run(NamedTuple):
    """A table, where it was measured, and the data sets that each agent was given."""

    measured: Measured3
    folder: Path
    datasets: dict[str, Mapping[str, list[Transitions]]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """As `mocoda paper table3` does it."""
    folder = tmp_path_factory.mktemp("table3")
    datasets: dict[str, Mapping[str, list[Transitions]]] = {}

    def keep(given: Mapping[str, list[Transitions]], agent: mocoda.Agent, **options: Any) -> Policies:
        datasets[agent.name] = given
        return train_agents(given, agent, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiments.stages, "train_agents", keep)
        measured, _ = run_experiment(TINY, folder, workers=0)
    return Run(measured, folder, datasets)


STAGES = sorted(
    [
        "recorded.hdf5",
        *(f"dynamics-{model}-{seed}.safetensors" for model in ("local", "full") for seed in (0, 1)),
        *(f"agents-{row}/agents.json" for row in ROWS),
        *(
            f"agents-{row}/policy-{column}-{seed}.safetensors"
            for row in ROWS
            for column in TINY.columns
            for seed in (0, 1)
        ),
    ]
)


@pytest.fixture(scope="module")
def recorded(run: Run) -> Transitions:
    return Transitions.load(run.folder / "recorded.hdf5")


def model(run: Run, architecture: str, seed: int) -> Dynamics:
    return Dynamics.load(run.folder / f"dynamics-{architecture}-{seed}.safetensors", HookSweep2().graph)


# Measuring


def test_the_results_keep_the_contract_and_have_every_cell_beside_the_paper_s(run: Run, tmp_path: Path) -> None:
    results = run.measured.results
    printed = check_experiment(TINY, run.measured, tmp_path)
    stages = [stage for agent in ROWS for stage in (agent, f"{agent} episodes")]
    assert list(results["seconds_by_stage"]) == ["recording", "dynamics", "parents", "data", *stages, "expert", "truth"]
    assert results["resumed"] is False
    found = by_place(results)
    assert list(found) == [(row, column) for row in (*ROWS, "expert") for column in TINY.columns]
    for (row, column), cell in found.items():
        if row == "expert":
            assert cell["values"] == [cell["mean"]] == [results["expert"]["two plain"]["both"]]
            continue
        assert len(cell["values"]) == len(cell["final_success"]) == len(cell["final_distance"])
        assert len(cell["values"]) == 2
        assert cell["interval"] == pytest.approx(bootstrap_interval(cell["values"]), rel=1e-9)
        paper = PAPER[row][IN_PAPER.index(column)] if row in PAPER else (None, None)
        assert (cell["paper_mean"], cell["paper_std"]) == paper
        better = probability_of_improvement(cell["values"], found[row, "emp"]["values"], lower_is_better=False)
        assert cell["better_than_emp"] == pytest.approx(better)
        assert f"{cell['mean']:.1f} ± {cell['std']:.1f}" in printed
    check_truth(results)


def check_truth(results: dict[str, Any]) -> None:
    """Looks at the results about the recorded data, the expert, the models and the mask."""
    config, truth = results["config"], results["truth"]
    recorded = results["recorded"]
    assert (recorded["task"], recorded["rows"], recorded["seed"]) == ("hooksweep2", config["rows"], 0)
    assert recorded["variety"] == config["variety"] and recorded["episodes"] > recorded["dropped"] >= 0
    assert list(results["expert"]) == ["one plain", "one varied", "two plain"]
    for shares in results["expert"].values():
        assert 0 <= shares["both"] <= min(shares["swept"], shares["left"]) <= 100
    architectures = dict.fromkeys("full" if column.endswith("-full") else "local" for column in config["columns"])
    data = ("place one", "place two")
    errors = {(cell["data"], cell["architecture"], cell["factor"]): cell for cell in truth["model_errors_mm"]}
    assert set(errors) == {(d, a, f) for d in data for a in architectures for f in ("gripper", "box1", "box2")}
    assert all(len(cell["values"]) == config["seeds"] and cell["mean"] > 0 for cell in errors.values())
    confirmed = {cell["data"]: cell for cell in truth["confirmed_by_the_simulator"]}
    assert list(confirmed) == ["recorded", *(column for column in config["columns"] if column != "emp")]
    for cell in confirmed.values():
        assert cell["rows"] == config["confirmed_rows"] and 0 <= cell["confirmed"] <= 100
    assert list(truth["mask"]) == list(data)
    for mask in truth["mask"].values():
        assert mask["rows"] == 75 * config["expert_episodes"]
        for edge in mask["edges"]:
            assert edge["edges"] - edge["false_positives"] == edge["touched"] - edge["false_negatives"]


def test_what_was_trained_comes_along(run: Run) -> None:
    measured = run.measured
    assert tuple(measured.policies) == tuple(measured.played) == ROWS
    for agent, updates in zip(TINY.agents, ([20, 40], [10, 20]), strict=True):
        policies = measured.policies[agent.name]
        assert list(policies) == [(column, seed) for column in TINY.columns for seed in (0, 1)]
        assert {policy.agent for policy in policies.values()} == {agent}
        assert {policy.state_width for policy in policies.values()} == {22}  # state and goal
        assert policies.curves["updates"].tolist() == updates
        assert measured.played[agent.name].success.shape == (len(policies), 2)
    assert list(measured.boxes) == list(TINY.columns)
    assert {tuple(boxes.shape) for boxes in measured.boxes.values()} == {(TINY.total, 4)}


def test_a_cell_is_the_mean_of_a_seed_s_last_evaluations_in_percent(run: Run) -> None:
    """Agents that learn next to nothing all fail alike; here every number is another."""
    success = torch.arange(24.0).reshape(6, 4) / 24
    policies = Policies(run.measured.policies["td3-bc"], {"updates": torch.arange(4), "success": success})
    for last in (1, 3, 4):
        settings = replace(TINY, evaluations=4, last=last)
        for number, cell in enumerate(settings.cells("td3-bc", policies, run.measured.played["td3-bc"])):
            ends = (8 * number + 4, 8 * number + 8)  # of the two seeds
            own = [100 * statistics.fmean(range(end - last, end)) / 24 for end in ends]
            assert cell["values"] == pytest.approx(own)
            assert cell["better_than_emp"] == (1.0 if number else 0.5)


def test_a_cell_says_how_the_trained_agents_did_and_how_far_from_their_goals_boxes_ended(run: Run) -> None:
    success = np.array([[0, 1], [1, 1], [0, 0], [0, 1], [0, 0], [1, 1]], np.float32)
    end = np.zeros((6, 2, 22), np.float32)  # all goals are at 0, and so are the heights that do not count
    end[..., [8, 13]] = 9.0
    end[..., 6], end[..., 7] = 0.3, 0.4  # box 1 is half a metre off
    end[3, 1, 12], end[3, 1, 20] = 0.1, 0.4  # and box 2 in one episode 0.3
    played = run.measured.played["td3-bc"]._replace(success=success, last=end)
    made = TINY.cells("td3-bc", run.measured.policies["td3-bc"], played)
    assert [cell["final_success"] for cell in made] == [[50, 100], [0, 50], [0, 100]]
    distances = [metres for cell in made for metres in cell["final_distance"]]
    assert distances == pytest.approx([0.25, 0.25, 0.25, 0.325, 0.25, 0.25])


# The data


def test_what_is_recorded_is_the_task_s_and_no_parts_are_left(run: Run, recorded: Transitions) -> None:
    expected = HookSweep2().collect(75, seed=0, variety="varied", workers=0)
    assert len(recorded) == TINY.rows and recorded.rows[:75].equal(expected.rows)
    assert recorded.source["variety"] == "varied" and dict(recorded.source) == run.measured.results["recorded"]
    kept = [name for name in files_in(run.folder) if name.endswith((".safetensors", ".hdf5", "agents.json"))]
    assert kept == STAGES and not (run.folder / "recording").exists()


def test_every_data_set_starts_with_what_was_recorded_and_is_labelled_with_goals_of_the_target_task(
    run: Run, recorded: Transitions
) -> None:
    task = HookSweep2()
    assert list(run.datasets) == list(ROWS)
    for column, tables in run.datasets["td3-bc"].items():
        assert len(tables) == 2 and run.datasets["sac"][column] == tables
        for data in tables:
            assert len(data) == TINY.total
            assert data.rows[: TINY.rows].equal(recorded.rows) and data.next_state[: TINY.rows].equal(
                recorded.next_state
            )
            assert data.goal is not None and data.reward is not None
            shift = data.goal.unflatten(1, (2, 3)) - torch.tensor(GOAL, dtype=torch.float32)
            assert float((shift[:, 0] - shift[:, 1]).abs().max()) < 1e-6  # both boxes are to go the same way
            assert data.reward.equal(task.label(data.state, data.action, data.next_state, data.goal)[0])
            assert len(data.goal.unique(dim=0)) == len(data)  # no goal is repeated


def test_the_empirical_data_set_is_the_recorded_rows_again_and_again_with_other_goals(
    run: Run, recorded: Transitions
) -> None:
    for data in run.datasets["td3-bc"]["emp"]:
        whole, times = torch.cat([data.rows, data.next_state], 1).unique(dim=0, return_counts=True)
        assert whole.equal(torch.cat([recorded.rows, recorded.next_state], 1).unique(dim=0))
        assert sorted(times.unique().tolist()) == [2, 3]  # 2,600 rows of 1,100
    first, second = run.datasets["td3-bc"]["emp"]
    assert first.goal is not None and second.goal is not None and not first.goal.equal(second.goal)


@pytest.mark.parametrize("seed", [0, 1])
def test_generated_rows_are_of_the_same_parents_and_go_on_by_the_column_s_own_model(
    run: Run, recorded: Transitions, seed: int
) -> None:
    ours, full = (run.datasets["td3-bc"][column][seed] for column in ("mocoda-p", "mocoda-p-full"))
    assert ours.rows.equal(full.rows)
    made = slice(TINY.rows, None)
    assert not ours.next_state[made].equal(full.next_state[made])
    task = HookSweep2()
    parents = TINY.parent_distributions(task, recorded)["mocoda-p"][seed]
    for data, architecture in ((ours, "local"), (full, "full")):
        expected = mocoda.augment(
            recorded, parents, model(run, architecture, seed), rows=TINY.total - TINY.rows, task=task, seed=seed
        )
        assert data.rows.equal(expected.rows) and data.next_state.equal(expected.next_state)
        assert data.source["model"] == model(run, architecture, seed).settings
    assert not ours.rows[made].equal(run.datasets["td3-bc"]["mocoda-p"][1 - seed].rows[made])


@pytest.mark.parametrize("architecture", ["local", "full"])
def test_goals_and_rewards_never_enter_the_dynamics(run: Run, recorded: Transitions, architecture: str) -> None:
    bare = Transitions(recorded.state, recorded.action, recorded.next_state, columns=recorded.columns)
    alone = fit_dynamics(bare, HookSweep2().graph, architecture, seed=1, config=TINY.dynamics)
    found = model(run, architecture, 1)
    assert all(weight.equal(found.weights[name]) for name, weight in alone.weights.items())
    assert found.scaling["input_shift"].shape == (20,) and found.scaling["target_shift"].shape == (16,)


def test_nor_do_they_enter_the_parents(recorded: Transitions) -> None:
    bare = Transitions(recorded.state, recorded.action, recorded.next_state, columns=recorded.columns)
    settings = replace(TINY, seeds=1, columns=("mocoda",))
    one, other = (settings.parent_distributions(HookSweep2(), data)["mocoda"][0] for data in (recorded, bare))
    assert one.sample(50, seed=3).equal(other.sample(50, seed=3))


def test_parents_are_fitted_once_for_both_models(recorded: Transitions) -> None:
    settings = replace(TINY, columns=("mocoda", "mocoda-full", "emp"))
    parents = settings.parent_distributions(HookSweep2(), recorded)
    assert {recipe: len(seeds) for recipe, seeds in parents.items()} == {"mocoda": 2, "emp": 2}


# Writing


def test_the_curves_are_written_by_agent_data_and_seed_in_percent(run: Run) -> None:
    written = json.loads((run.folder / "table3-curves.json").read_text("utf-8"))["agents"]
    assert tuple(written) == ROWS
    for name, policies in run.measured.policies.items():
        assert written[name]["updates"] == policies.curves["updates"].tolist()
        assert list(written[name]["success"]) == list(TINY.columns)
        for place, (column, seed) in enumerate(policies):
            curve = 100 * policies.curves["success"][place]
            assert written[name]["success"][column][seed] == pytest.approx(curve.tolist(), abs=0.05)


def test_the_evidence_is_readable_without_pickle_and_has_what_the_figures_show(run: Run, tmp_path: Path) -> None:
    """Agents that learn next to nothing all fail alike; here every number is another."""
    played = {
        row: made._replace(success=np.arange(made.success.size, dtype=np.float32).reshape(made.success.shape))
        for row, made in run.measured.played.items()
    }
    with drawn_figures():
        TINY.write(replace(run.measured, played=played), tmp_path)
    with np.load(tmp_path / "table3-evidence.npz", allow_pickle=False) as arrays:
        evidence = {name: arrays[name] for name in arrays.files}
    named = {f"{what}/{row}/{column}" for what in ("success", "last") for row in ROWS for column in TINY.columns}
    assert set(evidence) == named | {f"boxes/{column}" for column in TINY.columns}
    for row in ROWS:
        for number, column in enumerate(TINY.columns):
            own = slice(2 * number, 2 * (number + 1))
            first = 4 * number  # episodes of the columns before
            assert evidence[f"success/{row}/{column}"].tolist() == list(range(first, first + 4))
            assert np.array_equal(evidence[f"last/{row}/{column}"], played[row].last[own].reshape(4, 22))
    for column in TINY.columns:
        assert np.array_equal(evidence[f"boxes/{column}"], run.measured.boxes[column].numpy())


def test_the_figures_are_drawn_again_from_the_files_alone(run: Run, tmp_path: Path) -> None:
    for name in TINY.outputs[:3]:
        (tmp_path / name).write_bytes((run.folder / name).read_bytes())
    draw_figures(tmp_path, TINY.outputs)
    for name in TINY.outputs[3:]:
        assert (tmp_path / name).read_bytes() == (run.folder / name).read_bytes(), name


# Continuing


@pytest.mark.long
def test_the_same_command_takes_everything_from_its_folder_and_measures_the_same(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(run.folder, tmp_path / "again"))
    for owner, name in (
        (experiments.stages, "fit_dynamics_runs"),
        (experiments.stages, "train_agents"),
        (HookSweep2, "collect"),
    ):
        monkeypatch.setattr(owner, name, lambda *given, **named: pytest.fail("made again"))
    progress = StopAt()
    with drawn_figures():
        again = TINY.run(device="cpu", folder=folder, workers=0, progress=progress).results
    for key in ("cells", "expert", "truth", "recorded", "config"):
        assert again[key] == run.measured.results[key], key
    assert again["resumed"] is True
    assert [stage for stage, *_ in progress.steps] == ["data sets"] * 3


@pytest.mark.parametrize("name", ["recorded.hdf5", "recording/part-5.npz", "dynamics-local-0.safetensors"])
def test_whatever_stage_is_in_the_folder_the_seconds_are_not_those_of_the_whole(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    assert not begun(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    assert begun(tmp_path)


# Refusing


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"last": 0}, "last must be a number of evaluations, from 1 to 2, got 0."),
        ({"last": 3}, "last must be a number of evaluations, from 1 to 2, got 3."),
        (
            {"updates": {"td3-bc": 40}},
            "updates must give sac at least one for each of the 2 evaluations, got None.",
        ),
        (
            {"updates": {"td3-bc": 1, "sac": 20}},
            "updates must give td3-bc at least one for each of the 2 evaluations, got 1.",
        ),
        ({"total": 10}, "total must be at least the number of recorded rows, got 10 and 1100."),
        (
            {"columns": ("emp", "mocoda-full-p")},
            f"there is no column 'mocoda-full-p'; there are: {', '.join(table3.COLUMNS)}. Did you mean 'mocoda-full'?",
        ),
        (
            {"columns": ("x",)},
            f"there is no column 'x'; there are: {', '.join(table3.COLUMNS)}.",
        ),
        ({"columns": ("emp", "emp")}, "columns must name each data set once, and at least one, got ['emp', 'emp']."),
        ({"columns": ()}, "columns must name each data set once, and at least one, got []."),
    ],
)
def test_settings_that_cannot_be_are_refused_in_full(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        replace(TINY, **change)
    assert str(caught.value) == message


# The paper


def test_the_paper_s_cells_are_those_of_its_table() -> None:
    assert IN_PAPER == ("emp", "mocoda", "mocoda-p", "mocoda-full", "mocoda-p-full")
    printed = {  # Emp, MoCoDA, MoCoDA-P, and the last two again, not factored
        "bcq": "2.0 ± 1.6, 20.7 ± 4.1, 64.7 ± 4.1, 14.0 ± 3.3, 15.3 ± 4.1",
        "td3-bc": "0.7 ± 0.9, 38.7 ± 7.5, 84.0 ± 2.8, 29.3 ± 3.8, 26.0 ± 1.6",
    }
    assert set(PAPER) == set(printed)
    for row, line in printed.items():
        assert PAPER[row] == tuple(tuple(map(float, cell.split(" ± "))) for cell in line.split(", "))


def test_the_paper_s_preset_has_the_paper_s_sizes() -> None:
    preset = Table3.presets["paper"]
    assert (preset.seeds, preset.rows, preset.total) == (3, 1_000_000, 5_000_000)
    assert tuple(column for column in preset.columns if "matched" not in column) == IN_PAPER
    assert [agent.name for agent in preset.agents] == list(PAPER)
    assert set(preset.updates) == set(PAPER)
    assert preset.last == 50 and preset.density_floor == 0.05
    assert all(updates % preset.evaluations == 0 for updates in preset.updates.values())
    assert all(agent.hidden == (512, 512, 512) for agent in preset.agents)
