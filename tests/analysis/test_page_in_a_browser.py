"""The page of `mocoda.report` in a real browser: what it draws, sorts, flags, exports and links, without a network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from browser import PHONE, opened, started
from command_line import done
from page_data import COLUMNS, GRAPH, MADE, ODD, RECORDED, exchanged, table
from playwright.sync_api import Browser

import mocoda
from mocoda import InputError, LocalGraph, Transitions, drop, report
from mocoda.engine.randomness import Stream

MEASURED = 6  # curves of what TD3-BC and SAC measured


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with all that one can hold but episodes."""
    folder = tmp_path_factory.mktemp("page")
    done("collect", "navigation", "--rows", 300, "--out", folder / "walks.hdf5")
    train = ("train", folder / "walks.hdf5", "--seeds", 2, "--updates", 4, "--evaluate-every", 2, "--hidden", 8)
    done(*train, "--batch", 16, "--out", folder / "td3")
    done(*train, "--batch", 16, "--agent", "sac", "--out", folder / "sac")
    found = mocoda.audit(table()[RECORDED:], lambda rows: rows[:, :4] + 0.1, GRAPH, tolerance=0.01)
    report(
        folder / "page.html",
        table(),
        GRAPH,
        audit=found,
        training=[folder / "td3", folder / "sac"],
        name="pushes",
    )
    return folder / "page.html"


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("episodes") / "page.html"
    data, graph = exchanged()
    report(file, data, graph)
    return file


def test_every_panel_draws(browser: Browser, page: Path, episodes: Path) -> None:
    for file, names in (
        (page, ["ranges", "histogram", "curves", *["curves"] * MEASURED, "ends"]),
        (episodes, [None, "ranges", "histogram"]),  # the first one is an episode's
    ):
        with opened(browser, file) as here:
            here.page.wait_for_function("document.querySelectorAll('.chart:not([data-drawn])').length === 0")
            charts = here.run("[...document.querySelectorAll('.chart')].map(one => one.dataset.chart ?? null)")
            assert charts == names
            marks = (
                "[...document.querySelectorAll('.chart')].map(one => one.querySelectorAll('.role-mark path').length)"
            )
            assert min(here.run(marks)) > 0
            assert here.count("#graph-drawing line") > 0 and here.count("#row .drawing .body") > 0
            assert here.count("#row .values tbody tr") == len(here.cells("#histogram-column option"))
            assert here.cells("h2") == [
                *["Map", "Rows", *([] if file == page else ["Episodes"]), "Graph", "Ranges"],
                *(["Audit and check", "Training"] if file == page else []),
            ]


def test_rows_are_listed_worst_first(browser: Browser, page: Path) -> None:
    with opened(browser, page) as here:
        scores = mocoda.score_rows(table(), GRAPH)
        first = [str(number) for number in scores.worst(20).tolist()]
        assert here.cells("#list tbody th") == first and here.cells("#worst tbody th") == first[:8]
        here.shows("#row h3", f"Row {first[0]}, counterfactual")
        here.page.get_by_role("button", name="Later").click()
        assert here.cells("#list tbody th")[0] == str(scores.worst(21).tolist()[-1])
        here.page.get_by_role("link", name="confirmed", exact=True).click()
        assert set(here.cells("#list td:last-child")) == {"0.00"}
        here.page.locator("#worst a").nth(3).click()
        here.shows("#row h3", f"Row {first[3]}, counterfactual")
        here.page.get_by_label("show").select_option("recorded")
        here.page.get_by_label("sorted by").select_option("number")
        assert here.cells("#list tbody th") == [str(number) for number in range(20)]
        here.page.get_by_label("show").select_option("flagged")
        assert here.text("#place") == "no such rows"


