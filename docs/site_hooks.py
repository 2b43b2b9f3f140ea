"""docs/*.md -> pages of the site: what lies beside docs/ comes along, and the API is read off the code.

mkdocs calls the functions that begin with on_. On GitHub, the same pages link to the same files where they lie.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import mocoda

ROOT = Path(__file__).parents[1]
BESIDE = ("results/**/*.png", "results/**/*.gif", "results/**/*.json", "examples/**/*.py", "examples/**/*.toml")
LINE = 100  # characters, beyond which a signature is broken
API = "<!-- the API -->"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Figures, results and examples keep their places beside the pages."""
    for pattern in BESIDE:
        for path in sorted(ROOT.glob(pattern)):
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Pages lie one folder higher than their sources, which reach out of docs/ by `../`."""
    reached = re.sub(r"(\]\(|src=\")\.\./", r"\1", markdown)
    return reached.replace(API, "\n".join(_api())) if API in reached else reached


def _api() -> Iterator[str]:
    """Every public name in the order the data flows, below the arrow of its module."""
    told = ""
    for name, home in mocoda._HOME.items():
        module = import_module(f"mocoda.{home}")
        if home != told:
            told, arrow = home, _paragraphs(module)[0]
            yield f"\n## {home.replace('.', '/')}\n\n{arrow}\n"
        yield from _entry(name, getattr(mocoda, name))


def _entry(name: str, value: Any) -> Iterator[str]:
    first, *rest = _paragraphs(value)
    yield f"\n### {name}\n\n```python\n{_signed(name, value)}\n```\n\n{first}\n"
    if rest:
        yield "```text\n" + "\n\n".join(rest) + "\n```\n"
    if inspect.isclass(value):
        members = list(_members(value))
        if members:
            yield "\n| | |\n|---|---|"
            yield from (f"| `{signed}` | {told} |" for signed, told in members)


def _members(kind: type) -> Iterator[tuple[str, str]]:
    """Its public methods and properties as written in its own body, each with the first paragraph about it."""
    for name, member in vars(kind).items():
        plain = inspect.unwrap(getattr(member, "__func__", getattr(member, "fget", getattr(member, "func", member))))
        if name.startswith("_") or not inspect.isfunction(plain) or not plain.__doc__:
            continue
        signed = f".{name}" if plain is not member and not hasattr(member, "__func__") else _signed(f".{name}", plain)
        told = " ".join(_paragraphs(plain)[0].split())
        yield " ".join(signed.split()).replace("( ", "(").replace(", )", ")"), told.replace("|", "\\|")


def _paragraphs(value: Any) -> list[str]:
    return (inspect.getdoc(value) or "").split("\n\n")


class _Bare(str):
    """A text that shows without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _as_written(parameter: inspect.Parameter) -> inspect.Parameter:
    """With the annotation as in the source, and a function that is its default by name."""
    default = parameter.default
    if inspect.isfunction(default):
        default = _Bare(default.__name__)
    annotation = parameter.annotation
    return parameter.replace(
        default=default, annotation=annotation if annotation is parameter.empty else _Bare(annotation)
    )


def _signed(name: str, value: Callable[..., Any]) -> str:
    """A call as in the source; one argument a line where it is long. Of what nobody calls, the name."""
    if getattr(value, "_is_protocol", False) or (inspect.isclass(value) and issubclass(value, Exception)):
        return f"class {name}"
    signature = inspect.signature(value)
    shown = [_as_written(p) for p in signature.parameters.values() if p.name not in ("self", "cls")]
    back = signature.return_annotation
    arrow = "" if back in (signature.empty, None, "None") else f" -> {_Bare(back)}"
    text = str(signature.replace(parameters=shown, return_annotation=signature.empty))
    if len(name + text + arrow) > LINE:
        starred = any(p.kind is p.VAR_POSITIONAL for p in shown)
        lines = []
        for p in shown:
            if p.kind is p.KEYWORD_ONLY and not starred:
                lines.append("*")
                starred = True
            lines.append(str(p))
        text = "(\n" + "".join(f"    {line},\n" for line in lines) + ")"
    return name + text + arrow
