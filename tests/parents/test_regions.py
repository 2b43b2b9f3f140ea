"""Rows in a region that was never recorded, and rows that obey constraints, in worlds where the truth is known."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from approved import refused
from scipy.stats import ks_2samp
from torch import Tensor

from mocoda import LocalGraph, Transitions, augment, fit_parents, load_task, make_task
from mocoda.augmentation import Augmentation, augment_to_file, augment_to_shards
from mocoda.data import read
from mocoda.data.where import Condition
from mocoda.engine.randomness import Stream

OBJECTS = make_task("objects:2")
DATA = OBJECTS.collect(rows=4_000, seed=0)
BOTH = "object1.x > 0.8 and object2.x > 0.8"  # in an episode only one object is carried there
TRUTH = SimpleNamespace(sample=lambda rows, seed: OBJECTS.step(rows))


def near(f: Tensor) -> Tensor:
    """Whether the last two of three points are near each other, for rows a, b, c, push."""
    return (f[:, 1] - f[:, 2]).abs() < 0.1


def test_rows_are_in_a_region_that_was_never_recorded_and_their_next_states_are_true() -> None:
    assert not Condition(BOTH, columns=DATA.columns)(DATA.rows).any()
    parents = fit_parents(DATA, OBJECTS.graph)
    made = augment(
        DATA, parents, TRUTH, rows=3_000, task=OBJECTS, graph=OBJECTS.graph, keep_recorded=False, region=BOTH
    )
    assert len(made) == 3_000 and made.state[:, [0, 4]].min() > 0.8
    assert (made.next_state - OBJECTS.step(made.rows)).abs().max() < 1e-6
    note = made.source["region"]
    assert note["where"] == BOTH and note["recorded"]["all of it"] == 0 and note["accepted_share"] > 0.9
    assert note["recorded"]["object1.x > 0.8"] == int((DATA.state[:, 0] > 0.8).sum())
    for donor, column in (("donor_object1", 0), ("donor_object2", 4)):  # both were copied
        assert DATA.state[made.provenance[donor].long(), column].equal(made.state[:, column])


@pytest.mark.parametrize("recipe", ["coda", "mocoda-u", "mocoda-p", "rand", "emp"])
def test_every_recipe_draws_inside_a_region(recipe: str) -> None:
    region = "object1.x > 0.5 and not object1.x > object2.x + 0.4"
    parents = fit_parents(DATA, OBJECTS.graph, recipe, task=OBJECTS, region=region)
    rows = parents.sample(500, seed=1)
    assert rows.shape == (500, 12) and bool(Condition(region, columns=DATA.columns)(rows).all())
    assert rows.equal(parents.sample(500, seed=1)) and getattr(parents, "name", None) == recipe
    if recipe in ("coda", "emp"):
        made = augment(DATA, parents, rows=500, keep_recorded=False)
        assert ("support" in made.provenance) == (recipe == "coda")  # whose parents know the graph
        assert (made.next_state - OBJECTS.step(made.rows)).abs().max() < 1e-6


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("varies", [False, True])
def test_rows_that_are_drawn_for_a_region_are_those_that_rejection_leaves(shared: bool, varies: bool) -> None:
    stream = Stream(0, "regions")
    a, b, c, push = stream.normal(4, 6_000)
    state = torch.stack([a, b + 0.5 * a, torch.where(b < 0, b + 0.5 * a, c)], 1)
    graph = LocalGraph(
        state={"a": 0, "b": 1, "c": 2},
        action={"push": 0},
        edges={"a": ["a", "push"], "b": ["a", "b"] if shared else ["b"], "c": ["c"]},
        local=(lambda rows: near_mask(rows, shared)) if varies else None,
    )
    data = Transitions(state, push[:, None], state, columns=("a", "b", "c", "push"))
    region = "b > 0.8 and c < 0.5 and a + c < 1.5"
    chosen = Condition(region, columns=data.columns)
    drawn: Any = fit_parents(data, graph, region=region)
    rejected: Any = fit_parents(data, graph, region=lambda rows: chosen(rows))
    one, other = drawn.sample(4_000, seed=0), rejected.sample(4_000, seed=1)
    for column in range(4):
        assert ks_2samp(one[:, column], other[:, column]).statistic < 0.06
    assert drawn.source["region"]["accepted_share"] > 2 * rejected.source["region"]["accepted_share"]


def near_mask(rows: Tensor, shared: bool) -> Tensor:
    edges = torch.zeros(len(rows), 4, 3, dtype=torch.bool)
    edges[:, [0, 1, 2, 3], [0, 1, 2, 0]] = True
    edges[:, 0, 1] = shared
    edges[:, 1, 2] = edges[:, 2, 1] = near(rows)
    return edges


@pytest.mark.parametrize(
    "region",
    ["object1.x > 1.2 and object2.x > 0", "object1.x > 0.7 and object1.x < 0.6", "objekt1.x > 0", "x >", "next.a > 1"],
)
def test_what_no_row_can_be_is_refused(region: str) -> None:
    with refused():
        fit_parents(DATA, OBJECTS.graph, region=region)


def test_a_function_that_is_no_region_is_refused() -> None:
    with refused():
        fit_parents(DATA, OBJECTS.graph, region=lambda rows: rows[:, 0])


def test_files_and_shards_have_the_rows_of_a_region(tmp_path: Path) -> None:
    def plan() -> Augmentation:
        parents = fit_parents(DATA, OBJECTS.graph, "coda", region="object1.x > 0.5 and object2.x > 0.5")
        return Augmentation(DATA, parents, rows=600, chunk=200, keep_recorded=False)

    augment_to_file(tmp_path / "rows.hdf5", plan, folder=tmp_path / "run", workers=1)
    augment_to_shards(tmp_path / "shards", plan, shards=3)
    file, shards = read(str(tmp_path / "rows.hdf5")), read(str(tmp_path / "shards"))
    assert file.rows.equal(shards.rows) and file.rows[:, [0, 4]].min() > 0.5
    assert file.source["region"] == shards.source["region"]


# Constraints

TOML = """
constraints = ["object1.x >= 0", "norm(object1.x - object2.x, object1.y - object2.y) > 0.15", "abs(move.dx) <= 1"]
[edges]
object1 = ["object1"]
object2 = ["object2"]
agent = ["agent", "action"]
"""
PYTHON = """
edges = {"object1": ["object1"], "object2": ["object2"], "agent": ["agent", "action"]}

