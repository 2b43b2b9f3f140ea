"""What `mocoda.report` puts in its page, what it refuses, and the list of rows to drop."""

from __future__ import annotations

import base64
import json
import re
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from approved import refused
from command_line import TINY, done
from hypothesis import given, settings
from hypothesis import strategies as st
from page_data import COLUMNS, GRAPH, MADE, RECORDED, exchanged, table

import mocoda
from mocoda import InputError, Transitions, drop, report
from mocoda.analysis.page.charts import edges
from mocoda.analysis.page.row_browser import donors, main_donors
from mocoda.analysis.page.run_folders import audit_panel, check_panel, training_curves
from mocoda.analysis.page.scene import CELLS, bodies_of, scene_of
from mocoda.augmentation.episode_walks import donor_names
from mocoda.data.editing import HEAD, content_of
from mocoda.engine.metrics import Metric, MetricLog
from mocoda.engine.randomness import Stream
from mocoda.engine.runs import RunFolder
from mocoda.engine.statistics import bootstrap_interval

TYPES = {"f4": np.float32, "i4": np.int32, "u1": np.uint8}


def held(file: Path) -> Any:
    """What a page holds for its scripts."""
    found = re.search(r'<script type="application/json" id="held">(.*?)</script>', file.read_text("utf-8"), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def array(told: dict[str, Any]) -> torch.Tensor:
    values = np.frombuffer(base64.b64decode(told["data"]), TYPES[told["type"]]).reshape(told["shape"])
    return torch.from_numpy(values.copy())


# --- where parts come from


def test_donors_are_those_that_provenance_names() -> None:
    data = table()
    hand = torch.arange(MADE) % RECORDED
    for known in (data[:RECORDED], replace(data[:RECORDED], provenance={})):
        donor, exact = donors(known, data[RECORDED:], GRAPH)
        assert donor.equal(torch.stack([hand, torch.full((MADE,), 7), hand], 1)) and bool(exact.all())
        assert main_donors(donor).equal(hand)


def test_donors_are_found_after_rows_were_filtered() -> None:
    data = table()
    kept = torch.arange(RECORDED + MADE) % 3 != 0
    known, made = data[:RECORDED][kept[:RECORDED]], data[RECORDED:][kept[RECORDED:]]
    donor, exact = donors(known, made, GRAPH)
    assert bool(exact.all()) and known.rows[donor[:, 0], 0].equal(made.rows[:, 0])
    data.provenance["donor_box"][RECORDED:] = 9  # a note that is wrong
    donor, exact = donors(data[:RECORDED], data[RECORDED:], GRAPH)
    assert donor[:, 1].unique().tolist() == [7] and bool(exact.all())


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 30))
def test_without_provenance_the_nearest_recorded_part_is_shown(seed: int, rows: int) -> None:
    stream = Stream(seed, "origins")
    known = table()[:RECORDED]
    made = known.rows[stream.integers(RECORDED, rows)]
    moved = stream.child("moved").uniform(rows, 1) < 0.5
    made[:, 2:4] += torch.where(moved, 0.01, 0.0)
    donor, exact = donors(known, Transitions(made[:, :4], made[:, 4:], made[:, :4], columns=COLUMNS), GRAPH)
    for factor, name in enumerate(GRAPH.parents):
        columns = list(GRAPH.factors[name])
        same = (known.rows[donor[:, factor]][:, columns] == made[:, columns]).all(1)
        assert same.equal(exact[:, factor])
    assert exact[:, 1].equal(~moved[:, 0])
    scale = known.rows[:, 2:4].std(0, correction=0)
    least = torch.cdist((made[:, 2:4] / scale).double(), (known.rows[:, 2:4] / scale).double()).min(1).values
    taken = ((made[:, 2:4] - known.rows[donor[:, 1], 2:4]) / scale).double().norm(dim=1)
    assert bool((taken <= least + 1e-5).all())


