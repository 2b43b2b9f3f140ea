"""The READMEs of experiments: text between `<!-- block: NAME -->` and `<!-- end -->` is made of the JSON files."""

from __future__ import annotations

import re
from pathlib import Path

from experiments.experiment import HERE, experiment_names, find_kind, markdown_table
from mocoda.engine.errors import InputError
from mocoda.engine.files import whole_file

BLOCK = re.compile(r"<!-- block: ([\w-]+) -->\n(.*?)<!-- end -->", re.DOTALL)


def folder_of(name: str) -> Path:
    return HERE / name.replace("-", "_")


def answer_of(name: str) -> str:
    """The answer of an experiment as its README has it, without importing its code."""
    text = (folder_of(name) / "README.md").read_text("utf-8")
    return next((" ".join(made.split()) for block, made in BLOCK.findall(text) if block == "answer"), "")


def question_of(name: str) -> str:
    """The question of an experiment: the title of its README."""
    return (folder_of(name) / "README.md").read_text("utf-8").partition("\n")[0].removeprefix("# ")


def filled(text: str, blocks: dict[str, str], page: str) -> str:
    """A README with its blocks made anew."""
    if unknown := [name for name, _ in BLOCK.findall(text) if name not in blocks]:
        raise InputError(f"{page} has a block {unknown[0]!r}, which nothing makes; there are: {', '.join(blocks)}.")
    return BLOCK.sub(lambda match: f"<!-- block: {match[1]} -->\n\n{blocks[match[1]]}\n\n<!-- end -->", text)


def rendered(name: str) -> str:
    """The README of an experiment as its JSON files make it."""
    folder = folder_of(name)
    text = (folder / "README.md").read_text("utf-8")
    return filled(text, find_kind(name).blocks(folder), f"experiments/{folder.name}/README.md")


def rendered_index() -> str:
    """The README of all experiments: a line per question, with its answer."""
    rows = [[f"[`{name}`]({folder_of(name).name}/README.md)", answer_of(name)] for name in experiment_names()]
    text = (HERE / "README.md").read_text("utf-8")
    return filled(text, {"questions": markdown_table(["experiment", "answer"], rows)}, "experiments/README.md")


def render(names: list[str]) -> list[Path]:
    """Makes the blocks of READMEs anew, and the index; returns the files that changed."""
    changed = []
    for file, make in [
        *((folder_of(name) / "README.md", lambda name=name: rendered(name)) for name in names),
        (HERE / "README.md", rendered_index),
    ]:
        text = make()
        if text != file.read_text("utf-8"):
            with whole_file(file) as part:
                part.write_text(text, "utf-8")
            changed.append(file)
    return changed
