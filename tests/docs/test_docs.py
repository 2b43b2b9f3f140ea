"""The documents work: their code and commands run, their links lead somewhere, and what they name exists."""

from __future__ import annotations

import functools
import inspect
import re
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tyro

import mocoda.augmentation.request
import mocoda.cli
import mocoda.dynamics.fit
from mocoda import (
    Agent,
    Dynamics,
    DynamicsConfig,
    Policies,
    RewardConfig,
    Transitions,
    fit_dynamics_runs,
    fit_reward,
    make_agent,
    make_task,
    train_agents,
)
from mocoda.engine.randomness import Stream

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHELL = "(?:bash|sh|shell|console)"
AT_MOST = {"rows": 2_000, "updates": 2, "seeds": 1, "episodes": 2, "workers": 1}  # of a command that is run here
ONLY_PARSED = {"demo", "paper", "bench", "watch"}  # these take long, and have tests of their own
each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def blocks(text: str, language: str) -> list[tuple[int, str, str]]:
    """The fenced blocks of languages, each with the number of the line before its first, and the language it has."""
    found = []
    for block in re.finditer(rf"^```({language})[ \t]*\n(.*?)^```[ \t]*$", text, re.MULTILINE | re.DOTALL):
        found.append((text.count("\n", 0, block.start(2)), block.group(1), block.group(2)))
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
    for *_, block in blocks(text, SHELL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            for place, word in enumerate(words):
                if word == "mocoda" or word.endswith("/mocoda"):
                    before = words[place - 1] if place else ""
                    if before.startswith("-") or before in ("install", "import", "cd", "clone"):
                        continue
                    rest = words[place + 1 :]
                    end = next((i for i, w in enumerate(rest) if re.fullmatch(r"[|&;<>]+.*|.*;", w)), len(rest))
                    found.append(rest[:end])
    return found


class Call(NamedTuple):
    verb: str
    work: Callable[..., None]
    arguments: dict[str, Any]


def parsed(words: list[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """What `mocoda` would be asked to do, by its own parser."""
    calls: list[Call] = []

    def noted(verb: str, work: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(work)
        def note(*given: Any, **named: Any) -> None:
            bound = inspect.signature(work).bind(*given, **named)
            bound.apply_defaults()
            calls.append(Call(verb, work, dict(bound.arguments)))

        return note

    parse = tyro.extras.subcommand_cli_from_dict
    with monkeypatch.context() as patched:
        patched.setattr(
            tyro.extras,
            "subcommand_cli_from_dict",
            lambda verbs, **options: parse({verb: noted(verb, work) for verb, work in verbs.items()}, **options),
        )
        patched.setattr(sys, "argv", ["mocoda", *words])
        try:
            mocoda.cli.main()
        except SystemExit:
            pytest.fail(f"refused: mocoda {shlex.join(words)}")
    (call,) = calls
    return call


def run_small(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Does what a command says, at a size that takes no time."""
    call = parsed(words, monkeypatch)
    if call.verb not in ONLY_PARSED:
        small = {
            name: min(value, AT_MOST.get(name, value)) if type(value) is int else value
            for name, value in call.arguments.items()
        }
        call.work(**small)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with what readers have: data and a graph file of their own, and what they made on other pages."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    rows = Stream(0, "test-docs").uniform(500, 8)
    columns = [f"{part}.{axis}" for part in ("gripper", "box1", "box2", "push") for axis in "xy"]
    reward = -(rows[:, :2].sum(1) > 1).float()
    steps = rows[:, :6], rows[:, 6:], rows[:, :6] + 0.1, reward
    Transitions(*steps, columns=columns).save("my-data.hdf5")
    Transitions(*steps, goal=rows[:, 2:4].flip(0), columns=columns).save("goal-data.hdf5")
    for ending in ("py", "toml"):
        Path(f"my_graph.{ending}").write_text((ROOT / f"examples/graphs/pushing.{ending}").read_text("utf-8"), "utf-8")
    graph, _, goals, _ = (block for *_, block in blocks((ROOT / "docs/graphs.md").read_text("utf-8"), "python"))
    Path("goal_graph.py").write_text(graph + goals, "utf-8")
    navigation = make_task("navigation").collect(500, seed=0)
    for name in ("data.hdf5", "augmented.hdf5"):
        navigation.save(name)
    state = np.where(np.arange(100)[:, None] == 3, np.nan, np.ones((100, 2)))
    np.savez("broken.npz", state=state, action=state[:, :1], next_state=state)


@pytest.fixture
def quick_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is fitted is small and soon done."""

    def small(*given: Any, config: DynamicsConfig | None = None, **options: Any) -> list[Dynamics]:
        tiny = replace(config or DynamicsConfig(), members=2, hidden=(8,), features=8, epochs=1, window=1, batch=4_096)
        return fit_dynamics_runs(*given, config=tiny, **options)

    monkeypatch.setattr(mocoda.dynamics.fit, "fit_dynamics_runs", small)

    def few(datasets: Any, agent: str | Agent = "td3-bc", **options: Any) -> Policies:
        learner = make_agent(agent) if isinstance(agent, str) else agent
        brief = {"updates": 2, "evaluate_every": 1, "episodes": 2}
        return train_agents(datasets, replace(learner, hidden=(8,), batch=16), **{**options, **brief})

    monkeypatch.setattr(mocoda, "train_agents", few)
    brief = functools.partial(fit_reward, config=RewardConfig(updates=20))
    monkeypatch.setattr(mocoda.augmentation.request, "fit_reward", brief)


@each_document
@pytest.mark.usefixtures("quick_training", "desk")
def test_the_code_and_the_commands_of_a_document_run_from_top_to_bottom(
    document: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    for line, language, block in blocks(document.read_text("utf-8"), f"python|{SHELL}"):
        if language == "python":
            # Empty lines in front, so that a traceback names the line of the document.
            exec(compile("\n" * line + block, str(document), "exec"), names)
        else:
            for words in commands(f"```bash\n{block}```\n"):
                run_small(words, monkeypatch)


@each_document
def test_every_relative_link_and_image_leads_to_a_file(document: Path) -> None:
    targets = [target for target in links(document.read_text("utf-8")) if not re.match(r"[a-z][a-z+.-]*:|#|//", target)]
    missing = [target for target in targets if not (document.parent / target.split("#")[0]).exists()]
    assert missing == []


@each_document
def test_every_block_says_its_language_and_every_extra_exists(document: Path) -> None:
    text = document.read_text("utf-8")
    languages = re.findall(r"^```(.*)$", text, re.MULTILINE)[::2]
    assert set(languages) <= {"python", "bash", "toml", "text", ""}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    named = {
        name
        for found in re.findall(r"""install[^\n]*["'](?:mocoda|\.)\[([\w,-]+)\]""", text)
        for name in found.split(",")
    }
    assert named <= set(extras)


@each_document
def test_every_file_and_name_that_a_document_mentions_exists(document: Path) -> None:
    mentioned = re.findall(r"`((?:\w+/)+\w+\.py)(?:: (\w+))?`", document.read_text("utf-8"))
    missing = []
    for file, name in mentioned:
        path = next((base / file for base in (ROOT / "mocoda", ROOT) if (base / file).is_file()), None)
        if path is None or (name and not re.search(rf"^(?:class|def) {name}\b", path.read_text("utf-8"), re.MULTILINE)):
            missing.append(f"{file}: {name}")
    assert missing == []


def test_the_readers_of_documents_find_something() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(blocks(text, "python")) >= 2 and len(commands(text)) >= 10 and len(links(text)) >= 20


@pytest.mark.long
def test_the_readme_s_first_example_as_it_stands_takes_under_five_minutes(tmp_path: Path) -> None:
    *_, block = blocks((ROOT / "README.md").read_text("utf-8"), "python")[0]
    (tmp_path / "example.py").write_text(block, "utf-8")
    start = time.monotonic()
    done = subprocess.run([sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=590)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - start < 300