def test_every_part_is_shown_with_the_row_that_it_comes_from(browser: Browser, page: Path) -> None:
    with opened(browser, page, f"#row={RECORDED + 11}") as here:
        here.shows("#row h3", f"Row {RECORDED + 11}, counterfactual")
        assert here.cells("#row li") == ["A hand, push: as in recorded row 11", "B box: as in recorded row 7"]
        assert here.cells("#row .values .swatch") == ["A", "B", "A"]
        colours = here.run("[...document.querySelectorAll('#row .values .swatch')].map(one => one.style.background)")
        assert colours[0] == colours[2] != colours[1]
        rows = [line.split("\t") for line in here.cells("#row .values tbody tr")]
        own, donor, box = table().rows[RECORDED + 11], table().rows[11], table().rows[7]
        for cells, column, recorded in zip(rows, COLUMNS, (donor, donor, box, box, donor), strict=True):
            place = COLUMNS.index(column)
            assert column in cells
            numbers = [cell for cell in cells if cell not in (column, "hand", "box", "push", "A", "B")]
            assert float(numbers[0]) == pytest.approx(float(own[place]), rel=1e-3)
            assert float(numbers[2]) == pytest.approx(float(recorded[place]), rel=1e-3)
        assert here.text("#edges") == "Its edges are those of the sparsest graph."
        here.page.get_by_role("link", name="recorded row 7").click()
        here.shows("#row h3", "Row 7, recorded")
        here.page.go_back()
        here.shows("#row h3", f"Row {RECORDED + 11}, counterfactual")


def test_a_link_leads_to_a_row_and_one_that_is_not_held_is_said(browser: Browser, page: Path) -> None:
    with opened(browser, page, "#row=9999") as here:
        assert "Row 9999 is not in this page" in here.text("#said")
        here.page.get_by_label("row", exact=True).fill("64")
        here.page.keyboard.press("Enter")
        here.shows("#row h3", "Row 64, counterfactual")
        assert here.run("location.hash") == "#row=64"
        assert here.run("document.activeElement.id") == "row"


def test_flags_are_kept_and_export_as_rows_that_are_dropped(browser: Browser, page: Path, tmp_path: Path) -> None:
    data = table()
    with opened(browser, page, f"#row={RECORDED}") as here:
        here.page.get_by_label("sorted by").select_option("number")
        here.page.get_by_label("drop row 61", exact=True).check()
        here.page.locator("#row").focus()
        for key in "jjjf":  # to row 63
            here.page.keyboard.press(key)
        here.page.keyboard.press("k")
        here.page.get_by_role("button", name="Flag to drop").click()
        assert here.text("#said") == "3 rows flagged to drop."
        here.page.reload()
        here.page.get_by_label("sorted by").select_option("number")
        assert here.text("#flags") == "3" and here.page.get_by_label("drop row 62", exact=True).is_checked()
        with here.page.expect_download() as waiting:
            here.page.get_by_role("button", name="Download rows to drop").click()
        waiting.value.save_as(tmp_path / "drop.txt")
        assert waiting.value.suggested_filename == "rows-to-drop.txt"
        here.page.get_by_role("button", name="Unflag all").click()
        assert here.text("#flags") == "0"
    left = drop(data, rows=tmp_path / "drop.txt")
    assert left.rows.equal(data.rows[[row for row in range(RECORDED + MADE) if row not in (61, 62, 63)]])
    data.save(tmp_path / "data.hdf5")
    done("export", tmp_path / "data.hdf5", "--drop", tmp_path / "drop.txt", "--to", tmp_path / "left.hdf5")
    assert mocoda.read(tmp_path / "left.hdf5").rows.equal(left.rows)
    with pytest.raises(InputError, match="rows of other data"):
        drop(data[:100], rows=tmp_path / "drop.txt")


