from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
import torch
from matplotlib.collections import PolyCollection
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle

from mocoda.engine.figures import GREY, INK, RED
from mocoda.engine.randomness import Stream
from mocoda.paper.table3_figure import (
    GREEN,
    _wilson,
    column_title,
    draw_by_distance,
    draw_placements,
    draw_scarcity,
    draw_success,
    draw_success_curves,
    draw_tables,
)
from mocoda.tasks.hooksweep import HookSweep2

COLUMNS = ("emp", "mocoda", "mocoda-p", "mocoda-full", "mocoda-p-full")
TITLES = ["Emp", "MoCoDA", "MoCoDA-P", "MoCoDA (unfactored model)", "MoCoDA-P (unfactored model)"]


def stream(*labels: str) -> Stream:
    return Stream(0, "test-report-sweeps", *labels)


def results(*agents: str, seeds: int = 3, columns: tuple[str, ...] = COLUMNS) -> dict[str, Any]:
    """Cells all of whose numbers differ; of the paper's, only the first agent's."""
    cells: list[dict[str, Any]] = []
    for number, agent in enumerate(agents):
        for values in stream("cells", agent).uniform(len(columns), seeds, high=100).tolist():
            mean, std = float(np.mean(values)), float(np.std(values, ddof=1)) if seeds > 1 else 0.0
            paper = None if number else 50 + len(cells)
            column = columns[len(cells) % len(columns)]
            cell = {"row": agent, "column": column, "values": values, "mean": mean, "std": std}
            cells.append(cell | {"paper_mean": paper, "paper_std": paper and 1.5})
    ceiling = {"values": [95.0], "mean": 95.0, "std": 0.0, "paper_mean": None, "paper_std": None}
    return {"cells": cells + [{"row": "expert", "column": column, **ceiling} for column in columns]}


def curves(*agents: str, seeds: int = 3, evaluations: int = 8) -> dict[str, Any]:
    updates = [1_000 * (k + 1) for k in range(evaluations)]
    return {
        agent: {
            "updates": updates,
            "success": {
                column: stream("curves", agent, column).uniform(seeds, evaluations, high=100).tolist()
                for column in COLUMNS
            },
        }
        for agent in agents
    }


def outcomes(*agents: str, episodes: int = 60) -> dict[str, dict[str, tuple[list[float], list[float]]]]:
    def some(agent: str, column: str) -> tuple[list[float], list[float]]:
        shifts, draws = stream("outcomes", agent, column).uniform(2, episodes)
        return (0.21 + 0.2 * shifts).tolist(), (draws < 0.5).float().tolist()

    return {agent: {column: some(agent, column) for column in COLUMNS} for agent in agents}


def boxes(*columns: str) -> dict[str, torch.Tensor]:
    middle = torch.tensor([1.85, 0.7, 1.85, 0.8])
    return {column: middle + 0.1 * stream("boxes", column).normal(80, 4) for column in columns}


def offsets(*columns: str) -> dict[str, torch.Tensor]:
    return {column: 0.1 * stream("offsets", column).normal(80, 4) for column in columns}


def points(*rows: int, seeds: int = 3, architectures: tuple[str, ...] = ("local", "full")) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for number in rows:
        for architecture in architectures:
            success, one, two = stream("points", str(number), architecture).uniform(3, seeds, low=1, high=10).tolist()
            made.append({"rows": number, "architecture": architecture, "success": success})
            made[-1] |= {"error_one": one, "error_two": two}
    return made


