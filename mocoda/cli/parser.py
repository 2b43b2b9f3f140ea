"""How a command is described and its options are read: one dataclass a command, one parser a call.

The fields of a command are its options, and their docstrings the help. Where people choose by name (a recipe, an agent,
an experiment), the name is looked up before the rest is read, so that the options are those of what they chose.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from inspect import getdoc
from itertools import takewhile
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
    UnsupportedTypeAnnotationError,
)

from mocoda.engine.errors import InputError
from mocoda.engine.registry import Registry

T = TypeVar("T")
Flat = Annotated[T, tyro.conf.arg(name="")]  # a dataclass whose fields are options of the command, without a prefix


class Help(NamedTuple):
    """The help of an option, in the annotation of its type; words such as {tasks} stand for a registry's choices."""

    text: str


class Command:
    """A command of the command line; a subclass is a frozen dataclass.

    kind      what people choose by name, if they do
    settings  what they chose; its fields are options too
    """

    kind: ClassVar[str] = ""
    settings: Any

    @classmethod
    def defaults(cls, words: Sequence[str]) -> dict[str, Any]:
        """The defaults that depend on other words of the same call: by field."""
        return {}

    @property
    def choice(self) -> str:
        """What was chosen, for messages."""
        return ""

    def run(self) -> None:
        """Do what the options say."""
        raise NotImplementedError


Kind = TypeVar("Kind", bound=Command)


def parse(command: type[Kind], words: Sequence[str], name: str) -> Kind:
    """The command called `name` with the options that the words give it."""
    defaults = command.defaults(words)
    required = (field for field in fields(command) if field.default is field.default_factory is MISSING)  # type: ignore[arg-type]
    default = command(**{field.name: tyro.MISSING for field in required} | defaults)
    if {"-h", "--help"}.intersection(words):
        words = ["--help"]  # alone, or tyro leaves out the positional arguments that it has read
    else:
        _check_options(default, words, name)
    try:
        return tyro.cli(
            command,
            prog=f"mocoda {name}",
            description=getdoc(command),
            args=list(words),
            default=default,
            config=(tyro.conf.SuppressFixed, tyro.conf.DisallowNone, tyro.conf.PositionalMetavarFromFieldName),
            registry=_REGISTRY,
        )
    except _RefusedError as error:
        raise InputError(str(error)) from None


def value_of(option: str, words: Sequence[str], default: str) -> str:
    """The value that the words give to an option such as --recipe."""
    value = default
    for word, after in zip(words, [*words, ""][1:], strict=True):
        if word == option and after and not after.startswith("-"):
            value = after
        elif word.startswith(f"{option}="):
            value = word.partition("=")[2]
    return value


def option_names(settings: object, prefix: str = "") -> Iterator[str]:
    """The options that set the fields of a dataclass; one of several values ends in a point."""
    hints = get_type_hints(type(settings), include_extras=True)
    for field in fields(settings):  # type: ignore[arg-type]
        value, notes = getattr(settings, field.name), getattr(hints[field.name], "__metadata__", ())
        if callable(value) or tyro.conf.Positional in notes:
            continue
        name = prefix + field.name.replace("_", "-")
        if is_dataclass(value):
            flat = any(getattr(note, "name", None) == "" for note in notes)
            yield from option_names(value, prefix if flat else f"{name}.")
        elif isinstance(value, dict) or (isinstance(value, tuple) and any(map(is_dataclass, value))):
            yield f"--{name}."
        else:
            yield f"--{name}"
            if isinstance(value, bool):
                yield f"--{prefix}no-{field.name.replace('_', '-')}"