def test_charts_follow_what_is_chosen(browser: Browser, page: Path) -> None:
    with opened(browser, page) as here:
        here.page.locator("#histogram-column").select_option("box_y")
        here.page.locator("#metric").select_option("success")
        for place, title in (
            ("#histogram", "box_y"),
            ("#curves", "success"),
            ("#ends", "success"),
        ):
            here.page.locator(f"{place} .role-axis-title text", has_text=title).first.wait_for()
        assert here.words("#curves .role-legend-label text") == ["td3-bc, walks", "sac, walks"]


def test_the_map_leads_to_rows_by_mouse_and_by_keyboard(browser: Browser, page: Path) -> None:
    with opened(browser, page) as here:
        drawn = "document.getElementById('map-canvas').dataset.drawn"
        colours = (
            "new Set(document.getElementById('map-canvas').getContext('2d').getImageData(0, 0, 900, 500).data).size"
        )
        assert here.run(drawn) == str(RECORDED + MADE) and here.run(colours) > 20
        here.page.get_by_label("points").select_option("recorded")
        assert here.run(drawn) == str(RECORDED)
        here.page.get_by_label("place by").select_option("two columns")
        here.page.get_by_label("across").select_option("push")
        here.page.get_by_label("colour by").select_option("new (score)")
        assert here.count("#map-legend .key") == 5
        values = table().rows[:RECORDED, [4, 1]]
        x, y = ((values - values.amin(0)) / (values.amax(0) - values.amin(0))).T
        right = int(x.argmax())
        canvas = here.page.locator("#map-canvas")
        box = canvas.bounding_box()
        assert box is not None
        wide, high = box["width"] - 76, box["height"] - 46  # without the room for ticks
        spare = 0.04 / 1.08
        across, up = (spare + (1 - 2 * spare) * float(at[right]) for at in (x, y))
        canvas.click(position={"x": 64 + across * wide, "y": 12 + (1 - up) * high})
        here.shows("#row h3", f"Row {right}, recorded")
        canvas.focus()
        here.page.keyboard.press("ArrowLeft")
        said = here.text("#map-said")
        number = int(said.split()[1].rstrip(","))
        assert float(x[number]) < float(x[right]) and f"at {float(values[number, 0]):.4g}, " in said
        here.page.keyboard.press("Enter")
        here.shows("#row h3", f"Row {number}, recorded")


def test_flagged_episodes_are_listed_with_a_reason_and_drawn(browser: Browser, tmp_path: Path) -> None:
    task = mocoda.make_task("objects:2")
    data = task.collect(rows=600, seed=0)
    assert data.episode is not None
    still = data.state.clone()
    still[data.episode == 3] = data.state[data.episode == 3][:1]
    following = torch.where((data.episode == 3)[:, None], still, data.next_state)
    report(tmp_path / "page.html", replace(data, state=still, next_state=following), task.graph)
    with opened(browser, tmp_path / "page.html") as here:
        assert "of the usual pace" in here.cells("#flagged tbody tr")[0]
        here.page.locator("#flagged a").first.click()
        here.shows("#episode h3", f"Episode 3, recorded, {int((data.episode == 3).sum())} steps")
        assert "of the usual pace" in here.text("#episode-list a")
        assert here.count("#episode-list a") == len(data.episode.unique())


def test_an_episode_is_shown_step_by_step(browser: Browser, episodes: Path) -> None:
    data, _ = exchanged()
    assert data.episode is not None
    with opened(browser, episodes) as here:
        assert here.cells("#episode-list h3") == ["Recorded", "Counterfactual"]
        new = here.page.locator("#episode-list > div").last.locator("a")
        assert new.count() == 5
        new.nth(1).click()
        number = int(new.nth(1).locator("b").inner_text().split()[1])
        here.page.get_by_label("draw").select_option("agent over the steps")
        assert new.nth(1).locator("path").count() == len(data.columns[-4:-2])
        steps = int((data.episode == number).sum())
        here.shows("#episode h3", f"Episode {number}, counterfactual, {steps} steps")
        assert here.count("#episode .strip rect") == 4 * steps  # two objects, the agent and its move
        here.page.get_by_role("slider", name="step").press("ArrowRight")
        row = int((data.episode == number).nonzero()[1])
        here.shows("#episode-row a", f"step 1, row {row}")
        here.page.get_by_role("button", name="Flag all its steps").click()
        assert here.text("#flags") == str(steps)
        here.page.locator("#episode-row a").click()
        here.shows("#row h3", f"Row {row}, counterfactual")


