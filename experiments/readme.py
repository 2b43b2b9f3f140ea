"""The READMEs of experiments: text between `<!-- block: NAME -->` and `<!-- end -->` is made of the JSON files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from experiments.columns import column_title
from experiments.cubes import HOW, by_way
from experiments.experiment import HERE, by_place, experiment_names, find_kind, markdown_table, plus_minus, read_json
from experiments.tables import reference
from mocoda.engine.errors import InputError
from mocoda.engine.files import whole_file

BLOCK = re.compile(r"<!-- block: ([\w-]+) -->\n(.*?)<!-- end -->", re.DOTALL)


def folder_of(name: str) -> Path:
    return HERE / name.replace("-", "_")


def answer_of(name: str) -> str:
    """The answer of an experiment as its README has it, without importing its code."""
    text = (folder_of(name) / "README.md").read_text("utf-8")
    return next((" ".join(made.split()) for block, made in BLOCK.findall(text) if block == "answer"), "")


def filled(text: str, blocks: dict[str, str], page: str) -> str:
    """A README with its blocks made anew."""
    if unknown := [name for name, _ in BLOCK.findall(text) if name not in blocks]:
        raise InputError(f"{page} has a block {unknown[0]!r}, which nothing makes; there are: {', '.join(blocks)}.")
    return BLOCK.sub(lambda match: f"<!-- block: {match[1]} -->\n\n{blocks[match[1]]}\n\n<!-- end -->", text)


def rendered(name: str) -> str:
    """The README of an experiment as its JSON files make it."""
    folder = folder_of(name)
    text = (folder / "README.md").read_text("utf-8")
    return filled(text, find_kind(name).blocks(folder), f"experiments/{folder.name}/README.md")


def rendered_index() -> str:
    """The README of all experiments: a line per question, with its answer."""
    rows = [[f"[`{name}`]({folder_of(name).name}/README.md)", answer_of(name)] for name in experiment_names()]
    text = (HERE / "README.md").read_text("utf-8")
    return filled(text, {"questions": markdown_table(["experiment", "answer"], rows)}, "experiments/README.md")


def rendered_front() -> str:
    """The README of the project, with its table of results."""
    walks, sweeps = (by_place(read_json(HERE / name / f"{name}.json")) for name in ("table2", "table3"))
    cubes = by_way(read_json(HERE / "cubes" / "cubes.json"))
    ours = {table: reference(read_json(HERE / table / f"{table}.json")) for table in ("table2", "table3")}

    def others(cells: dict[tuple[str, str], dict[str, Any]], *columns: str) -> str:
        known = (column for column in columns if ("td3-bc", column) in cells)
        return ", ".join(f"{plus_minus(cells['td3-bc', column], 1)} ({column_title(column)})" for column in known)

    rows = [
        [
            "[2D Navigation](experiments/table2/README.md): steps to the goal",
            plus_minus(walks["td3-bc", "emp"], 1),
            others(walks, "coda", "dyna", "rand", "diffusion"),
            plus_minus(walks["td3-bc", ours["table2"]], 1),
            f"{walks['optimum', 'emp']['mean']:.1f} (shortest way)",
        ],
        [
            "[HookSweep2](experiments/table3/README.md): both boxes swept, in %",
            plus_minus(sweeps["td3-bc", "emp"], 1),
            others(sweeps, "coda", "dyna", "rand", "diffusion", "mocoda-full"),
            plus_minus(sweeps["td3-bc", ours["table3"]], 1),
            f"{sweeps['expert', 'emp']['mean']:.0f} (script)",
        ],
    ]
    for how in HOW:
        solved = {arm: plus_minus(one, 1) for (arm, way, column), one in cubes.items() if (way, column) == (how, "all")}
        rows.append(
            [
                f"[OGBench's two cubes](experiments/cubes/README.md), goals {how}: official tasks solved, in %",
                solved["recorded"],
                f"{solved['coda']} (CoDA)",
                f"{solved['turns']} (CoDA, in turns)",
                f"{solved['play-few']} and {solved['play']} (as many and a million rows that show both cubes)",
            ]
        )
    columns = ["task", "recorded data", "baselines", "rows by mocoda", "for comparison"]
    blocks = {"results": markdown_table(columns, rows)}
    return filled((HERE.parent / "README.md").read_text("utf-8"), blocks, "README.md")


def render(names: list[str]) -> list[Path]:
    """Makes the blocks of READMEs anew, with the index and the project's own; returns the files that changed."""
    for name in names:
        find_kind(name)
    changed = []
    for file, make in [
        *((folder_of(name) / "README.md", lambda name=name: rendered(name)) for name in names),
        (HERE / "README.md", rendered_index),
        (HERE.parent / "README.md", rendered_front),
    ]:
        text = make()
        if text != file.read_text("utf-8"):
            with whole_file(file) as part:
                part.write_text(text, "utf-8")
            changed.append(file)
    return changed
