"""What the documents say works: their code runs, their links lead somewhere, their commands exist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import mocoda.dynamics
import mocoda.paper.table1
import mocoda.paper.table2
from mocoda import Agent, Dynamics, DynamicsConfig, Policies, fit_dynamics_runs, make_agent, train_agents

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
VERBS = ("demo", "collect", "inspect", "augment", "export", "train", "evaluate", "whatif", "watch", "paper", "bench")
each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def blocks(text: str, language: str) -> list[tuple[int, str]]:
    """The fenced blocks of a language, each with the number of the line before its first."""
    found = []
    for block in re.finditer(rf"^```{language}[ \t]*\n(.*?)^```[ \t]*$", text, re.MULTILINE | re.DOTALL):
        found.append((text.count("\n", 0, block.start(1)), block.group(1)))
    return found


def links(text: str) -> list[str]:
    """The targets of links and images, Markdown or HTML, outside code."""
    prose = re.sub(r"^```.*?^```[ \t]*$", "", text, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"`[^`\n]*`", "", prose)
    found = re.findall(r"\]\(\s*<?([^)>\s]+)", prose)
    found += re.findall(r"^\[[^\]]+\]:\s*<?([^>\s]+)", prose, re.MULTILINE)
    return found + re.findall(r"""\b(?:src|href)\s*=\s*["']([^"']+)["']""", prose)


def commands(text: str) -> list[list[str]]:
    """The words after `mocoda` of every call of it in bash blocks."""
    found = []
    for _, block in blocks(text, "(?:bash|sh|shell|console)"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            for place, word in enumerate(words):
                if word == "mocoda" or word.endswith("/mocoda"):
                    if place and words[place - 1] in ("install", "-e", "import", "cd", "clone"):
                        continue
                    rest = words[place + 1 :]
                    end = next((i for i, w in enumerate(rest) if re.fullmatch(r"[|&;<>]+.*|.*;", w)), len(rest))
                    found.append(rest[:end])
    return found


@cache
def flags_of(verb: str) -> frozenset[str]:
    done = subprocess.run(
        [sys.executable, "-m", "mocoda.cli", verb, "--help"],
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return frozenset(re.findall(r"--[a-z-]+", done.stdout))


@pytest.fixture
def quick_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is fitted is small and soon done."""

    def small(*given: Any, config: DynamicsConfig | None = None, **options: Any) -> list[Dynamics]:
        tiny = replace(config or DynamicsConfig(), members=2, hidden=(8,), features=8, epochs=1, window=1, batch=4_096)
        return fit_dynamics_runs(*given, config=tiny, **options)

    monkeypatch.setattr(mocoda.dynamics, "fit_dynamics_runs", small)
    monkeypatch.setattr(mocoda.paper.table1, "fit_dynamics_runs", small)

    def few(datasets: Any, agent: str | Agent = "td3-bc", **options: Any) -> Policies:
        learner = make_agent(agent) if isinstance(agent, str) else agent
        brief = {"updates": 2, "evaluate_every": 1, "episodes": 2}
        return train_agents(datasets, replace(learner, hidden=(8,), batch=16), **{**options, **brief})

    for module in (mocoda, mocoda.paper.table2):
        monkeypatch.setattr(module, "train_agents", few)


def execute(document: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    for line, block in blocks(document.read_text("utf-8"), "python"):
        # Empty lines in front, so that a traceback names the line of the document.
        exec(compile("\n" * line + block, str(document), "exec"), names)


@each_document
@pytest.mark.usefixtures("quick_training")
def test_the_code_of_a_document_runs_from_top_to_bottom(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    execute(document)


@each_document
def test_every_relative_link_and_image_leads_to_a_file(document: Path) -> None:
    targets = [target for target in links(document.read_text("utf-8")) if not re.match(r"[a-z][a-z+.-]*:|#|//", target)]
    missing = [target for target in targets if not (document.parent / target.split("#")[0]).exists()]
    assert missing == []


@each_document
def test_every_command_has_a_verb_and_flags_that_exist(document: Path) -> None:
    for words in commands(document.read_text("utf-8")):
        if words[:1] in (["--help"], ["-h"]):
            continue
        assert words and words[0] in VERBS, words
        used = {word.split("=")[0] for word in words if word.startswith("--")}
        assert used - flags_of(words[0]) == set(), words


def test_the_readme_has_code_commands_and_pictures() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert blocks(text, "python") and commands(text) and links(text)


@pytest.mark.long
def test_the_readme_s_first_example_as_it_stands_takes_under_five_minutes(tmp_path: Path) -> None:
    _, block = blocks((ROOT / "README.md").read_text("utf-8"), "python")[0]
    (tmp_path / "example.py").write_text(block, "utf-8")
    start = time.monotonic()
    done = subprocess.run([sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=590)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - start < 300


# The readers above read what they should

SAMPLE = """
[a](docs/a.md#part) ![b](b.png "title") [c]: c.md <img src="d.png">
[ref]: e.md
`[no](code.md)`
```python
x = 1  # [no](block.md)
```
```bash
pip install mocoda
$ mocoda collect navigation --rows 10 \\
    --out=x.hdf5 && .venv/bin/mocoda bench --device cpu | tee log  # mocoda nothing
git clone mocoda && cd mocoda
```
"""


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (links, ["docs/a.md#part", "b.png", "e.md", "d.png"]),
        (
            commands,
            [["collect", "navigation", "--rows", "10", "--out=x.hdf5"], ["bench", "--device", "cpu"]],
        ),
        (lambda text: blocks(text, "python"), [(5, "x = 1  # [no](block.md)\n")]),
    ],
    ids=["links", "commands", "blocks"],
)
def test_the_readers_of_documents_see_what_is_there(read: Callable[[str], object], expected: object) -> None:
    assert read(SAMPLE) == expected
