"""Commands and their options: help, choices, misspelt words, and fields of recipes, agents and experiments."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import pytest
from command_line import done, mocoda, refused

import mocoda as package
from experiments import EXPERIMENTS
from mocoda.agents import AGENTS
from mocoda.cli import COMMANDS, read_command
from mocoda.cli.parser import option_names
from mocoda.dynamics import DynamicsConfig
from mocoda.parents import RECIPES, Recipe

WORDS = [
    "demo",
    "collect",
    "inspect",
    "graph",
    "check",
    "label",
    "add-objects",
    "augment",
    "audit",
    "report",
    "export",
    "train",
    "evaluate",
    "whatif",
    "watch",
    "paper",
    "bench",
]


def read(words: str) -> Any:
    return read_command(words.split())


def test_the_list_of_commands_needs_no_heavy_library(tmp_path: Path) -> None:
    script = (
        "import sys, mocoda.cli\n"
        "for words in ([], ['--help'], ['--version']): mocoda.cli.main(words)\n"
        "print({'torch', 'matplotlib', 'h5py', 'sklearn', 'mujoco'} & set(sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0 and ended.stdout.endswith(f"mocoda {package.__version__}\nset()\n"), ended.stderr


def test_commands_are_listed_with_a_sentence_each() -> None:
    assert list(COMMANDS) == WORDS
    lines = done("--help").splitlines()
    for word in WORDS:
        (line,) = (line for line in lines if line.startswith(f"  {word} "))
        assert len(line.split()) > 4


@pytest.mark.parametrize("word", WORDS)
def test_the_help_of_a_command_names_values_in_words(word: str) -> None:
    words = [word, "table1", "--help"] if word == "paper" else [word, "--help"]
    text = done(*words)
    assert text.startswith(f"usage: mocoda {word} ")
    for noise in ("{None}", "STR]", "{fixed}", "(default: None)", "{tasks}", "{formats}"):
        assert noise not in text
    names: dict[str, str | None] = {
        "collect": "TASK",
        "graph": "GRAPH|DATA",
        "train": "DATA [DATA ...]",
        "evaluate": "FOLDER",
        "watch": "WHO",
    }
    names |= {"paper": "EXPERIMENT", "demo": None, "bench": None}
    positional = re.search(r"positional arguments *\n[ -]*\n *(\S.*?)  ", text)
    assert (positional and positional[1]) == names.get(word, "DATA")


def test_a_misspelt_word_is_answered_by_its_own_command() -> None:
    assert refused("tarin") == "there is no command 'tarin'. Did you mean 'train'?"
    assert refused("x") == "there is no command 'x'. `mocoda --help` lists the commands."
    assert refused("whatif", "d.hdf5", "--rwo", "3") == "`mocoda whatif` has no option --rwo. Did you mean --row?"
    assert refused("collect", "navigation", "--zzz") == (
        "`mocoda collect` has no option --zzz; `mocoda collect --help` lists those it has."
    )


def test_an_option_of_another_choice_is_answered_with_those_of_this_one() -> None:
    assert refused("augment", "d.hdf5", "--recipe", "coda", "--bandwidth", "0.1") == (
        "`mocoda augment` has no option --bandwidth with recipe 'coda', whose own options are: --published-code."
    )
    assert refused("augment", "d.hdf5", "--recipe=emp", "--bandwidth=0.1") == (
        "`mocoda augment` has no option --bandwidth with recipe 'emp', whose own options are: none."
    )
    sentence = refused("train", "d.hdf5", "--imitation", "1", "--agent", "sac")
    assert sentence.startswith(
        "`mocoda train` has no option --imitation with agent 'sac', whose own options are: --hidden"
    )
    sentence = refused("paper", "reweighting", "--dynamics.epochs", "3")
    assert sentence.startswith(
        "`mocoda paper` has no option --dynamics.epochs with experiment 'reweighting', whose own"
    )


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
    assert f"error: there is no {'recipe' if recipe else 'agent'} 'x'" in mocoda(*words[:3], "x").err


def test_options_reach_recipes_agents_dynamics_and_experiments() -> None:
    words = "augment d.hdf5 --recipe mocoda-u --bandwidth 0.1 --no-shuffle --dynamics.epochs 50 --dynamics.hidden 8 4"
    command = read(words)
    assert command.settings == RECIPES["mocoda-u"](bandwidth=0.1)  # type: ignore[call-arg]
    assert command.model.dynamics == DynamicsConfig(epochs=50, hidden=(8, 4))
    agent = read("train d.hdf5 --imitation 0.25 --value-range -50 0 --hidden 128 128").settings
    assert agent == AGENTS["td3-bc"](imitation=0.25, value_range=(-50.0, 0.0), hidden=(128, 128))  # type: ignore[call-arg]
    assert read("paper table3 --dynamics.epoch-rows none").settings.dynamics.epoch_rows is None
    table = read("paper --preset paper table1 --seeds 2 --dynamics.epochs 7 --rows 100").settings
    assert (table.preset, table.seeds, table.rows, table.dynamics.epochs) == ("paper", 2, 100, 7)
    assert table.dynamics.batch == read("paper table1 --preset paper").settings.dynamics.batch


def test_quick_changes_defaults_that_options_still_override() -> None:
    quick = read("augment d.hdf5 --quick --dynamics.epochs 9")
    usual, small = DynamicsConfig(), quick.model.dynamics
    assert small.epochs == 9 and small.members < usual.members and small.hidden < usual.hidden


def test_option_names_follow_the_parser() -> None:
    """Words are checked by this list before the parser reads them; it must not refuse what the parser takes."""
    for name, kind in EXPERIMENTS.items():
        for preset in kind.presets.values():
            text = done("paper", name, "--preset", preset.preset, "--help").replace(",", " ")
            for option in option_names(preset):
                group = option.endswith(".") and option in text
                assert f"{option} " in text or group or option == "--once", (name, option)  # that of agents, here none


def test_values_that_a_choice_refuses_end_in_one_line() -> None:
    assert refused("train", "d.hdf5", "--batch", "0") == "batch must be at least 1, got 0."
    assert refused("train", "d.hdf5", "--hidden", "8", "0").startswith("hidden must")
    assert refused("augment", "d.hdf5", "--dynamics.epochs", "0") == "epochs must be at least 1, got 0."
    assert refused("paper", "table1", "--seeds", "0") == "seeds must be at least 1, got 0."
    assert "there is no preset 'fast'" in refused("paper", "table1", "--preset", "fast")
    assert "there is no experiment 'table4'" in refused("paper", "table4")
    assert refused("paper").startswith("which experiment? There are:\ntable1: ")
    assert mocoda("collect", "navigation", "--rows", "many").code == 2


def test_recipes_of_one_s_own_are_chosen_by_name_too(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Mine(Recipe):
        """Mine.

        strength  how much of it
        """

        name: ClassVar[str] = "mine"
        title: ClassVar[str] = "Mine"
        strength: float = 2.0

    monkeypatch.setitem(RECIPES._entries, "mine", Mine)
    assert "how much of it (default: 2.0)" in done("augment", "d.hdf5", "--recipe", "mine", "--help")
    assert read("augment d.hdf5 --recipe mine --strength 3").settings == Mine(3.0)
