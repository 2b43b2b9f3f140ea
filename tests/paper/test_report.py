from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.colors
import matplotlib.image
import numpy as np
import pytest
import rich.console
import torch
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mocoda import InputError, make_task
from mocoda.agents.agent import AGENTS
from mocoda.engine.figures import AGENT_TITLES, COLOURS, PANEL_TITLES, RECIPE_COLOURS, RED
from mocoda.engine.randomness import Stream
from mocoda.graph.figure import draw_graph
from mocoda.paper.experiment import as_table
from mocoda.paper.table1_figure import draw_errors, draw_transitions
from mocoda.paper.table2_figure import draw_curves, draw_paths, draw_walks
from mocoda.parents.recipes import RECIPES

COLUMNS = ("emp", "dyna", "rand", "mocoda", "mocoda-u")
GRAPH = make_task("navigation").graph


def results() -> dict[str, Any]:
    """Cells all of whose numbers differ."""
    cells = [
        {
            "row": row,
            "column": column,
            "mean": 1 + r + 10 * c / 7,
            "std": 0.011 * (1 + r + c),
            "paper_mean": 3.1 + r + c,
        }
        for r, row in enumerate(("full", "global", "local"))
        for c, column in enumerate(COLUMNS)
    ]
    return {"cells": cells}


def rendered(value: object) -> str:
    console = rich.console.Console(file=io.StringIO(), width=220)
    console.print(value)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def picture(path: Path) -> NDArray[np.float32]:
    """The pixels (height, width, RGB), of a file that is a PNG and not blank."""
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    pixels = np.asarray(matplotlib.image.imread(path))[..., :3]
    assert pixels.std() > 0.01
    return pixels


def has(pixels: NDArray[np.float32], colour: str) -> bool:
    return bool((np.abs(pixels - np.array(matplotlib.colors.to_rgb(colour))).max(-1) < 0.02).sum() > 20)


def panels(*names: str) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    stream = Stream(0, "test-report")
    return {name: (state := stream.uniform(50, 2), state + 0.05 * stream.normal(50, 2)) for name in names}


def curves(*agents: str, evaluations: int = 8) -> dict[str, Any]:
    """Two data sets and three seeds of each agent, all of whose numbers differ."""
    stream = Stream(0, "test-report", "curves")
    return {
        agent: {
            "updates": [100 * (k + 1) for k in range(evaluations)],
            "steps": {column: stream.uniform(3, evaluations, low=20, high=60).tolist() for column in ("emp", "mocoda")},
        }
        for agent in agents
    }


def walks(*names: str) -> dict[str, torch.Tensor]:
    """Eleven places of each of five episodes."""
    stream = Stream(0, "test-report", "walks")
    return {name: 0.08 * stream.uniform(11, 5, 2).cumsum(0) for name in names}


def recorded() -> torch.Tensor:
    return Stream(0, "test-report", "recorded").uniform(9_000, 2)


DRAWINGS: dict[str, Callable[[Path], None]] = {
    "errors": lambda path: draw_errors(results(), path),
    "transitions": lambda path: draw_transitions(panels("emp", "rand"), path),
    "graph": lambda path: draw_graph(GRAPH, path),
    "curves": lambda path: draw_curves(curves("td3-bc", "sac"), 18.5, path),
    "paths": lambda path: draw_paths({"td3-bc": walks("emp", "mocoda"), "mine": walks("emp", "mocoda")}, path),
    "walks": lambda path: draw_walks(walks("one", "other"), path, recorded()),
}


# Tables


def test_the_table_says_every_mean_deviation_and_cell_of_the_paper_in_its_place() -> None:
    lines = rendered(as_table(results(), "The title")).splitlines()
    assert "The title" in lines[0]
    heading = next(line for line in lines if "mocoda-u" in line)
    assert [name for name in heading.replace("┃", " ").split() if name in COLUMNS] == list(COLUMNS)
    for row in ("full", "global", "local"):
        (line,) = (line for line in lines if f" {row} " in line)
        found = [text.strip() for text in line.strip("│ ").split("│")]
        own = [cell for cell in results()["cells"] if cell["row"] == row]
        assert found == [
            row,
            *(f"{cell['mean']:.3f} ± {cell['std']:.3f} ({cell['paper_mean']:.2f})" for cell in own),
        ]
    assert "over seeds" in lines[-1] and "the paper" in lines[-1]


def test_the_least_of_every_column_is_bold_and_no_other() -> None:
    given = results()
    given["cells"][5 + 1]["mean"] = 0.5  # global, dyna
    table = as_table(given, "")
    bold = [[text.startswith("[bold]") for text in map(str, column.cells)] for column in table.columns]
    first = [True, False, False]
    assert bold == [[False] * 3, first, [False, True, False], first, first, first]


