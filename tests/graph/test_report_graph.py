"""The picture and the table of a graph: every edge once, dashed where it is local, with its share."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from command_line import mocoda as run
from graph_texts import NAMES, ROWS, TOML, data, write
from matplotlib.figure import Figure
from matplotlib.image import imread
from rich.console import Console

import mocoda.graph.diagram
from mocoda import LocalGraph, load_graph
from mocoda.graph.diagram import dependency_table, draw_graph


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that would have been saved."""
    kept: list[Figure] = []
    monkeypatch.setattr(mocoda.graph.diagram, "save", lambda figure, path: kept.append(figure))
    return kept


def ring(factors: int) -> LocalGraph:
    """Each factor depends on itself, the first on an action; all depend on each other in some rows."""
    names = [f"thing{i}" for i in range(factors)]

    def local(rows: torch.Tensor) -> torch.Tensor:
        always = torch.cat([torch.eye(factors), torch.ones(1, factors)]).bool()
        return always | (rows[:, 0] > 0.75)[:, None, None]

    return LocalGraph(
        state={name: i for i, name in enumerate(names)},
        action={"push": 0},
        edges={name: [name, "push"] for name in names},
        local=local,
    )


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


@pytest.mark.parametrize("factors", [1, 2, 3, 8])
def test_every_edge_has_a_cell_with_its_share(factors: int, figures: list[Figure]) -> None:
    draw_graph(ring(factors), Path("unused"), ROWS[:, : factors + 1], "a title")
    words = [text.get_text() for text in figures[0].axes[1].texts]
    local, all_edges = factors * (factors - 1), factors * (factors + 1)
    assert words.count("always") == all_edges - local
    assert len(words) == all_edges


@pytest.mark.parametrize("length", [1, 12, 30])
def test_names_of_any_length_stay_inside_the_picture(length: int, figures: list[Figure]) -> None:
    names = ["o" * length, "n" * length]
    state: dict[str, int] = {name: i for i, name in enumerate(names)}
    draw_graph(LocalGraph(state, {"u": 0}, {name: [name] for name in names}), Path("unused"), ROWS[:, :3], "a title")
    figure = figures[0]
    figure.draw_without_rendering()
    left, right = figure.axes
    shown = [*left.texts, *right.texts, *right.get_xticklabels(), *right.get_yticklabels()]
    extents = [text.get_window_extent() for text in shown]
    assert all(figure.bbox.contains(*box.p0) and figure.bbox.contains(*box.p1) for box in extents)


def test_the_command_draws_prints_and_says_where(tmp_path: Path) -> None:
    data().save(tmp_path / "data.hdf5")
    file = write(tmp_path, TOML, "g.toml")
    drawn = run("graph", file, "--data", tmp_path / "data.hdf5", "--out", tmp_path / "new" / "graph.png")
    assert drawn.code == 0 and "gripper, push" in drawn.out
    assert "Modelled together: gripper, push; gripper, box1; gripper, box2" in drawn.out
    assert imread(tmp_path / "new" / "graph.png").shape[2] == 4
    refused = run("graph", tmp_path / "none.py", "--data", "none.hdf5", "--out", tmp_path)
    assert refused.code == 2 and "it is a folder" in refused.err  # before anything is read
