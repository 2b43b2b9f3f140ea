"""Results as committed: of the settings that the code has, and true to what the pages say."""

from __future__ import annotations

import json
import statistics
from typing import Any

import numpy as np
import pytest
from committed_results import RESULTS, committed
from experiment_contract import by_place

from mocoda.paper import EXPERIMENTS
from mocoda.paper.bench import TARGETS
from mocoda.paper.table2 import PAPER as PAPER2
from mocoda.paper.table3 import PAPER as PAPER3

QUICK = ("composer", "entanglement", "neighbourhoods", "reweighting", "table3", "theory", "whatif")
FILES = [*((name, "paper") for name in EXPERIMENTS), *((name, "quick") for name in QUICK)]


def result(name: str, preset: str) -> dict[str, Any]:
    return committed(f"{name}.json" if preset == "paper" else f"quick/{name}.json")


def config(name: str, preset: str = "paper") -> dict[str, Any]:
    """The settings that the code has, as JSON reads them back."""
    settings: dict[str, Any] = json.loads(json.dumps(EXPERIMENTS[name].presets[preset].config()))
    return settings


def changes(results: dict[str, Any]) -> dict[str, Any]:
    """Where the settings of results differ from the paper's preset, agents apart."""
    preset = config(results["table"])
    assert set(results["config"]) == set(preset)
    return {key: value for key, value in results["config"].items() if key != "agents" and value != preset[key]}


@pytest.mark.parametrize(("name", "preset"), FILES)
def test_a_result_is_of_its_preset_as_the_code_has_it(name: str, preset: str) -> None:
    found = result(name, preset)
    assert (found["table"], found["preset"]) == (name, preset)
    assert found["metric"] == EXPERIMENTS[name].metric
    assert found["config"] == config(name, preset)
    folder = RESULTS / ("quick" if preset == "quick" else "")
    for output in EXPERIMENTS[name].outputs:
        if output.endswith(".png") and preset == "paper":
            assert (folder / output).stat().st_size > 5_000, output


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name != "theory"])  # which draws with numpy, on a CPU
def test_a_full_result_is_an_h200_s(name: str) -> None:
    assert "H200" in result(name, "paper")["device"]


@pytest.mark.parametrize("name", [name for name in QUICK if name != "table3"])
def test_a_quick_result_took_under_two_minutes(name: str) -> None:
    assert 0 < result(name, "quick")["seconds"] < 120


def test_the_quick_table_took_under_ten_minutes_and_mocoda_p_ends_nearer_to_the_goals_than_emp() -> None:
    found = result("table3", "quick")
    off = {c["column"]: sum(c["final_distance"]) for c in found["cells"] if c["row"] == "td3-bc"}
    assert found["seconds"] < 600 and not found["resumed"]
    assert off["mocoda-p"] < off["emp"]


def test_factorisation_pays_with_any_number_of_recorded_rows() -> None:
    points = {(p["rows"], p["architecture"]): p for p in result("scarcity", "paper")["points"]}
    sizes = sorted({rows for rows, _ in points})
    assert sizes == [10_000, 30_000, 100_000, 300_000, 1_000_000]
    for rows in sizes:
        local, full = points[rows, "local"], points[rows, "full"]
        assert min(local["success"]) > max(full["success"]) + 30
        assert max(local["error_two"]) < min(full["error_two"])
    fewest, most = points[10_000, "local"], points[1_000_000, "full"]
    assert fewest["success"] > most["success"] and fewest["error_two"] < most["error_two"]


def test_what_a_change_does_not_reach_is_answered_exactly() -> None:
    cells = [cell for cell in result("whatif", "paper")["cells"] if cell["model"] == "factored"]
    assert [cell["mean"] for cell in cells if cell["children"] == "not reached"] == [0, 0]


@pytest.mark.parametrize("home", [2, 3])
def test_values_from_mocoda_s_rows_are_better_in_every_seed_where_next_to_nothing_was_recorded(
    home: int,
) -> None:
    cells = result("entanglement", "paper")["cells"]
    off = {c["what"]: c["values"] for c in cells if c["states"] == "recombined" and c["home"] == home}
    assert max(off["mocoda"]) < min(off["recorded"])
    assert sum(off["factored model"]) < sum(off["unfactored model"])


@pytest.mark.parametrize("world", ["navigation", "2 bodies", "4 bodies", "6 bodies"])
@pytest.mark.parametrize("recipe", ["mocoda", "mocoda-u"])
def test_mixtures_per_neighbourhood_draw_what_the_model_knows_better(world: str, recipe: str) -> None:
    cells = {c["column"]: c for c in result("neighbourhoods", "paper")["cells"] if c["world"] == world}
    one, several = cells[recipe], cells[f"{recipe}, stratified"]
    assert max(several["values"]) < min(one["values"])
    assert several["unsupported_mean"] < one["unsupported_mean"]


