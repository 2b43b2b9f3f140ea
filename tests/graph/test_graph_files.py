"""Graph files: what people write in Python and TOML is the graph they mean, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from graph_texts import EDGES, NAMES, PYTHON, ROWS, TOML, data, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from mocoda import load_graph
from mocoda.engine.randomness import Stream
from mocoda.graph.columns import ColumnNames
from mocoda.graph.local_graph import LocalGraph


def assert_same(one: LocalGraph, other: LocalGraph, rows: Tensor) -> None:
    assert one.factors == other.factors
    assert (one.parents, one.children) == (other.parents, other.children)
    assert torch.equal(one.sparsest, other.sparsest)
    assert one.parent_sets == other.parent_sets
    assert torch.equal(one.mask(rows), other.mask(rows))


def by_hand() -> LocalGraph:
    def local(rows: Tensor) -> Tensor:
        mask = torch.zeros(len(rows), 4, 3, dtype=torch.bool)
        for p, c in ((0, 0), (3, 0), (0, 1), (1, 1), (0, 2), (2, 2)):
            mask[:, p, c] = True
        near = (rows[:, 3] - rows[:, 5]).square() + (rows[:, 4] - rows[:, 6]).square() < 0.0625
        mask[:, 1, 2] = mask[:, 2, 1] = near
        return mask

    return LocalGraph(
        state={"gripper": [0, 1, 2], "box1": [3, 4], "box2": [5, 6]},
        action={"push": [0, 1]},
        edges={"gripper": ["gripper", "push"], "box1": ["gripper", "box1"], "box2": ["gripper", "box2"]},
        local=local,
    )


# --- what is read


@pytest.mark.parametrize(("text", "name"), [(PYTHON, "g.py"), (TOML, "g.toml")])
def test_a_file_is_the_graph_built_by_hand(text: str, name: str, tmp_path: Path) -> None:
    loaded = load_graph(write(tmp_path, text, name), data())
    assert_same(loaded, by_hand(), ROWS)
    share = loaded.mask(ROWS)[:, 1, 2].float().mean()
    assert 0.05 < share < 0.5  # the rule is put to the test


def test_factors_are_compared_in_columns_of_their_own(tmp_path: Path) -> None:
    names = ColumnNames((*(f"hand.{i}" for i in range(15)), *(f"cube.{i}" for i in range(7))), ("u",))
    text = (
        "[edges]\nhand = ['hand', 'action']\ncube = ['cube']\n[[near]]\nbetween = ['hand', 'cube']\nwithin = 1.0\n"
        "columns = { hand = '12:15', cube = %s }\n"
    )
    rows = Stream(0, "own-columns").uniform(200, 23) * 2
    apart = (rows[:, 12:15] - rows[:, 15:18]).norm(dim=1)
    for columns in ("'0:3'", "[0, 1, 2]", "['0', '1', '2']"):
        graph = load_graph(write(tmp_path, text % columns, "g.toml"), names)
        assert graph.mask(rows)[:, 0, 1].equal(apart < 1) and 0 < (apart < 1).sum() < 200


def test_columns_name_their_factors_by_themselves(tmp_path: Path) -> None:
    names = ColumnNames(("a.x", "b", "a.y", "c.q.r"), ("u", "v"))
    loaded = load_graph(
        write(tmp_path, 'edges = {"a": ["a", "action"], "b": ["b"], "c": ["c", "a"]}'), data(ROWS[:, :6], names)
    )
    assert loaded.factors == {"a": (0, 2), "b": (1,), "c": (3,), "action": (4, 5)}
    by_name = write(tmp_path, 'edges = {"a": ["a", "u"], "b": ["b", "v"], "c": ["c", "a"]}')
    assert load_graph(by_name, data(ROWS[:, :6], names)).action == {"u": (0,), "v": (1,)}


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ("slice(4, 2, -1)", (4, 3)),
        ("range(3, 5)", (3, 4)),
        ("[3, 4]", (3, 4)),
        ("'3:5'", (3, 4)),
        ("'box1'", (3, 4)),
        ("['box1.y', 3]", (4, 3)),
        ("[slice(3, 5)]", (3, 4)),
        ("np.array([4, 3])", (4, 3)),
        ("[np.int64(3), torch.tensor(4)]", (3, 4)),
    ],
)
def test_columns_are_chosen_in_many_ways(columns: str, found: tuple[int, ...], tmp_path: Path) -> None:
    text = f"import numpy as np, torch\nstate = {{'gripper': slice(3), 'box1': {columns}, 'box2': slice(5, None)}}"
    made = load_graph(write(tmp_path, text + EDGES.replace("push", "action")), NAMES)
    assert made.factors["box1"] == found
    assert made.factors["box2"] == (5, 6)


def test_a_name_may_begin_with_its_factor_and_an_underscore(tmp_path: Path) -> None:
    names = ColumnNames(("box_1_x", "box_1_y", "box_10_x", "box_10_y"), ("u",))
    text = """
    [state]
    one = "box_1"
    ten = "box_10"
    [edges]
    one = ["one", "action"]
    ten = ["ten"]
    """
    assert load_graph(write(tmp_path, text, "g.toml"), names).factors == {"one": (0, 1), "ten": (2, 3), "action": (4,)}


def test_a_columns_own_name_comes_before_what_others_begin_with(tmp_path: Path) -> None:
    names = ColumnNames(("a", "a.x", "a_y"), ("u",))
    text = "state = {'one': 'a', 'two': ['a.x', 'a_y']}\nedges = {'one': ['one'], 'two': ['two']}"
    assert load_graph(write(tmp_path, text), names).factors["one"] == (0,)


def test_parent_sets_may_be_given(tmp_path: Path) -> None:
    sets = (("gripper", "box1", "push"), ("gripper", "box2"))
    python = write(tmp_path, PYTHON + "parent_sets = [['gripper', 'box1', 'push'], ['gripper', 'box2']]")
    assert load_graph(python, NAMES).parent_sets == sets
    toml = write(tmp_path, "parent_sets = [['gripper', 'box1', 'push'], ['gripper', 'box2']]" + TOML, "g.toml")
    assert load_graph(toml, NAMES).parent_sets == sets


def test_files_name_the_columns_that_are_measured_from_others(tmp_path: Path) -> None:
    python = write(tmp_path, PYTHON + 'relative = {"box1.x": "gripper.x", "box2.y": "gripper.y"}\n')
    toml = write(tmp_path, TOML + '[relative]\n"box1.x" = "gripper.x"\n"box2.y" = "gripper.y"\n', "g.toml")
    for file in (python, toml):
        assert load_graph(file, NAMES).relative == {3: 0, 6: 1}


def test_hooksweeps_graph_fits_in_a_toml_file(tmp_path: Path) -> None:
    hooksweep = pytest.importorskip("mocoda.tasks.hooksweep")
    text = """
    parent_sets = [["gripper", "box1", "action"], ["gripper", "box2", "action"]]
    [state]
    gripper = "gripper"
    box1 = "box1"
    box2 = "box2"
    [edges]
    gripper = ["gripper", "box1", "box2", "action"]
    box1 = ["gripper", "box1", "action"]
    box2 = ["gripper", "box2", "action"]
    [[near]]
    between = ["box1", "box2"]
    columns = ["x", "y"]
    within = 0.05
    norm = "l1"
    """
    rows = Stream(1, "test-graph-files").uniform(2_000, 20, high=0.1)
    names = ColumnNames(hooksweep.COLUMNS[:16], hooksweep.COLUMNS[16:])
    assert_same(load_graph(write(tmp_path, text, "hooksweep.toml"), names), hooksweep.GRAPH, rows)


def test_f_gives_factors_columns_and_parts_of_factors(tmp_path: Path) -> None:
    text = (
        PYTHON.partition("def local")[0]
        + """