def apart(rows):
    return (rows[:, :2] - rows[:, 4:6]).norm(dim=1) > 0.15

constraints = ["object1.x >= 0", apart]
"""


def obeying(data: Transitions) -> Transitions:
    """The rows whose objects are apart, before and after."""
    states = (data.state, data.next_state)
    return data[torch.stack([(s[:, :2] - s[:, 4:6]).norm(dim=1) > 0.15 for s in states]).all(0)]


@pytest.mark.parametrize(("name", "text"), [("graph.toml", TOML), ("graph.py", PYTHON)])
def test_constraints_hold_in_every_new_row_and_its_next_state(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    data = obeying(DATA)
    task = load_task(tmp_path / name, data)
    graph = task.graph
    assert task.constraints is graph.constraints and len(graph.constraints) > 1
    parents = fit_parents(data, graph)
    free = augment(data, parents, TRUTH, rows=4_000, graph=OBJECTS.graph, keep_recorded=False)
    assert len(obeying(free)) < 4_000
    made = augment(data, parents, TRUTH, rows=4_000, graph=graph, keep_recorded=False, provenance=False)
    assert len(obeying(made)) == len(made) == 4_000
    drawn = made.source["filter"]["drawn_rows"]
    assert drawn > 4_000 and made.source["filter"]["constraints"] == list(graph.constraints)
    with refused():  # all violations of the recorded rows are listed
        augment(DATA, parents, TRUTH, rows=10, graph=graph)


def test_constraints_that_no_new_row_meets_end_in_an_error() -> None:
    data = DATA[:300]
    known = torch.cat([data.state, data.next_state])
    recorded = {"recorded": lambda rows: (rows[:, None, :10] == known).all(2).any(1)}
    graph = LocalGraph(OBJECTS.graph.state, OBJECTS.graph.action, OBJECTS.graph.edges, constraints=recorded)
    with refused():
        augment(data, fit_parents(data, graph), TRUTH, rows=2_000, graph=graph)


@pytest.mark.parametrize("given", ["3", "['objekt.x > 0']", "['object1.x >']", "[3]", "[lambda rows: rows]"])
def test_constraints_that_make_no_sense_are_refused(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("graph.py").write_text(PYTHON + f"constraints = {given}\n")
    with refused():
        load_task("graph.py", DATA).graph.check_constraints(DATA)


def test_a_constraint_with_an_equality_is_tolerant_and_one_about_actions_leaves_next_states_alone() -> None:
    table = Transitions([[0.6, 0.8]], [[0.5]], [[0.6001, 0.8]], columns=("cos", "sin", "push"))
    constraints = {
        text: Condition(text, 1e-3, table.columns) for text in ("norm(cos, sin) == 1", "push + cos < 1.1001")
    }
    graph = LocalGraph({"angle": [0, 1]}, {"push": 0}, {"angle": ["angle", "push"]}, constraints=constraints)
    graph.check_constraints(table)
    assert not graph.broken(table.rows + 0.1, table.next_state)["norm(cos, sin) == 1"][1].any()