def test_the_least_of_every_row_is_bold_where_rows_compete() -> None:
    given = results()
    given["cells"][5 + 1]["mean"] = 0.5  # global, dyna
    table = as_table(given, "", best_of="row")
    bold = [[text.startswith("[bold]") for text in map(str, column.cells)] for column in table.columns]
    assert bold == [[False] * 3, [True, False, True], [False, True, False], *([[False] * 3] * 3)]


def test_cells_that_share_the_least_are_all_bold() -> None:
    given = results()
    for cell in given["cells"]:
        cell["mean"] = 18.0
    table = as_table(given, "", best_of="row")
    assert all(text.startswith("[bold]") for column in table.columns[1:] for text in map(str, column.cells))


@pytest.mark.parametrize(
    ("digits", "text"), [(0, "21 ± 1 (20)"), (1, "21.2 ± 0.7 (20.0)"), (3, "21.235 ± 0.679 (20.04)")]
)
def test_numbers_have_the_digits_asked_for_and_the_paper_s_two_at_most(digits: int, text: str) -> None:
    cell = {"row": "sac", "column": "emp", "mean": 21.2346, "std": 0.6789, "paper_mean": 20.04}
    lines = rendered(as_table({"cells": [cell]}, "", digits=digits)).splitlines()
    (line,) = (line for line in lines if " sac " in line)
    assert [part.strip() for part in line.strip("│ ").split("│")] == ["sac", text]


def test_a_cell_that_the_paper_does_not_have_stands_without_brackets() -> None:
    given = results()
    for cell in given["cells"]:
        if cell["column"] == "dyna" or cell["row"] == "local":
            cell["paper_mean"] = None
    lines = rendered(as_table(given, "", digits=1)).splitlines()
    for row, brackets in (("full", 4), ("global", 4), ("local", 0)):
        (line,) = (line for line in lines if f" {row} " in line)
        assert line.count("(") == line.count(")") == brackets
        own = [cell for cell in given["cells"] if cell["row"] == row]
        assert [part.split("(")[0].strip() for part in line.strip("│ ").split("│")] == [
            row,
            *(f"{cell['mean']:.1f} ± {cell['std']:.1f}" for cell in own),
        ]
    assert "None" not in "".join(lines)


# Figures


