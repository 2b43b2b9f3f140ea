"""Imports go one way: a room uses itself and the rooms before it, and no room but the engine is entered by a window."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import mocoda

PACKAGE = Path(mocoda.__file__).parent
ROOMS = (
    "engine",
    "data",
    "graph",
    "tasks",
    "parents",
    "dynamics",
    "augmentation",
    "agents",
    "analysis",
    "paper",
    "cli",
)
MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def imported(source: str) -> set[str]:
    """The rooms of mocoda that `source` imports, wherever in the file; "" for the package itself."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports say the whole name"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    inside = [name.split(".") for name in names if name.split(".")[0] == "mocoda"]
    return {parts[1] if len(parts) > 1 and parts[1] in ROOMS else "" for parts in inside}


def test_the_package_is_its_rooms_and_nothing_else() -> None:
    assert {module.parts[0] for module in MODULES} == {*ROOMS, "__init__.py"}


@pytest.mark.parametrize("module", [module for module in MODULES if len(module.parts) > 1], ids=str)
def test_imports_only_go_upstream(module: Path) -> None:
    upstream = {*ROOMS[: ROOMS.index(module.parts[0]) + 1]}
    assert imported((PACKAGE / module).read_text("utf-8")) <= upstream


def test_no_file_is_longer_than_400_lines() -> None:
    lengths = {str(module): len((PACKAGE / module).read_text("utf-8").splitlines()) for module in MODULES}
    assert {name: length for name, length in lengths.items() if length > 400} == {}


@pytest.mark.parametrize(
    ("source", "rooms"),
    [
        ("import torch\nfrom pathlib import Path", set()),
        ("from mocoda.graph import LocalGraph", {"graph"}),
        ("from mocoda import graph, InputError", {"graph", ""}),
        ("import mocoda.tasks.navigation", {"tasks"}),
        ("from experiments import table1\nfrom mocoda.agents.agent import Batch", {"paper", "agents"}),
        ("def late():\n    from mocoda.dynamics import Dynamics", {"dynamics"}),
    ],
)
def test_the_reader_of_imports_sees_them_all(source: str, rooms: set[str]) -> None:
    assert imported(source) == rooms