def test_episodes_come_from_where_their_provenance_says() -> None:
    data, graph = exchanged()
    new = data.provenance["recipe"] != 0
    known, made = data[~new], data[new]
    donor, exact = donors(known, made, graph)
    assert known.episode is not None and known.step is not None
    for factor, (name, at) in enumerate(donor_names(graph)):
        assert known.episode[donor[:, factor]].equal(made.provenance[name])
        assert known.step[donor[:, factor]].equal(made.provenance[at])
    assert bool(exact.all())


# --- what is measured


def test_edges_come_with_the_share_of_the_rows_that_have_them() -> None:
    data = table()
    far = replace(data[:RECORDED], state=data.state[:RECORDED] * torch.tensor([-1.0, 1, 1, 1]))
    found = {(one["parent"], one["child"]): one for one in edges([data[:RECORDED], far], GRAPH)}
    assert found["hand", "box"]["shares"] == [0.0, 1.0] and not found["hand", "box"]["sparsest"]
    assert found["push", "hand"]["shares"] == [1.0, 1.0] and ("box", "hand") not in found


def test_the_map_counts_all_rows_and_projects_them_as_scikit_learn_does(tmp_path: Path) -> None:
    from sklearn.decomposition import PCA

    data = table()
    report(tmp_path / "page.html", data, GRAPH, rows=20)
    told = held(tmp_path / "page.html")
    mean, axes = (np.array(told["projection"][name]) for name in ("mean", "axes"))
    for view, label in zip(told["views"], ("hand", "box", "whole rows (projection)"), strict=True):
        assert view["label"] == label
        for own, counts in zip((data[:RECORDED], data[RECORDED:]), view["counts"], strict=True):
            rows = own.rows.double().numpy()
            places = (rows - mean) @ axes if view["x"] == len(COLUMNS) else rows[:, [view["x"], view["y"]]]
            ends = [np.linspace(view["low"][i], view["high"][i], CELLS + 1) for i in (1, 0)]
            counted = np.histogram2d(places[:, 1], places[:, 0], bins=ends)[0]
            assert counted.sum() == len(own) and np.array_equal(counted, np.reshape(counts, (CELLS, CELLS)))
    known = data[:RECORDED].rows.double().numpy()
    found = PCA(2).fit(known / known.std(0))
    assert np.allclose(np.abs(axes * known.std(0)[:, None]), np.abs(found.components_.T), atol=1e-5)
    shares = [
        f"component {i + 1} ({share:.0%} of the recorded variance)"
        for i, share in enumerate(found.explained_variance_ratio_)
    ]
    assert told["places"] == [*COLUMNS, *shares]


def test_the_first_screen_says_what_the_scores_of_its_rows_say(tmp_path: Path) -> None:
    data = table()
    report(tmp_path / "page.html", data, GRAPH)
    html = (tmp_path / "page.html").read_text("utf-8")
    scores, rows = mocoda.score_rows(data, GRAPH), array(held(tmp_path / "page.html")["rows"]["scores"])
    assert held(tmp_path / "page.html")["aspects"] == [*scores.details]
    cards = [re.sub("<.*?>", "", card) for card in re.findall(r"<div[^>]*>(<dt>.*?</dd>)</div>", html)]
    assert cards[:2] == [f"recorded rows{RECORDED}", f"counterfactual rows{MADE}"]
    for place, (aspect, details) in enumerate(scores.details.items()):
        assert rows[:, place].equal(details)
        of_kind = [details[RECORDED:], details[:RECORDED]]
        told = re.search(rf'<tr><th scope="row">{aspect}</th><td class="words">[^<]*</td>(.*?)</tr>', html)
        assert told is not None
        cells = re.findall("<td>(.*?)</td>", told[1])
        expected = [[f"{100 * (own > 0.5).double().mean():.3g}%", f"{own.double().mean():.3f}"] for own in of_kind]
        expected[1] = ["–", "–"] if aspect == "confirmed" else expected[1]
        assert cells == [*expected[0], *expected[1]]
        assert cards[2 + place] == f"{aspect}{f' of {MADE} audited' if aspect == 'confirmed' else ''}{expected[0][0]}"
    assert [int(row) for row in re.findall(r'<a href="#row=(\d+)">', html)] == scores.worst(8).tolist()


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        (("x", "y"), [("x, y", 0, 1)]),
        (("a", "box1_y", "box1_x", "box1_qx", "box1_qy"), [("box1", 2, 1)]),
        (("agent.x", "agent.vx", "agent.y", "x2", "y2"), [("agent", 0, 2), ("2", 3, 4)]),
        (("max", "may", "x"), []),
    ],
)
def test_bodies_are_known_by_the_names_of_their_columns(columns: tuple[str, ...], found: list[Any]) -> None:
    assert bodies_of(columns) == found


