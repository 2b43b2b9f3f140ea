"""Graph files with errors: each is refused with a message that names the file."""

from __future__ import annotations

from pathlib import Path

import pytest
from approved import refused
from graph_texts import EDGES, NAMES, PYTHON, ROWS, TOML, write

from mocoda import InputError, load_graph
from mocoda.graph.columns import ColumnNames
from mocoda.graph.graph_file import MAX_BYTES

OTHERS = 'state = {"gripper": slice(0, 3), "box2": "box2", "box1": '
ACTION = 'action = {"push": "push"}'


def refuse(folder: Path, text: str, name: str = "my_graph.py", names: ColumnNames = NAMES) -> None:
    with refused():
        load_graph(write(folder, text, name), names)


# --- files


@pytest.mark.parametrize("name", ["g.json", "g.py", "g.toml"])
def test_a_missing_file_another_kind_and_a_huge_one_are_not_read(name: str, tmp_path: Path) -> None:
    with refused():
        load_graph(tmp_path / name, NAMES)
    refuse(tmp_path, "#" * (MAX_BYTES + 1), name)


@pytest.mark.parametrize(
    "text",
    [
        "a = 1\nb = = 2",
        "a = 1\n\n\nif a:\nb = 2",
        "a = 1\nimport nowhere_to_be_found",
        "a = {}\nb = a['c']",
        "raise SystemExit(3)",
        "actions = {}" + EDGES,
        "locals = 3\ndef lokal(f):\n    pass" + EDGES,
        PYTHON.replace("def local(f)", "def local(f, rows)"),
        "action = {'push': 'push'}\nrelative = ['box1.x']" + EDGES,
        "action = {'push': 'push'}\nrelative = {'box1.x': 'griper.x'}" + EDGES,
    ],
)
def test_a_python_file_that_does_not_run_is_refused(text: str, tmp_path: Path) -> None:
    refuse(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        "[edges]\na = = 3",
        "[edgse]\na = ['a']",
        "reward = 'print(1)'",
        TOML.replace('["gripper", "box1"]', '["box2", "box1"]').replace('["gripper", "box2"]', '["box1", "box2"]'),
        "near = 3" + TOML.partition("[[near]]")[0],
        TOML.replace("[[near]]", "[near]"),
    ],
)
def test_a_toml_file_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    refuse(tmp_path, text, "g.toml")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (b"a = '\xff\xfe\x00'", "g.py"),
        (b"a = '\xff\xfe\x00'", "g.toml"),
        (b"a = " + b"-" * 50_000 + b"1", "g.py"),
        (b"a = " + b"[" * 50_000, "g.toml"),
    ],
    ids=range(4),
)
def test_what_is_no_text_or_deeply_nested_is_refused(text: bytes, name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(text)
    with pytest.raises(InputError, match=r"is not (Python|TOML): "):  # Pythons differ in what they say next
        load_graph(tmp_path / name, NAMES)


# --- columns


@pytest.mark.parametrize(
    "columns",
    [
        "['box1.x', 'box1.y', 'box2.x']",
        "'box1.x'",
        "'bax1'",
        "['box1.x', 'box1.z']",
        "'push.x'",
        "slice(3, 8)",
        "'9:'",
        "[3, 7]",
        "slice(4, 4)",
        "slice('a', 'b')",
        "True",
    ],
)
def test_columns_that_cannot_be_are_refused_by_name(columns: str, tmp_path: Path) -> None:
    refuse(tmp_path, f"{OTHERS}{columns}}}\n{ACTION}{EDGES}")


@pytest.mark.parametrize(
    "text",
    [
        "state = {'gripper': 'gripper', 'box1': 'box1.x'}",
        "action = {'push': 'push.x'}",
        "action = {'push': 'gripper'}",
        "state = ['gripper', 'box1']",
        "state = {0: 'gripper'}",
        "action = {'gripper': 'push'}",
    ],
)
def test_tables_of_factors_that_cannot_be_are_refused(text: str, tmp_path: Path) -> None:
    refuse(tmp_path, text + EDGES)


# --- edges


@pytest.mark.parametrize(
    "edges",
    [
        "['gripper']",
        "{'gripper': 'gripper'}",
        "{'gripper': ['gripper', 'pusch'], 'box1': ['box1'], 'box2': ['box2']}",
        "{'gripper': ['gripper'], 'bux1': ['box1'], 'box2': ['box2']}",
        "{'gripper': ['gripper'], 'box1': ['box1'], 'box2': ['box2'], 'push': ['box1']}",
        "{}\nparent_sets = ['a']",
    ],
)
def test_edges_that_make_no_sense_are_refused(edges: str, tmp_path: Path) -> None:
    refuse(tmp_path, f"{ACTION}\nedges = {edges}")


RULE = {"between": "['box1', 'box2']", "columns": "['x', 'y']", "within": "0.05"}


@pytest.mark.parametrize(
    "changed",
    [
        {"between": "['box1', 'box1']"},
        {"between": "['box1', 'push']"},
        {"between": "['box1', 'bax2']"},
        {"columns": "['x', 'z']"},
        {"columns": "'x'"},
        {"between": "['box1', 'gripper']", "columns": "[]"},
        {"columns": "{ box1 = '0:2' }"},
        {"columns": "{ box1 = '0:2', box3 = [0] }"},
        {"columns": "{ box1 = '1:3', box2 = '0:2' }"},
        {"within": "0"},
        {"within": "nan"},
        {"within": "'0.05'"},
        {"norm": "'l3'"},
        {"withn": "1"},
    ],
)
def test_rules_that_make_no_sense_are_refused(changed: dict[str, str], tmp_path: Path) -> None:
    rule = "".join(f"{key} = {value}\n" for key, value in (RULE | changed).items())
    refuse(tmp_path, f"{TOML.partition('[[near]]')[0]}[[near]]\n{rule}", "g.toml")


def test_ends_that_two_columns_share_call_neither(tmp_path: Path) -> None:
    names = ColumnNames(("one.x", "two.x", "three.x", "three.y"), ("u",))
    text = "[state]\nboth = ['one.x', 'two.x']\nthree = 'three'\n[edges]\nboth = ['both']\nthree = ['three']\n"
    text += "[[near]]\nbetween = ['three', 'both']\ncolumns = ['x']\nwithin = 1\n"
    refuse(tmp_path, text, "g.toml", names)


# --- local edges

EDGE = '{("box1", "box2"): '


@pytest.mark.parametrize(
    "returned",
    [
        "f.rows",
        "{'box1': f['box1.x'] > 0}",
        "{('box1', 'bax2'): f['box1.x'] > 0}",
        "{('gripper', 'box1'): f['box1.x'] > 0}",
        EDGE + "f['box1.x']}",
        EDGE + "True}",
        EDGE + "f['box1'] > 0}",
        EDGE + "f['bux1'] > 0}",
        "1 / 0",
    ],
)
def test_local_edges_that_make_no_sense_are_refused(returned: str, tmp_path: Path) -> None:
    file = write(tmp_path, f"{PYTHON.partition('def local')[0]}\ndef local(f):\n    return {returned}\n")
    graph = load_graph(file, NAMES)
    with refused():
        graph.mask(ROWS)