@pytest.mark.parametrize("name", DRAWINGS)
def test_figures_are_pngs_with_something_on_them(name: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / f"{name}.png"
    DRAWINGS[name](path)
    picture(path)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_write_that_fails_leaves_nothing_new_and_keeps_the_old(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(figure: Figure, path: Path, **options: object) -> None:
        Path(path).write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(Figure, "savefig", broken)
    old = tmp_path / "old.png"
    old.write_bytes(b"old")
    for path in (old, tmp_path / "new.png"):
        with pytest.raises(OSError, match=r"^disk full$"):
            DRAWINGS[name](path)
    assert [file.name for file in tmp_path.iterdir()] == ["old.png"] and old.read_bytes() == b"old"


def test_a_path_that_cannot_be_written_is_refused_in_full(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    path = tmp_path / "file" / "x.png"
    for draw in DRAWINGS.values():
        with pytest.raises(InputError) as caught:
            draw(path)
        reason = f"{str(path.parent)!r} is not a folder. Give a path in a folder that can be written."
        assert str(caught.value) == f"cannot write {str(path)!r}: {reason}"
    assert (tmp_path / "file").read_text() == "mine"


def test_the_bars_have_the_colours_of_their_rows_and_red_marks_for_the_paper(tmp_path: Path) -> None:
    draw_errors(results(), tmp_path / "bars.png")
    pixels = picture(tmp_path / "bars.png")
    assert all(has(pixels, colour) for colour in (*COLOURS.values(), RED))


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are drawn from here on, instead of files."""
    drawn: list[Figure] = []
    monkeypatch.setattr("mocoda.engine.figures._save", lambda figure, path: drawn.append(figure))
    return drawn


def test_the_bars_are_as_high_as_the_means_and_the_marks_stand_at_the_paper(figures: list[Figure]) -> None:
    given = results()
    draw_errors(given, Path("unused"))
    (axes,) = figures[0].axes
    heights = [patch.get_height() for patch in axes.patches if hasattr(patch, "get_height")]
    assert heights == [cell["mean"] for cell in given["cells"]]
    marks = [np.asarray(thing.get_offsets())[:, 1] for thing in axes.collections if isinstance(thing, PathCollection)]
    assert np.concatenate(marks) == pytest.approx([cell["paper_mean"] for cell in given["cells"]])
    assert [label.get_text() for label in axes.get_xticklabels()] == list(COLUMNS)


def test_transitions_have_a_panel_each_under_its_name(figures: list[Figure]) -> None:
    shown = panels("emp", "dyna", "mocoda", "mocoda-u", "rand", "mine")
    draw_transitions(shown, Path("unused"))
    titles = [axes.get_title() for axes in figures[0].axes]
    assert titles == ["Emp", "Dyna", "MoCoDA", "MoCoDA-U", "Rand", "mine"]
    for axes, (state, following) in zip(figures[0].axes, shown.values(), strict=True):
        (arrows,) = (thing for thing in axes.collections if hasattr(thing, "XY"))
        assert np.array_equal(arrows.XY, state.numpy())
        moves = np.stack([getattr(arrows, "U"), getattr(arrows, "V")], 1)  # noqa: B009  (by name alone)
        assert np.allclose(moves, (following - state).numpy())


def test_transitions_of_a_single_distribution_are_drawn_too(tmp_path: Path) -> None:
    draw_transitions(panels("emp"), tmp_path / "one.png")
    picture(tmp_path / "one.png")


def test_curves_are_running_means_over_five_evaluations_of_the_mean_of_the_seeds(figures: list[Figure]) -> None:
    given = curves("td3-bc", "sac", "mine")
    draw_curves(given, 18.5, Path("unused"))
    assert [axes.get_title() for axes in figures[0].axes] == ["TD3-BC", "SAC", "mine"]
    for axes, agent in zip(figures[0].axes, given.values(), strict=True):
        emp, mocoda, optimum = axes.lines
        for line, (column, seeds) in zip((emp, mocoda), agent["steps"].items(), strict=True):
            mean = np.array(seeds).mean(0)
            padded = np.concatenate([[mean[0]] * 4, mean])
            expected = [padded[k : k + 5].mean() for k in range(8)]
            assert (line.get_label(), line.get_color()) == (column, RECIPE_COLOURS[column])
            assert np.asarray(line.get_xdata()).tolist() == agent["updates"]
            assert np.asarray(line.get_ydata()) == pytest.approx(expected, rel=1e-5)
        assert np.asarray(optimum.get_ydata()).tolist() == [18.5, 18.5]
        assert len([thing for thing in axes.collections if isinstance(thing, PolyCollection)]) == 2
    (legend,) = figures[0].legends
    assert [text.get_text() for text in legend.get_texts()] == ["emp", "mocoda", "optimum"]


@pytest.mark.parametrize("evaluations", [1, 2, 4])
def test_curves_of_few_evaluations_are_drawn_too(evaluations: int, tmp_path: Path) -> None:
    draw_curves(curves("bcq", evaluations=evaluations), 18.5, tmp_path / "short.png")
    picture(tmp_path / "short.png")


def test_paths_have_a_row_an_agent_and_a_column_a_data_set(figures: list[Figure]) -> None:
    given = {agent: walks("emp", "mocoda", "mine") for agent in ("td3-bc", "bcq")}
    draw_paths(given, Path("unused"))
    panels = figures[0].axes
    assert [axes.get_title() for axes in panels] == ["Emp", "MoCoDA", "mine", "", "", ""]
    assert [axes.get_ylabel() for axes in panels] == ["TD3-BC", "", "", "BCQ", "", ""]
    for axes, walked in zip(panels, [walk for row in given.values() for walk in row.values()], strict=True):
        lines, ends = axes.lines[::2], axes.lines[1::2]
        assert len(lines) == len(ends) == 5
        for episode, (line, end) in enumerate(zip(lines, ends, strict=True)):
            assert np.array_equal(line.get_xydata(), walked[:, episode].numpy())
            assert np.array_equal(end.get_xydata(), walked[-1:, episode].numpy())


def test_walks_stand_over_some_of_the_recorded_states_between_start_and_goal(figures: list[Figure]) -> None:
    given = walks("walks the L", "cuts the diagonal")
    draw_walks(given, Path("unused"), recorded())
    draw_walks(given, Path("unused"), recorded()[:10])
    for figure, behind in zip(figures, (recorded()[::2], recorded()[:10]), strict=True):
        assert [axes.get_title() for axes in figure.axes] == list(given)
        for axes, walked in zip(figure.axes, given.values(), strict=True):
            assert np.array_equal(axes.lines[0].get_xydata(), behind.numpy())
            assert np.array_equal(axes.lines[1].get_xydata(), walked[:, 0].numpy())
            assert len(axes.lines) == 1 + 2 * 5
            assert [text.get_text() for text in axes.texts] == ["start", "goal"]


def test_every_recipe_and_agent_has_a_title_and_every_recipe_a_colour_of_its_own() -> None:
    assert set(PANEL_TITLES) == set(RECIPE_COLOURS) == set(RECIPES)
    assert len(set(RECIPE_COLOURS.values())) == len(RECIPES)
    assert set(AGENT_TITLES) == set(AGENTS)
