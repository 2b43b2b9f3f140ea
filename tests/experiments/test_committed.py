"""Results as committed: of the settings that the code has, and true to what the pages say."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from committed_results import RESULTS, committed
from experiment_contract import by_place

from experiments import EXPERIMENTS
from experiments.ablation import Ablation
from experiments.speed import TARGETS

QUICK = ("composer", "entanglement", "neighbourhoods", "reweighting", "table3", "theory", "whatif")
CORES = ("masks",)  # measured on two cores, and not yet at full size
TABLES = [name for name in EXPERIMENTS if name not in ("ablation", *CORES)]  # an ablation has a file a study
FILES = [(name, preset) for preset, names in (("paper", TABLES), ("cores", CORES), ("quick", QUICK)) for name in names]


def result(name: str, preset: str) -> dict[str, Any]:
    return committed(f"quick/{name}.json" if preset == "quick" else f"{name}.json")


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
        if output.endswith(".png") and preset != "quick":
            assert (folder / output).stat().st_size > 5_000, output


# Table 1


@pytest.mark.parametrize(("name", "switch"), [("standardised", "standardise"), ("state", "predict_change")])
def test_the_ablations_of_table_1_differ_from_the_preset_in_one_switch_each(name: str, switch: str) -> None:
    results = committed(f"ablations/table1-{name}.json")
    assert list(changes(results)) == ["dynamics"]
    dynamics = config("table1")["dynamics"]
    assert [key for key, value in results["config"]["dynamics"].items() if value != dynamics[key]] == [switch]


# Table 2


def agents_changed(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings of agents that differ from those of the paper's preset."""
    preset = config("table2")["agents"]
    return {
        name: {key: value for key, value in settings.items() if value != preset[name].get(key)}
        for name, settings in results["config"]["agents"].items()
    }


def test_tuned_agents_differ_in_one_setting_each() -> None:
    results = committed("ablations/table2-tuned.json")
    assert changes(results) == {"preset": "tuned", "columns": ["mocoda", "mocoda-u"]}
    assert agents_changed(results) == {
        "td3-bc": {"imitation": 0.25},
        "bcq": {"proposals": 80},
        "cql": {"entropy": 0.05},
    }


def test_coda_of_the_paper_s_code_differs_in_how_parents_are_drawn() -> None:
    results = committed("ablations/table2-coda.json")
    assert changes(results) == {"columns": ["coda"], "published_code": True}
    assert results["config"]["agents"] == config("table2")["agents"]


def test_standardised_agents_differ_in_that_alone() -> None:
    results = committed("ablations/table2-standardised.json")
    assert changes(results) == {"preset": "standardised", "columns": ["mocoda", "mocoda-u"]}
    assert set(map(str, agents_changed(results).values())) == {"{'standardise': True}"}


def test_agents_on_mixtures_per_neighbourhood_differ_in_their_data() -> None:
    results = committed("ablations/table2-stratified.json")
    assert changes(results) == {"columns": ["mocoda", "mocoda-u"], "stratified": True}
    assert results["config"]["agents"] == config("table2")["agents"]


# Benchmarks

# Rows that miss their target, and the share of it that they reach; docs/speed.md says so.
MISSED = {"sweep-dynamics": 0.98, "sweep-agents": 0.79}


@pytest.mark.parametrize(("name", "kind"), [("bench-cpu.json", "cpu"), ("bench-h200.json", "cuda")])
def test_benchmarks_reach_their_targets_but_for_two(name: str, kind: str) -> None:
    results = committed(name)
    assert ("H200" if kind == "cuda" else "CPU") in results["device"]
    found = by_place(results)
    targets = TARGETS[kind]
    assert {row for row, column in found if column == "target"} == set(targets)
    for row, target in targets.items():
        assert found[row, "target"]["values"] == [target]
        tolerance = 0.9 if row == "growth" else MISSED.get(row, 1.0)
        assert found[row, "ratio"]["mean"] >= tolerance * target


def test_table_3_of_plainly_recorded_data_differs_in_the_recording() -> None:
    found = committed("ablations/table3-plain.json")["config"]
    table = config("table3")
    changed = {key for key in found if key not in ("agents", "updates") and found[key] != table[key]}
    assert changed == {"preset", "variety", "columns", "half"} and found["variety"] == "plain"
    assert found["agents"] == {"td3-bc": table["agents"]["td3-bc"] | {"batch": 500}}


# Ablations


@pytest.mark.parametrize("study", ["table2-td3-bc", "table2-bcq", "table2-cql", "table3-td3-bc", "table3-bcq"])
def test_ablations_are_of_seeds_that_no_table_uses_and_of_variants_as_the_code_has_them(study: str) -> None:
    results = committed(f"ablations/{study}.json")
    assert min(results["seeds"]) >= 100 and results["config"]["study"] == study
    settings = Ablation.presets["paper"]
    wanted = replace(settings, study=study, only=tuple(results["config"]["only"])).config()["agents"]
    for name, agent in results["config"]["agents"].items():
        assert agent == json.loads(json.dumps(wanted[name])), name


# Longer, larger and other runs than the presets


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("cubes-long", {"arms": ["recorded", "turns", "play"], "updates": 400_000}),
        ("cubes-more", {"arms": ["turns"], "updates": 400_000, "total": 1_500_000, "evaluations": 1}),
        ("cubes-added", {"arms": ["added"], "updates": 400_000, "total": 1_500_000, "evaluations": 1}),
        (
            "cubes-triple",
            {
                "kind": "cube-triple",
                "arms": ["turns", "added", "play"],
                "updates": 250_000,
                "episodes": 10,
                "evaluations": 1,
            },
        ),
        ("masks-rows-dag30", {"worlds": ["dag:30"], "rows": [300_000], "methods": ["learned"]}),
        ("masks-rows-dag5", {"worlds": ["dag:5"], "rows": [3_000, 300_000], "methods": ["learned"]}),
        (
            "masks-rows-hooksweep2",
            {"preset": "cores", "worlds": ["hooksweep2"], "rows": [3_000, 300_000], "methods": ["learned"]},
        ),
        ("masks-million", {"seeds": 1, "worlds": ["hooksweep2"], "rows": [1_000_000], "methods": ["learned"]}),
        (
            "masks-more",
            {"worlds": ["dag:30", "objects:8", "dag:10", "objects:2"], "rows": [40_000], "methods": ["learned"]},
        ),
        (
            "learned-masks-confirmed",
            {"worlds": ["hooksweep2"], "masks": ["given", "learned"], "confirmed_rows": 20_000},
        ),
        ("learned-masks-navigation", {"seeds": 15, "worlds": ["navigation"], "masks": ["given", "learned", "dense"]}),
        (
            "learned-masks-caution-0.2",
            {"worlds": ["hooksweep2"], "masks": ["learned", "composed"], "caution": 0.2},
        ),
        (
            "learned-masks-caution-0.005",
            {"worlds": ["hooksweep2"], "masks": ["learned", "composed"], "caution": 0.005},
        ),
        ("masks-rows", {"preset": "cores", "worlds": ["objects:4"], "rows": [3_000, 300_000]}),
        (
            "masks-rows-navigation",
            {"preset": "cores", "worlds": ["navigation"], "rows": [3_000, 300_000], "methods": ["learned"]},
        ),
        ("masks-dag10", {"preset": "cores", "seeds": 1, "worlds": ["dag:10"], "rows": [40_000]}),
    ],
)
def test_other_runs_differ_from_their_preset_as_the_pages_say(file: str, expected: dict[str, Any]) -> None:
    assert changes(committed(f"{file}.json")) == expected
