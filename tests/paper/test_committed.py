"""Results beside the tables, as committed: of the settings that the code has, and true to what the pages say."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import pytest
from committed_results import RESULTS, committed

from mocoda.paper.experiment import described

FULL = ("composer", "entanglement", "neighbourhoods", "reweighting", "scarcity", "theory", "whatif")
QUICK = ("composer", "entanglement", "neighbourhoods", "reweighting", "table3", "theory", "whatif")
FILES = [*((name, "paper") for name in FULL), *((name, "quick") for name in QUICK)]


def result(name: str, preset: str) -> dict[str, Any]:
    return committed(f"{name}.json" if preset == "paper" else f"quick/{name}.json")


@pytest.mark.parametrize(("name", "preset"), FILES)
def test_a_result_is_of_its_preset_as_the_code_has_it(name: str, preset: str) -> None:
    found = result(name, preset)
    settings = described(import_module(f"mocoda.paper.{name}").PRESETS[preset])
    assert (found["table"], found["preset"]) == (name, preset)
    assert found["config"] == json.loads(json.dumps(settings))
    assert (RESULTS / ("quick" if preset == "quick" else "") / f"{name}.png").stat().st_size > 10_000


@pytest.mark.parametrize("name", [name for name in FULL if name != "theory"])  # which draws with numpy, on a CPU
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
