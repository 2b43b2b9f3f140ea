"""Graph files that cannot be: every refusal in full, and the file that said it."""
# ruff: noqa: E501  (a message a line)

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from graph_texts import EDGES, NAMES, PYTHON, ROWS, TOML, refusal, write

from mocoda import load_graph
from mocoda.graph.columns import ColumnNames
from mocoda.graph.graph_file import MAX_BYTES

OTHERS = 'state = {"gripper": slice(0, 3), "box2": "box2", "box1": '
ACTION = 'action = {"push": "push"}'


def said(folder: Path, text: str, name: str = "my_graph.py", names: ColumnNames = NAMES) -> str:
    file = write(folder, text, name)
    return refusal(lambda: load_graph(file, names), file)


# --- files


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "graph.py"
    there_is_none = f"there is no file {str(file)!r}; write the graph as Python (.py) or TOML (.toml)."
    assert refusal(lambda: load_graph(file, NAMES)) == there_is_none
    file.mkdir()
    assert refusal(lambda: load_graph(file, NAMES)) == there_is_none


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, "{}", "graph.json")
    assert refusal(lambda: load_graph(file, NAMES)) == (
        f"{str(file)!r} is neither Python (.py) nor TOML (.toml), the two ways to write a graph, nor a "
        "learned graph (.graph)."
    )


@pytest.mark.parametrize("name", ["g.py", "g.toml"])
def test_a_huge_file_is_not_read(name: str, tmp_path: Path) -> None:
    file = write(tmp_path, "#" * (MAX_BYTES + 1), name)
    assert refusal(lambda: load_graph(file, NAMES)) == (
        f"{str(file)!r} has over 1,000,000 bytes; a graph is a page of text. Is it another file?"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = 1\nb = = 2", "line 2 is not Python: invalid syntax."),
        ("a = 1\n\n\nif a:\nb = 2", "line 5 is not Python: expected an indented block after 'if' statement on line 4."),
        ("a = 1\nimport nowhere_to_be_found", "running it raised ModuleNotFoundError in line 2: No module named 'nowhere_to_be_found'."),
        ("a = {}\nb = a['c']", "running it raised KeyError in line 2: 'c'."),
        ("raise SystemExit(3)", "running it raised SystemExit in line 1: 3."),
        ("a = 1", "it has no edges; list for every state factor the factors it depends on."),
        ("edge = {}", "'edge' means nothing in a graph file. Did you mean 'edges'? If not, call it '_edge'."),
        ("actions = {}" + EDGES, "'actions' means nothing in a graph file. Did you mean 'action'? If not, call it '_actions'."),
        ("locals = 3\ndef lokal(f):\n    pass" + EDGES, "'lokal' means nothing in a graph file. Did you mean 'local'? If not, call it '_lokal'."),
    ],
)  # fmt: skip
def test_a_python_file_that_does_not_run_is_refused(text: str, message: str, tmp_path: Path) -> None:
    assert said(tmp_path, text) == message


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    for name in ("g.py", "g.toml"):
        (tmp_path / name).write_bytes(b"a = '\xff\xfe\x00'")
    assert refusal(lambda: load_graph(tmp_path / "g.py", NAMES), tmp_path / "g.py") in (
        "it is not Python: source code string cannot contain null bytes.",
        "line 1 is not Python: source code cannot contain null bytes.",  # later Pythons say which line
    )
    assert refusal(lambda: load_graph(tmp_path / "g.toml", NAMES), tmp_path / "g.toml") == (
        "it is not TOML: 'utf-8' codec can't decode byte 0xff in position 5: invalid start byte."
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[edges]\na = = 3", "it is not TOML: Invalid value (at line 2, column 5)."),
        ("[edges\n", "it is not TOML: Expected ']' at the end of a table declaration (at line 1, column 7)."),
        ("[edgse]\na = ['a']", "there is no setting 'edgse'; there are: state, action, edges, relative, near, parent_sets. Did you mean 'edges'?"),
        ("near = 3" + TOML.partition("[[near]]")[0], "a rule is written under [[near]], in two brackets."),
        (TOML.replace("[[near]]", "[near]"), "a rule is written under [[near]], in two brackets."),
    ],
)  # fmt: skip
def test_a_toml_file_that_is_none_is_refused(text: str, message: str, tmp_path: Path) -> None:
    assert said(tmp_path, text, "g.toml") == message


