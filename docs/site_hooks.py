"""Hooks of the documentation site: mkdocs calls the functions whose names begin with on_, griffe the class.

On GitHub, the same pages link to the same files where they lie.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
BESIDE = (
    "experiments/**/*.md",
    "experiments/**/*.png",
    "experiments/**/*.gif",
    "experiments/**/*.json",
    "examples/**/*.md",
    "examples/**/*.png",
    "examples/**/*.py",
    "examples/**/*.toml",
)
FIELD = re.compile(r"(?P<names>\*{0,2}\w+(?:, \w+)*)(?:\n? {2,})(?=\S)")  # "rows   how many to draw"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds notebooks, the pages of experiments, and figures, results and examples at their places beside the pages."""
    for path in sorted((ROOT / "docs").glob("*.ipynb")):
        files.append(
            File.generated(config, f"{path.stem}.md", content=as_markdown(json.loads(path.read_text("utf-8"))))
        )
    for pattern in BESIDE:
        for path in sorted(ROOT.glob(pattern)):
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Shortens links out of docs/ and into it: the site has these pages one folder higher than their sources."""
    if page.file.src_uri.startswith(("experiments/", "examples/")):
        return re.sub(r"(\]\((?:\.\./)+)docs/", r"\1", markdown)
    return re.sub(r"(\]\(\w+)\.ipynb", r"\1.md", re.sub(r"(\]\(|src=\")\.\./", r"\1", markdown))


def as_markdown(notebook: dict[str, Any]) -> str:
    """An executed notebook as a page; the page of a report that is shown inside it is a figure here."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", ()):
            shown = "".join(output["data"]["text/html"])
            framed = "![The page of a report](images/notebook-page.png)" if "<iframe" in shown else ""
            parts.append(framed or f"<div>{shown}</div>")
    return "\n\n".join(parts)


class FieldLists(griffe.Extension):
    """Gives mkdocstrings the arguments and fields that our docstrings and comments describe, as Google-style text."""

    def on_function(self, *, func: griffe.Function, **kwargs: Any) -> None:
        if func.docstring is not None:
            func.docstring.value = sections(func.docstring.value, "Args")

    def on_class_members(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        if cls.docstring is None:
            return
        kind = "Args" if any("dataclass" in str(decorator.value) for decorator in cls.decorators) else "Attributes"
        text = sections(cls.docstring.value, kind)
        fields = [f"    {name}: {said}" for name, member in cls.attributes.items() if (said := comment(member))]
        if fields and f"{kind}:\n" not in text:
            text += "\n\n" + "\n".join([f"{kind}:", *fields])
        cls.docstring.value = text


def comment(attribute: griffe.Attribute) -> str:
    """The comment behind a field, up to the end of its line; empty for a private field or one without."""
    line = attribute.lines[-1] if attribute.lines else ""
    found = re.search(r" {2}# (.+)", line)
    return found[1] if found and not attribute.name.startswith("_") else ""


def sections(text: str, kind: str) -> str:
    """A docstring as mkdocstrings reads it: lists of fields as sections, doctests as code, the rest as it is."""
    return "\n\n".join(section(paragraph, kind) for paragraph in text.split("\n\n"))


def section(paragraph: str, kind: str) -> str:
    if paragraph.startswith(">>>"):
        return f"```pycon\n{paragraph}\n```"
    entries = re.split(r"\n(?=\S)", paragraph)
    fields = [FIELD.match(entry) for entry in entries]
    lines = [f"{kind}:"]
    for entry, field in zip(entries, fields, strict=True):
        if field is None:
            return paragraph
        text = " ".join(entry[field.end() :].split())
        lines += [f"    {name}: {text}" for name in field["names"].split(", ")]
    return "\n".join(lines)
