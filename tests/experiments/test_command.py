"""`python -m experiments`: the list, one experiment with its settings as options, and READMEs made from JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from approved import assert_approved

from experiments.__main__ import main
from experiments.experiment import HERE, experiment_names
from experiments.readme import BLOCK, answer_of, folder_of, rendered, rendered_index

READMES = [HERE / "README.md", *(folder_of(name) / "README.md" for name in experiment_names())]


def test_without_words_every_question_is_listed_with_its_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for name in experiment_names():
        assert f"{name} {answer_of(name)}" in printed and 20 < len(answer_of(name)) < 400


def test_an_experiment_runs_with_its_settings_as_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    words = ["reweighting", "--factors", "2", "--rows", "400", "--test-rows", "50", "--components", "2"]
    assert main([*words, "--out", str(out)]) == 0
    results = json.loads((out / "reweighting.json").read_text("utf-8"))
    assert results["preset"] == "quick" and results["config"]["factors"] == [2]
    printed = capsys.readouterr().out
    assert str(out / "reweighting.png") in printed.replace("\n", "") and "reweighting" in printed


@pytest.mark.parametrize(
    "words",
    [["table4"], ["table1", "--preset", "papr"], ["table1", "--seeds", "0"], ["render", "table4"]],
    ids=" ".join,
)
def test_what_cannot_be_is_refused_in_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert_approved(said)


# READMEs


@pytest.mark.parametrize("name", experiment_names())
def test_a_readme_is_what_the_json_files_make_of_it(name: str) -> None:
    assert (folder_of(name) / "README.md").read_text("utf-8") == rendered(name), "python -m experiments render"


def test_the_index_is_made_of_the_answers() -> None:
    assert (HERE / "README.md").read_text("utf-8") == rendered_index(), "python -m experiments render"


@pytest.mark.parametrize("readme", READMES, ids=lambda file: file.parent.name)
def test_measured_numbers_are_in_generated_blocks_only(readme: Path) -> None:
    """Settings may be named in prose, in whole numbers or as code."""
    text = readme.read_text("utf-8")
    prose = re.sub(r"```.*?```|`[^`]*`|Section \d\.\d", "", BLOCK.sub("", text), flags=re.DOTALL)
    numbers = re.findall(r"\d+\.\d+|\d+ ?%", prose)
    assert [number for number in numbers if number not in ("1%", "95%")] == []


@pytest.mark.parametrize("readme", READMES, ids=lambda file: file.parent.name)
def test_links_lead_to_files_and_every_json_beside_a_readme_is_read(readme: Path) -> None:
    text = readme.read_text("utf-8")
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert (readme.parent / target).exists(), target
    code = "".join(file.read_text("utf-8") for file in readme.parent.glob("*.py")) + text
    for file in readme.parent.glob("*.json"):
        assert file.name in code or file.stem in code, file.name