def test_a_deeply_nested_file_is_refused(tmp_path: Path) -> None:
    assert "is not Python: " in said(tmp_path, "a = " + "-" * 50_000 + "1")
    assert said(tmp_path, "a = " + "[" * 50_000, "g.toml").startswith("it is not TOML: ")


# --- columns


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("['box1.x', 'box1.y', 'box2.x']", "the state column 'box2.x' is claimed by both 'box2' and 'box1'; a column has one factor."),
        ("['box1', 'box1.y']", "the state column 'box1.y' is claimed twice by 'box1'; a column has one factor."),
        ("'box1.x'", "the state column 'box1.y' belongs to no factor; name one for it in state."),
        ("'bax1'", "there is no state column 'bax1'; there are: gripper, box1, box2, gripper.x, gripper.y, gripper.z, box1.x, box1.y, box2.x, box2.y. Did you mean 'box1'?"),
        ("['box1.x', 'box1.z']", "there is no state column 'box1.z'; there are: gripper, box1, box2, gripper.x, gripper.y, gripper.z, box1.x, box1.y, box2.x, box2.y. Did you mean 'box1.y'?"),
        ("'push.x'", "the state factor 'box1' asks for 'push.x', which is a column of the action."),
        ("'push'", "the state factor 'box1' asks for 'push', which is a column of the action."),
        ("slice(3, 8)", "the state factor 'box1' asks for columns 3:8; the data has 7 state columns."),
        ("'9:'", "the state factor 'box1' asks for columns 9:None; the data has 7 state columns."),
        ("[3, 7]", "the state factor 'box1' asks for column 7; the data has 7 state columns, counted from 0."),
        ("-1", "the state factor 'box1' asks for column -1; the data has 7 state columns, counted from 0."),
        ("[]", "the state factor 'box1' has no columns, got []."),
        ("slice(4, 4)", "the state factor 'box1' has no columns, got slice(4, 4, None)."),
        ("slice('a', 'b')", "the state factor 'box1' must be sliced by whole numbers, got slice('a', 'b', None)."),
        ("True", "the state factor 'box1' must be a slice, a number, a column's name or a list of those, got True."),
        ("{'x': 1}", "the state factor 'box1' must be a slice, a number, a column's name or a list of those, got {'x': 1}."),
        ("[0.5] * 2", "the state factor 'box1' must be a slice, a number, a column's name or a list of those, got 0.5."),
    ],
)  # fmt: skip
def test_columns_that_cannot_be_are_refused_by_name(columns: str, message: str, tmp_path: Path) -> None:
    assert said(tmp_path, f"{OTHERS}{columns}}}\n{ACTION}{EDGES}") == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("state = {'gripper': 'gripper', 'box1': 'box1.x'}", "the state columns 'box1.y', 'box2.x', 'box2.y' belong to no factor; name one for them in state."),
        ("action = {'push': 'push.x'}", "the action column 'push.y' belongs to no factor; name one for it in action."),
        ("action = {'push': 'gripper'}", "the action factor 'push' asks for 'gripper', which is a column of the state."),
        ("state = ['gripper', 'box1']", "state must map names of factors to their columns, got ['gripper', 'box1']."),
        ("state = {0: 'gripper'}", "state must map names of factors to their columns, got {0: 'gripper'}."),
        ("action = {'gripper': 'push'}", "the names ['gripper'] stand for both state and action factors; every factor needs its own name."),
    ],
)  # fmt: skip
def test_tables_of_factors_that_cannot_be_are_refused(text: str, message: str, tmp_path: Path) -> None:
    assert said(tmp_path, text + EDGES) == message