def test_goals_are_drawn_where_they_are_columns_of_the_state() -> None:
    class Picks:
        def achieved(self, state: torch.Tensor) -> torch.Tensor:
            return state[:, [3, 2]]

    class Adds:
        def achieved(self, state: torch.Tensor) -> torch.Tensor:
            return state[:, :2] + state[:, 2:]

    data = replace(table(), goal=torch.zeros(RECORDED + MADE, 2))
    picked, added = scene_of(data, GRAPH, Picks()), scene_of(data, GRAPH, Adds())
    assert picked is not None and [body["goal"] for body in picked["bodies"]] == [None, [1, 0]]
    assert added is not None and [body["goal"] for body in added["bodies"]] == [None, None]
    assert scene_of(table((*"abcd", "e")), GRAPH) is None


# --- the page


def test_rows_are_in_the_page_to_the_bit_and_the_same_call_writes_the_same_bytes(tmp_path: Path) -> None:
    data = table()
    report(tmp_path / "one.html", data, GRAPH)
    report(tmp_path / "two.html", data, GRAPH)
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()
    rows = held(tmp_path / "one.html")["rows"]
    assert array(rows["number"]).tolist() == list(range(RECORDED + MADE))
    assert array(rows["values"]).equal(torch.cat([data.rows, data.next_state], 1))
    given_next = array(rows["given"])[RECORDED:, 7:9]  # of the box, by row 7
    assert given_next.equal(data.next_state[[7] * MADE, 2:])


def test_points_are_a_sample_at_random_of_each_kind(tmp_path: Path) -> None:
    many = mocoda.concatenate([table()[:RECORDED]] + [table()[RECORDED:]] * 30)
    report(tmp_path / "page.html", many, GRAPH, rows=800)
    rows = held(tmp_path / "page.html")["rows"]
    sample, made, number = (array(rows[name]) for name in ("sample", "made", "number"))
    drawn = (number[(sample == 1) & (made == 1)] - RECORDED) / (len(many) - RECORDED)
    assert len(drawn) > 150 and abs(float(drawn.mean()) - 0.5) < 4 * 0.29 / len(drawn) ** 0.5  # as in all rows
    worst = mocoda.score_rows(many, GRAPH).worst(8)
    assert {*worst.tolist()} <= {*number.tolist()}


def test_of_many_rows_the_worst_and_some_others_are_held(tmp_path: Path) -> None:
    data = table()
    report(tmp_path / "page.html", data, GRAPH, rows=40, show=[148])
    numbers = array(held(tmp_path / "page.html")["rows"]["number"]).tolist()
    assert len(numbers) == 40 and 148 in numbers
    assert {*mocoda.score_rows(data, GRAPH).worst(8).tolist()} <= {*numbers}
    assert sum(number < RECORDED for number in numbers) >= 10


