"""The package is its rooms; imports go one way, from later rooms to earlier ones; no two files have the same name."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

import mocoda

PACKAGE = Path(mocoda.__file__).parent
ROOMS = ("engine", "data", "graph", "tasks", "parents", "dynamics", "augmentation", "agents", "analysis", "cli")
MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def imported(source: str) -> set[str]:
    """The rooms of mocoda that `source` imports, wherever in the file; "" for the package itself, and experiments."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    found = {"experiments" for name in names if name.split(".")[0] == "experiments"}
    inside = [name.split(".") for name in names if name.split(".")[0] == "mocoda"]
    return found | {parts[1] if len(parts) > 1 and parts[1] in ROOMS else "" for parts in inside}


def test_the_package_is_its_rooms_and_nothing_else() -> None:
    assert {module.parts[0] for module in MODULES} == {*ROOMS, "__init__.py"}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_itself_and_the_rooms_before_it(room: str) -> None:
    """Neither later rooms, nor the package as a whole, nor the experiments, which import mocoda."""
    upstream = {*ROOMS[: ROOMS.index(room) + 1]}
    found = {str(module): imported((PACKAGE / module).read_text("utf-8")) - upstream for module in MODULES}
    assert {name: rooms for name, rooms in found.items() if name.startswith(f"{room}/") and rooms} == {}


def test_no_two_files_have_the_same_name() -> None:
    names = Counter(module.name for module in MODULES if module.name != "__init__.py")
    assert {name for name, count in names.items() if count > 1} == set()