# --- edges


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ("['gripper']", "edges must map each state factor to a list of factors, got ['gripper']."),
        ("{'gripper': 'gripper'}", "edges must map each state factor to a list of factors, got {'gripper': 'gripper'}."),
        ("{'gripper': [['gripper']]}", "edges must map each state factor to a list of factors, got {'gripper': [['gripper']]}."),
        ("{'gripper': ['gripper', 'pusch'], 'box1': ['box1'], 'box2': ['box2']}", "there is no factor 'pusch'; there are: gripper, box1, box2, push. Did you mean 'push'?"),
        ("{'gripper': ['gripper'], 'bux1': ['box1'], 'box2': ['box2']}", "there is no state factor 'bux1'; there are: gripper, box1, box2. Did you mean 'box1'?"),
        ("{'gripper': ['gripper'], 'box1': ['box1'], 'box2': ['box2'], 'push': ['box1']}", "edges name 'push' as a child, but it is an action; only state factors have parents."),
        ("{'gripper': ['gripper'], 'box1': ['box1']}", "child 'box2' has no parents in edges; expected at least one, such as 'box2' itself."),
        ("{'gripper': ['gripper'], 'box1': ['box1'], 'box2': []}", "child 'box2' has no parents in edges; expected at least one, such as 'box2' itself."),
        ("{}\nparent_sets = ['a']", "parent_sets must be a list of lists of factors, got ['a']."),
    ],
)  # fmt: skip
def test_edges_that_make_no_sense_are_refused(edges: str, message: str, tmp_path: Path) -> None:
    assert said(tmp_path, f"{ACTION}\nedges = {edges}") == message


RULE = {"between": "['box1', 'box2']", "columns": "['x', 'y']", "within": "0.05"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"between": "['box1']"}, "[[near]] 1 must say between which factors, two or more, got ['box1']."),
        ({"between": "['box1', 'box1']"}, "[[near]] 1 must say between which factors, two or more, got ['box1', 'box1']."),
        ({"between": "'box1'"}, "[[near]] 1 must say between which factors, two or more, got 'box1'."),
        ({"between": "['box1', 'push']"}, "[[near]] 1 is about 'push', an action; only state factors are near each other."),
        ({"between": "['box1', 'bax2']"}, "there is no state factor 'bax2'; there are: gripper, box1, box2. Did you mean 'box2'?"),
        ({"between": "[['box1'], 'box2']"}, "there is no state factor ['box1']; there are: gripper, box1, box2. Did you mean 'box1'?"),
        ({"columns": "['x', 'z']"}, "there is no column of 'box1' called 'z'; there are: x, y."),
        ({"columns": "['x', 5]"}, "there is no column of 'box1' called 5; there are: x, y."),
        ({"columns": "'x'"}, "the columns of [[near]] 1 must be a list of names or a range such as \"0:3\", got 'x'."),
        ({"columns": "[true]"}, "the columns of [[near]] 1 must be a list of names or a range such as \"0:3\", got [True]."),
        ({"between": "['box1', 'gripper']", "columns": "[]"}, "[[near]] cannot compare 'box1' and 'gripper' in 2 and 3 columns; say which, such as columns = [\"x\", \"y\"] or { box1 = \"0:2\", gripper = \"1:3\" }."),
        ({"columns": "{ box1 = '0:2' }"}, "the columns of [[near]] 1 must be given for each of its factors; 'box2' has none."),
        ({"columns": "{ box1 = '0:2', box3 = [0] }"}, "there is no factor between those of [[near]] 1 called 'box3'; there are: box1, box2. Did you mean 'box2'?"),
        ({"columns": "{ box1 = '1:3', box2 = '0:2' }"}, "there is no column of 'box1' called 2; there are: x, y."),
        ({"within": "0"}, "[[near]] 1 must say within what distance, a number above 0, got 0."),
        ({"within": "true"}, "[[near]] 1 must say within what distance, a number above 0, got True."),
        ({"within": "inf"}, "[[near]] 1 must say within what distance, a number above 0, got inf."),
        ({"within": "nan"}, "[[near]] 1 must say within what distance, a number above 0, got nan."),
        ({"within": "'0.05'"}, "[[near]] 1 must say within what distance, a number above 0, got '0.05'."),
        ({"norm": "'l3'"}, "there is no norm 'l3'; there are: l1, l2, max."),
        ({"norm": "['l1']"}, "there is no norm ['l1']; there are: l1, l2, max."),
        ({"withn": "1"}, "there is no setting of [[near]] 1 called 'withn'; there are: between, columns, within, norm. Did you mean 'within'?"),
    ],
)  # fmt: skip
def test_rules_that_make_no_sense_are_refused(changed: dict[str, str], message: str, tmp_path: Path) -> None:
    rule = "".join(f"{key} = {value}\n" for key, value in (RULE | changed).items())
    assert said(tmp_path, f"{TOML.partition('[[near]]')[0]}[[near]]\n{rule}", "g.toml") == message