def test_light_and_dark_are_readable_by_everyone(browser: Browser, page: Path, episodes: Path) -> None:
    from axe_playwright_python.sync_playwright import Axe

    for file, scheme in ((page, "light"), (episodes, "dark")):
        with opened(browser, file, color_scheme=scheme) as here:
            here.page.wait_for_function("document.querySelectorAll('.chart:not([data-drawn])').length === 0")
            bright = "getComputedStyle(document.body).backgroundColor"
            assert here.run(bright) == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 23, 28)")
            rules = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
            charts = {"exclude": [[".chart"]]}  # whose marks are so many that the rules would take long
            found = Axe().run(here.page, context=charts, options={"runOnly": rules})
            assert [(one["id"], one["nodes"][0]["html"]) for one in found.response["violations"]] == []
            here.page.locator("#theme").click()
            assert here.run(bright) == ("rgb(20, 23, 28)" if scheme == "light" else "rgb(255, 255, 255)")


def test_a_phone_shows_all_of_it_without_scrolling_sideways(browser: Browser, page: Path, episodes: Path) -> None:
    for file in (page, episodes):
        with opened(browser, file, viewport=PHONE, has_touch=True, is_mobile=True) as here:
            here.page.wait_for_function("document.querySelectorAll('.chart:not([data-drawn])').length === 0")
            assert here.run("document.documentElement.scrollWidth") <= PHONE["width"]


def test_names_in_the_data_are_text_and_nothing_that_runs(browser: Browser, tmp_path: Path) -> None:
    names = (ODD, *COLUMNS[1:])
    graph = LocalGraph(
        state={ODD: [0, 1], "box": [2, 3]}, action={"push": 0}, edges={ODD: [ODD, "push"], "box": ["box"]}
    )
    report(tmp_path / "page.html", table(names), graph, name=ODD)
    with opened(browser, tmp_path / "page.html") as here:
        here.page.wait_for_function("document.querySelectorAll('.chart:not([data-drawn])').length === 0")
        assert here.text("h1") == ODD and ODD in here.cells("#row .values tbody th") and here.count("img") == 0


def test_a_page_about_a_training_alone_opens(browser: Browser, page: Path, tmp_path: Path) -> None:
    done("report", "--training", page.parent / "td3", "--out", tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html") as here:
        here.page.wait_for_function("document.querySelectorAll('.chart:not([data-drawn])').length === 0")
        assert here.cells("h2") == ["Training"] and here.count("#training tbody tr") == 1


def test_hooksweep_is_drawn_from_above_with_its_goals(browser: Browser, tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    from mocoda.tasks.hooksweep import COLUMNS as NAMES
    from mocoda.tasks.hooksweep import HookSweep2

    task = HookSweep2()
    low, high = task.box
    rows = low + (high - low) * Stream(0, "sweeps").uniform(100, 20)  # no simulator is needed to draw
    notes = {"recipe": torch.arange(100) // 50, "support": torch.linspace(0, 1, 100)}
    goal = task.goals(100, seed=0)
    state = rows[:, :16]
    data = Transitions(state, rows[:, 16:], state, goal=goal, columns=NAMES, provenance=notes)
    report(tmp_path / "page.html", data, task.graph, task=task)
    with opened(browser, tmp_path / "page.html") as here:
        assert here.words("#row .drawing text") == ["gripper", "box1", "box2"]
        assert here.count("#row .drawing rect.body") == 2 and here.count("#row .drawing .goal") == 2
