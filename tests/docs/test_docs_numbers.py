"""Numbers on the pages are those that were measured: docs and README against results/."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def means(name: str) -> dict[tuple[str, str], float]:
    """What was measured, by row and column."""
    cells = json.loads((ROOT / "results" / name).read_text("utf-8"))["cells"]
    return {(cell["row"], cell["column"]): cell["mean"] for cell in cells}


def rows_of(text: str) -> list[str]:
    """The lines of tables, less their headings."""
    return [line for line in text.splitlines() if re.match(r"\| [^|]", line)]


def test_the_page_about_speed_says_what_was_measured() -> None:
    cpu, gpu = means("bench-cpu.json"), means("bench-h200.json")
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
    for name in ("td3-bc", "bcq", "cql", "sac"):
        times = [gpu[f"{name} × {runs}", "agent"] for runs in (1, 5, 25, 100)]
        times += [gpu[f"{name} in bfloat16 × 100", "agent"], gpu[f"{name} × 100", "roofline"]]
        agents.append(f"| {name.upper()} | {' | '.join(f'{time:.3f}' for time in times)} |")
    said = rows_of((ROOT / "docs/speed.md").read_text("utf-8"))
    assert [line.split(" | ", 1)[1].rstrip("| ") for line in said[:10]] == last_columns
    assert said[10:] == agents


def test_the_readme_s_speed_is_that_of_the_page() -> None:
    section = (ROOT / "README.md").read_text("utf-8").split("\n## Speed\n")[1].split("\n## ")[0]
    assert rows_of(section) == rows_of((ROOT / "docs/speed.md").read_text("utf-8"))


def test_the_first_page_s_steps_to_the_goal_were_measured() -> None:
    cells = json.loads((ROOT / "results/table2.json").read_text("utf-8"))["cells"]
    told = {(cell["row"], cell["column"]): f"{cell['mean']:.1f} ± {cell['std']:.1f}" for cell in cells}
    best = told["optimum", "emp"].split(" ")[0]
    expected = [
        f"| {name.upper()} | {told[name, 'emp']} | {told[name, 'mocoda']} | {best} |"
        for name in ("td3-bc", "bcq", "cql", "sac")
    ]
    assert [line for line in rows_of((ROOT / "docs/index.md").read_text("utf-8")) if " ± " in line] == expected


def test_the_readme_and_the_method_s_page_have_table_3_as_it_was_measured() -> None:
    results = json.loads((ROOT / "results/table3.json").read_text("utf-8"))
    for name in ("td3-bc", "bcq"):
        row = [cell for cell in results["cells"] if cell["row"] == name]
        told = [f"{cell['mean']:.1f} ± {cell['std']:.1f} ({cell['paper_mean']:.1f})" for cell in row]
        for page in ("README.md", "docs/method.md"):
            text = (ROOT / page).read_text("utf-8").replace("**", "")
            assert f"| {name.upper()} | {' | '.join(told)} |" in text, page
