"""Results beside the tables, as committed: of the settings that the code has, and true to what the pages say."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import pytest
from committed_results import RESULTS, committed

from mocoda.paper import described

FULL = ("scarcity", "whatif", "entanglement", "theory")
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