def _check_options(default: Command, words: Sequence[str], name: str) -> None:
    """Refuses an option that the command, or what was chosen for it, does not have."""
    known = list(option_names(default))
    for word in words:
        option = word.partition("=")[0].replace("_", "-")
        if not option.startswith("--") or option in known:
            continue
        if any(option.startswith(group) for group in known if group.endswith(".")):
            continue
        near = get_close_matches(option, known, n=1, cutoff=0.75)
        if near:
            raise InputError(f"`mocoda {name}` has no option {option}. Did you mean {near[0]}?")
        if not default.kind:
            raise InputError(f"`mocoda {name}` has no option {option}; `mocoda {name} --help` lists those it has.")
        own = ", ".join(own for own in option_names(default.settings) if "--no-" not in own) or "none"
        raise InputError(
            f"`mocoda {name}` has no option {option} with {default.kind} {default.choice!r}, whose own options are: "
            f"{own}."
        )


class _RefusedError(Exception):
    """An InputError of a dataclass, which tyro would print in a frame of its own."""


# Words in help texts that stand for the choices of a registry, which is imported only if the help is printed.
CHOICES = {
    "{formats}": ("mocoda.data.formats", "readable_formats"),
    "{targets}": ("mocoda.data.formats", "writable_formats"),
    "{tasks}": ("mocoda.tasks", "TASKS"),
    "{recipes}": ("mocoda.parents", "RECIPES"),
    "{agents}": ("mocoda.agents", "AGENTS"),
    "{experiments}": ("experiments", "EXPERIMENTS"),
}
_REGISTRY = ConstructorRegistry()
_inside: list[type] = []


@_REGISTRY.struct_rule
def _dataclasses(info: StructTypeInfo) -> StructConstructorSpec | None:
    """As tyro reads dataclasses, but for the errors, and the choices in help texts."""
    if not is_dataclass(info.type) or info.type in _inside:
        return None
    _inside.append(info.type)
    try:
        spec = ConstructorRegistry.get_struct_spec(info)
    finally:
        _inside.pop()
    if not isinstance(spec, StructConstructorSpec):
        return None
    described = tuple(replace(field, helptext=partial(_help, info.type, field)) for field in spec.fields)
    return replace(spec, instantiate=_refusing(spec.instantiate), fields=described)


def _help(kind: type, field: StructFieldSpec) -> str | None:
    """The help of a field: that of its type, its docstring or comment, or its line in the docstring of its class."""
    notes = [note.text for note in getattr(field.type, "__metadata__", ()) if isinstance(note, Help)]
    text = notes[0] if notes else field.helptext() if callable(field.helptext) else field.helptext
    text = text or _line_in_docstring(kind, field.name)
    if text is None:
        return None
    for word, (module, name) in CHOICES.items():
        if word in text:
            choices = getattr(import_module(module), name)
            text = text.replace(word, choices.choices if isinstance(choices, Registry) else choices())
    return " ".join(text.split())


def _line_in_docstring(kind: type, name: str) -> str | None:
    """What the docstrings of a class and its bases say of a field, in lines such as `name  text`."""
    for cls in kind.__mro__:
        lines = iter((getdoc(cls) or "").splitlines())
        for line in lines:
            names = re.match(r"(\w+(?:, \w+)*)  +(?=\S)", line)
            if names and name in names[1].split(", "):
                more = takewhile(lambda line: line.startswith("  "), lines)
                return " ".join([line[names.end() :], *map(str.strip, more)])
    return None


def _refusing(make: Callable[..., Any]) -> Callable[..., Any]:
    def made(**values: Any) -> Any:
        try:
            return make(**values)
        except InputError as error:
            raise _RefusedError(str(error)) from None

    return made


@_REGISTRY.primitive_rule
def _optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | UnsupportedTypeAnnotationError | None:
    """A value or nothing: the help names the value alone, and the word none stands for nothing."""
    kinds = get_args(info.type)
    if get_origin(info.type) is tuple or len(kinds) != 2 or type(None) not in kinds:
        return None
    (kind,) = (kind for kind in kinds if kind is not type(None))
    spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(kind, info.markers))
    if not isinstance(spec, PrimitiveConstructorSpec):
        return spec
    return replace(
        spec,
        instance_from_str=lambda words: None if words == ["none"] else spec.instance_from_str(words),
        is_instance=lambda value: value is None or spec.is_instance(value),
        str_from_instance=lambda value: ["none"] if value is None else spec.str_from_instance(value),
    )