GOALS = HookSweep2().goals(400, seed=0)
DRAWINGS: dict[str, Callable[[Path], None]] = {
    "success": lambda path: draw_success(results("td3-bc", "bcq", "sac", "cql"), path),
    "success of one agent, column and seed": lambda path: draw_success(
        results("mine", seeds=1, columns=("emp",)), path
    ),
    "curves": lambda path: draw_success_curves(curves("td3-bc", "bcq"), 95.0, path),
    "curves of one evaluation and seed": lambda path: draw_success_curves(
        curves("mine", seeds=1, evaluations=1), 95.0, path
    ),
    "tables": lambda path: draw_tables(boxes("emp", "mocoda", "mocoda-p"), GOALS, path),
    "one table, one goal, boxes apart": lambda path: draw_tables(
        {"mine": torch.tensor([[1.4, 0.5, 2.2, 0.9]])}, GOALS[:1], path
    ),
    "distances": lambda path: draw_by_distance(outcomes("td3-bc", "bcq"), path),
    "distances of one episode": lambda path: draw_by_distance(outcomes("mine", episodes=1), path),
    "distances of no episode": lambda path: draw_by_distance({"mine": {"emp": ([], [])}}, path),
    "placements": lambda path: draw_placements(offsets(*COLUMNS), path),
    "one placement": lambda path: draw_placements({"mine": torch.full((1, 4), 3.0)}, path),
    "scarcity": lambda path: draw_scarcity(points(10_000, 30_000, 100_000, 300_000, 1_000_000), path),
    "scarcity of one seed and model": lambda path: draw_scarcity(
        points(10_000, seeds=1, architectures=("full",)), path
    ),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_figures_are_pngs_of_a_sensible_size_with_something_on_them(name: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / "figure.png"
    DRAWINGS[name](path)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    pixels = np.asarray(matplotlib.image.imread(path))[..., :3]
    assert 400 <= pixels.shape[0] <= 700 and 500 <= pixels.shape[1] <= 2_100
    assert pixels.std() > 0.01
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are drawn from here on, instead of files."""
    drawn: list[Figure] = []
    monkeypatch.setattr("mocoda.paper.table3_figure._save", lambda figure, path: drawn.append(figure))
    return drawn


def legend(figure: Figure) -> list[str]:
    (shown,) = figure.legends
    return [text.get_text() for text in shown.get_texts()]


def lines(figure: Figure, panel: int, label: str) -> list[list[float]]:
    """What the lines of a panel that are labelled so show."""
    return [np.asarray(line.get_ydata()).tolist() for line in figure.axes[panel].lines if line.get_label() == label]


def test_columns_have_titles_and_others_keep_their_names() -> None:
    assert [column_title(column) for column in (*COLUMNS, "mine")] == [*TITLES, "mine"]


def test_bars_are_as_high_as_the_means_with_seeds_the_paper_and_the_expert_about_them(figures: list[Figure]) -> None:
    given = results("td3-bc", "sac")
    draw_success(given, Path("unused"))
    (axes,) = figures[0].axes
    ours = [cell for cell in given["cells"] if cell["row"] != "expert"]
    bars = [thing for thing in axes.containers if isinstance(thing, BarContainer)]
    assert [bar.patches[0].get_height() for bar in bars] == [cell["mean"] for cell in ours]
    assert [bool(bar.patches[0].get_hatch()) for bar in bars] == 2 * [False, False, False, True, True]
    assert lines(figures[0], 0, "a seed") == [cell["values"] for cell in ours]
    assert lines(figures[0], 0, "the paper") == [[50 + i, 50 + i] for i in range(5)]
    assert {line.get_color() for line in axes.lines if line.get_label() == "the paper"} == {RED}
    assert lines(figures[0], 0, "expert") == [[95.0, 95.0]]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["TD3-BC", "SAC"]
    assert legend(figures[0]) == [*TITLES, "the paper", "a seed", "expert"]


def test_bars_stand_apart_in_the_order_of_the_columns(figures: list[Figure]) -> None:
    draw_success(results("td3-bc", "bcq"), Path("unused"))
    patches = [bar.patches[0] for bar in figures[0].axes[0].containers if isinstance(bar, BarContainer)]
    ends = [end for patch in patches for end in (patch.get_x(), patch.get_x() + patch.get_width())]
    assert ends == sorted(ends)


def test_without_expert_or_cells_of_the_paper_neither_is_in_the_legend(figures: list[Figure]) -> None:
    given = {"cells": [cell for cell in results("td3-bc", "sac")["cells"] if cell["row"] == "sac"]}
    draw_success(given, Path("unused"))
    assert legend(figures[0]) == [*TITLES, "a seed"]


def test_curves_are_running_means_over_five_evaluations_of_the_mean_of_the_seeds(figures: list[Figure]) -> None:
    given = curves("td3-bc", "mine")
    draw_success_curves(given, 95.0, Path("unused"))
    assert [axes.get_title() for axes in figures[0].axes] == ["TD3-BC", "mine"]
    for panel, agent in enumerate(given.values()):
        for column, seeds in agent["success"].items():
            mean = np.array(seeds).mean(0)
            padded = np.concatenate([[mean[0]] * 4, mean])
            (shown,) = lines(figures[0], panel, column_title(column))
            assert shown == pytest.approx([padded[k : k + 5].mean() for k in range(8)], rel=1e-5)
        assert lines(figures[0], panel, "expert") == [[95.0, 95.0]]
        assert figures[0].axes[panel].get_ylim() == (0, 100)
    assert legend(figures[0]) == [*TITLES, "expert"]


def test_lines_of_unfactored_models_are_dashed_and_lighter(figures: list[Figure]) -> None:
    draw_success_curves(curves("bcq"), 95.0, Path("unused"))
    emp, mocoda, mocoda_p, *full, _ = figures[0].axes[0].lines
    assert [line.get_linestyle() for line in (emp, mocoda, mocoda_p, *full)] == ["-"] * 3 + ["--"] * 2
    for one, other in zip((mocoda, mocoda_p), full, strict=True):
        assert np.all(np.array(one.get_color(), float) < np.array(other.get_color(), float))


def test_dots_are_the_middles_of_boxes_that_are_together(figures: list[Figure]) -> None:
    near, far = [1.5, 0.7, 1.5, 0.84], [1.5, 0.7, 1.5, 0.86]
    draw_tables({"emp": torch.tensor([near, far, far, far]), "mine": torch.tensor([near])}, GOALS, Path("unused"))
    first, second = figures[0].axes
    for axes in (first, second):
        assert np.asarray(axes.lines[0].get_xydata()) == pytest.approx(np.array([[1.5, 0.77]]))
    assert [axes.get_title().strip() for axes in (first, second)] == ["Emp", "mine"]
    shares = [axes.texts[-1].get_text() for axes in (first, second)]
    assert shares == [f"boxes within 15 cm of each other: {share}% of states" for share in (25, 100)]


def test_the_areas_of_the_goals_are_green_and_where_goals_lie(figures: list[Figure]) -> None:
    draw_tables(boxes("emp"), GOALS, Path("unused"))
    table, *areas = (patch for patch in figures[0].axes[0].patches if isinstance(patch, Rectangle))
    assert table.get_bbox().extents == pytest.approx((1.08, 0.15, 2.62, 1.35))
    for area, centre in zip(areas, (1.54, 2.16), strict=True):
        expected = (centre - 0.1, 0.65, centre + 0.1, 0.85)
        assert area.get_bbox().extents == pytest.approx(expected, abs=0.005)
        assert matplotlib.colors.same_color(area.get_facecolor()[:3], GREEN)


def test_success_is_counted_in_five_bins_of_the_shift(figures: list[Figure]) -> None:
    shifts = [0.2099, 0.22, 0.24, 0.26, 0.38, 0.40, 0.39, 0.4101]
    won = [1, 1, 0, 0, 1, 1, 1, 0]
    draw_by_distance({"td3-bc": {"mocoda-p": (shifts, won)}}, Path("unused"))
    (line,) = figures[0].axes[0].lines
    assert np.asarray(line.get_xdata()) == pytest.approx([0.23, 0.27, 0.31, 0.35, 0.39])
    assert np.asarray(line.get_ydata()) == pytest.approx([200 / 3, 0, np.nan, np.nan, 75], nan_ok=True)
    assert sum(isinstance(thing, PolyCollection) for thing in figures[0].axes[0].collections) == 1
    assert legend(figures[0]) == ["MoCoDA-P"]


@pytest.mark.parametrize(
    ("won", "episodes", "low", "high"),  # by hand, from Wilson's formula
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634), (84, 100, 0.7558, 0.8990)],
)
def test_intervals_are_wilson_s(won: int, episodes: int, low: float, high: float) -> None:
    shares = _wilson(torch.tensor([float(won)]), torch.tensor([episodes]))
    assert shares.flatten().tolist() == pytest.approx([won / episodes, low, high], abs=1e-4)


def test_placements_say_how_often_both_boxes_are_inside_and_keep_the_far_ones_at_the_edge(
    figures: list[Figure],
) -> None:
    both, one, none = [0.0, 0.13, -0.13, 0.0], [0.0, 0.13, 0.15, 0.0], [0.11, 0.11, -3.0, 0.2]
    draw_placements({"mocoda-p": torch.tensor([both, both, one, none]), "mine": torch.zeros(1, 4)}, Path("unused"))
    first, second = figures[0].axes
    assert [axes.texts[0].get_text() for axes in (first, second)] == ["both inside: 50%", "both inside: 100%"]
    assert [axes.get_title().strip() for axes in (first, second)] == ["MoCoDA-P", "mine"]
    blue, orange = (np.asarray(line.get_xydata()) for line in first.lines)
    assert blue == pytest.approx(np.array([[0, 0.13], [0, 0.13], [0, 0.13], [0.11, 0.11]]))
    assert orange == pytest.approx(np.array([[-0.13, 0], [-0.13, 0], [0.15, 0], [-0.5, 0.2]]))
    (circle,) = (patch for patch in first.patches if isinstance(patch, Circle))
    assert circle.get_radius() == 0.14
    assert legend(figures[0]) == ["box 1", "box 2", "tolerance"]


def test_scarcity_joins_the_means_by_rows_whatever_the_order_of_the_points(figures: list[Figure]) -> None:
    given = points(10_000, 100_000, 1_000_000)
    draw_scarcity(given[::-1], Path("unused"))
    success, error = figures[0].axes
    for architecture, label in (("local", "factored model"), ("full", "unfactored model")):
        own = [point for point in given if point["architecture"] == architecture]
        assert lines(figures[0], 0, label) == [pytest.approx([np.mean(point["success"]) for point in own])]
    means = {
        line.get_linestyle(): np.asarray(line.get_ydata())
        for line in error.lines
        if line.get_color() == GREY and line.get_linestyle() != "None"
    }
    assert means["-"] == pytest.approx([np.mean(point["error_two"]) for point in own])
    assert means["--"] == pytest.approx([np.mean(point["error_one"]) for point in own])
    for axes, count in ((success, 6), (error, 12)):
        dots = [line for line in axes.lines if line.get_marker() == "o"]
        assert [len(np.asarray(line.get_ydata())) for line in dots] == [3] * count
        assert np.asarray(axes.get_xticks()).tolist() == [10_000, 100_000, 1_000_000]
    keys = ["error on two swept boxes", "error on one swept box, held out"]
    assert [line.get_color() for line in error.lines if line.get_label() in keys] == [INK, INK]
    assert legend(figures[0]) == ["factored model", "unfactored model", *keys]
