"""Hooks of the documentation site: mkdocs calls the functions whose names begin with on_, griffe the class.

On GitHub, the same pages link to the same files where they lie.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
BESIDE = ("results/**/*.png", "results/**/*.gif", "results/**/*.json", "examples/**/*.py", "examples/**/*.toml")
FIELD = re.compile(r"(?P<names>\*{0,2}\w+(?:, \w+)*)(?:\n? {2,})(?=\S)")  # "rows   how many to draw"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Copies figures, results and examples to their places beside the pages."""
    for pattern in BESIDE:
        for path in sorted(ROOT.glob(pattern)):
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Shortens links out of docs/: the site's pages lie one folder higher than their sources."""
    return re.sub(r"(\]\(|src=\")\.\./", r"\1", markdown)


class FieldLists(griffe.Extension):
    """Gives mkdocstrings the lists of arguments and fields in our docstrings as Google-style sections."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            kind = "Args" if obj.is_function else "Attributes"
            paragraphs = obj.docstring.value.split("\n\n")
            obj.docstring.value = "\n\n".join(as_google(paragraph, kind) for paragraph in paragraphs)


def as_google(paragraph: str, kind: str) -> str:
    """A paragraph as mkdocstrings reads it: a list of fields as a section, a doctest as code, others as they are."""
    if paragraph.startswith(">>>"):
        return f"```pycon\n{paragraph}\n```"
    entries = re.split(r"\n(?=\S)", paragraph)
    fields = [FIELD.match(entry) for entry in entries]
    if not all(fields):
        return paragraph
    lines = [f"{kind}:"]
    for entry, field in zip(entries, fields, strict=True):
        assert field is not None
        text = " ".join(entry[field.end() :].split())
        lines += [f"    {name}: {text}" for name in field["names"].split(", ")]
    return "\n".join(lines)
