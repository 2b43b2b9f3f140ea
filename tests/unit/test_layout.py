"""Imports inside the package go one way: each file or folder uses only those that come before it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import mocoda

PACKAGE = Path(mocoda.__file__).parent
ORDER = (
    *("files", "workers", "randomness", "transitions", "formats", "graph", "inspection"),
    *("named_columns", "graph_rules", "graph_files"),
    *("mixture", "density", "tabular"),
    *("flattening", "neighbourhoods", "parents"),
    *("fused", "networks", "training", "mechanisms", "dynamics"),
    *("support", "provenance", "rewards", "augmentation", "streaming", "request", "whatif"),
    *("edges", "advice", "coverage", "verdict", "advisor"),
    *("agents", "statistics", "policies", "onnx_export", "episodes", "evaluation"),
    *("batches", "metrics", "evaluators", "learning", "contract"),
    *("runs", "report", "report_advice", "report_composer", "report_entanglement", "report_graph", "report_parents"),
    *("report_sweeps", "report_theory", "report_whatif"),
    *("film", "paper", "roofline", "bench", "console", "cli_data", "cli"),
)
FOLDERS = ("formats", "agents", "paper", "tasks")
TASKS_MAY_IMPORT = {"files", "workers", "graph", "randomness", "transitions", "tasks"}
MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def imported(source: str, package: str = "mocoda") -> set[str]:
    """The first-level names of mocoda that `source` imports, wherever in the file; "mocoda" for the package itself."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            dotted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                base = package.split(".")
                module = ".".join([*base[: len(base) - node.level + 1], *([module] if module else [])])
            dotted = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in dotted:
            parts = name.split(".")
            if parts[0] == "mocoda":
                first = parts[1] if len(parts) > 1 else ""
                is_module = (PACKAGE / f"{first}.py").is_file() or (PACKAGE / first / "__init__.py").is_file()
                found.add(first if first and is_module else "mocoda")
    return found


def allowed(name: str) -> set[str] | None:
    """What the file or folder `name` may import; None: anything. Files of one folder may import each other."""
    if name == "tasks":
        return TASKS_MAY_IMPORT
    if name in ORDER:
        upstream = set(ORDER[: ORDER.index(name)])
        if ORDER.index(name) > ORDER.index("parents"):
            upstream |= {"tasks"}
        return upstream | {name} if name in FOLDERS else upstream
    return None


def test_the_package_is_the_files_and_folders_of_the_order_and_nothing_else() -> None:
    places = {module.parts[0] if len(module.parts) > 1 else module.stem for module in MODULES}
    assert places == {*ORDER, "tasks", "__init__"}
    assert [name for name in (*ORDER, "tasks") if Path(f"{name}.py") not in MODULES] == list(FOLDERS)
    assert all(Path(name, "__init__.py") in MODULES for name in FOLDERS)


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_imports_only_go_upstream(module: Path) -> None:
    name = module.parts[0] if len(module.parts) > 1 else module.stem
    package = ".".join(("mocoda", *module.parts[:-1]))
    limit = allowed(name)
    if limit is not None:
        assert imported((PACKAGE / module).read_text("utf-8"), package) - limit == set()


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import torch\nfrom pathlib import Path", set()),
        ("from mocoda.graph import LocalGraph", {"graph"}),
        ("from mocoda import graph, InputError", {"graph", "mocoda"}),
        ("import mocoda.tasks.navigation", {"tasks"}),
        ("from mocoda.paper import table1\nfrom mocoda.agents.agent import Batch", {"paper", "agents"}),
        ("import mocoda", {"mocoda"}),
        ("def late():\n    from mocoda.dynamics import Dynamics", {"dynamics"}),
        ("from .files import InputError\nfrom . import graph", {"files", "graph"}),
    ],
)
def test_the_reader_of_imports_sees_them_all(source: str, names: set[str]) -> None:
    assert imported(source) == names
