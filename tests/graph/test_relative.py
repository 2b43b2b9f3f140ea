"""Columns that are measured from others: in a graph, in graph files, and in HookSweep2."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from approved import refused
from graph_texts import NAMES, PYTHON, ROWS, TOML, write

from mocoda import load_graph
from mocoda.graph.local_graph import LocalGraph
from mocoda.tasks.hooksweep import COLUMNS, GRAPH

PLAIN = LocalGraph(state={"hand": 0, "box": 1}, action={"push": 0}, edges={"hand": ["hand"], "box": ["hand", "box"]})


def test_hooksweep2s_boxes_are_measured_from_the_gripper() -> None:
    assert {COLUMNS[column]: COLUMNS[origin] for column, origin in GRAPH.relative.items()} == {
        f"box{number}_{name}": f"gripper_{name}" for number in (1, 2) for name in "xy"
    }


def test_models_do_not_depend_on_what_is_relative() -> None:
    moved, rows = replace(PLAIN, relative={1: 0}), ROWS[:5, :3]
    assert PLAIN.relative == {}
    assert moved.structure == PLAIN.structure and moved.fingerprint(rows) == PLAIN.fingerprint(rows)


@pytest.mark.parametrize(
    "relative",
    [
        {3: 0},
        {0: -1},
        {"box": 0},
        {2: 1, 1: 0},
        {1: 1},
    ],
)
def test_columns_that_cannot_be_relative_are_refused(relative: dict[int, int]) -> None:
    with refused():
        replace(PLAIN, relative=relative)


def test_graph_files_name_the_columns(tmp_path: Path) -> None:
    python = write(tmp_path, PYTHON + 'relative = {"box1.x": "gripper.x", "box2.y": "gripper.y"}\n')
    toml = write(tmp_path, TOML + '[relative]\n"box1.x" = "gripper.x"\n"box2.y" = "gripper.y"\n', "my_graph.toml")
    for file in (python, toml):
        assert load_graph(file, NAMES).relative == {3: 0, 6: 1}
