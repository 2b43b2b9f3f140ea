"""The picture and the table of a graph: what depends on what, and in which share of rows."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from command_line import mocoda as run
from graph_texts import NAMES, ROWS, TOML, data, write
from matplotlib.image import imread
from rich.console import Console

from mocoda import LocalGraph, load_graph
from mocoda.graph.diagram import dependency_table


def printed(graph: LocalGraph, shares: torch.Tensor) -> list[list[str]]:
    console = Console(file=io.StringIO(), width=200)
    console.print(dependency_table(graph, shares))
    assert isinstance(console.file, io.StringIO)
    lines = [line for line in console.file.getvalue().splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_the_table_says_what_depends_on_what_always_and_in_which_share_of_rows(tmp_path: Path) -> None:
    graph = load_graph(write(tmp_path, TOML, "g.toml"), NAMES)
    shares = graph.shares(ROWS)
    share = f"{100 * shares[1, 2]:.0f}%"
    assert printed(graph, shares) == [
        ["gripper", "gripper, push", ""],
        ["box1", "gripper, box1", f"box2 ({share})"],
        ["box2", "gripper, box2", f"box1 ({share})"],
    ]


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.0, "0%"), (1e-9, "<0.1%"), (0.0123, "1.2%"), (0.0994, "9.9%"), (0.5, "50%"), (0.99, "99%"), (0.9996, ">99.9%")],
)
def test_no_share_is_rounded_to_never_or_always(share: float, words: str) -> None:
    graph = LocalGraph(state={"a": 0, "b": 1}, action={"u": 0}, edges={"a": ["a"], "b": ["b"]})
    shares = graph.sparsest.double()
    shares[0, 0] = share
    assert printed(graph, shares)[0][2] == f"a ({words})"


def test_the_command_draws_prints_and_says_where(tmp_path: Path) -> None:
    data().save(tmp_path / "data.hdf5")
    file = write(tmp_path, TOML, "g.toml")
    drawn = run("graph", file, "--data", tmp_path / "data.hdf5", "--out", tmp_path / "new" / "graph.png")
    assert drawn.code == 0 and "gripper, push" in drawn.out
    assert "Modelled together: gripper, push; gripper, box1; gripper, box2" in drawn.out
    assert imread(tmp_path / "new" / "graph.png").shape[2] == 4
    refused = run("graph", tmp_path / "none.py", "--data", "none.hdf5", "--out", tmp_path)
    assert refused.code == 2 and "it is a folder" in refused.err  # before anything is read
