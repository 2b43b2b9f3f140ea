"""The documents work: their code and commands run, their links lead somewhere, and what they name exists."""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import mocoda.augmentation
import mocoda.dynamics.fit
from mocoda import (
    Agent,
    Dynamics,
    DynamicsConfig,
    GateLearner,
    LearnedGraph,
    Policies,
    RewardConfig,
    Transitions,
    fit_dynamics_runs,
    fit_reward,
    learn_graph,
    make_agent,
    make_task,
    train_agents,
)
from mocoda.cli import read_command
from mocoda.data.formats import FORMATS
from mocoda.engine.randomness import Stream

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WALKS = sorted((ROOT / "examples").glob("*/README.md"))
LINKING = [*DOCUMENTS, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "experiments").rglob("*.md"))]
LINKING += WALKS
AT_MOST = {"rows": 2_000, "updates": 2, "seeds": 1, "episodes": 2, "workers": 1}  # of a command that is run here
ONLY_READ = {"demo", "watch"}  # these take long, and have tests of their own
# What stands beside the graph of a reader's own task.
OWN_WORLD = """
import gymnasium
import numpy as np
import torch

achieved, tolerance = ["box1.x", "box1.y"], 0.1


class environment(gymnasium.Env):
    action_space = gymnasium.spaces.Box(-1, 1, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(6), {}

    def step(self, action):
        self.steps += 1
        return np.full(6, self.steps / 10), 0.0, False, self.steps == 5, {}


def goals(n, seed, device):
    return torch.rand(n, 2, generator=torch.Generator().manual_seed(seed)).to(device)
"""
each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def blocks(text: str, language: str) -> list[tuple[int, str, str]]:
    """The fenced blocks in a language, each with the number of the line before its first, and its language."""
    found = re.finditer(rf"^```({language})\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, block.start(2)), block.group(1), block.group(2)) for block in found]


def links(text: str) -> list[str]:
    """The targets of links and images outside code."""
    prose = re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"\]\(([^)\s]+)\)", prose)


def commands(block: str) -> list[list[str]]:
    """The words after `mocoda` in every line that calls it."""
    return [shlex.split(line, comments=True)[1:] for line in block.splitlines() if line.startswith("mocoda ")]


def run_small(words: list[str]) -> None:
    """Runs a command at a size that takes no time; those that take long are only read."""
    command: Any = read_command(words)
    if words[0] not in ONLY_READ:
        given: dict[str, Any] = {name: getattr(command, name, None) for name in AT_MOST}
        small = {name: most for name, most in AT_MOST.items() if isinstance(given[name], int) and given[name] > most}
        if words[0] == "audit" or words[:2] == ["collect", "cube-double"]:
            small["workers"] = 0  # processes take long to start
        replace(command, **small).run()


def record_pendulum(rows: int) -> Transitions:
    environment = gymnasium.make("Pendulum-v1")
    environment.action_space.seed(0)
    seen = [environment.reset(seed=0)[0]]
    action = [environment.action_space.sample() for _ in range(rows)]
    seen += [environment.step(one)[0] for one in action]
    return Transitions(
        np.array(seen[:-1]), np.array(action), np.array(seen[1:]), columns=["cos", "sin", "speed", "torque"]
    )