def test_a_page_of_100_000_rows_is_smaller_than_10_megabytes(tmp_path: Path) -> None:
    stream, rows, parts = Stream(0, "many"), 100_000, 20
    state = stream.normal(20_000, 2 * parts).repeat(5, 1)
    notes = {"recipe": (torch.arange(rows) >= 20_000).long(), "support": stream.uniform(rows)}
    factors = {f"part{i}": [2 * i, 2 * i + 1] for i in range(parts)}
    graph = mocoda.LocalGraph(state=factors, action={"a": 0}, edges={name: [name] for name in factors})
    data = Transitions(state, state[:, :1], state, provenance=notes, episode=torch.arange(rows) // 50)
    began = time.process_time()
    report(tmp_path / "page.html", data, graph, rows=rows)
    assert time.process_time() - began < 120
    assert 4e6 < (tmp_path / "page.html").stat().st_size < 10e6
    told = held(tmp_path / "page.html")
    assert len(told["episodes"]) > 1
    assert [sum(counts) for counts in told["views"][0]["counts"]] == [20_000, 80_000]


def test_generated_rows_alone_are_shown_beside_the_rows_they_were_made_from(tmp_path: Path) -> None:
    data = table()
    report(tmp_path / "page.html", data[RECORDED:], GRAPH, recorded=data[:RECORDED])
    rows = held(tmp_path / "page.html")["rows"]
    assert array(rows["number"]).tolist() == list(range(MADE))
    assert array(rows["donor"]).unique().tolist() == [-1] and array(rows["exact"]).unique().tolist() == [1]


def test_a_page_of_an_excerpt_calls_rows_by_their_numbers_in_the_whole_table(tmp_path: Path) -> None:
    data, numbers = table(), torch.arange(RECORDED + MADE)
    numbers[RECORDED:] += 5_000
    excerpt = mocoda.Excerpt(data, numbers, 10_000)
    report(tmp_path / "page.html", excerpt, GRAPH, rows=40, show=[5_148])
    report(tmp_path / "whole.html", data, GRAPH, rows=40, show=[148])
    rows, same = (held(tmp_path / f"{name}.html")["rows"] for name in ("page", "whole"))
    shown = array(same["number"])
    assert array(rows["number"]).equal(shown.where(shown < RECORDED, shown + 5_000)) and 148 in shown
    assert rows["donor"] == same["donor"] and rows["values"] == same["values"]  # of recorded rows, which come first
    assert "10,000 rows, of which 150 were read" in (tmp_path / "page.html").read_text("utf-8")
    for row in (70, 10_000):
        with refused():
            report(tmp_path / "other.html", excerpt, GRAPH, show=[row])
    listed = held(tmp_path / "page.html")
    (tmp_path / "drop.txt").write_text(f"{listed['head']} {listed['content']}\n7\n")
    whole = mocoda.concatenate([data] * 67)[:10_000]
    assert len(mocoda.drop(whole, rows=tmp_path / "drop.txt")) == 9_999
    with refused():
        mocoda.drop(data, rows=tmp_path / "drop.txt")


def test_rows_without_provenance_are_told_apart_by_their_source(tmp_path: Path) -> None:
    data = table()
    source = {"recorded_rows": RECORDED, "generated_rows": MADE, "recipe": "coda"}
    report(tmp_path / "page.html", replace(data, provenance={}, source=source), GRAPH)
    rows = held(tmp_path / "page.html")["rows"]
    assert array(rows["made"]).tolist() == [0] * RECORDED + [1] * MADE
    assert {rows["recipes"][number] for number in array(rows["recipe"])[RECORDED:].tolist()} == {"coda"}


def test_recorded_data_alone_gets_scores_and_a_page(tmp_path: Path) -> None:
    data = Transitions(table().state[:RECORDED], table().action[:RECORDED], table().next_state[:RECORDED])
    report(tmp_path / "page.html", data, GRAPH)
    told = held(tmp_path / "page.html")
    assert told["aspects"] == ["valid", "supported", "new"] and len(told["views"][0]["counts"]) == 1
    assert array(told["rows"]["scores"]).equal(torch.stack([*mocoda.score_rows(data, GRAPH).details.values()], 1))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"data": True},
        {"data": True, "graph": True, "rows": 0},
        {"data": True, "graph": True, "show": [150]},
        {"data": True, "graph": True, "recorded": None, "made": True},
        {"training": ["nowhere"]},
        {"data": True, "graph": True, "audit": {"confirmed": 1}},
        {"data": True, "graph": True, "check": "nowhere"},
    ],
    ids=["nothing", "graph", "rows", "show", "recorded", "training", "audit", "check"],
)
def test_bad_options_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    options = dict(options)
    data = table()[RECORDED:] if options.pop("made", False) else table()
    for name, value in (("data", data), ("graph", GRAPH)):
        if options.pop(name, False):
            options[name] = value
    with refused():
        report(tmp_path / "page.html", **options)
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\xff", "null", '{"runs": 3}', '[{"update": NaN}]'])
@pytest.mark.parametrize("name", ["audit.json", "advice.json", "metrics.jsonl", "evaluation.json", "config.json"])
def test_damaged_files_of_run_folders_are_refused_or_shown(name: str, text: str, tmp_path: Path) -> None:
    MetricLog(tmp_path).add([Metric(1, "walks", 0, "steps", 3.0)])
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    panels: dict[str, Any] = {"audit.json": audit_panel, "advice.json": check_panel}
    with suppress(InputError):
        shown = panels[name](tmp_path) if name in panels else training_curves([tmp_path])
        json.dumps(shown, allow_nan=False)
        assert name == "config.json"  # from which only the agent's name is taken


