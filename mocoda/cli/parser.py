"""From the words of a command line to a command: tyro reads them, and its errors become one line.

A command is a frozen dataclass. Its fields are its options, and their docstrings the help texts. Where a recipe, an
agent or another choice is named on the command line, that is looked up first, so that its settings are options too.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import MISSING, fields, is_dataclass, replace
from difflib import get_close_matches
from functools import partial
from inspect import getdoc
from itertools import takewhile
from typing import Annotated, Any, ClassVar, TypeVar

import tyro
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructFieldSpec, StructTypeInfo

from mocoda.engine.errors import InputError

T = TypeVar("T")
Flat = Annotated[T, tyro.conf.arg(name="")]  # a dataclass whose fields are options of the command, without a prefix
Maybe = Annotated[T | None, tyro.conf.arg(help_behavior_hint="")]  # an option that may be left out


class Command:
    """Base class of the commands; a subclass is a frozen dataclass.

    kind  the option that decides which `settings` there are, such as "recipe"; "" where there is none
    """

    kind: ClassVar[str] = ""

    @classmethod
    def defaults(cls, words: Sequence[str]) -> Mapping[str, Any]:
        """Defaults that depend on other words of the same call, by field."""
        return {}

    def run(self) -> None:
        """Execute the command."""
        raise NotImplementedError


Kind = TypeVar("Kind", bound=Command)


def parse(command: type[Kind], words: Sequence[str], name: str) -> Kind:
    """The command called `name` with the options that the words give it."""
    required = (field for field in fields(command) if field.default is field.default_factory is MISSING)  # type: ignore[arg-type]
    default = command(**{field.name: tyro.MISSING for field in required} | dict(command.defaults(words)))
    markers = (tyro.conf.SuppressFixed, tyro.conf.DisallowNone, tyro.conf.PositionalMetavarFromFieldName)

    def read(words: Sequence[str]) -> Kind:
        title, about = f"mocoda {name}", getdoc(command)
        return tyro.cli(
            command, prog=title, description=about, args=words, default=default, config=markers, registry=_REGISTRY
        )

    if {"-h", "--help"}.intersection(words):
        return read(["--help"])  # alone, or tyro leaves out positional arguments that it has read
    printed = io.StringIO()
    try:
        with redirect_stderr(printed):
            return read(words)
    except SystemExit as ended:
        error: BaseException | None = ended
    while error is not None:  # an InputError of a dataclass is behind tyro's own error
        if isinstance(error, InputError):
            raise error
        error = error.__context__
    with redirect_stdout(io.StringIO()) as help_text, suppress(SystemExit):
        read(["--help"])
    known = set(re.findall(r"(?<![\w-])--[a-z][\w.-]*\w", help_text.getvalue()))
    given = [word.partition("=")[0].replace("_", "-") for word in words if word.startswith("--")]
    for option in given:
        if option not in known:
            near = get_close_matches(option, sorted(known), n=1, cutoff=0.75)
            kind = command.kind
            choice = f" with --{kind} {value_of(kind, words, getattr(default, kind))}" if kind else ""
            hint = f"Did you mean {near[0]}?" if near else f"`mocoda {name}{choice[5:]} --help` lists its options."
            raise InputError(f"`mocoda {name}`{choice} has no option {option}. {hint}")
    raise InputError(f"{_in_one_line(printed.getvalue())} See `mocoda {name} --help`.")


def value_of(option: str, words: Sequence[str], default: str = "") -> str:
    """The value that the words give to an option such as `recipe`."""
    value = default
    for word, after in zip(words, [*words, ""][1:], strict=True):
        if word == f"--{option}" and after and not after.startswith("-"):
            value = after
        elif word.startswith(f"--{option}="):
            value = word.partition("=")[2]
    return value


def _in_one_line(box: str) -> str:
    """The first part of the box in which tyro has printed an error, without help texts, which are indented."""
    lines = [re.sub(r"^[│|] |[│|]$", "", line) for line in box.splitlines()[1:]]
    said = takewhile(lambda line: not re.match(r"[╰─-]{3}", line), lines[1 if lines[0].startswith("-") else 0 :])
    text = " ".join(" ".join(line for line in said if not line.startswith(" " * 8)).split())
    text = re.sub(r"no type matching .* Got errors: - .*?: |\[/?bold\]", "", text)
    return f"{text.rstrip('.')}."


_REGISTRY = ConstructorRegistry()
_inside: list[type] = []


@_REGISTRY.struct_rule
def _with_help(info: StructTypeInfo) -> StructConstructorSpec | None:
    """Dataclasses as tyro reads them, with the help texts of `_help`."""
    if not is_dataclass(info.type) or info.type in _inside:
        return None
    _inside.append(info.type)
    try:
        spec = ConstructorRegistry.get_struct_spec(info)
    finally:
        _inside.pop()
    if not isinstance(spec, StructConstructorSpec):
        return None
    return replace(spec, fields=tuple(replace(one, helptext=partial(_help, info.type, one)) for one in spec.fields))


def _help(kind: type, field: StructFieldSpec) -> str | None:
    """The help text of a field: its docstring, or its line `name  text` in the docstring of its class or a base."""
    if text := field.helptext() if callable(field.helptext) else field.helptext:
        return " ".join(text.split())
    for cls in kind.__mro__:
        lines = iter((getdoc(cls) or "").splitlines())
        for line in lines:
            names = re.match(r"(\w+(?:, \w+)*)  +(?=\S)", line)
            if names and field.name in names[1].split(", "):
                more = takewhile(lambda line: line.startswith("  "), lines)
                return " ".join([line[names.end() :], *map(str.strip, more)])
    return None