@pytest.fixture
def desk(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with what readers of a page have: their own data and graph file, and what they made on other pages."""
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
    pushing = (ROOT / "examples/graphs/pushing.py").read_text("utf-8").partition("def reward")[0]
    Path("my_task.py").write_text(pushing + OWN_WORLD, "utf-8")
    graph, _, goals, _ = (block for *_, block in blocks((ROOT / "docs/graphs.md").read_text("utf-8"), "python"))
    Path("goal_graph.py").write_text(graph + goals, "utf-8")
    *_, pendulum = (block for *_, block in blocks((ROOT / "docs/check.md").read_text("utf-8"), "python"))
    Path("pendulum.py").write_text(pendulum, "utf-8")
    record_pendulum(100).save("pendulum.hdf5")
    navigation = make_task("navigation").collect(500, seed=0)
    text = document.read_text("utf-8")
    for name in ("data.hdf5", "augmented.hdf5"):
        if f"--out {name}" not in text:
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

    def soon(*given: Any, learner: object = None, **options: Any) -> LearnedGraph:
        tiny = GateLearner(runs=1, hidden=16, baseline_steps=2, steps=2, batch=16)
        return learn_graph(*given, learner=tiny, **options)

    monkeypatch.setattr(mocoda.graph, "learn_graph", soon)
    monkeypatch.setattr("mocoda.cli.graph.learn_graph", soon)
    monkeypatch.setattr(sys.modules[learn_graph.__module__], "MIN_ROWS", 500)

    def few(datasets: Any, agent: str | Agent = "td3-bc", **options: Any) -> Policies:
        learner = make_agent(agent) if isinstance(agent, str) else agent
        brief = {"updates": 2, "evaluate_every": 1, "episodes": 2}
        return train_agents(datasets, replace(learner, hidden=(8,), batch=16), **{**options, **brief})

    monkeypatch.setattr(mocoda, "train_agents", few)
    brief = functools.partial(fit_reward, config=RewardConfig(updates=20))
    monkeypatch.setattr(mocoda.augmentation, "fit_reward", brief)


@each_document
@pytest.mark.usefixtures("quick_training", "desk")
def test_the_code_and_the_commands_of_a_document_run_from_top_to_bottom(
    document: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FORMATS, "data", dict(FORMATS.data))  # a page adds a format
    names: dict[str, Any] = {"__name__": "__main__"}
    for line, language, block in blocks(document.read_text("utf-8"), "python|bash"):
        if language == "python":
            # Empty lines in front, so that a traceback names the line of the document.
            exec(compile("\n" * line + block, str(document), "exec"), names)
        else:
            for words in commands(block):
                run_small(words)


@pytest.mark.parametrize("document", LINKING, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_and_image_leads_to_a_file(document: Path) -> None:
    targets = [target for target in links(document.read_text("utf-8")) if not re.match(r"[a-z][a-z+.-]*:|#|//", target)]
    missing = [target for target in targets if not (document.parent / target.split("#")[0]).exists()]
    assert missing == []


@each_document
def test_every_block_names_its_language(document: Path) -> None:
    languages = re.findall(r"^```(.*)$", document.read_text("utf-8"), re.MULTILINE)[::2]
    assert set(languages) <= {"python", "bash", "toml", "text"}


def test_the_readme_lists_the_extras_and_documents_install_no_others() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    texts = {document: document.read_text("utf-8") for document in DOCUMENTS}
    installed = re.findall(r"""(?:mocoda|")\.?\[([\w,-]+)\]""", "".join(texts.values()))
    assert {name for names in installed for name in names.split(",")} <= set(extras)
    section = texts[ROOT / "README.md"].split("\n## Install\n")[1].split("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", section)) == set(extras)


@each_document
def test_every_file_and_name_that_a_document_mentions_exists(document: Path) -> None:
    mentioned = re.findall(r"`((?:\w+/)+\w+\.py)(?:: (\w+))?`", document.read_text("utf-8"))
    missing = []
    for file, name in mentioned:
        path = next((base / file for base in (ROOT / "mocoda", ROOT) if (base / file).is_file()), None)
        if path is None or (name and not re.search(rf"^(?:class|def) {name}\b", path.read_text("utf-8"), re.MULTILINE)):
            missing.append(f"{file}: {name}")
    assert missing == []


@pytest.mark.long
def test_the_readme_s_first_example_as_it_stands_takes_under_five_minutes(tmp_path: Path) -> None:
    *_, block = blocks((ROOT / "README.md").read_text("utf-8"), "python")[0]
    (tmp_path / "example.py").write_text(block, "utf-8")
    start = time.monotonic()
    done = subprocess.run([sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=590)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - start < 300
