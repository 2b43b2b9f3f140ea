"""The numbers in the documents are those in results/."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from committed_results import committed

from experiments.columns import column_label
from experiments.learned_masks import MASKS
from mocoda.analysis.page.figures import library

ROOT = Path(__file__).parents[2]
AUROCS = ("auroc", "auroc_known")
DIGITS = {"auroc": 3, "f1": 2, "rebalanced": 3}  # of an exam of masks
CONFIRMED = ("confirmed, %", "confirmed where moving, %")  # of what a mask changes
AGENTS = ("td3-bc", "bcq", "cql", "sac")
MODELS = {
    "full": "unfactored (`full`)",
    "global": "globally factored (`global`)",
    "local": "locally factored (`local`)",
}


def cells(name: str) -> dict[tuple[str, str], dict[str, Any]]:
    """What was measured, by row and column."""
    measured = json.loads((ROOT / "results" / name).read_text("utf-8"))["cells"]
    return {(cell["row"], cell["column"]): cell for cell in measured}


def lines(page: str) -> list[str]:
    """The lines of the tables of a page, without headings and bold type."""
    text = (ROOT / page).read_text("utf-8").replace("**", "")
    return [line for line in text.splitlines() if re.match(r"\| ", line)]


def shown(cell: dict[str, Any], digits: int, paper_digits: int | None = None) -> str:
    """A cell as the documents show it: mean ± standard deviation (the paper's mean)."""
    paper = cell.get("paper_mean")
    spread = f"{cell['mean']:.{digits}f} ± {cell['std']:.{digits}f}"
    return spread if paper_digits is None or paper is None else f"{spread} ({paper:.{paper_digits}f})"


def row(name: str, entries: list[str]) -> str:
    return f"| {name} | {' | '.join(entries)} |"


def test_table_1_is_as_measured() -> None:
    measured, table = cells("table1.json"), lines("docs/table1.md")
    for model, title in MODELS.items():
        assert row(title, [shown(cell, 3, 2) for (name, _), cell in measured.items() if name == model]) in table


@pytest.mark.parametrize(
    ("setting", "file"),
    [
        ("the paper's setting", "ablations/table1-state.json"),
        ("+ predict the change of state", "table1.json"),
        ("+ standardised inputs and targets", "ablations/table1-standardised.json"),
    ],
)
def test_the_changes_to_table_1_are_as_measured(setting: str, file: str) -> None:
    expected = []
    for model in MODELS:
        means = [cell["mean"] for (name, _), cell in cells(file).items() if name == model]
        expected.append(row(f"| {setting}", [f"{mean:.3f}" if mean < 1 else f"{mean:.2f}" for mean in means]))
    assert [line for line in lines("docs/table1.md") if setting in line] == expected


def test_table_2_is_as_measured() -> None:
    measured, table = cells("table2.json"), lines("docs/table2.md")
    for agent in AGENTS:
        assert row(agent.upper(), [shown(cell, 1, 1) for (name, _), cell in measured.items() if name == agent]) in table
    assert row("optimum", [f"{cell['mean']:.1f}" for (name, _), cell in measured.items() if name == "optimum"]) in table


@pytest.mark.parametrize(
    ("file", "agent", "column"),
    [
        *(("coda", agent, "coda") for agent in AGENTS),
        *(("stratified", agent, column) for agent in AGENTS for column in ("mocoda", "mocoda-u")),
        *(("standardised", agent, column) for agent in AGENTS for column in ("mocoda", "mocoda-u")),
        *(("tuned", "td3-bc", column) for column in ("mocoda", "mocoda-u")),
    ],
)
def test_the_changes_to_table_2_are_as_measured(file: str, agent: str, column: str) -> None:
    text = " ".join((ROOT / "docs/table2.md").read_text("utf-8").split())
    (item,) = (item for item in text.split("- **") if f"table2-{file}.json" in item)
    assert shown(cells(f"ablations/table2-{file}.json")[agent, column], 1) in item


def test_table_3_is_as_measured() -> None:
    measured, table = cells("table3.json"), lines("docs/table3.md")
    for agent in ("td3-bc", "bcq"):
        assert row(agent.upper(), [shown(cell, 1, 1) for (name, _), cell in measured.items() if name == agent]) in table


def test_the_table_of_rewards_is_as_measured() -> None:
    measured, table = cells("rewards.json"), lines("docs/data.md")
    titles = {"td3-bc, as they are": "`td3-bc`, `scale_rewards=False`"}
    for agent in dict.fromkeys(row for row, _ in measured):
        own = [shown(cell, 1) for (name, _), cell in measured.items() if name == agent]
        assert row(titles.get(agent, f"`{agent}`"), own) in table


def test_the_readme_s_results_are_as_measured() -> None:
    steps, sweeps = cells("table2.json"), cells("table3.json")
    optimum, expert = steps["optimum", "emp"]["mean"], sweeps["expert", "emp"]["mean"]
    results = [line for line in lines("README.md") if " ± " in line]
    for line, measured, best in zip(results, (steps, sweeps), (f"{optimum:.1f}", f"{expert:.0f} "), strict=True):
        agent = [shown(measured["td3-bc", column], 1, 1) for column in ("emp", "mocoda")]
        assert f"| {' | '.join(agent)} | {best}" in line
    matched = sweeps["td3-bc", "mocoda-matched"]
    text = (ROOT / "README.md").read_text("utf-8")
    assert f"{shown(matched, 1)}%" in text and f"succeeds in {matched['final_success'][0]:.0f}% of 50" in text


def test_the_first_page_s_steps_to_the_goal_are_as_measured() -> None:
    measured = cells("table2.json")
    best = f"{measured['optimum', 'emp']['mean']:.1f}"
    expected = [
        row(agent.upper(), [*(shown(measured[agent, column], 1) for column in ("emp", "mocoda")), best])
        for agent in AGENTS
    ]
    assert [line for line in lines("docs/index.md") if " ± " in line] == expected


AUDITS = ("navigation", "objects", "hooksweep2")


def audits(task: str) -> dict[str, dict[str, Any]]:
    """What was audited in a task, by recipe."""
    found: dict[str, dict[str, Any]] = json.loads((ROOT / f"results/audit-{task}.json").read_text("utf-8"))["audits"]
    return found


def confirmed(task: str, recipe: str) -> str:
    own = audits(task)
    if recipe == "recorded":
        return percent(next(iter(own.values()))["by"]["recipe"]["recorded"]["share"])
    return percent(own[recipe]["confirmed"]) if recipe in own else ""


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def words(page: str) -> str:
    return " ".join((ROOT / page).read_text("utf-8").split())


def test_the_audits_are_as_measured() -> None:
    recipes = dict.fromkeys(["recorded", *(recipe for task in AUDITS for recipe in audits(task))])
    table = [line for line in lines("docs/audit.md") if line.endswith(" |")]
    for recipe in recipes:
        title = column_label(recipe)
        entries = [confirmed(task, recipe) for task in AUDITS]
        assert row(title, entries).replace("  ", " ") in table
    every = [one for task in AUDITS for one in audits(task).values()]
    widest = max(abs(one["confirmed"] - end) for one in every for end in one["interval"])
    assert f"Intervals are at most {percent(widest)} points" in words("docs/audit.md")


def test_the_findings_of_the_audits_are_as_measured() -> None:
    text = words("docs/audit.md")
    for task, recipe, said in (
        (
            "hooksweep2",
            "mocoda-matched",
            "{0}% of mocoda's matched rows are confirmed under the sparsest local graph, and {1}%",
        ),
        ("objects", "mocoda", "of mocoda's rows {0}% under the sparsest and at most {1}% under any other"),
        ("navigation", "mocoda", "in 2D Navigation {0}% and {1}%"),
    ):
        shares = {name: cell["share"] for name, cell in audits(task)[recipe]["by"]["local_graph"].items()}
        assert said.format(percent(shares.pop("sparsest")), percent(max(shares.values()))) in text
    for predictor, said in (
        ("disagreement", "its AUROC is {2} in HookSweep2, {1} with objects and {0} in 2D Navigation"),
        ("support", "Support has {2}, {1} and {0}"),
        ("odds", "odds have {2}, {1} and {0}"),
    ):
        ranges = []
        for task in AUDITS:
            own = [one["predictors"][predictor]["auroc"] for name, one in audits(task).items() if "mocoda" in name]
            ranges.append(f"{min(own):.2f} to {max(own):.2f}")
        assert said.format(*ranges) in text
    odds = [audits("navigation")[recipe]["predictors"]["odds"]["auroc"] for recipe in ("dyna", "rand")]
    assert f"odds are better still ({odds[0]:.2f} and {odds[1]:.2f})" in text


@pytest.mark.parametrize(
    ("title", "task", "other"),
    [
        ("HookSweep2, 1,000,000 recorded rows", "hooksweep2", "mocoda-p"),
        ("four objects, 40,000 (a small model)", "objects", "mocoda-u"),
        ("2D Navigation, 40,000 (a small model)", "navigation", "mocoda-u"),
    ],
)
def test_matched_parent_sets_are_confirmed_as_measured(title: str, task: str, other: str) -> None:
    recipes = ["recorded", "mocoda", "mocoda-matched", other, f"{other}-matched"]
    recorded, mixture, matched, *others = (confirmed(task, recipe) for recipe in recipes)
    assert row(title, [recorded, mixture, matched, other, *others]) in lines("docs/recipes.md")


def test_what_is_said_of_the_cubes_is_as_measured() -> None:
    own = audits("cubes")
    shares = [percent(own[name]["confirmed"]) for name in ("mocoda-local", "mocoda")]
    recorded = percent(own["mocoda"]["by"]["recipe"]["recorded"]["share"])
    said = f"confirms {shares[0]}% of its rows (of recorded ones {recorded}%, of the paper's mixtures {shares[1]}%)"
    assert said in words("README.md")
    titles = {"coda": "coda", "mocoda": "mocoda, by the paper's mixtures", "mocoda-local": "mocoda, the default"}
    for name, title in (titles | {"mocoda-matched": "mocoda, matched but not by local graph"}).items():
        graphs = [cell for links, cell in own[name]["by"]["local_graph"].items() if "robot -> cube" in links]
        near = sum(cell["share"] * cell["rows"] for cell in graphs) / sum(cell["rows"] for cell in graphs)
        low, high = map(percent, own[name]["interval"])
        line = row(title, [f"{percent(own[name]['confirmed'])}% ({low} to {high})", f"{percent(near)}%"])
        assert line in lines("docs/cubes.md")


def test_episodes_of_the_cubes_are_confirmed_as_measured() -> None:
    page, whole = words("docs/cubes.md"), {}
    for recipe in ("mocoda", "coda"):
        found = committed(f"audit-cubes-episodes-{recipe}.json")
        own, by_episode = found["by"]["recipe"][recipe], found["by"]["episode"][recipe]
        whole[recipe] = round(by_episode["share"] * by_episode["episodes"])
        assert f"Of {own['rows']:,} rows in {by_episode['episodes']} " in page
        share, low, high = map(percent, (own["share"], *own["interval"]))
        assert (f"{share}% ({low} to {high}) are confirmed" if recipe == "mocoda" else f"it is {share}% and") in page
    assert f"{whole['mocoda']} of the episodes are true to the last step" in page and f"and {whole['coda']} " in page


def test_success_with_the_cubes_is_as_measured() -> None:
    table = lines("docs/cubes.md")
    for name in ("cubes.json", "cubes-long.json", "cubes-more.json", "cubes-added.json"):
        measured = cells(name)
        for arm in committed(name)["config"]["arms"]:
            by_task = [f"{measured[arm, str(official)]['mean']:.0f}" for official in range(1, 6)]
            assert row(f"`{arm}`", [*by_task, shown(measured[arm, "all"], 1)]) in table
    longer, more = cells("cubes-long.json"), cells("cubes-more.json")
    recorded, turns, play = longer["recorded", "all"], more["turns", "all"], longer["play", "all"]
    assert f"let agents solve {shown(turns, 1)}% of the official tasks" in words("README.md")
    alone = f"(recordings alone: {recorded['mean']:.0f}%, recordings of both cubes: {shown(play, 1)}%)"
    assert alone in words("README.md")
    fewer = shown(longer["turns", "all"], 1)
    assert f"those on turns succeed in {fewer}%, and with four times as many new rows in {shown(turns, 1)}%" in words(
        "docs/episodes.md"
    )
    both = [
        mean([found[arm, str(i)]["mean"] for i in range(2, 6)])
        for found, arm in ((more, "turns"), (longer, "play"), (longer, "turns"))
    ]
    assert "in {:.1f}%, of `play` in {:.1f}, of fewer turns in {:.1f}.".format(*both) in words("docs/cubes.md")
    again = {(cell["row"], cell["total"], cell["column"]): cell for cell in committed("cubes-evaluation.json")["cells"]}
    for label, arm, total in (
        ("`turns`, 600,000 rows", "turns", 600_000),
        ("`turns`, 1,500,000 rows", "turns", 1_500_000),
        ("`added`, 1,500,000 rows", "added", 1_500_000),
        ("`play`", "play", 600_000),
    ):
        by_task = [f"{again[arm, total, str(official)]['mean']:.0f}" for official in range(1, 6)]
        assert row(label, [*by_task, shown(again[arm, total, "all"], 1)]) in table
    others = (shown(again["turns", 1_500_000, "all"], 1), shown(again["play", 600_000, "all"], 1))
    assert "or, from the other starts, {} and {}.".format(*others) in words("docs/cubes.md")
    added, added_again = shown(cells("cubes-added.json")["added", "all"], 1), shown(again["added", 1_500_000, "all"], 1)
    solved = f"solve {added}% of the official tasks with two cubes, or, from the other starts, {added_again}%"
    assert solved in words("docs/cubes.md") and f"it is {added}%." in words("README.md")
    three = cells("cubes-triple.json")
    of_three = [f"{three[arm, 'all']['mean']:.0f}%" for arm in ("turns", "play", "added")]
    first = f"{three['added', '1']['mean']:.0f}%"
    expected = "{} with turns of one-cube recordings, {} with `play` and {} (task 1: {}) with `added`"
    assert expected.format(*of_three, first) in words("docs/cubes.md")
    single = cells("cubes-single.json")["play", "all"]
    assert f"gives {single['mean']:.0f} ± {single['std']:.0f}%" in words("docs/cubes.md")


def test_the_exam_of_masks_is_as_measured() -> None:
    results, table = committed("masks.json"), lines("docs/masks.md")
    found = {(cell["method"], cell["world"]): cell for cell in results["cells"]}
    for method in results["config"]["methods"]:
        own = [found[method, world] for world in results["config"]["worlds"]]
        entries = [
            "–" if cell["skipped"] is not None else f"{cell['auroc']['mean']:.3f} ({cell['f1']['mean']:.2f})"
            for cell in own
        ]
        assert row(f"`{method}`" + (" *" if own[0]["looks_ahead"] else ""), entries) in table
    titles = {"navigation": "2D Navigation", "objects:4": "four objects", "dag:5": "random DAG of five"}
    titles |= {"hooksweep2": "HookSweep2, by replay", "cube-double": "OGBench's two cubes, by replay"}
    digits = {"auroc": 3, "f1": 2, "f1_own": 2, "rebalanced": 3, "calibration": 3}
    for world, title in titles.items():
        cell = found["learned", world]
        entries = [f"{cell[measure]['mean']:.{places}f}" for measure, places in digits.items()]
        assert row(title, entries) in lines("docs/learned-graphs.md")
    hook, page = found["learned", "hooksweep2"], words("docs/learned-graphs.md")
    edges = [f"{parent} -> {box}" for parent in ("gripper", "action") for box in ("box1", "box2")]
    all_rows, known = ([f"{hook[f'{measure} {edge}']['mean']:.2f}" for edge in edges] for measure in AUROCS)
    assert "with an AUROC of {} and {} (we aimed at 0.95), the action with {} and {}.".format(*all_rows) in page
    assert "these are {} and {}, and {} and {}.".format(*known) in page


def test_single_exams_of_masks_are_as_measured() -> None:
    page = words("docs/masks.md")
    found = {
        (name, cell["method"]): [f"{cell[key]['mean']:.{digits}f}" for key, digits in DIGITS.items()]
        for name in ("dag10", "million")
        for cell in committed(f"masks-{name}.json")["cells"]
        if cell["skipped"] is None
    }
    auroc, f1, wrong = found["dag10", "learned"]
    assert f"now has an AUROC of {auroc}, an F1 of {f1} and {wrong} wrong when rebalanced" in page
    auroc, f1, wrong = found["dag10", "redrawn"]
    assert (
        f"`redrawn`, has {auroc}, {f1} and {wrong}; the gradient {{}}, {{}} and {{}}".format(
            *found["dag10", "gradient"]
        )
        in page
    )
    assert f"AUROC {found['million', 'learned'][0]}, and" in page


def test_exams_of_more_worlds_are_as_measured() -> None:
    table, times = lines("docs/masks.md"), words("docs/learned-graphs.md")
    for cell in committed("masks-more.json")["cells"]:
        entries = [f"{cell[key]['mean']:.{digits}f}" for key, digits in (DIGITS | {"seconds": 0}).items()]
        assert row(f"`{cell['world']}`", entries) in table
        if cell["world"] in ("objects:8", "dag:30"):
            title = {"objects:8": "eight objects take {} seconds", "dag:30": "a random DAG of thirty {}"}[cell["world"]]
            assert title.format(entries[-1]) in times


def test_exams_by_recorded_rows_are_as_measured() -> None:
    of_all = [cell for name in ("masks.json", "masks-rows.json") for cell in committed(name)["cells"]]
    found = {(cell["method"], cell["rows"]): cell for cell in of_all if cell["world"] == "objects:4"}
    for method, title in (("learned", "`learned`"), ("redrawn", "`redrawn` *"), ("gradient", "`gradient`")):
        own = [found[method, rows] for rows in (3_000, 40_000, 300_000)]
        entries = [f"{cell['auroc']['mean']:.3f} ({cell['f1']['mean']:.2f})" for cell in own]
        assert row(title, entries) in lines("docs/masks.md")


@pytest.mark.parametrize("world", ["navigation", "dag:5", "dag:30", "hooksweep2"])
def test_exams_of_our_method_by_recorded_rows_are_as_measured(world: str) -> None:
    names = ["masks", "masks-more", *(f"masks-rows-{name}" for name in ("navigation", "dag5", "dag30", "hooksweep2"))]
    of_all = [cell for name in names for cell in committed(f"{name}.json")["cells"]]
    own = {cell["rows"]: cell for cell in of_all if (cell["world"], cell["method"]) == (world, "learned")}
    entries = [
        f"{own[rows]['auroc']['mean']:.3f} ({own[rows]['f1']['mean']:.2f})" if rows in own else "–"
        for rows in (3_000, 40_000, 300_000)
    ]
    wrong = ", ".join(f"{own[rows]['rebalanced']['mean']:.3f}" for rows in sorted(own))
    assert row(f"`{world}`", [*entries, wrong]) in lines("docs/masks.md")


def mask_cells(file: str) -> dict[tuple[str, str, str], dict[str, Any]]:
    """What was measured with each mask, by world, measure and mask."""
    return {(cell["world"], cell["column"], cell["row"]): cell for cell in committed(f"{file}.json")["cells"]}


def with_spread(cell: dict[str, Any] | None, measure: str) -> str:
    """A mean, and a standard deviation if there are several seeds, in the digits of the measure."""
    digits = 1 if "%" in measure or "steps" in measure else 2
    spread = "" if cell is None or len(cell["values"]) == 1 else f" ± {cell['std']:.{digits}f}"
    return "–" if cell is None else f"{cell['mean']:.{digits}f}{spread}"


def test_what_a_mask_changes_is_as_measured() -> None:
    found, table = mask_cells("learned-masks"), lines("docs/masks.md")
    for world, measure in dict.fromkeys((world, measure) for world, measure, _ in found):
        entries = [with_spread(found.get((world, measure, mask)), measure) for mask in MASKS]
        assert row(f"{world}: {measure}", entries) in table
    success = {mask: found["hooksweep2", "success, %, td3-bc", mask] for mask in MASKS}
    composed_one, given, learned = (f"{success[mask]['mean']:.0f}" for mask in ("composed", "given", "learned"))
    assert f"a learned graph succeed in [{composed_one}%]" in words("README.md")
    assert f"on rows of the paper's in {given}%" in words("README.md")
    spreads = [f"{success[mask]['mean']:.0f} ± {success[mask]['std']:.0f}%" for mask in ("composed", "learned")]
    assert "succeed in {} with it and in {} without".format(*spreads) in words("docs/recipes.md")
    assert f"Without, in {learned}%" in words("docs/masks.md")


def test_what_a_mask_changes_is_as_measured_with_more_rows_and_seeds() -> None:
    page = words("docs/masks.md")
    asked = mask_cells("learned-masks-confirmed")
    shares = [
        f"{asked['hooksweep2', measure, mask]['mean']:.1f}" for measure in CONFIRMED for mask in ("learned", "given")
    ]
    assert "{} and {}% of all (± 0.2), and {} and {}% of those".format(*shares) in page
    steps = mask_cells("learned-masks-navigation")
    texts = [with_spread(steps["navigation", "steps, td3-bc", mask], "steps") for mask in ("learned", "given", "dense")]
    wanted = "they need {} steps, those on rows of the given graph {}, and those without a graph {}."
    assert wanted.format(*texts) in page


def test_what_a_cut_of_a_learned_graph_changes_is_as_measured() -> None:
    files = ("learned-masks-caution-0.2", "learned-masks", "learned-masks-caution-0.005")
    found, table = [mask_cells(file) for file in files], lines("docs/masks.md")
    for measure in ("box error, mm, one swept", "box error, mm, two swept", *CONFIRMED):
        every = [
            *(cells["hooksweep2", measure, "learned"] for cells in found),
            found[1]["hooksweep2", measure, "given"],
        ]
        digits = 1 if "%" in measure else 2
        assert row(measure, [f"{cell['mean']:.{digits}f}" for cell in every]) in table
    measure = "success, %, td3-bc"
    learned, composed = (
        [with_spread(cells["hooksweep2", measure, mask], measure) for cells in found]
        for mask in ("learned", "composed")
    )
    given = with_spread(found[1]["hooksweep2", measure, "given"], measure)
    assert row("success, %", [*learned, given]) in table
    assert row("success, %, composed", [*composed, "–"]) in table
    beside = (ROOT / "docs/learned-graphs.md").read_text("utf-8")
    for cells, title, mask in (
        (found[0], "0.2", "composed"),
        (found[1], "0.02", "composed"),
        (found[2], "0.005", "composed"),
        (found[1], "the given graph", "given"),
    ):
        true = [cells["hooksweep2", key, mask.replace("composed", "learned")]["mean"] for key in CONFIRMED]
        success = cells["hooksweep2", measure, mask]["mean"]
        assert re.search(rf"\| {title} \|[^|]*\| {true[0]:.1f}% \| {true[1]:.1f}% \| {success:.0f}% \|", beside)
    texts = [committed(f"{file}.json")["learned"]["hooksweep2"].splitlines()[2] for file in files]  # what moves box 1
    for parent, name, always in (("gripper", "gripper", "100%"), ("box2", "box 2", "0%")):
        shares = [text.split(f"{parent} (")[1].split(" of the rows)")[0] for text in texts]
        assert row(f"rows with an edge from {name} to box 1", [*shares, always]) in table


def test_the_share_of_recorded_sweeps_that_are_confirmed_is_as_measured() -> None:
    assert f"{confirmed('hooksweep2', 'recorded')}% of recorded rows are within 1 cm" in words("docs/hooksweep.md")


def test_the_page_about_speed_is_as_measured() -> None:
    cpu, gpu = (
        {key: cell["mean"] for key, cell in cells(name).items()} for name in ("bench-cpu.json", "bench-h200.json")
    )
    recorded = cpu["record", "ratio"]
    last_columns = [
        f"{cpu['em', 'ratio']:.1f} × faster | {gpu['em', 'ratio']:.0f} × faster",
        f"{cpu['kde', 'ratio']:.0f} × faster | {gpu['kde', 'ratio']:,.0f} × faster",
        f"{cpu['generate', 'ratio']:,.0f} | {gpu['generate', 'ratio'] / 1e6:.1f} million",
        f"{cpu['growth', 'ratio']:.2f} | {gpu['growth', 'ratio']:.0f} (small calls only launch)",
        f"{cpu['memory', 'mocoda']:.0f} MB | {gpu['memory', 'mocoda']:.0f} MB",
        f"{cpu['d3rlpy', 'ratio']:.1f} × faster",
        f"{round(recorded, -1):,.0f} (a million in {1e6 / recorded / 60:.0f} minutes)",
        f"| {gpu['sweep-dynamics', 'mocoda']:.0f} s (aim: 480)",
        f"| {gpu['sweep-rows', 'mocoda']:.1f} s (aim: 20)",
        f"| {1e3 * gpu['sweep-agents', 'mocoda']:.2f} ms (aim: 1)",
    ]
    agents = []
    for name in AGENTS:
        times = [gpu[f"{name} × {runs}", "agent"] for runs in (1, 5, 25, 100)]
        times += [gpu[f"{name} in bfloat16 × 100", "agent"], gpu[f"{name} × 100", "roofline"]]
        agents.append(row(name.upper(), [f"{time:.3f}" for time in times]))
    table = [line for line in lines("docs/speed.md") if not line.startswith("| |")]
    assert [line.split(" | ", 1)[1].rstrip("| ") for line in table[:10]] == last_columns
    assert table[10:] == agents


def test_shards_are_as_measured() -> None:
    gpu, cores, many = (committed(f"scale{name}.json") for name in ("", "-2-cores", "-16-cores"))
    table, text = lines("docs/scale.md"), " ".join((ROOT / "docs/scale.md").read_text("utf-8").split())
    runs = [measured["runs"][kind] for measured in (gpu, cores) for kind in ("killed", "whole")]
    assert all(measured["same_bytes"] and measured["within_limit"] for measured in (gpu, cores, many))
    assert [run["rows"] for run in runs] == [10**9, 10**9, 10**8, 10**8]
    memory = "memory of the command and its processes in MB, pages they share counted for each"
    titles = {"seconds": "seconds", "rows per second": "rows per second, starts included", "memory": memory}
    for key, title in titles.items():
        assert row(title, [f"{run[key]:,.0f}" for run in runs]) in table
    assert row("bytes a row", [f"{run['bytes per row']:.1f}" for run in runs]) in table
    assert "Killed after {} and after {} of 256 shards on the GPU,".format(*runs[0]["shards at kills"]) in text
    assert "and after {} and after {} of 64 on the cores".format(*runs[2]["shards at kills"]) in text
    places = {
        "[2 CPU cores](../results/scale-2-cores.json)": cores,
        "[16 CPU cores](../results/scale-16-cores.json)": many,
        "[one H200](../results/scale.json), beside 16 cores": gpu,
    }
    for title, measured in places.items():
        rates = {point["workers"]: f"{point['steady']:,.0f}" for point in measured["scaling"]}
        (line,) = (line for line in table if line.startswith(f"| {title} |"))
        assert [part.strip() for part in line.split("|")[2:-1]] == [rates.get(n, "") for n in (1, 2, 4, 8, 16)]
    two = cores["scaling"][1]
    assert f"{two['rows']:,} of them need {two['memory']:,.0f} MB" in text
    steady, width = gpu["scaling"][-1]["steady"] / 1e6, runs[0]["bytes per row"]
    assert f"10¹⁰ / (64 × {steady:.1f} million/s) = {1e4 / 64 / steady:.1f} s" in text
    assert f"10¹⁰ × {width:.1f} bytes = {10 * width:.0f} GB" in text


def test_the_plotting_library_is_as_large_as_its_page_says() -> None:
    assert f"its scripts take {len(library().encode()) / 1e6:.1f} MB" in (ROOT / "docs/report.md").read_text("utf-8")