def local(f):
    assert f["box1"].shape == (len(f), 2) and f["box1.x"].shape == (len(f),) and f["push"].shape == (len(f), 2)
    assert f["box1", "y", "x"].equal(f["box1"].flip(1)) and f["box1", 1].equal(f["box1", "box1.y"])
    assert f.rows.shape == (len(f), 9)
    return {("push", "box2"): f["push.x"] > 0.5, ("box1", "gripper"): (f["box1", "y"] > 0.5)[:, 0].numpy()}
"""
    )
    mask = load_graph(write(tmp_path, text), NAMES).mask(ROWS)
    assert mask[:, 3, 2].tolist() == (ROWS[:, 7] > 0.5).tolist()
    assert mask[:, 1, 0].tolist() == (ROWS[:, 4] > 0.5).tolist()
    assert mask[:, 1, 2].sum() == 0


def test_a_rule_may_be_between_more_than_two_and_rules_add_up(tmp_path: Path) -> None:
    names = ColumnNames(tuple("abc"), ("u",))
    text = "[edges]\na = ['a', 'b']\nb = ['b']\nc = ['c']\n"
    text += "[[near]]\nbetween = ['a', 'b', 'c']\nwithin = 0.1\n[[near]]\nbetween = ['c', 'b']\nwithin = 0.3\n"
    mask = load_graph(write(tmp_path, text, "g.toml"), names).mask(ROWS[:, :4])
    a, b, c = ROWS[:, :3].unbind(1)
    assert mask[:, 1, 0].all()  # b is in a's edges
    assert mask[:, 0, 1].tolist() == ((a - b).abs() < 0.1).tolist()
    assert mask[:, 0, 2].tolist() == mask[:, 2, 0].tolist() == ((a - c).abs() < 0.1).tolist()
    assert mask[:, 1, 2].tolist() == mask[:, 2, 1].tolist() == ((b - c).abs() < 0.3).tolist()


def slow_mask(
    rows: Sequence[Sequence[float]], factors: int, width: int, edges: dict[str, list[str]], rule: dict[str, Any]
) -> list[list[list[bool]]]:
    """The mask of a file with one rule, in plain numbers, row after row; factors are f0, f1, ... of equal width."""
    result = []
    for row in rows:
        mask = [[f"f{p}" in edges[f"f{c}"] for c in range(factors)] for p in range(factors)]
        mask.append(["action" in edges[f"f{c}"] for c in range(factors)])
        for p in rule["between"]:
            for c in rule["between"]:
                one, other = (row[int(name[1:]) * width :][:width] for name in (p, c))
                apart = [abs(one[i] - other[i]) for i in rule["columns"]]
                size = {"l1": sum(apart), "l2": sum(d * d for d in apart) ** 0.5, "max": max(apart)}[rule["norm"]]
                mask[int(p[1:])][int(c[1:])] |= p != c and size < rule["within"]
        result.append(mask)
    return result


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_toml_graph_equals_the_one_built_by_hand_row_by_row(tmp_path: Path, draw: Any) -> None:
    factors, width = draw.draw(st.integers(2, 5)), draw.draw(st.integers(1, 3))
    children = [f"f{i}" for i in range(factors)]
    some = st.lists(st.sampled_from([*children, "action"]), min_size=1, unique=True)
    edges = {child: draw.draw(some) for child in children}
    between = draw.draw(st.lists(st.sampled_from(children), min_size=2, unique=True))
    pairs = [(p, c) for p in between for c in between if p < c]
    if any(p in edges[c] and c in edges[p] for p, c in pairs):
        edges = {child: [child] for child in children}
    rule: dict[str, Any] = {
        "between": between,
        "columns": draw.draw(st.lists(st.integers(0, width - 1), min_size=1, unique=True)),
        "within": draw.draw(st.sampled_from([0.125, 0.375, 0.625])),
        "norm": draw.draw(st.sampled_from(["l1", "l2", "max"])),
    }
    text = "[edges]\n" + "".join(f"{child} = {parents}\n" for child, parents in edges.items())
    text += "[[near]]\n" + "".join(f"{key} = {value!r}\n" for key, value in rule.items())
    names = ColumnNames(tuple(f"f{i}.{j}" for i in range(factors) for j in range(width)), ("u", "v"))
    # sixteenths: no distance is rounded
    rows = Stream(draw.draw(st.integers(0, 9)), "rows").integers(17, 20, factors * width + 2) / 16.0
    loaded = load_graph(write(tmp_path, text, "g.toml"), names)
    assert loaded.mask(rows).tolist() == slow_mask(rows.tolist(), factors, width, edges, rule)
    hand = LocalGraph(
        state={child: slice(i * width, (i + 1) * width) for i, child in enumerate(children)},
        action={"action": [0, 1]},
        edges=edges,
        local=loaded.local,
    )
    assert loaded.structure == hand.structure
    assert_same(loaded, hand, rows)


# --- the examples

EXAMPLES = Path(__file__).parents[2] / "examples" / "graphs"
PUSHING = ColumnNames(("gripper.x", "gripper.y", "box1.x", "box1.y", "box2.x", "box2.y"), ("push.x", "push.y"))
PUSHED = Stream(2, "test-graph-files").uniform(2_000, 8, high=0.3)


def test_the_examples_are_one_graph(tmp_path: Path) -> None:
    one, other = (load_graph(EXAMPLES / name, PUSHING) for name in ("pushing.toml", "pushing.py"))
    assert_same(one, other, PUSHED)