def test_exact_rejection_costs_twelve_times_as_much_for_every_factor_and_reweighting_one_draw() -> None:
    found = result("reweighting", "paper")
    points = {(p["factors"], p["column"]): p for p in found["points"]}
    assert found["hopeless"] == 6
    for factors in range(1, 11):
        assert points[factors, "exact rejection"]["proposals"] == pytest.approx(12**factors, rel=0.2)
        assert points[factors, "reweighting"]["proposals"] == 1
        assert points[factors, "reweighting"]["values"] == [100] * 5
        assert 47 < points[factors, "reweighting"]["rare"] < 48
    assert points[10, "mocoda"]["covered"] < 18 and points[10, "rejection"]["covered"] < 49


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("objects", [4, 8])
def test_a_shared_composer_is_better_only_if_it_is_told_that_objects_are_alike(objects: int, depth: int) -> None:
    off = {
        c["composer"]: c["values"]
        for c in result("composer", "paper")["cells"]
        if (c["world"], c["depth"], c["column"]) == (f"{objects} objects", depth, "recombined")
    }
    assert max(off["shared, alike"]) < min(off["separate"]) and max(off["separate"]) < min(off["shared"])
    assert max(off["shared"]) < min(off["unfactored"])


def test_no_recording_gives_the_paper_s_order_of_mocoda_and_mocoda_p() -> None:
    for name in ("table3.json", "ablations/table3-plain.json"):
        found = committed(name)
        mean = {c["column"]: c["mean"] for c in found["cells"] if c["row"] == "td3-bc"}
        assert mean["emp"] < 1 < mean["mocoda-p"] < mean["mocoda"]
    config, table = found["config"], committed("table3.json")["config"]
    changed = {key for key in config if key not in ("agents", "once", "updates") and config[key] != table[key]}
    assert changed == {"preset", "variety", "columns"} and config["variety"] == "plain"
    assert config["agents"] == {"td3-bc": table["agents"]["td3-bc"]}


# Table 1


@pytest.mark.parametrize(("name", "switch"), [("standardised", "standardise"), ("state", "predict_change")])
def test_the_ablations_of_table_1_differ_from_the_preset_in_one_switch_each(name: str, switch: str) -> None:
    results = committed(f"ablations/table1-{name}.json")
    assert list(changes(results)) == ["dynamics"]
    dynamics = config("table1")["dynamics"]
    assert [key for key, value in results["config"]["dynamics"].items() if value != dynamics[key]] == [switch]


def test_local_errors_are_at_most_the_paper_s_and_below_the_full_ones_off_the_recorded_distribution() -> None:
    results = committed("table1.json")
    found = by_place(results)
    for column in ("emp", "dyna", "rand", "mocoda", "mocoda-u"):
        assert found["local", column]["mean"] <= found["local", column]["paper_mean"]
        assert column == "emp" or found["local", column]["mean"] < found["full", column]["mean"]
    assert 0 < results["seconds"] < 180 and results["resumed"] is False


# Table 2


def test_table_2_took_under_six_minutes_in_one_go() -> None:
    results = committed("table2.json")
    assert 0 < results["seconds"] < 360 and results["resumed"] is False


@pytest.mark.parametrize("row", ["td3-bc", "bcq", "cql"])
@pytest.mark.parametrize("column", ["mocoda", "mocoda-u"])
def test_agents_are_faster_on_mocoda_s_data_than_on_the_recorded(row: str, column: str) -> None:
    found = by_place(committed("table2.json"))
    ours, recorded = found[row, column], found[row, "emp"]
    assert recorded["mean"] - ours["mean"] > max(ours["std"], recorded["std"])
    assert ours["better_than_emp"] == 1


@pytest.mark.parametrize(("table", "measure", "rounding"), [("table2", "steps", 0.01), ("table3", "success", 0.06)])
def test_the_curves_are_those_of_the_cells(table: str, measure: str, rounding: float) -> None:
    curves, results = committed(f"{table}-curves.json")["agents"], committed(f"{table}.json")
    cells, last = by_place(results), results["config"]["last"]
    assert {(row, column) for row, column in cells if row in curves} == {
        (row, column) for row, of_agent in curves.items() for column in of_agent[measure]
    }
    for row, of_agent in curves.items():
        for column, seeds in of_agent[measure].items():
            means = [statistics.fmean(curve[-last:]) for curve in seeds]
            assert cells[row, column]["values"] == pytest.approx(means, rel=0, abs=rounding)


