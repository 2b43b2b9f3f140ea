"""Columns that are measured from others: in a graph, in graph files, and in HookSweep2."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from graph_texts import NAMES, PYTHON, ROWS, TOML, write

from mocoda import load_graph
from mocoda.engine.errors import InputError
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
    ("relative", "expected"),
    [
        ({3: 0}, "relative names the column 3; a row has 3 columns, counted from 0, the state's first."),
        ({0: -1}, "relative names the column -1; a row has 3 columns, counted from 0, the state's first."),
        ({"box": 0}, "relative names the column 'box'; a row has 3 columns, counted from 0, the state's first."),
        (
            {2: 1, 1: 0},
            "relative measures column 2 from column 1, which is itself measured from 0; an origin is a column of its "
            "own.",
        ),
        (
            {1: 1},
            "relative measures column 1 from column 1, which is itself measured from 1; an origin is a column of its "
            "own.",
        ),
    ],
)
def test_columns_that_cannot_be_relative_are_refused(relative: dict[int, int], expected: str) -> None:
    with pytest.raises(InputError) as error:
        replace(PLAIN, relative=relative)
    assert str(error.value) == expected


def test_graph_files_name_the_columns(tmp_path: Path) -> None:
    python = write(tmp_path, PYTHON + 'relative = {"box1.x": "gripper.x", "box2.y": "gripper.y"}\n')
    toml = write(tmp_path, TOML + '[relative]\n"box1.x" = "gripper.x"\n"box2.y" = "gripper.y"\n', "my_graph.toml")
    for file in (python, toml):
        assert load_graph(file, NAMES).relative == {3: 0, 6: 1}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "relative = ['box1.x']",
            "relative must map a column's name to that of the column it is measured from, got ['box1.x'].",
        ),
        (
            "relative = {'box1.x': 'griper.x'}",
            "there is no column 'griper.x'; there are: gripper.x, gripper.y, gripper.z, box1.x, box1.y, box2.x, "
            "box2.y, push.x, push.y. Did you mean 'gripper.x'?",
        ),
        (
            "relativ = {}",
            "'relativ' means nothing in a graph file. Did you mean 'relative'? If not, call it '_relativ'.",
        ),
    ],
)
def test_graph_files_that_name_other_columns_are_refused(text: str, expected: str, tmp_path: Path) -> None:
    file = write(tmp_path, PYTHON + text)
    with pytest.raises(InputError) as error:
        load_graph(file, NAMES)
    assert str(error.value) == f"{str(file)!r}: {expected}"
