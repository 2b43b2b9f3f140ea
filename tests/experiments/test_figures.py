"""What the figures of the tables show, read back from matplotlib, and how figures become files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.colors
import numpy as np
import pytest
import torch
from drawn_figures import drawn_figures
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle

from experiments.scarcity import draw_scarcity
from experiments.table1 import draw_errors, draw_transitions
from experiments.table2 import draw_curves, draw_paths, draw_walks
from experiments.table3.figure import (
    _wilson,
    column_title,
    draw_by_distance,
    draw_placements,
    draw_success,
    draw_success_curves,
    draw_tables,
)
from mocoda import InputError
from mocoda.engine.figure_style import GREEN, GREY, RED, save
from mocoda.engine.randomness import Stream
from mocoda.tasks.hooksweep import HookSweep2

COLUMNS = ("emp", "mocoda", "mocoda-p", "mocoda-full", "mocoda-p-full")
TITLES = ["Emp", "MoCoDA", "MoCoDA-P", "MoCoDA (unfactored model)", "MoCoDA-P (unfactored model)"]
GOALS = HookSweep2().goals(400, seed=0)


@pytest.fixture
def figures() -> Iterator[list[Figure]]:
    with drawn_figures() as figures:
        yield figures


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "figure.png"


def stream(*labels: str) -> Stream:
    return Stream(0, "test-figures", *labels)


def table(rows: tuple[str, ...], columns: tuple[str, ...], seeds: int = 3) -> dict[str, Any]:
    """Cells all of whose numbers differ; of the paper's, only the first row's."""
    cells: list[dict[str, Any]] = []
    for number, row in enumerate(rows):
        for column, values in zip(columns, stream(row).uniform(len(columns), seeds, high=100).tolist(), strict=True):
            mean, std = float(np.mean(values)), float(np.std(values, ddof=1))
            paper = None if number else 50 + len(cells)
            cells.append({"row": row, "column": column, "values": values, "mean": mean, "std": std})
            cells[-1]["paper_mean"] = paper
    return {"cells": cells}


def curves(measure: str, columns: tuple[str, ...], evaluations: int = 8) -> dict[str, Any]:
    return {
        agent: {
            "updates": [100 * (k + 1) for k in range(evaluations)],
            measure: {column: stream(agent, column).uniform(3, evaluations, high=60).tolist() for column in columns},
        }
        for agent in ("td3-bc", "sac")
    }


def walks(*names: str) -> dict[str, torch.Tensor]:
    """Eleven places of each of five episodes."""
    return {name: 0.08 * stream("walks", name).uniform(11, 5, 2).cumsum(0) for name in names}


def legend(figure: Figure) -> list[str]:
    (shown,) = figure.legends
    return [text.get_text() for text in shown.get_texts()]


def lines(figure: Figure, panel: int, label: str) -> list[list[float]]:
    """What the lines of a panel that are labelled so show."""
    return [np.asarray(line.get_ydata()).tolist() for line in figure.axes[panel].lines if line.get_label() == label]


def bars(figure: Figure) -> list[Any]:
    return [thing for thing in figure.axes[0].containers if isinstance(thing, BarContainer)]


# Files


def test_a_write_that_fails_leaves_nothing_new_and_keeps_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(figure: Figure, path: Path, **options: object) -> None:
        Path(path).write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(Figure, "savefig", broken)
    old = tmp_path / "old.png"
    old.write_bytes(b"old")
    for path in (old, tmp_path / "new.png"):
        with pytest.raises(OSError, match=r"^disk full$"):
            save(Figure(), path)
    assert [file.name for file in tmp_path.iterdir()] == ["old.png"] and old.read_bytes() == b"old"


def test_a_path_that_cannot_be_written_is_refused_in_full(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    path = tmp_path / "file" / "x.png"
    with pytest.raises(InputError) as caught:
        save(Figure(), path)
    reason = f"{str(path.parent)!r} is not a folder. Give a path in a folder that can be written."
    assert str(caught.value) == f"cannot write {str(path)!r}: {reason}"
    assert (tmp_path / "file").read_text() == "mine"


def test_figures_of_the_least_there_can_be_are_drawn_too(tmp_path: Path) -> None:
    """One agent, column, seed, evaluation, row or episode, or none."""
    one = tmp_path / "one.png"
    draw_success(table(("td3-bc",), ("emp",), seeds=2), one)
    draw_success_curves({"mine": {"updates": [1], "success": {"emp": [[5.0]]}}}, 95.0, one)
    draw_tables({"mine": torch.tensor([[1.4, 0.5, 2.2, 0.9]])}, GOALS[:1], one)
    draw_by_distance({"mine": {"emp": ([], [])}}, one)
    draw_placements({"mine": torch.full((1, 4), 3.0)}, one)
    draw_curves(curves("steps", ("emp",), evaluations=1), 18.5, one)
    point = {"rows": 10, "architecture": "full", "success": [1.0], "error_one": [2.0], "error_two": [3.0]}
    draw_scarcity([point], one)
    assert one.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


# Table 1


def test_bars_are_as_high_as_the_errors_and_red_marks_stand_at_the_paper(figures: list[Figure], path: Path) -> None:
    given = table(("full", "global", "local"), ("emp", "dyna", "rand"))
    for cell in given["cells"]:
        cell["paper_mean"] = cell["mean"] + 1
    draw_errors(given, path)
    heights = [patch.get_height() for bar in bars(figures[0]) for patch in bar.patches]
    assert heights == [cell["mean"] for cell in given["cells"]]
    marks = [thing for thing in figures[0].axes[0].collections if thing.get_label() == "the paper"]
    offsets: Any = np.concatenate([np.asarray(mark.get_offsets())[:, 1] for mark in marks])
    assert offsets == pytest.approx([cell["paper_mean"] for cell in given["cells"]])
    assert legend(figures[0]) == ["full", "global", "local", "the paper"]


def test_transitions_have_a_panel_each_under_its_name(figures: list[Figure], path: Path) -> None:
    states = {name: stream(name).uniform(50, 4) for name in ("emp", "mocoda-u", "mine")}
    draw_transitions({name: (rows[:, :2], rows[:, 2:]) for name, rows in states.items()}, path)
    assert [axes.get_title() for axes in figures[0].axes] == ["Emp", "MoCoDA-U", "mine"]
    for axes, rows in zip(figures[0].axes, states.values(), strict=True):
        (arrows,) = (thing for thing in axes.collections if hasattr(thing, "XY"))
        assert np.array_equal(arrows.XY, rows[:, :2].numpy())
        moves = np.stack([getattr(arrows, "U"), getattr(arrows, "V")], 1)  # noqa: B009  (by name alone)
        assert np.allclose(moves, (rows[:, 2:] - rows[:, :2]).numpy())


# Table 2


@pytest.mark.parametrize("measure", ["steps", "success"])
def test_curves_are_running_means_over_five_evaluations_of_the_mean_of_the_seeds(
    measure: str, figures: list[Figure], path: Path
) -> None:
    given = curves(measure, ("emp", "mocoda"))
    draw, label, names = (
        (draw_curves, "optimum", ["emp", "mocoda"])
        if measure == "steps"
        else (draw_success_curves, "expert", ["Emp", "MoCoDA"])
    )
    draw(given, 18.5, path)
    assert [axes.get_title() for axes in figures[0].axes] == ["TD3-BC", "SAC"]
    for panel, agent in enumerate(given.values()):
        for name, seeds in zip(names, agent[measure].values(), strict=True):
            mean = np.array(seeds).mean(0)
            padded = np.concatenate([[mean[0]] * 4, mean])
            (shown,) = lines(figures[0], panel, name)
            assert shown == pytest.approx([padded[k : k + 5].mean() for k in range(8)], rel=1e-5)
        assert lines(figures[0], panel, label) == [[18.5, 18.5]]
    assert legend(figures[0]) == [*names, label]


def test_paths_have_a_row_an_agent_and_a_column_a_data_set(figures: list[Figure], path: Path) -> None:
    given = {agent: walks("emp", "mocoda", "mine") for agent in ("td3-bc", "bcq")}
    draw_paths(given, path)
    panels = figures[0].axes
    assert [axes.get_title() for axes in panels] == ["Emp", "MoCoDA", "mine", "", "", ""]
    assert [axes.get_ylabel() for axes in panels] == ["TD3-BC", "", "", "BCQ", "", ""]
    for axes, walked in zip(panels, [walk for row in given.values() for walk in row.values()], strict=True):
        for episode, (line, end) in enumerate(zip(axes.lines[::2], axes.lines[1::2], strict=True)):
            assert np.array_equal(line.get_xydata(), walked[:, episode].numpy())
            assert np.array_equal(end.get_xydata(), walked[-1:, episode].numpy())


def test_walks_stand_over_some_of_the_recorded_states_between_start_and_goal(figures: list[Figure], path: Path) -> None:
    recorded = stream("recorded").uniform(9_000, 2)
    draw_walks(walks("one"), path, recorded)
    (axes,) = figures[0].axes
    assert np.array_equal(axes.lines[0].get_xydata(), recorded[::2].numpy())
    assert len(axes.lines) == 1 + 2 * 5
    assert [text.get_text() for text in axes.texts] == ["start", "goal"]


# Table 3


def test_columns_have_titles_and_others_keep_their_names() -> None:
    assert [column_title(column) for column in (*COLUMNS, "mine")] == [*TITLES, "mine"]


def test_success_bars_have_seeds_the_paper_and_the_expert_about_them_and_stand_apart(
    figures: list[Figure], path: Path
) -> None:
    given = table(("td3-bc", "sac"), COLUMNS)
    ours = list(given["cells"])
    given["cells"] += [{"row": "expert", "column": column, "mean": 95.0} for column in COLUMNS]
    draw_success(given, path)
    (axes,) = figures[0].axes
    patches = [bar.patches[0] for bar in bars(figures[0])]
    assert [patch.get_height() for patch in patches] == [cell["mean"] for cell in ours]
    assert [bool(patch.get_hatch()) for patch in patches] == 2 * [False, False, False, True, True]
    ends = [end for patch in patches for end in (patch.get_x(), patch.get_x() + patch.get_width())]
    assert ends == sorted(ends)
    assert lines(figures[0], 0, "a seed") == [cell["values"] for cell in ours]
    assert lines(figures[0], 0, "the paper") == [[50 + i, 50 + i] for i in range(5)]
    assert {line.get_color() for line in axes.lines if line.get_label() == "the paper"} == {RED}
    assert lines(figures[0], 0, "expert") == [[95.0, 95.0]]
    assert legend(figures[0]) == [*TITLES, "the paper", "a seed", "expert"]


def test_dots_are_the_middles_of_boxes_that_are_together(figures: list[Figure], path: Path) -> None:
    near, far = [1.5, 0.7, 1.5, 0.84], [1.5, 0.7, 1.5, 0.86]
    draw_tables({"emp": torch.tensor([near, far, far, far]), "mine": torch.tensor([near])}, GOALS, path)
    first, second = figures[0].axes
    for axes in (first, second):
        assert np.asarray(axes.lines[0].get_xydata()) == pytest.approx(np.array([[1.5, 0.77]]))
    assert [axes.get_title().strip() for axes in (first, second)] == ["Emp", "mine"]
    shares = [axes.texts[-1].get_text() for axes in (first, second)]
    assert shares == [f"boxes within 15 cm of each other: {share}% of states" for share in (25, 100)]


def test_the_areas_of_the_goals_are_green_and_where_goals_lie(figures: list[Figure], path: Path) -> None:
    draw_tables({"emp": torch.full((1, 4), 1.0)}, GOALS, path)
    table, *areas = (patch for patch in figures[0].axes[0].patches if isinstance(patch, Rectangle))
    assert table.get_bbox().extents == pytest.approx((1.08, 0.15, 2.62, 1.35))
    for area, centre in zip(areas, (1.54, 2.16), strict=True):
        expected = (centre - 0.1, 0.65, centre + 0.1, 0.85)
        assert area.get_bbox().extents == pytest.approx(expected, abs=0.005)
        assert matplotlib.colors.same_color(area.get_facecolor()[:3], GREEN)


def test_success_is_counted_in_five_bins_of_the_shift(figures: list[Figure], path: Path) -> None:
    shifts = [0.2099, 0.22, 0.24, 0.26, 0.38, 0.40, 0.39, 0.4101]
    won = [1, 1, 0, 0, 1, 1, 1, 0]
    draw_by_distance({"td3-bc": {"mocoda-p": (shifts, won)}}, path)
    (line,) = figures[0].axes[0].lines
    assert np.asarray(line.get_xdata()) == pytest.approx([0.23, 0.27, 0.31, 0.35, 0.39])
    assert np.asarray(line.get_ydata()) == pytest.approx([200 / 3, 0, np.nan, np.nan, 75], nan_ok=True)
    assert legend(figures[0]) == ["MoCoDA-P"]


@pytest.mark.parametrize(
    ("won", "episodes", "low", "high"),  # by hand, from Wilson's formula
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634), (84, 100, 0.7558, 0.8990)],
)
def test_intervals_are_wilson_s(won: int, episodes: int, low: float, high: float) -> None:
    shares = _wilson(torch.tensor([float(won)]), torch.tensor([episodes]))
    assert shares.flatten().tolist() == pytest.approx([won / episodes, low, high], abs=1e-4)


def test_placements_say_how_often_both_boxes_are_inside_and_keep_the_far_ones_at_the_edge(
    figures: list[Figure], path: Path
) -> None:
    both, one, none = [0.0, 0.13, -0.13, 0.0], [0.0, 0.13, 0.15, 0.0], [0.11, 0.11, -3.0, 0.2]
    draw_placements({"mocoda-p": torch.tensor([both, both, one, none]), "mine": torch.zeros(1, 4)}, path)
    first, second = figures[0].axes
    assert [axes.texts[0].get_text() for axes in (first, second)] == ["both inside: 50%", "both inside: 100%"]
    assert [axes.get_title().strip() for axes in (first, second)] == ["MoCoDA-P", "mine"]
    blue, orange = (np.asarray(line.get_xydata()) for line in first.lines)
    assert blue == pytest.approx(np.array([[0, 0.13], [0, 0.13], [0, 0.13], [0.11, 0.11]]))
    assert orange == pytest.approx(np.array([[-0.13, 0], [-0.13, 0], [0.15, 0], [-0.5, 0.2]]))
    (circle,) = (patch for patch in first.patches if isinstance(patch, Circle))
    assert circle.get_radius() == 0.14
    assert legend(figures[0]) == ["box 1", "box 2", "tolerance"]


# Scarcity


def test_scarcity_joins_the_means_by_rows_whatever_the_order_of_the_points(figures: list[Figure], path: Path) -> None:
    given = []
    for rows in (10_000, 100_000, 1_000_000):
        for architecture in ("local", "full"):
            success, one, two = stream(str(rows), architecture).uniform(3, 3, low=1, high=10).tolist()
            given.append({"rows": rows, "architecture": architecture, "success": success})
            given[-1] |= {"error_one": one, "error_two": two}
    draw_scarcity(given[::-1], path)
    error = figures[0].axes[1]
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
    keys = ["error on two swept boxes", "error on one swept box, held out"]
    assert legend(figures[0]) == ["factored model", "unfactored model", *keys]