def agents_changed(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings of agents that differ from those of the paper's preset."""
    preset = config("table2")["agents"]
    return {
        name: {key: value for key, value in settings.items() if value != preset[name][key]}
        for name, settings in results["config"]["agents"].items()
    }


def test_tuned_agents_are_faster_than_the_paper_s() -> None:
    results = committed("ablations/table2-tuned.json")
    assert changes(results) == {"preset": "tuned", "columns": ["mocoda", "mocoda-u"]}
    assert agents_changed(results) == {
        "td3-bc": {"imitation": 0.25},
        "bcq": {"proposals": 80},
        "cql": {"entropy": 0.05},
    }
    best = PAPER2["td3-bc"][4]
    assert best is not None and by_place(results)["td3-bc", "mocoda-u"]["mean"] < best[0]


def test_coda_of_the_paper_s_code_differs_in_how_parents_are_drawn() -> None:
    results = committed("ablations/table2-coda.json")
    assert changes(results) == {"columns": ["coda"], "published_code": True}
    assert results["config"]["agents"] == config("table2")["agents"]


def test_standardised_agents_differ_in_that_alone_and_all_but_bcq_are_faster() -> None:
    results = committed("ablations/table2-standardised.json")
    assert changes(results) == {"preset": "standardised", "columns": ["mocoda", "mocoda-u"]}
    assert set(map(str, agents_changed(results).values())) == {"{'standardise': True}"}
    ours, table = by_place(results), by_place(committed("table2.json"))
    for column in ("mocoda", "mocoda-u"):
        assert all(ours[row, column]["mean"] < table[row, column]["mean"] for row in ("td3-bc", "cql"))
        assert ours["bcq", column]["mean"] > table["bcq", column]["mean"]


def test_agents_on_mixtures_per_neighbourhood_are_slower() -> None:
    results = committed("ablations/table2-stratified.json")
    assert changes(results) == {"columns": ["mocoda", "mocoda-u"], "stratified": True}
    assert results["config"]["agents"] == config("table2")["agents"]
    slower, table = by_place(results), by_place(committed("table2.json"))
    assert all(slower[cell]["mean"] > table[cell]["mean"] for cell in slower if cell[0] != "optimum")


# Table 3


def test_the_evidence_of_table_3_is_there() -> None:
    settings = committed("table3.json")["config"]
    with np.load(RESULTS / "table3-evidence.npz", allow_pickle=False) as arrays:
        for row in (*settings["agents"], *settings["once"]):
            for column in settings["columns"]:
                episodes = settings["final_episodes"] * (1 if row in settings["once"] else settings["seeds"])
                assert arrays[f"success/{row}/{column}"].shape == (episodes,)
                assert arrays[f"last/{row}/{column}"].shape == (episodes, 22)
    assert set(PAPER3) == set(settings["agents"])


# Benchmarks

# Rows that miss their target, and the share of it that they reach; docs/speed.md says so.
MISSED = {"sweep-dynamics": 0.98, "sweep-agents": 0.79}


@pytest.mark.parametrize(("name", "kind"), [("bench-cpu.json", "cpu"), ("bench-h200.json", "cuda")])
def test_benchmarks_reach_their_targets_but_for_two(name: str, kind: str) -> None:
    results = committed(name)
    assert ("H200" if kind == "cuda" else "CPU") in results["device"]
    found = by_place(results)
    assert {row for row, column in found if column == "ratio"} == set(TARGETS[kind])
    for row, target in TARGETS[kind].items():
        assert found[row, "target"]["values"] == [target]
        tolerance = 0.9 if row == "growth" else MISSED.get(row, 1.0)
        assert found[row, "ratio"]["mean"] >= tolerance * target


@pytest.mark.parametrize("runs", [1, 5, 25, 100])
@pytest.mark.parametrize("row", list(PAPER2))
def test_agents_were_timed_and_none_was_faster_than_its_roofline(row: str, runs: int) -> None:
    found = by_place(committed("bench-h200.json"))
    timed, least = found[f"{row} × {runs}", "agent"], found[f"{row} × {runs}", "roofline"]
    assert len(timed["values"]) >= 3
    assert 0 < least["mean"] <= min(timed["values"])


def test_an_update_in_half_precision_takes_at_most_thirty_microseconds() -> None:
    assert 0 < by_place(committed("bench-h200.json"))["td3-bc in bfloat16 × 100", "agent"]["mean"] <= 0.03
