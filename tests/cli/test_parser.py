"""Commands and their options: help, choices, misspelt words, and the settings of recipes and agents."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import pytest
from command_line import done, mocoda, rejects

import mocoda as package
from mocoda.agents import AGENTS
from mocoda.cli import COMMANDS, read_command
from mocoda.cli.options import READABLE, TASKS, WRITABLE
from mocoda.data.formats import FORMATS
from mocoda.dynamics import DynamicsConfig
from mocoda.parents import RECIPES, Recipe
from mocoda.tasks import TASKS as BUILT_IN

SLOWEST = {"torch", "matplotlib", "sklearn", "mujoco", "pandas"}
HEAVY = SLOWEST | {"rich", "tyro", "h5py"}


def read(words: str) -> Any:
    return read_command(words.split())


@pytest.mark.parametrize(("words", "heavy"), [("--help", HEAVY), ("--version", HEAVY), ("inspect walks.npz", SLOWEST)])
def test_light_commands_import_no_heavy_library(words: str, heavy: set[str], tmp_path: Path) -> None:
    package.make_task("navigation").collect(60, seed=0).save(tmp_path / "walks.hdf5")
    package.write(package.read(tmp_path / "walks.hdf5"), tmp_path / "walks.npz")
    script = f"import sys, mocoda.cli; mocoda.cli.main({words.split()}); print({heavy} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert ended.returncode == 0 and ended.stdout.endswith("set()\n"), (ended.stdout, ended.stderr)


@pytest.mark.parametrize("word", COMMANDS)
def test_the_help_of_a_command_names_values_in_words(word: str) -> None:
    text = done(word, "--help")
    assert text.startswith(f"usage: mocoda {word} ") and f"\n  {word} " in done("--help")
    for noise in ("{None}", "STR]", "{fixed}"):
        assert noise not in text


def test_help_texts_name_every_choice() -> None:
    """They are written out, since the libraries behind the choices take seconds to import."""
    assert all(name.partition("-states")[0] in TASKS for name in BUILT_IN)
    for format_ in FORMATS.values():
        name = format_.example.partition(":")[0]
        assert format_.write is None or name in WRITABLE
        assert any(word in READABLE for word in (format_.title, *format_.title.split()[:1], name)), format_
    assert f"{', '.join([*RECIPES][:-1])} or {[*RECIPES][-1]}" in " ".join(done("augment", "--help").split())
    assert f"{', '.join([*AGENTS][:-1])} or {[*AGENTS][-1]}" in " ".join(done("train", "--help").split())


@pytest.mark.parametrize(
    "words",
    [
        "tarin",
        "collect navigation --zzz",
        "augment d.hdf5 --recipe coda --bandwidth 0.1",
        "augment d.hdf5 --dynamics.epoch 3",
        "train d.hdf5 --imitation 1 --agent sac",
        "augment",
        "augment d.hdf5 e.hdf5",
        "augment d.hdf5 --rows",
        "collect navigation --rows many",
        "train d.hdf5 --actions 1",
        "train d.hdf5 --hidden 8 0",
        "augment d.hdf5 --dynamics.epochs 0",
        "augment d.hdf5 --recipe x",
        "train d.hdf5 --agent x",
    ],
)
def test_words_that_make_no_command_are_refused_in_one_line(words: str) -> None:
    rejects(*words.split())


@pytest.mark.parametrize("name", [*RECIPES, *AGENTS])
def test_every_simple_field_of_a_choice_is_an_option(name: str) -> None:
    recipe = name in RECIPES
    kind = (RECIPES if recipe else AGENTS)[name]
    words = ["augment", "d.hdf5", "--recipe", name] if recipe else ["train", "d.hdf5", "--agent", name]
    text = done(*words, "--help")
    for field in fields(kind):
        option = f"--{field.name.replace('_', '-')} "
        functions = field.name in ("features", "region")
        assert (option in text.replace(",", " ")) is not functions, option


def test_options_reach_recipes_agents_and_dynamics() -> None:
    command = read("augment d.hdf5 --recipe mocoda-u --bandwidth 0.1 --dynamics.epochs 50 --dynamics.hidden 8 4")
    assert command.settings == RECIPES["mocoda-u"](bandwidth=0.1)  # type: ignore[call-arg]
    assert command.model.dynamics == DynamicsConfig(epochs=50, hidden=(8, 4))
    agent = read("train d.hdf5 --imitation 0.25 --value-range -50 0 --hidden 128 128").settings
    assert agent == AGENTS["td3-bc"](imitation=0.25, value_range=(-50.0, 0.0), hidden=(128, 128))  # type: ignore[call-arg]
    quick, usual = read("augment d.hdf5 --quick --dynamics.epochs 9").model.dynamics, DynamicsConfig()
    assert quick.epochs == 9 and quick.members < usual.members and quick.hidden < usual.hidden


def test_recipes_of_one_s_own_are_chosen_by_name_too(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Mine(Recipe):
        """Mine.

        strength  how much of it
        """

        name: ClassVar[str] = "mine"
        title: ClassVar[str] = "Mine"
        strength: float = 2.0

    monkeypatch.setitem(RECIPES.data, "mine", Mine)
    assert "how much of it (default: 2.0)" in done("augment", "d.hdf5", "--recipe", "mine", "--help")
    assert read("augment d.hdf5 --recipe mine --strength 3").settings == Mine(3.0)
    assert mocoda("augment", "d.hdf5", "--recipe", "mine", "--strength", "much").code == 2
