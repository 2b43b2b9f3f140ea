"""The picture of a graph: its edges, and how often they are there among rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from drawn_figures import drawn_figures
from matplotlib.figure import Figure

from mocoda import LocalGraph, make_task
from mocoda.graph.figure import draw_graph

GRAPH = make_task("navigation").graph


@pytest.fixture
def figures() -> Iterator[list[Figure]]:
    with drawn_figures() as figures:
        yield figures


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "graph.png"


def test_graphs_among_rows_are_drawn_most_frequent_first_with_their_share(figures: list[Figure], path: Path) -> None:
    rows = torch.zeros(8, 4)
    rows[:2] = 0.9  # coupled
    draw_graph(GRAPH, path)
    draw_graph(GRAPH, path, rows)
    sparsest, local = figures
    assert [axes.get_title() for axes in sparsest.axes] == ["sparsest"]
    assert [axes.get_title() for axes in local.axes] == ["in 75.0% of rows", "in 25.0% of rows"]
    assert [len(axes.patches) for axes in (*sparsest.axes, *local.axes)] == [4, 4, 8]
    names = [text.get_text() for text in sparsest.axes[0].texts]
    assert names == ["x", "y", "dx", "dy", "x'", "y'"]


def test_of_many_local_graphs_the_six_most_frequent_are_drawn(figures: list[Figure], path: Path) -> None:
    def local(rows: torch.Tensor) -> torch.Tensor:  # the bits of the action say what depends on it
        bits = rows[:, 3:].bool()
        return torch.cat([torch.ones(len(rows), 3, 3, dtype=torch.bool), bits[:, None].expand(-1, 1, 3)], 1)

    graph = LocalGraph(
        state={"a": 0, "b": 1, "c": 2},
        action={"u": [0, 1, 2]},
        edges={"a": ["a"], "b": ["b"], "c": ["c"]},
        local=local,
    )
    rows = torch.zeros(36, 6)
    number = torch.repeat_interleave(torch.arange(8), torch.tensor([1, 2, 3, 4, 5, 6, 7, 8]))
    rows[:, 3:] = (number[:, None] >> torch.arange(3)) & 1
    draw_graph(graph, path, rows)
    shares = [axes.get_title() for axes in figures[0].axes]
    assert shares == [f"in {100 * count / 36:.1f}% of rows" for count in (8, 7, 6, 5, 4, 3)]