def test_a_rule_that_adds_nothing_is_refused(tmp_path: Path) -> None:
    edges = TOML.replace('["gripper", "box1"]', '["box2", "box1"]').replace('["gripper", "box2"]', '["box1", "box2"]')
    assert said(tmp_path, edges, "g.toml") == (
        "[[near]] 1 adds nothing: in edges, 'box1' and 'box2' already depend on each other."
    )


def test_ends_that_two_columns_share_call_neither(tmp_path: Path) -> None:
    names = ColumnNames(("one.x", "two.x", "three.x", "three.y"), ("u",))
    text = "[state]\nboth = ['one.x', 'two.x']\nthree = 'three'\n[edges]\nboth = ['both']\nthree = ['three']\n"
    text += "[[near]]\nbetween = ['three', 'both']\ncolumns = ['x']\nwithin = 1\n"
    assert said(tmp_path, text, "g.toml", names) == (
        "there is no column of 'both' called 'x'; there are: one.x, two.x."
    )


# --- local edges

EDGE = '{("box1", "box2"): '


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("None", "local(f) must return a dict, such as {(parent, child): f[...] < 0.05}, got NoneType."),
        ("f.rows", "local(f) must return a dict, such as {(parent, child): f[...] < 0.05}, got Tensor."),
        ("{'box1': f['box1.x'] > 0}", "the keys that local(f) returns must be pairs (parent, child), got 'box1'."),
        ("{('box1', 'bax2'): f['box1.x'] > 0}", "there is no factor 'bax2'; there are: gripper, box1, box2, push. Did you mean 'box2'?"),
        ("{('box1', 'push'): f['box1.x'] > 0}", "local(f) names the action 'push' as a child; only state factors have parents."),
        ("{('gripper', 'box1'): f['box1.x'] > 0}", "local(f) says where 'box1' depends on 'gripper', but by edges it always does; remove one of them."),
        (EDGE + "f['box1.x']}", "local(f) must return a boolean tensor for ('box1', 'box2'), such as a comparison, got torch.float32."),
        (EDGE + "True}", "local(f) must return a boolean tensor for ('box1', 'box2'), such as a comparison, got bool."),
        (EDGE + "f['box1'] > 0}", "local(f) must return one value a row for ('box1', 'box2'), shape (300,), got (300, 2)."),
        (EDGE + "f['box1.x'][:5] > 0}", "local(f) must return one value a row for ('box1', 'box2'), shape (300,), got (5,)."),
        (EDGE + "f['bux1'] > 0}", "local in line 8: there is no factor 'bux1'; there are: gripper, box1, box2, push. Did you mean 'box1'?"),
        (EDGE + "f['box1', 'w'] > 0}", "local in line 8: there is no column of 'box1' called 'w'; there are: x, y."),
        ("1 / 0", "local raised ZeroDivisionError in line 8: division by zero. It was given 300 rows of 9 columns."),
    ],
)  # fmt: skip
def test_local_edges_that_make_no_sense_are_refused(returned: str, message: str, tmp_path: Path) -> None:
    file = write(tmp_path, f"{PYTHON.partition('def local')[0]}\ndef local(f):\n    return {returned}\n")
    graph = load_graph(file, NAMES)
    assert refusal(lambda: graph.mask(ROWS), file) == message


def test_a_local_edge_function_without_rows_in_it_is_refused(tmp_path: Path) -> None:
    message = "expected local(f), got local(f, rows)."
    assert said(tmp_path, PYTHON.replace("def local(f)", "def local(f, rows)")) == message


def test_the_error_keeps_its_cause_for_those_who_look(tmp_path: Path) -> None:
    file = write(tmp_path, f"{PYTHON.partition('def local')[0]}\ndef local(f):\n    return 1 / 0\n")
    with pytest.raises(ValueError, match="division") as error:
        load_graph(file, NAMES).mask(ROWS)
    assert isinstance(error.value.__cause__, ZeroDivisionError)


def test_rows_of_another_width_are_refused_before_the_function_is_asked(tmp_path: Path) -> None:
    graph: Any = load_graph(write(tmp_path, PYTHON), NAMES)
    assert refusal(lambda: graph.mask(torch.zeros(3, 8))) == (
        "rows must have shape (N, 9), the graph's 7 state and 2 action columns, got (3, 8)."
    )
