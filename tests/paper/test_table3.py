"""Table 3 as a program, at a size that takes no time, and the numbers that are committed."""

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
import rich.console
import torch
from committed_results import RESULTS, committed

import mocoda.cli
import mocoda.cli.console
import mocoda.cli.verbs
import mocoda.paper.table1
import mocoda.paper.table3
from mocoda import Dynamics, DynamicsConfig, InputError, Policies, Transitions, fit_dynamics, make_agent, train_agents
from mocoda.agents.policy import agent_settings
from mocoda.engine.files import versions
from mocoda.engine.optimise import device_name
from mocoda.engine.runs import RunFolder
from mocoda.engine.statistics import bootstrap_interval, probability_of_improvement
from mocoda.paper.experiment import preset
from mocoda.paper.table3 import METRIC, OUTPUTS, PAPER, PRESETS, Measured3, begun, draw, fitted_parents, table3, write
from mocoda.tasks.hooksweep import HookSweep2
from mocoda.tasks.hooksweep_env import GOAL

COLUMNS = ("emp", "mocoda", "mocoda-p", "mocoda-full", "mocoda-p-full")
KEYS = {
    *("table", "preset", "metric", "device", "seconds", "seconds_by_stage", "resumed", "versions", "config", "cells"),
    *("recorded", "expert", "truth"),
}
EXPERT_KEYS = {"row", "column", "values", "mean", "std", "paper_mean", "paper_std"}  # as in the other tables
CELL_KEYS = EXPERT_KEYS | {"interval", "better_than_emp", "final_success", "final_distance"}
SMALL: dict[str, Any] = {"hidden": (16,), "batch": 32, "learning_rate": 0.01, "polyak": 0.1}
TINY = replace(
    PRESETS["quick"],
    preset="tiny",
    dynamics=DynamicsConfig(
        members=2, hidden=(16, 16), features=8, epochs=2, epoch_rows=512, batch=128, validation=200, window=1
    ),
    agents=(make_agent("td3-bc", **SMALL, decay=True, standardise=True),),
    once=(make_agent("sac", **SMALL),),
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


def cells(results: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(cell["row"], cell["column"]): cell for cell in results["cells"]}


def seeds_of(results: dict[str, Any], row: str) -> int:
    return 1 if row in results["config"]["once"] else int(results["config"]["seeds"])


def check_schema(results: dict[str, Any]) -> None:
    assert set(results) == KEYS
    assert results["table"] == "table3" and results["metric"] == METRIC
    config = results["config"]
    agents, columns = [*config["agents"], *config["once"]], list(config["columns"])
    stages = [stage for agent in agents for stage in (agent, f"{agent} episodes")]
    assert list(results["seconds_by_stage"]) == ["recording", "dynamics", "parents", "data", *stages, "expert", "truth"]
    assert results["seconds"] == pytest.approx(sum(results["seconds_by_stage"].values()), abs=0.06)
    places = [(row, column) for row in (*agents, "expert") for column in columns]
    assert [(cell["row"], cell["column"]) for cell in results["cells"]] == places
    found = cells(results)
    for (row, column), cell in found.items():
        if row == "expert":
            assert set(cell) == EXPERT_KEYS
            assert cell["values"] == [cell["mean"]] == [results["expert"]["two plain"]["both"]]
            assert (cell["std"], cell["paper_mean"], cell["paper_std"]) == (0, None, None)
            continue
        seeds = seeds_of(results, row)
        assert set(cell) == CELL_KEYS
        assert len(cell["values"]) == len(cell["final_success"]) == len(cell["final_distance"]) == seeds
        assert all(0 <= value <= 100 for value in (*cell["values"], *cell["final_success"]))
        assert all(0 < metres < 2 for metres in cell["final_distance"])
        assert cell["mean"] == pytest.approx(statistics.fmean(cell["values"]), rel=1e-9)
        assert cell["std"] == pytest.approx(statistics.stdev(cell["values"]) if seeds > 1 else 0.0, rel=1e-9)
        assert cell["interval"] == pytest.approx(bootstrap_interval(cell["values"]), rel=1e-9)
        printed = PAPER[row][COLUMNS.index(column)] if row in PAPER else (None, None)
        assert (cell["paper_mean"], cell["paper_std"]) == tuple(printed)
        if "emp" in columns:
            recorded = found[row, "emp"]["values"]
            better = probability_of_improvement(cell["values"], recorded, lower_is_better=False)
            assert cell["better_than_emp"] == pytest.approx(better)
        else:
            assert cell["better_than_emp"] is None
    check_truth(results)


def check_truth(results: dict[str, Any]) -> None:
    """What is said of the recorded data, the expert, the models and the mask."""
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


class Run(NamedTuple):
    """A table, where it was measured, and the data sets that each agent was given."""

    measured: Measured3
    folder: Path
    datasets: dict[str, Mapping[str, list[Transitions]]]
    told: list[tuple[str, int, int]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """As `mocoda paper table3` does it."""
    folder = tmp_path_factory.mktemp("table3")
    datasets: dict[str, Mapping[str, list[Transitions]]] = {}
    told: list[tuple[str, int, int]] = []

    def noted(given: Mapping[str, list[Transitions]], agent: mocoda.Agent, **options: Any) -> Policies:
        datasets[agent.name] = given
        return train_agents(given, agent, **options)

    def progress(*step: Any) -> None:
        told.append(step)

    with pytest.MonkeyPatch.context() as patch, RunFolder(folder, *IDENTITY, OUTPUTS):
        patch.setattr(mocoda.paper.table3, "train_agents", noted)
        measured = table3(TINY, device="cpu", folder=folder, workers=0, progress=progress)
    write(measured, folder)
    return Run(measured, folder, datasets, told)


IDENTITY = ("paper table3", {**TINY.config(), "device": "cpu"})
STAGES = sorted(
    [
        "recorded.hdf5",
        *(f"dynamics-{model}-{seed}.safetensors" for model in ("local", "full") for seed in (0, 1)),
        *(f"agents-{row}/agents.json" for row in ROWS),
        *(f"agents-td3-bc/policy-{column}-{seed}.safetensors" for column in TINY.columns for seed in (0, 1)),
        *(f"agents-sac/policy-{column}-0.safetensors" for column in TINY.columns),
    ]
)


def left(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def recorded(run: Run) -> Transitions:
    return Transitions.load(run.folder / "recorded.hdf5")


def model(run: Run, architecture: str, seed: int) -> Dynamics:
    return Dynamics.load(run.folder / f"dynamics-{architecture}-{seed}.safetensors", HookSweep2().graph)


# Measuring


def test_the_results_have_their_schema_and_can_be_written(run: Run) -> None:
    results = run.measured.results
    check_schema(results)
    written = json.loads(json.dumps(results, allow_nan=False))
    assert written["cells"] == results["cells"] and written["truth"] == results["truth"]
    assert written["config"] == json.loads(json.dumps(TINY.config()))
    assert results["preset"] == "tiny" and results["resumed"] is False
    assert results["versions"] == versions() and results["device"] == device_name("cpu")
    assert {row: len(cells(results)[row, "emp"]["values"]) for row in ROWS} == {"td3-bc": 2, "sac": 1}


def test_what_was_trained_comes_along(run: Run) -> None:
    measured = run.measured
    assert tuple(measured.policies) == tuple(measured.played) == ROWS
    for agent, seeds, updates in ((TINY.agents[0], (0, 1), [20, 40]), (TINY.once[0], (0,), [10, 20])):
        policies = measured.policies[agent.name]
        assert list(policies) == [(column, seed) for column in TINY.columns for seed in seeds]
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
    played = run.measured.played["td3-bc"]
    for last in (1, 3, 4):
        for number, column in enumerate(TINY.columns):
            settings = replace(TINY, evaluations=4, last=last)
            cell = mocoda.paper.table3._cell(policies, played, "td3-bc", column, settings)
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
    made = [
        mocoda.paper.table3._cell(run.measured.policies["td3-bc"], played, "td3-bc", column, TINY)
        for column in TINY.columns
    ]
    assert [cell["final_success"] for cell in made] == [[50, 100], [0, 50], [0, 100]]
    distances = [metres for cell in made for metres in cell["final_distance"]]
    assert distances == pytest.approx([0.25, 0.25, 0.25, 0.325, 0.25, 0.25])


def test_progress_tells_every_stage(run: Run) -> None:
    assert list(dict.fromkeys(stage for stage, _, _ in run.told)) == [
        *("collect", "dynamics local", "dynamics full", "data sets", "agents td3-bc", "agents sac"),
    ]
    ends = {stage: (done, total) for stage, done, total in run.told}
    assert ends["collect"] == (TINY.rows, TINY.rows) and ends["data sets"] == (3, 3)
    assert ends["agents td3-bc"] == (40, 40) and ends["agents sac"] == (20, 20)


# The data


def test_what_is_recorded_is_the_task_s_and_no_parts_are_left(run: Run, recorded: Transitions) -> None:
    expected = HookSweep2().collect(75, seed=0, variety="varied", workers=0)
    assert len(recorded) == TINY.rows and recorded.rows[:75].equal(expected.rows)
    assert recorded.source["variety"] == "varied" and dict(recorded.source) == run.measured.results["recorded"]
    kept = [name for name in left(run.folder) if name not in (*OUTPUTS, "config.json", "files.jsonl", "progress.jsonl")]
    assert kept == STAGES and not (run.folder / "recording").exists()


def test_every_data_set_starts_with_what_was_recorded_and_is_labelled_with_goals_of_the_target_task(
    run: Run, recorded: Transitions
) -> None:
    task = HookSweep2()
    assert list(run.datasets) == list(ROWS)
    for column, tables in run.datasets["td3-bc"].items():
        assert len(tables) == 2 and run.datasets["sac"][column] == tables[:1]
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
    parents = fitted_parents(task, recorded, TINY, [0, 1])["mocoda-p"][seed]
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
    settings = replace(TINY, columns=("mocoda",))
    one, other = (fitted_parents(HookSweep2(), data, settings, [0])["mocoda"][0] for data in (recorded, bare))
    assert one.sample(50, seed=3).equal(other.sample(50, seed=3))


def test_parents_are_fitted_once_for_both_models(recorded: Transitions) -> None:
    settings = replace(TINY, columns=("mocoda", "mocoda-full", "emp"))
    parents = fitted_parents(HookSweep2(), recorded, settings, [0, 1])
    assert {recipe: len(seeds) for recipe, seeds in parents.items()} == {"mocoda": 2, "emp": 2}


# Writing


def test_what_is_measured_is_written_and_told_as_a_table(run: Run) -> None:
    assert (
        *("table3.json", "table3-curves.json", "table3-evidence.npz", "table3.png", "table3-curves.png"),
        *("figure4.png", "table3-distance.png", "table3-placements.png"),
    ) == OUTPUTS
    assert set(OUTPUTS) <= set(left(run.folder))
    assert json.loads((run.folder / OUTPUTS[0]).read_text("utf-8")) == json.loads(json.dumps(run.measured.results))
    check_figures(run.folder)


def check_figures(folder: Path) -> None:
    for name in OUTPUTS[3:]:
        content = (folder / name).read_bytes()
        assert content[:8] == b"\x89PNG\r\n\x1a\n" and len(content) > 5_000, name


def test_the_curves_are_written_by_agent_data_and_seed_in_percent(run: Run) -> None:
    written = json.loads((run.folder / "table3-curves.json").read_text("utf-8"))["agents"]
    assert tuple(written) == ROWS
    for name, policies in run.measured.policies.items():
        assert written[name]["updates"] == policies.curves["updates"].tolist()
        assert list(written[name]["success"]) == list(TINY.columns)
        for place, (column, seed) in enumerate(policies):
            curve = 100 * policies.curves["success"][place]
            assert written[name]["success"][column][seed] == pytest.approx(curve.tolist(), abs=0.05)


def test_the_evidence_is_readable_without_pickle_and_says_what_the_figures_show(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents that learn next to nothing all fail alike; here every number is another."""
    monkeypatch.setattr(mocoda.paper.table3, "draw", lambda folder: None)
    played = {
        row: made._replace(success=np.arange(made.success.size, dtype=np.float32).reshape(made.success.shape))
        for row, made in run.measured.played.items()
    }
    write(replace(run.measured, played=played), tmp_path)
    with np.load(tmp_path / "table3-evidence.npz", allow_pickle=False) as arrays:
        evidence = {name: arrays[name] for name in arrays.files}
    named = {f"{what}/{row}/{column}" for what in ("success", "last") for row in ROWS for column in TINY.columns}
    assert set(evidence) == named | {f"boxes/{column}" for column in TINY.columns}
    for row, seeds in (("td3-bc", 2), ("sac", 1)):
        for number, column in enumerate(TINY.columns):
            own = slice(seeds * number, seeds * (number + 1))
            first = 2 * seeds * number  # episodes of the columns before
            assert evidence[f"success/{row}/{column}"].tolist() == list(range(first, first + 2 * seeds))
            assert np.array_equal(evidence[f"last/{row}/{column}"], played[row].last[own].reshape(2 * seeds, 22))
    for column in TINY.columns:
        assert np.array_equal(evidence[f"boxes/{column}"], run.measured.boxes[column].numpy())


def test_the_figures_are_drawn_again_from_the_files_alone(run: Run, tmp_path: Path) -> None:
    for name in OUTPUTS[:3]:
        (tmp_path / name).write_bytes((run.folder / name).read_bytes())
    draw(tmp_path)
    assert left(tmp_path) == sorted(OUTPUTS)
    check_figures(tmp_path)


def test_figure_4_shows_the_recipes_and_the_other_figures_every_column(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[str, Any] = {}
    for name in ("success", "success_curves", "tables", "by_distance", "placements"):
        monkeypatch.setattr(mocoda.paper.table3, f"draw_{name}", lambda *given, name=name: drawn.update({name: given}))
    draw(run.folder)
    tables, goals, path = drawn["tables"]
    assert list(tables) == ["emp", "mocoda-p"] and goals.shape == (2_000, 6) and path.name == "figure4.png"
    by_distance = drawn["by_distance"][0]
    assert list(by_distance) == ["td3-bc"]  # agents of one seed are not shown
    for column in TINY.columns:
        shifts, won = by_distance["td3-bc"][column]
        last = run.measured.played["td3-bc"].last.reshape(len(TINY.columns), 4, 22)[TINY.columns.index(column)]
        assert shifts == pytest.approx(np.abs(last[:, 16] - 1.85).tolist()) and len(won) == 4
        offsets = drawn["placements"][0][column].numpy()
        boxes, wanted = last[:, 6:16].reshape(4, 2, 5)[..., :2], last[:, 16:].reshape(4, 2, 3)[..., :2]
        assert offsets == pytest.approx((boxes - wanted).reshape(4, 4))
    expert = cells(run.measured.results)["expert", "emp"]["mean"]
    assert list(drawn["success_curves"][0]) == list(ROWS) and drawn["success_curves"][1] == expert


# Continuing


def test_the_same_command_takes_everything_from_its_folder_measures_the_same_and_says_so(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(run.folder, tmp_path / "again"))
    for owner, name in (
        (mocoda.paper.table1, "fit_dynamics_runs"),
        (mocoda.paper.table3, "train_agents"),
        (HookSweep2, "collect"),
    ):
        monkeypatch.setattr(owner, name, lambda *given, **named: pytest.fail("made again"))
    monkeypatch.setitem(PRESETS, "tiny", TINY)
    console = rich.console.Console(width=200)
    for module in (mocoda.cli.verbs, mocoda.cli.console):
        monkeypatch.setattr(module, "out", console)
    with console.capture() as said:
        mocoda.cli.verbs.paper("table3", preset="tiny", workers=0, out_dir=folder)
    again = json.loads((folder / "table3.json").read_text("utf-8"))
    check_schema(again)
    first = json.loads(json.dumps(run.measured.results))
    for key in ("cells", "expert", "truth", "recorded", "config"):
        assert again[key] == first[key], key
    assert again["resumed"] is True
    for row in ROWS:
        cell = cells(again)[row, "emp"]
        assert f"{cell['mean']:.1f} ± {cell['std']:.1f}" in said.get()
    assert f"Measured in {again['seconds']} s after resuming on {device_name('cpu')}" in said.get()
    assert all(str(folder / name) in said.get() for name in (OUTPUTS[0], *OUTPUTS[3:]))
    assert [name for name in left(folder) if name in STAGES] == STAGES


@pytest.mark.parametrize("name", ["recorded.hdf5", "recording/part-5.npz", "dynamics-local-0.safetensors"])
def test_whatever_stage_is_found_in_the_folder_the_seconds_are_not_those_of_the_whole(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").touch()
    assert not begun(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    assert begun(tmp_path)


# Refusing


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": 0}, "seeds must be at least 1, got 0."),
        ({"seeds": -1}, "seeds must be at least 1, got -1."),
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
        ({"total": 10}, "total must be at least rows, which are among it, got 10 and 1100."),
        (
            {"columns": ("emp", "mocoda-full-p")},
            "there is no column 'mocoda-full-p'; there are: emp, mocoda, mocoda-p, mocoda-full, mocoda-p-full. "
            "Did you mean 'mocoda-full'?",
        ),
        (
            {"columns": ("x",)},
            "there is no column 'x'; there are: emp, mocoda, mocoda-p, mocoda-full, mocoda-p-full.",
        ),
        ({"columns": ("emp", "emp")}, "columns must name each data set once, and at least one, got ['emp', 'emp']."),
        ({"columns": ()}, "columns must name each data set once, and at least one, got []."),
    ],
)
def test_settings_that_cannot_be_are_refused_in_full(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        replace(TINY, **change)
    assert str(caught.value) == message


def test_an_unknown_preset_is_refused_in_full() -> None:
    with pytest.raises(InputError) as caught:
        preset(PRESETS, "papper")
    assert str(caught.value) == "there is no preset 'papper'; there are: paper, quick. Did you mean 'paper'?"
    assert all(PRESETS[name].preset == name for name in ("paper", "quick"))


# The paper


def test_the_paper_s_cells_are_those_of_its_table() -> None:
    assert mocoda.paper.table3.COLUMNS == COLUMNS
    printed = {  # Emp, MoCoDA, MoCoDA-P, and the last two again, not factored
        "bcq": "2.0 ± 1.6, 20.7 ± 4.1, 64.7 ± 4.1, 14.0 ± 3.3, 15.3 ± 4.1",
        "td3-bc": "0.7 ± 0.9, 38.7 ± 7.5, 84.0 ± 2.8, 29.3 ± 3.8, 26.0 ± 1.6",
    }
    assert set(PAPER) == set(printed)
    for row, line in printed.items():
        assert PAPER[row] == tuple(tuple(map(float, cell.split(" ± "))) for cell in line.split(", "))


def test_the_paper_s_preset_has_the_paper_s_sizes() -> None:
    preset = PRESETS["paper"]
    assert (preset.seeds, preset.rows, preset.total, preset.columns) == (3, 1_000_000, 5_000_000, COLUMNS)
    assert [agent.name for agent in preset.agents] == list(PAPER)
    assert [agent.name for agent in preset.once] == ["sac", "cql"]  # which the paper omits, for they were unsuccessful
    assert set(preset.updates) == {*PAPER, "sac", "cql"}
    assert preset.last == 50 and preset.density_floor == 0.05
    assert all(updates % preset.evaluations == 0 for updates in preset.updates.values())
    for agent in (*preset.agents, *preset.once):
        assert agent.hidden == (512, 512, 512) and agent.batch == 500


def test_a_config_holds_every_agent_s_settings_by_name() -> None:
    preset = PRESETS["paper"]
    config = preset.config()
    for name in ("agents", "once"):
        assert config[name] == {agent.name: agent_settings(agent) for agent in getattr(preset, name)}
    assert json.loads(json.dumps(config))["dynamics"]["hidden"] == [512, 512]


# What is committed


def test_the_committed_table_has_the_schema_and_is_of_the_paper_s_preset_as_the_code_has_it() -> None:
    results = committed("table3.json")
    check_schema(results)
    assert results["preset"] == "paper" and "H200" in results["device"]
    assert results["config"] == json.loads(json.dumps(PRESETS["paper"].config()))
    rows = ("td3-bc", "bcq", "sac", "cql", "expert")
    assert [(cell["row"], cell["column"]) for cell in results["cells"]] == [(r, c) for r in rows for c in COLUMNS]
    found = cells(results)
    assert {len(found[row, column]["values"]) for row in PAPER for column in COLUMNS} == {3}  # seeds 0, 1 and 2


def test_the_committed_curves_are_those_of_the_committed_cells() -> None:
    curves, results = committed("table3-curves.json")["agents"], committed("table3.json")
    config = results["config"]
    assert list(curves) == [*config["agents"], *config["once"]]
    for row, of_agent in curves.items():
        updates = config["updates"][row]
        every = updates // config["evaluations"]
        assert of_agent["updates"] == list(range(every, updates + 1, every))
        assert tuple(of_agent["success"]) == COLUMNS
        for column, seeds in of_agent["success"].items():
            assert [len(curve) for curve in seeds] == [config["evaluations"]] * seeds_of(results, row)
            last = [statistics.fmean(curve[-config["last"] :]) for curve in seeds]
            assert cells(results)[row, column]["values"] == pytest.approx(last, rel=0, abs=0.06)


def test_the_committed_evidence_and_figures_are_there() -> None:
    results = committed("table3.json")
    check_figures(RESULTS)
    with np.load(RESULTS / "table3-evidence.npz", allow_pickle=False) as arrays:
        for row in (*results["config"]["agents"], *results["config"]["once"]):
            for column in COLUMNS:
                episodes = results["config"]["final_episodes"] * seeds_of(results, row)
                assert arrays[f"success/{row}/{column}"].shape == (episodes,)
                assert arrays[f"last/{row}/{column}"].shape == (episodes, 22)