def test_curves_are_means_over_seeds_with_their_bootstrap_interval(tmp_path: Path) -> None:
    for agent, best in (("td3-bc", 10.0), ("cql", 20.0)):
        with RunFolder(tmp_path / agent, "train", {"agent": agent}, ["metrics.jsonl", "metrics.csv"]):
            MetricLog(tmp_path / agent).add(
                Metric(update, "walks", seed, "steps", best + seed + 1 / update)
                for update in (1, 2)
                for seed in range(3)
            )
            MetricLog(tmp_path / agent).add([Metric(3, "walks", 0, "steps", float("nan"))])
    told = training_curves([tmp_path / "td3-bc", tmp_path / "cql"])
    assert told["metrics"] == ["steps"] and told["better"] == {"steps": "fewer is better"}
    low, high = bootstrap_interval([10.5, 11.5, 12.5])
    last = {"mean": 11.5, "low": low, "high": high, "seeds": 3}
    assert told["curves"][1] == {"series": "td3-bc, walks", "metric": "steps", "update": 2, **last}
    assert [one["series"] for one in told["ends"]] == ["td3-bc, walks", "cql, walks"] and told["ends"][1][
        "mean"
    ] == 21.5


# --- rows to drop


@settings(max_examples=25, deadline=None)
@given(st.sets(st.integers(0, RECORDED + MADE - 1), max_size=RECORDED + MADE - 1))
def test_the_listed_rows_and_no_others_are_dropped(rows: set[int]) -> None:
    data = table()
    with TemporaryDirectory() as folder:
        file = Path(folder) / "rows.txt"
        file.write_text("\n".join([f"{HEAD} {content_of(data)}", "", *map(str, rows)]))
        left = drop(data, rows=file)
    kept = torch.tensor([row for row in range(len(data)) if row not in rows])
    assert left.rows.equal(data.rows[kept]) and left.provenance["support"].equal(data.provenance["support"][kept])


@pytest.mark.parametrize(
    "text",
    [
        b"1\ntwo\n",
        b"150\n",
        b"-1\n",
        b"\xff\xfe",
        f"{HEAD} other\n1".encode(),
        None,
        b"\n".join(b"%d" % n for n in range(150)),
    ],
    ids=["word", "beyond", "negative", "binary", "other data", "no file", "all"],
)
def test_a_bad_list_of_rows_is_refused(text: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "rows.txt"
    if text is not None:
        file.write_bytes(text)
    with refused():
        drop(table(), rows=file)


# --- the command line


def test_augment_ends_with_a_page_and_report_writes_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done("collect", "navigation", "--rows", 200, "--out", "data.hdf5")
    done("augment", "data.hdf5", "--rows", 100, *TINY, "--report", "page.html", "--out", "more.hdf5")
    done("report", "more.hdf5", "--out", "again.html")
    assert Path("page.html").read_bytes() == Path("again.html").read_bytes()
    alone = ("augment", "data.hdf5", "--recipe", "coda", "--rows", 50, "--no-keep-recorded", "--out", "new.hdf5")
    done(*alone, "--report", "new.html")
    rows = held(Path("new.html"))["rows"]
    assert array(rows["number"]).tolist() == list(range(50)) and bool(array(rows["exact"]).all())
