"""A graph as a Python and as a TOML file, data to go with it, and how files are written and refused."""

from __future__ import annotations

import textwrap
from pathlib import Path

from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.randomness import Stream
from mocoda.graph.columns import ColumnNames

STATE = ("gripper.x", "gripper.y", "gripper.z", "box1.x", "box1.y", "box2.x", "box2.y")
ACTION = ("push.x", "push.y")
NAMES = ColumnNames(STATE, ACTION)
EDGES = """
edges = {"gripper": ["gripper", "push"], "box1": ["gripper", "box1"], "box2": ["gripper", "box2"]}
"""
PYTHON = """
state = {"gripper": slice(0, 3), "box1": "box1", "box2": ["box2.x", "box2.y"]}
action = {"push": slice(0, 2)}
edges = {"gripper": ["gripper", "push"], "box1": ["gripper", "box1"], "box2": ["gripper", "box2"]}

def local(f):
    near = (f["box1"][:, :2] - f["box2"][:, :2]).norm(dim=1) < 0.25
    return {("box1", "box2"): near, ("box2", "box1"): near}
"""
TOML = """
[state]
gripper = "0:3"
box1 = "box1"
box2 = ["box2.x", "box2.y"]
[action]
push = "push"
[edges]
gripper = ["gripper", "push"]
box1 = ["gripper", "box1"]
box2 = ["gripper", "box2"]
[[near]]
between = ["box1", "box2"]
columns = ["x", "y"]
within = 0.25
"""
ROWS = Stream(0, "test-graph-files").uniform(300, 9)


def data(rows: Tensor = ROWS, names: ColumnNames = NAMES) -> Transitions:
    state, action = rows.split([len(names.state), len(names.action)], 1)
    return Transitions(state, action, state, columns=(*names.state, *names.action))


def write(folder: Path, text: str, name: str = "my_graph.py") -> Path:
    file = folder / name
    file.write_text(textwrap.dedent(text), encoding="utf-8")
    return file
